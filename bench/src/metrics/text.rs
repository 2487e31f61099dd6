//! Counters of engines in OpenMetrics, with the names and descriptions that the engine's own have; the crate formats
//! and escapes them.
//!
//! Other processes are not trusted: names of programs and versions are escaped, and inconsistent
//! numbers are passed on. Counters that this release does not know, malformed histograms and
//! duplicates are omitted. Metrics of applications have the prefix `app_`, and every series the label `user`, so that
//! a program's metrics can neither replace those of another user's nor be mistaken for them. The text of other users has
//! a limit. Connections are summed for each core, so that the number of series does not grow with them.

use crate::top::snapshot::{Blocks, Core, Latency, Series, Snapshot};
use crate::top::{Budget, Found, Owner};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use spinrpc::StatsSnapshot;
use spinrpc::control::{LATENCY_BUCKETS, latency_bounds_ns};
use spinrpc_tuning::printable::printable;
use std::collections::{BTreeMap, HashSet};
use std::fmt;

fn metric_of(count: &str) -> (&str, Option<Unit>) {
    match count {
        "polls" => ("turns", None),
        "empty_polls" => ("empty_turns", None),
        "parks" => ("sleeps", None),
        "bytes_inline" => ("sent", Some(Unit::Bytes)),
        "bytes_read" => ("rdma_read", Some(Unit::Bytes)),
        "bytes_written" => ("rdma_written", Some(Unit::Bytes)),
        "copies" => ("copied_items", None),
        same => (same, None),
    }
}

/// Counters of RPCSEC_GSS of an engine; the names of their metrics begin with `gss_`.
const GSS_COUNTS: &[(&str, &str)] = &[
    ("contexts_accepted", "Security contexts that the server accepted"),
    ("contexts_refused", "Tokens that the server rejected"),
    ("contexts_destroyed", "Security contexts that clients destroyed"),
    ("contexts_expired", "Security contexts that expired or were idle"),
    ("contexts_evicted", "Security contexts evicted in favor of others"),
    ("calls_none", "Calls received that only their header protects"),
    ("calls_integrity", "Calls received with signed arguments"),
    ("calls_privacy", "Calls received with encrypted arguments"),
    ("refused_context", "Calls rejected for a security context that the server does not have"),
    ("refused_verifier", "Calls rejected for an invalid verifier"),
    ("refused_replay", "Calls outside the sequence window, or repeated"),
    ("refused_sequence", "Calls rejected for a sequence number too large"),
    ("refused_body", "Calls rejected because their arguments were altered"),
    ("refused_credential", "Calls rejected for a malformed credential"),
    ("refused_weak", "Calls rejected for too little protection"),
    ("contexts_established", "Security contexts of clients"),
    ("contexts_failed", "Failed attempts of clients to get a context"),
    ("calls_denied", "Calls of clients denied for a forgotten context"),
    ("replies_forged", "Replies to clients that did not verify"),
    ("long_bodies", "Long bodies that threads of the cores sealed or opened"),
    ("bytes_integrity", "Bytes of bodies that were signed or checked"),
    ("bytes_privacy", "Bytes of bodies that were encrypted or decrypted"),
    ("ns_integrity", "Nanoseconds spent on signed bodies"),
    ("ns_privacy", "Nanoseconds spent on encrypted bodies"),
];

type Gauge = (&'static str, &'static str, fn(&Core) -> Option<u64>);

const GAUGES: &[Gauge] = &[
    ("core_running", "1 if a thread runs this core", |core| Some(core.running.into())),
    ("core_answered", "1 if the core answered in time", |core| Some(core.answered.into())),
    ("connections", "Open connections", |core| told(core, core.connections_open)),
    ("calls_deferred", "Calls deferred by services", |core| told(core, core.deferred)),
    ("calls_put_off", "Calls waiting for memory or room", |core| told(core, core.put_off)),
];

fn told(core: &Core, count: u64) -> Option<u64> {
    core.answered.then_some(count)
}

