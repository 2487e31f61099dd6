//! Options of `spinperf run`, and the plan that is made of those that go together: mode, workloads and durations.

use super::lists::{List, Operations, Sizes, counts, operations, parse_payload, rates, sizes};
use super::parse_address;
use crate::cores::CoreList;
use crate::failure::Failure;
use crate::load::{
    Arrivals, Callee, IN_FLIGHT_MAX, Limits, Mix, Mode, Operation, Rate, Share, Workload,
};
use crate::output::OutputArgs;
use crate::pattern::Verify;
use crate::profile_args::ProfileArgs;
use crate::ranks::{Rank, RankArgs};
use crate::units::parse_time;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args, Debug)]
#[command(after_help = include_str!("../help/run.txt").trim_ascii_end())]
pub(crate) struct RunArgs {
    /// Address of the server: shm:NAME, rdma://HOST:PORT (a device), iwarp://HOST:PORT (TCP) or
    /// any://HOST:PORT (a device if there is one). Repeat it to drive several servers, with
    /// --connections to each
    #[arg(long, required = true, value_parser = parse_address)]
    pub(crate) address: Vec<String>,
    /// Operation of the calls: null, echo, read or write, or several with weights, such as
    /// echo:70,read:20,write:10
    #[arg(long, default_value = "echo", value_parser = operations)]
    pub(crate) op: Operations,
    /// With --op null: the RPC program to call instead of spinperf's own, such as 100003 for NFS.
    /// Any server that has it will do; the activity of its cores is then unknown
    #[arg(long, value_name = "NUMBER", requires = "version")]
    pub(crate) program: Option<u32>,
    /// Version of that program
    #[arg(long, value_name = "NUMBER", requires = "program")]
    pub(crate) version: Option<u32>,
    /// Payload of a call (null has none): bytes echoed, read or written. A list such as
    /// 64,4KiB,1MiB or a range such as 64..1MiB sweeps; a mix has one for each operation:
    /// read=1MiB,echo=64
    #[arg(long, default_value = "64", value_parser = sizes)]
    pub(crate) size: Sizes,
    /// Payload of the reply to an echo [default: that of the call]
    #[arg(long, value_parser = parse_payload)]
    pub(crate) reply_size: Option<usize>,
    /// Calls in flight per connection; each reply starts the next call; a list sweeps. Calls beyond the
    /// credits of both ends (rpc.credits) wait in order, and their latency includes that [default: 1]
    #[arg(long, value_parser = counts)]
    pub(crate) depth: Option<List<usize>>,
    /// Connections per core and server, all of them busy
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) connections: u32,
    /// Further connections per core and server that stay idle
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=16_000))]
    pub(crate) idle_connections: u32,
    /// Call from this many threads per core, each with --depth null calls in flight (1024 in all at
    /// most), instead of the core itself
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=256))]
    pub(crate) threads: u32,
    /// Keep the data of reads and writes in a slab that is lent to the server; with spinperf serve
    /// --slabs the other way round as well
    #[arg(long)]
    pub(crate) slabs: bool,
    /// Cores to call from, one thread each [default: the profile's]
    #[arg(long)]
    pub(crate) cores: Option<CoreList>,
    #[command(flatten)]
    pub(crate) profile: ProfileArgs,
    /// Part of every payload to verify, at both ends
    #[arg(long, value_enum, default_value_t = Verify::Off)]
    pub(crate) verify: Verify,
    /// Measure both directions of one connection at once: the server makes the same calls in
    /// reverse
    #[arg(long)]
    pub(crate) bidir: bool,
    /// Write what this end sends and receives to this file, as pcapng for Wireshark
    #[arg(long)]
    pub(crate) capture: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) modes: ModeArgs,
    #[command(flatten)]
    pub(crate) ranks: RankArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

