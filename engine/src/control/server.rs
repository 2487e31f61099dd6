//! The thread of a control socket: sleeps until a client connects, asks, or takes an answer. A
//! client cannot make it wait, grow, or turn faster than the limits here.

use super::{CONNECTIONS_SHOWN, CONNECTIONS_SHOWN_MAX, REQUEST_BYTES_MAX, socket};
use crate::config::{Choice, IdlePolicy};
use crate::sys::credentials::ProcessIdentity;
use crate::sys::journal::event;
use crate::sys::peer_socket::{Accepted, PeerListener, PeerSocket};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use serde_json::json;
use std::cmp::Reverse;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Peers at a time; for one more, another one is disconnected.
const PEERS_MAX: usize = 16;
/// Time in which a peer must have asked, and then have taken its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time in which a peer that was accepted or asked is not evicted before older ones.
const YOUTH: Duration = Duration::from_secs(1);
/// Connections accepted before peers are answered.
const ACCEPT_BATCH: usize = 64;
/// Rest after an error such as a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(10);

/// Data source and actions of the socket.
pub(crate) trait Source: Send + 'static {
    /// Everything, on one line; of each core the given number of connections. May take a second, and
    /// bothers cores no more than a hundred times a second.
    fn snapshot(&mut self, engine: u32, connections: usize) -> String;
    /// Tells cores how to idle; returns how many.
    fn set_idle(&mut self, policy: IdlePolicy) -> usize;
    /// Tells cores to measure latencies from `now` on, and returns their counts, on one line.
    fn latency(&mut self, engine: u32, now: Instant) -> String;
    /// Time at which [`Source::on_time`] is to be called.
    fn next_due(&self) -> Option<Instant>;
    /// Ends everything that expires by `now`.
    fn on_time(&mut self, now: Instant);
}

