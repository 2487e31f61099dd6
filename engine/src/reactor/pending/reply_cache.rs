//! The replies of calls that must not be executed twice, kept for the client that asks again over
//! another connection (RFC 5531 section 4: at-most-once). Shared by the cores of an engine.
//!
//! **Identity of clients.** Our own clients carry a unique number (module `instance`); other clients are identified
//! by the driver, whatever the connection. Clients of ours that state that they will not reconnect need no cache, nor
//! do clients that call other programs. A client has one share from its first call on, and no other client can evict
//! its replies. When every share is taken, one whose client has been away for `rpc.reply_cache_keep_ms` changes
//! hands; if there is none, the newcomer's calls are refused, never executed without a cache. One peer, that is a
//! host or a process, gets an eighth of the shares, however many clients it claims to be.
//!
//! **Stored replies.** A share has a place for each XID modulo the number of places, its home. The XIDs of our
//! clients contain their slots in the low bits, and there are more places than slots, so a reply stays until its slot
//! is used again, which means that it has arrived. XIDs of other clients say nothing about arrival. Their idempotent
//! calls use no places. A call that must not be executed twice takes the oldest place at and behind its home, but
//! never that of a call which is still being executed. If all these places are in use, it is refused. A place records
//! program, version, procedure and checksums of credential and arguments in addition to the XID, because counters
//! restart.
//!
//! **Form of stored replies.** The results are stored as an XDR stream and its data items, never with a transport
//! header or a chunk: the repeated call names memory of its own (module `cuts`). The memory of a share is allocated
//! for its first client, and stays. A reply that is too long leaves a mark: its call is not executed again, and
//! answered with SYSTEM_ERR.
//!
//! **While the call is being executed**, the repeated one waits for the reply of the first, as a deferred call
//! (module `deferred`, which also knows the cache). A call on a connection that its client has replaced is not
//! executed: its client does not wait for it, and its slot may have a newer call. Connections are numbered as they
//! come up, and one with a higher number replaces the others with its first call that is not of the NULL procedure.
//! An attempt that its client has given up may come up later than the next one; it has at most a NULL call, because
//! our clients begin with one and wait for its reply.
//!
//! **Locks.** A share has a lock of its own, held for a comparison and a copy. Usually only one core takes it, the
//! core of the client's connection, so there is no contention; another core takes it when a client has reconnected to
//! another core. Programs without a cache take no lock. The list of clients has a lock that is taken by the first
//! call of a connection, by its end, and by calls that are refused for lack of a share.

use crate::config::Config;
use crate::mem::Bulk;
use crate::reactor::pending::deferred::DeferTicket;
use crate::reactor::pending::mailbox::DeferredAnswer;
use crate::reactor::words::calls::RpcRefusal;
use crate::reactor::words::draft::{Cuts, Draft};
use crate::reactor::words::instance::{Instance, PeerId};
use crate::reactor::words::messages::SYSTEM_ERR;
use crate::reactor::words::reply_plan::ReplyData;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::lock;
use spinrpc_proto::ids::{Procedure, Program, Version, Xid};
use spinrpc_proto::limits::ITEMS_MAX;
use spinrpc_proto::rpc::AcceptStatus;
use spinrpc_proto::xdr::roundup4;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Does nothing (RFC 5531 section 12).
const NULL: Procedure = Procedure(0);

/// The clients of one peer have at most this fraction of all shares (one in eight), and at least one share: their
/// numbers are stated by the peer, which could invent as many as there are shares.
const PEERS_PART: usize = 8;

/// The number of all connections of a client of another implementation.
const UNNUMBERED: u64 = 0;

/// Number of places of which the oldest goes to a new call of such a client. Few enough to look at all of them, and
/// enough that calls on several connections, whose XIDs begin anywhere, do not displace each other's newest replies.
const NEARBY: usize = 8;

/// See the module.
pub(crate) struct ReplyCache {
    instance: Instance,
    keep: Duration,
    /// Connections of clients of ours that came up so far.
    connections: AtomicU64,
    /// By number of the share.
    tenants: Mutex<Vec<Tenant>>,
    shares: Box<[Arc<Share>]>,
    /// Of each share.
    entries: usize,
    /// Of each entry.
    reply_bytes: usize,
}

