//! The data plane: one core's connections.
//!
//! A poll reads from each socket once, while there are few of them, and else from those that the kernel says are ready. A
//! flush sends once per connection with something to send.

use super::super::{
    Access, Caps, Completions, ConnMemory, Endpoint, ExposeError, Fabric, FabricError, Full,
    InFlight, QpId, RemoteSlice, Revoked, SendWr, ShortMessages, Wake, link_of,
};
use super::budget::Budget;
use super::config::IwarpConfig;
use super::ending::DRAIN_TIMEOUT;
use super::link::Link;
use super::queue_pair::QueuePair;
use crate::core_sleep::CoreSleep;
use crate::mem::{Buf, Bulk, BulkPool, Lease, PoolError, Region};
use crate::sync::atomic::Ordering;
use crate::sys::mmap::{Mapping, PageRequest};
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connections that are read from without asking the kernel first which of them are ready: to read from an empty socket
/// takes as long as to ask.
const READ_AT_ONCE: usize = 2;

/// Sockets that the kernel reports at a time.
const READY_MAX: usize = 64;

/// Each is reported once, when it happens: nothing is asked for again, or not any more.
const EVENTS: epoll::EventFlags = epoll::EventFlags::IN
    .union(epoll::EventFlags::OUT)
    .union(epoll::EventFlags::RDHUP)
    .union(epoll::EventFlags::ET);

/// Longest sleep of a core that has something to send, or to end.
const BUSY_NAP: Duration = Duration::from_millis(1);

/// Completions of a core that ends.
const END_BATCH: usize = 32;

/// The data plane of one core; see the module. Dropping it closes its connections, and waits for a moment until their peers
/// have closed theirs.
pub struct IwarpFabric {
    caps: Caps,
    config: IwarpConfig,
    core: Arc<CoreSleep>,
    lent: Option<BulkPool>,
    places: Box<[Place]>,
    free: Vec<u32>,
    /// Places with a connection.
    live: Vec<u32>,
    /// Some of them have none any more.
    has_gone: bool,
    /// Place in `live` that is looked at first.
    first: usize,
    /// Places with something to send, perhaps, in the order of their turns.
    dirty: VecDeque<u32>,
    events: Vec<epoll::Event>,
}

#[derive(Default)]
struct Place {
    generation: u32,
    pair: Option<Box<QueuePair>>,
}

impl IwarpFabric {
    pub(super) fn new(core: Arc<CoreSleep>, config: &IwarpConfig) -> Self {
        let conns = config.conns_max;
        let caps = Caps {
            message_bytes_max: config.message_bytes_max,
            reads_max: config.reads_out_max.into(),
            send_queue_depth: config.send_queue_depth,
            recv_queue_depth: config.recv_queue_depth,
            remote_invalidate: true,
            sends_shorts: false,
            takes_shorts: false,
            simulated_clock: None,
        };
        Self {
            caps,
            config: config.clone(),
            core,
            lent: None,
            places: (0..conns).map(|_| Place::default()).collect(),
            free: (0..conns as u32).rev().collect(),
            live: Vec::with_capacity(conns),
            has_gone: false,
            first: 0,
            dirty: VecDeque::with_capacity(conns),
            events: Vec::with_capacity(READY_MAX),
        }
    }

    fn pair_ref(&self, id: QpId) -> Option<&QueuePair> {
        self.places.get(id.index() as usize)?.pair.as_deref().filter(|pair| pair.id == id)
    }

    #[inline]
    fn pair(&mut self, id: QpId) -> Option<&mut QueuePair> {
        self.pair_at(id.index()).filter(|pair| pair.id == id)
    }

    #[inline]
    fn pair_at(&mut self, place: u32) -> Option<&mut QueuePair> {
        self.places.get_mut(place as usize)?.pair.as_deref_mut()
    }

    fn mark_dirty(&mut self, place: u32) {
        let pair = self.places[place as usize].pair.as_deref_mut();
        if pair.is_some_and(|pair| !std::mem::replace(&mut pair.is_dirty, true)) {
            self.dirty.push_back(place);
        }
    }

