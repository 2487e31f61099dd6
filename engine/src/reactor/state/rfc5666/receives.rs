//! Chained receives: where padded data arrive in memory of their own (RFC 5666 section 3.9).
//!
//! A receive of such a connection is a head as long as the alignment and, behind it, a page-aligned tail. Data that
//! begin at the boundary fill the tail from its start, and the application gets that tail as its own, without a copy.
//! Everything else works as in one buffer: a message that is not an RDMA_MSGP is joined when it arrives, and one
//! whose data do not begin at the boundary when the decoder reaches it.

use crate::fabric::ConnId;
use crate::mem::Buf;
use crate::reactor::state::core::Reactor;
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::limits::Limits;
use spinrpc_proto::rdma::v1::{HeaderView, alignment_of};
use spinrpc_proto::rpc::{self, CallHeader, Direction, ReplyHeader};
use spinrpc_proto::xdr::Reader;

impl Reactor {
    /// Gives a receive buffer its second one again.
    #[cold]
    pub(in crate::reactor) fn prepare_receive(&mut self, conn: ConnId, message: &mut Buf) {
        if self.conn(conn).is_some_and(|c| !c.dialect.prepare(message)) {
            self.stats().receives_unchained += 1;
        }
    }

    /// A message arrived on a core with chained receives: its parts are joined, unless it is a padded message whose
    /// headers lie in the first buffer.
    #[cold]
    pub(in crate::reactor) fn join_unless_padded(&mut self, conn: ConnId, message: &mut Buf) {
        let Some(c) = self.conn(conn).filter(|_| message.spills()) else { return };
        if !begins_padded(message.bytes(), c.lane.proto().limits()) {
            self.stats().joins += 1;
            message.join();
        }
    }
}

/// Returns true if these are the complete headers of an RDMA_MSGP, transport and RPC.
fn begins_padded(head: &[u8], limits: &Limits) -> bool {
    let alignment = alignment_of(head);
    let Ok(view) = HeaderView::new_checked(head, limits) else { return false };
    let mut reader = Reader::aligned(view.payload(), alignment, view.header_bytes());
    let is_whole = match rpc::message_direction(view.payload()) {
        Some(Direction::Reply) => ReplyHeader::read(&mut reader).is_ok(),
        Some(Direction::Call) => CallHeader::read(&mut reader).is_ok(),
        None => false,
    };
    alignment != Alignment::NONE && is_whole
}
