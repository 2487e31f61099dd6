//! `spinperf run`: measures against a server in another process.

use crate::cli::{Plan, RunArgs};
use crate::console::is_standard_output;
use crate::cores::CoreList;
use crate::env::{Environment, StealMeter};
use crate::fabric::{self, Fabric};
use crate::failure::Failure;
use crate::interrupt;
use crate::load::{self, Callee, Measurement, Operation, Party, Share, Workload};
use crate::modes::{self, Outcome};
use crate::output::{Capture, OutputArgs, Outputs};
use crate::pattern::Verify;
use crate::profile::{self, Profile};
use crate::ranks::Rank;
use crate::report::{Report, Row};
use crate::units::show_us;
use spinrpc::Engine;
use spinrpc::config::{Driver, IdlePolicy};
use spinrpc::sys::clock::{Clock, Ticks};
use spinrpc::sys::random::Random;
use spinrpc_tuning::printable::to_stderr;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

struct Prepared {
    rank: Option<Rank>,
    output: OutputArgs,
    capture: Option<PathBuf>,
    fabric: Fabric,
    profile: Profile,
    plan: Plan,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct InSuite<'a> {
    pub(crate) name: &'a str,
    /// Its number, and the number of runs.
    pub(crate) place: [usize; 2],
    /// The run before it failed: the other ranks may still wait for this one there.
    pub(crate) after_failure: bool,
}

impl Prepared {
    fn new(args: &RunArgs, run: Option<&str>) -> Result<Self, Failure> {
        let rank = Rank::find(&args.ranks)?;
        let rank = rank.map(|rank| run.into_iter().fold(rank, Rank::in_run));
        let output = match &rank {
            Some(rank) => args.output.of_rank(rank)?,
            None => args.output.clone(),
        };
        // Standard output is refused later, by its name.
        let capture = args.capture.clone().map(|path| match &rank {
            Some(rank) if !is_standard_output(&path) => rank.file(&path),
            _ => path,
        });
        output.check_files(capture.as_deref())?;
        let fabric = fabric_of(args)?;
        fabric::raise_limits(fabric.driver);
        let cores = args.cores.as_ref();
        let mut profile = profile::load(&args.profile, cores, fabric.driver)?;
        if args.bidir {
            profile = profile.with_reverse_calls()?;
        }
        let mut plan = Plan::new(args, profile.config.cores())?;
        if let Some(rank) = &rank {
            plan = plan.of_rank(rank)?;
            if !args.calls_spinperf() {
                return Err(Failure::Usage(NO_MEETING.to_owned()));
            }
        }
        plan.workloads.iter().try_for_each(|one| profile::check_fits(&profile.config, one))?;
        Ok(Self { rank, output, capture, fabric, profile, plan })
    }
}

pub(crate) fn check(args: &RunArgs, run: &str) -> Result<(), Failure> {
    Prepared::new(args, Some(run)).map(drop)
}

pub(crate) fn run(args: &RunArgs, suite: Option<InSuite<'_>>) -> Result<(), Failure> {
    let Prepared { rank, output, capture, fabric, profile, plan } =
        Prepared::new(args, suite.map(|suite| suite.name))?;
    let party = rank.as_ref().map(|rank| party_of(args, rank, suite)).transpose()?;
    let (capture, sink) = Capture::open(capture.as_deref())?.unzip();
    let engine = profile::engine(&profile.config, sink)?;
    fabric::warn_of_memlock(&profile.config);
    let cores = CoreList::of(engine.config());
    let mut report = Report::new(Environment::observe(&cores, profile.id, Some(&fabric)));
    report.environment.examine(&profile.placed);
    let outputs = Outputs::open(&output)?;
    let steal = StealMeter::start(&cores);
    let clock = ClockCheck::start();
    if args.bidir {
        load::register(&engine, &profile.config)?;
    }
    let (outcome, found) = measure(&engine, args, party, &plan, suite)?;
    report.environment.note_version(&engine);
    engine.shutdown();
    report.interference = steal.stop();
    report.notes = notes(args, &plan, fabric.driver);
    report.notes.extend(suite.map(|suite| format!("run {} of its job", suite.name)));
    report.notes.extend(poll_note(&plan.workloads, profile.config.idle_policy()));
    report.notes.extend(found);
    if rank.is_none() {
        report.notes.extend(outcome.rows.first().and_then(others_note));
    }
    if fabric.driver == Driver::Shm {
        report.notes.extend(outcome.rows.first().and_then(shared_cpu_note));
    }
    if let Some(capture) = capture {
        report.notes.push(capture.outcome()?);
    }
    report.notes.extend(rank.as_ref().map(rank_note));
    report.rank = rank;
    report.mode = Some(plan.mode);
    (report.rows, report.soak) = (outcome.rows, outcome.soak);
    report.notes.extend(report.rows.iter().filter_map(carried_in_note));
    report.notes.extend(clock.note());
    let interrupted = interrupt::signal();
    report.interrupted = interrupted.is_some();
    if report.interrupted {
        let so_far = if report.rows.is_empty() { INTERRUPTED_EARLY } else { INTERRUPTED };
        report.notes.insert(0, so_far.to_owned());
    }
    if let Some(failure) = outcome.cut_short.as_ref().filter(|_| !report.interrupted) {
        report.notes.insert(0, format!("INCOMPLETE: not all repeats were measured: {failure}"));
    }
    let measured = outcome.cut_short.map_or_else(|| report.verdict(), Err);
    outputs.deliver(report)?;
    match interrupted {
        Some(signal) => Err(Failure::Interrupted(signal)),
        None => {
            measured.and_then(|()| outcome.verdict.map(Failure::Measurement).map_or(Ok(()), Err))
        }
    }
}