/// Holder of a share.
#[derive(Clone, Copy)]
struct Tenant {
    client: Option<PeerId>,
    connections: u32,
    left_at: Duration,
}

/// Relation of a connection to the cache.
pub(crate) enum Standing {
    /// It has a share.
    Kept(Arc<Share>),
    /// Its client does not come back.
    Passing,
    /// No share is free for it.
    Full,
}

impl ReplyCache {
    /// Creates the configured cache; `None` if it is off. `number` identifies this engine to clients.
    pub(crate) fn new(config: &Config, number: u64) -> Option<Arc<Self>> {
        let clients = config.reply_cache_clients();
        let nobody = Tenant { client: None, connections: 0, left_at: Duration::ZERO };
        (clients > 0).then(|| {
            Arc::new(Self {
                instance: Instance::Lasting(number.max(1)),
                keep: config.reply_cache_keep(),
                connections: AtomicU64::new(0),
                tenants: Mutex::new(vec![nobody; clients]),
                shares: (0..clients).map(|_| Arc::default()).collect(),
                entries: config.reply_cache_entries(),
                reply_bytes: config.reply_cache_bytes(),
            })
        })
    }

    /// The instance that this engine states while connecting.
    pub(crate) fn instance(&self) -> Instance {
        self.instance
    }

    /// The number of a connection that came up: above those of the client's connections before, or
    /// zero for a client that may have several at a time.
    pub(crate) fn number_connection(&self, client: PeerId) -> u64 {
        match client.instance {
            // A client uses one connection after the other: one core has numbered the first before another one can
            // number the second.
            Instance::Lasting(_) => self.connections.fetch_add(1, Ordering::Relaxed) + 1,
            Instance::Unknown | Instance::Passing => UNNUMBERED,
        }
    }

    /// A connection without a share makes a call, at time `now` of its core.
    pub(crate) fn attach(&self, client: PeerId, now: Duration) -> Standing {
        if !client.may_return() {
            return Standing::Passing;
        }
        let mut tenants = lock(&self.tenants);
        let Some(index) = self.seat(&tenants, client, now) else { return Standing::Full };
        let share = &self.shares[index];
        if tenants[index].client != Some(client) {
            share.furnish(self.entries, self.reply_bytes);
            tenants[index] = Tenant { client: Some(client), connections: 0, left_at: now };
        }
        tenants[index].connections += 1;
        Standing::Kept(Arc::clone(share))
    }

    /// The client's share, an empty one, or one whose client has been away for long enough, longest first. If the
    /// peer already has its fraction, only one of the peer's shares.
    fn seat(&self, tenants: &[Tenant], client: PeerId, now: Duration) -> Option<usize> {
        let of = |wanted| tenants.iter().position(|tenant| tenant.client == wanted);
        if let Some(own) = of(Some(client)) {
            return Some(own);
        }
        let is_kin = |tenant: &Tenant| tenant.client.is_some_and(|own| own.is_kin_of(client));
        let has_its_part = tenants.iter().filter(|tenant| is_kin(tenant)).count()
            >= (tenants.len() / PEERS_PART).max(1);
        let free = if has_its_part { None } else { of(None) };
        free.or_else(|| {
            let away = |tenant: &Tenant| now.saturating_sub(tenant.left_at);
            let left = tenants.iter().enumerate().filter(|(_, tenant)| {
                let is_left = tenant.connections == 0 && away(tenant) >= self.keep;
                is_left && (!has_its_part || is_kin(tenant))
            });
            left.max_by_key(|(_, tenant)| away(tenant)).map(|(index, _)| index)
        })
    }

    /// A connection that has a share went down.
    pub(crate) fn detach(&self, client: PeerId, now: Duration) {
        let mut tenants = lock(&self.tenants);
        if let Some(tenant) = tenants.iter_mut().find(|tenant| tenant.client == Some(client)) {
            tenant.connections = tenant.connections.saturating_sub(1);
            tenant.left_at = now;
        }
    }
}

/// Identity of a call: equal keys of a client mean the same call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallKey {
    pub(crate) xid: Xid,
    pub(crate) program: Program,
    pub(crate) version: Version,
    pub(crate) procedure: Procedure,
    /// Checksum of the credential.
    pub(crate) credential: u64,
    /// Checksum of the arguments. `None` for those of an RDMA_MSGP: only their decoder knows the padding in them,
    /// which may be absent when the call is repeated.
    pub(crate) arguments: Option<u64>,
}

