//! The modes of `spinperf run`: lists of workloads, the search for the highest rate, the soak.
//!
//! `run` calls it, `load` measures for it, `report` prints the outcome.

mod rows;
mod saturate;
mod soak;
mod trend;

use crate::cli::Plan;
use crate::failure::Failure;
use crate::interrupt;
use crate::load::{Fleet, Mode};
use crate::report::Row;
use crate::report::modes::{Saturation, Soak};

/// Outcome of a mode.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) rows: Vec<Row>,
    pub(crate) saturation: Option<Saturation>,
    pub(crate) soak: Option<Soak>,
    /// Reason for a negative answer, if there is one.
    pub(crate) verdict: Result<(), String>,
    /// Reason why not all repeats were measured, other than a signal.
    pub(crate) cut_short: Option<Failure>,
}

impl Default for Outcome {
    fn default() -> Self {
        Self { rows: Vec::new(), saturation: None, soak: None, verdict: Ok(()), cut_short: None }
    }
}

/// Carries out the plan on connected cores.
pub(crate) fn measure(fleet: &mut Fleet, plan: &Plan) -> Result<Outcome, Failure> {
    interrupt::catch()?;
    match plan.mode {
        Mode::Saturate => saturate::search(fleet, plan),
        Mode::Soak => soak::run(fleet, plan),
        Mode::PingPong | Mode::Closed | Mode::Open | Mode::Sweep => rows::measure(fleet, plan),
    }
}

/// Measures the workload of the plan in both directions at once.
pub(crate) fn measure_both(fleet: &mut Fleet, plan: &Plan) -> Result<Outcome, Failure> {
    interrupt::catch()?;
    rows::measure_both(fleet, plan)
}
