//! Permissions by mode bits, with the rules of the Linux kernel. libcephfs is called without a list of
//! groups (see `sys::ceph`), so that it cannot check them. Access control lists do not count.

use super::attributes::Stat;
use crate::protocol::{
    ACCESS3_DELETE, ACCESS3_EXECUTE, ACCESS3_EXTEND, ACCESS3_LOOKUP, ACCESS3_MODIFY, ACCESS3_READ,
    Ftype3, Nfsstat3, Sattr3, SetAtime, SetMtime,
};
use crate::server::caller::Caller;
use crate::server::file_system::Outcome;

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const STICKY: u32 = 0o1000;
const GROUP_EXECUTES: u32 = 0o010;
const ROOT: u32 = 0;

/// A permission in the mode bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Right {
    Execute = 1,
    Write = 2,
    Read = 4,
}

impl Stat {
    fn grants(&self, caller: &Caller, right: Right) -> bool {
        let of = &self.attributes;
        if caller.uid == ROOT {
            return right != Right::Execute || self.is_directory() || of.mode & 0o111 != 0;
        }
        let shift = match () {
            () if caller.uid == of.uid => 6,
            () if is_member(caller, of.gid) => 3,
            () => 0,
        };
        of.mode >> shift & right as u32 != 0
    }

    pub(super) fn demand(&self, caller: &Caller, right: Right) -> Outcome<()> {
        allow(self.grants(caller, right), Nfsstat3::Nfs3errAcces)
    }

    /// Like [`Stat::demand`], except that a client checks the mode when it opens a file, and it may
    /// have changed since: "the server's permission checking algorithm should allow the owner of a
    /// file to access it regardless of the permission setting" (RFC 1813 section 4.4). A caller who may
    /// execute a file may read it, for the same reason.
    pub(super) fn demand_data(&self, caller: &Caller, right: Right) -> Outcome<()> {
        let runs = right == Right::Read && self.grants(caller, Right::Execute);
        let may = caller.uid == self.attributes.uid || runs || self.grants(caller, right);
        allow(may, Nfsstat3::Nfs3errAcces)
    }

    /// The bits of ACCESS that the caller has (RFC 1813 section 3.3.4).
    pub(super) fn access(&self, caller: &Caller, wanted: u32) -> u32 {
        const CHANGES: u32 = ACCESS3_MODIFY | ACCESS3_EXTEND;
        let has = |right| self.grants(caller, right);
        let (write, execute) = match self.is_directory() {
            // Changing a name requires write and search permission for the directory.
            true if has(Right::Execute) => (CHANGES | ACCESS3_DELETE, ACCESS3_LOOKUP),
            true => (0, ACCESS3_LOOKUP),
            false => (CHANGES, ACCESS3_EXECUTE),
        };
        let given = |right, bits| if has(right) { bits } else { 0 };
        let read = given(Right::Read, ACCESS3_READ);
        wanted & (read | given(Right::Write, write) | given(Right::Execute, execute))
    }

    /// Checks that the caller may add names to this directory.
    pub(super) fn demand_entry(&self, caller: &Caller) -> Outcome<()> {
        self.demand(caller, Right::Execute)?;
        self.demand(caller, Right::Write)
    }

    /// Checks that the caller may remove the name of `file` from this directory.
    pub(super) fn demand_removal(&self, caller: &Caller, file: &Self) -> Outcome<()> {
        self.demand_entry(caller)?;
        let owners = [ROOT, self.attributes.uid, file.attributes.uid];
        let is_free = self.attributes.mode & STICKY == 0;
        allow(is_free || owners.contains(&caller.uid), Nfsstat3::Nfs3errPerm)
    }

    /// Checks that the caller may make all changes of `new`.
    pub(super) fn demand_change(&self, caller: &Caller, new: &Sattr3) -> Outcome<()> {
        let of = &self.attributes;
        if caller.uid == ROOT {
            return Ok(());
        }
        let is_owner = caller.uid == of.uid;
        let sets_time = matches!(new.atime, SetAtime::SetToClientTime(_))
            || matches!(new.mtime, SetMtime::SetToClientTime(_));
        let needs_owner = new.mode.is_some() || new.uid.is_some() || new.gid.is_some() || sets_time;
        let gives_away = new.uid.is_some_and(|uid| uid != of.uid)
            || new.gid.is_some_and(|gid| gid != of.gid && !is_member(caller, gid));
        allow((is_owner || !needs_owner) && !gives_away, Nfsstat3::Nfs3errPerm)?;
        let touches = new.size.is_some()
            || new.atime != SetAtime::DontChange
            || new.mtime != SetMtime::DontChange;
        if is_owner || !touches { Ok(()) } else { self.demand(caller, Right::Write) }
    }

    /// The mode after a change by the caller, if it must be set: `new` has the other changes. A file
    /// that another user changes no longer runs as its owner.
    pub(super) fn mode_after(&self, caller: &Caller, new: &Sattr3) -> Option<u32> {
        let of = &self.attributes;
        let moves = new.uid.is_some() || new.gid.is_some();
        let lends = caller.uid == ROOT && !moves || self.is_directory();
        let mut mode = match new.mode {
            Some(mode) => mode,
            None if lends || !(moves || new.size.is_some()) => return None,
            None => self.without_privileges(),
        };
        if caller.uid != ROOT && !is_member(caller, new.gid.unwrap_or(of.gid)) {
            mode &= !SET_GID;
        }
        (new.mode.is_some() || mode != of.mode).then_some(mode)
    }

    /// The mode of a new file in this directory. A program does not run for the directory's group because a
    /// caller outside of the group made it (CVE-2018-13405). Ceph gives new directories the bit by itself.
    pub(super) fn mode_of_new(&self, caller: &Caller, mode: u32) -> u32 {
        let of = &self.attributes;
        let gives_group = of.mode & SET_GID != 0;
        let may = caller.uid == ROOT || !gives_group || is_member(caller, of.gid);
        if may { mode } else { mode & !SET_GID }
    }

    /// The mode after a write by the caller, if it changes.
    pub(super) fn mode_written(&self, caller: &Caller) -> Option<u32> {
        let mode = self.without_privileges();
        (caller.uid != ROOT && mode != self.attributes.mode).then_some(mode)
    }

    /// Without execute permission of the group, its bit has another meaning.
    fn without_privileges(&self) -> u32 {
        let mode = self.attributes.mode;
        mode & !SET_UID & if mode & GROUP_EXECUTES == 0 { !0 } else { !SET_GID }
    }
}

/// NFS3ERR_PERM for a device that the caller may not make: only root makes them.
pub(super) fn demand_device(caller: &Caller, kind: Ftype3) -> Outcome<()> {
    let is_device = matches!(kind, Ftype3::Nf3chr | Ftype3::Nf3blk);
    allow(caller.uid == ROOT || !is_device, Nfsstat3::Nfs3errPerm)
}

fn is_member(caller: &Caller, gid: u32) -> bool {
    caller.gid == gid || caller.groups.as_slice().contains(&gid)
}

fn allow(may: bool, status: Nfsstat3) -> Outcome<()> {
    if may { Ok(()) } else { Err(status) }
}
