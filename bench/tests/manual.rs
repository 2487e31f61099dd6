//! The man pages and completions of spinperf.
#![allow(clippy::unwrap_used, reason = "a test ends here")]

#[path = "../../tuning/tests/common/manual.rs"]
mod manual;

use std::path::Path;

#[test]
fn every_option_is_in_the_manual() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("spinperf-manual");
    assert!(manual::check(env!("CARGO_BIN_EXE_spinperf"), "spinperf", 1, &folder) > 5);
}
