//! The thread of a Unix socket that answers requests of a line with a text: sleeps until a client connects, answers its
//! request, and disconnects it. A client that is silent or does not take its answer delays the others, for no longer than the
//! limits here.
//!
//! May be called by everyone. Nothing here waits for a peer, except that thread.

use super::journal::event;
use super::peer_socket::{Accepted, PeerListener, PeerSocket};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Longest request, its newline included, in bytes.
pub const REQUEST_BYTES_MAX: usize = 128;
/// Time in which a client must have asked, and then have taken its answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Rest after an error such as a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(10);

/// Answers requests, on the thread of its [`LineServer`].
pub trait Answerer: Send + 'static {
    /// Answers a line, which comes without its end; `None` is one that has more than [`REQUEST_BYTES_MAX`] bytes. May block: other
    /// clients wait as long.
    fn answer(&mut self, request: Option<&[u8]>) -> String;

    /// When [`Answerer::on_time`] has something to do.
    fn next_due(&self) -> Option<Instant> {
        None
    }

    /// Called behind each request, and when due.
    fn on_time(&mut self, now: Instant) {
        let _ = now;
    }
}

impl<F: Fn(Option<&[u8]>) -> String + Send + 'static> Answerer for F {
    fn answer(&mut self, request: Option<&[u8]>) -> String {
        self(request)
    }
}

/// Answers until it is dropped.
#[derive(Debug)]
pub struct LineServer {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl LineServer {
    /// Starts a thread of this name.
    ///
    /// # Errors
    /// The system has no thread or descriptor.
    pub fn start(name: &str, listener: PeerListener, answerer: impl Answerer) -> io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let server = Server { listener, stop: Arc::clone(&stop), answerer };
        let thread = thread::Builder::new().name(name.to_owned());
        let thread = Some(thread.spawn(move || server.run())?);
        Ok(Self { stop, thread })
    }
}

impl Drop for LineServer {
    fn drop(&mut self) {
        // It can fail only when somebody has counted to 2^64 before.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        drop(self.thread.take().map(JoinHandle::join));
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Woken {
    Ready,
    TimedOut,
    Stopped,
}

struct Server<A> {
    listener: PeerListener,
    stop: Arc<OwnedFd>,
    answerer: A,
}

impl<A: Answerer> Server<A> {
    fn run(mut self) {
        loop {
            match self.wait(&self.listener, PollFlags::IN, self.answerer.next_due()) {
                Ok(Woken::Stopped) => return,
                Ok(Woken::Ready) => self.accept(),
                Ok(Woken::TimedOut) => {}
                Err(error) => {
                    event!(WARN, %error, "the control socket answers no more");
                    return;
                }
            }
            self.answerer.on_time(Instant::now());
        }
    }

    /// Sleeps until a socket is ready.
    fn wait(
        &self,
        socket: &impl AsFd,
        ready: PollFlags,
        until: Option<Instant>,
    ) -> io::Result<Woken> {
        let left = until.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = left.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
        let mut fds = [PollFd::new(&*self.stop, PollFlags::IN), PollFd::new(socket, ready)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) if !fds[0].revents().is_empty() => Ok(Woken::Stopped),
            Ok(_) if !fds[1].revents().is_empty() => Ok(Woken::Ready),
            Ok(_) | Err(Errno::INTR) => Ok(Woken::TimedOut),
            Err(error) => Err(error.into()),
        }
    }

    fn accept(&mut self) {
        match self.listener.accept() {
            Ok(Some(Accepted::Peer(peer, _))) if !peer.is_peer_full() => drop(self.serve(&peer)),
            Ok(_) => {}
            Err(error) => {
                event!(WARN, %error, "a control connection cannot be accepted");
                thread::sleep(PAUSE);
            }
        }
    }

    /// Answers one request. Returns `None` if the client has gone or is too slow, or the server ends.
    fn serve(&mut self, peer: &PeerSocket) -> Option<()> {
        let mut request = [0; REQUEST_BYTES_MAX];
        let end = self.read(peer, &mut request)?;
        // It may have waited behind others for longer than its client has.
        (!has_gone(peer)).then_some(())?;
        let answer = self.answerer.answer(end.map(|end| &request[..end]));
        let (mut rest, deadline) = (answer.as_bytes(), Instant::now() + PATIENCE);
        while !rest.is_empty() {
            let sent = self.go_on(peer, PollFlags::OUT, deadline, || peer.write(rest))?;
            rest = &rest[sent..];
        }
        Some(())
    }

    /// Reads until the end of a line, and returns where that is, or `Some(None)` if the room for it ends before.
    fn read(&self, peer: &PeerSocket, request: &mut [u8]) -> Option<Option<usize>> {
        let (mut received, deadline) = (0, Instant::now() + PATIENCE);
        while received < request.len() {
            let rest = &mut request[received..];
            match self.go_on(peer, PollFlags::IN, deadline, || peer.read(rest))? {
                0 => return None,
                bytes => received += bytes,
            }
            if let Some(end) = request[..received].iter().position(|byte| *byte == b'\n') {
                return Some(Some(end));
            }
        }
        Some(None)
    }

    /// Moves bytes as soon as that is possible.
    fn go_on(
        &self,
        peer: &PeerSocket,
        ready: PollFlags,
        deadline: Instant,
        mut transfer: impl FnMut() -> io::Result<usize>,
    ) -> Option<usize> {
        while Instant::now() < deadline {
            match transfer() {
                Err(error) if is_nothing_yet(&error) => {
                    let woken = self.wait(peer, ready, Some(deadline)).ok()?;
                    (woken != Woken::Stopped).then_some(())?;
                }
                other => return other.ok(),
            }
        }
        None
    }
}

/// True if the peer has closed its end. One that only sends no more may still read.
fn has_gone(peer: &PeerSocket) -> bool {
    let mut fds = [PollFd::new(peer, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&at_once)).is_ok() && fds[0].revents().contains(PollFlags::HUP)
}

fn is_nothing_yet(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    use std::io::{Read, Write};
    use std::net::Shutdown;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixStream};
    use std::sync::Mutex;

    /// Four clients ask before the server starts: one has gone by then, one sends no more, and one asks for too much. Expect
    /// the others to be answered, and that what the first one asked for is not done.
    #[test]
    fn a_request_whose_client_has_gone_is_not_carried_out() {
        let name = format!("spinrpc-line-server-{}", std::process::id());
        let socket =
            net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let socket = socket.unwrap();
        net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        let listener = PeerListener::listen(socket, 4).unwrap();
        let ask = |request: &[u8]| {
            let address = SocketAddr::from_abstract_name(&name).unwrap();
            let mut stream = UnixStream::connect_addr(&address).unwrap();
            stream.write_all(request).unwrap();
            stream
        };
        drop(ask(b"gone\n"));
        let silent = ask(b"silent\n");
        silent.shutdown(Shutdown::Write).unwrap();
        let others = [silent, ask(&[b'x'; 2 * REQUEST_BYTES_MAX]), ask(b"last\n")];
        let done = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&done);
        let answer = move |request: Option<&[u8]>| {
            seen.lock().unwrap().push(request.map(<[u8]>::to_vec));
            "answer\n".to_owned()
        };
        let server = LineServer::start("test", listener, answer).unwrap();
        for mut other in others {
            let mut answer = [0; 7];
            other.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"answer\n");
        }
        drop(server);
        let done = done.lock().unwrap();
        assert_eq!(*done, [Some(b"silent".to_vec()), None, Some(b"last".to_vec())]);
    }
}
