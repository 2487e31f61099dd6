//! The data plane: one core's connections, and the completion queues they share.
//!
//! A poll looks at each completion queue; there is one unless the core has very many connections or
//! several devices. Posted requests wait until the flush, which rings one doorbell per queue.
//! Connections that end make progress in the poll, too, as the control thread reports.

use super::super::{
    Access, Caps, Completion, Completions, ConnMemory, DownCause, Endpoint, ExposeError, Fabric,
    FabricError, Full, InFlight, QpId, RemoteSlice, Revoked, SendWr, ShortEndpoint,
    ShortEndpointOps, ShortMessages, Wake, link_of,
};
use super::config::VerbsConfig;
use super::core::{CHANGED, CoreShared, LOOK};
use super::link::Link;
use super::objects::{CompletionQueue, CqBroken, blank_completions};
use super::poll::{Outbox, Outcome, is_message};
use super::queue_pair::{DRAIN_TIMEOUT, End, QueuePair};
use super::short_endpoint::DirtyPairs;
use super::silence::looks_before_end;
use super::work_id::{PLACES_MAX, Queue, WorkId};
use crate::first_message::{FIRST_WAIT, Reminder};
use crate::mem::{Buf, Bulk, BulkPool, Lease, Region};
use crate::sync::atomic::Ordering;
use crate::sync::lock;
use crate::sys::journal::event;
use rdma_sys::ibv_wc;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

const BATCH: usize = 32;

/// Places that one poll looks at for silence: messages are not to wait for a look at thousands of connections.
const PLACES_AT_A_TIME: usize = 256;

/// Longest sleep of a core that has something to go on with.
const BUSY_NAP: Duration = Duration::from_millis(1);

/// Time that a data plane waits at its end for its queue pairs to be destroyed, beyond the time to
/// drain.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// The data plane of one core; see the module. Dropping it closes its connections and waits for their
/// end, as the devices may touch posted memory until then.
pub struct VerbsFabric {
    caps: Caps,
    core: Arc<CoreShared>,
    queues: Vec<PolledQueue>,
    first_queue: usize,
    batch: Box<[ibv_wc; BATCH]>,
    table: Table,
    is_ended: bool,
}

struct PolledQueue {
    queue: Arc<CompletionQueue>,
    links: usize,
}

struct Table {
    config: VerbsConfig,
    places: Vec<Place>,
    free: Vec<u32>,
    /// Queue pairs that have posted something since the last flush, or have something left from it.
    dirty: Rc<DirtyPairs>,
    ending: Vec<u32>,
    /// Wait for the peer's first message, over iWARP.
    unanswered: Vec<Reminder>,
    /// Completions that found no room in a batch.
    late: VecDeque<Completion>,
    /// Places before this one have been looked at for silence; all, unless a look goes on.
    looked: usize,
}

#[derive(Default)]
struct Place {
    generation: u32,
    pair: Option<Box<QueuePair>>,
}

impl VerbsFabric {
    pub(super) fn new(
        core: Arc<CoreShared>,
        config: &VerbsConfig,
        remote_invalidate: bool,
    ) -> Self {
        let conns = config.conns_max.min(PLACES_MAX);
        let caps = Caps {
            message_bytes_max: config.message_bytes_max,
            reads_max: config.reads_out_max.into(),
            send_queue_depth: config.send_queue_depth,
            recv_queue_depth: config.recv_queue_depth,
            remote_invalidate,
            sends_shorts: true,
            takes_shorts: false,
            simulated_clock: None,
        };
        let table = Table {
            places: (0..conns).map(|_| Place::default()).collect(),
            free: (0..conns as u32).rev().collect(),
            dirty: Rc::new(RefCell::new(Vec::with_capacity(conns))),
            ending: Vec::with_capacity(conns),
            unanswered: Vec::with_capacity(conns),
            late: VecDeque::with_capacity(BATCH),
            looked: conns,
            config: config.clone(),
        };
        let (queues, batch, first_queue) = (Vec::new(), blank_completions(), 0);
        Self { caps, core, queues, first_queue, batch, table, is_ended: false }
    }

