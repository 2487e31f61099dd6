//! The socket itself: its name, and who may use it. `server` is the caller.

use super::NAME_PREFIX;
use rustix::net::sockopt;
use rustix::process::geteuid;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

/// Engines of one process that have a socket. Names that another process has taken, as one of
/// another process namespace may by chance, count among them.
const NUMBERS: u32 = 256;
/// As whom the kernel shows every user that a user namespace has no name for (`overflowuid` of
/// user_namespaces(7)). To an engine of that user, all of them would look like its own.
const OVERFLOW_USER: u32 = 65534;

/// Listens under the first name of this process that is free.
pub(super) fn listen() -> io::Result<(UnixListener, u32)> {
    let (user, process) = (geteuid().as_raw(), std::process::id());
    if user == OVERFLOW_USER {
        return Err(io::Error::other(
            "this user, 65534, cannot be told from users of other namespaces: run as another, or set \
             stats.export = none",
        ));
    }
    for number in 0..NUMBERS {
        let name = format!("{NAME_PREFIX}{user}/{process}/{number}");
        match UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?) {
            Ok(listener) => {
                listener.set_nonblocking(true)?;
                return Ok((listener, number));
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, "all names for this process are taken"))
}

/// Whether the peer is of this user, whose processes can do each other harm anyway, or root.
pub(super) fn is_trusted(peer: &UnixStream) -> bool {
    let user = |peer| Some(sockopt::socket_peercred(peer).ok()?.uid);
    user(peer).is_some_and(|user| user.is_root() || user == geteuid())
}
