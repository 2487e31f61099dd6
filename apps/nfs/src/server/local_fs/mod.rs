//! A back end that exports a directory: real files, on any mounted file system.
//!
//! Nothing outside the directory is reachable: only single names from a client reach the kernel,
//! looked up in an open directory, and symbolic links are not followed. File systems mounted below
//! it are not exported. A server that runs as root performs each operation as the caller, so that
//! the kernel checks permissions; otherwise it acts as itself for all callers
//! ([`Ways::acts_as_callers`]).
//!
//! Threads that may block handle names and attributes. Data go through the core's ring
//! (`data_path`), or through threads (`workers`). In between are the files that are held open
//! (`nodes`), found by their keys (`keys`).
//!
//! Attributes from before an operation, by which a client detects changes by others (weak cache
//! consistency, RFC 1813 section 2.6), are only returned if no other operation of this server
//! overlapped. Concurrent changes by local processes, or through another export of the same files,
//! cannot be detected; a client notices them when its attributes expire.

mod attributes;
mod create;
mod data_path;
mod files;
mod fsstat;
mod identity;
mod keys;
mod lookup;
mod node;
mod readdir;
mod remove;
mod setattr;
#[cfg(test)]
mod tests;
mod transfer;
mod tree;
mod workers;

pub use crate::server::errors::OpenError;
pub use keys::KeyMode;
pub use tree::Syncs;

use crate::protocol::{Fattr3, Fsstat3resok};
use crate::server::caller::Caller;
use crate::server::file_system::{
    Abilities, Change, DataPath, FileKey, FileSystem, Found, ListFrom, Listed, NewFile, Outcome,
    Place, Renaming, Setting, Take, first_losses, forward_operations,
};
use crate::server::nodes::Nodes;
use crate::sys::file_ring::FileRing;
use attributes::stat;
use data_path::DirectoryPath;
use files::{find_again, path_of};
use fsstat::FileSystemKind;
use identity::Identity;
use keys::Keys;
use node::Node;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::{Resource, getrlimit, umask};
use spinrpc::{Bulk, CoreContext};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tree::Tree;
use workers::Workers;

/// Descriptors that a file held open can need: found, for reading, for writing.
const DESCRIPTORS_OF_FILE: u64 = 3;
/// Descriptors reserved for the rest of the process.
const DESCRIPTORS_LEFT: u64 = 256;

/// Method of data access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoMode {
    /// io_uring if it is allowed and the file system is a local one, else threads.
    #[default]
    Auto,
    /// io_uring.
    Uring,
    /// Threads: [`DirectoryOptions::threads`] requests of all cores at a time.
    Threads,
}

/// Options of an exported directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryOptions {
    /// Distinguishes the file systems of a server (`fsid` of RFC 1813 section 2.6).
    pub fsid: u64,
    /// Kind of keys of files.
    pub keys: KeyMode,
    /// Method of data access.
    pub io: IoMode,
    /// Maximum number of files held open; lower if the process cannot have three descriptors for
    /// each ([`open_files_affordable`], which other directories may share). A file not used for 5
    /// seconds is closed.
    pub open_files_max: usize,
    /// Maximum number of data requests that one core has in progress, 1 to 32,768; further ones get
    /// NFS3ERR_JUKEBOX.
    pub ring_depth: u32,
    /// Threads that open files for all cores, and read and write them without a ring.
    pub threads: usize,
}

impl Default for DirectoryOptions {
    fn default() -> Self {
        Self {
            fsid: 1,
            keys: KeyMode::Auto,
            io: IoMode::Auto,
            open_files_max: 4096,
            ring_depth: 256,
            threads: 4,
        }
    }
}

/// Choices for options that were `Auto`.
#[derive(Debug)]
pub struct Ways {
    /// Kind of keys of files; not `Auto`.
    pub keys: KeyMode,
    /// Method of data access; not `Auto`.
    pub io: IoMode,
    /// Reason for not using io_uring, if that was to be used if possible: to be reported to the
    /// user once.
    pub ring_denied: Option<io::Error>,
    /// True if operations use the identity of callers, as only root can. If not, all callers act as
    /// the server's user: they have its rights, and it owns their files.
    pub acts_as_callers: bool,
    /// Maximum number of files held open, given the descriptor limit of the process.
    pub open_files_max: usize,
}

/// An exported directory.
pub struct Directory {
    tree: Arc<Tree>,
    workers: Workers,
    kind: FileSystemKind,
    ring_depth: u32,
    ways: Ways,
}

