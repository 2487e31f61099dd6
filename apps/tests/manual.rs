//! The man pages and completions of the programs.
#![allow(clippy::unwrap_used, reason = "a test ends here")]

#[path = "../../tuning/tests/common/manual.rs"]
mod manual;

use std::path::Path;

#[test]
fn every_option_is_in_the_manual() {
    for (program, name, section, pages) in [
        (env!("CARGO_BIN_EXE_spin-nfsd"), "spin-nfsd", 8, 5),
        (env!("CARGO_BIN_EXE_spin-nfs"), "spin-nfs", 1, 8),
        (env!("CARGO_BIN_EXE_spin-echo"), "spin-echo", 1, 3),
    ] {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-manual"));
        assert!(manual::check(program, name, section, &folder) >= pages, "{name}");
    }
}

#[test]
fn the_manual_of_the_server_has_the_options_of_exports() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("spin-nfsd-pages");
    manual::check(env!("CARGO_BIN_EXE_spin-nfsd"), "spin-nfsd", 8, &folder);
    let page = std::fs::read_to_string(folder.join("man/man8/spin-nfsd.8")).unwrap();
    for words in [".SH \"EXIT CODES\"", ".SH \"EXAMPLES\"", "squash=root|all|none"] {
        assert!(page.contains(words), "{page}");
    }
}
