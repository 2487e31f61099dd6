//! Combines the tallies of the cores of one repeat into a measurement.

use super::control::Figures;
use super::driver::Tally;
use super::measurement::{CoreUse, CutShort, Measurement, OpenLoop, REFUSED, nanoseconds};
use super::open_loop::OpenTally;
use super::workload::{Ends, Limits, Workload};
use crate::failure::Failure;
use crate::latency::{LatencySummary, Recorded};
use hdrhistogram::Histogram;
use spinrpc::sys::clock::Clock;
use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

pub(super) struct Driven {
    pub(super) tally: Tally,
    pub(super) client: CoreUse,
    pub(super) reverse: Option<Figures>,
}

pub(crate) type Measured = (Workload, Measurement);

/// Combines the cores of one repeat. The whole comes first, then each operation of a mix.
pub(super) fn combine(
    workload: &Workload,
    limits: &Limits,
    driven: Vec<Driven>,
    server_cores: Option<Vec<CoreUse>>,
) -> Result<Vec<Measured>, Failure> {
    let mut sides = Sides {
        client: driven.iter().map(|core| core.client).collect(),
        server: server_cores.map(|cores| {
            // A core that only answered the questions of this client served no calls.
            cores.into_iter().filter(|core| core.calls > QUESTIONS).collect()
        }),
    };
    if workload.ends == Ends::OneCpu {
        // Each core counts the time to its next turn with work as busy, in which the other one has its turn.
        let cores = sides.client.iter_mut().chain(sides.server.iter_mut().flatten());
        cores.for_each(|core| (core.busy_percent, core.busy_ticks_per_call) = (None, None));
    }
    let all = driven.into_iter().map(|core| core.tally).reduce(Tally::and);
    let sum = Sum::of(all.ok_or_else(|| Failure::Measurement("no core measured".to_owned()))?);
    let shares = workload.shares();
    let parts: Vec<Workload> = match workload.mix.is_empty() {
        true => Vec::new(),
        false => shares.iter().map(|share| workload.part(*share)).collect(),
    };
    let payload = |share: usize| shares[share].payload_bytes() as f64;
    let bytes = sum.tally.recorded.iter().enumerate();
    let bytes = bytes.map(|(share, one)| payload(share) * one.samples() as f64).sum();
    let all = sum.measurement(workload, limits, &sides, 0..shares.len(), bytes)?;
    let mut measured = vec![(*workload, all)];
    for (share, part) in parts.iter().enumerate() {
        let bytes = payload(share) * sum.tally.recorded[share].samples() as f64;
        measured.push((*part, sum.measurement(part, limits, &sides, share..share + 1, bytes)?));
    }
    Ok(measured)
}

/// The caller is named first: here that is the server.
pub(super) fn reversed(
    workload: &Workload,
    forward: &Measurement,
    figures: &[Figures],
) -> Result<Measurement, Failure> {
    let mut latency = nanoseconds()?;
    let (mut elapsed_s, mut lost, mut carried_in_ns) = (0.0, 0_u64, 0);
    for one in figures {
        elapsed_s = f64::max(elapsed_s, one.elapsed_ns as f64 / 1e9);
        lost = lost.saturating_add(one.lost);
        carried_in_ns = carried_in_ns.max(one.carried_in_ns);
        // Cannot fail: the histogram grows as needed.
        let _ = latency.add(&one.latency);
    }
    let calls_per_second = rate(latency.len() as f64, elapsed_s);
    Ok(Measurement {
        calls: latency.len(),
        lost,
        elapsed_s,
        calls_per_second,
        bytes_per_second: calls_per_second * workload.payload_bytes() as f64,
        latency: LatencySummary::of(&latency, 1.0, lost),
        start_unix_s: forward.start_unix_s,
        carried_in_ns: carried_in_ns as f64,
        cut_short: forward.cut_short,
        service: None,
        open: None,
        client: forward.server.unwrap_or_default(),
        server: Some(forward.client),
        client_cores: forward.server_cores.clone(),
        server_cores: forward.client_cores.clone(),
        samples: latency,
    })
}

fn rate(count: f64, elapsed_s: f64) -> f64 {
    if count > 0.0 && elapsed_s > 0.0 { count / elapsed_s } else { f64::NAN }
}

struct Sides {
    client: Vec<CoreUse>,
    server: Option<Vec<CoreUse>>,
}

