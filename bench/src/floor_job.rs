//! `spinperf floor`: measures only the limits of this machine.

use crate::cli::FloorArgs;
use crate::cores::{CoreList, CorePair};
use crate::env::{Environment, ProfileId, StealMeter};
use crate::failure::Failure;
use crate::floor::{Placed, Probe, cache_line_ns};
use crate::load::{Operation, Workload};
use crate::output::{OutputArgs, Outputs};
use crate::progress::Progress;
use crate::report::{FloorRow, Report};
use crate::units::joined;

pub(crate) fn run(args: &FloorArgs) -> Result<(), Failure> {
    let pair = CorePair::choose(args.cores.as_ref())?;
    let probes = chosen(&args.only)?;
    let cores = CoreList::from(pair);
    let profile = ProfileId { name: "none".to_owned(), hash: "-".to_owned() };
    let mut report = Report::new(Environment::observe(&cores, profile, None));
    let output = OutputArgs { json: args.json.clone(), ..OutputArgs::default() };
    let outputs = Outputs::open(&output)?;
    let steal = StealMeter::start(&cores);
    let mut rows: Vec<FloorRow> = probes.into_iter().map(FloorRow::new).collect();
    let mut progress = Progress::start(args.repeats as usize * rows.len());
    let mut before_ns = cache_line_ns(pair)?;
    for _ in 0..args.repeats {
        for row in &mut rows {
            progress.step(&row.name);
            let value = row.probe.measure(pair, args.duration)?;
            let after_ns = cache_line_ns(pair)?;
            row.add(value, Some(Placed::between(before_ns, after_ns).placement));
            before_ns = after_ns;
        }
    }
    report.floor = rows;
    report.interference = steal.stop();
    report.notes.push(NOTE.to_owned());
    outputs.deliver(report)
}

fn chosen(only: &str) -> Result<Vec<Probe>, Failure> {
    let (chosen, others): (Vec<Probe>, Vec<Probe>) =
        probes().into_iter().partition(|probe| probe.name().contains(only));
    if chosen.is_empty() {
        let names = joined(others.into_iter().map(Probe::name), "; ");
        return Err(Failure::Usage(format!(
            "--only: no limit is called '{only}'; there are: {names}"
        )));
    }
    Ok(chosen)
}

/// The limits that the main job compares its workloads with.
fn probes() -> Vec<Probe> {
    let null = Workload::ping_pong(Operation::Null, 0);
    let mut probes = null.probes();
    probes.extend(Workload::ping_pong(Operation::Echo, 64).probes().into_iter().skip(1));
    probes.extend(null.at_depth(32).probes());
    probes.extend(Workload::ping_pong(Operation::Read, 1 << 20).probes());
    probes.extend(over_tcp());
    probes.push(Probe::OwnWork);
    probes
}

/// The limit of an echo over iWARP: each message is one FPDU, with 24 bytes of headers and CRC (RFC 5044, RFC 5041).
fn over_tcp() -> Option<Probe> {
    const FRAMED: usize = 24;
    let probes = Workload::ping_pong(Operation::Echo, 64).probes();
    probes.into_iter().find_map(|probe| match probe {
        Probe::RingRoundTrip { call_bytes, reply_bytes } => Some(Probe::TcpRoundTrip {
            call_bytes: call_bytes + FRAMED,
            reply_bytes: reply_bytes + FRAMED,
        }),
        _ => None,
    })
}

const NOTE: &str = "two threads stand in for two processes: caches do not distinguish them";
