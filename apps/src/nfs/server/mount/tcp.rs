//! MOUNT by TCP, for those who mount as ever: ONC RPC with record marking (RFC 5531 section 11).
//!
//! One thread takes connections, and each connection has one: calls are few and far between. All is
//! bounded: connections, those of one host, the length of a call, and the time in which one must have
//! come whole. A connection that breaks the protocol is closed, and nobody else notices.

use super::{Answer, Registry, path_of};
use crate::nfs::mount3::{PROGRAM, VERSION};
use crate::nfs::server::exports::Peer;
use crate::nfs::tcp::DeadlineStream;
use crate::nfs::xdr::to_bytes;
use nfs3_types::mount::mountstat3;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use spinrpc::rpcbind::record;
use spinrpc::rpcbind::wire::{CallHeader, CallHeaderError, ReplyHeader};
use spinrpc::sync::lock;
use spinrpc::{AcceptStatus, Decoder, RejectStatus};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Most connections; a further one is closed.
pub const CONNECTIONS_MAX: usize = 64;
/// Most connections of one host, or one /64 of IPv6, so that it does not take all; a further one is
/// closed.
pub const CONNECTIONS_OF_HOST_MAX: usize = 16;
/// Longest call taken, in bytes: a path of 1024, two credentials of 400, and some words.
const CALL_BYTES_MAX: usize = 2048;
/// From one call to the end of the next; then the connection is closed.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// In which a client must have taken an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long no connections are taken when there is no descriptor or thread for one.
const PAUSE: Duration = Duration::from_millis(100);
const BACKLOG: i32 = 64;
const RPC_VERSION: u32 = 2;

/// MOUNT at a port of TCP, for as long as it is kept.
#[derive(Debug)]
pub struct TcpServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    registry: Arc<Registry>,
    listener: TcpListener,
    is_stopped: AtomicBool,
    places: Mutex<Places>,
}

/// The connections there are, by a number of their own.
#[derive(Debug, Default)]
struct Places {
    next: u64,
    taken: BTreeMap<u64, (Origin, Arc<TcpStream>)>,
}

/// Whose connections are counted together: those of an address of IPv4, and of the first half of one of
/// IPv6, as a host gives itself any number of addresses that differ in the second (RFC 4291 section
/// 2.5.4, RFC 8981).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Address(Ipv4Addr),
    Network([u16; 4]),
}

impl TcpServer {
    /// Listens at `address`; at `[::]` for IPv4 as well, and for that alone on a host without IPv6.
    /// Port 0 is one that the system chooses.
    ///
    /// # Errors
    /// What the system says: the port is taken, or needs a privilege.
    pub fn listen(address: SocketAddr, registry: Arc<Registry>) -> io::Result<Self> {
        let listener = listen(address)?;
        let address = listener.local_addr()?;
        let (is_stopped, places) = (AtomicBool::new(false), Mutex::default());
        let shared = Arc::new(Shared { registry, listener, is_stopped, places });
        let accepting = Arc::clone(&shared);
        let accept = move || accepting.accept_all();
        let acceptor = thread::Builder::new().name("mount".into()).spawn(accept)?;
        Ok(Self { address, shared, acceptor: Some(acceptor) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::Release);
        // Linux lets a listener's accept return by this.
        let _ = net::shutdown(&self.shared.listener, net::Shutdown::Both);
        drop(self.acceptor.take().map(JoinHandle::join));
        for (_, stream) in lock(&self.shared.places).taken.values() {
            drop(stream.shutdown(Shutdown::Both));
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
                tracing::warn!(%error, "a connection to MOUNT was not taken");
                thread::sleep(PAUSE);
            }
        }
    }

    /// Gives a connection a thread, if it finds a place.
    fn take(self: &Arc<Self>, stream: TcpStream, host: IpAddr) -> io::Result<()> {
        let (host, stream) = (host.to_canonical(), Arc::new(stream));
        let Some(place) = lock(&self.places).take(Origin::of(host), &stream) else {
            tracing::debug!(%host, "too many connections to MOUNT");
            return Ok(());
        };
        let shared = Arc::clone(self);
        let serve = move || {
            let ended = shared.serve(&stream, &Peer::Host(host));
            tracing::debug!(%host, cause = ?ended.err(), "a connection to MOUNT ended");
            lock(&shared.places).taken.remove(&place);
        };
        let spawned = thread::Builder::new().name("mount client".into()).spawn(serve);
        spawned.map(drop).inspect_err(|_| drop(lock(&self.places).taken.remove(&place)))
    }

