//! The control plane: makes data planes, connects and listens.

use super::super::{
    Acceptor, AnyFabric, ConnectRequest, Connector, Endpoint, FabricError, ListenRequest,
};
use super::config::IwarpConfig;
use super::driver::IwarpFabric;
use super::link::Link;
use super::listener::{Listener, Listening};
use super::socket;
use super::wire::{
    Agreed, FRAME_BYTES_MAX, Frame, FrameError, FrameKind, Local, Parsed, ReplyError,
};
use crate::connector_common::{Attempt, Cores, Guarded, Hosts, PrivateData, padded, take_core};
use crate::core_sleep::CoreSleep;
use crate::mem::Slab;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Makes and accepts connections for all cores of a process. Each listener has a thread.
#[derive(Debug)]
pub struct IwarpConnector {
    config: IwarpConfig,
    cores: Cores<CoreSleep>,
    hosts: Hosts,
}

impl IwarpConnector {
    /// A connector without listeners.
    pub fn new(config: IwarpConfig) -> Self {
        Self { config, cores: Cores::default(), hosts: Hosts::default() }
    }
}

/// Terms that this side asks for.
pub(super) fn local(config: &IwarpConfig, revision: u8) -> Local {
    Local {
        revision,
        crc: config.crc,
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
        let shared = self.cores.get(core, || CoreSleep::new(core))?;
        take_core(core, &shared.taken)?;
        Ok(IwarpFabric::new(shared, &self.config))
    }

    fn any_fabric(&self, core: usize) -> Result<AnyFabric, FabricError> {
        Ok(AnyFabric::Other(Box::new(self.fabric(core)?)))
    }

    fn connect(&self, request: &ConnectRequest<'_>) -> Result<Endpoint, FabricError> {
        let ConnectRequest { address, private_data, timeout, lent, .. } = *request;
        let deadline = Instant::now() + timeout;
        let attempt = Attempt { op: format!("connect {address}") };
        let private_data = attempt.padded(private_data)?;
        let peers = attempt.resolve(address, true)?;
        attempt.connect_any(peers, deadline, |peer, deadline| {
            let dialing = Dialing { config: &self.config, peer, private_data, deadline };
            dialing.connect(lent).map_err(|error| error.told(&attempt, peer))
        })
    }

    fn listen(
        &self,
        request: &ListenRequest<'_>,
        accept: Box<dyn Acceptor>,
    ) -> Result<Box<dyn Send>, FabricError> {
        let ListenRequest { address, private_data, .. } = *request;
        let attempt = Attempt { op: format!("listen {address}") };
        let private_data = attempt.padded(private_data)?;
        let own = attempt.resolve_own(address, true)?;
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::AddrInUse => {
                attempt.failed("another server listens there already", Some(error))
            }
            _ => attempt.failed(format!("{own} cannot be bound"), Some(error)),
        };
        let socket = TcpListener::bind(own).map_err(failed)?;
        let (config, hosts) = (self.config.clone(), self.hosts.clone());
        let acceptor = Guarded::new(&attempt.op, accept);
        let listener = Listener { socket, private_data, acceptor, config, hosts };
        let listening = Listening::start(listener)
            .map_err(|error| attempt.failed("its thread cannot start", Some(error)))?;
        Ok(Box::new(listening))
    }
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
    /// The peer closed without a Reply, as one does that knows revision 1 only (RFC 5044 section 7.1.1).
    Closed,
    Foreign(FrameError),
}

impl DialError {
    fn told(self, attempt: &Attempt, peer: SocketAddr) -> FabricError {
        let (reason, source) = match self {
            Self::Reply(error) => (error.to_string(), None),
            Self::Closed => (format!("{peer} closed the connection: no iWARP server"), None),
            Self::Foreign(error) => (format!("{peer} is not an iWARP server: {error}"), None),
            Self::Socket(error) => match error.kind() {
                io::ErrorKind::ConnectionRefused => ("no server listens there".into(), Some(error)),
                io::ErrorKind::ConnectionReset => {
                    (format!("{peer} is busy, or does not admit this host"), Some(error))
                }
                io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                    (format!("{peer} did not answer in time"), None)
                }
                _ => ("the handshake failed".into(), Some(error)),
            },
        };
        attempt.failed(reason, source)
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
            Err(DialError::Reply(ReplyError::Revision) | DialError::Closed) => self.attempt(1)?,
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
            match Frame::parse(FrameKind::Reply, &bytes[..length]).map_err(DialError::Foreign)? {
                Parsed::Done((reply, _)) => {
                    let agreed = local.conclude(&reply).map_err(DialError::Reply)?;
                    return Ok((agreed, padded(reply.private_data)));
                }
                Parsed::Need(needed) => {
                    socket.set_read_timeout(Some(self.left()?))?;
                    match socket.read(&mut bytes[length..needed]) {
                        Ok(0) => return Err(DialError::Closed),
                        Ok(count) => length += count,
                        // With a timeout, a signal ends it whatever its handler is set to (signal(7)).
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
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
