//! All findings together.

use super::{Finding, Patient, Verdict};
use serde::Serialize;

/// One check of a host.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Check {
    /// Its name for programs, which stays: `cpus.isolated`.
    pub id: &'static str,
    /// What it belongs to, for people.
    pub group: &'static str,
    /// What it is about, for people.
    pub title: &'static str,
    /// What it comes to.
    #[serde(flatten)]
    pub finding: Finding,
}

/// What an examination comes to. As JSON it is version [`Report::SCHEMA`]; fields may be added to
/// that, but keep their names and meanings.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// [`Report::SCHEMA`].
    pub schema: u32,
    /// Name of the host.
    pub host: String,
    /// Name or path of the profile.
    pub profile: String,
    /// Its hash, which tells profiles apart.
    pub profile_hash: String,
    /// CPUs that are polled on.
    pub cores: Vec<usize>,
    /// How: `poll.mode`.
    pub poll_mode: &'static str,
    /// What connections go by: `fabric.driver`.
    pub fabric: &'static str,
    /// Whether the host was tried out, and not only read.
    pub tried: bool,
    /// The worst verdict.
    pub verdict: Verdict,
    /// How many checks came to each verdict.
    pub counts: Counts,
    /// The checks, in their order.
    pub checks: Vec<Check>,
}

/// How many checks came to each verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Counts {
    /// As it should be.
    pub ok: usize,
    /// Not known.
    pub unknown: usize,
    /// Worth knowing.
    pub info: usize,
    /// Warnings.
    pub warn: usize,
    /// Failures.
    pub fail: usize,
}

impl Report {
    /// Version of the JSON document.
    pub const SCHEMA: u32 = 1;

    pub(super) fn new(patient: &Patient<'_>, checks: Vec<Check>) -> Self {
        let count = |verdict| checks.iter().filter(|one| one.finding.verdict == verdict).count();
        let counts = Counts {
            ok: count(Verdict::Ok),
            unknown: count(Verdict::Unknown),
            info: count(Verdict::Info),
            warn: count(Verdict::Warn),
            fail: count(Verdict::Fail),
        };
        let config = patient.config();
        let name = patient.facts.kernel.host_name.clone().filter(|name| name != "(none)");
        Self {
            schema: Self::SCHEMA,
            host: name.unwrap_or_else(|| "(no name)".to_owned()),
            profile: patient.profile.name().to_owned(),
            profile_hash: format!("{:016x}", patient.profile.hash()),
            cores: config.cpus().to_vec(),
            poll_mode: super::checks::mode_name(patient.mode()),
            fabric: if patient.goes_by_rdma() { "verbs" } else { "shm" },
            tried: patient.tried.is_some(),
            verdict: checks.iter().map(|one| one.finding.verdict).max().unwrap_or(Verdict::Ok),
            counts,
            checks,
        }
    }

    /// Whether the host is fit for the profile: nothing fails, and when `strict` nothing is warned
    /// of either.
    #[must_use]
    pub fn is_good(&self, strict: bool) -> bool {
        self.verdict < if strict { Verdict::Warn } else { Verdict::Fail }
    }

    /// A check by its name.
    #[must_use]
    pub fn check(&self, id: &str) -> Option<&Check> {
        self.checks.iter().find(|check| check.id == id)
    }
}
