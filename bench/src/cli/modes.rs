//! Options that say how the calls of `spinperf run` follow one another, and for how long.

use super::lists::{List, counts, rates};
use crate::load::{Arrivals, Mode};
use crate::units::parse_time;
use clap::Args;
use std::time::Duration;

#[derive(Args, Debug)]
#[command(next_help_heading = "Modes")]
pub(crate) struct ModeArgs {
    /// How calls follow one another [default: closed; open with --rate, saturate with --p99-max,
    /// sweep with a list of values]
    #[arg(long, value_enum)]
    pub(crate) mode: Option<Mode>,
    /// Calls per second of all cores together, such as 500, 20k or 1.5M: they start at their time,
    /// whatever the replies do. A list sweeps
    #[arg(long, value_parser = rates)]
    pub(crate) rate: Option<List<u64>>,
    /// How the calls of --rate follow one another
    #[arg(long, value_enum, default_value_t)]
    pub(crate) arrivals: Arrivals,
    /// Calls of --rate under way at most, per connection [default: 64]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) in_flight_max: Option<u32>,
    /// Print the percentiles of an open loop even if less than 99.9 % of its calls were started in
    /// time
    #[arg(long)]
    pub(crate) force: bool,
    /// What is random follows from this: the next operation of a mix, Poisson arrivals, the order of
    /// a sweep
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// How many of the cores call, such as 1,2,4: a list sweeps [default: all]
    #[arg(long, value_parser = counts)]
    pub(crate) core_counts: Option<List<usize>>,
    /// Find the highest rate whose 99th percentile, from the intended start, is at most this
    #[arg(long, value_parser = parse_time)]
    pub(crate) p99_max: Option<Duration>,
    /// How long each window of a soak is [default: a 60th of its duration]
    #[arg(long, value_parser = parse_time)]
    pub(crate) window: Option<Duration>,
    /// Measured time of one repeat [default: 3s; sweep and saturate 1s for each step, soak 10m]
    #[arg(long, value_parser = parse_time)]
    pub(crate) duration: Option<Duration>,
    /// Time before it that is not measured [default: 500ms; sweep and saturate 200ms]
    #[arg(long, value_parser = parse_time)]
    pub(crate) warmup: Option<Duration>,
    /// Time before the warm-up in which the load grows to what it is to be
    #[arg(long, default_value = "0ms", value_parser = parse_time)]
    pub(crate) ramp: Duration,
    /// Time at the end, under the same load, that is not measured
    #[arg(long, default_value = "0ms", value_parser = parse_time)]
    pub(crate) cooldown: Duration,
    /// Longest time to wait for calls that are in flight at the end. Those that are not answered by then
    /// are lost, which is exit code 1. Calls also have a deadline (rpc.timeout_ms)
    #[arg(long, default_value = "10s", value_parser = parse_time)]
    pub(crate) grace: Duration,
    /// End a repeat after this many calls per core, if that comes first
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) calls: Option<u64>,
    /// Number of measurements; results are medians. Of an even number the worse of the two in the
    /// middle is printed: the upper one for latencies and costs, the lower one for rates. A sweep
    /// measures everything once before it measures anything again
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub(crate) repeats: u32,
}

/// What `spinperf run --help` ends with.
pub(super) const EXAMPLES: &str = "\
Examples:
  spinperf serve --address shm:perf           # in another terminal; takes no further options

  # pingpong: one call at a time
  spinperf run --address shm:perf --mode pingpong --op echo --size 64
  # closed: 32 calls under way, on 2 connections
  spinperf run --address shm:perf --op null --depth 32 --connections 2
  # open: 100 000 calls per second, whatever the replies do; latency from the intended start
  spinperf run --address shm:perf --rate 100k --arrivals poisson --seed 7
  # sweep: every size at every depth, five times, in an order of its own each time
  spinperf run --address shm:perf --mode sweep --size 64..1MiB --depth 1,4,16 --repeats 5
  # saturate: the highest rate with a 99th percentile of at most 20 microseconds
  spinperf run --address shm:perf --mode saturate --p99-max 20us
  # soak: four hours, watched for drift and leaks; exit code 1 if there are any
  spinperf run --address shm:perf --mode soak --rate 20k --duration 4h

  # a mix: 70 of 100 calls are echoes, 20 read and 10 write a megabyte
  spinperf run --address shm:perf --op echo:70,read:20,write:10 --size echo=64,read=1MiB,write=1MiB
  # both directions of one connection at once
  spinperf run --address shm:perf --bidir --depth 8
  # every byte checked at both ends
  spinperf run --address shm:perf --op read --size 1MiB --verify full

SIGINT (Ctrl-C) and SIGTERM end the measurement, and what was measured until then is printed; a
second one ends the program at once.

Exit codes: 0 measured; 1 not to be measured, nothing measured, calls that were never answered, wrong
data, no rate holds, a soak did not hold, or a --fail-if is met; 2 a wrong command line; 130 or 143
interrupted by SIGINT or SIGTERM";
