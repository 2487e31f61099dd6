//! Results of the modes of `spinperf run` in addition to rows: the search for the highest rate, and
//! the soak. Plain data, which `modes` fills in.

use crate::env::Holdings;
use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Saturation {
    pub(crate) p99_limit_ns: f64,
    pub(crate) steps: Vec<SaturationStep>,
    /// The highest rate that held, in calls per second; absent if none did.
    pub(crate) highest_per_second: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct SaturationStep {
    pub(crate) target_per_second: f64,
    pub(crate) achieved_per_second: f64,
    pub(crate) lost: u64,
    /// Measured from the intended start of each call.
    pub(crate) p99_ns: f64,
    pub(crate) adherence_percent: f64,
    /// The percentile stayed within its limit, and the loop kept its rate.
    pub(crate) held: bool,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Soak {
    pub(crate) windows: Vec<SoakWindow>,
    pub(crate) refused_windows: usize,
    pub(crate) lost: u64,
    pub(crate) trends: Vec<Trend>,
    /// Nothing drifted, nothing leaked, every call was answered, and every window kept its rate, if
    /// it had one.
    pub(crate) held: bool,
    pub(crate) buffers_not_watched: Option<String>,
}

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
    pub(crate) server: Holdings,
    /// Buffers that the server has in use; NaN if unknown.
    #[serde(skip)]
    pub(crate) server_buffers: f64,
}

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
    pub(crate) unit: TrendUnit,
    pub(crate) mean: f64,
    /// Change of the line from the first window to the last.
    pub(crate) change: f64,
    pub(crate) change_error: f64,
    /// The change exceeds the tolerance, and is too significant to be chance.
    pub(crate) is_drift: bool,
}

impl Trend {
    /// Change, and its standard error, in percent of the mean.
    pub(crate) fn percents(&self) -> [f64; 2] {
        let mean = self.mean.abs().max(f64::MIN_POSITIVE);
        [self.change, self.change_error].map(|part| part / mean * 100.0)
    }

    /// `p99 changed by +3.1 % (error 4.0 %)`.
    pub(crate) fn describe(&self) -> String {
        let [change, error] = self.percents();
        let drift = if self.is_drift { ": DRIFT" } else { "" };
        format!("{} changed by {change:+.1} % (standard error {error:.1} %){drift}", self.what)
    }
}
