//! Bodies under RPCSEC_GSS that are too long to be sealed or opened at once: a core processes a bounded part of one
//! in each turn, so that its other connections do not wait for the encryption of a mebibyte. Connections take turns;
//! the bodies of one connection that wait are processed in order of arrival. Short bodies are processed where they arrive, until
//! those of a turn are together as long as such a part; further ones of the turn wait here, in places of their own, so that
//! long bodies find theirs. Short ones of a later turn may overtake them.

use crate::fabric::ConnId;
use crate::mem::{Bulk, BulkPool};
use crate::reactor::in_flight::deferred::DeferredReply;
use crate::reactor::in_flight::gss_calls::{DeniedCall, SentCall};
use crate::reactor::types::calls::{CallSpec, PartCopied};
use crate::reactor::types::crypto_counts::CryptoCounts;
use crate::reactor::types::memory::DEFERRED_MAX;
use crate::reactor::types::protection::{ClientContext, Protection, Unprotected, cost, weight};
use crate::reactor::types::reply_plan::ReplyData;
use spinrpc_gss::context::Context;
use spinrpc_gss::{BodyOpening, BodySealing, Progress};
use spinrpc_proto::events::SlotId;
use spinrpc_proto::ids::Instant;
use spinrpc_proto::limits::ITEMS_MAX;
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

/// A body that is not finished, in the message that it belongs to.
pub(crate) struct Body {
    pub(crate) conn: ConnId,
    /// The whole RPC message, in private memory.
    pub(crate) message: Bulk,
    /// Offset of the body.
    pub(crate) at: usize,
    pub(crate) stage: BodyStage,
    pub(crate) then: Then,
}

/// The next part of the work on a body.
pub(crate) enum BodyStage {
    /// It is copied from memory that the peer can write to, and opened then.
    Copy(PartCopied),
    /// It is copied, and nothing of it is opened.
    Unopened,
    Open(BodyOpening),
    Seal(BodySealing),
}

/// Use of a finished body.
#[expect(clippy::large_enum_variant, reason = "bodies lie in the queue, not on the heap")]
pub(crate) enum Then {
    /// A verified call: its arguments go to its handler.
    Serve { slot: SlotId, protection: Protection },
    /// A verified reply, whose call has ended: its results go to the application, with the buffers of the call.
    Deliver {
        token: u64,
        sent: SentCall,
        arguments: [Option<Bulk>; ITEMS_MAX],
        results: [Option<Bulk>; ITEMS_MAX],
    },
    /// The answer to a call is sent. Its items are in the body.
    Reply { slot: SlotId, protection: Protection, data: ReplyData },
    /// A call is sent that has its slot, with this spec of the application, whose buffers are in the slot.
    Send { slot: SlotId, context: Arc<ClientContext>, deadline: Instant, spec: CallSpec },
}

/// A body that is finished, and the place of arguments or results in it if it was opened.
pub(crate) type Finished = (Body, Result<Range<usize>, Unprotected>);

/// Result of a step.
type Step = Option<Result<Range<usize>, Unprotected>>;

/// The unfinished bodies of a core.
pub(crate) struct GssWork {
    waiting: VecDeque<Body>,
    /// Answers of deferred calls, whose replies this turn may not seal any more. No more than calls may be deferred.
    put_off: VecDeque<Box<DeferredReply>>,
    /// Sealed calls that could not be sent yet.
    sealed: VecDeque<Body>,
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

    pub(in crate::reactor) fn push_sealed(&mut self, call: Body) {
        self.sealed.push_back(call);
    }

    pub(in crate::reactor) fn take_sealed(&mut self) -> Option<Body> {
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
        let waiting = self.waiting.iter().filter(|body| self.is_long(body.cost()));
        is_below(self.long_max, conn, waiting.chain(&self.sealed))
    }

