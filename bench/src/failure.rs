//! Errors that end spinperf without a result, and their exit codes.
//!
//! Every command returns this type; only `main` prints it, on one line.

use crate::pattern::Mismatch;
use signal_hook::consts::SIGINT;
use std::process::ExitCode;

/// Reason why a command ended. The message is one line, with the allowed values where that helps.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    Usage(String),
    /// No error: the text that was asked for, such as that of `--help`.
    #[error("{0}")]
    Help(String),
    #[error("{0}")]
    Measurement(String),
    /// A result is worse than a condition on the command line allows.
    #[error("{0}")]
    Regression(String),
    /// Nothing can be said about a condition on the command line, or a command that was to be compared failed.
    #[error("{0}")]
    NoVerdict(String),
    /// Interrupted by the signal with this number. The results so far have been printed.
    #[error("interrupted by {}", if *.0 == SIGINT { "SIGINT" } else { "SIGTERM" })]
    Interrupted(i32),
    #[error("verification failed: {0}")]
    Verification(#[from] Mismatch),
    #[error("not JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("cannot create a histogram: {0}")]
    Histogram(#[from] hdrhistogram::CreationError),
    #[error(transparent)]
    Engine(#[from] spinrpc::EngineError),
    #[error("{what}: {source}")]
    System { what: String, source: std::io::Error },
}

impl Failure {
    pub(crate) fn system(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Self::System { what: what.into(), source: source.into() }
    }

    /// 125 without a verdict: `git bisect run` skips a commit then. 128 plus its number for a signal.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Usage(_) => 2,
            Self::NoVerdict(_) => 125,
            Self::Interrupted(signal) => 128 + *signal as u8,
            _ => 1,
        })
    }
}
