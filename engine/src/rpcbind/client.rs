//! The client of a rpcbind daemon (RFC 1833), versions 2 to 4.
//!
//! One call at a time over one connection, with record marking. Called by `find_service`,
//! `Registration`, and programs that want more than those do.

use super::address::{Endpoint, Netid, PORTMAPPER_PORT};
use super::errors::RpcbindError;
use super::record::{self, MESSAGE_BYTES_MAX, RecordError};
use super::stream::{self, Limits, Stream};
use super::wire::{
    self, DUMP, Entry, GETADDR, Mapping, NULL, PROGRAM, SET, UNSET, VERSION_2, VERSION_3, VERSION_4,
};
use crate::api::CallError;
use spinrpc_proto::ids::{Procedure, Program, Version, Xid};
use spinrpc_proto::rpc::{AcceptStatus, CallHeader, OpaqueAuth};
use spinrpc_proto::xdr::{DecodeError, Reader, Writer};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Paths of the socket of this host's daemon, which learns the user through it.
const SOCKET_PATHS: [&str; 2] = ["/run/rpcbind.sock", "/var/run/rpcbind.sock"];

/// The daemon to speak to. As text: `local`, `unix:/path` or `HOST:PORT` with an IP address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Daemon {
    /// The daemon of this host: over its Unix socket (`/run/rpcbind.sock`,
    /// `/var/run/rpcbind.sock`), or else, but not to register, over TCP at port 111 of the loopback
    /// address.
    #[default]
    Local,
    /// One with this Unix socket.
    Unix(PathBuf),
    /// One at this TCP address. Addresses other than loopback refuse to register. A loopback one
    /// registers without an owner, so that any user of the host can take the registration back.
    Tcp(SocketAddr),
}

impl Daemon {
    /// Places to try, in this order; none of them is [`Daemon::Local`]. A caller that wants to own a
    /// registration must not come by TCP, where the daemon does not learn the user.
    fn places(&self, to_register: bool) -> Vec<Self> {
        match self {
            Self::Unix(_) | Self::Tcp(_) => vec![self.clone()],
            Self::Local => {
                let sockets = SOCKET_PATHS.iter().map(|path| Self::Unix(path.into()));
                let loopback = Self::Tcp((Ipv4Addr::LOCALHOST, PORTMAPPER_PORT).into());
                sockets.chain((!to_register).then_some(loopback)).collect()
            }
        }
    }

    fn connect(&self, deadline: Instant) -> io::Result<OwnedFd> {
        match self {
            Self::Unix(path) => stream::connect_unix(path, Limits::until(deadline)),
            Self::Tcp(address) => stream::connect(*address, None, Limits::until(deadline)),
            Self::Local => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

impl fmt::Display for Daemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => address.fmt(f),
        }
    }
}

/// Text that names no daemon.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is not the address of an rpcbind daemon; allowed are local, unix:/path and IP:PORT"
)]
pub struct ParseDaemonError(String);

impl FromStr for Daemon {
    type Err = ParseDaemonError;

    fn from_str(text: &str) -> Result<Self, ParseDaemonError> {
        if text == "local" {
            return Ok(Self::Local);
        }
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            Some(_) => Err(ParseDaemonError(text.to_owned())),
            None => text.parse().map(Self::Tcp).map_err(|_| ParseDaemonError(text.to_owned())),
        }
    }
}

/// A connection to a daemon. Every method blocks until it is answered, or for the timeout given to
/// [`Client::connect`]. After an error other than [`RpcbindError::Refused`] and
/// [`RpcbindError::TooOld`] the connection cannot be used any more.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    place: Daemon,
    version: Version,
    xid: Xid,
    timeout: Duration,
}

impl Client {
    /// Connects, and agrees on the highest version of rpcbind that both ends speak. Blocks for
    /// `timeout` at most, and so does each call.
    ///
    /// # Errors
    /// [`RpcbindError`] if a daemon does not answer, or is not rpcbind.
    pub fn connect(daemon: &Daemon, timeout: Duration) -> Result<Self, RpcbindError> {
        Self::connect_with(daemon, timeout, VERSION_4)
    }

    /// As [`Client::connect`], with version `newest` (4, 3 or 2) or an older one.
    ///
    /// # Errors
    /// [`RpcbindError`] if a daemon does not answer, or is not rpcbind.
    pub fn connect_with(
        daemon: &Daemon,
        timeout: Duration,
        newest: Version,
    ) -> Result<Self, RpcbindError> {
        Self::open(&daemon.places(false), timeout, newest)
    }

    /// Connects so that the daemon learns the user, where it can.
    pub(super) fn connect_to_register(
        daemon: &Daemon,
        timeout: Duration,
    ) -> Result<Self, RpcbindError> {
        Self::open(&daemon.places(true), timeout, VERSION_4)
    }