    /// Returns true if the connection may add another short body.
    fn has_short_room(&self, conn: ConnId) -> bool {
        let waiting = self.waiting.iter().filter(|body| !self.is_long(body.cost()));
        is_below(self.short_max, conn, waiting)
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

    pub(in crate::reactor) fn put_off(&mut self, reply: Box<DeferredReply>) {
        if self.put_off.capacity() == 0 {
            self.put_off.reserve_exact(DEFERRED_MAX);
        }
        self.put_off.push_back(reply);
    }

    /// The answer that was put off first, of this connection or of all.
    pub(in crate::reactor) fn take_put_off(
        &mut self,
        conn: Option<ConnId>,
    ) -> Option<Box<DeferredReply>> {
        let is_meant = |reply: &DeferredReply| conn.is_none_or(|conn| reply.conn() == conn);
        let index = self.put_off.iter().position(|reply| is_meant(reply))?;
        self.put_off.remove(index)
    }

    pub(in crate::reactor) fn push(&mut self, body: Body) {
        self.waiting.push_back(body);
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
        let body = self.waiting.get_mut(index)?;
        self.last = body.conn.index();
        self.left = left.saturating_sub(body.cost().max(1));
        let end = body.step_measured(left, &self.crypto)?;
        Some((self.waiting.remove(index)?, end))
    }

    /// Completes the first reply of a connection that is being opened, at once.
    pub(in crate::reactor) fn finish_reply(&mut self, conn: ConnId) -> Option<Finished> {
        self.finish_first(|body| body.conn == conn && matches!(body.then, Then::Deliver { .. }))
    }

    /// The same for the first answer to a call, of this connection or of all.
    pub(in crate::reactor) fn finish_seal(&mut self, conn: Option<ConnId>) -> Option<Finished> {
        let is_meant = |of: ConnId| conn.is_none_or(|conn| conn == of);
        self.finish_first(|body| is_meant(body.conn) && matches!(body.then, Then::Reply { .. }))
    }

    fn finish_first(&mut self, is_meant: impl FnMut(&Body) -> bool) -> Option<Finished> {
        let index = self.waiting.iter().position(is_meant)?;
        let mut body = self.waiting.remove(index)?;
        let end = body.finish(&self.crypto);
        Some((body, end))
    }

    /// Forgets the calls of a connection that has gone.
    pub(in crate::reactor) fn forget_calls(&mut self, conn: ConnId) {
        let is_reply = |body: &Body| matches!(body.then, Then::Deliver { .. });
        self.waiting.retain(|body| is_reply(body) || body.conn != conn);
        self.sealed.retain(|call| call.conn != conn);
    }

    /// Forgets a call of a client that has ended before it was sent; true if there was one.
    pub(in crate::reactor) fn forget_unsent(&mut self, conn: ConnId, slot: SlotId) -> bool {
        let is_it = |body: &Body| {
            body.conn == conn && matches!(body.then, Then::Send { slot: own, .. } if own == slot)
        };
        let before = self.waiting.len() + self.sealed.len();
        self.waiting.retain(|body| !is_it(body));
        self.sealed.retain(|call| !is_it(call));
        self.waiting.len() + self.sealed.len() < before
    }

    /// Forgets a reply that is being opened, and gives the token of its call, which the application knows by this slot.
    pub(in crate::reactor) fn forget_reply(&mut self, conn: ConnId, slot: SlotId) -> Option<u64> {
        let token_of = |body: &Body| match &body.then {
            Then::Deliver { token, sent, .. } if body.conn == conn && sent.is_known_as(slot) => {
                Some(*token)
            }
            _ => None,
        };
        let token = self.waiting.iter().find_map(token_of)?;
        self.waiting.retain(|body| token_of(body).is_none());
        Some(token)
    }

    /// Forgets a call that was denied, and gives its token.
    pub(in crate::reactor) fn forget_denied(&mut self, conn: ConnId, slot: SlotId) -> Option<u64> {
        let is_it = |call: &DeniedCall| call.conn == conn && call.key.slot == slot;
        let index = self.denied.iter().position(is_it)?;
        Some(self.denied.remove(index).key.token)
    }

    /// The first body of the connection that follows the connection of the last step.
    fn next(&self) -> Option<usize> {
        let place = |index: &usize| {
            let conn = self.waiting[*index].conn.index();
            (conn <= self.last, conn)
        };
        (0..self.waiting.len()).min_by_key(place)
    }
}

/// Returns true if these are fewer bodies than `max`, and those of `conn` fewer than its share.
fn is_below<'b>(max: usize, conn: ConnId, bodies: impl Iterator<Item = &'b Body>) -> bool {
    let (mut all, mut own) = (0, 0);
    for body in bodies {
        all += 1;
        own += usize::from(body.conn == conn);
    }
    all < max && own < max.div_ceil(CONN_SHARE)
}

