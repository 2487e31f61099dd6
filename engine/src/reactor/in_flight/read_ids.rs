//! RDMA Reads into the memory of a message, and the name under which each completes.

use crate::fabric::{AnyFabric, ConnId, RemoteSlice, SendWr, WrId};
use crate::reactor::in_flight::read_buffers::ReadBuffers;
use spinrpc_proto::events::{ReadRequest, SlotId};

/// Owner of the fetched chunks: slots of calls and of replies are numbered separately, and a connection may have
/// both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::reactor) enum ReadOwner {
    Call(SlotId),
    Reply(SlotId),
}

/// Set in the name of an RDMA Read that is of a reply; the slot is in the lower bits.
const OF_REPLY: u64 = 1 << 48;

impl ReadOwner {
    fn wr_id(self) -> WrId {
        let (slot, kind) = (self.slot(), if self.is_reply() { OF_REPLY } else { 0 });
        WrId(kind | u64::from(slot.generation) << 16 | u64::from(slot.index))
    }

    pub(in crate::reactor) fn is_reply(self) -> bool {
        matches!(self, Self::Reply(_))
    }

    pub(in crate::reactor) fn slot(self) -> SlotId {
        let (Self::Call(slot) | Self::Reply(slot)) = self;
        slot
    }

    pub(in crate::reactor) fn of(id: WrId) -> Self {
        let slot = SlotId { index: id.0 as u16, generation: (id.0 >> 16) as u32 };
        if id.0 & OF_REPLY == 0 { Self::Call(slot) } else { Self::Reply(slot) }
    }
}

/// Posts RDMA Reads into the memory of one message.
pub(in crate::reactor) struct ReadSink<'a> {
    fabric: &'a mut AnyFabric,
    conn: ConnId,
    what: ReadOwner,
    sinks: &'a mut ReadBuffers,
    bytes: u64,
    overrun: bool,
}

impl<'a> ReadSink<'a> {
    pub(in crate::reactor) fn new(
        fabric: &'a mut AnyFabric,
        conn: ConnId,
        what: ReadOwner,
        sinks: &'a mut ReadBuffers,
    ) -> Self {
        Self { fabric, conn, what, sinks, bytes: 0, overrun: false }
    }

    /// Bytes that were requested, and true if the send queue had no room for a request.
    pub(in crate::reactor) fn end(self) -> (u64, bool) {
        (self.bytes, self.overrun)
    }

    pub(in crate::reactor) fn read(&mut self, read: ReadRequest) {
        let Some(bulk) = &mut self.sinks.bulks[usize::from(read.chunk)] else { return };
        let at = read.at as usize;
        let length = read.from.length;
        let from = RemoteSlice { handle: read.from.handle, length, offset: read.from.offset };
        let into = bulk.lease(at..at + length as usize);
        self.bytes += u64::from(length);
        let read = SendWr::Read { id: self.what.wr_id(), from, into };
        self.overrun |= self.fabric.post(self.conn, read).is_err();
    }
}