impl Directory {
    /// Opens a directory for export, and starts its threads. Dropping it stops them: that waits for
    /// operations in progress, and drops queued ones. Sets the umask of the process to 0, because
    /// modes of new files are the clients'. Needs Linux 5.15. Waits for the disk.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: &Path, options: &DirectoryOptions) -> Result<Arc<Self>, OpenError> {
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, path, how, Mode::empty()).map_err(unusable(path))?;
        let kind = FileSystemKind::of(&root).map_err(unusable(path))?;
        let (io, ring_denied) = choose_io(options, &kind)?;
        let open_files_max = options.open_files_max.min(open_files_affordable());
        let tree = Arc::new(open_tree(path, root, options, open_files_max)?);
        umask(Mode::empty());
        let workers = Workers::start(&tree, "spin-nfs-file-", options.threads, None)
            .map_err(OpenError::of_threads)?;
        let (keys, acts_as_callers) = (tree.keys.mode(), tree.identity.acts_as_callers());
        let ways = Ways { keys, io, ring_denied, acts_as_callers, open_files_max };
        Ok(Arc::new(Self { tree, workers, kind, ring_depth: options.ring_depth, ways }))
    }

    /// The choices.
    pub fn ways(&self) -> &Ways {
        &self.ways
    }

    /// Number of syncs to stable storage. Callable from any thread at any time.
    pub fn syncs(&self) -> Syncs {
        self.tree.syncs()
    }

    fn uses_ring(&self) -> bool {
        self.ways.io == IoMode::Uring
    }
}

impl FileSystem for Directory {
    fn blocks(&self) -> bool {
        true
    }

    fn losses(&self) -> u64 {
        self.tree.losses.load(Ordering::Relaxed)
    }

    fn root(&self) -> FileKey {
        self.tree.root.key
    }

    fn attributes_now(&self, file: &FileKey) -> Option<Outcome<Fattr3>> {
        let node = self.kind.answers_at_once.then(|| self.tree.peek(file)).flatten()?;
        Some(self.tree.attributes_of(&node))
    }

    forward_operations!(self => self.tree, self.tree);

    fn abilities(&self) -> Abilities {
        self.kind.abilities
    }

    fn stop(&self) {
        self.workers.stop();
    }

    fn data_path(self: Arc<Self>, core: &CoreContext) -> Box<dyn DataPath> {
        let depth = self.ring_depth;
        Box::new(DirectoryPath::new(self, core, depth))
    }
}

fn unusable<E: Into<io::Error>>(path: &Path) -> impl FnOnce(E) -> OpenError {
    let what = format!("cannot open {}", path.display());
    OpenError::of(what, "it must be a directory that the server's user can read")
}

fn open_tree(
    path: &Path,
    root_directory: OwnedFd,
    options: &DirectoryOptions,
    open_files_max: usize,
) -> Result<Tree, OpenError> {
    let what = format!("cannot open {}", path_of(&root_directory));
    let found = find_again(&root_directory).map_err(OpenError::of(what, "mount /proc"))?;
    let stat = stat(&found).map_err(unusable(path))?;
    let what =
        format!("no lasting handles ({:?}) for the files of {}", options.keys, path.display());
    let remedy = "run as root (CAP_DAC_READ_SEARCH), or export a file system of another kind";
    let keys = Keys::new(options.keys, &root_directory, &stat);
    let keys = keys.map_err(OpenError::of(what, remedy))?;
    let key = keys.of(&found, &stat);
    let key = key.map_err(|status| unusable(path)(io::Error::other(status.to_string())))?;
    let identity = Identity::of_this_thread().map_err(OpenError::of(
        "cannot act as the callers",
        "give the server CAP_SETUID and CAP_SETGID, or run it as a user who is not root, whom all callers then are",
    ))?;
    Ok(Tree {
        root: Arc::new(Node::new(key, found, &stat)),
        root_directory,
        mount_id: stat.stx_mnt_id,
        fsid: options.fsid,
        keys,
        identity,
        nodes: Nodes::new(open_files_max),
        losses: first_losses(),
        data_syncs: AtomicU64::new(0),
        file_syncs: AtomicU64::new(0),
    })
}

/// The method, and the reason if it is not io_uring although the options allow it.
fn choose_io(
    options: &DirectoryOptions,
    kind: &FileSystemKind,
) -> Result<(IoMode, Option<io::Error>), OpenError> {
    let (asked, depth) = (options.io, options.ring_depth);
    if asked == IoMode::Threads {
        return Ok((IoMode::Threads, None));
    }
    match (try_ring(kind, depth), asked) {
        (Ok(()), _) => Ok((IoMode::Uring, None)),
        (Err(error), IoMode::Uring) => Err(OpenError::of(
            "cannot use io_uring",
            "let the server use threads, or allow it (seccomp, sysctl kernel.io_uring_disabled)",
        )(error)),
        (Err(error), _) => Ok((IoMode::Threads, Some(error))),
    }
}

fn try_ring(kind: &FileSystemKind, depth: u32) -> io::Result<()> {
    if !kind.answers_at_once {
        let reason = "the file system may ask other hosts or processes, and a core would wait";
        return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
    }
    FileRing::<Bulk, u32>::new(depth).map(drop)
}

/// Number of files that all directories of the process can hold open with its current descriptor
/// limit (RLIMIT_NOFILE): the sum of [`DirectoryOptions::open_files_max`] should not exceed it.
/// Does not block.
pub fn open_files_affordable() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let files = descriptors.saturating_sub(DESCRIPTORS_LEFT) / DESCRIPTORS_OF_FILE;
    usize::try_from(files).unwrap_or(usize::MAX)
}