    #[cold]
    fn attend(&mut self, out: &mut Completions) {
        self.table.outbox(out).catch_up();
        let news = self.core.take_news();
        if news & CHANGED != 0 {
            (0..self.table.places.len() as u32).for_each(|place| self.table.look_at(place));
        }
        if news & LOOK != 0 {
            self.table.looked = 0;
        }
        self.table.look_for_silence();
        let now = Instant::now();
        self.table.remind(now);
        let mut at = 0;
        while let Some(place) = self.table.ending.get(at).copied() {
            match self.table.advance_end(place, now, out) {
                End::Pending => at += 1,
                End::Told => {
                    self.table.ending.swap_remove(at);
                    self.forget(place);
                }
            }
        }
    }

    /// The completion queue is given up before the link: the device may go with that.
    fn forget(&mut self, place: u32) {
        let Some(pair) = self.table.take(place) else { return };
        let queue = &pair.link.queue;
        if let Some(at) = self.queues.iter().position(|p| Arc::ptr_eq(&p.queue, queue)) {
            self.queues[at].links -= 1;
            if self.queues[at].links == 0 {
                // Else an event that is left would end each sleep as long as the channel is there.
                self.queues.swap_remove(at).queue.channel.take_events();
            }
        }
    }

    fn watch(&mut self, queue: &Arc<CompletionQueue>) {
        match self.queues.iter_mut().find(|polled| Arc::ptr_eq(&polled.queue, queue)) {
            Some(polled) => polled.links += 1,
            None => self.queues.push(PolledQueue { queue: Arc::clone(queue), links: 1 }),
        }
    }

    #[inline]
    fn poll_queues(&mut self, out: &mut Completions) {
        // Nearly always: a core has one queue unless it uses several devices, or very many connections.
        if self.queues.len() == 1 {
            return self.drain_queue(0, out);
        }
        let mut first = self.first_queue;
        in_turn(&mut first, self.queues.len(), |at| {
            self.drain_queue(at, out);
            out.room() > 0
        });
        self.first_queue = first;
    }

    #[inline]
    fn drain_queue(&mut self, at: usize, out: &mut Completions) {
        let mut room = out.room().min(BATCH);
        while room > 0 && self.poll_queue(at, room, Some(&mut *out)) == room {
            room = out.room().min(BATCH);
        }
    }

    #[inline(always)]
    fn poll_queue(&mut self, at: usize, room: usize, mut out: Option<&mut Completions>) -> usize {
        match self.queues[at].queue.poll(&mut self.batch[..room]) {
            Ok(completions) => {
                for completion in completions {
                    self.table.on_completion(completion, out.as_deref_mut());
                }
                completions.len()
            }
            Err(CqBroken) => self.on_broken(at),
        }
    }

    #[cold]
    fn on_broken(&mut self, at: usize) -> usize {
        let queue = Arc::clone(&self.queues[at].queue);
        for place in 0..self.table.places.len() {
            let pair = self.table.places[place].pair.as_deref();
            if pair.is_some_and(|pair| pair.is_live() && Arc::ptr_eq(&pair.link.queue, &queue)) {
                self.table.suspect(place as u32, DownCause::DeviceFailed);
            }
        }
        0
    }

    /// Earlier completions are taken now, for the next poll. False if there is something to do.
    fn arm(&mut self) -> bool {
        let is_armed = self.queues.iter().all(|polled| polled.queue.arm().is_ok());
        let queues = 0..self.queues.len();
        let found: usize = queues.map(|at| self.poll_queue(at, BATCH, None)).sum();
        is_armed && found == 0 && self.table.late.is_empty()
    }
}

/// The next turn begins with those for which there was no room: a busy queue cannot starve others.
#[inline(always)]
fn in_turn(first: &mut usize, count: usize, mut has_room_after: impl FnMut(usize) -> bool) {
    for _ in 0..count {
        let at = if *first < count { *first } else { 0 };
        *first = at + 1;
        if !has_room_after(at) {
            return;
        }
    }
}

impl Table {
    fn pair_ref(&self, id: QpId) -> Option<&QueuePair> {
        let place = self.places.get(id.index() as usize)?;
        place.pair.as_deref().filter(|pair| pair.id == id)
    }

