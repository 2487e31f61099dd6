//! A description as it is written, before names are resolved. Made by the parser, read by the
//! resolver.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) text: String,
    pub(crate) at: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Number(i128, usize),
    Named(Name),
}

impl Value {
    pub(crate) fn at(&self) -> usize {
        let (Self::Number(_, at) | Self::Named(Name { at, .. })) = self;
        *at
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Definition {
    Constant { name: Name, value: Value },
    TextConstant { name: Name, text: String },
    Type { name: Name, body: Body },
    Program(Program),
}

#[derive(Clone, Debug)]
pub(crate) enum Body {
    Enum(Vec<(Name, Option<Value>)>),
    Struct(Vec<Declaration>),
    Union(Box<Union>),
    Alias(Declaration),
}

impl Body {
    pub(crate) fn declarations_mut(&mut self) -> Vec<&mut Declaration> {
        match self {
            Self::Enum(_) => Vec::new(),
            Self::Alias(alias) => vec![alias],
            Self::Struct(fields) => fields.iter_mut().collect(),
            Self::Union(union) => {
                let bodies = union.arms.iter_mut().filter_map(|arm| arm.body.as_mut());
                let bodies = bodies.chain(union.default.iter_mut().flatten());
                std::iter::once(&mut union.discriminant).chain(bodies).collect()
            }
        }
    }
}

/// `union switch (discriminant) { ... }`.
#[derive(Clone, Debug)]
pub(crate) struct Union {
    pub(crate) discriminant: Declaration,
    pub(crate) arms: Vec<Arm>,
    /// The default arm, if there is one; its inner `None` is void.
    pub(crate) default: Option<Option<Declaration>>,
}

/// `case VALUE: case VALUE: declaration;`. A body of `None` is void.
#[derive(Clone, Debug)]
pub(crate) struct Arm {
    pub(crate) cases: Vec<Value>,
    pub(crate) body: Option<Declaration>,
}

#[derive(Clone, Debug)]
pub(crate) struct Declaration {
    pub(crate) name: Name,
    pub(crate) spec: Spec,
    pub(crate) shape: Shape,
    pub(crate) notes: Notes,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Notes {
    /// Eligible for direct placement.
    pub(crate) ddp: bool,
    /// A string whose bytes need not be UTF-8.
    pub(crate) bytes: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Shape {
    One,
    Fixed(Value),
    Counted(Option<Value>),
    Optional,
}

#[derive(Clone, Debug)]
pub(crate) enum Spec {
    Basic(Basic),
    Opaque,
    Text,
    Named(Name),
    /// A type without a name of its own.
    Inline(Box<Body>),
}

/// The types that need no definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basic {
    /// `int`.
    Int,
    /// `unsigned int`.
    UnsignedInt,
    /// `hyper`.
    Hyper,
    /// `unsigned hyper`.
    UnsignedHyper,
    /// `float`.
    Float,
    /// `double`.
    Double,
    /// `bool`.
    Bool,
    /// `char`.
    Char,
    /// `unsigned char`.
    UnsignedChar,
    /// `short`.
    Short,
    /// `unsigned short`.
    UnsignedShort,
}

/// `program NAME { ... } = NUMBER;`.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) name: Name,
    pub(crate) number: Value,
    pub(crate) versions: Vec<Version>,
}

/// `version NAME { ... } = NUMBER;`.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    pub(crate) name: Name,
    pub(crate) number: Value,
    pub(crate) procedures: Vec<Procedure>,
}

/// `RESULT NAME(ARGUMENTS) = NUMBER;`. `None` is void.
#[derive(Clone, Debug)]
pub(crate) struct Procedure {
    pub(crate) name: Name,
    pub(crate) number: Value,
    pub(crate) result: Option<Spec>,
    pub(crate) arguments: Vec<Spec>,
}
