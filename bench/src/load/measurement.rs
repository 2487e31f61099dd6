//! Results of a measurement. Plain data: `session` and `fleet` fill it, reports print it.

use super::encoded;
use crate::failure::Failure;
use crate::latency::LatencySummary;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// One repeat of one workload.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measurement {
    /// Complete calls: started in the measured time, answered, and their reply handler run.
    pub(crate) calls: u64,
    /// Calls that started in the measured time and were never answered, or after their deadline.
    pub(crate) lost: u64,
    /// Time of all calls together, in seconds: the measured time, extended until the last of them
    /// was answered.
    pub(crate) elapsed_s: f64,
    /// Calls divided by that time; NaN without calls.
    pub(crate) calls_per_second: f64,
    /// Payload of these calls, in both directions.
    pub(crate) bytes_per_second: f64,
    /// Full round trip of every call; in an open loop from its intended start.
    pub(crate) latency: LatencySummary,
    /// Start of the measured time by the clock of the host, in seconds since 1970-01-01 UTC.
    pub(crate) start_unix_s: f64,
    /// Part of the measured time used by an earlier call, which is not counted, in nanoseconds.
    pub(crate) carried_in_ns: f64,
    /// Round trip of every call of an open loop from its actual start.
    pub(crate) service: Option<LatencySummary>,
    /// Adherence of an open loop to its rate.
    pub(crate) open: Option<OpenLoop>,
    /// Activity of the client's cores together.
    pub(crate) client: CoreUse,
    /// Activity of the server's cores together, if it reported it.
    pub(crate) server: Option<CoreUse>,
    /// The client's cores one by one.
    pub(crate) client_cores: Vec<CoreUse>,
    /// The server's cores that served any calls.
    pub(crate) server_cores: Vec<CoreUse>,
    /// The samples behind the percentiles; empty if these were refused.
    #[serde(rename = "histogram", serialize_with = "encoded::serialize")]
    pub(crate) samples: Samples,
    /// Reason why the measurement is incomplete and the last one.
    #[serde(skip)]
    pub(crate) cut_short: CutShort,
}

/// Reasons why a measurement ended early, or leaves its connections unusable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CutShort {
    /// Calls are still in flight.
    pub(crate) is_stuck: bool,
    /// A signal ended it.
    pub(crate) is_interrupted: bool,
}

impl CutShort {
    /// Returns whether there is any reason.
    pub(crate) fn is_any(self) -> bool {
        self.is_stuck || self.is_interrupted
    }
}

/// Every sample of a measurement, of all cores.
#[derive(Clone, Debug)]
pub(crate) struct Samples {
    /// Samples of the whole measurement, in nanoseconds.
    pub(crate) latency: Histogram<u64>,
    /// The same samples in intervals, in order of time.
    pub(crate) intervals: Vec<Interval>,
}

impl Samples {
    /// No samples.
    pub(crate) fn none() -> Result<Self, Failure> {
        Ok(Self { latency: nanoseconds()?, intervals: Vec::new() })
    }
}

/// The samples of a part of a measurement.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    /// Start relative to that of the measurement, in seconds.
    pub(crate) start_s: f64,
    pub(crate) elapsed_s: f64,
    /// In nanoseconds.
    pub(crate) histogram: Histogram<u64>,
}

/// A histogram of nanoseconds, as large as its samples need.
pub(crate) fn nanoseconds() -> Result<Histogram<u64>, Failure> {
    Histogram::new(SIGNIFICANT_DIGITS)
        .map_err(|error| Failure::Measurement(format!("cannot create a histogram: {error}")))
}

/// Arrivals of an open loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Arrivals {
    /// At equal distances.
    #[default]
    Fixed,
    /// Independent, at random times; the total is what the rate yields.
    Poisson,
}

/// Adherence of an open loop to its rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct OpenLoop {
    pub(crate) target_per_second: f64,
    /// Answered calls intended for the measured time, divided by the time they took.
    pub(crate) achieved_per_second: f64,
    /// Calls intended for the measured time.
    pub(crate) intended: u64,
    /// Percentage of these that started in the measured time.
    pub(crate) adherence_percent: f64,
    /// Calls that started more than five microseconds behind schedule.
    pub(crate) late: u64,
    /// Calls that started in the short grace after the measured time they were intended for.
    pub(crate) overran: u64,
    /// Calls that had not started when the measured time and its grace ended.
    pub(crate) never_sent: u64,
    pub(crate) arrivals: Arrivals,
    /// Reason why percentiles were refused, if they were.
    pub(crate) refused: Option<&'static str>,
}

