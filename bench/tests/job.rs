//! Job files: suites of runs.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::{Ended, Folder, Server, report_in, spinperf};
use std::fs;

/// A folder with a job file, and the path of that.
fn suite(name: &str, job: &str) -> (Folder, String) {
    let (folder, file) = Folder::with_file(name, "job.toml");
    fs::write(&file, job).unwrap();
    (folder, file)
}

fn job(address: &str) -> String {
    format!(
        r#"
        schema = 1
        output = "out"
        [defaults]
        address = "{address}"
        profile = "dev-vm"
        warmup = "0ms"
        duration = "20s"
        verify = "full"
        calls = 400
        [[run]]
        name = "sizes"
        op = "write:75,read:25"
        size = "write=8,read=16KiB"
        depth = 4
        [[run]]
        name = "paced"
        rate = "1k"
        force = true
        "#
    )
}

/// Carry out a job. Expect a valid report of each run, with the operations and the rate it asks for.
#[test]
fn a_job_runs_all_of_its_runs() {
    let (_cores, server) = Server::alone("job");
    let (folder, file) = suite("all", &job(&server.address));
    spinperf(&["job", &file]).with(0);
    let sizes = report_in(&folder.file("out/sizes.json"));
    let calls = |row: usize| sizes["rows"][row]["median"]["calls"].as_u64().unwrap();
    assert_eq!((calls(0), calls(1) + calls(2)), (400, 400));
    assert!((240..=340).contains(&calls(1)), "75 % of 400: {}", calls(1));
    assert_eq!(sizes["rows"][2]["name"], "read 16 KiB, of the mix, depth 4, verify full");
    let paced = report_in(&folder.file("out/paced.json"));
    let row = &paced["rows"][0];
    assert_eq!(row["name"], "echo 64 B, 1000/s, verify full");
    assert_eq!(row["repeats"][0]["open"]["intended"], 400);
}

/// Expect checks to need no server, and every mistake to be found before anything is measured.
#[test]
fn a_job_is_checked_before_its_first_run() {
    let (folder, good) = suite("good", &job("shm:spinperf-test-absent"));
    let [lines, _] = spinperf(&["job", "--check", &good]).with(0);
    assert_eq!(lines.lines().count(), 2, "{lines}");
    assert!(lines.contains("paced: spinperf run --address=shm:spinperf-test-absent"), "{lines}");
    assert!(!folder.0.join("out").exists());
    for (from, to, told) in [
        ("force = true", "foce = true", "did you mean \"force\"?"),
        ("rate = \"1k\"", "rate = \"fast\"", "run \"paced\""),
        ("profile = \"dev-vm\"", "profile = \"dev-wm\"", "dev-vm"),
        ("rate = \"1k\"", "rate = \"1k\"\ndepth = 2", "--in-flight-max"),
    ] {
        let (_folder, bad) = suite("bad", &job("shm:spinperf-test-absent").replace(from, to));
        for check in [&["--check"][..], &[]] {
            let [_, error] = spinperf(&[&["job", &bad][..], check].concat()).with(2);
            assert_eq!(error.trim_end().lines().count(), 1, "{to}: {error}");
            assert!(error.contains(told), "{to}: {error}");
        }
    }
}

/// Expect the second run although the first one fails, and a status that says so.
#[test]
fn a_run_that_fails_does_not_keep_the_others_from_running() {
    let (_cores, server) = Server::alone("job-fails");
    let job = job(&server.address)
        .replace("name = \"sizes\"", "name = \"sizes\"\nbidir = false\nprogram = 99\nversion = 1");
    let job = job.replace("write:75,read:25", "null").replace("size = \"write=8,read=16KiB\"", "");
    let (folder, file) = suite("fails", &job);
    let [_, error] = spinperf(&["job", &file]).with(1);
    assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    assert!(error.contains("1 of 2 runs failed: sizes: "), "{error}");
    let paced = report_in(&folder.file("out/paced.json"));
    assert_eq!(paced["rows"][0]["median"]["calls"], 400);
    let notes = paced["notes"].as_array().unwrap();
    assert!(notes.iter().any(|note| note.as_str().unwrap().contains("paced")), "{notes:?}");
}
