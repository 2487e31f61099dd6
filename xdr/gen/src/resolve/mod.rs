//! Resolves the names of a description: values of constants, types of fields, lists. Refuses what has no
//! meaning, or none that can be decoded without allocation and within a bounded stack.

mod check;
mod lift;
mod links;
mod programs;
mod unions;

use crate::ast::{Basic, Body, Declaration, Definition, Name, Shape, Spec, Value};
use crate::error::Mistake;
use crate::model::{Bound, Constant, Enumerator, Field, Kind, Model, Ty, Type};
use crate::names;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Declarations that are annotated from outside of the file: `type.field`, or the name of a typedef.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outside {
    pub(crate) ddp: BTreeSet<String>,
    pub(crate) bytes: BTreeSet<String>,
}

/// A number with a name: what Rust calls it, if that can stand for a bound.
struct Number {
    value: i128,
    rust: Option<String>,
}

/// The resolver's tables.
pub(crate) struct Resolver<'o> {
    outside: &'o Outside,
    numbers: BTreeMap<String, Number>,
    types: BTreeMap<String, usize>,
    /// Place of each type's name, by index.
    places: Vec<Range<usize>>,
    model: Model,
    /// Names of `outside` that were found.
    met: BTreeSet<String>,
}

/// Resolves all `definitions`.
pub(crate) fn resolve(definitions: Vec<Definition>, outside: &Outside) -> Result<Model, Mistake> {
    let (numbers, types) = (BTreeMap::new(), BTreeMap::new());
    let (places, model) = (Vec::new(), Model::default());
    let mut resolver = Resolver { outside, numbers, types, places, model, met: BTreeSet::new() };
    for (name, value) in [("FALSE", 0), ("TRUE", 1)] {
        resolver.numbers.insert(name.to_owned(), Number { value, rust: None });
    }
    let (mut bodies, mut programs) = (Vec::new(), Vec::new());
    for definition in definitions {
        match definition {
            Definition::Constant { name, value } => resolver.constant(&name, &value)?,
            Definition::Type { name, body } => {
                for (name, body) in lift::flat(name, body)? {
                    resolver.declare(&name, &body)?;
                    bodies.push((name, body));
                }
            }
            Definition::Program(program) => programs.push(program),
        }
    }
    for (index, (name, body)) in bodies.iter().enumerate() {
        resolver.model.types[index].kind = resolver.kind(name, body)?;
    }
    links::find(&mut resolver.model);
    check::types(&mut resolver.model, &resolver.places)?;
    for program in &programs {
        let program = resolver.program(program)?;
        resolver.model.programs.push(program);
    }
    check::names(&resolver.model, &resolver.places, &programs)?;
    resolver.outside_is_met()?;
    Ok(resolver.model)
}

fn twice(name: &Name) -> Mistake {
    let problem = format!("`{}` is defined twice", name.text);
    Mistake::new(name.at.clone(), problem, "rename one of the two")
}

