//! Types of RFC 1813 section 2.6 as those of a Unix system, for back ends whose files are there.

use super::file_system::Outcome;
use crate::protocol::{Createhow3, Ftype3, Nfsstat3, Nfstime3, Sattr3, SetAtime, SetMtime};
use rustix::fs::FileType;

/// Unit in which the blocks of a file are counted.
pub(super) const BLOCK_BYTES: u64 = 512;
pub(super) const RIGHTS: u32 = 0o7777;
/// Maximum length of a file, in bytes, on any file system of Linux.
pub(super) const FILE_BYTES_MAX: u64 = i64::MAX as u64;

pub(super) fn wire_type(kind: FileType) -> Ftype3 {
    match kind {
        FileType::Directory => Ftype3::Nf3dir,
        FileType::Symlink => Ftype3::Nf3lnk,
        FileType::BlockDevice => Ftype3::Nf3blk,
        FileType::CharacterDevice => Ftype3::Nf3chr,
        FileType::Socket => Ftype3::Nf3sock,
        FileType::Fifo => Ftype3::Nf3fifo,
        FileType::RegularFile | FileType::Unknown => Ftype3::Nf3reg,
    }
}

pub(super) fn special_kind(kind: Ftype3) -> Outcome<FileType> {
    match kind {
        Ftype3::Nf3chr => Ok(FileType::CharacterDevice),
        Ftype3::Nf3blk => Ok(FileType::BlockDevice),
        Ftype3::Nf3sock => Ok(FileType::Socket),
        Ftype3::Nf3fifo => Ok(FileType::Fifo),
        _ => Err(Nfsstat3::Nfs3errBadtype),
    }
}

/// A time on the wire, which ranges from 1970 to 2106: others are clamped.
pub(super) fn wire_time(seconds: i64, nseconds: u32) -> Nfstime3 {
    match u32::try_from(seconds) {
        Ok(seconds) => Nfstime3 { seconds, nseconds },
        Err(_) if seconds < 0 => Nfstime3::default(),
        Err(_) => Nfstime3 { seconds: u32::MAX, nseconds },
    }
}

pub(super) fn attributes_of_new(how: &Createhow3) -> Sattr3 {
    match how {
        Createhow3::Unchecked(new) | Createhow3::Guarded(new) => *new,
        Createhow3::Exclusive(verifier) => marked_by(*verifier),
    }
}

/// Attributes of a file that stores the verifier of an EXCLUSIVE CREATE in its times, where a retry finds it even after
/// a restart and on another server, until the client sets them. Only its owner may use it until then. The highest bit of
/// each half is lost, because not all file systems support times beyond 2038.
fn marked_by(verifier: [u8; 8]) -> Sattr3 {
    let [a, b, c, d, e, f, g, h] = verifier;
    let half = |bytes| Nfstime3 { seconds: u32::from_be_bytes(bytes) & 0x7fff_ffff, nseconds: 0 };
    Sattr3 {
        mode: Some(0o600),
        atime: SetAtime::SetToClientTime(half([a, b, c, d])),
        mtime: SetMtime::SetToClientTime(half([e, f, g, h])),
        ..Sattr3::default()
    }
}

pub(super) fn marks(marked: &Sattr3) -> (u32, u32) {
    match (marked.atime, marked.mtime) {
        (SetAtime::SetToClientTime(atime), SetMtime::SetToClientTime(mtime)) => {
            (atime.seconds, mtime.seconds)
        }
        _ => (0, 0),
    }
}

/// 2^32 - 1 is not a valid id: the kernel takes it as "no change".
pub(super) fn check_owner(new: &Sattr3) -> Outcome<()> {
    let invalid = Some(u32::MAX);
    match new.uid == invalid || new.gid == invalid {
        true => Err(Nfsstat3::Nfs3errInval),
        false => Ok(()),
    }
}

pub(super) fn check_size(kind: Ftype3, new: &Sattr3) -> Outcome<()> {
    match (new.size, kind) {
        (None, _) => Ok(()),
        (_, Ftype3::Nf3dir) => Err(Nfsstat3::Nfs3errIsdir),
        (_, Ftype3::Nf3reg) => Ok(()),
        _ => Err(Nfsstat3::Nfs3errInval),
    }
}
