//! The checks, each on hosts without and with the problem.
#![allow(clippy::unwrap_used)] // helpers of tests are not marked as tests

#[path = "doctor/hosts.rs"]
mod hosts;

use hosts::{CHIPLETS, CONTAINER, Case, GUEST, HYBRID, LAPTOP, RIGHT, VM, WRONG, calm, disturb};
use spinrpc::sys::clock::ClockSource;
use spinrpc_tuning::doctor::Verdict::{Fail, Info, Ok as Good, Unknown, Warn};
use spinrpc_tuning::doctor::{Caps, Finding, Jitter, Report, Tried, Verdict};
use std::collections::{BTreeMap, BTreeSet};

fn remedy(finding: &Finding) -> (String, Vec<String>) {
    let remedy = finding.remedy.clone().unwrap();
    (remedy.says, remedy.commands)
}

#[test]
fn a_server_that_is_set_up_well_has_nothing_to_be_warned_of() {
    let report = Case::of(RIGHT, "verbs-mlx5").tried(calm(32)).report();
    let bad = |verdict| [Warn, Fail].contains(&verdict);
    let bad: Vec<_> = report.checks.iter().filter(|check| bad(check.finding.verdict)).collect();
    // The test is a debug build, which the report must say.
    let ids: Vec<_> = bad.iter().map(|check| check.id).collect();
    assert!(ids == ["build.release"] || ids.is_empty(), "{}", report.render(true));
    assert_eq!((report.host.as_str(), &report.cores[..]), ("node7", &[10][..]));
    assert_eq!((report.poll_mode, report.fabric), ("busy", "verbs"));
}

#[test]
fn the_same_server_as_installed_fails_and_says_what_to_do() {
    let report = Case::of(WRONG, "verbs-mlx5").report();
    assert_eq!(report.verdict, Fail);
    let text = report.render(false);
    let summary = "doctor: 1 failure, 9 warnings, 6 notes, 8 unknown on node7 for profile \
                   verbs-mlx5";
    assert!(text.contains(summary), "{text}");
    assert!(text.contains("fail memory.lock: each connection registers up to"), "{text}");
    assert!(text.contains("$ echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"));
    assert!(text.contains("cores.list=\"8\""), "{text}");
    assert!(!text.contains("vm.stat_interval=10"), "notes have no remedies here: {text}");
    assert!(report.render(true).contains("$ sysctl -w vm.stat_interval=10"));
    let failure = text.find("  fail memory.lock:").unwrap();
    assert!(failure < text.find("  warn cpus.tick:").unwrap(), "the worst comes first");
}

#[test]
fn what_gets_in_the_way_counts_by_how_cores_poll() {
    let verdict = |mode: &str, id: &str| {
        Case::of(LAPTOP, "base").set(&format!("poll.mode={mode}")).verdict(id)
    };
    for id in ["cpus.isolated", "cpus.tick", "cpus.smt", "irqs.cores", "irqs.irqbalance"] {
        let verdicts = ["busy", "adaptive", "sleep"].map(|mode| verdict(mode, id));
        assert_eq!(verdicts, [Warn, Info, Info], "{id}");
    }
    let idle = ["busy", "adaptive", "sleep"].map(|mode| verdict(mode, "power.idle"));
    assert_eq!(idle, [Info, Warn, Warn], "a core that polls does not sleep");
}

#[test]
fn a_host_that_tells_nothing_is_unknown_and_no_failure() {
    let nothing = Case::of(VM, "latency").without("proc").without("sys").without("dev");
    let report = nothing.report();
    assert_eq!(report.counts[&Fail], 0, "{}", report.render(true));
    assert!(report.counts[&Unknown] > 15, "{}", report.render(true));
    assert_eq!(report.host, "(no name)");
}

/// A record may be malicious; it is examined like any other.
#[test]
fn odd_contents_are_examined_without_harm() {
    let odd = ["", "-1", "18446744073709551615", "0-1023", "max 0", "1 0", "[always]", "a:b\\nc:d"];
    let times = "cpu1 18446744073709551615 1 1 18446744073709551615 1 1 1 18446744073709551615";
    for host in [VM, GUEST, LAPTOP, CONTAINER, WRONG, RIGHT] {
        for value in odd {
            for profile in ["latency", "verbs-mlx5"] {
                let report = Case::of(host, profile).bent(value).with("proc/stat", times).report();
                assert!(report.render(true).ends_with('\n'), "{host}: {value}");
            }
        }
    }
}