/// The fabric of the servers, which must be the same for all.
fn fabric_of(args: &RunArgs) -> Result<Fabric, Failure> {
    let fabrics = args.address.iter().map(|address| Fabric::of(address));
    let mut fabrics = fabrics.collect::<Result<Vec<_>, _>>()?.into_iter();
    let first = fabrics.next().ok_or_else(|| Failure::Usage("no --address".to_owned()))?;
    match fabrics.all(|other| other.driver == first.driver) {
        true => Ok(first),
        false => Err(Failure::Usage(
            "all --address options need the same scheme, shm:, rdma: or iwarp:".to_owned(),
        )),
    }
}

fn party_of(args: &RunArgs, rank: &Rank, suite: Option<InSuite<'_>>) -> Result<Party, Failure> {
    let wait = args.ranks.rank_wait;
    // The others may wait in vain for this rank in the run that it failed, and only then come.
    let patience = match suite {
        Some(InSuite { after_failure: true, .. }) => wait.saturating_mul(2),
        _ => wait,
    };
    Ok(Party { rank: rank.clone(), process: process()?, patience })
}

/// The number of this process, the same for all its runs.
fn process() -> Result<u64, Failure> {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    let random = Random::from_system().map(|mut random| random.next_u64());
    let drawn = random.map_err(|error| Failure::system("getting a random number", error))?;
    Ok(*PROCESS.get_or_init(|| drawn))
}

fn rank_note(rank: &Rank) -> String {
    let Rank { rank, ranks, job } = rank;
    format!(
        "rank {rank} of {ranks} of job {job}: calls, rates and latencies are those of this rank, \
         started together with the others; spinperf merge adds up their reports"
    )
}

fn measure(
    engine: &Engine,
    args: &RunArgs,
    party: Option<Party>,
    plan: &Plan,
    suite: Option<InSuite<'_>>,
) -> Result<(Outcome, Vec<String>), Failure> {
    load::with_fleet(engine, &args.callees(), None, |fleet| {
        fleet.party = party;
        // A rejected workload ends a sweep before it has started.
        let (mut inline, config) = ([0; 2], engine.config());
        for workload in &plan.workloads {
            let Some([takes, sends]) = fleet.announce(workload)? else { continue };
            inline = [takes.min(config.inline_send_bytes()), sends.min(config.inline_recv_bytes())];
        }
        let mut found = match args.calls_spinperf() && !args.bidir {
            true => path_notes(&plan.workloads, inline),
            false => Vec::new(),
        };
        if fleet.party.as_ref().is_none_or(|party| party.rank.rank == 0) {
            announce(plan, suite);
        }
        let outcome = modes::measure(fleet, plan)?;
        found.extend(fleet.setup_note());
        Ok((outcome, found))
    })
}

fn announce(plan: &Plan, suite: Option<InSuite<'_>>) {
    let seconds = plan.total().as_secs_f64();
    if io::stderr().is_terminal() && (suite.is_some() || seconds > 2.0) {
        let run = suite.map(|InSuite { name, place: [number, of], .. }| {
            format!("run {number} of {of}, {name}: ")
        });
        let run = run.unwrap_or_default();
        to_stderr(format_args!("spinperf: {run}measuring for {seconds:.1} s"));
    }
}

