//! Additional state of an open loop: the start of the next call, the free slots, and the adherence to the rate.

use super::driver::Place;
use super::schedule::{Drive, Pacer};
use super::workload::Rate;
use crate::latency::{Recorded, Recorder};
use spinrpc::sys::clock::Clock;
use std::collections::VecDeque;
use std::time::Duration;

pub(super) struct Open {
    pacer: Pacer,
    /// Slots without a call, the longest idle one first.
    free: VecDeque<Place>,
    service: Recorder,
    /// Without the round trips, which are `service` until the end.
    tally: OpenTally,
    /// Measured calls that slots have taken so far.
    taken: u64,
    /// Time that they take, if their number ends the measured time.
    early_end: Option<u64>,
    late_ticks: u64,
}

#[derive(Default)]
pub(super) struct OpenTally {
    /// Round trips from the actual start.
    pub(super) service: Option<Recorded>,
    /// Calls that were to start in the measured time.
    pub(super) planned: u64,
    /// Measured calls: those that were to start in the measured time, and did start.
    pub(super) sent: u64,
    pub(super) late: u64,
    pub(super) overran: u64,
    /// Calls that had not started when the measured time and its grace ended.
    pub(super) never_sent: u64,
}

impl Open {
    pub(super) fn new(
        rate: Rate,
        seed: u64,
        drive: &Drive,
        clock: &Clock,
        (slots, service): (impl Iterator<Item = Place>, Recorder),
    ) -> Self {
        let per_tick = per_tick(rate, drive, clock);
        let whole = whole_calls(per_tick, drive);
        let planned = whole.min(drive.calls_max.unwrap_or(u64::MAX));
        let early_end = (planned as f64 / per_tick).ceil() as u64;
        Self {
            pacer: Pacer::new(drive, per_tick, rate.arrivals, seed, planned),
            free: slots.collect(),
            service,
            tally: OpenTally { planned, ..OpenTally::default() },
            taken: 0,
            early_end: (planned < whole).then_some(early_end),
            late_ticks: clock.from_duration(LATE_AFTER),
        }
    }

    /// The requested time in ticks, rounded down to a whole number of calls.
    pub(super) fn measured_ticks(rate: Rate, drive: &Drive, clock: &Clock) -> u64 {
        let per_tick = per_tick(rate, drive, clock);
        (whole_calls(per_tick, drive) as f64 / per_tick).ceil() as u64
    }

    /// In ticks; `None` until all planned calls have started, and no more are to follow.
    #[inline]
    pub(super) fn early_end(&self) -> Option<u64> {
        self.early_end.filter(|_| self.tally.sent == self.tally.planned)
    }

    /// None while every slot has a call: it is due later, with the same intended start.
    #[inline]
    pub(super) fn due(&mut self, now: u64) -> Option<(u64, bool, Place)> {
        let intended = self.pacer.next;
        if intended > now {
            return None;
        }
        let place = self.free.pop_front()?;
        let counts = self.pacer.counts;
        self.taken += u64::from(counts);
        self.pacer.step();
        Some((intended, counts, place))
    }

    #[inline]
    pub(super) fn free(&mut self, place: Place) {
        self.free.push_back(place);
    }

    /// A measured call has started, in the measured time or within the grace after it.
    pub(super) fn on_measured(&mut self, intended: u64, sent: u64, in_time: bool) {
        self.tally.sent += 1;
        self.tally.overran += u64::from(!in_time);
        self.tally.late += u64::from(sent.saturating_sub(intended) > self.late_ticks);
    }

    #[inline]
    pub(super) fn record_service(&mut self, ticks: u64) {
        self.service.record(ticks);
    }

    pub(super) fn never_sent(&mut self, place: Place) {
        self.tally.never_sent += 1;
        self.free(place);
    }

    pub(super) fn skip_measured(&mut self) {
        self.pacer.skip_measured();
        self.tally.never_sent += self.tally.planned.saturating_sub(self.taken);
        self.taken = self.tally.planned;
    }

    /// Ends the measured time now; returns its length in ticks.
    pub(super) fn cut(&mut self, now: u64) -> u64 {
        let (calls, ticks) = self.pacer.measured_by(now);
        self.tally.planned = calls.max(self.taken);
        ticks
    }

    pub(super) fn tally(self) -> OpenTally {
        OpenTally { service: Some(self.service.finish()), ..self.tally }
    }
}

impl OpenTally {
    pub(super) fn merge(&mut self, other: &Self) {
        if let (Some(all), Some(one)) = (&mut self.service, &other.service) {
            all.merge(one);
        }
        self.planned += other.planned;
        self.sent += other.sent;
        self.late += other.late;
        self.overran += other.overran;
        self.never_sent += other.never_sent;
    }

    pub(super) fn intended(&self) -> u64 {
        self.sent + self.never_sent
    }

    pub(super) fn adherence_percent(&self) -> f64 {
        let in_time = (self.sent - self.overran) as f64;
        match self.intended() {
            0 => 100.0,
            intended => in_time * 100.0 / intended as f64,
        }
    }
}

fn per_tick(rate: Rate, drive: &Drive, clock: &Clock) -> f64 {
    let per_second = rate.per_second as f64 / drive.core.1.max(1) as f64;
    per_second / clock.ticks_per_second() as f64
}

fn whole_calls(per_tick: f64, drive: &Drive) -> u64 {
    (drive.measured as f64 * per_tick + ROUNDING) as u64
}

/// Ticks are rounded down, so ten seconds may lack a tick for their last call.
const ROUNDING: f64 = 1e-3;
/// Starts after this delay are late.
pub(super) const LATE_AFTER: Duration = Duration::from_micros(5);
