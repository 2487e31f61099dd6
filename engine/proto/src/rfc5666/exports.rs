//! Replies that the requester fetches by RDMA Read and ends with RDMA_DONE, on the responder's side
//! (RFC 5666 sections 3.8, 5.2 and 11).
//!
//! Memory of ours is exported from such a reply until its RDMA_DONE, or until the window for that is
//! over. So long the reply keeps the slot of its call:
//!
//! ```text
//!              reply_by_read            RDMA_DONE, or the window is over:
//!   Delivered ---------------> Owed ------------------------------------> Free
//!        |                      ^            the exports end                  ^
//!        +------> Kept ---------+                                           |
//!   no credit      |  send_kept                                             |
//!   would be left, +--------------------------------------------------------+
//!   or no export      give_up_kept
//!   is free
//! ```
//!
//! RDMA_DONEs owed count against the grant twice, because both ends count them: the requester keeps
//! a credit for each RDMA_DONE (section 3.8), and this side subtracts one from the grant (section
//! 11). The grant therefore falls by one for each RDMA_DONE owed, but never below the number that
//! all of them and one call take. That leaves a requester of either kind a credit, unless every
//! slot is owed for. Therefore the last of several slots is never used for an RDMA_DONE owed. A
//! reply that would take it is kept back. It is sent with the next credit when an RDMA_DONE or the
//! end of a window has freed another slot. Where a result "must be returned as a Read chunk" (both drafts, section
//! 5.2), a reply beyond the greatest number of exports is kept back as well, for one of them to end.

use crate::events::{Arrival, Dropped, Event, SlotId, WriteRequest};
use crate::ids::{Instant, Xid};
use crate::rdma::{HeaderView, ReadSegment};
use crate::responder::{
    ReplyRefused, ReplyShape, Responder, ServeSlot, State, reply_fits, write_chunks,
};
use crate::version::TransportVersion;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Export {
    xid: Xid,
    deadline: Instant,
}

impl Export {
    pub(crate) const NONE: Self = Self { xid: Xid(0), deadline: Instant(u64::MAX) };
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Exports {
    slots: u32,
    max: u32,
    owed: u32,
    kept: u32,
    next_deadline: Instant,
}

impl Exports {
    pub(crate) const fn new(slots: u32) -> Self {
        Self { slots, max: 0, owed: 0, kept: 0, next_deadline: Instant(u64::MAX) }
    }

    /// The credit word while so much is owed: see the module.
    fn grant(&self) -> u32 {
        let (slots, owed) = (self.slots.max(1), self.owed);
        slots.saturating_sub(owed).max(slots.min(owed + 1))
    }

    /// True if one more RDMA_DONE may be owed now: a slot is left then, or it is the only one.
    fn has_turn(&self) -> bool {
        self.owed == 0 || (self.owed + 1 < self.slots && self.owed < self.max)
    }
}

/// A reply that the requester fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadReply {
    /// Length of its transport header.
    pub header_bytes: usize,
    /// Its Send has to be kept back until [`Responder::send_kept`].
    pub kept: bool,
}

impl<S: AsRef<[ServeSlot]> + AsMut<[ServeSlot]>> Responder<S> {
    /// A responder with at most `exports_max` replies at a time that are kept back or exported;
    /// without this there are none. Its connection says by whose rules.
    #[must_use]
    pub fn with_exports(mut self, exports_max: u32) -> Self {
        self.exports.max = exports_max;
        self
    }

    /// True if one more reply to a version-one call may be exported, or be kept back for that.
    /// Version two has no RDMA_DONE.
    pub fn may_export(&self) -> bool {
        let Exports { owed, kept, max, .. } = self.exports;
        let has_room = owed + kept < max || (max > 0 && self.profile.always_returns_long_replies());
        self.profile.has_reads_in_replies() && has_room
    }

    /// RDMA_DONEs that the requester owes.
    pub fn dones_owed(&self) -> u32 {
        self.exports.owed
    }

