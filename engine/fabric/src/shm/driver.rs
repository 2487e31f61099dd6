//! The data plane: one core's connections, and how it finds those with something to do.
//!
//! A core looks at its hot connections in every poll, by the header of their next ring slot. One
//! that stays empty for long goes cold: its peer must ring the bell from then on, so that a poll
//! costs O(active). The more are hot, the earlier one goes cold.
//!
//! The bell is a hint: every peer of the core can write all of it. So the core also looks at each of
//! its connections once in [`round_time`], busy or parked, and then finds a message or an end whose
//! ring was lost.

mod hot_poll;
mod sending;

use super::super::{
    Access, Caps, CompletionKind, Completions, ConnMemory, DownCause, Endpoint, ExposeError,
    Fabric, FabricError, Full, InFlight, NextShort, QpId, RemoteSlice, Revoked, SendWr, Short,
    ShortEndpoint, ShortEndpointOps, ShortMessages, Wake, WrError, WrId, link_of,
};
use super::cold_poll::{Round, idle_polls, round_time};
use super::config::{CONNS_MAX, ShmConfig};
use super::control::Control;
use super::copy_order::FETCH_COST_BYTES;
use super::core::CoreShared;
use super::endpoint::Link;
use super::layout::Layout;
use super::queue_pair::{Progress, QueuePair, Seen};
use super::short_endpoint::{PendingConns, ShmShortEndpoint};
use crate::mem::{Buf, Bulk, BulkPool, Lease};
use crate::sync::atomic::Ordering;
use crate::sync::doorbell::BELL_BITS;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Reads that may be over before the reactor asks; further ones wait.
const READS_DONE_MAX: usize = 1024;

/// Polls between two readings of the clock: it costs as much as a look.
const CLOCK_POLLS: u32 = 8;

const QUICK_HOT_MAX: usize = 2;

/// The data plane of one core; see the module. Dropping it closes its connections.
#[derive(Debug)]
pub struct ShmFabric {
    caps: Caps,
    config: ShmConfig,
    core: Arc<CoreShared>,
    control: Arc<Control>,
    places: Vec<Place>,
    /// Looked at in every poll.
    hot: Vec<Rc<ShmShortEndpoint>>,
    /// Polls without a message after which one of them goes cold.
    idle_polls: u32,
    /// Index in `hot` of the next look: turns go round, so that one connection cannot starve others.
    hot_at: usize,
    looks_left: usize,
    /// Messages were found in this turn, or waited for.
    scan_is_over: bool,
    longs: Vec<u32>,
    /// Bytes copied in this turn, by orders of peers and from send queues: they share one budget.
    copied: usize,
    listed: Rc<PendingConns>,
    /// Have a send queue that is not empty.
    waiting: Vec<u32>,
    /// Have told their peers to fetch what these have not fetched yet, as far as is known.
    lending: Vec<u32>,
    /// Went down, and have completions to give back.
    ending: VecDeque<QpId>,
    /// Gave back everything. In the next poll nothing refers to their short endpoints: the control thread unmaps, as it takes long.
    over: Vec<QpId>,
    done: VecDeque<(QpId, WrId, Result<(), WrError>)>,
    polls: u32,
    live: Vec<u32>,
    round: Round,
    takes_shorts: bool,
    /// Memory for one that is sent from elsewhere.
    short: Box<Short>,
}

#[derive(Debug, Default)]
struct Place {
    generation: u32,
    live_at: usize,
    pair: Option<Box<QueuePair>>,
    /// Of short messages: with many connections, a look at the pair costs as much as the rest of a flush.
    short_endpoint: Option<Rc<ShmShortEndpoint>>,
}

