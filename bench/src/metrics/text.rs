//! Counters of engines in OpenMetrics. Names and help of each metric are here; the crate formats
//! and escapes them.
//!
//! Other processes are not trusted: names of programs and versions are escaped, and inconsistent
//! numbers are passed on. Counters that this release does not know, malformed histograms and
//! duplicates are omitted. Connections are summed for each core, so that the number of series does
//! not grow with them.

use crate::top::Found;
use crate::top::snapshot::{Core, Latencies, Latency, Snapshot};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use spinrpc::control::{LATENCY_BUCKETS, latency_bounds_ns};
use std::collections::BTreeMap;
use std::collections::HashSet;
use std::fmt;

/// A counter of [`spinrpc::StatsSnapshot`], its metric name, its unit, and its help.
type Count = (&'static str, &'static str, Option<Unit>, &'static str);

const COUNTS: &[Count] = &[
    ("polls", "turns", None, "Turns of the core"),
    ("empty_polls", "empty_turns", None, "Turns without work"),
    ("parks", "sleeps", None, "Times that the core slept"),
    ("calls_sent", "calls_sent", None, "Calls sent"),
    ("replies_received", "replies_received", None, "Replies received that matched a call"),
    ("calls_received", "calls_received", None, "Calls received and handed to a service"),
    ("replies_sent", "replies_sent", None, "Replies sent, error replies included"),
    ("credit_stalls", "credit_stalls", None, "Calls rejected for lack of a credit from the peer"),
    (
        "queue_full",
        "queue_full",
        None,
        "Calls rejected or postponed because the send queue was \
                                        full",
    ),
    ("no_buffer", "no_buffer", None, "Calls rejected or postponed because all buffers were in use"),
    ("bytes_inline", "sent", Some(Unit::Bytes), "Bytes of messages sent, headers included"),
    ("bytes_read", "rdma_read", Some(Unit::Bytes), "Bytes fetched by RDMA Read"),
    ("bytes_written", "rdma_written", Some(Unit::Bytes), "Bytes placed by RDMA Write"),
    ("copies", "copied_items", None, "Data items copied instead of being placed"),
    ("timeouts", "timeouts", None, "Calls that passed their deadline"),
    ("calls_left", "calls_left", None, "Calls left unanswered by a graceful shutdown"),
    ("connections_moved", "connections_moved", None, "Connections sent to another core"),
    ("calls_late", "calls_late", None, "Calls rejected because their deadline had expired"),
    ("calls_dropped", "calls_dropped", None, "Calls dropped by their handler"),
    ("handler_panics", "handler_panics", None, "Caught panics of handlers"),
    ("calls_refused", "calls_refused", None, "Calls rejected because they exceeded the grant"),
    ("errors_sent", "errors_sent", None, "RDMA_ERROR messages sent"),
    ("messages_dropped", "messages_dropped", None, "Messages dropped without an answer"),
    ("stale", "stale", None, "Replies and messages for calls or connections that no longer exist"),
    (
        "exports_expired",
        "exports_expired",
        None,
        "Replies withdrawn because the peer did not fetch them in time",
    ),
    ("connections_opened", "connections_opened", None, "Connections opened"),
    ("connections_closed", "connections_closed", None, "Connections that were closed or lost"),
    ("reconnects", "reconnects", None, "Reconnects"),
    ("calls_resent", "calls_resent", None, "Calls retransmitted on another connection"),
    ("replies_replayed", "replies_replayed", None, "Calls answered from the reply cache"),
];

/// A counter of RPCSEC_GSS of an engine, its metric name, and its help.
type GssCount = (&'static str, &'static str, &'static str);

const GSS_COUNTS: &[GssCount] = &[
    ("contexts_accepted", "gss_contexts_accepted", "Security contexts that the server accepted"),
    ("contexts_refused", "gss_contexts_refused", "Tokens that the server rejected"),
    ("contexts_destroyed", "gss_contexts_destroyed", "Security contexts that clients destroyed"),
    ("contexts_expired", "gss_contexts_expired", "Security contexts that expired or were idle"),
    ("contexts_evicted", "gss_contexts_evicted", "Security contexts evicted in favor of others"),
    ("calls_none", "gss_calls_none", "Calls received that only their header protects"),
    ("calls_integrity", "gss_calls_integrity", "Calls received with signed arguments"),
    ("calls_privacy", "gss_calls_privacy", "Calls received with encrypted arguments"),
    (
        "refused_context",
        "gss_refused_context",
        "Calls rejected for a security context that the server does not have",
    ),
    ("refused_verifier", "gss_refused_verifier", "Calls rejected for an invalid verifier"),
    ("refused_replay", "gss_refused_replay", "Calls outside the sequence window, or repeated"),
    ("refused_sequence", "gss_refused_sequence", "Calls rejected for a sequence number too large"),
    ("refused_body", "gss_refused_body", "Calls rejected because their arguments were altered"),
    ("refused_credential", "gss_refused_credential", "Calls rejected for a malformed credential"),
    ("refused_weak", "gss_refused_weak", "Calls rejected for too little protection"),
    ("contexts_established", "gss_contexts_established", "Security contexts of clients"),
    ("contexts_failed", "gss_contexts_failed", "Failed attempts of clients to get a context"),
    ("calls_denied", "gss_calls_denied", "Calls of clients denied for a forgotten context"),
    ("replies_forged", "gss_replies_forged", "Replies to clients that did not verify"),
    ("body_steps", "gss_body_steps", "Parts of long bodies processed in turns of their own"),
    ("bytes_integrity", "gss_bytes_integrity", "Bytes of bodies that were signed or checked"),
    ("bytes_privacy", "gss_bytes_privacy", "Bytes of bodies that were encrypted or decrypted"),
    ("ns_integrity", "gss_ns_integrity", "Nanoseconds spent on signed bodies"),
    ("ns_privacy", "gss_ns_privacy", "Nanoseconds spent on encrypted bodies"),
];

/// A current value of a core.
type Gauge = (&'static str, &'static str, fn(&Core) -> Option<u64>);

const GAUGES: &[Gauge] = &[
    ("core_running", "1 if a thread runs this core", |core| Some(core.running.into())),
    ("core_answered", "1 if the core answered in time", |core| Some(core.answered.into())),
    ("connections", "Open connections", |core| told(core, core.connections_open)),
    ("calls_deferred", "Calls deferred by services", |core| told(core, core.deferred)),
    ("calls_put_off", "Calls waiting for memory or room", |core| told(core, core.put_off)),
];

/// `None` for a core that has not answered.
fn told(core: &Core, count: u64) -> Option<u64> {
    core.answered.then_some(count)
}

/// OpenMetrics text of these engines.
pub(super) fn render(found: Vec<Found>) -> String {
    let engines = found.into_iter().map(|found| Engine {
        program: found.program,
        pid: found.owner.pid,
        snapshot: found.snapshot,
        latencies: found.latencies,
    });
    let mut registry = Registry::with_prefix("spinrpc");
    registry.register_collector(Box::new(Engines(once_each(engines))));
    let mut written = String::new();
    match text::encode(&mut written, &registry) {
        Ok(()) => written,
        // Formatting into a String cannot fail.
        Err(fmt::Error) => String::new(),
    }
}

/// Removes duplicates: a series may appear only once.
fn once_each(engines: impl Iterator<Item = Engine>) -> Vec<Engine> {
    let mut seen = HashSet::new();
    let mut engines: Vec<_> =
        engines.filter(|engine| seen.insert((engine.pid, engine.snapshot.engine))).collect();
    for engine in &mut engines {
        let mut indices = HashSet::new();
        engine.snapshot.cores.retain(|core| indices.insert(core.index));
        for core in &mut engine.snapshot.cores {
            let mut sizes = HashSet::new();
            core.memory.retain(|class| sizes.insert(class.block_bytes));
        }
    }
    engines
}

#[derive(Debug)]
struct Engine {
    program: String,
    pid: u32,
    snapshot: Snapshot,
    latencies: Option<Latencies>,
}

#[derive(Debug)]
struct Engines(Vec<Engine>);

impl Engines {
    /// One metric, with a value for each core that has one.
    fn of_cores<T>(
        &self,
        mut metric: MetricEncoder<'_>,
        value: impl Fn(&Engine, &Core) -> Option<T>,
        write: impl Fn(MetricEncoder<'_>, T) -> fmt::Result,
    ) -> fmt::Result {
        for engine in &self.0 {
            for core in &engine.snapshot.cores {
                let Some(value) = value(engine, core) else { continue };
                let index = core.index.to_string();
                let labels = [&engine.labels()[..], &[("core", index)]].concat();
                write(metric.encode_family(&labels)?, value)?;
            }
        }
        Ok(())
    }
}

impl Engine {
    fn labels(&self) -> [(&'static str, String); 3] {
        let (pid, engine) = (self.pid.to_string(), self.snapshot.engine.to_string());
        [("program", self.program.clone()), ("pid", pid), ("engine", engine)]
    }

    /// Latencies by their labels, which are unique, whatever the engine sends.
    fn latencies(&self) -> BTreeMap<[(&'static str, String); 4], &Latency> {
        let cores = self.latencies.iter().flat_map(|latencies| &latencies.cores);
        let all = cores.flat_map(|core| core.procedures.iter().map(move |one| (core.index, one)));
        all.map(|(core, one)| {
            let labels = [
                ("core", core.to_string()),
                ("rpc_program", one.program.to_string()),
                ("rpc_version", one.version.to_string()),
                ("rpc_procedure", one.procedure.to_string()),
            ];
            (labels, one)
        })
        .collect()
    }

    fn busy_seconds(&self, core: &Core) -> f64 {
        core.count("busy_ticks") as f64 / self.snapshot.ticks_per_second.max(1) as f64
    }
}

/// A histogram in seconds.
struct Histogram {
    sum: f64,
    count: u64,
    /// Upper bounds, and counts of each bucket by itself.
    buckets: Vec<(f64, u64)>,
}

impl Histogram {
    /// `None` for an invalid one: with other buckets, or with a sum of calls that overflows.
    fn of(latency: &Latency) -> Option<Self> {
        if latency.buckets.len() != LATENCY_BUCKETS {
            return None;
        }
        let count = latency.buckets.iter().try_fold(0_u64, |sum, count| sum.checked_add(*count))?;
        let seconds = |ns: u64| ns as f64 / 1e9;
        let bounds = latency_bounds_ns().map(seconds).chain([f64::INFINITY]);
        let buckets = bounds.zip(latency.buckets.iter().copied()).collect();
        Some(Self { sum: seconds(latency.sum_ns), count, buckets })
    }
}

impl Collector for Engines {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counter = |mut to: MetricEncoder<'_>, count: u64| {
            to.encode_counter::<NoLabelSet, _, u64>(&count, None)
        };
        for (stat, name, unit, help) in COUNTS {
            let metric =
                encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
            self.of_cores(metric, |_, core| core.stats.get(*stat).copied(), counter)?;
        }
        let help = "Time in turns that found work";
        let seconds = Some(&Unit::Seconds);
        let metric = encoder.encode_descriptor("busy", help, seconds, MetricType::Counter)?;
        let busy = |engine: &Engine, core: &Core| Some(engine.busy_seconds(core));
        self.of_cores(metric, busy, |mut to, count| {
            to.encode_counter::<NoLabelSet, _, u64>(&count, None)
        })?;
        for (name, help, value) in GAUGES {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            self.of_cores(metric, |_, core| value(core), |mut to, value| to.encode_gauge(&value))?;
        }
        self.encode_engines(&mut encoder)?;
        self.encode_contexts(&mut encoder)?;
        self.encode_blocks(&mut encoder)?;
        self.encode_latencies(&mut encoder)
    }
}

impl Engines {
    /// Metrics of an engine as a whole.
    fn encode_engines(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Time since the engine was created";
        let seconds = Some(&Unit::Seconds);
        let mut metric = encoder.encode_descriptor("uptime", help, seconds, MetricType::Gauge)?;
        for engine in &self.0 {
            let uptime = engine.snapshot.uptime_ns as f64 / 1e9;
            metric.encode_family(&engine.labels())?.encode_gauge(&uptime)?;
        }
        let help = "Release and driver of the engine";
        let mut metric = encoder.encode_descriptor("engine", help, None, MetricType::Info)?;
        for engine in &self.0 {
            let (version, fabric) = (&engine.snapshot.version, &engine.snapshot.fabric);
            let about = [("version", version.clone()), ("fabric", fabric.clone())];
            metric.encode_family(&engine.labels())?.encode_info(&about)?;
        }
        Ok(())
    }

    /// Security contexts of engines that were built with RPCSEC_GSS.
    fn encode_contexts(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        for (stat, name, help) in GSS_COUNTS {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for engine in &self.0 {
                let Some(count) = engine.snapshot.gss.get(*stat) else { continue };
                let labels = engine.labels();
                metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(count, None)?;
            }
        }
        let help = "Security contexts that the server has";
        let mut metric =
            encoder.encode_descriptor("gss_contexts", help, None, MetricType::Gauge)?;
        for engine in &self.0 {
            let Some(count) = engine.snapshot.gss.get("contexts") else { continue };
            metric.encode_family(&engine.labels())?.encode_gauge(count)?;
        }
        Ok(())
    }

    /// Service times, if they were requested.
    fn encode_latencies(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        if self.0.iter().all(|engine| engine.latencies.is_none()) {
            return Ok(());
        }
        let help = "Time from the start of a service's handler to its answer";
        let seconds = Some(&Unit::Seconds);
        let mut metric =
            encoder.encode_descriptor("call_duration", help, seconds, MetricType::Histogram)?;
        for engine in &self.0 {
            for (labels, latency) in engine.latencies() {
                let Some(histogram) = Histogram::of(latency) else { continue };
                let labels = [&engine.labels()[..], &labels].concat();
                let Histogram { sum, count, buckets } = histogram;
                metric
                    .encode_family(&labels)?
                    .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
            }
        }
        Ok(())
    }

    /// Registered memory of cores, by size of its blocks.
    fn encode_blocks(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Blocks of registered memory of the core, by size and state";
        let mut metric =
            encoder.encode_descriptor("memory_blocks", help, None, MetricType::Gauge)?;
        for engine in &self.0 {
            for core in &engine.snapshot.cores {
                for class in &core.memory {
                    for (state, count) in
                        [("free", class.free), ("used", class.total.saturating_sub(class.free))]
                    {
                        let own = [
                            ("core", core.index.to_string()),
                            ("block_bytes", class.block_bytes.to_string()),
                            ("state", state.to_owned()),
                        ];
                        let labels = [&engine.labels()[..], &own].concat();
                        metric.encode_family(&labels)?.encode_gauge(&count)?;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::snapshot::Snapshot;

    fn engine(program: &str, cores: &str) -> Engine {
        let snapshot: Snapshot = serde_json::from_str(&format!(
            "{{\"schema\":\"spinrpc-control/1\",\"engine\":0,\"version\":\"0.1.0\",\"fabric\":\"shm\",\
             \"uptime_ns\":2500000000,\"ticks_per_second\":1000,\"listens\":[],\"settings\":{{}},\
             \"cores\":[{cores}]}}"
        ))
        .unwrap();
        Engine { program: program.to_owned(), pid: 7, snapshot, latencies: None }
    }

    fn written(engines: Vec<Engine>) -> String {
        let mut registry = Registry::with_prefix("spinrpc");
        registry.register_collector(Box::new(Engines(once_each(engines.into_iter()))));
        let mut text = String::new();
        text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn counts_of_security_contexts_are_those_of_the_engine() {
        let mut engines = vec![engine("spin-nfsd", CORE), engine("spin-echo", CORE)];
        engines[1].pid = 8;
        let counts = [("contexts", 3), ("calls_privacy", 5), ("refused_replay", 1), ("new", 9)];
        engines[0].snapshot.gss = counts.map(|(name, count)| (name.to_owned(), count)).into();
        let text = written(engines);
        let labels = "program=\"spin-nfsd\",pid=\"7\",engine=\"0\"";
        for line in [
            format!("spinrpc_gss_contexts{{{labels}}} 3"),
            format!("spinrpc_gss_calls_privacy_total{{{labels}}} 5"),
            format!("spinrpc_gss_refused_replay_total{{{labels}}} 1"),
        ] {
            assert!(text.lines().any(|written| written == line), "{line} is not in\n{text}");
        }
        // Of the other engine, which was built without, there are none; unknown ones are omitted.
        let series = text.lines().filter(|line| line.starts_with("spinrpc_gss_")).count();
        assert_eq!(series, 3, "{text}");
    }

    const CORE: &str = "{\"index\":0,\"cpu\":1,\"idle\":\"busy\",\"running\":true,\"answered\":true,\
        \"stats\":{\"calls_sent\":18446744073709551615,\"bytes_inline\":12,\"busy_ticks\":1500,\"unknown\":3},\
        \"connections_open\":2,\"memory\":[{\"block_bytes\":4096,\"total\":1,\"free\":3}]}";

    #[test]
    fn counts_have_names_units_and_labels_of_prometheus() {
        let text = written(vec![engine("spin-nfsd", CORE)]);
        let labels = "program=\"spin-nfsd\",pid=\"7\",engine=\"0\"";
        for line in [
            format!("spinrpc_calls_sent_total{{{labels},core=\"0\"}} 18446744073709551615"),
            format!("spinrpc_sent_bytes_total{{{labels},core=\"0\"}} 12"),
            format!("spinrpc_busy_seconds_total{{{labels},core=\"0\"}} 1.5"),
            format!("spinrpc_connections{{{labels},core=\"0\"}} 2"),
            format!("spinrpc_uptime_seconds{{{labels}}} 2.5"),
            format!("spinrpc_engine_info{{version=\"0.1.0\",fabric=\"shm\",{labels}}} 1"),
        ] {
            assert!(text.lines().any(|written| written == line), "{line} is not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n") && !text.contains("unknown"));
    }

    #[test]
    fn a_core_that_has_not_answered_tells_of_nothing_that_only_it_knows() {
        let silent = CORE.replace("\"answered\":true", "\"answered\":false");
        let text = written(vec![engine("x", &silent)]);
        assert!(text.contains("spinrpc_core_answered{") && !text.contains("spinrpc_connections{"));
    }

    #[test]
    fn names_of_programs_cannot_add_lines_and_blocks_that_do_not_add_up_are_no_panic() {
        let text = written(vec![engine("a\"}\nspinrpc_fake 1 \\", CORE)]);
        assert!(!text.lines().any(|line| line.starts_with("spinrpc_fake")), "{text}");
        assert!(text.contains("program=\"a\\\"}\\nspinrpc_fake 1 \\\\\""), "{text}");
        assert!(text.lines().any(|line| line.ends_with("state=\"used\"} 0")), "{text}");
    }

    fn with_latencies(procedures: &str) -> String {
        let answer = format!(
            "{{\"schema\":\"spinrpc-latency/1\",\"cores\":[{{\"index\":0,\"procedures\":[{procedures}]}}]}}"
        );
        let latencies = Some(serde_json::from_str(&answer).unwrap());
        written(vec![Engine { latencies, ..engine("x", CORE) }])
    }

    fn latency(procedure: &str, buckets: &[u64]) -> String {
        format!(
            "{{\"program\":9,\"version\":1,\"procedure\":{procedure},\"count\":0,\"sum_ns\":1500000000,\
             \"buckets\":{buckets:?}}}"
        )
    }

    #[test]
    fn latencies_are_histograms_whose_buckets_are_cumulative() {
        let mut buckets = [0; LATENCY_BUCKETS];
        (buckets[0], buckets[26], buckets[27]) = (2, 3, 1);
        let both = [latency("5", &buckets), latency("\"other\"", &buckets)].join(",");
        let text = with_latencies(&both);
        let name = "spinrpc_call_duration_seconds";
        for procedure in ["5", "other"] {
            let labels = format!(
                "program=\"x\",pid=\"7\",engine=\"0\",core=\"0\",rpc_program=\"9\",rpc_version=\"1\",\
                 rpc_procedure=\"{procedure}\""
            );
            for line in [
                format!("{name}_sum{{{labels}}} 1.5"),
                format!("{name}_count{{{labels}}} 6"),
                format!("{name}_bucket{{le=\"1.28e-7\",{labels}}} 2"),
                format!("{name}_bucket{{le=\"8.589934592\",{labels}}} 5"),
                format!("{name}_bucket{{le=\"+Inf\",{labels}}} 6"),
            ] {
                assert!(text.lines().any(|written| written == line), "{line} is not in\n{text}");
            }
        }
        assert!(text.contains(&format!("# TYPE {name} histogram\n# UNIT {name} seconds\n")));
        assert!(!written(vec![engine("x", CORE)]).contains(name), "not requested");
    }

    #[test]
    fn histograms_that_cannot_be_are_left_out_and_none_is_there_twice() {
        let mut too_many = [0; LATENCY_BUCKETS];
        (too_many[0], too_many[1]) = (u64::MAX, 1);
        let one = [1; LATENCY_BUCKETS];
        let all = [
            latency("1", &too_many),
            latency("2", &[1; LATENCY_BUCKETS + 1]),
            latency("3", &one),
            latency("3", &one),
            latency("\"a\\\"}\\nspinrpc_fake 1\"", &one),
        ];
        let text = with_latencies(&all.join(","));
        let counts =
            text.lines().filter(|line| line.starts_with("spinrpc_call_duration_seconds_count"));
        assert_eq!(counts.count(), 2, "{text}");
        assert!(!text.lines().any(|line| line.starts_with("spinrpc_fake")), "{text}");
    }

    #[test]
    fn what_an_engine_says_twice_is_there_once() {
        let class = "{\"block_bytes\":4096,\"total\":1,\"free\":3}";
        let twice = CORE.replace(class, &format!("{class},{class}"));
        let text = written(vec![engine("x", &format!("{twice},{twice}")), engine("x", CORE)]);
        let mut series: Vec<_> = text.lines().filter_map(|line| line.split_once("} ")).collect();
        let all = series.len();
        series.sort_unstable();
        series.dedup_by_key(|(name, _)| *name);
        assert!(all > 10 && series.len() == all, "{text}");
    }

    #[test]
    fn every_count_is_one_of_the_engine() {
        let known: Vec<_> =
            spinrpc::StatsSnapshot::default().entries().map(|(name, _)| name).collect();
        for (stat, ..) in COUNTS {
            assert!(known.contains(stat), "{stat}");
        }
    }
}
