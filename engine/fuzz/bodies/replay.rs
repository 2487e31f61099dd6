//! Feeds the corpus of a fuzz target to its body, without a fuzzer.
#![allow(clippy::unwrap_used, reason = "all of this is tests")]

use std::fs;
use std::path::{Path, PathBuf};

/// Runs the body over every file of the target's corpus.
pub(crate) fn replay(target: &str, run: fn(&[u8])) {
    let mut inputs = files(&fuzz_directory().join("corpus").join(target));
    assert!(!inputs.is_empty(), "the corpus of {target} is empty");
    inputs.sort();
    for input in inputs {
        // Shown when the body panics.
        println!("{}", input.display());
        run(&fs::read(&input).unwrap());
    }
}

/// A test for each of these targets, with the body of its name.
#[allow(unused_macros, reason = "the body of a target may have another name")]
macro_rules! replay_each {
    ($($target:ident),+) => {
        $(#[test]
        fn $target() {
            replay::replay(stringify!($target), $target::run);
        })+
    };
}
#[allow(unused_imports, reason = "as above")]
pub(crate) use replay_each;

/// The directory of `cargo fuzz`, seen from a package of the workspace.
pub(crate) fn fuzz_directory() -> PathBuf {
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    above.map(|directory| directory.join("engine/fuzz")).find(|path| path.is_dir()).unwrap()
}

/// The files in a directory; none when it does not exist.
pub(crate) fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect()
}
