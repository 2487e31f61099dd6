//! Programs at a TCP port, for ordinary clients: ONC RPC with record marking (RFC 5531 section 11).
//!
//! One thread accepts connections, and each connection has its own: calls are rare. Everything is bounded:
//! connections, those of one host, the length of a call, and the time to receive it. Hosts that no export names get
//! no connection. A new connection of a client replaces an idle one if there are too many. It is refused if there
//! is none, so that a service which blocks has no more threads than connections. A connection that violates the
//! protocol is closed without effect on others.

use crate::server::exports::Peer;
use crate::server::throttle::Throttle;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use spinrpc::fabric::LimitScope;
use spinrpc::rpcbind::record;
use spinrpc::rpcbind::stream::{Limits, Stream};
use spinrpc::rpcbind::wire::{CallHeader, CallHeaderError, ReplyHeader};
use spinrpc::sync::lock;
use spinrpc::sys::journal::event;
use spinrpc::{AcceptStatus, Program, RejectStatus, Version, spawn_helper};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Maximum number of connections. A further one replaces one of the host that has most of them.
pub const CONNECTIONS_MAX: usize = 64;
/// Maximum number of connections of one host, or one /64 of IPv6 ([`LimitScope`]). A further one
/// replaces another one of that host.
pub const CONNECTIONS_OF_HOST_MAX: usize = 16;
/// Maximum time from one call to the end of the next; then the connection is closed.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// Maximum time for a client to receive an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause in accepting connections if there is no descriptor or thread for one.
const PAUSE: Duration = Duration::from_millis(100);
const BACKLOG: i32 = 64;
const RPC_VERSION: u32 = 2;

/// A program at a TCP port.
pub trait TcpService: fmt::Debug + Send + Sync {
    /// Name, for the log.
    fn name(&self) -> &'static str;

    /// Maximum length of a call, in bytes.
    fn call_bytes_max(&self) -> usize;

    /// Returns whether an export names the peer as a client. Called once for each connection, which is closed
    /// otherwise.
    fn admits(&self, peer: &Peer) -> bool;

    /// Time without a call for which a connection keeps its place even if others need it: zero unless the service
    /// says otherwise.
    fn grace(&self) -> Duration {
        Duration::ZERO
    }

    /// The record that answers a call; `None` closes the connection. May block.
    fn answer(&self, peer: &Peer, message: &[u8]) -> Option<Vec<u8>>;
}

/// A program at a TCP port; dropping it stops the server.
#[derive(Debug)]
pub struct TcpServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    service: Arc<dyn TcpService>,
    listener: TcpListener,
    is_stopped: AtomicBool,
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    next: u64,
    taken: BTreeMap<u64, Place>,
    /// Of log lines about strangers and connections without a place.
    throttle: Throttle,
}

#[derive(Debug)]
struct Place {
    origin: LimitScope,
    stream: Arc<TcpStream>,
    state: State,
    since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No complete call has arrived since it was accepted or sent its last answer.
    Idle,
    /// The service works at a call. It may block, and closing the connection would not end that.
    Answering,
    Sending,
}

impl TcpServer {
    /// Listens at `address`; `[::]` includes IPv4, and means only IPv4 on a host without IPv6. The
    /// system chooses a port for port 0.
    ///
    /// # Errors
    /// The error of the system: the port is taken, or needs a privilege.
    pub fn listen(address: SocketAddr, service: Arc<dyn TcpService>) -> io::Result<Self> {
        let listener = listen(address)?;
        let address = listener.local_addr()?;
        let (is_stopped, places) = (AtomicBool::new(false), Mutex::default());
        let shared = Arc::new(Shared { service, listener, is_stopped, places });
        let accepting = Arc::clone(&shared);
        let accept = move || accepting.accept_all();
        let acceptor = spawn_helper("tcp", accept)?;
        Ok(Self { address, shared, acceptor: Some(acceptor) })
    }

