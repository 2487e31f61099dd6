//! The requester of one connection: it decides whether a call may start, which call a reply belongs
//! to, and whether the reply kept the rules (RFC 5666 section 3.3, RFC 8166 sections 3.3 and 4.3).
//!
//! A transaction's state is its place:
//!
//! ```text
//!            start_call                  cancel, on_time
//!   Free ----------------> InFlight ------------------------> Fenced
//!    ^                        |      the application hears       |
//!    |                        |      of its failure now          |
//!    +------------------------+----------------------------------+
//!      reply: deliver_reply,            reply or RDMA_ERROR: release_call
//!      RDMA_ERROR or bad reply: fail_call
//!
//!             suspend           resend
//!   InFlight ---------> Held ----------> InFlight
//!         |              ^ | cancel, on_time: fail_call
//!         +--------------+ +--------------------------> Free
//!     version refused: resend_call
//! ```
//!
//! A reply that has to be fetched keeps the slot until RDMA_DONE is sent: [`crate::rfc5666::reply_pull`].
//!
//! A fenced call keeps its slot, its credit and its memory, because the responder may still write
//! into that memory. A held call has its slot, and therefore its XID, but no credit: it waits for
//! the next connection (module `resend`), to be sent in another version (version two section
//! 5.2), or, when it was denied, for another security context ([`Requester::hold`]).
//! [`Requester::on_down`] frees every slot for good. Waiting lists do not exist: a caller without a credit is refused. Used by the
//! connection; the reactor starts the calls.

mod plain;
mod resend;
mod reserve;

use crate::chunking::{CallChunks, ChunkOffer, ResultChunks};
use crate::credit::Credits;
use crate::dialect::Profile;
use crate::events::{
    Arrival, CallFailure, DeliveredReply, Dropped, Event, FailedCall, PeerMisbehaved, ReplyStream,
    SlotId,
};
use crate::ids::{Instant, Xid};
use crate::limits::{CALL_SEGMENTS_MAX, ITEMS_MAX};
use crate::pull::Pull;
use crate::rdma::{
    Body, HeaderRepr, HeaderView, Lists, MessageType, RdmaError, ReadSegment, Segment, WriteChunk,
    emit_msg_header,
};
use crate::rpc::{self, Direction};
use crate::version::{Negotiation, Refused, TransportVersion, Verdict};
use crate::xdr::padding;
pub use plain::{CallNumber, NextCall};

/// XID = generation and slot index; number of low bits that are the index.
pub const INDEX_BITS: u32 = 11;
/// Most slots a requester may have.
pub const SLOTS_MAX: usize = 1 << INDEX_BITS;
const NO_SLOT: u16 = u16::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    InFlight,
    Fenced,
    /// Its reply is being fetched.
    Pulling,
    /// The call was abandoned while its reply was being fetched, or had to be.
    Abandoned,
    /// The call waits for the next connection, another version, or another security context.
    Held,
    /// The call has a slot and a credit, and is not sent yet.
    Reserved,
}

impl State {
    pub(crate) const fn is_awaited(self) -> bool {
        matches!(self, Self::InFlight | Self::Pulling | Self::Held | Self::Reserved)
    }
}

/// One place for a transaction. All but the chunks lie in one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct CallSlot {
    pub(crate) token: u64,
    deadline: Instant,
    pub(crate) generation: u32,
    /// Number of RDMA_DONEs sent when the call was sent.
    pub(crate) dones_total: u32,
    next_free: u16,
    pub(crate) state: State,
    pub(crate) has_chunks: bool,
    /// The call has no chunks, and has lent no memory.
    lends_nothing: bool,
    pub(crate) chunks: Chunks,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Chunks {
    /// Chunks that the call offered, until its reply.
    Offered(ResultChunks),
    /// Chunks of its reply.
    Pull(Pull),
}

impl CallSlot {
    /// A free place.
    pub const FREE: Self = Self {
        state: State::Free,
        generation: 0,
        next_free: NO_SLOT,
        has_chunks: false,
        lends_nothing: false,
        dones_total: 0,
        token: 0,
        deadline: Instant(u64::MAX),
        chunks: Chunks::Offered(ResultChunks::NONE),
    };