pub(super) fn render(found: Vec<Found>) -> String {
    let mut registry = Registry::with_prefix("spinrpc");
    registry.register_collector(Box::new(Engines(once_each(found))));
    let mut written = String::new();
    match text::encode(&mut written, &registry) {
        Ok(()) => written,
        // Formatting into a String cannot fail.
        Err(fmt::Error) => String::new(),
    }
}

/// Most text about the engines of another user, and about those of all others, in bytes.
const TEXT_OF_USER_MAX: u64 = 16 << 20;
const TEXT_OF_OTHERS_MAX: u64 = 64 << 20;
/// Bytes of a line without the names and values of its own labels.
const LINE_BYTES: usize = 256;
/// Sum, count, and an infinite bucket if there is no other.
const LINES_OF_HISTOGRAM: usize = 3;

/// Removes duplicates: a series may appear only once. Limits the text about other users.
fn once_each(engines: Vec<Found>) -> Vec<Found> {
    let mut seen = HashSet::new();
    let mut budget = Budget::new(u64::MAX, TEXT_OF_USER_MAX, TEXT_OF_OTHERS_MAX);
    engines
        .into_iter()
        .filter(|engine| {
            let Owner { pid, user } = engine.owner;
            seen.insert((user, pid, engine.snapshot.engine))
        })
        .filter_map(|engine| engine.bounded(&mut budget))
        .collect()
}

#[derive(Debug)]
struct Engines(Vec<Found>);

impl Found {
    fn bounded(mut self, budget: &mut Budget) -> Option<Self> {
        // Bytes of labels may be escaped.
        let mut take = |lines: usize, label_bytes: usize| {
            budget.take(self.owner.user, (lines * (LINE_BYTES + 2 * label_bytes)) as u64)
        };
        let Snapshot { version, fabric, gss, cores, application, .. } = &mut self.snapshot;
        if !take(2 + gss.len(), version.len() + fabric.len()) {
            return None;
        }
        let mut indices = HashSet::new();
        cores.retain_mut(|core| {
            let mut sizes = HashSet::new();
            core.memory.retain(|class| sizes.insert(class.block_bytes));
            let lines = StatsSnapshot::DESCRIPTIONS.len() + GAUGES.len() + 2 * core.memory.len();
            indices.insert(core.index) && take(lines, 0)
        });
        for core in self.latencies.iter_mut().flat_map(|all| &mut all.cores) {
            let lines = LATENCY_BUCKETS + LINES_OF_HISTOGRAM;
            core.procedures.retain(|one| take(lines, one.procedure.to_string().len()));
        }
        for metric in application {
            let names = &metric.labels;
            metric.series.retain(|series| {
                let label_bytes = names.iter().chain(&series.values).map(String::len).sum();
                take(series.buckets.len() + LINES_OF_HISTOGRAM, label_bytes)
            });
        }
        Some(self)
    }

    /// Any program may have the name of another; `user` tells those of different users apart.
    fn labels(&self) -> Labels {
        let Owner { pid, user } = self.owner;
        let [pid, user, engine] =
            [pid, user, self.snapshot.engine].map(|number| number.to_string());
        vec![("program", self.program.clone()), ("pid", pid), ("engine", engine), ("user", user)]
    }

    /// Latencies by their labels, which are unique, whatever the engine sends.
    fn latencies(&self) -> Vec<(Labels, Value)> {
        let cores = self.latencies.iter().flat_map(|latencies| &latencies.cores);
        let all = cores.flat_map(|core| core.procedures.iter().map(move |one| (core.index, one)));
        let labelled = all.map(|(core, one)| {
            let labels = vec![
                ("core", core.to_string()),
                ("rpc_program", one.program.to_string()),
                ("rpc_version", one.version.to_string()),
                ("rpc_procedure", one.procedure.to_string()),
            ];
            (labels, one)
        });
        let unique: BTreeMap<Labels, &Latency> = labelled.collect();
        let histogram = |one: &Latency| Histogram::of(one.sum_ns, &one.buckets);
        let all = unique.into_iter();
        all.filter_map(|(labels, one)| Some((labels, Value::Histogram(histogram(one)?)))).collect()
    }

