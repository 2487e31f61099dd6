//! Every mode of `spinperf run`, with the real binary. Asserts counts and refusals, never speeds,
//! which depend on the machine.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::{
    Ended, Folder, Server, cores, number, report_in, text, two_cores, wait_at_most, wait_for_calls,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Output, Stdio};
use std::time::Duration;

/// Runs with these options; returns the output and the document.
fn run(server: &Server, name: &str, options: &[&str]) -> (Output, Value) {
    let (_folder, json) = Folder::with_file(name, "r.json");
    let mut client = server.client(&["--warmup", "0ms", "--json", &json]);
    let output = client.args(options).output().unwrap();
    (output, report_in(&json))
}

/// The document of a successful run, which is repeated if it was paused for all of its time.
fn report(server: &Server, name: &str, options: &[&str]) -> Value {
    let mut attempts = (0..5).map(|_| run(server, name, options));
    let was_paused = |output: &Output| text(&output.stderr).contains("no call completed");
    let made_calls = attempts.find(|(output, _)| !was_paused(output));
    let (output, report) = made_calls.unwrap_or_else(|| run(server, name, options));
    assert!(output.status.success(), "{options:?}: {}", text(&output.stderr));
    report
}

fn rows(report: &Value) -> &[Value] {
    report["rows"].as_array().unwrap()
}

#[test]
fn one_call_at_a_time_is_ping_pong_whatever_it_is_called() {
    let (_cores, server) = Server::alone("pingpong");
    for (options, mode) in [
        (&["--mode", "pingpong", "--calls", "50"][..], "pingpong"),
        (&["--mode", "closed", "--depth", "1", "--calls", "50"], "pingpong"),
        (&["--depth", "2", "--calls", "50"], "closed"),
    ] {
        let report = report(&server, "pingpong", options);
        assert_eq!(report["mode"], mode, "{options:?}");
        assert_eq!(rows(&report)[0]["workload"]["mode"], mode, "{options:?}");
        assert_eq!(rows(&report)[0]["median"]["calls"], 50, "{options:?}");
    }
}

/// Expect every planned call, its latency from the intended start, and its service time in
/// addition.
#[test]
fn an_open_loop_at_a_low_rate_keeps_to_it() {
    let (_cores, server) = Server::alone("open");
    let options = ["--rate", "500", "--calls", "100", "--duration", "20s", "--verify", "full"];
    let report = report(&server, "open", &options);
    let repeat = &rows(&report)[0]["repeats"][0];
    assert_eq!(report["mode"], "open");
    assert_eq!((&repeat["calls"], &repeat["latency"]["samples"]), (&100.into(), &100.into()));
    assert_eq!(repeat["service"]["samples"], 100);
    let open = &repeat["open"];
    assert_eq!(open["target_per_second"], 500.0);
    assert_eq!((&open["adherence_percent"], &open["never_sent"]), (&100.0.into(), &0.into()));
    assert_eq!((&open["arrivals"], &open["refused"]), (&"fixed".into(), &Value::Null));
    assert!(number(&repeat["latency"]["p50_ns"]) >= number(&repeat["service"]["p50_ns"]));
}

/// Request more than is possible. Expect a reason instead of percentiles, and that they can be
/// forced.
#[test]
fn an_open_loop_that_falls_behind_is_refused_percentiles() {
    let (_cores, server) = Server::alone("behind");
    let options = ["--rate", "50M", "--duration", "100ms", "--in-flight-max", "8"];
    let (output, report) = run(&server, "behind", &options);
    assert_eq!(output.status.code(), Some(1), "what was asked for was not measured");
    let error = text(&output.stderr);
    assert!(error.contains("--force") && !error.contains("increase"), "{error}");
    let repeat = &rows(&report)[0]["repeats"][0];
    for key in ["p50_ns", "p99_ns", "p99_999_ns", "max_ns", "mean_ns"] {
        assert_eq!(repeat["latency"][key], Value::Null, "{key}");
        assert_eq!(repeat["service"][key], Value::Null, "{key}");
    }
    assert!(repeat["open"]["refused"].as_str().unwrap().contains("99.9 %"));
    assert!(number(&repeat["open"]["adherence_percent"]) < 99.9);
    assert!(number(&repeat["open"]["never_sent"]) > 1e6);
    let table = text(&output.stdout);
    let row = table.lines().find(|line| line.contains("echo 64 B, 50.00M/s")).unwrap();
    assert!(row.matches(" - ").count() >= 5, "{row}");
    let forced = self::report(&server, "forced", &[&options[..], &["--force"]].concat());
    let repeat = &rows(&forced)[0]["repeats"][0];
    let ranked = ["samples", "missing"].map(|key| number(&repeat["latency"][key]));
    assert_eq!(ranked[0] + ranked[1], number(&repeat["open"]["intended"]), "{repeat}");
    assert!(number(&repeat["service"]["max_ns"]) > 0.0 && repeat["open"]["refused"].is_null());
    assert!(repeat["latency"]["max_ns"].is_null(), "calls that were never sent waited longest");
}

