//! The calls that a connection serves, by slot: what each of them holds until it is answered.

use crate::mem::Buf;
use crate::reactor::in_flight::box_pool::BoxPool;
use crate::reactor::in_flight::deadlines::MessageWait;
use crate::reactor::in_flight::read_buffers::ReadBuffers;
use crate::reactor::types::latency::CallTimes;
#[cfg(feature = "gss")]
use crate::reactor::types::protection::Protection;
use spinrpc_proto::events::SlotId;
#[cfg(feature = "gss")]
use std::mem::replace;

/// A call being fetched or deferred: its message stays, because the reply echoes its lists.
#[derive(Default)]
pub(super) struct ServeHold {
    message: Option<Buf>,
    /// Set while Read chunks are fetched, or are kept for a deferred call. Lent to the handler while it runs.
    sinks: Option<Box<ReadBuffers>>,
    /// Send-queue places kept for its reply.
    reserved: u16,
    pub(super) wait: MessageWait,
    /// Protection of its reply, if the call came under RPCSEC_GSS.
    #[cfg(feature = "gss")]
    pub(super) protection: Option<Protection>,
    /// A thread seals its reply, so the call counts as one that is answered later.
    #[cfg(feature = "gss")]
    is_sealing: bool,
    /// Its chunks found no memory in time: it is refused when it is resumed.
    #[cfg(feature = "gss")]
    is_starved: bool,
}

/// See the module.
pub(crate) struct ServeTable {
    holds: Box<[ServeHold]>,
    /// Of calls that wait, or are deferred and timed. Made with the first call that is kept: most connections are idle.
    times: Vec<Option<CallTimes>>,
    /// For calls with chunks, at most one for each slot.
    spare_sinks: BoxPool<ReadBuffers>,
}

impl ServeTable {
    /// Creates a table for so many calls (slow path: allocates).
    pub(in crate::reactor) fn new(slots: usize) -> Self {
        let holds = (0..slots).map(|_| ServeHold::default()).collect();
        Self { holds, times: Vec::new(), spare_sinks: BoxPool::new(slots) }
    }

    /// Number of calls that fit.
    pub(in crate::reactor) fn slots(&self) -> usize {
        self.holds.len()
    }

    /// The call in this slot.
    #[inline(always)]
    pub(super) fn of(&mut self, slot: SlotId) -> &mut ServeHold {
        &mut self.holds[usize::from(slot.index)]
    }

    #[inline]
    pub(in crate::reactor) fn put_message(&mut self, slot: SlotId, message: Buf) {
        if self.times.is_empty() {
            self.make_times();
        }
        self.of(slot).message = Some(message);
    }

    #[cold]
    fn make_times(&mut self) {
        self.times.resize(self.holds.len(), None);
    }

    #[inline]
    pub(in crate::reactor) fn take_message(&mut self, slot: SlotId) -> Option<Buf> {
        self.holds.get_mut(usize::from(slot.index))?.message.take()
    }

    pub(in crate::reactor) fn message(&self, slot: SlotId) -> Option<&Buf> {
        self.holds[usize::from(slot.index)].message.as_ref()
    }

    pub(in crate::reactor) fn put_times(&mut self, slot: SlotId, times: CallTimes) {
        if self.times.is_empty() {
            self.make_times();
        }
        self.times[usize::from(slot.index)] = Some(times);
    }

    pub(in crate::reactor) fn has_times(&self, slot: SlotId) -> bool {
        self.times.get(usize::from(slot.index)).is_some_and(Option::is_some)
    }

    pub(in crate::reactor) fn take_times(&mut self, slot: SlotId) -> Option<CallTimes> {
        self.times.get_mut(usize::from(slot.index))?.take()
    }

    /// The message of a deferred call that is answered.
    #[inline]
    pub(crate) fn take_deferred(&mut self, slot: SlotId) -> Option<Buf> {
        self.clear_sinks(slot);
        self.of(slot).message.take()
    }

    /// Messages that wait here.
    pub(in crate::reactor) fn messages(&self) -> usize {
        self.holds.iter().filter(|hold| hold.message.is_some()).count()
    }

    /// Notes the send-queue places kept for the reply of a call.
    #[inline(always)]
    pub(in crate::reactor) fn reserve(&mut self, slot: SlotId, places: usize) {
        self.of(slot).reserved = places as u16;
    }

    /// The call is answered: its reply has its places, and needs no protection any more. Returns the number of places.
    #[inline]
    pub(in crate::reactor) fn release(&mut self, slot: SlotId) -> usize {
        let hold = self.of(slot);
        #[cfg(feature = "gss")]
        {
            hold.is_sealing = false;
            drop(hold.protection.take());
        }
        usize::from(std::mem::take(&mut hold.reserved))
    }
}

/// Memory that Read chunks are fetched to.
impl ServeTable {
    pub(in crate::reactor) fn has_sinks(&self, slot: SlotId) -> bool {
        self.holds[usize::from(slot.index)].sinks.is_some()
    }

    pub(in crate::reactor) fn put_sinks(&mut self, slot: SlotId, sinks: Box<ReadBuffers>) {
        self.of(slot).sinks = Some(sinks);
    }

    /// Those of a call, or empty ones. `None` if as many as there may be are out.
    pub(in crate::reactor) fn take_sinks(&mut self, slot: SlotId) -> Option<Box<ReadBuffers>> {
        self.of(slot).sinks.take().or_else(|| self.spare_sinks.take())
    }

    /// The same, which stay here, and the message of the call.
    pub(in crate::reactor) fn fetched(&mut self, slot: SlotId) -> Option<(&Buf, &mut ReadBuffers)> {
        let ServeHold { message, sinks, .. } = &mut self.holds[usize::from(slot.index)];
        if sinks.is_none() {
            *sinks = self.spare_sinks.take();
        }
        Some((message.as_ref()?, sinks.as_deref_mut()?))
    }

    /// Drops what was fetched for a call.
    #[inline]
    pub(in crate::reactor) fn clear_sinks(&mut self, slot: SlotId) {
        if self.has_sinks(slot) {
            self.give_sinks(slot);
        }
    }

    #[inline(never)]
    fn give_sinks(&mut self, slot: SlotId) {
        if let Some(mut sinks) = self.of(slot).sinks.take() {
            sinks.clear();
            self.spare_sinks.give(sinks);
        }
    }

    /// Blocks of registered memory that waiting calls hold.
    pub(in crate::reactor) fn blocks(&self) -> usize {
        let waiting = self.holds.iter().filter(|hold| hold.message.is_some());
        waiting.filter_map(|hold| hold.sinks.as_ref()).map(|sinks| sinks.blocks()).sum()
    }
}

/// Calls under RPCSEC_GSS.
#[cfg(feature = "gss")]
impl ServeTable {
    /// A thread seals the reply. Returns true if that was so before.
    pub(in crate::reactor) fn set_sealing(&mut self, slot: SlotId, is_sealing: bool) -> bool {
        replace(&mut self.of(slot).is_sealing, is_sealing)
    }

    pub(in crate::reactor) fn is_sealing(&self, slot: SlotId) -> bool {
        self.holds[usize::from(slot.index)].is_sealing
    }

    /// The chunks found no memory in time. Returns true if that was so before.
    pub(in crate::reactor) fn set_starved(&mut self, slot: SlotId, is_starved: bool) -> bool {
        replace(&mut self.of(slot).is_starved, is_starved)
    }

    /// Protection of the reply.
    pub(in crate::reactor) fn protection(&self, slot: SlotId) -> Option<&Protection> {
        self.holds[usize::from(slot.index)].protection.as_ref()
    }
}
