//! What a check comes to.

use serde::Serialize;
use std::fmt;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// The host does not say, or it was not tried.
    Unknown,
    /// Worth knowing; nothing need be done for this profile.
    Info,
    /// Works, but slower or less evenly than it could.
    Warn,
    /// Does not work, or not as the profile says.
    Fail,
}

impl Verdict {
    /// In lower case, as in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

/// A verdict with what it rests on and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub verdict: Verdict,
    /// What was found, in a sentence without a full stop.
    pub says: String,
    /// What was read or measured.
    pub evidence: Vec<Evidence>,
    /// What to do, where there is something to do.
    pub remedy: Option<Remedy>,
}

/// Something that was read or measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Evidence {
    /// The file, or what was tried.
    pub source: String,
    /// What it said.
    pub value: String,
}

/// What to do about a finding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Remedy {
    /// In words.
    pub says: String,
    /// Commands of a shell, with the values of this host; most need root.
    pub commands: Vec<String>,
}

impl Finding {
    pub(super) fn new(verdict: Verdict, says: impl Into<String>) -> Self {
        Self { verdict, says: says.into(), evidence: Vec::new(), remedy: None }
    }

    pub(super) fn ok(says: impl Into<String>) -> Self {
        Self::new(Verdict::Ok, says)
    }

    pub(super) fn unknown(says: impl Into<String>) -> Self {
        Self::new(Verdict::Unknown, says)
    }

    /// Something that was read or measured.
    pub(super) fn seen(mut self, source: impl Into<String>, value: impl fmt::Display) -> Self {
        self.evidence.push(Evidence { source: source.into(), value: value.to_string() });
        self
    }

    /// What to do, in words.
    pub(super) fn remedy(mut self, says: impl Into<String>) -> Self {
        self.remedy.get_or_insert_default().says = says.into();
        self
    }

    /// What to type.
    pub(super) fn command(mut self, command: impl Into<String>) -> Self {
        self.remedy.get_or_insert_default().commands.push(command.into());
        self
    }
}
