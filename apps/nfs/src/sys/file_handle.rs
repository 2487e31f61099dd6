//! Names for files that survive a rename and a restart: the handles of Linux's file systems.
//!
//! Both calls wait for the disk: no polling core makes them.

use rustix::fs::{AtFlags, OFlags};
use std::ffi::{c_int, c_uint};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Most bytes of a handle, without its kind (`MAX_HANDLE_SZ`). Those of ext4 and xfs have 8 or 12,
/// those of btrfs 20, for files without a parent's handle in them.
const HANDLE_BYTES_MAX: usize = 128;

/// Identity of a file in a file system: its inode and the inode's generation, in the format of that
/// file system. It is neither a secret nor a permission: see [`FileHandle::open`]. Laid out as
/// `struct file_handle`, with room for the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct FileHandle {
    handle_bytes: c_uint,
    handle_type: c_int,
    /// Zeroes behind `handle_bytes`.
    bytes: [u8; HANDLE_BYTES_MAX],
}

impl FileHandle {
    /// The handle of a file; of a symbolic link that was found, its own.
    ///
    /// # Errors
    /// `Unsupported` if the file system has no handles that can be opened again. EOVERFLOW if they are
    /// longer than [`HANDLE_BYTES_MAX`]. Otherwise the error of name_to_handle_at(2).
    pub(crate) fn of(file: BorrowedFd<'_>) -> io::Result<Self> {
        let (handle_bytes, bytes) = (HANDLE_BYTES_MAX as c_uint, [0; HANDLE_BYTES_MAX]);
        let mut handle = Self { handle_bytes, handle_type: 0, bytes };
        let (mut mount, flags) = (0, AtFlags::EMPTY_PATH.bits() as c_int);
        // SAFETY: the descriptor is open and the name ends with a zero. `handle` has the layout of
        // `struct file_handle`, with as many bytes behind its head as the head says, and both
        // places live until the call returns.
        let failed = unsafe {
            let (fd, into) = (file.as_raw_fd(), (&raw mut handle).cast());
            libc::name_to_handle_at(fd, c"".as_ptr(), into, &raw mut mount, flags)
        };
        if failed == 0 { Ok(handle) } else { Err(io::Error::last_os_error()) }
    }

    /// Opens the file, wherever it is now in its file system; `mount` is any file of that. Needs
    /// CAP_DAC_READ_SEARCH, and does not check rights to the directories on the file's path.
    ///
    /// **A handle can name any file of the file system**, of any owner, in an exported directory or
    /// not: open one that comes from a peer only if it is proved that this program issued it. No
    /// content of a handle endangers memory.
    ///
    /// A file that is not known to be a regular file or a directory is opened with `OFlags::PATH`:
    /// opening a device acts on it, and opening a FIFO waits. The descriptor is closed on exec.
    ///
    /// # Errors
    /// ESTALE if the file does not exist (any more), also for bytes that are not a handle of this
    /// file system; ELOOP for a symbolic link without `OFlags::PATH`; `PermissionDenied`; otherwise
    /// the error of open_by_handle_at(2).
    pub(crate) fn open(mut self, mount: BorrowedFd<'_>, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = (flags | OFlags::CLOEXEC).bits() as c_int;
        // SAFETY: the descriptor is open, and `self` has the layout of `struct file_handle`, with
        // as many bytes behind its head as the head says. The kernel takes any bytes.
        let fd =
            unsafe { libc::open_by_handle_at(mount.as_raw_fd(), (&raw mut self).cast(), flags) };
        match fd {
            ..0 => Err(io::Error::last_os_error()),
            // SAFETY: the kernel has just opened it, and nothing else refers to it.
            fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        }
    }

    /// `None` if the kind does not fit in a byte, or there are no bytes.
    pub(crate) fn to_bytes(self) -> Option<Vec<u8>> {
        let kind = u8::try_from(self.handle_type).ok()?;
        let bytes = self.bytes.get(..self.handle_bytes as usize)?;
        (!bytes.is_empty()).then(|| [&[kind], bytes].concat())
    }

