//! `spinperf run`: one workload against a server in another process.

use crate::capture::Capture;
use crate::cli::RunArgs;
use crate::cores::CoreList;
use crate::env::{Environment, StealMeter};
use crate::fabric::{self, Fabric};
use crate::failure::Failure;
use crate::load::{self, Limits, Measurement, Operation, Workload};
use crate::pattern::Verify;
use crate::profile::{self, Side};
use crate::report::{Repeat, Report, Row, json, table};
use spinrpc::config::Driver;
use spinrpc::{Config, Engine};

/// Measures the workload of the options and prints it.
pub(crate) fn run(args: &RunArgs) -> Result<(), Failure> {
    let fabric = Fabric::of(&args.address)?;
    fabric::raise_limits(fabric.driver);
    let cores = args.cores.as_ref();
    let mut profile = profile::load(&args.profile, &args.set, Side::Client, cores, fabric.driver)?;
    if args.bidir {
        profile = profile.with_reverse_calls()?;
    }
    let workload = args.workload();
    profile::check_fits(&profile.config, &workload)?;
    let (capture, sink) = Capture::open(args.capture.as_deref())?.unzip();
    let engine = profile::engine(&profile.config, sink)?;
    fabric::warn_of_memlock(&profile.config);
    let cores = CoreList::from(profile.config.cpus());
    let limits = Limits { warmup: args.warmup, duration: args.duration, calls: args.calls };
    let mut report = Report::new(Environment::observe(&cores, profile.id, Some(&fabric)));
    let json = json::Sink::open(args.json.as_deref())?;
    let steal = StealMeter::start(&cores);
    announce(args);
    report.rows = match args.bidir {
        false => vec![measure(&engine, args, workload, limits)?],
        true => measure_both(&engine, &profile.config, args, limits)?,
    };
    report.environment.note_version(&engine);
    engine.shutdown();
    report.interference = steal.stop();
    report.notes = notes(args, fabric.driver);
    if let Some(capture) = capture {
        report.notes.push(capture.outcome()?);
    }
    print!("{}", table::render(&report));
    json.write(&report)
}

fn measure(
    engine: &Engine,
    args: &RunArgs,
    workload: Workload,
    limits: Limits,
) -> Result<Row, Failure> {
    let measured = load::run_on_all_cores(engine, args.callee(), workload, limits, args.repeats)?;
    Ok(row(workload, measured.into_iter()))
}

/// A row of the calls forward, and one of those in reverse at the same time.
fn measure_both(
    engine: &Engine,
    config: &Config,
    args: &RunArgs,
    limits: Limits,
) -> Result<Vec<Row>, Failure> {
    if engine.cores() > 1 {
        return Err(Failure::Usage("--bidir goes with one core: --cores N".to_owned()));
    }
    load::register(engine, config);
    let workload = args.workload();
    let measured = load::run_both(engine, args.callee(), workload, limits, args.repeats)?;
    let of = |direction: usize| measured.iter().map(move |both| both[direction].clone());
    Ok(vec![row(workload, of(0)), row(workload.in_reverse(), of(1))])
}

fn row(workload: Workload, measured: impl Iterator<Item = Measurement>) -> Row {
    let repeats = measured.map(|one| Repeat::new(one, Vec::new())).collect();
    Row::new(workload, repeats)
}

fn announce(args: &RunArgs) {
    let seconds = (args.warmup + args.duration).as_secs_f64() * f64::from(args.repeats);
    if seconds > 2.0 {
        eprintln!("spinperf: measuring for {seconds:.1} s");
    }
}

fn notes(args: &RunArgs, driver: Driver) -> Vec<String> {
    let mut notes = vec![limits_note(driver).to_owned()];
    if args.bidir {
        notes.push(
            "both directions of one connection at once; in the reverse row the server is the client: \
             it calls (rpc.reverse_calls = rpc.credits at both ends)"
                .to_owned(),
        );
    }
    if !args.callee().is_spinperf() {
        notes.push(format!("the calls are to {}, which is asked nothing else", args.callee()));
    }
    match (args.op, args.verify) {
        (Operation::Null, _) => {}
        (_, Verify::Off) => notes.push("lengths checked, contents not (--verify off)".to_owned()),
        (_, verify) => notes.push(format!(
            "contents checked at both ends (--verify {}): rates and latencies include making \
             and comparing the data",
            if verify == Verify::Full { "full" } else { "touch" }
        )),
    }
    notes
}

/// Where to find what the result can be compared with.
pub(crate) fn limits_note(driver: Driver) -> &'static str {
    match driver {
        Driver::Shm => "this machine's limits: spinperf floor",
        Driver::Verbs => {
            "limits of memory and cores say nothing about a device; its own are those of perftest \
             between the same hosts: ib_send_lat -R, ib_read_bw -R, ib_write_bw -R"
        }
    }
}
