//! spintune as its users run it.

use std::process::{Command, Output};

/// Runs it.
pub(crate) fn spintune(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_spintune")).args(arguments).output().unwrap()
}

/// What it says when all is well.
pub(crate) fn answer(arguments: &[&str]) -> String {
    let output = spintune(arguments);
    let problems = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), problems.as_str()), (Some(0), ""), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What it says on standard error when it ends with that status.
pub(crate) fn problems(arguments: &[&str], status: i32) -> String {
    let output = spintune(arguments);
    let problems = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {problems}");
    problems
}
