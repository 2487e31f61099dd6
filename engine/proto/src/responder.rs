//! The responder of one connection: takes calls apart, plans their RDMA Reads, and gives replies
//! their transport header and RDMA Writes (RFC 5666 sections 3.4 to 3.7, RFC 8166 sections 3.4,
//! 3.5 and 4.3).
//!
//! ```text
//!            call with Read chunks          last RDMA Read: deliver_call
//!   Free --------------------------> Pulling -------------------------> Delivered
//!    ^ |                                |                                 ^   |
//!    | +--------------------------------|---------------------------------+   |
//!    |   call without: deliver_call     | abandon                             |
//!    +----------------------------------+-------------------------------------+
//!                                                             reply, abandon
//! ```
//!
//! A reply that the requester has to fetch keeps its slot until RDMA_DONE: [`crate::rfc5666::exports`].
//!
//! It keeps no message bytes: the caller holds the message of each call by its slot and gives its
//! header back when the call goes on, so that lists are read where they arrived.

use crate::dialect::Profile;
use crate::events::{Arrival, Dropped, Event, ReadRequest, SlotId, WriteRequest, WriteSource};
use crate::ids::Xid;
use crate::pull::inline_bytes;
pub use crate::pull::{Pull, PullChunk, Pulled};
use crate::rdma::{
    HeaderView, MessageType, RdmaError, ReadSegment, ReplyRepr, WriteChunk, emit_msg_header,
};
use crate::rfc5666::exports::{Export, Exports};
use crate::rpc::{self, AcceptStatus, Direction};
use crate::version::TransportVersion;

/// Most slots a responder may have.
pub const SLOTS_MAX: usize = u16::MAX as usize + 1;
const NO_SLOT: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    /// Its Read chunks are being fetched (or wait for memory).
    Pulling,
    /// Its program has it.
    Delivered,
    /// The call is answered, by a reply with a Read list that is kept back.
    Kept,
    /// The requester owes RDMA_DONE for its reply.
    Owed,
}

/// One place for a call being answered.
#[derive(Clone, Copy, Debug)]
pub struct ServeSlot {
    pub(crate) state: State,
    /// Version of the call, and of its reply.
    version: TransportVersion,
    pub(crate) generation: u32,
    next_free: u32,
    pull: Pull,
    pub(crate) export: Export,
}

impl ServeSlot {
    /// A free place.
    pub const FREE: Self = Self {
        state: State::Free,
        version: TransportVersion::One,
        generation: 0,
        next_free: NO_SLOT,
        pull: Pull::NONE,
        export: Export::NONE,
    };
}

/// A reply whose stream is encoded.
#[derive(Clone, Copy, Debug)]
pub struct ReplyShape<'a> {
    /// Bytes taken out of the stream for each Write chunk, in order; zero for one that is not used.
    pub placed: &'a [u32],
    /// The stream goes in the Reply chunk, this many bytes; `None`: it follows the header inline.
    pub long_bytes: Option<u32>,
}

/// Reason why a reply cannot be sent as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyRefused {
    /// The slot was freed before: the connection went down, or the call was answered.
    Stale,
    /// An item is longer than its Write chunk, or the stream than its Reply chunk, or there is not
    /// any Reply chunk: answered with ERR_CHUNK, in version two with BAD_HEADER; the slot is free.
    ChunkTooSmall,
}

/// The responder of one connection, over slots the caller owns: as many as it grants credits.
#[derive(Debug)]
pub struct Responder<S> {
    pub(crate) slots: S,
    first_free: u32,
    /// Calls that had or have a slot.
    taken: u64,
    pub(crate) grant: u32,
    /// Calls that had a slot and have ended.
    ended: u64,
    /// Calls that were counted without a slot. One that gets a slot nevertheless counts as minus one until it is counted
    /// ([`Responder::take_slot`]).
    slotless: u64,
    version: TransportVersion,
    pub(crate) exports: Exports,
    pub(crate) profile: Profile,
}

impl<S: AsRef<[ServeSlot]> + AsMut<[ServeSlot]>> Responder<S> {
    /// A responder that grants one credit for each slot, of which it uses at most [`SLOTS_MAX`].
    pub fn new(mut slots: S) -> Self {
        let count = slots.as_ref().len().min(SLOTS_MAX);
        for (index, slot) in slots.as_mut()[..count].iter_mut().enumerate() {
            let next = if index + 1 < count { (index + 1) as u32 } else { NO_SLOT };
            *slot = ServeSlot { next_free: next, ..ServeSlot::FREE };
        }
        Self {
            first_free: if count == 0 { NO_SLOT } else { 0 },
            slots,
            taken: 0,
            grant: (count as u32).max(1),
            ended: 0,
            slotless: 0,
            version: TransportVersion::One,
            exports: Exports::new(count as u32),
            profile: Profile::default(),
        }
    }

