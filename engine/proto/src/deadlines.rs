//! Deadline propagation, an extension of version two (sections 3 and 4 there): a call says how long its
//! caller goes on waiting, and a responder that would execute it later says so instead. Described in
//! `xdr/deadlines.md`, in XDR in `xdr/deadlines_v2.x`.
//!
//! ```text
//! deadline call: RDMA2_OPTIONAL, CALL, 0x73702d01, opaque<>: remaining time, Read list, Write list,
//!                Reply chunk; then the RPC call, unless it is in a Position-Zero Read chunk
//! late:          RDMA2_OPTIONAL, REPLY, 0x73702d02, opaque<>: for how long the time had been over
//! ```
//!
//! A deadline call is the RDMA2_MSG or RDMA2_NOMSG that it were without its time, and a
//! [`HeaderView`] shows it as that: all that there is to fetch, to place and to answer goes as with any
//! call. [`HeaderView::remaining_us`] has the time. Where `Limits::deadlines` is not set, both messages
//! are those of an option that is not known.
//!
//! A responder that does not know the extension answers INVALID_OPTION and has executed nothing. The
//! call is then held, and [`crate::output::Output::resend_call`] asks for it to be sent again without
//! its time, as `Requester::resend` does; [`Requester::deadlines`] remembers that for the connection.
//! So a caller should try it with one call ([`Support::Unknown`]) and use it once that has its answer
//! ([`Support::Known`]). An RDMA_ERROR before the version is settled does not settle it.
//!
//! Decisions made here:
//!
//! * A late message for a call that did not name a time is dropped, because the caller did not ask
//!   for one.
//! * A late message of direction CALL is answered with BAD_HEADER, a deadline call of direction REPLY
//!   dropped.
//! * A Position-Zero Read chunk makes a call a long one; bytes behind its header are ignored, as behind
//!   any RDMA2_NOMSG.

use crate::ids::{Instant, Xid};
use crate::output::{CallFailure, Dropped, Output, SlotId};
use crate::payload::CallChunks;
use crate::rdma::HeaderView;
use crate::rdma::v2::OptionalBody;
use crate::requester::{CallRefused, CallSlot, Requester, StartedCall, State, emit_chunked};
use crate::responder::{Responder, ServeSlot, refuse};
use crate::rpc::Direction;
use crate::version::TransportVersion;
use crate::xdr::Reader;

/// The number (`rdma_opttype`) of a call that says how much time it has.
pub const DEADLINE_CALL: u32 = 0x7370_2d01;

/// The number of the answer that a call was too late.
pub const LATE: u32 = 0x7370_2d02;

/// Bytes of a time on the wire: microseconds in 64 bits.
pub(crate) const REMAINING_BYTES: usize = 8;

/// Bytes of the header of the message that a call was late.
pub const LATE_HEADER_BYTES: usize = crate::rdma::v2::optional_header_bytes(REMAINING_BYTES);

/// Support for the extension by a connection's responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// No call has told.
    Unknown,
    /// The responder has answered a call that named its time.
    Known,
    /// The responder has refused one.
    Refused,
}

impl OptionalBody<'_> {
    /// True if the message belongs to this extension.
    pub(crate) fn is_of_deadlines(&self) -> bool {
        matches!(self.option, DEADLINE_CALL | LATE)
    }
}

/// Handles a message of the extension that is not a deadline call.
pub(crate) fn on_receive<Q: AsRef<[CallSlot]> + AsMut<[CallSlot]>>(
    requester: &mut Requester<Q>,
    view: &HeaderView<'_>,
    body: &OptionalBody<'_>,
    out: &mut impl Output,
) {
    match (body.direction, late_us(view, body)) {
        (Direction::Call, _) => refuse(view, out),
        (Direction::Reply, Some(late_us)) => requester.on_late(view, late_us, out),
        (Direction::Reply, None) => out.dropped(Dropped::MalformedReply),
    }
}

