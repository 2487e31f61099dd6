//! The socket itself and its name. The api is the caller.

use super::NAME_PREFIX;
use crate::sys::credentials::check_own_user;
use crate::sys::peer_socket::PeerListener;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;
use std::io;

/// Engines of one process that have a socket. Names that another process has taken, as one of
/// another process namespace may by chance, count among them.
const NUMBERS: u32 = 256;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// Listens under the first name of this process that is free.
pub(crate) fn listen() -> io::Result<(PeerListener, u32)> {
    check_own_user()?;
    let (user, process) = (geteuid().as_raw(), std::process::id());
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    for number in 0..NUMBERS {
        let name = format!("{NAME_PREFIX}{user}/{process}/{number}");
        match net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?) {
            Ok(()) => return Ok((PeerListener::listen(socket, BACKLOG)?, number)),
            Err(Errno::ADDRINUSE) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, "all names for this process are taken"))
}
