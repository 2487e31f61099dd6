//! The control plane: makes data planes, connects and listens.

use super::super::address::RdmaAddress;
use super::super::{
    Acceptor, AnyFabric, ConnectRequest, Connector, Endpoint, FabricError, ListenRequest,
};
use super::config::IwarpConfig;
use super::core::CoreShared;
use super::driver::IwarpFabric;
use super::link::{Hosts, Link};
use super::listener::{Listener, Listening};
use super::socket;
use super::wire::{Agreed, FRAME_BYTES_MAX, Frame, FrameKind, Local, Parsed, ReplyError};
use crate::connector_common::{Attempt, Cores, PrivateData, runs_already};
use crate::mem::Slab;
use crate::sync::atomic::Ordering;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Makes and accepts connections for all cores of a process. Each listener has a thread.
#[derive(Debug)]
pub struct IwarpConnector {
    config: IwarpConfig,
    cores: Cores<CoreShared>,
    hosts: Hosts,
}

impl IwarpConnector {
    /// Checks the settings.
    ///
    /// # Errors
    /// A setting out of its limits.
    pub fn new(config: IwarpConfig) -> Result<Self, FabricError> {
        let not_started = |error| FabricError::because("start the iwarp fabric", error, None);
        config.validate().map_err(not_started)?;
        Ok(Self { config, cores: Cores::default(), hosts: Hosts::default() })
    }
}

/// Terms that this side asks for.
pub(super) fn local(config: &IwarpConfig, revision: u8) -> Local {
    Local {
        revision,
        crc: true,
        ird: config.reads_in_max.into(),
        ord: config.reads_out_max.into(),
        peer_to_peer: true,
    }
}

impl Connector for IwarpConnector {
    type Fabric = IwarpFabric;

    fn remote_invalidate(&self) -> bool {
        true
    }

    fn fabric(&self, core: usize) -> Result<IwarpFabric, FabricError> {
        let shared = self.cores.get(core, || {
            CoreShared::new().map_err(|error| {
                let op = format!("start core {core}");
                FabricError::because(&op, "no descriptor for waking it", Some(error))
            })
        })?;
        // Acquire pairs with the Release of the previous fabric's end.
        if shared.taken.swap(true, Ordering::Acquire) {
            return Err(runs_already(core));
        }
        Ok(IwarpFabric::new(shared, &self.config))
    }

    fn any_fabric(&self, core: usize) -> Result<AnyFabric, FabricError> {
        Ok(AnyFabric::Other(Box::new(self.fabric(core)?)))
    }

    /// Looks up names for as long as the system's resolver takes. Each address of a name is tried, with a fair share of the
    /// time; the first one's error is told.
    fn connect(&self, request: &ConnectRequest<'_>) -> Result<Endpoint, FabricError> {
        let ConnectRequest { address, private_data, timeout, lent, .. } = *request;
        let deadline = Instant::now() + timeout;
        let attempt = Attempt { op: format!("connect {address}") };
        let private_data = attempt.padded(private_data)?;
        let peers = resolve(&attempt, address)?;
        let mut first = None;
        let mut untried = peers.len() as u32;
        for peer in peers {
            let now = Instant::now();
            let share = deadline.saturating_duration_since(now) / untried;
            untried -= 1;
            let dialing =
                Dialing { config: &self.config, peer, private_data, deadline: now + share };
            match dialing.connect(lent) {
                Ok(endpoint) => return Ok(endpoint),
                Err(error) => first = first.or(Some(error.told(&attempt, peer))),
            }
        }
        Err(first.unwrap_or_else(|| attempt.failed("the name has no address", None)))
    }

    fn listen(
        &self,
        request: &ListenRequest<'_>,
        accept: Box<dyn Acceptor>,
    ) -> Result<Box<dyn Send>, FabricError> {
        let ListenRequest { address, private_data, .. } = *request;
        let attempt = Attempt { op: format!("listen {address}") };
        let private_data = attempt.padded(private_data)?;
        let own = resolve(&attempt, address)?.into_iter().next();
        let own = own.ok_or_else(|| attempt.failed("the name has no address", None))?;
        let socket = TcpListener::bind(own).map_err(|error| cannot_listen(&attempt, own, error))?;
        let (config, hosts) = (self.config.clone(), self.hosts.clone());
        let op = attempt.op.clone();
        let listener = Listener { op, socket, private_data, acceptor: accept, config, hosts };
        let listening = Listening::start(listener)
            .map_err(|error| attempt.failed("its thread cannot start", Some(error)))?;
        Ok(Box::new(listening))
    }
}

