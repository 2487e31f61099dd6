//! What an open loop keeps beside the slots: when the next call starts, which slots are free for it,
//! and how well it keeps to its rate. Used by the driver.

use super::driver::Place;
use super::schedule::{Drive, Pacer};
use super::workload::Rate;
use crate::failure::Failure;
use crate::latency::Recorder;
use spinrpc::sys::clock::Clock;
use std::collections::VecDeque;
use std::time::Duration;

/// The open loop of one core.
pub(super) struct Open {
    pacer: Pacer,
    /// Slots without a call, the one that has been so for longest first.
    free: VecDeque<Place>,
    tally: OpenTally,
    late_ticks: u64,
}

/// How well it kept to its rate.
pub(super) struct OpenTally {
    /// Round trips from the actual start.
    pub(super) service: Recorder,
    /// Calls that started in the measured time, whenever they were to.
    pub(super) started: u64,
    /// Measured calls: those that were to start in the measured time, and did start.
    pub(super) sent: u64,
    /// Of them, those that started late.
    pub(super) late: u64,
    /// Of them, those that started when the measured time was over, within its grace.
    pub(super) overran: u64,
    /// Calls that the measured time and its grace ended before.
    pub(super) never_sent: u64,
}

impl Open {
    pub(super) fn new(
        rate: Rate,
        seed: u64,
        drive: &Drive,
        clock: &Clock,
        slots: impl Iterator<Item = Place>,
    ) -> Result<Self, Failure> {
        let per_second = rate.per_second as f64 / drive.core.1.max(1) as f64;
        let per_tick = per_second / clock.ticks_per_second() as f64;
        let service = Recorder::new(1)?;
        Ok(Self {
            pacer: Pacer::new(drive, per_tick, rate.arrivals, seed),
            free: slots.collect(),
            tally: OpenTally { service, started: 0, sent: 0, late: 0, overran: 0, never_sent: 0 },
            late_ticks: clock.from_duration(LATE_AFTER),
        })
    }

    /// A call that was to start by now, and a slot for it; none while every slot has a call. What is
    /// not taken now is due later, with the same intended start.
    #[inline]
    pub(super) fn due(&mut self, now: u64) -> Option<(u64, Place)> {
        let intended = self.pacer.next();
        if intended > now {
            return None;
        }
        let place = self.free.pop_front()?;
        self.pacer.step();
        Some((intended, place))
    }

    /// A slot's call has ended.
    #[inline]
    pub(super) fn free(&mut self, place: Place) {
        self.free.push_back(place);
    }

    /// A call has started, in the measured time or not.
    #[inline]
    pub(super) fn on_started(&mut self, in_time: bool) {
        self.tally.started += u64::from(in_time);
    }

    /// A measured call has started, in the measured time or within the grace after it.
    pub(super) fn on_measured(&mut self, intended: u64, sent: u64, in_time: bool) {
        self.tally.sent += 1;
        self.tally.overran += u64::from(!in_time);
        self.tally.late += u64::from(sent.saturating_sub(intended) > self.late_ticks);
    }

    #[inline]
    pub(super) fn record_service(&mut self, ticks: u64) {
        self.tally.service.record(ticks);
    }

    /// A measured call will not be started any more.
    pub(super) fn never_sent(&mut self, place: Place) {
        self.tally.never_sent += 1;
        self.free(place);
    }

    /// Gives up the calls that were to start before `end`; those from `start` on were to be measured.
    pub(super) fn skip_to(&mut self, start: u64, end: u64) {
        for _ in 0..SKIPPED_MAX {
            if self.pacer.next() >= end {
                return;
            }
            self.tally.never_sent += u64::from(self.pacer.next() >= start);
            self.pacer.step();
        }
        self.tally.never_sent += self.pacer.jump_to(start, end);
    }

    pub(super) fn tally(self) -> OpenTally {
        self.tally
    }
}

impl OpenTally {
    /// Adds another core's.
    pub(super) fn merge(&mut self, other: &Self) {
        self.service.merge(&other.service);
        self.started += other.started;
        self.sent += other.sent;
        self.late += other.late;
        self.overran += other.overran;
        self.never_sent += other.never_sent;
    }

    /// Calls that were to start in the measured time.
    pub(super) fn intended(&self) -> u64 {
        self.sent + self.never_sent
    }

    /// Of the calls that were to start in the measured time, those that did.
    pub(super) fn adherence_percent(&self) -> f64 {
        let in_time = (self.sent - self.overran) as f64;
        match self.intended() {
            0 => 100.0,
            intended => in_time * 100.0 / intended as f64,
        }
    }
}

/// Calls that are given up one by one, which takes a tenth of a second; more are reckoned.
const SKIPPED_MAX: usize = 10_000_000;
/// From here on a start is late.
pub(super) const LATE_AFTER: Duration = Duration::from_micros(5);
