//! MOUNT over TCP: ONC RPC with record marking, one call at a time, each with a deadline.
//!
//! Asks rpcbind on the same host for the port, unless it is given.

use crate::client::error::Error;
use crate::client::{Options, User};
use crate::mount3::{PROGRAM, VERSION};
use crate::tcp::DeadlineStream;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use spinrpc::rpcbind::wire::{Answer, parse_answer};
use spinrpc::rpcbind::{self, Daemon, PORTMAPPER_PORT, record};
use spinrpc::{AuthFlavor, CallError, DecodeError, Decoder, Encoder, Procedure, Xid};
use spinrpc_xdr::bytes_of;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Ports that only root may use: servers require one as proof of privilege.
const RESERVED_PORTS: std::ops::RangeInclusive<u16> = 600..=1023;
/// Maximum length of a credential's body, in bytes (RFC 5531 section 8.2).
const CREDENTIAL_BYTES_MAX: usize = 400;

/// A connection to a MOUNT service.
pub(super) struct TcpCaller {
    stream: TcpStream,
    place: SocketAddr,
    xid: Xid,
    user: Option<User>,
    timeout: Duration,
}

impl TcpCaller {
    /// Connects to the service on `host`. Blocks for the timeout at each address of the host, and
    /// as long again for rpcbind.
    pub(super) fn connect(host: &str, port: Option<u16>, options: &Options) -> Result<Self, Error> {
        let mut tried = Vec::new();
        let addresses = (host, port.unwrap_or(PORTMAPPER_PORT)).to_socket_addrs();
        let addresses = addresses.map_err(|error| unreachable(format!("{host}: {error}")))?;
        for mut place in addresses {
            if port.is_none() {
                match ask_rpcbind(place) {
                    Ok(port) => place.set_port(port),
                    Err(problem) => {
                        tried.push(problem);
                        continue;
                    }
                }
            }
            match open(place, options.timeout) {
                Ok(stream) => return Ok(Self::new(stream, place, options)),
                Err(error) => tried.push(format!("{place}: {error}")),
            }
        }
        Err(unreachable(tried.join("; ")))
    }

    fn new(stream: TcpStream, place: SocketAddr, options: &Options) -> Self {
        let (user, timeout) = (options.user.clone(), options.timeout);
        // Any number will do: there is one call at a time.
        Self { stream, place, xid: Xid(std::process::id()), user, timeout }
    }

    pub(super) fn call<T>(
        &mut self,
        name: &str,
        procedure: Procedure,
        args: impl Fn(&mut Encoder<'_>),
        decode: fn(&mut Decoder<'_>) -> Result<T, DecodeError>,
    ) -> Result<T, Error> {
        let answer = self.exchange(procedure, args).map_err(|error| self.lost(&error))?;
        let misbehaved = |problem| Error::Misbehaved { operation: name.to_owned(), problem };
        let failed = |source| Error::Call { operation: name.to_owned(), source };
        match parse_answer(&answer, self.xid) {
            Ok(Answer::Results(results)) => {
                decode(&mut Decoder::plain(results)).map_err(|error| misbehaved(error.to_string()))
            }
            Ok(Answer::OtherVersions) => Err(unreachable(format!(
                "the server at {} does not have version 3 of MOUNT",
                self.place
            ))),
            Ok(Answer::Accepted(status)) => Err(failed(CallError::Accepted(status))),
            Ok(Answer::Denied(status)) => Err(failed(CallError::Rejected(status))),
            Err(error) => Err(misbehaved(error.to_string())),
        }
    }

    fn exchange(
        &mut self,
        procedure: Procedure,
        args: impl Fn(&mut Encoder<'_>),
    ) -> Result<Vec<u8>, record::RecordError> {
        self.xid = Xid(self.xid.0.wrapping_add(1));
        let message = record::mark(&self.message(procedure, args))?;
        let mut stream = DeadlineStream::new(&self.stream, self.timeout);
        stream.write_all(&message)?;
        record::read(&mut stream)
    }

    /// A call (RFC 5531 section 9).
    fn message(&self, procedure: Procedure, args: impl Fn(&mut Encoder<'_>)) -> Vec<u8> {
        const CALL: u32 = 0;
        const RPC_VERSION: u32 = 2;
        let mut body = [0; CREDENTIAL_BYTES_MAX];
        let (flavor, length) = match &self.user {
            Some(user) => (AuthFlavor::Sys, user.credential().emit(&mut body).unwrap_or(0)),
            None => (AuthFlavor::None, 0),
        };
        bytes_of(|to| {
            for word in [self.xid.0, CALL, RPC_VERSION, PROGRAM.0, VERSION.0, procedure.0] {
                to.u32(word);
            }
            to.u32(flavor.to_wire());
            to.opaque(&body[..length]);
            to.u32(AuthFlavor::None.to_wire());
            to.opaque(&[]);
            args(to);
        })
    }

    fn lost(&self, error: &record::RecordError) -> Error {
        unreachable(format!("the connection to {} was lost: {error}", self.place))
    }
}

fn unreachable(problem: String) -> Error {
    Error::MountUnreachable(problem)
}

/// Asks the rpcbind at `place` for the port of the service.
fn ask_rpcbind(place: SocketAddr) -> Result<u16, String> {
    let asked = rpcbind::Client::connect(&Daemon::Tcp(place), rpcbind::TIMEOUT)
        .and_then(|mut client| client.address(PROGRAM, VERSION));
    let address = asked.map_err(|error| error.to_string())?;
    let address = address.ok_or_else(|| {
        format!("rpcbind at {place} knows no MOUNT service: start it (rpc.mountd) on the server")
    })?;
    port_of(&address).ok_or_else(|| {
        let address = address.escape_debug();
        format!("rpcbind at {place} returned \"{address}\", which is not an address")
    })
}

/// The port in a universal address: two octets, high one first (RFC 5665 section 5.2.3.3).
fn port_of(address: &str) -> Option<u16> {
    let mut octets = address.rsplit('.');
    let (low, high) = (octets.next()?.parse().ok()?, octets.next()?.parse().ok()?);
    Some(u16::from_be_bytes([high, low])).filter(|port| *port > 0)
}

/// A connection, from a reserved port if this process may use one.
fn open(place: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let (family, any): (_, IpAddr) = match place {
        SocketAddr::V4(_) => (AddressFamily::INET, Ipv4Addr::UNSPECIFIED.into()),
        SocketAddr::V6(_) => (AddressFamily::INET6, Ipv6Addr::UNSPECIFIED.into()),
    };
    for port in RESERVED_PORTS.rev() {
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        match bind(&socket, &SocketAddr::new(any, port)) {
            Ok(()) => {}
            Err(rustix::io::Errno::ADDRINUSE) => continue,
            Err(_) => break,
        }
        match connect(&socket, place, timeout) {
            Ok(()) => return Ok(socket.into()),
            // The same pair of ports is still in use by an earlier connection.
            Err(rustix::io::Errno::ADDRNOTAVAIL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    TcpStream::connect_timeout(&place, timeout)
}

/// Linux limits connect by the send timeout.
fn connect(socket: &OwnedFd, place: SocketAddr, timeout: Duration) -> rustix::io::Result<()> {
    set_socket_timeout(socket, Timeout::Send, Some(timeout))?;
    match rustix::net::connect(socket, &place) {
        Err(rustix::io::Errno::INPROGRESS) => Err(rustix::io::Errno::TIMEDOUT),
        other => other,
    }
}

#[cfg(test)]
mod tests;