fn resolve(attempt: &Attempt, address: &str) -> Result<Vec<SocketAddr>, FabricError> {
    let address = RdmaAddress::of_driver(address, true);
    let address = address.map_err(|error| FabricError::of_address(&attempt.op, error))?;
    address.resolve().map_err(|error| attempt.failed("the name is not known", Some(error)))
}

fn cannot_listen(attempt: &Attempt, address: SocketAddr, error: io::Error) -> FabricError {
    let reason = match error.kind() {
        io::ErrorKind::AddrInUse => "another server listens there already".into(),
        io::ErrorKind::AddrNotAvailable => format!("{} is no address of this host", address.ip()),
        io::ErrorKind::PermissionDenied => "ports below 1024 are for root".into(),
        _ => "the address cannot be bound".into(),
    };
    attempt.failed(reason, Some(error))
}

/// A connection that is being made.
struct Dialing<'a> {
    config: &'a IwarpConfig,
    peer: SocketAddr,
    private_data: PrivateData,
    deadline: Instant,
}

/// Reason why an address leads to no connection.
#[derive(Debug)]
enum DialError {
    Socket(io::Error),
    Reply(ReplyError),
    /// The peer closed, or speaks another protocol.
    NoReply,
}

impl DialError {
    fn told(self, attempt: &Attempt, peer: SocketAddr) -> FabricError {
        match self {
            Self::Reply(ReplyError::Rejected) => {
                attempt.failed("the server refused the connection", None)
            }
            Self::Reply(error) => attempt.failed(error, None),
            Self::NoReply => {
                attempt.failed(format!("{peer} closed the connection: no iWARP server"), None)
            }
            Self::Socket(error) => match error.kind() {
                io::ErrorKind::ConnectionRefused => {
                    attempt.failed("no server listens there", Some(error))
                }
                io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                    attempt.failed(format!("{peer} did not answer in time"), None)
                }
                _ => attempt.failed("the handshake failed", Some(error)),
            },
        }
    }
}

impl From<io::Error> for DialError {
    fn from(error: io::Error) -> Self {
        Self::Socket(error)
    }
}

impl Dialing<'_> {
    /// Connects by MPA's revision 2, and by revision 1 with a peer that knows no other (RFC 6581 section 10).
    fn connect(&self, lent: &[Slab]) -> Result<Endpoint, DialError> {
        let (socket, (agreed, theirs)) = match self.attempt(2) {
            Err(DialError::Reply(ReplyError::Revision) | DialError::NoReply) => self.attempt(1)?,
            ended => ended?,
        };
        socket::prepare(&socket)?;
        let lent = lent.iter().map(Slab::region_id).collect();
        let link = Link { socket, agreed, is_connecting: true, lent, place: None };
        Ok(link.into_endpoint(self.peer, theirs))
    }

    fn attempt(&self, revision: u8) -> Result<(TcpStream, (Agreed, PrivateData)), DialError> {
        let mut socket = TcpStream::connect_timeout(&self.peer, self.left()?)?;
        let local = local(self.config, revision);
        let mut frame = [0; FRAME_BYTES_MAX];
        let length = local.request(&self.private_data).emit(&mut frame);
        socket.set_nodelay(true)?;
        socket.set_write_timeout(Some(self.left()?))?;
        socket.write_all(&frame[..length.unwrap_or_default()])?;
        let reply = self.read_reply(&mut socket, &local)?;
        Ok((socket, reply))
    }

    fn read_reply(
        &self,
        socket: &mut TcpStream,
        local: &Local,
    ) -> Result<(Agreed, PrivateData), DialError> {
        let mut bytes = [0; FRAME_BYTES_MAX];
        let mut length = 0;
        loop {
            match Frame::parse(FrameKind::Reply, &bytes[..length]) {
                Err(_) => return Err(DialError::NoReply),
                Ok(Parsed::Done((reply, _))) => {
                    let agreed = local.conclude(&reply).map_err(DialError::Reply)?;
                    return Ok((agreed, padded(reply.private_data)));
                }
                Ok(Parsed::Need(needed)) => {
                    socket.set_read_timeout(Some(self.left()?))?;
                    match socket.read(&mut bytes[length..needed]) {
                        Ok(0) => return Err(DialError::NoReply),
                        Ok(count) => length += count,
                        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                            return Err(DialError::NoReply);
                        }
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
    }

    /// Time left, not zero.
    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

/// As much as private data may have, zeroes behind it.
pub(super) fn padded(bytes: &[u8]) -> PrivateData {
    std::array::from_fn(|at| bytes.get(at).copied().unwrap_or(0))
}
