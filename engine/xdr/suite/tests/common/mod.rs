//! Shared by the tests of this crate.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]

pub mod values;

use spinrpc_xdrgen::Generator;
use spinrpc_xdrgen::model::{Model, Ty};
use std::path::PathBuf;
use values::{Entropy, Values};

/// The names of all descriptions.
pub const DESCRIPTIONS: [&str; 9] =
    ["hello", "language", "mount", "nfs4", "nfs41", "nfs_prot", "nlm_prot", "store", "unusual"];

/// The file of a description.
pub fn path(description: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("x").join(format!("{description}.x"))
}

/// The text of a description, with those that it includes.
pub fn text(description: &str) -> String {
    Generator::new().text(path(description)).unwrap()
}

/// The model of a description.
pub fn model(description: &str) -> Model {
    let path = path(description);
    Generator::new().model(&path.display().to_string(), &text(description)).unwrap()
}

/// A random encoding of `ty`, and the entropy that is left.
pub fn value<'e>(model: &Model, ty: &Ty, entropy: &'e [u8]) -> (Vec<u8>, Entropy<'e>) {
    let mut values = Values { model, from: Entropy(entropy), out: Vec::new() };
    values.put(ty);
    (values.out, values.from)
}
