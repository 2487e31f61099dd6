//! The client's loop. Closed: every slot of every lane has one call in flight; its reply starts the
//! next, and one clock read per reply is the end of one call and the start of the next. It comes when the
//! next call has left, so that it delays none: what a call takes to leave counts for the one before. Open: calls
//! start when a [`Pacer`](super::schedule::Pacer) says, which is checked in every turn of the core.
//!
//! A call counts if it starts in the measured time, whenever it ends. Calls in flight at the end of
//! that time are waited for during the grace of the drive, and are lost afterwards. The drive lasts
//! until the last of them is answered, so that calls that end late do not raise its rate.
//!
//! A lane is a busy connection. All lanes of a core share one [`Driver`], which the reply handlers
//! reach through a `RefCell`: the engine never runs two handlers of a core at a time, and runs none
//! within `Client::call`.
//!
//! A call that finds no credit or room waits in its lane, behind those that wait already, and its
//! latency includes that time: if its slot could be overtaken, a few slots would make all the calls, and
//! the latency would be that of their number.

use super::callers::Caller;
use super::open_loop::{Open, OpenTally};
use super::schedule::{Drive, Mixer, Phase, Schedule};
use super::slot::Slot;
use super::workload::Workload;
use crate::failure::Failure;
use crate::interrupt;
use crate::latency::{Recorded, Recorder};
use crate::pattern::Verify;
use spinrpc::sys::clock::{Clock, Ticks};
use spinrpc::{Backpressure, CallError, Client, ConnectionEvent, Reply, ReplyHandler, Slab, Token};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

pub(super) struct Driver {
    workload: Workload,
    clock: Clock,
    lanes: Vec<Lane>,
    /// Lanes with calls that wait, each once; some have started theirs meanwhile.
    stalled: VecDeque<usize>,
    in_flight: usize,
    /// Time since which calls have found no memory, with no call in flight that could return some.
    starved_since: Option<Ticks>,
    /// Number of the last call; stays 0 if nothing is verified.
    last_seed: u64,
    schedule: Schedule,
    /// Maximum wait for measured calls when no more start, in ticks.
    grace: u64,
    interrupt: Interrupt,
    turns: u32,
    calls_left: u64,
    mixer: Option<Mixer>,
    open: Option<Open>,
    recorders: Vec<Recorder>,
    lost: Vec<u64>,
    /// End of the measured call that was answered last.
    last_reply: u64,
    carried_in: u64,
    failure: Option<Failure>,
    /// True while connections may be lost without that being a failure.
    closing: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interrupt {
    Ignored,
    Awaited,
    Happened,
}

pub(super) type Place = (usize, usize);

struct Lane {
    calls: Calls,
    slots: Vec<Slot>,
    /// Slots whose calls could not start for lack of credits or room, in the order of their calls.
    waiting: VecDeque<usize>,
    is_stalled: bool,
}

pub(super) enum Calls {
    /// The core's own, whose replies come to a handler.
    Core(Client),
    /// Those of this thread by a handle, which takes the answers itself.
    Thread(Caller),
}

impl Lane {
    #[inline(always)]
    fn call(&mut self, slot: usize) -> Result<(), Backpressure> {
        let token = Token(slot as u64);
        match &mut self.calls {
            Calls::Core(client) => self.slots[slot].call(client, token),
            Calls::Thread(caller) => caller.call(token),
        }
    }
}

/// Memory of a drive for its samples. It is made before the drive begins: several MiB, for whose pages a virtual machine may
/// take tens of milliseconds.
pub(super) struct Recorders {
    /// One for each share of the workload.
    calls: Vec<Recorder>,
    /// Of an open loop.
    service: Option<Recorder>,
}

impl Recorders {
    pub(super) fn new(workload: &Workload) -> Result<Self, Failure> {
        let calls = workload.shares().iter().map(|_| Recorder::new()).collect::<Result<_, _>>()?;
        let service = workload.rate.map(|_| Recorder::new()).transpose()?;
        Ok(Self { calls, service })
    }
}

pub(super) struct Tally {
    /// The samples of each share of the workload; their number is the number of calls.
    pub(super) recorded: Vec<Recorded>,
    /// Measured calls of each share that were never answered, or after their deadline.
    pub(super) lost: Vec<u64>,
    /// Calls are still in flight: the connections are unusable.
    pub(super) is_stuck: bool,
    pub(super) is_interrupted: bool,
    /// Part of the measured time used by an earlier call, in ticks.
    pub(super) carried_in: u64,
    /// Start of the measured time, and its end or that of its last call.
    pub(super) span: [u64; 2],
    pub(super) open: Option<OpenTally>,
}

impl Tally {
    /// The calls of both loops, which ran at the same time.
    pub(super) fn and(mut self, other: Self) -> Self {
        self.recorded.iter_mut().zip(&other.recorded).for_each(|(all, one)| all.merge(one));
        self.lost.iter_mut().zip(&other.lost).for_each(|(all, one)| *all += one);
        self.is_stuck |= other.is_stuck;
        self.is_interrupted |= other.is_interrupted;
        self.carried_in = self.carried_in.max(other.carried_in);
        let ([start, end], [other_start, other_end]) = (self.span, other.span);
        self.span = [start.min(other_start), end.max(other_end)];
        if let (Some(all), Some(one)) = (&mut self.open, &other.open) {
            all.merge(one);
        }
        self
    }
}

fn is_late(error: &CallError) -> bool {
    matches!(error, CallError::TimedOut)
}

impl Driver {
    pub(super) fn new(workload: Workload) -> Rc<RefCell<Self>> {
        let lanes = workload.connections;
        Rc::new(RefCell::new(Self {
            workload,
            clock: Clock::shared(),
            lanes: Vec::with_capacity(lanes),
            stalled: VecDeque::with_capacity(lanes),
            in_flight: 0,
            starved_since: None,
            last_seed: 0,
            schedule: Schedule::default(),
            grace: 0,
            interrupt: Interrupt::Ignored,
            turns: 0,
            calls_left: 0,
            mixer: None,
            open: None,
            recorders: Vec::new(),
            lost: Vec::new(),
            last_reply: 0,
            carried_in: 0,
            failure: None,
            closing: false,
        }))
    }

