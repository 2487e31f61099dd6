//! Answers without results: RDMA_ERROR and RPC errors, to calls that have no slot, or no longer have one, each in the
//! version of its call. Called by the core for messages that cannot be accepted, and by the server half for calls
//! that cannot be answered.

use crate::fabric::{ConnId, DownCause};
use crate::reactor::common::sends::Posted;
use crate::reactor::in_flight::retry_entry::Waiting;
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::types::calls::{ReplyTarget, RpcRefusal};
use crate::reactor::types::header_bytes::SYSTEM_ERR;
use spinrpc_proto::ids::Xid;
use spinrpc_proto::rdma::{RdmaError, emit_error, emit_msg_header};
use spinrpc_proto::rpc::{AcceptStatus, Direction, ReplyHeader};
use spinrpc_proto::version::TransportVersion;

const PROG_UNAVAIL: RpcRefusal = RpcRefusal::Accepted(AcceptStatus::ProgUnavail);

impl Reactor {
    /// Answers with RDMA_ERROR. Without a free buffer the answer is deferred, because a requester waits for it as for
    /// a reply.
    pub(in crate::reactor) fn emit_error(
        &mut self,
        conn: ConnId,
        xid: Xid,
        version: u32,
        error: RdmaError,
    ) {
        let Some((c, core)) = self.conn_and_core(conn) else { return };
        if c.queue_room(core.fabric()) == 0 || !c.has_spare_send() {
            return self.owe(conn, Waiting::Error(xid, version, error));
        }
        let Some(mut message) = c.sends.take() else { return };
        let grant = c.lane.proto().responder.grant();
        let length = emit_error(message.whole_mut(), xid, version, grant, error);
        message.set_range(0..length);
        self.stats().errors_sent += 1;
        self.post(conn, message, Posted::Answer(None));
    }

    /// Answers a reverse call that this client does not take. Deferred like an error.
    #[cold]
    pub(in crate::reactor) fn refuse_program(
        &mut self,
        conn: ConnId,
        xid: Xid,
        version: TransportVersion,
    ) {
        let Some((c, core)) = self.conn_and_core(conn) else { return };
        if c.queue_room(core.fabric()) == 0 || !c.has_spare_send() {
            return self.owe(conn, Waiting::NoProgram(xid, version));
        }
        self.stats().calls_refused += 1;
        self.emit_refusal(conn, xid, version, &PROG_UNAVAIL);
    }

    /// Defers an answer. A peer that is owed as many answers as it has credits has exceeded them, and gets none.
    #[cold]
    fn owe(&mut self, conn: ConnId, answer: Waiting) {
        let Some(c) = self.conn(conn) else { return };
        if c.answers_owed < c.serves.slots().max(1) {
            c.answers_owed += 1;
            self.wait(conn, answer);
        }
    }

    /// Tries again to send an answer that found no buffer.
    #[cold]
    pub(in crate::reactor) fn resume_answer(&mut self, conn: ConnId, answer: Waiting) {
        let Some(c) = self.conn(conn) else { return };
        c.answers_owed = c.answers_owed.saturating_sub(1);
        match answer {
            Waiting::Error(xid, version, error) => self.emit_error(conn, xid, version, error),
            Waiting::NoProgram(xid, version) => self.refuse_program(conn, xid, version),
            Waiting::Message(_) => {}
        }
    }

    /// Sends an RPC reply without results that no longer belongs to a slot.
    pub(in crate::reactor) fn emit_refusal(
        &mut self,
        conn: ConnId,
        xid: Xid,
        version: TransportVersion,
        answer: &RpcRefusal,
    ) {
        let header = match *answer {
            RpcRefusal::Accepted(status) => ReplyHeader::accepted(xid, status),
            RpcRefusal::Denied(status) => ReplyHeader::denied(xid, status),
        };
        self.emit_rpc_header(conn, xid, version, &header);
    }

    /// The same, for a prepared RPC reply. A client that takes no inline message as long as that hears an RDMA_ERROR
    /// instead (RFC 5666 section 6.2, maxreply_sendsize).
    pub(in crate::reactor) fn emit_rpc_header(
        &mut self,
        conn: ConnId,
        xid: Xid,
        version: TransportVersion,
        header: &ReplyHeader<'_>,
    ) {
        let Some((c, core)) = self.conn_and_core(conn) else { return };
        let has_room = c.queue_room(core.fabric()) > 0 && c.has_spare_send();
        if version.plain_header_bytes() + header.buffer_len()
            > c.negotiated.inline_bytes_max_in(version)
        {
            return self.emit_error(conn, xid, version.to_wire(), RdmaError::of_header(version));
        }
        let Some(mut message) = c.sends.take().filter(|_| has_room) else { return };
        let grant = c.lane.proto().responder.grant();
        let at = version.plain_header_bytes();
        let start = &mut message.whole_mut()[..at];
        emit_msg_header(start, version, xid, grant, Direction::Reply);
        let length = header.emit(&mut message.whole_mut()[at..]);
        message.set_range(0..at + length);
        self.post(conn, message, Posted::Answer(None));
    }
}

impl CoreCell {
    /// Gives no answer to a repeated call that cannot wait for that of the first, and ends its connection.
    pub(crate) fn leave_repeated(&self, to: &ReplyTarget<'_>) {
        let mut reactor = self.reactor();
        let Some(c) = reactor.conn(to.conn) else { return };
        if c.lane.proto().responder.abandon(to.slot) {
            c.release(to.slot);
            reactor.begin_close(to.conn, DownCause::Local);
        }
    }

    /// Answers a call whose handler panicked with SYSTEM_ERR, unless it was answered before.
    pub(crate) fn fail_call(&self, to: &ReplyTarget<'_>) {
        let mut reactor = self.reactor();
        let Some(c) = reactor.conn(to.conn) else { return };
        // Its reply may already be in progress, in steps.
        #[cfg(feature = "gss")]
        if c.serves.of(to.slot).is_sealing {
            return;
        }
        if c.lane.proto().responder.is_delivered(to.slot) {
            reactor.refuse(to, &SYSTEM_ERR);
        }
    }
}