impl RunArgs {
    pub(crate) fn callees(&self) -> Vec<Callee<'_>> {
        let callee = |address| match (self.program, self.version) {
            (Some(program), Some(version)) => Callee::other(address, program, version),
            _ => Callee::spinperf(address),
        };
        self.address.iter().map(|address| callee(address)).collect()
    }

    pub(crate) fn calls_spinperf(&self) -> bool {
        self.callees().iter().all(|callee| callee.is_asked)
    }
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Modes")]
pub(crate) struct ModeArgs {
    /// Load model [default: closed; open with --rate, sweep with a list of values]
    #[arg(long, value_enum)]
    pub(crate) mode: Option<Mode>,
    /// Calls per second of all cores and ranks together, such as 500, 20k or 1.5M. Calls start on schedule,
    /// independently of replies. A list sweeps
    #[arg(long, value_parser = rates)]
    pub(crate) rate: Option<List<u64>>,
    /// Distribution of the calls of --rate
    #[arg(long, value_enum, default_value_t)]
    pub(crate) arrivals: Arrivals,
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
    /// Length of each window of a soak, at least 20ms and a 600th of its duration [default: a 60th]
    #[arg(long, value_parser = parse_time)]
    pub(crate) window: Option<Duration>,
    /// Measured time of one repeat [default: 3s; sweep 1s for each step, soak 10m]
    #[arg(long, value_parser = parse_time)]
    pub(crate) duration: Option<Duration>,
    /// Time before it that is not measured [default: 500ms; sweep 200ms]
    #[arg(long, value_parser = parse_time)]
    pub(crate) warmup: Option<Duration>,
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

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) address: String,
    pub(crate) mode: Mode,
    /// At least one; several for a sweep.
    pub(crate) workloads: Vec<Workload>,
    /// Limits of one repeat, of one step, or of a whole soak.
    pub(crate) limits: Limits,
    pub(crate) repeats: u32,
    pub(crate) seed: u64,
    pub(crate) window: Duration,
}

impl Plan {
    pub(crate) fn new(args: &RunArgs, cores: usize) -> Result<Self, Failure> {
        let mode = mode_of(args);
        check(args, mode)?;
        check_times(&args.modes)?;
        let workloads = workloads(args, cores)?;
        let modes = &args.modes;
        let limits = limits(args, mode)?;
        let window = modes.window.unwrap_or(limits.duration / SOAK_WINDOWS);
        Ok(Self {
            address: args.address[0].clone(),
            // One call at a time is pingpong, whatever the option says.
            mode: if mode == Mode::Closed { workloads[0].mode } else { mode },
            workloads,
            limits,
            repeats: modes.repeats,
            seed: modes.seed,
            window: window.max(WINDOW_MIN).max(limits.duration / SOAK_WINDOWS_MAX),
        })
    }

    /// Its rate is that of all ranks together. Fails for a mode whose repeats depend on what it finds: they
    /// must be those of the other ranks.
    pub(crate) fn of_rank(mut self, rank: &Rank) -> Result<Self, Failure> {
        if self.mode == Mode::Soak {
            return Err(Failure::Usage(ALONE.to_owned()));
        }
        self.limits.rank = (rank.rank as usize, rank.ranks as usize);
        Ok(self)
    }

    pub(crate) fn total(&self) -> Duration {
        self.limits.total() * self.repeats * self.workloads.len() as u32
    }
}

fn mode_of(args: &RunArgs) -> Mode {
    let modes = &args.modes;
    match modes.mode {
        Some(mode) => mode,
        None if lists(args) => Mode::Sweep,
        None if modes.rate.is_some() => Mode::Open,
        None => Mode::Closed,
    }
}

fn lists(args: &RunArgs) -> bool {
    let several = |list: &Option<List<usize>>| list.as_ref().is_some_and(|list| list.0.len() > 1);
    let sizes = matches!(&args.size, Sizes::Any(sizes) if sizes.len() > 1);
    let rates = args.modes.rate.as_ref().is_some_and(|rates| rates.0.len() > 1);
    sizes || rates || several(&args.depth) || several(&args.modes.core_counts)
}