    fn blocks(&self) -> Vec<(Labels, Value)> {
        let cores = self.snapshot.cores.iter();
        let classes = cores.flat_map(|core| core.memory.iter().map(move |class| (core, class)));
        let both = |(core, class): (&Core, &Blocks)| {
            let used = class.total.saturating_sub(class.free);
            [("free", class.free), ("used", used)].map(|(state, count)| {
                let labels = vec![
                    ("core", core.index.to_string()),
                    ("block_bytes", class.block_bytes.to_string()),
                    ("state", state.to_owned()),
                ];
                (labels, Value::Gauge(count))
            })
        };
        classes.flat_map(both).collect()
    }

    fn busy(&self) -> Vec<(Labels, Value)> {
        let per_second = self.snapshot.ticks_per_second.max(1) as f64;
        of_cores(self, |core| Some(Value::Time(core.count("busy_ticks") as f64 / per_second)))
    }

    fn info(&self) -> Vec<(Labels, Value)> {
        let Snapshot { version, fabric, .. } = &self.snapshot;
        of_engine(Some(Value::Info(vec![("version", version.clone()), ("fabric", fabric.clone())])))
    }

    fn gss(&self, stat: &str, value: fn(u64) -> Value) -> Vec<(Labels, Value)> {
        of_engine(self.snapshot.gss.get(stat).copied().map(value))
    }
}

fn of_engine(value: Option<Value>) -> Vec<(Labels, Value)> {
    value.map(|value| (Vec::new(), value)).into_iter().collect()
}

fn of_cores(engine: &Found, value: impl Fn(&Core) -> Option<Value>) -> Vec<(Labels, Value)> {
    let own = |core: &Core| vec![("core", core.index.to_string())];
    let cores = engine.snapshot.cores.iter();
    cores.filter_map(|core| Some((own(core), value(core)?))).collect()
}

type OfEngine = fn(&Found) -> Vec<(Labels, Value)>;

