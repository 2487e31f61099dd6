//! Bodies under RPCSEC_GSS that are too long to be sealed or opened at once: a core processes a bounded part of one
//! in each turn, so that its other connections do not wait for the encryption of a mebibyte. Connections take turns;
//! the bodies of one connection that wait are processed in order of arrival. Short bodies are processed where they arrive, until
//! those of a turn are together as long as such a part; further ones of the turn wait here, in places of their own, so that
//! long bodies find theirs. Short ones of a later turn may overtake them.

use crate::fabric::ConnId;
use crate::mem::{Bulk, BulkPool};
use crate::reactor::pending::gss_calls::{DeniedCall, SentCall};
use crate::reactor::pending::mailbox::DeferredReply;
use crate::reactor::words::calls::{CallSpec, PartCopied};
use crate::reactor::words::crypto_counts::CryptoCounts;
use crate::reactor::words::memory::DEFERRED_MAX;
use crate::reactor::words::protection::{
    ClientContext, LaidOut, Protection, Unprotected, cost, weight,
};
use crate::reactor::words::reply_plan::ReplyData;
use spinrpc_gss::context::Context;
use spinrpc_gss::{BodyOpening, BodySealing, Progress};
use spinrpc_proto::ids::Instant;
use spinrpc_proto::limits::ITEMS_MAX;
use spinrpc_proto::output::SlotId;
use spinrpc_proto::rpc::GssService;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Most long bodies of a core, and most short ones. Further ones are processed at once, as are those beyond the share of a
/// connection.
const BODIES_MAX: usize = 64;
/// Bodies may use this fraction of the blocks of the core's memory, of a length that holds them: one in four.
const BLOCKS_SHARE: usize = 4;
/// A connection may have this fraction of the bodies: one in two.
const CONN_SHARE: usize = 2;
/// Bodies below this length are always processed where they arrive: their messages cost more than their encryption.
const FREE_BYTES: usize = 1024;

/// A body that is not finished.
#[expect(clippy::large_enum_variant, reason = "bodies lie in the queue, not on the heap")]
pub(crate) enum Work {
    Call(CallOpening),
    Reply(ReplyOpening),
    Seal(ReplySealing),
    Send(CallSealing),
}

/// A call whose arguments are being sealed, and which has its slot.
pub(crate) struct CallSealing {
    conn: ConnId,
    slot: SlotId,
    context: Arc<ClientContext>,
    /// The whole RPC message; none after an end that should not be.
    message: Option<Bulk>,
    /// The body begins there.
    at: usize,
    sealing: BodySealing,
    deadline: Instant,
    /// Spec of the application, without its buffers, which are in the slot.
    spec: CallSpec,
}

impl CallSealing {
    pub(in crate::reactor) fn new(
        (conn, slot): (ConnId, SlotId),
        context: Arc<ClientContext>,
        (laid_out, sealing): (LaidOut, BodySealing),
        deadline: Instant,
        spec: CallSpec,
    ) -> Self {
        let (message, at) = (Some(laid_out.message), laid_out.at);
        Self { conn, slot, context, message, at, sealing, deadline, spec }
    }

    pub(in crate::reactor) fn place(&self) -> (ConnId, SlotId) {
        (self.conn, self.slot)
    }

    pub(in crate::reactor) fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(in crate::reactor) fn bytes(&self) -> usize {
        self.message.as_ref().map_or(0, Bulk::len)
    }

    /// A key of an earlier try to send it is not dead yet.
    pub(in crate::reactor) fn is_leased(&self) -> bool {
        self.message.as_ref().is_some_and(Bulk::is_leased)
    }

    pub(in crate::reactor) fn message_and_spec(&mut self) -> (&mut Option<Bulk>, &mut CallSpec) {
        (&mut self.message, &mut self.spec)
    }
}