/// Expect exactly the calls of the measured time, whatever comes before and after it.
#[test]
fn the_warm_up_is_not_measured() {
    let (_cores, server) = Server::alone("phases");
    let (_folder, json) = Folder::with_file("phases", "r.json");
    let how = ["--rate", "2000", "--warmup", "20ms", "--duration", "100ms", "--force", "--json"];
    server.client(&[&how[..], &[&json]].concat()).output().unwrap().with(0);
    let report = report_in(&json);
    let repeat = &rows(&report)[0]["repeats"][0];
    let intended = number(&repeat["calls"]) + number(&repeat["open"]["never_sent"]);
    assert!((intended - 200.0).abs() <= 1.0, "{repeat}");
    let how = ["--depth", "8", "--warmup", "20ms", "--calls", "100", "--json", &json];
    server.client(&how).output().unwrap().with(0);
    let closed = report_in(&json);
    assert_eq!(rows(&closed)[0]["median"]["calls"], 100);
}

#[test]
fn a_sweep_measures_the_product_of_its_lists() {
    let (_cores, server) = Server::alone("sweep");
    let options = ["--size", "64,1k", "--depth", "1..4", "--repeats", "2", "--calls", "20"];
    let report = report(&server, "sweep", &options);
    assert_eq!(report["mode"], "sweep");
    let measured: Vec<(u64, u64)> = rows(&report)
        .iter()
        .map(|row| {
            assert_eq!(row["repeats"].as_array().unwrap().len(), 2);
            assert_eq!(row["median"]["calls"], 40);
            let workload = &row["workload"];
            (workload["call_bytes"].as_u64().unwrap(), workload["depth"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(measured, [(64, 1), (64, 2), (64, 4), (1024, 1), (1024, 2), (1024, 4)]);
}

/// Expect rows of one core and of two, with the participating cores named, in one direction and in
/// both.
#[test]
fn cores_measure_together() {
    let _cores = two_cores();
    let server = Server::start("together");
    let two = ["--cores", "0,1", "--calls", "50", "--duration", "20s", "--verify", "full"];
    let swept = report(&server, "cores", &[&two[..], &["--core-counts", "1,2"]].concat());
    for (row, count) in rows(&swept).iter().zip([1, 2]) {
        assert_eq!(row["workload"]["cores"], count);
        assert_eq!(row["median"]["calls"], 50 * count);
        assert_eq!(row["repeats"][0]["client_cores"].as_array().unwrap().len() as u64, count);
    }
    let both = report(&server, "both", &[&two[..], &["--bidir"]].concat());
    for (row, reverse) in rows(&both).iter().zip([false, true]) {
        assert_eq!(
            (&row["workload"]["reverse"], &row["median"]["calls"]),
            (&reverse.into(), &100.into())
        );
        assert!(number(&row["median"]["latency"]["p50_ns"]) > 0.0);
    }
}

/// Expect every operation in proportion to its weight, by count, and all of them together.
#[test]
fn a_mix_keeps_its_weights() {
    let (_cores, server) = Server::alone("mix");
    let options = ["--op", "echo:70,read:20,write:10", "--size", "echo=64,read=64k,write=9000"];
    let how = ["--depth", "4", "--calls", "2000", "--duration", "20s", "--verify", "full"];
    let report = report(&server, "mix", &[&options[..], &how[..]].concat());
    let calls: Vec<f64> = rows(&report).iter().map(|row| number(&row["median"]["calls"])).collect();
    assert_eq!((calls.len(), calls[0]), (4, 2000.0));
    assert_eq!(calls[1..].iter().sum::<f64>(), 2000.0);
    for (calls, expected) in calls[1..].iter().zip([1400.0, 400.0, 200.0]) {
        assert!((calls - expected).abs() < 100.0, "{calls} rather than {expected}");
    }
    assert_eq!(rows(&report)[0]["workload"]["mix"].as_array().unwrap().len(), 3);
    assert_eq!(rows(&report)[2]["workload"]["op"], "read");
    let notes = report["notes"].to_string();
    assert!(notes.contains("Write chunk") && notes.contains("Read chunk"), "{notes}");
}

/// Expect every window, a trend for each figure, and the exit code to be the verdict.
#[test]
fn a_soak_tells_its_windows_and_its_verdict() {
    let (_cores, server) = Server::alone("soak");
    let options = ["--mode", "soak", "--duration", "400ms", "--window", "50ms"];
    let (output, report) = run(&server, "soak", &options);
    let soak = &report["soak"];
    let held = soak["held"].as_bool().unwrap();
    assert_eq!(output.status.code(), Some(i32::from(!held)), "{}", text(&output.stderr));
    let windows = soak["windows"].as_array().unwrap();
    assert_eq!(windows.len(), 8);
    let calls: f64 = windows.iter().map(|window| number(&window["calls"])).sum();
    assert_eq!(number(&rows(&report)[0]["median"]["calls"]), calls);
    for side in ["client", "server"] {
        assert!(number(&windows[0][side]["resident_bytes"]) > 0.0);
        assert!(number(&windows[0][side]["descriptors"]) > 0.0);
    }
    let verdicts =
        ["no drift", "DRIFT"].map(|verdict| text(&output.stdout).matches(verdict).count());
    assert!(verdicts.iter().sum::<usize>() >= 5, "{}", text(&output.stdout));
}

/// Interrupt a soak. Expect the windows so far instead of nothing.
#[test]
fn an_interrupted_soak_delivers_what_there_is() {
    let (_cores, server) = Server::alone("interrupted");
    let (_folder, json) = Folder::with_file("interrupted", "r.json");
    let mut child = server
        .client(&["--mode", "soak", "--duration", "600s", "--window", "100ms", "--json", &json])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(wait_for_calls(Pid::from_child(&server.child), &mut child), "it has ended");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert!(lines.any(|line| line.contains("interrupted after")));
    assert_eq!(wait_at_most(&mut child, Duration::from_secs(60)), Some(130));
    let windows = report_in(&json)["soak"]["windows"].as_array().unwrap().len();
    assert!((1..6000).contains(&windows), "{windows}");
}

/// Run two clients of one server. Expect its figures to cover all calls it answered, a note about
/// that, and figures for each participating core.
#[test]
fn a_server_says_what_it_did_for_all_of_its_clients() {
    let (_cores, server) = Server::alone("clients");
    let mut other = server
        .client(&["--depth", "8", "--duration", "600s"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(120);
    let (mut answered, mut made, mut notes) = (0.0, 0.0, String::new());
    // Until the other client has started. They may have one CPU, so each gets more than one turn of the kernel's.
    while !notes.contains("other clients") && std::time::Instant::now() < deadline {
        let report = report(&server, "clients", &["--duration", "200ms"]);
        let repeat = &rows(&report)[0]["repeats"][0];
        answered = number(&repeat["server"]["calls"]);
        made = number(&repeat["client"]["calls"]);
        notes = report["notes"].to_string();
        for side in ["client_cores", "server_cores"] {
            let core = &repeat[side][0];
            assert!(core["cpu"].is_u64() && number(&core["calls"]) > 0.0, "{side}: {core}");
            assert!(number(&core["busy_ticks_per_call"]) > 0.0, "{side}: {core}");
        }
    }
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(notes.contains("other clients"), "{answered} answered, {made} made: {notes}");
    assert!(answered > made, "{answered} answered, {made} made");
}

/// The server's profile allows less than the client's. Expect its reason, in one line.
#[test]
fn a_server_refuses_what_it_has_no_memory_for() {
    let _cores = cores();
    let (_folder, profile) = Folder::with_file("tight", "tight.toml");
    let tight = "schema = 1\ninclude = [\"dev-vm\"]\ndescription = \"tight\"\n\
                 [rpc]\nmax_write_bytes = 65536\n";
    fs::write(&profile, tight).unwrap();
    let server = Server::start_with("tight", &["--profile", &profile]);
    let output = server.client(&["--op", "write", "--size", "128k"]).output().unwrap();
    let said = text(&output.stderr);
    let told =
        "the server rejects it: a payload of 128 KiB is too large: rpc.max_write_bytes allows";
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(told), "{said}");
}
