//! A snapshot as JSON. The api collects the facts, its socket sends the line; the meaning of the
//! members is public, see the head of the module.

use super::SCHEMA;
use super::application::{MetricSeries, Row};
use crate::config::{Choice, Config, IdlePolicy, KEYS, RawConfig};
use crate::mem::ClassStats;
use crate::mem::budget::Budget;
use crate::reactor::StatsSnapshot;
use crate::reactor::in_flight::observation::{Buffers, ConnRow};
use crate::reactor::in_flight::slow_calls::SlowCall;
use crate::sys::clock::Clock;
use serde_json::{Value, json};
use std::collections::BTreeMap;
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
    pub(crate) slow: Vec<SlowCall>,
}

/// The whole snapshot, on one line; of each core the given number of connections, those with most calls.
pub(crate) fn render(engine: &EngineFacts<'_>, cores: &[CoreFacts], connections: usize) -> String {
    let cores = (0..).zip(cores).map(|(index, facts)| core(index, facts, connections));
    json!({
        "schema": SCHEMA,
        "pid": std::process::id(),
        "engine": engine.number,
        "version": env!("CARGO_PKG_VERSION"),
        "fabric": engine.config.driver().name(),
        "uptime_ns": u64::try_from(engine.uptime.as_nanos()).unwrap_or(u64::MAX),
        "ticks_per_second": Clock::shared().ticks_per_second(),
        "listens": engine.listens,
        "settings": settings(engine.config.raw()),
        "budget": budget(engine.config),
        "gss": engine.gss.iter().copied().collect::<BTreeMap<_, _>>(),
        "application": engine.application.iter().map(metric).collect::<Value>(),
        "cores": cores.collect::<Value>(),
    })
    .to_string()
}

fn metric(series: &MetricSeries) -> Value {
    let row = |row: &Row| {
        let mut members = json!({ "values": row.values, "count": row.count });
        if let Some(sum_ns) = row.sum_ns {
            members["sum_ns"] = sum_ns.into();
            members["buckets"] = row.buckets.as_slice().into();
        }
        members
    };
    json!({
        "name": series.metric.name,
        "help": series.metric.help,
        "labels": series.metric.labels,
        "series": series.rows().map(row).collect::<Value>(),
    })
}

/// Keys that differ from their defaults.
fn settings(raw: &RawConfig) -> BTreeMap<&'static str, String> {
    let values = KEYS.iter().map(|key| (key, key.value(raw)));
    let changed = values.filter(|(key, value)| *value != key.default_value());
    changed.map(|(key, value)| (key.name, value.to_string().trim_matches('"').to_owned())).collect()
}

/// Purposes of a connection's message buffers, on either side of it.
fn budget(config: &Config) -> Value {
    let holders = |Budget(holders)| BTreeMap::from_iter(holders);
    json!({
        "receives": holders(config.recv_budget()),
        "sends_of_clients": holders(config.requester_send_budget()),
        "sends_of_servers": holders(config.responder_send_budget()),
    })
}

fn core(index: usize, facts: &CoreFacts, connections: usize) -> Value {
    let mut members = json!({
        "index": index,
        "idle": facts.idle.name(),
        "running": facts.is_running,
        "answered": facts.inside.is_some(),
        "stats": facts.stats.entries().collect::<BTreeMap<_, _>>(),
    });
    if let Some(cpu) = facts.cpu {
        members["cpu"] = cpu.into();
    }
    if let Some(inside) = &facts.inside {
        let class = |ClassStats { block_bytes, free, total }: &ClassStats| json!({ "block_bytes": block_bytes, "total": total, "free": free });
        let shown = busiest(&inside.connections, connections);
        members["deferred"] = inside.deferred.into();
        members["put_off"] = inside.put_off.into();
        members["memory"] = inside.memory.iter().map(class).collect();
        members["connections_open"] = inside.connections.len().into();
        members["connections"] = shown.into_iter().map(connection).collect();
    }
    members
}

fn busiest(rows: &[ConnRow], count: usize) -> Vec<&ConnRow> {
    let mut rows: Vec<&ConnRow> = rows.iter().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.calls_sent + row.calls_received));
    rows.truncate(count);
    rows
}

fn connection(row: &ConnRow) -> Value {
    let mut members = json!({
        "id": format!("{}.{}", row.place, row.generation),
        "made_by": if row.is_ours { "us" } else { "peer" },
        "state": if row.is_closing { "closing" } else { "up" },
        "version": row.version,
        "requester": {
            "calls": row.calls_sent,
            "credits_requested": row.requested,
            "credits_granted": row.granted,
            "credits_in_flight": row.in_flight,
        },
        "responder": {
            "calls": row.calls_received,
            "credits_granted": row.grant,
            "in_progress": row.in_progress,
        },
        "bytes": { "read": row.moved.read, "written": row.moved.written },
        "receives": buffers(&row.receives),
        "sends": buffers(&row.sends),
        "blocks": {
            "calls": row.blocks.calls,
            "fetches": row.blocks.fetches,
            "pulls": row.blocks.pulls,
            "exports": row.blocks.exports,
        },
    });
    if let Some(peer) = row.peer {
        members["peer"] = peer.to_string().into();
    }
    if let Some((used_bytes, bytes)) = row.memory {
        members["memory_used_bytes"] = used_bytes.into();
        members["memory_bytes"] = bytes.into();
    }
    members
}

fn buffers(buffers: &Buffers) -> Value {
    let Buffers { buf_bytes, total, free, kept } = buffers;
    json!({ "bytes": buf_bytes, "total": total, "free": free, "kept": kept })
}