/// A verified call, whose arguments are being opened.
pub(crate) struct CallOpening {
    pub(crate) conn: ConnId,
    pub(crate) slot: SlotId,
    /// The whole RPC message, in private memory.
    pub(crate) message: Bulk,
    /// Offset of the body.
    pub(crate) at: usize,
    pub(crate) protection: Protection,
    pub(crate) opening: BodyOpening,
}

/// A verified reply, whose results are being opened. Its call has ended.
pub(crate) struct ReplyOpening {
    pub(crate) conn: ConnId,
    pub(crate) token: u64,
    pub(crate) sent: SentCall,
    /// The reply, in private memory.
    pub(crate) message: Bulk,
    /// The body begins there.
    pub(crate) at: usize,
    /// Source of the part that is not copied yet.
    pub(crate) rest: Option<PartCopied>,
    /// Set once all has been copied.
    pub(crate) opening: Option<BodyOpening>,
    /// Buffers that go back to the application.
    pub(crate) arguments: [Option<Bulk>; ITEMS_MAX],
    pub(crate) results: [Option<Bulk>; ITEMS_MAX],
}

/// The answer to a call, being sealed.
pub(crate) struct ReplySealing {
    pub(crate) conn: ConnId,
    pub(crate) slot: SlotId,
    pub(crate) protection: Protection,
    pub(crate) reply: LaidOut,
    pub(crate) sealing: BodySealing,
    /// Without items, which are already in the body.
    pub(crate) data: ReplyData,
}

/// A body that is finished, and the place of arguments or results in it if it was opened.
#[expect(clippy::large_enum_variant, reason = "it is looked at where it is made")]
pub(crate) enum Finished {
    Call(CallOpening, Result<Range<usize>, Unprotected>),
    Reply(ReplyOpening, Result<Range<usize>, Unprotected>),
    Seal(ReplySealing, Result<(), Unprotected>),
    Send(CallSealing, Result<(), Unprotected>),
}

/// Result of a step.
type Step = Option<Result<Range<usize>, Unprotected>>;

/// The unfinished bodies of a core.
pub(crate) struct GssWork {
    waiting: VecDeque<Work>,
    /// Answers of deferred calls, whose replies this turn may not seal any more. No more than calls may be deferred.
    put_off: VecDeque<DeferredReply>,
    /// Sealed calls that could not be sent yet.
    sealed: VecDeque<CallSealing>,
    /// Largest number of long bodies: each holds memory that calls and replies need.
    long_max: usize,
    /// The same for short bodies.
    short_max: usize,
    /// Index of the connection that had the last step.
    last: u32,
    /// Calls that were denied, and wait for another context.
    denied: Vec<DeniedCall>,
    /// There is work of which the dispatch has not heard.
    is_new: bool,
    /// Longest part that is processed in one turn.
    step_bytes: usize,
    /// A turn, and the cost of bodies that were processed in it where they arrived.
    at_once: (u64, usize),
    /// Bytes of waiting bodies that this turn may still process.
    left: usize,
    /// Bytes and times of all bodies of the core.
    crypto: Arc<CryptoCounts>,
}

impl GssWork {
    /// Creates the list for a core with this memory.
    pub(in crate::reactor) fn new(
        step_bytes: usize,
        pool: &BulkPool,
        crypto: CryptoCounts,
    ) -> Self {
        let share = |blocks: usize| (blocks / BLOCKS_SHARE).clamp(1, BODIES_MAX);
        let long_max = share(pool.classes().last().map_or(0, |longest| longest.total));
        let holding = pool.classes().find(|class| class.block_bytes > step_bytes);
        let short_max = share(holding.map_or(0, |class| class.total));
        let waiting = VecDeque::with_capacity(long_max + short_max);
        let sealed = VecDeque::with_capacity(long_max);
        let (denied, is_new) = (Vec::new(), false);
        let (at_once, left) = ((0, 0), 0);
        let last = u32::MAX;
        Self {
            waiting,
            put_off: VecDeque::new(),
            sealed,
            long_max,
            short_max,
            last,
            denied,
            is_new,
            step_bytes,
            at_once,
            left,
            crypto: Arc::new(crypto),
        }
    }

