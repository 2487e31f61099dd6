//! A call in the hands of its handler, and the ways to answer it. Made by the lane and by the api's dispatch.

use crate::fabric::ConnId;
use crate::reactor::types::calls::{CallOutcome, ReplyTarget};
use crate::reactor::types::encode_buffer::MessageMemory;
use crate::reactor::types::header_bytes::{version_of, xid_of};
use spinrpc_proto::chunking::StreamWriter;
use spinrpc_proto::events::SlotId;
use spinrpc_proto::ids::Xid;
use spinrpc_proto::plain::REPLY_BYTES;
use spinrpc_proto::version::TransportVersion;
use std::cell::{Cell, RefCell};

/// A call in the hands of its handler.
///
/// Most calls without chunks are answered at once. The reply is written into memory that the handler finds here,
/// and sent when it returns; if it is short the call never takes a slot. Any other answer takes one
/// first.
pub(crate) struct Serving<'a> {
    pub(crate) conn: ConnId,
    message: &'a [u8],
    is_chunkless: bool,
    slot: Cell<Option<SlotId>>,
    room: Option<&'a RefCell<MessageMemory>>,
    /// No further reply is written there.
    is_forgone: Cell<bool>,
}

impl<'a> Serving<'a> {
    /// A call that has a slot, and no short reply.
    pub(crate) fn placed(to: &ReplyTarget<'a>) -> Self {
        Self {
            is_chunkless: to.is_chunkless,
            ..Self::with_room(to.conn, Some(to.slot), to.message, None)
        }
    }

    /// A call without chunks; a reply is written into `room`.
    #[inline(always)]
    pub(in crate::reactor) fn with_room(
        conn: ConnId,
        slot: Option<SlotId>,
        message: &'a [u8],
        room: Option<&'a RefCell<MessageMemory>>,
    ) -> Self {
        let (slot, is_forgone) = (Cell::new(slot), Cell::new(false));
        Self { conn, message, is_chunkless: true, slot, room, is_forgone }
    }

    /// The version of RPC-over-RDMA in which it came.
    #[cfg(feature = "gss")]
    pub(crate) fn version(&self) -> TransportVersion {
        version_of(self.message)
    }

    /// The XID of the transport header.
    pub(crate) fn xid(&self) -> Xid {
        xid_of(self.message)
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

    /// Returns the target of any other answer, with a slot that `take_slot` takes if it has none; `None` when the
    /// connection has gone.
    #[inline]
    pub(in crate::reactor) fn target(
        &self,
        take_slot: impl FnOnce(ConnId, TransportVersion) -> Option<SlotId>,
    ) -> Option<ReplyTarget<'a>> {
        self.forgo_room();
        let Self { conn, message, is_chunkless, .. } = *self;
        let slot = self.slot.get().or_else(|| take_slot(conn, version_of(message)))?;
        self.slot.set(Some(slot));
        Some(ReplyTarget { conn, slot, message, is_chunkless })
    }
}
