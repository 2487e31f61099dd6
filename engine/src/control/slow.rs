//! The slowest calls as JSON. The api collects them, its socket sends the line; the head of the module documents the
//! members.

use super::{SLOW_SCHEMA, snapshot::CoreFacts};
use crate::reactor::in_flight::slow_calls::SlowCall;
use crate::reactor::{SLOW_MINUTES, STAGES};
use serde_json::{Map, Value, json};
use std::cmp::Reverse;

/// The answer to a request for slow calls, on one line.
pub(crate) fn render_slow(engine: u32, cores: &[CoreFacts]) -> String {
    json!({
        "schema": SLOW_SCHEMA,
        "pid": std::process::id(),
        "engine": engine,
        "minutes": SLOW_MINUTES,
        "cores": (0..).zip(cores).map(|(index, facts)| core(index, facts)).collect::<Value>(),
    })
    .to_string()
}

fn core(index: usize, facts: &CoreFacts) -> Value {
    let mut calls = facts.inside.as_ref().map(|inside| inside.slow.clone()).unwrap_or_default();
    calls.sort_by_key(|call| Reverse(call.total));
    json!({
        "index": index,
        "running": facts.is_running,
        "answered": facts.inside.is_some(),
        "calls": calls.iter().map(call).collect::<Value>(),
    })
}

fn call(call: &SlowCall) -> Value {
    let spent = STAGES.iter().zip(call.spent).filter(|(_, ns)| *ns > 0);
    let stages: Map<_, _> = spent.map(|(stage, ns)| ((*stage).to_owned(), ns.into())).collect();
    let mut members = json!({
        "ago_ns": call.ended,
        "role": if call.is_ours { "client" } else { "server" },
        "xid": call.name.xid.0,
        "total_ns": call.total,
        "stages": stages,
    });
    if let Some(peer) = call.peer {
        members["peer"] = peer.to_string().into();
    }
    if let Some((program, version, procedure)) = call.name.called {
        members["program"] = program.0.into();
        members["version"] = version.0.into();
        members["procedure"] = procedure.0.into();
    }
    members
}