/// For how long the time had been over, if this says so, and nothing else.
fn late_us(view: &HeaderView<'_>, body: &OptionalBody<'_>) -> Option<u64> {
    let is_late = body.option == LATE && view.payload().is_empty();
    let is_whole = is_late && body.info.len() == REMAINING_BYTES;
    Reader::new(body.info).u64().ok().filter(|_| is_whole)
}

impl<S: AsRef<[CallSlot]> + AsMut<[CallSlot]>> Requester<S> {
    /// Support for the extension by the responder.
    #[must_use]
    pub fn deadlines(&self) -> Support {
        self.deadlines
    }

    /// Starts a call as [`Requester::start_call`] does, and names the time that it has left, in
    /// microseconds. The header is longer by [`crate::rdma::v2::DEADLINE_EXTRA_BYTES`]. The connection
    /// speaks version two; in version one this is [`Requester::start_call`].
    ///
    /// # Panics
    /// If `header` is too short.
    ///
    /// # Errors
    /// As [`CallRefused`] says; then nothing was taken.
    pub fn start_call_within(
        &mut self,
        token: u64,
        deadline: Instant,
        remaining_us: u64,
        chunks: &CallChunks,
        header: &mut [u8],
    ) -> Result<(StartedCall, usize), CallRefused> {
        let version = self.negotiation.version();
        if version != TransportVersion::Two {
            return self.start_call(token, deadline, chunks, header);
        }
        let started = self.take(token, deadline, true)?;
        self.put_offered(started.slot, chunks, true);
        let (time, credits) = (Some(remaining_us), self.credits.requested());
        Ok((started, emit_chunked(version, time, chunks, started.xid, credits, header)))
    }

    /// The responder does not know the extension: a call that named its time is held, to be sent again
    /// without. `false` for any other call.
    #[cold]
    pub(crate) fn hold_without_time(&mut self, index: u16, out: &mut impl Output) -> bool {
        let slot = &mut self.slots.as_mut()[usize::from(index)];
        if !slot.offered().names_time {
            return false;
        }
        self.deadlines = Support::Refused;
        if slot.state == State::InFlight {
            slot.state = State::Held;
            out.resend_call(SlotId { index, generation: slot.generation });
            return true;
        }
        false
    }

    fn on_late(&mut self, view: &HeaderView<'_>, late_us: u64, out: &mut impl Output) {
        let Some(index) = self.matching_slot(view.xid()) else {
            return out.dropped(Dropped::UnmatchedReply);
        };
        let named_it = self.slots.as_ref()[usize::from(index)].offered().names_time;
        if !named_it || !self.takes_answer(view.transport_version()) {
            return out.dropped(Dropped::MalformedReply);
        }
        self.deadlines = Support::Known;
        self.credits.replied(view.credits());
        self.credits.cover(self.slots.as_ref()[usize::from(index)].dones_total);
        self.fail(index, CallFailure::Late { late_us }, out);
    }
}

impl<S: AsRef<[ServeSlot]> + AsMut<[ServeSlot]>> Responder<S> {
    /// Answers a deadline call with the message that its time had been over for `late_us` microseconds,
    /// and that it was not executed: writes the header so that it ends where `header` ends, frees the
    /// slot, and returns the header's length, [`LATE_HEADER_BYTES`]. The Send has to follow, with
    /// nothing behind it. Its Read chunks need not be here, if none of them was asked for.
    ///
    /// # Panics
    /// If `header` is shorter than that.
    ///
    /// # Errors
    /// As [`Responder::reply_optional`].
    pub fn reply_late(
        &mut self,
        id: SlotId,
        xid: Xid,
        late_us: u64,
        header: &mut [u8],
    ) -> Result<usize, crate::options::OptionalRefused> {
        self.stop_pull(id);
        self.reply_optional(id, xid, LATE, &late_us.to_be_bytes(), header)
    }
}
