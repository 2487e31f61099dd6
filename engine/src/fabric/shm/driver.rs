//! The data plane: one core's connections, and how it finds those with something to do.
//!
//! A core looks at its hot connections in every poll, by the header of their next ring slot. One
//! that stays empty for long goes cold: its peer must ring the bell from then on, so that a poll
//! costs O(active).
//!
//! The bell is a hint: every peer of the core can write all of it. So the core also looks at each of
//! its connections once in [`ROUND_TIME`], busy or parked, and then finds a message or an end whose
//! ring was lost.

use super::super::{
    Access, Caps, CompletionKind, Completions, DownCause, ExposeError, Fabric, FabricError, Full,
    QpId, RemoteSlice, Revoked, SendWr, Short, Wake, WrError, WrId,
};
use super::config::ShmConfig;
use super::control::Control;
use super::core::CoreShared;
use super::endpoint::ShmEndpoint;
use super::layout::Layout;
use super::queue_pair::{Progress, QueuePair, Seen};
use crate::mem::{Buf, Bulk, BulkPool, Lease};
use crate::sync::atomic::{Ordering, fence};
use crate::sys::clock::{Clock, Ticks};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Reads that may be over before the reactor asks; further ones wait.
const READS_DONE_MAX: usize = 1024;

/// Time in which every connection is looked at once, whatever the bell says. Together with the turns
/// between two readings of the clock that is 10 ms at most, unless a turn takes a quarter of a
/// millisecond or more.
const ROUND_TIME: Duration = Duration::from_millis(8);

/// Polls between two readings of the clock: it costs as much as a look.
const CLOCK_POLLS: u32 = 8;

/// Looks of one poll at the hot connections while they are silent ...
const QUICK_LOOKS: u32 = 8;

/// ... if they are no more than this.
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
    hot: Vec<u32>,
    /// Where in `hot` the next poll starts, so that one connection cannot starve the others.
    hot_start: usize,
    /// Sent something since the last bell check.
    sent: Vec<u32>,
    /// Have a send queue that is not empty.
    waiting: Vec<u32>,
    /// Went down, and have completions to give back.
    ending: VecDeque<QpId>,
    /// Reads that are over.
    done: VecDeque<(QpId, WrId, Result<(), WrError>)>,
    polls: u32,
    /// Places with a connection, in no order.
    live: Vec<u32>,
    /// Where in `live` the next look of the round goes.
    round: usize,
    /// Time until which the round has got so far.
    round_at: Ticks,
    clock: Clock,
    round_ticks: u64,
    /// Short messages go by value.
    takes_shorts: bool,
}

#[derive(Debug, Default)]
struct Place {
    generation: u32,
    pair: Option<Box<QueuePair>>,
}

impl ShmFabric {
    /// The data plane of `core`, which nobody else has.
    pub(super) fn new(
        core: Arc<CoreShared>,
        control: Arc<Control>,
        config: ShmConfig,
        layout: Layout,
    ) -> Self {
        let conns = config.conns_max as usize;
        let places = (0..conns).map(|_| Place::default()).collect();
        let clock = Clock::shared();
        Self {
            caps: Caps {
                message_bytes_max: layout.message_bytes_max(),
                transfer_bytes_max: u32::MAX as usize,
                reads_max: config.send_queue_depth,
                send_queue_depth: config.send_queue_depth,
                recv_queue_depth: config.recv_queue_depth,
                recv_buffers_max: 2,
                remote_invalidate: true,
            },
            hot: Vec::with_capacity(config.hot_max as usize),
            hot_start: 0,
            sent: Vec::with_capacity(conns),
            waiting: Vec::with_capacity(conns),
            ending: VecDeque::with_capacity(conns),
            done: VecDeque::with_capacity(READS_DONE_MAX),
            polls: 0,
            live: Vec::with_capacity(conns),
            round: 0,
            round_at: clock.now(),
            clock,
            round_ticks: clock.from_duration(ROUND_TIME).max(1),
            takes_shorts: false,
            core,
            control,
            config,
            places,
        }
    }

    /// The queue pair `id`, if it has not gone since.
    #[inline]
    fn pair_ref(&self, id: QpId) -> Option<&QueuePair> {
        let place = self.places.get(id.index() as usize)?;
        place.pair.as_deref().filter(|_| place.generation == id.generation())
    }

    #[inline]
    fn pair(&mut self, id: QpId) -> Option<&mut QueuePair> {
        let place = self.places.get_mut(id.index() as usize)?;
        if place.generation != id.generation() {
            return None;
        }
        place.pair.as_deref_mut()
    }