    pub(super) fn add_lane(&mut self, client: Client, slab: Option<&Slab>) -> Result<(), Failure> {
        self.add(Calls::Core(client), slab)
    }

    pub(super) fn add(&mut self, calls: Calls, slab: Option<&Slab>) -> Result<(), Failure> {
        let client = match &calls {
            Calls::Core(client) => Some(client),
            Calls::Thread(_) => None,
        };
        let depth = self.workload.depth;
        let slots = (0..depth).map(|_| Slot::new(&self.workload, client, slab));
        let slots = slots.collect::<Result<_, _>>()?;
        let waiting = VecDeque::with_capacity(depth);
        self.lanes.push(Lane { calls, slots, waiting, is_stalled: false });
        Ok(())
    }

    pub(super) fn start(&mut self, drive: &Drive, memory: Recorders) -> Result<(), Failure> {
        if self.in_flight > 0 {
            let still = "calls of the last drive are still in flight";
            return Err(Failure::Measurement(still.to_owned()));
        }
        let measured = match self.workload.rate {
            Some(rate) => Open::measured_ticks(rate, drive, &self.clock),
            None => drive.measured,
        };
        let drive = &Drive { measured, ..*drive };
        let shares = self.workload.shares();
        self.recorders = memory.calls;
        self.lost = vec![0; shares.len()];
        (self.last_reply, self.carried_in, self.turns) = (0, 0, 0);
        self.interrupt =
            if drive.can_be_interrupted { Interrupt::Awaited } else { Interrupt::Ignored };
        self.mixer = Mixer::new(&shares, drive.seed(self.workload.seed));
        self.calls_left = drive.calls_max.unwrap_or(u64::MAX);
        let places = self.places();
        self.open = self.workload.rate.zip(memory.service).map(|(rate, service)| {
            Open::new(rate, self.workload.seed, drive, &self.clock, (places, service))
        });
        let late = self.clock.from_duration(LATE_MIN).max(drive.measured / LATE_SHARE);
        self.grace = drive.grace;
        self.schedule = Schedule::new(drive, if self.open.is_some() { late } else { 0 });
        self.cross(drive.begin);
        if self.open.is_none() {
            self.begin_slots(drive.begin);
        }
        Ok(())
    }

    fn places(&self) -> impl Iterator<Item = Place> + use<> {
        let (lanes, depth) = (self.lanes.len(), self.workload.depth);
        (0..depth).flat_map(move |slot| (0..lanes).map(move |lane| (lane, slot)))
    }

    fn begin_slots(&mut self, now: u64) {
        for (lane, slot) in self.places() {
            if self.schedule.phase != Phase::Over
                && let Some(entry) = self.lanes.get_mut(lane)
            {
                entry.slots[slot].started = now;
                let counts = self.next_counts(now);
                self.issue(lane, slot, counts);
            }
        }
    }

