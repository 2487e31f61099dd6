//! The client's loop. Closed: every slot of every lane has one call under way; its reply starts the
//! next, and one clock read per reply serves as end of one call and start of the next. Open: calls
//! start when a [`Pacer`](super::schedule::Pacer) says, looked at in every turn of the core.
//!
//! A lane is a busy connection. All lanes of a core share one [`Driver`], which the reply handlers
//! reach through a `RefCell`: the engine never runs two handlers of a core at a time, and runs none
//! within `Client::call`.

use super::open::{Open, OpenTally};
use super::random::Mixer;
use super::schedule::{Drive, Phase, Schedule};
use super::slot::Slot;
use super::workload::Workload;
use crate::failure::Failure;
use crate::latency::Recorder;
use crate::pattern::Verify;
use spinrpc::sys::clock::{Clock, Ticks};
use spinrpc::{Backpressure, CallError, Client, ConnectionEvent, Reply, ReplyHandler, Token};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// The loop of one core.
pub(super) struct Driver {
    workload: Workload,
    clock: Clock,
    lanes: Vec<Lane>,
    /// Calls that could not start for want of credits or room, oldest first.
    stalled: VecDeque<Place>,
    in_flight: usize,
    /// Since when calls have found no memory, with none under way that could give some back.
    starved_since: Option<Ticks>,
    /// Number of the last call; stays 0 when nothing is verified.
    last_seed: u64,
    schedule: Schedule,
    /// Measured calls that may still come.
    calls_left: u64,
    mixer: Option<Mixer>,
    open: Option<Open>,
    /// Slots of a closed loop that have not begun yet, and when they do.
    ramp: VecDeque<(u64, Place)>,
    /// One for each share of the workload.
    recorders: Vec<Recorder>,
    failure: Option<Failure>,
    /// Connections may go down without that being a failure.
    closing: bool,
}

/// A slot of a lane, by their numbers.
pub(super) type Place = (usize, usize);

/// A busy connection.
struct Lane {
    client: Client,
    slots: Vec<Slot>,
}

/// What a drive yields.
pub(super) struct Tally {
    /// The samples of each share of the workload; their number is the number of calls.
    pub(super) recorders: Vec<Recorder>,
    /// Measured time.
    pub(super) ticks: u64,
    /// Length of the recorders' intervals.
    pub(super) interval_ticks: u64,
    pub(super) open: Option<OpenTally>,
}

impl Driver {
    /// A loop without lanes.
    pub(super) fn new(workload: Workload) -> Rc<RefCell<Self>> {
        let slots = workload.connections * workload.depth;
        Rc::new(RefCell::new(Self {
            workload,
            clock: Clock::shared(),
            lanes: Vec::with_capacity(workload.connections),
            stalled: VecDeque::with_capacity(slots),
            in_flight: 0,
            starved_since: None,
            last_seed: 0,
            schedule: Schedule::default(),
            calls_left: 0,
            mixer: None,
            open: None,
            ramp: VecDeque::with_capacity(slots),
            recorders: Vec::new(),
            failure: None,
            closing: false,
        }))
    }

    /// Adds a busy connection, with memory for all its slots.
    pub(super) fn add_lane(&mut self, client: Client) -> Result<(), Failure> {
        let slots: Result<_, _> =
            (0..self.workload.depth).map(|_| Slot::new(&self.workload, &client)).collect();
        self.lanes.push(Lane { client, slots: slots? });
        Ok(())
    }

    /// Begins a drive. A closed loop starts the first call of every slot, in the course of the ramp.
    pub(super) fn start(&mut self, drive: &Drive) -> Result<(), Failure> {
        let shares = self.workload.shares();
        let intervals = drive.intervals();
        self.recorders =
            shares.iter().map(|_| Recorder::new(intervals)).collect::<Result<_, _>>()?;
        let seed = self.workload.seed.wrapping_add(drive.core.0 as u64);
        self.mixer = Mixer::new(&shares, seed);
        self.calls_left = drive.calls_max.unwrap_or(u64::MAX);
        let places = self.places();
        self.open = match self.workload.rate {
            Some(rate) => Some(Open::new(rate, self.workload.seed, drive, &self.clock, places)?),
            None => None,
        };
        let grace = self.clock.from_duration(GRACE_MIN).max(drive.measured / GRACE_SHARE);
        self.schedule = Schedule::new(drive, if self.open.is_some() { grace } else { 0 });
        self.cross(drive.begin);
        if self.open.is_none() {
            self.begin_slots(drive);
        }
        Ok(())
    }

