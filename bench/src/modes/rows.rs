//! Predetermined workloads: one, or all of a sweep. Repeats are interleaved, each time in another
//! order, so that changes of the machine favour none of the workloads. A signal ends it, as does a
//! server that stops answering.

use super::Outcome;
use crate::cli::Plan;
use crate::failure::Failure;
use crate::interrupt;
use crate::load::{CutShort, Fleet, Measured, Random, Workload};
use crate::progress::Progress;
use crate::report::{Repeat, Row};

/// Measures every workload of the plan with all its repeats.
pub(super) fn measure(fleet: &mut Fleet, plan: &Plan) -> Result<Outcome, Failure> {
    let (measured, cut_short) = match plan.workloads.as_slice() {
        [workload] => {
            fleet.load(workload)?;
            let (measured, cut_short) = repeatedly(fleet, plan, workload)?;
            (vec![measured], cut_short)
        }
        _ => by_turns(fleet, plan)?,
    };
    let rows = measured.into_iter().flat_map(rows).collect();
    Ok(Outcome { rows, cut_short, ..Outcome::default() })
}

/// Measures the first workload in both directions at once, a row for each.
pub(super) fn measure_both(fleet: &mut Fleet, plan: &Plan) -> Result<Outcome, Failure> {
    fleet.load_both(&plan.workloads[0])?;
    let (measured, cut_short) = repeatedly(fleet, plan, &plan.workloads[0])?;
    Ok(Outcome { rows: rows(measured), cut_short, ..Outcome::default() })
}

/// The repeats of a workload, or of each, and the reason why the other ranks did not come to the
/// next one.
type UpTo<T> = (Vec<T>, Option<Failure>);

/// Repeats the loaded workload over the same connections.
fn repeatedly(
    fleet: &mut Fleet,
    plan: &Plan,
    workload: &Workload,
) -> Result<UpTo<Vec<Measured>>, Failure> {
    let mut progress = Progress::start(plan.repeats as usize);
    let (mut measured, mut cut_short) = (Vec::new(), None);
    for _ in 0..plan.repeats {
        progress.step(&workload.name());
        let begin = match fleet.join() {
            Err(failure) if !measured.is_empty() => {
                cut_short = Some(failure);
                break;
            }
            joined => joined?,
        };
        if keep(&mut measured, fleet.measure_from(&plan.limits, begin)?) {
            break;
        }
    }
    fleet.unload()?;
    Ok((measured, cut_short))
}

/// Adds a repeat, unless it was interrupted and there is a complete one already; returns whether it
/// is the last.
fn keep(repeats: &mut Vec<Vec<Measured>>, one: Vec<Measured>) -> bool {
    let cut_short = one.first().map_or(CutShort::default(), |(_, first)| first.cut_short);
    let has_calls = one.iter().any(|(_, part)| part.calls + part.lost > 0);
    if !cut_short.is_interrupted || (repeats.is_empty() && has_calls) {
        repeats.push(one);
    }
    cut_short.is_any() || interrupt::signal().is_some()
}

fn by_turns(fleet: &mut Fleet, plan: &Plan) -> Result<UpTo<Vec<Vec<Measured>>>, Failure> {
    let workloads = &plan.workloads;
    let mut measured = vec![Vec::new(); workloads.len()];
    let mut progress = Progress::start(plan.repeats as usize * workloads.len());
    let mut random = Random::new(plan.seed);
    let mut order: Vec<usize> = (0..workloads.len()).collect();
    for _ in 0..plan.repeats {
        random.shuffle(&mut order);
        for &index in &order {
            progress.step(&workloads[index].name());
            fleet.load(&workloads[index])?;
            let begin = match fleet.join() {
                Err(failure) if measured.iter().any(|repeats| !repeats.is_empty()) => {
                    return Ok((measured, Some(failure)));
                }
                joined => joined?,
            };
            let is_over = keep(&mut measured[index], fleet.measure_from(&plan.limits, begin)?);
            fleet.unload()?;
            if is_over {
                return Ok((measured, None));
            }
        }
    }
    Ok((measured, None))
}

/// The rows of one workload from all of its repeats: one, or for a mix one for the whole and one
/// for each operation.
pub(super) fn rows(repeats: Vec<Vec<Measured>>) -> Vec<Row> {
    let workloads: Vec<Workload> =
        repeats.first().into_iter().flatten().map(|(workload, _)| *workload).collect();
    let mut columns: Vec<Vec<Repeat>> = vec![Vec::new(); workloads.len()];
    for repeat in repeats {
        for (column, (_, measurement)) in columns.iter_mut().zip(repeat) {
            column.push(Repeat::new(measurement, Vec::new()));
        }
    }
    workloads
        .into_iter()
        .zip(columns)
        .map(|(workload, repeats)| Row::new(workload, repeats))
        .collect()
}
