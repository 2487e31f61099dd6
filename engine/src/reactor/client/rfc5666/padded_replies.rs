//! Delivering replies that came as RDMA_MSGP (RFC 5666 section 3.9). Called by the deliveries of `calls`.

use crate::fabric::ConnId;
use crate::mem::Buf;
use crate::reactor::pending::call_table::CallHold;
use crate::reactor::pending::upcalls::Upcalls;
use crate::reactor::state::core::CoreCell;
use crate::reactor::words::calls::{ReplyBuffers, ReplyFrame};
use crate::reactor::words::rfc5666::Padded;
use spinrpc_proto::output::DeliveredReply;
use std::cell::Cell;

impl CoreCell {
    /// As [`CoreCell::deliver_reply`], for an RDMA_MSGP.
    #[cold]
    pub(in crate::reactor) fn deliver_padded_reply(
        &self,
        conn: ConnId,
        mut message: Buf,
        header_bytes: usize,
        reply: &DeliveredReply,
        mut hold: Option<Box<CallHold>>,
        up: &mut impl Upcalls,
    ) {
        let mut buffers = hold
            .as_deref_mut()
            .map(|hold| ReplyBuffers::new(&mut hold.arguments, &mut hold.results));
        let joined = Cell::new(false);
        let (head, mut padded) = Padded::of(&mut message, header_bytes, &joined);
        let (stream, placed, token) = (&head[header_bytes..], &reply.placed[..], reply.token);
        let xid = reply.slot.xid();
        let (buffers, padded) = (buffers.as_mut(), Some(&mut padded));
        up.on_reply(ReplyFrame { conn, token, xid, stream, placed, buffers, padded });
        let mut reactor = self.reactor();
        reactor.stats().joins += u64::from(joined.get());
        reactor.finish_reply(conn, message, hold);
    }
}
