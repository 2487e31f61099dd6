//! Unix socket of a file that answers processes of this user and root.

use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use spinrpc::sys::credentials::check_own_user;
use spinrpc::sys::line_server::{Answerer, LineServer};
use spinrpc::sys::socket_file::SocketFile;
use std::io;
use std::path::Path;

const BACKLOG: i32 = 16;

/// Answers until it is dropped, which removes the socket's file: before the socket, which the thread owns.
pub(crate) struct Socket {
    _file: SocketFile,
    _server: LineServer,
}

impl Socket {
    /// Only this user can connect to it, from the moment it exists.
    pub(crate) fn start(path: &Path, answerer: impl Answerer) -> io::Result<Self> {
        check_own_user()?;
        let socket =
            net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let (listener, file) = SocketFile::listen(socket, path, BACKLOG)?;
        Ok(Self { _file: file, _server: LineServer::start("socket", listener, answerer)? })
    }
}
