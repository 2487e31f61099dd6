//! File-system identity of one thread.
//!
//! For storage services that run as root and act for their callers. May use std, libc and rustix.
//! Each change of identity, and each change back, takes five system calls, none of which waits.

use rustix::process::{Gid, getgroups};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_thread_groups};
use std::io;
use std::marker::PhantomData;
use std::thread;

/// Neither a user nor a group: the value that setfsuid(2) and the like take for "no change".
const NOBODY: u32 = u32::MAX;

/// The user and the group that stand for users unknown to the system, and that own nothing.
const STRANGER: u32 = 65_534;

/// Runs `work` on a new thread, as a user who owns nothing and has no capability, and waits for it.
/// Other threads may use the credentials that the kernel records meanwhile.
///
/// # Errors
/// The errors of [`ThreadIdentity::assume`], or the error of clone(2). Nothing is done then.
pub(super) fn as_nobody<R: Send>(work: impl FnOnce() -> R + Send) -> io::Result<R> {
    let act = || {
        let mut own = ThreadIdentity::of_this_thread()?;
        let _acting = own.assume(STRANGER, STRANGER, &[])?;
        // Some capabilities override limits that no user can, such as quotas.
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        set_capabilities(None, sets)?;
        Ok(work())
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("nobody".to_owned()).spawn_scoped(scope, act)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Identity of the thread that created it.
///
/// It changes the user and the groups that file systems ask for (setfsuid(2)), of the calling
/// thread alone; nothing else that makes a thread belong to a user changes. With an effective user,
/// other processes of that user could meanwhile tie the thread to a CPU or lower its priority for
/// good.
#[derive(Debug)]
pub(crate) struct ThreadIdentity {
    uid: u32,
    gid: u32,
    groups: Vec<Gid>,
    not_send: PhantomData<*const ()>,
}

/// As long as it lives, its thread acts as another user.
#[derive(Debug)]
#[must_use]
pub(crate) struct Acting<'a> {
    own: &'a ThreadIdentity,
}

impl ThreadIdentity {
    /// Identity of the calling thread. Allocates.
    pub(crate) fn of_this_thread() -> io::Result<Self> {
        let groups = getgroups()?;
        Ok(Self { uid: fs_user(), gid: fs_group(), groups, not_send: PhantomData })
    }

    /// Lets the thread act on files as a user, with `groups` in addition to the first one, until
    /// the returned value is dropped. A user other than 0 is bound by all modes and access control
    /// lists: the kernel disables the capabilities that override them meanwhile (capabilities(7);
    /// CAP_SYS_RESOURCE, which overrides quotas, is not among them). Opening by handle needs one of
    /// them, too.
    ///
    /// Takes `&mut self`, as it does not nest.
    ///
    /// # Errors
    /// `InvalidInput` for 2^32 - 1, which is not a user. `PermissionDenied` without CAP_SETUID and
    /// CAP_SETGID, or for users and groups that this user namespace does not have. The error of
    /// setgroups(2). The thread then has its earlier identity.
    pub(crate) fn assume(&mut self, uid: u32, gid: u32, groups: &[u32]) -> io::Result<Acting<'_>> {
        if uid == NOBODY || gid == NOBODY || groups.contains(&NOBODY) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "2^32 - 1 is not a user"));
        }
        // Before anything changes, so that dropping it undoes the changes when the rest fails.
        let acting = Acting { own: self };
        set_groups(groups)?;
        set_fs_group(gid)?;
        set_fs_user(uid)?;
        Ok(acting)
    }
}

impl Drop for Acting<'_> {
    /// The thread's real user has the right to each step. If one fails, the thread has fewer rights.
    fn drop(&mut self) {
        let _ = set_fs_user(self.own.uid);
        let _ = set_fs_group(self.own.gid);
        let _ = set_thread_groups(&self.own.groups);
    }
}