    /// The version in which this side is called: version two from the first such call on. Calls of this
    /// side over the same connection are to go in it as well.
    #[inline]
    pub fn version(&self) -> TransportVersion {
        self.version
    }

    /// True if any call was ever accepted.
    pub fn was_called(&self) -> bool {
        self.calls_taken() > 0
    }

    /// The credit word of replies, never zero (RFC 8166 section 3.3.1): one per slot, less the cost of
    /// RDMA_DONEs owed (RFC 5666 section 11).
    #[inline]
    pub fn grant(&self) -> u32 {
        self.grant
    }

    /// Calls that were ever accepted: delivered, or fetched first.
    #[inline]
    pub fn calls_taken(&self) -> u64 {
        self.taken.wrapping_add(self.slotless)
    }

    /// Calls delivered or being fetched, and those answered for which RDMA_DONE is owed.
    #[inline]
    pub fn in_progress(&self) -> u32 {
        (self.taken - self.ended) as u32
    }

    /// A message whose header could be parsed, on the side that serves.
    #[inline(always)]
    pub fn on_receive(&mut self, view: &HeaderView<'_>, out: &mut Arrival) {
        match view.message_type() {
            MessageType::Msg if view.is_chunkless() => {
                self.on_chunkless_call(view, out);
            }
            MessageType::Msg | MessageType::Nomsg => self.on_chunked_call(view, out),
            MessageType::Msgp if self.profile.has_padded_messages() => {
                self.on_chunked_call(view, out);
            }
            // Both are reserved by RFC 8166 section 4.6: RDMA_MSGP is answered with ERR_CHUNK ...
            MessageType::Msgp => refuse(view, out),
            // ... and RDMA_DONE dropped, as is under any rules one that nothing is owed for. An
            // RDMA_ERROR is never answered (section 4.5).
            MessageType::Done => self.on_done(view.xid(), out),
            MessageType::Error => out.set(Event::Dropped(Dropped::UnexpectedError)),
            // No option is known (version two section 3.1).
            MessageType::Optional => {
                out.set(Event::Error(view.xid(), view.version(), RdmaError::InvalidOption));
            }
        }
    }

    #[inline]
    fn on_chunkless_call(&mut self, view: &HeaderView<'_>, out: &mut Arrival) {
        if !self.profile.carries(view, Direction::Call) {
            return not_a_call(view, out);
        }
        match self.take(State::Delivered, view.transport_version()) {
            Some(slot) => out.set(Event::Call(slot)),
            None => refuse_call(view, out),
        }
    }

    fn on_chunked_call(&mut self, view: &HeaderView<'_>, out: &mut Arrival) {
        let inline = view.message_type() != MessageType::Nomsg;
        if inline && !self.profile.carries(view, Direction::Call) {
            return not_a_call(view, out);
        }
        if view.check_call().is_err() {
            return refuse(view, out);
        }
        if view.reads().is_empty() {
            return match self.take(State::Delivered, view.transport_version()) {
                Some(slot) => out.set(Event::Call(slot)),
                None => refuse_call(view, out),
            };
        }
        let profile = self.profile.under(view.transport_version());
        let Some(pull) = Pull::plan(view, inline_bytes(view), 0, profile) else {
            return refuse(view, out);
        };
        let Some(slot) = self.take(State::Pulling, view.transport_version()) else {
            return refuse_call(view, out);
        };
        self.slots.as_mut()[usize::from(slot.index)].pull = pull;
        out.set(Event::Pull(slot));
    }

    #[inline]
    fn take(&mut self, state: State, version: TransportVersion) -> Option<SlotId> {
        let index = self.first_free;
        let slot = self.slots.as_mut().get_mut(index as usize)?;
        self.first_free = slot.next_free;
        self.taken += 1;
        slot.state = state;
        slot.version = version;
        if version == TransportVersion::Two {
            self.version = version;
        }
        slot.generation = slot.generation.wrapping_add(1);
        Some(SlotId { index: index as u16, generation: slot.generation })
    }

    /// Returns true if there is a slot for another call, whatever number of calls without one comes before it. A call
    /// that is answered before the next message arrives takes none ([`Responder::count_slotless`]), but must be able to
    /// ([`Responder::take_slot`]).
    #[inline(always)]
    pub fn has_slot(&self) -> bool {
        self.first_free != NO_SLOT
    }