    /// Local address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::Release);
        // On Linux, this makes the listener's accept return.
        let _ = net::shutdown(&self.shared.listener, net::Shutdown::Both);
        drop(self.acceptor.take().map(JoinHandle::join));
        for place in lock(&self.shared.places).taken.values() {
            drop(place.stream.shutdown(Shutdown::Both));
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    match listen_at(address) {
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) if is_every_address(address.ip()) => {
            let by_ipv4 = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
            Ok(listen_at(by_ipv4)?)
        }
        listening => Ok(listening?),
    }
}

fn is_every_address(ip: IpAddr) -> bool {
    ip.is_ipv6() && ip.is_unspecified()
}

fn listen_at(address: SocketAddr) -> Result<TcpListener, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, !is_every_address(address.ip()))?;
    }
    net::bind(&socket, &address)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

impl Shared {
    fn accept_all(self: &Arc<Self>) {
        while !self.is_stopped.load(Ordering::Acquire) {
            let accepted = self.listener.accept();
            let taken = accepted.and_then(|(stream, from)| self.take(stream, from.ip()));
            if let Err(error) = taken
                && !self.is_stopped.load(Ordering::Acquire)
            {
                let name = self.service.name();
                event!(WARN, %error, "cannot accept a connection to {name}");
                thread::sleep(PAUSE);
            }
        }
    }

    fn take(self: &Arc<Self>, stream: TcpStream, host: IpAddr) -> io::Result<()> {
        let (host, stream) = (host.to_canonical(), Arc::new(stream));
        let peer = Peer::Host(host);
        let name = self.service.name();
        if !self.service.admits(&peer) {
            if self.may_log() {
                event!(INFO, %host, "rejected a connection to {name}: no export names this \
                                       address");
            }
            return Ok(());
        }
        let (origin, grace) = (LimitScope::of(host), self.service.grace());
        let Some(place) = lock(&self.places).take(origin, &stream, (Instant::now(), grace)) else {
            if self.may_log() {
                event!(INFO, %host, "rejected a connection to {name}: all others are in use");
            }
            return Ok(());
        };
        let shared = Arc::clone(self);
        let serve = move || {
            let ended = shared.serve(&stream, &peer, place);
            event!(DEBUG, %host, cause = ?ended.err(), "a connection to {name} ended");
            lock(&shared.places).taken.remove(&place);
        };
        let spawned = spawn_helper("tcp client", serve);
        spawned.map(drop).inspect_err(|_| drop(lock(&self.places).taken.remove(&place)))
    }

    fn may_log(&self) -> bool {
        lock(&self.places).throttle.admits(Instant::now())
    }

    fn serve(
        &self,
        stream: &TcpStream,
        peer: &Peer,
        place: u64,
    ) -> Result<(), record::RecordError> {
        while !self.is_stopped.load(Ordering::Acquire) {
            let mut incoming = Stream::new(stream, Limits::within(IDLE_MAX));
            let call = record::read_within(&mut incoming, self.service.call_bytes_max())?;
            // The connection may have lost its place while the call arrived.
            if !lock(&self.places).enter(place, State::Answering) {
                break;
            }
            let Some(answer) = self.service.answer(peer, &call) else { break };
            lock(&self.places).enter(place, State::Sending);
            Stream::new(stream, Limits::within(ANSWER_TIMEOUT)).write_all(&answer)?;
            lock(&self.places).enter(place, State::Idle);
        }
        Ok(())
    }
}

impl Places {
    /// Closes another connection if necessary; `None` if none can be closed.
    fn take(
        &mut self,
        origin: LimitScope,
        stream: &Arc<TcpStream>,
        (now, grace): (Instant, Duration),
    ) -> Option<u64> {
        let from = if self.count(origin) >= CONNECTIONS_OF_HOST_MAX {
            Some(origin)
        } else if self.taken.len() >= CONNECTIONS_MAX {
            let all = self.taken.values().map(|place| place.origin);
            all.max_by_key(|origin| self.count(*origin))
        } else {
            None
        };
        if let Some(origin) = from {
            self.close_one_of(origin, (now, grace))?;
        }
        self.next += 1;
        let stream = Arc::clone(stream);
        self.taken.insert(self.next, Place { origin, stream, state: State::Idle, since: now });
        Some(self.next)
    }

    fn count(&self, origin: LimitScope) -> usize {
        self.taken.values().filter(|place| place.origin == origin).count()
    }

