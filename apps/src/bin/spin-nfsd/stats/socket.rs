//! Unix socket that gives processes of this user, and root, a document of what the server has done, and
//! then hangs up. Readers can delay neither each other for long nor the shutdown, whatever they send.

use super::Source;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use spinrpc::sys::credentials::check_own_user;
use spinrpc::sys::peer_socket::{Accepted, PeerListener, PeerSocket};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time in which a reader must have taken its document: there is one reader at a time.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause when there is no descriptor for a reader.
const PAUSE: Duration = Duration::from_millis(100);
const BACKLOG: i32 = 16;

/// Answers until it is dropped, which removes the socket's file.
pub(crate) struct StatsSocket {
    path: PathBuf,
    stop: Arc<OwnedFd>,
    answerer: Option<JoinHandle<()>>,
}

impl StatsSocket {
    pub(crate) fn start(path: &Path, source: Source) -> io::Result<Self> {
        let listener = listen(path)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let answerer = Answerer { listener, stop: Arc::clone(&stop), source };
        let thread = thread::Builder::new().name("stats socket".into());
        let answerer = Some(thread.spawn(move || answerer.run())?);
        Ok(Self { path: path.to_owned(), stop, answerer })
    }
}

impl Drop for StatsSocket {
    fn drop(&mut self) {
        // It can fail only at a count of 2^64.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        drop(self.answerer.take().map(JoinHandle::join));
        drop(fs::remove_file(&self.path));
    }
}

/// The thread that answers.
struct Answerer {
    listener: PeerListener,
    stop: Arc<OwnedFd>,
    source: Source,
}

impl Answerer {
    /// Answers until it is stopped, or until polling fails.
    fn run(self) {
        let mut rest = None;
        loop {
            let listener = rest.is_none().then(|| PollFd::new(&self.listener, PollFlags::IN));
            if !matches!(self.wait(listener, rest.take()), Ok(Wake::Ready | Wake::Timeout)) {
                return;
            }
            match self.listener.accept() {
                // A reader that hangs up early or is too slow loses its document.
                Ok(Some(Accepted::Peer(socket, _))) if !socket.is_peer_full() => {
                    drop(self.tell(&socket));
                }
                Ok(_) => {}
                Err(_) => rest = Some(PAUSE),
            }
        }
    }

    fn tell(&self, socket: &PeerSocket) -> io::Result<()> {
        let (document, end) = (format!("{}\n", self.source.json()), Instant::now() + WRITE_TIMEOUT);
        let mut left = document.as_bytes();
        while !left.is_empty() {
            match socket.write(left) {
                Ok(bytes) => left = &left[bytes..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let room = PollFd::new(socket, PollFlags::OUT);
                    let patience = end.saturating_duration_since(Instant::now());
                    if self.wait(Some(room), Some(patience))? != Wake::Ready {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn wait(&self, what: Option<PollFd<'_>>, limit: Option<Duration>) -> io::Result<Wake> {
        let mut fds = vec![PollFd::new(&*self.stop, PollFlags::IN)];
        fds.extend(what);
        let limit = limit.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
        match poll(&mut fds, limit.as_ref()) {
            Ok(0) => Ok(Wake::Timeout),
            Ok(_) if !fds[0].revents().is_empty() => Ok(Wake::Stop),
            Ok(_) | Err(Errno::INTR) => Ok(Wake::Ready),
            Err(error) => Err(error.into()),
        }
    }
}

/// Reason for the end of a wait.
#[derive(Debug, PartialEq, Eq)]
enum Wake {
    Ready,
    Timeout,
    Stop,
}

/// A socket that only this user may connect to, from the moment that it exists.
fn listen(path: &Path) -> io::Result<PeerListener> {
    check_own_user()?;
    make_room(path)?;
    let socket =
        net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The file gets the mode that the socket has when it is bound: no moment with another one, and no
    // path that could lead to another file meanwhile.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    PeerListener::listen(socket, BACKLOG)
}

/// Takes away what a server left behind that was killed, and nothing else.
fn make_room(path: &Path) -> io::Result<()> {
    let is_socket = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata.file_type().is_socket(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    // Without waiting: one with a full backlog is alive.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let asking = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let asked = net::connect(&asking, &SocketAddrUnix::new(path)?);
    if is_socket && asked == Err(Errno::CONNREFUSED) {
        return fs::remove_file(path);
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixStream;

    /// A change of the mode after the file is there would be an event of its own.
    #[test]
    fn a_socket_has_its_mode_from_the_moment_it_is_there() {
        use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
        let folder = std::env::temp_dir().join(format!("spin-nfsd-mode-{}", std::process::id()));
        drop(fs::remove_dir_all(&folder));
        fs::create_dir(&folder).unwrap();
        let events = init(CreateFlags::NONBLOCK).unwrap();
        add_watch(&events, &folder, WatchFlags::CREATE | WatchFlags::ATTRIB).unwrap();
        let path = folder.join("stats");
        drop(listen(&path).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&events, &mut buffer);
        assert_eq!(reader.next().unwrap().events(), ReadFlags::CREATE);
        assert!(reader.next().is_err(), "the mode was changed later");
        fs::remove_dir_all(folder).unwrap();
    }

    /// Its owner never accepts: a server that waited for that would never start.
    #[test]
    fn a_socket_whose_backlog_is_full_is_taken_at_once() {
        let path = std::env::temp_dir().join(format!("spin-nfsd-full-{}", std::process::id()));
        drop(fs::remove_file(&path));
        let socket = net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        net::listen(&socket, 0).unwrap();
        let _first = UnixStream::connect(&path).unwrap();
        assert_eq!(make_room(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        fs::remove_file(&path).unwrap();
    }

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