    /// Counts calls that were taken on while a slot was free, and took none. To be told before [`Responder::calls_taken`] is
    /// asked for, not for each call.
    #[inline(always)]
    pub fn count_slotless(&mut self, calls: u64) {
        self.slotless = self.slotless.wrapping_add(calls);
    }

    /// The slot of a call that is, or will be, counted by [`Responder::count_slotless`], after all.
    pub fn take_slot(&mut self, version: TransportVersion) -> Option<SlotId> {
        let slot = self.take(State::Delivered, version)?;
        self.slotless = self.slotless.wrapping_sub(1);
        Some(slot)
    }

    #[inline]
    pub(crate) fn version_in(&self, id: SlotId, state: State) -> Option<TransportVersion> {
        let slot = self.slots.as_ref().get(usize::from(id.index))?;
        let is_it = slot.generation == id.generation && slot.state == state;
        is_it.then_some(slot.version)
    }

    #[inline]
    pub(crate) fn in_state(&self, id: SlotId, state: State) -> bool {
        self.version_in(id, state).is_some()
    }

    /// The Read chunks of a call that waits for them.
    pub fn pull_plan(&self, id: SlotId) -> Option<&Pull> {
        self.in_state(id, State::Pulling).then(|| &self.slots.as_ref()[usize::from(id.index)].pull)
    }

    /// Asks for the next RDMA Reads of a call, at most `room` of them, and says how many. `view`
    /// is the call's own header. The memory for all its chunks is there.
    pub fn pull(
        &mut self,
        id: SlotId,
        view: &HeaderView<'_>,
        room: u16,
        read: impl FnMut(ReadRequest),
    ) -> u16 {
        if !self.in_state(id, State::Pulling) {
            return 0;
        }
        self.slots.as_mut()[usize::from(id.index)].pull.ask(id, view, room, read)
    }

    /// An RDMA Read of this call completed.
    pub fn on_read_done(&mut self, id: SlotId) -> Pulled {
        if !self.in_state(id, State::Pulling) {
            return Pulled::Stale;
        }
        let slot = &mut self.slots.as_mut()[usize::from(id.index)];
        if !slot.pull.on_read_done() {
            return Pulled::More;
        }
        slot.state = State::Delivered;
        Pulled::Complete
    }

    /// The call was handed to its program and has not been answered.
    #[inline]
    pub fn is_delivered(&self, id: SlotId) -> bool {
        self.in_state(id, State::Delivered)
    }

    /// The call waits for its Read chunks, and not all RDMA Reads have been asked for.
    pub fn wants_reads(&self, id: SlotId) -> bool {
        self.pull_plan(id).is_some_and(Pull::wants_reads)
    }

    /// Answers a call that had no chunks, inline and with nothing taken out of its stream: writes
    /// the transport header, that of [`Responder::reply`], so that it ends where `header` ends, frees
    /// the slot, and returns the header's length. The Send has to follow.
    ///
    /// # Panics
    /// If `header` is shorter than [`TransportVersion::chunkless_header_bytes`] of the call's version.
    ///
    /// # Errors
    /// [`ReplyRefused::Stale`]; nothing was written.
    #[inline]
    pub fn reply_chunkless(
        &mut self,
        id: SlotId,
        xid: Xid,
        header: &mut [u8],
    ) -> Result<usize, ReplyRefused> {
        let Some(version) = self.version_in(id, State::Delivered) else {
            return Err(ReplyRefused::Stale);
        };
        self.free(id);
        Ok(emit_msg_header(header, version, xid, self.grant(), Direction::Reply))
    }

    /// As [`Responder::reply_chunkless`], of a reply whose header the caller has written.
    #[inline(always)]
    pub fn end_chunkless(&mut self, id: SlotId) {
        if self.is_delivered(id) {
            self.free(id);
        }
    }

    /// Answers a call: asks for its RDMA Writes, writes the transport header so that it ends where
    /// `header` ends, frees the slot, and returns the header's length. The Send has to follow the
    /// Writes. `view` is the call's own header.
    ///
    /// # Panics
    /// If `header` is shorter than [`ReplyRepr::bytes_of`].
    ///
    /// # Errors
    /// As [`ReplyRefused`] says; nothing was asked for. The caller answers where a chunk is too small.
    #[inline]
    pub fn reply(
        &mut self,
        id: SlotId,
        view: &HeaderView<'_>,
        shape: &ReplyShape<'_>,
        header: &mut [u8],
        write: impl FnMut(WriteRequest),
    ) -> Result<usize, ReplyRefused> {
        if !self.in_state(id, State::Delivered) {
            return Err(ReplyRefused::Stale);
        }
        self.free(id);
        if !reply_fits(view, shape) {
            return Err(ReplyRefused::ChunkTooSmall);
        }
        write_chunks(view, shape, write);
        Ok(self.emit_reply(view, shape, &[], header))
    }

