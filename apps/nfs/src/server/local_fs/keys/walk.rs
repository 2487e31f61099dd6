//! Keys for a search: inode number and birth time.

use super::{Root, find};
use crate::protocol::Nfsstat3;
use crate::server::caller::is_first;
use crate::server::errors::OrStatus;
use crate::server::file_system::{FileKey, Outcome, Place};
use crate::server::local_fs::attributes::{kind, stat};
use crate::server::local_fs::files::{entries, is_plain_name, open};
use crate::server::local_fs::fsstat::OVERLAYFS;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, OFlags, Statx, StatxFlags, fstatfs};
use rustix::time::{ClockId, clock_gettime};
use spinrpc::sync::lock;
use spinrpc::sys::journal::event;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

/// First byte of such a key; no file handle of the kernel has this type.
pub(super) const MARK: u8 = 0;
/// Maximum number of remembered places; beyond it, all are forgotten, and files are searched for again.
const PLACES_MAX: usize = 1 << 18;
/// Number of files that a search visits before it considers a file gone.
const SEARCH_FILES_MAX: usize = 1_000_000;
/// Number of recently missed keys, and the time without another search for them, or for any key if the search went through the
/// whole tree. It never ends in tests, which take longer than this on a busy disk.
const MISSES_MAX: usize = 64;
const MISS_TIME: Duration = Duration::from_secs(if cfg!(test) { 3600 } else { 10 });
/// Maximum depth of a search and of a chain of remembered places.
const DEPTH_MAX: usize = 128;
/// Steps of this clock are ticks of the kernel: 1 to 10 ms, or longer while its CPU does not run.
const CLOCK_LOOK: Duration = Duration::from_millis(1);
const CLOCK_LOOKS_MAX: usize = 100;
/// Each limit that large trees reach is logged once.
static IS_FULL_SAID: AtomicBool = AtomicBool::new(false);
static IS_UNFOUND_SAID: AtomicBool = AtomicBool::new(false);
const REMEDY: &str = "run spin-nfsd with CAP_DAC_READ_SEARCH, which needs no searches";

pub(in super::super) struct WalkKeys {
    mount_id: u64,
    device: (u32, u32),
    seen: Mutex<Places>,
    /// One search at a time; it remembers everything it sees, so that the next may not be needed.
    search: Mutex<Misses>,
}

/// Most recent last: each call with a stale handle would cause another search.
#[derive(Default)]
struct Misses(VecDeque<(FileKey, Instant)>);

/// Places of files, which are those of the whole tree after a search in vain: of many stale keys, as a client may have, the
/// first one causes a search that answers the others.
#[derive(Default)]
struct Places {
    seen: HashMap<FileKey, Seen>,
    searches: u32,
    /// Places were forgotten since the last search began.
    has_gaps: bool,
    /// End of the last search in vain through the whole tree, if no place was forgotten since it began.
    searched: Option<Instant>,
}

#[derive(Clone)]
struct Seen {
    directory: FileKey,
    name: Box<[u8]>,
    /// The search during or after which it was seen.
    search: u32,
}

struct Search<'a> {
    keys: &'a WalkKeys,
    wanted: &'a FileKey,
    files_left: usize,
}

