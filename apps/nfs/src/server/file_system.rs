//! Interface of back ends: a file system, and its data paths.
//!
//! All operations on names and attributes are plain calls of [`FileSystem`], which the service
//! makes on the core if the back end does not block, and on a thread of its pool if it may. The
//! data of READ, WRITE and COMMIT go through a [`DataPath`], which every core has and polls.
//! Implemented by `memory` and `directory`, called by `service` and `procedures`.

use crate::protocol::{
    Createhow3, Fattr3, Ftype3, Nfsstat3, Nfstime3, Sattr3, Specdata3, StableHow, WccData,
};
use crate::server::caller::Caller;
use spinrpc::{Bulk, CoreContext, Progress};
use std::sync::Arc;

/// The outcome of an operation: a status of RFC 1813 section 2.6 if it failed.
pub type Outcome<T> = Result<T, Nfsstat3>;

/// Maximum length of a back end's key: a handle has 64 bytes, of which the server needs the rest.
pub const KEY_BYTES_MAX: usize = 40;

/// Identity of a file within its back end, independent of its names; part of its handle. Two keys
/// of one file are equal, and keys of deleted files are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileKey {
    bytes: [u8; KEY_BYTES_MAX],
    length: u8,
}

impl FileKey {
    /// A key with these bytes; `None` if they exceed [`KEY_BYTES_MAX`].
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut key = Self { bytes: [0; KEY_BYTES_MAX], length: u8::try_from(bytes.len()).ok()? };
        key.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(key)
    }

    /// A key with these bytes, whose number is known to fit.
    #[must_use]
    pub fn of<const N: usize>(bytes: &[u8; N]) -> Self {
        const { assert!(N <= KEY_BYTES_MAX) };
        let mut key = Self { bytes: [0; KEY_BYTES_MAX], length: N as u8 };
        key.bytes[..N].copy_from_slice(bytes);
        key
    }

    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or(&self.bytes)
    }
}

/// A file that was found or created.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its key.
    pub key: FileKey,
    /// Its attributes.
    pub attributes: Fattr3,
}

/// A name in a directory, and its cookie, after which a listing continues.
#[derive(Clone, Copy, Debug)]
pub struct DirectoryEntry<'a> {
    /// The file's number.
    pub fileid: u64,
    /// Its name; `.` and `..` are entries as well.
    pub name: &'a [u8],
    /// Not zero, and valid as long as the directory's verifier.
    pub cookie: u64,
    /// The file itself, if it was requested and still exists.
    pub found: Option<&'a Found>,
}

/// Start of a listing.
#[derive(Clone, Copy, Debug)]
pub struct ListFrom {
    /// After the entry with this cookie; 0 is the beginning.
    pub cookie: u64,
    /// Verifier that came with the cookie; zeros at the beginning.
    pub verifier: [u8; 8],
    /// Set [`DirectoryEntry::found`].
    pub with_files: bool,
}

/// End of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// To be returned with every cookie of this listing.
    pub verifier: [u8; 8],
    /// There are no more entries.
    pub is_end: bool,
}

/// A file other than a regular file, a directory or a symbolic link.
#[derive(Clone, Debug)]
pub struct SpecialFile {
    /// NF3CHR, NF3BLK, NF3SOCK or NF3FIFO.
    pub kind: Ftype3,
    /// Numbers of a device.
    pub device: Specdata3,
    /// Initial attributes.
    pub attributes: Sattr3,
}

/// A file to create, of any type.
#[derive(Clone, Copy, Debug)]
pub enum NewFile<'a> {
    /// A regular file (CREATE). EXCLUSIVE is repeatable: a retry finds the file by the verifier.
    Regular(&'a Createhow3),
    /// A directory (MKDIR), with its initial attributes.
    Directory(&'a Sattr3),
    /// A symbolic link (SYMLINK).
    Link {
        /// Its target, which is not checked.
        text: &'a [u8],
        /// Initial attributes.
        attributes: &'a Sattr3,
    },
    /// A device, a socket or a FIFO (MKNOD).
    Special(&'a SpecialFile),
}

/// A name in a directory.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The directory.
    pub directory: &'a FileKey,
    /// The name.
    pub name: &'a [u8],
}

/// Space of a file system, in bytes and in files (FSSTAT).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Total bytes.
    pub bytes: u64,
    /// Free bytes.
    pub bytes_free: u64,
    /// Bytes available to this caller.
    pub bytes_available: u64,
    /// Total files.
    pub files: u64,
    /// Free files.
    pub files_free: u64,
    /// Files available to this caller.
    pub files_available: u64,
}