struct Sum {
    tally: Tally,
    /// From the start of the first core to the end of the last, in seconds.
    elapsed_s: f64,
    start_unix_s: f64,
    ns_per_tick: f64,
}

impl Sum {
    fn of(tally: Tally) -> Self {
        let ns_per_tick = 1e9 / Clock::shared().ticks_per_second() as f64;
        let [start, end] = tally.span;
        let elapsed_s = end.saturating_sub(start) as f64 * ns_per_tick / 1e9;
        // By this host's clock, in seconds since 1970.
        let since_ns = Clock::shared().now().0.saturating_sub(start) as f64 * ns_per_tick;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { tally, elapsed_s, start_unix_s: now.as_secs_f64() - since_ns / 1e9, ns_per_tick }
    }

    fn measurement(
        &self,
        workload: &Workload,
        limits: &Limits,
        sides: &Sides,
        shares: Range<usize>,
        bytes: f64,
    ) -> Result<Measurement, Failure> {
        let Self { tally, ns_per_tick, .. } = self;
        let recorded = &tally.recorded[shares.clone()];
        let lost: u64 = tally.lost[shares].iter().sum();
        let mut all = recorded[0].clone();
        recorded[1..].iter().for_each(|other| all.merge(other));
        let calls_per_second = rate(all.samples() as f64, self.elapsed_s);
        let open = tally.open.as_ref();
        let open = open.map(|open| self.open_loop(workload, limits, open, calls_per_second));
        let refused = open.is_some_and(|open| open.refused.is_some());
        let summary = |recorded: &Recorded, unknown: u64| match refused {
            true => {
                LatencySummary { missing: unknown, ..LatencySummary::refused(recorded.samples()) }
            }
            false => recorded.summary(*ns_per_tick, unknown),
        };
        // Calls that were never sent have waited longest. Their operation in a mix is unknown, so
        // they count for each.
        let never_sent = open.map_or(0, |open| open.never_sent);
        // Service time and adherence are not kept per operation.
        let service = tally.open.as_ref().filter(|_| !workload.of_mix);
        let service = service.and_then(|open| open.service.as_ref());
        Ok(Measurement {
            calls: all.samples(),
            lost,
            elapsed_s: self.elapsed_s,
            calls_per_second,
            // A null call moves nothing, which is a valid figure.
            bytes_per_second: if bytes > 0.0 { rate(bytes, self.elapsed_s) } else { 0.0 },
            latency: summary(&all, lost + never_sent),
            start_unix_s: self.start_unix_s,
            carried_in_ns: tally.carried_in as f64 * ns_per_tick,
            cut_short: CutShort { is_stuck: tally.is_stuck, is_interrupted: tally.is_interrupted },
            service: service.map(|service| summary(service, lost)),
            open: open.filter(|_| !workload.of_mix),
            client: CoreUse::sum(&sides.client),
            server: sides.server.as_deref().map(CoreUse::sum),
            client_cores: sides.client.clone(),
            server_cores: sides.server.clone().unwrap_or_default(),
            samples: match refused {
                true => nanoseconds()?,
                false => to_nanoseconds(all.histogram(), *ns_per_tick)?,
            },
        })
    }

    fn open_loop(
        &self,
        workload: &Workload,
        limits: &Limits,
        open: &OpenTally,
        achieved_per_second: f64,
    ) -> OpenLoop {
        let adherence_percent = open.adherence_percent();
        let refused = adherence_percent < ADHERENCE_MIN_PERCENT && !limits.force;
        OpenLoop {
            target_per_second: workload
                .rate
                .map_or(0.0, |rate| rate.per_second as f64 / limits.rank.1 as f64),
            achieved_per_second,
            intended: open.intended(),
            adherence_percent,
            late: open.late,
            overran: open.overran,
            never_sent: open.never_sent,
            arrivals: workload.rate.map(|rate| rate.arrivals).unwrap_or_default(),
            refused: refused.then_some(REFUSED),
        }
    }
}

pub(super) fn to_nanoseconds(
    ticks: &Histogram<u64>,
    ns_per_tick: f64,
) -> Result<Histogram<u64>, Failure> {
    let mut histogram = nanoseconds()?;
    for step in ticks.iter_recorded() {
        let ns = (step.value_iterated_to() as f64 * ns_per_tick) as u64;
        // Cannot fail: the histogram grows as needed.
        let _ = histogram.record_n(ns.max(1), step.count_at_value());
    }
    Ok(histogram)
}