impl CallKey {
    fn is_same(&self, other: &Self) -> bool {
        let name = |key: &Self| (key.xid, key.program, key.version, key.procedure, key.credential);
        let (ours, theirs) = (self.arguments, other.arguments);
        name(self) == name(other) && (ours.is_none() || theirs.is_none() || ours == theirs)
    }
}

/// The replies of one client.
#[derive(Default)]
pub(crate) struct Share(Mutex<ShareState>);

#[derive(Default)]
struct ShareState {
    /// The highest number of a connection that has called.
    newest: u64,
    /// None before the first client.
    places: Box<[Place]>,
    /// Every call is within this number of places from its home on.
    reach: usize,
    /// Memory for replies that no place has.
    spare: Vec<Box<[u8]>>,
    last_generation: u64,
}

struct Place {
    generation: u64,
    call: Option<CallKey>,
    state: State,
}

enum State {
    /// Its handler is running, or will answer later. A repeated call waits for the reply.
    Running {
        waiting: Option<DeferTicket>,
    },
    Replied(CachedResults),
    Refused(RpcRefusal),
}

/// The results of a call.
struct CachedResults {
    bytes: Box<[u8]>,
    stream_bytes: usize,
    cuts: Cuts,
    /// Lengths of the data items, which stand behind the stream, each at a multiple of four.
    items: [u32; ITEMS_MAX],
    allows_read_chunks: bool,
}

/// Decision about a call.
pub(crate) enum Verdict {
    /// It is new: execute it, and give its reply to the ticket.
    Execute(Ticket),
    /// It was answered from the cache.
    Answered,
    /// It is being executed: [`Share::wait`] for the reply.
    Running,
    /// Its client has another connection now.
    Superseded,
    /// It is new, and all places hold calls of its client that are being executed.
    Full,
}

/// A stored reply.
pub(crate) enum Stored<'a> {
    Results(StoredResults<'a>),
    Refusal(RpcRefusal),
}

/// See [`Stored`].
pub(crate) struct StoredResults<'a>(&'a CachedResults);

impl Share {
    /// A call arrived that must not be executed twice, on the connection with this number. `again` sends the stored
    /// reply.
    pub(crate) fn meet(
        self: &Arc<Self>,
        connection: u64,
        call: CallKey,
        again: impl FnOnce(Stored<'_>),
    ) -> Verdict {
        let mut state = lock(&self.0);
        if !state.admits(connection, call.procedure) {
            return Verdict::Superseded;
        }
        let Some(index) = state.find(&call) else {
            let Some(index) = state.place_for(connection, call.xid) else { return Verdict::Full };
            let (ticket, displaced) = self.begin(&mut state, index, call);
            drop(state);
            drop(displaced);
            return Verdict::Execute(ticket);
        };
        match &state.places[index].state {
            State::Running { .. } => return Verdict::Running,
            State::Replied(kept) => again(Stored::Results(StoredResults(kept))),
            State::Refused(refusal) => again(Stored::Refusal(*refusal)),
        }
        Verdict::Answered
    }

    fn begin(
        self: &Arc<Self>,
        state: &mut ShareState,
        index: usize,
        call: CallKey,
    ) -> (Ticket, Option<DeferTicket>) {
        state.last_generation += 1;
        let generation = state.last_generation;
        let displaced = state.vacate(index, State::Running { waiting: None });
        let bytes = state.spare.pop();
        state.places[index].call = Some(call);
        state.places[index].generation = generation;
        let share = Some(Arc::clone(self));
        (Ticket { share, index, generation, bytes }, displaced)
    }

    /// A call arrived that may be executed twice. For a client of ours it shows that a slot is used again, so the
    /// reply stored there has arrived. On a connection that has not replaced its predecessor it shows nothing,
    /// because the call that had the slot may still arrive on the predecessor. Returns `false` if its client has
    /// another connection now.
    pub(crate) fn pass(&self, connection: u64, procedure: Procedure, xid: Xid) -> bool {
        if connection == UNNUMBERED {
            return true;
        }
        let mut state = lock(&self.0);
        if !state.admits(connection, procedure) {
            return false;
        }
        let (index, is_current) = (state.home_of(xid), connection == state.newest);
        let displaced = match state.places[index].call {
            Some(call) if call.xid != xid && is_current => {
                state.places[index].call = None;
                state.places[index].generation = 0;
                state.vacate(index, State::EMPTY)
            }
            _ => None,
        };
        drop(state);
        drop(displaced);
        true
    }

    /// Waits for the reply of the same call; if that has arrived meanwhile, it is sent at once.
    pub(crate) fn wait(&self, call: CallKey, mut waiting: DeferTicket) {
        let mut state = lock(&self.0);
        let Some(index) = state.find(&call) else {
            drop(state);
            return waiting.reject(AcceptStatus::SystemErr);
        };
        let place = &mut state.places[index];
        if let State::Running { waiting: place } = &mut place.state {
            // A call that waited before belonged to a connection that is gone, or to a broken client.
            let before = place.replace(waiting);
            drop(state);
            drop(before);
            return;
        }
        let answer = place.state.answer_for(&mut waiting);
        drop(state);
        waiting.answer(answer);
    }

    /// Clears everything for another client; for the first client there is nothing yet.
    fn furnish(&self, entries: usize, reply_bytes: usize) {
        let mut displaced = Vec::new();
        let mut state = lock(&self.0);
        (state.newest, state.reach) = (0, 1);
        if state.places.is_empty() {
            let place = || Place { generation: 0, call: None, state: State::EMPTY };
            state.places = (0..entries).map(|_| place()).collect();
            state.spare = (0..entries).map(|_| vec![0; reply_bytes].into()).collect();
        }
        for index in 0..state.places.len() {
            state.places[index].call = None;
            state.places[index].generation = 0;
            displaced.extend(state.vacate(index, State::EMPTY));
        }
        drop(state);
    }
}

impl Place {
    fn is_of(&self, call: &CallKey) -> bool {
        self.call.is_some_and(|own| own.is_same(call))
    }
}

impl ShareState {
    fn home_of(&self, xid: Xid) -> usize {
        // A power of two, as the configuration demands.
        xid.0 as usize & (self.places.len() - 1)
    }

