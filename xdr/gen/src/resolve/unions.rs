//! Resolves unions: every case has a value of the discriminant's type, and a Rust variant.

use super::{Resolver, is_discriminant};
use crate::ast::{Arm as Written, Basic, Name, Union, Value};
use crate::error::Mistake;
use crate::model::{Arm, Enumerator, Field, Kind, Ty};
use crate::names;
use std::ops::Range;

/// Variant, pattern and value of a case.
type Case = (String, String, i64);

impl Resolver<'_> {
    pub(super) fn union(&mut self, name: &Name, union: &Union) -> Result<Kind, Mistake> {
        let discriminant = self.field(name, &union.discriminant)?.ty;
        let mut arms = Vec::<Arm>::new();
        for written in &union.arms {
            let Written { cases, body } = written;
            let body = body.as_ref().map(|body| self.field(name, body)).transpose()?;
            for case in cases {
                let at = place(case);
                let (rust, pattern, value) =
                    self.case(&discriminant, &union.discriminant.name, case)?;
                if arms.iter().any(|arm| arm.value == value) {
                    let problem = format!("two cases of value {value}");
                    return Err(Mistake::new(at.clone(), problem, "take one of the two out"));
                }
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
        if !matches!(self.basis(discriminant), Ty::Basic(Basic::Bool)) {
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
        let found = match self.basis(discriminant) {
            Ty::Named(index) => match &self.model.types[index].kind {
                // A union's discriminant must be resolved before it: enumerators are, always.
                Kind::Enum(enumerators) if !enumerators.is_empty() => {
                    enum_case(&self.model.types[index].rust, enumerators, value)
                }
                _ => return Err(no_discriminant(name)),
            },
            Ty::Basic(Basic::Bool) => bool_case(value),
            Ty::Basic(basic) if is_discriminant(basic) => int_case(basic, case, value),
            _ => return Err(no_discriminant(name)),
        };
        found.ok_or_else(|| {
            let problem = format!("case {value} is not a value of `{}`", name.text);
            Mistake::new(place(case).clone(), problem, "name a value of the discriminant's type")
        })
    }
}

fn place(value: &Value) -> &Range<usize> {
    let (Value::Number(_, at) | Value::Named(Name { at, .. })) = value;
    at
}

fn no_discriminant(name: &Name) -> Mistake {
    let problem = format!("`{}` cannot be the discriminant of a union", name.text);
    Mistake::new(name.at.clone(), problem, "declare it as int, unsigned int, bool or an enum")
}

fn enum_case(rust: &str, enumerators: &[Enumerator], value: i128) -> Option<Case> {
    let found = enumerators.iter().find(|found| i128::from(found.value) == value)?;
    Some((found.rust.clone(), format!("{rust}::{}", found.rust), i64::from(found.value)))
}

fn bool_case(value: i128) -> Option<Case> {
    match value {
        0 => Some(("False".to_owned(), "false".to_owned(), 0)),
        1 => Some(("True".to_owned(), "true".to_owned(), 1)),
        _ => None,
    }
}

fn int_case(basic: Basic, case: &Value, value: i128) -> Option<Case> {
    let value = match basic {
        Basic::Int => i64::from(i32::try_from(value).ok()?),
        _ => i64::from(u32::try_from(value).ok()?),
    };
    let rust = match case {
        Value::Named(name) => names::camel(&name.text),
        Value::Number(..) if value < 0 => format!("CaseMinus{}", value.unsigned_abs()),
        Value::Number(..) => format!("Case{value}"),
    };
    Some((rust, value.to_string(), value))
}
