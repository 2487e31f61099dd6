//! Replies that have to be fetched, on the requester's side (RFC 5666 sections 3.5, 3.8 and 5.1).
//!
//! ```text
//!              reply with a Read list                    end_pull: deliver
//!   InFlight ------------------------> Pulling -------------------------------> Free
//!      |                                  | cancel, on_time, give_up_pull        ^
//!      | cancel, on_time                  v                                      |
//!   Fenced --------------------------> Abandoned --------------------------------+
//!              reply with a Read list            end_pull: release
//! ```
//!
//! [`Requester::end_pull`] writes RDMA_DONE: exactly once for each such reply, whatever became of
//! the call. An abandoned reply is not fetched any further, but Reads that were posted must
//! complete first, because they still write into memory of this end. Slot and credit stay taken
//! until then; [`crate::credit`] describes when the credit comes back.

use crate::chunking::ResultChunks;
use crate::dialect::Profile;
use crate::events::{
    Arrival, CallFailure, DeliveredReply, Dropped, Event, FailedCall, PeerMisbehaved, ReadRequest,
    ReplyStream, SlotId,
};
use crate::ids::Xid;
use crate::limits::ITEMS_MAX;
use crate::pull::{Pull, Pulled, inline_bytes};
use crate::rdma::v1::DONE_BYTES;
use crate::rdma::{HeaderRepr, HeaderView};
use crate::requester::{CallSlot, Chunks, Requester, State, check_returned, stream_of, xid_of};
use crate::version::TransportVersion;
use crate::xdr::roundup4;

/// Outcome of a call whose reply was fetched, or need not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullEnd {
    /// The application gets its reply.
    Deliver {
        /// The application's name of the call.
        token: u64,
    },
    /// The application has heard of its end before; its memory is free now.
    Release,
}

impl<S: AsRef<[CallSlot]> + AsMut<[CallSlot]>> Requester<S> {
    #[cold]
    pub(crate) fn must_pull(&self, view: &HeaderView<'_>) -> bool {
        let profile = self.profile.under(view.transport_version());
        profile.has_reads_in_replies() && !view.reads().is_empty()
    }

    /// A message with a Read chunk for its RPC message may be the reply to a call in flight: its other lists are those that the
    /// call offered, with nothing in the Reply chunk.
    #[cold]
    pub(crate) fn may_fetch(&self, view: &HeaderView<'_>) -> bool {
        self.matching_slot(view.xid()).is_some_and(|index| {
            let offered = self.slots.as_ref()[usize::from(index)].offered();
            matches!(check_returned(offered, view), Ok((0, _)))
        })
    }

    #[cold]
    pub(crate) fn on_reply_to_pull(
        &mut self,
        index: u16,
        view: &HeaderView<'_>,
        out: &mut Arrival,
    ) {
        let slot = &mut self.slots.as_mut()[usize::from(index)];
        let checked = check_lists(slot.offered(), view, self.profile);
        self.credits.cover(slot.dones_total);
        let (stream, placed, pull) = match checked {
            Ok(checked) => checked,
            Err(why) => {
                self.credits.replied(view.credits());
                return self.misbehaved(index, why, out);
            }
        };
        self.owe_pull(index, view.credits(), pull, (stream, placed), out);
    }

    /// True if a header beyond the limits is that of a version-one reply with a Read list. The
    /// bytes that the responder places stay within the offer; the memory that it exports need not.
    #[cold]
    pub(crate) fn may_be_too_long(&self, xid: Xid, message: &[u8]) -> bool {
        opens_with_reads(message) && self.matching_slot(xid).is_some()
    }

    /// A reply is more than this side will ever hold: nothing of it is to be fetched, and its RDMA_DONE
    /// is owed all the same, or its slots and credits at both ends would not come back. Under rules without
    /// Read lists in replies it ends the connection, as a shorter one does: no other answer will come.
    #[cold]
    pub(crate) fn on_reply_too_long(&mut self, xid: Xid, credits: u32, out: &mut Arrival) {
        let Some(index) = self.matching_slot(xid) else { return };
        if !self.takes_answer(TransportVersion::One) {
            return out.set(Event::Dropped(Dropped::MalformedReply));
        }
        if !self.profile.has_reads_in_replies() {
            self.credits.replied(credits);
            return self.misbehaved(index, PeerMisbehaved::ReadListInReply, out);
        }
        self.credits.cover(self.slots.as_ref()[usize::from(index)].dones_total);
        let reply = (ReplyStream::Pulled, [0; ITEMS_MAX]);
        self.owe_pull(index, credits, Pull::NONE, reply, out);
    }

    fn owe_pull(
        &mut self,
        index: u16,
        credits: u32,
        pull: Pull,
        (stream, placed): (ReplyStream, [u32; ITEMS_MAX]),
        out: &mut Arrival,
    ) {
        self.credits.owe_done(credits);
        let entry = &mut self.slots.as_mut()[usize::from(index)];
        entry.state = if entry.state.is_awaited() { State::Pulling } else { State::Abandoned };
        entry.chunks = Chunks::Pull(pull);
        let slot = SlotId { index, generation: entry.generation };
        out.set(Event::PullReply);
        out.to_pull = Some(DeliveredReply { slot, token: entry.token, stream, placed });
    }

