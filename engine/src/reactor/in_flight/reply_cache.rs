//! The replies of calls that must not be executed twice, kept for the client that asks again over
//! another connection (RFC 5531 section 4: at-most-once). Shared by the cores of an engine.
//!
//! **A help, not a door.** Only calls that must not be executed twice take a place, one each, and only for clients
//! that the service knows as its own ([`Service::keeps_replies_for`](crate::Service::keeps_replies_for)). All places
//! come from one pool, as large as `rpc.reply_cache_mib`. A place is free again when its reply makes room for
//! another one, never while its call is being executed (module `places`). If such calls hold all places that a client
//! may have for them, a further one is not executed, and the service tells its client to try again
//! ([`Service::too_many`](crate::Service::too_many)). A reply has no age at which it goes: RFC 5531 knows none, and a client
//! that was away for long asks for it all the same.
//!
//! **Identity of clients.** Our own clients carry a unique number (module `peer_id`); other clients are identified
//! by the driver, whatever the connection. A client of ours is known from one host only, unless it has said that it comes
//! from several addresses: then its number is its only secret. Clients of ours that state that they will not reconnect need
//! no cache, nor do clients that call other programs. The clients of one peer, that is a user of this host or the [`LimitScope`] of
//! another host, are kin, because they could state as many numbers as there are places: together their calls in
//! progress have at most a quarter of the places, and their replies more only as long as no other kin needs it.
//!
//! **Identity of calls.** The XIDs of our clients contain their slots in the low bits. A call has the slot's place, so
//! that a reply stays until its slot is used again from the same host, which means that it has arrived. XIDs of other clients say nothing
//! about arrival, and may be counted in any of their bytes, so that their replies stay until their places are needed.
//! Both are found by a keyed hash, so that no peer can choose XIDs that are searched for slowly. A place records
//! program, version, procedure and checksums of credential and arguments in addition to the XID, because counters
//! restart.
//!
//! **Form of stored replies.** The results are stored as an XDR stream and its data items, never with a transport
//! header or a chunk: the repeated call names memory of its own (`ItemOffsets` in module `encoded_stream`). A long reply takes several places.
//! One that is too long leaves a mark: its call is not executed again, and answered with SYSTEM_ERR.
//!
//! **While the call is being executed**, those that repeat it wait for the reply of the first, as deferred calls
//! (module `deferred`, which also knows the cache): all of them, as connections are served in any order, so that the last to
//! arrive may be the one whose client has gone. A call on a connection that its client has replaced is not
//! executed: its client does not wait for it, and its slot may have a newer call. Connections are numbered as they
//! come up, and one with a higher number replaces the others with its first call that is not of the NULL procedure.
//! An attempt that its client has given up may come up later than the next one; it has at most a NULL call, because
//! our clients begin with one and wait for its reply.
//!
//! **Locks.** The pool has several parts with a lock each, held for a comparison and a copy. A client has all its
//! places in one part. Idempotent calls take the lock only if a place has the hash of their slot. Programs without a
//! cache take no lock. The list of our clients has a lock that is taken when a connection comes up or goes down.

mod places;
mod results;

use crate::config::Config;
use crate::fabric::{LimitScope, Peer};
use crate::reactor::in_flight::deferred::Deferred;
use crate::reactor::types::calls::RpcRefusal;
use crate::reactor::types::encoded_stream::EncodedStream;
use crate::reactor::types::header_bytes::SYSTEM_ERR;
use crate::reactor::types::peer_id::{Instance, PeerId};
use crate::reactor::types::reply_plan::ReplyData;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::lock;
use places::{Owner, Places, ReplyPlace, State};
pub(crate) use results::Stored;
use spinrpc_proto::ids::{Procedure, Program, Version, Xid};
use spinrpc_proto::requester::index_of;
use spinrpc_proto::rpc::AcceptStatus;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, Weak};

/// Does nothing (RFC 5531 section 12).
const NULL: Procedure = Procedure(0);