    #[inline]
    fn pair_at(&mut self, place: u32) -> Option<&mut QueuePair> {
        self.places.get_mut(place as usize)?.pair.as_deref_mut()
    }

    /// Looks at the hot connections a few times before it does what else a poll has to do: most
    /// polls find nothing, and what a message waits for is the length of such a poll.
    #[inline]
    fn wait_a_little(&mut self) {
        if self.hot.len() > QUICK_HOT_MAX {
            return;
        }
        for _ in 0..QUICK_LOOKS {
            for at in 0..self.hot.len() {
                let place = self.hot[at];
                if self.pair_at(place).is_none_or(|pair| pair.has_arrival()) {
                    return;
                }
            }
        }
    }

    #[inline]
    fn poll_hot(&mut self, out: &mut Completions) {
        let mut at = self.hot_start;
        for _ in 0..self.hot.len() {
            if at >= self.hot.len() {
                at = 0;
            }
            let Some(place) = self.hot.get(at).copied() else { break };
            let (idle_polls, poll) = (self.config.idle_polls, self.polls);
            let Some(pair) = self.pair_at(place) else { break };
            match pair.receive(poll, out) {
                Ok(Seen::Nothing) => {
                    pair.empty_looks += 1;
                    if pair.empty_looks > idle_polls && self.cool(at, place) {
                        continue;
                    }
                }
                Ok(Seen::Messages) => pair.empty_looks = 0,
                Ok(Seen::More) if out.room() == 0 => {
                    pair.empty_looks = 0;
                    self.hot_start = at + 1;
                    return;
                }
                Ok(Seen::More) => {}
                Err(cause) => {
                    self.take_down(place, cause);
                    continue;
                }
            }
            at += 1;
        }
    }

    /// Takes the connection at `at` of the hot list off it, unless it has got something just now.
    #[cold]
    fn cool(&mut self, at: usize, place: u32) -> bool {
        let Some(pair) = self.pair_at(place) else { return false };
        if !pair.go_idle() {
            return false;
        }
        pair.hot = false;
        self.hot.swap_remove(at);
        // From here on the peer rings for messages, but it may have ended before.
        self.look_for_end(place);
        true
    }

    #[cold]
    fn look_for_end(&mut self, place: u32) {
        let end = self.pair_at(place).filter(|pair| pair.cause.is_none()).map(|p| p.check_end());
        if let Some(Err(cause)) = end {
            self.take_down(place, cause);
        }
    }

    /// What does not happen in most polls.
    #[cold]
    fn poll_news(&mut self, out: &mut Completions) {
        self.give_back(out);
        self.answer_bell(out);
    }

    fn give_back(&mut self, out: &mut Completions) {
        while out.room() > 0 {
            let Some((qp, id, result)) = self.done.pop_front() else { break };
            if let Some(pair) = self.pair(qp) {
                pair.read_taken();
                out.push(qp, CompletionKind::Read { id, result });
            }
        }
        while let Some(qp) = self.ending.front().copied().filter(|_| self.done.is_empty()) {
            if self.pair(qp).is_some_and(|pair| !pair.drain(out)) {
                return;
            }
            self.ending.pop_front();
            self.forget(qp);
        }
    }

    /// Frees the place of a queue pair that has given back everything.
    fn forget(&mut self, qp: QpId) {
        let place = &mut self.places[qp.index() as usize];
        place.generation = place.generation.wrapping_add(1);
        self.live.retain(|live| *live != qp.index());
        if let Some(pair) = place.pair.take() {
            self.control.mailbox().retire(pair.into_link());
        }
    }

    /// Looks at those who rang. At most 64 of each bell, so that rings for nothing are bounded.
    fn answer_bell(&mut self, out: &mut Completions) {
        for taken in [self.core.notices.take(), self.core.bell.bits().take()] {
            let Some((first, mut bits)) = taken else { continue };
            while bits != 0 {
                let place = first + bits.trailing_zeros();
                bits &= bits - 1;
                self.answer(place, out);
            }
        }
    }

    /// Looks at one connection, hot or not: for messages, and whether the peer has ended it.
    fn answer(&mut self, place: u32, out: &mut Completions) {
        let poll = self.polls;
        let Some(pair) = self.pair_at(place).filter(|pair| pair.cause.is_none()) else { return };
        match pair.receive(poll, out) {
            Err(cause) => self.take_down(place, cause),
            Ok(seen) => {
                self.settle(place, seen);
                self.look_for_end(place);
            }
        }
    }

