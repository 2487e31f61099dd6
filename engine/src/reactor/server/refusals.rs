//! Answers without results: RDMA_ERROR and RPC errors, to calls that have no slot, or no longer have one, each in the
//! version of its call. Called by the core for messages that cannot be accepted, and by the server half for calls
//! that cannot be answered.

use crate::fabric::ConnId;
use crate::reactor::common::sends::Posted;
use crate::reactor::in_flight::deadlines::Waiting;
use crate::reactor::state::connection::Conn;
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::types::calls::{ReplyTarget, RpcRefusal};
use crate::reactor::types::header_bytes::SYSTEM_ERR;
use crate::reactor::types::stats::StatsSnapshot;
use spinrpc_proto::ids::Xid;
use spinrpc_proto::rdma::{
    HeaderView, MessageType, RdmaError, ReplyRepr, emit_error, emit_msg_header,
};
use spinrpc_proto::rpc::{AcceptStatus, Direction, ReplyHeader};
use spinrpc_proto::version::TransportVersion;

impl RpcRefusal {
    /// The answer as it is sent; its reason is counted.
    pub(in crate::reactor::server) fn counted(self, stats: &mut StatsSnapshot) -> Self {
        match self {
            Self::NoMemory => stats.no_buffer += 1,
            Self::Late => stats.calls_late += 1,
            Self::Dropped => stats.calls_dropped += 1,
            Self::Accepted(_) | Self::Denied(_) | Self::NoRoom => return self,
        }
        SYSTEM_ERR
    }
}

impl Reactor {
    /// Answers with RDMA_ERROR. Without a free buffer the answer is postponed, because a requester waits for it as for
    /// a reply.
    pub(in crate::reactor) fn emit_error(
        &mut self,
        conn: ConnId,
        xid: Xid,
        version: u32,
        error: RdmaError,
    ) {
        let Some(c) = self.conn_with_room(conn) else {
            return self.owe(conn, Waiting::Error(xid, version, error));
        };
        let Some(mut message) = c.sends.take() else { return };
        let grant = c.lane.proto().responder.grant();
        let length = emit_error(message.whole_mut(), xid, version, grant, error);
        message.set_range(0..length);
        self.stats().errors_sent += 1;
        self.post(conn, message, Posted::Answer(None));
    }

    /// A connection that can send an answer now.
    fn conn_with_room(&mut self, conn: ConnId) -> Option<&mut Conn> {
        let (c, core) = self.conn_and_core(conn)?;
        (c.queue_room(core.fabric()) > 0 && c.has_spare_send()).then_some(c)
    }

    /// Tries again to send an answer that found no buffer.
    #[cold]
    pub(in crate::reactor) fn answer(&mut self, conn: ConnId, answer: Waiting) {
        match answer {
            Waiting::Error(xid, version, error) => self.emit_error(conn, xid, version, error),
            Waiting::Refusal(xid, version, why) => {
                self.emit_refusal(conn, (xid, version), None, &why);
            }
            Waiting::Message(_) => {}
        }
    }

    /// Answers a call that has no slot, or no longer has one, without results. Postponed like an RDMA_ERROR, and then
    /// without the lists of the call, whose message is not kept for that.
    pub(in crate::reactor) fn emit_refusal(
        &mut self,
        conn: ConnId,
        (xid, version): (Xid, TransportVersion),
        call: Option<&HeaderView<'_>>,
        answer: &RpcRefusal,
    ) {
        let header = match *answer {
            RpcRefusal::Accepted(status) => ReplyHeader::accepted(xid, status),
            RpcRefusal::Denied(status) => ReplyHeader::denied(xid, status),
            RpcRefusal::NoRoom => {
                let error = RdmaError::of_header(version);
                return self.emit_error(conn, xid, version.to_wire(), error);
            }
            _ => ReplyHeader::accepted(xid, AcceptStatus::SystemErr),
        };
        if !self.emit_rpc_header(conn, version, call, &header) {
            self.owe(conn, Waiting::Refusal(xid, version, *answer));
        }
    }

    /// Sends an RPC reply without results, with the lists of its call, if that is given: "unused" chunks come back with
    /// a length of zero (RFC 8166 sections 4.3.2 and 4.3.3). Lists that leave no room for the answer stay away. A client that
    /// takes no inline message as long as that gets RDMA_ERROR instead (RFC 5666 section 6.2, maxreply_sendsize). `false`,
    /// and nothing happened, without a free buffer.
    pub(in crate::reactor) fn emit_rpc_header(
        &mut self,
        conn: ConnId,
        version: TransportVersion,
        call: Option<&HeaderView<'_>>,
        header: &ReplyHeader<'_>,
    ) -> bool {
        let (xid, rpc_bytes) = (header.xid, header.buffer_len());
        let Some(c) = self.conn(conn) else { return false };
        let room = c.negotiated.inline_bytes_max_in(version);
        let call = call.filter(|call| ReplyRepr::bytes_of(call, 0) + rpc_bytes <= room);
        let at = call.map_or(version.chunkless_header_bytes(), |call| ReplyRepr::bytes_of(call, 0));
        if at + rpc_bytes > room {
            self.emit_refusal(conn, (xid, version), None, &RpcRefusal::NoRoom);
            return true;
        }
        let Some(c) = self.conn_with_room(conn) else { return false };
        let Some(mut message) = c.sends.take() else { return false };
        let grant = c.lane.proto().responder.grant();
        let (start, stream) = message.whole_mut().split_at_mut(at);
        match call {
            Some(call) => returned_unused(call, grant).emit(start, call),
            None => emit_msg_header(start, version, xid, grant, Direction::Reply),
        };
        header.emit(stream);
        message.set_range(0..at + rpc_bytes);
        self.post(conn, message, Posted::Answer(None));
        true
    }
}

/// The header of a reply that uses no chunk of its call.
fn returned_unused(call: &HeaderView<'_>, credits: u32) -> ReplyRepr<'static> {
    ReplyRepr {
        xid: call.xid(),
        credits,
        message_type: MessageType::Msg,
        reads: &[],
        write_lengths: &[],
        reply_length: None,
        counts_roundup: false,
    }
}

impl CoreCell {
    /// Answers a call whose handler panicked with SYSTEM_ERR, unless it was answered before.
    pub(crate) fn fail_call(&self, to: &ReplyTarget<'_>) {
        let mut reactor = self.reactor();
        let Some(c) = reactor.conn(to.conn) else { return };
        // A thread may be sealing its reply.
        #[cfg(feature = "gss")]
        if c.serves.is_sealing(to.slot) {
            return;
        }
        if c.lane.proto().responder.is_delivered(to.slot) {
            reactor.refuse(to, &SYSTEM_ERR);
        }
    }
}