/// Metrics that are neither plain counters nor plain gauges of cores.
const OTHERS: &[(About<'_>, MetricType, OfEngine)] = &[
    (
        ("busy", "Time in turns that found work", Some(Unit::Seconds)),
        MetricType::Counter,
        Found::busy,
    ),
    (
        ("uptime", "Time since the engine was created", Some(Unit::Seconds)),
        MetricType::Gauge,
        |engine| of_engine(Some(Value::Seconds(seconds(engine.snapshot.uptime_ns)))),
    ),
    (("engine", "Release and driver of the engine", None), MetricType::Info, Found::info),
    (
        ("gss_contexts", "Security contexts that the server has", None),
        MetricType::Gauge,
        |engine| engine.gss("contexts", Value::Gauge),
    ),
    (
        ("memory_blocks", "Blocks of registered memory of the core, by size and state", None),
        MetricType::Gauge,
        Found::blocks,
    ),
];

type Labels = Vec<(&'static str, String)>;

type About<'a> = (&'a str, &'a str, Option<Unit>);

enum Value {
    Count(u64),
    Time(f64),
    Gauge(u64),
    Seconds(f64),
    Info(Labels),
    Histogram(Histogram),
}

impl Value {
    fn encode(&self, mut to: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => to.encode_counter::<NoLabelSet, _, u64>(count, None),
            Self::Time(seconds) => to.encode_counter::<NoLabelSet, _, u64>(seconds, None),
            Self::Gauge(value) => to.encode_gauge(value),
            Self::Seconds(seconds) => to.encode_gauge(seconds),
            Self::Info(about) => to.encode_info(about),
            Self::Histogram(Histogram { sum, count, buckets }) => {
                to.encode_histogram::<NoLabelSet>(*sum, *count, buckets, None)
            }
        }
    }
}

struct Histogram {
    sum: f64,
    count: u64,
    /// Upper bounds, and counts of each bucket by itself.
    buckets: Vec<(f64, u64)>,
}

impl Histogram {
    /// `None` for an invalid one: with other buckets, or with a sum of calls that overflows.
    fn of(sum_ns: u64, buckets: &[u64]) -> Option<Self> {
        if buckets.len() != LATENCY_BUCKETS {
            return None;
        }
        let count = buckets.iter().try_fold(0_u64, |sum, count| sum.checked_add(*count))?;
        let bounds = latency_bounds_ns().map(seconds).chain([f64::INFINITY]);
        let buckets = bounds.zip(buckets.iter().copied()).collect();
        Some(Self { sum: seconds(sum_ns), count, buckets })
    }

    /// Of a series of durations; without buckets, it has a single one.
    fn of_series(series: &Series) -> Option<Self> {
        let (sum_ns, count) = (series.sum_ns?, series.count);
        match &series.buckets[..] {
            [] => {
                let buckets = vec![(f64::INFINITY, count)];
                Some(Self { sum: seconds(sum_ns), count, buckets })
            }
            buckets => Self::of(sum_ns, buckets),
        }
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

impl Collector for Engines {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        let to = &mut to;
        // The time is a metric of its own.
        for (stat, help) in
            StatsSnapshot::DESCRIPTIONS.iter().filter(|(stat, _)| *stat != "busy_ticks")
        {
            let (name, unit) = metric_of(stat);
            let help = help.trim().trim_end_matches('.');
            let count = |core: &Core| core.stats.get(*stat).copied().map(Value::Count);
            let series = |engine: &Found| of_cores(engine, count);
            self.family(to, &(name, help, unit), MetricType::Counter, series)?;
        }
        for (name, help, value) in GAUGES {
            let series = |engine: &Found| of_cores(engine, |core| value(core).map(Value::Gauge));
            self.family(to, &(name, help, None), MetricType::Gauge, series)?;
        }
        for (stat, help) in GSS_COUNTS {
            let series = |engine: &Found| engine.gss(stat, Value::Count);
            let name = format!("gss_{stat}");
            self.family(to, &(&name, help, None), MetricType::Counter, series)?;
        }
        for (about, kind, series) in OTHERS {
            self.family(to, about, *kind, series)?;
        }
        if self.0.iter().any(|engine| engine.latencies.is_some()) {
            let help = "Time from the start of a service's handler to its answer";
            let about = ("call_duration", help, Some(Unit::Seconds));
            self.family(to, &about, MetricType::Histogram, Found::latencies)?;
        }
        self.encode_applications(to)
    }
}

impl Engines {
    fn family(
        &self,
        to: &mut DescriptorEncoder<'_>,
        (name, help, unit): &About<'_>,
        kind: MetricType,
        series: impl Fn(&Found) -> Vec<(Labels, Value)>,
    ) -> fmt::Result {
        let mut metric = to.encode_descriptor(name, help, unit.as_ref(), kind)?;
        for engine in &self.0 {
            for (own, value) in series(engine) {
                let labels = [engine.labels(), own].concat();
                value.encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    /// Metrics of one name are one metric, whatever the programs; series with the same labels are there once.
    fn encode_applications(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut families: BTreeMap<_, (&str, BTreeMap<Vec<_>, &Series>)> = BTreeMap::new();
        for engine in &self.0 {
            for metric in &engine.snapshot.application {
                for series in &metric.series {
                    let family = (&metric.name[..], series.sum_ns.is_some());
                    let family = families.entry(family).or_insert((&metric.help, BTreeMap::new()));
                    let own = metric.labels.iter().map(String::as_str).zip(series.values.clone());
                    family.1.insert(engine.labels().into_iter().chain(own).collect(), series);
                }
            }
        }
        for ((name, is_timed), (help, all)) in families {
            let (name, help) = (format!("app_{name}"), printable(help));
            let (unit, kind) = match is_timed {
                true => (Some(&Unit::Seconds), MetricType::Histogram),
                false => (None, MetricType::Counter),
            };
            let mut to = to.encode_descriptor(&name, &help, unit, kind)?;
            for (labels, series) in all {
                let value = match Histogram::of_series(series) {
                    Some(histogram) => Value::Histogram(histogram),
                    None if is_timed => continue,
                    None => Value::Count(series.count),
                };
                value.encode(to.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value as Json, json};
    use spinrpc::control::SERIES_MAX;

    const LABELS: &str = "pid=\"7\",engine=\"0\",user=\"0\"";

    fn core() -> Json {
        json!({"index": 0, "cpu": 1, "idle": "busy", "running": true, "answered": true,
            "stats": {"calls_sent": u64::MAX, "bytes_inline": 12, "busy_ticks": 1500, "unknown": 3},
            "connections_open": 2, "memory": [{"block_bytes": 4096, "total": 1, "free": 3}]})
    }

    fn engine(program: &str, cores: Json) -> Found {
        let snapshot = json!({"schema": "spinrpc-control/1", "engine": 0, "version": "0.1.0",
            "fabric": "shm", "uptime_ns": 2_500_000_000_u64, "ticks_per_second": 1000,
            "listens": [], "settings": {}, "cores": cores});
        let snapshot = serde_json::from_value(snapshot).unwrap();
        let owner = Owner { pid: 7, user: 0 };
        Found { owner, program: program.to_owned(), snapshot, latencies: None }
    }

    fn written(engines: Vec<Found>) -> String {
        let mut registry = Registry::with_prefix("spinrpc");
        registry.register_collector(Box::new(Engines(once_each(engines))));
        let mut text = String::new();
        text::encode(&mut text, &registry).unwrap();
        text
    }

    /// Labels of the program `x` follow each `x{`.
    #[track_caller]
    fn assert_has(text: &str, lines: &[&str]) {
        for line in lines {
            let line = line.replace("x{", &format!("{{program=\"x\",{LABELS}"));
            assert!(text.lines().any(|written| written == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn counts_of_security_contexts_are_those_of_the_engine() {
        let mut engines = ["x", "spin-echo"].map(|name| engine(name, json!([core()])));
        engines[1].owner.pid = 8;
        let counts = [("contexts", 3), ("calls_privacy", 5), ("refused_replay", 1), ("new", 9)];
        engines[0].snapshot.gss = counts.map(|(name, count)| (name.to_owned(), count)).into();
        let text = written(engines.into());
        let all = ["contextsx{} 3", "calls_privacy_totalx{} 5", "refused_replay_totalx{} 1"];
        all.iter().for_each(|line| assert_has(&text, &[&format!("spinrpc_gss_{line}")]));
        // Of the other engine, which was built without, there are none; unknown ones are omitted.
        let series = text.lines().filter(|line| line.starts_with("spinrpc_gss_")).count();
        assert_eq!(series, 3, "{text}");
    }

    #[test]
    fn counts_have_names_units_and_labels_of_prometheus() {
        let text = written(vec![engine("x", json!([core()]))]);
        assert_has(
            &text,
            &[
                "spinrpc_calls_sent_totalx{,core=\"0\"} 18446744073709551615",
                "spinrpc_sent_bytes_totalx{,core=\"0\"} 12",
                "spinrpc_busy_seconds_totalx{,core=\"0\"} 1.5",
                "spinrpc_connectionsx{,core=\"0\"} 2",
                "spinrpc_uptime_secondsx{} 2.5",
            ],
        );
        assert!(text.contains("spinrpc_engine_info{version=\"0.1.0\",fabric=\"shm\",program="));
        assert!(text.ends_with("# EOF\n") && !text.contains("unknown"));
        let mut silent = core();
        silent["answered"] = json!(false);
        let text = written(vec![engine("x", json!([silent]))]);
        assert!(text.contains("spinrpc_core_answered{") && !text.contains("spinrpc_connections{"));
    }

    #[test]
    fn names_of_programs_cannot_add_lines_and_blocks_that_do_not_add_up_are_no_panic() {
        let text = written(vec![engine("a\"}\nspinrpc_fake 1 \\", json!([core()]))]);
        assert!(!text.lines().any(|line| line.starts_with("spinrpc_fake")), "{text}");
        assert!(text.contains("program=\"a\\\"}\\nspinrpc_fake 1 \\\\\""), "{text}");
        assert!(text.lines().any(|line| line.ends_with("state=\"used\"} 0")), "{text}");
    }

    fn with_latencies(procedures: &[(Json, &[u64])]) -> String {
        let one = |(procedure, buckets): &(Json, &[u64])| {
            json!({"program": 9, "version": 1, "procedure": procedure, "count": 0,
                "sum_ns": 1_500_000_000, "buckets": buckets})
        };
        let procedures: Vec<Json> = procedures.iter().map(one).collect();
        let cores = json!([{"index": 0, "procedures": procedures}]);
        let answer = json!({"schema": "spinrpc-latency/1", "cores": cores});
        let latencies = serde_json::from_value(answer).unwrap();
        written(vec![Found { latencies, ..engine("x", json!([core()])) }])
    }

    #[test]
    fn latencies_are_histograms_whose_buckets_are_cumulative() {
        let mut buckets = [0; LATENCY_BUCKETS];
        (buckets[0], buckets[26], buckets[27]) = (2, 3, 1);
        let text = with_latencies(&[(json!(5), &buckets), (json!("other"), &buckets)]);
        let name = "spinrpc_call_duration_seconds";
        for procedure in ["5", "other"] {
            let own = "rpc_program=\"9\",rpc_version=\"1\",rpc_procedure";
            let labels = format!("program=\"x\",{LABELS},core=\"0\",{own}=\"{procedure}\"");
            for line in [
                format!("{name}_sum{{{labels}}} 1.5"),
                format!("{name}_count{{{labels}}} 6"),
                format!("{name}_bucket{{le=\"1.28e-7\",{labels}}} 2"),
                format!("{name}_bucket{{le=\"8.589934592\",{labels}}} 5"),
                format!("{name}_bucket{{le=\"+Inf\",{labels}}} 6"),
            ] {
                assert_has(&text, &[&line]);
            }
        }
        assert!(text.contains(&format!("# TYPE {name} histogram\n# UNIT {name} seconds\n")));
        let without = written(vec![engine("x", json!([core()]))]);
        assert!(!without.contains(name), "not requested");
    }

    #[test]
    fn histograms_that_cannot_be_are_left_out_and_none_is_there_twice() {
        let mut too_many = [0; LATENCY_BUCKETS];
        (too_many[0], too_many[1]) = (u64::MAX, 1);
        let one = [1; LATENCY_BUCKETS];
        let text = with_latencies(&[
            (json!(1), &too_many),
            (json!(2), &[1; LATENCY_BUCKETS + 1]),
            (json!(3), &one),
            (json!(3), &one),
            (json!("a\"}\nspinrpc_fake 1"), &one),
        ]);
        let counts =
            text.lines().filter(|line| line.starts_with("spinrpc_call_duration_seconds_count"));
        assert_eq!(counts.count(), 2, "{text}");
        assert!(!text.lines().any(|line| line.starts_with("spinrpc_fake")), "{text}");
    }

    /// An engine with a metric `calls` of its application, which has these series.
    fn application(help: &str, series: &[Json]) -> Found {
        let metric =
            json!({"name": "calls", "help": help, "labels": ["procedure"], "series": series});
        let mut engine = engine("x", json!([core()]));
        engine.snapshot.application = serde_json::from_value(json!([metric])).unwrap();
        engine
    }

    #[test]
    fn metrics_of_applications_are_counters_and_histograms() {
        let buckets = [1; LATENCY_BUCKETS];
        let text = written(vec![application(
            "Calls",
            &[
                json!({"values": ["READ"], "count": 7}),
                json!({"values": ["READ"], "count": 7, "sum_ns": 2_500_000_000_u64, "buckets": []}),
                json!({"values": ["WRITE"], "count": 5, "sum_ns": 1, "buckets": buckets}),
            ],
        )]);
        let labels = |procedure| format!("program=\"x\",{LABELS},procedure=\"{procedure}\"");
        let (read, write, name) = (labels("READ"), labels("WRITE"), "spinrpc_app_calls");
        for line in [
            format!("# TYPE {name} counter"),
            format!("{name}_total{{{read}}} 7"),
            format!("# TYPE {name}_seconds histogram"),
            format!("{name}_seconds_sum{{{read}}} 2.5"),
            format!("{name}_seconds_bucket{{le=\"+Inf\",{read}}} 7"),
            format!("{name}_seconds_bucket{{le=\"1.28e-7\",{write}}} 1"),
            format!("{name}_seconds_count{{{write}}} {LATENCY_BUCKETS}"),
        ] {
            assert_has(&text, &[&line]);
        }
    }

    /// Another program, under the same number, says the same metric with other contents, and many histograms. Expect that of
    /// the first one unharmed, and the other's marked as its own and limited.
    #[test]
    fn a_program_that_lies_hides_and_changes_nothing_of_another() {
        let read = json!({"values": ["READ"], "count": 7});
        let honest = written(vec![application("Calls", std::slice::from_ref(&read))]);
        let buckets = [1; LATENCY_BUCKETS];
        let many = (0..SERIES_MAX).map(
            |at| json!({"values": [at.to_string()], "count": 7, "sum_ns": 1, "buckets": buckets}),
        );
        let false_one = json!({"values": ["x"], "count": 1, "sum_ns": 1});
        let all: Vec<Json> = [read.clone(), false_one].into_iter().chain(many).collect();
        let other = rustix::process::geteuid().as_raw() + 1;
        let liar = |pid| {
            let owner = Owner { pid, user: other };
            Found { owner, ..application("a\n# EOF", &all) }
        };
        let mut engines: Vec<_> = (7..11).map(liar).collect();
        engines.push(application("Calls", &[read]));
        let text = written(engines);
        let is_series = |line: &str| line.starts_with("spinrpc_app_");
        for line in honest.lines().filter(|line| is_series(line)) {
            assert_eq!(text.lines().filter(|written| *written == line).count(), 1, "{line}");
        }
        assert_eq!(text.lines().filter(|line| *line == "# EOF").count(), 1);
        let liars = text.lines().filter(|line| line.contains(&format!("user=\"{other}\"")));
        let bytes: usize = liars.clone().map(|line| line.len() + 1).sum();
        assert!(bytes as u64 <= TEXT_OF_USER_MAX, "{bytes}");
        // The budget counts longer lines than these, and is used up.
        let lines = liars.filter(|line| is_series(line)).count() as u64;
        assert!(lines >= TEXT_OF_USER_MAX / (LINE_BYTES as u64 + 64), "{lines}");
        assert!(lines < 4 * SERIES_MAX as u64 * LATENCY_BUCKETS as u64, "{lines}");
    }

    #[test]
    fn what_an_engine_says_twice_is_there_once() {
        let mut twice = core();
        twice["memory"] = json!([twice["memory"][0], twice["memory"][0]]);
        let text = written(vec![engine("x", json!([twice, twice])), engine("x", json!([core()]))]);
        let mut series: Vec<_> = text.lines().filter_map(|line| line.split_once("} ")).collect();
        let all = series.len();
        series.sort_unstable();
        series.dedup_by_key(|(name, _)| *name);
        assert!(all > 10 && series.len() == all, "{text}");
    }

    /// The dashboard and the alert rules of spin-nfsd. Its own metrics are compared where it is built.
    #[test]
    fn metrics_of_engines_that_operators_are_shown_are_there() {
        let text = written(vec![engine("x", json!([core()]))]);
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../apps/monitoring/spin-nfsd.");
        let read = |name| std::fs::read_to_string(format!("{folder}{name}")).unwrap();
        let shown = read("dashboard.json") + &read("rules.yml");
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let names = shown.split(|letter| !is_name(letter));
        let of_engines =
            |name: &&str| name.starts_with("spinrpc_") && !name.starts_with("spinrpc_app_");
        let names: Vec<_> = names.filter(of_engines).collect();
        assert!(names.len() > 3, "{names:?}");
        for name in names {
            let family = name.strip_suffix("_total").unwrap_or(name);
            assert!(text.contains(&format!("# TYPE {family} ")), "{name}");
        }
    }
}