/// A case of `checks.txt`: the line that begins it, and those that belong to it.
fn examine_case(id: &str, first: &'static str, lines: &[&'static str]) {
    let (case, verdict) = first.split_once(" => ").unwrap();
    let mut words = case.split(' ');
    let (host, profile) = (words.next().unwrap(), words.next().unwrap());
    let case = Case::of(host, profile);
    let case = lines.iter().fold(words.fold(case, Case::set), |case, line| changed(case, line));
    let finding = case.finding(id);
    let told = format!("{id}: {first}: {finding:?}");
    assert_eq!(finding.verdict.to_string(), verdict, "{told}");
    let Finding { says, evidence, remedy, .. } = finding;
    let remedy = remedy.unwrap_or_default();
    let mut commands = remedy.commands.iter();
    let seen: Vec<String> = evidence.into_iter().flat_map(|it| [it.source, it.value]).collect();
    for (word, text) in lines.iter().filter_map(|line| line.split_once(' ')) {
        let is_true = match word {
            "says" => says == text,
            "says~" => says.contains(text),
            "seen" => seen.iter().any(|one| one == text),
            "seen~" => seen.iter().any(|one| one.contains(text)),
            "do" => remedy.says == text,
            "do~" => remedy.says.contains(text),
            "$" => commands.next().is_some_and(|one| one == text),
            "$~" => commands.next().is_some_and(|one| one.contains(text)),
            "no" => remedy.commands.is_empty() && (text == "command" || remedy.says.is_empty()),
            _ => ["with", "without", "link"].contains(&word),
        };
        assert!(is_true, "{word} {text}: {told}");
    }
    let is_any_named = lines.iter().any(|line| line.starts_with('$'));
    assert!(!is_any_named || commands.next().is_none(), "there are more commands: {told}");
}

fn changed(case: Case, line: &str) -> Case {
    match line.split_once(' ').unwrap() {
        ("with", change) => {
            let (path, text) = change.split_once(" =").unwrap();
            case.with(path, text.trim_start())
        }
        ("without", path) => case.without(path),
        ("link", change) => {
            let (path, target) = change.split_once(" -> ").unwrap();
            case.link(path, target)
        }
        _ => case,
    }
}

#[test]
fn checks_find_what_the_table_says() {
    let lines = include_str!("doctor/checks.txt").lines();
    let lines: Vec<&str> =
        lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let (mut id, mut cases) = ("", 0);
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| !line.starts_with("  ")) {
        if let Some(name) = line.strip_prefix('[') {
            id = name.trim_end_matches(']');
            continue;
        }
        let own = lines[at + 1..].iter().map_while(|line| line.strip_prefix("  "));
        examine_case(id, line, &own.collect::<Vec<_>>());
        cases += 1;
    }
    assert!(cases > 130, "{cases}");
}

#[test]
fn clocks_that_the_kernel_gave_up_are_warned_of_and_the_library_tells_of_others() {
    let verdict = |clock: Option<ClockSource>, source: &str| {
        let file = "sys/devices/system/clocksource/clocksource0/current_clocksource";
        let case = Case::of(CONTAINER, "latency").with(file, source);
        case.tried(Tried { clock, ..calm(2) }).verdict("clock.source")
    };
    let sources = ["tsc", "kvm-clock", "hpet", "acpi_pm"];
    for (clock, expected) in [
        (Some(ClockSource::Counter), [Good, Good, Warn, Warn]),
        (Some(ClockSource::Monotonic), [Info, Info, Warn, Warn]),
        (None, [Good, Unknown, Warn, Warn]),
    ] {
        assert_eq!(sources.map(|source| verdict(clock, source)), expected, "{clock:?}");
    }
}

#[test]
fn a_device_that_reads_little_at_a_time_is_told_with_the_command() {
    let record = std::fs::read_to_string(hosts::record_path(RIGHT)).unwrap();
    let config = record.lines().find_map(|line| line.split_once("/device/config = ")).unwrap().1;
    // Device Control, eight bytes into the capability at 0x60: 128 bytes for a read.
    let short = config[..0x69 * 2].to_owned() + "09" + &config[0x6a * 2..];
    let file = "sys/class/infiniband/mlx5_0/device/config";
    let short = Case::of(RIGHT, "verbs-mlx5").with(file, &short).finding("rdma.pcie");
    assert_eq!(short.says, "mlx5_0 reads memory 128 bytes at a time");
    assert_eq!(remedy(&short).1, ["setpci -s 0000:98:00.0 CAP_EXP+8.w=5000:7000"]);
}