    /// This number of places: the home of this XID, and those behind it.
    fn near(&self, xid: Xid, count: usize) -> impl Iterator<Item = usize> + use<> {
        let (home, last) = (self.home_of(xid), self.places.len() - 1);
        (home..home + count).map(move |index| index & last)
    }

    fn find(&self, call: &CallKey) -> Option<usize> {
        self.near(call.xid, self.reach).find(|index| self.places[*index].is_of(call))
    }

    /// Place of a new call. For a client of ours its home, because the reply there has arrived. Otherwise the oldest
    /// place nearby, or the first one beyond, whose call is not being executed: such a call may still be sent again.
    fn place_for(&mut self, connection: u64, xid: Xid) -> Option<usize> {
        if connection != UNNUMBERED {
            return Some(self.home_of(xid));
        }
        let entries = self.places.len();
        let is_done = |index: &usize| !matches!(self.places[*index].state, State::Running { .. });
        let nearby = self.near(xid, NEARBY.min(entries)).filter(is_done);
        let oldest = nearby.min_by_key(|index| self.places[*index].generation);
        let index = oldest.or_else(|| self.near(xid, entries).find(is_done))?;
        let distance = index.wrapping_sub(self.home_of(xid)) & (entries - 1);
        self.reach = self.reach.max(distance + 1);
        Some(index)
    }

    /// Returns true if the client has not called on a newer connection.
    fn admits(&mut self, connection: u64, procedure: Procedure) -> bool {
        let is_newest = connection >= self.newest;
        if is_newest && procedure != NULL {
            self.newest = connection;
        }
        is_newest
    }

    /// Changes the state of a place; its memory goes back. The caller drops the waiting call without holding the
    /// lock.
    fn vacate(&mut self, index: usize, state: State) -> Option<DeferTicket> {
        match std::mem::replace(&mut self.places[index].state, state) {
            State::Running { waiting } => return waiting,
            State::Replied(kept) => self.spare.push(kept.bytes),
            State::Refused(_) => {}
        }
        None
    }
}

impl State {
    /// State of a place without a call.
    const EMPTY: Self = Self::Refused(SYSTEM_ERR);

