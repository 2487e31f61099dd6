//! bench/peers: the output of other tools is parsed with its units, and rejected with any other;
//! the table and the document contain what was measured. Nothing is measured here.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

#[path = "common/schema.rs"]
mod schema;

use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn peers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers")
}

fn recorded(file: &str) -> String {
    let path = peers().join("tests").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Runs a command with this text as its input.
fn fed(mut command: Command, input: &str) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that fails early stops reading.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

/// Runs a peer's parser; `call` is PEER WHAT and values, as `parse` takes them.
fn parse(call: &str, input: &str) -> Output {
    let mut command = Command::new(peers().join("parse"));
    command.args(call.split(' '));
    fed(command, input)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Recorded outputs, the calls of their parsers, and the expected values.
fn recordings() -> impl Iterator<Item = (&'static str, &'static str, f64)> {
    let lines = include_str!("peers/recorded.txt").lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| {
        let columns: Vec<&str> = line.split(" | ").collect();
        let [file, call, value]: [&str; 3] = columns.try_into().expect(line);
        (file, call, value.split(" * ").map(|factor| factor.parse::<f64>().unwrap()).product())
    })
}

#[test]
fn what_the_tools_printed_is_read_with_its_units() {
    for (file, call, expected) in recordings() {
        let key = match call.split(' ').nth(1) {
            Some("round_trip") => "round_trip_ns",
            Some("rate") => "rate_per_second",
            _ => "bandwidth_bytes_per_second",
        };
        let output = parse(call, &recorded(file));
        assert!(output.status.success(), "{file}: {}", text(&output.stderr));
        let line = text(&output.stdout);
        let (found, value) = line.trim().split_once(' ').expect(file);
        assert_eq!(found, key, "{file}");
        let value: f64 = value.parse().unwrap();
        assert!((value / expected - 1.0).abs() < 1e-4, "{file}: {value}, not {expected}");
    }
}

#[test]
fn every_recording_is_read_by_a_test() {
    for peer in std::fs::read_dir(peers().join("tests")).unwrap() {
        let peer = peer.unwrap();
        for file in std::fs::read_dir(peer.path()).unwrap() {
            let name = format!(
                "{}/{}",
                peer.file_name().to_string_lossy(),
                file.unwrap().file_name().to_string_lossy()
            );
            assert!(recordings().any(|(known, ..)| known == name), "{name}");
        }
    }
}

#[test]
fn a_wrong_unit_is_refused() {
    for (file, from, to) in [
        ("spinperf/latency", "spinperf/1", "spinperf/4"),
        ("spinperf/latency", "\"elapsed_s\": 1.0", "\"elapsed_s\": 1000.0"),
        ("spinperf/latency", "\"p50_ns\": ", "\"p50_ns\": 1000"),
        ("spinperf/bulk", "\"bytes_per_second\": ", "\"bytes_per_second\": 8"),
        ("ucx/round_trip", "latency (usec)", "latency (nsec)"),
        ("ucx/round_trip", "5.073", "5073"),
        ("ucx/round_trip", "0.110", "110"),
        ("ucx/rate", "message rate (msg/s)", "message rate (Mmsg/s)"),
        ("ucx/rate", "613093", "0.613093"),
        ("ucx/bandwidth", "1376.01", "1442.85"), // of 10^6 bytes
        ("libfabric/round_trip", "usec/xfer", "nsec/xfer"),
        ("libfabric/round_trip", "57.06", "114.12"), // a full round trip
        ("libfabric/fast_round_trip", "0.24", "0.48"), // a full round trip
        ("libfabric/fast_round_trip", "0.10s", "0.20s"),
        ("libfabric/bandwidth", "162.11", "154.60"), // of 2^20 bytes
        ("libfabric/bandwidth", "1m      1k", "64k     1k"),
        ("iceoryx2/calls", "p50_ns 1292", "p50_ns 1292000"),
        ("iceoryx2/deep", "depth 32", "depth 1"),
        ("sunrpc/echo.1", "elapsed_ns 1002555990", "elapsed_ns 1002556"),
        ("sunrpc/echo.1", "p50_ns 52118", "p50_ns 52.118"),
        ("sunrpc/read.1", "bytes 1048576", "bytes 1"),
        ("tcp/bare", "tcp_round_trip", "ring_round_trip"),
        ("tcp/stream", "\"bits_per_second\":\t6671802978", "\"bits_per_second\":\t833975372"),
        ("perftest/ib_send_lat", "t_typical[usec]", "t_typical[nsec]"),
        ("perftest/ib_send_lat", "19.92", "0.01992"),
        ("perftest/ib_send_bw", "MsgRate[Mpps]", "MsgRate[Kpps]"),
        ("perftest/ib_send_bw", "0.013979", "13.979"),
        ("perftest/ib_write_bw", "BW average[MB/sec]", "BW average[Gb/sec]"),
        ("perftest/ib_write_bw", "193.85", "1.63"),
    ] {
        let (_, call, ..) = recordings().find(|(known, ..)| *known == file).unwrap();
        let right = recorded(file);
        assert!(right.contains(from), "{file} has no {from}");
        let output = parse(call, &right.replace(from, to));
        assert_eq!(output.status.code(), Some(1), "{file}: {to}: {}", text(&output.stdout));
        assert_eq!(text(&output.stdout), "", "{file}: {to}");
        assert!(!output.stderr.is_empty(), "{file}: {to}");
    }
}

/// Doubling a full round trip would give a time longer than the tool has run.
#[test]
fn half_a_round_trip_that_is_a_whole_one_is_refused() {
    for (file, call) in [
        ("ucx/round_trip", "ucx round_trip bytes=64 count=1000000 elapsed_s=5.3"),
        ("perftest/ib_send_lat", "perftest round_trip bytes=64 count=1000 elapsed_s=0.2"),
    ] {
        let output = parse(call, &recorded(file));
        assert_eq!(output.status.code(), Some(1), "{file}: {}", text(&output.stdout));
        assert!(text(&output.stderr).contains("time that was taken"), "{file}");
    }
}

#[test]
fn nothing_at_all_is_refused() {
    for (_, call, _) in recordings() {
        let output = parse(call, "");
        assert_eq!(output.status.code(), Some(1), "{call}");
        assert!(output.stdout.is_empty(), "{call}");
    }
}

/// Three rounds in which the peer is twice as slow, as fast, and four times as slow: the ratio is
/// taken in each of them, so that a slow round does not count if both were slow.
const FACTS: &str = "\
host cpu An \"EPYC\"
host kernel 6.1
host date 2026-11-21T00:00:00Z
host repeats 3
host client_core 0
host server_core 1
host load_before 0.1
row spinperf
about spinperf beside spinperf
about spinperf operation RPC call and reply
about spinperf reported full, p50
row other
about other beside spinperf
about other operation message, one way
about other reported half, p50
about other differs It does less.
row absent
about absent beside spinperf
status absent absent its-package
row broken
about broken beside spinperf
status broken failed round 1: it fell
figure 1 spinperf version 0.1.0
figure 1 spinperf round_trip_ns 300 near
figure 1 other round_trip_ns 600 near
figure 2 spinperf round_trip_ns 1000 near
figure 2 other round_trip_ns 1000 near
figure 3 spinperf round_trip_ns 250 near
figure 3 other round_trip_ns 1000 near
figure 3 other note One thing is missing.
host load_after 0.2
host steal_ms 7
";

fn written(program: &str, facts: &str) -> Output {
    let mut command = Command::new("awk");
    command.arg("-f").arg(peers().join("figures.awk")).arg("-f").arg(peers().join(program));
    fed(command, facts)
}

fn table() -> String {
    let output = written("table.awk", FACTS);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn line<'a>(table: &'a str, start: &str) -> &'a str {
    table.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("no {start}"))
}

