//! MOUNT over TCP: ONC RPC with record marking, one call at a time, each with a deadline.
//!
//! Asks rpcbind on the same host for the port, unless it is given.

use super::unreachable;
use crate::client::error::Error;
use crate::client::{Options, User};
use crate::mount3::{PROGRAM, VERSION};
use spinrpc::rpcbind::record::{self, MESSAGE_BYTES_MAX};
use spinrpc::rpcbind::stream::{Limits, Stream, connect};
use spinrpc::rpcbind::wire::{CallHeader, parse_answer};
use spinrpc::rpcbind::{self, Daemon, PORTMAPPER_PORT};
use spinrpc::{
    AcceptStatus, AuthFlavor, CallError, DecodeError, Decoder, Encoder, OpaqueAuth, Procedure, Xid,
};
use spinrpc_xdr::bytes_of;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Ports that only root may use: servers require one as proof of privilege.
const RESERVED_PORTS: std::ops::RangeInclusive<u16> = 600..=1023;
/// Maximum length of a credential's body, in bytes (RFC 5531 section 8.2).
const CREDENTIAL_BYTES_MAX: usize = 400;

pub(super) struct TcpCaller {
    socket: OwnedFd,
    place: SocketAddr,
    xid: Xid,
    user: Option<User>,
    timeout: Duration,
}

impl TcpCaller {
    /// Blocks for the timeout at each address of the host, and as long again for rpcbind.
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
                Ok(socket) => return Ok(Self::new(socket, place, options)),
                Err(error) => tried.push(format!("{place}: {error}")),
            }
        }
        Err(unreachable(tried.join("; ")))
    }

    fn new(socket: OwnedFd, place: SocketAddr, options: &Options) -> Self {
        let (user, timeout) = (options.user.clone(), options.timeout);
        // Any number will do: there is one call at a time.
        Self { socket, place, xid: Xid(std::process::id()), user, timeout }
    }

    pub(super) fn call<T>(
        &mut self,
        name: &str,
        procedure: Procedure,
        args: impl Fn(&mut Encoder<'_>),
        decode: fn(&mut Decoder<'_>) -> Result<T, DecodeError>,
    ) -> Result<T, Error> {
        let answer = self.exchange(procedure, args).map_err(|error| self.lost(&error))?;
        let misbehaved = |problem| Error::Misbehaved(name.to_owned(), problem);
        let failed = |source| Error::Call(name.to_owned(), source);
        match parse_answer(&answer, self.xid) {
            Ok(Ok(results)) => {
                decode(&mut Decoder::plain(results)).map_err(|error| misbehaved(error.to_string()))
            }
            Ok(Err(CallError::Accepted(AcceptStatus::ProgMismatch { .. }))) => Err(unreachable(
                format!("the server at {} does not have version 3 of MOUNT", self.place),
            )),
            Ok(Err(error)) => Err(failed(error)),
            Err(error) => Err(misbehaved(error.to_string())),
        }
    }

    fn exchange(
        &mut self,
        procedure: Procedure,
        args: impl Fn(&mut Encoder<'_>),
    ) -> Result<Vec<u8>, record::RecordError> {
        self.xid = Xid(self.xid.0.wrapping_add(1));
        let message = self.message(procedure, args);
        let mut stream = Stream::new(&self.socket, Limits::within(self.timeout));
        record::exchange(&mut stream, &message, MESSAGE_BYTES_MAX)
    }

    fn message(&self, procedure: Procedure, args: impl Fn(&mut Encoder<'_>)) -> Vec<u8> {
        let mut body = [0; CREDENTIAL_BYTES_MAX];
        let credential = match &self.user {
            Some(user) => {
                let length = user.credential().emit(&mut body).unwrap_or(0);
                OpaqueAuth { flavor: AuthFlavor::Sys, body: &body[..length] }
            }
            None => OpaqueAuth::NONE,
        };
        let (program, version, verifier) = (PROGRAM, VERSION, OpaqueAuth::NONE);
        let xid = self.xid;
        let header = CallHeader { xid, program, version, procedure, credential, verifier };
        let mut message = vec![0; header.buffer_len()];
        header.emit(&mut message);
        message.extend(bytes_of(args));
        message
    }

    fn lost(&self, error: &record::RecordError) -> Error {
        unreachable(format!("the connection to {} was lost: {error}", self.place))
    }
}

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
fn open(place: SocketAddr, timeout: Duration) -> io::Result<OwnedFd> {
    let limits = Limits::within(timeout);
    for port in RESERVED_PORTS.rev() {
        let connected = connect(place, Some(port), limits);
        match connected.as_ref().map_err(io::Error::kind) {
            // The port, or the pair of ports, is in use by another connection.
            Err(io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable) => {}
            Err(io::ErrorKind::PermissionDenied) => break,
            _ => return connected,
        }
    }
    connect(place, None, limits)
}

#[cfg(test)]
mod tests;