fn path_notes(workloads: &[Workload], inline: [usize; 2]) -> Vec<String> {
    let shares: Vec<Share> = workloads.iter().flat_map(Workload::shares).collect();
    let ways = load::describe_paths(&shares, inline);
    let [call, reply] = inline;
    let limits =
        format!("messages of at most {call} bytes forward and {reply} back are sent inline");
    ways.into_iter().chain([limits]).collect()
}

fn others_note(row: &Row) -> Option<String> {
    let (answered, made) = row.repeats.iter().fold((0, 0), |(answered, made), one| {
        let one = &one.measurement;
        (answered + one.server.map_or(0, |server| server.calls), made + one.client.calls)
    });
    (made > 0 && answered > made + made / 20 + QUESTIONS).then(|| {
        let own = made as f64 * 100.0 / answered as f64;
        format!(
            "the server also answered other clients: {own:.0} % of its calls were from this one; \
             its busy share and polls cover all of them"
        )
    })
}

fn shared_cpu_note(row: &Row) -> Option<String> {
    let one = &row.repeats.first()?.measurement;
    let mut servers = one.server_cores.iter().filter_map(|core| core.cpu);
    let cpu = servers.find(|cpu| one.client_cores.iter().any(|core| core.cpu == Some(*cpu)))?;
    Some(format!(
        "client and server share CPU {cpu}: most of a round trip is scheduling; give them their \
         own CPUs (--cores)"
    ))
}

fn carried_in_note(row: &Row) -> Option<String> {
    let measured = row.repeats.iter().map(|repeat| &repeat.measurement);
    let part = |one: &Measurement| one.carried_in_ns / (one.elapsed_s * 1e9);
    let worst = measured.max_by(|one, two| part(one).total_cmp(&part(two)))?;
    (!row.workload.of_mix && part(worst) > CARRIED_IN_NOTICED).then(|| {
        let us = show_us(worst.carried_in_ns);
        format!(
            "{}: a call of the warm-up lasted {us} µs into the measured time, and is not counted \
             because it did not start there: lengthen --warmup",
            row.name
        )
    })
}

fn notes(args: &RunArgs, plan: &Plan, driver: Driver) -> Vec<String> {
    let mut notes = vec![limits_note(driver).to_owned()];
    if args.bidir {
        notes.push(
            "both directions of one connection at once; in the reverse row the server is the \
             caller (rpc.reverse_calls = rpc.credits at both ends)"
                .to_owned(),
        );
    }
    if !args.calls_spinperf() {
        let note =
            |one: &Callee<'_>| format!("the calls are to {one}, whose server is not queried");
        notes.extend(args.callees().first().map(note));
    }
    notes.extend(window_note(args.modes.window, plan));
    let is_null = args.op.0.iter().all(|(op, _)| *op == Operation::Null);
    match (is_null, args.verify) {
        (true, _) => {}
        (_, Verify::Off) => notes.push("lengths checked, contents not (--verify off)".to_owned()),
        (_, verify) => notes.push(format!(
            "contents checked at both ends (--verify {}): rates and latencies include generating \
             and comparing the data",
            if verify == Verify::Full { "full" } else { "touch" }
        )),
    }
    if plan.workloads.len() > 1 && plan.repeats > 1 {
        notes.push(format!(
            "repeats are interleaved, each time in another order (--seed {})",
            plan.seed
        ));
    }
    notes
}

fn window_note(asked: Option<Duration>, plan: &Plan) -> Option<String> {
    let [asked, taken] = [asked?, plan.window].map(|time| time.as_secs_f64());
    (asked < taken).then(|| {
        format!(
            "windows of {taken} s, not of {asked} s (--window): a window has at least 20 ms, and a soak at most \
             600 windows"
        )
    })
}

/// A core that sleeps between two calls would be late for the next.
fn poll_note(workloads: &[Workload], idle: IdlePolicy) -> Option<String> {
    let is_open = workloads.iter().any(|one| one.rate.is_some());
    (is_open && idle != IdlePolicy::Busy).then(|| {
        "the client's cores poll all the time at a fixed rate (poll.mode=busy), whatever the profile \
         says; the server's do as its profile says"
            .to_owned()
    })
}

struct ClockCheck {
    began: Instant,
    ticks: Ticks,
}

