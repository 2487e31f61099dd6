//! SETATTR, and the attributes that new files begin with.

use super::attributes::{mode, time};
use super::errors::OrStatus;
use super::files::{may, path_of};
use super::node::{Node, Right};
use super::tree::Tree;
use crate::nfs::server::exports::Caller;
use crate::nfs::server::file_system::{FileKey, Outcome};
use nfs3_types::nfs3::{Nfs3Option, nfsstat3, nfstime3, sattr3, set_atime, set_mtime, wcc_data};
use rustix::fd::AsFd;
use rustix::fs::{
    Access, AtFlags, CWD, FileType, Gid, Statx, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid,
    chmodat, chownat, ftruncate, utimensat,
};
use rustix::io;

/// Longest file, in bytes, of any file system of Linux.
pub(super) const FILE_BYTES_MAX: u64 = i64::MAX as u64;

impl Tree {
    /// Rights are looked at before anything is changed, so that only an error of the disk can leave it
    /// half done.
    pub(super) fn set_attributes(
        &self,
        caller: &Caller,
        file: &FileKey,
        new: &sattr3,
        guard: Option<nfstime3>,
        wcc: &mut wcc_data,
    ) -> Outcome<()> {
        let node = self.node(file)?;
        self.changing(&node, wcc, |present| {
            if guard.is_some_and(|guard| guard != time(present.stx_ctime)) {
                return Err(nfsstat3::NFS3ERR_NOT_SYNC);
            }
            self.check_rights(caller, &node, present, new)?;
            if let Nfs3Option::Some(bytes) = new.size {
                self.resize(caller, &node, bytes)?;
            }
            self.acting(caller, || set(&node.path, node.kind, new))?;
            self.settle(&node)
        })
    }

    fn check_rights(
        &self,
        caller: &Caller,
        node: &Node,
        present: &Statx,
        new: &sattr3,
    ) -> Outcome<()> {
        check_owner(new)?;
        check_size(node.kind, new)?;
        if self.identity.is_root(caller) {
            return Ok(());
        }
        let is_owner = self.identity.owns(caller, present);
        if !is_owner && needs_owner(new) || changes_owner(present, new) {
            return Err(nfsstat3::NFS3ERR_PERM);
        }
        if is_owner || is_unchanged(new) {
            return Ok(());
        }
        self.acting(caller, || may(&node.path, Access::WRITE_OK))
    }

    /// The caller has the right to, also to a file whose mode forbids it to its owner: so the server
    /// opens it. It is cut as the caller, who does not keep set-user-id bits.
    pub(super) fn resize(&self, caller: &Caller, node: &Node, bytes: u64) -> Outcome<()> {
        let file = node.open(Right::Write).or_status()?;
        self.acting(caller, || ftruncate(file, bytes))
    }
}

/// Changes what is asked for but the size. Owner and group come before the mode, which they take bits
/// from.
pub(super) fn set(file: impl AsFd, kind: FileType, new: &sattr3) -> io::Result<()> {
    set_owner(&file, new)?;
    if let (Nfs3Option::Some(wire), true) = (&new.mode, kind != FileType::Symlink) {
        chmodat(CWD, path_of(&file), mode(*wire), AtFlags::empty())?;
    }
    set_times(&file, new)
}

fn set_owner(file: impl AsFd, new: &sattr3) -> io::Result<()> {
    let (uid, gid) = (option(&new.uid).map(Uid::from_raw), option(&new.gid).map(Gid::from_raw));
    if uid.is_none() && gid.is_none() {
        return Ok(());
    }
    chownat(file, c"", uid, gid, AtFlags::EMPTY_PATH)
}

fn set_times(file: impl AsFd, new: &sattr3) -> io::Result<()> {
    let times = Timestamps {
        last_access: match new.atime {
            set_atime::DONT_CHANGE => special(UTIME_OMIT),
            set_atime::SET_TO_SERVER_TIME => special(UTIME_NOW),
            set_atime::SET_TO_CLIENT_TIME(time) => given(time),
        },
        last_modification: match new.mtime {
            set_mtime::DONT_CHANGE => special(UTIME_OMIT),
            set_mtime::SET_TO_SERVER_TIME => special(UTIME_NOW),
            set_mtime::SET_TO_CLIENT_TIME(time) => given(time),
        },
    };
    if times.last_access.tv_nsec == UTIME_OMIT && times.last_modification.tv_nsec == UTIME_OMIT {
        return Ok(());
    }
    utimensat(file, c"", &times, AtFlags::EMPTY_PATH)
}

fn special(what: i64) -> Timespec {
    Timespec { tv_sec: 0, tv_nsec: what }
}

/// A peer's nanoseconds may be what the kernel takes for a special value; a second has fewer.
fn given(time: nfstime3) -> Timespec {
    Timespec { tv_sec: i64::from(time.seconds), tv_nsec: i64::from(time.nseconds.min(999_999_999)) }
}

/// 2^32 - 1 is nobody: to the kernel it means that nothing changes.
pub(super) fn check_owner(new: &sattr3) -> Outcome<()> {
    let nobody = Nfs3Option::Some(u32::MAX);
    match new.uid == nobody || new.gid == nobody {
        true => Err(nfsstat3::NFS3ERR_INVAL),
        false => Ok(()),
    }
}

fn check_size(kind: FileType, new: &sattr3) -> Outcome<()> {
    match (&new.size, kind) {
        (Nfs3Option::None, _) => Ok(()),
        (_, FileType::Directory) => Err(nfsstat3::NFS3ERR_ISDIR),
        (Nfs3Option::Some(FILE_BYTES_MAX..), _) => Err(nfsstat3::NFS3ERR_FBIG),
        (_, FileType::RegularFile) => Ok(()),
        _ => Err(nfsstat3::NFS3ERR_INVAL),
    }
}

/// Only the owner gives a file another mode, group or times of his choice.
fn needs_owner(new: &sattr3) -> bool {
    new.mode.is_some()
        || new.uid.is_some()
        || new.gid.is_some()
        || matches!(new.atime, set_atime::SET_TO_CLIENT_TIME(_))
        || matches!(new.mtime, set_mtime::SET_TO_CLIENT_TIME(_))
}

/// Only root gives a file away.
fn changes_owner(present: &Statx, new: &sattr3) -> bool {
    option(&new.uid).is_some_and(|uid| uid != present.stx_uid)
}

/// Nothing that is asked for takes the right to write.
fn is_unchanged(new: &sattr3) -> bool {
    new.size.is_none()
        && matches!(new.atime, set_atime::DONT_CHANGE)
        && matches!(new.mtime, set_mtime::DONT_CHANGE)
}

pub(super) fn option<T: Copy + nfs3_types::xdr_codec::Pack + nfs3_types::xdr_codec::Unpack>(
    given: &Nfs3Option<T>,
) -> Option<T> {
    match given {
        Nfs3Option::Some(value) => Some(*value),
        Nfs3Option::None => None,
    }
}