    #[inline(always)]
    fn occupy(&mut self, token: u64, deadline: Instant, has_chunks: bool, dones_total: u32) {
        self.generation = self.generation.wrapping_add(1);
        self.state = State::InFlight;
        self.token = token;
        self.deadline = deadline;
        self.has_chunks = has_chunks;
        self.lends_nothing = !has_chunks;
        self.dones_total = dones_total;
    }

    pub(crate) fn offered(&self) -> &ResultChunks {
        match &self.chunks {
            Chunks::Offered(offered) if self.has_chunks => offered,
            _ => &ResultChunks::NONE,
        }
    }
}

/// Reason why a call cannot start now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallRefused {
    /// As many calls are unanswered as the responder granted.
    NoCredit,
    /// Every slot is taken.
    NoSlot,
}

/// A call that has its slot and XID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartedCall {
    /// Its place.
    pub slot: SlotId,
    /// Its transaction id, the same in transport header and RPC header.
    pub xid: Xid,
}

/// The requester of one connection after the other, over slots the caller owns.
#[derive(Debug)]
pub struct Requester<S> {
    pub(crate) slots: S,
    first_free: u16,
    started: u64,
    pub(crate) credits: Credits,
    next_deadline: Instant,
    pub(crate) profile: Profile,
    pub(crate) negotiation: Negotiation,
}

impl<S: AsRef<[CallSlot]> + AsMut<[CallSlot]>> Requester<S> {
    /// A requester with at most [`SLOTS_MAX`] slots (more are not used) that asks for as many
    /// credits. `first_xid` varies where XIDs start, so that a new connection does not repeat an
    /// old one's.
    pub fn new(mut slots: S, first_xid: u32) -> Self {
        let count = slots.as_ref().len().min(SLOTS_MAX);
        for (index, slot) in slots.as_mut()[..count].iter_mut().enumerate() {
            let next = if index + 1 < count { (index + 1) as u16 } else { NO_SLOT };
            *slot = CallSlot { next_free: next, generation: first_xid, ..CallSlot::FREE };
        }
        Self {
            first_free: if count == 0 { NO_SLOT } else { 0 },
            slots,
            started: 0,
            credits: Credits::new(count as u32),
            next_deadline: Instant(u64::MAX),
            profile: Profile::default(),
            negotiation: Negotiation::settled(TransportVersion::One),
        }
    }

    /// Sets how this connection finds its version; without this it speaks version one. Must be
    /// called before the first call of a connection.
    pub fn negotiate(&mut self, negotiation: Negotiation) {
        self.negotiation = negotiation;
    }

    /// The version of the next call, and how long it may be.
    #[inline]
    pub fn negotiation(&self) -> &Negotiation {
        &self.negotiation
    }

    /// Result of the negotiation with the responder on this connection. Ask for it after the
    /// connection is gone, before [`Requester::suspend`] or [`Requester::on_down`].
    pub fn verdict(&self) -> Verdict {
        self.negotiation.verdict(self.credits.in_flight() > 0)
    }

    /// Credits and calls in flight.
    #[inline]
    pub fn credits(&self) -> &Credits {
        &self.credits
    }

    /// Calls that were ever given a slot, over all connections.
    pub fn calls_started(&self) -> u64 {
        self.started
    }

    /// A reply that was delivered stays where it is for a while, and its credit with it.
    pub fn keep_credit(&mut self) {
        self.credits.keep();
    }

    /// Such a reply is complete: its receive is posted again.
    pub fn release_credit(&mut self) {
        self.credits.release();
    }

    /// Checks whether a call may start now.
    #[inline]
    pub fn check_room(&self) -> Result<(), CallRefused> {
        if !self.credits.available() {
            return Err(CallRefused::NoCredit);
        }
        if self.first_free == NO_SLOT {
            return Err(CallRefused::NoSlot);
        }
        Ok(())
    }

