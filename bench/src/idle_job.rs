//! `spinperf idle`: thousands of connections that do nothing, and one that is busy.
//!
//! This process is the client. Two servers, each a child on the server's core, take turns: while one is measured the
//! other is stopped. One has the busy connection alone, the other has the idle ones as well, so that each round
//! compares results of the same second, and the idle connections are made once.

use crate::child::{ServerProcess, own_address};
use crate::cli::IdleJobArgs;
use crate::cores::{CoreList, CorePair};
use crate::env::{
    Environment, StealMeter, descriptor_limit, mapping_limit, memory_bytes, slab_bytes,
};
use crate::fabric::{self, Fabric};
use crate::failure::Failure;
use crate::load::{CONNECTING_MAX, Callee, Fleet, Limits, Operation, Workload, with_fleet};
use crate::output::Outputs;
use crate::profile::{self, Profile};
use crate::profile_args::ProfileArgs;
use crate::progress::Progress;
use crate::report::{Goal, Ratio, Repeat, Report, Row};
use spinrpc::Config;
use spinrpc::config::Driver;
use std::time::Instant;

pub(crate) fn run(args: &IdleJobArgs) -> Result<(), Failure> {
    args.output.check_files(None)?;
    let pair = CorePair::choose(args.cores.as_ref())?;
    let (alone, crowded) =
        (with_room(&args.profile, 0)?, with_room(&args.profile, args.connections)?);
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
    let (setup, repeats) = measure(args, pair, [&alone, &crowded], &address)?;
    let rows = workloads(idle).into_iter().zip(repeats);
    report.rows = rows.map(|(workload, repeats)| Row::new(workload, repeats)).collect();
    report.goals = goals(idle, &setup, &report.rows);
    report.interference = steal.stop();
    report.notes = setup.notes(idle);
    let verdict = report.verdict().and_then(|()| check(args, &report.goals));
    outputs.deliver(report)?;
    verdict
}

struct Setup {
    seconds: f64,
    client_kib: f64,
    server_kib: f64,
    /// Of the kernel, for all programs of the host.
    slab_kib: f64,
}

impl Setup {
    fn notes(&self, idle: usize) -> Vec<String> {
        let Self { seconds, client_kib, server_kib, slab_kib } = self;
        let micros = seconds * 1e6 / idle as f64;
        vec![
            format!(
                "{idle} connections were made in {seconds:.2} s, {micros:.0} µs each, one handshake after the other, \
                 {CONNECTING_MAX} requested at a time; they share two cores with both control threads"
            ),
            format!(
                "an idle connection takes {client_kib:.1} KiB of the client and {server_kib:.1} KiB of the server (Pss, \
                 in which shared pages count half at each, page tables, and what huge pages of the heap round up); for \
                 each one the kernel's Slab grew by {slab_kib:.1} KiB, which it reports for the whole host only"
            ),
            "the two rows of a round are measured one after the other, by turns with a server of their own each"
                .to_owned(),
        ]
    }
}

fn workloads(idle: usize) -> [Workload; 2] {
    let echo = Workload::ping_pong(Operation::Echo, 64);
    [echo, echo.with_idle(idle)]
}

/// The repeats are those of the busy connection alone, and among idle ones.
fn measure(
    args: &IdleJobArgs,
    pair: CorePair,
    [alone, crowded]: [&ProfileArgs; 2],
    address: &str,
) -> Result<(Setup, [Vec<Repeat>; 2]), Failure> {
    let addresses = [format!("{address}-alone"), address.to_owned()];
    let callees = addresses.each_ref().map(|address| [Callee::spinperf(address)]);
    let [few, many] = workloads(args.connections as usize);
    let engine = |profile| profile::engine(&load(profile, pair)?.config, None);
    let engines = [engine(alone)?, engine(crowded)?];
    let start =
        |of: usize, profile| ServerProcess::start(&addresses[of], pair.server, profile, false);
    let (server, other) = (start(0, alone)?, start(1, crowded)?);
    other.pause()?;
    with_fleet(&engines[0], &callees[0], None, |first| {
        first.load(&few)?;
        server.pause()?;
        other.resume()?;
        with_fleet(&engines[1], &callees[1], None, |second| {
            let setup = set_up(second, &other, &many)?;
            other.pause()?;
            let mut repeats = [Vec::new(), Vec::new()];
            let mut progress = Progress::start(2 * args.repeats as usize);
            for _ in 0..args.repeats {
                progress.step("alone");
                let one = repeat(args, first, &server)?;
                progress.step("with idle connections");
                let mut crowd = repeat(args, second, &other)?;
                let ratio = crowd.measurement.latency.p50_ns / one.measurement.latency.p50_ns;
                crowd.ratios = vec![Ratio { to: ALONE, ratio, lower_is_better: true }];
                repeats[0].push(one);
                repeats[1].push(crowd);
            }
            Ok((setup, repeats))
        })
    })
}

