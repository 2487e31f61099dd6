//! Interface of back ends: a file system, and its data paths.
//!
//! All operations on names and attributes are plain calls of [`FileSystem`], which the service
//! makes on the core if the back end does not block, and on a thread of its pool if it may. The
//! data of READ, WRITE and COMMIT go through a [`DataPath`], which every core has and polls.

use crate::protocol::{
    Createhow3, Fattr3, Fsstat3resok, Ftype3, Nfsstat3, Nfstime3, Sattr3, Specdata3, StableHow,
    WccData,
};
use crate::server::caller::Caller;
use spinrpc::{Bulk, CoreContext, Progress};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The outcome of an operation: a status of RFC 1813 section 2.6 if it failed.
pub type Outcome<T> = Result<T, Nfsstat3>;

/// Maximum length of a back end's key: a handle has 64 bytes, of which the server needs the rest.
pub const KEY_BYTES_MAX: usize = 40;

/// Number of losses of one back end before its verifiers would be those of one that was opened later.
const LOSSES_MAX: u64 = 1 << 32;

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
    pub fn of<const N: usize>(bytes: &[u8; N]) -> Self {
        const { assert!(N <= KEY_BYTES_MAX) };
        let mut key = Self { bytes: [0; KEY_BYTES_MAX], length: N as u8 };
        key.bytes[..N].copy_from_slice(bytes);
        key
    }

    /// Its bytes.
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

/// Takes an entry, or returns `false`.
pub type Take<'a> = &'a mut dyn FnMut(&DirectoryEntry<'_>) -> bool;

/// Start of a listing.
#[derive(Clone, Copy, Debug)]
pub struct ListFrom {
    /// The directory.
    pub directory: FileKey,
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
    /// The listing is complete.
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

/// A change of names or attributes.
#[derive(Debug)]
pub struct Change<'a, W = WccData> {
    /// The user who makes it.
    pub caller: &'a Caller,
    /// Attributes of what it changes, from before and after as far as known, also on failure.
    pub wcc: &'a mut W,
}

/// A change of two directories, the old one and the new one of a name.
pub type Renaming<'a> = Change<'a, (WccData, WccData)>;

/// New attributes (SETATTR).
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// Those to change.
    pub new: &'a Sattr3,
    /// Only if this is the file's ctime: else NFS3ERR_NOT_SYNC.
    pub guard: Option<Nfstime3>,
}

/// Limits of a file system (PATHCONF).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Maximum length of a name, in bytes.
    pub name_bytes_max: u32,
    /// Maximum number of links of a file.
    pub links_max: u32,
}

/// A file system, shared by all cores and the threads of the pool.
///
/// Names come from clients: `.`, `..`, empty names and those with a slash or a zero byte were
/// rejected before; their length was not checked. Without permission, the status is NFS3ERR_ACCES,
/// or NFS3ERR_PERM if only the owner has it. Operations that change something are on stable storage
/// when they return (RFC 1813 section 4.8). They are
/// not called for read-only exports. A key of a deleted file gives NFS3ERR_STALE.
pub trait FileSystem: Send + Sync {
    /// Returns whether its calls may wait for a disk or a lock. Calls of a back end that does not
    /// block are made on the polling core, and its data paths complete each request at once: cores
    /// do not poll for it.
    fn blocks(&self) -> bool;

    /// Rises each time that unstable data may have been lost, because an error of write-back is
    /// reported only once, whosever data it was. Part of the write verifier, so that all clients
    /// rewrite uncommitted data (RFC 1813 section 3.3.7). Begins elsewhere for each back end that is
    /// opened: an export may be removed and added again, and no verifier may come back.
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

    /// Changes the given ones of mode, owner, group, size and times; all or nothing.
    fn setattr(&self, by: Change<'_>, file: &FileKey, to: Setting<'_>) -> Outcome<()>;

    /// The subset of the rights `wanted`, bits of ACCESS, that the caller has.
    fn access(&self, caller: &Caller, file: &FileKey, wanted: u32) -> Outcome<u32>;

