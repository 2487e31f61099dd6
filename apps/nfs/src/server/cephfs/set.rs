//! SETATTR, and the initial attributes of new files.

use super::attributes::{RIGHTS, Stat};
use super::session::Session;
use crate::protocol::{Ftype3, Nfsstat3, Nfstime3, Sattr3, SetAtime, SetMtime, WccData};
use crate::server::caller::Caller;
use crate::server::file_system::{FileKey, Outcome};
use crate::sys::ceph::{
    CEPH_SETATTR_ATIME, CEPH_SETATTR_GID, CEPH_SETATTR_MODE, CEPH_SETATTR_MTIME, CEPH_SETATTR_SIZE,
    CEPH_SETATTR_UID, Inode, no_attributes,
};
use libc::timespec;
use std::time::SystemTime;

/// Maximum length of a file, in bytes. That of a file system of Ceph (`max_file_size`) is lower.
pub(super) const FILE_BYTES_MAX: u64 = i64::MAX as u64;

impl Session {
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
            if guard.is_some_and(|guard| guard != present.attributes.ctime) {
                return Err(Nfsstat3::Nfs3errNotSync);
            }
            check_owner(new)?;
            check_size(node.kind, new)?;
            present.demand_change(caller, new)?;
            self.set(&node.inode, caller, present, new)?;
            self.settle(&node.inode)
        })
    }

    /// Makes all changes of `new`, or none. The caller has the rights.
    pub(super) fn set(
        &self,
        inode: &Inode,
        caller: &Caller,
        present: &Stat,
        new: &Sattr3,
    ) -> Outcome<()> {
        let (mut raw, mut mask) = (no_attributes(), 0);
        if let Some(mode) = present.mode_after(caller, new)
            && present.attributes.r#type != Ftype3::Nf3lnk
        {
            // The lower bits, so that it fits.
            raw.stx_mode = (mode & RIGHTS) as u16;
            mask |= CEPH_SETATTR_MODE;
        }
        if let Some(uid) = new.uid {
            raw.stx_uid = uid;
            mask |= CEPH_SETATTR_UID;
        }
        if let Some(gid) = new.gid {
            raw.stx_gid = gid;
            mask |= CEPH_SETATTR_GID;
        }
        if let Some(bytes) = new.size {
            raw.stx_size = bytes;
            mask |= CEPH_SETATTR_SIZE;
        }
        if let Some(time) = atime(new.atime) {
            raw.stx_atime = time;
            mask |= CEPH_SETATTR_ATIME;
        }
        if let Some(time) = mtime(new.mtime) {
            raw.stx_mtime = time;
            mask |= CEPH_SETATTR_MTIME;
        }
        if mask == 0 { Ok(()) } else { self.ok(inode.set(raw, mask)) }
    }
}

fn atime(new: SetAtime) -> Option<timespec> {
    match new {
        SetAtime::DontChange => None,
        SetAtime::SetToServerTime => Some(given(SystemTime::now().into())),
        SetAtime::SetToClientTime(time) => Some(given(time)),
    }
}

fn mtime(new: SetMtime) -> Option<timespec> {
    match new {
        SetMtime::DontChange => None,
        SetMtime::SetToServerTime => Some(given(SystemTime::now().into())),
        SetMtime::SetToClientTime(time) => Some(given(time)),
    }
}

/// Valid nanoseconds are below a second; a peer's may be anything.
fn given(time: Nfstime3) -> timespec {
    timespec { tv_sec: i64::from(time.seconds), tv_nsec: i64::from(time.nseconds.min(999_999_999)) }
}

/// 2^32 - 1 is not a valid id.
pub(super) fn check_owner(new: &Sattr3) -> Outcome<()> {
    let invalid = Some(u32::MAX);
    match new.uid == invalid || new.gid == invalid {
        true => Err(Nfsstat3::Nfs3errInval),
        false => Ok(()),
    }
}

fn check_size(kind: Ftype3, new: &Sattr3) -> Outcome<()> {
    match (new.size, kind) {
        (None, _) => Ok(()),
        (_, Ftype3::Nf3dir) => Err(Nfsstat3::Nfs3errIsdir),
        (Some(FILE_BYTES_MAX..), _) => Err(Nfsstat3::Nfs3errFbig),
        (_, Ftype3::Nf3reg) => Ok(()),
        _ => Err(Nfsstat3::Nfs3errInval),
    }
}
