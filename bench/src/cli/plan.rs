//! The plan of `spinperf run`, from options that go together: mode, workloads and durations.

use super::lists::{List, Sizes};
use super::modes::ModeArgs;
use super::run::RunArgs;
use crate::failure::Failure;
use crate::load::{IN_FLIGHT_MAX, Limits, Mix, Mode, Operation, Rate, Share, Workload};
use crate::ranks::Rank;
use std::time::Duration;

/// The workloads to measure, and the way to measure them.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The first server.
    pub(crate) address: String,
    pub(crate) mode: Mode,
    /// At least one; several for a sweep.
    pub(crate) workloads: Vec<Workload>,
    /// Limits of one repeat, of one step, or of a whole soak.
    pub(crate) limits: Limits,
    pub(crate) repeats: u32,
    /// Seed for the order of a sweep.
    pub(crate) seed: u64,
    /// Target of a saturation.
    pub(crate) p99_max: Option<Duration>,
    /// Window of a soak.
    pub(crate) window: Duration,
}

impl Plan {
    /// Makes the plan of the options for this number of client cores.
    ///
    /// # Errors
    /// One line if the options do not go together.
    pub(crate) fn new(args: &RunArgs, cores: usize) -> Result<Self, Failure> {
        let mode = mode_of(args);
        check_burst(args)?;
        check(args, mode)?;
        check_times(&args.modes)?;
        let workloads = workloads(args, mode, cores)?;
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
            p99_max: modes.p99_max,
            window: window.max(WINDOW_MIN).max(limits.duration / SOAK_WINDOWS_MAX),
        })
    }

    /// The plan of one rank. Its rate is that of all together, and its repeats must be those of the
    /// others.
    ///
    /// # Errors
    /// A mode whose repeats depend on what it finds.
    pub(crate) fn of_rank(mut self, rank: &Rank) -> Result<Self, Failure> {
        if matches!(self.mode, Mode::Saturate | Mode::Soak) {
            let message = "--mode saturate and soak cannot be used with ranks; --ranks 1 measures \
                           alone";
            return Err(Failure::Usage(message.to_owned()));
        }
        self.limits.rank = (rank.rank as usize, rank.ranks as usize);
        Ok(self)
    }

    /// Total duration, without searches.
    pub(crate) fn total(&self) -> Duration {
        self.limits.total() * self.repeats * self.workloads.len() as u32
    }
}

fn mode_of(args: &RunArgs) -> Mode {
    let modes = &args.modes;
    match modes.mode {
        Some(mode) => mode,
        None if lists(args) => Mode::Sweep,
        None if modes.p99_max.is_some() => Mode::Saturate,
        None if modes.rate.is_some() => Mode::Open,
        None => Mode::Closed,
    }
}

/// Returns whether some option has several values.
fn lists(args: &RunArgs) -> bool {
    let several = |list: &Option<List<usize>>| list.as_ref().is_some_and(|list| list.0.len() > 1);
    let sizes = matches!(&args.size, Sizes::Any(sizes) if sizes.len() > 1);
    let rates = args.modes.rate.as_ref().is_some_and(|rates| rates.0.len() > 1);
    sizes || rates || several(&args.depth) || several(&args.modes.core_counts)
}

/// Rejects bursts that cannot be.
fn check_burst(args: &RunArgs) -> Result<(), Failure> {
    let modes = &args.modes;
    let Some(burst) = modes.burst else { return Ok(()) };
    let slots = modes.in_flight_max.unwrap_or(IN_FLIGHT_MAX as u32) as usize
        * args.connections as usize
        * args.address.len();
    let why = match () {
        () if modes.rate.is_none() => "--burst needs --rate",
        () if burst as usize > slots => {
            "--burst needs room for all of its calls: raise --in-flight-max"
        }
        () if modes.calls.is_some_and(|calls| calls < u64::from(burst)) => {
            "--calls must be at least --burst"
        }
        () => return Ok(()),
    };
    Err(Failure::Usage(why.to_owned()))
}