    #[inline]
    fn pair(&mut self, id: QpId) -> Option<&mut QueuePair> {
        self.pair_at(id.index()).filter(|pair| pair.id == id)
    }

    #[inline]
    fn pair_at(&mut self, place: u32) -> Option<&mut QueuePair> {
        self.places.get_mut(place as usize)?.pair.as_deref_mut()
    }

    fn with_lists(
        &mut self,
        place: u32,
    ) -> Option<(&mut QueuePair, &mut Vec<u32>, &mut VecDeque<Completion>)> {
        let pair = self.places.get_mut(place as usize)?.pair.as_deref_mut()?;
        Some((pair, &mut self.ending, &mut self.late))
    }

    fn outbox<'a>(&'a mut self, out: &'a mut Completions) -> Outbox<'a> {
        Outbox { batch: Some(out), late: &mut self.late }
    }

    fn take(&mut self, place: u32) -> Option<Box<QueuePair>> {
        let entry = self.places.get_mut(place as usize)?;
        let pair = entry.pair.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(place);
        Some(pair)
    }

    #[inline]
    fn on_completion(&mut self, completion: &ibv_wc, out: Option<&mut Completions>) {
        let id = WorkId(completion.wr_id);
        let place = self.places.get_mut(id.index());
        let Some(pair) = place.and_then(|place| place.pair.as_deref_mut()) else { return };
        if !id.is_of(pair.id) {
            return;
        }
        let mut outbox = Outbox { batch: out, late: &mut self.late };
        if id.queue() == Queue::Send || !is_message(completion) {
            let outcome = pair.on_other(id, completion, &mut outbox);
            return self.settle(id.index() as u32, outcome);
        }
        let result = pair.on_arrived(completion, &mut outbox);
        if pair.has_waiting() {
            pair.short_endpoint.mark();
        }
        if let Err(cause) = result {
            self.end(id.index() as u32, Some(cause));
        }
    }

    #[inline]
    fn settle(&mut self, place: u32, outcome: Outcome) {
        if let Some(pair) = self.pair_at(place).filter(|pair| pair.has_waiting()) {
            pair.short_endpoint.mark();
        }
        match outcome {
            Outcome::Done => {}
            Outcome::Failed(cause) => self.end(place, Some(cause)),
            Outcome::Flushed => self.end(place, None),
        }
    }

    #[cold]
    fn end(&mut self, place: u32, cause: Option<DownCause>) {
        let Some((pair, ending, late)) = self.with_lists(place) else { return };
        if pair.is_live() {
            ending.push(place);
        }
        pair.end(cause, &mut Outbox { batch: None, late });
    }

    fn look_at(&mut self, place: u32) {
        let Some(pair) = self.pair_at(place) else { return };
        pair.take_windows();
        if pair.link.state.over().is_some() || pair.link.state.is_destroyed() {
            self.end(place, None);
        } else if pair.has_waiting() {
            pair.short_endpoint.mark();
        }
    }

    fn is_looking(&self) -> bool {
        self.looked < self.places.len()
    }

    fn look_for_silence(&mut self) {
        let to = self.places.len().min(self.looked + PLACES_AT_A_TIME);
        let most = self.config.given_up_after().map_or(u32::MAX, looks_before_end);
        for place in self.looked..to {
            let pair = self.places[place].pair.as_deref_mut();
            if pair.is_some_and(|pair| pair.look_for_silence() >= most) {
                self.end(place as u32, Some(DownCause::Unreachable));
            }
        }
        self.looked = to;
    }

    fn advance_end(&mut self, place: u32, now: Instant, out: &mut Completions) -> End {
        let Some((pair, _, late)) = self.with_lists(place) else { return End::Told };
        pair.advance_end(now, &mut Outbox { batch: Some(out), late })
    }

    fn remind(&mut self, now: Instant) {
        let Self { places, unanswered, .. } = self;
        unanswered.retain_mut(|reminder| {
            let pair = places.get_mut(reminder.qp.index() as usize);
            let pair = pair.and_then(|place| place.pair.as_deref_mut());
            let is_its = |pair: &&mut QueuePair| pair.id == reminder.qp && pair.is_unanswered();
            let Some(pair) = pair.filter(is_its) else { return false };
            if reminder.take_due(now) {
                pair.remind();
            }
            !reminder.is_over()
        });
    }

