//! A description with all names resolved: constants have values, lists are told from other optional
//! data, and every type has its Rust name. Made by the resolver, read by the emitter and by programs that
//! want more from a description than its Rust types.

pub use crate::ast::Basic;
use std::collections::BTreeSet;

/// A whole description, in the order of its file; types without a name of their own come before the
/// type they stand in.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// `const` definitions.
    pub constants: Vec<Constant>,
    /// Types.
    pub types: Vec<Type>,
    /// Programs.
    pub programs: Vec<Program>,
}

/// `const NAME = VALUE;`.
#[derive(Clone, Debug)]
pub struct Constant {
    /// Name in the description.
    pub name: String,
    /// Name in Rust.
    pub rust: String,
    /// Value.
    pub value: Literal,
}

/// The value of a constant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Literal {
    /// A number of at most 64 bits.
    Number(i128),
    /// The characters of a string.
    Text(String),
}

/// A type with a name.
#[derive(Clone, Debug)]
pub struct Type {
    /// Name in the description.
    pub name: String,
    /// Name in Rust, without its lifetime.
    pub rust: String,
    /// Definition.
    pub kind: Kind,
    /// It borrows from the message: its Rust type has a lifetime.
    pub borrows: bool,
    /// It holds registered memory, so it cannot be copied.
    pub owns: bool,
    /// Bytes of its Rust value, rounded up.
    pub decoded_bytes: u64,
}

/// The definition of a type.
#[derive(Clone, Debug)]
pub enum Kind {
    /// `enum`. Of several enumerators with one value the first is the Rust variant; the others are constants.
    Enum(Vec<Enumerator>),
    /// `struct`. With `is_node` its last field, which is not among `fields`, is the link to the next
    /// node of a list of the same type.
    Struct {
        /// The fields.
        fields: Vec<Field>,
        /// It is a node of a list.
        is_node: bool,
    },
    /// `union`.
    Union {
        /// Type of the discriminant.
        discriminant: Ty,
        /// Arms, one for each case.
        arms: Vec<Arm>,
        /// The default arm, if there is one; its inner `None` is void.
        default: Option<Option<Field>>,
    },
    /// `typedef`.
    Alias(Ty),
}

impl Kind {
    /// The types of the fields and arms.
    pub fn uses(&self) -> Vec<Ty> {
        match self {
            Self::Enum(_) => Vec::new(),
            Self::Alias(ty) => vec![ty.clone()],
            Self::Struct { fields, .. } => fields.iter().map(|field| field.ty.clone()).collect(),
            Self::Union { arms, default, discriminant } => {
                let bodies = arms.iter().filter_map(|arm| arm.body.as_ref());
                let bodies = bodies.chain(default.iter().flatten()).map(|field| field.ty.clone());
                bodies.chain([discriminant.clone()]).collect()
            }
        }
    }
}

/// An enumerator.
#[derive(Clone, Debug)]
pub struct Enumerator {
    /// Name in the description.
    pub name: String,
    /// Name of the Rust variant or constant.
    pub rust: String,
    /// Value.
    pub value: i32,
}

/// A field of a struct, or the declaration in the arm of a union.
#[derive(Clone, Debug)]
pub struct Field {
    /// Name in the description.
    pub name: String,
    /// Name in Rust.
    pub rust: String,
    /// Type.
    pub ty: Ty,
}

/// One case of a union.
#[derive(Clone, Debug)]
pub struct Arm {
    /// Name of the Rust variant.
    pub rust: String,
    /// The case as a Rust pattern and expression.
    pub pattern: String,
    /// Value of the discriminant.
    pub value: i64,
    /// Declaration; `None` is void.
    pub body: Option<Field>,
}

/// A size or bound, in bytes or items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Its value; `u32::MAX` where the description has none.
    pub value: u32,
    /// Rust name of the constant that it was given by.
    pub constant: Option<String>,
}

/// A use of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ty {
    /// A type that needs no definition.
    Basic(Basic),
    /// A type of the model, by its index.
    Named(usize),
    /// `opaque[n]`.
    FixedOpaque(Bound),
    /// `opaque<n>`.
    Opaque(Bound),
    /// `opaque<n>`, eligible for direct placement.
    Placed(Bound),
    /// `string<n>` of UTF-8.
    Text(Bound),
    /// `string<n>` of any bytes.
    ByteText(Bound),
    /// An array of fixed length.
    Fixed(Box<Self>, Bound),
    /// An array of variable length.
    Counted(Box<Self>, Bound),
    /// Optional data.
    Optional(Box<Self>),
    /// A list of nodes of this type, by its index; may be empty.
    List(usize),
    /// A node of this type, by its index, and those it links to.
    Chain(usize),
    /// Optional data of this type, by its index, which has the type that uses it among its parts.
    Branch(usize),
}

