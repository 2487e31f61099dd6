//! The search for the highest rate: doubles the rate until it does not hold, then bisects between
//! the last that held and the first that did not. A rate holds if the 99th percentile, from the
//! intended start of each call, stays within its limit, the loop keeps the rate, and there are
//! enough calls for that percentile; a step takes as long as that needs. A rate that does not hold
//! is tried once more, because the machine may have been disturbed.

use super::{Outcome, rows};
use crate::cli::Plan;
use crate::failure::Failure;
use crate::interrupt;
use crate::load::{Fleet, Limits, Measured, Measurement, OpenLoop, Rate, Workload};
use crate::report::{Saturation, SaturationStep};
use crate::units::{show_count, show_us};
use std::time::Duration;

pub(super) fn search(fleet: &mut Fleet, plan: &Plan) -> Result<Outcome, Failure> {
    let p99_limit_ns = plan.p99_max.unwrap_or_default().as_nanos() as f64;
    let (steps, best) = (Vec::new(), None);
    let mut search = Search { fleet, plan, p99_limit_ns, steps, best, stuck: false };
    let highest = match find(|rate| search.holds(rate)) {
        // The best result so far.
        Err(Failure::Interrupted(_)) => search.best.as_deref().map(rate_of),
        found => found?,
    };
    let Search { steps, best, stuck, .. } = search;
    let highest_per_second = highest.map(|rate| rate as f64);
    let verdict = match highest {
        _ if interrupt::signal().is_some() => None,
        _ if stuck => Some("the server has stopped answering".to_owned()),
        Some(_) => None,
        None => {
            Some(format!("no rate keeps the 99th percentile within {} µs", show_us(p99_limit_ns)))
        }
    };
    Ok(Outcome {
        rows: best.map_or_else(Vec::new, |best| rows(vec![best])),
        saturation: Some(Saturation { p99_limit_ns, steps, highest_per_second }),
        verdict,
        ..Outcome::default()
    })
}

struct Search<'a> {
    fleet: &'a mut Fleet,
    plan: &'a Plan,
    p99_limit_ns: f64,
    steps: Vec<SaturationStep>,
    best: Option<Vec<Measured>>,
    /// The server has stopped answering, so no rate holds any more.
    stuck: bool,
}

impl Search<'_> {
    fn holds(&mut self, per_second: u64) -> Result<bool, Failure> {
        Ok(self.attempt(per_second)? || self.attempt(per_second)?)
    }

    fn attempt(&mut self, per_second: u64) -> Result<bool, Failure> {
        if self.stuck {
            return Ok(false);
        }
        let planned = self.plan.workloads[0];
        let arrivals = planned.rate.map(|rate| rate.arrivals).unwrap_or_default();
        let workload = planned.at_rate(Rate { per_second, arrivals, burst: None });
        self.fleet.load(&workload)?;
        let measured = self.fleet.measure(&limits_at(&workload, &self.plan.limits))?;
        self.fleet.unload()?;
        if let Some(signal) = interrupt::signal() {
            return Err(Failure::Interrupted(signal));
        }
        self.stuck = measured.first().is_some_and(|(_, one)| one.cut_short.is_stuck);
        let step = step(&measured, self.p99_limit_ns);
        eprintln!("spinperf: {}", describe(&step));
        self.steps.push(step);
        let highest = self.best.as_ref().map_or(0, |best| rate_of(best));
        if step.held && per_second > highest {
            self.best = Some(measured);
        }
        Ok(step.held)
    }
}

fn limits_at(workload: &Workload, limits: &Limits) -> Limits {
    let per_second = workload.rate.map_or(u64::MAX, |rate| rate.per_second.max(1));
    let needed = Duration::from_secs_f64(CALLS_PLANNED / per_second as f64);
    Limits { duration: limits.duration.max(needed), ..*limits }
}

fn rate_of(measured: &[Measured]) -> u64 {
    measured.first().and_then(|(workload, _)| workload.rate).map_or(0, |rate| rate.per_second)
}

