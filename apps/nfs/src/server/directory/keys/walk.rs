//! Keys for a search: inode number and birth time.

use super::{Root, find};
use crate::protocol::Nfsstat3;
use crate::server::directory::attributes::{kind, stat};
use crate::server::directory::files::{entries, is_plain_name, open};
use crate::server::errors::OrStatus;
use crate::server::file_system::{FileKey, Outcome, Place};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, OFlags, Statx, StatxFlags};
use rustix::time::{ClockId, clock_gettime};
use spinrpc::sync::lock;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

/// First byte of such a key; no file handle of the kernel has this type.
pub(super) const MARK: u8 = 0;
/// Maximum number of remembered places; beyond it, all are forgotten.
const PLACES_MAX: usize = 1 << 18;
/// Number of files that a search visits before it considers a file gone.
const SEARCH_FILES_MAX: usize = 1_000_000;
/// Number of recently missed keys, and the time without another search for them.
const MISSES_MAX: usize = 64;
const MISS_TIME: Duration = Duration::from_secs(10);
/// Maximum depth of a search and of a chain of remembered places.
const DEPTH_MAX: usize = 128;
/// Interval and number of looks at the clock for birth times: its steps are ticks of the kernel, 1 to 10 ms, or longer while the
/// CPU that keeps the time does not run.
const CLOCK_LOOK: Duration = Duration::from_millis(1);
const CLOCK_LOOKS_MAX: usize = 100;

pub(in super::super) struct WalkKeys {
    seen: Mutex<HashMap<FileKey, Seen>>,
    /// One search at a time; it remembers everything it sees, so that the next may not be needed.
    search: Mutex<Misses>,
}

/// Keys that a search did not find, most recent last: each call with a stale handle would cause
/// another search.
#[derive(Default)]
struct Misses(VecDeque<(FileKey, Instant)>);

#[derive(Clone)]
struct Seen {
    directory: FileKey,
    name: Box<[u8]>,
}

/// A search in progress.
struct Search<'a> {
    keys: &'a WalkKeys,
    mount_id: u64,
    wanted: &'a FileKey,
    files_left: usize,
}

impl WalkKeys {
    /// Checks with the root that the file system has birth times.
    pub(super) fn new(root: &Statx) -> io::Result<Self> {
        if !StatxFlags::from_bits_retain(root.stx_mask).contains(StatxFlags::BTIME) {
            let reason = "the file system has no birth times";
            return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
        }
        Ok(Self { seen: Mutex::default(), search: Mutex::default() })
    }

    pub(super) fn of(&self, stat: &Statx) -> Outcome<FileKey> {
        let mut bytes = [MARK; 21];
        let (_, rest) = bytes.split_at_mut(1);
        let (number, born) = rest.split_at_mut(8);
        number.copy_from_slice(&stat.stx_ino.to_be_bytes());
        let (seconds, nanoseconds) = born.split_at_mut(8);
        seconds.copy_from_slice(&stat.stx_btime.tv_sec.to_be_bytes());
        nanoseconds.copy_from_slice(&stat.stx_btime.tv_nsec.to_be_bytes());
        FileKey::new(&bytes).ok_or(Nfsstat3::Nfs3errServerfault)
    }

    pub(super) fn note(&self, key: &FileKey, at: Place<'_>) {
        if !is_plain_name(at.name) {
            return;
        }
        let mut seen = lock(&self.seen);
        if seen.len() >= PLACES_MAX {
            seen.clear();
        }
        seen.insert(*key, Seen { directory: *at.directory, name: at.name.into() });
    }

    pub(super) fn find(&self, root: Root<'_>, key: &FileKey) -> Outcome<OwnedFd> {
        if key.as_bytes().first() != Some(&MARK) {
            return Err(Nfsstat3::Nfs3errStale);
        }
        if let Some(found) = self.find_where_seen(root, key, DEPTH_MAX) {
            return Ok(found);
        }
        let mut misses = alone(&self.search)?;
        if let Some(found) = self.find_where_seen(root, key, DEPTH_MAX) {
            return Ok(found);
        }
        if misses.have(key) {
            return Err(Nfsstat3::Nfs3errStale);
        }
        let found = self.search(root, key);
        if matches!(found, Err(Nfsstat3::Nfs3errStale)) {
            misses.add(*key);
        }
        found
    }

    fn search(&self, root: Root<'_>, key: &FileKey) -> Outcome<OwnedFd> {
        lock(&self.seen).remove(key);
        let mut search = Search {
            keys: self,
            mount_id: root.mount_id,
            wanted: key,
            files_left: SEARCH_FILES_MAX,
        };
        search.below(root.directory, root.key, DEPTH_MAX)?.ok_or(Nfsstat3::Nfs3errStale)
    }