    /// Takes a slot and a credit for a call and writes its transport header, which ends where
    /// `header` ends; returns the call and the header's length. The Send has to follow.
    ///
    /// # Panics
    /// If `header` is shorter than `chunks.header_bytes_in(version)`, with the version that
    /// [`Requester::negotiation`] says.
    ///
    /// # Errors
    /// As [`CallRefused`] says; then nothing was taken.
    #[inline]
    pub fn start_call(
        &mut self,
        token: u64,
        deadline: Instant,
        chunks: &CallChunks,
        header: &mut [u8],
    ) -> Result<(StartedCall, usize), CallRefused> {
        let started = self.take(token, deadline, !chunks.is_empty())?;
        if !chunks.is_empty() {
            self.slots.as_mut()[usize::from(started.slot.index)].chunks =
                Chunks::Offered(chunks.results);
        }
        Ok((started, self.emit_call(started.xid, chunks, header)))
    }

    /// Writes the header of a call so that it ends where `header` ends; returns its length.
    #[inline]
    fn emit_call(&self, xid: Xid, chunks: &CallChunks, header: &mut [u8]) -> usize {
        let (version, credits) = (self.negotiation.version(), self.credits.requested());
        match chunks.is_empty() {
            true => emit_msg_header(header, version, xid, credits, Direction::Call),
            false => emit_chunked(version, chunks, xid, credits, header),
        }
    }

    #[inline(always)]
    pub(crate) fn take(
        &mut self,
        token: u64,
        deadline: Instant,
        has_chunks: bool,
    ) -> Result<StartedCall, CallRefused> {
        self.check_room()?;
        let started = self.occupy(token, deadline, has_chunks);
        self.credits.spend();
        Ok(started)
    }

    /// Takes the first free slot, which there is.
    #[inline(always)]
    fn occupy(&mut self, token: u64, deadline: Instant, has_chunks: bool) -> StartedCall {
        let index = self.first_free;
        let slot = &mut self.slots.as_mut()[usize::from(index)];
        self.first_free = slot.next_free;
        slot.occupy(token, deadline, has_chunks, self.credits.dones_total());
        let started = StartedCall {
            slot: SlotId { index, generation: slot.generation },
            xid: xid_of(index, slot.generation),
        };
        self.started += 1;
        self.next_deadline = self.next_deadline.min(deadline);
        started
    }

    /// The XID of the next call, for bytes that must be final before it starts.
    pub fn next_xid(&self) -> Xid {
        let slot = self.slots.as_ref().get(usize::from(self.first_free));
        let generation = slot.map_or(0, |slot| slot.generation);
        xid_of(self.first_free, generation.wrapping_add(1))
    }

    /// A message that is not a call arrived: a reply or an RDMA_ERROR. Errors in it are never
    /// answered (RFC 8166 section 4.5).
    #[inline(always)]
    pub fn on_receive(&mut self, view: &HeaderView<'_>, out: &mut Arrival) {
        let Some(index) = self.matching_slot(view.xid()) else {
            return out.set(Event::Dropped(unmatched(view)));
        };
        match view.message_type() {
            // Discarded (RFC 8166 section 4.6.1).
            MessageType::Msgp if !self.profile.has_padded_messages() => {
                out.set(Event::Dropped(Dropped::UnexpectedType));
            }
            MessageType::Msg | MessageType::Msgp
                if !self.profile.carries(view, Direction::Reply) =>
            {
                out.set(Event::Dropped(stray(view)));
            }
            MessageType::Msg | MessageType::Nomsg | MessageType::Msgp => {
                self.on_reply(index, view, out);
            }
            MessageType::Error => self.on_error(index, view.error(), out),
            MessageType::Done => out.set(Event::Dropped(Dropped::Done)),
            // No option is known. An error would be taken for the answer to a call of the peer: see [`crate::version`].
            MessageType::Optional => out.set(Event::Dropped(Dropped::UnknownOption)),
        }
    }

    /// True if the version of an answer is that of this end's calls (version two section 5.3). The
    /// first answer that is not an error settles the version.
    #[inline(always)]
    pub(crate) fn takes_answer(&mut self, version: TransportVersion) -> bool {
        self.negotiation.is_settled_on(version) || self.negotiation.on_answer(version)
    }

