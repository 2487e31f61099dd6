//! `spinperf` without a command: a complete picture of this machine in a minute.
//!
//! This process is the client, a child is the server, each on its own core. Every repeat measures
//! every workload, and just before each the limits it is compared with, on the same two cores,
//! while the server is stopped: so a ratio compares results of the same second. Over a device there
//! are no such limits to measure: memory and cores do not bound it.

use crate::child::{ServerProcess, own_address};
use crate::cli::MainJobArgs;
use crate::cores::{CoreList, CorePair};
use crate::env::{Environment, StealMeter, memory_bytes};
use crate::fabric::{self, Fabric};
use crate::failure::Failure;
use crate::floor::Probe;
use crate::handles;
use crate::latency::upper_median;
use crate::load::{Callee, Limits, Load, Measurement, Operation, Session, Workload};
use crate::output::Outputs;
use crate::pattern::Verify;
use crate::profile::{self, Side};
use crate::progress::Progress;
use crate::report::handles::HandleRow;
use crate::report::slabs::SlabRow;
use crate::report::{FloorRow, FloorValue, Goal, Ratio, Repeat, Report, Row};
use crate::run::limits_note;
use crate::slabs;
use spinrpc::config::Driver;
use std::time::{Duration, Instant};

/// Measures everything and prints it.
pub(crate) fn run(args: &MainJobArgs) -> Result<(), Failure> {
    args.output.check_files(None)?;
    let pair = CorePair::choose(args.cores.as_ref())?;
    let address = args.address.clone().map_or_else(own_address, Ok)?;
    let fabric = Fabric::of(&address)?;
    fabric::raise_limits(fabric.driver);
    let client_core = CoreList::from(pair.client);
    let profile = profile::load(&args.profile, Side::Client, Some(&client_core), fabric.driver)?;
    let cores = CoreList::from(pair);
    let mut report = Report::new(Environment::observe(&cores, profile.id, Some(&fabric)));
    report.environment.examine(&profile.placed);
    let outputs = Outputs::open(&args.output)?;
    let steal = StealMeter::start(&cores);
    // First, because it may fail: this process explains best why there is no such fabric here.
    let engine = profile::engine(&profile.config, None)?;
    let server = ServerProcess::start(&address, pair.server, &args.profile)?;
    let callees = [Callee::spinperf(&address)];
    let session = Session::open(&engine, 0, &callees)?;
    // The measured connection and the one for questions to the server come on top.
    let idle = idle_connections(fabric.driver).min(profile.config.conns_max().saturating_sub(2));
    let driver = fabric.driver;
    let mut job = MainJob { pair, args, driver, server, session, idle_bytes: Vec::new() };
    report.notes.push(job.verify()?);
    report.rows = job.measure(&workloads(idle))?;
    report.environment.note_version(&engine);
    engine.shutdown();
    if driver == Driver::Shm {
        report.goals = goals(&report.rows, idle, &job.idle_bytes);
    }
    drop(job);
    let repeats = report.rows.iter().map(|row| row.repeats.len() as u32).max().unwrap_or(1);
    if driver == Driver::Shm {
        report.handles = measure_handles(pair, repeats)?;
        report.goals.extend(report.handles.iter().map(HandleRow::goal));
        report.slabs = measure_slabs(pair, repeats)?;
        report.goals.extend(report.slabs.iter().map(SlabRow::goal));
    }
    report.collect_floor();
    report.floor.push(own_work(pair, repeats)?);
    report.interference = steal.stop();
    report.notes.extend(busy_note(repeats, args));
    report.notes.extend(notes(driver));
    let measured = report.verdict();
    outputs.deliver(report)?;
    measured
}

/// Runs on its own thread, which becomes a core.
fn measure_handles(pair: CorePair, repeats: u32) -> Result<Vec<HandleRow>, Failure> {
    let measured = std::thread::spawn(move || handles::measure(pair, repeats)).join();
    let lost = || Failure::Measurement("the thread that measures handles panicked".to_owned());
    measured.map_err(|_| lost())?
}

/// As [`measure_handles`].
fn measure_slabs(pair: CorePair, repeats: u32) -> Result<Vec<SlabRow>, Failure> {
    let measured = std::thread::spawn(move || slabs::measure(pair, repeats)).join();
    let lost = || Failure::Measurement("the thread that measured slabs panicked".to_owned());
    measured.map_err(|_| lost())?
}