    fn open(places: &[Daemon], timeout: Duration, newest: Version) -> Result<Self, RpcbindError> {
        let deadline = Instant::now() + timeout;
        let mut tried = Vec::new();
        for place in places {
            match place.connect(deadline) {
                Ok(socket) => {
                    let (place, xid) = (place.clone(), Xid(0));
                    return Self { socket, place, version: newest, xid, timeout }.agree(deadline);
                }
                Err(error) => tried.push(format!("{place}: {error}")),
            }
        }
        Err(RpcbindError::NotRunning { tried: tried.join(", ") })
    }

    /// Steps down from version to version until the daemon knows one: a daemon that does not
    /// answers PROG_MISMATCH (RFC 5531 section 9).
    fn agree(mut self, deadline: Instant) -> Result<Self, RpcbindError> {
        loop {
            let message = self.exchange(NULL, deadline, &|_| {})?;
            match self.understand(&message)? {
                Some(results) => {
                    Reader::new(results).finish().map_err(|error| self.misread(error))?;
                    return Ok(self);
                }
                None if self.version <= VERSION_2 => return Err(self.no_version()),
                None => self.version = Version(self.version.0 - 1).min(VERSION_3),
            }
        }
    }

    /// The version of rpcbind that is spoken.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Calls the procedure that does nothing.
    ///
    /// # Errors
    /// [`RpcbindError`].
    pub fn null(&mut self) -> Result<(), RpcbindError> {
        self.call(NULL, &|_| {}, |_| Ok(()))
    }

    /// Registers. The daemon answers `false` if the place is taken by another address, or it does
    /// not let this user register; it replaces the owner by the user it knows.
    ///
    /// # Errors
    /// [`RpcbindError::TooOld`] if the daemon speaks version 2 only and the netid is not one of
    /// `tcp` and `udp`, and others.
    pub fn set(&mut self, entry: &Entry) -> Result<bool, RpcbindError> {
        self.change(SET, entry)
    }

    /// Takes back the registration with the program, version and netid of `entry`, whatever its
    /// address is. The daemon says `false` if that is another user's.
    ///
    /// # Errors
    /// As [`Client::set`].
    pub fn unset(&mut self, entry: &Entry) -> Result<bool, RpcbindError> {
        self.change(UNSET, entry)
    }

    fn change(&mut self, procedure: Procedure, entry: &Entry) -> Result<bool, RpcbindError> {
        if self.version > VERSION_2 {
            return self.call(procedure, &|args| entry.write(args), |results| results.bool());
        }
        let mapping = Mapping::of(entry).ok_or_else(|| self.too_old(&entry.netid))?;
        self.call(procedure, &|args| mapping.write(args), |results| results.bool())
    }

    /// The universal address at which `program` is served on **the network by which the daemon is
    /// asked**: it takes the netid from there, not from the call (RFC 1833 section 2.2.1). So this
    /// finds services on TCP, and on RDMA none; [`Client::find`] does. `None` if there is none.
    ///
    /// In version 2 it is GETPORT for TCP, put in the words of the later versions.
    ///
    /// # Errors
    /// [`RpcbindError`].
    pub fn address(
        &mut self,
        program: Program,
        version: Version,
    ) -> Result<Option<String>, RpcbindError> {
        let entry = Entry { program, version, netid: "tcp".to_owned(), ..Entry::default() };
        if self.version > VERSION_2 {
            let found = self.call(GETADDR, &|args| entry.write(args), wire::parse_text)?;
            return Ok((!found.is_empty()).then_some(found));
        }
        let mapping = Mapping::of(&entry).unwrap_or_default();
        let port = self.call(GETADDR, &|args| mapping.write(args), |results| results.u32())?;
        Ok((port > 0).then(|| Mapping { port, ..mapping }.to_entry().address))
    }

    /// Everything that is registered; with version 2 only TCP and UDP, without owners.
    ///
    /// # Errors
    /// [`RpcbindError`].
    pub fn dump(&mut self) -> Result<Vec<Entry>, RpcbindError> {
        if self.version > VERSION_2 {
            return self.call(DUMP, &|_| {}, wire::parse_entries);
        }
        let mappings = self.call(DUMP, &|_| {}, wire::parse_mappings)?;
        Ok(mappings.into_iter().map(Mapping::to_entry).collect())
    }

    /// Registration of a program, version and netid. It is looked up in the list of all
    /// registrations, because GETADDR answers only for the network that it is asked over.
    ///
    /// # Errors
    /// [`RpcbindError::TooOld`] if the daemon speaks version 2 only and the netid is not `tcp`, and
    /// others.
    pub fn entry(
        &mut self,
        program: Program,
        version: Version,
        netid: Netid,
    ) -> Result<Option<Entry>, RpcbindError> {
        if self.version <= VERSION_2 && netid != Netid::Tcp {
            return Err(self.too_old(netid.name()));
        }
        let wanted = |entry: &Entry| {
            entry.program == program && entry.version == version && entry.netid == netid.name()
        };
        Ok(self.dump()?.into_iter().find(wanted))
    }

