//! Errors that end spinperf without a result, and their exit codes.
//!
//! Every command returns this type; only `main` prints it, on one line.

use crate::pattern::Mismatch;
use signal_hook::consts::SIGINT;
use std::process::ExitCode;

/// Reason why a command ended. The message is one line, with the allowed values where that helps.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Usage error.
    #[error("{0}")]
    Usage(String),
    /// The measurement failed, or its connection was lost.
    #[error("{0}")]
    Measurement(String),
    /// A result is worse than a condition on the command line allows.
    #[error("{0}")]
    Regression(String),
    /// Interrupted by the signal with this number. The results so far have been printed.
    #[error("interrupted by {}", if *.0 == SIGINT { "SIGINT" } else { "SIGTERM" })]
    Interrupted(i32),
    /// Received data differs from the data sent.
    #[error("verification failed: {0}")]
    Verification(#[from] Mismatch),
    /// The operating system reported an error.
    #[error("{what}: {source}")]
    System {
        /// The attempted operation.
        what: String,
        /// The error.
        source: std::io::Error,
    },
}

impl Failure {
    /// Wraps an error of the operating system with the attempted operation.
    pub(crate) fn system(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Self::System { what: what.into(), source: source.into() }
    }

    /// 2 for a usage error, 128 plus its number for a signal, 1 for everything else.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Usage(_) => 2,
            Self::Interrupted(signal) => 128 + *signal as u8,
            _ => 1,
        })
    }
}
