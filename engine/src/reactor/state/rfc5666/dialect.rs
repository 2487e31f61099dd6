//! Replies by Read list: state of a connection.

use crate::config::Config;
use crate::mem::Buf;
use crate::reactor::in_flight::deadlines::MessageWait;
use crate::reactor::in_flight::outgoing::Outgoing;
use crate::reactor::in_flight::read_buffers::ReadBuffers;
use crate::reactor::in_flight::rfc5666::ExportHold;
use crate::reactor::state::connection::Conn;
use crate::reactor::types::header_bytes::xid_of;
use spinrpc_proto::events::{DeliveredReply, SlotId};
use spinrpc_proto::ids::{Instant, Xid};
use spinrpc_proto::rdma::set_credits;
use std::collections::VecDeque;

/// State of a connection that RFC 8166 has no use for. Holds no memory under that profile.
pub(crate) struct Dialect {
    /// Replies that are being fetched, one place for each call.
    pulls: Box<[Option<ReplyPull>]>,
    /// Exports for the reply of each call.
    pub(in crate::reactor::state) exports: Box<[ExportHold]>,
    /// Replies that wait for an earlier RDMA_DONE, the oldest first.
    pub(in crate::reactor::state) kept: VecDeque<KeptReply>,
}

impl Dialect {
    /// State of a connection with these numbers of calls that it makes and serves.
    pub(in crate::reactor) fn new(config: &Config, calls: usize, serves: usize) -> Self {
        let has_reads = config.protocol().has_reads_in_replies();
        let (pulls, exports) = if has_reads { (calls, serves) } else { (0, 0) };
        Self {
            pulls: (0..pulls).map(|_| None).collect(),
            exports: (0..exports).map(|_| ExportHold::default()).collect(),
            kept: VecDeque::with_capacity(exports),
        }
    }

    /// Replies that are being fetched.
    pub(in crate::reactor::state) fn pulls(&self) -> impl Iterator<Item = &ReplyPull> {
        self.pulls.iter().flatten()
    }

    fn pull(&mut self, slot: SlotId) -> Option<&mut ReplyPull> {
        self.pulls.get_mut(usize::from(slot.index))?.as_mut()
    }

    /// A reply that is being fetched: its message, and the memory of its chunks.
    pub(crate) fn fetched(&mut self, slot: SlotId) -> Option<(&Buf, &mut ReadBuffers)> {
        self.pull(slot).map(|pull| (&pull.reply.0, &mut pull.sinks))
    }

    pub(in crate::reactor::state) fn wait(&mut self, slot: SlotId) -> Option<&mut MessageWait> {
        self.pull(slot).map(|pull| &mut pull.wait)
    }
}

/// Replies that are fetched from here.
impl Conn {
    /// Begins with a reply; returns false if the connection has no place for one.
    pub(in crate::reactor) fn put_pull(&mut self, reply: PulledReply) -> bool {
        let (sinks, wait) = (ReadBuffers::default(), MessageWait::default());
        let place = self.dialect.pulls.get_mut(usize::from(reply.1.slot.index));
        place.map(|place| *place = Some(ReplyPull { reply, sinks, wait })).is_some()
    }

    pub(crate) fn take_pull(&mut self, slot: SlotId) -> Option<(PulledReply, ReadBuffers)> {
        let pull = self.dialect.pulls.get_mut(usize::from(slot.index))?.take()?;
        Some((pull.reply, pull.sinks))
    }
}

/// Replies that the client fetches.
impl Conn {
    /// The client may fetch a reply under these keys.
    pub(in crate::reactor) fn put_export(&mut self, slot: SlotId, hold: ExportHold) {
        self.dialect.exports[usize::from(slot.index)] = hold;
    }

    pub(in crate::reactor) fn take_export(&mut self, slot: SlotId) -> Option<ExportHold> {
        self.dialect.exports.get_mut(usize::from(slot.index)).map(std::mem::take)
    }

    /// A reply waits until `deadline` for an earlier RDMA_DONE. It keeps its place in the send queue.
    pub(crate) fn keep_back(&mut self, slot: SlotId, reply: (Buf, Option<u32>), deadline: Instant) {
        let (message, invalidate) = reply;
        self.serves.reserve(slot, 1);
        self.lane.reserve(1);
        self.dialect.kept.push_back(KeptReply { slot, message, invalidate, deadline });
    }

    pub(in crate::reactor) fn kept_deadline(&self) -> Option<Instant> {
        self.dialect.kept.front().map(|kept| kept.deadline)
    }

    /// The reply that was kept back first, and the key to invalidate with it, if its turn has come: it is exported until
    /// `deadline`.
    pub(crate) fn take_kept(&mut self, deadline: Instant) -> Option<(Buf, Option<u32>)> {
        let slot = self.dialect.kept.front()?.slot;
        let credits = self.lane.proto().responder.send_kept(slot, deadline)?;
        let KeptReply { mut message, invalidate, .. } = self.dialect.kept.pop_front()?;
        self.release(slot);
        set_credits(message.bytes_mut(), credits);
        Some((message, invalidate))
    }

    /// A reply that was kept back for too long, which is not sent any more.
    pub(in crate::reactor) fn give_up_kept(&mut self, now: Instant) -> Option<(SlotId, Xid)> {
        let kept = self.dialect.kept.pop_front_if(|kept| kept.deadline <= now)?;
        self.lane.proto().responder.give_up_kept(kept.slot);
        self.release(kept.slot);
        Some((kept.slot, xid_of(kept.message.bytes())))
    }
}

/// A reply with a Read list, until its chunks were fetched (RFC 5666 section 3.8): its message, and its call, whose keys are dead.
pub(in crate::reactor) type PulledReply = (Buf, DeliveredReply, Option<Box<Outgoing>>);

/// Such a reply while it is being fetched.
pub(in crate::reactor::state) struct ReplyPull {
    reply: PulledReply,
    /// Memory for its chunks.
    sinks: ReadBuffers,
    wait: MessageWait,
}

impl ReplyPull {
    /// Blocks of registered memory that it holds.
    pub(in crate::reactor::state) fn blocks(&self) -> usize {
        self.reply.2.as_ref().map_or(0, |call| call.blocks()) + self.sinks.blocks()
    }
}

/// A reply that is written, its data exposed, and waits for an earlier RDMA_DONE.
pub(in crate::reactor::state) struct KeptReply {
    slot: SlotId,
    message: Buf,
    /// The key to invalidate with it.
    invalidate: Option<u32>,
    /// End of its wait.
    deadline: Instant,
}
