//! Bodies under RPCSEC_GSS that are too long to be sealed or unsealed at once: threads of the core do that (`gss_pool`), so that
//! its other connections do not wait for the encryption of a mebibyte. And sealed calls that wait for room to be sent.

use crate::fabric::ConnId;
use crate::mem::{Bulk, BulkPool};
use crate::reactor::in_flight::gss_calls::SentCall;
use crate::reactor::in_flight::gss_pool::{BodyThreads, Spawn};
use crate::reactor::in_flight::mailbox::Inbox;
use crate::reactor::types::calls::SlotToken;
use crate::reactor::types::crypto_counts::CryptoCounts;
use crate::reactor::types::protection::{
    ClientContext, LaidOut, ProtectError, Protection, seal, unseal,
};
use crate::reactor::types::reply_plan::ReplyData;
use spinrpc_gss::context::Context;
use spinrpc_proto::events::SlotId;
use spinrpc_proto::limits::ITEMS_MAX;
use spinrpc_proto::rpc::GssService;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Most bodies that the threads of a core have. Further ones are sealed or unsealed at once, as are those beyond the share of a
/// connection.
const BODIES_MAX: usize = 64;
/// Bodies may use this fraction of the longest blocks of the core's memory: one in four.
const BLOCKS_SHARE: usize = 4;
/// A connection may have this fraction of the bodies: one in two.
const CONN_SHARE: usize = 2;

/// A body to be sealed or unsealed, with the memory that it lies in.
pub(crate) struct Body {
    pub(crate) conn: ConnId,
    /// The whole RPC message, in private memory.
    pub(crate) message: Bulk,
    /// Offset of the body.
    pub(crate) at: usize,
    pub(crate) then: Purpose,
}

/// Use of a finished body.
#[expect(clippy::large_enum_variant, reason = "bodies lie in the queue, not on the heap")]
pub(crate) enum Purpose {
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
    /// A call is sent that has its slot, and the rest of it there.
    Send { slot: SlotId, context: Arc<ClientContext>, sequence: u32 },
}

/// Uses of bodies that their connection or core waits for when it ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Awaited {
    Reply,
    Deliver,
}

/// A body that is finished, and the place of arguments or results in it if it was unsealed.
pub(crate) type Finished = (Body, Result<Range<usize>, ProtectError>);

/// The unfinished bodies of a core.
pub(crate) struct GssWork {
    threads: BodyThreads,
    /// The connections and uses of the bodies that the threads have.
    out: Vec<(ConnId, Option<Awaited>)>,
    /// Bodies of replies that threads unseal, by the slots and tokens of their calls; absent once cancelled.
    replies_to_unseal: Vec<(ConnId, SlotToken)>,
    /// Bodies back from the threads.
    finished: VecDeque<Finished>,
    /// Sealed calls that could not be sent yet, which lie in their slots.
    sealed: VecDeque<(ConnId, SlotId)>,
    /// Most bodies that the threads have: each holds memory that calls and replies need.
    bodies_max: usize,
    /// Longest body that the core seals or unseals at once.
    pub(super) at_once_bytes: usize,
    /// Bytes and times of all bodies of the core.
    crypto: Arc<CryptoCounts>,
}

impl GssWork {
    /// Creates the list for a core with this memory and mailbox.
    pub(in crate::reactor) fn new(
        at_once_bytes: usize,
        pool: &BulkPool,
        inbox: &Arc<Inbox>,
        crypto: CryptoCounts,
    ) -> Self {
        let blocks = pool.classes().last().map_or(0, |longest| longest.total);
        let (bodies_max, crypto) = ((blocks / BLOCKS_SHARE).clamp(1, BODIES_MAX), Arc::new(crypto));
        Self {
            threads: BodyThreads::new(Arc::clone(inbox), Arc::clone(&crypto), bodies_max),
            out: Vec::with_capacity(bodies_max),
            replies_to_unseal: Vec::with_capacity(bodies_max),
            finished: VecDeque::with_capacity(bodies_max),
            sealed: VecDeque::with_capacity(bodies_max),
            bodies_max,
            at_once_bytes,
            crypto,
        }
    }

