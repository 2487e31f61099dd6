//! `spinperf run`: one workload against a server in another process.

use crate::capture::Capture;
use crate::cli::RunArgs;
use crate::cores::CoreList;
use crate::env::{Environment, StealMeter};
use crate::failure::Failure;
use crate::load::{self, Limits, Operation};
use crate::pattern::Verify;
use crate::profile::{self, Side};
use crate::report::{Repeat, Report, Row, json, table};

/// Measures the workload of the options and prints it.
pub(crate) fn run(args: &RunArgs) -> Result<(), Failure> {
    profile::raise_descriptor_limit();
    let profile = profile::load(&args.profile, Side::Client, args.cores.as_ref())?;
    let workload = args.workload();
    profile::check_fits(&profile.config, &workload)?;
    let (capture, sink) = Capture::open(args.capture.as_deref())?.unzip();
    let engine = profile::engine(&profile.config, sink)?;
    let cores = CoreList::from(profile.config.cpus());
    let limits = Limits { warmup: args.warmup, duration: args.duration, calls: args.calls };
    let mut report = Report::new(Environment::observe(&cores, profile.id));
    let json = json::Sink::open(args.json.as_deref())?;
    let steal = StealMeter::start(&cores);
    announce(args);
    let measurements =
        load::run_on_all_cores(&engine, &args.address, workload, limits, args.repeats)?;
    engine.shutdown();
    report.interference = steal.stop();
    let repeats = measurements.into_iter().map(|one| Repeat::new(one, Vec::new())).collect();
    report.rows.push(Row::new(workload, repeats));
    report.notes = notes(args);
    if let Some(capture) = capture {
        report.notes.push(capture.outcome()?);
    }
    print!("{}", table::render(&report));
    json.write(&report)
}

fn announce(args: &RunArgs) {
    let seconds = (args.warmup + args.duration).as_secs_f64() * f64::from(args.repeats);
    if seconds > 2.0 {
        eprintln!("spinperf: measuring for {seconds:.1} s");
    }
}

fn notes(args: &RunArgs) -> Vec<String> {
    let mut notes = vec!["this machine's limits: spinperf floor".to_owned()];
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
