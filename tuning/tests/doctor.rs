//! The checks, each on hosts without and with the problem.
#![allow(clippy::unwrap_used)] // helpers of tests are not marked as tests

#[path = "doctor/hosts.rs"]
mod hosts;

use hosts::{CHIPLETS, CONTAINER, Case, GUEST, HYBRID, LAPTOP, RIGHT, VM, WRONG, calm, disturb};
use spinrpc::sys::clock::ClockSource;
use spinrpc_tuning::doctor::Verdict::{Fail, Info, Ok as Good, Unknown, Warn};
use spinrpc_tuning::doctor::{Caps, Finding, Hop, Jitter, Report, Tried, Verdict};
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
    let summary = "doctor: 1 failure, 9 warnings, 7 notes, 13 unknown on node7 for profile \
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
fn good_is_without_failures_and_strictly_without_warnings() {
    let right = Case::of(RIGHT, "verbs-mlx5").report();
    assert!(right.is_good(false) && right.is_good(true));
    let laptop = Case::of(LAPTOP, "latency").report();
    assert!(laptop.is_good(false) && !laptop.is_good(true));
    assert!(!Case::of(CONTAINER, "latency").report().is_good(false));
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

#[test]
fn names_of_a_host_are_harmless_in_commands_and_on_a_terminal() {
    let netdev = "sys/class/net/a;reboot";
    let case = Case::of(VM, "verbs-rxe").with(&format!("{netdev}/operstate"), "up");
    let (_, commands) = remedy(&case.finding("rdma.devices"));
    assert!(commands[0].ends_with("netdev 'a;reboot'"), "{commands:?}");
    let case = Case::of(VM, "base")
        .with("proc/sys/kernel/hostname", "x\u{1b}[2Jy")
        .with("sys/class/infiniband/m\u{1b}[2J/node_type", "1: CA");
    assert!(!case.report().render(true).contains('\u{1b}'));
}

#[test]
fn cores_that_must_not_be_used_are_named_with_those_that_may() {
    let finding = Case::of(CONTAINER, "latency").set("cores.list=4-6").finding("cpus.allowed");
    assert_eq!(finding.verdict, Fail);
    assert_eq!(finding.says, "this process is not allowed to run on poll core 6, only on CPUs 2-5");
    assert_eq!(finding.evidence[0].source, "/proc/self/status Cpus_allowed_list");
    assert_eq!(finding.evidence[1].value, "2-5");
    let (says, commands) = remedy(&finding);
    assert!(says.contains("--cpuset-cpus=4-6"), "{says}");
    assert_eq!(commands, ["taskset -c 4-6 COMMAND"]);
    let few = Case::of(VM, "throughput").finding("cpus.allowed");
    assert_eq!(few.verdict, Info);
    assert_eq!(few.says, "2 of the 4 cores that cores.max requests fit");
    assert_eq!(Case::of(VM, "base").verdict("cpus.allowed"), Good);
}

#[test]
fn a_quota_stops_cores_that_poll_all_the_time() {
    let case = |sets: &[&str]| {
        let case = Case::of(CONTAINER, "latency");
        sets.iter().fold(case, |case, set| case.set(set)).finding("cpus.quota")
    };
    let two = case(&["cores.list=2-3"]);
    assert_eq!(two.verdict, Fail);
    assert!(two.says.starts_with("a quota of 1.5 CPUs"), "{}", two.says);
    assert_eq!(two.evidence[0].value, "150000 of 100000 µs");
    assert_eq!(two.evidence[1].value, "1934");
    assert_eq!(case(&[]).verdict, Warn, "one core fits, with little to spare");
    assert_eq!(case(&["cores.list=2-3", "poll.mode=adaptive"]).verdict, Warn);
    assert_eq!(case(&["poll.mode=sleep"]).verdict, Info);
    assert_eq!(Case::of(VM, "latency").verdict("cpus.quota"), Good);
}

#[test]
fn a_cpu_must_be_left_for_the_rest() {
    let all = |mode: &str| {
        Case::of(VM, "latency").set("cores.list=0-1").set(&format!("poll.mode={mode}"))
    };
    assert_eq!(all("busy").verdict("cpus.spare"), Fail);
    assert_eq!(all("adaptive").verdict("cpus.spare"), Info);
    assert_eq!(Case::of(VM, "latency").verdict("cpus.spare"), Good);
    let boot = all("busy").finding("cpus.isolated").remedy.unwrap().says;
    assert!(boot.ends_with("isolcpus=managed_irq,domain,1 nohz_full=1 rcu_nocbs=1 irqaffinity=0"));
    let zero = Case::of(VM, "latency").set("cores.list=0").finding("cpus.isolated");
    assert!(remedy(&zero).0.starts_with("No poll core of this host can be isolated"));
}

#[test]
fn cores_to_isolate_are_named_with_their_threads_and_the_rest() {
    let finding = Case::of(LAPTOP, "latency").set("cores.list=4,6").finding("cpus.isolated");
    assert_eq!(finding.says, "poll cores 4,6 are not isolated: any task may run there");
    let (says, _) = remedy(&finding);
    let wanted = "isolcpus=managed_irq,domain,4-7 nohz_full=4-7 rcu_nocbs=4-7 irqaffinity=0-3,8-15";
    assert!(says.ends_with(wanted), "{says}");
    let right = Case::of(RIGHT, "latency");
    assert_eq!((right.verdict("cpus.isolated"), right.verdict("cpus.tick")), (Good, Good));
    let zero = Case::of(LAPTOP, "latency").set("cores.list=0").finding("cpus.isolated");
    assert!(
        remedy(&zero)
            .0
            .ends_with("isolcpus=managed_irq,domain,1 nohz_full=1 rcu_nocbs=1 irqaffinity=2-15")
    );
}

#[test]
fn cpu_0_is_no_place_to_poll() {
    let finding = Case::of(LAPTOP, "latency").set("cores.list=0").finding("cpus.zero");
    assert_eq!(finding.verdict, Warn);
    assert_eq!(remedy(&finding).0, "Poll on other CPUs: cores.list=\"2\"");
    assert_eq!(Case::of(LAPTOP, "latency").verdict("cpus.zero"), Good);
}

#[test]
fn threads_of_one_physical_core_are_not_two_cores() {
    let smt = |cores: &str| {
        Case::of(LAPTOP, "latency").set(&format!("cores.list={cores}")).finding("cpus.smt")
    };
    let both = smt("2-3");
    assert_eq!(both.verdict, Warn);
    assert_eq!(both.says, "poll cores 2-3 share physical cores with each other");
    let shared = smt("2");
    assert_eq!(shared.says, "CPU 3 shares physical cores with poll cores");
    let file = "/sys/devices/system/cpu/cpu3/online";
    assert_eq!(remedy(&shared).1, [format!("echo 0 > {file}  # to undo: echo 1 > {file}")]);
    assert!(remedy(&smt("1")).1.is_empty(), "CPU 0 cannot be taken offline");
    assert_eq!(Case::of(RIGHT, "latency").verdict("cpus.smt"), Good);
    assert_eq!(Case::of(VM, "latency").verdict("cpus.smt"), Good);
}

#[test]
fn interrupts_on_poll_cores_are_named_and_sent_to_cpus_that_nobody_polls_on() {
    let finding = Case::of(WRONG, "latency").set("cores.list=10").finding("irqs.cores");
    assert_eq!(finding.verdict, Warn);
    let says = "2 of 27 interrupts go to poll core 10 or to CPU 26, on the same physical cores";
    assert_eq!(finding.says, says);
    let seen = "64 (mlx5_comp2@pci:0000:98:00.0), 72 (mlx5_comp10@pci:0000:98:00.0)";
    assert_eq!(finding.evidence[0].value, seen);
    let command =
        "for irq in 64 72; do echo 4-9,11-25,27-31 > /proc/irq/$irq/smp_affinity_list; done";
    assert_eq!(remedy(&finding).1, [command], "and not to isolated ones");
    assert_eq!(Case::of(RIGHT, "latency").verdict("irqs.cores"), Good);
    let all = Case::of(VM, "latency").set("cores.list=0-1").finding("irqs.cores");
    assert!(remedy(&all).1.is_empty(), "there is no other CPU");
    let none = Case::of(VM, "latency").without("proc/irq");
    assert_eq!(none.verdict("irqs.cores"), Unknown);
}

#[test]
fn irqbalance_leaves_isolated_cpus_alone() {
    assert_eq!(Case::of(WRONG, "latency").verdict("irqs.irqbalance"), Good);
    let other = Case::of(WRONG, "latency").set("cores.list=10").finding("irqs.irqbalance");
    let stop = "systemctl stop irqbalance  # to undo: systemctl start irqbalance";
    assert_eq!(remedy(&other).1, [stop]);
    assert_eq!(other.verdict, Warn);
    assert!(remedy(&other).0.contains("IRQBALANCE_BANNED_CPULIST=10,26 "));
}

#[test]
fn frequencies_and_sleep_states_of_poll_cores() {
    let wrong = Case::of(WRONG, "latency");
    let governor = wrong.finding("power.governor");
    assert_eq!(governor.verdict, Warn);
    assert_eq!(remedy(&governor).1, ["cpupower -c 1 frequency-set -g performance"]);
    assert_eq!((wrong.verdict("power.boost"), wrong.verdict("power.idle")), (Info, Info));
    let parked = Case::of(WRONG, "base").finding("power.idle");
    assert_eq!(parked.verdict, Warn);
    assert_eq!(parked.evidence[0].value, "C6 takes 170 µs");
    let right = Case::of(RIGHT, "latency");
    for id in ["power.governor", "power.boost", "power.idle"] {
        assert_eq!(right.verdict(id), Good, "{id}");
    }
    assert_eq!(
        Case::of(VM, "latency").verdict("power.governor"),
        Good,
        "managed by the hypervisor"
    );
    let silent = Case::of(VM, "latency").without("proc/cpuinfo");
    assert_eq!(silent.verdict("power.governor"), Unknown);
}

#[test]
fn an_engine_that_keeps_cpus_awake_must_be_let_do_it() {
    let with = |host| Case::of(host, "base").set("host.cpu_dma_latency_us=0").finding("power.idle");
    assert_eq!(with(VM).verdict, Good);
    assert_eq!(with(LAPTOP).verdict, Fail);
    assert_eq!(remedy(&with(LAPTOP)).1, ["setfacl -m u:$USER:rw /dev/cpu_dma_latency"]);
    assert_eq!(with(CONTAINER).verdict, Fail, "there is no such device in it");
    let may = Case::of(LAPTOP, "base").without("dev").with("dev/cpu_dma_latency", "writable");
    assert!(remedy(&may.finding("power.idle")).0.contains("host.cpu_dma_latency_us=0"));
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
        (Some(ClockSource::Tsc), [Good, Good, Warn, Warn]),
        (Some(ClockSource::Monotonic), [Info, Info, Warn, Warn]),
        (None, [Good, Unknown, Warn, Warn]),
    ] {
        assert_eq!(sources.map(|source| verdict(clock, source)), expected, "{clock:?}");
    }
}

