//! Interface of back ends: a file system, and the way to the data of its files.
//!
//! All that names or describes files is a plain call of [`FileSystem`], which the service makes on
//! the core where it cannot block, and on a thread of its pool where it can. The data of READ, WRITE
//! and COMMIT go by a [`DataPath`], which every core has one of and polls. Implemented by `memory`
//! and `directory`, called by `service` and `procedures`.

use crate::nfs::protocol::{
    Createhow3, Fattr3, Ftype3, Nfsstat3, Nfstime3, Sattr3, Specdata3, StableHow, WccData,
};
use crate::nfs::server::exports::Caller;
use spinrpc::{Bulk, CoreContext};
use std::sync::Arc;

/// The outcome of an operation: a status of RFC 1813 section 2.6 where it failed.
pub type Outcome<T> = Result<T, Nfsstat3>;

/// Most bytes by which a back end may know a file: a handle has 64, of which the server needs the
/// rest.
pub const KEY_BYTES_MAX: usize = 40;

/// Identity of a file within its back end, independent of its names: part of its handle. Two
/// keys of one file are equal, and no other file ever has the key of one that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileKey {
    bytes: [u8; KEY_BYTES_MAX],
    length: u8,
}

impl FileKey {
    /// A key of these bytes; `None` if they are more than [`KEY_BYTES_MAX`].
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut key = Self { bytes: [0; KEY_BYTES_MAX], length: u8::try_from(bytes.len()).ok()? };
        key.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(key)
    }

    /// A key of these bytes, whose number is known to fit.
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

/// A file that was found or made.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its key.
    pub key: FileKey,
    /// Its attributes.
    pub attributes: Fattr3,
}

/// A name in a directory, and its cookie, by which a listing goes on behind it.
#[derive(Clone, Copy, Debug)]
pub struct DirectoryEntry<'a> {
    /// The file's number.
    pub fileid: u64,
    /// Its name; `.` and `..` are entries as well.
    pub name: &'a [u8],
    /// Not zero, and valid as long as the directory's verifier.
    pub cookie: u64,
    /// The file itself, if that was asked for and it is still there.
    pub found: Option<&'a Found>,
}

/// Start of a listing.
#[derive(Clone, Copy, Debug)]
pub struct ListFrom {
    /// Behind the entry with this cookie; 0 is the beginning.
    pub cookie: u64,
    /// Verifier that came with the cookie; zeros at the beginning.
    pub verifier: [u8; 8],
    /// Set [`DirectoryEntry::found`].
    pub with_files: bool,
}

/// End of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Comes back with every cookie of this listing.
    pub verifier: [u8; 8],
    /// There are no more entries.
    pub is_end: bool,
}

/// A file that is neither a regular one nor a directory nor a symbolic link.
#[derive(Clone, Debug)]
pub struct SpecialFile {
    /// NF3CHR, NF3BLK, NF3SOCK or NF3FIFO.
    pub kind: Ftype3,
    /// Of a device.
    pub device: Specdata3,
    /// Initial attributes.
    pub attributes: Sattr3,
}

/// A name in a directory.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The directory.
    pub directory: &'a FileKey,
    /// The name.
    pub name: &'a [u8],
}

/// The room of a file system, in bytes and in files (FSSTAT).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes in all.
    pub bytes: u64,
    /// Bytes that are free ...
    pub bytes_free: u64,
    /// ... and that this caller may use.
    pub bytes_available: u64,
    /// Files in all.
    pub files: u64,
    /// Files that are free ...
    pub files_free: u64,
    /// ... and that this caller may use.
    pub files_available: u64,
}

/// Limits of a file system (FSINFO, PATHCONF).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Longest file, in bytes.
    pub file_bytes_max: u64,
    /// Longest name, in bytes.
    pub name_bytes_max: u32,
    /// Most links of a file.
    pub links_max: u32,
    /// Steps of its times.
    pub time_step: Nfstime3,
}