    pub(in crate::reactor) fn crypto(&self) -> &Arc<CryptoCounts> {
        &self.crypto
    }

    /// The core has threads, which this starts. Without them bodies are sealed and unsealed where they arrive, and are finished in the next
    /// turn.
    pub(in crate::reactor) fn start_threads_by(&mut self, spawn: Spawn) {
        self.threads.start_by(spawn);
    }

    /// Returns true if there are neither bodies nor calls that wait.
    pub(in crate::reactor) fn is_empty(&self) -> bool {
        let has_bodies = !self.out.is_empty() || !self.finished.is_empty();
        !has_bodies && self.sealed.is_empty()
    }

    /// Number of sealed calls that wait to be sent.
    pub(in crate::reactor) fn sealed(&self) -> usize {
        self.sealed.len()
    }

    pub(in crate::reactor) fn push_sealed(&mut self, call: (ConnId, SlotId)) {
        self.sealed.push_back(call);
    }

    pub(in crate::reactor) fn take_sealed(&mut self) -> Option<(ConnId, SlotId)> {
        self.sealed.pop_front()
    }

    /// Returns true if a body of this length is long, and the threads may have another one of the connection.
    pub(in crate::reactor) fn takes(&self, conn: ConnId, bytes: usize) -> bool {
        bytes > self.at_once_bytes && self.has_room(conn)
    }

    /// Returns true if there may be another body of the connection. Those that are finished or wait to be sent hold memory, too.
    pub(in crate::reactor) fn has_room(&self, conn: ConnId) -> bool {
        let back = self.finished.iter().map(|(body, _)| body.conn);
        let sealed = self.sealed.iter().map(|(conn, _)| *conn);
        let all = self.out.iter().map(|(conn, _)| *conn).chain(back).chain(sealed);
        let (count, own) =
            all.fold((0, 0), |(count, own), other| (count + 1, own + usize::from(other == conn)));
        count < self.bodies_max && own < self.bodies_max.div_ceil(CONN_SHARE)
    }

    /// Leaves a body to a thread, which seals or unseals it. Returns true if it is finished, as without threads.
    pub(in crate::reactor) fn push(&mut self, body: Body) -> bool {
        self.out.push((body.conn, body.then.awaited()));
        self.replies_to_unseal.extend(body.then.reply_to_unseal().map(|call| (body.conn, call)));
        self.crypto.count_long();
        self.threads.hand_over(body)
    }

    /// The next body that is finished.
    pub(in crate::reactor) fn next_finished(&mut self) -> Option<Finished> {
        self.collect();
        while let Some(finished) = self.finished.pop_front() {
            if self.is_wanted(&finished) {
                return Some(finished);
            }
        }
        None
    }

    /// Waits until the threads have finished a body of a connection, or of any, for this use, and returns it. `None` if they have
    /// none. Those of other uses are not waited for: they may take long.
    pub(in crate::reactor) fn wait_for(
        &mut self,
        conn: Option<ConnId>,
        what: Awaited,
    ) -> Option<Finished> {
        let is_meant = |(of, then): (ConnId, Option<Awaited>)| {
            conn.is_none_or(|conn| conn == of) && then == Some(what)
        };
        loop {
            self.collect();
            let is_next = |(body, _): &Finished| is_meant((body.conn, body.then.awaited()));
            while let Some(index) = self.finished.iter().position(is_next) {
                let finished = self.finished.remove(index)?;
                if self.is_wanted(&finished) {
                    return Some(finished);
                }
            }
            if !self.out.iter().any(|body| is_meant(*body)) {
                return None;
            }
            std::thread::yield_now();
        }
    }

    /// Takes what the threads have finished.
    fn collect(&mut self) {
        if self.out.is_empty() {
            return;
        }
        while let Some((body, end)) = self.threads.take_done() {
            let of = (body.conn, body.then.awaited());
            let index = self.out.iter().position(|other| *other == of);
            index.map(|index| self.out.swap_remove(index));
            self.finished.push_back((body, end));
        }
    }

