//! Plans, and what doctor tells, on hosts with many CPUs, hardware threads, several L3 caches, and P and E cores.
#![allow(clippy::unwrap_used)] // helpers of tests are not marked as tests

#[path = "doctor/hosts.rs"]
#[allow(dead_code, reason = "tests of other checks use the rest")]
mod hosts;
#[path = "common/program.rs"]
#[allow(dead_code, reason = "as above")]
mod program;

use hosts::{CHIPLETS, Case, HYBRID, LAPTOP, VM, WRONG, record_path};
use spinrpc_tuning::doctor::Verdict::Ok as Good;

/// Numbers above those of one mask of the C library.
#[test]
fn a_host_with_1280_cpus_has_them_all() {
    let cpu = "sys/devices/system/cpu";
    let mut case = Case::of(VM, "throughput").without(cpu).without("proc/self/status");
    for (path, list) in
        [(format!("{cpu}/online"), "0-1279"), (format!("{cpu}/isolated"), "1024-1279")]
    {
        case = case.with(&path, list);
    }
    let case = case.with("proc/self/status", "Cpus_allowed_list:\t0-1279");
    let report = case.report();
    assert_eq!(report.cores, [1024, 1025, 1026, 1027]);
    assert_eq!(report.check("cpus.allowed").unwrap().finding.verdict, Good);
    assert_eq!(report.check("cpus.isolated").unwrap().finding.verdict, Good);
    assert_eq!(case.set("cores.list=1279").report().cores, [1279]);
}

/// Answer of a command for cores of a recorded host.
fn spintune(command: &str, host: &str, cores: &str) -> String {
    let (record, cores) = (record_path(host), format!("cores.list={cores}"));
    let arguments = [command, "--root", &record, "--profile", "latency", "--set", &cores];
    let output = program::spintune(&arguments);
    assert_eq!(output.stderr, b"");
    String::from_utf8(output.stdout).unwrap()
}

/// Expect of both the hardware threads of polled cores, and nothing that cannot be done.
#[test]
fn a_plan_names_the_cpus_that_doctor_names_and_the_daemons_that_undo_it() {
    let parameters = |text: &str| {
        let (_, rest) = text.split_once("isolcpus=").unwrap();
        rest.split_whitespace().take(4).map(str::to_owned).collect::<Vec<_>>()
    };
    for (host, cores, isolated) in [
        (CHIPLETS, "2", "managed_irq,domain,2,10"),
        (CHIPLETS, "0", "managed_irq,domain,8"),
        (LAPTOP, "4,6", "managed_irq,domain,4-7"),
        (HYBRID, "8", "managed_irq,domain,8-9"),
    ] {
        let [plan, doctor] = ["plan", "doctor"].map(|command| spintune(command, host, cores));
        assert_eq!(parameters(&plan), parameters(&doctor), "{host}");
        assert_eq!(parameters(&plan)[0], isolated, "{host}");
    }
    let script = spintune("plan", CHIPLETS, "2");
    assert!(script.contains("tuned is running"), "{script}");
    let moves = script.lines().filter(|line| line.starts_with("echo") && line.contains("/irq/"));
    let expected =
        [40, 44].map(|irq| format!("echo 0-1,3-9,11-15 > /proc/irq/{irq}/smp_affinity_list"));
    assert_eq!(moves.collect::<Vec<_>>(), expected, "queues of disks stay");
    let script = spintune("plan", "server-2s-mlx5-wrong", "20");
    assert!(script.contains("IRQBALANCE_BANNED_CPULIST=4,20\n"), "{script}");
}

#[test]
fn cores_that_are_not_pinned_may_run_on_all_cpus() {
    let case = Case::of(LAPTOP, "base").set("cores.list=any").set("cores.max=2");
    assert_eq!(case.verdict("probe.jitter"), Good);
    assert_eq!(case.report().cores, (0..16).collect::<Vec<_>>());
}

#[test]
fn huge_pages_for_cores_that_are_not_pinned_are_on_all_nodes() {
    let script = spintune("plan", WRONG, "any");
    assert!(script.contains("node1/hugepages/hugepages-2048kB"), "{script}");
}

#[test]
fn a_plan_sets_up_no_cpu_for_cores_that_are_not_pinned() {
    let script = spintune("plan", CHIPLETS, "any");
    assert!(script.contains("tuned is running"), "{script}");
    for what in ["isolcpus", "scaling_governor", "/irq/", "IRQBALANCE_BANNED_CPULIST"] {
        assert!(!script.contains(what), "{what}: {script}");
    }
}
