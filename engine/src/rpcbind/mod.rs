//! Finding a service: the three ways of RFC 5666 section 10.
//!
//! * **rpcbind** ([`How::Rpcbind`]): the daemon of RFC 1833 knows where a program listens. A server
//!   registers with [`Registration`]; [`Client`] speaks to the daemon.
//! * **portmapper** ([`How::Portmapper`]): an engine answers program 100000 itself, at an address
//!   that is known without asking ([`PORTMAPPER_ADDRESS`]); see [`serve_portmapper`].
//! * **well-known port** ([`How::WellKnown`]): by convention, without asking a server.
//!
//! ```no_run
//! use spinrpc::rpcbind::{Daemon, Endpoint, How, Netid, Registration, find_service};
//! use spinrpc::{Program, Version};
//!
//! let (program, version) = (Program(0x2000_0001), Version(1));
//! let here = Endpoint::parse(Netid::Shm, "shm:hello")?;
//! let registration = Registration::new(&Daemon::Local, program, version, &here)?;
//!
//! let found = find_service(program, version, Netid::Shm, How::Rpcbind(&Daemon::Local))?;
//! assert_eq!(found, here);
//! registration.end()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Control plane: everything here but the portmapper's service blocks the calling thread, for a
//! bounded time, and allocates; do it before a core polls, or on another thread. The bytes of a
//! daemon are untrusted, and so is their content: a registration is only a hint where to connect.
//!
//! Stands above `api`, which it uses as an application would, and shares its XDR and RPC headers.
//! Nothing in the engine calls it; programs do.

mod address;
mod client;
mod errors;
mod portmapper;
pub mod record;
mod registration;
pub mod stream;
pub mod wire;

pub use address::{
    AddressError, Endpoint, NFS_ADDRESS, NFS_RDMA_PORT, Netid, PORTMAPPER_ADDRESS, PORTMAPPER_PORT,
};
pub use client::{Client, Daemon, ParseDaemonError};
pub use errors::RpcbindError;
pub use portmapper::serve_portmapper;
pub use registration::Registration;

use spinrpc_proto::ids::{Program, Version};
use std::time::Duration;

/// Total time that [`find_service`] and [`Registration`] wait for a daemon.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// A way to find a service (RFC 5666 section 10).
#[derive(Clone, Copy, Debug)]
pub enum How<'a> {
    /// Ask a rpcbind daemon.
    Rpcbind(&'a Daemon),
    /// Ask the portmapper of an engine, at its address on the fabric: [`PORTMAPPER_ADDRESS`], or
    /// whatever was given to [`serve_portmapper`].
    Portmapper(&'a str),
    /// Use well-known ports only. Finds NFS and the portmapper, without asking a server.
    WellKnown,
}

/// Finds the address of `version` of `program` on the fabric that `netid` names.
///
/// An endpoint whose IP address is unspecified (`0.0.0.0`, `::`) is on the host that was asked: so
/// servers register that listen on every interface, and a well-known port is on every host. Only
/// connecting shows whether a server is there: a registration may have outlived it.
///
/// Blocks: for [`TIMEOUT`] with rpcbind, three times [`TIMEOUT`] at most with a portmapper, not at
/// all for a well-known port.
///
/// # Errors
/// [`RpcbindError`] tells the cause and the remedy.
pub fn find_service(
    program: Program,
    version: Version,
    netid: Netid,
    how: How<'_>,
) -> Result<Endpoint, RpcbindError> {
    match how {
        How::Rpcbind(daemon) => Client::connect(daemon, TIMEOUT)?.find(program, version, netid),
        How::Portmapper(address) => portmapper::ask(address, program, version, netid),
        How::WellKnown => Endpoint::well_known(program, netid)
            .ok_or(RpcbindError::NotWellKnown { program, netid }),
    }
}
