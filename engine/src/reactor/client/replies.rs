//! Replies that arrive: their calls get the memory back that they have lent, and handlers the results.
//!
//! Some devices need a work request to kill a key. A call is complete only when its memory is no longer reachable (RFC 8166
//! section 8.1), so a reply that arrives before that waits, and others overtake it.

use crate::config::BulkView;
use crate::fabric::{ConnId, Received};
use crate::mem::{Buf, Bulk, BulkPool, ExposedBulk};
use crate::reactor::in_flight::call_table::FencedReply;
use crate::reactor::in_flight::outgoing::Outgoing;
use crate::reactor::in_flight::read_buffers::ReadBuffers;
use crate::reactor::in_flight::upcalls::{CoreEvent, Upcalls};
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::types::calls::{CallEnd, ReplyBuffers, ReplyFrame, SlotToken};
use crate::reactor::types::header_bytes::{is_chunkless, version_of};
use crate::reactor::types::rfc5666::{Padded, PulledChunks};
use spinrpc_proto::events::{CallFailure, DeliveredReply, PeerMisbehaved, ReplyStream};

impl CoreCell {
    /// Memory for the application's arguments and results: memory of the connection if its peer cannot write it at
    /// any time and the configuration allows it; otherwise private memory, which is copied to and from the
    /// connection's memory.
    pub(crate) fn conn_bulk(&self, conn: ConnId, bytes: usize) -> Option<Bulk> {
        if self.reactor().config().bulk_view() == BulkView::Lent {
            return self.private_bulk(conn, bytes);
        }
        self.reactor().arena().take(bytes)
    }

    /// Memory of the connection for the application, if the configuration allows it.
    pub(crate) fn exposed_bulk(&self, conn: ConnId, bytes: usize) -> Option<ExposedBulk> {
        let is_lent = self.reactor().config().bulk_view() == BulkView::Lent;
        self.bulk_of(conn, bytes).filter(|_| is_lent).map(ExposedBulk::new)
    }

    /// The same memory as a pool, for other threads.
    pub(crate) fn exposed_memory(&self, conn: ConnId) -> Option<BulkPool> {
        let mut reactor = self.reactor();
        reactor.conn(conn)?;
        let memory = reactor.fabric().memory(conn).arena.unwrap_or(reactor.arena());
        Some(memory.clone()).filter(|_| reactor.config().bulk_view() == BulkView::Lent)
    }

    pub(in crate::reactor) fn bulk_of(&self, conn: ConnId, bytes: usize) -> Option<Bulk> {
        let mut reactor = self.reactor();
        reactor.conn(conn)?;
        reactor.fabric_mut().bulk(conn, bytes)
    }

    /// Passes a reply to its handler, then frees its memory.
    #[inline]
    pub(in crate::reactor) fn deliver_reply(
        &self,
        conn: ConnId,
        message: Buf,
        reply: &DeliveredReply,
        call: Option<Box<Outgoing>>,
        up: &mut impl Upcalls,
    ) {
        match reply.stream {
            ReplyStream::Inline { header_bytes }
                if call.is_none() && is_chunkless(header_bytes) =>
            {
                let (token, xid, placed) = (reply.token, reply.slot.xid(), &reply.placed);
                let stream = &message.bytes()[header_bytes..];
                let (buffers, padded) = (None, None);
                up.on_reply(ReplyFrame { conn, token, xid, stream, placed, buffers, padded });
                self.reactor().finish_reply(conn, message, None);
            }
            _ => self.deliver_other_reply(conn, message, reply, (call, None), up),
        }
    }

    /// Delivers a reply with buffers, chunks or padding, and its Read chunks that were fetched.
    #[inline(never)]
    pub(in crate::reactor) fn deliver_other_reply(
        &self,
        conn: ConnId,
        message: Buf,
        reply: &DeliveredReply,
        (mut call, fetched): (Option<Box<Outgoing>>, Option<&mut ReadBuffers>),
        up: &mut impl Upcalls,
    ) {
        #[cfg(feature = "gss")]
        let whole = match fetched {
            None => self.reactor().take_whole(conn, reply, call.as_deref_mut()),
            Some(_) => None,
        };
        let brought = message.bytes().first_chunk::<8>().copied().unwrap_or_default();
        let has_buffers = call.is_some() || fetched.is_some();
        let mut pulled = PulledChunks::default();
        if let Some(sinks) = fetched {
            let (chunks, bulks) = (&sinks.chunks[..sinks.count], &mut sinks.bulks[..sinks.count]);
            pulled = PulledChunks { chunks, bulks, base: 0 };
        }
        let (mut arguments, mut results): (&mut [Option<Bulk>], &mut [Option<Bulk>]) =
            (&mut [], &mut []);
        let (mut from_chunk, mut kept): (&[u8], _) = (&[], &mut None);
        if let Some(call) = call.as_deref_mut() {
            (from_chunk, [arguments, results], kept) = call.answered();
        }
        #[cfg(not(feature = "gss"))]
        let _ = kept;
        let mut padded = None;
        let stream = match reply.stream {
            ReplyStream::Inline { header_bytes } => {
                padded = Padded::of(message.bytes(), header_bytes);
                &message.bytes()[header_bytes..]
            }
            #[cfg(feature = "gss")]
            ReplyStream::ReplyChunk { .. } if whole.is_some() => &[],
            ReplyStream::ReplyChunk { length } => &from_chunk[..length as usize],
            ReplyStream::Pulled => pulled.take_stream(),
        };
        #[cfg(feature = "gss")]
        let begins = whole.as_ref().map_or(stream, Bulk::bytes);
        #[cfg(not(feature = "gss"))]
        let begins = stream;
        if !self.is_of(&brought, begins) {
            return self.refuse_foreign_reply(conn, message, reply, call, up);
        }
        let mut buffers = ReplyBuffers {
            arguments,
            results,
            pulled,
            #[cfg(feature = "gss")]
            whole,
            #[cfg(feature = "gss")]
            kept,
        };
        let (token, xid, placed) = (reply.token, reply.slot.xid(), &reply.placed);
        let buffers = has_buffers.then_some(&mut buffers);
        up.on_reply(ReplyFrame { conn, token, xid, stream, placed, buffers, padded });
        self.reactor().finish_reply(conn, message, call);
    }
}

