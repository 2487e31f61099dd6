//! A snapshot, and latencies, as sent by an engine (`spinrpc::control`). Unknown fields are skipped. `socket` reads it, and
//! `view` compares two.

use serde::Deserialize;
use spinrpc::control::{
    CONNECTIONS_SHOWN_MAX, LABEL_BYTES_MAX, LABELS_MAX, LATENCY_BUCKETS, LATENCY_HISTOGRAMS_MAX,
    METRICS_MAX, SERIES_MAX, is_label_name, is_metric_name,
};
use std::collections::BTreeMap;
use std::fmt;

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Snapshot {
    pub(crate) schema: String,
    pub(crate) engine: u32,
    pub(crate) version: String,
    pub(crate) fabric: String,
    pub(crate) uptime_ns: u64,
    pub(crate) ticks_per_second: u64,
    pub(crate) listens: Vec<String>,
    pub(crate) settings: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) gss: BTreeMap<String, u64>,
    #[serde(default)]
    pub(crate) application: Vec<Metric>,
    pub(crate) cores: Vec<Core>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Metric {
    pub(crate) name: String,
    pub(crate) help: String,
    pub(crate) labels: Vec<String>,
    pub(crate) series: Vec<Series>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Series {
    pub(crate) values: Vec<String>,
    pub(crate) count: u64,
    /// Present for durations.
    pub(crate) sum_ns: Option<u64>,
    #[serde(default)]
    pub(crate) buckets: Vec<u64>,
}

/// Most cores of an engine, and most counters or settings of one list, that are kept: more than any engine has.
const CORES_MAX: usize = 1024;
const ENTRIES_MAX: usize = 256;

fn bound<T>(entries: &mut BTreeMap<String, T>) {
    if let Some(first) = entries.keys().nth(ENTRIES_MAX).cloned() {
        entries.split_off(&first);
    }
}

impl Snapshot {
    /// Leaves out what no engine would show: a program may say what it likes, and all snapshots of a query are kept at a
    /// time. Short items take many times their length in memory.
    pub(super) fn bound(&mut self) {
        self.listens.truncate(ENTRIES_MAX);
        bound(&mut self.settings);
        bound(&mut self.gss);
        self.cores.truncate(CORES_MAX);
        self.cores.iter_mut().for_each(Core::bound);
        let mut left = SERIES_MAX + METRICS_MAX;
        self.application.truncate(METRICS_MAX);
        self.application.retain_mut(|metric| metric.is_sound() && metric.bound(&mut left));
        self.application.shrink_to_fit();
    }
}

impl Metric {
    fn is_sound(&self) -> bool {
        let is_new = |(at, label): (usize, &String)| !self.labels[..at].contains(label);
        is_metric_name(&self.name)
            && self.help.len() <= LABEL_BYTES_MAX
            && self.labels.len() <= LABELS_MAX
            && self.labels.iter().all(|label| is_label_name(label))
            && self.labels.iter().enumerate().all(is_new)
    }

    fn bound(&mut self, left: &mut usize) -> bool {
        let labels = self.labels.len();
        self.series.retain(|series| {
            series.values.len() == labels
                && series.values.iter().all(|value| value.len() <= LABEL_BYTES_MAX)
                && [0, LATENCY_BUCKETS].contains(&series.buckets.len())
        });
        self.series.truncate(*left);
        self.series.shrink_to_fit();
        *left -= self.series.len();
        !self.series.is_empty()
    }
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Core {
    pub(crate) index: u32,
    pub(crate) cpu: Option<u32>,
    pub(crate) idle: String,
    pub(crate) running: bool,
    pub(crate) answered: bool,
    pub(crate) stats: BTreeMap<String, u64>,
    #[serde(default)]
    pub(crate) deferred: u64,
    #[serde(default)]
    pub(crate) put_off: u64,
    #[serde(default)]
    pub(crate) memory: Vec<Blocks>,
    #[serde(default)]
    pub(crate) connections_open: u64,
    #[serde(default)]
    pub(crate) connections: Vec<Connection>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Blocks {
    pub(crate) block_bytes: usize,
    pub(crate) total: u64,
    pub(crate) free: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Connection {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) peer: String,
    pub(crate) made_by: String,
    pub(crate) state: String,
    pub(crate) version: u32,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    pub(crate) bytes: Moved,
    pub(crate) receives: Buffers,
    pub(crate) sends: Buffers,
    pub(crate) blocks: BTreeMap<String, u64>,
    #[serde(default)]
    pub(crate) memory_used_bytes: usize,
    #[serde(default)]
    pub(crate) memory_bytes: usize,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Requester {
    pub(crate) calls: u64,
    pub(crate) credits_granted: u64,
    pub(crate) credits_in_flight: u64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Responder {
    pub(crate) calls: u64,
    pub(crate) credits_granted: u64,
    pub(crate) in_progress: u64,
}

/// Bytes that the engine moved over it by RDMA.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Moved {
    pub(crate) read: u64,
    pub(crate) written: u64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Buffers {
    pub(crate) total: u64,
    pub(crate) free: u64,
    pub(crate) kept: u64,
}

impl Buffers {
    pub(crate) fn out(&self) -> u64 {
        self.total.saturating_sub(self.free)
    }
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Latencies {
    pub(crate) schema: String,
    pub(crate) cores: Vec<CoreLatencies>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct CoreLatencies {
    pub(crate) index: u32,
    pub(crate) procedures: Vec<Latency>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Latency {
    pub(crate) program: u32,
    pub(crate) version: u32,
    pub(crate) procedure: ProcedureName,
    pub(crate) sum_ns: u64,
    pub(crate) buckets: Vec<u64>,
}

/// A number, or `other`.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum ProcedureName {
    Number(u32),
    Text(String),
}

impl fmt::Display for ProcedureName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

impl Latencies {
    pub(super) fn bound(&mut self) {
        self.cores.truncate(CORES_MAX);
        for core in &mut self.cores {
            core.procedures.retain(|one| one.buckets.len() == LATENCY_BUCKETS);
            core.procedures.truncate(LATENCY_HISTOGRAMS_MAX);
            core.procedures.shrink_to_fit();
        }
    }
}

impl Core {
    fn bound(&mut self) {
        bound(&mut self.stats);
        self.memory.truncate(ENTRIES_MAX);
        self.connections.truncate(CONNECTIONS_SHOWN_MAX);
        self.connections.iter_mut().for_each(|one| bound(&mut one.blocks));
    }

    /// A counter; zero if the engine does not have it.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.stats.get(name).copied().unwrap_or(0)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use spinrpc::control::NAME_BYTES_MAX;

    const EMPTY: &str = "{\"schema\":\"\",\"engine\":0,\"version\":\"\",\"fabric\":\"\",\"uptime_ns\":0,\
        \"ticks_per_second\":1,\"listens\":[],\"settings\":{},\"cores\":[]}";

    fn bounded(application: &str) -> Vec<Metric> {
        let mut snapshot: Snapshot = serde_json::from_str(EMPTY).unwrap();
        snapshot.application = serde_json::from_str(&format!("[{application}]")).unwrap();
        snapshot.bound();
        snapshot.application
    }

    #[test]
    fn counters_and_cores_beyond_the_limits_are_left_out() {
        let counters: Vec<_> = (0..=ENTRIES_MAX).map(|at| format!("\"{at}\":1")).collect();
        let core = format!(
            "{{\"index\":0,\"cpu\":null,\"idle\":\"\",\"running\":true,\"answered\":true,\"stats\":{{{}}}}}",
            counters.join(",")
        );
        let core: Core = serde_json::from_str(&core).unwrap();
        let mut snapshot: Snapshot = serde_json::from_str(EMPTY).unwrap();
        snapshot.cores = vec![core; CORES_MAX + 1];
        snapshot.listens = vec![String::new(); ENTRIES_MAX + 1];
        snapshot.bound();
        let kept = (snapshot.cores.len(), snapshot.cores[0].stats.len(), snapshot.listens.len());
        assert_eq!(kept, (CORES_MAX, ENTRIES_MAX, ENTRIES_MAX));
    }

    fn metric(name: &str, label: &str, series: &str) -> String {
        format!("{{\"name\":{name:?},\"help\":\"\",\"labels\":[{label:?}],\"series\":[{series}]}}")
    }

    /// A lying program, and an honest metric in the middle of it.
    #[test]
    fn what_no_engine_would_show_is_left_out() {
        let one = "{\"values\":[\"v\"],\"count\":1}";
        let long = "x".repeat(LABEL_BYTES_MAX + 1);
        let all = [
            metric("calls_total", "a", one),
            metric("calls\\n", "a", one),
            metric(&"a".repeat(NAME_BYTES_MAX + 1), "a", one),
            metric("calls", "pid", one),
            metric("calls", "a", "{\"values\":[],\"count\":1}"),
            metric("calls", "a", &one.replace("\"v\"", &format!("{long:?}"))),
            metric("calls", "a", &one.replace("1}", "1,\"sum_ns\":1,\"buckets\":[1]}")),
            metric("honest", "a", one),
        ];
        let names: Vec<_> = bounded(&all.join(",")).into_iter().map(|metric| metric.name).collect();
        assert_eq!(names, ["honest"]);
    }

    #[test]
    fn metrics_and_series_beyond_the_limits_are_left_out() {
        let one = "{\"values\":[\"v\"],\"count\":1}";
        let many = vec![one; SERIES_MAX].join(",");
        let all: Vec<_> =
            (0..2 * METRICS_MAX).map(|at| metric(&format!("m{at}"), "a", &many)).collect();
        let kept = bounded(&all.join(","));
        let series: usize = kept.iter().map(|metric| metric.series.len()).sum();
        assert_eq!((series, kept.len()), (SERIES_MAX + METRICS_MAX, 2));
        let few: Vec<_> =
            (0..2 * METRICS_MAX).map(|at| metric(&format!("m{at}"), "a", one)).collect();
        assert_eq!(bounded(&few.join(",")).len(), METRICS_MAX);
    }
}
