//! The process at the other end of a Unix socket, and the one rule by which every socket of this
//! library and its programs trusts it or not.

use super::socket_option::option;
use rustix::net::sockopt;
use rustix::process::{Uid, geteuid};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// User and process at the other end of a Unix socket, as the kernel recorded them when the peer
/// connected or began to listen (`SO_PEERCRED`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Process id, as this process's namespace numbers it; 0 for a process outside of it.
    pub pid: u32,
    /// Effective user id, as this process's user namespace numbers it.
    pub uid: u32,
    /// Identity of the process.
    pub process: ProcessIdentity,
}

/// Identity of a peer's process. Two connections of one process have the same, but for
/// [`ProcessIdentity::Connection`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProcessIdentity {
    /// Process id, as this process's namespace numbers it.
    Pid(u32),
    /// Inode number of the pidfd of a process outside of this process's PID namespace. Never reused.
    Inode(u64),
    /// Cookie of the socket to such a process, on kernels that cannot tell them apart (before Linux 6.9).
    Connection(u64),
}

impl ProcessIdentity {
    fn of_peer(socket: BorrowedFd<'_>, pid: u32) -> Self {
        match pid {
            // Each socket has a cookie since Linux 4.6.
            0 => pidfd_inode(socket).map_or_else(
                || Self::Connection(sockopt::socket_cookie(socket).unwrap_or(0)),
                Self::Inode,
            ),
            pid => Self::Pid(pid),
        }
    }

    /// 32 bits of it, or 0 where the process may have others.
    pub fn low_bits(self) -> u32 {
        match self {
            Self::Pid(pid) => pid,
            // Process ids have fewer bits.
            Self::Inode(inode) => 1 << 31 | inode as u32,
            Self::Connection(_) => 0,
        }
    }
}

/// Inode number of the peer's pidfd. Before Linux 6.9 all pidfds have the same one.
fn pidfd_inode(socket: BorrowedFd<'_>) -> Option<u64> {
    const PID_FS_MAGIC: u64 = 0x5049_4446;
    let pidfd = peer_pidfd(socket).ok()?;
    let is_unique = rustix::fs::fstatfs(&pidfd).ok()?.f_type as u64 == PID_FS_MAGIC;
    is_unique.then(|| rustix::fs::fstat(&pidfd).ok().map(|stat| stat.st_ino)).flatten()
}

/// Asks the kernel for a pidfd of the peer's process, in whatever PID namespace that is. Does not block.
///
/// # Errors
/// The kernel's error: before Linux 6.5 `ENOPROTOOPT`.
pub fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const SO_PEERPIDFD: libc::c_int = 77;
    let [fd] = option(socket, (libc::SOL_SOCKET, SO_PEERPIDFD))?;
    // SAFETY: the kernel has just created this descriptor for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

impl Credentials {
    /// Asks the kernel for the peer of a connected socket. Does not block.
    ///
    /// # Errors
    /// The kernel's error for a descriptor that is not a connected Unix socket.
    pub fn of_peer(socket: impl AsFd) -> io::Result<Self> {
        // Not by rustix, whose process ids are never 0.
        let [pid, uid, _gid] = option(socket.as_fd(), (libc::SOL_SOCKET, libc::SO_PEERCRED))?;
        Ok(Self { pid, uid, process: ProcessIdentity::of_peer(socket.as_fd(), pid) })
    }

    /// True if the peer is trusted with the data of this process: it belongs to the same user,
    /// whose processes can harm each other anyway, or to root. A user that cannot be told from
    /// others ([`check_own_user`]) is not trusted, even if its number is that of this process. Does
    /// not block; reads `/proc` only if this process runs as the overflow user.
    pub fn is_trusted(self) -> bool {
        let uid = Uid::from_raw(self.uid);
        uid.is_root() || (uid == geteuid() && check_own_user().is_ok())
    }
}

/// Checks that the effective user of this process can be told from all others. In a user namespace,
/// the kernel shows every user without a number there as the overflow user (65534 by default; see
/// user_namespaces(7)). A process whose own number is that one would take all of them for itself.
/// Does not block.
///
/// # Errors
/// A text that names the user and the remedy.
pub fn check_own_user() -> io::Result<()> {
    let own = geteuid().as_raw();
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    if own != overflow_user(&read("/proc/sys/kernel/overflowuid"))
        || maps_every_user(&read("/proc/self/uid_map"))
    {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "in this user namespace the kernel shows all users without a number as {own}, the user \
             of this process; run as a user that is mapped"
        ),
    ))
}

fn overflow_user(setting: &str) -> u32 {
    const DEFAULT: u32 = 65534;
    setting.trim().parse().unwrap_or(DEFAULT)
}

/// True if `/proc/self/uid_map` maps all users: then none is shown as the overflow user in place of
/// its own number. An empty map, as it is before one is written or without `/proc`, maps none.
fn maps_every_user(map: &str) -> bool {
    let mut lines = map.lines().map(|line| line.split_whitespace().map(str::parse::<u32>));
    let first = lines.next().map(|line| line.collect::<Vec<_>>());
    first.is_some_and(|first| first == [Ok(0), Ok(0), Ok(u32::MAX)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overflow_user_is_the_configured_one() {
        assert_eq!(overflow_user("65534\n"), 65534);
        assert_eq!(overflow_user("1000\n"), 1000);
        assert_eq!(overflow_user(""), 65534);
    }

    #[test]
    fn only_the_initial_map_has_every_user() {
        assert!(maps_every_user("         0          0 4294967295\n"));
        for partial in ["", "0 1000 1", "0 0 1000\n2000 2000 4294965295\n", "0 100000 4294867295"] {
            assert!(!maps_every_user(partial), "{partial}");
        }
    }

    /// Ask as for a process outside of the PID namespace.
    #[test]
    fn a_process_without_an_id_is_the_same_one_on_each_connection() {
        let identity = || {
            let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            ProcessIdentity::of_peer(ours.as_fd(), 0)
        };
        let (first, second) = (identity(), identity());
        match first {
            ProcessIdentity::Inode(_) => assert_eq!(first, second),
            _ => assert_ne!(first, second),
        }
    }

    #[test]
    fn a_process_of_the_same_user_is_trusted_and_another_user_is_not() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let own = Credentials::of_peer(&ours).unwrap();
        let pid = std::process::id();
        let process = ProcessIdentity::Pid(pid);
        assert_eq!(own, Credentials { pid, uid: geteuid().as_raw(), process });
        assert!(own.is_trusted());
        assert!(Credentials { uid: 0, ..own }.is_trusted());
        assert!(!Credentials { uid: own.uid + 1, ..own }.is_trusted());
    }
}