    /// Address that a program and version has registered for a netid.
    ///
    /// # Errors
    /// [`RpcbindError::NotRegistered`] if it is not registered, [`RpcbindError::Address`] if the
    /// registered address is not valid, and others.
    pub fn find(
        &mut self,
        program: Program,
        version: Version,
        netid: Netid,
    ) -> Result<Endpoint, RpcbindError> {
        match self.entry(program, version, netid)? {
            Some(entry) => Ok(Endpoint::parse(netid, &entry.address)?),
            None => Err(RpcbindError::NotRegistered { program, version, netid }),
        }
    }

    fn call<T>(
        &mut self,
        procedure: Procedure,
        args: &dyn Fn(&mut Writer<'_>),
        results: impl FnOnce(&mut Reader<'_>) -> Result<T, DecodeError>,
    ) -> Result<T, RpcbindError> {
        let deadline = Instant::now() + self.timeout;
        let message = self.exchange(procedure, deadline, args)?;
        let Some(bytes) = self.understand(&message)? else { return Err(self.no_version()) };
        let mut reader = Reader::new(bytes);
        let decoded = results(&mut reader).and_then(|value| reader.finish().map(|()| value));
        decoded.map_err(|error| self.misread(error))
    }

    fn exchange(
        &mut self,
        procedure: Procedure,
        deadline: Instant,
        args: &dyn Fn(&mut Writer<'_>),
    ) -> Result<Vec<u8>, RpcbindError> {
        self.xid = Xid(self.xid.0.wrapping_add(1));
        let mut stream = Stream::new(&self.socket, Limits::until(deadline));
        let call = self.encode(procedure, args);
        let received = record::exchange(&mut stream, &call, MESSAGE_BYTES_MAX);
        received.map_err(|error| self.lost(error))
    }

    fn encode(&self, procedure: Procedure, args: &dyn Fn(&mut Writer<'_>)) -> Vec<u8> {
        let header = CallHeader {
            xid: self.xid,
            program: PROGRAM,
            version: self.version,
            procedure,
            credential: OpaqueAuth::NONE,
            verifier: OpaqueAuth::NONE,
        };
        let write = |writer: &mut Writer<'_>| {
            header.write(writer);
            args(writer);
        };
        let mut counter = Writer::new(&mut []);
        write(&mut counter);
        let mut message = vec![0; counter.len()];
        write(&mut Writer::new(&mut message));
        message
    }

    /// The results in an answer; `None` if the daemon does not speak the version.
    fn understand<'a>(&self, message: &'a [u8]) -> Result<Option<&'a [u8]>, RpcbindError> {
        let daemon = || self.place.to_string();
        let refused = |status| Err(RpcbindError::Refused { daemon: daemon(), status });
        match wire::parse_answer(message, self.xid) {
            Ok(Ok(results)) => Ok(Some(results)),
            Ok(Err(CallError::Accepted(AcceptStatus::ProgMismatch { .. }))) => Ok(None),
            Ok(Err(CallError::Accepted(status))) => refused(format!("{status:?}")),
            Ok(Err(error)) => refused(error.to_string()),
            Err(error) => Err(RpcbindError::answer(&daemon(), error)),
        }
    }

    fn misread(&self, error: DecodeError) -> RpcbindError {
        RpcbindError::answer(&self.place.to_string(), error.into())
    }

    fn no_version(&self) -> RpcbindError {
        let problem = "it speaks none of versions 2 to 4".to_owned();
        RpcbindError::Misbehaved { daemon: self.place.to_string(), problem }
    }

    fn too_old(&self, netid: &str) -> RpcbindError {
        RpcbindError::TooOld { daemon: self.place.to_string(), netid: netid.to_owned() }
    }

    fn lost(&self, error: RecordError) -> RpcbindError {
        let daemon = self.place.to_string();
        match error {
            RecordError::Io(error) if error.kind() == io::ErrorKind::TimedOut => {
                RpcbindError::TimedOut { daemon, after: self.timeout }
            }
            RecordError::Io(source) => RpcbindError::Disconnected { daemon, source },
            other => RpcbindError::Misbehaved { daemon, problem: other.to_string() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_named_by_path_or_address() {
        for text in ["local", "unix:/run/rpcbind.sock", "127.0.0.1:111", "[::1]:111"] {
            assert_eq!(text.parse::<Daemon>().unwrap().to_string(), text);
        }
        for text in ["", "unix:", "unix:x", "localhost", "127.0.0.1", "::1:111"] {
            let error = text.parse::<Daemon>().unwrap_err().to_string();
            assert!(error.contains("unix:/path"), "{error}");
        }
    }

    #[test]
    fn who_registers_does_not_come_by_tcp_unless_told_so() {
        let is_tcp = |place: &Daemon| matches!(place, Daemon::Tcp(_));
        assert!(!Daemon::Local.places(true).iter().any(is_tcp));
        assert!(Daemon::Local.places(false).iter().any(is_tcp));
        let loopback = Daemon::Tcp((Ipv4Addr::LOCALHOST, 111).into());
        assert!(loopback.places(true).iter().any(is_tcp));
    }
}