/// Rejects options that do not go together, and names those that do.
fn check(args: &RunArgs, mode: Mode) -> Result<(), Failure> {
    let modes = &args.modes;
    let (rate, depth) = (modes.rate.is_some(), args.depth.is_some());
    let paced = rate || mode == Mode::Saturate;
    let is_mix = args.op.0.len() > 1;
    let deep = args.depth.as_ref().is_some_and(|depth| depth.0 != [1]);
    let plain = matches!(mode, Mode::Closed | Mode::PingPong);
    let first = args.op.0.first().map_or("null", |(op, _)| op.name());
    let only_null = args.op.0.iter().all(|(op, _)| *op == Operation::Null);
    let echoes = args.op.0.iter().any(|(op, _)| *op == Operation::Echo);
    let spread = matches!(&args.size, Sizes::Spread(_));
    let wrong: &[(bool, &str)] = &[
        (spread && is_mix, "a distribution of sizes needs one operation"),
        (spread && only_null, "a distribution of sizes needs --op echo, read or write"),
        (lists(args) && mode != Mode::Sweep, "several values of an option need --mode sweep"),
        (mode == Mode::Open && !rate, "--mode open needs --rate, in calls per second: 500, 20k"),
        (plain && rate, "--rate needs --mode open, sweep or soak"),
        (mode == Mode::PingPong && deep, "--depth needs --mode closed; pingpong has one call"),
        (paced && depth, "--depth applies to closed loops; open loops use --in-flight-max"),
        (!paced && modes.in_flight_max.is_some(), "--in-flight-max needs --rate"),
        (
            mode == Mode::Saturate && modes.p99_max.is_none(),
            "--mode saturate needs --p99-max, such as 20us",
        ),
        (modes.p99_max.is_some() && mode != Mode::Saturate, "--p99-max needs --mode saturate"),
        (modes.window.is_some() && mode != Mode::Soak, "--window needs --mode soak"),
        (
            modes.repeats > 1 && matches!(mode, Mode::Soak | Mode::Saturate),
            "--repeats cannot be used with --mode soak or saturate, which have their own repeats",
        ),
        (
            modes.calls.is_some() && matches!(mode, Mode::Soak | Mode::Saturate),
            "--calls cannot be used with --mode soak or saturate",
        ),
        (
            is_mix && matches!(&args.size, Sizes::Any(sizes) if sizes.len() > 1),
            "a mix needs one size for each operation: --size read=1MiB,echo=64",
        ),
        (
            args.bidir
                && (args.connections > 1 || args.idle_connections > 0 || args.address.len() > 1),
            "--bidir needs exactly one connection",
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
            args.bidir && (is_mix || spread || !plain),
            "--bidir needs a closed loop of one operation, --mode pingpong or closed",
        ),
    ];
    if let Some((_, why)) = wrong.iter().find(|(is_wrong, _)| *is_wrong) {
        return Err(Failure::Usage((*why).to_owned()));
    }
    if args.reply_size.is_some() && !echoes {
        let message = format!("--reply-size needs --op echo, not {first}");
        return Err(Failure::Usage(message));
    }
    Ok(())
}

/// Rejects times that are too short to measure anything, and those that exceed the range of clock
/// ticks.
fn check_times(modes: &ModeArgs) -> Result<(), Failure> {
    let needed = [
        ("--duration", modes.duration),
        ("--p99-max", modes.p99_max),
        ("--window", modes.window),
        ("--grace", Some(modes.grace)),
    ];
    let others = [
        ("--ramp", Some(modes.ramp)),
        ("--warmup", modes.warmup),
        ("--cooldown", Some(modes.cooldown)),
    ];
    let is_nothing = |(_, time): &&(&str, Option<Duration>)| time.is_some_and(|t| t.is_zero());
    let is_long = |(_, time): &&(&str, Option<Duration>)| time.is_some_and(|t| t > DURATION_MAX);
    let wrong = needed.iter().find(is_nothing).or_else(|| needed.iter().find(is_long));
    let needs = wrong.map(|(name, _)| format!("{name} must be more than zero and at most 1000h"));
    let long = others.iter().find(is_long);
    let message = needs.or_else(|| long.map(|(name, _)| format!("{name} must be at most 1000h")));
    message.map_or(Ok(()), |message| Err(Failure::Usage(message)))
}

fn limits(args: &RunArgs, mode: Mode) -> Result<Limits, Failure> {
    let modes = &args.modes;
    let (warmup, duration) = match mode {
        Mode::Sweep | Mode::Saturate => (STEP_WARMUP, STEP_DURATION),
        Mode::Soak => (WARMUP, SOAK_DURATION),
        Mode::PingPong | Mode::Closed | Mode::Open => (WARMUP, DURATION),
    };
    let duration = modes.duration.unwrap_or(duration);
    let intervals_max = match mode {
        Mode::Sweep | Mode::Saturate | Mode::Soak => 1,
        Mode::PingPong | Mode::Closed | Mode::Open => INTERVALS_MAX,
    };
    Ok(Limits {
        ramp: modes.ramp,
        warmup: modes.warmup.unwrap_or(warmup),
        duration,
        cooldown: modes.cooldown,
        grace: modes.grace,
        // A soak ends with a complete window.
        can_be_interrupted: mode != Mode::Soak,
        calls: modes.calls,
        intervals_max,
        rank: (0, 1),
        force: modes.force,
    })
}

