//! Results of the modes of `spinperf run` in addition to rows: the search for the highest rate, and
//! the soak. Plain data, which `modes` fills in.

use crate::env::Holdings;
use serde::Serialize;

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
    pub(crate) fn describe(&self) -> String {
        let percent = |part: f64| part * 100.0 / self.mean.abs().max(f64::MIN_POSITIVE);
        let drift = if self.is_drift { ": DRIFT" } else { "" };
        let (change, error) = (percent(self.change), percent(self.change_error));
        format!("{} changed by {change:+.1} % (standard error {error:.1} %){drift}", self.what)
    }
}