    pub(in crate::reactor) fn crypto(&self) -> &Arc<CryptoCounts> {
        &self.crypto
    }

    /// The dispatch is to hear of work.
    pub(in crate::reactor) fn announce(&mut self) {
        self.is_new = true;
    }

    /// Returns true once if it is.
    pub(in crate::reactor) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.is_new)
    }

    /// Number of sealed calls that wait to be sent.
    pub(in crate::reactor) fn sealed(&self) -> usize {
        self.sealed.len()
    }

    pub(in crate::reactor) fn push_sealed(&mut self, call: CallSealing) {
        self.sealed.push_back(call);
    }

    pub(in crate::reactor) fn take_sealed(&mut self) -> Option<CallSealing> {
        self.sealed.pop_front()
    }

    pub(in crate::reactor) fn push_denied(&mut self, call: DeniedCall) {
        self.denied.push(call);
    }

    pub(in crate::reactor) fn has_denied(&self) -> bool {
        !self.denied.is_empty()
    }

    /// Takes denied calls out, those for which `is_meant` returns true.
    pub(in crate::reactor) fn take_denied(
        &mut self,
        is_meant: impl Fn(&DeniedCall) -> bool,
    ) -> Vec<DeniedCall> {
        self.denied.extract_if(.., |call| is_meant(call)).collect()
    }

    pub(in crate::reactor) fn step_bytes(&self) -> usize {
        self.step_bytes
    }

    /// Cost of a body up to which it is always processed where it arrives.
    pub(in crate::reactor) fn free_bytes(&self) -> usize {
        FREE_BYTES.min(self.step_bytes)
    }

    /// This is the turn with that number: a later one than before may process as much again.
    pub(in crate::reactor) fn enter(&mut self, turn: u64) {
        if self.at_once.0 != turn {
            self.at_once = (turn, 0);
        }
    }

    /// Returns true if this turn has processed as many bodies where they arrived as it may.
    pub(in crate::reactor) fn is_spent(&self) -> bool {
        self.at_once.1 >= self.step_bytes
    }

    /// Returns true if a body of this cost takes more than one turn.
    pub(in crate::reactor) fn is_long(&self, cost: usize) -> bool {
        cost > self.step_bytes
    }

    /// Returns true if a body of this cost that has arrived in this turn is to wait here. One for which this returns false
    /// is processed at once, and counts as that.
    pub(in crate::reactor) fn is_to_wait(&mut self, conn: ConnId, cost: usize) -> bool {
        if cost <= self.free_bytes() {
            return false;
        }
        let all = self.at_once.1.saturating_add(cost);
        let has_place = if self.is_long(cost) { Self::has_room } else { Self::has_short_room };
        if all > self.step_bytes && has_place(self, conn) {
            return true;
        }
        self.at_once.1 = all;
        false
    }

    /// Returns true if the connection may add another long body.
    pub(in crate::reactor) fn has_room(&self, conn: ConnId) -> bool {
        let waiting = self.waiting.iter().filter(|work| self.is_long(work.cost()));
        let sealed = self.sealed.iter().map(|call| call.conn);
        is_below(self.long_max, conn, waiting.map(Work::conn).chain(sealed))
    }

    /// Returns true if the connection may add another short body.
    fn has_short_room(&self, conn: ConnId) -> bool {
        let waiting = self.waiting.iter().filter(|work| !self.is_long(work.cost()));
        is_below(self.short_max, conn, waiting.map(Work::conn))
    }

    pub(in crate::reactor) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.sealed.is_empty() && self.put_off.is_empty()
    }

    /// Returns true if there is a body to seal or open.
    pub(in crate::reactor) fn has_steps(&self) -> bool {
        !self.waiting.is_empty() || !self.put_off.is_empty()
    }

    /// Returns true if an answer that has to be sealed waits for its turn behind others, or for the next turn.
    pub(in crate::reactor) fn puts_off(&self) -> bool {
        self.is_spent() || !self.put_off.is_empty()
    }

    pub(in crate::reactor) fn put_off(&mut self, reply: DeferredReply) {
        if self.put_off.capacity() == 0 {
            self.put_off.reserve_exact(DEFERRED_MAX);
        }
        self.put_off.push_back(reply);
    }

    /// The answer that was put off first, of this connection or of all.
    pub(in crate::reactor) fn take_put_off(
        &mut self,
        conn: Option<ConnId>,
    ) -> Option<DeferredReply> {
        let is_meant = |reply: &DeferredReply| conn.is_none_or(|conn| reply.conn == conn);
        let index = self.put_off.iter().position(is_meant)?;
        self.put_off.remove(index)
    }

    pub(in crate::reactor) fn push(&mut self, work: Work) {
        self.waiting.push_back(work);
    }

    /// A turn begins with the bodies that wait. It processes no part of them if it has sent a long call, which costs as much.
    pub(in crate::reactor) fn begin_steps(&mut self, has_sent: bool) {
        self.left = if has_sent { 0 } else { self.step_bytes };
    }

    /// Returns true if the turn is to process another part.
    pub(in crate::reactor) fn goes_on(&self) -> bool {
        self.left > 0 && !self.waiting.is_empty()
    }

    /// Processes one part of the body whose turn it is; returns the body if that was the last part.
    pub(in crate::reactor) fn step(&mut self) -> Option<Finished> {
        let index = self.next()?;
        let left = self.left;
        let work = self.waiting.get_mut(index)?;
        self.last = work.conn().index();
        self.left = left.saturating_sub(work.cost().max(1));
        let end = work.step_measured(left, &self.crypto)?;
        self.finish(index, end)
    }

    /// Completes the first unfinished reply of a connection at once.
    pub(in crate::reactor) fn finish_reply(&mut self, conn: ConnId) -> Option<Finished> {
        self.finish_first(|work| matches!(work, Work::Reply(reply) if reply.conn == conn))
    }

    /// The same for the first answer to a call, of this connection or of all.
    pub(in crate::reactor) fn finish_seal(&mut self, conn: Option<ConnId>) -> Option<Finished> {
        let is_meant = |of: ConnId| conn.is_none_or(|conn| conn == of);
        self.finish_first(|work| matches!(work, Work::Seal(reply) if is_meant(reply.conn)))
    }

    fn finish_first(&mut self, is_meant: impl FnMut(&Work) -> bool) -> Option<Finished> {
        let index = self.waiting.iter().position(is_meant)?;
        let work = self.waiting.get_mut(index)?;
        let end = loop {
            if let Some(end) = work.step_measured(usize::MAX, &self.crypto) {
                break end;
            }
        };
        self.finish(index, end)
    }

    /// Forgets the calls of a connection that has gone.
    pub(in crate::reactor) fn forget_calls(&mut self, conn: ConnId) {
        self.waiting.retain(|work| matches!(work, Work::Reply(_)) || work.conn() != conn);
        self.sealed.retain(|call| call.conn != conn);
    }

    /// Forgets a call of a client that has ended before it was sent; true if there was one.
    pub(in crate::reactor) fn forget_unsent(&mut self, conn: ConnId, slot: SlotId) -> bool {
        let is_it = |call: &CallSealing| (call.conn, call.slot) == (conn, slot);
        let before = self.waiting.len() + self.sealed.len();
        self.waiting.retain(|work| !matches!(work, Work::Send(call) if is_it(call)));
        self.sealed.retain(|call| !is_it(call));
        self.waiting.len() + self.sealed.len() < before
    }

    /// Forgets a reply that is being opened, and gives the token of its call, which the application knows by this slot.
    pub(in crate::reactor) fn forget_reply(&mut self, conn: ConnId, slot: SlotId) -> Option<u64> {
        let is_it = |work: &Work| match work {
            Work::Reply(reply) => reply.conn == conn && reply.sent.is_known_as(slot),
            _ => false,
        };
        let index = self.waiting.iter().position(is_it)?;
        match self.waiting.remove(index)? {
            Work::Reply(reply) => Some(reply.token),
            _ => None,
        }
    }

    /// Forgets a call that was denied, and gives its token.
    pub(in crate::reactor) fn forget_denied(&mut self, conn: ConnId, slot: SlotId) -> Option<u64> {
        let is_it = |call: &DeniedCall| call.conn() == conn && call.key().slot == slot;
        let index = self.denied.iter().position(is_it)?;
        Some(self.denied.remove(index).token)
    }

    /// The first body of the connection that follows the connection of the last step.
    fn next(&self) -> Option<usize> {
        let place = |index: &usize| {
            let conn = self.waiting[*index].conn().index();
            (conn <= self.last, conn)
        };
        (0..self.waiting.len()).min_by_key(place)
    }

    fn finish(&mut self, index: usize, end: Result<Range<usize>, Unprotected>) -> Option<Finished> {
        Some(match self.waiting.remove(index)? {
            Work::Call(call) => Finished::Call(call, end),
            Work::Seal(reply) => Finished::Seal(reply, end.map(drop)),
            Work::Reply(reply) => Finished::Reply(reply, end),
            Work::Send(call) => Finished::Send(call, end.map(drop)),
        })
    }
}

