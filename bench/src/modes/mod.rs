//! The modes of `spinperf run`: lists of workloads, the search for the highest rate, the soak.
//!
//! `run` calls it, `load` measures for it, `report` prints the outcome.

mod rows;
mod saturate;
mod soak;

use crate::cli::Plan;
use crate::failure::Failure;
use crate::interrupt;
use crate::load::{Fleet, Mode};
use crate::report::Row;
use crate::report::modes::{Saturation, Soak};

#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) rows: Vec<Row>,
    pub(crate) saturation: Option<Saturation>,
    pub(crate) soak: Option<Soak>,
    /// Reason for a negative answer, if there is one.
    pub(crate) verdict: Option<String>,
    /// Reason why not all repeats were measured, other than a signal.
    pub(crate) cut_short: Option<Failure>,
}

pub(crate) fn measure(fleet: &mut Fleet, plan: &Plan) -> Result<Outcome, Failure> {
    interrupt::catch()?;
    match plan.mode {
        Mode::Saturate => saturate::search(fleet, plan),
        Mode::Soak => soak::run(fleet, plan),
        Mode::PingPong | Mode::Closed | Mode::Open | Mode::Sweep => rows::measure(fleet, plan),
    }
}
