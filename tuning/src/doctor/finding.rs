use serde::Serialize;
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    /// The host does not report it, or the test did not run.
    Unknown,
    /// Informational; this profile needs no action.
    Info,
    /// Works, but slower or less evenly than possible.
    Warn,
    /// Does not work, or not as the profile specifies.
    Fail,
}

impl Verdict {
    pub(super) const ALL: [Self; 5] = [Self::Ok, Self::Unknown, Self::Info, Self::Warn, Self::Fail];
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(out)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub verdict: Verdict,
    /// The finding, as a sentence without a full stop.
    pub says: String,
    pub evidence: Vec<Evidence>,
    pub remedy: Option<Remedy>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Evidence {
    pub source: String,
    pub value: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Remedy {
    pub says: String,
    /// Shell commands with the values of this host; most need root.
    pub commands: Vec<String>,
}

macro_rules! findings {
    ($($name:ident $verdict:ident,)+) => {
        impl Finding {
            $(pub(super) fn $name(says: impl Into<String>) -> Self {
                Self::new(Verdict::$verdict, says)
            })+
        }
    };
}

findings! { ok Ok, unknown Unknown, info Info, warn Warn, fail Fail, }

impl Finding {
    pub(super) fn new(verdict: Verdict, says: impl Into<String>) -> Self {
        Self { verdict, says: says.into(), evidence: Vec::new(), remedy: None }
    }

    pub(super) fn seen(mut self, source: impl Into<String>, value: impl fmt::Display) -> Self {
        self.evidence.push(Evidence { source: source.into(), value: value.to_string() });
        self
    }

    pub(super) fn seen_if(self, source: &str, value: Option<impl fmt::Display>) -> Self {
        match value {
            Some(value) => self.seen(source, value),
            None => self,
        }
    }

    pub(super) fn remedy(mut self, says: impl Into<String>) -> Self {
        self.remedy.get_or_insert_default().says = says.into();
        self
    }

    pub(super) fn command(self, command: impl Into<String>) -> Self {
        self.commands([command.into()])
    }

    pub(super) fn commands(mut self, commands: impl IntoIterator<Item = String>) -> Self {
        self.remedy.get_or_insert_default().commands.extend(commands);
        self
    }
}
