//! A snapshot as JSON. The api collects the facts, `server` sends the line; the meaning of the
//! members is public, see the head of the module.

use super::SCHEMA;
use super::application::{MetricSeries, Row};
use super::json::Object;
use crate::config::{Choice, Config, IdlePolicy, KEYS, RawConfig};
use crate::mem::ClassStats;
use crate::mem::budget::Budget;
use crate::reactor::StatsSnapshot;
use crate::reactor::pending::observation::{Buffers, ConnRow};
use crate::sys::clock::Clock;
use std::time::Duration;

pub(crate) struct EngineFacts<'a> {
    /// Tells engines of one process apart.
    pub(crate) number: u32,
    pub(crate) config: &'a Config,
    pub(crate) uptime: Duration,
    pub(crate) listens: Vec<String>,
    /// Counters of its security contexts, by name; none in a build without RPCSEC_GSS.
    pub(crate) gss: &'a [(&'static str, u64)],
    pub(crate) application: &'a [MetricSeries],
}

#[derive(Clone, Debug)]
pub(crate) struct CoreFacts {
    /// The CPU that it is pinned to.
    pub(crate) cpu: Option<usize>,
    pub(crate) idle: IdlePolicy,
    /// A thread is this core.
    pub(crate) is_running: bool,
    pub(crate) stats: StatsSnapshot,
    /// Facts that the core itself reports; `None` if it has not answered in time.
    pub(crate) inside: Option<Inside>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Inside {
    pub(crate) deferred: usize,
    pub(crate) put_off: usize,
    pub(crate) memory: Vec<ClassStats>,
    pub(crate) connections: Vec<ConnRow>,
}

/// The whole snapshot, on one line; of each core the given number of connections, those with most calls.
pub(crate) fn render(engine: &EngineFacts<'_>, cores: &[CoreFacts], connections: usize) -> String {
    let mut line = String::new();
    Object::begin(&mut line)
        .text("schema", SCHEMA)
        .number("pid", std::process::id().into())
        .number("engine", engine.number.into())
        .text("version", env!("CARGO_PKG_VERSION"))
        .text("fabric", engine.config.driver().name())
        .number("uptime_ns", u64::try_from(engine.uptime.as_nanos()).unwrap_or(u64::MAX))
        .number("ticks_per_second", Clock::shared().ticks_per_second())
        .texts("listens", &engine.listens)
        .object("settings", |object| settings(object, engine.config.raw()))
        .object("budget", |object| budget(object, engine.config))
        .object("gss", |object| {
            for (name, count) in engine.gss {
                object.number(name, *count);
            }
        })
        .objects("application", engine.application, metric)
        .objects("cores", cores.iter().enumerate(), |object, (index, facts)| {
            core(object.number("index", index as u64), facts, connections);
        });
    line
}

fn metric(object: &mut Object<'_>, series: &MetricSeries) {
    object
        .text("name", series.metric.name)
        .text("help", series.metric.help)
        .texts("labels", series.metric.labels)
        .objects("series", series.rows(), |object, row: &Row| {
            object.texts("values", &row.values).number("count", row.count);
            if let Some(sum_ns) = row.sum_ns {
                object.number("sum_ns", sum_ns).numbers("buckets", row.buckets.iter().copied());
            }
        });
}

/// Keys that differ from their defaults.
fn settings(object: &mut Object<'_>, raw: &RawConfig) {
    for key in KEYS {
        let value = key.value(raw);
        if value != key.default_value() {
            object.text(key.name, value.to_string().trim_matches('"'));
        }
    }
}

/// Purposes of a connection's message buffers, on either side of it.
fn budget(object: &mut Object<'_>, config: &Config) {
    let holders = |object: &mut Object<'_>, budget: Vec<(&'static str, u32)>| {
        for (holder, buffers) in budget {
            object.number(holder, buffers.into());
        }
    };
    object.object("receives", |to| holders(to, config.recv_budget().explain().collect()));
    let (calls, serves) = (config.requester_send_budget(), config.responder_send_budget());
    object.object("sends_of_clients", |to| holders(to, calls.explain().collect()));
    object.object("sends_of_servers", |to| holders(to, serves.explain().collect()));
}

fn core(object: &mut Object<'_>, facts: &CoreFacts, connections: usize) {
    if let Some(cpu) = facts.cpu {
        object.number("cpu", cpu as u64);
    }
    object
        .text("idle", facts.idle.name())
        .flag("running", facts.is_running)
        .flag("answered", facts.inside.is_some())
        .object("stats", |object| {
            for (name, value) in facts.stats.entries() {
                object.number(name, value);
            }
        });
    let Some(inside) = &facts.inside else { return };
    object
        .number("deferred", inside.deferred as u64)
        .number("put_off", inside.put_off as u64)
        .objects("memory", &inside.memory, |object, class| {
            object
                .number("block_bytes", class.block_bytes as u64)
                .number("total", class.total as u64)
                .number("free", class.free as u64);
        })
        .number("connections_open", inside.connections.len() as u64)
        .objects("connections", busiest(&inside.connections, connections), connection);
}

fn busiest(rows: &[ConnRow], count: usize) -> Vec<&ConnRow> {
    let mut rows: Vec<&ConnRow> = rows.iter().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.calls_sent + row.calls_received));
    rows.truncate(count);
    rows
}

fn connection(object: &mut Object<'_>, row: &ConnRow) {
    object.text("id", format_args!("{}.{}", row.place, row.generation));
    if let Some(peer) = row.peer {
        object.text("peer", peer);
    }
    object
        .text("made_by", if row.is_ours { "us" } else { "peer" })
        .text("state", if row.is_closing { "closing" } else { "up" })
        .number("version", row.version.into())
        .object("requester", |object| {
            object
                .number("calls", row.calls_sent)
                .number("credits_requested", row.requested.into())
                .number("credits_granted", row.granted.into())
                .number("credits_in_flight", row.in_flight.into());
        })
        .object("responder", |object| {
            object
                .number("calls", row.calls_received)
                .number("credits_granted", row.grant.into())
                .number("in_progress", row.in_progress.into());
        })
        .object("bytes", |object| {
            object.number("read", row.moved.read).number("written", row.moved.written);
        })
        .object("receives", |object| buffers(object, &row.receives))
        .object("sends", |object| buffers(object, &row.sends))
        .object("blocks", |object| {
            object
                .number("calls", row.blocks.calls as u64)
                .number("fetches", row.blocks.fetches as u64)
                .number("pulls", row.blocks.pulls as u64)
                .number("exports", row.blocks.exports as u64);
        });
    if let Some((used_bytes, bytes)) = row.memory {
        object.number("memory_used_bytes", used_bytes as u64).number("memory_bytes", bytes as u64);
    }
}

fn buffers(object: &mut Object<'_>, buffers: &Buffers) {
    object
        .number("bytes", buffers.buf_bytes as u64)
        .number("total", buffers.total as u64)
        .number("free", buffers.free as u64)
        .number("kept", buffers.kept as u64);
}
