//! Rates, and the conditions for calls to count.

use crate::*;

const FILE_BYTES: usize = 1 << 20;

/// A server with one file of 1 MiB.
fn server(name: &str, faults: Faults) -> Server {
    let server = Server::start(&format!("bench-{name}"));
    server.state().tree.put("file", Content::File(vec![7; FILE_BYTES]));
    server.state().faults = faults;
    server.state().block_bytes = 1 << 20;
    server
}

/// A short benchmark of it.
fn bench<'a>(operation: &'a str, target: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec!["bench", operation, target, "--calls", "100", "--warmup", "0"];
    arguments.extend(more);
    arguments
}

fn json(arguments: &[&str]) -> serde_json::Value {
    let mut all = arguments.to_vec();
    all.push("--json");
    serde_json::from_str(&text(&all)).unwrap()
}

#[test]
fn every_operation_is_counted_and_timed() {
    let server = server("each", Faults::default());
    let target = server.target("/file");
    for (operation, name, bytes) in
        [("getattr", "GETATTR", 0), ("read", "READ", 4096), ("write", "WRITE UNSTABLE", 4096)]
    {
        let json = json(&bench(operation, &target, &["--overwrite", "--depth", "4"]));
        assert_eq!((&json["operation"], &json["bytes"]), (&name.into(), &bytes.into()));
        assert_eq!((&json["calls"], &json["depth"]), (&100.into(), &4.into()), "{json}");
        let at = |name: &str| json["round_trip_ns"][name].as_u64().unwrap_or(0);
        assert!(0 < at("p50") && at("p50") <= at("p99") && at("p99") <= at("max"), "{json}");
        let rate = json["calls_per_second"].as_f64().unwrap_or(0.0);
        assert!((json["bytes_per_second"].as_f64().unwrap() - rate * f64::from(bytes)).abs() < 1.0);
        assert!((rate * json["seconds"].as_f64().unwrap() - 100.0).abs() < 0.01, "{json}");
    }
    // Calls in flight after the last measured one are waited for.
    for operation in [NFS_PROGRAM::NFSPROC3_READ, NFS_PROGRAM::NFSPROC3_WRITE] {
        assert!((100..=104).contains(&server.calls(operation)), "{operation}");
    }
    // A call that moves no data has no rate of bytes.
    let said = text(&bench("getattr", &target, &[]));
    assert!(!said.contains(" bytes") && !said.contains("MB/s"), "{said}");
}

#[test]
fn a_file_is_made_and_filled_as_far_as_the_span() {
    let server = server("span", Faults::default());
    answer(&bench("write", &server.target("/new"), &["--span", "70000"]));
    // Whole blocks.
    assert_eq!(server.state().tree.content("new").len(), 70_000 / 4096 * 4096);
}

#[test]
fn writes_are_as_stable_as_told_and_committed_if_they_are_not() {
    let server = server("stable", Faults::default());
    let target = server.target("/file");
    for (name, stable, commits) in [
        ("data", stable_how::DATA_SYNC, 0),
        ("file", stable_how::FILE_SYNC, 0),
        ("unstable", stable_how::UNSTABLE, 1),
    ] {
        answer(&bench("write", &target, &["--overwrite", "--stable", name]));
        assert_eq!(server.state().stable, Some(stable));
        assert_eq!(server.calls(NFS_PROGRAM::NFSPROC3_COMMIT), commits);
    }
}

#[test]
fn what_is_there_is_not_written_over_unasked() {
    let server = server("there", Faults::default());
    fails(&spin_nfs(&bench("write", &server.target("/file"), &[])), 4, &["--overwrite"]);
    assert_eq!(server.calls(NFS_PROGRAM::NFSPROC3_WRITE), 0);
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let server = server("cannot", Faults::default());
    server.state().tree.put("short", Content::File(vec![1; 100]));
    server.state().block_bytes = 65_536;
    let (short, file) = (server.target("/short"), server.target("/file"));
    for (arguments, words) in [
        (bench("read", &short, &[]), "100 bytes, less than one READ of 4096"),
        (bench("read", &server.target(""), &[]), "not a regular file"),
        (bench("read", &file, &["--size", "128K"]), "at most 65536 bytes at a time (rtmax)"),
        (bench("getattr", &server.target("/none"), &[]), "NFS3ERR_NOENT"),
    ] {
        fails(&spin_nfs(&arguments), 4, &[words]);
    }
}

#[test]
fn receive_fewer_bytes_than_asked_for_expect_no_figures() {
    let faults = [
        ("read", Faults { read_bytes_max: Some(4095), ..Faults::default() }, "4095 bytes"),
        ("write", Faults { write_count: Some(4095), ..Faults::default() }, "a count of 4095 bytes"),
    ];
    for (operation, faults, words) in faults {
        let server = server(&format!("fewer-{operation}"), faults);
        fails(&spin_nfs(&bench(operation, &server.target("/file"), &["--overwrite"])), 6, &[words]);
    }
}

#[test]
fn receive_less_stable_than_asked_for_expect_no_figures() {
    let faults = Faults { write_committed: Some(stable_how::DATA_SYNC), ..Faults::default() };
    let server = server("less-stable", faults);
    let target = server.target("/file");
    answer(&bench("write", &target, &["--overwrite", "--stable", "data"]));
    fails(
        &spin_nfs(&bench("write", &target, &["--overwrite", "--stable", "file"])),
        6,
        &["DATA_SYNC"],
    );
}

#[test]
fn it_ends_after_its_duration() {
    let server = server("duration", Faults::default());
    let more = ["--duration", "100ms", "--warmup", "10ms"];
    let target = server.target("/file");
    // A thread that is paused for all of it makes no call.
    for _ in 0..5 {
        let json = json(&[&["bench", "getattr", &target][..], &more].concat());
        assert!((json["seconds"].as_f64().unwrap() - 0.1).abs() < 0.001, "{json}");
        if json["calls"].as_u64() > Some(0) {
            return;
        }
    }
    panic!("no calls");
}

#[test]
fn ctrl_c_ends_it_with_the_figures_and_the_code_of_an_interruption() {
    let server = server("signal", Faults::default());
    let mut command = Command::new(PROGRAM);
    command.args(["bench", "getattr", &server.target("/file"), "-w", "60", "--warmup", "0"]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    while server.calls(NFS_PROGRAM::NFSPROC3_GETATTR) < 100 {
        thread::yield_now();
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(130));
    assert!(shown.contains("\nround trip: min "), "{shown}");
}
