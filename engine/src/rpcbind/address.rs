//! Netids and universal addresses (RFC 5665), and the well-known ones.
//!
//! Functions over text; only [`Endpoint::resolve`] asks the system. Called by the rest of `rpcbind`, and by programs.

use super::wire;
use crate::fabric::Address;
use spinrpc_proto::ids::Program;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Address of an engine's portmapper on shared memory, like port 111 on IP networks.
pub const PORTMAPPER_ADDRESS: &str = "shm:rpcbind";

/// Address of NFS on shared memory, like port 20049 (`nfsrdma`) on IP networks.
pub const NFS_ADDRESS: &str = "shm:nfsrdma";

/// The port of rpcbind and of a portmapper (RFC 5666 section 10).
pub const PORTMAPPER_PORT: u16 = 111;

/// The port of NFS over RDMA, `nfsrdma` (RFC 5666 sections 10 and 12).
pub const NFS_RDMA_PORT: u16 = 20049;

/// NFS (RFC 1813, RFC 7530).
const NFS: Program = Program(100_003);

/// A kind of network, as rpcbind knows it by name (RFC 5665 section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Netid {
    /// `rdma`: RDMA with IPv4 port addressing (RFC 5666 section 12).
    Rdma,
    /// `rdma6`: RDMA with IPv6 port addressing (RFC 5666 section 12).
    Rdma6,
    /// `tcp`: TCP with IPv4. The engine does not speak it; other programs of a service do, such as
    /// MOUNT.
    Tcp,
    /// `tcp6`: TCP with IPv6.
    Tcp6,
    /// `spinrpc-shm`: shared memory of one host. RFC 5666 section 10 lets a network without IP
    /// ports define its own netid; its universal addresses are the engine's: `shm:NAME`.
    Shm,
}

impl Netid {
    /// The name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rdma => "rdma",
            Self::Rdma6 => "rdma6",
            Self::Tcp => "tcp",
            Self::Tcp6 => "tcp6",
            Self::Shm => "spinrpc-shm",
        }
    }
}

impl fmt::Display for Netid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A universal address that is none, or not one of its netid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a universal address of netid {netid}")]
pub struct AddressError {
    /// The netid.
    pub netid: Netid,
    /// The rejected text.
    pub text: String,
}

/// Address at which a service listens. `Display` writes the form that
/// [`Core::connect`](crate::Core::connect) takes: `shm:NAME` or `any://HOST:PORT`, as netid `rdma` does not tell whether devices or
/// sockets (iWARP) lead there; and `tcp://HOST:PORT`, which it does not take.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// An IP port of an RDMA network.
    Ip(SocketAddr),
    /// A port of TCP.
    Tcp(SocketAddr),
    /// An address of the shared-memory fabric, `shm:NAME` or `shm:/absolute/path`.
    Shm(String),
}

impl Endpoint {
    /// Reads a universal address: `h1.h2.h3.h4.p1.p2` for `rdma` and `tcp`, `h1:…:h8.p1.p2` with
    /// the abbreviations of RFC 4291 for `rdma6` and `tcp6` (RFC 5665 sections 5.2.3.3 and
    /// 5.2.3.4), `p1` being the high octet of the port; `shm:NAME` for `spinrpc-shm`. Port 0, which
    /// cannot be listened on, and IPv6 zones are refused.
    ///
    /// # Errors
    /// [`AddressError`] when it is none.
    pub fn parse(netid: Netid, text: &str) -> Result<Self, AddressError> {
        let parsed = match netid {
            Netid::Shm => match Address::parse(text) {
                Ok(Address::Shm(address)) => Some(Self::Shm(address)),
                _ => None,
            },
            Netid::Rdma | Netid::Rdma6 => socket_address(netid, text).map(Self::Ip),
            Netid::Tcp | Netid::Tcp6 => socket_address(netid, text).map(Self::Tcp),
        };
        parsed.ok_or_else(|| AddressError { netid, text: text.to_owned() })
    }

