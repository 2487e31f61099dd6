//! Why the program ends otherwise than it was told to.

use std::fmt;

/// One line that says what is wrong and what to do.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What it was told cannot be: exit code 2.
    Usage(String),
    /// It could not be done here, or not any more: exit code 1.
    Failed(String),
}

impl Failure {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Failed(_) => 1,
        }
    }

    /// `what: error`, which the host is to blame for.
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