    /// Called every turn; returns whether the drive is over.
    #[inline]
    pub(super) fn turn(&mut self) -> bool {
        if !self.stalled.is_empty() {
            self.retry_stalled();
        }
        if self.open.is_some() {
            self.pace();
        }
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS_PER_LOOK) && self.is_waiting_over() {
            return true;
        }
        self.in_flight == 0
            && self.stalled.is_empty()
            && (self.schedule.phase == Phase::Over || self.open.is_none())
    }

    /// True when calls in flight were waited for long enough. Without replies, only this reads the clock.
    #[cold]
    fn is_waiting_over(&mut self) -> bool {
        let now = self.clock.now().0;
        if self.interrupt == Interrupt::Awaited && interrupt::signal().is_some() {
            self.interrupt(now);
        }
        now > self.schedule.stop.saturating_add(self.grace)
    }

    #[cold]
    pub(super) fn interrupt(&mut self, now: u64) {
        self.interrupt = Interrupt::Happened;
        self.grace = self.grace.min(self.clock.from_duration(GRACE_OF_INTERRUPT));
        if now >= self.schedule.end {
            // Only shortens the wait.
            self.schedule.stop = self.schedule.stop.min(now);
            (self.schedule.phase, self.grace) = (Phase::Over, 0);
        } else {
            let cut = self.open.as_mut().map(|open| open.cut(now));
            let end = cut.map_or(now, |ticks| self.schedule.start.saturating_add(ticks));
            self.schedule.finish(now);
            self.schedule.end = self.schedule.end.max(end);
        }
        self.give_up_measured();
    }

