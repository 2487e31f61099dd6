//! From what the cores of one repeat tallied to what a measurement says.

use super::control::Figures;
use super::driver::Tally;
use super::measurement::{CoreUse, Interval, Measurement, OpenLoop, Samples, nanoseconds};
use super::open::OpenTally;
use super::workload::{Limits, Share, Workload};
use crate::failure::Failure;
use crate::latency::{LatencySummary, Recorder};
use hdrhistogram::Histogram;
use spinrpc::sys::clock::Clock;

/// One drive of one core.
pub(super) struct Driven {
    pub(super) tally: Tally,
    pub(super) client: CoreUse,
}

/// A workload, or of a mix the part of one operation, with what was measured of it.
pub(crate) type Measured = (Workload, Measurement);

/// Puts the cores of one repeat together; `driven` must not be empty. The whole comes first, then
/// each operation of a mix.
pub(super) fn combine(
    workload: &Workload,
    limits: &Limits,
    driven: Vec<Driven>,
    server_cores: Option<Vec<CoreUse>>,
) -> Result<Vec<Measured>, Failure> {
    let sides = Sides {
        client: driven.iter().map(|core| core.client).collect(),
        server: server_cores.map(|cores| {
            // What only answered the questions of this client served nobody.
            cores.into_iter().filter(|core| core.calls > QUESTIONS).collect()
        }),
    };
    let sum = Sum::of(driven);
    let shares = workload.shares();
    let parts: Vec<Workload> = match workload.mix.is_empty() {
        true => Vec::new(),
        false => shares.iter().map(|share| workload.part(*share)).collect(),
    };
    let calls_per_second = sum.rates(&shares);
    let bytes_per_second = shares
        .iter()
        .zip(&calls_per_second)
        .map(|(share, rate)| share.payload_bytes() as f64 * rate)
        .sum();
    let rates = [calls_per_second.iter().sum(), bytes_per_second];
    let all = sum.measurement(workload, limits, &sides, &sum.recorders, rates)?;
    let mut measured = vec![(*workload, all)];
    for ((part, recorder), &rate) in parts.iter().zip(&sum.recorders).zip(&calls_per_second) {
        let rates = [rate, part.payload_bytes() as f64 * rate];
        let one = std::slice::from_ref(recorder);
        measured.push((*part, sum.measurement(part, limits, &sides, one, rates)?));
    }
    Ok(measured)
}

/// What the server's loops came to, beside those of the client. Who calls is named first: that is the
/// server.
pub(super) fn reversed(
    workload: &Workload,
    forward: &Measurement,
    figures: &[Figures],
) -> Result<Measurement, Failure> {
    let mut latency = nanoseconds()?;
    let (mut calls_per_second, mut elapsed_s) = (0.0, 0.0);
    for one in figures {
        let one_s = one.elapsed_ns.max(1) as f64 / 1e9;
        elapsed_s = f64::max(elapsed_s, one_s);
        let before = latency.len();
        for (ns, count) in &one.buckets {
            // A latency that no histogram holds is none.
            let _ = latency.record_n((*ns).clamp(1, LATENCY_NS_MAX), *count);
        }
        calls_per_second += (latency.len() - before) as f64 / one_s;
    }
    let histogram = latency.clone();
    Ok(Measurement {
        calls: latency.len(),
        elapsed_s,
        calls_per_second,
        bytes_per_second: calls_per_second * workload.payload_bytes() as f64,
        latency: LatencySummary::of(&latency, 1.0),
        service: None,
        open: None,
        client: forward.server.unwrap_or_default(),
        server: Some(forward.client),
        client_cores: forward.server_cores.clone(),
        server_cores: forward.client_cores.clone(),
        samples: Samples {
            latency,
            intervals: vec![Interval { start_s: 0.0, elapsed_s, histogram }],
        },
    })
}

