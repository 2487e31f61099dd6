//! Gives names to types that have none, so that every type is defined at the top level.

use crate::ast::{Arm, Body, Declaration, Name, Shape, Spec, Union};
use crate::error::Mistake;

/// The type and those defined inside of it, inner ones first. `typedef struct { ... } name` is
/// `struct name { ... }`.
pub(super) fn flat(name: Name, body: Body) -> Result<Vec<(Name, Body)>, Mistake> {
    let mut found = Vec::new();
    lift(name, body, &mut found)?;
    Ok(found)
}

fn lift(name: Name, body: Body, found: &mut Vec<(Name, Body)>) -> Result<(), Mistake> {
    let body = match body {
        Body::Alias(Declaration { spec: Spec::Inline(body), shape: Shape::One, .. }) => {
            return lift(name, *body, found);
        }
        Body::Alias(alias) => Body::Alias(declaration(&name, alias, found)?),
        Body::Enum(enumerators) => Body::Enum(enumerators),
        Body::Struct(fields) => {
            let fields = fields.into_iter().map(|field| declaration(&name, field, found));
            Body::Struct(fields.collect::<Result<_, _>>()?)
        }
        Body::Union(union) => Body::Union(Box::new(arms(&name, *union, found)?)),
    };
    found.push((name, body));
    Ok(())
}

fn arms(name: &Name, union: Union, found: &mut Vec<(Name, Body)>) -> Result<Union, Mistake> {
    let Union { discriminant, arms, default } = union;
    let discriminant = declaration(name, discriminant, found)?;
    let arms = arms.into_iter().map(|Arm { cases, body }| {
        let body = body.map(|body| declaration(name, body, found)).transpose()?;
        Ok(Arm { cases, body })
    });
    let arms = arms.collect::<Result<_, Mistake>>()?;
    let default = match default {
        Some(Some(body)) => Some(Some(declaration(name, body, found)?)),
        other => other,
    };
    Ok(Union { discriminant, arms, default })
}

fn declaration(
    parent: &Name,
    declared: Declaration,
    found: &mut Vec<(Name, Body)>,
) -> Result<Declaration, Mistake> {
    let Declaration { name, spec, shape, notes } = declared;
    let spec = match spec {
        Spec::Inline(body) => {
            let text = format!("{}_{}", parent.text, name.text);
            let inner = Name { text, at: name.at };
            lift(inner.clone(), *body, found)?;
            Spec::Named(inner)
        }
        other => other,
    };
    Ok(Declaration { name, spec, shape, notes })
}
