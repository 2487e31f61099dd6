//! Tells lists from other optional data. A struct whose last field is optional data of its own type is
//! a node: on the wire, optional data of it are a sequence of nodes, each behind a TRUE, and a FALSE.

use crate::model::{Kind, Model, Ty};

/// Marks the nodes, takes their links away, and makes lists of the optional data that begin one.
pub(super) fn find(model: &mut Model) {
    let nodes: Vec<bool> = (0..model.types.len()).map(|index| is_node(model, index)).collect();
    let heads: Vec<Option<usize>> =
        (0..nodes.len()).map(|index| node_of(model, &nodes, index)).collect();
    for (found, has_link) in model.types.iter_mut().zip(nodes) {
        match &mut found.kind {
            Kind::Enum(_) => {}
            Kind::Alias(ty) => rewrite(ty, &heads),
            Kind::Struct { fields, is_node } => {
                if has_link {
                    fields.pop();
                    *is_node = true;
                }
                fields.iter_mut().for_each(|field| rewrite(&mut field.ty, &heads));
            }
            Kind::Union { arms, default, .. } => {
                let bodies = arms.iter_mut().filter_map(|arm| arm.body.as_mut());
                bodies
                    .chain(default.iter_mut().flatten())
                    .for_each(|body| rewrite(&mut body.ty, &heads));
            }
        }
    }
}

fn is_node(model: &Model, index: usize) -> bool {
    let Kind::Struct { fields, .. } = &model.types[index].kind else { return false };
    // A node without data would be a count of nothing.
    let last = fields.last().filter(|_| fields.len() > 1);
    last.is_some_and(|link| pointee(model, &link.ty) == Some(index))
}

/// The struct that optional data are of, through typedefs on both sides of the `*`.
fn pointee(model: &Model, ty: &Ty) -> Option<usize> {
    let mut ty = ty;
    for _ in 0..=model.types.len() {
        ty = match ty {
            Ty::Optional(item) => return target(model, item),
            Ty::Named(index) => match &model.types[*index].kind {
                Kind::Alias(alias) => alias,
                _ => return None,
            },
            _ => return None,
        };
    }
    None
}

/// The type that is not a typedef.
fn target(model: &Model, ty: &Ty) -> Option<usize> {
    let mut ty = ty;
    for _ in 0..=model.types.len() {
        let Ty::Named(index) = ty else { return None };
        match &model.types[*index].kind {
            Kind::Alias(alias) => ty = alias,
            _ => return Some(*index),
        }
    }
    None
}

fn node_of(model: &Model, nodes: &[bool], index: usize) -> Option<usize> {
    target(model, &Ty::Named(index)).filter(|&node| nodes[node])
}

/// `heads` has the node that each type is, or is another name of.
fn rewrite(ty: &mut Ty, heads: &[Option<usize>]) {
    match ty {
        Ty::Optional(item) => match item.as_ref() {
            Ty::Named(index) if heads[*index].is_some() => {
                *ty = heads[*index].map_or(Ty::Named(*index), Ty::List);
            }
            _ => rewrite(item, heads),
        },
        Ty::Fixed(item, _) | Ty::Counted(item, _) => rewrite(item, heads),
        Ty::Named(index) if heads[*index] == Some(*index) => *ty = Ty::Chain(*index),
        _ => {}
    }
}