    /// Answers calls until the client goes, rests too long, or breaks the protocol.
    fn serve(&self, stream: &TcpStream, peer: &Peer) -> Result<(), record::RecordError> {
        while !self.is_stopped.load(Ordering::Acquire) {
            let mut incoming = DeadlineStream::new(stream, IDLE_MAX);
            let call = record::read_within(&mut incoming, CALL_BYTES_MAX)?;
            let Some(answer) = answer(&self.registry, peer, &call) else { break };
            DeadlineStream::new(stream, ANSWER_TIMEOUT).write_all(&answer)?;
        }
        Ok(())
    }
}

impl Places {
    fn take(&mut self, origin: Origin, stream: &Arc<TcpStream>) -> Option<u64> {
        let of_origin = self.taken.values().filter(|(other, _)| *other == origin).count();
        if self.taken.len() >= CONNECTIONS_MAX || of_origin >= CONNECTIONS_OF_HOST_MAX {
            return None;
        }
        self.next += 1;
        self.taken.insert(self.next, (origin, Arc::clone(stream)));
        Some(self.next)
    }
}

impl Origin {
    fn of(host: IpAddr) -> Self {
        match host.to_canonical() {
            IpAddr::V4(address) => Self::Address(address),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Self::Network([a, b, c, d])
            }
        }
    }
}

/// The record that answers a call; none for what is no call.
fn answer(registry: &Registry, peer: &Peer, message: &[u8]) -> Option<Vec<u8>> {
    let header = match CallHeader::parse(message) {
        Ok(parsed) => parsed,
        Err(CallHeaderError::RpcVersion { xid, .. }) => {
            let status = RejectStatus::RpcMismatch { low: RPC_VERSION, high: RPC_VERSION };
            return reply(&ReplyHeader::denied(xid, status), &[]);
        }
        Err(_) => return None,
    };
    let (header, args_at) = header;
    let args = message.get(args_at..).unwrap_or_default();
    match results(registry, peer, &header, args) {
        // An answer that is too long for a record is none that can be given.
        Ok(results) => reply(&ReplyHeader::success(header.xid), &results)
            .or_else(|| reply(&ReplyHeader::accepted(header.xid, AcceptStatus::SystemErr), &[])),
        Err(status) => reply(&ReplyHeader::accepted(header.xid, status), &[]),
    }
}

fn results(
    registry: &Registry,
    peer: &Peer,
    header: &CallHeader<'_>,
    args: &[u8],
) -> Result<Vec<u8>, AcceptStatus> {
    if header.program != PROGRAM {
        return Err(AcceptStatus::ProgUnavail);
    }
    if header.version != VERSION {
        return Err(AcceptStatus::ProgMismatch { low: VERSION.0, high: VERSION.0 });
    }
    let answer = registry.answer(peer, header.procedure, Decoder::plain(args))?;
    if matches!(answer, Answer::NotMounted(mountstat3::MNT3ERR_ACCES)) {
        let path = path_of(Decoder::plain(args)).unwrap_or_default();
        tracing::info!(%peer, path, "refused: it is no client of this export");
    }
    Ok(to_bytes(|to| answer.encode(to)))
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

    #[test]
    fn addresses_of_one_64_count_together_and_mapped_ones_as_ipv4() {
        let origin = |address: &str| Origin::of(address.parse().unwrap());
        assert_eq!(origin("2001:db8:0:1::1"), origin("2001:db8:0:1:ffff:0:0:2"));
        assert_ne!(origin("2001:db8:0:1::1"), origin("2001:db8:0:2::1"));
        assert_eq!(origin("::ffff:192.0.2.1"), origin("192.0.2.1"));
        assert_ne!(origin("::ffff:192.0.2.1"), origin("::ffff:192.0.2.2"));
    }

    #[test]
    fn many_addresses_of_one_64_expect_no_more_places_than_one_has() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = Arc::new(TcpStream::connect(server.local_addr().unwrap()).unwrap());
        let mut places = Places::default();
        let mut take = |address: u128| {
            let host = IpAddr::from(std::net::Ipv6Addr::from_bits(address));
            places.take(Origin::of(host), &stream).is_some()
        };
        let network = 0x2001_0db8_u128 << 96;
        let taken = (1..=2 * CONNECTIONS_OF_HOST_MAX as u128).filter(|host| take(network | host));
        assert_eq!(taken.count(), CONNECTIONS_OF_HOST_MAX);
        assert!(take(network | 1 << 64));
    }
}