/// Work of this program that every rate contains.
fn own_work(pair: CorePair, repeats: u32) -> Result<FloorRow, Failure> {
    let values: Result<_, _> =
        (0..repeats).map(|_| Probe::OwnWork.measure(pair, OWN_WORK_TIME)).collect();
    Ok(FloorRow::new(Probe::OwnWork, values?))
}

struct MainJob<'a> {
    pair: CorePair,
    args: &'a MainJobArgs,
    driver: Driver,
    server: ServerProcess,
    session: Session<'a>,
    /// Memory per idle connection, in each repeat.
    idle_bytes: Vec<f64>,
}

impl MainJob<'_> {
    /// Sends known data over every path and verifies every byte at both ends; returns the amount.
    fn verify(&mut self) -> Result<String, Failure> {
        let mut done = Vec::new();
        for (workload, calls) in verified_workloads() {
            let limits = Limits { duration: VERIFY_TIME, calls: Some(calls), ..Limits::default() };
            let load = self.session.load(workload.verified(Verify::Full))?;
            let measured = measure(&mut self.session, &load, &limits)?;
            self.session.unload(load);
            check_answered(&workload, &measured)?;
            done.push(format!("{} x {}", measured.calls, workload.name()));
        }
        Ok(format!(
            "before the measurements, every byte was verified at both ends: {}; the measured rows \
             only check lengths",
            done.join(", ")
        ))
    }

    fn measure(&mut self, workloads: &[Workload]) -> Result<Vec<Row>, Failure> {
        let mut repeats: Vec<Vec<Repeat>> = vec![Vec::new(); workloads.len()];
        let count = self.args.repeats.unwrap_or(REPEATS);
        let mut progress = Progress::start(count as usize * workloads.len());
        let mut pace = Pace::start(self.args, workloads.len());
        for _ in 0..count {
            for (workload, done) in workloads.iter().zip(&mut repeats) {
                progress.step(&workload.name());
                done.push(self.repeat(*workload)?);
            }
            if !pace.has_time_for_another() {
                break;
            }
        }
        add_idle_ratio(workloads, &mut repeats);
        Ok(workloads.iter().zip(repeats).map(|(w, done)| Row::new(*w, done)).collect())
    }

    fn repeat(&mut self, workload: Workload) -> Result<Repeat, Failure> {
        let floor = self.floor(&workload)?;
        let before = self.memory_bytes();
        let load = self.session.load(workload)?;
        if workload.idle_connections > 0 {
            let grown = self.memory_bytes() - before;
            self.idle_bytes.push(grown / workload.idle_connections as f64);
        }
        let (warmup, duration) = (self.args.duration / 6, self.args.duration);
        let limits = Limits { warmup, duration, ..Limits::default() };
        let measured = measure(&mut self.session, &load, &limits)?;
        self.session.unload(load);
        if measured.cut_short.is_stuck {
            check_answered(&workload, &measured)?;
        }
        Ok(Repeat::new(measured, floor))
    }

    /// The limits of a workload, measured while the server is suspended.
    fn floor(&self, workload: &Workload) -> Result<Vec<FloorValue>, Failure> {
        if self.driver != Driver::Shm {
            return Ok(Vec::new());
        }
        self.server.pause()?;
        let measure = |probe: Probe| {
            let value = probe.measure(self.pair, self.args.duration / FLOOR_SHARE)?;
            Ok(FloorValue { probe, value })
        };
        let floor = workload.probes().into_iter().map(measure).collect();
        self.server.resume()?;
        floor
    }

    /// Memory of client and server together; shared memory counts once.
    fn memory_bytes(&self) -> f64 {
        memory_bytes(std::process::id()) + memory_bytes(self.server.id())
    }
}

/// Time for the repeats that a user did not ask for by number: a job that should take half a minute
/// ends within one even if other programs have most of the cores. Short measurements, of which more time goes into
/// connections, have [`REPEATS_TIME`].
struct Pace {
    time_max: Duration,
    started: Instant,
    repeats: u32,
}