    /// Encodes the stored reply for a call that has waited.
    fn answer_for(&self, waiting: &mut DeferTicket) -> DeferredAnswer {
        match self {
            Self::Replied(kept) => {
                let results = StoredResults(kept);
                let data = results.data(|bytes| waiting.bulk(bytes));
                data.map_or(DeferredAnswer::Reject(AcceptStatus::SystemErr), |data| {
                    waiting.answer_with(data, &results.draft())
                })
            }
            Self::Refused(RpcRefusal::Accepted(status)) => DeferredAnswer::Reject(*status),
            Self::Refused(_) | Self::Running { .. } => {
                DeferredAnswer::Reject(AcceptStatus::SystemErr)
            }
        }
    }
}

impl StoredResults<'_> {
    /// The data items, in memory from `take`; `None` when there is none.
    pub(crate) fn data(&self, take: impl Fn(usize) -> Option<Bulk>) -> Option<ReplyData> {
        let CachedResults { bytes, stream_bytes, cuts, items, allows_read_chunks } = self.0;
        let mut data = ReplyData::new();
        let mut at = roundup4(*stream_bytes);
        for length in &items[..cuts.count()] {
            let length = *length as usize;
            let mut bulk = take(length)?;
            bulk.bytes_mut().copy_from_slice(&bytes[at..at + length]);
            data = data.bulk(bulk);
            at += roundup4(length);
        }
        Some(if *allows_read_chunks { data.allow_read_chunks() } else { data })
    }

    /// The results.
    pub(crate) fn draft(&self) -> Draft<'_> {
        Draft::new(&self.0.bytes[..self.0.stream_bytes], self.0.cuts)
    }
}

/// The place of a call that is being executed. Dropped without a reply it keeps SYSTEM_ERR.
pub(crate) struct Ticket {
    /// `None` when the reply is there.
    share: Option<Arc<Share>>,
    index: usize,
    generation: u64,
    bytes: Option<Box<[u8]>>,
}

impl Ticket {
    /// Stores the reply in `data` and `draft`; SYSTEM_ERR if there is none.
    pub(crate) fn record(mut self, data: &ReplyData, draft: Option<&Draft<'_>>) {
        let (bytes, draft) = (self.bytes.as_mut(), draft);
        let kept =
            bytes.zip(draft).and_then(|(bytes, draft)| CachedResults::of(bytes, data, draft));
        self.bytes.take_if(|_| kept.is_some());
        self.finish(kept.map_or(State::Refused(SYSTEM_ERR), State::Replied));
    }

    /// Stores an RPC error.
    pub(crate) fn refuse(mut self, refusal: RpcRefusal) {
        self.finish(State::Refused(refusal));
    }

    fn finish(&mut self, reply: State) {
        let Some(share) = self.share.take() else { return };
        let mut state = lock(&share.0);
        state.spare.extend(self.bytes.take());
        let place = &mut state.places[self.index];
        if place.generation != self.generation {
            // The client has used its slot for another call, so this reply is not needed any more.
            if let State::Replied(kept) = reply {
                state.spare.push(kept.bytes);
            }
            return;
        }
        let before = std::mem::replace(&mut place.state, reply);
        let State::Running { waiting: Some(mut waiting) } = before else { return };
        let answer = place.state.answer_for(&mut waiting);
        drop(state);
        waiting.answer(answer);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.finish(State::Refused(SYSTEM_ERR));
    }
}

impl CachedResults {
    /// Takes the memory, unless the reply does not fit.
    fn of(bytes: &mut Box<[u8]>, data: &ReplyData, draft: &Draft<'_>) -> Option<Self> {
        let (stream, cuts) = (draft.stream(), *draft.cuts());
        bytes.get_mut(..stream.len())?.copy_from_slice(stream);
        let mut items = [0; ITEMS_MAX];
        let mut at = roundup4(stream.len());
        for (item, length) in data.item_bytes().take(cuts.count()).zip(&mut items) {
            let room = bytes.get_mut(at..at + item.len())?;
            room.copy_from_slice(item);
            *length = item.len() as u32;
            at += roundup4(item.len());
        }
        let (stream_bytes, allows_read_chunks) = (stream.len(), data.allows_read_chunks());
        let bytes = std::mem::take(bytes);
        Some(Self { bytes, stream_bytes, cuts, items, allows_read_chunks })
    }
}

#[cfg(test)]
mod tests;