    /// Closes the connection that has been idle longest, or one whose client does not take its answer. Never one that the
    /// service works for: its thread would go on without a place.
    fn close_one_of(
        &mut self,
        origin: LimitScope,
        (now, grace): (Instant, Duration),
    ) -> Option<()> {
        let is_closable = |place: &Place| match place.state {
            State::Idle => now.saturating_duration_since(place.since) >= grace,
            State::Answering => false,
            State::Sending => true,
        };
        let places =
            self.taken.iter().filter(|(_, place)| place.origin == origin && is_closable(place));
        let idle = |(_, place): &(&u64, &Place)| (place.state == State::Idle, Reverse(place.since));
        let number = *places.max_by_key(idle)?.0;
        // This ends its thread.
        drop(self.taken.remove(&number)?.stream.shutdown(Shutdown::Both));
        Some(())
    }

    fn enter(&mut self, number: u64, state: State) -> bool {
        let place = self.taken.get_mut(&number);
        place.map(|place| (place.state, place.since) = (state, Instant::now())).is_some()
    }
}

/// An error is the answer to what is not a call of this version of RPC, if there can be one.
pub(super) fn call_of(message: &[u8]) -> Result<(CallHeader<'_>, &[u8]), Option<Vec<u8>>> {
    match CallHeader::parse(message) {
        Ok((header, args_at)) => Ok((header, message.get(args_at..).unwrap_or_default())),
        Err(CallHeaderError::RpcVersion { xid, .. }) => {
            let status = RejectStatus::RpcMismatch { low: RPC_VERSION, high: RPC_VERSION };
            Err(reply(&ReplyHeader::denied(xid, status), &[]))
        }
        Err(_) => Err(None),
    }
}

pub(super) fn check(
    header: &CallHeader<'_>,
    program: Program,
    version: Version,
) -> Result<(), AcceptStatus> {
    if header.program != program {
        return Err(AcceptStatus::ProgUnavail);
    }
    if header.version != version {
        return Err(AcceptStatus::ProgMismatch { low: version.0, high: version.0 });
    }
    Ok(())
}

pub(super) fn record_of(
    header: &CallHeader<'_>,
    results: Result<Vec<u8>, AcceptStatus>,
) -> Option<Vec<u8>> {
    match results {
        // An answer that exceeds a record cannot be sent.
        Ok(results) => reply(&ReplyHeader::success(header.xid), &results)
            .or_else(|| reply(&ReplyHeader::accepted(header.xid, AcceptStatus::SystemErr), &[])),
        Err(status) => reply(&ReplyHeader::accepted(header.xid, status), &[]),
    }
}

