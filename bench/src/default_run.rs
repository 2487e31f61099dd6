//! `spinperf` without a command: a complete picture of this machine in a minute.
//!
//! This process is the client, a child is the server, each on its own core. Every repeat measures
//! every workload, and just before each the limits it is compared with, on the same two cores,
//! while the server is stopped: so a ratio compares results of the same second. Over a device there
//! are no such limits to measure: memory and cores do not bound it.

use crate::child::{ServerProcess, own_address};
use crate::cli::MainJobArgs;
use crate::cores::{CoreList, CorePair};
use crate::env::{Environment, StealMeter};
use crate::fabric::{self, Fabric};
use crate::failure::Failure;
use crate::floor::{Placed, Probe, cache_line_ns};
use crate::load::{self, Beside, Callee, Ends, Fleet, Limits, Measurement, Operation, Workload};
use crate::output::Outputs;
use crate::pattern::Verify;
use crate::profile;
use crate::profile_args::ProfileArgs;
use crate::progress::Progress;
use crate::report::{FloorRow, FloorValue, Goal, Ratio, Repeat, Report, Row};
use crate::run::limits_note;
use spinrpc::config::Driver;
use std::time::{Duration, Instant};

pub(crate) fn run(args: &MainJobArgs) -> Result<(), Failure> {
    let pair = CorePair::choose(args.cores.as_ref())?;
    let address = args.address.clone().map_or_else(own_address, Ok)?;
    let fabric = Fabric::of(&address)?;
    fabric::raise_limits(fabric.driver);
    let client_core = CoreList::from(pair.client);
    let profile = profile::load(&args.profile, Some(&client_core), fabric.driver)?;
    let cores = CoreList::from(pair);
    let mut report = Report::new(Environment::observe(&cores, profile.id, Some(&fabric)));
    report.environment.examine(&profile.placed);
    let outputs = Outputs::open(&args.output)?;
    let steal = StealMeter::start(&cores);
    let is_shm = fabric.driver == Driver::Shm;
    // Before the server, because it may fail: this process explains best why there is no such fabric here.
    let engine = profile::engine(&profile.config, None)?;
    let server = ServerProcess::start(&address, pair.server, &args.profile, false)?;
    let callees = [Callee::spinperf(&address)];
    // The measured connection and the one for questions to the server come on top.
    let idle = idle_connections(fabric.driver).min(profile.config.conns_max().saturating_sub(2));
    let driver = fabric.driver;
    let workloads = workloads(idle);
    let mut pace = Pace::start(args, workloads.len());
    load::with_fleet(&engine, &callees, None, |fleet| {
        let (duration, server) = (args.duration, Some(&server));
        let mut job = MainJob { pair, duration, has_floor: is_shm, server, fleet };
        report.notes.push(job.verify()?);
        report.rows = job.measure(&workloads, &mut pace)?;
        Ok(())
    })?;
    report.environment.note_version(&engine);
    engine.shutdown();
    drop(server);
    let repeats = pace.repeats;
    if is_shm {
        report.rows.extend(further_rows(args, pair, repeats)?);
    }
    if args.goals && is_shm {
        report.goals = goals(&report.rows, idle);
    }
    report.collect_floor();
    report.note_beaten_limits();
    report.floor.push(own_work(pair, repeats)?);
    report.interference = steal.stop();
    report.notes.extend(busy_note(repeats, args));
    report.notes.extend(notes(driver));
    let measured = report.verdict();
    outputs.deliver(report)?;
    measured
}

/// Rows between ends of other kinds, which are measured for a shorter time each.
fn further_rows(args: &MainJobArgs, pair: CorePair, repeats: u32) -> Result<Vec<Row>, Failure> {
    let ProfileArgs { name, set } = &args.profile;
    let with = |set| ProfileArgs { name: name.clone(), set };
    // The last of several values of a key counts: what the user sets, except for what makes the row.
    let sleeping = with([set.as_slice(), &["poll.mode=sleep".to_owned()]].concat());
    let credits = format!("rpc.credits={}", HANDLES_DEPTH * HANDLES_THREADS);
    // Calls of neither row wait for credits, which the threads and the core do in different ways.
    let deep = with([&[credits], set.as_slice()].concat());
    let mut rows = Vec::new();
    for (workloads, profile) in [
        (&in_slabs()[..], &args.profile),
        (&by_handles(Ends::Sleeping)[..2], &sleeping),
        (&by_handles(Ends::OneCpu)[..], &deep),
    ] {
        let duration = args.duration / FURTHER_SHARE;
        let pace = Pace { repeats_max: repeats, ..Pace::unlimited() };
        rows.extend(measure_apart(pair, duration, pace, profile, workloads)?);
    }
    Ok(rows)
}

