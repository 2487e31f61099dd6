//! Addresses in text form: `shm:NAME`, `rdma://HOST:PORT`, `iwarp://HOST:PORT` and `any://HOST:PORT`. The part before the
//! name tells which driver an address belongs to.
//!
//! Pure functions over text, above the drivers, which take them apart with these. Programs call
//! them before they start an engine.

use super::shm;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

/// The port of an address that names none: that of NFS over RDMA (RFC 5666 section 12).
pub const RDMA_PORT: u16 = 20049;

const HOST_BYTES_MAX: usize = 253;
const HOST_FORMS: &str = "rdma://HOST:PORT (an RDMA device), iwarp://HOST:PORT (a TCP socket) or any://HOST:PORT (a device, \
                          else a socket), where HOST is a name, an IPv4 address or an IPv6 address in brackets, and the \
                          port may be left out (20049)";

/// A rejected address, with the reason and the allowed forms.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{address}\" is not a valid {kind}: {reason}; allowed are {forms}")]
pub struct AddressError {
    /// The rejected text.
    pub address: String,
    /// The kind that was expected: `address`, or `shm address`.
    pub kind: &'static str,
    /// Reason for the rejection.
    pub reason: &'static str,
    /// The allowed forms.
    pub forms: &'static str,
}

/// A checked address of any driver.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// An address of the shared-memory driver, as it was written.
    Shm(String),
    /// An address of the driver of RDMA devices, or of that of TCP sockets ([`RdmaAddress::transport`]).
    Rdma(RdmaAddress),
}

impl Address {
    /// Reads an address of any driver. Does not check for a listener, and resolves no name.
    ///
    /// # Errors
    /// [`AddressError`] when it is none.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        if text.starts_with("shm:") {
            return shm::check_address(text).map(|()| Self::Shm(text.to_owned()));
        }
        if Transport::of(text).is_some() {
            return RdmaAddress::parse(text).map(Self::Rdma);
        }
        Err(AddressError {
            address: text.to_owned(),
            kind: "address",
            reason: "it must start with shm:, rdma://, iwarp:// or any://",
            forms: "shm:NAME, shm:/absolute/path, rdma://HOST:PORT, iwarp://HOST:PORT and any://HOST:PORT",
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shm(address) => f.write_str(address),
            Self::Rdma(address) => address.fmt(f),
        }
    }
}

/// Checks that `address` is one of some driver, as [`Address::parse`] does.
///
/// # Errors
/// [`AddressError`] when it is none.
pub fn check_address(address: &str) -> Result<(), AddressError> {
    Address::parse(address).map(drop)
}

/// Way to the host of an [`RdmaAddress`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// `rdma://`: an RDMA device.
    Device,
    /// `iwarp://`: a TCP socket of the process.
    Socket,
    /// `any://`: a device if one leads to the host, else a socket.
    Any,
}

impl Transport {
    const ALL: [Self; 3] = [Self::Device, Self::Socket, Self::Any];

    /// The beginning of an address.
    pub const fn scheme(self) -> &'static str {
        match self {
            Self::Device => "rdma://",
            Self::Socket => "iwarp://",
            Self::Any => "any://",
        }
    }

    /// The transport and the rest of an address that begins with its scheme.
    fn of(address: &str) -> Option<(Self, &str)> {
        Self::ALL.into_iter().find_map(|it| Some((it, address.strip_prefix(it.scheme())?)))
    }
}

/// A host, the way to it, and a port; `Display` writes it as it is read, always with the port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RdmaAddress {
    host: String,
    port: u16,
    transport: Transport,
}

impl RdmaAddress {
    /// Reads `rdma://HOST:PORT`, `iwarp://HOST:PORT` or `any://HOST:PORT`: the host is a name, an IPv4 address, or an IPv6
    /// address in brackets, with a zone if it needs one (`[fe80::1%eth0]`); without a port it is [`RDMA_PORT`].
    ///
    /// # Errors
    /// [`AddressError`] when it is none.
    pub fn parse(address: &str) -> Result<Self, AddressError> {
        let parsed = match Transport::of(address) {
            Some((transport, rest)) => {
                host_and_port(rest).map(|(host, port)| Self { host, port, transport })
            }
            None if address.starts_with("shm:") => Err(SHM_ADDRESS),
            None => Err("it must start with rdma://, iwarp:// or any://"),
        };
        parsed.map_err(|reason| refused(address, reason))
    }