#[test]
fn memory_must_have_room_for_cores_and_a_connection() {
    let finding = Case::of(CONTAINER, "latency").finding("memory.room");
    assert_eq!(finding.verdict, Fail);
    assert_eq!(finding.evidence[1].value, "96 MiB, of which 30 MiB are used");
    let small = Case::of(CONTAINER, "dev-vm").finding("memory.room");
    assert_eq!(small.verdict, Good);
    assert!(small.says.contains("room for "), "{}", small.says);
    let verbs = Case::of(RIGHT, "verbs-mlx5").verdict("memory.room");
    assert_eq!(verbs, Good);
}

#[test]
fn memory_that_cannot_be_locked_is_none_for_a_device() {
    let verbs = Case::of(WRONG, "verbs-mlx5").finding("memory.lock");
    assert_eq!((verbs.verdict, verbs.evidence[0].value.as_str()), (Fail, "64 KiB"));
    assert!(remedy(&verbs).0.contains("LimitMEMLOCK=infinity"));
    assert_eq!(Case::of(RIGHT, "verbs-mlx5").verdict("memory.lock"), Good);
    let shm = |lock: &str| {
        Case::of(WRONG, "latency").set(&format!("mem.lock={lock}")).verdict("memory.lock")
    };
    assert_eq!(["off", "try", "require"].map(shm), [Good, Info, Fail]);
    assert_eq!(Case::of(VM, "latency").verdict("memory.lock"), Good, "root may lock any amount");
    let hard = "Max locked memory 65536 unlimited bytes";
    let raised = Case::of(WRONG, "verbs-mlx5").with("proc/self/limits", hard);
    assert_eq!(raised.verdict("memory.lock"), Good, "programs raise it themselves");
}