fn check(args: &RunArgs, mode: Mode) -> Result<(), Failure> {
    let modes = &args.modes;
    let (rate, depth) = (modes.rate.is_some(), args.depth.is_some());
    let is_mix = args.op.0.len() > 1;
    let deep = args.depth.as_ref().is_some_and(|depth| depth.0 != [1]);
    let plain = matches!(mode, Mode::Closed | Mode::PingPong);
    let first = args.op.0.first().map_or("null", |(op, _)| op.name());
    let echoes = args.op.0.iter().any(|(op, _)| *op == Operation::Echo);
    let wrong: &[(bool, &str)] = &[
        (lists(args) && mode != Mode::Sweep, "several values of an option need --mode sweep"),
        (mode == Mode::Open && !rate, "--mode open needs --rate, in calls per second: 500, 20k"),
        (plain && rate, "--rate needs --mode open, sweep or soak"),
        (mode == Mode::PingPong && deep, "--depth needs --mode closed; pingpong has one call"),
        (rate && depth, "--depth applies to closed loops; open loops use --in-flight-max"),
        (!rate && modes.in_flight_max.is_some(), "--in-flight-max needs --rate"),
        (modes.window.is_some() && mode != Mode::Soak, "--window needs --mode soak"),
        (
            modes.repeats > 1 && mode == Mode::Soak,
            "--repeats cannot be used with --mode soak, which has its own repeats",
        ),
        (modes.calls.is_some() && mode == Mode::Soak, "--calls cannot be used with --mode soak"),
        (
            is_mix && matches!(&args.size, Sizes::Any(sizes) if sizes.len() > 1),
            "a mix needs one size for each operation: --size read=1MiB,echo=64",
        ),
    ];
    refuse(wrong)?;
    check_ends(args, mode)?;
    if args.reply_size.is_some() && !echoes {
        let message = format!("--reply-size needs --op echo, not {first}");
        return Err(Failure::Usage(message));
    }
    Ok(())
}

fn check_ends(args: &RunArgs, mode: Mode) -> Result<(), Failure> {
    let (ops, modes) = (&args.op.0, &args.modes);
    let is_mix = ops.len() > 1;
    let only_null = ops.iter().all(|(op, _)| *op == Operation::Null);
    let plain = matches!(mode, Mode::Closed | Mode::PingPong);
    let is_above = |depth: &usize| args.threads as usize * depth > HANDLE_CALLS_MAX;
    let too_many = format!(
        "--threads times --depth must be at most {HANDLE_CALLS_MAX}, the calls that a core accepts from other threads"
    );
    refuse(&[
        (
            args.depth.as_ref().is_some_and(|depths| depths.0.iter().any(is_above)),
            too_many.as_str(),
        ),
        (
            args.bidir
                && (args.connections > 1 || args.idle_connections > 0 || args.address.len() > 1),
            "--bidir needs exactly one connection",
        ),
        (
            args.threads > 0
                && (!only_null
                    || !plain
                    || args.bidir
                    || args.connections > 1
                    || args.address.len() > 1
                    || modes.calls.is_some()),
            "--threads needs --op null in a closed loop of one connection, without --calls",
        ),
        (
            args.slabs && (args.bidir || args.op.0.iter().any(|(op, _)| !op.is_bulk())),
            "--slabs needs --op read or write, without --bidir",
        ),
        (
            args.program.is_some() && (args.bidir || !only_null),
            "--program needs --op null, without --bidir",
        ),
        (
            args.program.is_some() && mode == Mode::Soak,
            "--program cannot be used with --mode soak, which asks the server for its resources",
        ),
        (
            mode == Mode::Soak && args.address.len() > 1,
            "--mode soak watches one server: give one --address",
        ),
        (
            args.bidir && (is_mix || !plain),
            "--bidir needs a closed loop of one operation, --mode pingpong or closed",
        ),
    ])
}

fn refuse(rules: &[(bool, &str)]) -> Result<(), Failure> {
    match rules.iter().find(|(is_broken, _)| *is_broken) {
        Some((_, why)) => Err(Failure::Usage((*why).to_owned())),
        None => Ok(()),
    }
}

fn check_times(modes: &ModeArgs) -> Result<(), Failure> {
    let times = [
        ("--duration", modes.duration, true),
        ("--window", modes.window, true),
        ("--grace", Some(modes.grace), true),
        ("--warmup", modes.warmup, false),
    ];
    for (name, time, is_needed) in times {
        let is_wrong = |time: Duration| time > DURATION_MAX || (is_needed && time.is_zero());
        if time.is_some_and(is_wrong) {
            let least = if is_needed { "more than zero and " } else { "" };
            return Err(Failure::Usage(format!("{name} must be {least}at most 1000h")));
        }
    }
    Ok(())
}