/// What the cores of both sides did.
struct Sides {
    client: Vec<CoreUse>,
    /// None if it did not tell.
    server: Option<Vec<CoreUse>>,
}

/// The tallies of all cores, operation by operation.
struct Sum {
    recorders: Vec<Recorder>,
    calls_per_second: Vec<f64>,
    elapsed_s: f64,
    interval_s: f64,
    open: Option<OpenTally>,
}

impl Sum {
    fn of(driven: Vec<Driven>) -> Self {
        let ticks_per_second = Clock::shared().ticks_per_second() as f64;
        let mut sum = Self {
            recorders: Vec::new(),
            calls_per_second: Vec::new(),
            elapsed_s: 0.0,
            interval_s: 0.0,
            open: None,
        };
        for Driven { tally, .. } in driven {
            let core_s = tally.ticks.max(1) as f64 / ticks_per_second;
            sum.elapsed_s = sum.elapsed_s.max(core_s);
            sum.interval_s = tally.interval_ticks as f64 / ticks_per_second;
            sum.add(tally, core_s);
        }
        sum
    }

    fn add(&mut self, tally: Tally, core_s: f64) {
        let rate = |recorder: &Recorder| recorder.samples() as f64 / core_s;
        let rates: Vec<f64> = tally.recorders.iter().map(rate).collect();
        if self.recorders.is_empty() {
            (self.recorders, self.calls_per_second) = (tally.recorders, rates);
            self.open = tally.open;
            return;
        }
        self.recorders.iter_mut().zip(&tally.recorders).for_each(|(all, one)| all.merge(one));
        self.calls_per_second.iter_mut().zip(&rates).for_each(|(all, one)| *all += one);
        if let (Some(all), Some(one)) = (&mut self.open, &tally.open) {
            all.merge(one);
        }
    }

    /// Calls per second of each share. Of an open loop those that started in the measured time,
    /// divided as the samples are, or by weight where there are none: a call that was due before the
    /// end and started after it is sampled, and the rate of that time does not have it.
    fn rates(&self, shares: &[Share]) -> Vec<f64> {
        let sampled: f64 = self.calls_per_second.iter().sum();
        let weights: f64 = shares.iter().map(|share| f64::from(share.weight)).sum();
        let Some(open) = &self.open else { return self.calls_per_second.clone() };
        let achieved = self.achieved_per_second(open);
        let part = |(share, rate): (&Share, &f64)| match sampled > 0.0 {
            true => achieved * rate / sampled,
            false => achieved * f64::from(share.weight) / weights.max(1.0),
        };
        shares.iter().zip(&self.calls_per_second).map(part).collect()
    }

    fn achieved_per_second(&self, open: &OpenTally) -> f64 {
        open.started as f64 / self.elapsed_s.max(f64::MIN_POSITIVE)
    }

    /// What these recorders say; together they are the workload.
    fn measurement(
        &self,
        workload: &Workload,
        limits: &Limits,
        sides: &Sides,
        recorders: &[Recorder],
        [calls_per_second, bytes_per_second]: [f64; 2],
    ) -> Result<Measurement, Failure> {
        let mut all = recorders[0].clone();
        recorders[1..].iter().for_each(|other| all.merge(other));
        let ns_per_tick = 1e9 / Clock::shared().ticks_per_second() as f64;
        let open = self.open.as_ref().map(|open| self.open_loop(workload, limits, open));
        let refused = open.is_some_and(|open| open.refused.is_some());
        let summary = |recorder: &Recorder| match refused {
            true => LatencySummary::refused(recorder.samples()),
            false => recorder.summary(ns_per_tick),
        };
        // The service time of a part is not kept apart.
        let service = self.open.as_ref().filter(|_| !workload.of_mix);
        Ok(Measurement {
            calls: all.samples(),
            elapsed_s: self.elapsed_s,
            calls_per_second,
            bytes_per_second,
            latency: summary(&all),
            service: service.map(|open| summary(&open.service)),
            open,
            client: CoreUse::sum(&sides.client),
            server: sides.server.as_deref().map(CoreUse::sum),
            client_cores: sides.client.clone(),
            server_cores: sides.server.clone().unwrap_or_default(),
            samples: match refused {
                true => Samples::none()?,
                false => self.samples(&all, ns_per_tick)?,
            },
        })
    }