/// Returns true if these are fewer bodies than `max`, and those of `conn` fewer than its share.
fn is_below(max: usize, conn: ConnId, bodies: impl Iterator<Item = ConnId>) -> bool {
    let (mut all, mut own) = (0, 0);
    for other in bodies {
        all += 1;
        own += usize::from(other == conn);
    }
    all < max && own < max.div_ceil(CONN_SHARE)
}

impl Work {
    fn conn(&self) -> ConnId {
        match self {
            Self::Call(call) => call.conn,
            Self::Reply(reply) => reply.conn,
            Self::Seal(reply) => reply.conn,
            Self::Send(call) => call.conn,
        }
    }

    /// Cost of all of it.
    fn cost(&self) -> usize {
        let context = match self {
            Self::Call(call) => &*call.protection.context,
            Self::Reply(reply) => &reply.sent.context.context,
            Self::Seal(reply) => &*reply.protection.context,
            Self::Send(call) => &call.context.context,
        };
        cost(context, self.body_bytes())
    }

    fn body_bytes(&self) -> usize {
        let (message, at) = match self {
            Self::Call(call) => (Some(&call.message), call.at),
            Self::Reply(reply) => (Some(&reply.message), reply.at),
            Self::Seal(reply) => (Some(&reply.reply.message), reply.reply.at),
            Self::Send(call) => (call.message.as_ref(), call.at),
        };
        message.map_or(0, Bulk::len).saturating_sub(at)
    }

