//! Unix socket that answers processes of this user and root with a text, then hangs
//! up. Readers can delay neither each other for long nor the shutdown, whatever they send.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use spinrpc::sys::credentials::check_own_user;
use spinrpc::sys::peer_socket::{Accepted, PeerListener, PeerSocket};
use spinrpc::sys::socket_file::SocketFile;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Maximum time for a reader to send its request, and to receive its answer: one reader is served at a time.
const READER_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause if there is no descriptor for a reader.
const PAUSE: Duration = Duration::from_millis(100);
const BACKLOG: i32 = 16;

/// Maximum length of a request, which is a line.
const REQUEST_BYTES_MAX: usize = 64;

/// Answers a request with a text. May block.
type Answer = dyn Fn(&str) -> String + Send;

/// Answers until it is dropped, which removes the socket's file.
pub(crate) struct Socket {
    file: Option<SocketFile>,
    stop: Arc<OwnedFd>,
    answerer: Option<JoinHandle<()>>,
}

impl Socket {
    pub(crate) fn start(
        path: &Path,
        answer: impl Fn(&str) -> String + Send + 'static,
    ) -> io::Result<Self> {
        let (listener, file) = listen(path)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let answer = Box::new(answer);
        let answerer = Answerer { listener, stop: Arc::clone(&stop), answer };
        let thread = thread::Builder::new().name("socket".into());
        let answerer = Some(thread.spawn(move || answerer.run())?);
        Ok(Self { file: Some(file), stop, answerer })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Before the socket, which the thread owns.
        drop(self.file.take());
        // Can only fail at a count of 2^64.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        drop(self.answerer.take().map(JoinHandle::join));
    }
}

struct Answerer {
    listener: PeerListener,
    stop: Arc<OwnedFd>,
    answer: Box<Answer>,
}

impl Answerer {
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
        let Some(request) = self.request(socket)? else { return Ok(()) };
        let (text, end) = ((self.answer)(&request), Instant::now() + READER_TIMEOUT);
        let mut left = text.as_bytes();
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

    /// A line without its end; `None` from a reader that hangs up or is too slow.
    fn request(&self, socket: &PeerSocket) -> io::Result<Option<String>> {
        let (mut line, end) = (Vec::new(), Instant::now() + READER_TIMEOUT);
        while line.last() != Some(&b'\n') {
            let mut byte = [0];
            match socket.read(&mut byte) {
                Ok(1) if line.len() < REQUEST_BYTES_MAX => line.extend(byte),
                Ok(_) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let patience = end.saturating_duration_since(Instant::now());
                    let data = PollFd::new(socket, PollFlags::IN);
                    if self.wait(Some(data), Some(patience))? != Wake::Ready {
                        return Ok(None);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some(String::from_utf8_lossy(&line).trim_end().to_owned()))
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

#[derive(Debug, PartialEq, Eq)]
enum Wake {
    Ready,
    Timeout,
    Stop,
}

/// A socket that only this user can connect to, from the moment it exists.
fn listen(path: &Path) -> io::Result<(PeerListener, SocketFile)> {
    check_own_user()?;
    let socket =
        net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    SocketFile::listen(socket, path, BACKLOG)
}