/// `program`.
#[derive(Clone, Debug)]
pub struct Program {
    /// Name in the description.
    pub name: String,
    /// Number.
    pub number: u32,
    /// Versions.
    pub versions: Vec<Version>,
}

/// `version`.
#[derive(Clone, Debug)]
pub struct Version {
    /// Name in the description.
    pub name: String,
    /// Name of its Rust module.
    pub rust: String,
    /// Number.
    pub number: u32,
    /// Procedures.
    pub procedures: Vec<Procedure>,
}

/// A procedure.
#[derive(Clone, Debug)]
pub struct Procedure {
    /// Name in the description.
    pub name: String,
    /// Name of its marker type in Rust.
    pub rust: String,
    /// Name of its Rust method.
    pub method: String,
    /// Number.
    pub number: u32,
    /// Arguments; none is void.
    pub arguments: Vec<Ty>,
    /// Result; `None` is void.
    pub result: Option<Ty>,
}

impl Model {
    /// The Rust type of a use, with the lifetime `'a` where it borrows.
    pub fn rust(&self, ty: &Ty) -> String {
        self.rust_at(ty, "'a", "", "")
    }

    /// As [`Model::rust`], with another lifetime, and with the paths of types of the model and of
    /// `spinrpc_xdr`, such as `super::` and `spinrpc_xdr::`.
    pub fn rust_at(&self, ty: &Ty, lifetime: &str, model: &str, library: &str) -> String {
        let named = |index: usize| self.rust_named(index, lifetime, model);
        let inner = |ty: &Ty| self.rust_at(ty, lifetime, model, library);
        let generic = |name: &str, arguments: &[&str], bound: &Bound| {
            let bound = (*bound != Bound::NONE).then(|| self.rust_bound(bound, model));
            let arguments: Vec<_> = arguments.iter().copied().chain(bound.as_deref()).collect();
            format!("{library}{name}<{}>", arguments.join(", "))
        };
        match ty {
            Ty::Basic(Basic::UnsignedChar) => format!("{library}UnsignedChar"),
            Ty::Basic(basic) => basic.rust().to_owned(),
            Ty::Named(index) => named(*index),
            Ty::FixedOpaque(bound) => format!("[u8; {}]", bound.rust_usize(model)),
            Ty::Opaque(bound) | Ty::ByteText(bound) => generic("Opaque", &[lifetime], bound),
            Ty::Placed(bound) => generic("Placed", &[lifetime], bound),
            Ty::Text(bound) => generic("Text", &[lifetime], bound),
            Ty::Fixed(item, bound) => format!("[{}; {}]", inner(item), bound.rust_usize(model)),
            Ty::Counted(item, bound) if self.owns(item) => {
                generic("PlacedArray", &[&inner(item)], bound)
            }
            Ty::Counted(item, bound) => generic("Array", &[lifetime, &inner(item)], bound),
            Ty::Optional(item) => format!("Option<{}>", inner(item)),
            Ty::List(node) => format!("{library}List<{lifetime}, {}>", named(*node)),
            Ty::Chain(node) => format!("{library}Chain<{lifetime}, {}>", named(*node)),
            Ty::Branch(index) => format!("{library}Branch<{lifetime}, {}>", named(*index)),
        }
    }

    /// The type that a use is of, through typedefs. Those of a cycle, which is refused, end anywhere.
    pub(crate) fn basis<'t>(&'t self, ty: &'t Ty) -> &'t Ty {
        let alias = |ty: &Ty| match &self.types[ty.as_named()?].kind {
            Kind::Alias(target) => Some(target),
            _ => None,
        };
        let uses = std::iter::successors(Some(ty), |ty| alias(ty));
        uses.take(self.types.len() + 1).last().unwrap_or(ty)
    }

