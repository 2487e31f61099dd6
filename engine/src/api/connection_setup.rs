//! The calls with which a client's connection begins, of which the application hears nothing but the
//! outcome: that of the Connection Configuration Protocol (RFC 5666 section 6), and one that opens the
//! window and settles the version of RPC-over-RDMA. Called by the dispatch.

use super::client::LinkState;
use super::client_state::{ClientEntry, SetupCall};
use super::dispatch::Dispatch;
use super::errors::{CallError, ConnectError};
use super::reply_status::{is_served, reply_status};
use super::rfc5666::ConfigClient;
use crate::fabric::{ConnId, DownCause};
use crate::reactor::types::calls::{CallId, CallSpec, ReplyFrame};
use crate::reactor::{Backpressure, Negotiated};
use crate::sys::journal::event;
use spinrpc_proto::ids::Procedure;
use spinrpc_proto::rdma::RdmaError;

/// The NULL procedure, which every program has (RFC 5531 section 12).
const NULL: Procedure = Procedure(0);
/// Setup calls are known by their slots.
pub(super) const NO_TOKEN: u64 = 0;

impl Dispatch {
    /// The first message of a connection: that of the Connection Configuration Protocol, or the
    /// first call.
    pub(super) fn begin(entry: &mut ClientEntry, conn: ConnId) {
        if !Self::begin_config(entry, conn, false) {
            Self::probe(entry, conn);
        }
    }

    /// There is a security context: the Connection Configuration Protocol is asked under it, if that is configured
    /// (RFC 5666 section 11), before any other call.
    #[cfg(feature = "gss")]
    pub(super) fn begin_secured(entry: &mut ClientEntry, conn: ConnId) {
        if !entry.protects_bodies() || !Self::begin_config(entry, conn, true) {
            entry.config_client = None;
            Self::finish_setup(entry, conn);
        }
    }

    /// Returns false if nothing is to be asked with this protection.
    fn begin_config(entry: &mut ClientEntry, conn: ConnId, is_protected: bool) -> bool {
        let client = entry.config_client.as_ref();
        let Some(client) = client.filter(|client| client.is_protected == is_protected) else {
            return false;
        };
        let started = client.call(&entry.link.ops, conn);
        Self::await_setup_call(entry, conn, (SetupCall::Config { is_protected }, started));
        true
    }

    /// The server answered it under that context.
    #[cfg(feature = "gss")]
    pub(super) fn finish_secured_config(
        entry: &mut ClientEntry,
        conn: ConnId,
        results: Result<&[u8], CallError>,
    ) {
        (entry.setup_call, entry.config_client) = (None, None);
        let said = results.and_then(|results| ConfigClient::finish(&entry.link.ops, conn, results));
        Self::take_config(entry, said);
        Self::finish_setup(entry, conn);
    }

    fn take_config(entry: &mut ClientEntry, said: Result<Option<Negotiated>, CallError>) {
        match (said, &mut entry.up) {
            (Ok(Some(configured)), Some((_, negotiated))) => *negotiated = configured,
            (Err(error), _) => event!(DEBUG, %error, "connection not configured in-band"),
            _ => {}
        }
    }

    /// One call opens the window: exactly one credit is there until its reply (RFC 8166 section
    /// 3.3.3), and the application need not know.
    fn probe(entry: &mut ClientEntry, conn: ConnId) {
        let mut spec = CallSpec::short();
        if let Some(patience) = entry.offer.patience {
            spec = spec.deadline(patience);
        }
        #[cfg(feature = "gss")]
        spec.mark_setup();
        let started = entry.link.call_before_up(conn, NULL, NO_TOKEN, &mut spec);
        Self::await_setup_call(entry, conn, (SetupCall::Probe, started));
    }

    /// The slot tells the setup call from those of the application that wait for the connection.
    fn await_setup_call(
        entry: &mut ClientEntry,
        conn: ConnId,
        (setup_call, started): (SetupCall, Result<CallId, Backpressure>),
    ) {
        entry.setup_call = started.as_ref().ok().map(|call| (call.slot(), setup_call));
        if let Err(refused) = started {
            Self::fail_probe(entry, conn, CallError::NotStarted(refused));
        }
    }

    #[cold]
    pub(super) fn on_setup_reply(entry: &mut ClientEntry, conn: ConnId, frame: ReplyFrame<'_>) {
        let Some((_, setup_call)) = entry.setup_call.take() else { return };
        match setup_call {
            SetupCall::Config { .. } => Self::finish_config(entry, conn, frame.stream),
            SetupCall::Probe => Self::finish_probe(entry, conn, frame.stream),
            #[cfg(feature = "gss")]
            SetupCall::Token => Self::take_token_answer(entry, conn, frame.stream, frame.padded),
        }
    }