    /// As [`parse`](Self::parse), for the driver of TCP sockets or that of devices.
    pub(crate) fn of_driver(address: &str, is_over_socket: bool) -> Result<Self, AddressError> {
        let parsed = Self::parse(address)?;
        match (parsed.transport, is_over_socket) {
            (Transport::Socket, false) => Err(refused(address, SOCKET_ADDRESS)),
            (Transport::Device, true) => Err(refused(address, DEVICE_ADDRESS)),
            _ => Ok(parsed),
        }
    }

    /// The way to the host.
    pub const fn transport(&self) -> Transport {
        self.transport
    }

    /// The host: a name, or an IP address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port, never 0.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The socket address, if the host is an IP address without a zone and so needs no resolving.
    #[must_use]
    pub fn literal(&self) -> Option<SocketAddr> {
        let ip: IpAddr = self.host.parse().ok()?;
        Some(SocketAddr::new(ip, self.port))
    }

    /// The socket addresses of the host; never none. Asks the resolver for a name: blocks.
    ///
    /// # Errors
    /// Whatever the resolver says.
    pub fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        let found: Vec<_> = (self.host.as_str(), self.port).to_socket_addrs()?.collect();
        match found.is_empty() {
            true => Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address")),
            false => Ok(found),
        }
    }

    /// Asks the kernel's connection manager whether an RDMA device of this host leads there, or, for an address of this
    /// host, has it. Blocks as [`resolve`](Self::resolve).
    ///
    /// # Errors
    /// None does; the reason of the resolver or of the kernel. Always, without the feature `verbs`.
    pub fn find_device(&self) -> io::Result<()> {
        #[cfg(feature = "verbs")]
        return super::verbs::leads_to(self);
        #[cfg(not(feature = "verbs"))]
        Err(io::Error::new(io::ErrorKind::Unsupported, "built without the feature verbs"))
    }

    /// The address of this host, with port 0, by which packets leave for that one, by the kernel's routes; the same one if
    /// it is of this host. Blocks as [`resolve`](Self::resolve).
    ///
    /// # Errors
    /// Whatever the resolver says; no route.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        let peer = self.resolve()?[0];
        let every: IpAddr = match peer {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        if peer.ip().is_unspecified() {
            return Ok(SocketAddr::new(every, 0));
        }
        // To connect a UDP socket sends nothing.
        let socket = UdpSocket::bind((every, 0))?;
        socket.connect(peer)?;
        let mut local = socket.local_addr()?;
        local.set_port(0);
        Ok(local)
    }
}

impl fmt::Display for RdmaAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, transport } = self;
        let scheme = transport.scheme();
        match host.contains(':') {
            true => write!(f, "{scheme}[{host}]:{port}"),
            false => write!(f, "{scheme}{host}:{port}"),
        }
    }
}

const SHM_ADDRESS: &str =
    "it is for shared memory, and this engine's driver is another one (fabric.driver)";
const SOCKET_ADDRESS: &str =
    "it is for TCP sockets, and this engine's driver is verbs (fabric.driver)";
const DEVICE_ADDRESS: &str =
    "it is for RDMA devices, and this engine's driver is iwarp (fabric.driver)";

fn refused(address: &str, reason: &'static str) -> AddressError {
    AddressError { address: address.to_owned(), kind: "rdma address", reason, forms: HOST_FORMS }
}

fn host_and_port(rest: &str) -> Result<(String, u16), &'static str> {
    let (host, port) = match rest.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once(']').ok_or("a bracket is not closed")?,
        None => rest.split_at(rest.find(':').unwrap_or(rest.len())),
    };
    let is_host = match rest.starts_with('[') {
        true => is_ipv6(host),
        false => is_name(host),
    };
    if !is_host {
        return Err("the host is empty, too long, or has a character that is not allowed");
    }
    let port = match port.strip_prefix(':') {
        Some(digits) => port_number(digits).ok_or("the port is not a number from 1 to 65535")?,
        None if port.is_empty() => RDMA_PORT,
        None => return Err("after a bracket comes nothing but a port"),
    };
    Ok((host.to_owned(), port))
}

/// Characters that may be sent to the resolver: letters, digits and the separators between them.
fn is_name(host: &str) -> bool {
    (1..=HOST_BYTES_MAX).contains(&host.len()) && host.bytes().all(is_name_byte)
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._".contains(&byte)
}

/// An IPv6 address, with the zone that a link-local one needs on a host with several links.
fn is_ipv6(host: &str) -> bool {
    let (address, zone) = host.split_once('%').unwrap_or((host, "0"));
    address.parse::<std::net::Ipv6Addr>().is_ok() && is_name(zone)
}