#[test]
fn the_table_has_medians_and_ratios_of_the_same_round() {
    let table = table();
    let words: Vec<&str> = line(&table, "spinperf ").split_whitespace().collect();
    assert_eq!(words[7..10], ["0.300", "(0.250-1.00)", "1.00x"]);
    let words: Vec<&str> = line(&table, "other ").split_whitespace().collect();
    assert_eq!(words[6..9], ["1.00", "(0.600-1.00)", "2.00x"]);
}

#[test]
fn the_table_says_what_is_missing_and_what_differs() {
    let table = table();
    assert!(line(&table, "absent ").contains("its-package"));
    assert!(line(&table, "broken ").contains("it fell"));
    for said in ["It does less.", "One thing is missing.", "7 ms stolen", "spinperf 0.1.0"] {
        assert!(table.contains(said), "{said}:\n{table}");
    }
}

#[test]
fn a_failed_round_leaves_the_figures_of_the_others() {
    let facts = format!("{FACTS}status other failed round 4: it fell\n");
    let table = text(&written("table.awk", &facts).stdout);
    assert!(line(&table, "other ").contains("2.00x"), "{table}");
    assert!(table.contains("Failed in a round;") && table.contains("round 4: it fell"), "{table}");
}

/// Two cores that are near in some rounds and far in others, and change during one run: expect figures of one placement
/// compared with those of the same one only, in rows of their own, and the run left out.
#[test]
fn each_placement_has_its_own_rows() {
    let facts = format!(
        "{FACTS}figure 4 spinperf round_trip_ns 2000 far\nfigure 4 other round_trip_ns 800 near\n\
         figure 5 spinperf round_trip_ns 9000 moved\nfigure 5 other round_trip_ns 6000 far\n"
    );
    let table = text(&written("table.awk", &facts).stdout);
    let (near, far) = table.split_once("\nfar ").unwrap();
    let words: Vec<&str> = line(near, "other ").split_whitespace().collect();
    assert_eq!(words[6..9], ["0.900", "(0.600-1.00)", "2.00x"], "{table}");
    let words: Vec<&str> = line(far, "spinperf ").split_whitespace().collect();
    assert_eq!(words[7..9], ["2.00", "1.00x"], "{table}");
    assert!(line(far, "other ").contains("6.00"), "{table}");
    assert!(!line(far, "other ").contains('x'), "no round has both: {table}");
    assert!(far.contains("spinperf 1, other 1") && far.contains("1 of spinperf"), "{table}");
    let document: Value = serde_json::from_slice(&written("json.awk", &facts).stdout).unwrap();
    let rows = document["rows"].as_array().unwrap();
    assert_eq!(rows[0]["moved"], 1);
    assert_eq!(rows[1]["placements"].as_array().unwrap().len(), 2);
}

