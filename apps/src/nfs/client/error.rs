//! Why something was not done: who is to blame, what to do, and the exit code for scripts.

use crate::nfs::mount3::Mountstat3;
use crate::nfs::nfs3;
use crate::nfs::protocol::{Nfsstat3, ProcedureId};
use crate::nfs::status::{meaning, mount_meaning};
use spinrpc::{CallError, ConnectError};
use std::io;

/// Failure of an operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This host: memory, or the engine.
    #[error("{0}")]
    Local(String),
    /// A signal ended it before its time; what was measured until then is said.
    #[error("interrupted; the figures are of the time until then")]
    Interrupted,
    /// The profile, or a value of a key, cannot be used.
    #[error("{0}")]
    Usage(String),
    /// A file of this host.
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
        /// Why not.
        source: ConnectError,
    },
    /// The MOUNT service cannot be asked.
    #[error(
        "the MOUNT service cannot be asked: {0}; give its port (--mount-port), or the handle of \
         the directory (--handle)"
    )]
    MountUnreachable(String),
    /// The MOUNT service does not give the directory out.
    #[error("MOUNT of {path}: {status}: {}, says the server: {}{exports}",
        mount_meaning(*.status).0, mount_meaning(*.status).1)]
    MountRefused {
        /// Path that was asked for.
        path: String,
        /// Its answer.
        status: Mountstat3,
        /// Its exports, as far as it lists them, as the end of the message.
        exports: String,
    },
    /// The server's own answer to a call.
    #[error("{status}: {}, says the server to {}: {}",
        meaning(*.status).0, nfs3::name(*.operation), meaning(*.status).1)]
    Status {
        /// Procedure that was called.
        operation: ProcedureId,
        /// Its answer.
        status: Nfsstat3,
    },
    /// The call itself failed.
    #[error("{operation}: {source}")]
    Call {
        /// Procedure that was called.
        operation: String,
        /// Why there is no answer.
        source: CallError,
    },
    /// The server answered what RFC 1813 does not allow.
    #[error("the server breaks the protocol: to {operation} it says {problem}")]
    Misbehaved {
        /// Procedure that was called.
        operation: String,
        /// The answer that breaks the protocol.
        problem: String,
    },
    /// The path leads nowhere, for reasons of its own.
    #[error("{0}")]
    Path(String),
    /// One of the above, and what it is about.
    #[error("{subject}: {source}")]
    At {
        /// A path on the server.
        subject: String,
        /// The failure.
        source: Box<Self>,
    },
}

impl Error {
    /// The same, about `subject`.
    #[must_use]
    pub fn at(self, subject: &str) -> Self {
        Self::At { subject: subject.to_owned(), source: Box::new(self) }
    }

    /// A call that failed.
    pub fn call(operation: ProcedureId, source: CallError) -> Self {
        Self::Call { operation: nfs3::name(operation).to_owned(), source }
    }

    /// A server that says what makes no sense.
    pub fn misbehaved(operation: ProcedureId, problem: impl Into<String>) -> Self {
        Self::Misbehaved { operation: nfs3::name(operation).to_owned(), problem: problem.into() }
    }

    /// The status, if it is the server's answer to a call of NFS.
    pub fn status(&self) -> Option<Nfsstat3> {
        match self {
            Self::Status { status, .. } => Some(*status),
            Self::At { source, .. } => source.status(),
            _ => None,
        }
    }

    /// For scripts: 1 this host, 3 no connection, 4 the server refused, 5 no answer, 6 the server
    /// broke the protocol. (0 is success, 2 a wrong command line or profile.)
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Local(_) | Self::File { .. } => 1,
            Self::Usage(_) => 2,
            Self::Connect { .. } | Self::MountUnreachable(_) => 3,
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
