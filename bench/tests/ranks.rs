//! Ranks of a job: they meet at a server, measure at the same time, and their reports are merged.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::{Ended, Folder, Server, command, cores, report_in, spinperf, text};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Output, Stdio};

const RANKS: usize = 3;

/// A rank as a launcher starts it.
fn rank(server: &Server, rank: usize, options: &[&str]) -> Child {
    server
        .client(options)
        .env("PMI_RANK", rank.to_string())
        .env("PMI_SIZE", RANKS.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Runs three ranks, and merges their reports. Returns these, and the merged one; nothing if a rank was paused for so long
/// that it measured after another one, or nothing.
fn measured_and_merged(server: &Server, folder: &Folder) -> Option<(Vec<String>, Value)> {
    let out = folder.file("out.json");
    let options =
        ["--op", "null", "--duration", "1s", "--rate", "3k", "--repeats", "2", "--force", "--json"];
    let started = (0..RANKS).map(|one| rank(server, one, &[&options[..], &[&out]].concat()));
    let started: Vec<Child> = started.collect();
    let ended = started.into_iter().map(|child| child.wait_with_output().unwrap());
    let ended: Vec<Output> = ended.collect();
    for (number, output) in ended.iter().enumerate() {
        let error = text(&output.stderr);
        if error.contains("no call completed") {
            return None;
        }
        assert!(output.status.success(), "{error}");
        assert_eq!(output.stdout.is_empty(), number > 0, "rank {number} prints a table");
    }
    let files: Vec<String> =
        (0..RANKS).map(|rank| folder.file(&format!("out.rank{rank}.json"))).collect();
    let all = folder.file("all.json");
    let mut arguments = vec!["merge"];
    arguments.extend(files.iter().map(String::as_str));
    // Three ranks and a server on two CPUs may share less than 95 % of their time.
    let output = spinperf(&[&arguments[..], &["--force", "--json", &all]].concat());
    let error = text(&output.stderr);
    if error.contains("the reports are not of the same time") {
        return None;
    }
    assert!(output.status.success(), "{error}");
    Some((files, report_in(&all)))
}

/// Start three ranks, and merge their reports. Expect the sum of all calls and samples, and one
/// table.
#[test]
fn ranks_measure_at_the_same_time_and_their_reports_add_up() {
    let _cores = cores();
    let (server, folder) = (Server::start("ranks"), Folder::new("merge"));
    let mut attempts = (0..5).map(|_| measured_and_merged(&server, &folder));
    let (files, merged) = attempts.find_map(|one| one).expect("ranks measure together");
    let reports: Vec<Value> = files.iter().map(|file| report_in(file)).collect();
    let calls = |report: &Value| report["rows"][0]["median"]["calls"].as_u64().unwrap();
    let intended = |report: &Value| report["rows"][0]["repeats"][0]["open"]["intended"].clone();
    for report in &reports {
        assert_eq!(intended(report), 1000, "the rate is that of all ranks");
    }
    assert_eq!(reports[2]["rank"]["rank"], 2);
    assert_eq!(calls(&merged), reports.iter().map(calls).sum::<u64>());
    let first = &merged["rows"][0]["repeats"][0];
    assert_eq!((&first["latency"]["samples"], intended(&merged)), (&first["calls"], 3000.into()));
    assert_eq!(first["client_cores"].as_array().unwrap().len(), RANKS);
    assert!(
        merged["notes"].to_string().contains("is common to all reports"),
        "{}",
        merged["notes"]
    );
    spinperf(&["merge", "--force", &files[0], &files[2]]).with(0);
    let output = spinperf(&["merge", &files[0], &files[2]]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("reports of ranks 1 of 3"), "{}", text(&output.stdout));
    let [_, error] = spinperf(&["merge", &files[0], &files[0]]).with(2);
    assert!(error.contains("both of rank 0"), "{error}");
}

/// Start two of three ranks. Expect both to fail, and to name the third.
#[test]
fn a_rank_that_does_not_come_is_named() {
    let (_cores, server) = Server::alone("ranks-missing");
    let options = ["--op", "null", "--duration", "1s", "--rank-wait", "500ms"];
    let started: Vec<Child> = [0, 2].map(|one| rank(&server, one, &options)).into();
    for child in started {
        let output = child.wait_with_output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("of 3 ranks (") && error.contains("1"), "{error}");
        assert!(output.stdout.is_empty());
    }
}

/// One client, two servers. Expect calls to both, and the cores of both in its report.
#[test]
fn a_client_drives_several_servers() {
    let _cores = cores();
    let servers = [Server::start("many-1"), Server::start("many-2")];
    let (_folder, out) = Folder::with_file("many", "out.json");
    let mut arguments = vec!["run", "--profile", "dev-vm", "--op", "echo", "--verify", "full"];
    arguments.extend(servers.iter().flat_map(|one| ["--address", one.address.as_str()]));
    // At a rate: in a closed loop, the server that the scheduler prefers would have all calls.
    arguments.extend(["--rate", "1k", "--force", "--warmup", "0ms", "--duration", "20s"]);
    arguments.extend(["--calls", "400", "--json", &out]);
    spinperf(&arguments).with(0);
    let row = &report_in(&out)["rows"][0];
    assert_eq!(
        (&row["median"]["calls"], &row["workload"]["connections"]),
        (&400.into(), &2.into())
    );
    let served = row["repeats"][0]["server_cores"].as_array().unwrap();
    let calls: Vec<u64> = served.iter().map(|core| core["calls"].as_u64().unwrap()).collect();
    assert!(calls.len() == 2 && calls.iter().all(|calls| *calls > 50), "{calls:?}");
    let [one, two] = &servers;
    let both = ["run", "--address", &one.address, "--address", &two.address, "--bidir"];
    spinperf(&both).with(2);
}

/// Give one of two ranks a first run that fails. Expect the second run of both to meet, and neither
/// to take a rank in another run for one of its own.
#[test]
fn a_run_that_fails_on_one_rank_leaves_the_next_runs_whole() {
    let _cores = cores();
    let (server, folder) = (Server::start("ranks-suite"), Folder::new("suite"));
    let start = |rank: usize, first: &str| {
        let job = format!(
            "schema = 1\noutput = \"out\"\n[defaults]\naddress = \"{}\"\nprofile = \"dev-vm\"\n\
             op = \"null\"\nduration = \"100ms\"\nrank-wait = \"10s\"\n\
             [[run]]\nname = \"first\"\n{first}\n[[run]]\nname = \"second\"\n",
            server.address
        );
        let file = folder.file(&format!("job{rank}.toml"));
        fs::write(&file, job).unwrap();
        command(&["job", &file])
            .env("PMI_RANK", rank.to_string())
            .env("PMI_SIZE", "2")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let absent = format!("json = \"{}\"", folder.file("absent/first.json"));
    for child in [start(0, ""), start(1, &absent)] {
        let [_, error] = child.wait_with_output().unwrap().with(1);
        assert!(error.lines().last().unwrap().contains("1 of 2 runs failed: first: "), "{error}");
    }
    for rank in 0..2 {
        let second = report_in(&folder.file(&format!("out/second.rank{rank}.json")));
        assert_eq!(second["rank"]["job"], "spinperf/second");
    }
}

/// Run a job of two ranks twice under one name. Expect the server to know that the first is over,
/// and a capture of each rank.
#[test]
fn a_job_can_run_again_under_its_name() {
    let (_cores, server) = Server::alone("ranks-again");
    let (folder, capture) = Folder::with_file("again", "own.pcapng");
    let options = ["--op", "null", "--duration", "100ms", "--ranks", "2", "--rank-wait", "60s"];
    let options = [&options[..], &["--capture", &capture]].concat();
    for _ in 0..2 {
        let started: Vec<Child> = [0, 1].map(|one| rank(&server, one, &options)).into();
        for child in started {
            child.wait_with_output().unwrap().with(0);
        }
    }
    let captures = [0, 1].map(|rank| folder.file(&format!("own.rank{rank}.pcapng")));
    assert!(captures.iter().all(|file| fs::metadata(file).unwrap().len() > 0));
    assert!(!PathBuf::from(capture).exists(), "ranks would write over each other's capture");
}

/// Let one of two ranks end after the first of three repeats. Expect the other to report that one,
/// and to say why there are no more; also when a signal ends its wait.
#[test]
fn a_rank_reports_what_it_measured_before_the_others_ended() {
    let _cores = cores();
    let (server, folder) = (Server::start("ranks-left"), Folder::new("left"));
    for (wait, code, told) in [("10s", 1, "INCOMPLETE"), ("500s", 130, "INTERRUPTED")] {
        let out = folder.file(&format!("{code}.json"));
        let options = ["--op", "null", "--duration", "200ms", "--ranks", "2", "--json", &out];
        let more = [&options[..], &["--rank-wait", wait, "--repeats", "3"]].concat();
        let stays = rank(&server, 0, &more);
        rank(&server, 1, &options).wait_with_output().unwrap().with(0);
        if code == 130 {
            let pid = rustix::process::Pid::from_child(&stays);
            rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        }
        stays.wait_with_output().unwrap().with(code);
        let report = report_in(&folder.file(&format!("{code}.rank0.json")));
        assert_eq!(report["rows"][0]["repeats"].as_array().unwrap().len(), 1);
        assert!(report["notes"].to_string().contains(told), "{}", report["notes"]);
    }
}