    /// Answers a call with a reply of which the requester fetches `reads`: asks for its RDMA
    /// Writes, and writes the transport header so that it ends where `header` ends. The Send has to
    /// follow the Writes, at once or when [`Responder::send_kept`] says so. `view` is the call's own
    /// header. With the first segment at position zero it is the whole RPC message that is fetched.
    /// `deadline` is when the window is over, counted from now.
    ///
    /// # Panics
    /// If `header` is shorter than [`crate::rdma::ReplyRepr::bytes_of`].
    ///
    /// # Errors
    /// As of [`Responder::reply`]; [`ReplyRefused::ChunkTooSmall`] also unless
    /// [`Responder::may_export`], and of a version-two call. Then nothing is exported.
    #[expect(clippy::too_many_arguments, reason = "as reply, with what is fetched and how long")]
    pub fn reply_by_read(
        &mut self,
        id: SlotId,
        view: &HeaderView<'_>,
        shape: &ReplyShape<'_>,
        reads: &[ReadSegment],
        deadline: Instant,
        header: &mut [u8],
        write: impl FnMut(WriteRequest),
    ) -> Result<ReadReply, ReplyRefused> {
        if !self.in_state(id, State::Delivered) {
            return Err(ReplyRefused::Stale);
        }
        let is_one = view.transport_version() == TransportVersion::One;
        if !is_one || !self.may_export() || !reply_fits(view, shape) {
            self.free(id);
            return Err(ReplyRefused::ChunkTooSmall);
        }
        write_chunks(view, shape, write);
        let slot = &mut self.slots.as_mut()[usize::from(id.index)];
        slot.state = State::Kept;
        slot.export = Export { xid: view.xid(), deadline };
        self.exports.kept += 1;
        // Those that were kept back before come first.
        let first = self.exports.kept == 1;
        let kept = !first || self.send_kept(id, deadline).is_none();
        let header_bytes = self.emit_reply(view, shape, reads, header);
        Ok(ReadReply { header_bytes, kept })
    }

    /// Releases a reply that was kept back, the oldest first. Returns its credit word, which must
    /// be written into the message; `None` while there is no credit, or for a call that is not kept
    /// back. `deadline` is the end of its window, counted from now.
    pub fn send_kept(&mut self, id: SlotId, deadline: Instant) -> Option<u32> {
        if !self.in_state(id, State::Kept) || !self.exports.has_turn() {
            return None;
        }
        let slot = &mut self.slots.as_mut()[usize::from(id.index)];
        slot.state = State::Owed;
        slot.export.deadline = deadline;
        self.exports.kept -= 1;
        self.exports.owed += 1;
        self.exports.next_deadline = self.exports.next_deadline.min(deadline);
        self.grant = self.exports.grant();
        Some(self.grant)
    }

    /// Gives up a reply that was kept back: the call is to be answered in another way. `false` for one that is not kept
    /// back.
    pub fn give_up_kept(&mut self, id: SlotId) -> bool {
        let is_kept = self.in_state(id, State::Kept);
        if is_kept {
            self.exports.kept -= 1;
            self.free(id);
        }
        is_kept
    }

    /// Handles an RDMA_DONE: the requester has fetched a reply. It is never answered (RFC 5666
    /// section 3.8). Takes time linear in the number of slots, if any RDMA_DONE is owed.
    #[cold]
    pub(crate) fn on_done(&mut self, xid: Xid, out: &mut Arrival) {
        let owed = |slot: &ServeSlot| slot.state == State::Owed && slot.export.xid == xid;
        match self.find_owed(owed) {
            Some(id) => {
                self.end_export(id);
                out.set(Event::FreeExports(id));
            }
            None => out.set(Event::Dropped(Dropped::Done)),
        }
    }

    /// Earliest time at which [`Responder::overdue_export`] can return an export.
    pub fn next_export_deadline(&self) -> Instant {
        self.exports.next_deadline
    }

    /// One reply whose window is over: its exports have to end, and RDMA_DONE is no longer waited
    /// for. To be asked until there is none. Takes time in the number of slots, but runs only when
    /// some window is over.
    pub fn overdue_export(&mut self, now: Instant) -> Option<SlotId> {
        if now < self.exports.next_deadline {
            return None;
        }
        let overdue = |slot: &ServeSlot| slot.state == State::Owed && slot.export.deadline <= now;
        let found = self.find_owed(overdue);
        match found {
            Some(id) => self.end_export(id),
            None => self.exports.next_deadline = self.earliest_deadline(),
        }
        found
    }

    fn find_owed(&self, matches: impl Fn(&ServeSlot) -> bool) -> Option<SlotId> {
        if self.exports.owed == 0 {
            return None;
        }
        let index = self.slots.as_ref().iter().position(matches)?;
        let generation = self.slots.as_ref()[index].generation;
        Some(SlotId { index: index as u16, generation })
    }

    fn end_export(&mut self, id: SlotId) {
        self.free(id);
        self.exports.owed -= 1;
        self.grant = self.exports.grant();
    }

    fn earliest_deadline(&self) -> Instant {
        let owed = self.slots.as_ref().iter().filter(|slot| slot.state == State::Owed);
        owed.map(|slot| slot.export.deadline).min().unwrap_or(Instant(u64::MAX))
    }
}
