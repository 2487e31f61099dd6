//! Judges whether a host suits a profile: one finding for each known cause of bad results.
//!
//! The checks judge the facts of [`crate::host`] and, on the host itself, the test results in
//! [`Tried`]. Severity depends on the profile: competing work is a warning for cores that poll
//! without pause, and informational otherwise. Nothing is changed here. `spintune doctor` prints
//! the [`Report`].

mod checks;
mod finding;
mod input;
mod report;
pub(crate) mod switches;
mod tried;

pub use finding::{Evidence, Finding, Remedy, Verdict};
pub use input::{CheckInput, profile_for};
pub use report::{Check, Report};
pub use tried::{Caps, Jitter, Tried};

pub fn examine(input: &CheckInput<'_>) -> Report {
    let checks = checks::ALL.iter().map(|check| Check {
        id: check.id,
        group: check.group,
        title: check.title,
        finding: check.run(input),
    });
    Report::new(input, checks.collect())
}
