use super::attributes::Stat;
use super::session::Session;
use crate::protocol::{Ftype3, Nfsstat3, Nfstime3, Sattr3, SetAtime};
use crate::server::caller::Caller;
use crate::server::file_system::{Change, FileKey, Outcome, Setting};
use crate::server::nodes::Held;
use crate::server::rights::ModeBits;
use crate::server::unix::{RIGHTS, check_owner, check_size};
use crate::sys::ceph::{
    CEPH_SETATTR_ATIME, CEPH_SETATTR_GID, CEPH_SETATTR_MODE, CEPH_SETATTR_MTIME, CEPH_SETATTR_SIZE,
    CEPH_SETATTR_UID, Inode, no_attributes,
};
use libc::{c_int, timespec};
use spinrpc::sync::lock;
use std::time::SystemTime;

impl Session {
    pub(super) fn setattr(&self, by: Change<'_>, file: &FileKey, to: Setting<'_>) -> Outcome<()> {
        let (Change { caller, wcc }, Setting { new, guard }) = (by, to);
        let node = self.node(file)?;
        let setting = lock(&node.state().setting);
        self.changing(&node, wcc, |present| {
            if guard.is_some_and(|guard| guard != present.attributes.ctime) {
                return Err(Nfsstat3::Nfs3errNotSync);
            }
            check_owner(new)?;
            check_size(node.kind, new)?;
            present.demand_change(caller, new)?;
            self.set(&node.inode, caller, present, new)?;
            drop(setting);
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
        let mode = present.mode_after(caller, new);
        let is_set = new.mode.is_some() || mode != present.attributes.mode;
        if is_set && present.attributes.r#type != Ftype3::Nf3lnk {
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
        if let Some(time) = time(new.atime) {
            raw.stx_atime = time;
            mask |= CEPH_SETATTR_ATIME;
        }
        if let Some(time) = time(new.mtime.into()) {
            raw.stx_mtime = time;
            mask |= CEPH_SETATTR_MTIME;
        }
        if mask == 0 {
            return Ok(());
        }
        self.ok(inode.set(raw, mask))
            .inspect_err(|_| restore(inode, present, mask & !CEPH_SETATTR_SIZE))
    }
}

/// Sets these attributes as they were, as far as it can. libcephfs makes some changes by itself, while it has the right to, before
/// it or the metadata server refuses the others: the mode, and then not the size (`Client::_do_setattr`).
fn restore(inode: &Inode, present: &Stat, mask: c_int) {
    let (old, mut raw) = (&present.attributes, no_attributes());
    raw.stx_mode = (old.mode & RIGHTS) as u16;
    (raw.stx_uid, raw.stx_gid) = (old.uid, old.gid);
    (raw.stx_atime, raw.stx_mtime) = (given(old.atime), given(old.mtime));
    if mask != 0 {
        let _ = inode.set(raw, mask);
    }
}

fn time(new: SetAtime) -> Option<timespec> {
    match new {
        SetAtime::DontChange => None,
        SetAtime::SetToServerTime => Some(given(SystemTime::now().into())),
        SetAtime::SetToClientTime(time) => Some(given(time)),
    }
}

/// Valid nanoseconds are below a second; a peer's may be anything.
fn given(time: Nfstime3) -> timespec {
    timespec { tv_sec: i64::from(time.seconds), tv_nsec: i64::from(time.nseconds.min(999_999_999)) }
}
