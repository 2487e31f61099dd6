//! Hosts and users, as far as limits for each can tell them apart.

use super::Peer;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Host of a connection, for limits per host; over shared memory its user ([`LimitScope::of_peer`]).
///
/// A host is an address of IPv4, however it is written, or a /64 of IPv6: within one, a host takes as many
/// addresses as it likes (RFC 4291 section 2.5.4, RFC 8981). Link-local addresses count one by one, as
/// all hosts of a link share their /64.
///
/// ```
/// # use spinrpc_fabric::LimitScope;
///
/// let origin = |address: &str| Ok::<_, std::net::AddrParseError>(LimitScope::of(address.parse()?));
/// assert_eq!(origin("2001:db8::1")?, origin("2001:db8::2:1")?);
/// assert_ne!(origin("2001:db8::1")?, origin("2001:db8:0:1::1")?);
/// assert_eq!(origin("::ffff:192.0.2.1")?, origin("192.0.2.1")?);
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitScope(Scope);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Scope {
    Address(Ipv4Addr),
    Network([u16; 4]),
    OnLink(Ipv6Addr),
    User(u32),
    #[cfg(feature = "sim")]
    Simulated(usize),
}

impl LimitScope {
    /// Origin of the peer of a connection: its host, or its user on this one.
    pub fn of_peer(peer: &Peer) -> Self {
        match peer {
            Peer::Socket(address) => Self::of(address.ip()),
            Peer::Process { uid, .. } => Self(Scope::User(*uid)),
            #[cfg(feature = "sim")]
            Peer::Simulated(side) => Self(Scope::Simulated(side.0)),
        }
    }

    /// Host that has this address.
    pub fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(address) => Scope::Address(address),
            IpAddr::V6(address) if address.is_unicast_link_local() => Scope::OnLink(address),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Scope::Network([a, b, c, d])
            }
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_a_link_count_one_by_one_and_addresses_of_a_64_together() {
        let origin = |address: &str| LimitScope::of(address.parse().unwrap());
        assert_eq!(origin("2001:db8:0:1::1"), origin("2001:db8:0:1:ffff:0:0:2"));
        assert_ne!(origin("2001:db8:0:1::1"), origin("2001:db8:0:2::1"));
        assert_ne!(origin("fe80::1"), origin("fe80::2"));
        assert_eq!(origin("::ffff:192.0.2.1"), origin("192.0.2.1"));
        assert_ne!(origin("192.0.2.1"), origin("192.0.2.2"));
    }
}
