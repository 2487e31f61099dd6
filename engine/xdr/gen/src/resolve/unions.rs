//! Resolves unions: every case has a value of the discriminant's type, and a Rust variant.

use super::Resolver;
use crate::ast::{Arm as Written, Basic, Name, Union, Value};
use crate::error::Mistake;
use crate::model::{Arm, Enumerator, Field, Kind, Ty};
use crate::names::{self, Scope};

/// Variant, pattern and value of a case.
type Case = (String, String, i64);

impl Resolver<'_> {
    pub(super) fn union(&mut self, name: &Name, union: &Union) -> Result<Kind, Mistake> {
        let discriminant = self.field(name, &union.discriminant)?.ty;
        let mut arms = Vec::<Arm>::new();
        let mut variants = Scope::new(union.default.as_ref().map_or("", |_| "Default"));
        for written in &union.arms {
            let Written { cases, body } = written;
            let body = body.as_ref().map(|body| self.field(name, body)).transpose()?;
            for case in cases {
                let (rust, pattern, value) =
                    self.case(&discriminant, &union.discriminant.name, case)?;
                if arms.iter().any(|arm| arm.value == value) {
                    let problem = format!("two cases of value {value}");
                    return Err(Mistake::new(case.at(), problem, "take one of the two out"));
                }
                let rust = variants.take(rust);
                arms.push(Arm { rust, pattern, value, body: body.clone() });
            }
        }
        let default = match &union.default {
            Some(Some(body)) => Some(Some(self.field(name, body)?)),
            Some(None) => Some(None),
            None => None,
        };
        Ok(match self.optional(&discriminant, &arms, default.as_ref()) {
            Some(data) => Kind::Alias(Ty::Optional(Box::new(data))),
            None => Kind::Union { discriminant, arms, default },
        })
    }

    /// The type of the data, if a union is optional data by another name: a bool, and data only where it is
    /// TRUE. On the wire the two are the same (RFC 4506 section 4.19).
    fn optional(
        &self,
        discriminant: &Ty,
        arms: &[Arm],
        default: Option<&Option<Field>>,
    ) -> Option<Ty> {
        if !matches!(self.model.basis(discriminant), Ty::Basic(Basic::Bool)) {
            return None;
        }
        let data = |value| arms.iter().find(|arm| arm.value == value).map(|arm| arm.body.as_ref());
        let absent = data(0).or(default.map(Option::as_ref))?;
        match (data(1)?, absent) {
            (Some(field), None) => Some(field.ty.clone()),
            _ => None,
        }
    }

    fn case(&self, discriminant: &Ty, name: &Name, case: &Value) -> Result<Case, Mistake> {
        let value = self.number(case)?;
        let no_discriminant = || {
            let problem = format!("`{}` cannot be the discriminant of a union", name.text);
            Mistake::new(name.at, problem, "declare it as int, unsigned int, bool or an enum")
        };
        let found = match self.model.basis(discriminant) {
            Ty::Named(index) => match &self.model.types[*index].kind {
                // A union's discriminant must be resolved before it: enumerators are, always.
                Kind::Enum(enumerators) if !enumerators.is_empty() => {
                    enum_case(&self.model.types[*index].rust, enumerators, case, value)
                }
                _ => return Err(no_discriminant()),
            },
            Ty::Basic(Basic::Bool) => bool_case(value),
            Ty::Basic(Basic::Int) => {
                i32::try_from(value).ok().map(|int| int_case(int.into(), case))
            }
            Ty::Basic(Basic::UnsignedInt) => {
                u32::try_from(value).ok().map(|int| int_case(int.into(), case))
            }
            _ => return Err(no_discriminant()),
        };
        found.ok_or_else(|| {
            let problem = format!("case {value} is not a value of `{}`", name.text);
            Mistake::new(case.at(), problem, "name a value of the discriminant's type")
        })
    }
}

/// A case is called as it is written, if several enumerators have its value.
fn enum_case(rust: &str, enumerators: &[Enumerator], case: &Value, value: i128) -> Option<Case> {
    let written =
        |found: &&Enumerator| matches!(case, Value::Named(name) if name.text == found.name);
    let has_value = |found: &&Enumerator| i128::from(found.value) == value;
    let found = enumerators.iter().find(written);
    let found = found.or_else(|| enumerators.iter().find(has_value))?;
    Some((found.rust.clone(), format!("{rust}::{}", found.rust), i64::from(found.value)))
}

fn bool_case(value: i128) -> Option<Case> {
    match value {
        0 => Some(("False".to_owned(), "false".to_owned(), 0)),
        1 => Some(("True".to_owned(), "true".to_owned(), 1)),
        _ => None,
    }
}

fn int_case(value: i64, case: &Value) -> Case {
    let rust = match case {
        Value::Named(name) => names::camel(&name.text),
        Value::Number(..) if value < 0 => format!("CaseMinus{}", value.unsigned_abs()),
        Value::Number(..) => format!("Case{value}"),
    };
    (rust, value.to_string(), value)
}