impl Reactor {
    /// Takes a long reply whose body is protected out of the memory of its call: the server cannot write to that any more, and
    /// the client unseals the reply there.
    #[cfg(feature = "gss")]
    fn take_whole(
        &mut self,
        conn: ConnId,
        reply: &DeliveredReply,
        call: Option<&mut Outgoing>,
    ) -> Option<Bulk> {
        let ReplyStream::ReplyChunk { length } = reply.stream else { return None };
        let gss = self.conn(conn).and_then(|c| c.gss());
        let is_protected = gss.is_some_and(|gss| gss.protects_body(reply.slot.xid()));
        let mut message =
            call.filter(|_| is_protected)?.lent.reply.take_if(|memory| !memory.is_exposed())?;
        message.set_len(message.len().min(length as usize));
        Some(message)
    }

    /// Sets the results of a call. If the peer invalidated a key of another call, the call fails and the connection ends
    /// (RFC 8797 section 4.1).
    fn settle_results(
        &mut self,
        conn: ConnId,
        reply: &DeliveredReply,
        call: Option<&mut Outgoing>,
        invalidated: Option<u32>,
    ) -> Result<(), CallFailure> {
        if let Some(handle) = invalidated
            && !call.as_ref().is_some_and(|call| call.lent.handles().contains(&handle))
        {
            self.close_misbehaving(conn, PeerMisbehaved::ForeignKey);
            return Err(CallFailure::Misbehaved(PeerMisbehaved::ForeignKey));
        }
        let Some(call) = call else { return Ok(()) };
        let Some(copies) = call.take_results(&reply.placed) else {
            self.close_misbehaving(conn, PeerMisbehaved::ResultNotFetched);
            return Err(CallFailure::Misbehaved(PeerMisbehaved::ResultNotFetched));
        };
        self.stats().copies += copies;
        let is_exposed = call.lent.reply.as_ref().is_some_and(Bulk::is_exposed);
        if is_exposed || self.config().bulk_view() == BulkView::Copy {
            return self.copy_reply_chunk(call, reply);
        }
        Ok(())
    }

    pub(in crate::reactor) fn recycle_call(&mut self, conn: ConnId, call: Option<Box<Outgoing>>) {
        if let (Some(c), Some(call)) = (self.conn(conn), call) {
            c.calls.recycle(call);
        }
    }

    /// Copies a reply from memory that the peer can still write to memory that it cannot.
    fn copy_reply_chunk(
        &mut self,
        call: &mut Outgoing,
        reply: &DeliveredReply,
    ) -> Result<(), CallFailure> {
        let ReplyStream::ReplyChunk { length } = reply.stream else { return Ok(()) };
        let Some(shared) = call.lent.reply.take() else { return Ok(()) };
        let length = (length as usize).min(shared.len());
        let Some(mut private) = self.arena().take(length) else {
            self.stats().no_buffer += 1;
            return Err(CallFailure::NoMemory);
        };
        private.copy_from_bulk(&shared, length);
        self.stats().copies += 1;
        call.lent.reply = Some(private);
        Ok(())
    }

    #[inline(always)]
    pub(in crate::reactor) fn finish_reply(
        &mut self,
        conn: ConnId,
        message: Buf,
        call: Option<Box<Outgoing>>,
    ) {
        let Some(c) = self.conn(conn) else { return };
        if let Some(call) = call {
            c.calls.recycle(call);
        }
        self.repost(conn, message);
    }
}

impl CoreCell {
    /// The RPC message in `stream` begins with the XID of the message that brought it (RFC 8166 section 4.2), or is one of
    /// the drafts of RFC 5666, whose XID counts less (section 4.1).
    pub(crate) fn is_of(&self, message: &[u8], stream: &[u8]) -> bool {
        let (brought, begins) = (message.first_chunk::<4>(), stream.first_chunk::<4>());
        let profile = || self.reactor().config().protocol().under(version_of(message));
        brought == begins || (begins.is_some() && profile().prefers_header_xid())
    }
}