    fn pull_slot(&self, id: SlotId) -> Option<(State, &Pull)> {
        let slot = self.slots.as_ref().get(usize::from(id.index))?;
        let is_pull = matches!(slot.state, State::Pulling | State::Abandoned);
        match &slot.chunks {
            Chunks::Pull(pull) if is_pull && slot.generation == id.generation => {
                Some((slot.state, pull))
            }
            _ => None,
        }
    }

    fn pull_slot_mut(&mut self, id: SlotId) -> Option<(State, &mut Pull)> {
        self.pull_slot(id)?;
        let slot = &mut self.slots.as_mut()[usize::from(id.index)];
        match &mut slot.chunks {
            Chunks::Pull(pull) => Some((slot.state, pull)),
            Chunks::Offered(_) => None,
        }
    }

    /// The Read chunks of a reply that waits for them.
    pub fn pull_plan(&self, id: SlotId) -> Option<&Pull> {
        self.pull_slot(id).filter(|(state, _)| *state == State::Pulling).map(|(_, pull)| pull)
    }

    /// Asks for the next RDMA Reads of a reply, at most `room` of them, and says how many. `view`
    /// is the reply's own header. The memory for all its chunks is there.
    pub fn pull(
        &mut self,
        id: SlotId,
        view: &HeaderView<'_>,
        room: u16,
        read: impl FnMut(ReadRequest),
    ) -> u16 {
        match self.pull_slot_mut(id) {
            Some((State::Pulling, pull)) => pull.ask(id, view, room, read),
            _ => 0,
        }
    }

    /// An RDMA Read of this reply completed. After the last one, [`Requester::end_pull`] decides
    /// what follows.
    pub fn on_read_done(&mut self, id: SlotId) -> Pulled {
        let Some((state, pull)) = self.pull_slot_mut(id) else { return Pulled::Stale };
        let whole = pull.on_read_done();
        match state {
            State::Abandoned if pull.is_quiet() => Pulled::Complete,
            State::Pulling if whole => Pulled::Complete,
            _ => Pulled::More,
        }
    }

    /// The reply waits for its Read chunks, and not all RDMA Reads have been asked for.
    pub fn wants_reads(&self, id: SlotId) -> bool {
        self.pull_plan(id).is_some_and(Pull::wants_reads)
    }

    /// True if [`Requester::end_pull`] may be called: no Read is in flight, and no more are wanted.
    pub fn is_pulled(&self, id: SlotId) -> bool {
        self.pull_slot(id).is_some_and(|(_, pull)| pull.is_quiet() && !self.wants_reads(id))
    }

    /// The reply cannot be fetched: the application hears why. RDMA_DONE is owed all the same.
    pub fn give_up_pull(&mut self, id: SlotId, failure: CallFailure) -> Option<FailedCall> {
        self.pull_plan(id)?;
        Some(self.fence(id.index, failure))
    }

    /// Writes the RDMA_DONE of a reply to the start of `done` and frees the slot. The Send has to
    /// follow. `None` unless [`Requester::is_pulled`].
    ///
    /// # Panics
    /// If `done` is shorter than [`DONE_BYTES`].
    pub fn end_pull(&mut self, id: SlotId, done: &mut [u8]) -> Option<PullEnd> {
        if !self.is_pulled(id) {
            return None;
        }
        let slot = &self.slots.as_ref()[usize::from(id.index)];
        let is_awaited = slot.state.is_awaited();
        let end =
            if is_awaited { PullEnd::Deliver { token: slot.token } } else { PullEnd::Release };
        let (xid, credits) = (xid_of(id.index, id.generation), self.credits.requested());
        HeaderRepr::done(xid, credits).emit(&mut done[..DONE_BYTES]);
        self.credits.spend_done();
        self.free(id.index);
        Some(end)
    }
}

/// An RDMA_MSG, RDMA_NOMSG or RDMA_MSGP whose Read list is not empty (RFC 5666 section 4.2), read from
/// words behind which nothing needs to make sense.
fn opens_with_reads(message: &[u8]) -> bool {
    let word = |index: usize| {
        message.get(index * 4..)?.first_chunk().map(|word| u32::from_be_bytes(*word))
    };
    let lists_at = match word(3) {
        Some(0 | 1) => 4,
        // Behind alignment and threshold.
        Some(2) => 6,
        _ => return false,
    };
    word(lists_at) == Some(1)
}

fn check_lists(
    offered: &ResultChunks,
    view: &HeaderView<'_>,
    profile: Profile,
) -> Result<(ReplyStream, [u32; ITEMS_MAX], Pull), PeerMisbehaved> {
    let (in_reply_chunk, placed) = check_returned(offered, view)?;
    let in_read_chunk = view.reads().any(|read| read.position == 0);
    let stream = stream_of(view, in_reply_chunk, in_read_chunk)?;
    let stream_bytes = match stream {
        ReplyStream::Inline { .. } => inline_bytes(view),
        ReplyStream::ReplyChunk { length } => length as usize,
        // That of the Position-Zero chunk counts.
        ReplyStream::Pulled => 0,
    };
    let placed_bytes = placed.iter().map(|bytes| roundup4(*bytes as usize)).sum();
    let pull = Pull::plan(view, stream_bytes, placed_bytes, profile);
    Ok((stream, placed, pull.ok_or(PeerMisbehaved::ReadListBroken)?))
}
