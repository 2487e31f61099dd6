//! Job files: suites of runs, with distributions of sizes and bursts.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::{Ended, Folder, Server, cores, report_in, spinperf};
use std::fs;

/// A folder with a job file, and the path of that.
fn suite(name: &str, job: &str) -> (Folder, String) {
    let folder = Folder::new(name);
    let file = folder.file("job.toml");
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
        op = "write"
        size = "8:75%,16KiB:25%"
        depth = 4
        [[run]]
        name = "bursts"
        rate = "1k"
        burst = 20
        force = true
        "#
    )
}

/// Carry out a job. Expect a valid report of each run, with the sizes and bursts it asks for.
#[test]
fn a_job_runs_all_of_its_runs() {
    let _cores = cores();
    let server = Server::start("job");
    let (folder, file) = suite("all", &job(&server.address));
    spinperf(&["job", &file]).with(0);
    let sizes = report_in(&folder.file("out/sizes.json"));
    let calls = |row: usize| sizes["rows"][row]["median"]["calls"].as_u64().unwrap();
    assert_eq!((calls(0), calls(1) + calls(2)), (400, 400));
    assert!((240..=340).contains(&calls(1)), "75 % of 400: {}", calls(1));
    assert_eq!(sizes["rows"][2]["name"], "write 16 KiB, of the mix, depth 4, verify full");
    let bursts = report_in(&folder.file("out/bursts.json"));
    let row = &bursts["rows"][0];
    assert_eq!(row["name"], "echo 64 B, 1000/s in bursts of 20, verify full");
    assert_eq!(row["repeats"][0]["open"]["intended"], 400);
}

/// Expect checks to need no server, and every mistake to be found before anything is measured.
#[test]
fn a_job_is_checked_before_its_first_run() {
    let (folder, good) = suite("good", &job("shm:spinperf-test-absent"));
    let [lines, _] = spinperf(&["job", "--check", &good]).with(0);
    assert_eq!(lines.lines().count(), 2, "{lines}");
    assert!(lines.contains("bursts: spinperf run --address=shm:spinperf-test-absent"), "{lines}");
    assert!(!folder.0.join("out").exists());
    for (from, to, told) in [
        ("burst = 20", "brust = 20", "did you mean \"burst\"?"),
        ("burst = 20", "burst = 9000", "run \"bursts\""),
        ("profile = \"dev-vm\"", "profile = \"dev-wm\"", "dev-vm"),
        ("burst = 20", "burst = 1000", "--in-flight-max"),
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
    let _cores = cores();
    let server = Server::start("job-fails");
    let job = job(&server.address)
        .replace("name = \"sizes\"", "name = \"sizes\"\nbidir = false\nprogram = 99\nversion = 1");
    let job =
        job.replace("op = \"write\"", "op = \"null\"").replace("size = \"8:75%,16KiB:25%\"", "");
    let (folder, file) = suite("fails", &job);
    let [_, error] = spinperf(&["job", &file]).with(1);
    assert!(error.lines().last().unwrap().contains("1 of 2 runs failed: sizes: "), "{error}");
    assert_eq!(report_in(&folder.file("out/bursts.json"))["rows"][0]["median"]["calls"], 400);
}