    /// Holds the removed file, whose inode number is not free until then, until a new file with
    /// that number would have another birth time; for 100 ms at most, as the clock may have been set back.
    pub(super) fn outlive(&self, removed: &Statx) {
        let born = (removed.stx_btime.tv_sec, i64::from(removed.stx_btime.tv_nsec));
        for _ in 0..CLOCK_LOOKS_MAX {
            let now = clock_gettime(ClockId::RealtimeCoarse);
            if (now.tv_sec, now.tv_nsec) > born {
                return;
            }
            thread::sleep(CLOCK_LOOK);
        }
    }

    /// The file, if it is still where it was seen, in a directory that still exists.
    fn find_where_seen(&self, root: Root<'_>, key: &FileKey, depth: usize) -> Option<OwnedFd> {
        let seen = lock(&self.seen).get(key).cloned()?;
        let found = if seen.directory == *root.key {
            find(root.directory, &seen.name)
        } else {
            find(self.find_where_seen(root, &seen.directory, depth.checked_sub(1)?)?, &seen.name)
        };
        let found = found.ok()?;
        let stat = stat(&found).ok()?;
        (stat.stx_mnt_id == root.mount_id && self.of(&stat).ok()? == *key).then_some(found)
    }
}

impl Misses {
    fn have(&self, key: &FileKey) -> bool {
        self.0.iter().any(|(missed, when)| missed == key && when.elapsed() < MISS_TIME)
    }

    fn add(&mut self, key: FileKey) {
        if self.0.len() >= MISSES_MAX {
            self.0.pop_front();
        }
        self.0.push_back((key, Instant::now()));
    }
}

/// Calls that arrive during a search are retried later: it may take minutes, and there are few
/// threads.
fn alone(search: &Mutex<Misses>) -> Outcome<MutexGuard<'_, Misses>> {
    match search.try_lock() {
        Ok(misses) => Ok(misses),
        Err(TryLockError::Poisoned(misses)) => Ok(misses.into_inner()),
        Err(TryLockError::WouldBlock) => Err(Nfsstat3::Nfs3errJukebox),
    }
}

impl Search<'_> {
    /// The file, if it is in this directory or below, and within the limits of the search.
    fn below(
        &mut self,
        directory: BorrowedFd<'_>,
        key: &FileKey,
        depth: usize,
    ) -> Outcome<Option<OwnedFd>> {
        let Ok(listing) = open(directory, OFlags::RDONLY | OFlags::DIRECTORY) else {
            return Ok(None); // not the server's to read, so none of its files was ever named
        };
        let mut names: Vec<Box<[u8]>> = Vec::new();
        entries(&listing, &mut |entry| {
            names.push(entry.name.to_bytes().into());
            Ok(true)
        })?;
        for name in names.iter().filter(|name| is_plain_name(name)) {
            if let Some(found) = self.at(Place { directory: key, name }, directory, depth)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn at(
        &mut self,
        place: Place<'_>,
        directory: BorrowedFd<'_>,
        depth: usize,
    ) -> Outcome<Option<OwnedFd>> {
        self.files_left = self.files_left.checked_sub(1).ok_or(Nfsstat3::Nfs3errStale)?;
        let Ok(found) = find(directory, place.name) else { return Ok(None) };
        let stat = stat(&found).or_status()?;
        if stat.stx_mnt_id != self.mount_id {
            return Ok(None);
        }
        let key = self.keys.of(&stat)?;
        self.keys.note(&key, place);
        match depth.checked_sub(1) {
            _ if key == *self.wanted => Ok(Some(found)),
            Some(depth) if kind(&stat) == FileType::Directory => {
                self.below(found.as_fd(), &key, depth)
            }
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> FileKey {
        FileKey::new(&[MARK, byte]).unwrap()
    }

    #[test]
    fn the_last_misses_are_remembered() {
        let mut misses = Misses::default();
        for byte in 0..=MISSES_MAX as u8 {
            misses.add(key(byte));
        }
        assert!(!misses.have(&key(0)));
        assert!((1..=MISSES_MAX as u8).all(|byte| misses.have(&key(byte))));
    }

    #[test]
    fn a_request_during_a_search_is_retried() {
        let search = Mutex::default();
        let first = alone(&search).ok();
        assert!(first.is_some());
        assert!(matches!(alone(&search), Err(Nfsstat3::Nfs3errJukebox)));
        drop(first);
        assert!(alone(&search).is_ok());
    }
}
