//! Changes and previous values, in a file that `revert` reads. The file may have been written by an
//! attacker: it is rejected unless all its items and files are ones that spintune changes.

use super::item::Item;
use super::site::{Site, is_value};
use super::{FitError, plan::Change};
use crate::printable::read_bounded;
use rustix::fs::{FlockOperation, OFlags};
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

pub const JOURNAL: &str = "run/spinrpc/tuned.json";
const FOLDER: &str = "run/spinrpc";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Journal {
    schema: u32,
    pub profile: String,
    /// Its hash; empty if not all changes succeeded.
    pub hash: String,
    /// In order of the changes.
    pub changes: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    pub item: Item,
    pub path: String,
    /// Previous value, which `revert` restores.
    pub from: String,
    pub to: String,
    /// While the value is being changed again: the value set before. If the process is killed in
    /// the middle, the file has one of the two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<String>,
}

impl Journal {
    /// Loads the journal of a host; empty if nothing is changed.
    ///
    /// # Errors
    /// [`FitError::Journal`] for anything that spintune does not write.
    pub fn load(site: &Site) -> Result<Self, FitError> {
        let path = site.path(JOURNAL);
        let text = site.open(JOURNAL, OFlags::RDONLY | OFlags::NOFOLLOW).and_then(read);
        let refused =
            |reason: String| FitError::Journal { file: path.display().to_string(), reason };
        let text = match text {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(refused(error.to_string())),
        };
        let journal: Self = serde_json::from_str(&text).map_err(|e| refused(e.to_string()))?;
        if journal.schema != SCHEMA {
            return Err(refused(format!("schema {}, expected {SCHEMA}", journal.schema)));
        }
        match journal.changes.iter().find(|entry| !entry.is_ours()) {
            Some(entry) => {
                Err(refused(format!("{:?} is not a file that spintune sets", entry.path)))
            }
            None => Ok(journal),
        }
    }

    pub fn entry(&self, path: &str) -> Option<&Entry> {
        self.changes.iter().find(|entry| entry.path == path)
    }

    /// Records a change. The value to restore is the one before our first change, or the current
    /// value if another program has changed the file since our last change.
    pub(super) fn add(&mut self, change: &Change) {
        let entry = self.changes.iter_mut().find(|entry| entry.path == change.path);
        let (from, to) = (change.from.clone(), change.to.clone());
        match entry {
            Some(entry) if entry.wrote(&from) => (entry.to, entry.was) = (to, Some(from)),
            Some(entry) => (entry.from, entry.to, entry.was) = (from, to, None),
            None => {
                let (item, path) = (change.item, change.path.clone());
                self.changes.push(Entry { item, path, from, to, was: None });
            }
        }
    }

    /// Records the value that a file has after the write, whatever it is.
    pub(super) fn settle(&mut self, path: &str, now: &str) {
        if let Some(entry) = self.changes.iter_mut().find(|entry| entry.path == path) {
            now.clone_into(&mut entry.to);
            entry.was = None;
        }
        self.changes.retain(|entry| entry.from != entry.to);
    }

    pub(super) fn forget(&mut self, path: &str) {
        self.changes.retain(|entry| entry.path != path);
    }

    /// Replaces the journal file atomically, on the disk as well. Removes it if there are no changes.
    pub(super) fn save(&mut self, turn: &Turn) -> io::Result<()> {
        let Turn { folder, journal } = turn;
        if self.changes.is_empty() {
            return match fs::remove_file(journal) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                Err(error) => Err(error),
                Ok(()) => folder.sync_all(),
            };
        }
        self.schema = SCHEMA;
        let text = serde_json::to_string_pretty(self)? + "\n";
        let fresh = journal.with_extension("json.new");
        let mut options = OpenOptions::new();
        options.create(true).truncate(true).write(true).mode(0o644);
        let mut file = options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(&fresh)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(fresh, journal)?;
        folder.sync_all()
    }
}

impl Entry {
    pub fn wrote(&self, value: &str) -> bool {
        self.to == value || self.was.as_deref() == Some(value)
    }

    fn is_ours(&self) -> bool {
        let values = [&self.from, &self.to];
        Item::of(&self.path) == Some(self.item)
            && values.into_iter().chain(&self.was).all(|value| is_value(value))
    }
}

pub(super) struct Turn {
    /// The journal's folder, locked as long as it is open.
    folder: File,
    journal: PathBuf,
}

impl Turn {
    /// Also creates the journal's folder. A folder that others may write to is rejected: with it
    /// they could set the host's files to values of their choice.
    pub(super) fn take(site: &Site) -> Result<Self, FitError> {
        let path = site.path(FOLDER);
        let file = path.display().to_string();
        let how = (OFlags::DIRECTORY | OFlags::NOFOLLOW).bits().cast_signed();
        let opened = DirBuilder::new().recursive(true).mode(0o755).create(&path).and_then(|()| {
            let folder = OpenOptions::new().read(true).custom_flags(how).open(&path)?;
            refuse_of_others(&folder.metadata()?)?;
            Ok(folder)
        });
        let folder = opened.map_err(|source| FitError::File { file: file.clone(), source })?;
        match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { folder, journal: site.path(JOURNAL) }),
            Err(_) => Err(FitError::Busy(file)),
        }
    }
}

/// The file must belong to root or the caller, and not be writable for others.
fn refuse_of_others(metadata: &Metadata) -> io::Result<()> {
    let owners = [0, rustix::process::geteuid().as_raw()];
    let is_safe = owners.contains(&metadata.uid()) && metadata.mode() & OTHERS_WRITE == 0;
    is_safe.then_some(()).ok_or_else(|| {
        let reason = "belongs to another user, or is writable by others";
        io::Error::new(io::ErrorKind::PermissionDenied, reason)
    })
}

/// Reads the journal: a file of bounded length that no other user can have written.
fn read(file: File) -> io::Result<String> {
    refuse_of_others(&file.metadata()?)?;
    read_bounded(file, FILE_BYTES_MAX)
}

const SCHEMA: u32 = 1;
const OTHERS_WRITE: u32 = 0o022;
/// Enough for some thousand interrupts.
const FILE_BYTES_MAX: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn change(from: &str, to: &str) -> Change {
        let path = "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages".to_owned();
        let (from, to) = (from.to_owned(), to.to_owned());
        Change { item: Item::Hugepages, path, from, to, reason: String::new() }
    }

    #[test]
    fn until_a_second_change_is_settled_either_value_is_our_own() {
        let mut journal = Journal::default();
        journal.add(&change("10", "70"));
        journal.add(&change("70", "134"));
        let entry = &journal.changes[0];
        assert_eq!((entry.from.as_str(), entry.to.as_str()), ("10", "134"));
        assert!(entry.wrote("70") && entry.wrote("134") && !entry.wrote("10"));
        journal.add(&change("70", "200"));
        assert_eq!(journal.changes[0].from, "10", "the one before was killed");
        let path = journal.changes[0].path.clone();
        journal.settle(&path, "200");
        assert!(journal.changes[0].wrote("200") && !journal.changes[0].wrote("70"));
        journal.add(&change("33", "200"));
        assert_eq!(journal.changes[0].from, "33", "the other program's value");
        journal.settle(&path, "33");
        assert_eq!(journal.changes, []);
    }
}