    #[cold]
    pub(super) fn on_setup_failed(
        entry: &mut ClientEntry,
        conn: ConnId,
        setup_call: SetupCall,
        error: CallError,
    ) {
        match setup_call {
            SetupCall::Probe => Self::fail_probe(entry, conn, error),
            #[cfg(feature = "gss")]
            SetupCall::Token => Self::fail_securing(entry, conn, error.to_string()),
            SetupCall::Config { is_protected } => {
                Self::fail_config(entry, conn, (is_protected, error));
            }
        }
    }

    /// The server answered the Connection Configuration Protocol. The connection continues whatever
    /// the answer is: an answer that cannot be understood, or is an RPC error, has no effect.
    fn finish_config(entry: &mut ClientEntry, conn: ConnId, stream: &[u8]) {
        entry.config_client = None;
        let said = reply_status(stream)
            .and_then(|at| ConfigClient::finish(&entry.link.ops, conn, &stream[at..]));
        Self::take_config(entry, said);
        Self::probe(entry, conn);
    }

    /// The server did not answer it with an RPC message. After an RDMA_ERROR the connection goes on.
    /// Without any answer nothing may be sent on it: a client "MUST receive a valid reply [...]
    /// prior to sending its next request" (RFC 5666 section 6.1). Then, and when the server hung up,
    /// another connection is made, on which the server is not asked.
    fn fail_config(
        entry: &mut ClientEntry,
        conn: ConnId,
        (is_protected, error): (bool, CallError),
    ) {
        entry.config_client = None;
        match error {
            error if entry.link.is_closed.get() => {
                return Self::fail_probe(entry, conn, error);
            }
            CallError::Rdma(RdmaError::Version { .. }) if entry.offer.is_open => {
                return Self::fail_probe(entry, conn, error);
            }
            CallError::Rdma(_) if is_protected => return Self::finish_setup(entry, conn),
            CallError::Rdma(_) => return Self::probe(entry, conn),
            // The server failed on one of the two, and it is unknown which: it is asked again in
            // version one.
            error if entry.falls_back(&error) => return Self::fail_probe(entry, conn, error),
            CallError::TimedOut => entry.link.ops.close(conn),
            CallError::Disconnected(DownCause::Remote | DownCause::PeerDied) => {}
            other => return Self::fail_probe(entry, conn, other),
        }
        // One that was up tries again anyway, and asks again: that server did not fail on it.
        if !entry.wants_another() {
            entry.bears_config = false;
            entry.starts_over = true;
            entry.link.state.set(LinkState::Connecting);
        }
    }

    /// The first reply of a connection says whether the server serves the program at all.
    /// Calls of a connection before go first.
    fn finish_probe(entry: &mut ClientEntry, conn: ConnId, stream: &[u8]) {
        entry.settle_version(conn);
        let status = reply_status(stream).map(|_| ());
        match status {
            Err(error) if !is_served(&error) => Self::fail_probe(entry, conn, error),
            #[cfg(feature = "gss")]
            _ if entry.securing.is_some() => Self::secure(entry, conn),
            _ => Self::finish_setup(entry, conn),
        }
    }

    /// Calls may be made, after those of a connection before.
    pub(super) fn finish_setup(entry: &mut ClientEntry, conn: ConnId) {
        match entry.link.ops.resend_held(conn) {
            true => entry.go_up(conn),
            false => entry.link.state.set(LinkState::Resending(conn)),
        }
    }

    /// A client that was up before tries again when the connection has gone down. One that the
    /// application has closed does nothing of the kind: nothing would ever close that connection.
    fn fail_probe(entry: &mut ClientEntry, conn: ConnId, error: CallError) {
        let tries_other = match error {
            CallError::Rdma(RdmaError::Version { low, high }) => {
                let learns = entry.learns_better(low, high);
                entry.other_versions = Some((low, high)).filter(|_| !learns);
                learns
            }
            ref error => entry.falls_back(error),
        };
        if tries_other && !entry.wants_another() && !entry.link.is_closed.get() {
            entry.starts_over = true;
            entry.link.state.set(LinkState::Connecting);
        } else if !entry.wants_another() {
            entry.fail_first(match error {
                CallError::Accepted(status) => ConnectError::NotServed(status),
                CallError::Rdma(RdmaError::Version { low, high }) => {
                    ConnectError::NoCommonVersion { low, high }
                }
                other => ConnectError::FirstCall(other),
            });
        }
        entry.link.ops.close(conn);
    }
}
