//! Gives names to types that have none, so that every type is defined at the top level.

use crate::ast::{Body, Declaration, Name, Shape, Spec};
use std::mem;

/// The type and those defined inside of it, inner ones first. `typedef struct { ... } name` is
/// `struct name { ... }`.
pub(super) fn flat(name: Name, body: Body) -> Vec<(Name, Body)> {
    let mut found = Vec::new();
    lift(name, body, &mut found);
    found
}

fn lift(name: Name, mut body: Body, found: &mut Vec<(Name, Body)>) {
    if let Body::Alias(Declaration { spec: Spec::Inline(inner), shape: Shape::One, .. }) = body {
        return lift(name, *inner, found);
    }
    for Declaration { name: own, spec, .. } in body.declarations_mut() {
        let inner = Name { text: format!("{}_{}", name.text, own.text), at: own.at };
        if matches!(spec, Spec::Inline(_))
            && let Spec::Inline(body) = mem::replace(spec, Spec::Named(inner.clone()))
        {
            lift(inner, *body, found);
        }
    }
    found.push((name, body));
}