    #[inline(always)]
    fn on_reply(&mut self, index: u16, view: &HeaderView<'_>, out: &mut Arrival) {
        if !self.takes_answer(view.transport_version()) {
            return out.set(Event::Dropped(Dropped::MalformedReply));
        }
        let slot = &self.slots.as_ref()[usize::from(index)];
        if slot.has_chunks || !view.has_chunkless_length() {
            return self.on_reply_with_lists(index, view, out);
        }
        self.end_reply(index, view, chunkless_reply(view), out);
    }

    #[inline(never)]
    fn on_reply_with_lists(&mut self, index: u16, view: &HeaderView<'_>, out: &mut Arrival) {
        if self.must_pull(view) {
            return self.on_reply_to_pull(index, view, out);
        }
        let offered = self.slots.as_ref()[usize::from(index)].offered();
        let checked = check_lists(offered, view);
        self.end_reply(index, view, checked, out);
    }

    #[inline(always)]
    fn end_reply(
        &mut self,
        index: u16,
        view: &HeaderView<'_>,
        checked: Checked,
        out: &mut Arrival,
    ) {
        self.credits.replied(view.credits());
        self.credits.cover(self.slots.as_ref()[usize::from(index)].dones_total);
        match checked {
            Ok((stream, placed)) => self.finish(index, stream, placed, out),
            Err(why) => self.misbehaved(index, why, out),
        }
    }

    #[cold]
    pub(crate) fn misbehaved(&mut self, index: u16, why: PeerMisbehaved, out: &mut Arrival) {
        self.fail(index, CallFailure::Misbehaved(why), out);
        out.close = Some(why);
    }

    #[inline(always)]
    fn finish(
        &mut self,
        index: u16,
        stream: ReplyStream,
        placed: [u32; ITEMS_MAX],
        out: &mut Arrival,
    ) {
        let entry = &self.slots.as_ref()[usize::from(index)];
        let slot = SlotId { index, generation: entry.generation };
        let (token, fenced) = (entry.token, entry.state == State::Fenced);
        self.free(index);
        match fenced {
            true => out.set(Event::Released(slot)),
            false => out.set(Event::Reply(DeliveredReply { slot, token, stream, placed })),
        }
    }

    fn on_error(&mut self, index: u16, error: Option<RdmaError>, out: &mut Arrival) {
        let Some(error) = error else { return out.set(Event::Dropped(Dropped::MalformedReply)) };
        // The credit word of an RDMA_ERROR means nothing: the limit comes from replies.
        self.credits.ended();
        self.credits.cover(self.slots.as_ref()[usize::from(index)].dones_total);
        if let RdmaError::Version { low, high } = error {
            return self.on_refused(index, low, high, out);
        }
        self.fail(index, CallFailure::Rdma(error), out);
    }

    /// The responder does not speak the version of a call (version two section 5.2). A call that
    /// has been abandoned is not sent again, but its refusal counts.
    #[cold]
    fn on_refused(&mut self, index: u16, low: u32, high: u32, out: &mut Arrival) {
        let refused = self.negotiation.on_refused(low, high);
        let slot = &mut self.slots.as_mut()[usize::from(index)];
        if refused == Refused::TryAgain && slot.state == State::InFlight {
            slot.state = State::Held;
            return out.set(Event::Resend(SlotId { index, generation: slot.generation }));
        }
        self.fail(index, CallFailure::Rdma(RdmaError::Version { low, high }), out);
        if refused == Refused::NoneInCommon {
            out.close = Some(PeerMisbehaved::NoCommonVersion);
        }
    }

    /// Ends a call for good: the responder is done with it.
    pub(crate) fn fail(&mut self, index: u16, failure: CallFailure, out: &mut Arrival) {
        let is_released = self.slots.as_ref()[usize::from(index)].state == State::Fenced;
        let failed = self.end(index, failure);
        let event = if is_released { Event::Released(failed.slot) } else { Event::Failed(failed) };
        out.set(event);
    }