/// The standard library's parser alone would take a sign.
fn port_number(digits: &str) -> Option<u16> {
    let number: u16 = digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())??;
    (number > 0).then_some(number)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hosts_are_names_and_ip_addresses_with_a_port_or_that_of_nfs() {
        for (text, host, port) in [
            ("rdma://10.8.0.1:4000", "10.8.0.1", 4000),
            ("rdma://storage-7.example:1", "storage-7.example", 1),
            ("rdma://localhost", "localhost", 20049),
            ("rdma://[::1]:65535", "::1", 65535),
            ("rdma://[fe80::1%eth0]", "fe80::1%eth0", 20049),
        ] {
            let address = RdmaAddress::parse(text).unwrap();
            assert_eq!((address.host(), address.port()), (host, port), "{text}");
        }
    }

    #[test]
    fn an_address_is_shown_as_it_is_read_with_its_port() {
        for (written, shown) in [
            ("rdma://h", "rdma://h:20049"),
            ("rdma://[::1]", "rdma://[::1]:20049"),
            ("rdma://1.2.3.4:5", "rdma://1.2.3.4:5"),
            ("iwarp://[::1]", "iwarp://[::1]:20049"),
            ("any://h", "any://h:20049"),
        ] {
            assert_eq!(RdmaAddress::parse(written).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn only_an_ip_address_is_known_without_the_resolver() {
        let literal = |text| RdmaAddress::parse(text).unwrap().literal();
        assert_eq!(literal("rdma://[::1]:7"), Some("[::1]:7".parse().unwrap()));
        assert_eq!(literal("rdma://localhost:7"), None);
        let resolved = RdmaAddress::parse("rdma://127.0.0.1:7").unwrap().resolve().unwrap();
        assert_eq!(resolved, ["127.0.0.1:7".parse().unwrap()]);
    }

    #[test]
    fn packets_to_this_host_leave_it_with_its_own_address() {
        let local = |text| RdmaAddress::parse(text).unwrap().local_address();
        for (text, own) in [("any://127.0.0.1", "127.0.0.1:0"), ("any://0.0.0.0", "0.0.0.0:0")] {
            assert_eq!(local(text).unwrap().to_string(), own);
        }
        // The host may lack IPv6.
        let sixth = local("any://[::1]");
        assert!(sixth.as_ref().map_or(true, |own| own.ip().is_loopback()), "{sixth:?}");
    }

    #[test]
    fn anything_else_is_refused_in_one_line_with_the_forms() {
        let long_host = format!("rdma://{}", "x".repeat(254));
        for text in [
            "rdma://",
            "rdma://:20049",
            "rdma://h:",
            "rdma://h:0",
            "rdma://h:65536",
            "rdma://h:+1",
            "rdma://h:20049/export",
            "rdma://user@h",
            "rdma://a b",
            "rdma://::1",
            "rdma://[::1",
            "rdma://[::1]20049",
            "rdma://[h]:1",
            "rdma://[::1%]:1",
            &long_host,
        ] {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(error.contains("allowed are rdma://HOST:PORT"), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        for text in ["", "h:20049", "tcp:1", "rdma:h", "RDMA://h", "iwarp:h", "any:/h"] {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(error.contains("must start with shm:"), "{error}");
        }
    }

    #[test]
    fn an_address_of_the_other_driver_is_named_as_that() {
        let error = RdmaAddress::parse("shm:echo").unwrap_err();
        assert!(error.reason.contains("fabric.driver"), "{error}");
        for address in ["rdma://h:1", "iwarp://h:1"] {
            let error = shm::check_address(address).unwrap_err();
            assert!(error.reason.contains("fabric.driver"), "{error}");
        }
        for (address, is_over_socket) in [("rdma://h:1", false), ("iwarp://h:1", true)] {
            assert!(RdmaAddress::of_driver(address, is_over_socket).is_ok(), "{address}");
            let error = RdmaAddress::of_driver(address, !is_over_socket).unwrap_err();
            assert!(error.reason.contains("fabric.driver"), "{error}");
            assert!(RdmaAddress::of_driver("any://h:1", is_over_socket).is_ok());
        }
    }

    proptest! {
        #[test]
        fn what_is_read_reads_back_as_it_is_shown(text in "(rdma|iwarp|any)://[a-z0-9.:%\\[\\]-]{0,20}") {
            if let Ok(address) = RdmaAddress::parse(&text) {
                prop_assert_eq!(RdmaAddress::parse(&address.to_string()), Ok(address));
            }
        }

        #[test]
        fn every_ip_address_and_port_is_an_address(ip: IpAddr, port in 1..=u16::MAX) {
            let socket = SocketAddr::new(ip, port);
            let address = RdmaAddress::parse(&format!("rdma://{socket}"));
            prop_assert_eq!(address.unwrap().literal(), Some(socket));
        }
    }
}
