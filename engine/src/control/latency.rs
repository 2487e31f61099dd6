//! Latency histograms as JSON. The api collects them, `server` sends the line; the head of the
//! module documents the members.

use super::json::Object;
use super::{LATENCY_HISTOGRAMS_MAX, LATENCY_LEASE, LATENCY_SCHEMA};
use crate::reactor::latency_bounds_ns;
use crate::reactor::pending::latency::Measured;
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
    let mut line = String::new();
    Object::begin(&mut line)
        .text("schema", LATENCY_SCHEMA)
        .number("pid", std::process::id().into())
        .number("engine", engine.into())
        .number("lease_seconds", LATENCY_LEASE.as_secs())
        .numbers("bounds_ns", latency_bounds_ns())
        .objects("cores", (0..).zip(cores), |object, (index, facts)| {
            core(object.number("index", index), facts);
        });
    line
}

fn core(object: &mut Object<'_>, facts: CoreLatencies) {
    let mut measured = facts.measured;
    object
        .flag("running", facts.is_running)
        .flag("measuring", facts.is_measuring)
        .number("histograms", measured.len() as u64);
    if measured.len() > LATENCY_HISTOGRAMS_MAX {
        measured.sort_by_key(|one| Reverse(one.durations.count()));
        measured.truncate(LATENCY_HISTOGRAMS_MAX);
    }
    object.objects("procedures", measured, |object, one| {
        object.number("program", one.program.0.into()).number("version", one.version.0.into());
        match one.procedure {
            Some(procedure) => object.number("procedure", procedure.0.into()),
            None => object.text("procedure", "other"),
        };
        object
            .number("count", one.durations.count())
            .number("sum_ns", one.durations.sum_ns)
            .numbers("buckets", one.durations.buckets);
    });
}
