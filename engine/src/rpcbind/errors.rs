//! Errors of finding and registering services: the cause, and the remedy.

use super::address::{AddressError, Netid};
use super::wire::AnswerError;
use spinrpc_proto::ids::{Program, Version};
use std::io;
use std::time::Duration;

/// Reason why a service was not found or not registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RpcbindError {
    /// No daemon answers.
    #[error(
        "rpcbind is not running ({tried}): start it (systemctl start rpcbind), or do without it \
         and name the server's address"
    )]
    NotRunning {
        /// Each place that was tried, and the error there.
        tried: String,
    },
    /// A daemon took the connection or the call and did not answer in time.
    #[error("rpcbind at {daemon} did not answer within {after:?}: it hangs, or is overloaded")]
    TimedOut {
        /// Its address.
        daemon: String,
        /// Time that it had.
        after: Duration,
    },
    /// The connection to the daemon failed.
    #[error("the connection to rpcbind at {daemon} was lost: {source}")]
    Disconnected {
        /// Its address.
        daemon: String,
        /// The error of the connection.
        source: io::Error,
    },
    /// The answer is not ONC RPC, or not rpcbind.
    #[error("{daemon} is not an rpcbind server: {problem}")]
    Misbehaved {
        /// Its address.
        daemon: String,
        /// The error in its answer.
        problem: String,
    },
    /// A daemon answered the call with an error.
    #[error("rpcbind at {daemon} refuses the call: {status}")]
    Refused {
        /// Its address.
        daemon: String,
        /// The accept or reject status (RFC 5531 section 9).
        status: String,
    },
    /// The daemon speaks version 2 only, which knows protocol and port of TCP and UDP. Its answer
    /// for TCP must not be taken for RDMA: another server may listen there.
    #[error(
        "rpcbind at {daemon} speaks version 2 only, which has no word for netid {netid}: update \
         it, or do without it and name the server's address"
    )]
    TooOld {
        /// Its address.
        daemon: String,
        /// The netid that it does not know.
        netid: String,
    },
    /// The program and version are not registered on that network.
    #[error(
        "version {version} of program {program} is not registered for netid {netid}: start its \
         server, and let it register"
    )]
    NotRegistered {
        /// The program.
        program: Program,
        /// Its version.
        version: Version,
        /// The network.
        netid: Netid,
    },
    /// The daemon did not take a registration, because of another one or because of the user.
    #[error(
        "rpcbind did not register version {version} of program {program} for netid {netid}: \
         {holder}"
    )]
    NotTaken {
        /// The program.
        program: Program,
        /// Its version.
        version: Version,
        /// The network.
        netid: Netid,
        /// Owner of the existing registration, as far as the daemon tells.
        holder: String,
    },
    /// The registered address is not one of its network.
    #[error("a wrong address is registered: {0}")]
    Address(#[from] AddressError),
    /// The program has no well-known port.
    #[error("program {program} has no well-known address for netid {netid}: name its address")]
    NotWellKnown {
        /// The program.
        program: Program,
        /// The network.
        netid: Netid,
    },
    /// The portmapper on the fabric could not be asked.
    #[error("the portmapper at {address} cannot be asked: {problem}")]
    Portmapper {
        /// Its expected address.
        address: String,
        /// Reason for the failure.
        problem: String,
    },
}

impl RpcbindError {
    pub(super) fn answer(daemon: &str, error: AnswerError) -> Self {
        Self::Misbehaved { daemon: daemon.to_owned(), problem: error.to_string() }
    }
}