/// Bytes of the cache for each place, which has half of them for its results.
const BYTES_PER_PLACE: usize = 1024;

/// The clients of one peer have this fraction of the places of a part for certain (one in four), and for calls in
/// progress at most.
const KIN_PART: usize = 4;

/// Places of one part of the pool at least, and the number of parts at most.
const PART_PLACES_MIN: usize = 4096;
const PARTS_MAX: usize = 8;

/// Number of places of a cache of this size, and of them those that one client has for certain.
pub(crate) fn places_of(mib: usize) -> (usize, usize) {
    let places = (mib << 20) / BYTES_PER_PLACE;
    (places, places / parts_of(places) / KIN_PART)
}

fn parts_of(places: usize) -> usize {
    (places / PART_PLACES_MIN).clamp(1, PARTS_MAX)
}

/// See the module.
pub(crate) struct ReplyCache {
    instance: Instance,
    /// Key of all hashes.
    key: u64,
    /// Connections of clients of ours that came up so far.
    connections: AtomicU64,
    /// The highest number of a connection that has called, of each client of ours that has a connection.
    newest: Mutex<HashMap<PeerId, Weak<AtomicU64>>>,
    parts: Box<[Arc<Places>]>,
}

impl ReplyCache {
    /// Creates the configured cache; `None` if it is off. `number` identifies this engine to clients, and `key` is
    /// known to no client.
    pub(crate) fn new(config: &Config, number: u64, key: u64) -> Option<Arc<Self>> {
        let (places, _) = places_of(config.reply_cache_mib());
        (places > 0).then(|| Arc::new(Self::with_places(places, number, key)))
    }

    fn with_places(places: usize, number: u64, key: u64) -> Self {
        let parts = parts_of(places);
        Self {
            instance: Instance::Lasting(number.max(1)),
            key,
            connections: AtomicU64::new(0),
            newest: Mutex::default(),
            parts: (0..parts).map(|_| Arc::new(Places::new(places / parts))).collect(),
        }
    }

    /// The instance that this engine states while connecting.
    pub(crate) fn instance(&self) -> Instance {
        self.instance
    }

    /// A connection of this client, whose peer is `peer`, came up. `None` if its client does not come back. Each program
    /// asks for itself, so a connection has a number for each: a client of ours calls one program, and only numbers of
    /// that one are compared.
    pub(crate) fn attach(self: &Arc<Self>, client: PeerId, peer: &Peer) -> Option<Attached> {
        if !client.may_return() {
            return None;
        }
        let own = client.is_own_client().then(|| {
            // A client uses one connection after the other: one core has numbered the first before another one can
            // number the second.
            let number = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
            Own { number, newest: self.newest_of(client) }
        });
        let hash = self.hash(client);
        let part = Arc::clone(&self.parts[hash as usize % self.parts.len()]);
        let owner = Owner { client, kin: self.hash(PeerGroup::of(client, peer)), key: hash };
        Some(Attached { cache: Arc::clone(self), part, owner, own })
    }

    fn newest_of(&self, client: PeerId) -> Arc<AtomicU64> {
        let mut all = lock(&self.newest);
        let known = all.get(&client).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let newest = Arc::default();
            all.insert(client, Arc::downgrade(&newest));
            newest
        })
    }

    fn hash(&self, of: impl Hash) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.key, of).hash(&mut hasher);
        hasher.finish()
    }
}

/// Clients that a peer could claim to be.
#[derive(Hash)]
enum PeerGroup {
    Host(LimitScope),
    User(u32),
    Node(u64),
}

