//! Errors that end the program, or keep new exports from taking effect.

use std::fmt::Display;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Failed(String),
}

impl Failure {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Failed(_) => 1,
        }
    }

    pub(crate) fn failed(what: impl Display, error: impl Display) -> Self {
        Self::Failed(format!("{what}: {error}"))
    }
}

/// Collects failures, so that all of them are reported at once.
#[derive(Debug, Default)]
pub(crate) struct Failures(Vec<Failure>);

impl Failures {
    pub(crate) fn keep<T>(&mut self, outcome: Result<T, Failure>) -> Option<T> {
        outcome.map_err(|failure| self.0.push(failure)).ok()
    }

    pub(crate) fn keep_all<T>(&mut self, outcome: Result<T, Vec<Failure>>) -> Option<T> {
        outcome.map_err(|failures| self.0.extend(failures)).ok()
    }

    pub(crate) fn keep_usage<T>(&mut self, outcome: Result<T, String>) -> Option<T> {
        self.keep(outcome.map_err(Failure::Usage))
    }

    pub(crate) fn add_usage(&mut self, problems: impl IntoIterator<Item = String>) {
        self.0.extend(problems.into_iter().map(Failure::Usage));
    }

    pub(crate) fn or<T>(self, value: Option<T>) -> Result<T, Vec<Failure>> {
        match value {
            Some(value) if self.0.is_empty() => Ok(value),
            _ => Err(self.0),
        }
    }
}
