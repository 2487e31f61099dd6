//! Build type of the programs, taken from this one.

use crate::doctor::{CheckInput, Finding, Verdict};

pub(super) fn release(input: &CheckInput<'_>) -> Finding {
    let Some(tried) = input.tried else { return super::not_tried() };
    let verbs = if cfg!(feature = "verbs") { "with verbs" } else { "without verbs" };
    let about = format!("for {}, {verbs}, allocator {}", std::env::consts::ARCH, tried.allocator);
    if !cfg!(debug_assertions) {
        return Finding::ok(format!("release build {about}"));
    }
    Finding::new(Verdict::Warn, format!("debug build {about}: many times slower"))
        .remedy("Measure with release builds only")
        .command("cargo build --release")
}
