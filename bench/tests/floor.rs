//! `spinperf floor`: printed and written output.

mod common;

use common::{spinperf, text, two_cores};
use serde_json::Value;
use std::fs;

#[test]
fn the_floor_is_a_table_and_a_document() {
    let _cores = two_cores();
    let path = std::env::temp_dir().join(format!("spinperf-floor-{}.json", std::process::id()));
    let json = path.to_str().unwrap();
    let output = spinperf(&["floor", "--duration", "2ms", "--repeats", "3", "--json", json]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    for limit in ["cache line round trip", "bare ring exchanges", "memcpy, 1 MiB", "kernel"] {
        assert!(table.contains(limit), "no {limit} in\n{table}");
    }
    let report: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(report["schema"], "spinperf/2");
    let floor = report["floor"].as_array().unwrap();
    assert_eq!(floor.len(), 6);
    for row in floor {
        assert_eq!(row["values"].as_array().unwrap().len(), 3, "{row}");
        assert!(row["median"].as_f64().unwrap() > 0.0, "{row}");
    }
}