/// A file system, shared by all cores and the threads of the pool.
///
/// Names come from clients: `.`, `..`, empty ones and those with a slash or a zero byte were refused
/// before; their length was not looked at. Where the caller has no right, the status is NFS3ERR_ACCES,
/// or NFS3ERR_PERM where only the owner has it. Operations that change something are on stable storage
/// when they return (RFC 1813 section 4.8), fill `wcc` with the attributes of what they change from
/// before and after as far as they can be had, also when they fail, and are not called for exports
/// that are read-only. A key whose file is gone gives NFS3ERR_STALE.
pub trait FileSystem: Send + Sync {
    /// Returns whether its calls may wait for a disk or a lock. Those of one that does not are made on the
    /// polling core, and its data paths do each request at once: cores do not poll for it.
    fn blocks(&self) -> bool;

    /// Number of times that unstable data may have been lost since the start, as an error of
    /// write-back is told only once, whosever data it was. Part of the verifier of writes, so that all
    /// clients write again what they have not committed (RFC 1813 section 3.3.7).
    fn losses(&self) -> u64 {
        0
    }

    /// The directory that is exported.
    fn root(&self) -> FileKey;

    /// As [`FileSystem::attributes`], for a file that can be asked without waiting: what GETATTR is
    /// answered with on the core.
    fn attributes_now(&self, file: &FileKey) -> Option<Outcome<Fattr3>> {
        let _ = file;
        None
    }

    /// Attributes of a file.
    fn attributes(&self, file: &FileKey) -> Outcome<Fattr3>;

    /// Changes what is given of mode, owner, group, size and times; all or nothing. With `guard` only
    /// if that is the file's ctime: else NFS3ERR_NOT_SYNC.
    fn set_attributes(
        &self,
        caller: &Caller,
        file: &FileKey,
        new: &Sattr3,
        guard: Option<Nfstime3>,
        wcc: &mut WccData,
    ) -> Outcome<()>;

    /// Those of the rights `wanted`, bits of ACCESS, that the caller has.
    fn access(&self, caller: &Caller, file: &FileKey, wanted: u32) -> Outcome<u32>;