    /// The endpoint of an address that an engine listens at: with the first of the IP addresses of
    /// a host that is given by name. Asks the resolver for that (blocks).
    ///
    /// # Errors
    /// Whatever the resolver says.
    pub fn resolve(address: &Address) -> io::Result<Self> {
        match (address, Self::literal(address)) {
            (_, Some(endpoint)) => Ok(endpoint),
            (Address::Shm(name), None) => Ok(Self::Shm(name.clone())),
            (Address::Rdma(address), None) => {
                let found = address.resolve()?.into_iter().next();
                found.map(Self::Ip).ok_or_else(|| io::ErrorKind::NotFound.into())
            }
        }
    }

    /// As [`Endpoint::resolve`], where no name has to be looked up.
    pub(super) fn literal(address: &Address) -> Option<Self> {
        match address {
            Address::Shm(name) => Some(Self::Shm(name.clone())),
            Address::Rdma(address) => address.literal().map(Self::Ip),
        }
    }

    /// The same endpoint, on host `ip` if its IP address is unspecified: the result of asking that
    /// host with [`find_service`].
    ///
    /// [`find_service`]: super::find_service
    #[must_use]
    pub fn on_host(self, ip: IpAddr) -> Self {
        let on = |address: SocketAddr| match address.ip().is_unspecified() {
            true => SocketAddr::new(ip, address.port()),
            false => address,
        };
        match self {
            Self::Ip(address) => Self::Ip(on(address)),
            Self::Tcp(address) => Self::Tcp(on(address)),
            Self::Shm(name) => Self::Shm(name),
        }
    }

    /// The netid under which it is registered.
    #[must_use]
    pub const fn netid(&self) -> Netid {
        match self {
            Self::Ip(SocketAddr::V4(_)) => Netid::Rdma,
            Self::Ip(SocketAddr::V6(_)) => Netid::Rdma6,
            Self::Tcp(SocketAddr::V4(_)) => Netid::Tcp,
            Self::Tcp(SocketAddr::V6(_)) => Netid::Tcp6,
            Self::Shm(_) => Netid::Shm,
        }
    }

    /// The universal address, as [`parse`](Self::parse) reads it.
    #[must_use]
    pub fn universal(&self) -> String {
        match self {
            Self::Ip(address) | Self::Tcp(address) => {
                let [high, low] = address.port().to_be_bytes();
                format!("{}.{high}.{low}", address.ip())
            }
            Self::Shm(address) => address.clone(),
        }
    }

    /// The port, of those that have one.
    #[must_use]
    pub const fn port(&self) -> Option<u16> {
        match self {
            Self::Ip(address) | Self::Tcp(address) => Some(address.port()),
            Self::Shm(_) => None,
        }
    }

