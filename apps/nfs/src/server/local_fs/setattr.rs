use super::attributes::{mode, rights, time};
use super::files::{may, path_of};
use super::node::{Node, Right};
use super::tree::Tree;
use crate::protocol::{Nfsstat3, Nfstime3, Sattr3, SetAtime, SetMtime};
use crate::server::caller::Caller;
use crate::server::errors::OrStatus;
use crate::server::file_system::{Change, FileKey, Outcome, Setting};
use crate::server::nodes::Held;
use crate::server::rights::{needs_owner, needs_write};
use crate::server::unix::{check_owner, check_size, wire_type};
use rustix::fd::AsFd;
use rustix::fs::{
    Access, AtFlags, CWD, FileType, Gid, Statx, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid,
    chmodat, chownat, ftruncate, utimensat,
};
use rustix::io;
use spinrpc::sync::lock;

impl Tree {
    /// Makes all changes or none: permissions are checked before, and owner and mode are restored if a later change fails.
    /// Only an error of the disk can leave a partial change, after the size was set or in the final sync.
    pub(super) fn setattr(&self, by: Change<'_>, file: &FileKey, to: Setting<'_>) -> Outcome<()> {
        let (Change { caller, wcc }, Setting { new, guard }) = (by, to);
        let node = self.node(file)?;
        let setting = lock(&node.state().setting);
        self.changing(&node, wcc, |present| {
            if guard.is_some_and(|guard| guard != time(present.stx_ctime)) {
                return Err(Nfsstat3::Nfs3errNotSync);
            }
            self.check_rights(caller, &node, present, new)?;
            let changed = self.change(caller, &node, new);
            changed.inspect_err(|_| self.restore(&node, present))?;
            drop(setting);
            self.settle(&node)
        })
    }

    /// The size cannot be restored, so that it comes after the changes that the kernel can refuse. Setting it as the
    /// caller clears mode bits, which are set again.
    ///
    /// The caller may set the size even if the mode denies that to the owner: so the server opens the file.
    fn change(&self, caller: &Caller, node: &Node, new: &Sattr3) -> Outcome<()> {
        let file = new.size.map(|_| node.open(Right::Write).or_status()).transpose()?;
        let _changing = lock(&node.mode);
        self.acting(caller, || {
            set_owner(&node.path, new)?;
            set_mode(&node.path, node.kind, new)
        })?;
        if let (Some(file), Some(bytes)) = (file, new.size) {
            self.acting(caller, || {
                ftruncate(file, bytes)?;
                set_mode(&node.path, node.kind, new)
            })?;
        }
        self.change_times(caller, node, &without_times_of_size(new))
    }

    /// A caller with the right to write may set either time to that of the server (RFC 1813 section 3.3.2), for which the
    /// kernel demands ownership unless both are set: then the server sets it.
    fn change_times(&self, caller: &Caller, node: &Node, new: &Sattr3) -> Outcome<()> {
        match self.acting(caller, || set_times(&node.path, new)) {
            Err(Nfsstat3::Nfs3errPerm) if !needs_owner(new) => {
                set_times(&node.path, &self.allowed_times(new)?).or_status()
            }
            outcome => outcome,
        }
    }

    /// A server that is not root and not the owner can only set both times. It does so for the modification time, because
    /// no program relies on an old access time, and refuses to set the access time alone.
    fn allowed_times(&self, new: &Sattr3) -> Outcome<Sattr3> {
        match new.mtime {
            _ if self.identity.acts_as_callers() => Ok(*new),
            SetMtime::SetToServerTime => Ok(Sattr3 { atime: SetAtime::SetToServerTime, ..*new }),
            _ => Err(Nfsstat3::Nfs3errPerm),
        }
    }

    /// Restores owner and mode, as far as the server can.
    fn restore(&self, node: &Node, present: &Statx) {
        let _changing = lock(&node.mode);
        let Ok(now) = node.stat() else { return };
        let is_owned = (now.stx_uid, now.stx_gid) == (present.stx_uid, present.stx_gid);
        let old = Sattr3 {
            mode: (!is_owned || now.stx_mode != present.stx_mode).then_some(rights(present)),
            uid: (!is_owned).then_some(present.stx_uid),
            gid: (!is_owned).then_some(present.stx_gid),
            ..Sattr3::default()
        };
        let _ = set(&node.path, node.kind, &old);
    }

    fn check_rights(
        &self,
        caller: &Caller,
        node: &Node,
        present: &Statx,
        new: &Sattr3,
    ) -> Outcome<()> {
        check_owner(new)?;
        check_size(wire_type(node.kind), new)?;
        if self.identity.is_root(caller) {
            return Ok(());
        }
        let is_owner = self.identity.owns(caller, present);
        // Only root can change the owner.
        let changes_owner = new.uid.is_some_and(|uid| uid != present.stx_uid);
        if !is_owner && needs_owner(new) || changes_owner {
            return Err(Nfsstat3::Nfs3errPerm);
        }
        if is_owner || !needs_write(new) {
            return Ok(());
        }
        self.acting(caller, || may(&node.path, Access::WRITE_OK))
    }
}

/// Owner and group come before the mode, whose bits they clear.
pub(super) fn set(file: impl AsFd, kind: FileType, new: &Sattr3) -> io::Result<()> {
    set_owner(&file, new)?;
    set_mode(&file, kind, new)?;
    set_times(&file, new)
}

fn set_mode(file: impl AsFd, kind: FileType, new: &Sattr3) -> io::Result<()> {
    match (&new.mode, kind) {
        (None, _) | (_, FileType::Symlink) => Ok(()),
        (Some(wire), _) => chmodat(CWD, path_of(&file), mode(*wire), AtFlags::empty()),
    }
}

/// Setting the size has set the modification time to the server's.
fn without_times_of_size(new: &Sattr3) -> Sattr3 {
    let (atime, mtime) = match (new.size, new.atime, new.mtime) {
        (Some(_), SetAtime::DontChange, SetMtime::SetToServerTime) => {
            (SetAtime::DontChange, SetMtime::DontChange)
        }
        // Both, which needs no ownership.
        (Some(_), SetAtime::SetToServerTime, SetMtime::DontChange) => {
            (SetAtime::SetToServerTime, SetMtime::SetToServerTime)
        }
        (_, atime, mtime) => (atime, mtime),
    };
    Sattr3 { atime, mtime, ..*new }
}

fn set_owner(file: impl AsFd, new: &Sattr3) -> io::Result<()> {
    let (uid, gid) = (new.uid.map(Uid::from_raw), new.gid.map(Gid::from_raw));
    if uid.is_none() && gid.is_none() {
        return Ok(());
    }
    chownat(file, c"", uid, gid, AtFlags::EMPTY_PATH)
}

fn set_times(file: impl AsFd, new: &Sattr3) -> io::Result<()> {
    let time = |new| match new {
        SetAtime::DontChange => special(UTIME_OMIT),
        SetAtime::SetToServerTime => special(UTIME_NOW),
        SetAtime::SetToClientTime(time) => given(time),
    };
    let times =
        Timestamps { last_access: time(new.atime), last_modification: time(new.mtime.into()) };
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