impl ShmFabric {
    pub(super) fn new(
        core: Arc<CoreShared>,
        control: Arc<Control>,
        config: ShmConfig,
        layout: Layout,
    ) -> Self {
        debug_assert!(config.conns_max <= CONNS_MAX, "peers reject higher places");
        let conns = config.conns_max as usize;
        let places = (0..conns).map(|_| Place::default()).collect();
        Self {
            caps: Caps {
                message_bytes_max: layout.message_bytes_max(),
                reads_max: config.send_queue_depth,
                send_queue_depth: config.send_queue_depth,
                recv_queue_depth: config.recv_queue_depth,
                remote_invalidate: true,
                sends_shorts: true,
                takes_shorts: true,
                simulated_clock: None,
            },
            hot: Vec::with_capacity(conns),
            idle_polls: config.idle_polls,
            hot_at: 0,
            looks_left: 0,
            scan_is_over: false,
            longs: Vec::with_capacity(conns),
            copied: 0,
            listed: PendingConns::new(conns),
            waiting: Vec::with_capacity(conns),
            lending: Vec::with_capacity(conns),
            ending: VecDeque::with_capacity(conns),
            over: Vec::with_capacity(conns),
            done: VecDeque::with_capacity(READS_DONE_MAX),
            polls: 0,
            live: Vec::with_capacity(conns),
            round: Round::new(),
            takes_shorts: false,
            short: Box::new(Short::EMPTY),
            core,
            control,
            config,
            places,
        }
    }

    #[inline]
    pub(super) fn pair_ref(&self, id: QpId) -> Option<&QueuePair> {
        let place = self.places.get(id.index() as usize)?;
        place.pair.as_deref().filter(|_| place.generation == id.generation())
    }

    #[inline]
    pub(super) fn pair(&mut self, id: QpId) -> Option<&mut QueuePair> {
        let place = self.places.get_mut(id.index() as usize)?;
        if place.generation != id.generation() {
            return None;
        }
        place.pair.as_deref_mut()
    }

    #[inline]
    fn ends_at(&self, place: u32) -> Option<&ShmShortEndpoint> {
        self.places.get(place as usize)?.short_endpoint.as_deref()
    }

    #[inline]
    fn pair_at(&mut self, place: u32) -> Option<&mut QueuePair> {
        self.places.get_mut(place as usize)?.pair.as_deref_mut()
    }

    /// Receives from the hot connections, or where short messages go by value from those on which
    /// something else waits. Where there is no room for all, the next turn begins with the others.
    #[inline]
    fn poll_hot(&mut self, out: &mut Completions) {
        match self.takes_shorts {
            true => self.list_long(),
            false => self.list_hot(),
        }
        let room = out.room();
        self.copied = 0;
        if !self.longs.is_empty() && !self.listed.sent.is_empty() {
            // Copies take long: peers that sleep are woken first.
            self.ring_bells();
        }
        while let Some(place) = self.longs.pop() {
            if out.room() == 0 {
                self.begin_with(Some(place).filter(|_| room > 0));
                return self.begin_looks();
            }
            // The send queues that wait have their parts in the flush.
            let share = self.copy_share(1 + self.longs.len() + self.waiting.len());
            self.receive(place, out, share);
        }
        self.hot_at += usize::from(!self.takes_shorts);
        self.begin_looks();
    }

    /// The first one last: they are taken from the end.
    fn list_hot(&mut self) {
        self.look_quickly();
        self.longs.extend(self.hot.iter().map(|endpoint| endpoint.id.index()));
        self.longs.rotate_left(self.hot_at.min(self.hot.len()));
        self.longs.reverse();
    }

    fn list_long(&mut self) {
        while let Some(place) = self.listed.long.pop() {
            if self.pair_at(place).is_some_and(|pair| pair.short_endpoint.take_long() && pair.hot) {
                self.longs.push(place);
            }
        }
    }

    /// There is no room for more messages: the next turn begins with the first connection that was left
    /// out, or one further than this turn if all were.
    #[cold]
    fn begin_with(&mut self, place: Option<u32>) {
        self.longs.clear();
        let place = place.and_then(|place| self.place_in_hot(place));
        self.hot_at = place.unwrap_or(self.hot_at + 1);
    }

    /// The looks of the next turn begin behind those of this one.
    #[inline(always)]
    fn begin_looks(&mut self) {
        self.keep_in_hot();
        self.looks_left = if self.takes_shorts { self.hot.len() } else { 0 };
        self.scan_is_over = false;
    }

