//! Answers that are no results: RDMA_ERROR and RPC errors, to calls that have no slot, or none any
//! more, each in the version in which its call came. Called by the core for messages that cannot be
//! taken, and by the server half for calls that cannot be answered.

use super::core::Reactor;
use super::ops::RpcRefusal;
use crate::fabric::{ConnId, Fabric};
use spinrpc_proto::ids::Xid;
use spinrpc_proto::rdma::{RdmaError, emit_msg_header, v1};
use spinrpc_proto::rpc::{Direction, ReplyHeader};
use spinrpc_proto::version::TransportVersion;

/// An RDMA_ERROR that found no buffer.
pub(super) struct OwedError {
    conn: ConnId,
    xid: Xid,
    version: u32,
    error: RdmaError,
}

impl<F: Fabric> Reactor<F> {
    /// Answers with RDMA_ERROR. Without a free buffer it is put off, because a requester waits for
    /// it as for a reply; one to whom as many are owed as it has credits has sent more rubbish, and
    /// gets none.
    pub(super) fn send_error(&mut self, conn: ConnId, xid: Xid, version: u32, error: RdmaError) {
        let Some(c) = self.conns.find(conn) else { return };
        if c.send_room(&self.fabric) == 0 || !c.has_spare_send() {
            if c.errors_owed < c.serves.len() {
                c.errors_owed += 1;
                self.owed_errors.push_back(OwedError { conn, xid, version, error });
            }
            return;
        }
        let Some(mut message) = c.sends.take() else { return };
        let grant = c.proto.responder.grant();
        let length = v1::emit_error(message.whole_mut(), xid, version, grant, error);
        message.set_range(0..length);
        self.stats.errors_sent += 1;
        self.post_answer(conn, message, None);
    }

    /// Tries again to send the errors that found no buffer.
    #[cold]
    pub(super) fn send_owed_errors(&mut self) {
        for _ in 0..self.owed_errors.len() {
            let Some(owed) = self.owed_errors.pop_front() else { return };
            let Some(c) = self.conns.find(owed.conn) else { continue };
            c.errors_owed = c.errors_owed.saturating_sub(1);
            self.send_error(owed.conn, owed.xid, owed.version, owed.error);
        }
    }

    /// Sends an RPC reply without results that belongs to no slot any more.
    pub(super) fn send_refusal(
        &mut self,
        conn: ConnId,
        xid: Xid,
        version: TransportVersion,
        answer: &RpcRefusal,
    ) {
        let Some(c) = self.conns.find(conn) else { return };
        if c.send_room(&self.fabric) == 0 || !c.has_spare_send() {
            return;
        }
        let Some(mut message) = c.sends.take() else { return };
        let header = match *answer {
            RpcRefusal::Accepted(status) => ReplyHeader::accepted(xid, status),
            RpcRefusal::Denied(status) => ReplyHeader::denied(xid, status),
        };
        let grant = c.proto.responder.grant();
        let at = version.plain_header_bytes();
        let start = &mut message.whole_mut()[..at];
        emit_msg_header(start, version, xid, grant, Direction::Reply);
        let length = header.emit(&mut message.whole_mut()[at..]);
        message.set_range(0..at + length);
        self.post_answer(conn, message, None);
    }
}
