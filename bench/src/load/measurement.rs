//! Results of a measurement. Plain data: `session` and `fleet` fill it, reports print it.

use super::hdr_encoding;
use crate::failure::Failure;
use crate::latency::LatencySummary;
use hdrhistogram::Histogram;
use serde::{Deserialize, Deserializer, Serialize};
use std::time::Duration;

/// One repeat of one workload; `bench/schema` describes the fields. From a report, all but the percentiles, which are those
/// of its samples. Figures without calls are NaN.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Measurement {
    pub(crate) calls: u64,
    pub(crate) lost: u64,
    pub(crate) elapsed_s: f64,
    #[serde(deserialize_with = "or_nan")]
    pub(crate) calls_per_second: f64,
    #[serde(deserialize_with = "or_nan")]
    pub(crate) bytes_per_second: f64,
    #[serde(skip_deserializing, default = "unknown")]
    pub(crate) latency: LatencySummary,
    pub(crate) start_unix_s: f64,
    pub(crate) carried_in_ns: f64,
    #[serde(skip_deserializing)]
    pub(crate) service: Option<LatencySummary>,
    pub(crate) open: Option<OpenLoop>,
    pub(crate) client: CoreUse,
    pub(crate) server: Option<CoreUse>,
    pub(crate) client_cores: Vec<CoreUse>,
    pub(crate) server_cores: Vec<CoreUse>,
    #[serde(rename = "histogram", with = "hdr_encoding")]
    /// In nanoseconds.
    pub(crate) samples: Histogram<u64>,
    /// Reason why the measurement is incomplete and the last one.
    #[serde(flatten)]
    pub(crate) cut_short: CutShort,
}

impl Measurement {
    /// Time that the threads of either end waited for their CPUs, in percent, as far as it is known.
    pub(crate) fn waits(&self) -> impl Iterator<Item = f64> {
        let sides = [self.client.waited_percent, self.server.and_then(|it| it.waited_percent)];
        sides.into_iter().flatten()
    }

    /// Counts a wait of the other end within this time, whose cores are not known, for the client.
    pub(crate) fn add_wait(&mut self, waited_ns: Option<u64>, time: Duration) {
        let percent = waited_ns.map(|ns| ns as f64 / 1e7 / time.as_secs_f64());
        let own = self.client.waited_percent;
        self.client.waited_percent = own.into_iter().chain(percent).reduce(f64::max);
    }
}

fn or_nan<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Option::deserialize(from).map(|figure| figure.unwrap_or(f64::NAN))
}

fn unknown() -> LatencySummary {
    LatencySummary::refused(0)
}

/// For serde, a reference in a field would be one into the document.
type Reason = &'static str;

/// The reason for which this program refuses percentiles, whatever the text.
fn refused<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Reason>, D::Error> {
    Option::<String>::deserialize(from).map(|reason| reason.map(|_| REFUSED))
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CutShort {
    #[serde(rename = "stuck", skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_stuck: bool,
    #[serde(skip)]
    pub(crate) is_interrupted: bool,
}

/// A histogram of nanoseconds, as large as its samples need.
pub(crate) fn nanoseconds() -> Result<Histogram<u64>, Failure> {
    Ok(Histogram::new(SIGNIFICANT_DIGITS)?)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Arrivals {
    /// At equal distances.
    #[default]
    Fixed,
    /// Independent, at random times; the total is what the rate yields.
    Poisson,
}

/// Adherence of an open loop to its rate; `bench/schema` describes the fields.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct OpenLoop {
    pub(crate) target_per_second: f64,
    #[serde(deserialize_with = "or_nan")]
    pub(crate) achieved_per_second: f64,
    pub(crate) intended: u64,
    pub(crate) adherence_percent: f64,
    pub(crate) late: u64,
    pub(crate) overran: u64,
    pub(crate) never_sent: u64,
    pub(crate) arrivals: Arrivals,
    #[serde(deserialize_with = "refused")]
    pub(crate) refused: Option<Reason>,
}

impl OpenLoop {
    /// Several loops together, each of which has these rates.
    pub(crate) fn sum(loops: &[Self], rates: [f64; 2]) -> Option<Self> {
        let count = |of: fn(&Self) -> u64| loops.iter().map(of).sum::<u64>();
        let intended = count(|one| one.intended);
        let in_time: f64 =
            loops.iter().map(|one| one.adherence_percent * one.intended as f64).sum();
        let [target_per_second, achieved_per_second] = rates;
        Some(Self {
            target_per_second,
            achieved_per_second,
            intended,
            adherence_percent: if intended == 0 { 100.0 } else { in_time / intended as f64 },
            late: count(|one| one.late),
            overran: count(|one| one.overran),
            never_sent: count(|one| one.never_sent),
            arrivals: loops.first()?.arrivals,
            refused: loops.iter().find_map(|one| one.refused),
        })
    }
}

/// From the first call of a run to the last, with warm-up; `bench/schema` has the fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CoreUse {
    pub(crate) cpu: Option<usize>,
    /// Calls made or answered; a server's include those of other clients.
    pub(crate) calls: u64,
    pub(crate) calls_per_second: f64,
    pub(crate) busy_ticks_per_call: Option<f64>,
    pub(crate) busy_percent: Option<f64>,
    pub(crate) polls: u64,
    pub(crate) empty_polls: u64,
    pub(crate) credit_stalls: u64,
    pub(crate) queue_full: u64,
    pub(crate) copies: u64,
    pub(crate) steal_ms: u64,
    pub(crate) cpu_percent: Option<f64>,
    pub(crate) system_percent: Option<f64>,
    pub(crate) switches: Option<u64>,
    pub(crate) waited_percent: Option<f64>,
}

