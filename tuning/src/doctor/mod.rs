//! Whether a host is fit for a profile: one finding for each thing that is known to spoil a run.
//!
//! The checks judge facts of [`crate::host`] and, on the host itself, what [`Tried`] found by trying;
//! what counts how much follows from the profile: work that gets in the way is a warning to cores
//! that poll without end, and a note to others. Nothing is changed here. `spintune doctor` prints
//! the [`Report`].

mod checks;
mod finding;
mod patient;
mod render;
mod report;
mod tried;

pub use finding::{Evidence, Finding, Remedy, Verdict};
pub use patient::{Patient, profile_for};
pub use report::{Check, Counts, Report};
pub use tried::{Caps, Hop, Jitter, Patience, Permission, Tried, counters_risen};

/// Makes all checks.
#[must_use]
pub fn examine(patient: &Patient<'_>) -> Report {
    let checks = checks::ALL.iter().map(|check| Check {
        id: check.id,
        group: check.group,
        title: check.title,
        finding: (check.judge)(patient),
    });
    Report::new(patient, checks.collect())
}
