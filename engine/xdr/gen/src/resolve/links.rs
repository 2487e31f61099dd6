//! Tells lists and branches from other optional data. A struct whose last field is optional data of its own type is
//! a node: on the wire, optional data of it are a sequence of nodes, each behind a TRUE, and a FALSE. Other optional data of a
//! type that contains the type which uses them are branches.

use crate::model::{Kind, Model, Ty};

/// Marks the nodes, takes their links away, and makes lists of the optional data that begin one, and branches.
pub(super) fn find(model: &mut Model) {
    let nodes: Vec<bool> = (0..model.types.len()).map(|index| is_node(model, index)).collect();
    let head = |index| target(model, &Ty::Named(index)).filter(|&node| nodes[node]);
    let heads: Vec<Option<usize>> = (0..nodes.len()).map(head).collect();
    let branches: Vec<Vec<usize>> =
        (0..nodes.len()).map(|index| branches(model, &heads, index)).collect();
    for ((found, has_link), branches) in model.types.iter_mut().zip(nodes).zip(branches) {
        let rewrite = |ty: &mut Ty| rewrite(ty, &heads, &branches);
        match &mut found.kind {
            Kind::Enum(_) => {}
            Kind::Alias(ty) => rewrite(ty),
            Kind::Struct { fields, is_node } => {
                if has_link {
                    fields.pop();
                    *is_node = true;
                }
                fields.iter_mut().for_each(|field| rewrite(&mut field.ty));
            }
            Kind::Union { arms, default, .. } => {
                let bodies = arms.iter_mut().filter_map(|arm| arm.body.as_mut());
                bodies.chain(default.iter_mut().flatten()).for_each(|body| rewrite(&mut body.ty));
            }
        }
    }
}

fn is_node(model: &Model, index: usize) -> bool {
    let Kind::Struct { fields, .. } = &model.types[index].kind else { return false };
    // A node without data would be a count of nothing, and one that has the struct again before its link is a tree.
    let Some((link, data)) = fields.split_last().filter(|(_, data)| !data.is_empty()) else {
        return false;
    };
    pointee(model, &link.ty) == Some(index)
        && !data.iter().any(|field| contains(model, &field.ty, index))
}

fn contains(model: &Model, ty: &Ty, index: usize) -> bool {
    model.any_part(ty, &|part: &Ty| *part == Ty::Named(index))
}

fn branches(model: &Model, heads: &[Option<usize>], index: usize) -> Vec<usize> {
    let uses = model.types[index].kind.uses();
    let optional = uses.iter().filter_map(|ty| match ty {
        Ty::Optional(item) => item.as_named(),
        _ => None,
    });
    optional
        .filter(|&item| heads[item].is_none() && contains(model, &Ty::Named(item), index))
        .collect()
}

/// The struct that optional data are of, through typedefs on both sides of the `*`.
fn pointee(model: &Model, ty: &Ty) -> Option<usize> {
    match model.basis(ty) {
        Ty::Optional(item) => target(model, item),
        _ => None,
    }
}

fn target(model: &Model, ty: &Ty) -> Option<usize> {
    let index = model.basis(ty).as_named()?;
    (!matches!(model.types[index].kind, Kind::Alias(_))).then_some(index)
}

/// `heads` has the node that each type is, or is another name of.
fn rewrite(ty: &mut Ty, heads: &[Option<usize>], branches: &[usize]) {
    match ty {
        Ty::Optional(item) => match item.as_named() {
            Some(index) if branches.contains(&index) => *ty = Ty::Branch(index),
            Some(index) => {
                if let Some(node) = heads[index] {
                    *ty = Ty::List(node);
                }
            }
            None => rewrite(item, heads, branches),
        },
        Ty::Fixed(item, _) | Ty::Counted(item, _) => rewrite(item, heads, branches),
        Ty::Named(index) if heads[*index] == Some(*index) => *ty = Ty::Chain(*index),
        _ => {}
    }
}