    pub(super) fn finish(&mut self) -> Result<Tally, Failure> {
        let is_waiting = self.lanes.iter().any(|lane| !lane.waiting.is_empty());
        let is_stuck = self.in_flight > 0 || is_waiting;
        if is_stuck {
            self.lose_pending();
        }
        let Schedule { start, end, .. } = self.schedule;
        self.schedule.finish(end);
        match self.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(Tally {
                recorded: self.recorders.drain(..).map(Recorder::finish).collect(),
                lost: std::mem::take(&mut self.lost),
                is_stuck,
                is_interrupted: self.interrupt == Interrupt::Happened,
                carried_in: self.carried_in,
                span: [start, end.max(self.last_reply)],
                open: self.open.take().map(Open::tally),
            }),
        }
    }

    #[cold]
    fn lose_pending(&mut self) {
        self.give_up_measured();
        self.forget_waiting();
        for slot in self.lanes.iter_mut().flat_map(|lane| &mut lane.slots) {
            if std::mem::take(&mut slot.is_pending) && std::mem::take(&mut slot.counts) {
                self.lost[slot.part] += 1;
            }
        }
    }

    pub(super) fn close(&mut self) -> impl Iterator<Item = Client> {
        self.closing = true;
        self.lanes.drain(..).filter_map(|lane| match lane.calls {
            Calls::Core(client) => Some(client),
            Calls::Thread(_) => None,
        })
    }

    fn pace(&mut self) {
        let now = self.clock.now().0;
        if self.schedule.is_due(now) {
            self.cross(now);
        }
        while self.schedule.phase != Phase::Over {
            let due = self.open.as_mut().and_then(|open| open.due(now));
            let Some((intended, counts, (lane, slot))) = due else { break };
            let Some(entry) = self.lanes.get_mut(lane) else { break };
            entry.slots[slot].started = intended;
            self.issue(lane, slot, counts);
        }
    }

    #[cold]
    fn cross(&mut self, now: u64) {
        self.schedule.advance(now);
        if self.schedule.phase > Phase::Measured {
            self.give_up_measured();
        }
    }

    /// Counts the calls of an open loop that should have started in the measured time.
    fn give_up_measured(&mut self) {
        let Some(open) = &mut self.open else { return };
        open.skip_measured();
        for (index, Lane { slots, waiting, .. }) in self.lanes.iter_mut().enumerate() {
            waiting.retain(|&slot| {
                let call = &mut slots[slot];
                let counts = call.counts;
                if counts {
                    (call.counts, call.is_pending) = (false, false);
                    open.never_sent((index, slot));
                }
                !counts
            });
        }
    }

    fn forget_waiting(&mut self) {
        self.stalled.clear();
        for lane in &mut self.lanes {
            lane.waiting.clear();
            lane.is_stalled = false;
        }
    }

    /// Stops at the first lane whose next call cannot start, which moves to the end: the next turn begins
    /// with another one.
    fn retry_stalled(&mut self) {
        while let Some(index) = self.stalled.pop_front() {
            while self.start_waiting(index) {
                self.starved_since = None;
            }
            let Some(lane) = self.lanes.get_mut(index) else { return };
            lane.is_stalled = !lane.waiting.is_empty();
            if lane.is_stalled {
                return self.stalled.push_back(index);
            }
        }
    }

    fn start_waiting(&mut self, lane: usize) -> bool {
        let first = |driver: &Self| driver.lanes.get(lane)?.waiting.front().copied();
        let is_started = first(self).is_some_and(|slot| self.attempt(lane, slot));
        if is_started && let Some(lane) = self.lanes.get_mut(lane) {
            lane.waiting.pop_front();
        }
        is_started
    }

    /// The first call of its lane has a credit if this one's slot has returned it.
    #[cold]
    fn wait(&mut self, index: usize, slot: usize, was_first: bool) {
        let Some(lane) = self.lanes.get_mut(index).filter(|_| self.failure.is_none()) else {
            return;
        };
        lane.waiting.push_back(slot);
        if !std::mem::replace(&mut lane.is_stalled, true) {
            self.stalled.push_back(index);
        }
        if !was_first {
            self.start_waiting(index);
        }
    }

    /// The last allowed call ends the measured time.
    #[inline]
    fn next_counts(&mut self, now: u64) -> bool {
        let counts = self.schedule.phase == Phase::Measured;
        self.calls_left -= u64::from(counts);
        if self.calls_left == 0 {
            self.schedule.finish(now);
        }
        counts
    }

    #[inline(always)]
    fn issue(&mut self, index: usize, slot: usize, counts: bool) {
        if self.workload.verify != Verify::Off {
            self.last_seed += 1;
        }
        let Some(lane) = self.lanes.get_mut(index) else { return };
        let next = &mut lane.slots[slot];
        if let Some(mixer) = &mut self.mixer {
            next.part = mixer.pick();
        }
        next.renew(self.last_seed);
        (next.counts, next.is_pending) = (counts, true);
        if self.open.is_some() {
            next.sent = self.clock.now().0;
        }
        let is_first = lane.waiting.is_empty();
        let is_started = is_first && {
            let called = lane.call(slot);
            self.on_called(index, slot, called)
        };
        if !is_started {
            self.wait(index, slot, is_first);
        }
    }

    fn attempt(&mut self, index: usize, slot: usize) -> bool {
        let Some(lane) = self.lanes.get_mut(index) else { return false };
        if self.open.is_some() {
            lane.slots[slot].sent = self.clock.now().0;
        }
        let called = lane.call(slot);
        self.on_called(index, slot, called)
    }

    #[inline]
    fn on_called(&mut self, lane: usize, slot: usize, called: Result<(), Backpressure>) -> bool {
        if let Err(refused) = called {
            self.on_refused(lane, slot, &refused);
            return false;
        }
        self.in_flight += 1;
        if self.open.is_some() {
            self.on_sent(lane, slot);
        }
        true
    }

    fn on_sent(&mut self, lane: usize, slot: usize) {
        let (Some(open), Some(lane)) = (&mut self.open, self.lanes.get_mut(lane)) else { return };
        let slot = &lane.slots[slot];
        if slot.counts {
            open.on_measured(slot.started, slot.sent, self.schedule.is_measured(slot.sent));
            if let Some(ticks) = open.early_end() {
                let end = slot.sent.max(self.schedule.start.saturating_add(ticks));
                self.schedule.finish(slot.sent);
                self.schedule.end = end;
            }
        }
    }

    #[cold]
    fn on_refused(&mut self, lane: usize, slot: usize, refused: &Backpressure) {
        match refused {
            Backpressure::NoBuffer if self.is_starved() => {
                let starved = self.lanes.get(lane).map(|lane| lane.slots[slot].no_memory());
                starved.into_iter().for_each(|failure| self.fail(failure));
            }
            Backpressure::NoCredit
            | Backpressure::NoBuffer
            | Backpressure::SendQueueFull
            | Backpressure::TooManyCalls
            | Backpressure::AnswerQueueFull => {}
            _ => self.fail(Failure::Measurement(format!("a call was rejected: {refused}"))),
        }
    }

    /// Memory of the last calls is returned a little after their replies.
    fn is_starved(&mut self) -> bool {
        if self.in_flight > 0 {
            self.starved_since = None;
            return false;
        }
        let now = self.clock.now();
        let since = *self.starved_since.get_or_insert(now);
        now.0.saturating_sub(since.0) > self.clock.from_duration(STARVED_AFTER)
    }

    /// By reference: a copy of the reply would be read from stores that have just been made, some of them in parts,
    /// and so wait until the last call is in shared memory.
    #[inline]
    fn on_reply(&mut self, lane: usize, token: Token, reply: &mut Result<Reply<'_>, CallError>) {
        let is_late = reply.as_ref().is_err_and(is_late);
        self.on_end(lane, token, is_late, |slot| slot.take_reply(reply));
    }

    pub(super) fn take_answer(&mut self) -> bool {
        let Some(Lane { calls: Calls::Thread(caller), .. }) = self.lanes.first_mut() else {
            return false;
        };
        let Some((token, answer)) = caller.answer() else { return false };
        let is_late = answer.as_ref().is_err_and(is_late);
        self.on_end(0, token, is_late, |slot| slot.ended(answer).map(drop));
        true
    }

    #[inline]
    fn on_end(
        &mut self,
        lane: usize,
        token: Token,
        is_late: bool,
        take: impl FnOnce(&mut Slot) -> Result<(), Failure>,
    ) {
        // An open loop's calls do not follow one another: none waits for the clock.
        let ended_at = self.open.is_some().then(|| self.clock.now().0);
        let slot_index = token.0 as usize;
        self.in_flight -= 1;
        let Some(slot) = self.lanes.get_mut(lane).and_then(|lane| lane.slots.get_mut(slot_index))
        else {
            return;
        };
        if !is_late && let Err(failure) = take(slot) {
            return self.fail(failure);
        }
        slot.is_pending = false;
        let (share, started, sent) = (slot.part, slot.started, slot.sent);
        let ended = Ended { share, started, counts: std::mem::take(&mut slot.counts), is_late };
        let now = match (&mut self.open, ended_at) {
            (Some(open), Some(now)) => {
                open.free((lane, slot_index));
                if ended.counts && !is_late {
                    open.record_service(now.saturating_sub(sent));
                }
                now
            }
            _ => self.repeat(lane, slot_index),
        };
        // After the next call has left: recording is not part of the round trip.
        self.count(&ended, now);
    }

    /// Starts the next call of a closed loop's slot, unless the drive is over. Returns the time.
    #[inline(always)]
    fn repeat(&mut self, lane: usize, slot: usize) -> u64 {
        let goes_on = self.schedule.phase != Phase::Over;
        // Of a mix the next call may be of another share, which its preparing and leaving are counted for.
        let ended_at = self.mixer.is_some().then(|| self.clock.now().0);
        if goes_on {
            self.issue(lane, slot, false);
        }
        let now = ended_at.unwrap_or_else(|| self.clock.now().0);
        if self.schedule.is_due(now) {
            self.cross(now);
        }
        if goes_on {
            let counts = self.next_counts(now);
            if let Some(slot) = self.lanes.get_mut(lane).and_then(|lane| lane.slots.get_mut(slot)) {
                (slot.started, slot.counts) = (now, counts);
            }
        }
        now
    }

    #[inline(always)]
    fn count(&mut self, ended: &Ended, now: u64) {
        let &Ended { share, started, counts, is_late } = ended;
        if !counts {
            let Schedule { start, end, .. } = self.schedule;
            if started < start {
                self.carried_in = self.carried_in.max(now.min(end).saturating_sub(start));
            }
            return;
        }
        if is_late {
            self.lost[share] += 1;
            return;
        }
        self.last_reply = now;
        self.recorders[share].record(now.saturating_sub(started));
    }

    #[cold]
    fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
        self.forget_waiting();
        self.schedule = Schedule::default();
        self.grace = 0;
    }
}

