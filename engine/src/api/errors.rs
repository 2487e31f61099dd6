//! Errors that tell their cause and the remedy.

use super::group::CONNECTIONS_MAX;
use crate::config::ConfigError;
use crate::fabric::{AddressError, DownCause, FabricError};
use crate::mem::SLABS_MAX;
use crate::reactor::Backpressure;
use spinrpc_proto::events::{CallFailure, PeerMisbehaved};
use spinrpc_proto::rdma::RdmaError;
use spinrpc_proto::rpc::{AcceptStatus, RejectStatus};
use spinrpc_proto::xdr::DecodeError;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

/// Reason why a call has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The server took the call and answered with an error: unknown program, version or procedure,
    /// arguments it cannot decode, or an internal error (RFC 5531 section 9).
    #[error("the server answered {0:?}")]
    Accepted(AcceptStatus),
    /// The server denied the call: RPC version or credential.
    #[error("the server denied the call: {0:?}")]
    Rejected(RejectStatus),
    /// The deadline passed. The server may still execute the call.
    #[error("the deadline passed; the server may still execute the call")]
    TimedOut,
    /// The application cancelled it. The server may still execute the call.
    #[error("cancelled; the server may still execute the call")]
    Cancelled,
    /// The connection went down, and the call was not sent (again) on another one. The server may
    /// or may not have executed it.
    #[error("the connection went down, and whether the call was executed is unknown: {0}")]
    Disconnected(DownCause),
    /// The connection went down, and the call was not, or not again, sent on another one. The server did not execute it: it
    /// was never sent; or the server refused its security context, and there was no other one ([`DownCause::Security`]).
    #[error("the connection went down, and the server did not execute the call: {0}")]
    NotExecuted(DownCause),
    /// The server's transport refused the call: its chunk lists, its size or its version (RFC 8166
    /// section 4.5). Or the server executed it, and its results are longer than the call allowed
    /// ([`CallSpec::reply_bytes_max`](crate::CallSpec::reply_bytes_max)): the protocol has one error for both. The same
    /// call will be refused again.
    #[error(
        "the server's transport refused the call, or its results, which CallSpec::reply_bytes_max did not \
         allow for: {0:?}"
    )]
    Rdma(RdmaError),
    /// The server has executed the call, and no private buffer was free for the reply (over shared memory,
    /// and with `mem.bulk = copy`). A reply that is fetched waits `Config::memory_wait` for one. Enlarge
    /// `mem.arena_mib`, keep fewer results, or have fewer calls with data in flight.
    #[error("the call was executed, but no memory was free for its reply; enlarge mem.arena_mib")]
    NoMemory,
    /// The server's reply cannot be decoded.
    #[error("the reply cannot be decoded: {0}")]
    Decode(#[from] DecodeError),
    /// The reply does not come from the server, or is not as the server sent it: its verifier or
    /// the protection of its results does not check (RPCSEC_GSS). The server may or may not have
    /// executed the call.
    #[error("the reply is not authentic, and whether the call was executed is unknown")]
    NotAuthentic,
    /// The server's transport broke the protocol; the connection is being closed.
    #[error("the server broke the protocol: {0}")]
    PeerMisbehaved(PeerMisbehaved),
    /// The blocking client, or a handle's core, could not start the call.
    #[error("the call was not started: {0}")]
    NotStarted(#[from] Backpressure),
}

impl CallError {
    /// True if the same call may succeed later, on this connection or another, provided that
    /// executing it twice does no harm. A client without a security context ([`DownCause::Security`]) needs another one first, for
    /// which the user may have to do something: a call that was not executed for that reason is not retryable.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::NotExecuted(DownCause::Security(_)) => false,
            Self::TimedOut | Self::Disconnected(_) | Self::NotExecuted(_) => true,
            Self::Accepted(status) => *status == AcceptStatus::SystemErr,
            Self::NotStarted(refused) => refused.is_transient(),
            _ => false,
        }
    }
}

impl From<CallFailure> for CallError {
    fn from(failure: CallFailure) -> Self {
        match failure {
            CallFailure::Cancelled => Self::Cancelled,
            CallFailure::Rdma(error) => Self::Rdma(error),
            CallFailure::Misbehaved(why) => Self::PeerMisbehaved(why),
            CallFailure::NoMemory => Self::NoMemory,
            _ => Self::TimedOut,
        }
    }
}