    /// `None` for bytes that [`to_bytes`](Self::to_bytes) cannot have written.
    pub(crate) fn from_bytes(written: &[u8]) -> Option<Self> {
        let (&kind, part) = written.split_first().filter(|(_, part)| !part.is_empty())?;
        let mut bytes = [0; HANDLE_BYTES_MAX];
        bytes.get_mut(..part.len())?.copy_from_slice(part);
        Some(Self { handle_bytes: part.len() as c_uint, handle_type: kind.into(), bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{self, CWD, Mode};
    use spinrpc::sys::random::Random;
    use std::os::fd::AsFd;
    use std::path::PathBuf;
    use std::thread;
    use std::time::Duration;

    /// A directory on a disk, away when the test is over.
    struct Directory {
        path: PathBuf,
        fd: OwnedFd,
    }

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("handle-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path); // of a killed run with the same process id
            std::fs::create_dir(&path).unwrap();
            let fd = fs::open(&path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
            let dir = Self { path, fd };
            if let Err(error) = FileHandle::of(dir.fd.as_fd()) {
                panic!("this test needs TMPDIR on a file system with handles, as ext4: {error}");
            }
            dir
        }

        fn handle(&self, name: &str) -> io::Result<FileHandle> {
            let flags = OFlags::PATH | OFlags::NOFOLLOW;
            let found = fs::openat(&self.fd, name, flags, Mode::empty()).unwrap();
            FileHandle::of(found.as_fd())
        }

        /// Without the capability, these tests only check that it is needed.
        fn may_open(&self) -> bool {
            match self.open(&self.handle(".").unwrap(), OFlags::RDONLY) {
                Ok(_) => true,
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
                    let is_root = rustix::process::geteuid().is_root();
                    assert!(!is_root, "as root this test needs CAP_DAC_READ_SEARCH: {error}");
                    false
                }
            }
        }

        fn open(&self, handle: &FileHandle, flags: OFlags) -> io::Result<OwnedFd> {
            handle.open(self.fd.as_fd(), flags)
        }

        /// Content of the file with this handle.
        fn content(&self, handle: &FileHandle) -> Vec<u8> {
            let fd = self.open(handle, OFlags::RDONLY).unwrap();
            assert!(rustix::io::fcntl_getfd(&fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
            let mut content = vec![0; 100];
            let bytes = rustix::io::read(&fd, &mut content).unwrap();
            content.truncate(bytes);
            content
        }

        /// Tries again for 10 s where that fails with ENOMEM, as it does while a file of another test gets the inode number.
        fn error(&self, handle: &FileHandle, flags: OFlags) -> Option<i32> {
            let mut errors = (0..10_000).map(|_| {
                let error = self.open(handle, flags).unwrap_err().raw_os_error();
                if error == Some(libc::ENOMEM) {
                    thread::sleep(Duration::from_millis(1));
                }
                error
            });
            errors.find(|error| *error != Some(libc::ENOMEM)).flatten()
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }

    #[test]
    fn a_handle_finds_its_file_under_another_name_and_not_another_file_of_its_name() {
        let dir = Directory::new("rename");
        if !dir.may_open() {
            return;
        }
        std::fs::write(dir.path.join("a"), "first").unwrap();
        let first = dir.handle("a").unwrap();
        assert_eq!(dir.handle("a").unwrap(), first);
        std::fs::create_dir(dir.path.join("sub")).unwrap();
        std::fs::rename(dir.path.join("a"), dir.path.join("sub/b")).unwrap();
        std::fs::write(dir.path.join("a"), "second").unwrap();
        let second = dir.handle("a").unwrap();
        assert_ne!(first, second);
        assert_eq!(
            (dir.content(&first), dir.content(&second)),
            (b"first".into(), b"second".into())
        );
    }

    #[test]
    fn a_handle_of_a_file_that_is_gone_is_stale_even_if_its_inode_is_used_again() {
        let dir = Directory::new("stale");
        if !dir.may_open() {
            return;
        }
        for _ in 0..10 {
            std::fs::write(dir.path.join("a"), "gone").unwrap();
            let gone = dir.handle("a").unwrap();
            std::fs::remove_file(dir.path.join("a")).unwrap();
            std::fs::write(dir.path.join("b"), "other").unwrap();
            assert_eq!(dir.error(&gone, OFlags::RDONLY), Some(libc::ESTALE));
            std::fs::remove_file(dir.path.join("b")).unwrap();
        }
    }

    #[test]
    fn the_handle_of_a_directory_and_of_a_link_is_its_own() {
        let dir = Directory::new("itself");
        if !dir.may_open() {
            return;
        }
        let own = dir.handle(".").unwrap();
        let opened = dir.open(&own, OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
        assert_eq!(fs::fstat(&opened).unwrap().st_ino, fs::fstat(&dir.fd).unwrap().st_ino);
        std::os::unix::fs::symlink("/etc/passwd", dir.path.join("link")).unwrap();
        let link = dir.handle("link").unwrap();
        assert_eq!(dir.error(&link, OFlags::RDONLY), Some(libc::ELOOP));
        let opened = dir.open(&link, OFlags::PATH).unwrap();
        assert_eq!(fs::readlinkat(&opened, c"", Vec::new()).unwrap().as_c_str(), c"/etc/passwd");
    }

    #[test]
    fn files_of_proc_have_none_that_could_be_opened() {
        let version = fs::openat(CWD, c"/proc/version", OFlags::PATH, Mode::empty()).unwrap();
        let error = FileHandle::of(version.as_fd()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
    }

    #[test]
    fn what_is_written_is_read_again_and_fits_in_the_key_of_a_service() {
        let handle = Directory::new("written").handle(".").unwrap();
        let bytes = handle.to_bytes().unwrap();
        assert_eq!(FileHandle::from_bytes(&bytes), Some(handle));
        assert!(bytes.len() < 32, "{handle:?} leaves no room for anything else");
    }

    #[test]
    fn bytes_of_no_handle_are_refused_and_those_of_a_stranger_open_nothing() {
        for len in [0, 1, HANDLE_BYTES_MAX + 2, 256, 257, 258, 300] {
            assert_eq!(FileHandle::from_bytes(&vec![1; len]), None, "{len} bytes");
        }
        let (dir, seed) = (Directory::new("hostile"), 0xbad);
        if !dir.may_open() {
            return;
        }
        println!("seed {seed:#x}");
        let mut random = Random::seeded(seed);
        for round in 0..2000 {
            let len = 2 + random.at_most(HANDLE_BYTES_MAX as u64 - 1) as usize;
            let mut bytes: Vec<u8> = (0..len).map(|_| random.next_u64() as u8).collect();
            // Kinds that file systems know, half of the time.
            bytes[0] = if round % 2 == 0 { bytes[0] % 8 } else { bytes[0] };
            let handle = FileHandle::from_bytes(&bytes).unwrap();
            let error = dir.error(&handle, OFlags::PATH);
            assert_eq!(error, Some(libc::ESTALE), "{handle:?}");
        }
    }

    #[test]
    fn a_kind_or_a_length_that_cannot_be_kept_is_refused() {
        let kept = |handle_type, handle_bytes| {
            let bytes = [0; HANDLE_BYTES_MAX];
            FileHandle { handle_bytes, handle_type, bytes }.to_bytes().is_some()
        };
        assert!(kept(255, 128));
        for (kind, len) in [(256, 8), (-1, 8), (1, 0), (1, 129), (1, u32::MAX)] {
            assert!(!kept(kind, len), "{kind} {len}");
        }
    }
}
