//! Errors in a description, with the place in its file. Used by every other module.

use crate::source;

/// A mistake in a `.x` file. Shown as `file:line:column: problem; remedy`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {problem}; {remedy}")]
pub struct Error {
    /// Name of the file, as given, or as the C preprocessor names it.
    pub file: String,
    /// Line, counted from one.
    pub line: usize,
    /// Column in characters, counted from one, in the line as the C preprocessor leaves it.
    pub column: usize,
    /// The problem.
    pub problem: String,
    /// The remedy.
    pub remedy: String,
}

/// A mistake, and where it begins in the text, which has no name yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mistake {
    pub(crate) at: usize,
    pub(crate) problem: String,
    pub(crate) remedy: String,
}

impl Mistake {
    pub(crate) fn new(at: usize, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { at, problem: problem.into(), remedy: remedy.into() }
    }

    pub(crate) fn in_file(self, file: &str, text: &str) -> Error {
        let before = text.get(..self.at).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let (mut file, mut line) = (file, 1usize);
        for passed in before[..line_start].lines() {
            (line, file) = source::marker(passed).unwrap_or((line.saturating_add(1), file));
        }
        Error {
            file: file.to_owned(),
            line: line.max(1),
            column: 1 + before[line_start..].chars().count(),
            problem: self.problem,
            remedy: self.remedy,
        }
    }
}
