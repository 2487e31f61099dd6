//! A call that is answered outside of its handler, perhaps on another thread: the memory that its reply is encoded
//! into, and the destination of the answer.
//!
//! Depends on the reply cache, which depends on it: a deferred call stores its answer there, and a repeated call waits there
//! as a deferred call.

use crate::fabric::ConnId;
use crate::mem::{Bulk, BulkPool, Share};
#[cfg(feature = "gss")]
use crate::reactor::in_flight::gss_bodies::GssWork;
use crate::reactor::in_flight::mailbox::{DeferredAnswer, Inbox};
use crate::reactor::in_flight::reply_cache::{ReplyKeeper, Stored};
use crate::reactor::types::calls::RpcRefusal;
#[cfg(feature = "gss")]
use crate::reactor::types::crypto_counts::CryptoCounts;
use crate::reactor::types::encode_buffer::{EncodeError, check};
use crate::reactor::types::encoded_stream::{EncodeOnce, EncodedStream, ItemOffsets, once};
use crate::reactor::types::header_bytes::{SUCCESS_HEADER, SYSTEM_ERR};
#[cfg(feature = "gss")]
use crate::reactor::types::protection::Protection;
use crate::reactor::types::reply_plan::{EncodedReply, ReplyData, ReplyPlan};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sys::clock::{Clock, Ticks};
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::chunking::StreamWriter;
use spinrpc_proto::events::SlotId;
use spinrpc_proto::rpc::AcceptStatus;
use std::sync::Arc;
use std::time::Duration;

const REFUSAL: DeferredAnswer = DeferredAnswer::Refused(SYSTEM_ERR);

/// A call that is answered later, from any thread. Dropping it unanswered sends SYSTEM_ERR. An answer to a connection
/// that has gone down is discarded and counted (`stale`).
///
/// ```
/// use spinrpc::Deferred;
/// use std::time::Duration;
///
/// /// Answers a call whose turn has come after `waited` in a queue.
/// fn answer(call: Deferred, waited: Duration, at_most: Duration) {
///     if call.is_unheard() {
///         return; // The caller's connection has gone.
///     }
///     match waited > at_most {
///         true => call.too_late(), // It was not executed.
///         false => call.reply(|results| results.string("done")),
///     }
/// }
/// # let _ = answer;
/// ```
pub struct Deferred {
    caller: Arc<Caller>,
    /// `None` once it is answered.
    reply: Option<Box<DeferredReply>>,
    /// Stores the reply, for the same call on another connection.
    keep: Option<ReplyKeeper>,
}

/// The reply of a deferred call, from the core to the thread that encodes it and back by mail. It stays where it is
/// meanwhile, as it is large, and its core uses the box again for another call.
pub(crate) struct DeferredReply {
    conn: ConnId,
    slot: SlotId,
    room: Option<Room>,
    answer: DeferredAnswer,
    /// If the call is timed.
    noted: Option<Noted>,
}

/// Times of a call that only other threads than the core's know.
#[derive(Clone, Copy, Default)]
pub(in crate::reactor) struct Noted {
    /// When it was answered; zero if the thread has no counter for that.
    pub(in crate::reactor) answered: Ticks,
    /// Nanoseconds that its answer took a disk.
    pub(in crate::reactor) disk_ns: u64,
}

/// A connection as seen by threads that answer its calls: the destination of answers, and a flag that it has gone.
pub(in crate::reactor) struct Caller {
    inbox: Arc<Inbox>,
    has_gone: AtomicBool,
    /// None where time is simulated.
    clock: Option<Clock>,
}

impl Caller {
    pub(in crate::reactor) fn new(inbox: Arc<Inbox>, clock: Option<Clock>) -> Arc<Self> {
        Arc::new(Self { inbox, has_gone: AtomicBool::new(false), clock })
    }

    /// Calls that are not answered. Slightly outdated where other threads answer now.
    pub(in crate::reactor) fn deferred(this: &Arc<Self>) -> usize {
        // Each deferred call has a handle, and so has the connection.
        Arc::strong_count(this) - 1
    }

    pub(in crate::reactor) fn go(&self) {
        // Relaxed: a hint, which may arrive late; no other data depend on it.
        self.has_gone.store(true, Ordering::Relaxed);
    }
}