    /// The application gives a call up. Its slot, credit and memory stay taken until the responder
    /// answers, or the posted Reads of its reply have completed, or the connection goes; those of a
    /// held call are free at once.
    pub fn cancel(&mut self, slot: SlotId) -> Option<FailedCall> {
        self.is_awaited(slot).then(|| self.give_up(slot.index, CallFailure::Cancelled))
    }

    /// Returns true while the application awaits the answer of this call.
    pub fn is_awaited(&self, slot: SlotId) -> bool {
        self.state_of(slot).is_some_and(State::is_awaited)
    }

    /// Returns true while it awaits the answer of any call. Takes time in the number of slots.
    pub fn awaits_any(&self) -> bool {
        self.slots.as_ref().iter().any(|slot| slot.state.is_awaited())
    }

    fn state_of(&self, id: SlotId) -> Option<State> {
        let slot = self.slots.as_ref().get(usize::from(id.index))?;
        (slot.generation == id.generation).then_some(slot.state)
    }

    /// The slot of the awaited call that carries `token`, if there is one. Takes time in the
    /// number of slots.
    pub fn find(&self, token: u64) -> Option<SlotId> {
        let slots = self.slots.as_ref().iter();
        slots
            .enumerate()
            .find(|(_, s)| s.state.is_awaited() && s.token == token)
            .map(|(index, slot)| SlotId { index: index as u16, generation: slot.generation })
    }

    /// Earliest time at which [`Requester::on_time`] has something to do.
    #[inline]
    pub fn next_deadline(&self) -> Instant {
        self.next_deadline
    }

    /// Returns true if the deadline of a call has passed.
    pub fn has_overdue(&self, now: Instant) -> bool {
        let is_overdue = |slot: &CallSlot| slot.state.is_awaited() && slot.deadline <= now;
        now >= self.next_deadline && self.slots.as_ref().iter().any(is_overdue)
    }

    /// Fails the calls whose deadline has passed. Takes time in the number of slots, but runs only
    /// when some deadline was reached: one bound stands for all slots.
    pub fn on_time(&mut self, now: Instant, mut each: impl FnMut(FailedCall)) {
        if now < self.next_deadline {
            return;
        }
        self.next_deadline = Instant(u64::MAX);
        for index in 0..self.slots.as_ref().len().min(SLOTS_MAX) as u16 {
            match &self.slots.as_ref()[usize::from(index)] {
                slot if !slot.state.is_awaited() => {}
                slot if slot.deadline <= now => each(self.give_up(index, CallFailure::TimedOut)),
                slot => self.next_deadline = self.next_deadline.min(slot.deadline),
            }
        }
    }

    fn give_up(&mut self, index: u16, failure: CallFailure) -> FailedCall {
        match self.slots.as_ref()[usize::from(index)].state {
            State::Held => self.end(index, failure),
            // The responder knows nothing of it.
            State::Reserved => {
                self.credits.end_reserved();
                self.end(index, failure)
            }
            _ => self.fence(index, failure),
        }
    }

    fn end(&mut self, index: u16, failure: CallFailure) -> FailedCall {
        let entry = &self.slots.as_ref()[usize::from(index)];
        let slot = SlotId { index, generation: entry.generation };
        let failed = FailedCall { slot, token: entry.token, failure, is_fenced: false };
        self.free(index);
        failed
    }

    /// Ends a call for the application only.
    pub(crate) fn fence(&mut self, index: u16, failure: CallFailure) -> FailedCall {
        let slot = &mut self.slots.as_mut()[usize::from(index)];
        let is_pulling = slot.state == State::Pulling;
        slot.state = if is_pulling { State::Abandoned } else { State::Fenced };
        let id = SlotId { index, generation: slot.generation };
        FailedCall { slot: id, token: slot.token, failure, is_fenced: true }
    }

    /// The connection is gone: every call ends, and its memory is not accessed any more. `each`
    /// gets the slot of every call, and its token when the application still waits for it.
    pub fn on_down(&mut self, mut each: impl FnMut(SlotId, Option<u64>)) {
        for (index, slot) in self.slots.as_mut().iter_mut().enumerate() {
            let id = SlotId { index: index as u16, generation: slot.generation };
            match core::mem::replace(&mut slot.state, State::Free) {
                State::Free => {}
                state if state.is_awaited() => each(id, Some(slot.token)),
                _ => each(id, None),
            }
        }
        self.first_free = NO_SLOT;
    }

