//! Refuses types that cannot be decoded within a bounded stack or without allocation. Finds out which types borrow, and
//! which own memory.

use crate::ast::{self, Basic};
use crate::error::Mistake;
use crate::model::{Bound, Kind, Model, Ty};

/// Deepest nesting of types. A decoder's stack is as deep, and as many branches in each other are decoded
/// (`spinrpc_xdr::DEPTH_MAX`).
const DEPTH_MAX: usize = 64;

/// Most bytes of a type, and of arguments and result of a procedure together, that are decoded by value: they are on the
/// stack.
const DECODED_MAX: u64 = 64 << 10;

/// Most bytes of types in each other: each is moved into the one around it.
const NESTED_MAX: u64 = 4 * DECODED_MAX;

/// Size of a view of bytes in the message, of an array or of a list: pointers and counts, rounded up.
const VIEW_BYTES: u64 = 48;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Visit {
    New,
    /// Its parts are being visited.
    Open,
    /// Bytes of the type and of the types in each other within it, while it is decoded.
    Done(u64),
}

pub(super) fn types(model: &mut Model, places: &[usize]) -> Result<(), Mistake> {
    let visits = vec![Visit::New; model.types.len()];
    let mut checker = Checker { model, places, visits };
    (0..places.len()).try_for_each(|index| checker.visit(index, 0))?;
    (0..places.len()).try_for_each(|index| checker.branches(index))
}

struct Checker<'m> {
    model: &'m mut Model,
    places: &'m [usize],
    visits: Vec<Visit>,
}

impl Checker<'_> {
    fn refused<T>(&self, index: usize, problem: &str, remedy: &str) -> Result<T, Mistake> {
        let problem = format!("`{}` {problem}", self.model.types[index].name);
        Err(Mistake::new(self.places[index], problem, remedy))
    }

    /// Each level of branches is on the stack, and is decoded whenever it is asked for.
    fn branches(&self, index: usize) -> Result<(), Mistake> {
        const LEVEL_MAX: u64 = NESTED_MAX / DEPTH_MAX as u64;
        for branch in self.model.types[index].kind.uses().iter().filter_map(branch) {
            if self.model.types[branch].owns {
                let problem = "contains itself and has data for direct placement";
                return self.refused(index, problem, "take `ddp` away");
            }
            if let Visit::Done(bytes @ LEVEL_MAX..) = self.visits[branch] {
                let problem = format!("contains itself, and each level takes {bytes} bytes");
                let remedy = format!("have less than {LEVEL_MAX} bytes in a level; {VARIABLE}");
                return self.refused(index, &problem, &remedy);
            }
        }
        Ok(())
    }

    /// The parts have their sizes. `within` is [`Visit::Done`] of the largest part; returns that of the type.
    fn measure(&mut self, index: usize, within: u64) -> Result<u64, Mistake> {
        let size = type_bytes(self.model, &self.model.types[index].kind);
        let nested = match self.model.types[index].kind {
            Kind::Alias(_) => size.max(within),
            _ => size.saturating_add(within),
        };
        self.model.types[index].decoded_bytes = size;
        let problem = match (size > DECODED_MAX, nested > NESTED_MAX) {
            (false, false) => return Ok(nested),
            (true, _) => too_large(size),
            (false, true) => {
                format!("and the types within it take {nested} bytes, more than {NESTED_MAX}")
            }
        };
        self.refused(index, &problem, VARIABLE)
    }

    fn visit(&mut self, index: usize, depth: usize) -> Result<(), Mistake> {
        match self.visits[index] {
            Visit::Done(_) => return Ok(()),
            Visit::Open => {
                let remedy = "a type may recurse by optional data only (`*`)";
                return self.refused(index, "contains itself", remedy);
            }
            Visit::New if depth > DEPTH_MAX => {
                let remedy = "have less than 64 types in each other";
                return self.refused(index, "is nested too deep", remedy);
            }
            Visit::New => self.visits[index] = Visit::Open,
        }
        let uses = self.model.types[index].kind.uses();
        let mut within = 0;
        for part in uses.iter().filter_map(part) {
            self.visit(part, depth + 1)?;
            if let Visit::Done(bytes) = self.visits[part] {
                within = within.max(bytes);
            }
        }
        if uses.iter().any(|ty| copies_memory(self.model, ty)) {
            let problem = "has items for direct placement in a list or in an array of fixed length";
            let remedy =
                "make it an array of variable length, give each a field, or take `ddp` away";
            return self.refused(index, problem, remedy);
        }
        let (borrows, owns) = (
            uses.iter().any(|ty| borrows(self.model, ty)),
            uses.iter().any(|ty| self.model.owns(ty)),
        );
        let found = &mut self.model.types[index];
        (found.borrows, found.owns) = (borrows, owns);
        self.visits[index] = Visit::Done(self.measure(index, within)?);
        Ok(())
    }
}