fn set_up(
    fleet: &mut Fleet,
    server: &ServerProcess,
    workload: &Workload,
) -> Result<Setup, Failure> {
    let memory = || [memory_bytes(std::process::id()), memory_bytes(server.id()), slab_bytes()];
    let (before, began) = (memory(), Instant::now());
    fleet.load(workload)?;
    let seconds = began.elapsed().as_secs_f64();
    let (after, idle) = (memory(), workload.idle_connections as f64);
    let [client_kib, server_kib, slab_kib] =
        [0, 1, 2].map(|at| (after[at] - before[at]) / idle / 1024.0);
    Ok(Setup { seconds, client_kib, server_kib, slab_kib })
}

fn repeat(
    args: &IdleJobArgs,
    fleet: &mut Fleet,
    server: &ServerProcess,
) -> Result<Repeat, Failure> {
    let limits = Limits { warmup: args.duration / 6, duration: args.duration, ..Limits::default() };
    server.resume()?;
    let measured = fleet.measure_one(&limits);
    server.pause()?;
    Ok(Repeat::new(measured?, Vec::new()))
}

fn load(profile: &ProfileArgs, pair: CorePair) -> Result<Profile, Failure> {
    profile::load(profile, Some(&CoreList::from(pair.client)), Driver::Shm)
}

/// The profile with room for these connections, as far as the user does not say otherwise.
fn with_room(profile: &ProfileArgs, idle: u32) -> Result<ProfileArgs, Failure> {
    let ProfileArgs { name, set } = profile;
    let conns = u64::from(idle + OTHERS);
    let config = profile::load(profile, None, Driver::Shm)?.config;
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
    2 * raw.mem.conn_arena_mib + ring_mib + 1
}

/// Limits of the system that these connections would exceed, in each of the two processes.
fn check_system(idle: u32) -> Result<(), Failure> {
    let connections = u64::from(idle + OTHERS);
    let limits = [
        (connections, descriptor_limit(), DESCRIPTORS),
        (connections * MAPPINGS_PER_CONNECTION, mapping_limit(), MAPPINGS),
    ];
    for (needed, limit, [what, remedy]) in limits {
        if let Some(limit) = limit.filter(|limit| *limit < needed) {
            return Err(Failure::Usage(format!(
                "{idle} idle connections take {needed} {what} of each process, and {limit} are allowed: raise that \
                 limit ({remedy}), or lower --connections of spinperf idle"
            )));
        }
    }
    Ok(())
}

fn goals(idle: usize, setup: &Setup, rows: &[Row]) -> Vec<Goal> {
    let ratios = rows.iter().flat_map(|row| &row.median.ratios);
    let ratio = ratios.filter(|ratio| ratio.to == ALONE).map(|ratio| ratio.median).next();
    let crowded =
        |ratio| Goal::at_most(format!("echo p50 with {idle} idle, x alone"), ratio, P50_RATIO);
    [
        Goal::at_most(format!("{idle} connections set up, s"), setup.seconds, SETUP_SECONDS),
        Goal::at_most("idle connection at the client, KiB", setup.client_kib, KIB),
        Goal::at_most("idle connection at the server, KiB", setup.server_kib, KIB),
    ]
    .into_iter()
    .chain(ratio.map(crowded))
    .collect()
}

/// Latencies of a machine that others use are noise: only what is asked for makes the command fail.
fn check(args: &IdleJobArgs, goals: &[Goal]) -> Result<(), Failure> {
    let missed = goals.iter().find(|goal| goal.met == Some(false)).filter(|_| args.check);
    missed.map_or(Ok(()), |Goal { name, measured, bound, .. }| {
        Err(Failure::Measurement(format!(
            "goal missed: {name}: {measured:.2}, not {bound} or less"
        )))
    })
}

const ALONE: &str = "alone";
const DESCRIPTORS: [&str; 2] = ["descriptors", "ulimit -Hn; LimitNOFILE= for a service"];
const MAPPINGS: [&str; 2] = ["memory mappings", "sysctl vm.max_map_count"];
/// Connections for questions and for calls.
const OTHERS: u32 = 64;
const RING_SLOT_BYTES: u64 = 256;
/// Rings, which are two mappings where there are several NUMA nodes, both arenas, the peer's bell, and buffers.
const MAPPINGS_PER_CONNECTION: u64 = 6;
const SETUP_SECONDS: f64 = 10.0;
const KIB: f64 = 64.0;
const P50_RATIO: f64 = 1.05;