impl Backpressure {
    /// True if the call may be started later, after replies have come.
    pub fn is_transient(&self) -> bool {
        use Backpressure::{
            AnswerQueueFull, Connecting, NoBuffer, NoCredit, NoReplyRoom, Reconnecting,
            SendQueueFull, TooManyCalls,
        };
        matches!(
            self,
            NoCredit
                | NoBuffer
                | NoReplyRoom
                | SendQueueFull
                | TooManyCalls
                | AnswerQueueFull
                | Connecting
                | Reconnecting
        )
    }
}

/// Reason why a connection did not come up. [`Error::source`] returns the underlying error.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No server answers, or the address is wrong, or the handshake failed; the text says which.
    #[error(transparent)]
    Fabric(Failure),
    /// The engine is configured without calls in reverse, and the connection was to take them.
    #[error("no calls in reverse are configured: set rpc.reverse_calls")]
    NoReverseCalls,
    /// The connection was to be lent more slabs than one can be lent.
    #[error("more slabs are lent than the {SLABS_MAX} that one connection can be lent")]
    TooManySlabs,
    /// The client was to have more connections, or addresses, than one can have.
    #[error("a client has at most {CONNECTIONS_MAX} connections, and as many addresses")]
    TooManyConnections,
    /// The client's security context could not be established (RPCSEC_GSS); the text says why.
    #[error("no security context: {0}")]
    Security(String),
    /// The connection was to be of a version of RPC-over-RDMA that the engine does not speak.
    #[error("a version that is not spoken here was asked for: see rpc.version")]
    VersionNotConfigured,
    /// The server does not serve this program and version.
    #[error("the server does not serve the program in this version: {0}")]
    NotServed(AcceptStatus),
    /// The server speaks no version of RPC-over-RDMA that is spoken here (`rpc.version`).
    #[error("the server speaks versions {low} to {high} of RPC-over-RDMA, and none of those here")]
    NoCommonVersion {
        /// Its lowest version.
        low: u32,
        /// Its highest version.
        high: u32,
    },
    /// The first call ended with this error.
    #[error("the first call failed: {0}")]
    FirstCall(#[source] CallError),
    /// The application closed the client before it was connected.
    #[error("closed while connecting")]
    Closed,
    /// No answer in time.
    #[error("no connection within {0:?}")]
    TimedOut(Duration),
    /// The connection was up and is down, or its core has ended.
    #[error("the connection is down")]
    Down,
    /// As many connections of handles are there as the core takes (`limits.conns`).
    #[error("the core has {0} connections of handles, and takes no more")]
    TooManyHandles(usize),
}

/// Reason why an engine or a core could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A key of the configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The driver.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A limit or the host; the text has the cause and the remedy.
    #[error(transparent)]
    Host(HostError),
    /// The application asked for something impossible; the text tells what it is.
    #[error("misuse: {0}")]
    ApiMisuse(String),
}

impl EngineError {
    /// `what` failed, with the error of the system.
    pub(super) fn host(what: impl Into<String>, source: io::Error) -> Self {
        Self::Host(HostError { what: what.into(), source: Some(source) })
    }
}

/// A limit or the host keeps an engine or a core from starting. [`Error::source`] is the error of the
/// operating system, if it was one.
#[derive(Debug)]
pub struct HostError {
    what: String,
    source: Option<io::Error>,
}

impl<T: Into<String>> From<T> for HostError {
    fn from(what: T) -> Self {
        Self { what: what.into(), source: None }
    }
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(source) => write!(f, "{}: {source}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

impl Error for HostError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

/// Another error that kept a connection from coming up, which every clone shares. It prints as that, and
/// [`Error::source`] is the source of that: the error of the operating system, if it was one.
#[derive(Clone, Debug)]
pub struct Failure(Arc<dyn Error + Send + Sync>);

impl Failure {
    pub(super) fn new(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(Arc::from(error.into()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

macro_rules! connect_errors {
    ($($error:ty),+) => {
        $(impl From<$error> for ConnectError {
            fn from(error: $error) -> Self {
                Self::Fabric(Failure::new(error))
            }
        })+
    };
}

// The first is for programs whose engine is made for one connection.
connect_errors!(EngineError, FabricError, ConfigError, AddressError);