/// State that encoding a reply outside of its core needs.
pub(in crate::reactor) struct Room {
    pool: BulkPool,
    /// The share of the connection.
    share: Share,
    stage: Bulk,
    plan: ReplyPlan,
    /// Protection of the reply, if its call came under RPCSEC_GSS, and where its sealing is counted.
    #[cfg(feature = "gss")]
    protection: Option<(Protection, Arc<CryptoCounts>)>,
    /// Longest reply that the answering thread seals.
    #[cfg(feature = "gss")]
    at_once_bytes: usize,
}

impl Deferred {
    pub(in crate::reactor) fn new(caller: Arc<Caller>, reply: Box<DeferredReply>) -> Self {
        Self { caller, reply: Some(reply), keep: None }
    }

    /// Returns true once the caller's connection has ended: the answer would be discarded, and work that was not
    /// begun can be skipped. This is a hint, free to query at any time and from any thread; it may lag by one turn of
    /// the core. Always false for a call that is [served once](crate::Engine::serve_once), whose caller may ask for
    /// its answer on another connection. Cancelled calls are not reported: no version of the protocol has a message
    /// for cancellation.
    pub fn is_unheard(&self) -> bool {
        // Relaxed: as in `Caller::go`.
        self.keep.is_none() && self.caller.has_gone.load(Ordering::Relaxed)
    }

    /// Returns true if the call is timed: only then is it worth measuring what [`Deferred::note_disk`] takes.
    pub fn is_timed(&self) -> bool {
        self.reply.as_ref().is_some_and(|reply| reply.noted.is_some())
    }

    /// So much of the time since the call was deferred was spent with a disk: shown for slow calls that were timed
    /// ([`control`](crate::control)). Counted together if noted several times.
    pub fn note_disk(&mut self, time: Duration) {
        let noted = self.reply.as_mut().and_then(|reply| reply.noted.as_mut());
        if let Some(noted) = noted {
            let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            noted.disk_ns = noted.disk_ns.saturating_add(ns);
        }
    }

    /// Answers a call that was not executed because it had waited for too long here. The caller gets SYSTEM_ERR, because the
    /// protocol has no such answer; [`StatsSnapshot::calls_late`](crate::StatsSnapshot) counts it.
    pub fn too_late(mut self) {
        if let Some(keep) = self.keep.take() {
            keep.refuse(SYSTEM_ERR);
        }
        self.refuse(RpcRefusal::Late);
    }

    /// Sets the protection of the results, and where their sealing is counted.
    #[cfg(feature = "gss")]
    pub(crate) fn protect(&mut self, protection: Protection, counts: Arc<CryptoCounts>) {
        if let Some(room) = self.room() {
            room.protection = Some((protection, counts));
        }
    }

    /// Has the reply stored, too.
    pub(crate) fn keep_by(&mut self, keeper: ReplyKeeper) {
        self.keep = Some(keeper);
    }

