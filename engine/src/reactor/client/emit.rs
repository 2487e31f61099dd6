//! Emits a call: exposes its memory, takes its slot, writes its transport header, and posts it.

use crate::fabric::ConnId;
use crate::mem::{Buf, Bulk};
use crate::reactor::client::chunk_exposure::ChunkExposure;
use crate::reactor::client::place::Stage;
use crate::reactor::common::sends::Posted;
use crate::reactor::in_flight::outgoing::{Lent, Outgoing};
use crate::reactor::state::connection::Conn;
use crate::reactor::state::core::Reactor;
use crate::reactor::types::calls::{Backpressure, CallSpec, Deadline};
use crate::reactor::types::encoded_stream::EncodedStream;
use crate::reactor::types::header_bytes::{NO_CHUNKS, put_xid};
use crate::reactor::types::stats::StatsSnapshot;
use spinrpc_proto::chunking::Encoded;
use spinrpc_proto::events::SlotId;
use spinrpc_proto::ids::{Instant, Xid};
use spinrpc_proto::requester::{CallRefused, CallSlot, Requester};

/// Slot of a call that may have chunks.
#[derive(Clone, Copy)]
pub(in crate::reactor) enum Start {
    /// A new one, for a call with this token.
    New(u64),
    /// The one that it waits in.
    Again(SlotId),
}

impl Start {
    /// Before anything of the call is lent.
    fn check(self, requester: &Requester<Box<[CallSlot]>>) -> Result<(), CallRefused> {
        match self {
            Self::New(_) => requester.check_room(),
            Self::Again(slot) => requester.check_resend(slot),
        }
    }

    pub(in crate::reactor::client) fn xid(self, requester: &Requester<Box<[CallSlot]>>) -> Xid {
        match self {
            Self::New(_) => requester.next_xid(),
            Self::Again(slot) => slot.xid(),
        }
    }
}

