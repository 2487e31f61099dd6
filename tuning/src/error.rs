use serde::{Serialize, Serializer};
use std::fmt;
use std::sync::Arc;

/// A location in a profile: `site.toml:12:3`, or `shipped:base.toml:12:3` for a shipped profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Location {
    /// The file, under the name that the user gave.
    #[serde(serialize_with = "as_text")]
    pub file: Arc<str>,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

fn as_text<S: Serializer>(file: &str, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(file)
}

impl Location {
    /// Returns whether the file is a shipped profile.
    pub fn is_shipped(&self) -> bool {
        self.file.starts_with(SHIPPED)
    }

    pub(crate) fn of(file: &Arc<str>, text: &str, offset: usize) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self {
            file: Arc::clone(file),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

/// Prefix of the names of shipped files.
pub(crate) const SHIPPED: &str = "shipped:";

impl fmt::Display for Location {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// A problem, or a note, displayed on one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Problem {
    /// Location, if it is in a file.
    #[serde(flatten)]
    pub location: Option<Location>,
    /// The problem, and the allowed values.
    pub message: String,
}

impl Problem {
    pub(crate) fn new(location: Option<Location>, message: impl fmt::Display) -> Self {
        let message = message.to_string();
        let lines: Vec<&str> = message.split('\n').map(str::trim).collect();
        Self { location, message: lines.join(" ") }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(location) = &self.location {
            write!(out, "{location}: ")?;
        }
        out.write_str(&self.message)
    }
}

/// A profile that cannot be used; displayed with one line for each problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n"))]
pub struct ProfileError {
    pub(crate) problems: Vec<Problem>,
}

impl ProfileError {
    /// All problems, never empty: those of single values in reading order, then values that do not suit the host or each
    /// other.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Returns whether the request is at fault rather than the contents of a file: an unknown
    /// profile name, an unreadable file, an invalid override.
    pub fn is_usage(&self) -> bool {
        self.problems.iter().any(|problem| problem.location.is_none())
    }
}

impl From<Problem> for ProfileError {
    fn from(problem: Problem) -> Self {
        Self { problems: vec![problem] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_lines_and_characters_from_one() {
        let file = Arc::from("f.toml");
        let place = |offset| Location::of(&file, "µ = 1\nb = 2", offset).to_string();
        assert_eq!(place(0), "f.toml:1:1");
        assert_eq!(place("µ ".len()), "f.toml:1:3");
        assert_eq!(place("µ = 1\nb".len()), "f.toml:2:2");
        assert_eq!(place(999), "f.toml:2:6");
    }

    #[test]
    fn a_problem_takes_one_line_whatever_its_cause_said() {
        assert_eq!(Problem::new(None, "a\n  b").to_string(), "a b");
    }
}