#[test]
fn huge_pages_are_reserved_on_the_nodes_of_cores() {
    let want = |want: &str| {
        let case = Case::of(WRONG, "latency").set("cores.list=9-10").set("rpc.credits=64");
        case.set(&format!("mem.hugepages={want}")).finding("memory.hugepages")
    };
    let tried = want("try");
    assert_eq!(tried.verdict, Warn);
    assert_eq!(tried.says, "arenas use small pages: 0 of 64 pages of 2 MiB are free on node 1");
    let file = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages";
    assert_eq!(remedy(&tried).1, [format!("echo 64 > {file}")]);
    assert_eq!((want("require").verdict, want("off").verdict), (Fail, Good));
    assert_eq!(Case::of(RIGHT, "latency").verdict("memory.hugepages"), Good);
    let some = "sys/devices/system/node/node1/hugepages/hugepages-2048kB";
    let few = Case::of(RIGHT, "latency").with(&format!("{some}/free_hugepages"), "30");
    let few = few.finding("memory.hugepages");
    assert_eq!(remedy(&few).1, [format!("echo 1026 > {file}")], "two more than there are");
}

#[test]
fn what_moves_pages_about() {
    let (wrong, right) = (Case::of(WRONG, "latency"), Case::of(RIGHT, "latency"));
    for (id, bad) in [
        ("memory.thp", Warn),
        ("memory.khugepaged", Info),
        ("memory.ksm", Warn),
        ("memory.numa_balancing", Warn),
        ("kernel.watchdogs", Info),
        ("kernel.stat_interval", Info),
        ("kernel.timer_migration", Info),
    ] {
        assert_eq!((right.verdict(id), wrong.verdict(id)), (Good, bad), "{id}");
        assert!(!remedy(&wrong.finding(id)).1.is_empty(), "{id}");
    }
    let one_node = Case::of(VM, "latency").with("proc/sys/kernel/numa_balancing", "1");
    assert_eq!(one_node.verdict("memory.numa_balancing"), Good);
    let never = "sys/kernel/mm/transparent_hugepage/enabled";
    let never = Case::of(WRONG, "latency").with(never, "always madvise [never]");
    assert_eq!(never.verdict("memory.khugepaged"), Good);
}