/// All combinations of the option values, in the order of the options.
fn workloads(args: &RunArgs, mode: Mode, cores: usize) -> Result<Vec<Workload>, Failure> {
    let modes = &args.modes;
    let core_counts = modes.core_counts.as_ref().map_or(vec![cores], |list| list.0.clone());
    if core_counts.iter().any(|count| *count > cores) {
        let message = format!(
            "--core-counts must be at most {cores}, the cores of --cores or the \
                               profile"
        );
        return Err(Failure::Usage(message));
    }
    let depths = args.depth.as_ref().map_or(vec![1], |list| list.0.clone());
    let rates = modes.rate.as_ref().map(|list| list.0.clone());
    let sizes = match &args.size {
        Sizes::Any(sizes) => sizes.clone(),
        // One row, whose operations have their own sizes.
        Sizes::Each(_) | Sizes::Spread(_) => vec![0],
    };
    let mut all = Vec::new();
    for size in sizes {
        for &depth in &depths {
            for &count in &core_counts {
                let closed = Workload { cores: count, ..closed(args, size, depth)? };
                match &rates {
                    None if mode == Mode::Saturate => all.push(open(args, closed, 1)),
                    None => all.push(closed),
                    Some(rates) => all.extend(rates.iter().map(|&rate| open(args, closed, rate))),
                }
            }
        }
    }
    Ok(all)
}

fn closed(args: &RunArgs, size: usize, depth: usize) -> Result<Workload, Failure> {
    let shares: Vec<Share> = match (&args.size, args.op.0.first()) {
        (Sizes::Spread(sizes), Some(&(op, _))) => {
            sizes.iter().map(|&(size, weight)| share_of(args, op, weight, size)).collect()
        }
        _ => {
            let shares = args.op.0.iter().map(|&(op, weight)| share(args, op, weight, size));
            shares.collect::<Result<_, _>>()?
        }
    };
    let first = shares[0];
    let mix = if shares.len() > 1 { Mix::new(&shares) } else { Mix::default() };
    Ok(Workload {
        reply_bytes: first.reply_bytes,
        mix,
        connections: args.connections as usize * args.address.len(),
        idle_connections: args.idle_connections as usize * args.address.len(),
        verify: args.verify,
        seed: args.modes.seed,
        ..Workload::ping_pong(first.op, first.call_bytes).at_depth(depth)
    })
}

fn share(args: &RunArgs, op: Operation, weight: u32, size: usize) -> Result<Share, Failure> {
    let call_bytes = match &args.size {
        _ if op == Operation::Null => 0,
        Sizes::Any(_) | Sizes::Spread(_) => size,
        sizes @ Sizes::Each(_) => sizes.of(op).ok_or_else(|| {
            let op = op.name();
            Failure::Usage(format!("no size for {op}: add --size {op}=64"))
        })?,
    };
    Ok(share_of(args, op, weight, call_bytes))
}

fn share_of(args: &RunArgs, op: Operation, weight: u32, call_bytes: usize) -> Share {
    let echo_bytes = args.reply_size.filter(|_| op == Operation::Echo);
    Share { op, weight, call_bytes, reply_bytes: echo_bytes.unwrap_or(call_bytes) }
}

fn open(args: &RunArgs, closed: Workload, per_second: u64) -> Workload {
    let depth = args.modes.in_flight_max.map(|calls| calls as usize);
    let rate = Rate { per_second, arrivals: args.modes.arrivals, burst: args.modes.burst };
    Workload { depth: depth.unwrap_or(IN_FLIGHT_MAX), ..closed }.at_rate(rate)
}

const DURATION: Duration = Duration::from_secs(3);
const WARMUP: Duration = Duration::from_millis(500);
const STEP_DURATION: Duration = Duration::from_secs(1);
const STEP_WARMUP: Duration = Duration::from_millis(200);
const SOAK_DURATION: Duration = Duration::from_secs(600);
/// Far below the range of nanoseconds and clock ticks.
const DURATION_MAX: Duration = Duration::from_secs(3_600_000);
/// Histograms over time, for a plot.
const INTERVALS_MAX: u32 = 60;
const SOAK_WINDOWS: u32 = 60;
/// Bounds the memory of a soak.
const SOAK_WINDOWS_MAX: u32 = 600;
const WINDOW_MIN: Duration = Duration::from_millis(20);
