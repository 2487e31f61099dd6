//! Programs at a TCP port, for ordinary clients: ONC RPC with record marking (RFC 5531 section 11).
//!
//! One thread accepts connections, and each connection has its own: calls are rare. Everything is
//! bounded: connections, those of one host, the length of a call, and the time to receive it. Hosts
//! that no export names get no connection. A new connection of a client is always accepted: an idle
//! one is closed for it. A connection that violates the protocol is closed without effect on
//! others. Called by MOUNT and by contexts of Kerberos.

use crate::nfs::server::exports::Peer;
use crate::nfs::tcp::DeadlineStream;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use spinrpc::fabric::Origin;
use spinrpc::rpcbind::record;
use spinrpc::rpcbind::wire::{CallHeader, CallHeaderError, ReplyHeader};
use spinrpc::sync::lock;
use spinrpc::{AcceptStatus, RejectStatus};
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
/// Maximum number of connections of one host, or one /64 of IPv6 ([`Origin`]). A further one
/// replaces another one of that host.
pub const CONNECTIONS_OF_HOST_MAX: usize = 16;
/// Maximum time from one call to the end of the next; then the connection is closed.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// Maximum time for a client to receive an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause in accepting connections if there is no descriptor or thread for one.
const PAUSE: Duration = Duration::from_millis(100);
/// Minimum interval between log lines about strangers, who can connect as often as they like.
const STRANGERS_LOG_INTERVAL: Duration = Duration::from_secs(1);
const BACKLOG: i32 = 64;
const RPC_VERSION: u32 = 2;

/// A program at a TCP port.
pub trait TcpService: fmt::Debug + Send + Sync {
    /// Name, for the log.
    fn name(&self) -> &'static str;

    /// Maximum length of a call, in bytes.
    fn call_bytes_max(&self) -> usize;

    /// Returns whether an export names the peer as a client.
    fn has_client(&self, peer: &Peer) -> bool;

    /// The record that answers a call; `None` closes the connection.
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

/// The current connections, by number.
#[derive(Debug, Default)]
struct Places {
    next: u64,
    taken: BTreeMap<u64, Place>,
    /// Time of the last log line about a stranger.
    logged: Option<Instant>,
}

/// One connection.
#[derive(Debug)]
struct Place {
    origin: Origin,
    stream: Arc<TcpStream>,
    /// A complete call has arrived, and its answer is not sent yet.
    is_busy: bool,
    /// Time when it was accepted, or sent its last answer.
    since: Instant,
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
        let acceptor = thread::Builder::new().name("tcp".into()).spawn(accept)?;
        Ok(Self { address, shared, acceptor: Some(acceptor) })
    }

    /// Local address of the listener.
    #[must_use]
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
                tracing::warn!(%error, "cannot accept a connection to {name}");
                thread::sleep(PAUSE);
            }
        }
    }

    /// Starts a thread for the connection of a client. Closes one of a stranger.
    fn take(self: &Arc<Self>, stream: TcpStream, host: IpAddr) -> io::Result<()> {
        let (host, stream) = (host.to_canonical(), Arc::new(stream));
        let peer = Peer::Host(host);
        let name = self.service.name();
        if !self.service.has_client(&peer) {
            if lock(&self.places).may_log() {
                tracing::info!(%host, "rejected a connection to {name}: no export names this \
                                       address");
            }
            return Ok(());
        }
        let place = lock(&self.places).take(Origin::of(host), &stream);
        let shared = Arc::clone(self);
        let serve = move || {
            let ended = shared.serve(&stream, &peer, place);
            tracing::debug!(%host, cause = ?ended.err(), "a connection to {name} ended");
            lock(&shared.places).taken.remove(&place);
        };
        let spawned = thread::Builder::new().name("tcp client".into()).spawn(serve);
        spawned.map(drop).inspect_err(|_| drop(lock(&self.places).taken.remove(&place)))
    }

    /// Answers calls until the client disconnects, stays idle too long, violates the protocol, or
    /// loses its place.
    fn serve(
        &self,
        stream: &TcpStream,
        peer: &Peer,
        place: u64,
    ) -> Result<(), record::RecordError> {
        while !self.is_stopped.load(Ordering::Acquire) {
            let mut incoming = DeadlineStream::new(stream, IDLE_MAX);
            let call = record::read_within(&mut incoming, self.service.call_bytes_max())?;
            lock(&self.places).set_busy(place, true);
            let Some(answer) = self.service.answer(peer, &call) else { break };
            DeadlineStream::new(stream, ANSWER_TIMEOUT).write_all(&answer)?;
            lock(&self.places).set_busy(place, false);
        }
        Ok(())
    }
}

