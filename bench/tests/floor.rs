//! `spinperf floor`: printed and written output.

mod common;

use common::{Ended, Folder, report_in, spinperf, text, two_cores};
use std::process::Command;

#[test]
fn the_floor_is_a_table_and_a_document() {
    let _cores = two_cores();
    let (_folder, json) = Folder::with_file("floor", "r.json");
    let [table, _] =
        spinperf(&["floor", "--duration", "2ms", "--repeats", "3", "--json", &json]).with(0);
    for limit in ["cache line round trip", "bare ring exchanges", "memcpy, 1 MiB", "TCP round trip"]
    {
        assert!(table.contains(limit), "no {limit} in\n{table}");
    }
    let report = report_in(&json);
    assert_eq!(report["schema"], "spinperf/3");
    let floor = report["floor"].as_array().unwrap();
    assert_eq!(floor.len(), 7);
    for row in floor {
        assert_eq!(row["values"].as_array().unwrap().len(), 3, "{row}");
        assert!(row["median"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(row["placements"].as_array().unwrap().len(), 3, "{row}");
    }
}

#[test]
fn one_limit_is_measured_alone_and_an_unknown_one_is_refused_with_the_names_of_all() {
    let _cores = two_cores();
    let output =
        spinperf(&["floor", "--duration", "2ms", "--repeats", "1", "--only", "cache line"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert!(table.contains("cache line round trip") && !table.contains("memcpy"), "{table}");
    let [_, error] = spinperf(&["floor", "--only", "cash"]).with(2);
    assert!(error.contains("cache line round trip"), "{error}");
}

/// `bench/peers` asks spinperf for the placement of the cores.
#[test]
fn scripts_learn_the_placement_of_the_cores() {
    let _cores = two_cores();
    let folder = Folder::new("placed");
    let library = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/lib.sh");
    let allowed = spinrpc::sys::affinity::allowed().unwrap();
    let mut cores = allowed.iter();
    let mut core = || cores.next().unwrap().to_string();
    let output = Command::new("bash")
        .args(["-c", &format!(". {library} && placed")])
        .env("PEERS_TARGET", "none")
        .env("PEERS_WORK", &folder.0)
        .env("PEERS_SPINPERF", env!("CARGO_BIN_EXE_spinperf"))
        .env("PEERS_CLIENT_CORE", core())
        .env("PEERS_SERVER_CORE", core())
        .output()
        .unwrap();
    let said = text(&output.stdout);
    assert!(
        ["threads", "near", "far", "moved"].contains(&said.trim()),
        "{said}{}",
        text(&output.stderr)
    );
}