    fn close(&mut self, qp: QpId) {
        let Some((pair, ending, late)) = self.with_lists(qp.index()) else { return };
        if pair.id == qp && pair.is_live() {
            ending.push(qp.index());
            pair.close(&mut Outbox { batch: None, late });
        }
    }

    #[inline(never)]
    fn flush(&mut self) {
        let mut at = 0;
        loop {
            let Some(place) = self.dirty.borrow().get(at).copied() else { return };
            let pair = self.pair_at(place);
            let (result, endpoint) =
                pair.map_or((Ok(false), None), |pair| (pair.flush(), Some(&pair.short_endpoint)));
            if let Ok(true) = result {
                at += 1;
                continue;
            }
            if let Some(endpoint) = endpoint {
                endpoint.unmark();
            }
            self.dirty.borrow_mut().swap_remove(at);
            if let Err(cause) = result {
                self.suspect(place, cause);
            }
        }
    }

    #[cold]
    fn suspect(&mut self, place: u32, cause: DownCause) {
        if let Some(pair) = self.pair_at(place) {
            pair.suspect(cause);
        }
        self.end(place, None);
    }
}

impl ShortMessages for VerbsFabric {
    fn short_endpoint(&self, qp: QpId) -> Option<ShortEndpoint> {
        let endpoint = &self.table.pair_ref(qp)?.short_endpoint;
        endpoint.has_lane().then(|| ShortEndpoint::Verbs(Rc::clone(endpoint)))
    }
}

impl Fabric for VerbsFabric {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn begin(&mut self, lent: Option<&BulkPool>, _takes_shorts: bool) -> Arc<dyn Wake> {
        *lock(&self.core.lent) = lent.cloned();
        Arc::clone(&self.core) as Arc<dyn Wake>
    }

    // Called in each turn, by code that is in line for shared memory: it would pay for the registers of this.
    #[inline(never)]
    fn poll(&mut self, out: &mut Completions) -> usize {
        let room = out.room();
        self.poll_queues(out);
        let table = &self.table;
        let is_quiet = table.ending.is_empty() && table.late.is_empty() && !table.is_looking();
        if !is_quiet || !table.unanswered.is_empty() || self.core.has_news() {
            self.attend(out);
        }
        room - out.room()
    }

    #[inline]
    fn post_recv(&mut self, qp: QpId, buf: Buf) -> Result<(), Full<Buf>> {
        let Some(pair) = self.table.pair(qp) else { return Err(Full(buf)) };
        let result = pair.post_recv(buf)?;
        pair.short_endpoint.mark();
        if let Err(cause) = result {
            self.table.end(qp.index(), Some(cause));
        }
        Ok(())
    }

    #[inline]
    fn post(&mut self, qp: QpId, wr: SendWr) -> Result<(), Full<SendWr>> {
        let Some(pair) = self.table.pair(qp) else { return Err(Full(wr)) };
        if let Err(cause) = pair.post(wr)? {
            self.table.end(qp.index(), Some(cause));
        }
        Ok(())
    }

    #[inline]
    fn flush(&mut self) {
        if !self.table.dirty.borrow().is_empty() {
            self.table.flush();
        }
    }

    fn room(&self, qp: QpId) -> usize {
        self.table.pair_ref(qp).map_or(0, |pair| pair.short_endpoint.room())
    }

    fn outstanding(&self, qp: QpId) -> InFlight {
        self.table.pair_ref(qp).map(QueuePair::outstanding).unwrap_or_default()
    }