    /// Marks the connections whose sockets may have something, or take something again.
    fn find_ready(&mut self) {
        let is_blocked = |place: &u32| {
            self.places[*place as usize].pair.as_ref().is_some_and(|pair| pair.is_blocked)
        };
        if self.live.len() > READ_AT_ONCE || self.live.iter().any(is_blocked) {
            return self.ask_for_ready(Duration::ZERO);
        }
        for place in &self.live {
            if let Some(pair) = self.places[*place as usize].pair.as_deref_mut() {
                pair.is_ready = true;
            }
        }
    }

    fn ask_for_ready(&mut self, at_most: Duration) {
        self.events.clear();
        self.core.wait(spare_capacity(&mut self.events), at_most);
        for event in &self.events {
            let epoll::Event { flags, data } = *event;
            // The core's own event has no place.
            let place = self.places.get_mut(data.u64() as usize);
            if let Some(pair) = place.and_then(|place| place.pair.as_deref_mut()) {
                pair.on_event(flags);
            }
        }
    }

    #[inline]
    fn poll_pair(&mut self, place: u32, out: &mut Completions, budget: &mut Budget) {
        let Some(pair) = self.pair_at(place) else { return };
        if pair.poll(out, budget) {
            self.forget(place);
        } else if pair.has_output() {
            self.mark_dirty(place);
        }
    }

    /// Frees the place of a connection that has given back everything, and closes its socket.
    #[cold]
    fn forget(&mut self, place: u32) {
        let entry = &mut self.places[place as usize];
        entry.pair = None;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(place);
        self.dirty.retain(|dirty| *dirty != place);
        self.has_gone = true;
    }

    /// The time to the first timer, or `at_most`; `None` if there is something to do at once.
    fn time_to_sleep(&self, at_most: Duration) -> Option<Duration> {
        let now = Instant::now();
        let mut at_most = at_most;
        for place in &self.live {
            let Some(pair) = self.places[*place as usize].pair.as_deref() else { continue };
            if pair.is_runnable(now) {
                return None;
            }
            if let Some(timer) = pair.timer() {
                at_most = at_most.min(timer.saturating_duration_since(now));
            }
        }
        Some(at_most)
    }

    fn memory_for_connection(&self) -> Result<(BulkPool, bool), FabricError> {
        if let Some(lent) = &self.lent {
            return Ok((lent.clone(), false));
        }
        let failed = |reason: PoolError| FabricError::because(ADOPT, reason, None);
        let bytes = BulkPool::region_bytes(&self.config.arena).map_err(failed)?;
        let mapping = Mapping::anonymous(bytes, PageRequest::default())
            .map_err(|error| FabricError::because(ADOPT, "no memory", Some(error)))?;
        let pool = BulkPool::new(Region::from_mapping(mapping), &self.config.arena);
        Ok((pool.map_err(failed)?, true))
    }
}

const ADOPT: &str = "adopt an iWARP connection";

// No lane: a message by value would be copied to the socket's buffer all the same.
impl ShortMessages for IwarpFabric {}

impl Fabric for IwarpFabric {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn begin(&mut self, lent: Option<&BulkPool>, _takes_shorts: bool) -> Arc<dyn Wake> {
        self.lent = lent.cloned();
        Arc::clone(&self.core) as Arc<dyn Wake>
    }

    fn poll(&mut self, out: &mut Completions) -> usize {
        let room = out.room();
        self.find_ready();
        let mut budget = Budget::of_a_turn();
        // Connections that found no room, or no time, begin the next turn: a busy one starves no other.
        let count = self.live.len();
        let first = if self.first < count { self.first } else { 0 };
        for at in (first..count).chain(0..first) {
            if out.room() == 0 || budget.is_spent() {
                self.first = at;
                break;
            }
            let place = self.live[at];
            self.poll_pair(place, out, &mut budget);
        }
        if std::mem::take(&mut self.has_gone) {
            let places = &self.places;
            self.live.retain(|place| places[*place as usize].pair.is_some());
        }
        room - out.room()
    }

    fn post_recv(&mut self, qp: QpId, buf: Buf) -> Result<(), Full<Buf>> {
        match self.pair(qp) {
            Some(pair) => pair.post_recv(buf),
            None => Err(Full(buf)),
        }
    }

