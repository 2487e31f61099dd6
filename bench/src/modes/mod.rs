//! The modes of `spinperf run`: lists of workloads, the soak.

mod soak;

use crate::cli::Plan;
use crate::failure::Failure;
use crate::floor::Placed;
use crate::interrupt;
use crate::load::{CutShort, Fleet, Measured, Mode, Workload, shuffle};
use crate::progress::Progress;
use crate::report::{Repeat, Row, Soak};
use spinrpc::sys::random::Random;

#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) rows: Vec<Row>,
    pub(crate) soak: Option<Soak>,
    /// Reason for a negative answer, if there is one.
    pub(crate) verdict: Option<String>,
    /// Reason why not all repeats were measured, other than a signal.
    pub(crate) cut_short: Option<Failure>,
}

pub(crate) fn measure(fleet: &mut Fleet, plan: &Plan) -> Result<Outcome, Failure> {
    interrupt::catch()?;
    match plan.mode {
        Mode::Soak => soak::run(fleet, plan),
        Mode::PingPong | Mode::Closed | Mode::Open | Mode::Sweep => measure_rows(fleet, plan),
    }
}

/// Predetermined workloads: one, or all of a sweep. Repeats are interleaved, each time in another
/// order, so that changes of the machine favour none of the workloads. A signal ends it, as does a
/// server that stops answering.
fn measure_rows(fleet: &mut Fleet, plan: &Plan) -> Result<Outcome, Failure> {
    let (measured, cut_short) = by_turns(fleet, plan)?;
    fleet.unload()?;
    let rows = measured.into_iter().flat_map(rows).collect();
    Ok(Outcome { rows, cut_short, ..Outcome::default() })
}

/// One repeat, on cores of this placement.
type Done = (Vec<Measured>, Option<Placed>);

/// Not if it was interrupted and there is a complete one; returns whether it is the last.
fn keep(repeats: &mut Vec<Done>, one: Done) -> bool {
    let cut_short = one.0.first().map_or(CutShort::default(), |(_, first)| first.cut_short);
    let has_calls = one.0.iter().any(|(_, part)| part.calls + part.lost > 0);
    if !cut_short.is_interrupted || (repeats.is_empty() && has_calls) {
        repeats.push(one);
    }
    cut_short.is_stuck || cut_short.is_interrupted || interrupt::signal().is_some()
}

/// The repeats of each workload, and the reason why the other ranks did not come to the next one. A workload alone keeps
/// its connections.
fn by_turns(fleet: &mut Fleet, plan: &Plan) -> Result<(Vec<Vec<Done>>, Option<Failure>), Failure> {
    let workloads = &plan.workloads;
    let mut measured = vec![Vec::new(); workloads.len()];
    let mut progress = Progress::start(plan.repeats as usize * workloads.len());
    let mut random = Random::seeded(plan.seed);
    let mut order: Vec<usize> = (0..workloads.len()).collect();
    for repeat in 0..plan.repeats {
        shuffle(&mut order, &mut random);
        for &index in &order {
            progress.step(&workloads[index].name());
            if repeat == 0 || workloads.len() > 1 {
                fleet.unload()?;
                fleet.load(&workloads[index])?;
            }
            let begin = match fleet.join(&plan.limits) {
                Err(failure) if measured.iter().any(|repeats| !repeats.is_empty()) => {
                    return Ok((measured, Some(failure)));
                }
                joined => joined?,
            };
            if keep(&mut measured[index], fleet.measure_placed(&plan.limits, begin)?) {
                return Ok((measured, None));
            }
        }
    }
    Ok((measured, None))
}

/// For a mix, one row for the whole and one for each operation.
fn rows(repeats: Vec<Done>) -> Vec<Row> {
    let first = repeats.first().into_iter().flat_map(|(first, _)| first);
    let workloads: Vec<Workload> = first.map(|(workload, _)| *workload).collect();
    let mut columns: Vec<Vec<Repeat>> = vec![Vec::new(); workloads.len()];
    for (repeat, placed) in repeats {
        for (column, (_, measurement)) in columns.iter_mut().zip(repeat) {
            column.push(Repeat::new(measurement, Vec::new()).at(placed));
        }
    }
    workloads
        .into_iter()
        .zip(columns)
        .map(|(workload, repeats)| Row::new(workload, repeats))
        .collect()
}