    fn receive(&mut self, place: u32, out: &mut Completions, fetch_bytes: usize) {
        let idle_polls = self.idle_polls;
        let pair = self.places.get_mut(place as usize).and_then(|place| place.pair.as_deref_mut());
        let Some(pair) = pair else { return };
        let mut left = fetch_bytes;
        let seen = pair.receive(out, &mut left);
        self.copied += fetch_bytes - left;
        match seen {
            Ok(Seen::Nothing) => {
                let looks = pair.short_endpoint.empty_looks.get() + 1;
                pair.short_endpoint.empty_looks.set(looks);
                if looks > idle_polls
                    && let Some(at) = self.place_in_hot(place)
                {
                    self.cool(at);
                }
            }
            Ok(Seen::Messages | Seen::More) => pair.short_endpoint.empty_looks.set(0),
            Err(cause) => self.take_down(place, cause),
        }
    }

    #[cold]
    fn cool(&mut self, at: usize) -> bool {
        let Some(place) = self.hot.get(at).map(|endpoint| endpoint.id.index()) else {
            return false;
        };
        let Some(pair) = self.pair_at(place) else { return false };
        if !pair.go_idle() {
            return false;
        }
        pair.hot = false;
        self.hot.swap_remove(at).alone.set(false);
        self.on_hot_changed();
        // From here on the peer rings for messages, but it may have ended before.
        self.look_for_end(place);
        true
    }

    fn place_in_hot(&self, place: u32) -> Option<usize> {
        self.hot.iter().position(|endpoint| endpoint.id.index() == place)
    }

    #[cold]
    fn look_for_end(&mut self, place: u32) {
        let end = self.pair_at(place).filter(|pair| pair.cause.is_none()).map(|p| p.check_end());
        if let Some(Err(cause)) = end {
            self.take_down(place, cause);
        }
    }

    #[inline(never)]
    fn poll_all(&mut self, out: &mut Completions) -> usize {
        self.polls = self.polls.wrapping_add(1);
        let room = out.room();
        if self.has_ended() || self.has_rung() {
            self.poll_news(out);
        }
        self.poll_hot(out);
        if self.polls.is_multiple_of(CLOCK_POLLS) {
            self.release_fetched();
            self.go_round(out);
        }
        self.listed.news.set(self.has_news());
        room - out.room()
    }

    #[inline(always)]
    fn has_news(&self) -> bool {
        !self.takes_shorts || !self.listed.long.is_empty() || self.has_ended()
    }

    #[inline(always)]
    fn has_ended(&self) -> bool {
        !self.done.is_empty() || !self.ending.is_empty() || !self.over.is_empty()
    }

    #[inline(always)]
    fn has_rung(&self) -> bool {
        self.core.bell.bits().rings() || self.core.notices.rings()
    }

    #[cold]
    fn poll_news(&mut self, out: &mut Completions) {
        while let Some(qp) = self.over.pop() {
            self.forget(qp);
        }
        self.give_back(out);
        self.answer_bell(out);
    }

    fn give_back(&mut self, out: &mut Completions) {
        // Messages that wait have half of the room.
        let others_wait = !self.listed.long.is_empty() || !self.takes_shorts;
        let kept = if others_wait { out.room() / 2 } else { 0 };
        while out.room() > kept {
            let Some((qp, id, result)) = self.done.pop_front() else { break };
            if let Some(pair) = self.pair(qp) {
                pair.read_taken();
                out.push(qp, CompletionKind::Read { id, result });
            }
        }
        while let Some(qp) = self.ending.front().copied() {
            if self.done.iter().any(|(of, ..)| *of == qp) {
                return;
            }
            if self.pair(qp).is_some_and(|pair| !pair.drain(out)) {
                return;
            }
            self.ending.pop_front();
            self.over.push(qp);
        }
    }

