//! Applies changes to a host and reverts them.
//!
//! The journal is written before the first change, so `revert` knows of every change, whatever
//! happens later. A change counts by what the file says afterwards, not by the success of the
//! write.

use super::FitError;
use super::journal::{Journal, Turn};
use super::plan::{Plan, hash_of};
use super::site::Site;
use crate::profile::Profile;
use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    pub item: String,
    #[serde(serialize_with = "super::absolute")]
    pub path: String,
    pub from: String,
    pub to: String,
    #[serde(flatten)]
    pub outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", content = "detail", rename_all = "lowercase")]
pub enum Outcome {
    Set,
    /// The file has this value, which is neither the old nor the requested one.
    Partly(String),
    /// The file still has the old value, for this reason.
    Failed(String),
    /// Another program had changed the value since, so `revert` left it alone.
    Foreign,
}

impl Step {
    pub fn is_good(&self) -> bool {
        self.outcome == Outcome::Set
    }
}

/// Applies the changes of [`Plan::of`] to the host and keeps a journal. Leaves a host that already
/// fits the profile as it is.
///
/// # Errors
/// Nothing was changed. A change that fails while others succeed is reported in its [`Step`].
pub fn apply(site: &Site, profile: &Profile) -> Result<Vec<Step>, FitError> {
    let turn = Turn::take(site)?;
    let mut journal = Journal::load(site)?;
    let plan = Plan::of(&site.tree(), profile, &journal);
    if plan.is_empty() {
        return Ok(Vec::new());
    }
    profile.name().clone_into(&mut journal.profile);
    journal.hash = hash_of(profile);
    plan.changes.iter().for_each(|change| journal.add(change));
    let file = || site.path(super::JOURNAL).display().to_string();
    journal.save(&turn).map_err(|source| FitError::File { file: file(), source })?;
    let mut steps = Vec::new();
    for change in &plan.changes {
        let outcome = set(site, &change.path, &change.from, &change.to);
        if let Ok(now) = site.read(&change.path) {
            journal.settle(&change.path, &now);
        }
        steps.push(Step {
            item: change.item.to_string(),
            path: change.path.clone(),
            from: change.from.clone(),
            to: change.to.clone(),
            outcome,
        });
    }
    if !steps.iter().all(Step::is_good) {
        // Not all changes succeeded, so the next `apply` has to retry.
        journal.hash.clear();
    }
    steps.extend(unsaved(&mut journal, &turn));
    Ok(steps)
}

/// Reverts the changes of [`apply`], the last change first. A value that another program has
/// changed since is left alone and dropped from the journal. A value that cannot be restored stays
/// in the journal.
///
/// # Errors
/// Nothing was changed.
pub fn revert(site: &Site) -> Result<Vec<Step>, FitError> {
    let turn = Turn::take(site)?;
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
        let (item, path) = (entry.item.to_string(), entry.path);
        steps.push(Step { item, path, from: now, to: entry.from, outcome });
    }
    steps.extend(unsaved(&mut journal, &turn));
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

/// Updates the journal. If that fails, the journal lists more than was changed, which is harmless.
fn unsaved(journal: &mut Journal, turn: &Turn) -> Option<Step> {
    let error = journal.save(turn).err()?;
    Some(Step {
        item: "journal".to_owned(),
        path: super::JOURNAL.to_owned(),
        from: String::new(),
        to: String::new(),
        outcome: Outcome::Failed(error.to_string()),
    })
}
