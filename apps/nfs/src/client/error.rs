//! Errors with cause and remedy, and the exit codes for scripts.

use crate::mount3::Mountstat3;
use crate::nfs3;
use crate::protocol::{Nfsstat3, ProcedureId};
use crate::status::{meaning, mount_meaning};
use spinrpc::{Backpressure, CallError, ConnectError, DownCause};
use std::io;

/// Failure of an operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A problem of this host: memory, the engine, or a local file.
    #[error("{0}")]
    Local(String),
    /// Interrupted by a signal; the results so far are printed.
    #[error("interrupted; these are the figures up to then")]
    Interrupted,
    /// The profile, or the value of a key, is invalid.
    #[error("{0}")]
    Usage(String),
    /// There is no connection to the NFS server or its MOUNT service, or Kerberos does not prove one side to the other. The
    /// server did not execute the call.
    #[error("{0}")]
    Unreachable(String),
    /// The engine has made no connection to this address.
    #[error("no connection to {0}: {1}")]
    Connect(String, ConnectError),
    /// The MOUNT service refuses the path; with its exports, as far as listed, as the end of the message.
    #[error("MOUNT of {0}: {1}: {what}: {remedy}{2}",
        what = mount_meaning(*.1).0, remedy = mount_meaning(*.1).1)]
    MountRefused(String, Mountstat3, String),
    /// Status that the server returned for a procedure.
    #[error("{1}: {what} ({name}): {remedy}",
        what = meaning(*.1).0, name = nfs3::name(*.0), remedy = meaning(*.1).1)]
    Status(ProcedureId, Nfsstat3),
    /// The call of the procedure with this name failed.
    #[error("{0}: {1}")]
    Call(String, CallError),
    /// The server violated RFC 1813, in the reply to the procedure with this name.
    #[error("the server violates the protocol in {0}: {1}")]
    Misbehaved(String, String),
    /// The server has restarted since data were written that were not on stable storage.
    #[error(
        "data may be lost: the server's write verifier has changed since they were written; write them again"
    )]
    DataLost,
    /// The path is invalid.
    #[error("{0}")]
    Path(String),
    /// One of the above, with its subject: a path on the server.
    #[error("{0}: {1}")]
    At(String, Box<Self>),
}

impl Error {
    /// Adds the `subject`.
    #[must_use]
    pub fn at(self, subject: &str) -> Self {
        Self::At(subject.to_owned(), Box::new(self))
    }

    /// A failure to use a local file.
    pub fn file(name: &str, error: &io::Error) -> Self {
        Self::Local(format!("{name}: {error}"))
    }

    /// A call that failed. The security context may have ended during the session, and no other one was given: the ticket has
    /// expired, no KDC answers, or the server refuses another context.
    pub fn call(operation: ProcedureId, source: CallError) -> Self {
        let operation = nfs3::name(operation).to_owned();
        match source {
            CallError::NotExecuted(DownCause::Security(reason)) => {
                Self::Unreachable(format!("{operation}: Kerberos: {reason}"))
            }
            source => Self::Call(operation, source),
        }
    }

    /// A protocol violation by the server.
    pub fn misbehaved(operation: ProcedureId, problem: impl Into<String>) -> Self {
        Self::Misbehaved(nfs3::name(operation).to_owned(), problem.into())
    }

    /// The status, if it is the server's reply to an NFS call.
    pub fn status(&self) -> Option<Nfsstat3> {
        match self {
            Self::Status(_, status) => Some(*status),
            Self::At(_, source) => source.status(),
            _ => None,
        }
    }

    /// Exit code for scripts: 1 this host, 3 no connection, 4 rejected by the server, 5 no reply, 6
    /// protocol violation by the server. (0 is success, 2 a usage error or an invalid profile.)
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Local(_) => 1,
            Self::Usage(_) => 2,
            Self::Unreachable(_) | Self::Connect(..) => 3,
            Self::MountRefused(..) | Self::Status(..) | Self::Path(_) => 4,
            Self::Call(_, source) => code_of_call(source),
            Self::DataLost => 5,
            Self::Misbehaved(..) => 6,
            Self::Interrupted => 130,
            Self::At(_, source) => source.exit_code(),
        }
    }
}

fn code_of_call(error: &CallError) -> u8 {
    match error {
        CallError::Accepted(_) | CallError::Rejected(_) | CallError::Rdma(_) => 4,
        CallError::TimedOut | CallError::Cancelled => 5,
        CallError::Disconnected(_) | CallError::NotExecuted(_) => 5,
        CallError::NotStarted(
            Backpressure::Down | Backpressure::Connecting | Backpressure::Reconnecting,
        ) => 5,
        CallError::Decode(_) | CallError::PeerMisbehaved(_) => 6,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_may_have_been_executed_says_so_when_the_security_context_ends() {
        let cause = DownCause::Security("the Kerberos ticket has expired".into());
        let of = |source| Error::call(ProcedureId::Nfsproc3Remove, source);
        let known = of(CallError::NotExecuted(cause.clone()));
        assert_eq!(known.exit_code(), 3);
        let unknown = of(CallError::Disconnected(cause));
        assert_eq!(unknown.exit_code(), 5);
        let words = unknown.to_string();
        assert!(words.contains("whether the call was executed is unknown"), "{words}");
        assert!(words.contains("the Kerberos ticket has expired"), "{words}");
    }
}