    fn open_loop(&self, workload: &Workload, limits: &Limits, open: &OpenTally) -> OpenLoop {
        let adherence_percent = open.adherence_percent();
        let refused = adherence_percent < ADHERENCE_MIN_PERCENT && !limits.force;
        OpenLoop {
            target_per_second: workload.rate.map_or(0.0, |rate| rate.per_second as f64),
            achieved_per_second: self.achieved_per_second(open),
            intended: open.intended(),
            adherence_percent,
            late: open.late,
            overran: open.overran,
            never_sent: open.never_sent,
            arrivals: workload.rate.map(|rate| rate.arrivals).unwrap_or_default(),
            refused: refused.then_some(REFUSED),
        }
    }

    fn samples(&self, recorder: &Recorder, ns_per_tick: f64) -> Result<Samples, Failure> {
        let mut intervals = Vec::with_capacity(recorder.intervals().len());
        for (index, ticks) in recorder.intervals().iter().enumerate() {
            let start_s = index as f64 * self.interval_s;
            let elapsed_s = self.interval_s.min(self.elapsed_s - start_s);
            // A drive that was ended by its calls has not come to the others.
            if elapsed_s > 0.0 {
                let histogram = to_nanoseconds(ticks, ns_per_tick)?;
                intervals.push(Interval { start_s, elapsed_s, histogram });
            }
        }
        let latency = to_nanoseconds(&recorder.total(), ns_per_tick)?;
        Ok(Samples { latency, intervals })
    }
}

fn to_nanoseconds(ticks: &Histogram<u64>, ns_per_tick: f64) -> Result<Histogram<u64>, Failure> {
    let mut histogram = nanoseconds()?;
    for step in ticks.iter_recorded() {
        let ns = (step.value_iterated_to() as f64 * ns_per_tick) as u64;
        // Cannot fail: it grows as far as it must.
        let _ = histogram.record_n(ns.max(1), step.count_at_value());
    }
    Ok(histogram)
}

/// An open loop that keeps less of its schedule has measured something else than it was asked for.
const ADHERENCE_MIN_PERCENT: f64 = 99.9;
const REFUSED: &str = "less than 99.9 % of the calls were started in time to be measured: \
                       the percentiles would be of another, lower load (--force prints them)";
