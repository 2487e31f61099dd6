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

/// End of the text of `spinperf run --help`.
pub(super) const EXAMPLES: &str = "\
Examples:
  spinperf serve --address shm:perf           # in another terminal; takes no further options

  # pingpong: one call at a time
  spinperf run --address shm:perf --mode pingpong --op echo --size 64
  # closed: 32 calls in flight on each of 2 connections
  spinperf run --address shm:perf --op null --depth 32 --connections 2
  # open: 100 000 calls per second, independently of replies; latency from the intended start
  spinperf run --address shm:perf --rate 100k --arrivals poisson --seed 7
  # bursts of 16 calls, one every 160 microseconds
  spinperf run --address shm:perf --rate 100k --burst 16
  # sweep: every size at every depth, five times, each time in another order
  spinperf run --address shm:perf --mode sweep --size 64..1MiB --depth 1,4,16 --repeats 5
  # saturate: the highest rate with a 99th percentile of at most 20 microseconds
  spinperf run --address shm:perf --mode saturate --p99-max 20us
  # soak: four hours, watched for drift and leaks; exit code 1 if there are any
  spinperf run --address shm:perf --mode soak --rate 20k --duration 4h

  # a mix: 70 of 100 calls are echoes, 20 read and 10 write a megabyte
  spinperf run --address shm:perf --op echo:70,read:20,write:10 --size echo=64,read=1MiB,write=1MiB
  # a distribution of sizes
  spinperf run --address shm:perf --op write --size 64:80%,4KiB:15%,1MiB:5%
  # both directions of one connection at once
  spinperf run --address shm:perf --bidir --depth 8
  # every byte checked at both ends
  spinperf run --address shm:perf --op read --size 1MiB --verify full

SIGINT (Ctrl-C) and SIGTERM end the measurement and print the results so far; a second one ends the
program at once.

Exit codes: 0 success; 1 measurement failed, nothing measured, calls never answered, wrong data, no
rate holds, a soak did not hold, or a --fail-if is met; 2 usage error; 130 or 143 interrupted by
SIGINT or SIGTERM";