#[test]
fn no_device_is_no_matter_to_shared_memory() {
    assert_eq!(Case::of(VM, "latency").verdict("rdma.devices"), Good);
    let finding = Case::of(VM, "verbs-rxe").with("sys/class/net/ens3/operstate", "up");
    let finding = finding.finding("rdma.devices");
    assert_eq!(finding.verdict, Fail);
    let command = "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev ens3";
    assert_eq!(remedy(&finding).1, [command]);
    assert_eq!(Case::of(GUEST, "verbs-rxe").verdict("rdma.devices"), Good);
}

#[test]
fn a_device_without_its_files_or_with_another_name_is_of_no_use() {
    let finding = |case: Case| {
        let finding = case.finding("rdma.devices");
        (finding.verdict, remedy(&finding).1.join(" "), finding.says)
    };
    let (verdict, command, _) = finding(Case::of(GUEST, "verbs-rxe").without("dev/infiniband"));
    assert_eq!((verdict, command.as_str()), (Fail, "modprobe ib_uverbs"));
    let (_, command, _) = finding(Case::of(GUEST, "verbs-rxe").without("dev/infiniband/rdma_cm"));
    assert_eq!(command, "modprobe rdma_ucm");
    let (_, _, says) = finding(Case::of(GUEST, "verbs-rxe").set("verbs.device=mlx5_0"));
    assert_eq!(says, "no device mlx5_0 (verbs.device), but rxe0, siw0");
    let shm = Case::of(GUEST, "latency").without("dev/infiniband").verdict("rdma.devices");
    assert_eq!(shm, Info, "only profiles for verbs fail");
}

#[test]
fn a_port_must_work() {
    let port = "sys/class/infiniband/mlx5_0/ports/1/state";
    let down = |profile| Case::of(RIGHT, profile).with(port, "1: DOWN");
    let finding = down("verbs-mlx5").finding("rdma.ports");
    assert_eq!(
        (finding.verdict, finding.says.as_str()),
        (Fail, "no active port: mlx5_0/1 is DOWN")
    );
    assert_eq!(down("latency").verdict("rdma.ports"), Info);
    assert_eq!(Case::of(RIGHT, "verbs-mlx5").verdict("rdma.ports"), Good);
    let one =
        Case::of(GUEST, "verbs-rxe").with("sys/class/infiniband/siw0/ports/1/state", "1: DOWN");
    assert_eq!(one.finding("rdma.ports").says, "some active; siw0/1 is DOWN");
    assert_eq!(Case::of(VM, "verbs-rxe").verdict("rdma.ports"), Unknown);
}