impl WalkKeys {
    /// Checks with the root that the file system has birth times, and that files keep them. On an overlay, the first write
    /// copies a file to another layer, and only one of its names with it.
    pub(super) fn new(root: &OwnedFd, stat: &Statx) -> io::Result<Self> {
        let unsupported = |reason| Err(io::Error::new(io::ErrorKind::Unsupported, reason));
        if fstatfs(root)?.f_type as u32 == OVERLAYFS {
            return unsupported(
                "files of an overlay become other ones when they are first written, unless it is \
                 mounted with index=on,nfs_export=on and the server is root",
            );
        }
        if !StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME) {
            return unsupported("the file system has no birth times");
        }
        Ok(Self::below(stat))
    }

    fn below(root: &Statx) -> Self {
        let (mount_id, device) = (root.stx_mnt_id, device(root));
        Self { mount_id, device, seen: Mutex::default(), search: Mutex::default() }
    }

    /// Returns whether a file is in the file system of the root. A subvolume of btrfs counts as another one: it is in the same
    /// mount, and files of a snapshot have the same numbers and birth times as those that they are copies of. Its directory
    /// shows that; files of some file systems have another device than their directories (overlayfs).
    pub(super) fn includes(&self, stat: &Statx) -> bool {
        let is_subvolume = kind(stat) == FileType::Directory && device(stat) != self.device;
        stat.stx_mnt_id == self.mount_id && !is_subvolume
    }

    #[cfg(test)]
    pub(super) fn search_now(&self) {
        lock(&self.seen).searched = None;
        lock(&self.search).0.clear();
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
        lock(&self.seen).note(key, at);
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
        lock(&self.seen).answer(key)?;
        let found = self.search(root, key);
        if matches!(found, Err(Nfsstat3::Nfs3errStale)) {
            misses.add(*key);
        }
        found
    }

    fn search(&self, root: Root<'_>, key: &FileKey) -> Outcome<OwnedFd> {
        lock(&self.seen).begin_search(key);
        let mut search = Search { keys: self, wanted: key, files_left: SEARCH_FILES_MAX };
        if let Some(found) = search.below(root.directory, root.key, DEPTH_MAX)? {
            return Ok(found);
        }
        lock(&self.seen).end_in_vain();
        Err(Nfsstat3::Nfs3errStale)
    }

    /// Forgets the removed file, so that no search is needed for it, and holds it until a new file with its inode
    /// number, which is not free until then, would have another birth time; for 100 ms at most, as the clock may have been set
    /// back.
    pub(super) fn outlive(&self, removed: &Statx) {
        if let Ok(key) = self.of(removed) {
            lock(&self.seen).seen.remove(&key);
        }
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
        let seen = lock(&self.seen).seen.get(key).cloned()?;
        let found = if seen.directory == *root.key {
            find(root.directory, &seen.name)
        } else {
            find(self.find_where_seen(root, &seen.directory, depth.checked_sub(1)?)?, &seen.name)
        };
        let found = found.ok()?;
        let stat = stat(&found).ok()?;
        (self.includes(&stat) && self.of(&stat).ok()? == *key).then_some(found)
    }
}

fn device(stat: &Statx) -> (u32, u32) {
    (stat.stx_dev_major, stat.stx_dev_minor)
}

impl Places {
    fn note(&mut self, key: &FileKey, at: Place<'_>) {
        if self.seen.len() >= PLACES_MAX && !self.seen.contains_key(key) {
            if is_first(&IS_FULL_SAID) {
                event!(
                    WARN,
                    "the places of {PLACES_MAX} files were remembered and are forgotten: handles cause searches of \
                     the whole tree; {REMEDY}"
                );
            }
            self.seen.clear();
            (self.has_gaps, self.searched) = (true, None);
        }
        let (directory, search) = (*at.directory, self.searches);
        self.seen.insert(*key, Seen { directory, name: at.name.into(), search });
    }

    /// The answer for a file that is not where it was seen, soon after a search through the whole tree: gone, unless it was seen.
    /// Then it may have been moved since, and the next search, which has to wait, finds it. `Ok` if a search may begin.
    fn answer(&self, key: &FileKey) -> Outcome<()> {
        match self.searched {
            Some(searched) if searched.elapsed() < MISS_TIME => {
                let is_known = self.seen.contains_key(key);
                Err(if is_known { Nfsstat3::Nfs3errJukebox } else { Nfsstat3::Nfs3errStale })
            }
            _ => Ok(()),
        }
    }

    fn begin_search(&mut self, wanted: &FileKey) {
        self.seen.remove(wanted);
        self.searches += 1;
        self.has_gaps = false;
    }