fn measure_apart(
    pair: CorePair,
    duration: Duration,
    mut pace: Pace,
    profile: &ProfileArgs,
    workloads: &[Workload],
) -> Result<Vec<Row>, Failure> {
    let address = own_address()?;
    let cores = CoreList::from(pair.client);
    let config = profile::load(profile, Some(&cores), Driver::Shm)?.config;
    let engine = profile::engine(&config, None)?;
    let first = workloads[0];
    let (server, beside) = match first.ends {
        Ends::OneCpu => {
            let server = profile::engine(&config, None)?;
            load::serve(&server, &config, &address, first.slabs)?;
            (None, Some(Beside { server, free_cpu: pair.server }))
        }
        Ends::Apart | Ends::Sleeping => {
            (Some(ServerProcess::start(&address, pair.server, profile, first.slabs)?), None)
        }
    };
    // With a second connection, a core copies only a quarter as much at a time.
    let callee = if first.slabs { Callee::not_asked } else { Callee::spinperf };
    let callees = [callee(&address)];
    let rows = load::with_fleet(&engine, &callees, beside.as_ref(), |fleet| {
        let server = server.as_ref();
        MainJob { pair, duration, has_floor: true, server, fleet }.measure(workloads, &mut pace)
    });
    engine.shutdown();
    rows
}

/// Work of this program that every rate contains.
fn own_work(pair: CorePair, repeats: u32) -> Result<FloorRow, Failure> {
    let mut row = FloorRow::new(Probe::OwnWork);
    for _ in 0..repeats {
        row.add(Probe::OwnWork.measure(pair, OWN_WORK_TIME)?, None);
    }
    Ok(row)
}

struct MainJob<'a> {
    pair: CorePair,
    duration: Duration,
    /// Memory and cores bound it, as they do over shared memory.
    has_floor: bool,
    /// Absent if the client's core polls the server as well.
    server: Option<&'a ServerProcess>,
    fleet: &'a mut Fleet,
}

impl MainJob<'_> {
    fn verify(&mut self) -> Result<String, Failure> {
        let mut done = Vec::new();
        for (workload, calls) in verified_workloads() {
            let limits = Limits { duration: VERIFY_TIME, calls: Some(calls), ..Limits::default() };
            let measured = self.drive(&Workload { verify: Verify::Full, ..workload }, &limits)?;
            check_answered(&workload, &measured)?;
            done.push(format!("{} x {}", measured.calls, workload.name()));
        }
        Ok(format!(
            "before the measurements, every byte was verified at both ends: {}; the measured rows \
             only check lengths",
            done.join(", ")
        ))
    }

    fn drive(&mut self, workload: &Workload, limits: &Limits) -> Result<Measurement, Failure> {
        self.fleet.load(workload)?;
        let server_waited_ns = || self.server.and_then(ServerProcess::waited_ns);
        let (before_ns, began) = (server_waited_ns(), Instant::now());
        let mut measured = self.fleet.measure_one(limits)?;
        if measured.server.is_none() {
            // It was not asked.
            // With the warm-up, as those of cores.
            let (waited_ns, time) = (server_waited_ns().zip(before_ns), began.elapsed());
            measured.add_wait(waited_ns.map(|(after, before)| after.saturating_sub(before)), time);
        }
        self.fleet.unload()?;
        Ok(measured)
    }

    fn measure(&mut self, workloads: &[Workload], pace: &mut Pace) -> Result<Vec<Row>, Failure> {
        let mut repeats: Vec<Vec<Repeat>> = vec![Vec::new(); workloads.len()];
        let mut progress = Progress::start(pace.repeats_max as usize * workloads.len());
        while pace.has_time_for_another() {
            for (workload, done) in workloads.iter().zip(&mut repeats) {
                progress.step(&workload.name());
                done.push(self.repeat(*workload)?);
            }
            pace.repeats += 1;
        }
        relate(workloads, &mut repeats);
        Ok(workloads.iter().zip(repeats).map(|(w, done)| Row::new(*w, done)).collect())
    }

    fn repeat(&mut self, workload: Workload) -> Result<Repeat, Failure> {
        let before_ns = self.cache_line_ns()?;
        let mut floor = self.floor(&workload.probes())?;
        let (warmup, duration) = (self.duration / 6, self.duration);
        let limits = Limits { warmup, duration, ..Limits::default() };
        let measured = self.drive(&workload, &limits)?;
        if measured.cut_short.is_stuck {
            check_answered(&workload, &measured)?;
        }
        for limit in &mut floor {
            let again = |probe| self.floor(&[probe]).map(|one| one[0].value);
            limit.value = limit.probe.settled(limit.value, limit.figure(&measured), again)?;
        }
        let lines = before_ns.zip(self.cache_line_ns()?);
        let placed = lines.map(|(before, after)| Placed::between(before, after));
        Ok(Repeat::new(measured, floor).at(placed))
    }

    fn floor(&self, probes: &[Probe]) -> Result<Vec<FloorValue>, Failure> {
        let measure = |&probe: &Probe| {
            let value = probe.measure(self.pair, self.duration / FLOOR_SHARE)?;
            Ok(FloorValue { probe, value })
        };
        self.alone(|| probes.iter().map(measure).collect()).map(Option::unwrap_or_default)
    }

    fn cache_line_ns(&self) -> Result<Option<f64>, Failure> {
        self.alone(|| cache_line_ns(self.pair))
    }

    /// Measures while the server is suspended. Over a device there is nothing to measure.
    fn alone<T>(&self, measure: impl FnOnce() -> Result<T, Failure>) -> Result<Option<T>, Failure> {
        if !self.has_floor {
            return Ok(None);
        }
        self.server.map_or(Ok(()), ServerProcess::pause)?;
        let measured = measure();
        self.server.map_or(Ok(()), ServerProcess::resume)?;
        measured.map(Some)
    }
}

