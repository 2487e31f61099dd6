//! The thread of a control socket: sleeps until a client connects, answers its request, and disconnects it. A client that is
//! silent or does not take its answer delays the others, for no longer than the limits here.

use super::observer::Observer;
use crate::config::{Choice, IdlePolicy};
use crate::control::{self, CONNECTIONS_SHOWN, CONNECTIONS_SHOWN_MAX, REQUEST_BYTES_MAX};
use crate::sys::journal::event;
use crate::sys::peer_socket::{Accepted, PeerListener, PeerSocket};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use serde_json::json;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time in which a client must have asked, and then have taken its answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Rest after an error such as a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(10);

/// Answers until it is dropped.
pub(super) struct ControlSocket {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl ControlSocket {
    pub(super) fn open(observer: Observer) -> io::Result<Self> {
        let (listener, number) = control::listen()?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let server = Server { listener, number, stop: Arc::clone(&stop), observer };
        let thread = thread::Builder::new().name("spinrpc-stats".into());
        let thread = Some(thread.spawn(move || server.run())?);
        Ok(Self { stop, thread })
    }
}

impl Drop for ControlSocket {
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

struct Server {
    listener: PeerListener,
    /// Tells engines of one process apart.
    number: u32,
    stop: Arc<OwnedFd>,
    observer: Observer,
}

impl Server {
    fn run(mut self) {
        loop {
            match self.wait(&self.listener, PollFlags::IN, self.observer.next_due()) {
                Ok(Woken::Stopped) => return,
                Ok(Woken::Ready) => self.accept(),
                Ok(Woken::TimedOut) => {}
                Err(error) => {
                    event!(WARN, %error, "the control socket answers no more");
                    return;
                }
            }
            self.observer.on_time(Instant::now());
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
            Ok(Some(Accepted::Peer(peer, _))) => drop(self.serve(&peer)),
            Ok(Some(Accepted::Stranger) | None) => {}
            Err(error) => {
                event!(WARN, %error, "a control connection cannot be accepted");
                thread::sleep(PAUSE);
            }
        }
    }

    /// Answers one request. Returns `None` if the client has gone or is too slow, or the engine ends.
    fn serve(&mut self, peer: &PeerSocket) -> Option<()> {
        let mut request = [0; REQUEST_BYTES_MAX];
        let answer = match self.read(peer, &mut request)? {
            Some(end) => self.answer(&request[..end]),
            None => refusal(&format!("a request has at most {REQUEST_BYTES_MAX} bytes")),
        };
        let (mut rest, deadline) = (answer.as_bytes(), Instant::now() + PATIENCE);
        while !rest.is_empty() {
            let sent = self.go_on(peer, PollFlags::OUT, deadline, || peer.write(rest))?;
            rest = &rest[sent..];
        }
        Some(())
    }

    /// Reads until the end of a line, and returns where that is; `Some(None)` if it is too long.
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

    fn answer(&mut self, request: &[u8]) -> String {
        let words = std::str::from_utf8(request).unwrap_or_default();
        let words: Vec<&str> = words.split_ascii_whitespace().collect();
        match words[..] {
            ["snapshot"] => self.snapshot(CONNECTIONS_SHOWN),
            ["snapshot", count] => match connections_shown(count) {
                Some(count) => self.snapshot(count),
                None => refusal("allowed is a number of connections: snapshot 20"),
            },
            ["idle", mode] => self.set_idle(mode),
            ["latency"] => self.observer.latency(self.number, Instant::now()) + "\n",
            ["slow"] => self.observer.slow(self.number, Instant::now()) + "\n",
            _ => refusal("no such request; allowed are snapshot, idle, latency and slow"),
        }
    }

    fn snapshot(&mut self, connections: usize) -> String {
        self.observer.snapshot(self.number, connections) + "\n"
    }

    fn set_idle(&mut self, mode: &str) -> String {
        let mut policy = IdlePolicy::Busy;
        if !policy.set(mode) {
            return refusal(&format!("allowed are idle {}", policy.names().join(", idle ")));
        }
        let cores = self.observer.set_idle(policy);
        json!({ "idle": mode, "cores": cores }).to_string() + "\n"
    }
}

fn connections_shown(count: &str) -> Option<usize> {
    Some(count.parse::<usize>().ok()?.min(CONNECTIONS_SHOWN_MAX))
}

fn is_nothing_yet(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn refusal(why: &str) -> String {
    json!({ "error": why }).to_string() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_for_more_connections_than_are_shown_expect_the_most() {
        assert_eq!(connections_shown("1000"), Some(1000));
        assert_eq!(connections_shown("1000000000"), Some(CONNECTIONS_SHOWN_MAX));
    }
}