    /// Returns false for the reply of a call that was cancelled meanwhile. A body is asked about once, when it is used.
    fn is_wanted(&mut self, (body, _): &Finished) -> bool {
        let reply = body.then.reply_to_unseal();
        reply.is_none_or(|call| self.take_reply_to_unseal(body.conn, call.slot).is_some())
    }

    /// Forgets a reply that is being unsealed, and gives the token of its call, which the application knows by this slot.
    pub(in crate::reactor) fn take_reply_to_unseal(
        &mut self,
        conn: ConnId,
        slot: SlotId,
    ) -> Option<u64> {
        let is_it = |(of, call): &(ConnId, SlotToken)| *of == conn && call.slot == slot;
        let index = self.replies_to_unseal.iter().position(is_it)?;
        Some(self.replies_to_unseal.swap_remove(index).1.token)
    }
}

impl Purpose {
    /// The context and service of the body, and the sequence number of its call.
    fn secured(&self) -> (&Context, GssService, u32) {
        match self {
            Self::Serve { protection, .. } | Self::Reply { protection, .. } => {
                (&protection.context, protection.service, protection.sequence)
            }
            Self::Deliver { sent, .. } => {
                (&sent.context.context, sent.context.service, sent.sequence)
            }
            Self::Send { context, sequence, .. } => (&context.context, context.service, *sequence),
        }
    }

    fn awaited(&self) -> Option<Awaited> {
        match self {
            Self::Reply { .. } => Some(Awaited::Reply),
            Self::Deliver { .. } => Some(Awaited::Deliver),
            Self::Serve { .. } | Self::Send { .. } => None,
        }
    }

    /// The call whose reply this unseals.
    fn reply_to_unseal(&self) -> Option<SlotToken> {
        match self {
            Self::Deliver { token, sent, .. } => Some(SlotToken { slot: sent.slot, token: *token }),
            _ => None,
        }
    }
}

impl Body {
    /// The answer to a call, to be sealed and sent.
    pub(in crate::reactor) fn reply(
        (conn, slot): (ConnId, SlotId),
        protection: Protection,
        LaidOut { message, at }: LaidOut,
        data: ReplyData,
    ) -> Self {
        Self { conn, message, at, then: Purpose::Reply { slot, protection, data } }
    }