    pub(crate) fn awaits(&self, xid: Xid) -> bool {
        self.matching_slot(xid).is_some()
    }

    #[inline]
    pub(crate) fn matching_slot(&self, xid: Xid) -> Option<u16> {
        let index = index_of(xid);
        let slot = self.slots.as_ref().get(usize::from(index))?;
        let waits = matches!(slot.state, State::InFlight | State::Fenced);
        let matches = waits && xid_of(index, slot.generation) == xid;
        matches.then_some(index)
    }

    #[inline]
    pub(crate) fn free(&mut self, index: u16) {
        let next_free = self.first_free;
        let slot = &mut self.slots.as_mut()[usize::from(index)];
        slot.state = State::Free;
        slot.next_free = next_free;
        self.first_free = index;
    }
}

/// Reason why a message with the XID of a call in flight is not its reply. The peer numbers its own
/// calls as it likes, and the credit word means what the direction says (RFC 8167 sections 4 and
/// 5).
#[cold]
fn stray(view: &HeaderView<'_>) -> Dropped {
    match rpc::message_direction(view.payload()) {
        Some(Direction::Call) => Dropped::WrongDirection,
        _ => Dropped::MalformedReply,
    }
}

#[cold]
fn unmatched(view: &HeaderView<'_>) -> Dropped {
    match view.message_type() {
        MessageType::Done => Dropped::Done,
        _ => Dropped::UnmatchedReply,
    }
}

/// The place of the call with this transaction id, if there is one.
#[inline(always)]
pub const fn index_of(xid: Xid) -> u16 {
    (xid.0 & (SLOTS_MAX as u32 - 1)) as u16
}

impl SlotId {
    /// The XID of the call in this slot.
    #[inline]
    pub fn xid(self) -> Xid {
        xid_of(self.index, self.generation)
    }
}

#[inline]
pub(crate) fn xid_of(index: u16, generation: u32) -> Xid {
    Xid(generation << INDEX_BITS | u32::from(index))
}

/// Ends where `header` ends; returns the length.
pub(crate) fn emit_chunked(
    version: TransportVersion,
    chunks: &CallChunks,
    xid: Xid,
    credits: u32,
    header: &mut [u8],
) -> usize {
    let mut reads = [ReadSegment::default(); CALL_SEGMENTS_MAX];
    let read_count = chunks.read_segments(&mut reads);
    let mut segments = [Segment::default(); CALL_SEGMENTS_MAX];
    let (mut used, mut ends) = (0, [0; ITEMS_MAX + 1]);
    for (offer, end) in chunks.writes().iter().chain(chunks.reply()).zip(&mut ends) {
        for (segment, place) in offer.segments().zip(&mut segments[used..]) {
            *place = segment;
            used += 1;
        }
        *end = used;
    }
    let mut writes: [&[Segment]; ITEMS_MAX] = [&[]; ITEMS_MAX];
    let mut start = 0;
    for (list, end) in writes.iter_mut().zip(&ends[..chunks.writes().len()]) {
        *list = &segments[start..*end];
        start = *end;
    }
    let lists = Lists {
        reads: &reads[..read_count],
        writes: &writes[..chunks.writes().len()],
        reply: chunks.reply().map(|_| &segments[start..used]),
    };
    let body = if chunks.is_long_call() { Body::Nomsg(lists) } else { Body::Msg(lists) };
    let at = header.len() - chunks.header_bytes_in(version);
    HeaderRepr::new(version, Direction::Call, xid, credits, body).emit(&mut header[at..])
}

type Checked = Result<(ReplyStream, [u32; ITEMS_MAX]), PeerMisbehaved>;

#[inline]
fn chunkless_reply(view: &HeaderView<'_>) -> Checked {
    match view.message_type() {
        MessageType::Msg => {
            Ok((ReplyStream::Inline { header_bytes: view.header_bytes() }, [0; ITEMS_MAX]))
        }
        _ => Err(PeerMisbehaved::NoReplyStream),
    }
}

