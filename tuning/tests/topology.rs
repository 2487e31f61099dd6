//! Doctor and plan on hosts with many CPUs, hardware threads, several L3 caches, and P and E cores.
#![allow(clippy::unwrap_used)] // helpers of tests are not marked as tests

#[path = "doctor/hosts.rs"]
#[allow(dead_code, reason = "tests of other checks use the rest")]
mod hosts;
#[path = "common/program.rs"]
#[allow(dead_code, reason = "as above")]
mod program;

use hosts::{CHIPLETS, Case, HYBRID, LAPTOP, VM, WRONG, record_path};
use spinrpc_tuning::doctor::Finding;
use spinrpc_tuning::doctor::Verdict::{Info, Ok as Good, Unknown, Warn};

fn remedy(finding: &Finding) -> (String, Vec<String>) {
    let remedy = finding.remedy.clone().unwrap();
    (remedy.says, remedy.commands)
}

#[test]
fn interrupts_that_cannot_be_moved_are_not_told_to_move() {
    let finding = |cores| Case::of(CHIPLETS, "latency").set(cores).finding("irqs.cores");
    let managed = finding("cores.list=1");
    assert_eq!((managed.verdict, managed.remedy.clone()), (Good, None));
    assert_eq!(managed.evidence[0].value, "41 (nvme0q1)");
    let both = finding("cores.list=2");
    assert_eq!(both.verdict, Warn);
    let commands = remedy(&both).1;
    assert_eq!(
        commands,
        ["for irq in 44; do echo 0-1,3-9,11-15 > /proc/irq/$irq/smp_affinity_list; done"]
    );
}

#[test]
fn cores_in_two_caches_and_slow_ones_are_told_with_better_ones() {
    let cache = |cores| Case::of(CHIPLETS, "latency").set(cores).finding("cpus.cache");
    let apart = cache("cores.list=2,6");
    assert_eq!((apart.verdict, apart.evidence[0].value.as_str()), (Info, "0-3,8-11, 4-7,12-15"));
    assert!(remedy(&apart).0.ends_with("cores.list=\"4-5\""), "{apart:?}");
    assert_eq!(cache("cores.list=2-3").verdict, Good);
    let over_rdma = Case::of(CHIPLETS, "verbs-mlx5").set("cores.list=2,6").finding("cpus.cache");
    assert_eq!((over_rdma.verdict, over_rdma.remedy), (Good, None), "these share no memory");
    assert_eq!(Case::of(VM, "latency").verdict("cpus.cache"), Unknown);

    let kind = |cores| Case::of(HYBRID, "latency").set(cores).finding("cpus.kind");
    let slow = kind("cores.list=3,9");
    assert_eq!(slow.verdict, Warn);
    assert!(slow.says.starts_with("poll core 3 is"), "{}", slow.says);
    assert!(remedy(&slow).0.ends_with("cores.list=\"8,10\""), "{slow:?}");
    assert_eq!((kind("cores.list=9").verdict, kind("cores.list=0-13").remedy), (Good, None));
    assert_eq!(Case::of(CHIPLETS, "latency").verdict("cpus.kind"), Good);
}

#[test]
fn tuned_gets_in_the_way_by_how_cores_poll() {
    let tuned = Case::of(CHIPLETS, "latency").finding("load.tuned");
    assert_eq!((tuned.verdict, tuned.evidence[0].value.as_str()), (Warn, "throughput-performance"));
    assert_eq!(Case::of(CHIPLETS, "base").verdict("load.tuned"), Info);
    assert_eq!(Case::of(LAPTOP, "latency").verdict("load.tuned"), Good);
}

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
fn cores_that_are_not_pinned_have_no_cpus_to_be_examined() {
    let case = || Case::of(LAPTOP, "base").set("cores.list=any").set("cores.max=2");
    for id in ["cpus.isolated", "cpus.tick", "cpus.zero", "cpus.smt", "irqs.cores", "probe.jitter"]
    {
        assert_eq!(case().verdict(id), Good, "{id}");
    }
    assert_eq!(case().verdict("cpus.allowed"), Good);
    assert_eq!(case().report().cores, (0..16).collect::<Vec<_>>());
}

#[test]
fn cores_that_are_not_pinned_leave_cpus_by_their_number() {
    let spare = |cores: &str, mode: &str| {
        let case =
            Case::of(LAPTOP, "base").set("cores.list=any").set(&format!("cores.max={cores}"));
        case.set(&format!("poll.mode={mode}")).verdict("cpus.spare")
    };
    assert_eq!(["2", "15", "16"].map(|cores| spare(cores, "busy")), [Good, Good, Warn]);
    assert_eq!(spare("16", "sleep"), Info);
}

#[test]
fn huge_pages_for_cores_that_are_not_pinned_are_on_all_nodes() {
    let case = Case::of(WRONG, "latency").set("cores.list=any").set("cores.max=4");
    let commands = remedy(&case.finding("memory.hugepages")).1;
    // Node 0 of this host has enough.
    let of_node_1 = "node1/hugepages/hugepages-2048kB";
    assert!(matches!(&commands[..], [one] if one.contains(of_node_1)), "{commands:?}");
    let script = spintune("plan", WRONG, "any");
    assert!(script.contains(of_node_1), "{script}");
}

#[test]
fn a_plan_sets_up_no_cpu_for_cores_that_are_not_pinned() {
    let script = spintune("plan", CHIPLETS, "any");
    assert!(script.contains("tuned is running"), "{script}");
    for what in ["isolcpus", "scaling_governor", "/irq/", "IRQBALANCE_BANNED_CPULIST"] {
        assert!(!script.contains(what), "{what}: {script}");
    }
}
