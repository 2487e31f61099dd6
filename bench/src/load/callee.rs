//! The target of a run: a server and a program. Made by the command line; `session` connects to it.

use super::program;
use spinrpc::{Program, Version};
use std::fmt;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Callee<'a> {
    pub(super) address: &'a str,
    pub(super) program: Program,
    pub(super) version: Version,
    /// Has spinperf's own procedures, and a connection for questions about the activity of its cores.
    pub(crate) is_asked: bool,
}

impl<'a> Callee<'a> {
    /// spinperf's own program, whose server reports the activity of its cores.
    pub(crate) fn spinperf(address: &'a str) -> Self {
        let (program, version) = (program::PROGRAM, program::VERSION);
        Self { address, program, version, is_asked: true }
    }

    /// The same without a connection for questions: those of the workload are the only ones.
    pub(crate) fn not_asked(address: &'a str) -> Self {
        Self { is_asked: false, ..Self::spinperf(address) }
    }

    /// Any program: only its NULL procedure is called, which every program has (RFC 5531 section
    /// 12.1).
    pub(crate) fn other(address: &'a str, program: u32, version: u32) -> Self {
        let (program, version) = (Program(program), Version(version));
        let is_asked = (program, version) == (program::PROGRAM, program::VERSION);
        Self { address, program, version, is_asked }
    }
}

impl fmt::Display for Callee<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "program {} version {}", self.program.0, self.version.0)
    }
}