#[test]
fn a_figure_that_is_unknown_or_none_ends_it() {
    for line in [
        "figure 1 other round_trip_us 1 near",
        "figure 1 other round_trip_ns nan near",
        "figure 1 stranger rate_per_second 1 near",
        "figure 1 other round_trip_ns 600 middle",
        "figure 1 other round_trip_ns 600",
    ] {
        for program in ["table.awk", "json.awk"] {
            let output = written(program, &format!("{FACTS}{line}\n"));
            assert_eq!(output.status.code(), Some(1), "{program}: {line}");
            assert!(output.stdout.is_empty(), "{program}: {line}");
        }
    }
}

#[test]
fn the_document_is_as_its_schema_says() {
    let output = written("json.awk", FACTS);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let described = include_str!("../schema/spinperf-peers-2.schema.json");
    assert_eq!(schema::violations(&document, described), [""; 0]);
    assert_eq!(document["environment"]["cpu"], "An \"EPYC\"");
    let near = &document["rows"][1]["placements"][0];
    assert_eq!(near["placement"], "near");
    assert_eq!(near["figures"]["round_trip_ns"]["values"], serde_json::json!([600, 1000, 1000]));
    assert_eq!(near["ratios"]["round_trip_ns"]["median"], 2);
    assert_eq!(document["rows"][2]["status"], "absent");
    assert_eq!(document["rows"][2]["reason"], "its-package");
}

/// A peer is added as a folder: with these files, and a test for every one of its figures.
#[test]
fn every_peer_has_what_a_peer_needs() {
    let mut count = 0;
    for entry in std::fs::read_dir(peers()).unwrap() {
        let folder = entry.unwrap().path();
        if !folder.join("about").exists() {
            continue;
        }
        count += 1;
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        for file in ["measure", "parse.awk"] {
            assert!(folder.join(file).exists(), "{name} has no {file}");
        }
        let tested = recordings().any(|(file, ..)| file.split('/').next() == Some(&name));
        assert!(tested, "nothing recorded of {name}");
        let about = std::fs::read_to_string(folder.join("about")).unwrap();
        for key in ["row ", "beside ", "operation ", "reported ", "differs "] {
            assert!(about.lines().any(|line| line.starts_with(key)), "{name}: no {key}");
        }
    }
    assert!(count >= 6, "{count} peers");
}

fn run(arguments: &[&str]) -> Output {
    Command::new(peers().join("run")).args(arguments).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn wrong_usage_is_one_line_that_says_what_is_allowed() {
    for (arguments, allowed) in [
        (&["--only", "ucx,mpi"][..], "libfabric"),
        (&["--repeats", "0"][..], "1 to 99"),
        (&["--cores", "1,1"][..], "different"),
        (&["--cores", "one"][..], "such as 0,1"),
        (&["ucx"][..], "--help"),
    ] {
        let output = run(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(allowed) && said.lines().count() == 1, "{arguments:?}: {said}");
    }
}

#[test]
fn help_names_the_options_and_the_tools() {
    let output = run(&["--help"]);
    assert!(output.status.success());
    let help = text(&output.stdout);
    for said in
        ["--repeats", "--only", "--cores", "--json", "--install", "Exit status:", "iceoryx2"]
    {
        assert!(help.contains(said), "{said}");
    }
}
