//! The modes of `spinperf run`: lists of workloads, the search for the highest rate, the soak.
//!
//! `run` calls it, `load` measures for it, `report` prints the outcome.

mod rows;
mod saturate;
mod soak;
mod trend;

use crate::cli::Plan;
use crate::env::Holdings;
use crate::failure::Failure;
use crate::interrupt;
use crate::load::{Fleet, Mode};
use crate::report::Row;
use serde::Serialize;

/// Outcome of a mode.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) rows: Vec<Row>,
    pub(crate) saturation: Option<Saturation>,
    pub(crate) soak: Option<Soak>,
    /// Reason for a negative answer, if there is one.
    pub(crate) verdict: Result<(), String>,
}

impl Default for Outcome {
    fn default() -> Self {
        Self { rows: Vec::new(), saturation: None, soak: None, verdict: Ok(()) }
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

/// Result of the search for the highest rate.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Saturation {
    /// Limit of the 99th percentile.
    pub(crate) p99_limit_ns: f64,
    /// Every rate tried, in order.
    pub(crate) steps: Vec<SaturationStep>,
    /// The highest rate that held, in calls per second; absent if none did.
    pub(crate) highest_per_second: Option<f64>,
}

/// One rate that was tried.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct SaturationStep {
    pub(crate) target_per_second: f64,
    pub(crate) achieved_per_second: f64,
    /// Calls without a reply.
    pub(crate) lost: u64,
    /// Measured from the intended start of each call.
    pub(crate) p99_ns: f64,
    pub(crate) adherence_percent: f64,
    /// The percentile stayed within its limit, and the loop kept its rate.
    pub(crate) held: bool,
}

/// Figures and resources in the course of a soak.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Soak {
    pub(crate) windows: Vec<SoakWindow>,
    /// Windows whose adherence was too low for percentiles.
    pub(crate) refused_windows: usize,
    /// Calls without a reply.
    pub(crate) lost: u64,
    /// Change of each figure over the windows.
    pub(crate) trends: Vec<Trend>,
    /// Nothing drifted, nothing leaked, every call was answered, and every window kept its rate, if
    /// it had one.
    pub(crate) held: bool,
    /// Reason why the server's buffers were not watched for leaks, if they were not.
    pub(crate) buffers_not_watched: Option<String>,
}

/// A part of a soak.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct SoakWindow {
    /// Start relative to that of the soak, in seconds.
    pub(crate) start_s: f64,
    pub(crate) elapsed_s: f64,
    pub(crate) calls: u64,
    pub(crate) calls_per_second: f64,
    pub(crate) p50_ns: f64,
    pub(crate) p99_ns: f64,
    pub(crate) max_ns: f64,
    /// At the end of the window.
    pub(crate) client: Holdings,
    /// At the end of the window.
    pub(crate) server: Holdings,
}

/// Unit of a figure of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TrendUnit {
    Number,
    Ns,
    Bytes,
}

/// A straight line through a figure of all windows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Trend {
    /// Name of the figure: `p50`, `server memory` and so on.
    pub(crate) what: &'static str,
    /// Unit of mean and change.
    pub(crate) unit: TrendUnit,
    /// Its mean over the windows.
    pub(crate) mean: f64,
    /// Change of the line from the first window to the last.
    pub(crate) change: f64,
    /// Standard error of the change.
    pub(crate) change_error: f64,
    /// The change exceeds the tolerance, and is too significant to be chance.
    pub(crate) is_drift: bool,
}

impl Trend {
    /// `p99 changed by +3.1 % (error 4.0 %)`.
    fn describe(&self) -> String {
        let percent = |part: f64| part * 100.0 / self.mean.abs().max(f64::MIN_POSITIVE);
        let drift = if self.is_drift { ": DRIFT" } else { "" };
        let (change, error) = (percent(self.change), percent(self.change_error));
        format!("{} changed by {change:+.1} % (standard error {error:.1} %){drift}", self.what)
    }
}