#[test]
fn the_address_of_an_infiniband_peer_is_its_own_claim() {
    let layer = "sys/class/infiniband/mlx5_0/ports/1/link_layer";
    let found = Case::of(RIGHT, "verbs-mlx5").with(layer, "InfiniBand").finding("rdma.gids");
    assert_eq!(found.verdict, Info);
    assert!(found.says.contains("its own claim"), "{}", found.says);
}

#[test]
fn roce_goes_by_addresses_of_its_network_interface() {
    assert_eq!(Case::of(RIGHT, "verbs-mlx5").verdict("rdma.gids"), Good);
    let types = "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types";
    let old = Case::of(RIGHT, "verbs-mlx5")
        .without(&format!("{types}/1"))
        .without(&format!("{types}/3"))
        .finding("rdma.gids");
    assert_eq!((old.verdict, old.says.as_str()), (Fail, "port mlx5_0/1 has none"));
    assert_eq!(remedy(&old).1[1], "ip address add ADDRESS/24 dev ens8np0");
    let mtu = Case::of(WRONG, "verbs-mlx5").finding("rdma.mtu");
    assert_eq!(mtu.verdict, Info);
    assert_eq!(remedy(&mtu).1, ["ip link set dev ens8np0 mtu 9000"]);
    assert_eq!(Case::of(RIGHT, "verbs-mlx5").verdict("rdma.mtu"), Good);
    assert_eq!(Case::of(GUEST, "verbs-rxe").verdict("rdma.mtu"), Good, "software needs no more");
}

#[test]
fn cores_lie_beside_their_device() {
    let finding = Case::of(WRONG, "verbs-mlx5").set("cores.list=1-2,10").finding("rdma.node");
    assert_eq!(finding.verdict, Warn);
    assert_eq!(finding.says, "mlx5_0 is on node 1, and poll cores 1-2 are not");
    assert_eq!(remedy(&finding).0, "Poll on CPUs near the device: cores.list=\"8-10\"");
    assert_eq!(Case::of(WRONG, "latency").verdict("rdma.node"), Info, "the profile uses shm");
    assert_eq!(Case::of(RIGHT, "verbs-mlx5").verdict("rdma.node"), Good);
    let far = Case::of(RIGHT, "verbs-mlx5").set("cores.list=3").finding("rdma.node");
    assert_eq!(
        remedy(&far).0,
        "Poll on CPUs near the device: cores.list=\"10\"",
        "an isolated one"
    );
}

#[test]
fn a_device_has_all_of_its_connection() {
    let finding = Case::of(WRONG, "verbs-mlx5").finding("rdma.pcie");
    assert_eq!(
        (finding.verdict, finding.says.as_str()),
        (Warn, "mlx5_0 is connected with 8 of 16 lanes")
    );
    assert_eq!(Case::of(RIGHT, "verbs-mlx5").verdict("rdma.pcie"), Good);
    let folder = "sys/class/infiniband/mlx5_0/device";
    let slow = Case::of(RIGHT, "verbs-mlx5")
        .with(&format!("{folder}/current_link_speed"), "8.0 GT/s PCIe")
        .finding("rdma.pcie");
    assert_eq!(slow.says, "mlx5_0 is connected with 8 of 16 GT/s");
    let record = std::fs::read_to_string(hosts::record_path(RIGHT)).unwrap();
    let config = record.lines().find_map(|line| line.split_once("/device/config = ")).unwrap().1;
    // Device Control, eight bytes into the capability at 0x60: 128 bytes for a read.
    let short = config[..0x69 * 2].to_owned() + "09" + &config[0x6a * 2..];
    let short = Case::of(RIGHT, "verbs-mlx5").with(&format!("{folder}/config"), &short);
    let short = short.finding("rdma.pcie");
    assert_eq!(short.says, "mlx5_0 reads memory 128 bytes at a time");
    assert_eq!(remedy(&short).1, ["setpci -s 0000:98:00.0 CAP_EXP+8.w=5000:7000"]);
}