/// Index of the type that a use has in branches.
fn branch(ty: &Ty) -> Option<usize> {
    match ty.innermost() {
        Ty::Branch(index) => Some(*index),
        _ => None,
    }
}

fn type_bytes(model: &Model, kind: &Kind) -> u64 {
    let bytes = |ty: &Ty| decoded_bytes(model, ty);
    match kind {
        Kind::Enum(_) => 4,
        Kind::Alias(ty) => bytes(ty),
        Kind::Struct { fields, .. } => {
            fields.iter().fold(0, |sum, field| bytes(&field.ty).saturating_add(sum))
        }
        // The largest arm, and the discriminant.
        Kind::Union { .. } => kind.uses().iter().map(bytes).max().unwrap_or(0).saturating_add(8),
    }
}

fn too_large(size: u64) -> String {
    format!("takes {size} bytes when it is decoded, and at most {DECODED_MAX} are decoded by value")
}

const VARIABLE: &str =
    "give its long fields a variable length (`opaque data<n>`): these stay in the message";

/// Bytes of the Rust value, rounded up.
fn decoded_bytes(model: &Model, ty: &Ty) -> u64 {
    let times = |bytes: u64, bound: &Bound| bytes.saturating_mul(bound.value.into());
    match ty {
        Ty::Basic(Basic::Hyper | Basic::UnsignedHyper | Basic::Double) => 8,
        Ty::Basic(_) => 4,
        Ty::Named(index) => model.types[*index].decoded_bytes,
        Ty::FixedOpaque(bound) => times(1, bound),
        Ty::Fixed(item, bound) => times(decoded_bytes(model, item), bound),
        Ty::Optional(item) => decoded_bytes(model, item).saturating_add(8),
        _ => VIEW_BYTES,
    }
}

/// Arguments and results of a procedure are on the stack of its handler.
pub(super) fn procedures(model: &Model, programs: &[ast::Program]) -> Result<(), Mistake> {
    let written = programs.iter().flat_map(|program| &program.versions);
    let written = written.flat_map(|version| &version.procedures);
    let versions = model.programs.iter().flat_map(|program| &program.versions);
    for (found, written) in versions.flat_map(|version| &version.procedures).zip(written) {
        let parts = found.arguments.iter().chain(&found.result);
        let sizes = parts.map(|ty| (decoded_bytes(model, ty), model.rust(ty)));
        let sizes: Vec<(u64, String)> = sizes.collect();
        let size = sizes.iter().fold(0, |sum: u64, (bytes, _)| sum.saturating_add(*bytes));
        if let Some((_, largest)) = sizes.iter().max().filter(|_| size > DECODED_MAX) {
            let problem = format!("`{}`, with `{largest}`, {}", found.name, too_large(size));
            return Err(Mistake::new(written.name.at, problem, VARIABLE));
        }
    }
    Ok(())
}

/// Index of the type that a use has in it. Branches are visited on their own.
fn part(ty: &Ty) -> Option<usize> {
    match ty.innermost() {
        Ty::Named(index) | Ty::List(index) | Ty::Chain(index) => Some(*index),
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