/// Sets the groups with the kernel's call: that of the C library changes all threads.
fn set_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: the pointer and the count are those of a slice of `gid_t`, which the kernel reads.
    let failed = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn set_fs_user(uid: u32) -> io::Result<()> {
    // SAFETY: takes and returns numbers. It does not say whether it was allowed.
    unsafe { libc::setfsuid(uid) };
    if fs_user() == uid { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

fn set_fs_group(gid: u32) -> io::Result<()> {
    // SAFETY: as in `set_fs_user`.
    unsafe { libc::setfsgid(gid) };
    if fs_group() == gid { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

fn fs_user() -> u32 {
    // SAFETY: as in `set_fs_user`. It changes nothing, because `NOBODY` is not a user, and returns
    // the current user.
    unsafe { libc::setfsuid(NOBODY) as u32 }
}

fn fs_group() -> u32 {
    // SAFETY: as in `fs_user`.
    unsafe { libc::setfsgid(NOBODY) as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::geteuid;
    use rustix::thread::capabilities;
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    use std::path::PathBuf;
    use std::thread;

    const USER: u32 = 12_345;
    const GROUP: u32 = 23_456;

    /// A file in a directory that everybody may write to, away when the test is over.
    struct Files(PathBuf);

    impl Files {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("identity-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path); // of a killed run with the same process id
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
            Self(path)
        }

        fn with_mode(&self, name: &str, mode: u32) -> PathBuf {
            let path = self.0.join(name);
            fs::write(&path, name).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            path
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Without root, these tests only check that a thread cannot take another identity.
    fn is_root() -> bool {
        if geteuid().is_root() {
            return true;
        }
        let mut own = ThreadIdentity::of_this_thread().unwrap();
        let error = own.assume(USER, GROUP, &[]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        false
    }

    #[test]
    fn a_file_of_root_is_refused_while_somebody_else_acts_and_not_afterwards() {
        if !is_root() {
            return;
        }
        let files = Files::new("refused");
        let path = files.with_mode("secret", 0o600);
        let mut own = ThreadIdentity::of_this_thread().unwrap();
        let acting = own.assume(USER, GROUP, &[]).unwrap();
        let error = File::open(&path).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EACCES), "{error}");
        let error = chown(&path, Some(USER), None).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{error}");
        drop(acting);
        assert_eq!(fs::read(&path).unwrap(), b"secret");
    }

    #[test]
    fn files_belong_to_whom_the_thread_acts_as() {
        if !is_root() {
            return;
        }
        let files = Files::new("owner");
        let mut own = ThreadIdentity::of_this_thread().unwrap();
        let before = fs::metadata(files.with_mode("before", 0o600)).unwrap();
        let acting = own.assume(USER, GROUP, &[]).unwrap();
        let theirs = fs::metadata(files.with_mode("theirs", 0o600)).unwrap();
        assert_eq!((theirs.uid(), theirs.gid()), (USER, GROUP));
        drop(acting);
        let after = fs::metadata(files.with_mode("after", 0o600)).unwrap();
        assert_eq!((after.uid(), after.gid()), (before.uid(), before.gid()));
    }

    #[test]
    fn groups_open_what_is_for_groups_and_go_with_the_user() {
        if !is_root() {
            return;
        }
        let files = Files::new("groups");
        let path = files.with_mode("shared", 0o640);
        chown(&path, None, Some(34_567)).unwrap();
        let mut own = ThreadIdentity::of_this_thread().unwrap();
        let groups_before = getgroups().unwrap();
        for (groups, is_allowed) in [(&[1, 34_567][..], true), (&[1, 2], false), (&[], false)] {
            let acting = own.assume(USER, GROUP, groups).unwrap();
            assert_eq!(File::open(&path).is_ok(), is_allowed, "{groups:?}");
            drop(acting);
            assert_eq!(getgroups().unwrap(), groups_before);
        }
    }

    #[test]
    fn nobody_may_do_what_no_user_may_and_the_caller_still_may() {
        if !is_root() {
            assert!(as_nobody(|| ()).is_err());
            return;
        }
        let files = Files::new("nobody");
        let path = files.with_mode("secret", 0o600);
        let (read, made) = as_nobody(|| {
            let made = fs::metadata(files.with_mode("made", 0o600)).unwrap();
            (File::open(&path).unwrap_err().kind(), (made.uid(), made.gid()))
        })
        .unwrap();
        assert_eq!((read, made), (io::ErrorKind::PermissionDenied, (STRANGER, STRANGER)));
        let none = as_nobody(|| capabilities(None).unwrap()).unwrap();
        assert!(none.effective.is_empty() && none.permitted.is_empty(), "{none:?}");
        assert_eq!(fs::read(&path).unwrap(), b"secret");
    }

    #[test]
    fn other_threads_stay_who_they_are() {
        if !is_root() {
            return;
        }
        let files = Files::new("threads");
        let path = files.with_mode("secret", 0o600);
        let mut own = ThreadIdentity::of_this_thread().unwrap();
        let (go, went) = std::sync::mpsc::channel();
        let other = {
            let path = path.clone();
            thread::spawn(move || {
                went.recv().map(|()| fs::read(path).map_err(|error| error.kind()))
            })
        };
        let _acting = own.assume(USER, GROUP, &[1]).unwrap();
        go.send(()).unwrap();
        assert_eq!(other.join().unwrap().unwrap().unwrap(), b"secret");
        assert!(File::open(&path).is_err());
    }

    #[test]
    fn what_fails_half_way_is_undone() {
        if !is_root() {
            return;
        }
        let mut own = ThreadIdentity::of_this_thread().unwrap();
        let too_many = vec![1; (1 << 16) + 1];
        let error = own.assume(USER, GROUP, &too_many).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
        assert_eq!((fs_user(), fs_group()), (own.uid, own.gid));
        assert_eq!(getgroups().unwrap(), own.groups);
    }

    #[test]
    fn nobody_is_refused() {
        let mut own = ThreadIdentity::of_this_thread().unwrap();
        for (uid, gid, groups) in
            [(NOBODY, GROUP, &[][..]), (USER, NOBODY, &[]), (USER, GROUP, &[1, NOBODY])]
        {
            let error = own.assume(uid, gid, groups).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }
}