    fn adopt(&mut self, endpoint: Endpoint) -> Result<QpId, FabricError> {
        let failed = |reason: &str| FabricError::because("adopt an RDMA connection", reason, None);
        let link = link_of::<Link>(endpoint.link)?;
        let table = &mut self.table;
        let place = *table.free.last().ok_or_else(|| failed("all places are taken"))?;
        let id = QpId::new(place, table.places[place as usize].generation);
        let (asked_max, signal_every) =
            (table.config.send_queue_depth.into(), table.config.signal_every.into());
        let pair = QueuePair::new(id, *link, (asked_max, signal_every), &table.dirty)
            .ok_or_else(|| failed("its device cannot be posted to"))?;
        // Even with nothing posted: the flush answers the peer's request.
        pair.short_endpoint.mark();
        if pair.is_unanswered() {
            table.unanswered.push(Reminder::new(id, Instant::now()));
        }
        let queue = Arc::clone(&pair.link.queue);
        table.free.pop();
        table.places[place as usize].pair = Some(Box::new(pair));
        // Its earlier events have not been reported yet.
        table.look_at(place);
        self.watch(&queue);
        Ok(id)
    }

    fn message_memory(&mut self, qp: QpId, bytes: usize) -> Option<Region> {
        self.table.pair(qp)?.link.memory.messages.as_mut()?.split_to(bytes)
    }

    fn memory(&self, qp: QpId) -> ConnMemory<'_> {
        self.table.pair_ref(qp).map(QueuePair::memory).unwrap_or_default()
    }

    fn close(&mut self, qp: QpId) {
        self.table.close(qp);
    }

    fn bulk(&mut self, qp: QpId, bytes: usize) -> Option<Bulk> {
        self.table.pair_ref(qp)?.link.memory.pool.take(bytes)
    }

    fn expose(
        &mut self,
        qp: QpId,
        memory: Lease,
        access: Access,
        _home: Option<Lease>,
    ) -> Result<RemoteSlice, ExposeError> {
        self.table.pair(qp).ok_or(ExposeError::Down)?.expose(memory, access)
    }

    fn revoke(&mut self, qp: QpId, handle: u32) -> Revoked {
        self.table.pair(qp).map_or(Revoked::Now, |pair| pair.revoke(handle))
    }

    fn park(&mut self, at_most: Duration) {
        self.flush();
        // Queue pairs that have something to flush, or that end, make progress without an event.
        let Table { ending, dirty, .. } = &self.table;
        let is_busy = !ending.is_empty() || !dirty.borrow().is_empty() || self.table.is_looking();
        let at_most = match is_busy {
            true => at_most.min(BUSY_NAP),
            false if !self.table.unanswered.is_empty() => at_most.min(FIRST_WAIT),
            false => at_most,
        };
        if self.arm() && self.core.park() {
            self.core.sleep.wait(&mut [MaybeUninit::uninit(); 1], at_most);
            self.queues.iter().for_each(|polled| polled.queue.channel.take_events());
        }
        self.core.sleep.unpark();
    }

    /// The peer of a queue pair is told when the device has reported all requests posted to it.
    fn end(&mut self) {
        if std::mem::replace(&mut self.is_ended, true) {
            return;
        }
        let deadline = Instant::now() + DRAIN_TIMEOUT + END_PATIENCE;
        for place in 0..self.table.places.len() {
            if let Some(id) = self.table.pair_at(place as u32).map(|pair| pair.id) {
                self.table.close(id);
            }
        }
        let mut out = Completions::with_limit(BATCH);
        while !self.table.ending.is_empty() && Instant::now() < deadline {
            self.poll(&mut out);
            out.drain().for_each(drop);
            self.park(BUSY_NAP);
        }
    }
}

impl Drop for VerbsFabric {
    fn drop(&mut self) {
        self.end();
        for pair in self.table.places.iter_mut().filter_map(|place| place.pair.take()) {
            event!(ERROR, link = pair.link.number, "a queue pair did not end: its memory is lost");
            // The device may still touch it.
            std::mem::forget(pair);
        }
        *lock(&self.core.lent) = None;
        self.core.sleep.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_queue_does_not_starve_others() {
        let (mut first, mut polled) = (0, Vec::new());
        for _ in 0..4 {
            in_turn(&mut first, 3, |at| {
                polled.push(at);
                // The first queue always fills the batch.
                at != 0
            });
        }
        assert_eq!(polled, [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]);
        // Queues have gone.
        polled.clear();
        first = 7;
        in_turn(&mut first, 2, |at| {
            polled.push(at);
            true
        });
        assert_eq!((polled, first), (vec![0, 1], 2));
        in_turn(&mut first, 0, |_| unreachable!());
    }
}