    fn forget(&mut self, qp: QpId) {
        let place = &mut self.places[qp.index() as usize];
        place.generation = place.generation.wrapping_add(1);
        let at = place.live_at;
        place.short_endpoint = None;
        if let Some(pair) = place.pair.take() {
            self.control.retire(pair.into_link());
        }
        if self.live.get(at) == Some(&qp.index()) {
            self.live.swap_remove(at);
            if let Some(moved) = self.live.get(at) {
                self.places[*moved as usize].live_at = at;
            }
        }
    }

    /// At most 64 bits of each bell, so that rings for nothing are bounded.
    fn answer_bell(&mut self, out: &mut Completions) {
        for taken in [self.core.notices.take(), self.core.bell.bits().take()] {
            let Some((first, mut bits)) = taken else { continue };
            while bits != 0 {
                let bit = first + bits.trailing_zeros();
                bits &= bits - 1;
                for place in (bit..self.places.len() as u32).step_by(BELL_BITS) {
                    self.answer(place, out);
                }
            }
        }
    }

    /// A hot connection gives its messages in its turn, however often its peer rings, and its end behind them.
    fn answer(&mut self, place: u32, out: &mut Completions) {
        let takes_shorts = self.takes_shorts;
        let Some(pair) = self.pair_at(place).filter(|pair| pair.cause.is_none()) else { return };
        if pair.hot {
            return match pair.short_endpoint.rx.has_arrival() {
                true => self.core.notify_self(place),
                false => self.look_for_end(place),
            };
        }
        if takes_shorts && pair.short_endpoint.rx.has_short() {
            // The next turn takes it by value: no receive and no buffer for the reply is touched, as each of a connection
            // that is seldom used would be a page.
            return self.settle(place, Seen::Messages);
        }
        // It becomes hot, and goes on in its turn.
        let mut fetch_bytes = FETCH_COST_BYTES;
        match pair.receive(out, &mut fetch_bytes) {
            Err(cause) => self.take_down(place, cause),
            Ok(seen) => {
                self.settle(place, seen);
                self.look_for_end(place);
            }
        }
    }

    fn settle(&mut self, place: u32, seen: Seen) {
        let Some(pair) = self.pair_at(place).filter(|pair| !pair.hot) else { return };
        if seen != Seen::Nothing {
            pair.hot = true;
            pair.go_busy();
            let endpoint = Rc::clone(&pair.short_endpoint);
            self.hot.push(endpoint);
            self.on_hot_changed();
        } else if !pair.go_idle() {
            self.core.notify_self(place);
        }
    }

    /// The more connections are hot, the fewer looks at a silent one: all looks at silent connections
    /// together take as long as those at a few.
    fn on_hot_changed(&mut self) {
        self.idle_polls = idle_polls(self.hot.len(), self.config.idle_polls);
        self.listed.idle_polls.set(self.idle_polls);
        if let [first] | [first, _] = &*self.hot {
            first.alone.set(self.hot.len() == 1);
        }
        self.looks_left = self.looks_left.min(self.hot.len());
        self.keep_in_hot();
    }

    #[cold]
    fn go_round(&mut self, out: &mut Completions) {
        for _ in 0..self.round.due(self.live.len()) {
            let place = self.live[self.round.step(self.live.len())];
            // Hot connections are looked at in every poll.
            if self.pair_at(place).is_some_and(|pair| !pair.hot) {
                self.answer(place, out);
            }
        }
    }

    fn look_at_all(&self) -> bool {
        let mut found = false;
        for place in &self.live {
            let pair = self.places[*place as usize].pair.as_deref();
            if pair.is_some_and(|pair| {
                pair.short_endpoint.rx.has_arrival() || pair.check_end().is_err()
            }) {
                self.core.notify_self(*place);
                found = true;
            }
        }
        found
    }