impl Reactor {
    /// Starts a call that consists of its stream only, and whose reply fits inline on any connection: most calls that the lane
    /// does not send. `None` when it does not go inline; then nothing has happened. `draft` makes the draft of this stream, for
    /// a call under a context.
    pub(in crate::reactor) fn emit_chunkless_call<'d>(
        &mut self,
        conn: ConnId,
        token: u64,
        spec: &CallSpec,
        stream: &[u8],
        draft: impl FnOnce() -> EncodedStream<'d>,
    ) -> Result<Option<SlotId>, Backpressure> {
        #[cfg(feature = "gss")]
        if self.conns().find_for_lane(conn).is_some_and(|c| c.gss().is_some()) {
            return self.emit_signed_call(conn, token, spec, &draft());
        }
        #[cfg(not(feature = "gss"))]
        drop(draft);
        self.emit_stream(conn, token, spec, |_, place| {
            let place = place.get_mut(..stream.len());
            Ok(place.map(|place| place.copy_from_slice(stream)).map(|()| stream.len()))
        })
    }

    /// Starts such a call with the stream that `write` puts where the message is sent from.
    #[inline]
    pub(in crate::reactor) fn emit_stream(
        &mut self,
        conn: ConnId,
        token: u64,
        spec: &CallSpec,
        write: impl FnOnce(&mut Conn, &mut [u8]) -> Result<Option<usize>, Backpressure>,
    ) -> Result<Option<SlotId>, Backpressure> {
        let deadline = self.deadline(spec);
        let (mut message, c) = self.take_send_buffer(conn)?;
        let version = c.lane.proto().requester.negotiation().version();
        let header_bytes = version.chunkless_header_bytes();
        let (header, place) = message.whole_mut().split_at_mut(header_bytes);
        let room = c.negotiated.unpadded_bytes_max(version).saturating_sub(header_bytes);
        let Some(stream_bytes) = write(c, &mut place[..room])? else { return Ok(None) };
        let started = c.lane.proto().requester.start_call(token, deadline, &NO_CHUNKS, header);
        let (started, _) = started.map_err(|refused| self.stats().refuse(refused))?;
        put_xid(place, started.xid);
        message.set_range(0..header_bytes + stream_bytes);
        self.wake_by(deadline);
        self.post(conn, message, Posted::Call);
        Ok(Some(started.slot))
    }

    #[inline]
    pub(in crate::reactor) fn take_send_buffer(
        &mut self,
        conn: ConnId,
    ) -> Result<(Buf, &mut Conn), Backpressure> {
        self.take_buffer(conn, Start::New(0))
    }

    #[inline(always)]
    pub(in crate::reactor) fn take_buffer(
        &mut self,
        conn: ConnId,
        start: Start,
    ) -> Result<(Buf, &mut Conn), Backpressure> {
        let Some((c, core)) = self.conn_and_core(conn) else { return Err(Backpressure::Down) };
        if c.closing.is_some() {
            return Err(Backpressure::Down);
        }
        let checked = start.check(&c.lane.proto().requester);
        if let Err(refused) = checked {
            return Err(core.stats().refuse(refused));
        }
        if c.queue_room(core.fabric()) == 0 {
            core.stats().queue_full += 1;
            return Err(Backpressure::SendQueueFull);
        }
        let Some(message) = c.take_for_call() else {
            core.stats().no_buffer += 1;
            return Err(Backpressure::NoBuffer);
        };
        Ok((message, c))
    }

    /// Deadline of a call that starts now. The turn's time stamp is not used: it may be old if the application was
    /// busy for long.
    #[inline(always)]
    pub(in crate::reactor) fn deadline(&self, spec: &CallSpec) -> Instant {
        let ticks = match spec.deadline {
            Deadline::Default => self.default_timeout_ticks(),
            Deadline::After(time) => self.ticks(time),
            Deadline::None => return Instant(u64::MAX),
        };
        self.in_ticks(ticks)
    }

    /// Sends a call that is placed. On an error nothing is lent, and the message, if it is to be a chunk of its own, is still in
    /// `whole`. The caller puts the call into its slot.
    pub(in crate::reactor) fn emit_call(
        &mut self,
        conn: ConnId,
        mut stage: Stage,
        encoded: &Encoded,
        whole: &mut Option<Bulk>,
        start: Start,
        call: &mut Outgoing,
    ) -> Result<SlotId, Backpressure> {
        debug_assert!(call.lent.handles().is_empty(), "what an earlier try has lent is taken back");
        let Some((c, core)) = self.conn_and_core(conn) else { return Err(Backpressure::Down) };
        let xid = start.xid(&c.lane.proto().requester);
        let mut offering = ChunkExposure::new(core, conn, stage.version, call);
        let offered = offering
            .offer_all(xid, c.negotiated.reply_bytes_max(stage.version), encoded, whole)
            .and_then(|()| offering.check(stage.threshold_bytes))
            .and_then(|()| stage.check_padding(encoded, offering.chunks()));
        let chunks = *offering.chunks();
        if let Err(refused) = offered {
            // The peer does not know them yet: each is killed at once, if the last one goes first.
            for handle in call.lent.handles().iter().rev() {
                core.fabric_mut().revoke(conn, *handle);
            }
            call.lent = Lent::default();
            return Err(refused);
        }
        call.lent.message = call.lent.message.take().or(whole.take());
        core.stats().copies += call.inlined_items(encoded);
        let stream_bytes = if call.lent.message.is_some() { 0 } else { encoded.stream_bytes };
        let (header, stream) = stage.message.whole_mut().split_at_mut(stage.stream_at);
        let deadline = call.terms().deadline();
        let started = {
            let requester = &mut c.lane.proto().requester;
            let started = match start {
                Start::New(token) => requester.start_call(token, deadline, &chunks, header),
                Start::Again(slot) => requester.resend(slot, &chunks, header),
            };
            core.wake_by(requester.next_deadline());
            started.inspect(|(started, _)| requester.lend(started.slot))
        };
        let (started, header_bytes) = started.map_err(|refused| core.stats().refuse(refused))?;
        put_xid(stream, started.xid);
        let header_at = stage.finish_header(encoded, stage.stream_at - header_bytes);
        let mut message = stage.message;
        message.set_range(header_at..stage.stream_at + stream_bytes);
        self.post(conn, message, Posted::Call);
        Ok(started.slot)
    }
}

impl StatsSnapshot {
    #[cold]
    pub(in crate::reactor) fn refuse(&mut self, refused: CallRefused) -> Backpressure {
        match refused {
            CallRefused::NoCredit => {
                self.credit_stalls += 1;
                Backpressure::NoCredit
            }
            CallRefused::NoSlot => {
                self.no_buffer += 1;
                Backpressure::NoBuffer
            }
        }
    }
}