    /// Seals or unseals it; on success returns the place of what was unsealed.
    pub(crate) fn seal_or_unseal(
        &mut self,
        counts: &CryptoCounts,
    ) -> Result<Range<usize>, ProtectError> {
        let (context, service, sequence) = self.then.secured();
        let body = self.message.bytes_mut().get_mut(self.at..).unwrap_or_default();
        match self.then {
            Purpose::Serve { .. } | Purpose::Deliver { .. } => {
                unseal(context, service, body, sequence, counts)
            }
            Purpose::Reply { .. } | Purpose::Send { .. } => {
                seal((context, service), body, sequence, counts).map(|()| 0..0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{BulkClass, Region};
    use crate::sys::clock::Clock;
    use spinrpc_gss::context::Established;
    use spinrpc_gss::{Enctype, Role, SessionKey, sealed_bytes};
    use spinrpc_proto::ids::Instant;
    use std::collections::HashSet;

    const AT_ONCE: usize = 4096;
    const CONTENT: usize = 8 * AT_ONCE;
    const BODIES: usize = 8;
    const THREADS: Spawn = |run| std::thread::Builder::new().spawn(run).is_ok();

    fn context() -> Context {
        let key = SessionKey::new(Enctype::Aes256Sha1, &[0x5a; 32]).unwrap();
        let (expires, peer) = (Instant(u64::MAX), String::new());
        Context::new(Role::Acceptor, Established { key, acceptor_subkey: true, expires, peer })
    }

    fn pool() -> BulkPool {
        let classes = [BulkClass { block_bytes: 16 * AT_ONCE, count: BLOCKS_SHARE * BODIES }];
        let bytes = BulkPool::region_bytes(&classes).unwrap() + 64;
        BulkPool::new(Region::from_boxed(vec![0; bytes].into()), &classes).unwrap()
    }

    fn work(pool: &BulkPool, spawn: Option<Spawn>) -> GssWork {
        let inbox = Arc::new(Inbox::new(64));
        let mut work = GssWork::new(AT_ONCE, pool, &inbox, CryptoCounts::new(Clock::monotonic()));
        if let Some(spawn) = spawn {
            work.start_threads_by(spawn);
        }
        work
    }

    /// The answer of a call in this slot.
    fn reply(pool: &BulkPool, conn: ConnId, index: u16) -> Body {
        let (context, service) = (Arc::new(context()), GssService::Privacy);
        let bytes = sealed_bytes(service, context.send_keys(), CONTENT);
        let mut message = pool.take(bytes).unwrap();
        message.set_len(bytes);
        let protection = Protection { context, service, sequence: 7 };
        let call = (conn, SlotId { index, generation: 1 });
        Body::reply(call, protection, LaidOut { message, at: 0 }, ReplyData::new())
    }

    fn index((body, end): &Finished) -> u16 {
        assert_eq!(*end, Ok(0..0));
        let Purpose::Reply { slot, .. } = body.then else { unreachable!("another body") };
        slot.index
    }

    /// With threads, without, and where the system has none.
    #[test]
    fn every_body_comes_back_once() {
        let pool = pool();
        for spawn in [Some(THREADS), None, Some(|_| false)] {
            let mut work = work(&pool, spawn);
            let conns = [ConnId::new(0, 0), ConnId::new(1, 0)];
            for number in 0..BODIES as u16 {
                let conn = conns[usize::from(number) % 2];
                assert!(work.takes(conn, AT_ONCE + 1) && !work.takes(conn, AT_ONCE));
                work.push(reply(&pool, conn, number));
            }
            assert!(!work.has_room(ConnId::new(2, 0)), "beyond all places");
            let mut seen = HashSet::new();
            while let Some(finished) = work.wait_for(None, Awaited::Reply) {
                assert!(seen.insert(index(&finished)));
            }
            assert_eq!((seen.len(), work.is_empty()), (BODIES, true));
        }
    }

    #[test]
    fn a_connection_has_half_of_the_places_and_is_waited_for_alone() {
        let pool = pool();
        let mut work = work(&pool, None);
        let (one, other) = (ConnId::new(0, 0), ConnId::new(1, 0));
        for number in 0..BODIES as u16 / 2 {
            work.push(reply(&pool, one, number));
        }
        assert!(!work.has_room(one) && work.has_room(other));
        work.push(reply(&pool, other, 9));
        assert_eq!(index(&work.wait_for(Some(other), Awaited::Reply).unwrap()), 9);
        assert!(work.wait_for(Some(other), Awaited::Reply).is_none());
        assert!(
            work.wait_for(Some(one), Awaited::Deliver).is_none(),
            "those of other uses are not taken"
        );
        assert_eq!(index(&work.next_finished().unwrap()), 0);
    }

    /// Their thread never begins with them.
    #[test]
    fn bodies_of_other_uses_are_not_waited_for() {
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let pool = pool();
            let mut work = work(&pool, Some(|_| true));
            work.push(reply(&pool, ConnId::new(0, 0), 0));
            tell.send(work.wait_for(None, Awaited::Deliver).is_none())
        });
        assert_eq!(told.recv_timeout(std::time::Duration::from_secs(20)), Ok(true));
    }

    /// Their core ends first. Expect that the threads end, and that all memory is free again.
    #[test]
    fn bodies_of_a_core_that_ends_hold_no_memory() {
        let pool = pool();
        let mut work = work(&pool, Some(THREADS));
        for number in 0..BODIES as u16 {
            work.push(reply(&pool, ConnId::new(u32::from(number), 0), number));
        }
        drop(work);
        let began = std::time::Instant::now();
        while pool.classes().any(|class| class.free < class.total) {
            assert!(began.elapsed().as_secs() < 20, "a body is kept");
            std::thread::yield_now();
        }
    }
}
