//! Resolves the names of a description: values of constants, types of fields, lists. Refuses what has no
//! meaning, or none that can be decoded without allocation and within a bounded stack.

mod check;
mod library;
mod lift;
mod links;
mod programs;
mod unions;

use crate::ast::{Body, Declaration, Definition, Name, Shape, Spec, Value};
use crate::error::Mistake;
use crate::model::{Bound, Constant, Enumerator, Field, Kind, Literal, Model, Ty, Type};
use crate::names::{self, Scope};
use std::collections::{BTreeMap, BTreeSet};

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

pub(crate) struct Resolver<'o> {
    outside: &'o Outside,
    numbers: BTreeMap<String, Number>,
    types: BTreeMap<String, usize>,
    places: Vec<usize>,
    /// Rust names of what is defined at the top level.
    constant_names: Scope,
    type_names: Scope,
    module_names: Scope,
    model: Model,
    met: BTreeSet<String>,
}

pub(crate) fn resolve(definitions: Vec<Definition>, outside: &Outside) -> Result<Model, Mistake> {
    let mut resolver = Resolver {
        outside,
        numbers: BTreeMap::new(),
        types: BTreeMap::new(),
        places: Vec::new(),
        constant_names: Scope::default(),
        type_names: Scope::new("Option"),
        module_names: Scope::new("core spinrpc_xdr"),
        model: Model::default(),
        met: BTreeSet::new(),
    };
    for (name, value) in [("FALSE", 0), ("TRUE", 1)] {
        resolver.numbers.insert(name.to_owned(), Number { value, rust: None });
    }
    let (mut bodies, mut programs, mut later) = (Vec::new(), Vec::new(), Vec::new());
    for definition in definitions {
        match definition {
            Definition::Constant { name, value } if resolver.number(&value).is_err() => {
                later.push((name, value));
            }
            Definition::Constant { name, value } => resolver.constant(&name, &value)?,
            Definition::TextConstant { name, text } => resolver.text_constant(&name, text)?,
            Definition::Type { name, body } => {
                for (name, body) in lift::flat(name, body) {
                    resolver.declare(&name, &body)?;
                    bodies.push((name, body));
                }
            }
            Definition::Program(program) => {
                resolver.declare_program(&program);
                programs.push(program);
            }
        }
    }
    // A constant may be the number of a procedure, or another constant, that comes after it.
    for (name, value) in later {
        resolver.constant(&name, &value)?;
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
    check::procedures(&resolver.model, &programs)?;
    resolver.outside_is_met()?;
    Ok(resolver.model)
}

fn twice(name: &Name) -> Mistake {
    let problem = format!("`{}` is defined twice", name.text);
    Mistake::new(name.at, problem, "rename one of the two")
}

impl Resolver<'_> {
    fn constant(&mut self, name: &Name, value: &Value) -> Result<(), Mistake> {
        let value = self.number(value)?;
        let rust = self.constant_names.take(names::screaming(&name.text));
        self.define(name, value, u32::try_from(value).is_ok().then(|| rust.clone()))?;
        let (name, value) = (name.text.clone(), Literal::Number(value));
        self.model.constants.push(Constant { name, rust, value });
        Ok(())
    }

    fn text_constant(&mut self, name: &Name, text: String) -> Result<(), Mistake> {
        if self.model.constants.iter().any(|other| other.name == name.text) {
            return Err(twice(name));
        }
        let rust = self.constant_names.take(names::screaming(&name.text));
        let (name, value) = (name.text.clone(), Literal::Text(text));
        self.model.constants.push(Constant { name, rust, value });
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
        let rust = self.type_names.take(names::camel(&name.text));
        let name_text = name.text.clone();
        let found =
            Type { name: name_text, rust, kind, borrows: false, owns: false, decoded_bytes: 0 };
        self.model.types.push(found);
        self.places.push(name.at);
        Ok(())
    }

    fn enumerators(
        &mut self,
        enumerators: &[(Name, Option<Value>)],
    ) -> Result<Vec<Enumerator>, Mistake> {
        let (mut found, mut next) = (Vec::<Enumerator>::new(), 0i128);
        let mut variants = Scope::default();
        for (name, value) in enumerators {
            let number = value.as_ref().map_or(Ok(next), |value| self.number(value))?;
            let Ok(value) = i32::try_from(number) else {
                let problem = format!("`{}` is {number}, which does not fit 32 bits", name.text);
                let remedy = "an enumerator is between -2147483648 and 2147483647";
                return Err(Mistake::new(name.at, problem, remedy));
            };
            next = number + 1;
            self.define(name, number, None)?;
            let rust = variants.take(names::camel(&name.text));
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
        let found = found.or_else(|| library::number(&name.text));
        found.ok_or_else(|| {
            let problem = format!("there is no constant `{}`", name.text);
            Mistake::new(name.at, problem, DEFINE_CONSTANT)
        })
    }

    fn bound(&self, value: &Value) -> Result<Bound, Mistake> {
        let number = self.number(value)?;
        let constant = match value {
            Value::Number(..) => None,
            Value::Named(name) => self.numbers.get(&name.text).and_then(|found| found.rust.clone()),
        };
        match u32::try_from(number) {
            Ok(value) => Ok(Bound { value, constant }),
            Err(_) => {
                let problem = format!("a length of {number}");
                Err(Mistake::new(value.at(), problem, "lengths are between 0 and 4294967295"))
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
        Err(Mistake::new(value.at(), "an array without items", "take the declaration out"))
    }

    fn kind(&mut self, name: &Name, body: &Body) -> Result<Kind, Mistake> {
        Ok(match body {
            Body::Enum(_) => {
                let index = self.types.get(&name.text).copied().unwrap_or_default();
                self.model.types[index].kind.clone()
            }
            Body::Struct(fields) => {
                let mut names = Scope::default();
                let fields = fields.iter().map(|field| {
                    let mut field = self.field(name, field)?;
                    field.rust = names.take(field.rust);
                    Ok(field)
                });
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
        let is_placed = declared.notes.ddp || self.outside.ddp.contains(path);
        let is_bytes = declared.notes.bytes || self.outside.bytes.contains(path);
        if is_placed || is_bytes {
            self.met.insert(path.to_owned());
        }
        let at = declared.name.at;
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
            return Err(Mistake::new(at, problem, "take the annotation away"));
        }
        Ok(ty)
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
                return Err(Mistake::new(0, "a type without a name", "define it with a name"));
            }
        };
        if let Some(index) = self.types.get(&name.text) {
            return Ok(Ty::Named(*index));
        }
        library::ty(&name.text).ok_or_else(|| {
            let problem = format!("there is no type `{}`", name.text);
            Mistake::new(name.at, problem, DEFINE_TYPE)
        })
    }

    fn outside_is_met(&self) -> Result<(), Mistake> {
        let named = self.outside.ddp.iter().chain(&self.outside.bytes);
        match named.into_iter().find(|path| !self.met.contains(*path)) {
            None => Ok(()),
            Some(path) => {
                let problem = format!("no declaration `{path}` to annotate");
                Err(Mistake::new(0, problem, "name it as `type.field`, or by its typedef"))
            }
        }
    }
}

const DEFINE_TYPE: &str = "define it, or include the file that does: `#include \"other.x\"`, or `%#include \"other.h\"` with other.x beside";

const DEFINE_CONSTANT: &str = "define it before it is used, include the file that does (`#include \"other.x\"`), or \
    give its value on the command line (`-D NAME=VALUE`)";

fn shapeless(at: usize, word: &str, forms: &str) -> Mistake {
    Mistake::new(at, format!("`{word}` without a length"), format!("write `{forms}`"))
}
