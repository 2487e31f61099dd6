//! Options of `spinperf run` for the timing and the number of calls.

use super::lists::{List, counts, rates};
use crate::load::{Arrivals, Mode};
use crate::units::parse_time;
use clap::Args;
use std::time::Duration;

#[derive(Args, Debug)]
#[command(next_help_heading = "Modes")]
pub(crate) struct ModeArgs {
    /// Load model [default: closed; open with --rate, saturate with --p99-max, sweep with a list of
    /// values]
    #[arg(long, value_enum)]
    pub(crate) mode: Option<Mode>,
    /// Calls per second of all cores and ranks together, such as 500, 20k or 1.5M. Calls start on schedule,
    /// independently of replies. A list sweeps
    #[arg(long, value_parser = rates)]
    pub(crate) rate: Option<List<u64>>,
    /// Distribution of the calls of --rate
    #[arg(long, value_enum, default_value_t)]
    pub(crate) arrivals: Arrivals,
    /// Calls of --rate that start at the same time, in bursts; the rate stays that of the calls
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=4096))]
    pub(crate) burst: Option<u32>,
    /// Maximum number of --rate calls in flight per connection [default: 64]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) in_flight_max: Option<u32>,
    /// Print the percentiles of an open loop even if less than 99.9 % of its calls started in time
    #[arg(long)]
    pub(crate) force: bool,
    /// Seed of everything random: the operations of a mix, Poisson arrivals, the order of a sweep
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Number of cores that call, such as 1,2,4: a list sweeps [default: all]
    #[arg(long, value_parser = counts)]
    pub(crate) core_counts: Option<List<usize>>,
    /// Find the highest rate whose 99th percentile, from the intended start, is at most this
    #[arg(long, value_parser = parse_time)]
    pub(crate) p99_max: Option<Duration>,
    /// Length of each window of a soak [default: a 60th of its duration]
    #[arg(long, value_parser = parse_time)]
    pub(crate) window: Option<Duration>,
    /// Measured time of one repeat [default: 3s; sweep and saturate 1s for each step, soak 10m]
    #[arg(long, value_parser = parse_time)]
    pub(crate) duration: Option<Duration>,
    /// Time before it that is not measured [default: 500ms; sweep and saturate 200ms]
    #[arg(long, value_parser = parse_time)]
    pub(crate) warmup: Option<Duration>,
    /// Time before the warm-up in which the load grows to its full rate
    #[arg(long, default_value = "0ms", value_parser = parse_time)]
    pub(crate) ramp: Duration,
    /// Time at the end, under the same load, that is not measured
    #[arg(long, default_value = "0ms", value_parser = parse_time)]
    pub(crate) cooldown: Duration,
    /// Maximum wait at the end for calls in flight. Calls without a reply by then are lost, which
    /// is exit code 1. Calls also have a deadline (rpc.timeout_ms)
    #[arg(long, default_value = "10s", value_parser = parse_time)]
    pub(crate) grace: Duration,
    /// End a repeat early after this many calls per core
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) calls: Option<u64>,
    /// Number of repeats; results are medians. For an even number, the worse of the two middle
    /// values is printed: the upper one for latencies and costs, the lower one for rates. A sweep
    /// measures every step once before it repeats any
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub(crate) repeats: u32,
}