impl Resolver<'_> {
    fn constant(&mut self, name: &Name, value: &Value) -> Result<(), Mistake> {
        let value = self.number(value)?;
        let rust = names::screaming(&name.text);
        self.define(name, value, u32::try_from(value).is_ok().then(|| rust.clone()))?;
        self.model.constants.push(Constant { name: name.text.clone(), rust, value });
        Ok(())
    }

    fn define(&mut self, name: &Name, value: i128, rust: Option<String>) -> Result<(), Mistake> {
        match self.numbers.insert(name.text.clone(), Number { value, rust }) {
            None => Ok(()),
            Some(_) => Err(twice(name)),
        }
    }

    /// Notes a type whose definition is resolved later, and the enumerators, which are constants.
    fn declare(&mut self, name: &Name, body: &Body) -> Result<(), Mistake> {
        let index = self.model.types.len();
        if self.types.insert(name.text.clone(), index).is_some() {
            return Err(twice(name));
        }
        let kind = match body {
            Body::Enum(enumerators) => Kind::Enum(self.enumerators(enumerators)?),
            // A definition that is certainly another one, until it is resolved.
            _ => Kind::Enum(Vec::new()),
        };
        let rust = names::camel(&name.text);
        let name_text = name.text.clone();
        let found = Type { name: name_text, rust, kind, borrows: false, owns: false };
        self.model.types.push(found);
        self.places.push(name.at.clone());
        Ok(())
    }

    fn enumerators(
        &mut self,
        enumerators: &[(Name, Option<Value>)],
    ) -> Result<Vec<Enumerator>, Mistake> {
        let (mut found, mut next) = (Vec::<Enumerator>::new(), 0i128);
        for (name, value) in enumerators {
            let number = value.as_ref().map_or(Ok(next), |value| self.number(value))?;
            let Ok(value) = i32::try_from(number) else {
                let problem = format!("`{}` is {number}, which does not fit 32 bits", name.text);
                let remedy = "an enumerator is between -2147483648 and 2147483647";
                return Err(Mistake::new(name.at.clone(), problem, remedy));
            };
            if let Some(other) = found.iter().find(|other| other.value == value) {
                let problem = format!("`{}` and `{}` have one value", name.text, other.name);
                return Err(Mistake::new(name.at.clone(), problem, "give it another value"));
            }
            next = number + 1;
            self.define(name, number, None)?;
            let rust = names::camel(&name.text);
            found.push(Enumerator { name: name.text.clone(), rust, value });
        }
        Ok(found)
    }

    fn number(&self, value: &Value) -> Result<i128, Mistake> {
        let name = match value {
            Value::Number(number, _) => return Ok(*number),
            Value::Named(name) => name,
        };
        let found = self.numbers.get(&name.text).map(|number| number.value);
        found.ok_or_else(|| {
            let problem = format!("there is no constant `{}`", name.text);
            Mistake::new(name.at.clone(), problem, "define it before it is used")
        })
    }

    fn bound(&self, value: &Value) -> Result<Bound, Mistake> {
        let number = self.number(value)?;
        let (constant, at) = match value {
            Value::Number(_, at) => (None, at),
            Value::Named(name) => {
                (self.numbers.get(&name.text).and_then(|number| number.rust.clone()), &name.at)
            }
        };
        match u32::try_from(number) {
            Ok(value) => Ok(Bound { value, constant }),
            Err(_) => {
                let problem = format!("a length of {number}");
                Err(Mistake::new(at.clone(), problem, "lengths are between 0 and 4294967295"))
            }
        }
    }

    /// The length of an array whose length is fixed: it has items, or those of a variable array could
    /// take no bytes at all.
    fn length(&self, value: &Value) -> Result<Bound, Mistake> {
        let bound = self.bound(value)?;
        if bound.value > 0 {
            return Ok(bound);
        }
        let (Value::Number(_, at) | Value::Named(Name { at, .. })) = value;
        Err(Mistake::new(at.clone(), "an array without items", "take the declaration out"))
    }

    fn kind(&mut self, name: &Name, body: &Body) -> Result<Kind, Mistake> {
        Ok(match body {
            Body::Enum(_) => {
                let index = self.types.get(&name.text).copied().unwrap_or_default();
                self.model.types[index].kind.clone()
            }
            Body::Struct(fields) => {
                let fields = fields.iter().map(|field| self.field(name, field));
                Kind::Struct { fields: fields.collect::<Result<_, _>>()?, is_node: false }
            }
            Body::Union(union) => self.union(name, union)?,
            Body::Alias(alias) => Kind::Alias(self.ty(&name.text, alias)?),
        })
    }

    fn field(&mut self, parent: &Name, field: &Declaration) -> Result<Field, Mistake> {
        let name = field.name.text.clone();
        let ty = self.ty(&format!("{}.{name}", parent.text), field)?;
        Ok(Field { rust: names::snake(&name), name, ty })
    }

    /// The type of a declaration, which has this name in `outside`.
    fn ty(&mut self, path: &str, declared: &Declaration) -> Result<Ty, Mistake> {
        let is_placed = declared.notes.ddp.is_some() || self.is_outside(path, &self.outside.ddp);
        let is_bytes = declared.notes.bytes.is_some() || self.is_outside(path, &self.outside.bytes);
        if is_placed || is_bytes {
            self.met.insert(path.to_owned());
        }
        let at = &declared.name.at;
        let ty = match (&declared.spec, &declared.shape) {
            (Spec::Opaque, Shape::Fixed(length)) => Ty::FixedOpaque(self.length(length)?),
            (Spec::Opaque, Shape::Counted(bound)) if is_placed => Ty::Placed(self.most(bound)?),
            (Spec::Opaque, Shape::Counted(bound)) => Ty::Opaque(self.most(bound)?),
            (Spec::Text, Shape::Counted(bound)) if is_bytes => Ty::ByteText(self.most(bound)?),
            (Spec::Text, Shape::Counted(bound)) => Ty::Text(self.most(bound)?),
            (Spec::Opaque, _) => {
                return Err(shapeless(at, "opaque", "opaque x[8]` or `opaque x<8>"));
            }
            (Spec::Text, _) => return Err(shapeless(at, "string", "string x<8>` or `string x<>")),
            (spec, shape) => self.repeated(spec, shape)?,
        };
        let is_misplaced = is_placed && !matches!(ty, Ty::Placed(_));
        if is_misplaced || (is_bytes && !matches!(ty, Ty::ByteText(_))) {
            let (word, what) = match is_misplaced {
                true => ("ddp", "opaque<>"),
                false => ("bytes", "string<>"),
            };
            let problem = format!("`{word}` on `{}`, which is not `{what}`", declared.name.text);
            return Err(Mistake::new(at.clone(), problem, "take the annotation away"));
        }
        Ok(ty)
    }

    fn is_outside(&self, path: &str, names: &BTreeSet<String>) -> bool {
        names.contains(path)
    }

    fn most(&self, bound: &Option<Value>) -> Result<Bound, Mistake> {
        let most = bound.as_ref().map(|bound| self.bound(bound)).transpose()?;
        Ok(most.unwrap_or(Bound::NONE))
    }

    fn repeated(&self, spec: &Spec, shape: &Shape) -> Result<Ty, Mistake> {
        let item = self.item(spec)?;
        Ok(match shape {
            Shape::One => item,
            Shape::Fixed(length) => Ty::Fixed(Box::new(item), self.length(length)?),
            Shape::Counted(bound) => Ty::Counted(Box::new(item), self.most(bound)?),
            Shape::Optional => Ty::Optional(Box::new(item)),
        })
    }

    fn item(&self, spec: &Spec) -> Result<Ty, Mistake> {
        let name = match spec {
            Spec::Basic(basic) => return Ok(Ty::Basic(*basic)),
            Spec::Named(name) => name,
            Spec::Opaque | Spec::Text | Spec::Inline(_) => {
                return Err(Mistake::new(0..0, "a type without a name", "define it with a name"));
            }
        };
        if let Some(index) = self.types.get(&name.text) {
            return Ok(Ty::Named(*index));
        }
        let problem = format!("there is no type `{}`", name.text);
        let remedy = match name.text.as_str() {
            "quad_t" | "u_quad_t" => "write `hyper` or `unsigned hyper`",
            "long" | "short" | "char" | "u_int" | "uint32_t" | "int32_t" => {
                "define it: `typedef unsigned int uint32_t;`"
            }
            _ => "define it in this file",
        };
        Err(Mistake::new(name.at.clone(), problem, remedy))
    }

    /// The discriminant's enumerators, if it is an enum; through typedefs.
    fn basis(&self, ty: &Ty) -> Ty {
        let mut ty = ty.clone();
        for _ in 0..self.model.types.len() {
            let Ty::Named(index) = ty else { break };
            match &self.model.types[index].kind {
                Kind::Alias(target) => ty = target.clone(),
                _ => break,
            }
        }
        ty
    }

    fn outside_is_met(&self) -> Result<(), Mistake> {
        let named = self.outside.ddp.iter().chain(&self.outside.bytes);
        match named.into_iter().find(|path| !self.met.contains(*path)) {
            None => Ok(()),
            Some(path) => {
                let problem = format!("no declaration `{path}` to annotate");
                Err(Mistake::new(0..0, problem, "name it as `type.field`, or by its typedef"))
            }
        }
    }
}

fn shapeless(at: &Range<usize>, word: &str, forms: &str) -> Mistake {
    Mistake::new(at.clone(), format!("`{word}` without a length"), format!("write `{forms}`"))
}

/// Types other than enums that can be the discriminant of a union.
fn is_discriminant(basic: Basic) -> bool {
    matches!(basic, Basic::Int | Basic::UnsignedInt | Basic::Bool)
}
