//! Refuses types that cannot be decoded within a bounded stack or without allocation, and Rust names
//! that occur twice. Finds out which types borrow, and which own memory.

use crate::ast;
use crate::error::Mistake;
use crate::model::{Kind, Model, Ty};
use std::collections::BTreeSet;
use std::ops::Range;

/// Deepest nesting of types. A decoder's stack is as deep.
const DEPTH_MAX: usize = 64;

/// Names of a version's module that its procedures cannot have.
const RESERVED: [&str; 9] = [
    "Blocking",
    "Client",
    "Handle",
    "Option",
    "ProcedureId",
    "Result",
    "Server",
    "Service",
    "TypedCall",
];

/// State of a type in the visit of all parts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Visit {
    New,
    /// Its parts are being visited.
    Open,
    Done,
}

pub(super) fn types(model: &mut Model, places: &[Range<usize>]) -> Result<(), Mistake> {
    let mut visits = vec![Visit::New; model.types.len()];
    for index in 0..model.types.len() {
        visit(model, places, &mut visits, index, 0)?;
    }
    Ok(())
}

fn visit(
    model: &mut Model,
    places: &[Range<usize>],
    visits: &mut [Visit],
    index: usize,
    depth: usize,
) -> Result<(), Mistake> {
    let refused = |model: &Model, problem: &str, remedy: &str| {
        let problem = format!("`{}` {problem}", model.types[index].name);
        Err(Mistake::new(places[index].clone(), problem, remedy))
    };
    match visits[index] {
        Visit::Done => return Ok(()),
        Visit::Open => {
            let remedy = "only lists may recurse, by optional data as the last field of a struct";
            return refused(model, "contains itself", remedy);
        }
        Visit::New if depth > DEPTH_MAX => {
            return refused(model, "is nested too deep", "have less than 64 types in each other");
        }
        Visit::New => visits[index] = Visit::Open,
    }
    let uses = model.types[index].kind.uses();
    for ty in &uses {
        if let Some(part) = part(ty) {
            visit(model, places, visits, part, depth + 1)?;
        }
    }
    if uses.iter().any(|ty| copies_memory(model, ty)) {
        let problem = "has items for direct placement in a list or in an array of fixed length";
        return refused(
            model,
            problem,
            "make it an array of variable length, give each a field, or take `ddp` away",
        );
    }
    let (borrows, owns) =
        (uses.iter().any(|ty| borrows(model, ty)), uses.iter().any(|ty| model.owns(ty)));
    let found = &mut model.types[index];
    (found.borrows, found.owns) = (borrows, owns);
    visits[index] = Visit::Done;
    Ok(())
}

/// Index of the type that a use has in it.
fn part(ty: &Ty) -> Option<usize> {
    match ty {
        Ty::Named(index) | Ty::List(index) | Ty::Chain(index) => Some(*index),
        Ty::Fixed(item, _) | Ty::Counted(item, _) | Ty::Optional(item) => part(item),
        _ => None,
    }
}

fn borrows(model: &Model, ty: &Ty) -> bool {
    match ty {
        Ty::Basic(_) | Ty::FixedOpaque(_) => false,
        Ty::Named(index) => model.types[*index].borrows,
        Ty::Fixed(item, _) | Ty::Optional(item) => borrows(model, item),
        _ => true,
    }
}

/// Registered memory in what is decoded more than once, or copied.
fn copies_memory(model: &Model, ty: &Ty) -> bool {
    match ty {
        Ty::Fixed(item, _) => model.owns(item) || copies_memory(model, item),
        Ty::Counted(item, _) | Ty::Optional(item) => copies_memory(model, item),
        Ty::List(index) | Ty::Chain(index) => model.types[*index].owns,
        _ => false,
    }
}

/// Every Rust name stands for one thing.
pub(super) fn names(
    model: &Model,
    places: &[Range<usize>],
    programs: &[ast::Program],
) -> Result<(), Mistake> {
    let mut seen: BTreeSet<&str> = ["Option"].into();
    for (found, at) in model.types.iter().zip(places) {
        if !seen.insert(&found.rust) {
            return Err(clash(&found.name, &found.rust, at));
        }
        members(&found.kind, at)?;
    }
    let mut constants = BTreeSet::new();
    if let Some(twice) = model.constants.iter().find(|found| !constants.insert(&found.rust)) {
        return Err(clash(&twice.name, &twice.rust, &(0..0)));
    }
    modules(model, programs)
}

fn members(kind: &Kind, at: &Range<usize>) -> Result<(), Mistake> {
    let mut seen = BTreeSet::new();
    let names: Vec<(&str, &str)> = match kind {
        Kind::Enum(found) => found.iter().map(|one| (&*one.name, &*one.rust)).collect(),
        Kind::Struct { fields, .. } => fields.iter().map(|one| (&*one.name, &*one.rust)).collect(),
        Kind::Union { arms, default, .. } => {
            let arms = arms.iter().map(|arm| (&*arm.pattern, &*arm.rust));
            arms.chain(default.iter().map(|_| ("default", "Default"))).collect()
        }
        Kind::Alias(_) => Vec::new(),
    };
    match names.into_iter().find(|(_, rust)| !seen.insert(*rust)) {
        Some((name, rust)) => Err(clash(name, rust, at)),
        None => Ok(()),
    }
}

fn modules(model: &Model, programs: &[ast::Program]) -> Result<(), Mistake> {
    let mut seen = BTreeSet::new();
    let written = programs.iter().flat_map(|program| &program.versions);
    let versions = model.programs.iter().flat_map(|program| &program.versions);
    for (version, written) in versions.zip(written) {
        if !seen.insert(&version.rust) {
            return Err(clash(&version.name, &version.rust, &written.name.at));
        }
        let mut methods = BTreeSet::new();
        let mut markers: BTreeSet<&str> = RESERVED.into();
        for procedure in &version.procedures {
            if !methods.insert(&procedure.method) || !markers.insert(&procedure.rust) {
                return Err(clash(&procedure.name, &procedure.rust, &written.name.at));
            }
        }
    }
    Ok(())
}

fn clash(name: &str, rust: &str, at: &Range<usize>) -> Mistake {
    let problem = format!("`{name}` has the Rust name `{rust}`, as something else has");
    Mistake::new(at.clone(), problem, "rename one of the two in the description")
}
