//! Changes a host, and takes the changes back.
//!
//! The journal is written before the first change: whatever happens then, `revert` knows of it. What
//! a file says afterwards counts, and not that the write was taken.

use super::FitError;
use super::journal::{Journal, Turn};
use super::plan::{Plan, hash_of};
use super::site::Site;
use crate::profile::Profile;
use std::io;

/// What became of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// Name of the item.
    pub item: String,
    /// Relative to the root.
    pub path: String,
    /// What it said.
    pub from: String,
    /// What it was to say.
    pub to: String,
    /// What came of it.
    pub outcome: Outcome,
}

/// See [`Step`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It says what it was to say.
    Set,
    /// It says something else than before and than it was to: that.
    Partly(String),
    /// It says what it said before; why.
    Failed(String),
    /// Somebody else had set it to what it says, so it was left alone (`revert`).
    Foreign,
}

impl Step {
    /// Whether it came as it was to.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.outcome == Outcome::Set
    }
}

/// Has the host fit the profile, as [`Plan::of`] says, and keeps a journal. A host that fits is left
/// as it is.
///
/// # Errors
/// Nothing was changed. What cannot be changed while the rest can is told in its [`Step`].
pub fn apply(site: &Site, profile: &Profile) -> Result<Vec<Step>, FitError> {
    let _turn = Turn::take(site)?;
    let mut journal = Journal::load(site)?;
    let plan = Plan::of(site, profile, &journal);
    if plan.is_empty() {
        return Ok(Vec::new());
    }
    profile.name().clone_into(&mut journal.profile);
    journal.hash = hash_of(profile);
    plan.changes.iter().for_each(|change| journal.add(change));
    journal.save(site).map_err(|source| not_saved(site, source))?;
    let mut steps = Vec::new();
    for change in &plan.changes {
        let outcome = set(site, &change.path, &change.from, &change.to);
        if let Ok(now) = site.read(&change.path) {
            journal.settle(&change.path, &now);
        }
        steps.push(Step {
            item: change.item.name().to_owned(),
            path: change.path.clone(),
            from: change.from.clone(),
            to: change.to.clone(),
            outcome,
        });
    }
    if !steps.iter().all(Step::is_good) {
        // The next one has to look again at what this one did not get.
        journal.hash.clear();
    }
    steps.extend(unsaved(&mut journal, site));
    Ok(steps)
}

/// Takes back what [`apply`] has changed, the last change first. What somebody else has changed since
/// is left alone, and forgotten. What cannot be taken back stays in the journal.
///
/// # Errors
/// Nothing was changed.
pub fn revert(site: &Site) -> Result<Vec<Step>, FitError> {
    let _turn = Turn::take(site)?;
    let mut journal = Journal::load(site)?;
    let mut steps = Vec::new();
    for entry in journal.changes.clone().into_iter().rev() {
        let (outcome, now) = match site.read(&entry.path) {
            Ok(now) if now == entry.from => (Outcome::Set, now),
            Ok(now) if entry.wrote(&now) => (set(site, &entry.path, &now, &entry.from), now),
            Ok(now) => (Outcome::Foreign, now),
            Err(error) => (Outcome::Failed(error.to_string()), entry.to.clone()),
        };
        if matches!(outcome, Outcome::Set | Outcome::Foreign) {
            journal.forget(&entry.path);
        }
        let (item, path) = (entry.item, entry.path);
        steps.push(Step { item, path, from: now, to: entry.from, outcome });
    }
    steps.extend(unsaved(&mut journal, site));
    Ok(steps)
}

fn set(site: &Site, path: &str, from: &str, to: &str) -> Outcome {
    let written = site.write(path, to);
    match (site.read(path), written) {
        (Ok(now), _) if now == to => Outcome::Set,
        (Ok(now), _) if now != from => Outcome::Partly(now),
        (_, Err(error)) | (Err(error), _) => Outcome::Failed(error.to_string()),
        (Ok(_), Ok(())) => Outcome::Failed("the kernel leaves it as it is".to_owned()),
    }
}

fn not_saved(site: &Site, source: io::Error) -> FitError {
    FitError::File { file: site.path(super::JOURNAL).display().to_string(), source }
}

/// Brings the journal up to date. If that fails, it names more than was changed, which is harmless.
fn unsaved(journal: &mut Journal, site: &Site) -> Option<Step> {
    let error = journal.save(site).err()?;
    Some(Step {
        item: "journal".to_owned(),
        path: super::JOURNAL.to_owned(),
        from: String::new(),
        to: String::new(),
        outcome: Outcome::Failed(error.to_string()),
    })
}
