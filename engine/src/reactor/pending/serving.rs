//! A call in the hands of its handler, and the ways to answer it. Made by the lane and by the api's dispatch.

use crate::fabric::ConnId;
use crate::mem::Bulk;
use crate::reactor::pending::deferred::DeferTicket;
use crate::reactor::pending::reply_cache::Ticket;
use crate::reactor::words::calls::{CallOutcome, ReplyTarget, RpcRefusal};
use crate::reactor::words::draft::{Draft, EncodeOnce};
use crate::reactor::words::message_memory::MessageMemory;
#[cfg(feature = "gss")]
use crate::reactor::words::messages::version_of;
use crate::reactor::words::reply_plan::ReplyData;
use spinrpc_proto::ids::Xid;
use spinrpc_proto::output::SlotId;
use spinrpc_proto::payload::StreamWriter;
use spinrpc_proto::plain::REPLY_BYTES;
#[cfg(feature = "gss")]
use spinrpc_proto::version::TransportVersion;
use std::cell::{Cell, RefCell};

/// Answers calls. Every method returns at once.
pub(crate) trait ReplyOps {
    /// Answers a call with results and data items, which `keep` stores.
    fn reply(
        &self,
        to: &ReplyTarget<'_>,
        data: ReplyData,
        keep: Option<Ticket>,
        encode: EncodeOnce<'_>,
    );
    /// Answers a call with results that were kept.
    fn reply_again(&self, to: &ReplyTarget<'_>, data: ReplyData, draft: &Draft<'_>);
    /// Answers a call that its handler dropped.
    fn drop_call(&self, to: &ReplyTarget<'_>);
    /// Answers a call with an RPC error.
    fn reject(&self, to: &ReplyTarget<'_>, answer: &RpcRefusal);
    /// Gives no answer to a repeated call that cannot wait for that of the first, and ends its connection.
    fn leave_repeated(&self, to: &ReplyTarget<'_>);
    /// Ticket to answer this call later; `None` when too many calls are deferred.
    fn defer(&self, to: &ReplyTarget<'_>) -> Option<DeferTicket>;
    /// Takes a slot for a call that has none; `None` when its connection has gone.
    fn take_slot(&self, conn: ConnId) -> Option<SlotId>;
    /// Memory of the core for the results of a call of this connection, counted in its share.
    fn bulk(&self, conn: ConnId, bytes: usize) -> Option<Bulk>;
    /// Counts a call that is answered with a kept reply.
    fn count_replay(&self);
    /// Counts a call that is not executed because no place for its reply is free.
    fn count_full(&self);
}

/// A call in the hands of its handler.
///
/// Most plain calls are answered at once. The reply is written into memory that the handler finds here,
/// and sent when it returns; if it is short the call never takes a slot. Any other answer takes one
/// first.
pub(crate) struct Serving<'a> {
    pub(crate) conn: ConnId,
    message: &'a [u8],
    plain: bool,
    slot: Cell<Option<SlotId>>,
    room: Option<&'a RefCell<MessageMemory>>,
    /// No further reply is written there.
    is_forgone: Cell<bool>,
}

impl<'a> Serving<'a> {
    /// A call that has a slot, and no short reply.
    pub(crate) fn placed(to: &ReplyTarget<'a>) -> Self {
        Self { plain: to.plain, ..Self::with_room(to.conn, Some(to.slot), to.message, None) }
    }

    /// A plain call; a reply is written into `room`.
    #[inline(always)]
    pub(in crate::reactor) fn with_room(
        conn: ConnId,
        slot: Option<SlotId>,
        message: &'a [u8],
        room: Option<&'a RefCell<MessageMemory>>,
    ) -> Self {
        let (slot, is_forgone) = (Cell::new(slot), Cell::new(false));
        Self { conn, message, plain: true, slot, room, is_forgone }
    }

    /// The version of RPC-over-RDMA in which it came.
    #[cfg(feature = "gss")]
    pub(crate) fn version(&self) -> TransportVersion {
        version_of(self.message)
    }

    /// The XID of the transport header.
    pub(crate) fn xid(&self) -> Xid {
        Xid(self.message.first_chunk().map_or(0, |word| u32::from_be_bytes(*word)))
    }

    /// The slot that it has now.
    #[inline(always)]
    pub(in crate::reactor) fn slot(&self) -> Option<SlotId> {
        self.slot.get()
    }

    /// Writes a reply, if possible; otherwise returns the encoder.
    #[inline(always)]
    pub(crate) fn reply<E: FnOnce(&mut StreamWriter<'_>)>(
        &self,
        encode: E,
    ) -> Result<CallOutcome, E> {
        let room = self.room.filter(|_| !self.is_forgone.replace(true));
        let Some(mut room) = room.and_then(|room| room.try_borrow_mut().ok()) else {
            return Err(encode);
        };
        match room.encode::<REPLY_BYTES>(encode) {
            Some(_) => Ok(CallOutcome::Replied),
            None => Ok(CallOutcome::RepliedAtLength),
        }
    }

    /// From now on no reply is written here.
    pub(crate) fn forgo_room(&self) {
        self.is_forgone.set(true);
    }

    /// Returns the target of any other answer; `None` when the connection has gone.
    #[inline]
    pub(crate) fn target(&self, ops: &dyn ReplyOps) -> Option<ReplyTarget<'a>> {
        self.forgo_room();
        self.slot.set(self.slot.get().or_else(|| ops.take_slot(self.conn)));
        self.placed_target()
    }

    /// The same without taking a slot; `None` if it has no slot.
    #[inline]
    fn placed_target(&self) -> Option<ReplyTarget<'a>> {
        let Self { conn, message, plain, .. } = *self;
        Some(ReplyTarget { conn, slot: self.slot.get()?, message, plain })
    }
}