/// Time for the repeats that a user did not ask for by number: a job that should take half a minute
/// ends within one even if other programs have most of the cores. Short measurements, of which more time goes into
/// connections, have [`REPEATS_TIME`].
struct Pace {
    repeats_max: u32,
    time_max: Duration,
    started: Instant,
    repeats: u32,
}

impl Pace {
    fn start(args: &MainJobArgs, workloads: usize) -> Self {
        let measured = args.duration.saturating_mul(REPEATS * workloads as u32);
        match args.repeats {
            Some(repeats_max) => Self { repeats_max, ..Self::unlimited() },
            None => {
                let time_max = measured.saturating_mul(2).max(REPEATS_TIME);
                Self { time_max, ..Self::unlimited() }
            }
        }
    }

    fn unlimited() -> Self {
        let started = Instant::now();
        Self { repeats_max: REPEATS, time_max: Duration::MAX, started, repeats: 0 }
    }

    fn has_time_for_another(&self) -> bool {
        let elapsed = self.started.elapsed();
        let mean = elapsed.checked_div(self.repeats).unwrap_or_default();
        self.repeats < self.repeats_max && elapsed + mean <= self.time_max
    }
}

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

/// A connection over a network has memory of its own, which takes time and may be limited.
fn idle_connections(driver: Driver) -> usize {
    match driver {
        Driver::Shm => IDLE,
        Driver::Verbs | Driver::Iwarp => 100,
    }
}

fn verified_workloads() -> [(Workload, u64); 4] {
    let of = Workload::ping_pong;
    [
        (of(Operation::Echo, 64).at_depth(32), 20_000),
        (of(Operation::Echo, 64 << 10).at_depth(4), 500),
        (bulk(Operation::Read), 100),
        (bulk(Operation::Write), 100),
    ]
}

fn workloads(idle: usize) -> Vec<Workload> {
    let null = Workload::ping_pong(Operation::Null, 0);
    let echo = Workload::ping_pong(Operation::Echo, 64);
    let mut all = vec![echo, echo.with_idle(idle), null];
    all.extend([2, 4, 8, 16, 32, 64].map(|depth| null.at_depth(depth)));
    all.extend([bulk(Operation::Read), bulk(Operation::Write)]);
    all
}

/// The server copies writes out of the client's slab, and the client reads out of the server's.
fn in_slabs() -> [Workload; 2] {
    [Operation::Read, Operation::Write].map(|op| Workload { slabs: true, ..bulk(op) })
}

/// Calls by handles, each after those of the core itself: one at a time, and as many as threads can have in flight.
fn by_handles(ends: Ends) -> [Workload; 4] {
    let null = Workload { ends, ..Workload::ping_pong(Operation::Null, 0) };
    let many = Workload { threads: HANDLES_THREADS, ..null.at_depth(HANDLES_DEPTH) };
    let all = null.at_depth(HANDLES_DEPTH * HANDLES_THREADS);
    [null, Workload { threads: 1, ..null }, all, many]
}