fn reply(header: &ReplyHeader<'_>, results: &[u8]) -> Option<Vec<u8>> {
    let mut message = vec![0; header.buffer_len()];
    header.emit(&mut message);
    message.extend_from_slice(results);
    record::mark(&message).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// A connection whose server end is closed, or not.
    fn stream() -> (TcpListener, Arc<TcpStream>) {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = Arc::new(TcpStream::connect(server.local_addr().unwrap()).unwrap());
        (server, stream)
    }

    fn origin(address: u128) -> LimitScope {
        LimitScope::of(std::net::Ipv6Addr::from_bits(address).into())
    }

    const NETWORK: u128 = 0x2001_0db8 << 96;
    const NO_GRACE: Duration = Duration::ZERO;

    /// A place without grace.
    fn take(places: &mut Places, origin: LimitScope, stream: &Arc<TcpStream>) -> Option<u64> {
        places.take(origin, stream, (Instant::now(), NO_GRACE))
    }

    #[test]
    fn many_addresses_of_one_64_expect_no_more_places_than_one_has() {
        let (_server, stream) = stream();
        let mut places = Places::default();
        for host in 1..=2 * CONNECTIONS_OF_HOST_MAX as u128 {
            take(&mut places, origin(NETWORK | host), &stream).unwrap();
        }
        assert_eq!(places.taken.len(), CONNECTIONS_OF_HOST_MAX);
        take(&mut places, origin(NETWORK | 1 << 64), &stream).unwrap();
        assert_eq!(places.taken.len(), CONNECTIONS_OF_HOST_MAX + 1);
    }

    #[test]
    fn when_all_places_are_taken_the_host_with_most_loses_the_one_idle_for_longest() {
        let (_server, stream) = stream();
        let mut places = Places::default();
        let host = |number: u128| origin(NETWORK | number << 64);
        let first = take(&mut places, host(0), &stream).unwrap();
        let many: Vec<_> = (0..9).map(|_| take(&mut places, host(1), &stream).unwrap()).collect();
        let mut others = (2..).flat_map(|number| [host(number); 2]);
        while places.taken.len() < CONNECTIONS_MAX {
            take(&mut places, others.next().unwrap(), &stream).unwrap();
        }
        places.enter(many[0], State::Sending);
        places.enter(many[1], State::Answering);
        places.enter(many[1], State::Idle);
        let new = take(&mut places, host(99), &stream).unwrap();
        assert_eq!(places.taken.len(), CONNECTIONS_MAX);
        for number in [first, new, many[0], many[1], many[3]] {
            assert!(places.taken.contains_key(&number), "{number} of {many:?}");
        }
        assert!(!places.taken.contains_key(&many[2]));
    }

    #[test]
    fn a_connection_keeps_its_place_while_the_service_works_and_until_its_grace_is_over() {
        let (_server, stream) = stream();
        let (mut places, now) = (Places::default(), Instant::now());
        let (host, grace) = (origin(NETWORK), Duration::from_secs(1));
        let take = |places: &mut Places, millis| {
            places.take(host, &stream, (now + Duration::from_millis(millis), grace))
        };
        let first = take(&mut places, 0).unwrap();
        let all: Vec<_> =
            (1..CONNECTIONS_OF_HOST_MAX).map(|_| take(&mut places, 1).unwrap()).collect();
        assert_eq!(take(&mut places, 999), None, "all are young");
        places.enter(first, State::Answering);
        assert_eq!(take(&mut places, 1000), None, "the only old one is busy");
        assert!(places.enter(first, State::Sending));
        take(&mut places, 1000).unwrap();
        assert!(!places.enter(first, State::Answering), "its place is lost");
        assert!(places.enter(all[0], State::Answering));
    }

    /// Answers once it is told to.
    #[derive(Debug)]
    struct Blocked {
        arrived: Mutex<Sender<()>>,
        go_on: Mutex<Receiver<()>>,
    }

    impl TcpService for Blocked {
        fn name(&self) -> &'static str {
            "a test"
        }

        fn call_bytes_max(&self) -> usize {
            4
        }

        fn admits(&self, _: &Peer) -> bool {
            true
        }

        fn answer(&self, _: &Peer, message: &[u8]) -> Option<Vec<u8>> {
            lock(&self.arrived).send(()).ok()?;
            lock(&self.go_on).recv().ok()?;
            record::mark(message).ok()
        }
    }

    #[test]
    fn a_host_whose_calls_all_block_gets_no_more_threads_and_every_answer() {
        let ((arrived, arrives), (goes_on, go_on)) = (channel(), channel());
        let blocked = Blocked { arrived: Mutex::new(arrived), go_on: Mutex::new(go_on) };
        let address = (Ipv4Addr::LOCALHOST, 0).into();
        let server = TcpServer::listen(address, Arc::new(blocked)).unwrap();
        let connect = || {
            let mut stream = TcpStream::connect(server.address()).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            stream.write_all(&record::mark(&[7; 4]).unwrap()).unwrap();
            stream
        };
        let mut all: Vec<_> = (0..CONNECTIONS_OF_HOST_MAX).map(|_| connect()).collect();
        all.iter().for_each(|_| arrives.recv().unwrap());
        // The end of the connection, or its reset.
        assert!(!matches!(connect().read(&mut [0]), Ok(1..)));
        all.iter().for_each(|_| goes_on.send(()).unwrap());
        for stream in &mut all {
            assert_eq!(record::read(stream).unwrap(), [7; 4]);
        }
        assert!(arrives.try_recv().is_err(), "the refused connection has a thread");
    }
}