    fn post(&mut self, qp: QpId, wr: SendWr) -> Result<(), Full<SendWr>> {
        let Some(pair) = self.pair(qp) else { return Err(Full(wr)) };
        pair.post(wr)?;
        self.mark_dirty(qp.index());
        Ok(())
    }

    fn flush(&mut self) {
        let mut budget = Budget::of_a_turn();
        for _ in 0..self.dirty.len() {
            if budget.is_spent() {
                return;
            }
            let Some(place) = self.dirty.pop_front() else { return };
            let Some(pair) = self.pair_at(place) else { continue };
            pair.flush(&mut budget);
            pair.is_dirty = pair.has_output();
            if pair.is_dirty {
                self.dirty.push_back(place);
            }
        }
    }

    fn room(&self, qp: QpId) -> usize {
        self.pair_ref(qp).map_or(0, QueuePair::room)
    }

    fn outstanding(&self, qp: QpId) -> InFlight {
        self.pair_ref(qp).map(QueuePair::outstanding).unwrap_or_default()
    }

    fn adopt(&mut self, endpoint: Endpoint) -> Result<QpId, FabricError> {
        let failed = |reason: &str, error| FabricError::because(ADOPT, reason, error);
        let link = link_of::<Link>(endpoint.link)?;
        let place = *self.free.last().ok_or_else(|| failed("all places are taken", None))?;
        let id = QpId::new(place, self.places[place as usize].generation);
        let memory = self.memory_for_connection()?;
        let pair = QueuePair::new(id, *link, &self.config, memory)
            .map_err(|error| failed("no random numbers for its keys", Some(error)))?;
        self.core
            .watch(pair.socket(), place.into(), EVENTS)
            .map_err(|error| failed("its socket cannot be waited for", Some(error)))?;
        self.free.pop();
        self.places[place as usize].pair = Some(Box::new(pair));
        self.live.push(place);
        // The first FPDU of the connecting side.
        self.mark_dirty(place);
        Ok(id)
    }

    fn memory(&self, qp: QpId) -> ConnMemory<'_> {
        self.pair_ref(qp).map(QueuePair::memory).unwrap_or_default()
    }

    fn close(&mut self, qp: QpId) {
        if let Some(pair) = self.pair(qp) {
            pair.close();
        }
    }

    fn bulk(&mut self, qp: QpId, bytes: usize) -> Option<Bulk> {
        self.pair_ref(qp)?.pool.take(bytes)
    }

    fn expose(
        &mut self,
        qp: QpId,
        memory: Lease,
        access: Access,
        _home: Option<Lease>,
    ) -> Result<RemoteSlice, ExposeError> {
        self.pair(qp).ok_or(ExposeError::Down)?.expose(memory, access)
    }

    fn revoke(&mut self, qp: QpId, handle: u32) -> Revoked {
        self.pair(qp).map_or(Revoked::Now, |pair| pair.revoke(handle))
    }

    fn park(&mut self, at_most: Duration) {
        self.flush();
        // Of what has been read already, too, which must not end the sleep.
        self.ask_for_ready(Duration::ZERO);
        if let Some(at_most) = self.time_to_sleep(at_most)
            && self.core.park()
        {
            self.ask_for_ready(at_most);
        }
        self.core.unpark();
    }

    /// Each peer is sent what is framed, and has a moment to close.
    fn end(&mut self) {
        let deadline = Instant::now() + 2 * DRAIN_TIMEOUT;
        for pair in self.places.iter_mut().filter_map(|place| place.pair.as_deref_mut()) {
            pair.close();
        }
        let mut out = Completions::with_limit(END_BATCH);
        while !self.live.is_empty() && Instant::now() < deadline {
            self.poll(&mut out);
            out.drain().for_each(drop);
            self.park(BUSY_NAP);
        }
    }
}

impl Drop for IwarpFabric {
    fn drop(&mut self) {
        self.end();
        // Release pairs with the Acquire of the next fabric of this core.
        self.core.taken.store(false, Ordering::Release);
    }
}
