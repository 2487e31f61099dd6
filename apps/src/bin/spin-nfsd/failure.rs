//! Errors that end the program.

use std::fmt;

/// One line with the problem and the remedy.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Usage error: exit code 2.
    Usage(String),
    /// Runtime error: exit code 1.
    Failed(String),
}

impl Failure {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Failed(_) => 1,
        }
    }

    /// `what: error`, for errors of the host.
    pub(crate) fn failed(what: impl fmt::Display, error: impl fmt::Display) -> Self {
        Self::Failed(format!("{what}: {error}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Usage(message) | Self::Failed(message)) = self;
        f.write_str(message)
    }
}
