//! Errors with cause and remedy, and the exit codes for scripts.

use crate::mount3::Mountstat3;
use crate::nfs3;
use crate::protocol::{Nfsstat3, ProcedureId};
use crate::status::{meaning, mount_meaning};
use spinrpc::{CallError, ConnectError, DownCause};
use std::io;

/// Failure of an operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A problem of this host: memory, or the engine.
    #[error("{0}")]
    Local(String),
    /// Interrupted by a signal; the results so far are printed.
    #[error("interrupted; these are the figures up to then")]
    Interrupted,
    /// The profile, or the value of a key, is invalid.
    #[error("{0}")]
    Usage(String),
    /// Error of a local file.
    #[error("{subject}: {source}")]
    File {
        /// Name of the file.
        subject: String,
        /// Error of the system.
        source: io::Error,
    },
    /// There is no connection to the NFS server.
    #[error(
        "no connection to {address}: {source}; check the address, and that the server listens for \
         RDMA there"
    )]
    Connect {
        /// Address of the server.
        address: String,
        /// The reason.
        source: ConnectError,
    },
    /// Kerberos does not prove the user to the server, or the server to the user.
    #[error("Kerberos with {address}: {reason}")]
    Security {
        /// Address of the server.
        address: String,
        /// The reason, with the remedy.
        reason: String,
    },
    /// The MOUNT service is unreachable.
    #[error(
        "cannot reach the MOUNT service: {0}; set its port (--mount-port), or the handle of the \
         directory (--handle)"
    )]
    MountUnreachable(String),
    /// The MOUNT service refuses the directory.
    #[error("MOUNT of {path}: {status}: {}: {}{exports}",
        mount_meaning(*.status).0, mount_meaning(*.status).1)]
    MountRefused {
        /// The requested path.
        path: String,
        /// Status of the reply.
        status: Mountstat3,
        /// Its exports, as far as listed, as the end of the message.
        exports: String,
    },
    /// Status returned by the server.
    #[error("{status}: {} ({}): {}",
        meaning(*.status).0, nfs3::name(*.operation), meaning(*.status).1)]
    Status {
        /// Procedure that was called.
        operation: ProcedureId,
        /// Status of the reply.
        status: Nfsstat3,
    },
    /// The call itself failed.
    #[error("{operation}: {source}")]
    Call {
        /// Procedure that was called.
        operation: String,
        /// The reason.
        source: CallError,
    },
    /// The security context has ended during the session, and there is no other one: the ticket has expired, no KDC answers, or the
    /// server refuses another context. The server did not execute the call.
    #[error("{operation}: Kerberos: {reason}")]
    Unproved {
        /// Procedure that was called.
        operation: String,
        /// The reason, with the remedy.
        reason: String,
    },
    /// The server violated RFC 1813.
    #[error("the server violates the protocol in {operation}: {problem}")]
    Misbehaved {
        /// Procedure that was called.
        operation: String,
        /// The violation.
        problem: String,
    },
    /// The path is invalid.
    #[error("{0}")]
    Path(String),
    /// One of the above, with its subject.
    #[error("{subject}: {source}")]
    At {
        /// A path on the server.
        subject: String,
        /// The failure.
        source: Box<Self>,
    },
}

impl Error {
    /// Adds the `subject`.
    #[must_use]
    pub fn at(self, subject: &str) -> Self {
        Self::At { subject: subject.to_owned(), source: Box::new(self) }
    }

    /// A call that failed.
    pub fn call(operation: ProcedureId, source: CallError) -> Self {
        let operation = nfs3::name(operation).to_owned();
        match source {
            CallError::NotExecuted(DownCause::Security(reason)) => {
                Self::Unproved { operation, reason: reason.to_string() }
            }
            source => Self::Call { operation, source },
        }
    }

    /// A protocol violation by the server.
    pub fn misbehaved(operation: ProcedureId, problem: impl Into<String>) -> Self {
        Self::Misbehaved { operation: nfs3::name(operation).to_owned(), problem: problem.into() }
    }

    /// The status, if it is the server's reply to an NFS call.
    pub fn status(&self) -> Option<Nfsstat3> {
        match self {
            Self::Status { status, .. } => Some(*status),
            Self::At { source, .. } => source.status(),
            _ => None,
        }
    }

    /// Exit code for scripts: 1 this host, 3 no connection, 4 rejected by the server, 5 no reply, 6
    /// protocol violation by the server. (0 is success, 2 a usage error or an invalid profile.)
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Local(_) | Self::File { .. } => 1,
            Self::Usage(_) => 2,
            Self::Connect { .. } | Self::MountUnreachable(_) => 3,
            Self::Security { .. } | Self::Unproved { .. } => 3,
            Self::MountRefused { .. } | Self::Status { .. } | Self::Path(_) => 4,
            Self::Call { source, .. } => code_of_call(source),
            Self::Misbehaved { .. } => 6,
            Self::Interrupted => 130,
            Self::At { source, .. } => source.exit_code(),
        }
    }
}

fn code_of_call(error: &CallError) -> u8 {
    match error {
        CallError::Accepted(_) | CallError::Rejected(_) | CallError::Rdma(_) => 4,
        CallError::TimedOut | CallError::Cancelled => 5,
        CallError::Disconnected(_) | CallError::NotExecuted(_) => 5,
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