    /// The bound as a generic argument, where the name of a type would be taken for that type.
    fn rust_bound(&self, bound: &Bound, model: &str) -> String {
        let Some(name) = &bound.constant else { return bound.value.to_string() };
        match model.is_empty() && self.types.iter().all(|found| found.rust != *name) {
            true => name.clone(),
            false => format!("{{ {model}{name} }}"),
        }
    }

    fn rust_named(&self, index: usize, lifetime: &str, model: &str) -> String {
        let found = &self.types[index];
        match found.borrows {
            true => format!("{model}{}<{lifetime}>", found.rust),
            false => format!("{model}{}", found.rust),
        }
    }

    /// The Rust type may own registered memory: it has data for direct placement.
    pub fn owns(&self, ty: &Ty) -> bool {
        match ty {
            Ty::Placed(_) => true,
            Ty::Named(index) => self.types[*index].owns,
            Ty::Counted(item, _) | Ty::Optional(item) => self.owns(item),
            _ => false,
        }
    }

    /// The Rust type has a default: zero, nothing, or empty.
    pub fn has_default(&self, ty: &Ty) -> bool {
        // The standard library has defaults of arrays up to this length.
        const ITEMS_MAX: u32 = 32;
        match ty {
            Ty::Named(index) => match &self.types[*index].kind {
                Kind::Enum(_) | Kind::Union { .. } => false,
                kind => kind.uses().iter().all(|ty| self.has_default(ty)),
            },
            Ty::FixedOpaque(bound) => bound.value <= ITEMS_MAX,
            Ty::Fixed(item, bound) => bound.value <= ITEMS_MAX && self.has_default(item),
            Ty::Placed(_) | Ty::Chain(_) => false,
            _ => true,
        }
    }

    /// Equality of the Rust type is an equivalence: it has neither floats nor registered memory.
    pub fn has_eq(&self, ty: &Ty) -> bool {
        let has_no_eq =
            |ty: &Ty| matches!(ty, Ty::Basic(Basic::Float | Basic::Double) | Ty::Placed(_));
        !self.any_part(ty, &has_no_eq)
    }

    /// `is` holds for the use or one of its parts.
    pub fn any_part(&self, ty: &Ty, is: &impl Fn(&Ty) -> bool) -> bool {
        let (mut seen, mut left) = (BTreeSet::new(), vec![ty.clone()]);
        while let Some(ty) = left.pop() {
            if is(&ty) {
                return true;
            }
            match ty {
                Ty::Named(index) | Ty::List(index) | Ty::Chain(index) | Ty::Branch(index)
                    if seen.insert(index) =>
                {
                    left.extend(self.types[index].kind.uses());
                }
                Ty::Fixed(item, _) | Ty::Counted(item, _) | Ty::Optional(item) => left.push(*item),
                _ => {}
            }
        }
        false
    }

    /// The use of the type at `index` by its name: a node of a list comes with those it links to.
    pub fn use_of(&self, index: usize) -> Ty {
        match self.types[index].kind {
            Kind::Struct { is_node: true, .. } => Ty::Chain(index),
            _ => Ty::Named(index),
        }
    }
}

impl Ty {
    /// The item of the arrays and optional data, in each other, that this is; or this itself.
    pub(crate) fn innermost(&self) -> &Self {
        match self {
            Self::Fixed(item, _) | Self::Counted(item, _) | Self::Optional(item) => {
                item.innermost()
            }
            _ => self,
        }
    }

    pub(crate) fn as_named(&self) -> Option<usize> {
        match self {
            Self::Named(index) => Some(*index),
            _ => None,
        }
    }
}

impl Bound {
    /// No bound but that of the count word.
    pub const NONE: Self = Self { value: u32::MAX, constant: None };

    fn rust_usize(&self, model: &str) -> String {
        let constant = self.constant.as_ref().map(|name| format!("{model}{name} as usize"));
        constant.unwrap_or_else(|| self.value.to_string())
    }
}

impl Basic {
    /// The Rust type; that of `unsigned char` is one of `spinrpc_xdr`.
    pub fn rust(self) -> &'static str {
        match self {
            Self::Int => "i32",
            Self::UnsignedInt => "u32",
            Self::Hyper => "i64",
            Self::UnsignedHyper => "u64",
            Self::Float => "f32",
            Self::Double => "f64",
            Self::Bool => "bool",
            Self::Char => "i8",
            Self::UnsignedChar => "UnsignedChar",
            Self::Short => "i16",
            Self::UnsignedShort => "u16",
        }
    }
}
