//! All findings of an examination.

use super::{CheckInput, Finding, Verdict};
use serde::Serialize;
use spinrpc::config::Choice;
use std::collections::BTreeMap;

/// One check of a host.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Check {
    /// Stable name for programs: `cpus.isolated`.
    pub id: &'static str,
    /// Group, for people.
    pub group: &'static str,
    /// Title, for people.
    pub title: &'static str,
    /// Result.
    #[serde(flatten)]
    pub finding: Finding,
}

/// Result of an examination. Its JSON form is version [`Report::SCHEMA`]: fields may be added, but
/// keep their names and meanings.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// [`Report::SCHEMA`].
    pub schema: u32,
    /// Name of the host.
    pub host: String,
    /// Name or path of the profile.
    pub profile: String,
    /// Hash of the profile's values.
    pub profile_hash: String,
    /// CPUs that are polled on: all that the process may use, if cores are not pinned.
    pub cores: Vec<usize>,
    /// Poll mode: `poll.mode`.
    pub poll_mode: &'static str,
    /// Driver of connections: `fabric.driver`.
    pub fabric: &'static str,
    /// True if active tests ran.
    pub tried: bool,
    /// The worst verdict.
    pub verdict: Verdict,
    /// Number of checks by verdict.
    pub counts: BTreeMap<Verdict, usize>,
    /// The checks, in their order.
    pub checks: Vec<Check>,
}

impl Report {
    /// Version of the JSON document.
    pub const SCHEMA: u32 = 1;

    pub(super) fn new(input: &CheckInput<'_>, checks: Vec<Check>) -> Self {
        let count = |verdict| checks.iter().filter(|one| one.finding.verdict == verdict).count();
        let config = input.config();
        let name = input.facts.kernel.host_name.clone().filter(|name| name != "(none)");
        Self {
            schema: Self::SCHEMA,
            host: name.unwrap_or_else(|| "(no name)".to_owned()),
            profile: input.profile.name().to_owned(),
            profile_hash: format!("{:016x}", input.profile.hash()),
            cores: match config.pins_cores() {
                true => config.cpus().to_vec(),
                false => input.cores().iter().collect(),
            },
            poll_mode: input.mode().name(),
            fabric: config.driver().name(),
            tried: input.tried.is_some(),
            verdict: checks.iter().map(|one| one.finding.verdict).max().unwrap_or(Verdict::Ok),
            counts: Verdict::ALL.map(|verdict| (verdict, count(verdict))).into(),
            checks,
        }
    }

    /// Returns whether the host suits the profile: no failures, and with `strict` no warnings
    /// either.
    pub fn is_good(&self, strict: bool) -> bool {
        self.verdict < if strict { Verdict::Warn } else { Verdict::Fail }
    }

    /// Returns the check with this name.
    pub fn check(&self, id: &str) -> Option<&Check> {
        self.checks.iter().find(|check| check.id == id)
    }
}
