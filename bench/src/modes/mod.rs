//! What `spinperf run` does beyond one workload: the search for the highest rate, and the soak.
//!
//! `run` calls it, `load` measures for it, `report` prints what it found out.

use serde::Serialize;

/// What the search for the highest rate found.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Saturation {
    /// What the 99th percentile must not exceed.
    pub(crate) p99_limit_ns: f64,
    /// Every rate tried, in the order of trying.
    pub(crate) steps: Vec<SaturationStep>,
    /// The highest rate that held, in calls per second; absent if none did.
    pub(crate) highest_per_second: Option<f64>,
}

/// One rate that was tried.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct SaturationStep {
    pub(crate) target_per_second: f64,
    pub(crate) achieved_per_second: f64,
    /// From the intended start of each call.
    pub(crate) p99_ns: f64,
    pub(crate) adherence_percent: f64,
    /// The percentile kept its limit, and the loop its rate.
    pub(crate) held: bool,
}

/// What became of figures and holdings in the course of a soak.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Soak {
    pub(crate) windows: Vec<SoakWindow>,
    /// How each figure changed from window to window.
    pub(crate) trends: Vec<Trend>,
    /// Nothing drifted and nothing leaked.
    pub(crate) held: bool,
}

/// A part of a soak.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct SoakWindow {
    /// Since the soak began, in seconds.
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

/// What a process holds of its host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Holdings {
    /// Memory that is resident.
    pub(crate) resident_bytes: u64,
    /// Open file descriptors.
    pub(crate) descriptors: u64,
}

/// A straight line through a figure of all windows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Trend {
    /// Which figure: `p50`, `server memory` and so on.
    pub(crate) what: &'static str,
    /// Its mean over the windows, in nanoseconds, calls per second, bytes, or a number.
    pub(crate) mean: f64,
    /// What the line changes by from the first window to the last, in the same unit.
    pub(crate) change: f64,
    /// Standard error of that.
    pub(crate) change_error: f64,
    /// The change is too large to bear and too clear to be chance.
    pub(crate) is_drift: bool,
}