/// Activity of the cores of one side, or one of them, from the first call of a run to the last,
/// including ramp and warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CoreUse {
    /// The pinned CPU; absent for several together.
    pub(crate) cpu: Option<usize>,
    /// Calls made or answered; a server's include those of other clients.
    pub(crate) calls: u64,
    pub(crate) calls_per_second: f64,
    /// Clock ticks of turns that found work, per call; absent without calls.
    pub(crate) busy_ticks_per_call: Option<f64>,
    /// Share of the time spent in turns that found work.
    pub(crate) busy_percent: f64,
    /// Turns of the core.
    pub(crate) polls: u64,
    /// Turns that found nothing.
    pub(crate) empty_polls: u64,
    /// Calls postponed because the responder had granted no credit for them.
    pub(crate) credit_stalls: u64,
    /// Times that a send queue or ring had no room.
    pub(crate) queue_full: u64,
    /// Bulk copies made.
    pub(crate) copies: u64,
    /// Time that the hypervisor ran something else instead of the CPU, in milliseconds with a
    /// resolution of ten. A server reports its own.
    pub(crate) steal_ms: u64,
}

impl CoreUse {
    /// Everything that sums of cores count.
    pub(crate) fn counts(&self) -> [u64; 7] {
        let Self { calls, polls, empty_polls, credit_stalls, queue_full, copies, steal_ms, .. } =
            *self;
        [calls, polls, empty_polls, credit_stalls, queue_full, copies, steal_ms]
    }

    /// Sums the activity of a core, or several together, over two consecutive periods of these
    /// lengths.
    pub(crate) fn and_then(&self, next: &Self, [own_s, next_s]: [f64; 2]) -> Self {
        let both = Self::sum(&[*self, *next]);
        let mean = |own: f64, next: f64| {
            (own * own_s + next * next_s) / (own_s + next_s).max(f64::MIN_POSITIVE)
        };
        Self {
            cpu: self.cpu,
            calls_per_second: mean(self.calls_per_second, next.calls_per_second),
            busy_percent: mean(self.busy_percent, next.busy_percent),
            ..both
        }
    }

    /// Sum of the activity of cores: counts and rates add up, busy shares are averaged.
    pub(crate) fn sum(cores: &[Self]) -> Self {
        let count = |of: fn(&Self) -> u64| cores.iter().map(of).sum();
        let calls: u64 = count(|core| core.calls);
        let ticks = |core: &Self| core.busy_ticks_per_call.unwrap_or(0.0) * core.calls as f64;
        let ticks: f64 = cores.iter().map(ticks).sum();
        // The empty sum would be -0.0 otherwise.
        let busy_percent: f64 = cores.iter().map(|core| core.busy_percent).sum::<f64>() + 0.0;
        Self {
            cpu: None,
            calls,
            calls_per_second: cores.iter().map(|core| core.calls_per_second).sum(),
            busy_ticks_per_call: (calls > 0).then(|| ticks / calls as f64),
            busy_percent: busy_percent / cores.len().max(1) as f64,
            polls: count(|core| core.polls),
            empty_polls: count(|core| core.empty_polls),
            credit_stalls: count(|core| core.credit_stalls),
            queue_full: count(|core| core.queue_full),
            copies: count(|core| core.copies),
            steal_ms: count(|core| core.steal_ms),
        }
    }
}

const SIGNIFICANT_DIGITS: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_goes_on_counts_both_times() {
        let of = |calls: u64, calls_per_second: f64, busy_percent: f64| CoreUse {
            cpu: Some(3),
            calls,
            calls_per_second,
            busy_percent,
            ..CoreUse::default()
        };
        let all = of(100, 100.0, 10.0).and_then(&of(900, 300.0, 50.0), [1.0, 3.0]);
        assert_eq!((all.cpu, all.calls), (Some(3), 1000));
        assert_eq!((all.calls_per_second, all.busy_percent), (250.0, 40.0));
    }

    #[test]
    fn cores_together_count_what_each_did_and_are_as_busy_as_their_mean() {
        let of = |calls: u64, ticks: f64, busy_percent: f64| CoreUse {
            cpu: Some(3),
            calls,
            busy_ticks_per_call: Some(ticks),
            busy_percent,
            ..CoreUse::default()
        };
        let both = CoreUse::sum(&[of(100, 10.0, 50.0), of(300, 30.0, 100.0)]);
        assert_eq!((both.cpu, both.calls), (None, 400));
        assert_eq!((both.busy_ticks_per_call, both.busy_percent), (Some(25.0), 75.0));
        assert_eq!(CoreUse::sum(&[]).busy_ticks_per_call, None);
        assert!(CoreUse::sum(&[]).busy_percent.is_sign_positive());
    }
}
