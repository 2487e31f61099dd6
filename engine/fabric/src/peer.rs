//! Identity of the peer of a connection.

#[cfg(feature = "sim")]
use super::sim::SideId;
use std::fmt;
use std::net::SocketAddr;

/// Identity of the peer of a connection, as this host's kernel reports it: none of it is the peer's
/// own claim.
///
/// ```
/// # use spinrpc_fabric::Peer;
///
/// let process = Peer::Process { uid: 1000, pid: 4711 };
/// assert_eq!(process.to_string(), "user 1000, process 4711");
/// let host = Peer::Socket("[fe80::1%2]:20049".parse()?);
/// assert_eq!(host.to_string(), "[fe80::1%2]:20049");
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Peer {
    /// Peer over an RDMA device or a TCP socket: address and port that the connection manager
    /// (`rdma_get_peer_addr`), or TCP, has for the other end. An IPv4 address may come mapped into IPv6; see
    /// [`to_canonical`](std::net::IpAddr::to_canonical). Prints as `IP:PORT`, with brackets around
    /// an IPv6 address.
    Socket(SocketAddr),
    /// Peer over shared memory: a process of this host, as it was when it connected or began to
    /// listen (`SO_PEERCRED`). Prints as `user UID, process PID`.
    Process {
        /// Its effective user.
        uid: u32,
        /// Its process id.
        pid: u32,
    },
    /// Peer in a simulation: the other end, as the world's record names it. Prints as
    /// `simulated NAME`.
    #[cfg(feature = "sim")]
    Simulated(SideId),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(address) => address.fmt(f),
            Self::Process { uid, pid } => write!(f, "user {uid}, process {pid}"),
            #[cfg(feature = "sim")]
            Self::Simulated(side) => write!(f, "simulated {side}"),
        }
    }
}
