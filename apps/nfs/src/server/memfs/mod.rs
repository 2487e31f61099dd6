//! A file system in memory, for benchmarks and tests. Its contents are lost with the process.
//!
//! A single lock protects it. A thread that finds it taken spins, and yields after a while: a core
//! never sleeps in it. The longest operation is the copy of one READ or WRITE, no operation blocks,
//! and readers do not exclude each other. But cores that write contend: to measure many cores, give
//! each its own export.
//!
//! Access times are those of creation, unless they are set: reads change nothing.

mod content;
mod node;
mod tree;

use super::caller::Caller;
use super::file_system::{
    Abilities, Change, DataPath, Done, FileKey, FileSystem, Found, ListFrom, Listed, NewFile,
    Outcome, Place, Renaming, Request, Setting, Started, Take, WriteData, forward_operations,
};
use crate::protocol::{Fattr3, Fsstat3resok, StableHow, WccData};
use spinrpc::sys::random::Random;
use spinrpc::{CoreContext, Progress};
use std::io;
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use tree::Tree;

/// Size limits of a file system in memory, and the owner of its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryOptions {
    /// Its number (`fsid`); unique among the file systems of a server.
    pub fsid: u64,
    /// Maximum bytes of all files and names together; beyond it, NFS3ERR_NOSPC.
    pub bytes_max: u64,
    /// Maximum number of files, including directories; beyond it, NFS3ERR_NOSPC.
    pub files_max: u64,
    /// Owner of the root.
    pub uid: u32,
    /// Group of the root.
    pub gid: u32,
    /// Mode of the root.
    pub mode: u32,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self { fsid: 1, bytes_max: 1 << 30, files_max: 1 << 20, uid: 0, gid: 0, mode: 0o1777 }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Memory {
    tree: RwLock<Tree>,
    root: FileKey,
}

/// Attempts to take the lock before the thread yields to another, which may hold it.
const SPINS: u32 = 1000;

impl Memory {
    /// An empty tree.
    ///
    /// # Errors
    /// The system provides no random numbers.
    pub fn new(options: &MemoryOptions) -> io::Result<Arc<Self>> {
        let instance = Random::from_system()?.next_u64();
        let tree = Tree::new(*options, instance);
        Ok(Arc::new(Self { root: tree.root(), tree: RwLock::new(tree) }))
    }

    fn read(&self) -> RwLockReadGuard<'_, Tree> {
        spin(|| self.tree.try_read())
    }

    fn write(&self) -> RwLockWriteGuard<'_, Tree> {
        spin(|| self.tree.try_write())
    }
}

/// A panic under the lock leaves no partial change that could affect later operations.
fn spin<T>(mut attempt: impl FnMut() -> Result<T, TryLockError<T>>) -> T {
    let mut spins = 0;
    loop {
        match attempt() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) if spins < SPINS => std::hint::spin_loop(),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
        spins += 1;
    }
}

impl FileSystem for Memory {
    fn blocks(&self) -> bool {
        false
    }

    fn root(&self) -> FileKey {
        self.root
    }

    forward_operations!(self => self.read(), self.write());

    fn abilities(&self) -> Abilities {
        tree::ABILITIES
    }

    fn data_path(self: Arc<Self>, _: &CoreContext) -> Box<dyn DataPath> {
        Box::new(MemoryPath(self))
    }
}

struct MemoryPath(Arc<Memory>);

impl DataPath for MemoryPath {
    /// As with a disk, FILE_SYNC means that nothing is lost while the verifier stays the same.
    fn start(&mut self, caller: &Caller, file: &FileKey, asked: Request<WriteData<'_>>) -> Started {
        let mut wcc = WccData::default();
        let done = match asked {
            Request::Read { offset, mut into } => {
                let tree = self.0.read();
                wcc.after = tree.attributes(file).ok();
                tree.read(caller, file, offset, into.bytes_mut()).map(|(count, is_end)| {
                    into.set_len(count);
                    Done::Read { data: into, is_end, attributes: wcc.after }
                })
            }
            Request::Write { offset, data, .. } => {
                let (data, committed) = (data.bytes(), StableHow::FileSync);
                let written = self.0.write().write(caller, file, offset, data, &mut wcc);
                written.map(|()| Done::Written { count: data.len() as u32, committed, wcc })
            }
            Request::Commit { .. } => {
                self.0.write().commit(file, &mut wcc).map(|()| Done::Committed { wcc })
            }
        };
        let failed = |status| Done::Failed { status, attributes: wcc.after };
        Started::Done(done.unwrap_or_else(failed))
    }

    fn poll(&mut self, _: bool, _: &mut dyn FnMut(u32, Done)) -> Progress {
        Progress::default()
    }
}