impl Then {
    /// The context and service of the body, and the sequence number of its call if it is opened.
    fn secured(&self) -> (&Context, GssService, u32) {
        match self {
            Self::Serve { protection, .. } | Self::Reply { protection, .. } => {
                (&protection.context, protection.service, protection.sequence)
            }
            Self::Deliver { sent, .. } => {
                (&sent.context.context, sent.context.service, sent.sequence)
            }
            Self::Send { context, .. } => (&context.context, context.service, 0),
        }
    }
}

impl Body {
    /// Cost of all of it.
    fn cost(&self) -> usize {
        cost(self.then.secured().0, self.bytes())
    }

    fn bytes(&self) -> usize {
        self.message.len().saturating_sub(self.at)
    }

    /// Does what is left of it at once.
    pub(crate) fn finish(&mut self, counts: &CryptoCounts) -> Result<Range<usize>, Unprotected> {
        loop {
            if let Some(end) = self.step_measured(usize::MAX, counts) {
                return end;
            }
        }
    }

    /// Processes a part of at most this cost. Counts its time, and the bytes of the body once that is finished.
    fn step_measured(&mut self, at_most: usize, counts: &CryptoCounts) -> Step {
        let (_, service, _) = self.then.secured();
        let end = counts.measure(service, || self.step(at_most));
        if end.is_some() {
            counts.count(service, self.bytes());
        }
        end
    }

    /// Processes a part of at most this cost.
    fn step(&mut self, at_most: usize) -> Step {
        let Self { message, at, stage, then, .. } = self;
        let (context, service, sequence) = then.secured();
        if let BodyStage::Copy(rest) = stage {
            if rest.copy(message.bytes_mut(), at_most) {
                *stage = BodyStage::Unopened;
            }
            return None;
        }
        let body = message.bytes_mut().get_mut(*at..).unwrap_or_default();
        if let BodyStage::Unopened = stage {
            let begun = BodyOpening::begin(service, context.receive_keys(), body, sequence);
            let Ok(begun) = begun else { return Some(Err(Unprotected::Forged)) };
            *stage = BodyStage::Open(begun);
        }
        match stage {
            BodyStage::Open(opening) => open_step(context, opening, body, at_most),
            BodyStage::Seal(sealing) => {
                // The bug that the canary plants: a reply leaves when its first part is sealed.
                let is_part_enough =
                    cfg!(feature = "gss-canary") && matches!(then, Then::Reply { .. });
                seal_step(context, sealing, (body, at_most), is_part_enough)
            }
            BodyStage::Copy(_) | BodyStage::Unopened => None,
        }
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
    use crate::reactor::in_flight::gss_calls::GssCalls;
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
    fn reply(conn: ConnId, pool: &BulkPool, bytes: usize) -> Body {
        let mut message = pool.take(bytes).unwrap();
        message.set_len(bytes);
        let then = deliver(GssService::Privacy, Enctype::Aes256Sha1);
        Body { conn, message, at: 0, stage: BodyStage::Unopened, then }
    }

    fn deliver(service: GssService, enctype: Enctype) -> Then {
        let (sent, [arguments, results]) = (sent(service, enctype), Default::default());
        Then::Deliver { token: 0, sent, arguments, results }
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
                work.push(reply(conn, &pool, STEP));
            }
            assert!(!work.is_to_wait(conn, STEP), "beyond its share");
        }
        assert!(!work.is_to_wait(ConnId::new(2, 0), STEP), "beyond all places");
        // A quarter of 8 blocks.
        for conn in conns {
            assert!(work.is_to_wait(conn, STEP + 1) && work.has_room(conn));
            work.push(reply(conn, &pool, STEP + 1));
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
                    let (conn, stage) = (ConnId::new(0, 0), BodyStage::Copy(PartCopied::new(from)));
                    let then = deliver(service, enctype);
                    let mut reply = Body { conn, message, at: 0, stage, then };
                    let mut steps = 0;
                    let end = loop {
                        // What was copied before must not be read again.
                        if steps == changed_after
                            && let BodyStage::Copy(rest) = &mut reply.stage
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