    #[cold]
    fn take_down(&mut self, place: u32, cause: DownCause) {
        let Some(pair) = self.pair_at(place) else { return };
        if pair.cause.is_some() {
            return;
        }
        pair.go_down(cause);
        pair.hot = false;
        let id = pair.id;
        self.longs.retain(|other| *other != place);
        self.waiting.retain(|other| *other != place);
        self.lending.retain(|other| *other != place);
        if let Some(at) = self.place_in_hot(place) {
            self.hot.remove(at).alone.set(false);
            self.hot_at -= usize::from(at < self.hot_at);
        }
        self.on_hot_changed();
        self.note_waiting();
        self.ending.push_back(id);
        self.listed.news.set(true);
    }

    /// Nothing to do, and every peer will ring: then the core may sleep.
    fn go_all_idle(&mut self) -> bool {
        while !self.hot.is_empty() {
            if !self.cool(0) {
                return false;
            }
        }
        self.done.is_empty()
            && self.ending.is_empty()
            && self.over.is_empty()
            && self.waiting.is_empty()
    }
}

impl ShortMessages for ShmFabric {
    fn short_endpoint(&self, qp: QpId) -> Option<ShortEndpoint> {
        self.pair_ref(qp).map(|pair| ShortEndpoint::Shm(Rc::clone(&pair.short_endpoint)))
    }

    #[inline(always)]
    fn next_short(&mut self, message: &mut Short) -> Option<NextShort> {
        self.next_of_hot(message)
    }

    #[inline(always)]
    fn skip_poll(&mut self, is_idle: bool) -> bool {
        let can_skip = !(self.listed.news.get() || is_idle && self.has_rung());
        if can_skip {
            self.begin_looks();
        }
        can_skip
    }

    /// The poll that follows has the clock read.
    fn rests(&mut self) -> bool {
        let rests = !self.has_news() && !self.has_rung() && !self.round.is_due(self.live.len());
        let rests = rests && self.lending.is_empty();
        if !rests {
            self.polls |= CLOCK_POLLS - 1;
        }
        rests
    }

    fn receive_of_short(&mut self, qp: QpId) -> Option<Buf> {
        self.pair(qp)?.receive_of_short()
    }

    #[inline]
    fn send_copied(&mut self, qp: QpId, message: &[u8]) -> bool {
        let place = self.places.get_mut(qp.index() as usize);
        let place = place.filter(|place| place.generation == qp.generation());
        let Some(pair) = place.and_then(|place| place.pair.as_deref_mut()) else { return false };
        match pair.send_copied(message, &mut self.short) {
            Ok(true) => pair.short_endpoint.note_sent(),
            Ok(false) => return false,
            Err(cause) => self.take_down(qp.index(), cause),
        }
        true
    }
}

impl Fabric for ShmFabric {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn begin(&mut self, _lent: Option<&BulkPool>, takes_shorts: bool) -> Arc<dyn Wake> {
        self.takes_shorts |= takes_shorts;
        Arc::clone(&self.core) as Arc<dyn Wake>
    }

    #[inline]
    fn poll(&mut self, out: &mut Completions) -> usize {
        let polls = self.polls.wrapping_add(1);
        if self.has_rung() || self.has_news() || polls.is_multiple_of(CLOCK_POLLS) {
            return self.poll_all(out);
        }
        self.polls = polls;
        self.listed.news.set(false);
        self.begin_looks();
        0
    }

    #[inline]
    fn post_recv(&mut self, qp: QpId, buf: Buf) -> Result<(), Full<Buf>> {
        let Some(pair) = self.pair(qp) else { return Err(Full(buf)) };
        pair.post_recv(buf)
    }

    #[inline]
    fn post(&mut self, qp: QpId, wr: SendWr) -> Result<(), Full<SendWr>> {
        let place = self.places.get_mut(qp.index() as usize);
        let place = place.filter(|place| place.generation == qp.generation());
        let Some(pair) = place.and_then(|place| place.pair.as_deref_mut()) else {
            return Err(Full(wr));
        };
        match pair.post(wr)? {
            Ok(Progress::Empty) => pair.short_endpoint.note_sent(),
            Ok(Progress::Waiting) if pair.waiting => {}
            Ok(Progress::Waiting) => {
                pair.waiting = true;
                self.waiting.push(qp.index());
                self.note_waiting();
            }
            Err(cause) => self.take_down(qp.index(), cause),
        }
        Ok(())
    }