    /// After a look: a connection with messages becomes hot if there is room, one without must
    /// ring, and one that could not be emptied is looked at again.
    fn settle(&mut self, place: u32, seen: Seen) {
        let hot_room = self.hot.len() < self.config.hot_max as usize;
        let Some(pair) = self.pair_at(place).filter(|pair| !pair.hot) else { return };
        if seen != Seen::Nothing && hot_room {
            pair.hot = true;
            pair.go_busy();
            self.hot.push(place);
        } else if seen == Seen::More || !pair.go_idle() {
            self.core.notify_self(place);
        }
    }

    /// Looks at as many connections, in turn, as the time since the last call allows for.
    #[cold]
    fn go_round(&mut self, out: &mut Completions) {
        for _ in 0..self.looks_due() {
            self.round = if self.round + 1 < self.live.len() { self.round + 1 } else { 0 };
            let place = self.live[self.round];
            // Hot connections are looked at in every poll.
            if self.pair_at(place).is_some_and(|pair| !pair.hot) {
                self.answer(place, out);
            }
        }
    }

    /// Looks of the round that are due now; never more than there are connections.
    fn looks_due(&mut self) -> u64 {
        let now = self.clock.now();
        let live = self.live.len() as u64;
        let elapsed = now.0.saturating_sub(self.round_at.0);
        if live == 0 || elapsed >= self.round_ticks {
            self.round_at = now;
            return live;
        }
        let due = elapsed * live / self.round_ticks;
        self.round_at.0 += due * self.round_ticks / live;
        due
    }

    /// Notifies the core of each connection with a message or an end. True if there was one.
    fn look_at_all(&self) -> bool {
        let mut found = false;
        for place in &self.live {
            let pair = self.places[*place as usize].pair.as_deref();
            if pair.is_some_and(|pair| pair.has_arrival() || pair.check_end().is_err()) {
                self.core.notify_self(*place);
                found = true;
            }
        }
        found
    }

    /// Ends a connection; its completions come with later polls.
    #[cold]
    fn take_down(&mut self, place: u32, cause: DownCause) {
        let Some(pair) = self.pair_at(place) else { return };
        if pair.cause.is_some() {
            return;
        }
        pair.go_down(cause);
        pair.hot = false;
        let id = pair.id;
        for list in [&mut self.hot, &mut self.sent, &mut self.waiting] {
            list.retain(|other| *other != place);
        }
        self.ending.push_back(id);
    }

    #[inline]
    fn note_sent(sent: &mut Vec<u32>, pair: &mut QueuePair) {
        if !pair.sent {
            pair.sent = true;
            sent.push(pair.id.index());
        }
    }

    /// Goes on with the send queues.
    #[cold]
    fn progress_waiting(&mut self) {
        let mut at = 0;
        while let Some(place) = self.waiting.get(at).copied() {
            match self.progress(place) {
                Ok(Progress::Waiting) => at += 1,
                Ok(Progress::Empty) => self.stop_waiting(at, place),
                // Takes it off the list, too.
                Err(cause) => self.take_down(place, cause),
            }
        }
    }

    fn progress(&mut self, place: u32) -> Result<Progress, DownCause> {
        let pair = self.places.get_mut(place as usize).and_then(|place| place.pair.as_deref_mut());
        let Some(pair) = pair else { return Ok(Progress::Empty) };
        Self::note_sent(&mut self.sent, pair);
        pair.progress(&mut self.done)
    }

    fn stop_waiting(&mut self, at: usize, place: u32) {
        self.waiting.swap_remove(at);
        if let Some(pair) = self.pair_at(place) {
            pair.waiting = false;
        }
    }

    /// Rings for what was sent, where the peer wants that: one fence for all of it.
    #[inline]
    fn ring_bells(&mut self) {
        // Pairs with the fence of the peer's `go_idle`.
        fence(Ordering::SeqCst);
        while let Some(place) = self.sent.pop() {
            if let Some(pair) = self.pair_at(place) {
                pair.sent = false;
                pair.ring_if_wanted();
            }
        }
    }

    /// Nothing to do, and every peer will ring: then the core may sleep.
    fn go_all_idle(&mut self) -> bool {
        while let Some(place) = self.hot.first().copied() {
            if !self.cool(0, place) {
                return false;
            }
        }
        self.done.is_empty() && self.ending.is_empty() && self.waiting.is_empty()
    }
}

impl Fabric for ShmFabric {
    type Endpoint = ShmEndpoint;

    const SENDS_SHORTS: bool = true;

    fn caps(&self) -> &Caps {
        &self.caps
    }

    #[inline]
    fn poll(&mut self, out: &mut Completions) -> usize {
        let room = out.room();
        self.polls = self.polls.wrapping_add(1);
        let ended = !self.done.is_empty() || !self.ending.is_empty();
        if ended || self.core.bell.bits().rings() || self.core.notices.rings() {
            self.poll_news(out);
        }
        self.wait_a_little();
        self.poll_hot(out);
        if self.polls.is_multiple_of(CLOCK_POLLS) {
            self.go_round(out);
        }
        room - out.room()
    }

