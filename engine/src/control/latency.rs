//! Latency histograms as JSON. The api collects them, its socket sends the line; the head of the
//! module documents the members.

use super::{LATENCY_HISTOGRAMS_MAX, LATENCY_LEASE, LATENCY_SCHEMA};
use crate::reactor::in_flight::latency::Measured;
use crate::reactor::latency_bounds_ns;
use serde_json::{Value, json};
use std::cmp::Reverse;

/// Latencies of one core, as far as they are known.
#[derive(Clone, Debug, Default)]
pub(crate) struct CoreLatencies {
    /// A thread is this core.
    pub(crate) is_running: bool,
    pub(crate) is_measuring: bool,
    pub(crate) measured: Vec<Measured>,
}

/// The answer to a request for latencies, on one line.
pub(crate) fn render_latencies(engine: u32, cores: Vec<CoreLatencies>) -> String {
    json!({
        "schema": LATENCY_SCHEMA,
        "pid": std::process::id(),
        "engine": engine,
        "lease_seconds": LATENCY_LEASE.as_secs(),
        "bounds_ns": latency_bounds_ns().collect::<Vec<_>>(),
        "cores": (0..).zip(cores).map(|(index, facts)| core(index, facts)).collect::<Value>(),
    })
    .to_string()
}

fn core(index: usize, facts: CoreLatencies) -> Value {
    let mut measured = facts.measured;
    let histograms = measured.len();
    if histograms > LATENCY_HISTOGRAMS_MAX {
        measured.sort_by_key(|one| Reverse(one.durations.count()));
        measured.truncate(LATENCY_HISTOGRAMS_MAX);
    }
    json!({
        "index": index,
        "running": facts.is_running,
        "measuring": facts.is_measuring,
        "histograms": histograms,
        "procedures": measured.iter().map(procedure).collect::<Value>(),
    })
}

fn procedure(measured: &Measured) -> Value {
    json!({
        "program": measured.program.0,
        "version": measured.version.0,
        "procedure": measured.procedure.map_or("other".into(), |procedure| Value::from(procedure.0)),
        "count": measured.durations.count(),
        "sum_ns": measured.durations.sum_ns,
        "buckets": &measured.durations.buckets[..],
    })
}