    #[inline]
    fn flush(&mut self) {
        if !self.waiting.is_empty() {
            self.progress_waiting();
        }
        if !self.listed.sent.is_empty() {
            self.ring_bells();
        }
    }

    fn room(&self, qp: QpId) -> usize {
        self.pair_ref(qp).map_or(0, |pair| pair.short_endpoint.room())
    }

    fn outstanding(&self, qp: QpId) -> InFlight {
        self.pair_ref(qp).map(QueuePair::outstanding).unwrap_or_default()
    }

    fn adopt(&mut self, endpoint: Endpoint) -> Result<QpId, FabricError> {
        let failed =
            |reason, source| FabricError::because("adopt a shm connection", reason, source);
        let link = link_of::<Link>(endpoint.link)?;
        if !Arc::ptr_eq(link.place.core(), &self.core) {
            return Err(failed("it was made for another core", None));
        }
        let index = link.place.index();
        let id = QpId::new(index, self.places[index as usize].generation);
        let pair = QueuePair::new(id, *link, &self.config, Rc::clone(&self.listed))
            .map_err(|error| failed("its queue pair could not be made", Some(error)))?;
        let place = &mut self.places[index as usize];
        place.short_endpoint = Some(Rc::clone(&pair.short_endpoint));
        (place.pair, place.live_at) = (Some(Box::new(pair)), self.live.len());
        self.live.push(index);
        // It starts out cold; what came before now has rung no bell.
        self.core.notify_self(index);
        Ok(id)
    }

    fn close(&mut self, qp: QpId) {
        if self.pair(qp).is_some() {
            self.take_down(qp.index(), DownCause::Local);
        }
    }

    fn memory(&self, qp: QpId) -> ConnMemory<'_> {
        ConnMemory { arena: self.pair_ref(qp).map(|pair| &pair.link.bulk), read_sinks: None }
    }

    fn bulk(&mut self, qp: QpId, bytes: usize) -> Option<Bulk> {
        self.pair_ref(qp)?.link.bulk.take(bytes)
    }

    fn expose(
        &mut self,
        qp: QpId,
        memory: Lease,
        access: Access,
        home: Option<Lease>,
    ) -> Result<RemoteSlice, ExposeError> {
        let pair = self.pair(qp).ok_or(ExposeError::Down)?;
        let slice = pair.expose(memory, access)?;
        if let Some(home) = home {
            pair.set_home(slice.handle, home);
        }
        Ok(slice)
    }

    fn revoke(&mut self, qp: QpId, handle: u32) -> Revoked {
        match self.pair(qp).and_then(|pair| pair.revoke(handle)) {
            Some(bytes) => Revoked::Fetched(bytes),
            None => Revoked::Now,
        }
    }

    fn park(&mut self, at_most: Duration) {
        self.flush();
        self.release_fetched();
        if !self.go_all_idle() {
            return;
        }
        if self.live.is_empty() {
            self.core.park(at_most);
            return;
        }
        // A peer can keep the others' rings from ending a sleep: none is longer than a round.
        let start = Instant::now();
        while let Some(left) = at_most.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) {
            if !self.core.park(left.min(round_time(self.live.len()))) || self.look_at_all() {
                return;
            }
            self.release_fetched();
            // Of a connection that it has taken down.
            if self.has_ended() {
                return;
            }
        }
    }

    /// Connections are not looked at any more: their memory goes, too, although clients of them may be kept.
    fn end(&mut self) {
        for index in 0..self.places.len() {
            self.take_down(index as u32, DownCause::Local);
        }
        // The peers have been told.
        for pair in self.places.drain(..).filter_map(|place| place.pair) {
            self.control.retire(pair.into_link());
        }
        self.live.clear();
        self.ending.clear();
        self.over.clear();
    }
}

impl Drop for ShmFabric {
    fn drop(&mut self) {
        self.end();
        self.core.taken.store(false, Ordering::Release);
    }
}