    /// Address of `program` by convention, on every host; only of networks that the engine
    /// supports.
    pub(super) fn well_known(program: Program, netid: Netid) -> Option<Self> {
        let (port, address) = match program {
            NFS => (NFS_RDMA_PORT, NFS_ADDRESS),
            wire::PROGRAM => (PORTMAPPER_PORT, PORTMAPPER_ADDRESS),
            _ => return None,
        };
        Some(match netid {
            Netid::Rdma => Self::Ip((Ipv4Addr::UNSPECIFIED, port).into()),
            Netid::Rdma6 => Self::Ip((Ipv6Addr::UNSPECIFIED, port).into()),
            Netid::Shm => Self::Shm(address.to_owned()),
            Netid::Tcp | Netid::Tcp6 => return None,
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => write!(f, "any://{address}"),
            Self::Tcp(address) => write!(f, "tcp://{address}"),
            Self::Shm(address) => address.fmt(f),
        }
    }
}

fn socket_address(netid: Netid, text: &str) -> Option<SocketAddr> {
    let mut parts = text.rsplitn(3, '.');
    let (low, high, host) = (parts.next()?, parts.next()?, parts.next()?);
    let port = u16::from_be_bytes([octet(high)?, octet(low)?]);
    let host = match netid {
        Netid::Rdma | Netid::Tcp => IpAddr::V4(host.parse().ok()?),
        _ => IpAddr::V6(host.parse().ok()?),
    };
    (port > 0).then_some(SocketAddr::new(host, port))
}

/// A decimal octet; the standard library's parser alone would take a sign.
fn octet(text: &str) -> Option<u8> {
    text.bytes().all(|digit| digit.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ip(netid: Netid, universal: &str, address: SocketAddr) {
        let endpoint = Endpoint::Ip(address);
        assert_eq!(Endpoint::parse(netid, universal), Ok(endpoint.clone()));
        assert_eq!((endpoint.netid(), endpoint.universal().as_str()), (netid, universal));
    }

    #[test]
    fn the_port_of_a_universal_address_is_two_octets_high_one_first() {
        ip(Netid::Rdma, "192.0.2.1.78.81", "192.0.2.1:20049".parse().unwrap());
        ip(Netid::Rdma, "0.0.0.0.0.111", "0.0.0.0:111".parse().unwrap());
        ip(Netid::Rdma6, "2001:db8::1.78.81", "[2001:db8::1]:20049".parse().unwrap());
        ip(Netid::Rdma6, "::.255.255", "[::]:65535".parse().unwrap());
        ip(Netid::Rdma6, "::ffff:192.0.2.1.8.1", "[::ffff:192.0.2.1]:2049".parse().unwrap());
    }

    #[test]
    fn addresses_of_tcp_are_written_as_those_of_rdma() {
        for (netid, universal, shown) in [
            (Netid::Tcp, "192.0.2.1.78.80", "tcp://192.0.2.1:20048"),
            (Netid::Tcp6, "2001:db8::1.78.80", "tcp://[2001:db8::1]:20048"),
        ] {
            let endpoint = Endpoint::parse(netid, universal).unwrap();
            assert_eq!((endpoint.netid(), endpoint.universal().as_str()), (netid, universal));
            assert_eq!((endpoint.to_string().as_str(), endpoint.port()), (shown, Some(20048)));
        }
        assert!(Endpoint::parse(Netid::Tcp, "::.78.80").is_err());
        assert!(Endpoint::parse(Netid::Tcp6, "0.0.0.0.78.80").is_err());
        let every = Endpoint::parse(Netid::Tcp, "0.0.0.0.78.80").unwrap();
        assert_eq!(every.on_host([192, 0, 2, 7].into()).to_string(), "tcp://192.0.2.7:20048");
        assert_eq!(Endpoint::well_known(NFS, Netid::Tcp), None);
    }

    #[test]
    fn an_address_of_the_engine_is_one_of_its_own_netid() {
        let endpoint = Endpoint::parse(Netid::Shm, "shm:echo").unwrap();
        assert_eq!((endpoint.netid(), endpoint.universal().as_str()), (Netid::Shm, "shm:echo"));
        assert_eq!((endpoint.to_string().as_str(), endpoint.port()), ("shm:echo", None));
    }

    /// RFC 5666 section 10: a network without the port addressing of `rdma` has its own netid.
    #[test]
    fn shared_memory_has_a_netid_of_its_own() {
        let all = [Netid::Rdma, Netid::Rdma6, Netid::Tcp, Netid::Tcp6, Netid::Shm];
        let names = all.map(Netid::name);
        assert_eq!(names, ["rdma", "rdma6", "tcp", "tcp6", "spinrpc-shm"]);
        let shm = Endpoint::literal(&Address::parse("shm:echo").unwrap()).unwrap();
        assert_eq!(shm.netid().name(), "spinrpc-shm");
        for other in [Netid::Rdma, Netid::Rdma6, Netid::Tcp, Netid::Tcp6] {
            assert!(Endpoint::parse(other, "shm:echo").is_err(), "{other}");
        }
    }

    #[test]
    fn a_listener_has_the_endpoint_that_its_address_leads_to() {
        for (address, netid, universal) in [
            ("shm:echo", Netid::Shm, "shm:echo"),
            ("rdma://10.8.0.1", Netid::Rdma, "10.8.0.1.78.81"),
            ("rdma://[::]:111", Netid::Rdma6, "::.0.111"),
        ] {
            let endpoint = Endpoint::resolve(&Address::parse(address).unwrap()).unwrap();
            assert_eq!((endpoint.netid(), endpoint.universal().as_str()), (netid, universal));
            let shown = Address::parse(&endpoint.to_string()).unwrap();
            assert_eq!(Endpoint::literal(&shown), Some(endpoint));
        }
        let named = Address::parse("rdma://localhost:1").unwrap();
        assert_eq!(Endpoint::literal(&named), None);
        assert_eq!(Endpoint::resolve(&named).unwrap().port(), Some(1));
    }

    #[test]
    fn an_unspecified_host_is_the_one_that_was_asked() {
        let asked = IpAddr::from([192, 0, 2, 7]);
        let every = Endpoint::parse(Netid::Rdma, "0.0.0.0.78.81").unwrap();
        assert_eq!(every.on_host(asked).to_string(), "any://192.0.2.7:20049");
        let one = Endpoint::parse(Netid::Rdma, "192.0.2.1.78.81").unwrap();
        assert_eq!(one.clone().on_host(asked), one);
    }

    #[test]
    fn what_is_no_universal_address_is_refused() {
        let wrong = [
            "",
            ".",
            "..",
            "1.2.3.4",
            "1.2.3.4.5",
            "1.2.3.4.5.",
            "1.2.3.4.0.0",
            "1.2.3.4.256.1",
            "1.2.3.4.+1.1",
            "1.2.3.4.-1.1",
            "1.2.3.4.1.1.1",
            "01.2.3.4.1.1",
            " 1.2.3.4.1.1",
            "::1.1.1",
            "host.1.1",
            "1.2.3.4.1.\u{661}",
        ];
        for text in wrong {
            assert!(Endpoint::parse(Netid::Rdma, text).is_err(), "{text}");
        }
        for text in ["1.2.3.4.1.1", "fe80::1%eth0.1.1", "[::1].1.1", "::1", "::1.1"] {
            assert!(Endpoint::parse(Netid::Rdma6, text).is_err(), "{text}");
        }
        for text in ["", "echo", "shm:", "shm:a b", "1.2.3.4.1.1"] {
            assert!(Endpoint::parse(Netid::Shm, text).is_err(), "{text}");
        }
    }

    #[test]
    fn nfs_and_the_portmapper_have_well_known_ports() {
        let nfs = Endpoint::well_known(NFS, Netid::Rdma).unwrap();
        assert_eq!(nfs.to_string(), "any://0.0.0.0:20049");
        let nfs = Endpoint::well_known(NFS, Netid::Rdma6).unwrap();
        assert_eq!(nfs.universal(), "::.78.81");
        for program in [NFS, wire::PROGRAM] {
            let Some(Endpoint::Shm(address)) = Endpoint::well_known(program, Netid::Shm) else {
                panic!("{program} has no name")
            };
            assert_eq!(Address::parse(&address), Ok(Address::Shm(address)));
        }
        assert_eq!(Endpoint::well_known(Program(0x2000_0001), Netid::Shm), None);
    }

    proptest! {
        #[test]
        fn every_port_of_every_host_survives(address: SocketAddr) {
            // A zone or flow label has no place in a universal address.
            let endpoint = Endpoint::Ip(SocketAddr::new(address.ip(), address.port().max(1)));
            let parsed = Endpoint::parse(endpoint.netid(), &endpoint.universal());
            prop_assert_eq!(parsed, Ok(endpoint));
        }

        #[test]
        fn any_text_is_an_address_or_refused(text: String) {
            for netid in [Netid::Rdma, Netid::Rdma6, Netid::Tcp, Netid::Tcp6, Netid::Shm] {
                if let Ok(endpoint) = Endpoint::parse(netid, &text) {
                    prop_assert_eq!(endpoint.netid(), netid);
                }
            }
        }
    }
}