fn limits(args: &RunArgs, mode: Mode) -> Result<Limits, Failure> {
    let modes = &args.modes;
    let (warmup, duration) = match mode {
        Mode::Sweep => (STEP_WARMUP, STEP_DURATION),
        Mode::Soak => (WARMUP, SOAK_DURATION),
        Mode::PingPong | Mode::Closed | Mode::Open => (WARMUP, DURATION),
    };
    let duration = modes.duration.unwrap_or(duration);
    Ok(Limits {
        warmup: modes.warmup.unwrap_or(warmup),
        duration,
        grace: modes.grace,
        // A soak ends with a complete window.
        can_be_interrupted: mode != Mode::Soak,
        calls: modes.calls,
        rank: (0, 1),
        window: 0,
        force: modes.force,
    })
}

fn workloads(args: &RunArgs, cores: usize) -> Result<Vec<Workload>, Failure> {
    let modes = &args.modes;
    let core_counts = modes.core_counts.as_ref().map_or(vec![cores], |list| list.0.clone());
    if core_counts.iter().any(|count| *count > cores) {
        return Err(Failure::Usage(format!(
            "--core-counts must be at most {cores}, the cores of --cores or the profile"
        )));
    }
    let depths = args.depth.as_ref().map_or(vec![1], |list| list.0.clone());
    let rates = modes.rate.as_ref().map(|list| list.0.clone());
    let sizes = match &args.size {
        Sizes::Any(sizes) => sizes.clone(),
        // One row, whose operations have their own sizes.
        Sizes::Each(_) => vec![0],
    };
    let mut all = Vec::new();
    for size in sizes {
        for &depth in &depths {
            for &count in &core_counts {
                let closed = Workload { cores: count, ..closed(args, size, depth)? };
                match &rates {
                    None => all.push(closed),
                    Some(rates) => all.extend(rates.iter().map(|&rate| open(args, closed, rate))),
                }
            }
        }
    }
    Ok(all)
}

fn closed(args: &RunArgs, size: usize, depth: usize) -> Result<Workload, Failure> {
    let ops = args.op.0.iter();
    let shares = ops.map(|(op, weight)| share(args, *op, *weight, size));
    let shares = shares.collect::<Result<Vec<_>, _>>()?;
    let first = shares[0];
    let mix = if shares.len() > 1 { Mix::new(&shares) } else { Mix::default() };
    Ok(Workload {
        reply_bytes: first.reply_bytes,
        mix,
        connections: args.connections as usize * args.address.len(),
        idle_connections: args.idle_connections as usize * args.address.len(),
        verify: args.verify,
        seed: args.modes.seed,
        both: args.bidir,
        threads: args.threads as usize,
        slabs: args.slabs,
        ..Workload::ping_pong(first.op, first.call_bytes).at_depth(depth)
    })
}

fn share(args: &RunArgs, op: Operation, weight: u32, size: usize) -> Result<Share, Failure> {
    let call_bytes = match &args.size {
        _ if op == Operation::Null => 0,
        Sizes::Any(_) => size,
        sizes @ Sizes::Each(_) => sizes.of(op).ok_or_else(|| {
            let op = op.name();
            Failure::Usage(format!("no size for {op}: add --size {op}=64"))
        })?,
    };
    let echo_bytes = args.reply_size.filter(|_| op == Operation::Echo);
    Ok(Share { op, weight, call_bytes, reply_bytes: echo_bytes.unwrap_or(call_bytes) })
}

fn open(args: &RunArgs, closed: Workload, per_second: u64) -> Workload {
    let depth = args.modes.in_flight_max.map(|calls| calls as usize);
    let rate = Rate { per_second, arrivals: args.modes.arrivals };
    Workload { depth: depth.unwrap_or(IN_FLIGHT_MAX), ..closed }.at_rate(rate)
}

const ALONE: &str = "--mode soak cannot be used with ranks; --ranks 1 measures alone";
/// Calls of handles that a core accepts at a time (`Config::handle_calls`, which no key changes).
const HANDLE_CALLS_MAX: usize = 1024;
const DURATION: Duration = Duration::from_secs(3);
const WARMUP: Duration = Duration::from_millis(500);
const STEP_DURATION: Duration = Duration::from_secs(1);
const STEP_WARMUP: Duration = Duration::from_millis(200);
const SOAK_DURATION: Duration = Duration::from_secs(600);
/// Far below the range of nanoseconds and clock ticks.
const DURATION_MAX: Duration = Duration::from_secs(3_600_000);
const SOAK_WINDOWS: u32 = 60;
/// Bounds the memory of a soak.
const SOAK_WINDOWS_MAX: u32 = 600;
const WINDOW_MIN: Duration = Duration::from_millis(20);
