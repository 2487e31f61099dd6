//! Replies by Read list, and chained receives: settings of a core, and state of a connection.

use crate::config::Config;
use crate::fabric::{AnyFabric, FabricError};
use crate::mem::Buf;
use crate::reactor::in_flight::read_buffers::ReadBuffers;
use crate::reactor::in_flight::rfc5666::{ExportHold, KeptReply, ReceiveChains, ReplyPull};
use crate::sys::clock::Clock;
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::events::SlotId;
use std::collections::VecDeque;

/// Settings of a core that RFC 8166 has no use for.
pub(in crate::reactor) struct CoreDialect {
    /// Set if connections have chained receives, whose first buffers have the length of this alignment.
    chained: Option<Alignment>,
    /// Time that the memory of a reply waits for RDMA_DONE.
    done_timeout_ticks: u64,
}

impl CoreDialect {
    /// Settings by configuration and driver.
    pub(in crate::reactor) fn new(config: &Config, fabric: &AnyFabric, clock: &Clock) -> Self {
        let alignment = config.msgp_alignment();
        let chains = alignment != Alignment::NONE && fabric.caps().recv_buffers_max >= 2;
        Self {
            chained: chains.then_some(alignment),
            done_timeout_ticks: clock.from_duration(config.done_timeout()),
        }
    }

    /// Set if connections have chained receives, whose first buffers have the length of this alignment.
    pub(in crate::reactor) fn chained(&self) -> Option<Alignment> {
        self.chained
    }

    /// Time that the memory of a reply waits for RDMA_DONE.
    pub(in crate::reactor) fn done_timeout_ticks(&self) -> u64 {
        self.done_timeout_ticks
    }

    /// Returns true if receives are chained, so that a message may lie in two buffers.
    #[inline]
    pub(in crate::reactor) fn chains(&self) -> bool {
        self.chained.is_some()
    }
}

/// State of a connection that RFC 8166 has no use for. Holds no memory under that profile.
pub(crate) struct Dialect {
    /// Replies that are being fetched, one place for each call.
    pulls: Box<[Option<ReplyPull>]>,
    /// Exports for the reply of each call.
    exports: Box<[ExportHold]>,
    /// Replies that wait for an earlier RDMA_DONE, the oldest first.
    pub(in crate::reactor) kept: VecDeque<KeptReply>,
    /// The second buffers of its receives, if they have any.
    chains: Option<ReceiveChains>,
}

impl Dialect {
    /// State of a connection with these numbers of calls that it makes and serves, and of receives, which are chained
    /// for data of the alignment `chained`.
    pub(in crate::reactor) fn new(
        config: &Config,
        (calls, serves): (usize, usize),
        chained: Option<Alignment>,
        receives: u64,
    ) -> Result<Self, FabricError> {
        let has_reads = config.protocol().has_reads_in_replies();
        let (pulls, exports) = if has_reads { (calls, serves) } else { (0, 0) };
        let chains = chained.map(|alignment| ReceiveChains::new(config, alignment, receives));
        Ok(Self {
            pulls: (0..pulls).map(|_| None).collect(),
            exports: (0..exports).map(|_| ExportHold::default()).collect(),
            kept: VecDeque::with_capacity(exports),
            chains: chains.transpose()?,
        })
    }

    /// Bytes each receive buffer has beyond a whole message.
    pub(in crate::reactor) fn extra_bytes(&self) -> usize {
        self.chains.as_ref().map_or(0, ReceiveChains::extra_bytes)
    }

    /// Gives a receive its second buffer, if the receives of this connection have one. Returns false if none is left.
    pub(in crate::reactor) fn prepare(&self, buf: &mut Buf) -> bool {
        self.chains.as_ref().is_none_or(|chains| chains.prepare(buf))
    }

    /// A reply that is being fetched.
    pub(in crate::reactor) fn pull(&mut self, slot: SlotId) -> Option<&mut ReplyPull> {
        self.pulls.get_mut(usize::from(slot.index))?.as_mut()
    }

    /// The same: its message, and the memory of its chunks.
    pub(in crate::reactor) fn fetched(&mut self, slot: SlotId) -> Option<(&Buf, &mut ReadBuffers)> {
        self.pull(slot).map(|ReplyPull { message, sinks, .. }| (&*message, sinks))
    }

    /// Begins with a reply; returns false if the connection has no place for one.
    pub(in crate::reactor) fn put_pull(&mut self, slot: SlotId, pull: ReplyPull) -> bool {
        let place = self.pulls.get_mut(usize::from(slot.index));
        place.map(|place| *place = Some(pull)).is_some()
    }

    pub(in crate::reactor) fn take_pull(&mut self, slot: SlotId) -> Option<ReplyPull> {
        self.pulls.get_mut(usize::from(slot.index))?.take()
    }

    /// The client may fetch a reply under these keys.
    pub(in crate::reactor) fn put_export(&mut self, slot: SlotId, hold: ExportHold) {
        self.exports[usize::from(slot.index)] = hold;
    }

    pub(in crate::reactor) fn take_export(&mut self, slot: SlotId) -> Option<ExportHold> {
        self.exports.get_mut(usize::from(slot.index)).map(std::mem::take)
    }

    /// Number of replies that are being fetched, each of which holds its message.
    pub(in crate::reactor) fn pulling(&self) -> usize {
        self.pulls.iter().flatten().count()
    }

    /// Blocks of registered memory that replies hold while they are fetched from here.
    pub(in crate::reactor) fn pull_blocks(&self) -> usize {
        self.pulls.iter().flatten().map(|pull| pull.blocks()).sum()
    }

    /// Keys under which the peer can fetch replies.
    pub(in crate::reactor) fn export_keys(&self) -> usize {
        self.exports.iter().map(|hold| hold.keys()).sum()
    }
}
