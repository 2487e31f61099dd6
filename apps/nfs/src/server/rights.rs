//! Permissions by mode bits, with the rules of the Linux kernel, for back ends whose files have no other. Access control
//! lists do not count.

use super::caller::Caller;
use super::file_system::Outcome;
use super::unix::RIGHTS;
use crate::protocol::{
    ACCESS3_DELETE, ACCESS3_EXECUTE, ACCESS3_EXTEND, ACCESS3_LOOKUP, ACCESS3_MODIFY, ACCESS3_READ,
    Ftype3, Nfsstat3, Sattr3, SetAtime, SetMtime,
};

const SET_UID: u32 = 0o4000;
pub(super) const SET_GID: u32 = 0o2000;
const GROUP_EXECUTES: u32 = 0o010;
pub(super) const ROOT: u32 = 0;
const STICKY: u32 = 0o1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Right {
    Execute = 1,
    Write = 2,
    Read = 4,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Ownership {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) is_directory: bool,
}

pub(super) trait ModeBits {
    fn ownership(&self) -> Ownership;

    fn grants(&self, caller: &Caller, right: Right) -> bool {
        let of = self.ownership();
        if caller.uid == ROOT {
            return right != Right::Execute || of.is_directory || of.mode & 0o111 != 0;
        }
        let shift = match () {
            () if caller.uid == of.uid => 6,
            () if is_member(caller, of.gid) => 3,
            () => 0,
        };
        of.mode >> shift & right as u32 != 0
    }

    fn demand(&self, caller: &Caller, right: Right) -> Outcome<()> {
        allow(self.grants(caller, right), Nfsstat3::Nfs3errAcces)
    }

    /// Like [`ModeBits::demand`], except that a client checks the mode when it opens a file, and it may
    /// have changed since: "the server's permission checking algorithm should allow the owner of a
    /// file to access it regardless of the permission setting" (RFC 1813 section 4.4). A caller who may
    /// execute a file may read it, for the same reason.
    fn demand_data(&self, caller: &Caller, right: Right) -> Outcome<()> {
        let runs = right == Right::Read && self.grants(caller, Right::Execute);
        let may = caller.uid == self.ownership().uid || runs || self.grants(caller, right);
        allow(may, Nfsstat3::Nfs3errAcces)
    }

    /// The bits of ACCESS that the caller has (RFC 1813 section 3.3.4).
    fn access(&self, caller: &Caller, wanted: u32) -> u32 {
        let rows = rights_behind(self.ownership().is_directory).into_iter();
        let given =
            rows.filter(|(rights, _)| rights.iter().all(|right| self.grants(caller, *right)));
        wanted & given.fold(0, |all, (_, bits)| all | bits)
    }

    fn demand_entry(&self, caller: &Caller) -> Outcome<()> {
        self.demand(caller, Right::Execute)?;
        self.demand(caller, Right::Write)
    }

    fn demand_removal(&self, caller: &Caller, file: &Self) -> Outcome<()> {
        self.demand_entry(caller)?;
        let of = self.ownership();
        let owners = [ROOT, of.uid, file.ownership().uid];
        let is_free = of.mode & STICKY == 0;
        allow(is_free || owners.contains(&caller.uid), Nfsstat3::Nfs3errPerm)
    }

    fn demand_change(&self, caller: &Caller, new: &Sattr3) -> Outcome<()> {
        let of = self.ownership();
        if caller.uid == ROOT {
            return Ok(());
        }
        let is_owner = caller.uid == of.uid;
        let gives_away = new.uid.is_some_and(|uid| uid != of.uid)
            || new.gid.is_some_and(|gid| gid != of.gid && !is_member(caller, gid));
        allow((is_owner || !needs_owner(new)) && !gives_away, Nfsstat3::Nfs3errPerm)?;
        if is_owner || !needs_write(new) { Ok(()) } else { self.demand(caller, Right::Write) }
    }

    /// The mode after a change by the caller; `new` has the other changes. A program with another owner or group, also if
    /// both stay, no longer runs as it, for any caller.
    fn mode_after(&self, caller: &Caller, new: &Sattr3) -> u32 {
        let of = self.ownership();
        let moves = new.uid.is_some() || new.gid.is_some();
        let is_of_group = caller.uid == ROOT || is_member(caller, new.gid.unwrap_or(of.gid));
        match new.mode {
            Some(mode) if is_of_group => mode & RIGHTS,
            Some(mode) => mode & RIGHTS & !SET_GID,
            None if moves && !of.is_directory => self.without_privileges(caller),
            None if new.size.is_some() => self.mode_written(caller),
            None => of.mode,
        }
    }

    /// The mode after a write by the caller. A program changed by another user no longer runs as its owner.
    fn mode_written(&self, caller: &Caller) -> u32 {
        if caller.uid == ROOT { self.ownership().mode } else { self.without_privileges(caller) }
    }

    /// Without execute permission, the bit of the group has another meaning, and stays for its members.
    fn without_privileges(&self, caller: &Caller) -> u32 {
        let of = self.ownership();
        let is_of_group = caller.uid == ROOT || is_member(caller, of.gid);
        let stays = of.mode & GROUP_EXECUTES == 0 && is_of_group;
        of.mode & !SET_UID & if stays { !0 } else { !SET_GID }
    }
}

/// Bits of ACCESS that rights give together, by file type (RFC 1813 section 3.3.4).
pub(super) fn rights_behind(is_directory: bool) -> [(&'static [Right], u32); 3] {
    const READ: (&[Right], u32) = (&[Right::Read], ACCESS3_READ);
    const CHANGES: u32 = ACCESS3_MODIFY | ACCESS3_EXTEND;
    match is_directory {
        true => [
            READ,
            (&[Right::Execute], ACCESS3_LOOKUP),
            // Changing a name requires write and search permission for the directory.
            (&[Right::Write, Right::Execute], CHANGES | ACCESS3_DELETE),
        ],
        false => [READ, (&[Right::Write], CHANGES), (&[Right::Execute], ACCESS3_EXECUTE)],
    }
}

/// Only the owner can change the mode, the group, or set arbitrary times.
pub(super) fn needs_owner(new: &Sattr3) -> bool {
    let sets_time = matches!(new.atime, SetAtime::SetToClientTime(_))
        || matches!(new.mtime, SetMtime::SetToClientTime(_));
    new.mode.is_some() || new.uid.is_some() || new.gid.is_some() || sets_time
}

/// Returns whether a change needs write permission, unless the owner makes it.
pub(super) fn needs_write(new: &Sattr3) -> bool {
    new.size.is_some() || new.atime != SetAtime::DontChange || new.mtime != SetMtime::DontChange
}

/// NFS3ERR_PERM for a device that the caller may not make: only root makes them.
pub(super) fn demand_device(caller: &Caller, kind: Ftype3) -> Outcome<()> {
    let is_device = matches!(kind, Ftype3::Nf3chr | Ftype3::Nf3blk);
    allow(caller.uid == ROOT || !is_device, Nfsstat3::Nfs3errPerm)
}

/// Attributes of a new file. Only root sets the owner: other callers own the file already, as on Linux.
pub(super) fn of_new(caller: &Caller, new: &Sattr3) -> Sattr3 {
    let (uid, gid) = if caller.uid == ROOT { (new.uid, new.gid) } else { (None, None) };
    Sattr3 { uid, gid, ..*new }
}

pub(super) fn is_member(caller: &Caller, gid: u32) -> bool {
    caller.gid == gid || caller.groups.as_slice().contains(&gid)
}

fn allow(may: bool, status: Nfsstat3) -> Outcome<()> {
    if may { Ok(()) } else { Err(status) }
}
