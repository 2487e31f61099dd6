//! SETATTR, and the initial attributes of new files.

use super::attributes::{mode, time};
use super::files::{may, path_of};
use super::node::{Node, Right};
use super::tree::Tree;
use crate::protocol::{Nfsstat3, Nfstime3, Sattr3, SetAtime, SetMtime, WccData};
use crate::server::caller::Caller;
use crate::server::errors::OrStatus;
use crate::server::file_system::{FileKey, Outcome};
use rustix::fd::AsFd;
use rustix::fs::{
    Access, AtFlags, CWD, FileType, Gid, Statx, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid,
    chmodat, chownat, ftruncate, utimensat,
};
use rustix::io;

/// Maximum length of a file, in bytes, on any file system of Linux.
pub(super) const FILE_BYTES_MAX: u64 = i64::MAX as u64;

impl Tree {
    /// Checks permissions before any change, so that only a disk error can leave a partial change.
    pub(super) fn set_attributes(
        &self,
        caller: &Caller,
        file: &FileKey,
        new: &Sattr3,
        guard: Option<Nfstime3>,
        wcc: &mut WccData,
    ) -> Outcome<()> {
        let node = self.node(file)?;
        self.changing(&node, wcc, |present| {
            if guard.is_some_and(|guard| guard != time(present.stx_ctime)) {
                return Err(Nfsstat3::Nfs3errNotSync);
            }
            self.check_rights(caller, &node, present, new)?;
            if let Some(bytes) = new.size {
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
        new: &Sattr3,
    ) -> Outcome<()> {
        check_owner(new)?;
        check_size(node.kind, new)?;
        if self.identity.is_root(caller) {
            return Ok(());
        }
        let is_owner = self.identity.owns(caller, present);
        if !is_owner && needs_owner(new) || changes_owner(present, new) {
            return Err(Nfsstat3::Nfs3errPerm);
        }
        if is_owner || is_unchanged(new) {
            return Ok(());
        }
        self.acting(caller, || may(&node.path, Access::WRITE_OK))
    }

    /// The caller has the right, even if the mode denies it to the owner: so the server opens the
    /// file. It is truncated as the caller, which clears set-user-ID bits.
    pub(super) fn resize(&self, caller: &Caller, node: &Node, bytes: u64) -> Outcome<()> {
        let file = node.open(Right::Write).or_status()?;
        self.acting(caller, || ftruncate(file, bytes))
    }
}

/// Makes the requested changes except the size. Owner and group come before the mode, whose bits
/// they clear.
pub(super) fn set(file: impl AsFd, kind: FileType, new: &Sattr3) -> io::Result<()> {
    set_owner(&file, new)?;
    if let (Some(wire), true) = (&new.mode, kind != FileType::Symlink) {
        chmodat(CWD, path_of(&file), mode(*wire), AtFlags::empty())?;
    }
    set_times(&file, new)
}

fn set_owner(file: impl AsFd, new: &Sattr3) -> io::Result<()> {
    let (uid, gid) = (new.uid.map(Uid::from_raw), new.gid.map(Gid::from_raw));
    if uid.is_none() && gid.is_none() {
        return Ok(());
    }
    chownat(file, c"", uid, gid, AtFlags::EMPTY_PATH)
}

fn set_times(file: impl AsFd, new: &Sattr3) -> io::Result<()> {
    let times = Timestamps {
        last_access: match new.atime {
            SetAtime::DontChange => special(UTIME_OMIT),
            SetAtime::SetToServerTime => special(UTIME_NOW),
            SetAtime::SetToClientTime(time) => given(time),
        },
        last_modification: match new.mtime {
            SetMtime::DontChange => special(UTIME_OMIT),
            SetMtime::SetToServerTime => special(UTIME_NOW),
            SetMtime::SetToClientTime(time) => given(time),
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

/// A peer's nanoseconds could match special values of the kernel; valid ones are below a second.
fn given(time: Nfstime3) -> Timespec {
    Timespec { tv_sec: i64::from(time.seconds), tv_nsec: i64::from(time.nseconds.min(999_999_999)) }
}

/// 2^32 - 1 is not a valid id: the kernel takes it as "no change".
pub(super) fn check_owner(new: &Sattr3) -> Outcome<()> {
    let invalid = Some(u32::MAX);
    match new.uid == invalid || new.gid == invalid {
        true => Err(Nfsstat3::Nfs3errInval),
        false => Ok(()),
    }
}

fn check_size(kind: FileType, new: &Sattr3) -> Outcome<()> {
    match (&new.size, kind) {
        (None, _) => Ok(()),
        (_, FileType::Directory) => Err(Nfsstat3::Nfs3errIsdir),
        (Some(FILE_BYTES_MAX..), _) => Err(Nfsstat3::Nfs3errFbig),
        (_, FileType::RegularFile) => Ok(()),
        _ => Err(Nfsstat3::Nfs3errInval),
    }
}

/// Only the owner can change the mode, the group, or set arbitrary times.
fn needs_owner(new: &Sattr3) -> bool {
    new.mode.is_some()
        || new.uid.is_some()
        || new.gid.is_some()
        || matches!(new.atime, SetAtime::SetToClientTime(_))
        || matches!(new.mtime, SetMtime::SetToClientTime(_))
}

/// Only root can change the owner.
fn changes_owner(present: &Statx, new: &Sattr3) -> bool {
    new.uid.is_some_and(|uid| uid != present.stx_uid)
}

/// Returns whether no requested change needs write permission.
fn is_unchanged(new: &Sattr3) -> bool {
    new.size.is_none()
        && matches!(new.atime, SetAtime::DontChange)
        && matches!(new.mtime, SetMtime::DontChange)
}
