//! Peers of connections, and the client lists of exports.

use crate::server::errors::Problem;
use spinrpc::sys::credentials::check_own_user;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

/// The peer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A host.
    Host(IpAddr),
    /// A process of this host, over shared memory or a Unix socket.
    Local {
        /// Its user.
        uid: u32,
    },
    /// Unidentified.
    Unknown,
}

impl Peer {
    pub(in crate::server) fn canonical(self) -> Self {
        match self {
            Self::Host(address) => Self::Host(address.to_canonical()),
            other => other,
        }
    }
}

impl From<&spinrpc::Peer> for Peer {
    fn from(peer: &spinrpc::Peer) -> Self {
        match peer {
            spinrpc::Peer::Socket(address) => Self::Host(address.ip()),
            spinrpc::Peer::Process { uid, .. } => Self::Local { uid: *uid },
            _ => Self::Unknown,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(address) => address.to_canonical().fmt(f),
            Self::Local { uid } => write!(f, "local:{uid}"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

/// One or several admitted clients. As text: `any`, `local` (the server's user), `local:UID`,
/// `ADDRESS`, `ADDRESS/BITS`, `NAME` of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Client {
    /// Hosts whose address begins with this many bits of this one.
    Network {
        /// The address.
        address: IpAddr,
        /// Number of significant bits.
        bits: u8,
    },
    /// Processes of this host and user, over shared memory.
    Local {
        /// The user.
        uid: u32,
    },
    /// A host by its DNS name. Its addresses are looked up elsewhere: see [`NamedHosts`].
    Name(String),
    /// Everyone.
    Any,
}

/// Addresses of clients that are listed by name, when they were last looked up. Without an answer there are
/// none, and the client has no access.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedHosts(Arc<[IpAddr]>);

impl NamedHosts {
    /// Hosts with these addresses.
    pub fn new(addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        let mut all: Vec<IpAddr> =
            addresses.into_iter().map(|address| address.to_canonical()).collect();
        all.sort_unstable();
        all.dedup();
        Self(all.into())
    }

    /// Returns whether the peer has one of the addresses.
    #[must_use]
    pub fn has(&self, peer: &Peer) -> bool {
        match peer {
            Peer::Host(host) if !self.0.is_empty() => {
                self.0.binary_search(&host.to_canonical()).is_ok()
            }
            _ => false,
        }
    }
}

impl Client {
    /// Returns whether `peer` is included; never for names, whose addresses an export has. An IPv4 address is the same in all notations, also
    /// mapped into IPv6 (RFC 4291 section 2.5.5.2), as dual-stack sockets report it.
    #[must_use]
    pub fn covers(&self, peer: &Peer) -> bool {
        match (self, peer) {
            (Self::Any, _) => true,
            (Self::Local { uid }, Peer::Local { uid: caller }) => uid == caller,
            (Self::Network { address, bits }, Peer::Host(host)) => {
                let bits = u32::from(*bits) + u32::from(128 - bits_of(*address));
                let is_alike = (mapped(*address) ^ mapped(*host)).leading_zeros() >= bits;
                // A shorter network is one of IPv6.
                is_alike && (bits >= MAPPED_BITS || host.to_canonical().is_ipv6())
            }
            _ => false,
        }
    }
}

/// Maximum length of a name (RFC 1035 section 2.3.4).
const NAME_BYTES_MAX: usize = 253;
/// Bits before the IPv4 address in a mapped IPv6 address.
const MAPPED_BITS: u32 = 96;

fn mapped(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn bits_of(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn unknown(text: &str) -> Problem {
    Problem(format!(
        "{text:?} is not a client; expected an IP address, a network such as 192.0.2.0/24 or \
         2001:db8::/32, the DNS name of a host, local (the server's user), local:UID or any"
    ))
}

impl FromStr for Client {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        let unknown = || unknown(text);
        match text.split_once(':') {
            _ if text == "any" => Ok(Self::Any),
            _ if text == "local" => {
                // Others may be indistinguishable from this process's user.
                check_own_user().map_err(|error| Problem(format!("client=local: {error}")))?;
                Ok(Self::Local { uid: rustix::process::geteuid().as_raw() })
            }
            Some(("local", uid)) => Ok(Self::Local { uid: decimal(uid).ok_or_else(unknown)? }),
            _ if is_host_name(text) => Ok(Self::Name(text.to_ascii_lowercase())),
            _ => network(text),
        }
    }
}

/// RFC 1123 section 2.1. The last label of a name has a letter, so that no address is one.
fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        let is_edged = label.starts_with('-') || label.ends_with('-');
        (1..=63).contains(&label.len()) && !is_edged && label.bytes().all(is_plain)
    };
    let name = text.strip_suffix('.').unwrap_or(text);
    let last = name.rsplit('.').next().unwrap_or_default();
    let has_letter = last.bytes().any(|byte| byte.is_ascii_alphabetic());
    name.len() <= NAME_BYTES_MAX && has_letter && name.split('.').all(is_label)
}

fn network(text: &str) -> Result<Client, Problem> {
    let unknown = || unknown(text);
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(decimal(bits).ok_or_else(unknown)?)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| unknown())?;
    let bits = bits.unwrap_or(bits_of(address).into());
    let bits = u8::try_from(bits).ok().filter(|bits| *bits <= bits_of(address));
    let bits = bits.ok_or_else(unknown)?;
    // Bits beyond the network: one of the two is wrong.
    if mapped(address).trailing_zeros() < u32::from(bits_of(address) - bits) {
        return Err(Problem(format!(
            "{text:?} is not a network: it has bits set beyond the first {bits}; use ADDRESS for a single \
             host"
        )));
    }
    Ok(Client::Network { address, bits })
}

/// A number without a sign, which the standard library's parser would accept.
pub(super) fn decimal(text: &str) -> Option<u32> {
    text.bytes().all(|digit| digit.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Name(name) => f.write_str(name),
            Self::Local { uid } => write!(f, "local:{uid}"),
            Self::Network { address, bits } if *bits == bits_of(*address) => address.fmt(f),
            Self::Network { address, bits } => write!(f, "{address}/{bits}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn client(text: &str) -> Client {
        text.parse().unwrap()
    }

    fn host(text: &str) -> Peer {
        Peer::Host(text.parse().unwrap())
    }

    #[test]
    fn a_network_is_the_hosts_whose_address_begins_alike() {
        for (network, inside, outside) in [
            ("192.0.2.0/24", "192.0.2.255", "192.0.3.0"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.6"),
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("0.0.0.0/0", "203.0.113.1", "2001:db8::1"),
            ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::"),
            ("::1", "::1", "::2"),
            ("::/0", "2001:db8::1", "192.0.2.1"),
        ] {
            assert!(client(network).covers(&host(inside)), "{network} {inside}");
            assert!(!client(network).covers(&host(outside)), "{network} {outside}");
        }
    }

    #[test]
    fn an_ipv4_address_within_ipv6_is_that_ipv4_address() {
        assert!(client("192.0.2.0/24").covers(&host("::ffff:192.0.2.1")));
        assert!(!client("192.0.2.0/24").covers(&host("::ffff:192.0.3.1")));
        assert!(client("::ffff:192.0.2.0/120").covers(&host("192.0.2.1")));
        assert!(!client("::ffff:192.0.2.0/120").covers(&host("192.0.3.1")));
        assert!(!client("::/0").covers(&host("::ffff:192.0.2.1")));
    }

    #[test]
    fn a_local_client_is_a_user_of_this_host_and_no_host() {
        let peer = Peer::Local { uid: 1000 };
        assert!(client("local:1000").covers(&peer) && client("any").covers(&peer));
        for other in ["local:1001", "127.0.0.1", "::1", "0.0.0.0/0", "::/0"] {
            assert!(!client(other).covers(&peer), "{other}");
        }
        assert!(!client("local:0").covers(&host("127.0.0.1")));
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(client("local"), Client::Local { uid: own });
    }

    #[test]
    fn a_name_covers_the_addresses_that_were_found_for_it() {
        assert_eq!(client("Backup.Example.net").to_string(), "backup.example.net");
        for name in ["backup.example.net", "backup", "3com.example"] {
            assert!(!client(name).covers(&host("192.0.2.7")), "{name}");
            assert_eq!(client(&client(name).to_string()), client(name));
        }
        let addresses = ["::ffff:192.0.2.7", "2001:db8::1", "192.0.2.7"];
        let hosts = NamedHosts::new(addresses.map(|address| address.parse().unwrap()));
        for inside in ["192.0.2.7", "::ffff:192.0.2.7", "2001:db8::1"] {
            assert!(hosts.has(&host(inside)), "{inside}");
        }
        for peer in [host("192.0.2.8"), Peer::Local { uid: 0 }, Peer::Unknown] {
            assert!(!hosts.has(&peer) && !NamedHosts::default().has(&peer), "{peer}");
        }
    }

    #[test]
    fn who_cannot_be_named_comes_in_only_with_everybody() {
        for one in ["local", "0.0.0.0/0", "::/0"] {
            assert!(!client(one).covers(&Peer::Unknown), "{one}");
        }
        assert!(client("any").covers(&Peer::Unknown));
    }

    #[test]
    fn a_peer_is_a_host_whatever_its_port_or_a_user_whatever_his_process() {
        let socket = spinrpc::Peer::Socket("192.0.2.1:4000".parse().unwrap());
        assert_eq!(Peer::from(&socket), host("192.0.2.1"));
        let process = spinrpc::Peer::Process { uid: 1000, pid: 12 };
        assert_eq!(Peer::from(&process), Peer::Local { uid: 1000 });
    }

    #[test]
    fn what_names_no_client_is_refused_with_what_does() {
        for text in [
            "",
            "*",
            "*.example.net",
            "ho_st",
            "-host",
            "host-",
            "a..b",
            "1.2.3",
            "a b",
            "@netgroup",
            "host/24",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "::/129",
            "local:",
            "local:-1",
            "local:root",
            "any:1",
            "10.0.0.0/8/8",
        ] {
            let error = text.parse::<Client>().unwrap_err().to_string();
            assert!(error.contains("192.0.2.0/24"), "{text}: {error}");
        }
        let error = "10.0.0.1/8".parse::<Client>().unwrap_err().to_string();
        assert!(error.contains("not a network"), "{error}");
    }

    /// The address with its last bits cleared.
    fn cut(address: IpAddr, bits: u8) -> IpAddr {
        let beyond = u32::from(bits_of(address) - bits);
        match address {
            IpAddr::V4(a) => {
                IpAddr::V4((a.to_bits() & u32::MAX.checked_shl(beyond).unwrap_or(0)).into())
            }
            IpAddr::V6(a) => {
                IpAddr::V6((a.to_bits() & u128::MAX.checked_shl(beyond).unwrap_or(0)).into())
            }
        }
    }

    proptest! {
        #[test]
        fn a_network_survives_its_text_and_covers_its_hosts(address: IpAddr, bits in 0_u8..=128) {
            let (address, bits) = (address.to_canonical(), bits.min(bits_of(address.to_canonical())));
            let network = Client::Network { address: cut(address, bits), bits };
            prop_assert_eq!(network.to_string().parse(), Ok(network.clone()));
            prop_assert!(network.covers(&Peer::Host(address)));
        }

        #[test]
        fn any_text_is_a_client_or_refused(text: String) {
            drop(text.parse::<Client>());
        }
    }
}