    /// Looks up a name in a directory; here `.` and `..` are allowed, and `..` of the root is the
    /// root. Does not follow a symbolic link.
    fn lookup(&self, caller: &Caller, at: Place<'_>) -> Outcome<Found>;

    /// The target of a symbolic link; NFS3ERR_INVAL for other files.
    fn read_link(&self, link: &FileKey) -> Outcome<Vec<u8>>;

    /// Creates a file.
    fn make(&self, by: Change<'_>, at: Place<'_>, new: NewFile<'_>) -> Outcome<Found>;

    /// Removes the name of an empty directory, or of anything but a directory.
    fn unlink(&self, by: Change<'_>, at: Place<'_>, is_directory: bool) -> Outcome<()>;

    /// Renames a file, and replaces an existing one.
    fn rename(&self, by: Renaming<'_>, from: Place<'_>, to: Place<'_>) -> Outcome<()>;

    /// Adds a name to a file.
    fn link(&self, by: Change<'_>, file: &FileKey, at: Place<'_>) -> Outcome<()>;

    /// Passes the entries of a directory to `take`, until the end or until it returns `false`: then
    /// that entry was not used. NFS3ERR_BAD_COOKIE for a cookie or verifier of another directory.
    fn list(&self, caller: &Caller, from: &ListFrom, take: Take<'_>) -> Outcome<Listed>;

    /// Total and free space, without the attributes. It may change at once: `invarsec` is 0.
    fn space(&self) -> Outcome<Fsstat3resok>;

    /// Limits of the file system.
    fn abilities(&self) -> Abilities;

    /// Stops its own threads, if any, from starting queued requests of its data paths: these are
    /// never done, and no path is notified. For the shutdown of a server that missed its deadline;
    /// other calls still work. Does not block.
    fn stop(&self) {}

    /// The data path of one core. Called on the core's thread.
    fn data_path(self: Arc<Self>, core: &CoreContext) -> Box<dyn DataPath>;
}

/// [`FileSystem::losses`] of a back end that is opened now.
pub(super) fn first_losses() -> AtomicU64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    AtomicU64::new(NEXT.fetch_add(LOSSES_MAX, Ordering::Relaxed))
}

/// By methods of the same names: of one value to ask, and of one to change.
macro_rules! forward_operations {
    ($self:ident => $ask:expr, $change:expr) => {
        forward_operations! { $self, $ask =>
            attributes(file: &FileKey) -> Fattr3;
            access(caller: &Caller, file: &FileKey, wanted: u32) -> u32;
            lookup(caller: &Caller, at: Place<'_>) -> Found;
            read_link(link: &FileKey) -> Vec<u8>;
            list(caller: &Caller, from: &ListFrom, take: Take<'_>) -> Listed;
            space() -> Fsstat3resok;
        }
        forward_operations! { $self, $change =>
            setattr(by: Change<'_>, file: &FileKey, to: Setting<'_>) -> ();
            make(by: Change<'_>, at: Place<'_>, new: NewFile<'_>) -> Found;
            unlink(by: Change<'_>, at: Place<'_>, is_directory: bool) -> ();
            rename(by: Renaming<'_>, from: Place<'_>, to: Place<'_>) -> ();
            link(by: Change<'_>, file: &FileKey, at: Place<'_>) -> ();
        }
    };
    ($self:ident, $of:expr => $($name:ident($($arg:ident: $type:ty),*) -> $done:ty;)*) => {$(
        fn $name(&$self, $($arg: $type),*) -> Outcome<$done> {
            $of.$name($($arg),*)
        }
    )*};
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
/// many are in progress, a request fails with NFS3ERR_JUKEBOX. No READ or WRITE extends beyond
/// offset 2^63 - 1.
///
/// The write verifier belongs to the service, and changes with the process; a back end that may
/// lose unstable data in a running process changes it through [`FileSystem::losses`].
pub trait DataPath {
    /// Starts a request.
    fn start(&mut self, caller: &Caller, file: &FileKey, asked: Request<WriteData<'_>>) -> Started;

    /// Passes on completed requests. With `may_perform`, which one data path of a core is given at a time, it may also
    /// perform a part of a request itself, within 100 us or so; `events` is then 1, and 0 otherwise. `is_waiting` is true
    /// while requests are in progress that only polling completes, so that the core must not sleep. Called in every turn of
    /// the core, if any file system of the server [`blocks`](FileSystem::blocks).
    fn poll(&mut self, may_perform: bool, done: &mut dyn FnMut(u32, Done)) -> Progress;
}