/// Answers until it is dropped.
pub(crate) struct ControlSocket {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl ControlSocket {
    pub(crate) fn open(source: impl Source) -> io::Result<Self> {
        let server = Server::new(source)?;
        let stop = Arc::clone(&server.stop);
        let thread = std::thread::Builder::new().name("spinrpc-stats".into());
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

struct Server<S> {
    listener: PeerListener,
    stop: Arc<OwnedFd>,
    answers: Answers<S>,
    peers: Vec<Peer>,
    paused_until: Option<Instant>,
}

impl<S: Source> Server<S> {
    fn new(source: S) -> io::Result<Self> {
        let (listener, number) = socket::listen()?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (answers, peers) = (Answers { source, number }, Vec::with_capacity(PEERS_MAX));
        Ok(Self { listener, stop, answers, peers, paused_until: None })
    }

    fn run(mut self) {
        loop {
            match self.wait() {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    event!(WARN, %error, "the control socket answers no more");
                    return;
                }
            }
            self.turn();
        }
    }

    fn turn(&mut self) {
        let now = Instant::now();
        self.answers.source.on_time(now);
        self.paused_until.take_if(|until| *until <= now);
        // Requests are answered before new connections can evict them, and before idle peers are
        // disconnected: answering the others may have taken all the time that a peer has to ask.
        let answers = &mut self.answers;
        self.peers.retain_mut(|peer| peer.go_on(answers).is_ok() && peer.deadline > now);
        if self.paused_until.is_none() {
            self.accept();
        }
    }

    /// Sleeps until there is something to do; true to stop.
    fn wait(&self) -> io::Result<bool> {
        let mut fds = Vec::with_capacity(2 + PEERS_MAX);
        fds.push(PollFd::new(&*self.stop, PollFlags::IN));
        fds.extend(self.peers.iter().map(|peer| PollFd::new(&peer.stream, peer.waits_for())));
        if self.paused_until.is_none() {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        let deadlines = self.peers.iter().map(|peer| peer.deadline).chain(self.paused_until);
        let deadlines = deadlines.chain(self.answers.source.next_due());
        let left = deadlines.min().map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = left.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => Ok(!fds[0].revents().is_empty()),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn accept(&mut self) {
        // The time after the answers: a client that connects now is not the first to make room for
        // the next one.
        let now = Instant::now();
        for _ in 0..ACCEPT_BATCH {
            match self.listener.accept() {
                Ok(None) => return,
                Ok(Some(Accepted::Peer(socket, peer))) => self.welcome(socket, peer.process, now),
                Ok(Some(Accepted::Stranger)) => {}
                Err(error) => {
                    event!(WARN, %error, "a control connection cannot be accepted");
                    self.paused_until = Some(now + PAUSE);
                    return;
                }
            }
        }
    }

    /// Makes room where there is none: the process that has most connections loses its oldest one. Where all are young,
    /// that is one that has asked before rather than one that is about to.
    fn welcome(&mut self, socket: PeerSocket, process: ProcessIdentity, now: Instant) {
        if self.peers.len() == PEERS_MAX {
            let share = |peer: &Peer| {
                let others = self.peers.iter().filter(|other| other.process == peer.process);
                others.count() + usize::from(peer.process == process)
            };
            let last = (0..PEERS_MAX).max_by_key(|index| {
                let peer = &self.peers[*index];
                let is_old = peer.deadline + YOUTH <= now + PATIENCE;
                // Those accepted together have one deadline.
                (share(peer), is_old, peer.has_asked, Reverse((peer.deadline, *index)))
            });
            drop(last.map(|index| self.peers.remove(index)));
        }
        self.peers.push(Peer::new(socket, process, now));
    }
}

/// A connected client: reads a request, or takes the answer; never both.
struct Peer {
    stream: PeerSocket,
    process: ProcessIdentity,
    request: [u8; REQUEST_BYTES_MAX],
    received: usize,
    answer: Vec<u8>,
    sent: usize,
    /// Hung up on once the answer is taken.
    is_last: bool,
    has_asked: bool,
    deadline: Instant,
}

/// The client has gone, or is to be disconnected.
struct Over;

impl Peer {
    fn new(stream: PeerSocket, process: ProcessIdentity, now: Instant) -> Self {
        Self {
            stream,
            process,
            request: [0; REQUEST_BYTES_MAX],
            received: 0,
            answer: Vec::new(),
            sent: 0,
            is_last: false,
            has_asked: false,
            deadline: now + PATIENCE,
        }
    }

    fn waits_for(&self) -> PollFlags {
        // A client that has asked already is answered as soon as there is room.
        if self.answer.is_empty() && self.asked().is_none() {
            PollFlags::IN
        } else {
            PollFlags::OUT
        }
    }

    /// End of the first request that has arrived.
    fn asked(&self) -> Option<usize> {
        self.request[..self.received].iter().position(|byte| *byte == b'\n')
    }

    /// One request or the rest of an answer, as far as it goes without waiting.
    fn go_on(&mut self, answers: &mut Answers<impl Source>) -> Result<(), Over> {
        if self.answer.is_empty() {
            if self.asked().is_none() {
                self.read()?;
            }
            self.take_request(answers);
        }
        self.write()
    }

    fn read(&mut self) -> Result<(), Over> {
        let rest = &mut self.request[self.received..];
        match self.stream.read(rest) {
            Ok(0) => Err(Over),
            Ok(bytes) => {
                self.received += bytes;
                Ok(())
            }
            Err(error) if is_nothing_yet(&error) => Ok(()),
            Err(_) => Err(Over),
        }
    }

    fn take_request(&mut self, answers: &mut Answers<impl Source>) {
        if let Some(end) = self.asked() {
            self.answer = answers.to(&self.request[..end]);
            self.request.copy_within(end + 1..self.received, 0);
            self.received -= end + 1;
        } else if self.received == REQUEST_BYTES_MAX {
            self.answer = refusal(&format!("a request has at most {REQUEST_BYTES_MAX} bytes"));
            self.is_last = true;
        } else {
            return;
        }
        (self.sent, self.has_asked) = (0, true);
        self.deadline = Instant::now() + PATIENCE;
    }

    fn write(&mut self) -> Result<(), Over> {
        if self.answer.is_empty() {
            return Ok(());
        }
        match self.stream.write(&self.answer[self.sent..]) {
            Ok(bytes) => self.sent += bytes,
            Err(error) if is_nothing_yet(&error) => {}
            Err(_) => return Err(Over),
        }
        if self.sent < self.answer.len() {
            return Ok(());
        }
        self.answer = Vec::new();
        self.deadline = Instant::now() + PATIENCE;
        if self.is_last { Err(Over) } else { Ok(()) }
    }
}

fn is_nothing_yet(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

struct Answers<S> {
    source: S,
    number: u32,
}

impl<S: Source> Answers<S> {
    fn to(&mut self, request: &[u8]) -> Vec<u8> {
        let words = std::str::from_utf8(request).unwrap_or_default();
        let words: Vec<&str> = words.split_ascii_whitespace().collect();
        match words[..] {
            ["snapshot"] => self.snapshot(CONNECTIONS_SHOWN),
            ["snapshot", count] => match count.parse::<usize>() {
                Ok(count) => self.snapshot(count.min(CONNECTIONS_SHOWN_MAX)),
                Err(_) => refusal("allowed is a number of connections: snapshot 20"),
            },
            ["idle", mode] => self.set_idle(mode),
            ["latency"] => with_end(self.source.latency(self.number, Instant::now())),
            _ => refusal("no such request; allowed are snapshot, idle and latency"),
        }
    }

    fn snapshot(&mut self, connections: usize) -> Vec<u8> {
        with_end(self.source.snapshot(self.number, connections))
    }

    fn set_idle(&mut self, mode: &str) -> Vec<u8> {
        let mut policy = IdlePolicy::Busy;
        if !policy.set(mode) {
            return refusal(&format!("allowed are idle {}", policy.names().join(", idle ")));
        }
        let cores = self.source.set_idle(policy);
        with_end(json!({ "idle": mode, "cores": cores }).to_string())
    }
}

fn refusal(why: &str) -> Vec<u8> {
    with_end(json!({ "error": why }).to_string())
}

fn with_end(mut line: String) -> Vec<u8> {
    line.push('\n');
    line.into_bytes()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::NAME_PREFIX;
    use super::*;
    use rustix::process::geteuid;
    use std::io::{Read, Write};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixStream};

    /// Says how many connections it was asked for.
    struct Echoes;

    impl Source for Echoes {
        fn snapshot(&mut self, _: u32, connections: usize) -> String {
            connections.to_string()
        }

        fn set_idle(&mut self, _: IdlePolicy) -> usize {
            0
        }

        fn latency(&mut self, _: u32, _: Instant) -> String {
            String::new()
        }

        fn next_due(&self) -> Option<Instant> {
            None
        }

        fn on_time(&mut self, _: Instant) {}
    }

    #[test]
    fn a_request_for_more_connections_than_are_shown_expect_the_most() {
        let mut answers = Answers { source: Echoes, number: 0 };
        let mut shown = |request: &str| String::from_utf8(answers.to(request.as_bytes())).unwrap();
        assert_eq!(shown("snapshot"), format!("{CONNECTIONS_SHOWN}\n"));
        assert_eq!(shown("snapshot 1000"), "1000\n");
        assert_eq!(shown("snapshot 1000000000"), format!("{CONNECTIONS_SHOWN_MAX}\n"));
    }

    fn connect(server: &Server<Echoes>) -> UnixStream {
        let (user, process) = (geteuid().as_raw(), std::process::id());
        let name = format!("{NAME_PREFIX}{user}/{process}/{}", server.answers.number);
        UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap()
    }

    fn ask(server: &Server<Echoes>) -> UnixStream {
        let mut stream = connect(server);
        stream.write_all(b"snapshot 7\n").unwrap();
        stream
    }

    fn is_answered(mut stream: UnixStream) -> bool {
        // Without waiting: the server is this thread.
        stream.set_nonblocking(true).unwrap();
        let mut answer = [0; 2];
        stream.read_exact(&mut answer).is_ok() && answer == *b"7\n"
    }

    /// Clients that were answered in the same turn had their answers before it came.
    #[test]
    fn the_newest_connection_is_not_evicted_first() {
        let mut server = Server::new(Echoes).unwrap();
        let _others: Vec<_> = (0..PEERS_MAX).map(|_| ask(&server)).collect();
        server.turn();
        let (asking, _later) = (ask(&server), connect(&server));
        server.turn();
        server.turn();
        assert!(is_answered(asking));
    }

    /// All of them are accepted in one turn, before any is answered.
    #[test]
    fn of_connections_accepted_together_the_last_ones_stay() {
        let mut server = Server::new(Echoes).unwrap();
        let mut all: Vec<_> = (0..PEERS_MAX * 2).map(|_| ask(&server)).collect();
        server.turn();
        server.turn();
        let last = all.split_off(PEERS_MAX);
        assert!(last.into_iter().all(is_answered));
        assert!(!all.into_iter().any(is_answered));
    }

    #[test]
    fn one_that_was_answered_is_evicted_before_one_that_has_not_asked_yet() {
        let mut server = Server::new(Echoes).unwrap();
        let asking = connect(&server);
        server.turn();
        let answered = ask(&server);
        server.turn();
        server.turn();
        let _others: Vec<_> = (0..PEERS_MAX - 1).map(|_| connect(&server)).collect();
        server.turn();
        (&asking).write_all(b"snapshot 7\n").unwrap();
        server.turn();
        assert!(is_answered(asking));
        (&answered).write_all(b"snapshot 7\n").unwrap_err();
    }

    #[test]
    fn one_that_asks_again_and_again_stays_while_others_are_silent() {
        let mut server = Server::new(Echoes).unwrap();
        let _silent: Vec<_> = (1..PEERS_MAX).map(|_| connect(&server)).collect();
        server.turn();
        for peer in &mut server.peers {
            peer.deadline -= YOUTH;
        }
        let monitor = ask(&server);
        server.turn();
        server.turn();
        let _newcomers: Vec<_> = (1..PEERS_MAX).map(|_| connect(&server)).collect();
        server.turn();
        assert!(is_answered(monitor.try_clone().unwrap()));
        (&monitor).write_all(b"snapshot 7\n").unwrap();
        server.turn();
        assert!(is_answered(monitor));
    }

    #[test]
    fn a_request_that_came_while_others_were_answered_for_long_is_answered() {
        let mut server = Server::new(Echoes).unwrap();
        let (silent, asking) = (connect(&server), ask(&server));
        server.turn();
        for peer in &mut server.peers {
            peer.deadline = Instant::now();
        }
        server.turn();
        assert!(is_answered(asking));
        assert!(!is_answered(silent));
        assert_eq!(server.peers.len(), 1, "the silent peer is disconnected");
    }
}
