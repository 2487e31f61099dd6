//! The slowest calls of engines, as their control sockets tell them: one document for `--json`, or lines for people.

use crate::printable::printable;
use serde::Deserialize;
use serde_json::{Value, json};
use spinrpc::control::{SLOW_CALLS_MAX, STAGES};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Calls that [`lines`] shows.
const SHOWN: usize = 20;
/// Most cores of an engine, and stages of a call, that are kept: more than there are.
const CORES_MAX: usize = 1024;
const STAGES_MAX: usize = 64;

/// The answer of an engine ([`spinrpc::control`]). Unknown fields are skipped.
#[derive(Clone, Debug, Deserialize)]
pub struct SlowCalls {
    pub schema: String,
    engine: u32,
    cores: Vec<SlowCore>,
}

#[derive(Clone, Debug, Deserialize)]
struct SlowCore {
    index: u32,
    answered: bool,
    calls: Vec<SlowCall>,
}

#[derive(Clone, Debug, Deserialize)]
struct SlowCall {
    ago_ns: u64,
    role: String,
    #[serde(default)]
    peer: String,
    xid: u32,
    program: Option<u32>,
    version: Option<u32>,
    procedure: Option<u32>,
    total_ns: u64,
    stages: BTreeMap<String, u64>,
}

impl SlowCalls {
    /// Leaves out what no engine would tell: any program may answer.
    pub fn bound(&mut self) {
        self.cores.truncate(CORES_MAX);
        for core in &mut self.cores {
            core.calls.truncate(SLOW_CALLS_MAX);
            for call in &mut core.calls {
                while call.stages.len() > STAGES_MAX {
                    call.stages.pop_last();
                }
            }
        }
    }
}

/// The calls of an engine, with the process that it runs in, and the name of its program.
pub struct EngineCalls {
    pub pid: u32,
    pub program: String,
    pub calls: SlowCalls,
}

/// All calls, slowest first, and the cores that have not answered. `name` knows procedures by program, version and number.
pub fn document(
    schema: &str,
    engines: &[EngineCalls],
    name: impl Fn([u32; 3]) -> Option<String>,
) -> Value {
    let cores = || {
        let all = engines.iter();
        all.flat_map(|engine| engine.calls.cores.iter().map(move |core| (engine, core)))
    };
    let mut calls: Vec<_> = cores()
        .flat_map(|(engine, core)| core.calls.iter().map(move |call| (engine, core, call)))
        .collect();
    calls.sort_by_key(|(.., call)| Reverse(call.total_ns));
    let silent = cores().filter(|(_, core)| !core.answered).map(|(engine, core)| {
        json!({"pid": engine.pid, "engine": engine.calls.engine, "core": core.index})
    });
    let calls = calls.iter().map(|(engine, core, call)| {
        let mut members = about(call);
        members["pid"] = engine.pid.into();
        members["program_name"] = engine.program.as_str().into();
        members["engine"] = engine.calls.engine.into();
        members["core"] = core.index.into();
        if let (Some(program), Some(version), Some(procedure)) =
            (call.program, call.version, call.procedure)
            && let Some(name) = name([program, version, procedure])
        {
            members["procedure_name"] = name.into();
        }
        members
    });
    json!({"schema": schema, "calls": calls.collect::<Vec<_>>(), "silent": silent.collect::<Vec<_>>()})
}

fn about(call: &SlowCall) -> Value {
    let longest = call.stages.iter().max_by_key(|(_, ns)| **ns);
    json!({
        "ago_ns": call.ago_ns, "role": call.role, "peer": call.peer, "xid": call.xid,
        "program": call.program, "version": call.version, "procedure": call.procedure,
        "total_ns": call.total_ns, "stages": call.stages, "longest": longest.map(|(stage, _)| stage),
    })
}

/// A table of the slowest; the longest stage of each is marked.
pub fn lines(document: &Value) -> Vec<String> {
    let items = |name: &str| document[name].as_array().into_iter().flatten();
    let head = [cells(["ago s", "pid", "core", "role", "program", "proc", "xid", "total us"])];
    let mut lines: Vec<_> = head.into_iter().map(|cells| cells + "  stages, us; peer").collect();
    lines.extend(items("calls").take(SHOWN).map(line));
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
        "{ago:>7} {pid:>8} {core:>4} {role:<6} {program:>10} {procedure:>11} {xid:>8} {total:>11}"
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
    let named = call["procedure_name"].as_str().map(printable);
    let procedure = named.unwrap_or_else(|| number("procedure"));
    let row = cells([
        &format!("{ago:.1}"),
        &number("pid"),
        &number("core"),
        &role,
        &number("program"),
        &procedure,
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

    fn document_of() -> Value {
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
                call(Some(7), 3000, json!({"deferred": 1000, "disk": 2000})),
                call(None, 9000, json!({"queue": 9000})),
                call(Some(8), 2000, json!({"handler": 2000})),
            ]},
            {"index": 1, "running": true, "answered": false, "calls": []},
        ]});
        let mut calls: SlowCalls = serde_json::from_value(calls).unwrap();
        calls.bound();
        let engines = [EngineCalls { pid: 4711, program: "program".to_owned(), calls }];
        document("schema/1", &engines, |called| {
            (called == [100_003, 3, 7]).then(|| "WRITE".to_owned())
        })
    }

    #[test]
    fn the_slowest_call_is_first_and_its_longest_stage_is_marked() {
        let lines = lines(&document_of());
        assert_eq!(lines.len(), 5, "{lines:#?}");
        assert!(lines[1].contains("*queue 9.0") && lines[1].contains("  -"), "{lines:#?}");
        assert!(lines[2].contains("deferred 1.0, *disk 2.0"), "{lines:#?}");
        assert!(lines[4].contains("core 1 of process 4711"), "{lines:#?}");
        assert!(!lines.concat().contains('\x1b'), "{lines:#?}");
    }

    #[test]
    fn a_procedure_has_its_name_if_that_is_known_and_else_its_number() {
        let document = document_of();
        let [_, write, other] = &document["calls"].as_array().unwrap()[..] else { panic!() };
        assert_eq!((&write["procedure"], &write["procedure_name"]), (&json!(7), &json!("WRITE")));
        assert_eq!((&other["procedure"], &other["procedure_name"]), (&json!(8), &Value::Null));
        let lines = lines(&document);
        assert!(lines[2].contains(" WRITE ") && lines[3].contains("  8 "), "{lines:#?}");
    }
}
