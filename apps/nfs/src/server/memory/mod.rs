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
    Abilities, DataPath, DirectoryEntry, Done, FileKey, FileSystem, Found, ListFrom, Listed,
    NewFile, Outcome, Place, Request, Space, Started, WriteData,
};
use crate::protocol::{Fattr3, Nfsstat3, Nfstime3, Sattr3, StableHow, WccData};
use node::{Entries, Kind, Number, demand_device};
use spinrpc::sys::random::Random;
use spinrpc::{Bulk, CoreContext, Progress};
use std::io;
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use tree::{At, ROOT, Tree};

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
    /// Part of every key: another process has other files.
    instance: [u8; 8],
}

/// Attempts to take the lock before the thread yields to another, which may hold it.
const SPINS: u32 = 1000;

impl Memory {
    /// An empty tree.
    ///
    /// # Errors
    /// The system provides no random numbers.
    pub fn new(options: &MemoryOptions) -> io::Result<Arc<Self>> {
        let instance = Random::from_system()?.next_u64().to_ne_bytes();
        Ok(Arc::new(Self { tree: RwLock::new(Tree::new(*options)), instance }))
    }

    fn read(&self) -> RwLockReadGuard<'_, Tree> {
        spin(|| self.tree.try_read())
    }

    fn write(&self) -> RwLockWriteGuard<'_, Tree> {
        spin(|| self.tree.try_write())
    }

    fn key(&self, number: Number) -> FileKey {
        let mut bytes = [0_u8; 16];
        bytes[..8].copy_from_slice(&self.instance);
        bytes[8..].copy_from_slice(&number.to_be_bytes());
        FileKey::of(&bytes)
    }

    fn number(&self, key: &FileKey) -> Outcome<Number> {
        let number =
            key.as_bytes().strip_prefix(&self.instance).and_then(|rest| rest.try_into().ok());
        number.map(u64::from_be_bytes).ok_or(Nfsstat3::Nfs3errStale)
    }

    fn at<'a>(&self, place: Place<'a>) -> Outcome<At<'a>> {
        Ok(At { directory: self.number(place.directory)?, name: place.name })
    }

    fn found(&self, tree: &Tree, number: Number) -> Outcome<Found> {
        Ok(Found { key: self.key(number), attributes: tree.attributes(number)? })
    }

    /// Makes a change, and returns the attributes from before and after.
    fn change<T>(
        &self,
        file: &FileKey,
        wcc: &mut WccData,
        change: impl FnOnce(&mut Tree, Number) -> Outcome<T>,
    ) -> Outcome<T> {
        let number = self.number(file)?;
        let mut tree = self.write();
        wcc.before = tree.pre_op(number);
        let outcome = change(&mut tree, number);
        wcc.after = tree.post_op(number);
        outcome
    }

    fn make_node(
        &self,
        caller: &Caller,
        place: Place<'_>,
        (kind, mode): (Kind, u32),
        new: &Sattr3,
        wcc: &mut WccData,
    ) -> Outcome<Found> {
        self.change(place.directory, wcc, |tree, directory| {
            let at = At { directory, name: place.name };
            let number = tree.make(caller, at, kind, mode, new)?;
            self.found(tree, number)
        })
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
        self.key(ROOT)
    }

    fn attributes(&self, file: &FileKey) -> Outcome<Fattr3> {
        self.read().attributes(self.number(file)?)
    }

    fn set_attributes(
        &self,
        caller: &Caller,
        file: &FileKey,
        new: &Sattr3,
        guard: Option<Nfstime3>,
        wcc: &mut WccData,
    ) -> Outcome<()> {
        self.change(file, wcc, |tree, number| tree.set_attributes(caller, number, new, guard))
    }

    fn access(&self, caller: &Caller, file: &FileKey, wanted: u32) -> Outcome<u32> {
        self.read().access(caller, self.number(file)?, wanted)
    }

    fn lookup(&self, caller: &Caller, at: Place<'_>) -> Outcome<Found> {
        let tree = self.read();
        let number = tree.lookup(caller, self.at(at)?)?;
        self.found(&tree, number)
    }

    fn read_link(&self, _: &Caller, link: &FileKey) -> Outcome<Vec<u8>> {
        match &self.read().node(self.number(link)?)?.kind {
            Kind::Link(text) => Ok(text.clone()),
            _ => Err(Nfsstat3::Nfs3errInval),
        }
    }

    fn make(
        &self,
        caller: &Caller,
        at: Place<'_>,
        new: NewFile<'_>,
        wcc: &mut WccData,
    ) -> Outcome<Found> {
        match new {
            NewFile::Regular(how) => self.change(at.directory, wcc, |tree, directory| {
                let number = tree.create(caller, At { directory, name: at.name }, how)?;
                self.found(tree, number)
            }),
            NewFile::Directory(attributes) => {
                let kind = Kind::Directory(Entries::new(self.number(at.directory)?));
                self.make_node(caller, at, (kind, 0o700), attributes, wcc)
            }
            NewFile::Link { text, attributes } => {
                self.make_node(caller, at, (Kind::Link(text.to_vec()), 0o777), attributes, wcc)
            }
            NewFile::Special(file) => {
                demand_device(caller, file.kind)?;
                let kind = Kind::Special(file.kind, file.device);
                self.make_node(caller, at, (kind, 0o600), &file.attributes, wcc)
            }
        }
    }

    fn remove(&self, caller: &Caller, at: Place<'_>, wcc: &mut WccData) -> Outcome<()> {
        self.change(at.directory, wcc, |tree, directory| {
            tree.remove(caller, At { directory, name: at.name })
        })
    }

    fn remove_directory(&self, caller: &Caller, at: Place<'_>, wcc: &mut WccData) -> Outcome<()> {
        self.change(at.directory, wcc, |tree, directory| {
            tree.remove_directory(caller, At { directory, name: at.name })
        })
    }

    fn rename(
        &self,
        caller: &Caller,
        from: Place<'_>,
        to: Place<'_>,
        (of_source, of_target): &mut (WccData, WccData),
    ) -> Outcome<()> {
        let (source, target) = (self.at(from)?, self.at(to)?);
        self.change(from.directory, of_source, |tree, _| {
            of_target.before = tree.pre_op(target.directory);
            let outcome = tree.rename(caller, source, target);
            of_target.after = tree.post_op(target.directory);
            outcome
        })
    }

    fn link(
        &self,
        caller: &Caller,
        file: &FileKey,
        at: Place<'_>,
        wcc: &mut WccData,
    ) -> Outcome<()> {
        let file = self.number(file)?;
        self.change(at.directory, wcc, |tree, directory| {
            tree.link(caller, file, At { directory, name: at.name })
        })
    }

    fn list(
        &self,
        caller: &Caller,
        directory: &FileKey,
        from: &ListFrom,
        take: &mut dyn FnMut(&DirectoryEntry<'_>) -> bool,
    ) -> Outcome<Listed> {
        let tree = self.read();
        let entries = tree.list(caller, self.number(directory)?, from.cookie)?;
        if from.cookie != 0 && from.verifier != self.instance {
            return Err(Nfsstat3::Nfs3errBadCookie);
        }
        for (cookie, name, number) in entries {
            let found = from.with_files.then(|| self.found(&tree, number).ok()).flatten();
            if !take(&DirectoryEntry { fileid: number, name, cookie, found: found.as_ref() }) {
                return Ok(Listed { verifier: self.instance, is_end: false });
            }
        }
        Ok(Listed { verifier: self.instance, is_end: true })
    }

    fn space(&self, _: &Caller) -> Outcome<Space> {
        Ok(self.read().space())
    }

    fn abilities(&self) -> Abilities {
        tree::ABILITIES
    }

    fn data_path(self: Arc<Self>, _: &CoreContext) -> Box<dyn DataPath> {
        Box::new(MemoryPath(self))
    }
}

