//! The file systems that the suite runs on.

use crate::gate::Gated;
use crate::*;
use spinrpc_nfs::server::local_fs::{Directory, DirectoryOptions, IoMode, KeyMode};
use spinrpc_nfs::server::memfs::{Memory, MemoryOptions};
use std::any::Any;

/// An empty file system that the test's user may write to.
pub(crate) struct BackEnd {
    pub(crate) file_system: Arc<dyn FileSystem>,
    /// Callers have the rights of their users. A directory needs a server that is root for that.
    pub(crate) checks_rights: bool,
    /// Resources to keep, or to clean up on drop.
    _keep: Box<dyn Any>,
}

impl BackEnd {
    pub(crate) fn new(file_system: Arc<dyn FileSystem>, keep: impl Any) -> Self {
        Self { file_system, checks_rights: true, _keep: Box::new(keep) }
    }
}

pub(crate) fn memory() -> BackEnd {
    small_memory(&MemoryOptions { bytes_max: 64 << 20, ..MemoryOptions::default() })
}

pub(crate) fn small_memory(options: &MemoryOptions) -> BackEnd {
    BackEnd::new(Memory::new(options).unwrap(), ())
}

/// Memory that claims to block, and answers READ, WRITE and COMMIT later.
pub(crate) fn waiting() -> BackEnd {
    gated(&Gate::open())
}

/// The same with a gate: changes only proceed when it is open.
pub(crate) fn gated(gate: &Arc<Gate>) -> BackEnd {
    BackEnd::new(Gated::new(memory().file_system, gate), ())
}

/// A directory on a disk.
pub(crate) fn directory() -> BackEnd {
    a_directory(&DirectoryOptions::default())
}

/// The same without io_uring and kernel handles, as in a container.
pub(crate) fn modest_directory() -> BackEnd {
    let (io, keys) = (IoMode::Threads, KeyMode::Walk);
    a_directory(&DirectoryOptions { io, keys, ..DirectoryOptions::default() })
}

fn a_directory(options: &DirectoryOptions) -> BackEnd {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("nfsd-{}-{number}", std::process::id()));
    let _ = fs::remove_dir_all(&path); // of a killed run with the same process id
    fs::create_dir(&path).unwrap();
    let directory = Directory::open(&path, options).unwrap();
    let checks_rights = directory.ways().acts_as_callers;
    BackEnd { checks_rights, ..BackEnd::new(directory, Removed(path)) }
}

/// A new directory of CephFS.
#[cfg(feature = "cephfs")]
pub(crate) fn cephfs() -> BackEnd {
    BackEnd::new(crate::gateways::open(&crate::gateways::new_directory()), ())
}

/// Removed after the test.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}