    fn service(&self) -> GssService {
        match self {
            Self::Call(call) => call.protection.service,
            Self::Reply(reply) => reply.sent.context.service,
            Self::Seal(reply) => reply.protection.service,
            Self::Send(call) => call.context.service,
        }
    }

    /// Processes a part of at most this cost. Counts its time, and the bytes of the body once that is finished.
    fn step_measured(&mut self, at_most: usize, counts: &CryptoCounts) -> Step {
        let service = self.service();
        let end = counts.measure(service, || self.step(at_most));
        if end.is_some() {
            counts.count(service, self.body_bytes());
        }
        end
    }

    /// Processes a part of at most this cost.
    fn step(&mut self, at_most: usize) -> Step {
        match self {
            Self::Call(CallOpening { protection, message, at, opening, .. }) => {
                let body = &mut message.bytes_mut()[*at..];
                open_step(&protection.context, opening, body, at_most)
            }
            Self::Reply(reply) => reply.step(at_most),
            Self::Seal(ReplySealing { protection, reply, sealing, .. }) => {
                let body = &mut reply.message.bytes_mut()[reply.at..];
                // The bug that the canary plants: a reply leaves when its first part is sealed.
                let is_part_enough = cfg!(feature = "gss-canary");
                seal_step(&protection.context, sealing, (body, at_most), is_part_enough)
            }
            Self::Send(CallSealing { context, message, at, sealing, .. }) => {
                let body = message.as_mut().map_or(&mut [][..], |message| message.bytes_mut());
                let Some(body) = body.get_mut(*at..) else { return Some(Err(Unprotected::Failed)) };
                seal_step(&context.context, sealing, (body, at_most), false)
            }
        }
    }
}