impl Pace {
    fn start(args: &MainJobArgs, workloads: usize) -> Self {
        let measured = args.duration.saturating_mul(REPEATS * workloads as u32);
        let time_max = match args.repeats {
            Some(_) => Duration::MAX,
            None => measured.saturating_mul(2).max(REPEATS_TIME),
        };
        Self { time_max, started: Instant::now(), repeats: 0 }
    }

    /// Counts a repeat; returns true if another one like those so far ends in time.
    fn has_time_for_another(&mut self) -> bool {
        self.repeats += 1;
        let elapsed = self.started.elapsed();
        elapsed + elapsed / self.repeats <= self.time_max
    }
}

/// Tells that there were fewer repeats than usual.
fn busy_note(repeats: u32, args: &MainJobArgs) -> Option<String> {
    (args.repeats.is_none() && repeats < REPEATS).then(|| {
        format!(
            "{repeats} of {REPEATS} repeats: more would have taken over twice the time that they measure; \
             stop other programs before you trust a figure, or set --repeats"
        )
    })
}

/// Fails if the server has lost calls of the verification, or has stopped answering.
fn check_answered(workload: &Workload, measured: &Measurement) -> Result<(), Failure> {
    if measured.lost == 0 && !measured.cut_short.is_stuck {
        return Ok(());
    }
    let (lost, of) = (measured.lost, measured.lost + measured.calls);
    let name = workload.name();
    Err(Failure::Measurement(format!("{lost} of {of} calls were never answered: {name}")))
}

/// Measures a workload that is not a mix.
fn measure(
    session: &mut Session<'_>,
    load: &Load,
    limits: &Limits,
) -> Result<Measurement, Failure> {
    let measured = session.measure(load, limits)?.into_iter().next();
    let (_, measurement) =
        measured.ok_or_else(|| Failure::Measurement("nothing was measured".to_owned()))?;
    Ok(measurement)
}

/// A connection over a device registers its memory, which takes time and may be limited.
fn idle_connections(driver: Driver) -> usize {
    match driver {
        Driver::Shm => 1000,
        Driver::Verbs => 100,
    }
}

/// Workloads to verify before anything is measured, with their numbers of calls.
fn verified_workloads() -> [(Workload, u64); 4] {
    let of = Workload::ping_pong;
    [
        (of(Operation::Echo, 64).at_depth(32), 20_000),
        (of(Operation::Echo, 64 << 10).at_depth(4), 500),
        (of(Operation::Read, BULK_BYTES).at_depth(BULK_DEPTH), 100),
        (of(Operation::Write, BULK_BYTES).at_depth(BULK_DEPTH), 100),
    ]
}

/// Workloads to measure, in order.
fn workloads(idle: usize) -> Vec<Workload> {
    let null = Workload::ping_pong(Operation::Null, 0);
    let echo = Workload::ping_pong(Operation::Echo, 64);
    let mut all = vec![echo, echo.with_idle(idle), null];
    all.extend([2, 4, 8, 16, 32, 64].map(|depth| null.at_depth(depth)));
    let bulk = |op| Workload::ping_pong(op, BULK_BYTES).at_depth(BULK_DEPTH);
    all.extend([bulk(Operation::Read), bulk(Operation::Write)]);
    all
}

/// Compares the echo with idle connections to the one without, repeat by repeat.
fn add_idle_ratio(workloads: &[Workload], repeats: &mut [Vec<Repeat>]) {
    let Some(crowded) = workloads.iter().position(|one| one.idle_connections > 0) else { return };
    let without = workloads[crowded].with_idle(0);
    let Some(alone) = workloads.iter().position(|one| *one == without) else { return };
    for repeat in 0..repeats[alone].len() {
        let p50_ns = repeats[alone][repeat].measurement.latency.p50_ns;
        let crowded = &mut repeats[crowded][repeat];
        let ratio = crowded.measurement.latency.p50_ns / p50_ns;
        crowded.ratios = vec![Ratio { to: ALONE, ratio, lower_is_better: true }];
    }
}