fn step(measured: &[Measured], p99_limit_ns: f64) -> SaturationStep {
    let first = measured.first().and_then(|(_, one)| Some((one, one.open?)));
    let of = |figure: fn(&Measurement, OpenLoop) -> f64| {
        first.map_or(f64::NAN, |(one, open)| figure(one, open))
    };
    SaturationStep {
        target_per_second: rate_of(measured) as f64,
        achieved_per_second: of(|_, open| open.achieved_per_second),
        lost: first.map_or(0, |(one, _)| one.lost),
        p99_ns: of(|one, _| one.latency.p99_ns),
        adherence_percent: first.map_or(0.0, |(_, open)| open.adherence_percent),
        held: first.is_some_and(|(one, open)| {
            let is_enough = one.calls >= CALLS_MIN && one.lost == 0 && open.refused.is_none();
            is_enough && one.latency.p99_ns <= p99_limit_ns
        }),
    }
}

pub(super) fn describe(step: &SaturationStep) -> String {
    let lost = match step.lost {
        0 => String::new(),
        lost => format!("{lost} never answered, "),
    };
    format!(
        "{}/s: p99 {} µs, {}/s achieved, {lost}adherence {:.2} %: {}",
        show_count(step.target_per_second),
        show_us(step.p99_ns),
        show_count(step.achieved_per_second),
        step.adherence_percent,
        if step.held { "held" } else { "not held" },
    )
}

/// With a precision of a twentieth; `None` if even the lowest does not hold.
fn find(mut holds: impl FnMut(u64) -> Result<bool, Failure>) -> Result<Option<u64>, Failure> {
    let mut rate = RATE_FIRST;
    let (mut low, mut high) = if holds(rate)? {
        loop {
            let next = rate * 2;
            if next > RATE_LAST || !holds(next)? {
                break (rate, next.min(RATE_LAST));
            }
            rate = next;
        }
    } else {
        loop {
            let next = rate / 4;
            if next < RATE_LOWEST {
                return Ok(None);
            }
            if holds(next)? {
                break (next, rate);
            }
            rate = next;
        }
    };
    while high - low > low / PRECISION {
        let middle = low.midpoint(high);
        if holds(middle)? { low = middle } else { high = middle }
    }
    Ok(Some(low))
}

const RATE_FIRST: u64 = 10_000;
const RATE_LOWEST: u64 = 10;
/// More than any client can make.
const RATE_LAST: u64 = 1_000_000_000;
const PRECISION: u64 = 20;
/// With fewer calls, the 99th percentile is the maximum or does not exist.
const CALLS_MIN: u64 = 100;
/// Chance yields fewer than `CALLS_MIN` in one of a hundred thousand steps.
const CALLS_PLANNED: f64 = 150.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn found(limit: u64) -> (Option<u64>, usize) {
        let mut tried = 0;
        let highest = find(|rate| {
            tried += 1;
            Ok(rate <= limit)
        });
        (highest.unwrap(), tried)
    }

    #[test]
    fn the_highest_rate_is_found_to_a_twentieth() {
        for limit in [40, 700, 9_999, 10_000, 123_456, 5_000_000] {
            let (highest, tried) = found(limit);
            let highest = highest.unwrap();
            assert!(highest <= limit && limit <= highest + highest / PRECISION + 1, "{highest}");
            assert!(tried < 25, "{limit}: {tried} steps");
        }
    }

    #[test]
    fn a_step_at_a_low_rate_takes_long_enough_for_its_calls() {
        use crate::load::{Arrivals, Operation};
        let limits = Limits { duration: Duration::from_secs(1), ..Limits::default() };
        let seconds = |per_second| {
            let rate = Rate { per_second, arrivals: Arrivals::Fixed, burst: None };
            let workload = Workload::ping_pong(Operation::Null, 0).at_rate(rate);
            limits_at(&workload, &limits).duration.as_secs_f64()
        };
        assert_eq!([10_000, 150, 10].map(seconds), [1.0, 1.0, 15.0]);
    }

    #[test]
    fn where_nothing_holds_there_is_no_highest_rate() {
        assert_eq!(found(3).0, None);
    }

    #[test]
    fn what_always_holds_ends_all_the_same() {
        assert!(found(u64::MAX).0.unwrap() <= RATE_LAST);
    }
}