#[test]
fn a_device_must_be_up_to_the_profile() {
    let mlx5 = Caps {
        device: "mlx5_0".to_owned(),
        work_requests: 32_768,
        reads_out: 16,
        reads_in: 16,
        memory_windows: 16_777_216,
        interrupts: 64,
    };
    let finding = |caps: Option<Result<Vec<Caps>, String>>| {
        let tried = Tried { caps, ..calm(32) };
        Case::of(RIGHT, "verbs-mlx5").tried(tried).finding("rdma.caps")
    };
    let with = |caps: Caps| finding(Some(Ok(vec![caps])));
    assert_eq!(with(mlx5.clone()).verdict, Good);
    let few = with(Caps { work_requests: 128, memory_windows: 0, ..mlx5.clone() });
    assert_eq!(few.verdict, Fail);
    assert!(few.says.contains("mlx5_0 has 128"), "{}", few.says);
    assert!(few.says.contains("mlx5_0 has no memory windows"), "{}", few.says);
    let asleep = with(Caps { interrupts: 0, ..mlx5.clone() });
    assert_eq!(asleep.says, "less than requested: the number of cores is 1, mlx5_0 has 0");
    let fewer_reads = with(Caps { reads_out: 4, ..mlx5 });
    assert_eq!(fewer_reads.verdict, Info);
    assert_eq!(fewer_reads.says, "less than requested: rpc.max_rdma_reads is 16, mlx5_0 has 4");
    assert_eq!(finding(Some(Err("no".to_owned()))).verdict, Fail);
    let without = finding(None);
    let words = "this spintune is built without verbs";
    assert_eq!((without.verdict, without.says.as_str()), (Unknown, words));
    assert_eq!(Case::of(VM, "latency").verdict("rdma.caps"), Good);
}

#[test]
fn work_on_poll_cores_and_time_taken_from_them() {
    let with = |busy, stolen, cpu| {
        let mut tried = calm(2);
        disturb(&mut tried, cpu, busy, stolen);
        Case::of(VM, "latency").tried(tried)
    };
    let busy = with(40, 0, 1).finding("load.cores");
    assert_eq!(busy.verdict, Warn);
    assert_eq!(busy.says, "other work ran on poll cores over 1000 ms: CPU 1 40 %");
    assert_eq!(with(40, 0, 0).verdict("load.cores"), Good, "CPU 0 is not polled on");
    assert_eq!(with(0, 40, 1).verdict("load.cores"), Good, "of another virtual machine");
}

#[test]
fn what_a_container_may_refuse() {
    let calls = ["memfd_create", "pidfd_open", "sendmsg with SCM_RIGHTS"];
    let refused = calls.map(|call| (call, "Operation not permitted".to_owned())).into();
    let tried = Tried { refused, ..calm(32) };
    for id in ["process.memfd", "process.pidfd", "process.descriptors"] {
        let shm = Case::of(RIGHT, "latency").tried(tried.clone()).finding(id);
        assert_eq!(shm.verdict, Fail, "{id}");
        assert!(shm.says.contains("is rejected: Operation not permitted"), "{}", shm.says);
        assert!(remedy(&shm).0.contains("seccomp"));
        assert_eq!(Case::of(RIGHT, "verbs-mlx5").tried(tried.clone()).verdict(id), Warn, "{id}");
        assert_eq!(Case::of(RIGHT, "latency").tried(calm(32)).verdict(id), Good, "{id}");
        assert_eq!(Case::of(RIGHT, "latency").verdict(id), Unknown, "{id}");
    }
}

#[test]
fn gaps_in_time_are_judged_by_the_longest() {
    let with = |longest_ns| {
        let jitter = Jitter { cpu: 1, longest_ns, gaps: 3, lost_ns: 90_000 };
        let tried = Tried { jitter: vec![Ok(jitter)], ..calm(2) };
        Case::of(VM, "latency").tried(tried).finding("probe.jitter")
    };
    assert_eq!((with(19_999).verdict, with(187_000).verdict), (Good, Warn));
    assert_eq!(with(187_000).says, "CPU 1 lost 187.0 µs at once");
    let evidence = "CPU 1: longest 187.0 µs, 3 gaps over 20 µs, 90.0 µs lost in total";
    assert_eq!(with(187_000).evidence[0].value, evidence);
    let tried = Tried { jitter: vec![Err("CPU 1: no".to_owned())], ..calm(2) };
    let refused = Case::of(VM, "latency").tried(tried).finding("probe.jitter");
    assert_eq!((refused.verdict, refused.says.as_str()), (Unknown, "CPU 1: no"));
}

#[test]
fn no_check_always_says_the_same() {
    let mut seen: BTreeMap<&str, BTreeSet<Verdict>> = BTreeMap::new();
    let hosts = [VM, GUEST, LAPTOP, CONTAINER, WRONG, RIGHT, CHIPLETS, HYBRID];
    let profiles = ["base", "latency", "verbs-mlx5"];
    let cases = hosts.iter().flat_map(|host| profiles.map(|profile| Case::of(host, profile)));
    let reports: Vec<Report> =
        cases.flat_map(|case| [case.report(), case.tried(calm(32)).report()]).collect();
    for check in reports.iter().flat_map(|report| &report.checks) {
        seen.entry(check.id).or_default().insert(check.finding.verdict);
    }
    let constant: Vec<_> = seen.iter().filter(|(_, verdicts)| verdicts.len() < 2).collect();
    // These have their own tests above: no record changes them.
    let known =
        ["clock.source", "cpus.allowed", "cpus.spare", "cpus.zero", "rdma.gids", "rdma.library"];
    let ids: Vec<_> =
        constant.iter().map(|(id, _)| **id).filter(|id| !known.contains(id)).collect();
    assert!(ids.is_empty(), "{ids:?}");
}
