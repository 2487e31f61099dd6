//! A Unix socket on which whoever connects is told what the server has done, and hung up on.

use super::Source;
use rustix::fs::{Mode, chmod};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// In which a reader must have taken its document: there is one at a time.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long nobody is answered when there is no descriptor for one.
const PAUSE: Duration = Duration::from_millis(100);
const BACKLOG: i32 = 16;

/// Answers until it is dropped, which takes the socket's file away.
pub(crate) struct StatsSocket {
    path: PathBuf,
    listener: Arc<UnixListener>,
    is_stopped: Arc<AtomicBool>,
    answerer: Option<JoinHandle<()>>,
}

impl StatsSocket {
    pub(crate) fn start(path: &Path, source: Source) -> io::Result<Self> {
        let listener = Arc::new(listen(path)?);
        let is_stopped = Arc::new(AtomicBool::new(false));
        let (accepting, stop) = (Arc::clone(&listener), Arc::clone(&is_stopped));
        let answer = move || {
            while !stop.load(Ordering::Acquire) {
                match accepting.accept() {
                    // Who goes before it has all is nobody's concern but its own.
                    Ok((stream, _)) => drop(tell(&stream, &source)),
                    Err(_) => thread::sleep(PAUSE),
                }
            }
        };
        let answerer = Some(thread::Builder::new().name("stats socket".into()).spawn(answer)?);
        Ok(Self { path: path.to_owned(), listener, is_stopped, answerer })
    }
}

impl Drop for StatsSocket {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Release);
        let _ = net::shutdown(&*self.listener, net::Shutdown::Both);
        drop(self.answerer.take().map(JoinHandle::join));
        drop(fs::remove_file(&self.path));
    }
}

fn tell(mut stream: &UnixStream, source: &Source) -> io::Result<()> {
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    writeln!(stream, "{}", source.json())
}

/// A socket of this user alone from its beginning: before it listens nobody can connect.
fn listen(path: &Path) -> io::Result<UnixListener> {
    make_room(path)?;
    let socket =
        net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    chmod(path, Mode::RUSR | Mode::WUSR)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Takes away what a server left behind that was killed, and nothing else.
fn make_room(path: &Path) -> io::Result<()> {
    let is_socket = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata.file_type().is_socket(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let is_dead = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && UnixStream::connect(path).is_err_and(|error| is_dead(&error)) {
        return fs::remove_file(path);
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_socket_is_its_owners_alone_and_a_dead_one_makes_room() {
        let path = std::env::temp_dir().join(format!("spin-nfsd-stats-{}", std::process::id()));
        drop(fs::remove_file(&path));
        let first = listen(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        drop(first);
        drop(listen(&path).unwrap());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "a file").unwrap();
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        fs::remove_file(&path).unwrap();
    }
}