impl ReplyOpening {
    /// Does what is left of it at once.
    pub(crate) fn finish(&mut self, counts: &CryptoCounts) -> Result<Range<usize>, Unprotected> {
        let service = self.sent.context.service;
        counts.count(service, self.message.len().saturating_sub(self.at));
        counts.measure(service, || {
            loop {
                if let Some(end) = self.step(usize::MAX) {
                    return end;
                }
            }
        })
    }

    /// Copies a part of it, or opens one.
    fn step(&mut self, at_most: usize) -> Step {
        if let Some(rest) = &mut self.rest {
            if rest.copy(self.message.bytes_mut(), at_most) {
                self.rest = None;
            }
            return None;
        }
        let context = &self.sent.context;
        let body = self.message.bytes_mut().get_mut(self.at..).unwrap_or_default();
        let opening = match &mut self.opening {
            Some(opening) => opening,
            place => {
                let (keys, sequence) = (context.context.receive_keys(), self.sent.sequence);
                match BodyOpening::begin(context.service, keys, body, sequence) {
                    Ok(begun) => place.insert(begun),
                    Err(_) => return Some(Err(Unprotected::Forged)),
                }
            }
        };
        open_step(&context.context, opening, body, at_most)
    }
}

fn seal_step(
    context: &Context,
    sealing: &mut BodySealing,
    (body, at_most): (&mut [u8], usize),
    is_part_enough: bool,
) -> Step {
    match sealing.step(context.send_keys(), body, at_most / weight(context)) {
        Ok(Progress::More) if is_part_enough => Some(Ok(0..0)),
        Ok(Progress::More) => None,
        Ok(Progress::Done) => Some(Ok(0..0)),
        Err(_) => Some(Err(Unprotected::Failed)),
    }
}