impl CoreCell {
    /// A reply matched a call: kills the keys of the call and takes it, if it has anything there, out of its slot.
    #[inline]
    pub(in crate::reactor) fn arrive_reply(
        &self,
        received: Received,
        (reply, is_partial): (DeliveredReply, bool),
        up: &mut impl Upcalls,
    ) {
        let (conn, mut reactor) = (received.qp, self.reactor());
        let Some((c, core)) = reactor.conn_and_core(conn) else { return };
        if is_partial && c.negotiated.reads_max() == 0 {
            // This side has stated that it accepts none (RFC 5666 section 6.2).
            return reactor.close_misbehaving(conn, PeerMisbehaved::ReadListInReply);
        }
        let mut call = c.end_call(reply.slot, core.fabric_mut());
        core.stats().replies_received += 1;
        if let Some(call) = call.take_if(|call| call.lent.is_dying()) {
            return reactor.fence(conn, (received, (reply, is_partial), call));
        }
        drop(reactor);
        self.take_reply(received, (reply, is_partial), call, up);
    }

    /// Delivers a reply, or fetches what is missing of it first; none of its call's keys is alive.
    #[inline]
    fn take_reply(
        &self,
        Received { qp: conn, message, invalidated }: Received,
        (reply, is_partial): (DeliveredReply, bool),
        mut call: Option<Box<Outgoing>>,
        up: &mut impl Upcalls,
    ) {
        let mut fetched = Ok(());
        if call.is_some() || invalidated.is_some() {
            let mut reactor = self.reactor();
            fetched = reactor.settle_results(conn, &reply, call.as_deref_mut(), invalidated);
        }
        if is_partial {
            return self.begin_reply(conn, (message, reply, call), fetched, up);
        }
        match fetched {
            Ok(()) => self.deliver_reply(conn, message, &reply, call, up),
            Err(failure) => {
                self.reactor().recycle_call(conn, call);
                self.lose_reply(conn, message, SlotToken::of(&reply), failure, up);
            }
        }
    }

    /// A key is dead; a reply may have waited for it.
    #[cold]
    pub(in crate::reactor) fn on_revoked(&self, conn: ConnId, handle: u32, up: &mut impl Upcalls) {
        let freed = self.reactor().conn(conn).and_then(|c| c.fenced.key_died(handle));
        if let Some(fenced) = freed {
            self.go_on_with_fenced(conn, fenced, up);
        }
    }

    /// The queue pair is gone, and all keys with it: waiting replies are delivered.
    pub(in crate::reactor) fn end_fences(&self, conn: ConnId, up: &mut impl Upcalls) {
        loop {
            let next = self.reactor().conn(conn).and_then(|c| c.fenced.take_first());
            let Some(fenced) = next else { return };
            self.go_on_with_fenced(conn, fenced, up);
        }
    }

    /// The application gets a whole reply in this turn, and the driver its receive, before any message that the
    /// application sends now is posted.
    fn go_on_with_fenced(&self, conn: ConnId, fenced: FencedReply, up: &mut impl Upcalls) {
        let (received, (reply, is_partial), call) = fenced;
        if let Some(c) = self.reactor().conn(conn).filter(|_| !is_partial) {
            c.lane.proto().requester.release_credit();
        }
        self.take_reply(received, (reply, is_partial), Some(call), up);
    }
}

impl Reactor {
    /// A whole reply keeps its receive, and so its credit; the credit of a reply with more to fetch stays taken
    /// anyway, for RDMA_DONE.
    fn fence(&mut self, conn: ConnId, fenced: FencedReply) {
        let Some(c) = self.conn(conn) else { return };
        let (_, (_, is_partial), _) = fenced;
        if !is_partial {
            c.lane.proto().requester.keep_credit();
        }
        c.fenced.push(fenced, c.calls.slots());
    }
}

impl CoreCell {
    /// The reply in a chunk belongs to another call: a handler would take it for its own.
    #[cold]
    pub(in crate::reactor) fn refuse_foreign_reply(
        &self,
        conn: ConnId,
        message: Buf,
        reply: &DeliveredReply,
        call: Option<Box<Outgoing>>,
        up: &mut impl Upcalls,
    ) {
        let why = PeerMisbehaved::ForeignReply;
        self.reactor().recycle_call(conn, call);
        self.reactor().close_misbehaving(conn, why);
        self.lose_reply(conn, message, SlotToken::of(reply), CallFailure::Misbehaved(why), up);
    }

    /// A reply arrived whose call fails anyway: its receive goes back to the driver.
    pub(in crate::reactor) fn lose_reply(
        &self,
        conn: ConnId,
        message: Buf,
        call: SlotToken,
        failure: CallFailure,
        up: &mut impl Upcalls,
    ) {
        self.reactor().repost(conn, message);
        if let Some(c) = self.reactor().conn(conn) {
            c.forget_sent(call.slot);
        }
        up.on_event(CoreEvent::CallFailed(conn, call, CallEnd::Failed(failure)));
    }
}
