//! As whom files are touched: as the caller where the server is root, else as the server itself.

use super::errors::io_status;
use crate::nfs::protocol::Nfsstat3;
use crate::nfs::server::exports::Caller;
use crate::nfs::server::file_system::Outcome;
use rustix::fs::Statx;
use rustix::process::{Gid, Uid, getegid, geteuid};
use spinrpc::sys::thread_identity::ThreadIdentity;
use std::cell::RefCell;
use std::io;

thread_local! {
    /// Own identity of this thread; read when it first takes another one.
    static THREAD: RefCell<Option<ThreadIdentity>> = const { RefCell::new(None) };
}

/// Whom the server is, and whether it can be somebody else.
pub(super) struct Identity {
    own: Uid,
    group: Gid,
}

impl Identity {
    /// That of the calling thread, which is to be that of all threads.
    ///
    /// # Errors
    /// It is root's, and yet the kernel does not let it be somebody else (CAP_SETUID, CAP_SETGID, or a
    /// user namespace without groups).
    pub(super) fn of_this_thread() -> io::Result<Self> {
        let identity = Self { own: geteuid(), group: getegid() };
        if identity.acts_as_callers() {
            drop(ThreadIdentity::of_this_thread()?.assume(0, 0, &[])?);
        }
        Ok(identity)
    }

    /// Act with the identity of callers. If not, all of them are the server's own user: what they make
    /// is his, and what he may do they may.
    pub(super) fn acts_as_callers(&self) -> bool {
        self.own.is_root()
    }

    /// Returns whether the caller owns the file, and so may read and write it whatever its mode (RFC
    /// 1813 section 4.4): a client has checked the mode when the file was opened, which the server
    /// never hears of.
    pub(super) fn owns(&self, caller: &Caller, file: &Statx) -> bool {
        file.stx_uid == if self.acts_as_callers() { caller.uid } else { self.own.as_raw() }
    }

    /// Returns whether the caller is root.
    pub(super) fn is_root(&self, caller: &Caller) -> bool {
        self.acts_as_callers() && caller.uid == Uid::ROOT.as_raw()
    }

    /// Does `work` with this thread acting as the caller; `work` does not call this again.
    pub(super) fn acting<T>(
        &self,
        caller: &Caller,
        work: impl FnOnce() -> Outcome<T>,
    ) -> Outcome<T> {
        // Of root, to whom everything is allowed, only the first group shows: in what he makes.
        let is_server = self.is_root(caller) && caller.gid == self.group.as_raw();
        if is_server || !self.acts_as_callers() {
            return work();
        }
        THREAD.with(|thread| {
            let mut thread = thread.try_borrow_mut().map_err(|_| Nfsstat3::Nfs3errServerfault)?;
            let acting = match &mut *thread {
                Some(known) => known,
                unknown => unknown
                    .insert(ThreadIdentity::of_this_thread().map_err(|error| io_status(&error))?),
            }
            .assume(caller.uid, caller.gid, caller.groups.as_slice());
            // Users that the kernel does not know: nobody whose number is -1, or of another namespace.
            let _acting = acting.map_err(|_| Nfsstat3::Nfs3errAcces)?;
            work()
        })
    }
}