fn open_step(
    context: &Context,
    opening: &mut BodyOpening,
    body: &mut [u8],
    at_most: usize,
) -> Step {
    let opened = opening.step(context.receive_keys(), body, at_most / weight(context));
    opened.map_err(|_| Unprotected::Forged).transpose()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test ends here")]
mod tests {
    use super::*;
    use crate::mem::{BulkClass, Region};
    use crate::reactor::pending::gss_calls::GssCalls;
    use crate::sync::atomic::AtomicBool;
    use crate::sys::clock::Clock;
    use crate::sys::mmap::SharedMemory;
    use spinrpc_gss::context::Established;
    use spinrpc_gss::random::AesConfounders;
    use spinrpc_gss::{Enctype, Role, SessionKey, sealed_bytes};
    use spinrpc_proto::rpc::GssService;

    const STEP: usize = 4096;
    const STEPS: usize = 5;
    const SEQUENCE: u32 = 7;
    const SLOT: SlotId = SlotId { index: 0, generation: 1 };

    fn context(role: Role, enctype: Enctype) -> Context {
        let key = SessionKey::new(enctype, &vec![0x5a; enctype.key_bytes()]).unwrap();
        let (expires, peer) = (Instant(u64::MAX), String::new());
        Context::new(role, Established { key, acceptor_subkey: true, expires, peer })
    }

    fn classes() -> [BulkClass; 1] {
        [BulkClass { block_bytes: 8 * STEP, count: 2 }]
    }

    /// Memory that a peer can write to at any time.
    fn exposed_pool() -> BulkPool {
        let bytes = BulkPool::region_bytes(&classes()).unwrap() + 64;
        let (memory, _) = SharedMemory::create("gss-work", bytes.next_multiple_of(STEP)).unwrap();
        let region = Region::from_shared(Arc::new(memory));
        BulkPool::new(region, &classes()).unwrap()
    }

    fn private_pool() -> BulkPool {
        let bytes = BulkPool::region_bytes(&classes()).unwrap() + 64;
        BulkPool::new(Region::from_boxed(vec![0; bytes].into()), &classes()).unwrap()
    }

    /// The body of a reply as a server seals it.
    fn body(service: GssService, enctype: Enctype, content: &[u8]) -> Vec<u8> {
        let server = context(Role::Acceptor, enctype);
        let keys = server.send_keys();
        let mut body = vec![0; sealed_bytes(service, keys, content.len())];
        body[BodySealing::content_at(service)..][..content.len()].copy_from_slice(content);
        let (bytes, mut confounders) = (content.len(), AesConfounders::new(&[7; 32]));
        let begun =
            BodySealing::begin(service, keys, &mut body, bytes, SEQUENCE, 1, &mut confounders);
        assert_eq!(begun.unwrap().step(keys, &mut body, usize::MAX), Ok(Progress::Done));
        body
    }

    /// A reply whose body of this length is to be opened.
    fn reply(conn: ConnId, pool: &BulkPool, bytes: usize) -> ReplyOpening {
        let mut message = pool.take(bytes).unwrap();
        message.set_len(bytes);
        ReplyOpening {
            conn,
            token: 0,
            sent: sent(GssService::Privacy, Enctype::Aes256Sha1),
            message,
            at: 0,
            rest: None,
            opening: None,
            arguments: [const { None }; ITEMS_MAX],
            results: [const { None }; ITEMS_MAX],
        }
    }

    /// Short bodies have places of their own: a long one finds a place however many of them wait, and the other way round.
    #[test]
    fn short_bodies_take_no_place_of_a_long_one() {
        let classes = [(STEP, 16), (2 * STEP, 16), (8 * STEP, 8)];
        let classes = classes.map(|(block_bytes, count)| BulkClass { block_bytes, count });
        let bytes = BulkPool::region_bytes(&classes).unwrap() + 64;
        let region = Region::from_boxed(vec![0; bytes].into());
        let pool = BulkPool::new(region, &classes).unwrap();
        let mut work = GssWork::new(STEP, &pool, CryptoCounts::new(Clock::monotonic()));
        let conns = [ConnId::new(0, 0), ConnId::new(1, 0)];
        // A turn processes as much as a step where it arrives.
        work.enter(7);
        assert!(!work.is_to_wait(conns[0], STEP));
        // A quarter of 16 blocks, of which each connection may have half.
        for conn in conns {
            for _ in 0..2 {
                assert!(work.is_to_wait(conn, STEP));
                work.push(Work::Reply(reply(conn, &pool, STEP)));
            }
            assert!(!work.is_to_wait(conn, STEP), "beyond its share");
        }
        assert!(!work.is_to_wait(ConnId::new(2, 0), STEP), "beyond all places");
        // A quarter of 8 blocks.
        for conn in conns {
            assert!(work.is_to_wait(conn, STEP + 1) && work.has_room(conn));
            work.push(Work::Reply(reply(conn, &pool, STEP + 1)));
            assert!(!work.is_to_wait(conn, STEP + 1) && !work.has_room(conn));
        }
        work.enter(8);
        assert!(!work.is_to_wait(conns[0], STEP), "the first of another turn");
    }

    /// Type 20 takes twice the time: its bodies count double.
    #[test]
    fn a_step_of_encryption_type_20_is_half_as_long() {
        let cost_of = |enctype| cost(&context(Role::Initiator, enctype), STEP);
        assert_eq!(cost_of(Enctype::Aes256Sha1), STEP);
        assert_eq!(cost_of(Enctype::Aes256Sha384), 2 * STEP);
        for (enctype, expected) in
            [(Enctype::Aes256Sha1, STEPS), (Enctype::Aes256Sha384, 2 * STEPS)]
        {
            let service = GssService::Privacy;
            let client = context(Role::Initiator, enctype);
            // A step is as long as several pieces in which a body is processed.
            let step = 4 * STEP;
            let content = vec![5; STEPS * step - 100];
            let mut sealed = body(service, enctype, &content);
            let keys = client.receive_keys();
            let mut opening = BodyOpening::begin(service, keys, &mut sealed, SEQUENCE).unwrap();
            let mut steps = 1;
            while open_step(&client, &mut opening, &mut sealed, step).is_none() {
                steps += 1;
            }
            assert!((expected..=expected + 1).contains(&steps), "{enctype:?}: {steps} steps");
        }
    }

    fn sent(service: GssService, enctype: Enctype) -> SentCall {
        let context = Arc::new(ClientContext {
            context: context(Role::Initiator, enctype),
            handle: Vec::new(),
            service,
            window: 64,
            renew_at: Instant(u64::MAX),
            is_answered: AtomicBool::new(true),
        });
        let mut calls = GssCalls::new(1);
        calls.note((SLOT, SEQUENCE), context, Instant(u64::MAX), None);
        calls.take(SLOT.xid()).unwrap()
    }

    /// A server writes to the Reply chunk while the client copies and opens it: at any place, between any two steps.
    #[test]
    fn a_reply_that_its_server_changes_is_opened_as_it_was_copied_or_refused() {
        let content: Vec<u8> = (0..STEPS * STEP).map(|at| (at / 7) as u8).collect();
        let all = [
            (GssService::Integrity, Enctype::Aes256Sha1),
            (GssService::Privacy, Enctype::Aes256Sha1),
            (GssService::Privacy, Enctype::Aes256Sha384),
        ];
        for (service, enctype) in all {
            let sealed = body(service, enctype, &content);
            let (exposed, private) = (exposed_pool(), private_pool());
            let (mut opened, mut refused) = (0, 0);
            for changed_after in 0..3 * STEPS {
                for place in (0..sealed.len()).step_by(1021) {
                    let mut from = exposed.take(sealed.len()).unwrap();
                    from.set_len(sealed.len());
                    assert!(from.is_exposed());
                    from.copy_from(0, &sealed);
                    let mut message = private.take(sealed.len()).unwrap();
                    message.set_len(sealed.len());
                    let mut reply = ReplyOpening {
                        conn: ConnId::new(0, 0),
                        token: 0,
                        sent: sent(service, enctype),
                        message,
                        at: 0,
                        rest: Some(PartCopied::new(from)),
                        opening: None,
                        arguments: [const { None }; ITEMS_MAX],
                        results: [const { None }; ITEMS_MAX],
                    };
                    let mut steps = 0;
                    let end = loop {
                        // What was copied before must not be read again.
                        if steps == changed_after
                            && let Some(rest) = &mut reply.rest
                        {
                            rest.source().copy_from(place, &[!sealed[place]]);
                        }
                        if let Some(end) = reply.step(STEP) {
                            break end;
                        }
                        steps += 1;
                    };
                    match end {
                        Ok(range) => {
                            assert!(reply.message.bytes()[range] == content, "{service:?}");
                            assert!(place < changed_after * STEP, "a change went unnoticed");
                            opened += 1;
                        }
                        Err(why) => {
                            assert_eq!(why, Unprotected::Forged);
                            assert!(place >= changed_after * STEP, "{place} {changed_after}");
                            refused += 1;
                        }
                    }
                }
            }
            assert!(opened > 0 && refused > 0, "{service:?}: {opened} {refused}");
        }
    }
}
