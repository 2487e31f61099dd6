//! `spinperf idle`: thousands of connections that do nothing, and one that is busy.
//!
//! This process is the client. Two servers, each a child on the server's core, take turns: while one is measured the
//! other is stopped. One has the busy connection alone, the other has the idle ones as well, so that each round
//! compares results of the same second, and the idle connections are made once.

use crate::child::{ServerProcess, own_address};
use crate::cli::IdleJobArgs;
use crate::cores::{CoreList, CorePair};
use crate::env::{Environment, StealMeter, descriptor_limit, mapping_limit, memory_bytes};
use crate::fabric::{self, Fabric};
use crate::failure::Failure;
use crate::load::{CONNECTING_MAX, Callee, Limits, Load, Operation, Session, Workload};
use crate::output::Outputs;
use crate::profile::{self, Profile, Side};
use crate::profile_args::ProfileArgs;
use crate::progress::Progress;
use crate::report::{Goal, Ratio, Repeat, Report, Row};
use spinrpc::config::Driver;
use spinrpc::{Config, Engine};
use std::time::Instant;

/// Measures and prints; fails if a goal is missed and `--check` asks for that.
pub(crate) fn run(args: &IdleJobArgs) -> Result<(), Failure> {
    args.output.check_files(None)?;
    let pair = CorePair::choose(args.cores.as_ref())?;
    let (alone, crowded) = (with_room(args, 0)?, with_room(args, args.connections)?);
    fabric::raise_limits(Driver::Shm);
    check_system(args.connections)?;
    let address = own_address()?;
    let cores = CoreList::from(pair);
    let loaded = load(&crowded, pair)?;
    let fabric = Fabric::of(&address)?;
    let mut report = Report::new(Environment::observe(&cores, loaded.id.clone(), Some(&fabric)));
    report.environment.examine(&loaded.placed);
    let outputs = Outputs::open(&args.output)?;
    let steal = StealMeter::start(&cores);
    let idle = args.connections as usize;
    let measured = measure(args, pair, [&alone, &crowded], &address)?;
    let workloads = workloads(idle);
    let rows = workloads.into_iter().zip(measured.repeats);
    report.rows = rows.map(|(workload, repeats)| Row::new(workload, repeats)).collect();
    report.goals = goals(idle, &measured.setup, &report.rows);
    report.interference = steal.stop();
    report.notes = measured.setup.notes(idle);
    let verdict = report.verdict().and_then(|()| check(args, &report.goals));
    outputs.deliver(report)?;
    verdict
}

/// What making the idle connections took.
struct Setup {
    seconds: f64,
    client_bytes: f64,
    server_bytes: f64,
}

impl Setup {
    fn notes(&self, idle: usize) -> Vec<String> {
        let Self { seconds, client_bytes, server_bytes } = *self;
        let kib = |bytes: f64| bytes / idle as f64 / 1024.0;
        let (client, server) = (kib(client_bytes), kib(server_bytes));
        let micros = seconds * 1e6 / idle as f64;
        vec![
            format!(
                "{idle} connections were made in {seconds:.2} s, {micros:.0} µs each, one handshake after the other, \
                 {CONNECTING_MAX} requested at a time; they share two cores with both control threads"
            ),
            format!(
                "an idle connection takes {client:.1} KiB of the client and {server:.1} KiB of the server (Pss: \
                 shared pages count half at each)"
            ),
            "the two rows of a round are measured one after the other, by turns with a server of their own each"
                .to_owned(),
        ]
    }
}

struct Measured {
    setup: Setup,
    /// Of the busy connection alone, and among idle ones.
    repeats: [Vec<Repeat>; 2],
}

/// One busy connection alone, and with idle ones.
fn workloads(idle: usize) -> [Workload; 2] {
    let echo = Workload::ping_pong(Operation::Echo, 64);
    [echo, echo.with_idle(idle)]
}

fn measure(
    args: &IdleJobArgs,
    pair: CorePair,
    [alone, crowded]: [&ProfileArgs; 2],
    address: &str,
) -> Result<Measured, Failure> {
    let addresses = [format!("{address}-alone"), address.to_owned()];
    let callees = addresses.each_ref().map(|address| [Callee::spinperf(address)]);
    let [few, many] = workloads(args.connections as usize);
    // Servers and engines come before this thread is tied to a core: their threads would be tied, too, the control
    // threads of the second engine to the CPU on which the server polls.
    let engine = |profile| profile::engine(&load(profile, pair)?.config, None);
    let engines = [engine(alone)?, engine(crowded)?];
    let start = |of: usize, profile| ServerProcess::start(&addresses[of], pair.server, profile);
    let (server, other) = (start(0, alone)?, start(1, crowded)?);
    other.pause()?;
    let mut first = Ends::open(&engines[0], server, &callees[0])?;
    let few = first.session.load(few)?;
    first.server.pause()?;
    other.resume()?;
    let mut second = Ends::open(&engines[1], other, &callees[1])?;
    let (many, setup) = second.set_up(many)?;
    second.server.pause()?;
    let mut repeats = [Vec::new(), Vec::new()];
    let mut progress = Progress::start(2 * args.repeats as usize);
    for _ in 0..args.repeats {
        progress.step("alone");
        let one = first.repeat(args, &few)?;
        progress.step("with idle connections");
        let mut other = second.repeat(args, &many)?;
        let ratio = other.measurement.latency.p50_ns / one.measurement.latency.p50_ns;
        other.ratios = vec![Ratio { to: ALONE, ratio, lower_is_better: true }];
        repeats[0].push(one);
        repeats[1].push(other);
    }
    Ok(Measured { setup, repeats })
}