fn bulk(op: Operation) -> Workload {
    Workload::ping_pong(op, BULK_BYTES).at_depth(BULK_DEPTH)
}

type Compare = fn(&Repeat, &Repeat) -> f64;

/// The ratio of a row whose repeats are compared with those of the row before it, instead of a limit.
fn relation(workload: &Workload) -> Option<(&'static str, Compare)> {
    let Workload { ends, threads, .. } = *workload;
    Some(match (ends, threads) {
        _ if workload.idle_connections > 0 => (ALONE, |own, one| p50(one) / p50(own)),
        (_, 0) => return None,
        (Ends::Sleeping, 1) => (MORE_WAKES, added),
        (_, 1) => (MORE_LINES, added),
        _ => {
            (ITSELF, |own, one| one.measurement.calls_per_second / own.measurement.calls_per_second)
        }
    })
}

fn p50(repeat: &Repeat) -> f64 {
    repeat.measurement.latency.p50_ns
}

fn added(own: &Repeat, one: &Repeat) -> f64 {
    let limit = one.floor.first().map_or(f64::NAN, |limit| limit.value);
    // Unlike `max`, keeps what is unknown.
    ((p50(one) - p50(own)) / limit).clamp(0.0, f64::INFINITY)
}

fn relate(workloads: &[Workload], repeats: &mut [Vec<Repeat>]) {
    for at in 1..workloads.len() {
        let Some((to, ratio)) = relation(&workloads[at]) else { continue };
        let (before, after) = repeats.split_at_mut(at);
        for (own, one) in before[at - 1].iter().zip(&mut after[0]) {
            let ratio = if own.is_placed_as(one) { ratio(own, one) } else { f64::NAN };
            one.ratios = vec![Ratio { to, ratio, lower_is_better: to != ITSELF }];
        }
    }
}

fn goals(rows: &[Row], idle: usize) -> Vec<Goal> {
    // The rows that a figure rests on: its own is the last.
    let rows_of = |workload: Workload| {
        let at = rows.iter().position(|row| row.workload == workload)?;
        let first = if relation(&workload).is_some() { at.saturating_sub(1) } else { at };
        Some(&rows[first..=at])
    };
    let goal = |judge: fn(String, f64, f64) -> Goal,
                name: &str,
                (workload, to, bound): (Workload, &str, f64)| {
        let rows = rows_of(workload).unwrap_or_default();
        let mut ratios = rows.last().into_iter().flat_map(|row| &row.median.ratios);
        let measured = ratios.find(|ratio| ratio.to == to).map_or(f64::NAN, |ratio| ratio.median);
        judge(name.to_owned(), measured, bound).resting_on(rows)
    };
    let (most, least) = (Goal::at_most, Goal::at_least);
    let echo = Workload::ping_pong(Operation::Echo, 64);
    let [read, write] = [Operation::Read, Operation::Write].map(|op| (bulk(op), "memcpy", 0.9));
    let [lent_read, lent_write] = in_slabs().map(|workload| (workload, "memcpy", 0.9));
    let [_, waking, ..] = by_handles(Ends::Sleeping);
    let [_, calling, _, all] = by_handles(Ends::OneCpu);
    let crowded = format!("echo p50 with {idle} idle, x alone");
    [
        goal(most, "64-byte echo p50, x cache-line RTT", (echo, "cache-line RTT", 1.6))
            .aiming_for(1.4),
        goal(least, "1 MiB read, x memcpy", read),
        goal(least, "1 MiB write, x memcpy", write),
        goal(most, &crowded, (echo.with_idle(idle), ALONE, 1.2)),
        goal(most, CALLING, (calling, MORE_LINES, 3.0)),
        goal(most, WAKING, (waking, MORE_WAKES, 1.5)),
        goal(least, "calls/s by handles, 4 threads, x the core itself", (all, ITSELF, 0.8)),
        goal(least, "1 MiB read, slabs, x memcpy", lent_read),
        goal(least, "1 MiB write, slabs, x memcpy", lent_write),
    ]
    .into_iter()
    .filter(|goal| !goal.measured.is_nan())
    .collect()
}

fn notes(driver: Driver) -> Vec<String> {
    let own: &[&str] = match driver {
        Driver::Shm => &[
            "ratios compare each repeat with limits measured just before it on the same cores, and again just after \
             it if they were slower",
            "calls by handles are those of threads other than the core's, and are compared with calls of the core itself \
             in the row before them; ends on one CPU leave the other one to the callers, and have credits for all calls",
            "slabs: each end lends its own; the client copies what is read, and the server what is written; the \
             server is not queried, because with a second connection a core copies less at a time",
            "null calls at depth 32 compared with UCX messages: bench/peers/run --only ucx",
        ],
        Driver::Verbs | Driver::Iwarp => &[limits_note(driver)],
    };
    own.iter().chain(&[TAILS]).map(|note| (*note).to_owned()).collect()
}