/// An hour: a peer may name any number.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;
/// What a client asks a server between two looks at its counts.
const QUESTIONS: u64 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::measurement::Arrivals;
    use crate::load::{Operation, Rate};

    fn ticks_of(ns: f64) -> u64 {
        (ns * Clock::shared().ticks_per_second() as f64 / 1e9) as u64
    }

    /// A core that made calls of these latencies in one second of two intervals.
    fn driven(latencies_ns: &[&[f64]], open: Option<OpenTally>) -> Driven {
        let second = Clock::shared().ticks_per_second();
        let recorder = |latencies: &&[f64]| {
            let mut recorder = Recorder::new(2).unwrap();
            for (index, ns) in latencies.iter().enumerate() {
                recorder.select(index);
                recorder.record(ticks_of(*ns));
            }
            recorder
        };
        let tally = Tally {
            recorders: latencies_ns.iter().map(recorder).collect(),
            ticks: second,
            interval_ticks: second / 2,
            open,
        };
        Driven { tally, client: CoreUse { calls: 2, ..CoreUse::default() } }
    }

    fn echo() -> Workload {
        Workload::ping_pong(Operation::Echo, 64)
    }

    #[test]
    fn cores_add_up_and_samples_are_those_of_the_summary() {
        let cores = vec![driven(&[&[1e3, 5e7]], None), driven(&[&[2e3, 4e3]], None)];
        let measured = combine(&echo(), &Limits::default(), cores, None).unwrap();
        let [(_, all)] = &measured[..] else { panic!("{measured:?}") };
        assert_eq!((all.calls, all.calls_per_second), (4, 4.0));
        assert_eq!(all.bytes_per_second, 4.0 * 128.0);
        let longest_ns = all.samples.latency.max() as f64;
        assert!((longest_ns - all.latency.max_ns).abs() < 1e-3 * longest_ns, "{longest_ns}");
        assert!(longest_ns > 4.9e7);
        let counts: Vec<u64> =
            all.samples.intervals.iter().map(|one| one.histogram.len()).collect();
        assert_eq!(counts, [2, 2]);
        assert_eq!(all.client_cores.len(), 2);
    }

    #[test]
    fn a_mix_has_a_row_for_all_of_it_and_one_for_each_operation() {
        let share = |op, call_bytes| super::super::workload::Share {
            op,
            weight: 1,
            call_bytes,
            reply_bytes: call_bytes,
        };
        let shares = [share(Operation::Echo, 64), share(Operation::Read, 1000)];
        let mix = Workload { mix: crate::load::Mix::new(&shares), ..echo() };
        let core = driven(&[&[1e3], &[2e3, 3e3]], None);
        let measured = combine(&mix, &Limits::default(), vec![core], None).unwrap();
        let calls: Vec<u64> = measured.iter().map(|(_, one)| one.calls).collect();
        assert_eq!(calls, [3, 1, 2]);
        assert_eq!(measured[0].1.bytes_per_second, 128.0 + 2000.0);
        assert!(measured[2].0.name().starts_with("read 1000 B, of the mix"));
    }

    fn open(sent: u64, never_sent: u64, force: bool) -> Measurement {
        overrun(sent, 0, never_sent, force)
    }

    fn overrun(sent: u64, overran: u64, never_sent: u64, force: bool) -> Measurement {
        let service = Recorder::new(1).unwrap();
        let started = sent - overran;
        let tally = OpenTally { service, started, sent, late: 1, overran, never_sent };
        let workload = echo().at_rate(Rate { per_second: 1000, arrivals: Arrivals::Fixed });
        let limits = Limits { force, ..Limits::default() };
        let cores = vec![driven(&[&[1e3]], Some(tally))];
        combine(&workload, &limits, cores, Some(Vec::new())).unwrap().remove(0).1
    }

    #[test]
    fn an_open_loop_that_kept_less_than_its_schedule_has_no_percentiles_unless_forced() {
        let kept = open(999, 0, false);
        assert!(kept.open.unwrap().refused.is_none() && kept.latency.p50_ns > 0.0);
        let fell_behind = open(900, 100, false);
        assert_eq!(fell_behind.open.unwrap().adherence_percent, 90.0);
        assert!(fell_behind.open.unwrap().refused.is_some());
        assert!(fell_behind.latency.p99_ns.is_nan() && fell_behind.samples.latency.is_empty());
        assert_eq!((fell_behind.calls, fell_behind.latency.samples), (1, 1));
        assert!(open(900, 100, true).latency.p99_ns > 0.0);
    }

    #[test]
    fn calls_of_an_open_loop_that_start_after_its_time_are_not_its_rate() {
        let overran = overrun(1000, 100, 0, true);
        let open = overran.open.unwrap();
        assert_eq!((open.intended, open.overran, open.adherence_percent), (1000, 100, 90.0));
        assert_eq!((open.achieved_per_second, overran.calls_per_second), (900.0, 900.0));
        assert_eq!(overran.bytes_per_second, 900.0 * 128.0);
        assert!(overrun(1000, 100, 0, false).latency.p99_ns.is_nan());
    }
}
