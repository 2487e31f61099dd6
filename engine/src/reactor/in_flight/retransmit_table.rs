//! Stored state of a client's calls that may be sent again on another connection: one place for each slot.

use crate::fabric::DownCause;
use crate::mem::{Bulk, BulkPool};
use crate::reactor::types::calls::{CallSpec, Resend};
use crate::reactor::types::draft::{Cuts, Draft};
use spinrpc_proto::events::SlotId;
use spinrpc_proto::limits::ITEMS_MAX;

/// Data to send a call again.
pub(in crate::reactor) struct Retransmit {
    /// The RPC message from its XID on, its data items taken out.
    stream: Bulk,
    cuts: Cuts,
    resend: Resend,
    /// Number of times it was sent again.
    resends: u8,
    /// Sent on the present connection.
    in_flight: bool,
    /// A connection was lost on which it may have been executed.
    is_unknown: bool,
    /// Rises from call to call.
    order: u64,
    reply_bytes_max: usize,
    /// Room for each result.
    result_bytes: [usize; ITEMS_MAX],
    /// Original room of results that the lost connection's peer could reach.
    rooms: [Option<usize>; ITEMS_MAX],
}

/// The kept calls of a client that outlives its connections.
pub(crate) struct Lasting {
    kept: Box<[Option<Retransmit>]>,
    pub(in crate::reactor) resends_max: u8,
    /// Cause of the loss of the last connection.
    pub(in crate::reactor) lost_by: DownCause,
    /// Stored state of the call that ended last. Only on connections with a security context: the server may have
    /// denied the call because it has lost the context.
    #[cfg(feature = "gss")]
    pub(in crate::reactor) ended: Option<(SlotId, Retransmit)>,
    #[cfg(feature = "gss")]
    pub(in crate::reactor) keeps_ended: bool,
}

impl Lasting {
    pub(in crate::reactor) fn new(slots: usize) -> Box<Self> {
        let kept = (0..slots).map(|_| None).collect();
        Box::new(Self {
            kept,
            resends_max: 0,
            lost_by: DownCause::Local,
            #[cfg(feature = "gss")]
            ended: None,
            #[cfg(feature = "gss")]
            keeps_ended: false,
        })
    }

    /// Drops the stored state of a call that has ended.
    #[cfg(feature = "gss")]
    pub(in crate::reactor) fn forget_ended(&mut self, slot: SlotId) {
        self.ended.take_if(|(ended, _)| *ended == slot);
    }

    pub(in crate::reactor) fn take(&mut self, slot: SlotId) -> Option<Retransmit> {
        self.kept[usize::from(slot.index)].take()
    }

    /// The call in this slot has ended.
    pub(in crate::reactor) fn forget(&mut self, slot: SlotId) {
        let kept = self.take(slot);
        #[cfg(feature = "gss")]
        if self.keeps_ended {
            self.ended = kept.map(|kept| (slot, kept));
            return;
        }
        drop(kept);
    }

    pub(in crate::reactor) fn kept(&self, slot: SlotId) -> Option<&Retransmit> {
        self.kept[usize::from(slot.index)].as_ref()
    }

    pub(in crate::reactor) fn kept_mut(&mut self, slot: SlotId) -> Option<&mut Retransmit> {
        self.kept[usize::from(slot.index)].as_mut()
    }

    pub(in crate::reactor) fn put(&mut self, slot: SlotId, kept: Retransmit) {
        self.kept[usize::from(slot.index)] = Some(kept);
    }

    /// The connection of this call is gone; notes if the call is known not to be executed there.
    pub(in crate::reactor) fn note_loss(&mut self, slot: SlotId, is_unexecuted: bool) {
        let Some(kept) = self.kept_mut(slot).filter(|kept| kept.in_flight) else { return };
        if is_unexecuted {
            // It did not bring the connection down.
            kept.resends = kept.resends.saturating_sub(1);
        } else {
            kept.is_unknown = true;
        }
    }

    /// Returns true if a lost connection may have executed the call in this slot.
    pub(in crate::reactor) fn is_unknown(&self, slot: SlotId) -> bool {
        self.kept(slot).is_some_and(|kept| kept.is_unknown)
    }

    /// Returns true if no connection executed the call in this slot.
    pub(in crate::reactor) fn is_unexecuted(&self, slot: SlotId) -> bool {
        self.kept(slot).is_some_and(|kept| !kept.is_unknown)
    }

    /// Returns true if the call in this slot, whose connection is gone, may be sent again. "A bound on resends": a
    /// call that brings the connection down each time would otherwise do so forever (RFC 8166 section 4.5.3).
    pub(in crate::reactor) fn may_resend(&self, slot: SlotId) -> bool {
        self.kept(slot).is_some_and(|kept| !kept.in_flight || kept.resends < self.resends_max)
    }
}

impl Retransmit {
    /// A call that is kept in memory of `pool`; `None` if no block is free.
    pub(in crate::reactor) fn new(
        pool: &BulkPool,
        draft: &Draft<'_>,
        order: u64,
        spec: &CallSpec,
    ) -> Option<Self> {
        let mut stream = pool.take(draft.stream().len())?;
        stream.bytes_mut().copy_from_slice(draft.stream());
        let result_bytes =
            spec.results.each_ref().map(|result| result.as_ref().map_or(0, Bulk::len));
        Some(Self {
            stream,
            cuts: *draft.cuts(),
            resend: spec.resend,
            resends: 0,
            in_flight: true,
            is_unknown: false,
            order,
            reply_bytes_max: spec.reply_bytes_max,
            result_bytes,
            rooms: [None; ITEMS_MAX],
        })
    }

    /// The RPC message.
    pub(in crate::reactor) fn draft(&self) -> Draft<'_> {
        Draft::new(self.stream.bytes(), self.cuts)
    }

    /// A spec as that of the call, without buffers.
    pub(in crate::reactor) fn spec(&self) -> CallSpec {
        let (reply_bytes_max, resend) = (self.reply_bytes_max, self.resend);
        CallSpec { is_special: true, reply_bytes_max, resend, ..CallSpec::short() }
    }

    getters! {
        resend: Resend,
        /// Rises from call to call.
        order: u64,
        /// A connection was lost on which it may have been executed.
        is_unknown: bool,
        /// Room for each result.
        result_bytes: &[usize; ITEMS_MAX],
        /// Original room of results that the lost connection's peer could reach.
        rooms: &[Option<usize>; ITEMS_MAX],
    }

    /// Sent on the present connection.
    pub(in crate::reactor) fn is_in_flight(&self) -> bool {
        self.in_flight
    }

    /// Its connection is lost, and so is this memory.
    pub(in crate::reactor) fn detach(&mut self, rooms: [Option<usize>; ITEMS_MAX]) {
        (self.rooms, self.in_flight) = (rooms, false);
    }

    /// It was sent again.
    pub(in crate::reactor) fn count_resend(&mut self) {
        self.in_flight = true;
        self.resends += 1;
    }
}