/// Limits of a file system (FSINFO, PATHCONF).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Maximum length of a file, in bytes.
    pub file_bytes_max: u64,
    /// Maximum length of a name, in bytes.
    pub name_bytes_max: u32,
    /// Maximum number of links of a file.
    pub links_max: u32,
    /// Resolution of its times.
    pub time_step: Nfstime3,
}

/// A file system, shared by all cores and the threads of the pool.
///
/// Names come from clients: `.`, `..`, empty names and those with a slash or a zero byte were
/// rejected before; their length was not checked. Without permission, the status is NFS3ERR_ACCES,
/// or NFS3ERR_PERM if only the owner has it. Operations that change something are on stable storage
/// when they return (RFC 1813 section 4.8). They fill `wcc` with the attributes from before and
/// after as far as known, also on failure, and are not called for read-only exports. A key of a
/// deleted file gives NFS3ERR_STALE.
pub trait FileSystem: Send + Sync {
    /// Returns whether its calls may wait for a disk or a lock. Calls of a back end that does not
    /// block are made on the polling core, and its data paths complete each request at once: cores
    /// do not poll for it.
    fn blocks(&self) -> bool;

    /// Number of times that unstable data may have been lost since the start, because an error of
    /// write-back is reported only once, whosever data it was. Part of the write verifier, so that
    /// all clients rewrite uncommitted data (RFC 1813 section 3.3.7).
    fn losses(&self) -> u64 {
        0
    }

    /// The exported directory.
    fn root(&self) -> FileKey;

    /// Like [`FileSystem::attributes`], for a file whose attributes are available without blocking:
    /// used for GETATTR on the core.
    fn attributes_now(&self, file: &FileKey) -> Option<Outcome<Fattr3>> {
        let _ = file;
        None
    }

    /// Attributes of a file.
    fn attributes(&self, file: &FileKey) -> Outcome<Fattr3>;

    /// Changes the given ones of mode, owner, group, size and times; all or nothing. With `guard`,
    /// only if that is the file's ctime: else NFS3ERR_NOT_SYNC.
    fn set_attributes(
        &self,
        caller: &Caller,
        file: &FileKey,
        new: &Sattr3,
        guard: Option<Nfstime3>,
        wcc: &mut WccData,
    ) -> Outcome<()>;

    /// The subset of the rights `wanted`, bits of ACCESS, that the caller has.
    fn access(&self, caller: &Caller, file: &FileKey, wanted: u32) -> Outcome<u32>;