impl PeerGroup {
    fn of(client: PeerId, peer: &Peer) -> Self {
        match peer {
            Peer::Socket(address) => Self::Host(LimitScope::of(address.ip())),
            Peer::Process { uid, .. } => Self::User(*uid),
            // A node of a simulation.
            _ => Self::Node(client.identity),
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
    /// Key of no call.
    const NONE: Self = Self {
        xid: Xid(0),
        program: Program(0),
        version: Version(0),
        procedure: NULL,
        credential: 0,
        arguments: None,
    };

    fn is_same(&self, other: &Self) -> bool {
        let name = |key: &Self| (key.xid, key.program, key.version, key.procedure, key.credential);
        let (ours, theirs) = (self.arguments, other.arguments);
        name(self) == name(other) && (ours.is_none() || theirs.is_none() || ours == theirs)
    }
}

/// Decision about a call.
pub(crate) enum Verdict {
    /// It is new: execute it, and give its reply to the keeper.
    Execute(ReplyKeeper),
    /// It was answered from the cache.
    Answered,
    /// It is being executed: [`Attached::wait`] for the reply.
    Running,
    /// Its client has another connection now.
    Superseded,
    /// It is new, and calls that are being executed hold all places that its client may have for them.
    Full,
}

/// A connection whose client may come back.
pub(crate) struct Attached {
    cache: Arc<ReplyCache>,
    part: Arc<Places>,
    owner: Owner,
    /// Some for a client of ours.
    own: Option<Own>,
}

/// State of a client of ours: it has one connection after the other.
struct Own {
    /// Number of this connection: above those of the client's connections before.
    number: u64,
    /// The highest number of a connection that has called.
    newest: Arc<AtomicU64>,
}

impl Own {
    /// Returns true if the client has not called on a newer connection.
    fn admits(&self, procedure: Procedure) -> bool {
        // Relaxed: the places have a lock, and connections of a client come one after the other.
        let newest = self.newest.load(Ordering::Relaxed);
        if procedure == NULL || self.number == newest {
            return self.number >= newest;
        }
        self.newest.fetch_max(self.number, Ordering::Relaxed) <= self.number
    }
}

impl Attached {
    fn admits(&self, procedure: Procedure) -> bool {
        self.own.as_ref().is_none_or(|own| own.admits(procedure))
    }

    /// A hash of what distinguishes calls of its client: the slot, or the whole XID, which other implementations count
    /// in any of its bytes (Linux in the first one on the wire).
    fn hash(&self, xid: Xid) -> u64 {
        let of = if self.own.is_some() { u32::from(index_of(xid)) } else { xid.0 };
        self.cache.hash((self.owner.key, of))
    }

    /// The place of the same call. If its slot had a later one from here, that of a call from elsewhere is another call: the XID has
    /// wrapped around.
    fn find(&self, places: &State, hash: u64, call: &CallKey) -> Option<u32> {
        let is_own = |place: &ReplyPlace| place.owner.client == self.owner.client;
        let found = places.find(hash, |place| is_own(place) && place.call.is_same(call))?;
        let used = self.find_used(places, hash, call.xid);
        let is_past = |used: u32| places[used].generation > places[found].generation;
        (!used.is_some_and(is_past)).then_some(found)
    }

    /// The place of the call of ours that had this slot before. Only of the same kin: a stranger that knows the number of a
    /// client that comes from several addresses displaces nothing that came from elsewhere.
    fn find_used(&self, places: &State, hash: u64, xid: Xid) -> Option<u32> {
        places.find(hash, |place| {
            let Owner { client, kin, .. } = place.owner;
            let is_own = self.own.is_some() && client == self.owner.client;
            is_own && kin == self.owner.kin && index_of(place.call.xid) == index_of(xid)
        })
    }

    /// A call arrived that must not be executed twice. `again` sends the stored reply.
    pub(crate) fn meet(&self, call: CallKey, again: impl FnOnce(Stored<'_>)) -> Verdict {
        let hash = self.hash(call.xid);
        let mut state = self.part.lock();
        // With the lock held: a later call on a newer connection must find the place of this one.
        if !self.admits(call.procedure) {
            return Verdict::Superseded;
        }
        if let Some(index) = self.find(&state, hash, &call) {
            let Some(stored) = state.stored(index) else { return Verdict::Running };
            again(stored);
            return Verdict::Answered;
        }
        let used = self.find_used(&state, hash, call.xid);
        let displaced = used.map(|index| state.vacate(index));
        let begun = state.begin(self.owner, hash, call);
        drop(state);
        drop(displaced);
        begun.map_or(Verdict::Full, |(index, generation)| {
            Verdict::Execute(ReplyKeeper { part: Some(Arc::clone(&self.part)), index, generation })
        })
    }

    /// A call arrived that may be executed twice. For a client of ours it shows that a slot is used again, so the
    /// reply stored there has arrived. On a connection that has not replaced its predecessor it shows nothing,
    /// because the call that had the slot may still arrive on the predecessor. Returns `false` if its client has
    /// another connection now.
    pub(crate) fn pass(&self, procedure: Procedure, xid: Xid) -> bool {
        let Some(own) = &self.own else { return true };
        if !own.admits(procedure) {
            return false;
        }
        let hash = self.hash(xid);
        if !self.part.has_any(hash) || own.number != own.newest.load(Ordering::Relaxed) {
            return true;
        }
        let mut state = self.part.lock();
        let used = self.find_used(&state, hash, xid);
        let displaced =
            used.filter(|index| state[*index].call.xid != xid).map(|index| state.vacate(index));
        drop(state);
        drop(displaced);
        true
    }

    /// Waits for the reply of the same call; if that has arrived meanwhile, it is sent at once.
    pub(crate) fn wait(&self, call: CallKey, mut waiting: Deferred) {
        let mut state = self.part.lock();
        let Some(index) = self.find(&state, self.hash(call.xid), &call) else {
            drop(state);
            return waiting.reject(AcceptStatus::SystemErr);
        };
        if state[index].is_running() {
            return state.wait(index, waiting);
        }
        state.answer_for(index, std::slice::from_mut(&mut waiting));
        drop(state);
        waiting.send();
    }
}

impl Drop for Attached {
    /// The connection went down. Replies stay.
    fn drop(&mut self) {
        let Some(own) = self.own.take() else { return };
        let mut all = lock(&self.cache.newest);
        drop(own);
        if all.get(&self.owner.client).is_some_and(|newest| newest.strong_count() == 0) {
            all.remove(&self.owner.client);
        }
    }
}

/// Stores the reply of a call that is being executed in its place. Dropped without a reply it stores SYSTEM_ERR.
pub(crate) struct ReplyKeeper {
    /// `None` when the reply is there.
    part: Option<Arc<Places>>,
    index: u32,
    generation: u64,
}

impl ReplyKeeper {
    /// Stores the reply in `data` and `draft`; SYSTEM_ERR if there is none.
    pub(crate) fn record(mut self, data: &ReplyData, draft: Option<&EncodedStream<'_>>) {
        self.finish(|state, index| match draft {
            Some(draft) => state.keep_results(index, data, draft),
            None => state.keep_refusal(index, SYSTEM_ERR),
        });
    }

    /// Stores an RPC error.
    pub(crate) fn refuse(mut self, refusal: RpcRefusal) {
        self.finish(|state, index| state.keep_refusal(index, refusal));
    }

    fn finish(&mut self, keep: impl FnOnce(&mut State, u32) -> Vec<Deferred>) {
        let Some(part) = self.part.take() else { return };
        let mut state = part.lock();
        if state[self.index].generation != self.generation {
            // The client has used its slot for another call, so this reply is not needed any more.
            return;
        }
        let mut waiting = keep(&mut state, self.index);
        state.answer_for(self.index, &mut waiting);
        drop(state);
        waiting.into_iter().for_each(Deferred::send);
    }
}

impl Drop for ReplyKeeper {
    fn drop(&mut self) {
        self.finish(|state, index| state.keep_refusal(index, SYSTEM_ERR));
    }
}

#[cfg(test)]
mod tests;