    /// Answers with results. `encode` writes them on this thread; it runs once.
    pub fn reply(self, encode: impl FnOnce(&mut StreamWriter<'_>)) {
        self.reply_with(ReplyData::new(), encode);
    }

    /// Answers with results and registered data items, as [`Call::reply_with`](crate::Call::reply_with).
    pub fn reply_with(self, data: ReplyData, encode: impl FnOnce(&mut StreamWriter<'_>)) {
        self.encode(data, &mut once(encode));
    }

    fn encode(mut self, mut data: ReplyData, encode: EncodeOnce<'_>) {
        let (keep, data) = (self.keep.take(), &mut data);
        let inbox = &self.caller.inbox;
        if let Some(DeferredReply { room: Some(room), answer, .. }) = self.reply.as_deref_mut() {
            let bytes = room.pool.largest();
            inbox.lend_draft_memory(bytes, |long| {
                if keep.is_some() || !room.takes_itemless(data) {
                    *answer = room.encode_once(std::mem::take(data), keep, long, encode);
                    return;
                }
                let Some(results) = room.encode_itemless(long, encode) else {
                    // Set alone: all bytes of an answer that is chosen by a match are copied.
                    *answer = DeferredAnswer::Staged;
                    return;
                };
                *answer =
                    room.encode_draft(ReplyData::new(), results.map(EncodedStream::without_items));
            });
        }
        self.post();
    }

    /// Answers with an RPC error.
    pub fn reject(mut self, status: AcceptStatus) {
        self.refuse(RpcRefusal::Accepted(status));
    }

    /// Encodes a stored reply, to be sent by [`Deferred::send`].
    pub(in crate::reactor) fn set_answer(&mut self, stored: &Stored<'_>) {
        let answer = match stored.reply(|bytes| self.bulk(bytes)) {
            Ok((data, draft)) => self.room().map_or(REFUSAL, |room| room.encode(data, &draft)),
            Err(why) => DeferredAnswer::Refused(why),
        };
        if let Some(reply) = &mut self.reply {
            reply.answer = answer;
        }
    }

    /// Sends the answer that was set; may wait for room in the mailbox.
    pub(in crate::reactor) fn send(mut self) {
        self.post();
    }

    /// Registered memory of the core for the results of this call, as [`Call::bulk`](crate::Call::bulk).
    pub fn bulk(&self, bytes: usize) -> Option<Bulk> {
        let Room { pool, share, .. } = self.reply.as_ref()?.room.as_ref()?;
        pool.take_within(share, bytes)
    }

    fn room(&mut self) -> Option<&mut Room> {
        self.reply.as_mut()?.room.as_mut()
    }

    fn refuse(&mut self, why: RpcRefusal) {
        if let Some(keep) = self.keep.take() {
            keep.refuse(why);
        }
        if let Some(reply) = &mut self.reply {
            reply.answer = DeferredAnswer::Refused(why);
        }
        self.post();
    }

    fn post(&mut self) {
        if let Some(mut reply) = self.reply.take() {
            if let Some(noted) = &mut reply.noted {
                let now = self.caller.clock.and_then(|clock| clock.counter());
                noted.answered = now.unwrap_or_default();
            }
            self.caller.inbox.answer(reply);
        }
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        // Also when an encoder panicked: the call must not keep its slot forever.
        if self.reply.is_some() {
            self.refuse(SYSTEM_ERR);
        }
    }
}

impl std::fmt::Debug for Deferred {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let slot = self.reply.as_ref().map(|reply| reply.slot);
        f.debug_struct("Deferred").field("slot", &slot).finish_non_exhaustive()
    }
}

impl Default for DeferredReply {
    fn default() -> Self {
        let slot = SlotId { index: 0, generation: 0 };
        Self { conn: ConnId::default(), slot, room: None, answer: REFUSAL, noted: None }
    }
}

impl DeferredReply {
    /// It is for this call from now on, which may be timed.
    #[inline]
    pub(in crate::reactor) fn begin(
        &mut self,
        (conn, slot): (ConnId, SlotId),
        room: Room,
        is_timed: bool,
    ) {
        (self.conn, self.slot) = (conn, slot);
        self.room = Some(room);
        self.noted = is_timed.then(Noted::default);
    }

    /// It is for no call, and holds nothing.
    pub(in crate::reactor) fn clear(&mut self) {
        self.room = None;
        // Not the constant, all of which would be copied.
        self.answer = DeferredAnswer::Refused(SYSTEM_ERR);
    }

    getters! {
        conn: ConnId,
        slot: SlotId,
        answer: &DeferredAnswer,
        noted: Option<Noted>,
    }

    pub(in crate::reactor) fn take_answer(&mut self) -> DeferredAnswer {
        std::mem::replace(&mut self.answer, REFUSAL)
    }

    /// Room for an inline reply, and the stream of an answer that says so.
    pub(in crate::reactor) fn stage(&self) -> Option<&Bulk> {
        self.room.as_ref().map(|room| &room.stage)
    }

    pub(in crate::reactor) fn take_stage(&mut self) -> Option<Bulk> {
        self.room.take().map(|room| room.stage)
    }
}

impl Room {
    #[inline(always)]
    pub(crate) fn new((pool, share): (BulkPool, Share), stage: Bulk, plan: ReplyPlan) -> Self {
        Self {
            pool,
            share,
            stage,
            plan,
            #[cfg(feature = "gss")]
            protection: None,
            #[cfg(feature = "gss")]
            at_once_bytes: usize::MAX,
        }
    }