    /// Finds a name in a directory; here `.` and `..` may be asked for, and `..` of the root is the
    /// root. A symbolic link is found itself.
    fn lookup(&self, caller: &Caller, at: Place<'_>) -> Outcome<Found>;

    /// The text of a symbolic link; NFS3ERR_INVAL for other files.
    fn read_link(&self, caller: &Caller, link: &FileKey) -> Outcome<Vec<u8>>;

    /// Makes a regular file (CREATE); EXCLUSIVE is repeatable: the file that it made before is found
    /// by the verifier.
    fn create(
        &self,
        caller: &Caller,
        at: Place<'_>,
        how: &Createhow3,
        wcc: &mut WccData,
    ) -> Outcome<Found>;

    /// Makes a directory.
    fn make_directory(
        &self,
        caller: &Caller,
        at: Place<'_>,
        attributes: &Sattr3,
        wcc: &mut WccData,
    ) -> Outcome<Found>;

    /// Makes a symbolic link; its text is not looked at.
    fn make_symlink(
        &self,
        caller: &Caller,
        at: Place<'_>,
        text: &[u8],
        attributes: &Sattr3,
        wcc: &mut WccData,
    ) -> Outcome<Found>;

    /// Makes a device, a socket or a FIFO (MKNOD).
    fn make_special(
        &self,
        caller: &Caller,
        at: Place<'_>,
        file: &SpecialFile,
        wcc: &mut WccData,
    ) -> Outcome<Found>;

    /// Takes a name of anything but a directory away.
    fn remove(&self, caller: &Caller, at: Place<'_>, wcc: &mut WccData) -> Outcome<()>;

    /// Takes an empty directory away.
    fn remove_directory(&self, caller: &Caller, at: Place<'_>, wcc: &mut WccData) -> Outcome<()>;

    /// Gives a file another name, and replaces a file that has it; `wccs` are those of the directory it
    /// leaves and of the one it gets.
    fn rename(
        &self,
        caller: &Caller,
        from: Place<'_>,
        to: Place<'_>,
        wccs: &mut (WccData, WccData),
    ) -> Outcome<()>;

    /// Gives a file one more name.
    fn link(
        &self,
        caller: &Caller,
        file: &FileKey,
        at: Place<'_>,
        wcc: &mut WccData,
    ) -> Outcome<()>;

    /// Hands the entries of a directory to `take`, until there are no more or it returns `false`: then
    /// that entry was not taken. NFS3ERR_BAD_COOKIE for a cookie or verifier that is not of this
    /// directory.
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

    /// Lets its own threads, if it has any, begin with nothing more of what its data paths handed to
    /// them: that is never done, and no path hears of it. For the end of a server that was not in time;
    /// other calls are as before. Does not wait.
    fn stop(&self) {}

    /// The way to the data of its files, for one core. Called on the core's thread.
    fn data_path(self: Arc<Self>, core: &CoreContext) -> Box<dyn DataPath>;
}

/// The bytes of a WRITE.
#[derive(Debug)]
pub enum WriteData<'a> {
    /// They came in the message, and have to be copied if they are needed later.
    Inline(&'a [u8]),
    /// They were placed in registered memory, which is the back end's now.
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
}

/// A request for the data of a file.
#[derive(Debug)]
pub enum Request<'a> {
    /// Reads as many bytes as `into` is long.
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
        data: WriteData<'a>,
        /// Data that must be on stable storage before it is done: nothing (UNSTABLE), the data
        /// (DATA_SYNC), or all of the file (FILE_SYNC).
        stable: StableHow,
    },
    /// Puts what was written unstably on stable storage.
    Commit {
        /// Offset in the file, and
        offset: u64,
        /// how many bytes; 0 is to the end.
        count: u32,
    },
}

/// Result of a request.
#[derive(Debug)]
pub enum Done {
    /// Of READ.
    Read {
        /// The memory, as long as what was read.
        data: Bulk,
        /// It reaches to the end of the file.
        is_end: bool,
        /// The file, afterwards.
        attributes: Option<Fattr3>,
    },
    /// Of WRITE.
    Written {
        /// Bytes that were written: all, or those before an error.
        count: u32,
        /// Stability that was reached: at least the one that was asked for.
        committed: StableHow,
        /// The file, before and after.
        wcc: WccData,
    },
    /// Of COMMIT.
    Committed {
        /// The file, before and after.
        wcc: WccData,
    },
    /// Of any.
    Failed {
        /// Why.
        status: Nfsstat3,
        /// The file, if it can be asked.
        attributes: Option<Fattr3>,
    },
}

/// State of a request after its start.
#[derive(Debug)]
pub enum Started {
    /// It is.
    Done(Done),
    /// [`DataPath::poll`] will say so of this number, which no other request of the core has
    /// meanwhile; numbers are small. Only of a file system that [`blocks`](FileSystem::blocks).
    Later(u32),
}

/// The way to the data of files, of one core: begins requests, and says when they are done. Neither
/// waits. When too much is under way, a request fails with NFS3ERR_JUKEBOX.
///
/// The verifier of writes is the service's, and changes when the process does; a back end whose
/// unstable data may be lost in a process that lives on has it changed by [`FileSystem::losses`].
pub trait DataPath {
    /// Begins a request.
    fn start(&mut self, caller: &Caller, file: &FileKey, request: Request<'_>) -> Started;

    /// Hands over what is done since; returns whether requests are under way. Called in every turn of
    /// the core, if any file system of the server [`blocks`](FileSystem::blocks).
    fn poll(&mut self, done: &mut dyn FnMut(u32, Done)) -> bool;
}