struct Ended {
    share: usize,
    started: u64,
    counts: bool,
    is_late: bool,
}

pub(super) struct LaneHandler {
    pub(super) driver: Rc<RefCell<Driver>>,
    pub(super) lane: usize,
}

impl ReplyHandler for LaneHandler {
    #[inline]
    fn on_reply(&mut self, token: Token, mut reply: Result<Reply<'_>, CallError>) {
        self.driver.borrow_mut().on_reply(self.lane, token, &mut reply);
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        let mut driver = self.driver.borrow_mut();
        if let ConnectionEvent::Down { cause, .. } = event
            && !driver.closing
        {
            driver.fail(Failure::Measurement(format!("the connection was lost: {cause}")));
        }
    }
}

/// Grace for late calls of an open loop. Their latency counts, with all the time they have waited.
const LATE_MIN: Duration = Duration::from_millis(20);
/// Or this fraction of the measured time, if that is longer.
const LATE_SHARE: u64 = 100;
const GRACE_OF_INTERRUPT: Duration = Duration::from_millis(500);
/// Rare enough not to affect a round trip, and still several per second on a core that sleeps in
/// each turn.
const TURNS_PER_LOOK: u32 = 32;
/// Longer than it takes for the memory of a finished call to be returned.
const STARVED_AFTER: Duration = Duration::from_secs(2);