    /// Sets the protection of the reply. A long one is sealed by `work`.
    #[cfg(feature = "gss")]
    #[inline(always)]
    pub(in crate::reactor) fn under(self, protection: Option<Protection>, work: &GssWork) -> Self {
        let protection = protection.map(|it| (it, Arc::clone(work.crypto())));
        Self { protection, at_once_bytes: work.at_once_bytes, ..self }
    }

    /// Runs an encoder, and stores its results with `keep`.
    fn encode_once(
        &mut self,
        data: ReplyData,
        keep: Option<ReplyKeeper>,
        long: &mut [u8],
        encode: EncodeOnce<'_>,
    ) -> DeferredAnswer {
        let (encoded, cuts) =
            ItemOffsets::encode(long, data.count(), self.plan.alignment(), encode);
        let draft = check(&encoded).map(|bytes| EncodedStream::new(&long[..bytes], cuts));
        if let Some(keep) = keep {
            keep.record(&data, draft.as_ref().ok());
        }
        self.encode_draft(data, draft)
    }

    /// Returns true if nothing but the results of an encoder is needed to write the reply.
    fn takes_itemless(&self, data: &ReplyData) -> bool {
        let has_more = data.count() > 0 || data.allows_read_chunks() || self.is_protected();
        !has_more && self.plan.alignment() == Alignment::NONE
    }

    /// Writes results without data items directly to the memory they are sent from. Returns them if they do not fit there.
    fn encode_itemless<'l>(
        &mut self,
        long: &'l mut [u8],
        encode: EncodeOnce<'_>,
    ) -> Option<Result<&'l [u8], EncodeError>> {
        let mut writer = StreamWriter::with_more(self.stage.bytes_mut(), long);
        writer.fixed(&SUCCESS_HEADER);
        encode(&mut writer);
        if let Some(bytes) = writer.itemless_bytes() {
            self.stage.set_len(bytes);
            return None;
        }
        Some(check(&writer.finish()).map(|bytes| &long[SUCCESS_HEADER.len()..bytes]))
    }

    #[inline(always)]
    fn is_protected(&self) -> bool {
        #[cfg(feature = "gss")]
        return self.protection.is_some();
        #[cfg(not(feature = "gss"))]
        return false;
    }

    fn encode_draft(
        &mut self,
        data: ReplyData,
        draft: Result<EncodedStream<'_>, EncodeError>,
    ) -> DeferredAnswer {
        match draft {
            Ok(draft) => self.encode(data, &draft),
            Err(why) => DeferredAnswer::Refused(self.plan.refusal(why, &data)),
        }
    }

    /// Encodes the contents of the reply, protected if its call was.
    fn encode(&mut self, data: ReplyData, draft: &EncodedStream<'_>) -> DeferredAnswer {
        #[cfg(feature = "gss")]
        if let Some((protection, counts)) = &self.protection {
            if protection.service.protects_body() {
                let Ok(mut reply) = protection.lay_out(&self.pool, &data, draft) else {
                    return REFUSAL;
                };
                let data = data.without_items();
                if reply.message.len() > self.at_once_bytes {
                    let protection = protection.clone();
                    return DeferredAnswer::ToSeal { protection, reply, data };
                }
                return protection.seal(&mut reply, counts).map_or(REFUSAL, |()| {
                    DeferredAnswer::Results(EncodedReply::whole(reply.message, data))
                });
            }
            let protection = protection.clone();
            return protection.behind_header(draft, |draft| self.encode_unprotected(data, draft));
        }
        self.encode_unprotected(data, draft)
    }

    fn encode_unprotected(&mut self, data: ReplyData, draft: &EncodedStream<'_>) -> DeferredAnswer {
        let Self { pool, stage, plan, .. } = self;
        let mut reply = EncodedReply::new(data);
        match plan.encode_reply(stage.bytes_mut(), &mut reply, draft, pool) {
            Ok(()) => DeferredAnswer::Results(reply),
            Err(why) => DeferredAnswer::Refused(why),
        }
    }
}