    #[inline]
    fn post_recv(&mut self, qp: QpId, buf: Buf) -> Result<(), Full<Buf>> {
        match self.pair(qp) {
            Some(pair) => pair.post_recv(buf),
            None => Err(Full(buf)),
        }
    }

    fn take_shorts(&mut self) -> bool {
        self.takes_shorts = true;
        true
    }

    fn receive_of_short(&mut self, qp: QpId) -> Option<Buf> {
        self.pair(qp)?.receive_of_short()
    }

    #[inline]
    fn send_short(&mut self, qp: QpId, message: &Short) -> bool {
        let place = self.places.get_mut(qp.index() as usize);
        let place = place.filter(|place| place.generation == qp.generation());
        let Some(pair) = place.and_then(|place| place.pair.as_deref_mut()) else { return false };
        match pair.send_short(message) {
            Ok(true) => Self::note_sent(&mut self.sent, pair),
            Ok(false) => return false,
            Err(cause) => self.take_down(qp.index(), cause),
        }
        true
    }

    #[inline]
    fn post(&mut self, qp: QpId, wr: SendWr) -> Result<(), Full<SendWr>> {
        let place = self.places.get_mut(qp.index() as usize);
        let place = place.filter(|place| place.generation == qp.generation());
        let Some(pair) = place.and_then(|place| place.pair.as_deref_mut()) else {
            return Err(Full(wr));
        };
        match pair.post(wr)? {
            Ok(Progress::Empty) => Self::note_sent(&mut self.sent, pair),
            Ok(Progress::Waiting) if pair.waiting => {}
            Ok(Progress::Waiting) => {
                pair.waiting = true;
                self.waiting.push(qp.index());
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
        if !self.sent.is_empty() {
            self.ring_bells();
        }
    }

    fn send_room(&self, qp: QpId) -> usize {
        self.pair_ref(qp).map_or(0, QueuePair::send_room)
    }

    fn has_unsent(&self, qp: QpId) -> bool {
        self.pair_ref(qp).is_some_and(QueuePair::has_unsent)
    }

    fn adopt(&mut self, endpoint: ShmEndpoint) -> Result<QpId, FabricError> {
        let failed = |reason: &str, source| FabricError {
            op: "adopt a shm connection".into(),
            reason: reason.into(),
            source,
        };
        let link = endpoint.link;
        if !Arc::ptr_eq(link.place.core(), &self.core) {
            return Err(failed("it was made for another core", None));
        }
        let index = link.place.index();
        let id = QpId::new(index, self.places[index as usize].generation);
        let mut pair = QueuePair::new(id, link, &self.config)
            .map_err(|error| failed("its queue pair could not be made", Some(error)))?;
        pair.takes_shorts = self.takes_shorts;
        self.places[index as usize].pair = Some(Box::new(pair));
        self.live.push(index);
        // It starts out cold; what came before now has rung for nobody.
        self.core.notify_self(index);
        Ok(id)
    }

    fn close(&mut self, qp: QpId) {
        if self.pair(qp).is_some() {
            self.take_down(qp.index(), DownCause::Local);
        }
    }

    fn connection_memory(&self, qp: QpId) -> Option<&BulkPool> {
        Some(self.pair_ref(qp)?.memory())
    }

    fn bulk(&mut self, qp: QpId, bytes: usize) -> Option<Bulk> {
        self.pair(qp)?.bulk(bytes)
    }

    fn expose(
        &mut self,
        qp: QpId,
        memory: Lease,
        access: Access,
    ) -> Result<RemoteSlice, ExposeError> {
        self.pair(qp).ok_or(ExposeError::Down)?.expose(memory, access)
    }

    fn revoke(&mut self, qp: QpId, handle: u32) -> Revoked {
        if let Some(pair) = self.pair(qp) {
            pair.revoke(handle);
        }
        Revoked::Now
    }

    fn park(&mut self, at_most: Duration) {
        self.flush();
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
            if !self.core.park(left.min(ROUND_TIME)) || self.look_at_all() {
                return;
            }
        }
    }

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::clone(&self.core) as Arc<dyn Wake>
    }
}

impl Drop for ShmFabric {
    fn drop(&mut self) {
        for index in 0..self.places.len() {
            self.take_down(index as u32, DownCause::Local);
        }
        // The links go with the places; the peers have been told.
        self.places.clear();
        self.core.taken.store(false, Ordering::Release);
    }
}
