//! Runs spintune as a user does.

use std::process::{Command, Output};

pub(crate) fn spintune(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// A spintune command that has not started yet.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spintune"));
    command.args(arguments);
    command
}

/// Runs it successfully and returns standard output.
pub(crate) fn answer(arguments: &[&str]) -> String {
    let output = spintune(arguments);
    let problems = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), problems.as_str()), (Some(0), ""), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs it, checks the exit status, and returns standard error.
pub(crate) fn problems(arguments: &[&str], status: i32) -> String {
    let output = spintune(arguments);
    let problems = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {problems}");
    problems
}