/// Completes requests at once.
struct MemoryPath(Arc<Memory>);

impl DataPath for MemoryPath {
    fn start(
        &mut self,
        caller: &Caller,
        file: &FileKey,
        request: Request<WriteData<'_>>,
    ) -> Started {
        let memory = &self.0;
        Started::Done(match request {
            Request::Read { offset, into } => memory.read_data(caller, file, offset, into),
            Request::Write { offset, data, .. } => {
                memory.write_data(caller, file, offset, data.bytes())
            }
            Request::Commit { .. } => memory.commit(file),
        })
    }

    fn poll(&mut self, _: bool, _: &mut dyn FnMut(u32, Done)) -> Progress {
        Progress::default()
    }
}

impl Memory {
    fn read_data(&self, caller: &Caller, file: &FileKey, offset: u64, mut into: Bulk) -> Done {
        let number = match self.number(file) {
            Ok(number) => number,
            Err(status) => return Done::Failed { status, attributes: None },
        };
        let tree = self.read();
        let attributes = tree.attributes(number).ok();
        match tree.read(caller, number, offset, into.bytes_mut()) {
            Ok((count, is_end)) => {
                into.set_len(count);
                Done::Read { data: into, is_end, attributes }
            }
            Err(status) => Done::Failed { status, attributes },
        }
    }

    /// All stability levels are equal here, and nothing is lost while the verifier stays the same:
    /// as with a disk, that is what FILE_SYNC means.
    fn write_data(&self, caller: &Caller, file: &FileKey, offset: u64, data: &[u8]) -> Done {
        let mut wcc = WccData::default();
        let written =
            self.change(file, &mut wcc, |tree, number| tree.write(caller, number, offset, data));
        match written {
            Ok(()) => {
                Done::Written { count: data.len() as u32, committed: StableHow::FileSync, wcc }
            }
            Err(status) => failed(status, wcc),
        }
    }

    fn commit(&self, file: &FileKey) -> Done {
        let mut wcc = WccData::default();
        let asked =
            self.change(file, &mut wcc, |tree, number| tree.node(number)?.content().map(|_| ()));
        match asked {
            Ok(()) => Done::Committed { wcc },
            Err(status) => failed(status, wcc),
        }
    }
}

fn failed(status: Nfsstat3, wcc: WccData) -> Done {
    Done::Failed { status, attributes: wcc.after }
}