impl ClockCheck {
    fn start() -> Self {
        // Its first use calibrates it, which takes time.
        let clock = Clock::shared();
        Self { began: Instant::now(), ticks: clock.now() }
    }

    fn note(&self) -> Option<String> {
        let clock = Clock::shared();
        let ticks = clock.now().0.saturating_sub(self.ticks.0);
        clock_note(self.began.elapsed().as_secs_f64(), clock.to_ns(ticks) as f64 / 1e9)
    }
}

fn clock_note(kernel_s: f64, own_s: f64) -> Option<String> {
    let off_percent = (own_s / kernel_s - 1.0) * 100.0;
    // Reading both takes a moment.
    let is_off = kernel_s > 0.1 && off_percent.abs() > CLOCK_OFF_PERCENT;
    is_off.then(|| {
        format!(
            "the clock of these figures deviated {off_percent:+.2} % from the kernel's: times and \
             rates are wrong by that (clock source of the host, or a suspended virtual machine)"
        )
    })
}

pub(crate) fn limits_note(driver: Driver) -> &'static str {
    match driver {
        Driver::Shm => "this machine's limits: spinperf floor",
        Driver::Verbs => {
            "limits of memory and cores do not apply to a device; measure its own with perftest \
             between the same hosts: ib_send_lat -R, ib_read_bw -R, ib_write_bw -R"
        }
        Driver::Iwarp => {
            "limits of memory and cores do not apply to a network; measure its own between the same hosts: iperf3, \
             sockperf"
        }
    }
}

/// Noticeable part of the measured time for one call of the warm-up.
const CARRIED_IN_NOTICED: f64 = 0.05;
/// More than the kernel slews its clock (500 ppm) plus the error of the calibration.
const CLOCK_OFF_PERCENT: f64 = 0.2;
const NO_MEETING: &str = "--program cannot be used with ranks, which meet at a spinperf server; \
                          --ranks 1 measures alone";
const INTERRUPTED: &str = "INTERRUPTED by a signal: these are the figures up to then";
const INTERRUPTED_EARLY: &str = "INTERRUPTED by a signal before anything was measured";
/// The client's own questions, and the lag of counters.
const QUESTIONS: u64 = 1000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Arrivals, CoreUse, Rate};
    use crate::report::tests::repeat;

    #[test]
    fn an_open_loop_that_does_not_sleep_as_its_profile_says_is_told_of() {
        let echo = Workload::ping_pong(Operation::Echo, 64);
        let open = echo.at_rate(Rate { per_second: 1000, arrivals: Arrivals::Fixed });
        assert!(poll_note(&[echo, open], IdlePolicy::Sleep).unwrap().contains("poll.mode=busy"));
        assert_eq!(poll_note(&[open], IdlePolicy::Busy), None);
        assert_eq!(poll_note(&[echo], IdlePolicy::Sleep), None);
    }

    #[test]
    fn windows_of_another_length_than_asked_for_are_told_of() {
        let note = |line: &str| {
            let words = line.split_whitespace().map(str::to_owned).collect();
            let args = crate::cli::parse_run(words).unwrap();
            window_note(args.modes.window, &Plan::new(&args, 1).unwrap())
        };
        let line = "--address shm:x --mode soak --duration 10m --window";
        assert!(note(&format!("{line} 1ms")).unwrap().contains("windows of 1 s, not of 0.001 s"));
        assert_eq!(note(&format!("{line} 2s")), None);
    }

    #[test]
    fn ends_that_share_a_cpu_are_told_of() {
        let on = |cpu| vec![CoreUse { cpu: Some(cpu), ..CoreUse::default() }];
        let mut both =
            Row::new(Workload::ping_pong(Operation::Echo, 64), vec![repeat(1, 1.0, &[])]);
        both.repeats[0].measurement.client_cores = on(3);
        both.repeats[0].measurement.server_cores = on(2);
        assert!(shared_cpu_note(&both).is_none());
        both.repeats[0].measurement.server_cores = on(3);
        assert!(shared_cpu_note(&both).unwrap().contains("share CPU 3"));
    }

    #[test]
    fn a_clock_that_runs_at_another_rate_is_told_of() {
        assert!(clock_note(10.0, 10.001).is_none() && clock_note(0.01, 0.011).is_none());
        assert!(clock_note(10.0, 10.1).unwrap().contains("+1.00 %"));
    }
}