/// An open loop below this adherence has measured a load other than the requested one.
const ADHERENCE_MIN_PERCENT: f64 = 99.9;
/// Number of questions that a client asks a server between two reads of its counters.
const QUESTIONS: u64 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Recorder;
    use crate::load::control::FIGURES_BYTES_MAX;
    use crate::load::measurement::Arrivals;
    use crate::load::{Operation, Rate};
    use spinrpc::{Decoder, Encoder};

    fn ticks_of(ns: f64) -> u64 {
        (ns * Clock::shared().ticks_per_second() as f64 / 1e9) as u64
    }

    /// A core that made calls of these latencies in one second.
    fn driven(latencies_ns: &[&[f64]], open: Option<OpenTally>) -> Driven {
        let second = Clock::shared().ticks_per_second();
        let recorder = |latencies: &&[f64]| {
            let mut recorder = Recorder::new().unwrap();
            latencies.iter().for_each(|ns| recorder.record(ticks_of(*ns)));
            recorder.finish()
        };
        let tally = Tally {
            recorded: latencies_ns.iter().map(recorder).collect(),
            lost: vec![0; latencies_ns.len()],
            is_stuck: false,
            is_interrupted: false,
            carried_in: 0,
            span: [7, 7 + second],
            open,
        };
        Driven { tally, client: CoreUse { calls: 2, ..CoreUse::default() }, reverse: None }
    }

    fn echo() -> Workload {
        Workload::ping_pong(Operation::Echo, 64)
    }

    /// A second of ticks is not exactly one with every frequency of the counter.
    fn assert_rate(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9 * expected, "{found}, not {expected}");
    }

    #[test]
    fn cores_add_up_and_samples_are_those_of_the_summary() {
        let cores = vec![driven(&[&[1e3, 5e7]], None), driven(&[&[2e3, 4e3]], None)];
        let measured = combine(&echo(), &Limits::default(), cores, None).unwrap();
        let [(_, all)] = &measured[..] else { panic!("{measured:?}") };
        assert_eq!(all.calls, 4);
        assert_rate(all.calls_per_second, 4.0);
        assert_rate(all.bytes_per_second, 4.0 * 128.0);
        let longest_ns = all.samples.max() as f64;
        assert!((longest_ns - all.latency.max_ns).abs() < 1e-3 * longest_ns, "{longest_ns}");
        assert!(longest_ns > 4.9e7);
        assert_eq!(all.samples.len(), 4);
        assert_eq!(all.client_cores.len(), 2);
    }

    #[test]
    fn cores_that_take_turns_on_a_thread_are_not_busy_for_a_known_time() {
        let used = CoreUse { calls: 9, busy_percent: Some(99.0), ..CoreUse::default() };
        let core = || Driven { client: used, ..driven(&[&[1e3]], None) };
        for (ends, busy_percent) in [(Ends::OneCpu, None), (Ends::Apart, Some(99.0))] {
            let (one, server) = (Workload { ends, ..echo() }, Some(vec![used]));
            let all = combine(&one, &Limits::default(), vec![core()], server).unwrap().remove(0).1;
            let sides = [all.client, all.server.unwrap(), all.client_cores[0]];
            assert_eq!(sides.map(|side| side.busy_percent), [busy_percent; 3]);
        }
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
        assert_rate(measured[0].1.bytes_per_second, 128.0 + 2000.0);
        assert!(measured[2].0.name().starts_with("read 1000 B, of the mix"));
    }

    /// What a client has of a server's drive is what came over the wire.
    #[test]
    fn a_call_of_the_warm_up_in_reverse_is_told_of_too() {
        let mut one = driven(&[&[1e3, 2e3]], None);
        (one.tally.carried_in, one.tally.lost) = (ticks_of(5e8), vec![3]);
        let mut room = vec![0; FIGURES_BYTES_MAX];
        let mut to = Encoder::new(&mut room, &[]);
        Figures::of(&one.tally).unwrap().encode(&mut to);
        let bytes = to.finish().stream_bytes;
        let figures = Figures::decode(Decoder::plain(&room[..bytes])).unwrap();
        let forward = combine(&echo(), &Limits::default(), vec![one], None).unwrap().remove(0).1;
        let reverse = reversed(&echo(), &forward, &[figures]).unwrap();
        assert_eq!((reverse.calls, reverse.lost), (2, 3));
        assert!((reverse.carried_in_ns - 5e8).abs() < 1e3, "{reverse:?}");
    }

    fn open([sent, overran, never_sent]: [u64; 3], force: bool) -> Measurement {
        let service = Some(Recorder::new().unwrap().finish());
        let planned = sent + never_sent;
        let tally = OpenTally { service, planned, sent, late: 1, overran, never_sent };
        let workload = echo().at_rate(Rate { per_second: 1000, arrivals: Arrivals::Fixed });
        let limits = Limits { force, ..Limits::default() };
        let latencies = vec![1e3; sent as usize];
        let mut core = driven(&[&latencies], Some(tally));
        // The last of them is answered half a second after the end.
        core.tally.span[1] += if overran > 0 { Clock::shared().ticks_per_second() / 2 } else { 0 };
        let cores = vec![core];
        combine(&workload, &limits, cores, Some(Vec::new())).unwrap().remove(0).1
    }

    #[test]
    fn an_open_loop_that_kept_less_than_its_schedule_has_no_percentiles_unless_forced() {
        let kept = open([999, 0, 0], false);
        assert!(kept.open.unwrap().refused.is_none() && kept.latency.p50_ns > 0.0);
        let fell_behind = open([900, 0, 100], false);
        assert_eq!(fell_behind.open.unwrap().adherence_percent, 90.0);
        assert!(fell_behind.open.unwrap().refused.is_some());
        assert!(fell_behind.latency.p99_ns.is_nan() && fell_behind.samples.is_empty());
        assert_eq!((fell_behind.calls, fell_behind.latency.samples), (900, 900));
        let forced = open([900, 0, 100], true);
        assert!(forced.latency.p50_ns > 0.0);
        assert!(forced.latency.p99_ns.is_nan(), "it lies among those that were never sent");
        // 0.1 % were never sent: percentiles among them and the maximum are unknown.
        let measured = open([9990, 0, 10], false);
        assert!(measured.open.unwrap().refused.is_none(), "{measured:?}");
        assert!(measured.latency.p99_ns > 0.0);
        assert!(measured.latency.p99_99_ns.is_nan() && measured.latency.max_ns.is_nan());
    }

    #[test]
    fn calls_of_an_open_loop_that_end_after_its_time_do_not_raise_its_rate() {
        let overran = open([1000, 100, 0], true);
        let tally = overran.open.unwrap();
        assert_eq!((tally.intended, tally.overran, tally.adherence_percent), (1000, 100, 90.0));
        assert!((overran.calls_per_second - 1000.0 / 1.5).abs() < 0.01, "{overran:?}");
        assert_eq!(tally.achieved_per_second, overran.calls_per_second);
        let bytes = overran.calls_per_second * 128.0;
        assert!((overran.bytes_per_second - bytes).abs() < 0.01, "{overran:?}");
        assert!(open([1000, 100, 0], false).latency.p99_ns.is_nan());
    }

    /// Lose a call of one core, and make none on another. Expect figures that show it, and null for
    /// those without calls.
    #[test]
    fn lost_calls_are_counted_and_no_calls_are_no_figures() {
        let mut lossy = driven(&[&[1e3, 2e3, 3e3]], None);
        (lossy.tally.lost, lossy.tally.is_stuck) = (vec![1], true);
        let cores = vec![lossy, driven(&[&[]], None)];
        let measured = combine(&echo(), &Limits::default(), cores, None).unwrap().remove(0).1;
        assert_eq!((measured.calls, measured.lost, measured.cut_short.is_stuck), (3, 1, true));
        assert!(measured.latency.max_ns.is_nan() && measured.latency.p50_ns > 1.9e3);
        let none = vec![driven(&[&[]], None)];
        let none = combine(&echo(), &Limits::default(), none, None).unwrap().remove(0).1;
        let document = serde_json::to_value(&none).unwrap();
        for figure in
            ["/calls_per_second", "/latency/p50_ns", "/latency/max_ns", "/latency/mean_ns"]
        {
            assert!(document.pointer(figure).unwrap().is_null(), "{figure}: {document}");
        }
    }
}
