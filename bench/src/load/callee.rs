//! The target of a run: a server and a program. Made by the command line; `session` connects to it.

use super::program;
use spinrpc::{Program, Version};
use std::fmt;

/// A server and the program to call there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Callee<'a> {
    pub(super) address: &'a str,
    pub(super) program: Program,
    pub(super) version: Version,
}

impl<'a> Callee<'a> {
    /// spinperf's own program, whose server reports the activity of its cores.
    pub(crate) fn spinperf(address: &'a str) -> Self {
        Self { address, program: program::PROGRAM, version: program::VERSION }
    }

    /// Any program: only its NULL procedure is called, which every program has (RFC 5531 section
    /// 12.1).
    pub(crate) fn other(address: &'a str, program: u32, version: u32) -> Self {
        Self { address, program: Program(program), version: Version(version) }
    }

    /// Returns whether the program has more of our procedures than NULL.
    pub(crate) fn is_spinperf(&self) -> bool {
        (self.program, self.version) == (program::PROGRAM, program::VERSION)
    }
}

impl fmt::Display for Callee<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "program {} version {}", self.program.0, self.version.0)
    }
}
