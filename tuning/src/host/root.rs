//! The root directory of a host, which is opened once. Everything that reads or changes a host starts there.

use rustix::fs::{self, AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::{Errno, Result};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// Root directory of a host: `/`, or that of a copy. It stays open, so that another directory, or a link, that is put in its place
/// later changes nothing.
#[derive(Clone, Debug)]
pub(crate) struct Root {
    folder: Arc<OwnedFd>,
    is_host: bool,
}

impl Root {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let open = |path| fs::openat(CWD, path, FOLDER | OFlags::CLOEXEC, Mode::empty());
        let folder = open(path)?;
        let is_host = is_same(&folder, &open(Path::new("/"))?);
        Ok(Self { folder: Arc::new(folder), is_host })
    }

    /// Opens the directory, and checks that the kernel opens files below it.
    pub(crate) fn checked(path: &Path) -> io::Result<Self> {
        Self::checked_by(path, |root| root.file(".", FOLDER).map(drop))
    }

    /// Tries the directory with `attempt`: otherwise, all of its files would seem not to exist.
    fn checked_by(path: &Path, attempt: fn(&Self) -> Result<()>) -> io::Result<Self> {
        let root = Self::open(path)?;
        attempt(&root).map_err(not_opened)?;
        Ok(root)
    }

    /// Returns whether this is `/` of this process. The root of a process in another mount namespace, such as a container, is not,
    /// although `/proc/PID/root` reads as a link to `/`.
    pub(crate) fn is_host(&self) -> bool {
        self.is_host
    }

    pub(crate) fn is_at(&self, path: &Path) -> bool {
        Self::open(path).is_ok_and(|other| is_same(&self.folder, &other.folder))
    }

    /// Opens a file of the host. Links below the root of a copy lead to files of the copy only
    /// ([`Tree::directory`](super::Tree::directory)), also while folders are being replaced by links.
    pub(crate) fn file(&self, path: &str, how: OFlags) -> Result<OwnedFd> {
        self.file_within(path, how, ResolveFlags::IN_ROOT)
    }

    /// As [`Root::file`], with another rule for the links of a copy.
    pub(crate) fn file_within(
        &self,
        path: &str,
        how: OFlags,
        within: ResolveFlags,
    ) -> Result<OwnedFd> {
        let how = how | OFlags::CLOEXEC;
        if self.is_host {
            return fs::openat(&self.folder, path, how, Mode::empty());
        }
        let open = || fs::openat2(&self.folder, path, how, Mode::empty(), within);
        // The kernel asks for another attempt when something was renamed or mounted meanwhile, anywhere.
        let mut attempts = std::iter::repeat_with(open).take(OPEN_ATTEMPTS);
        attempts.find(|file| !matches!(file, Err(Errno::AGAIN))).unwrap_or(Err(Errno::AGAIN))
    }
}

const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);

const OPEN_ATTEMPTS: usize = 32;

/// Returns whether both are the same directory of the same mount: what is mounted below a directory depends on the mount.
fn is_same(one: &OwnedFd, other: &OwnedFd) -> bool {
    let inode = |folder| fs::fstat(folder).ok().map(|it| (it.st_dev, it.st_ino));
    // Kernels before Linux 5.8 do not tell.
    let mount = |folder| {
        let it = fs::statx(folder, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
        (it.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(it.stx_mnt_id)
    };
    inode(one).is_some() && inode(one) == inode(other) && mount(one) == mount(other)
}

fn not_opened(error: Errno) -> io::Error {
    let plain = io::Error::from(error);
    if !matches!(error, Errno::NOSYS | Errno::PERM) {
        return plain;
    }
    let why = "needs Linux 5.6, or is denied by a seccomp filter";
    io::Error::new(plain.kind(), format!("openat2: {plain}: {why}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_in_which_no_file_can_be_opened_is_refused() {
        let root = Path::new("/");
        assert!(Root::checked_by(root, |_| Ok(())).is_ok());
        for attempt in [|_: &Root| Err(Errno::NOSYS), |_: &Root| Err(Errno::PERM)] {
            let error = Root::checked_by(root, attempt).unwrap_err().to_string();
            assert!(error.contains("needs Linux 5.6, or is denied by a seccomp filter"), "{error}");
        }
        let error = Root::checked_by(root, |_| Err(Errno::ACCESS)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::ACCESS.raw_os_error()));
    }

    #[test]
    fn the_root_of_this_process_is_this_host_by_any_path() {
        let is_host = |path| Root::open(Path::new(path)).unwrap().is_host();
        assert!(
            ["/", "/..", "/proc/self/root", "/proc/self/root/proc/.."].into_iter().all(is_host)
        );
        assert!(!["/proc", "/sys"].into_iter().any(is_host));
    }
}
