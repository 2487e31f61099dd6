//! The man pages and completions of spintune.
#![allow(clippy::unwrap_used, reason = "a test ends here")]

#[path = "common/manual.rs"]
mod manual;

use std::path::Path;

#[test]
fn every_option_is_in_the_manual() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("spintune-manual");
    assert!(manual::check(env!("CARGO_BIN_EXE_spintune"), "spintune", 1, &folder) > 10);
}