    /// Looks up a name in a directory; here `.` and `..` are allowed, and `..` of the root is the
    /// root. Does not follow a symbolic link.
    fn lookup(&self, caller: &Caller, at: Place<'_>) -> Outcome<Found>;

    /// The target of a symbolic link; NFS3ERR_INVAL for other files.
    fn read_link(&self, caller: &Caller, link: &FileKey) -> Outcome<Vec<u8>>;

    /// Creates a file.
    fn make(
        &self,
        caller: &Caller,
        at: Place<'_>,
        new: NewFile<'_>,
        wcc: &mut WccData,
    ) -> Outcome<Found>;

    /// Removes a name of anything but a directory.
    fn remove(&self, caller: &Caller, at: Place<'_>, wcc: &mut WccData) -> Outcome<()>;

    /// Removes an empty directory.
    fn remove_directory(&self, caller: &Caller, at: Place<'_>, wcc: &mut WccData) -> Outcome<()>;

    /// Renames a file, and replaces an existing one; `wccs` are those of the old and the new
    /// directory.
    fn rename(
        &self,
        caller: &Caller,
        from: Place<'_>,
        to: Place<'_>,
        wccs: &mut (WccData, WccData),
    ) -> Outcome<()>;

    /// Adds a name to a file.
    fn link(
        &self,
        caller: &Caller,
        file: &FileKey,
        at: Place<'_>,
        wcc: &mut WccData,
    ) -> Outcome<()>;

    /// Passes the entries of a directory to `take`, until the end or until it returns `false`: then
    /// that entry was not used. NFS3ERR_BAD_COOKIE for a cookie or verifier of another directory.
    fn list(
        &self,
        caller: &Caller,
        directory: &FileKey,
        from: &ListFrom,
        take: &mut dyn FnMut(&DirectoryEntry<'_>) -> bool,
    ) -> Outcome<Listed>;

    /// Total and free space.
    fn space(&self, caller: &Caller) -> Outcome<Space>;

    /// Limits of the file system.
    fn abilities(&self) -> Abilities;

    /// Stops its own threads, if any, from starting queued requests of its data paths: these are
    /// never done, and no path is notified. For the shutdown of a server that missed its deadline;
    /// other calls still work. Does not block.
    fn stop(&self) {}

    /// The data path of one core. Called on the core's thread.
    fn data_path(self: Arc<Self>, core: &CoreContext) -> Box<dyn DataPath>;
}

/// The operations of [`FileSystem`] on names and attributes, by methods of the same names: of one value to ask, and of one to
/// change.
macro_rules! forward_operations {
    ($self:ident => $ask:expr, $change:expr) => {
        fn attributes(&$self, file: &FileKey) -> Outcome<Fattr3> {
            $ask.attributes(file)
        }

        fn set_attributes(
            &$self,
            caller: &Caller,
            file: &FileKey,
            new: &Sattr3,
            guard: Option<Nfstime3>,
            wcc: &mut WccData,
        ) -> Outcome<()> {
            $change.set_attributes(caller, file, new, guard, wcc)
        }

        fn access(&$self, caller: &Caller, file: &FileKey, wanted: u32) -> Outcome<u32> {
            $ask.access(caller, file, wanted)
        }

        fn lookup(&$self, caller: &Caller, at: Place<'_>) -> Outcome<Found> {
            $ask.lookup(caller, at)
        }

        fn read_link(&$self, _: &Caller, link: &FileKey) -> Outcome<Vec<u8>> {
            $ask.read_link(link)
        }

        fn make(
            &$self,
            caller: &Caller,
            at: Place<'_>,
            new: NewFile<'_>,
            wcc: &mut WccData,
        ) -> Outcome<Found> {
            $change.make(caller, at, new, wcc)
        }

        fn remove(&$self, caller: &Caller, at: Place<'_>, wcc: &mut WccData) -> Outcome<()> {
            $change.unlink(caller, at, false, wcc)
        }

        fn remove_directory(&$self, caller: &Caller, at: Place<'_>, wcc: &mut WccData) -> Outcome<()> {
            $change.unlink(caller, at, true, wcc)
        }

        fn rename(
            &$self,
            caller: &Caller,
            from: Place<'_>,
            to: Place<'_>,
            wccs: &mut (WccData, WccData),
        ) -> Outcome<()> {
            $change.rename(caller, from, to, wccs)
        }

        fn link(&$self, caller: &Caller, file: &FileKey, at: Place<'_>, wcc: &mut WccData) -> Outcome<()> {
            $change.link(caller, file, at, wcc)
        }

        fn list(
            &$self,
            caller: &Caller,
            directory: &FileKey,
            from: &ListFrom,
            take: &mut dyn FnMut(&DirectoryEntry<'_>) -> bool,
        ) -> Outcome<Listed> {
            $ask.list(caller, directory, from, take)
        }

        fn space(&$self, _: &Caller) -> Outcome<Space> {
            $ask.space()
        }
    };
}
pub(super) use forward_operations;

/// The bytes of a WRITE.
#[derive(Debug)]
pub enum WriteData<'a> {
    /// They came in the message, and must be copied if they are needed later.
    Inline(&'a [u8]),
    /// They were placed in registered memory, which now belongs to the back end.
    Placed(Bulk),
}

impl WriteData<'_> {
    /// The bytes, wherever they are.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Inline(bytes) => bytes,
            Self::Placed(bulk) => bulk.bytes(),
        }
    }

    /// The bytes in memory that stays.
    pub(super) fn stay(self, core: &CoreContext) -> Outcome<Bulk> {
        match self {
            Self::Placed(bulk) => Ok(bulk),
            Self::Inline(bytes) => {
                let mut bulk = core.bulk(bytes.len()).ok_or(Nfsstat3::Nfs3errJukebox)?;
                bulk.bytes_mut().copy_from_slice(bytes);
                Ok(bulk)
            }
        }
    }
}

/// A data request. `D` holds the bytes of a WRITE: [`WriteData`] as it arrives, or what a back end
/// keeps for later.
#[derive(Debug)]
pub enum Request<D> {
    /// Fills `into`.
    Read {
        /// Offset in the file.
        offset: u64,
        /// Registered memory.
        into: Bulk,
    },
    /// Writes all of `data`.
    Write {
        /// Offset in the file.
        offset: u64,
        /// The bytes.
        data: D,
        /// Data that must be on stable storage before the request is done: nothing (UNSTABLE), the
        /// data (DATA_SYNC), or the whole file (FILE_SYNC).
        stable: StableHow,
    },
    /// Brings unstable writes to stable storage.
    Commit {
        /// Offset in the file, and
        offset: u64,
        /// the number of bytes; 0 is to the end.
        count: u32,
    },
}

impl<D> Request<D> {
    /// The same request, with the bytes of a WRITE as `keep` returns them.
    ///
    /// # Errors
    /// Those of `keep`.
    pub fn keep_data<K, E>(self, keep: impl FnOnce(D) -> Result<K, E>) -> Result<Request<K>, E> {
        Ok(match self {
            Self::Read { offset, into } => Request::Read { offset, into },
            Self::Write { offset, data, stable } => {
                Request::Write { offset, data: keep(data)?, stable }
            }
            Self::Commit { offset, count } => Request::Commit { offset, count },
        })
    }
}

/// Result of a request.
#[derive(Debug)]
pub enum Done {
    /// Result of READ.
    Read {
        /// The memory, shortened to the data.
        data: Bulk,
        /// The data extend to the end of the file.
        is_end: bool,
        /// Attributes afterwards.
        attributes: Option<Fattr3>,
    },
    /// Result of WRITE.
    Written {
        /// Bytes written: all, or those before an error.
        count: u32,
        /// Stability reached: at least the requested one.
        committed: StableHow,
        /// Attributes before and after.
        wcc: WccData,
    },
    /// Result of COMMIT.
    Committed {
        /// Attributes before and after.
        wcc: WccData,
    },
    /// Failure of any request.
    Failed {
        /// Status.
        status: Nfsstat3,
        /// Attributes, if available.
        attributes: Option<Fattr3>,
    },
}

/// State of a request after its start.
#[derive(Debug)]
pub enum Started {
    /// It is complete.
    Done(Done),
    /// [`DataPath::poll`] will report this number, which no other request of the core has
    /// meanwhile; numbers are small. Only for a file system that [`blocks`](FileSystem::blocks).
    Later(u32),
}

/// The data path of one core: starts requests, and reports completions. Neither blocks. When too
/// many are in progress, a request fails with NFS3ERR_JUKEBOX.
///
/// The write verifier belongs to the service, and changes with the process; a back end that may
/// lose unstable data in a running process changes it through [`FileSystem::losses`].
pub trait DataPath {
    /// Starts a request.
    fn start(
        &mut self,
        caller: &Caller,
        file: &FileKey,
        request: Request<WriteData<'_>>,
    ) -> Started;

    /// Passes on completed requests. With `may_perform`, which one data path of a core is given at a time, it may also
    /// perform a part of a request itself, within 100 us or so; `events` is then 1, and 0 otherwise. `is_waiting` is true
    /// while requests are in progress that only polling completes, so that the core must not sleep. Called in every turn of
    /// the core, if any file system of the server [`blocks`](FileSystem::blocks).
    fn poll(&mut self, may_perform: bool, done: &mut dyn FnMut(u32, Done)) -> Progress;
}
