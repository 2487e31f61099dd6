//! Why spinperf ends without a result, and the exit code that says so to scripts.
//!
//! Every command returns it; only `main` prints it, on one line.

use crate::pattern::Mismatch;
use signal_hook::consts::SIGINT;
use std::process::ExitCode;

/// What ended a command. The message is one line and says what is allowed where that helps.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command line cannot be obeyed.
    #[error("{0}")]
    Usage(String),
    /// The measurement could not be made, or its connection was lost.
    #[error("{0}")]
    Measurement(String),
    /// A result is worse than a condition of the command line allows.
    #[error("{0}")]
    Regression(String),
    /// A signal ended it, of this number. What was measured until then has been printed.
    #[error("interrupted by {}", if *.0 == SIGINT { "SIGINT" } else { "SIGTERM" })]
    Interrupted(i32),
    /// Data came back different from what was sent.
    #[error("verification failed: {0}")]
    Verification(#[from] Mismatch),
    /// The operating system refused something.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: String,
        /// Its answer.
        source: std::io::Error,
    },
}

impl Failure {
    /// Wraps an answer of the operating system with what was attempted.
    pub(crate) fn system(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Self::System { what: what.into(), source: source.into() }
    }

    /// 2 for a wrong command line, 128 and its number for a signal, 1 for everything else.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Usage(_) => 2,
            Self::Interrupted(signal) => 128 + *signal as u8,
            _ => 1,
        })
    }
}
