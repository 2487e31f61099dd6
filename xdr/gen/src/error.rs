//! Errors in a description, with the place in its file. Used by every other module.

use std::fmt;
use std::ops::Range;

/// A mistake in a `.x` file. Shown as `file:line:column: problem; remedy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Name of the file, as given.
    pub file: String,
    /// Line, counted from one.
    pub line: usize,
    /// Column in characters, counted from one.
    pub column: usize,
    /// The problem.
    pub problem: String,
    /// The remedy.
    pub remedy: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, problem, remedy } = self;
        write!(f, "{file}:{line}:{column}: {problem}; {remedy}")
    }
}

impl std::error::Error for Error {}

/// A mistake and its place in the text, which has no name yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mistake {
    pub(crate) at: Range<usize>,
    pub(crate) problem: String,
    pub(crate) remedy: String,
}

impl Mistake {
    pub(crate) fn new(
        at: Range<usize>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { at, problem: problem.into(), remedy: remedy.into() }
    }

    /// The error of `file`, whose text is `text`.
    pub(crate) fn in_file(self, file: &str, text: &str) -> Error {
        let before = text.get(..self.at.start).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Error {
            file: file.to_owned(),
            line: 1 + before.matches('\n').count(),
            column: 1 + before[line_start..].chars().count(),
            problem: self.problem,
            remedy: self.remedy,
        }
    }
}