fn check_lists(offered: &ResultChunks, view: &HeaderView<'_>) -> Checked {
    if !view.reads().is_empty() {
        return Err(PeerMisbehaved::ReadListInReply);
    }
    let (in_reply_chunk, placed) = check_returned(offered, view)?;
    Ok((stream_of(view, in_reply_chunk, false)?, placed))
}

pub(crate) fn stream_of(
    view: &HeaderView<'_>,
    in_reply_chunk: u32,
    in_read_chunk: bool,
) -> Result<ReplyStream, PeerMisbehaved> {
    let is_inline = view.message_type() != MessageType::Nomsg;
    match (is_inline, in_reply_chunk, in_read_chunk) {
        // Reply chunk offered but the reply is short: both ways are legal.
        (true, 0, false) => Ok(ReplyStream::Inline { header_bytes: view.header_bytes() }),
        (true, 1.., _) => Err(PeerMisbehaved::ReplyChunkChanged),
        (true, 0, true) | (false, 1.., true) => Err(PeerMisbehaved::ReadListBroken),
        (false, 0, true) => Ok(ReplyStream::Pulled),
        (false, 0, false) => Err(PeerMisbehaved::NoReplyStream),
        (false, length, false) => Ok(ReplyStream::ReplyChunk { length }),
    }
}

/// Bytes in the Reply chunk and in each Write chunk, if these are the ones offered.
pub(crate) fn check_returned(
    offered: &ResultChunks,
    view: &HeaderView<'_>,
) -> Result<(u32, [u32; ITEMS_MAX]), PeerMisbehaved> {
    let placed = check_write_list(offered, view)?;
    let in_reply_chunk = match (&offered.reply, view.reply_chunk()) {
        (_, None) => 0,
        (None, Some(_)) => return Err(PeerMisbehaved::ReplyChunkChanged),
        (Some(offer), Some(chunk)) => {
            returned_length(offer, &chunk).ok_or(PeerMisbehaved::ReplyChunkChanged)?
        }
    };
    Ok((in_reply_chunk, placed))
}

/// Write chunks that the responder leaves out of the end of the list are unused, as is an absent list: "unused write
/// chunks [...] are not returned as results" (RFC 5666 section 3.4). RFC 8166 section 4.3.2 wants all of them back;
/// fewer of them are just as clear.
fn check_write_list(
    offered: &ResultChunks,
    view: &HeaderView<'_>,
) -> Result<[u32; ITEMS_MAX], PeerMisbehaved> {
    let mut placed = [0; ITEMS_MAX];
    let offers = offered.writes();
    if view.writes().len() > offers.len() {
        return Err(PeerMisbehaved::WriteListChanged);
    }
    for ((chunk, offer), place) in view.writes().zip(offers).zip(&mut placed) {
        *place = returned_length(offer, &chunk).ok_or(PeerMisbehaved::WriteListChanged)?;
    }
    Ok(placed)
}

/// Bytes the responder says it placed, if the chunk is the one offered: its first segments, no length
/// above the offer, filled in order without gaps (RFC 5666 section 3.7). Segments behind them are unused
/// ("unused bytes in write chunk buffer lists", section 3.4).
fn returned_length(offer: &ChunkOffer, chunk: &WriteChunk<'_>) -> Option<u32> {
    if chunk.segment_count() > offer.segment_count() {
        return None;
    }
    let (mut total, mut ended) = (0u32, false);
    for (returned, ours) in chunk.segments().zip(offer.segments()) {
        let same = returned.handle == ours.handle && returned.offset == ours.offset;
        // RFC 5666 section 3.7 counts the roundup of the item in the length although it was not transferred,
        // RFC 8166 section 3.4.6.2 does not.
        let roundup = padding(total as usize + ours.length as usize) as u32;
        let room = ours.length.saturating_add(roundup);
        if !same || returned.length > room || (ended && returned.length > 0) {
            return None;
        }
        ended = returned.length < ours.length;
        total += returned.length.min(ours.length);
    }
    Some(total)
}