    /// It went through the whole tree. A file that it did not see may have been moved meanwhile, but not one that was not seen
    /// by the search before either.
    fn end_in_vain(&mut self) {
        if self.has_gaps {
            return;
        }
        let searches = self.searches;
        self.seen.retain(|_, seen| seen.search + 1 >= searches);
        self.searched = Some(Instant::now());
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

/// The search is over; the file may be among those that it has not visited.
#[cold]
fn give_up() -> Nfsstat3 {
    if is_first(&IS_UNFOUND_SAID) {
        event!(
            WARN,
            "a file is not among the first {SEARCH_FILES_MAX} of its export, so that its handle is stale to clients \
             until they look up its name; {REMEDY}"
        );
    }
    Nfsstat3::Nfs3errStale
}

impl Search<'_> {
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
        let listed = entries(&listing, &mut |entry| {
            names.push(entry.name.to_bytes().into());
            Ok(true)
        });
        match listed {
            // Without entries, as it has been removed meanwhile.
            Ok(_) | Err(Nfsstat3::Nfs3errNoent) => {}
            Err(error) => return Err(error),
        }
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
        self.files_left = self.files_left.checked_sub(1).ok_or_else(give_up)?;
        let Ok(found) = find(directory, place.name) else { return Ok(None) };
        let stat = stat(&found).or_status()?;
        if !self.keys.includes(&stat) {
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
    use spinrpc::sys::journal::{FLUSH_MAX, flush, tracing};

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

    /// A directory is removed between the look at it and its listing. Expect that the search goes on.
    #[test]
    fn a_directory_that_is_removed_during_a_search_has_no_entries() {
        let path = std::env::temp_dir().join(format!("spin-walk-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path); // of a killed run with the same process id
        std::fs::create_dir(&path).unwrap();
        let removed = OwnedFd::from(std::fs::File::open(&path).unwrap());
        std::fs::remove_dir(&path).unwrap();
        let keys = WalkKeys::below(&stat(&removed).unwrap());
        let mut search = Search { keys: &keys, wanted: &key(1), files_left: SEARCH_FILES_MAX };
        assert!(matches!(search.below(removed.as_fd(), &key(2), DEPTH_MAX), Ok(None)));
    }

    #[test]
    fn a_subvolume_in_the_same_mount_is_another_file_system() {
        let found = |path| stat(std::fs::File::open(path).unwrap()).unwrap();
        let (root, file) = (found(std::env::temp_dir()), found(std::env::current_exe().unwrap()));
        let keys = WalkKeys::below(&root);
        let with = |mut of: Statx, device, mount_id| {
            (of.stx_dev_minor, of.stx_mnt_id) = (device, mount_id);
            keys.includes(&of)
        };
        let (device, mount_id) = (root.stx_dev_minor, root.stx_mnt_id);
        assert!(with(root, device, mount_id) && with(file, device, mount_id));
        assert!(!with(root, device ^ 1, mount_id));
        assert!(with(file, device ^ 1, mount_id), "as on overlayfs");
        assert!(!with(root, device, mount_id ^ 1) && !with(file, device, mount_id ^ 1));
    }

    /// Counts events.
    #[derive(Clone, Default)]
    struct Count(std::sync::Arc<std::sync::atomic::AtomicU32>);

    impl tracing::Subscriber for Count {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }

        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }

        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }

    #[test]
    fn each_limit_of_large_trees_is_logged_once() {
        let (count, mut places) = (Count::default(), Places::default());
        let place = Place { directory: &key(0), name: b"file" };
        tracing::subscriber::with_default(count.clone(), || {
            for number in 0..2 * PLACES_MAX as u32 + 2 {
                let bytes = [&[MARK][..], &number.to_be_bytes()].concat();
                places.note(&FileKey::new(&bytes).unwrap(), place);
            }
            assert!((0..2).all(|_| give_up() == Nfsstat3::Nfs3errStale));
        });
        assert!(places.has_gaps);
        let counted = || count.0.load(std::sync::atomic::Ordering::Relaxed);
        let until = Instant::now() + Duration::from_secs(60);
        while counted() < 2 && Instant::now() < until {
            flush(FLUSH_MAX); // which a pause of the thread that tells the events outlasts
        }
        assert_eq!(counted(), 2);
    }
}
