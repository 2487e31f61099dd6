//! The data plane: one core's connections.
//!
//! A poll reads from each socket once, while there are few of them, and else from those that the kernel says are ready. A
//! flush sends once per connection with something to send.

use super::super::{
    Access, Caps, Completions, ConnMemory, Endpoint, ExposeError, Fabric, FabricError, Full,
    InFlight, QpId, RemoteSlice, Revoked, SendWr, ShortMessages, Wake, link_of,
};
use super::config::IwarpConfig;
use super::core::{CoreShared, EVENT};
use super::ending::DRAIN_TIMEOUT;
use super::link::Link;
use super::queue_pair::QueuePair;
use crate::mem::{Buf, Bulk, BulkPool, Lease, PoolError, Region};
use crate::sync::atomic::Ordering;
use crate::sys::mmap::{Mapping, PageRequest};
use rustix::event::epoll;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connections that are read from without asking the kernel first which of them are ready: to read from an empty socket
/// takes as long as to ask.
const READ_AT_ONCE: usize = 2;

/// Sockets that the kernel reports at a time.
const READY_MAX: usize = 64;

/// Longest sleep of a core that has something to send, or to end.
const BUSY_NAP: Duration = Duration::from_millis(1);

/// Completions of a core that ends.
const END_BATCH: usize = 32;

/// The data plane of one core; see the module. Dropping it closes its connections, and waits for a moment until their peers
/// have closed theirs.
pub struct IwarpFabric {
    caps: Caps,
    config: IwarpConfig,
    core: Arc<CoreShared>,
    lent: Option<BulkPool>,
    places: Box<[Place]>,
    free: Vec<u32>,
    /// Places with a connection.
    live: Vec<u32>,
    /// Some of them have none any more.
    has_gone: bool,
    /// Place in `live` that is looked at first.
    first: usize,
    /// Places with something to send, perhaps.
    dirty: Vec<u32>,
    events: Vec<epoll::Event>,
}

#[derive(Default)]
struct Place {
    generation: u32,
    pair: Option<Box<QueuePair>>,
}

impl IwarpFabric {
    pub(super) fn new(core: Arc<CoreShared>, config: &IwarpConfig) -> Self {
        let conns = config.conns_max;
        let caps = Caps {
            message_bytes_max: config.message_bytes_max,
            reads_max: config.reads_out_max.into(),
            send_queue_depth: config.send_queue_depth,
            recv_queue_depth: config.recv_queue_depth,
            recv_buffers_max: 2,
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
            dirty: Vec::with_capacity(conns),
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
            self.dirty.push(place);
        }
    }

    /// Marks the connections whose sockets may have something.
    fn find_ready(&mut self) {
        if self.live.len() > READ_AT_ONCE {
            return self.ask_for_ready(Duration::ZERO);
        }
        for at in 0..self.live.len() {
            let place = self.live[at];
            if let Some(pair) = self.pair_at(place) {
                pair.is_ready = true;
            }
        }
    }

    fn ask_for_ready(&mut self, at_most: Duration) {
        self.core.ready(&mut self.events, at_most);
        for at in 0..self.events.len() {
            let epoll::Event { data, .. } = self.events[at];
            let place = data.u64();
            if place != EVENT
                && let Some(pair) = self.pair_at(place as u32)
            {
                pair.is_ready = true;
            }
        }
    }

    #[inline]
    fn poll_pair(&mut self, place: u32, out: &mut Completions) {
        let Some(pair) = self.pair_at(place) else { return };
        if pair.poll(out) {
            self.forget(place);
            return;
        }
        let is_deaf = !pair.interest.contains(epoll::EventFlags::IN);
        if pair.has_output() {
            self.mark_dirty(place);
        }
        if is_deaf {
            self.update_interest(place);
        }
    }

    /// Has the kernel report what a connection waits for.
    #[cold]
    fn update_interest(&mut self, place: u32) {
        let Some(pair) = self.places[place as usize].pair.as_deref_mut() else { return };
        let wanted = pair.wanted();
        if std::mem::replace(&mut pair.interest, wanted) != wanted {
            self.core.want(pair.socket(), place, wanted);
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

    /// Has sleeps end for what each connection waits for. Returns the time of the first timer; `None` if there is
    /// something to do at once.
    fn prepare_sleep(&mut self, at_most: Duration) -> Option<Duration> {
        let now = Instant::now();
        let mut at_most = at_most;
        for at in 0..self.live.len() {
            let place = self.live[at];
            let Some(pair) = self.places[place as usize].pair.as_deref_mut() else { continue };
            if pair.is_runnable(now) {
                return None;
            }
            if let Some(timer) = pair.timer() {
                at_most = at_most.min(timer.saturating_duration_since(now));
            }
            self.update_interest(place);
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
        // Connections that found no room for all of theirs begin the next turn: a busy one starves no other.
        let count = self.live.len();
        let first = if self.first < count { self.first } else { 0 };
        self.first = 0;
        let mut left_out = None;
        for at in (first..count).chain(0..first) {
            if out.room() == 0 {
                left_out.get_or_insert(at);
            }
            let place = self.live[at];
            self.poll_pair(place, out);
        }
        self.first = left_out.unwrap_or(0);
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
        let mut at = 0;
        while let Some(place) = self.dirty.get(at).copied() {
            let pair = self.places[place as usize].pair.as_deref_mut();
            let is_left = pair.is_some_and(|pair| {
                pair.flush();
                pair.is_dirty = pair.has_output();
                pair.is_dirty
            });
            if is_left {
                at += 1;
            } else {
                self.dirty.swap_remove(at);
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
            .watch(pair.socket(), place, pair.interest)
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
        self.pair_ref(qp)?.bulk(bytes)
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
        if let Some(at_most) = self.prepare_sleep(at_most)
            && self.core.park()
        {
            self.ask_for_ready(at_most);
        }
        self.core.unpark();
    }

    /// Each peer is sent what is framed, and has a moment to close.
    fn end(&mut self) {
        let deadline = Instant::now() + 2 * DRAIN_TIMEOUT;
        for at in 0..self.live.len() {
            let place = self.live[at];
            if let Some(pair) = self.pair_at(place) {
                pair.close();
            }
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