fn goals(rows: &[Row], idle: usize, idle_bytes: &[f64]) -> Vec<Goal> {
    let ratio = |workload: Workload, to: &str| {
        let row = rows.iter().find(|row| row.workload == workload)?;
        row.median.ratios.iter().find(|ratio| ratio.to == to).map(|ratio| ratio.median)
    };
    let echo = Workload::ping_pong(Operation::Echo, 64);
    let bulk = |op| Workload::ping_pong(op, BULK_BYTES).at_depth(BULK_DEPTH);
    let copy = |op| ratio(bulk(op), "memcpy");
    [
        ratio(echo, "cache-line RTT").map(|measured| {
            Goal::at_most("64-byte echo p50, x cache-line RTT", measured, 1.6).aiming_for(1.4)
        }),
        copy(Operation::Read).map(|r| Goal::at_least("1 MiB read, x memcpy", r, 0.9)),
        copy(Operation::Write).map(|r| Goal::at_least("1 MiB write, x memcpy", r, 0.9)),
        ratio(echo.with_idle(idle), ALONE)
            .map(|r| Goal::at_most(format!("echo p50 with {idle} idle, x alone"), r, 1.2)),
        (!idle_bytes.is_empty()).then(|| {
            let kib = upper_median(idle_bytes.iter().copied()) / 1024.0;
            Goal::at_most("memory per idle connection, both ends, KiB", kib, 64.0)
        }),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Notes that the reader needs to interpret the figures.
fn notes(driver: Driver) -> Vec<String> {
    let own: &[&str] = match driver {
        Driver::Shm => &[
            "ratios compare each repeat with limits measured just before it on the same cores",
            "calls from other threads: client and server are in this process; busy ones share a \
             CPU, so that callers have the other one; the limit of the rate is that of the core \
             itself",
            "transfers between slabs: client and server are in this process, on the two cores; each lends \
             its slab, the client copies what is read, and the server what is written",
            "null calls at depth 32 compared with UCX messages: bench/peers/run --only ucx",
        ],
        Driver::Verbs => &[limits_note(Driver::Verbs)],
    };
    own.iter().chain(&[TAILS]).map(|note| (*note).to_owned()).collect()
}

/// Repeats that a user need not ask for.
const REPEATS: u32 = 5;
/// They may take this long, however short their measurements are.
const REPEATS_TIME: Duration = Duration::from_secs(30);
const BULK_BYTES: usize = 1 << 20;
/// One transfer in flight while the reply to another is handled.
const BULK_DEPTH: usize = 2;
/// Every probe gets this fraction of the time of a measurement.
const FLOOR_SHARE: u32 = 6;
/// Verification ends by its number of calls; this limit ends it on a machine in trouble.
const VERIFY_TIME: Duration = Duration::from_secs(10);
const OWN_WORK_TIME: Duration = Duration::from_millis(10);
const ALONE: &str = "alone";
const TAILS: &str =
    "tails on a virtual or shared machine say more about the host than about this program";

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(time_max: Duration) -> Pace {
        Pace { time_max, started: Instant::now(), repeats: 0 }
    }

    #[test]
    fn repeats_end_when_another_would_take_too_long() {
        assert!(pace(Duration::from_secs(3600)).has_time_for_another());
        let mut late = pace(Duration::from_secs(30));
        late.started = Instant::now().checked_sub(Duration::from_secs(16)).expect("an uptime");
        assert!(!late.has_time_for_another(), "two of 16 s in 30 s");
        late.repeats = 2;
        assert!(late.has_time_for_another(), "four of 5.3 s in 30 s");
    }

    #[test]
    fn repeats_that_are_asked_for_are_all_made() {
        let parsed = <MainJobArgs as clap::Args>::augment_args(clap::Command::new("spinperf"));
        let args = |line: &[&str]| {
            let matches = parsed.clone().get_matches_from(line);
            <MainJobArgs as clap::FromArgMatches>::from_arg_matches(&matches).expect("arguments")
        };
        let asked = args(&["spinperf", "--repeats", "3"]);
        assert_eq!(Pace::start(&asked, 11).time_max, Duration::MAX);
        assert_eq!(busy_note(3, &asked), None);
        let default = args(&["spinperf"]);
        assert_eq!(Pace::start(&default, 11).time_max, Duration::from_secs(33));
        let short = args(&["spinperf", "--duration", "2ms"]);
        assert_eq!(Pace::start(&short, 11).time_max, REPEATS_TIME);
        assert!(busy_note(REPEATS, &default).is_none() && busy_note(4, &default).is_some());
    }
}