    /// Slot by slot, and within that lane by lane.
    fn places(&self) -> impl Iterator<Item = Place> + use<> {
        let (lanes, depth) = (self.lanes.len(), self.workload.depth);
        (0..depth).flat_map(move |slot| (0..lanes).map(move |lane| (lane, slot)))
    }

    fn begin_slots(&mut self, drive: &Drive) {
        let slots = (self.lanes.len() * self.workload.depth).max(1) as u64;
        let at = |index: usize| drive.begin + drive.ramp / slots * index as u64;
        self.ramp.extend(self.places().enumerate().map(|(index, place)| (at(index), place)));
        self.ramp_up(drive.begin);
    }

    /// Tries stalled calls again and starts those whose time has come; says whether the drive is
    /// over. Called every turn.
    #[inline]
    pub(super) fn turn(&mut self) -> bool {
        if !self.stalled.is_empty() {
            self.retry_stalled();
        }
        if self.open.is_some() || !self.ramp.is_empty() {
            self.pace();
        }
        self.in_flight == 0
            && self.stalled.is_empty()
            && (self.schedule.phase == Phase::Over || (self.open.is_none() && self.ramp.is_empty()))
    }

    /// Ends a drive.
    pub(super) fn finish(&mut self) -> Result<Tally, Failure> {
        match self.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(Tally {
                recorders: std::mem::take(&mut self.recorders),
                ticks: self.schedule.end - self.schedule.start,
                interval_ticks: self.schedule.interval(),
                open: self.open.take().map(Open::tally),
            }),
        }
    }

    /// Takes the lanes out, to close them.
    pub(super) fn close(&mut self) -> impl Iterator<Item = Client> {
        self.closing = true;
        self.lanes.drain(..).map(|lane| lane.client)
    }

    /// Starts what is to start by now, without waiting for any reply.
    fn pace(&mut self) {
        let now = self.clock.now().0;
        if self.schedule.is_due(now) {
            self.cross(now);
        }
        if self.open.is_none() {
            return self.ramp_up(now);
        }
        while self.schedule.phase != Phase::Over {
            let due = self.open.as_mut().and_then(|open| open.due(now));
            let Some((intended, (lane, slot))) = due else { break };
            let Some(entry) = self.lanes.get_mut(lane) else { break };
            let next = &mut entry.slots[slot];
            next.started = intended;
            next.counts = self.schedule.is_measured(intended);
            self.issue(lane, slot);
        }
    }

    fn ramp_up(&mut self, now: u64) {
        while let Some(&(at, (lane, slot))) = self.ramp.front().filter(|(at, _)| *at <= now) {
            self.ramp.pop_front();
            if self.schedule.phase != Phase::Over
                && let Some(entry) = self.lanes.get_mut(lane)
            {
                entry.slots[slot].started = now.max(at);
                self.issue(lane, slot);
            }
        }
    }

    /// Goes to the next phase, or the next interval of this.
    #[cold]
    fn cross(&mut self, now: u64) {
        if let Some(interval) = self.schedule.advance(now) {
            self.recorders.iter_mut().for_each(|recorder| recorder.select(interval));
        }
        if self.schedule.phase > Phase::Measured {
            self.give_up_measured();
        }
    }

    /// Counts the calls of an open loop that should have started in the measured time.
    fn give_up_measured(&mut self) {
        let Some(open) = &mut self.open else { return };
        open.skip_to(self.schedule.start, self.schedule.end);
        let lanes = &self.lanes;
        self.stalled.retain(|&(lane, slot)| {
            let counts = lanes.get(lane).is_some_and(|lane| lane.slots[slot].counts);
            if counts {
                open.never_sent((lane, slot));
            }
            !counts
        });
    }

    /// Goes on until the first refusal, which puts its call at the end: the next turn begins with
    /// another, perhaps of a lane that has credits.
    fn retry_stalled(&mut self) {
        while let Some((lane, slot)) = self.stalled.pop_front() {
            if !self.attempt(lane, slot) {
                break;
            }
            self.starved_since = None;
        }
    }

    /// Starts the next call of a slot, whose start time is set.
    #[inline]
    fn issue(&mut self, lane: usize, slot: usize) {
        if self.workload.verify != Verify::Off {
            self.last_seed += 1;
        }
        let Some(Lane { slots, .. }) = self.lanes.get_mut(lane) else { return };
        if let Some(mixer) = &mut self.mixer {
            slots[slot].choose(mixer.pick());
        }
        slots[slot].renew(self.last_seed);
        self.attempt(lane, slot);
    }

    /// Starts the call that is next in a slot, or puts it off and says `false`.
    #[inline]
    fn attempt(&mut self, lane_index: usize, slot_index: usize) -> bool {
        let Some(lane) = self.lanes.get_mut(lane_index) else { return false };
        let slot = &mut lane.slots[slot_index];
        if self.open.is_some() {
            slot.sent = self.clock.now().0;
        }
        match slot.call(&lane.client, Token(slot_index as u64)) {
            Ok(()) => {
                self.in_flight += 1;
                if self.open.is_some() {
                    self.on_sent(lane_index, slot_index);
                }
                true
            }
            Err(refused) => {
                self.put_off(lane_index, slot_index, &refused);
                false
            }
        }
    }

    /// A call of an open loop has started.
    fn on_sent(&mut self, lane: usize, slot: usize) {
        let (Some(open), Some(lane)) = (&mut self.open, self.lanes.get_mut(lane)) else { return };
        let slot = &mut lane.slots[slot];
        let in_time = self.schedule.is_measured(slot.sent);
        open.on_started(in_time);
        // Those that were to start meanwhile are too many, if there is a number.
        slot.counts &= self.calls_left > 0;
        if !slot.counts {
            return;
        }
        open.on_measured(slot.started, slot.sent, in_time);
        self.calls_left -= 1;
        if self.calls_left == 0 {
            self.schedule.finish(slot.sent);
        }
    }

    #[cold]
    fn put_off(&mut self, lane: usize, slot: usize, refused: &Backpressure) {
        match refused {
            Backpressure::NoBuffer if self.is_starved() => {
                let starved = self.lanes.get(lane).map(|lane| lane.slots[slot].no_memory());
                starved.into_iter().for_each(|failure| self.fail(failure));
            }
            Backpressure::NoCredit | Backpressure::NoBuffer | Backpressure::SendQueueFull => {
                self.stalled.push_back((lane, slot));
            }
            _ => self.fail(Failure::Measurement(format!("a call was refused: {refused}"))),
        }
    }

    /// Calls have found no memory for so long that they never will. What the last calls used comes back
    /// a little after their replies.
    fn is_starved(&mut self) -> bool {
        if self.in_flight > 0 {
            self.starved_since = None;
            return false;
        }
        let now = self.clock.now();
        let since = *self.starved_since.get_or_insert(now);
        now.0.saturating_sub(since.0) > self.clock.from_duration(STARVED_AFTER)
    }

    #[inline]
    fn on_reply(&mut self, lane: usize, token: Token, reply: Result<Reply<'_>, CallError>) {
        let now = self.clock.now().0;
        let slot_index = token.0 as usize;
        self.in_flight -= 1;
        let Some(slot) = self.lanes.get_mut(lane).and_then(|lane| lane.slots.get_mut(slot_index))
        else {
            return;
        };
        if let Err(failure) = slot.take_reply(reply) {
            return self.fail(failure);
        }
        let share = slot.share();
        if let Some(open) = &mut self.open {
            open.free((lane, slot_index));
            if slot.counts {
                self.recorders[share].record(now.saturating_sub(slot.started));
                open.record_service(now - slot.sent);
            }
            return;
        }
        let started = std::mem::replace(&mut slot.started, now);
        if self.schedule.is_due(now) {
            self.cross(now);
        }
        let counts = self.schedule.phase == Phase::Measured;
        self.calls_left -= u64::from(counts);
        if self.calls_left == 0 {
            self.schedule.finish(now);
        }
        if self.schedule.phase != Phase::Over {
            self.issue(lane, slot_index);
        }
        // After the next call has left: the histogram is not part of the round trip.
        if counts {
            self.recorders[share].record(now - started);
        }
    }

    /// Keeps the first failure and starts nothing more.
    #[cold]
    fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
        self.stalled.clear();
        self.ramp.clear();
        self.schedule = Schedule::default();
    }
}

/// Reply handler of a busy connection.
pub(super) struct LaneHandler {
    pub(super) driver: Rc<RefCell<Driver>>,
    pub(super) lane: usize,
}

impl ReplyHandler for LaneHandler {
    #[inline]
    fn on_reply(&mut self, token: Token, reply: Result<Reply<'_>, CallError>) {
        self.driver.borrow_mut().on_reply(self.lane, token, reply);
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

/// Calls of an open loop that are behind their time at its end may still start for so long: their
/// latency counts, with all the time they have waited, but no rate does them credit.
const GRACE_MIN: Duration = Duration::from_millis(20);
/// Or for this part of the measured time, if that is longer.
const GRACE_SHARE: u64 = 100;
/// Longer than what a finished call used takes to come back.
const STARVED_AFTER: Duration = Duration::from_secs(2);
