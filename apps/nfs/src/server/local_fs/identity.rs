//! Identity for file operations: the caller's if the server is root, else the server's own.

use crate::protocol::Nfsstat3;
use crate::server::caller::Caller;
use crate::server::errors::io_status;
use crate::server::file_system::Outcome;
use crate::sys::thread_identity::ThreadIdentity;
use rustix::fs::Statx;
use rustix::process::{Gid, Uid, getegid, geteuid};
use std::cell::RefCell;
use std::io;

thread_local! {
    /// This thread's own identity; read when it first takes another one.
    static THREAD: RefCell<Option<ThreadIdentity>> = const { RefCell::new(None) };
}

/// The server's identity, and whether it can take another.
pub(super) struct Identity {
    own: Uid,
    group: Gid,
}

impl Identity {
    /// Identity of the calling thread, which must be that of all threads. Fails if it is root's and the kernel
    /// does not allow taking another (CAP_SETUID, CAP_SETGID, or a user namespace without groups).
    pub(super) fn of_this_thread() -> io::Result<Self> {
        let identity = Self { own: geteuid(), group: getegid() };
        if identity.acts_as_callers() {
            drop(ThreadIdentity::of_this_thread()?.assume(0, 0, &[])?);
        }
        Ok(identity)
    }

    /// If not, all callers act as the server's user: their files belong to it.
    pub(super) fn acts_as_callers(&self) -> bool {
        self.own.is_root()
    }

    /// The owner may read and write whatever the mode (RFC 1813 section 4.4): the client checked it when the
    /// file was opened.
    pub(super) fn owns(&self, caller: &Caller, file: &Statx) -> bool {
        file.stx_uid == if self.acts_as_callers() { caller.uid } else { self.own.as_raw() }
    }

    pub(super) fn is_root(&self, caller: &Caller) -> bool {
        self.acts_as_callers() && caller.uid == Uid::ROOT.as_raw()
    }

    /// Runs `work` with the caller's identity on this thread; `work` must not call this again.
    pub(super) fn acting<T>(
        &self,
        caller: &Caller,
        work: impl FnOnce() -> Outcome<T>,
    ) -> Outcome<T> {
        // Root has all rights, so only the first group matters: for files that it creates.
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
            // Users that the kernel does not know: number -1, or outside of this namespace.
            let _acting = acting.map_err(|_| Nfsstat3::Nfs3errAcces)?;
            work()
        })
    }
}