    /// Ends where `header` ends; returns the length. `reads` are the data to fetch.
    #[inline]
    pub(crate) fn emit_reply(
        &self,
        view: &HeaderView<'_>,
        shape: &ReplyShape<'_>,
        reads: &[ReadSegment],
        header: &mut [u8],
    ) -> usize {
        let whole = reads.first().is_some_and(|read| read.position == 0);
        let is_long = whole || shape.long_bytes.is_some();
        let repr = ReplyRepr {
            xid: view.xid(),
            credits: self.grant(),
            message_type: if is_long { MessageType::Nomsg } else { MessageType::Msg },
            reads,
            write_lengths: &shape.placed[..shape.placed.len().min(view.writes().len())],
            reply_length: shape.long_bytes,
            counts_roundup: self.profile.under(view.transport_version()).counts_roundup(),
        };
        let at = header.len() - ReplyRepr::bytes_of(view, reads.len());
        repr.emit(&mut header[at..], view)
    }

    /// Gives a call up without a reply: the caller has answered it in another way. `false` when
    /// the slot was free before.
    pub fn abandon(&mut self, id: SlotId) -> bool {
        let known = self.in_state(id, State::Delivered) || self.in_state(id, State::Pulling);
        if known {
            self.free(id);
        }
        known
    }

    #[inline]
    pub(crate) fn free(&mut self, id: SlotId) {
        let next_free = self.first_free;
        let slot = &mut self.slots.as_mut()[usize::from(id.index)];
        slot.state = State::Free;
        slot.next_free = next_free;
        self.first_free = u32::from(id.index);
        self.ended += 1;
    }
}

/// A reply sent to the serving side is dropped, anything else answered with ERR_CHUNK: the XID of
/// the header must be that of the RPC message (RFC 5666 section 4.1). Where the header says that it is
/// a call, as in version two, its sender waits for an answer whatever stands behind it.
#[cold]
fn not_a_call(view: &HeaderView<'_>, out: &mut Arrival) {
    match (view.direction(), rpc::message_direction(view.payload())) {
        (None, Some(Direction::Reply)) => out.set(Event::Dropped(Dropped::WrongDirection)),
        _ => refuse(view, out),
    }
}

/// Refuses a call beyond the grant, for which there is no slot. Cold, so that its code does not become one with that of a call
/// that is delivered.
#[cold]
#[inline(never)]
fn refuse_call(view: &HeaderView<'_>, out: &mut Arrival) {
    out.set(Event::Refused(view.xid(), view.transport_version(), AcceptStatus::SystemErr));
}

#[cold]
pub(crate) fn refuse(view: &HeaderView<'_>, out: &mut Arrival) {
    let version = view.transport_version();
    out.set(Event::Error(view.xid(), version.to_wire(), RdmaError::of_header(version)));
}

pub(crate) fn reply_fits(view: &HeaderView<'_>, shape: &ReplyShape<'_>) -> bool {
    let items_fit = (0..shape.placed.len()).all(|index| {
        let placed = u64::from(shape.placed[index]);
        placed == 0 || view.writes().nth(index).is_some_and(|c| placed <= c.total_length())
    });
    let stream_fits = shape.long_bytes.is_none_or(|bytes| {
        view.reply_chunk().is_some_and(|chunk| u64::from(bytes) <= chunk.total_length())
    });
    items_fit && stream_fits
}

pub(crate) fn write_chunks(
    view: &HeaderView<'_>,
    shape: &ReplyShape<'_>,
    mut write: impl FnMut(WriteRequest),
) {
    for (index, (chunk, placed)) in view.writes().zip(shape.placed).enumerate() {
        fill(&chunk, *placed, WriteSource::Item(index as u8), &mut write);
    }
    if let (Some(bytes), Some(chunk)) = (shape.long_bytes, view.reply_chunk()) {
        fill(&chunk, bytes, WriteSource::Stream, &mut write);
    }
}

/// Segments are filled in order without gaps (RFC 5666 section 3.7), never beyond their length.
fn fill(
    chunk: &WriteChunk<'_>,
    bytes: u32,
    source: WriteSource,
    write: &mut impl FnMut(WriteRequest),
) {
    let mut at = 0;
    for to in chunk.filled(bytes).filter(|segment| segment.length > 0) {
        write(WriteRequest { source, at, to });
        at += to.length;
    }
}