impl Places {
    /// Allocates a place for a connection of this host, closing another connection if necessary.
    fn take(&mut self, origin: Origin, stream: &Arc<TcpStream>) -> u64 {
        let from = if self.count(origin) >= CONNECTIONS_OF_HOST_MAX {
            Some(origin)
        } else if self.taken.len() >= CONNECTIONS_MAX {
            let all = self.taken.values().map(|place| place.origin);
            all.max_by_key(|origin| self.count(*origin))
        } else {
            None
        };
        if let Some(origin) = from {
            self.close_one_of(origin);
        }
        self.next += 1;
        let (stream, since) = (Arc::clone(stream), Instant::now());
        self.taken.insert(self.next, Place { origin, stream, is_busy: false, since });
        self.next
    }

    fn count(&self, origin: Origin) -> usize {
        self.taken.values().filter(|place| place.origin == origin).count()
    }

    /// Closes the connection that has been idle longest; a busy one only if all are.
    fn close_one_of(&mut self, origin: Origin) {
        let places = self.taken.iter().filter(|(_, place)| place.origin == origin);
        let idle = |(_, place): &(&u64, &Place)| (!place.is_busy, Reverse(place.since));
        let Some(number) = places.max_by_key(idle).map(|(number, _)| *number) else { return };
        if let Some(place) = self.taken.remove(&number) {
            // This ends its thread.
            drop(place.stream.shutdown(Shutdown::Both));
        }
    }

    fn set_busy(&mut self, number: u64, is_busy: bool) {
        if let Some(place) = self.taken.get_mut(&number) {
            (place.is_busy, place.since) = (is_busy, Instant::now());
        }
    }

    fn may_log(&mut self) -> bool {
        let may = self.logged.is_none_or(|logged| logged.elapsed() >= STRANGERS_LOG_INTERVAL);
        if may {
            self.logged = Some(Instant::now());
        }
        may
    }
}

/// The header of a call, or the record that answers what is not one of this version of RPC; `Err(None)` if nothing can.
pub(super) fn header_of(message: &[u8]) -> Result<(CallHeader<'_>, usize), Option<Vec<u8>>> {
    CallHeader::parse(message).map_err(|error| match error {
        CallHeaderError::RpcVersion { xid, .. } => {
            let status = RejectStatus::RpcMismatch { low: RPC_VERSION, high: RPC_VERSION };
            reply(&ReplyHeader::denied(xid, status), &[])
        }
        _ => None,
    })
}

/// The record of an answer.
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

    /// A connection whose server end is closed, or not.
    fn stream() -> (TcpListener, Arc<TcpStream>) {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = Arc::new(TcpStream::connect(server.local_addr().unwrap()).unwrap());
        (server, stream)
    }

    fn origin(address: u128) -> Origin {
        Origin::of(std::net::Ipv6Addr::from_bits(address).into())
    }

    const NETWORK: u128 = 0x2001_0db8 << 96;

    #[test]
    fn many_addresses_of_one_64_expect_no_more_places_than_one_has() {
        let (_server, stream) = stream();
        let mut places = Places::default();
        for host in 1..=2 * CONNECTIONS_OF_HOST_MAX as u128 {
            places.take(origin(NETWORK | host), &stream);
        }
        assert_eq!(places.taken.len(), CONNECTIONS_OF_HOST_MAX);
        places.take(origin(NETWORK | 1 << 64), &stream);
        assert_eq!(places.taken.len(), CONNECTIONS_OF_HOST_MAX + 1);
    }

    #[test]
    fn when_all_places_are_taken_the_host_with_most_loses_the_one_idle_for_longest() {
        let (_server, stream) = stream();
        let mut places = Places::default();
        let host = |number: u128| origin(NETWORK | number << 64);
        let first = places.take(host(0), &stream);
        let many: Vec<_> = (0..9).map(|_| places.take(host(1), &stream)).collect();
        let mut others = (2..).flat_map(|number| [host(number); 2]);
        while places.taken.len() < CONNECTIONS_MAX {
            places.take(others.next().unwrap(), &stream);
        }
        places.set_busy(many[0], true);
        places.set_busy(many[1], true);
        places.set_busy(many[1], false);
        let new = places.take(host(99), &stream);
        assert_eq!(places.taken.len(), CONNECTIONS_MAX);
        for number in [first, new, many[0], many[1], many[3]] {
            assert!(places.taken.contains_key(&number), "{number} of {many:?}");
        }
        assert!(!places.taken.contains_key(&many[2]));
    }
}