/// A server and a core of this process that calls it.
struct Ends<'a> {
    server: ServerProcess,
    session: Session<'a>,
}

impl<'a> Ends<'a> {
    fn open(
        engine: &Engine,
        server: ServerProcess,
        callees: &'a [Callee<'a>],
    ) -> Result<Self, Failure> {
        let session = Session::open(engine, 0, callees)?;
        Ok(Self { server, session })
    }

    /// Makes the connections of a workload.
    fn set_up(&mut self, workload: Workload) -> Result<(Load, Setup), Failure> {
        let memory =
            |server: &ServerProcess| [memory_bytes(std::process::id()), memory_bytes(server.id())];
        let (before, began) = (memory(&self.server), Instant::now());
        let load = self.session.load(workload)?;
        let seconds = began.elapsed().as_secs_f64();
        let after = memory(&self.server);
        let [client_bytes, server_bytes] = [0, 1].map(|side| after[side] - before[side]);
        Ok((load, Setup { seconds, client_bytes, server_bytes }))
    }

    fn repeat(&mut self, args: &IdleJobArgs, load: &Load) -> Result<Repeat, Failure> {
        let limits =
            Limits { warmup: args.duration / 6, duration: args.duration, ..Limits::default() };
        self.server.resume()?;
        let measured = self.session.measure(load, &limits);
        self.server.pause()?;
        let measurement = measured?.into_iter().next().map(|(_, measurement)| measurement);
        let nothing = || Failure::Measurement("nothing was measured".to_owned());
        Ok(Repeat::new(measurement.ok_or_else(nothing)?, Vec::new()))
    }
}

fn load(profile: &ProfileArgs, pair: CorePair) -> Result<Profile, Failure> {
    profile::load(profile, Side::Client, Some(&CoreList::from(pair.client)), Driver::Shm)
}

/// The profile with room for these connections, as far as the user does not say otherwise.
fn with_room(args: &IdleJobArgs, idle: u32) -> Result<ProfileArgs, Failure> {
    let ProfileArgs { name, set } = &args.profile;
    let conns = u64::from(idle + OTHERS);
    let plain = ProfileArgs { name: name.clone(), set: set.clone() };
    let config = profile::load(&plain, Side::Client, None, Driver::Shm)?.config;
    let core_mib = conns * connection_mib(&config);
    let room = [
        format!("limits.conns={conns}"),
        format!("limits.core_mib={core_mib}"),
        format!("limits.peer_mib={core_mib}"),
    ];
    Ok(ProfileArgs { name: name.clone(), set: room.into_iter().chain(set.clone()).collect() })
}

/// Address space of a connection: both arenas and the rings. Little of it is ever used.
fn connection_mib(config: &Config) -> u64 {
    let raw = config.raw();
    let ring_mib = (2 * raw.shm.ring_slots * RING_SLOT_BYTES).div_ceil(1 << 20);
    2 * raw.shm.arena_mib + ring_mib + 1
}

/// Limits of the system that these connections would exceed, in each of the two processes.
fn check_system(idle: u32) -> Result<(), Failure> {
    let needed = u64::from(idle + OTHERS);
    if let Some(limit) = descriptor_limit().filter(|limit| *limit < needed) {
        return Err(Failure::Usage(format!(
            "{idle} idle connections take {needed} descriptors of each process, and {limit} are allowed: raise that \
             limit (ulimit -Hn; LimitNOFILE= for a service), or lower --connections"
        )));
    }
    let needed = u64::from(idle + OTHERS) * MAPPINGS_PER_CONNECTION;
    if let Some(limit) = mapping_limit().filter(|limit| *limit < needed) {
        return Err(Failure::Usage(format!(
            "{idle} idle connections take {needed} memory mappings of each process, and {limit} are allowed: raise \
             that limit (sysctl vm.max_map_count), or lower --connections"
        )));
    }
    Ok(())
}

fn goals(idle: usize, setup: &Setup, rows: &[Row]) -> Vec<Goal> {
    let kib = |bytes: f64| bytes / idle as f64 / 1024.0;
    let ratios = rows.iter().flat_map(|row| &row.median.ratios);
    let ratio = ratios.filter(|ratio| ratio.to == ALONE).map(|ratio| ratio.median).next();
    let name = format!("echo p50 with {idle} idle, x alone");
    [
        Some(Goal::at_most(format!("{idle} connections set up, s"), setup.seconds, SETUP_SECONDS)),
        Some(Goal::at_most("idle connection at the client, KiB", kib(setup.client_bytes), KIB)),
        Some(Goal::at_most("idle connection at the server, KiB", kib(setup.server_bytes), KIB)),
        ratio.map(|ratio| Goal::at_most(name, ratio, P50_RATIO)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Latencies of a machine that others use are noise: only what is asked for makes the command fail.
fn check(args: &IdleJobArgs, goals: &[Goal]) -> Result<(), Failure> {
    let missed = goals.iter().find(|goal| !goal.met).filter(|_| args.check);
    missed.map_or(Ok(()), |Goal { name, measured, bound, .. }| {
        Err(Failure::Measurement(format!(
            "goal missed: {name}: {measured:.2}, not {bound} or less"
        )))
    })
}

const ALONE: &str = "alone";
/// Connections for questions and for calls.
const OTHERS: u32 = 64;
const RING_SLOT_BYTES: u64 = 256;
/// Rings, which are two mappings where there are several NUMA nodes, both arenas, the peer's bell, and buffers.
const MAPPINGS_PER_CONNECTION: u64 = 6;
const SETUP_SECONDS: f64 = 10.0;
const KIB: f64 = 64.0;
const P50_RATIO: f64 = 1.05;