/// Idle connections over shared memory, if the profile has room for as many.
const IDLE: usize = 1000;
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
/// Rows between ends of other kinds have this fraction of the time.
const FURTHER_SHARE: u32 = 3;
const HANDLES_THREADS: usize = 4;
const HANDLES_DEPTH: usize = 32;
const MORE_LINES: &str = "cache-line RTT, added";
const MORE_WAKES: &str = "eventfd ping-pong, added";
const ITSELF: &str = "the core itself";
const CALLING: &str = "call by a handle, busy cores: x cache-line RTT, added";
const WAKING: &str = "call by a handle, sleeping cores: x eventfd ping-pong, added";
const OWN_WORK_TIME: Duration = Duration::from_millis(10);
const ALONE: &str = "alone";
const TAILS: &str =
    "tails on a virtual or shared machine say more about the host than about this program";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::repeat;

    #[test]
    fn repeats_end_when_another_would_take_too_long() {
        let mut pace = Pace { time_max: Duration::from_secs(30), ..Pace::unlimited() };
        assert!(pace.has_time_for_another());
        pace.started = Instant::now().checked_sub(Duration::from_secs(16)).expect("an uptime");
        pace.repeats = 1;
        assert!(!pace.has_time_for_another(), "two of 16 s in 30 s");
        pace.repeats = 3;
        assert!(pace.has_time_for_another(), "four of 5.3 s in 30 s");
        pace.repeats = REPEATS;
        assert!(!pace.has_time_for_another());
    }

    #[test]
    fn repeats_that_are_asked_for_are_all_made() {
        let parsed = <MainJobArgs as clap::Args>::augment_args(clap::Command::new("spinperf"));
        let args = |line: &[&str]| {
            let matches = parsed.clone().get_matches_from(line);
            <MainJobArgs as clap::FromArgMatches>::from_arg_matches(&matches).expect("arguments")
        };
        let asked = args(&["spinperf", "--repeats", "3"]);
        let Pace { repeats_max, time_max, .. } = Pace::start(&asked, 11);
        assert_eq!((repeats_max, time_max), (3, Duration::MAX));
        assert_eq!(busy_note(3, &asked), None);
        let default = args(&["spinperf"]);
        assert_eq!(Pace::start(&default, 11).time_max, Duration::from_secs(33));
        let short = args(&["spinperf", "--duration", "2ms"]);
        assert_eq!(Pace::start(&short, 11).time_max, REPEATS_TIME);
        assert!(busy_note(REPEATS, &default).is_none() && busy_note(4, &default).is_some());
    }

    /// Latencies are compared by what a handle adds, and rates by their quotient: the worse one of an even number counts.
    #[test]
    fn calls_by_handles_are_compared_with_those_of_the_core() {
        let workloads = by_handles(Ends::OneCpu);
        let line = [(Probe::CacheLine, 100.0)];
        let one = |calls, p50_ns| repeat(calls, p50_ns, &[]);
        let mut repeats = [
            vec![one(9, 200.0), one(9, 200.0)],
            vec![repeat(9, 500.0, &line), repeat(9, 550.0, &line)],
            vec![one(1000, 1.0), one(1000, 1.0)],
            vec![one(900, 1.0), one(700, 1.0)],
        ];
        relate(&workloads, &mut repeats);
        let rows: Vec<Row> =
            workloads.iter().zip(repeats).map(|(w, done)| Row::new(*w, done)).collect();
        let [own, faster] = [one(9, 200.0), repeat(9, 190.0, &line)];
        assert!(added(&own, &faster) == 0.0 && added(&own, &one(9, 300.0)).is_nan());
        let goals = goals(&rows, 0);
        let judged: Vec<_> = goals.iter().map(|goal| (goal.measured, goal.met)).collect();
        assert_eq!(judged, [(3.5, Some(false)), (0.7, Some(false))]);
        // The row that the second figure is compared with was disturbed.
        let mut rows = rows;
        rows[2].repeats[1].measurement.client.waited_percent = Some(9.0);
        let judged: Vec<_> = super::goals(&rows, 0).iter().map(|goal| goal.met).collect();
        assert_eq!(judged, [Some(false), None]);
    }
}