#[test]
fn counters_that_rise_are_named() {
    let counters = |count| BTreeMap::from([("mlx5_0/1 out_of_sequence".to_owned(), count)]);
    let mut tried = calm(32);
    (tried.counters_before, tried.counters_after) = (counters(5120), counters(5127));
    let finding = Case::of(WRONG, "verbs-mlx5").tried(tried.clone()).finding("rdma.counters");
    assert_eq!(finding.verdict, Warn);
    assert_eq!(finding.says, "increased over 1000 ms: mlx5_0/1 out_of_sequence +7");
    tried.counters_after = counters(5120);
    let still = Case::of(WRONG, "verbs-mlx5").tried(tried).finding("rdma.counters");
    assert_eq!(still.verdict, Good);
    assert!(still.evidence[0].value.contains("out_of_sequence 5120"), "{:?}", still.evidence);
    let read = Case::of(WRONG, "verbs-mlx5").finding("rdma.counters");
    assert_eq!(read.verdict, Unknown);
    assert!(read.evidence[0].value.contains("rnr_nak_retry_err 12"), "{:?}", read.evidence);
}

#[test]
fn the_library_must_be_there_and_new_enough() {
    let link = "usr/lib/x86_64-linux-gnu/libibverbs.so.1";
    let missing = |profile| Case::of(RIGHT, profile).without(link).verdict("rdma.library");
    assert_eq!((missing("verbs-mlx5"), missing("latency")), (Fail, Good));
    let right = Case::of(RIGHT, "verbs-mlx5").finding("rdma.library");
    assert_eq!((right.verdict, right.says.as_str()), (Good, "rdma-core 44.0"));
    // The driver in rdma-core 44 is one of hns that leaves fields of earlier requests in place.
    let driver = "sys/class/infiniband/mlx5_0/device/driver";
    let of = |name: &str| {
        let target = format!("../../../../bus/pci/drivers/{name}");
        Case::of(RIGHT, "verbs-mlx5").link(driver, &target).finding("rdma.library")
    };
    for (name, commit, release) in [("hns3", "15adbcf23", "61"), ("bnxt_en", "68f59cd6b", "57")] {
        let found = of(name);
        assert_eq!(found.verdict, Warn, "{name}");
        let is_named = found.says.contains("mlx5_0: ") && found.says.contains(commit);
        assert!(is_named && remedy(&found).0.contains(release), "{found:?}");
    }
    assert_eq!(of("erdma").verdict, Good);
    let record = "# spintune record 1\n";
    let tree = |name: &str| {
        let record = format!("{record}usr/lib64/libibverbs.so.1 -> {name}\n");
        spinrpc_tuning::host::Tree::record(record.parse().unwrap())
    };
    let version =
        |name: &str| spinrpc_tuning::host::HostFacts::read(&tree(name)).rdma.library_version;
    assert_eq!(version("libibverbs.so.1.5.22.1").as_deref(), Some("22.1"));
    assert_eq!(version("libibverbs.so.1.0"), None);
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
fn a_busy_host_is_warned_of() {
    let busy = Case::of(VM, "base").with("proc/loadavg", "2.30 1.00 0.50 3/100 4");
    assert_eq!(busy.verdict("load.average"), Warn);
    let calm = Case::of(VM, "base").with("proc/loadavg", "0.30 1.00 0.50 3/100 4");
    assert_eq!(calm.verdict("load.average"), Good);
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
    let stolen = with(0, 3, 1).finding("load.steal");
    assert_eq!(
        (stolen.verdict, stolen.says.as_str()),
        (Warn, "30 ms were stolen from poll core 1 in 1000 ms")
    );
    assert_eq!(with(0, 3, 0).verdict("load.steal"), Good);
}

#[test]
fn of_a_host_that_was_read_only_counts_what_was_taken_since_its_start() {
    assert_eq!(Case::of(CONTAINER, "latency").verdict("load.steal"), Warn);
    assert_eq!(Case::of(RIGHT, "latency").verdict("load.steal"), Good);
}

#[test]
fn tasks_that_go_first() {
    let finding = Case::of(WRONG, "latency").finding("load.realtime");
    assert_eq!(finding.verdict, Warn);
    assert!(finding.says.ends_with("ptp4l (thread 1514, priority 40)"), "{}", finding.says);
    assert_eq!(remedy(&finding).1, ["taskset -pc 4-16,18-31 1514"]);
    let elsewhere = Case::of(WRONG, "latency").set("cores.list=2").verdict("load.realtime");
    assert_eq!(elsewhere, Good);
}

#[test]
fn what_a_container_may_refuse() {
    let refused = || Some("Operation not permitted".to_owned());
    let tried = Tried {
        memfd_refused: refused(),
        pidfd_refused: refused(),
        descriptors_refused: refused(),
        ..calm(32)
    };
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
fn sockets_that_were_left_behind() {
    let mut tried = calm(2);
    tried.listeners = vec!["shm:echo".to_owned()];
    let none = Case::of(VM, "base").tried(tried.clone()).finding("process.sockets");
    assert_eq!((none.verdict, none.says.as_str()), (Good, "none; listening: shm:echo"));
    tried.stale_sockets = vec!["/run/spin-echo.sock".to_owned()];
    let stale = Case::of(VM, "base").tried(tried).finding("process.sockets");
    assert_eq!(stale.verdict, Info);
    assert_eq!(remedy(&stale).1, ["rm /run/spin-echo.sock"]);
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
fn hops_are_told_best_first() {
    let hop = |from, to, round_trip_ns| Hop { from, to, round_trip_ns };
    let hops = vec![hop(1, 0, 210.4), hop(1, 2, 88.0), hop(0, 2, 150.0)];
    let tried = Tried { hops, ..calm(16) };
    let finding = Case::of(LAPTOP, "latency").tried(tried).finding("probe.hops");
    assert_eq!(finding.verdict, Info);
    assert_eq!(finding.says, "of 3 pairs the best is 1-2 88 ns, the worst 1-0 210 ns");
    assert_eq!(finding.evidence[0].value, "1-2 88 ns, 0-2 150 ns, 1-0 210 ns");
    let none = Tried { hops: Vec::new(), ..calm(16) };
    assert_eq!(Case::of(LAPTOP, "latency").tried(none).verdict("probe.hops"), Unknown);
}

const CONF: &str = "etc/krb5.conf";
const KEYTAB: &str = "etc/krb5.keytab";
const TCP: &str = "proc/net/tcp";
const LISTENS: &str = "1: 00000000:0801 00000000:0000 0A 0:0 0:0 0 1000 0 4711 1";

/// A host that is set up for Kerberos.
fn kerberos() -> Case {
    Case::of(VM, "base")
        .with(CONF, "default_realm = SPIN.TEST")
        .with(KEYTAB, "mode 0600, owner 0, readable")
        .with("proc/self/status", "Uid: 0 0 0 0")
        .with(TCP, "")
        .with("proc/cpuinfo", "flags : fpu aes sha_ni")
}

#[test]
fn a_host_that_is_set_up_for_kerberos_is_good_and_one_without_it_too() {
    for id in ["kerberos.keytab", "kerberos.port", "kerberos.instructions"] {
        assert_eq!(kerberos().verdict(id), Good, "{id}");
    }
    assert_eq!(Case::of(VM, "base").verdict("kerberos.keytab"), Good);
    for id in ["kerberos.port", "kerberos.instructions"] {
        assert_eq!(Case::of(VM, "base").verdict(id), Unknown, "an older record: {id}");
    }
}

#[test]
fn a_keytab_that_others_can_read_or_change_is_told_with_the_command() {
    let of = |permissions: &str, user: u32| {
        let status = format!("Uid: {user} {user} {user} {user}");
        let case = kerberos().with(KEYTAB, permissions).with("proc/self/status", &status);
        case.finding("kerberos.keytab")
    };
    for mode in ["0644", "0604", "0602", "0601", "0777"] {
        let finding = of(&format!("mode {mode}, owner 0, readable"), 0);
        assert_eq!(finding.verdict, Fail, "{mode}");
        assert!(remedy(&finding).0.contains("change the keys"));
        assert_eq!(remedy(&finding).1, ["chmod o= /etc/krb5.keytab"]);
    }
    assert_eq!(of("mode 0640, owner 0, readable", 0).verdict, Good);
    assert_eq!(of("mode 0600, owner 7, readable", 7).verdict, Good);
    let other = of("mode 0600, owner 7, readable", 0);
    assert_eq!((other.verdict, remedy(&other).1), (Info, vec![]), "the server may be of user 7");
    let group = of("mode 0660, owner 0, readable", 0);
    assert_eq!(
        (group.verdict, remedy(&group).1),
        (Warn, vec!["chmod g-w /etc/krb5.keytab".into()])
    );
    let unread = of("mode 0600, owner 0", 7);
    assert_eq!(unread.verdict, Info);
    assert!(remedy(&unread).0.contains("--keytab"));
    let device = of("mode 0666, owner 0, readable, not a file", 0);
    assert_eq!((device.verdict, remedy(&device).1), (Warn, vec![]));
    // Nothing of a record that is not understood counts.
    for odd in
        ["", "mode 0600", "mode 9999, owner 0", "mode 177777, owner 0", "mode 0644, owner -1"]
    {
        assert_eq!(of(odd, 0).verdict, Good, "{odd}");
    }
}

#[test]
fn who_has_port_2049_is_told_as_far_as_it_is_known() {
    let taken = kerberos().with(TCP, LISTENS);
    let finding = taken.finding("kerberos.port");
    assert_eq!(finding.verdict, Info, "it may be spin-nfsd, which this user cannot see");
    assert_eq!(
        (&finding.says[..], &remedy(&finding).1[..]),
        (
            "taken, by a socket of user 1000; its program is not visible",
            &["ss -ltnp sport = :2049".to_owned()][..]
        )
    );
    let kernel = kerberos().with(TCP, LISTENS).with("proc/net/rpc/nfsd", "th 8 0 0.000");
    let finding = kernel.finding("kerberos.port");
    assert!(finding.says.contains("NFS server of the kernel"), "{}", finding.says);
    assert_eq!(finding.verdict, Info, "its clients are not to lose it");
    assert_eq!(remedy(&finding).1, ["ss -ltnp sport = :2049"]);
    let stopped = kerberos().with(TCP, LISTENS).with("proc/net/rpc/nfsd", "th 0 0 0.000");
    assert!(stopped.finding("kerberos.port").says.contains("user 1000"));
    let held = |by: &[&str]| {
        let nfs_port_holders = by.iter().map(|name| (*name).to_owned()).collect();
        let tried = Tried { nfs_port_holders, ..calm(2) };
        kerberos().with("proc/net/tcp6", LISTENS).tried(tried)
    };
    assert_eq!(held(&["spin-nfsd"]).verdict("kerberos.port"), Good);
    let ganesha = held(&["ganesha.nfsd"]).finding("kerberos.port");
    assert_eq!((ganesha.verdict, &ganesha.says[..]), (Warn, "ganesha.nfsd has it"));
    let both = held(&["other", "spin-nfsd"]);
    assert_eq!(both.verdict("kerberos.port"), Warn);
    assert_eq!(both.without(CONF).verdict("kerberos.port"), Info, "it does nothing by Kerberos");
    // Other ports, and connections from and to the port.
    for line in [LISTENS.replace("0801", "0802"), LISTENS.replace(" 0A ", " 01 ")] {
        assert_eq!(kerberos().with(TCP, &line).verdict("kerberos.port"), Good, "{line}");
    }
}

#[test]
fn a_processor_without_aes_or_sha_is_a_warning_where_kerberos_is_used() {
    let of = |flags: &str| kerberos().with("proc/cpuinfo", flags);
    for (flags, missing) in [
        ("flags : fpu hypervisor", "AES and SHA"),
        ("flags : fpu sha_ni", "AES"),
        ("flags : fpu aes", "SHA"),
        ("Features : fp aes", "SHA"),
    ] {
        let finding = of(flags).finding("kerberos.instructions");
        assert_eq!(finding.verdict, Warn, "{flags}");
        assert!(finding.says.contains(&format!("for {missing}:")), "{flags}: {}", finding.says);
        assert_eq!(of(flags).without(KEYTAB).verdict("kerberos.instructions"), Info);
    }
    let guest = of("flags : fpu hypervisor").finding("kerberos.instructions");
    assert!(remedy(&guest).0.contains("hypervisor"));
    assert_eq!(of("Features : fp aes sha2").verdict("kerberos.instructions"), Good);
    assert_eq!(of("flags : constant_tsc").verdict("kerberos.instructions"), Unknown);
}

/// Every check that can pass was seen both passing and not passing on some host.
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
    let known = [
        "clock.source",
        "cpus.allowed",
        "cpus.spare",
        "cpus.zero",
        "rdma.gids",
        "rdma.library",
        "kerberos.keytab",
        "kerberos.port",
        "kerberos.instructions",
    ];
    let ids: Vec<_> =
        constant.iter().map(|(id, _)| **id).filter(|id| !known.contains(id)).collect();
    assert!(ids.is_empty(), "{ids:?}");
}