impl CoreUse {
    pub(crate) fn counts(&self) -> [u64; 8] {
        let Self { calls, polls, empty_polls, credit_stalls, queue_full, copies, steal_ms, .. } =
            *self;
        let switches = self.switches.unwrap_or(0);
        [calls, polls, empty_polls, credit_stalls, queue_full, copies, steal_ms, switches]
    }

    pub(crate) fn and_then(&self, next: &Self, seconds: [f64; 2]) -> Self {
        Self { cpu: self.cpu, ..Self::joined(&[*self, *next], &seconds) }
    }

    /// Sum of the activity of cores: counts and rates add up. One core that is busy all the time, or waits, limits the
    /// others: they count as busy as the busiest.
    pub(crate) fn sum(cores: &[Self]) -> Self {
        let most = |of: fn(&Self) -> Option<f64>| cores.iter().filter_map(of).reduce(f64::max);
        Self {
            calls_per_second: cores.iter().map(|core| core.calls_per_second).sum(),
            busy_percent: most(|core| core.busy_percent),
            waited_percent: most(|core| core.waited_percent),
            ..Self::joined(cores, &vec![1.0; cores.len()])
        }
    }

    /// Counts add up; rates and shares are means by these weights.
    fn joined(cores: &[Self], weights: &[f64]) -> Self {
        let count = |of: fn(&Self) -> u64| cores.iter().map(of).sum();
        let calls: u64 = count(|core| core.calls);
        let ticks = |core: &Self| match core.calls {
            0 => Some(0.0),
            calls => Some(core.busy_ticks_per_call? * calls as f64),
        };
        let ticks: Option<f64> = cores.iter().map(ticks).sum();
        let mean = |of: fn(&Self) -> Option<f64>| {
            let weighted = cores.iter().zip(weights).map(|(core, weight)| Some(of(core)? * weight));
            let sum: f64 = weighted.sum::<Option<f64>>()?;
            (!cores.is_empty()).then(|| sum / weights.iter().sum::<f64>().max(f64::MIN_POSITIVE))
        };
        Self {
            cpu: None,
            calls,
            calls_per_second: mean(|core| Some(core.calls_per_second)).unwrap_or_default(),
            busy_ticks_per_call: ticks.filter(|_| calls > 0).map(|ticks| ticks / calls as f64),
            busy_percent: mean(|core| core.busy_percent),
            polls: count(|core| core.polls),
            empty_polls: count(|core| core.empty_polls),
            credit_stalls: count(|core| core.credit_stalls),
            queue_full: count(|core| core.queue_full),
            copies: count(|core| core.copies),
            steal_ms: count(|core| core.steal_ms),
            cpu_percent: mean(|core| core.cpu_percent),
            system_percent: mean(|core| core.system_percent),
            switches: cores.iter().map(|core| core.switches).sum(),
            waited_percent: mean(|core| core.waited_percent),
        }
    }
}

const SIGNIFICANT_DIGITS: u8 = 3;
pub(super) const REFUSED: &str = "less than 99.9 % of the calls started within the measured time: the \
                       percentiles would be those of a lower load (--force prints them)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_not_asked_disturbs_all_the_same() {
        let mut one = crate::report::tests::repeat(1, 1.0, &[]).measurement;
        one.add_wait(None, Duration::from_secs(1));
        assert_eq!(one.client.waited_percent, None);
        for (waited_ns, percent) in [(40_000_000, 2.0), (1_000_000, 2.0)] {
            one.add_wait(Some(waited_ns), Duration::from_secs(2));
            assert_eq!(one.client.waited_percent, Some(percent));
        }
    }

    #[test]
    fn cores_add_up_and_are_as_busy_as_the_busiest_or_their_mean_over_time() {
        let of = |calls: u64, calls_per_second: f64, busy_percent: f64| CoreUse {
            cpu: Some(3),
            calls,
            calls_per_second,
            busy_ticks_per_call: Some(calls as f64 / 10.0),
            busy_percent: Some(busy_percent),
            cpu_percent: Some(busy_percent / 2.0),
            switches: Some(calls),
            waited_percent: Some(busy_percent / 10.0),
            ..CoreUse::default()
        };
        let all = of(100, 100.0, 10.0).and_then(&of(900, 300.0, 50.0), [1.0, 3.0]);
        assert_eq!((all.cpu, all.calls), (Some(3), 1000));
        assert_eq!((all.calls_per_second, all.busy_percent), (250.0, Some(40.0)));
        let both = CoreUse::sum(&[of(100, 1.0, 50.0), of(300, 1.0, 100.0)]);
        assert_eq!((both.cpu, both.calls, both.switches), (None, 400, Some(400)));
        assert_eq!((both.busy_ticks_per_call, both.busy_percent), (Some(25.0), Some(100.0)));
        assert_eq!((both.cpu_percent, both.waited_percent), (Some(37.5), Some(10.0)));
        let unknown = CoreUse { cpu_percent: None, busy_ticks_per_call: None, ..both };
        for cores in [&[both, unknown][..], &[]] {
            let sum = CoreUse::sum(cores);
            assert_eq!((sum.cpu_percent, sum.busy_ticks_per_call), (None, None));
        }
    }
}
