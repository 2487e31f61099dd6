//! The slowest calls of engines: a document of the schema `spinperf-slow/1`, which `--json` prints, or lines for people.

use super::snapshot::{SlowCall, SlowCalls};
use super::socket::Owner;
use super::target::program;
use serde_json::{Value, json};
use spinrpc::control::STAGES;
use spinrpc_tuning::printable::printable;
use std::cmp::Reverse;

const SCHEMA: &str = "spinperf-slow/1";

/// All calls, slowest first, and the cores that have not answered.
pub(super) fn document(found: &[(Owner, SlowCalls)]) -> Value {
    let cores = || {
        let engines = found.iter();
        engines
            .flat_map(|(owner, engine)| engine.cores.iter().map(move |core| (owner, engine, core)))
    };
    let mut calls: Vec<_> = cores()
        .flat_map(|(owner, engine, core)| {
            core.calls.iter().map(move |call| (owner, engine, core, call))
        })
        .collect();
    calls.sort_by_key(|(.., call)| Reverse(call.total_ns));
    let silent = cores().filter(|(.., core)| !core.answered).map(|(owner, engine, core)| {
        json!({"pid": owner.pid, "engine": engine.engine, "core": core.index})
    });
    let calls = calls.iter().map(|(owner, engine, core, call)| {
        let mut members = about(call);
        members["pid"] = owner.pid.into();
        members["program_name"] = program(owner.pid).into();
        members["engine"] = engine.engine.into();
        members["core"] = core.index.into();
        members
    });
    json!({"schema": SCHEMA, "calls": calls.collect::<Vec<_>>(), "silent": silent.collect::<Vec<_>>()})
}

fn about(call: &SlowCall) -> Value {
    let longest = call.stages.iter().max_by_key(|(_, ns)| **ns);
    json!({
        "ago_ns": call.ago_ns, "role": call.role, "peer": call.peer, "xid": call.xid,
        "program": call.program, "version": call.version, "procedure": call.procedure,
        "total_ns": call.total_ns, "stages": call.stages, "longest": longest.map(|(stage, _)| stage),
    })
}

/// A table of the `count` slowest; the longest stage of each is marked.
pub(super) fn lines(document: &Value, count: usize) -> Vec<String> {
    let items = |name: &str| document[name].as_array().into_iter().flatten();
    let head = [cells(["ago s", "pid", "core", "role", "program", "proc", "xid", "total us"])];
    let mut lines: Vec<_> = head.into_iter().map(|cells| cells + "  stages, us; peer").collect();
    lines.extend(items("calls").take(count).map(line));
    lines.extend(items("silent").map(|core| {
        let [pid, index] = [&core["pid"], &core["core"]];
        format!(
            "core {index} of process {pid} has not answered: it is in one turn, or does not run"
        )
    }));
    lines
}

fn cells(cells: [&str; 8]) -> String {
    let [ago, pid, core, role, program, procedure, xid, total] = cells;
    format!(
        "{ago:>7} {pid:>8} {core:>4} {role:<6} {program:>10} {procedure:>5} {xid:>8} {total:>11}"
    )
}

fn line(call: &Value) -> String {
    let number = |name: &str| match &call[name] {
        Value::Null => "-".to_owned(),
        value => value.to_string(),
    };
    let ns = |value: &Value| value.as_f64().unwrap_or(0.0);
    let [ago, total] = [ns(&call["ago_ns"]) / 1e9, ns(&call["total_ns"]) / 1e3];
    let xid = format!("{:08x}", call["xid"].as_u64().unwrap_or(0));
    let role = printable(call["role"].as_str().unwrap_or_default());
    let row = cells([
        &format!("{ago:.1}"),
        &number("pid"),
        &number("core"),
        &role,
        &number("program"),
        &number("procedure"),
        &xid,
        &format!("{total:.1}"),
    ]);
    let stages = STAGES.iter().filter(|stage| !call["stages"][**stage].is_null()).map(|stage| {
        let mark = if call["longest"] == *stage { "*" } else { "" };
        format!("{mark}{stage} {:.1}", ns(&call["stages"][*stage]) / 1e3)
    });
    let stages: Vec<_> = stages.collect();
    let peer = printable(call["peer"].as_str().unwrap_or_default());
    format!("{row}  {}; {peer}", stages.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema;

    fn found() -> Vec<(Owner, SlowCalls)> {
        let call = |procedure: Option<u32>, total_ns: u64, stages: Value| {
            let mut call = json!({"ago_ns": 1_500_000_000, "role": "server", "xid": 0x1f_u32, "total_ns": total_ns,
                "stages": stages, "peer": "192.0.2.1:\u{1b}[2J"});
            if let Some(procedure) = procedure {
                (call["program"], call["version"]) = (100_003.into(), 3.into());
                call["procedure"] = procedure.into();
            }
            call
        };
        let calls = json!({"schema": "spinrpc-slow/1", "engine": 0, "minutes": 5, "cores": [
            {"index": 0, "running": true, "answered": true, "calls": [
                call(Some(7), 3000, json!({"deferred": 1000, "disk": 2000})), call(None, 9000, json!({"queue": 9000})),
            ]},
            {"index": 1, "running": true, "answered": false, "calls": []},
        ]});
        vec![(Owner { pid: 4711, user: 0 }, serde_json::from_value(calls).unwrap())]
    }

    #[test]
    fn the_slowest_call_is_first_and_its_longest_stage_is_marked() {
        let lines = lines(&document(&found()), 9);
        assert_eq!(lines.len(), 4, "{lines:#?}");
        assert!(lines[1].contains("*queue 9.0") && lines[1].contains("  -"), "{lines:#?}");
        assert!(lines[2].contains("deferred 1.0, *disk 2.0"), "{lines:#?}");
        assert!(lines[3].contains("core 1 of process 4711"), "{lines:#?}");
        assert!(!lines.concat().contains('\x1b'), "{lines:#?}");
    }

    #[test]
    fn a_document_has_what_its_schema_describes() {
        let described = include_str!("../../schema/spinperf-slow-1.schema.json");
        assert_eq!(schema::violations(&document(&found()), described), [""; 0]);
    }
}
