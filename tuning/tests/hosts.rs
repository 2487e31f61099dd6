//! The readers of facts, against records of hosts. See `hosts/README.md`.
#![allow(clippy::unwrap_used)] // helpers of tests are not marked as tests

mod common;

use common::{Folder, hosts, record_path};
use spinrpc::sys::affinity::CpuSet;
use spinrpc_tuning::host::{HostFacts, Irq, Memory, Permissions, Record, Tree};
use spinrpc_tuning::rdma::Transport;
use std::path::{Path, PathBuf};

fn tree(name: &str) -> Tree {
    Tree::open(Path::new(&record_path(name))).unwrap()
}

fn facts(name: &str) -> HostFacts {
    HostFacts::read(&tree(name))
}

/// A host with these lines only.
fn lines(lines: &str) -> Tree {
    Tree::record(format!("# spintune record 1\n{lines}").parse().unwrap())
}

fn cpus(list: &str) -> Option<CpuSet> {
    Some(list.parse().unwrap())
}

#[test]
fn a_record_of_a_record_gives_the_same_facts() {
    for name in &hosts() {
        let again = HostFacts::record(tree(name));
        let again: Record = again.to_string().parse().unwrap();
        assert_eq!(HostFacts::read(&Tree::record(again)), facts(name), "{name}");
    }
}

#[test]
fn a_copy_of_the_files_gives_the_same_facts_as_the_record() {
    let folder = Folder::new("copy");
    let text = std::fs::read_to_string(record_path("server-2s-mlx5-wrong")).unwrap();
    let files = text.lines().filter(|line| !line.starts_with('#'));
    for (path, content) in files.filter_map(|line| line.split_once(" = ")) {
        // Binary files and links in records have their own tests.
        if !path.ends_with("/config") {
            let path = PathBuf::from(folder.path(path));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content.replace("\\n", "\n") + "\n").unwrap();
        }
    }
    let copy = HostFacts::read(&Tree::open(Path::new(&folder.path(""))).unwrap());
    let record = facts("server-2s-mlx5-wrong");
    assert_eq!(copy.cpus, record.cpus);
    assert_eq!(copy.irqs, record.irqs);
    assert_eq!(copy.memory, record.memory);
    assert_eq!(copy.kernel, record.kernel);
    assert_eq!(copy.cgroup, record.cgroup);
    assert_eq!(copy.tasks, record.tasks);
    assert_eq!((copy.times, copy.counters), (record.times, record.counters));
}

#[test]
fn this_host_gives_the_same_facts_by_its_record() {
    let record = HostFacts::record(Tree::host());
    let by_record = HostFacts::read(&Tree::record(record.to_string().parse().unwrap()));
    let facts = HostFacts::read(&Tree::host());
    assert!(facts.cpus.online.is_some() && facts.cpus.allowed.is_some());
    assert_eq!(by_record.cpus, facts.cpus);
    assert_eq!(by_record.power, facts.power);
    assert_eq!(by_record.clock, facts.clock);
    assert_eq!(by_record.kernel, facts.kernel);
    assert_eq!(by_record.process, facts.process);
}

#[test]
fn a_host_that_tells_nothing_gives_facts_without_any() {
    let folder = Folder::new("nothing");
    for tree in [lines(""), Tree::directory(folder.path("")), Tree::directory("/nowhere")] {
        let facts = HostFacts::read(&tree);
        assert_eq!(facts, HostFacts::default());
        assert_eq!(facts.cpus.for_engine().allowed, [0]);
    }
}

#[test]
fn cpus_and_how_they_lie() {
    let laptop = facts("laptop-8-smt").cpus;
    assert_eq!(laptop.online, cpus("0-15"));
    assert_eq!(laptop.shared_cores().len(), 8);
    assert_eq!(laptop.shared_cores()[1], [2, 3]);
    assert_eq!(laptop.isolated, cpus(""));
    assert_eq!(laptop.nohz_full, cpus(""), "(null) is none");
    assert!(laptop.model.unwrap().starts_with("AMD Ryzen 7 PRO"));

    let server = facts("server-2s-mlx5-right").cpus;
    assert_eq!(server.isolated, cpus("10-15,26-31"));
    assert_eq!(server.nohz_full, cpus("10-15,26-31"));
    assert_eq!([0, 17, 8, 31].map(|cpu| server.node_of(cpu)), [0, 0, 1, 1].map(Some));
    assert_eq!(server.node_of(32), None);
    let engine = server.for_engine();
    assert_eq!(engine.isolated, [10, 11, 12, 13, 14, 15, 26, 27, 28, 29, 30, 31]);
    assert_eq!(engine.smt_siblings[3], [3, 19]);

    let vm = facts("vm-2").cpus;
    assert_eq!(vm.nohz_full, None, "its kernel is not built for it");
    assert_eq!(facts("container-quota").cpus.for_engine().allowed, [2, 3, 4, 5]);
}

#[test]
fn caches_and_kinds_of_cpus() {
    let chiplets = facts("chiplets-2-l3").cpus;
    let caches: Vec<String> = chiplets.l3.iter().map(ToString::to_string).collect();
    assert_eq!(caches, ["0-3,8-11", "4-7,12-15"]);
    assert_eq!(chiplets.fast, None);
    let hybrid = facts("hybrid-6p-8e").cpus;
    assert_eq!((hybrid.l3.len(), hybrid.fast), (1, cpus("8-19")));
    let cpu = "sys/devices/system/cpu";
    let list = |cpu_list: (usize, &str)| {
        format!("{cpu}/cpu{}/cache/index3/shared_cpu_list = {}\n", cpu_list.0, cpu_list.1)
    };
    let odd: String = [(0, "0-1"), (1, "0-3"), (2, "1-2"), (3, "0")].map(list).concat();
    let odd = HostFacts::read(&lines(&(odd + &format!("{cpu}/online = 0-3\n")))).cpus.l3;
    assert_eq!(odd, [cpus("0-1").unwrap()], "caches have no CPUs in common");
    let by_capacity = |capacities: [u32; 4]| {
        let file = |(cpu, capacity)| {
            format!("sys/devices/system/cpu/cpu{cpu}/cpu_capacity = {capacity}\n")
        };
        let files: String = capacities.into_iter().enumerate().map(file).collect();
        HostFacts::read(&lines(&(files + "sys/devices/system/cpu/online = 0-3\n"))).cpus.fast
    };
    assert_eq!(by_capacity([446, 446, 1024, 1024]), cpus("2-3"));
    assert_eq!(by_capacity([1024, 1024, 986, 1000]), None, "they differ by their frequencies");
}

#[test]
fn cores_are_selected_of_the_fastest_kind_and_in_one_cache() {
    let select = |host: &str, most: u64, close: bool| {
        let cpus = facts(host).cpus;
        cpus.select(&cpus.for_engine(), most, close).to_string()
    };
    assert_eq!(select("chiplets-2-l3", 3, true), "4-6");
    assert_eq!(select("chiplets-2-l3", 3, false), "1-3", "cores that do not share memory");
    assert_eq!(select("chiplets-2-l3", 5, true), "1-5", "no cache has as many");
    assert_eq!(select("hybrid-6p-8e", 2, true), "8,10");
    assert_eq!(select("hybrid-6p-8e", 7, true), "1-7", "there are six P cores");
    let mut isolated = facts("hybrid-6p-8e").cpus;
    isolated.isolated = cpus("3-6");
    let host = isolated.for_engine();
    assert_eq!(isolated.select(&host, 2, true).to_string(), "3-4", "isolated ones go first");
}

#[test]
fn interrupts_that_the_kernel_manages_are_known_by_name() {
    let irqs = facts("chiplets-2-l3").irqs;
    let managed: Vec<&str> =
        irqs.iter().filter(|irq| irq.is_managed()).map(|irq| irq.name.as_str()).collect();
    assert_eq!(managed, ["nvme0q1", "nvme0q2", "virtio1-req.0"], "not that of commands");
}

#[test]
fn a_kernel_without_nodes_has_one() {
    let host = HostFacts::read(&lines("sys/devices/system/cpu/online = 0,2\n"));
    assert_eq!(host.cpus.node_of(2), Some(0));
    assert_eq!(host.cpus.for_engine().allowed, [0, 2], "without affinity, those that run");
}

#[test]
fn interrupts_with_their_names_and_cpus() {
    let irqs = facts("server-2s-mlx5-right").irqs;
    let named = |name: &str| irqs.iter().find(|irq| irq.name.starts_with(name)).unwrap();
    assert_eq!(named("mlx5_comp5@pci:0000:98:00.0").number, 67);
    assert_eq!(named("mlx5_comp5@").cpus(), cpus("9").as_ref());
    assert_eq!(named("eno1").affinity, cpus("0-9,16-25"));
    assert_eq!(named("eno1").cpus(), cpus("3").as_ref(), "those that take it now");
    let numbers: Vec<u32> = irqs.iter().map(|irq| irq.number).collect();
    assert!(numbers.is_sorted(), "{numbers:?}");
}

#[test]
fn interrupts_of_an_older_kernel_are_named_by_directories() {
    let tree = lines(
        "proc/irq/12/smp_affinity_list = 0-3\nproc/irq/12/i8042\nproc/irq/13/spurious = 0\n\
         proc/irq/14/smp_affinity_list = all\nproc/irq/14/ata\n",
    );
    let irqs = Irq::read_all(&tree);
    assert_eq!(irqs.len(), 2, "13 has no handler: {irqs:?}");
    assert_eq!((irqs[0].name.as_str(), irqs[0].cpus()), ("i8042", cpus("0-3").as_ref()));
    assert_eq!(irqs[1].cpus(), None);
}

#[test]
fn frequencies_and_sleep_states() {
    let laptop = facts("laptop-8-smt").power;
    assert_eq!(laptop.governors[&15], "powersave");
    assert_eq!(laptop.frequency_driver.as_deref(), Some("amd-pstate-epp"));
    assert_eq!(laptop.boost, Some(true));
    assert_eq!(laptop.slowest_state_of([3]).unwrap().name, "C3");
    assert_eq!(laptop.slowest_state_of([3]).unwrap().exit_latency_us, 350);
    assert_eq!(laptop.dma_latency_writable, Some(false));

    let server = facts("server-2s-mlx5-right").power;
    assert_eq!((server.boost, server.dma_latency_writable), (Some(false), Some(true)));
    assert_eq!(server.slowest_state_of([31]).unwrap().name, "C1E");

    let vm = facts("vm-2").power;
    assert_eq!((vm.boost, vm.governors.len()), (None, 0));
    assert_eq!(vm.slowest_state_of([1]).unwrap().name, "haltpoll idle");
    assert_eq!(facts("container-quota").power.dma_latency_writable, None);
}

#[test]
fn a_sleep_state_that_is_switched_off_does_not_count() {
    let folder = "sys/devices/system/cpu/cpu0/cpuidle";
    let state = |number: u32, latency: u32, disable: u32| {
        let file = |file: &str, value: &str| format!("{folder}/state{number}/{file} = {value}\n");
        file("name", &format!("C{number}"))
            + &file("latency", &latency.to_string())
            + &file("disable", &disable.to_string())
    };
    let tree = lines(&(state(0, 0, 0) + &state(1, 2, 0) + &state(2, 133, 1)));
    let power = HostFacts::read(&tree).power;
    assert_eq!(power.slowest_state_of([0]).unwrap().name, "C1");
}

#[test]
fn clocks() {
    let container = facts("container-quota").clock;
    assert_eq!(container.source.as_deref(), Some("kvm-clock"));
    assert_eq!(container.available, ["kvm-clock", "tsc", "acpi_pm"]);
    assert_eq!(container.is_guest, Some(true));
    let guest = facts("guest-rxe-siw").clock;
    assert_eq!((guest.source.as_deref(), guest.is_guest), (Some("tsc"), Some(true)));
    assert_eq!(facts("laptop-8-smt").clock.is_guest, Some(false));
}

fn free(memory: &Memory, node: u32, page_bytes: u64) -> Option<u64> {
    memory.pool(node, page_bytes).map(|pool| pool.free)
}

#[test]
fn memory_and_huge_pages() {
    let server = facts("server-2s-mlx5-right").memory;
    assert_eq!(free(&server, 1, 2 << 20), Some(1024));
    assert_eq!(free(&server, 0, 2 << 20), Some(0));
    assert_eq!(free(&server, 1, 1 << 30), Some(0));
    assert_eq!(free(&server, 2, 2 << 20), None);
    let pool = server.huge_pages.iter().find(|pool| pool.free > 0).unwrap();
    let file = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages";
    assert_eq!(pool.file(), file);
    assert_eq!((server.ksm, server.numa_balancing), (Some(false), Some(false)));

    let wrong = facts("server-2s-mlx5-wrong").memory;
    assert_eq!(wrong.thp.as_deref(), Some("always"));
    assert_eq!((wrong.ksm, wrong.numa_balancing), (Some(true), Some(true)));
    assert_eq!(facts("vm-2").memory.total_bytes, Some(24_684_092 << 10));
}

#[test]
fn a_kernel_without_nodes_has_one_pool_for_all() {
    let pool = "sys/kernel/mm/hugepages/hugepages-2048kB";
    let tree = lines(&format!("{pool}/nr_hugepages = 9\n{pool}/free_hugepages = 7\n"));
    let memory = HostFacts::read(&tree).memory;
    assert_eq!(free(&memory, 0, 2 << 20), Some(7));
    assert_eq!(memory.huge_pages[0].file(), format!("/{pool}/nr_hugepages"));
}

#[test]
fn the_kernel_and_its_parameters() {
    let kernel = facts("server-2s-mlx5-right").kernel;
    assert!(kernel.parameters.unwrap().contains("rcu_nocbs=10-15,26-31"));
    assert_eq!((kernel.watchdog, kernel.nmi_watchdog), (Some(false), Some(false)));
    assert_eq!((kernel.stat_interval_s, kernel.timer_migration), (Some(10), Some(false)));
    assert_eq!(kernel.autogroup, Some(true));
    assert_eq!(kernel.host_name.as_deref(), Some("node7"));
}

#[test]
fn a_record_has_no_parameter_that_is_not_wanted() {
    let tree = lines("proc/cmdline = root=/dev/sda1 token=secret nohz_full=1-3 quiet nosmt\n");
    let record = HostFacts::record(tree).to_string();
    assert!(record.contains("proc/cmdline = nohz_full=1-3 nosmt\n"), "{record}");
}

#[test]
fn control_groups_of_version_two() {
    let container = facts("container-quota").cgroup;
    let quota = container.quota.unwrap();
    assert_eq!((quota.cpus(), quota.file.as_str()), (1.5, "/sys/fs/cgroup/cpu.max"));
    assert_eq!(container.cpus, cpus("2-5"));
    let limit = container.memory_max.unwrap();
    assert_eq!((limit.bytes, limit.file.as_str()), (96 << 20, "/sys/fs/cgroup/memory.max"));
    assert_eq!((container.memory_bytes, container.throttled), (Some(30 << 20), Some(1934)));

    let laptop = facts("laptop-8-smt").cgroup;
    assert_eq!((laptop.quota, laptop.memory_max), (None, None), "max is without limit");
    assert_eq!(laptop.memory_bytes, Some(1_834_369_024));
}

#[test]
fn the_tightest_group_on_the_way_up_counts() {
    let tree = lines(
        "proc/self/cgroup = 0::/a.slice/b.service\n\
         proc/self/mountinfo = 31 24 0:27 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw\n\
         sys/fs/cgroup/a.slice/memory.max = 1000\n\
         sys/fs/cgroup/a.slice/b.service/memory.max = 2000\n\
         sys/fs/cgroup/a.slice/cpu.max = 400000 100000\n\
         sys/fs/cgroup/a.slice/b.service/cpu.max = max 100000\n",
    );
    let cgroup = HostFacts::read(&tree).cgroup;
    let limit = cgroup.memory_max.unwrap();
    assert_eq!((limit.bytes, limit.file.as_str()), (1000, "/sys/fs/cgroup/a.slice/memory.max"));
    assert_eq!(cgroup.quota.unwrap().cpus(), 4.0);
}

#[test]
fn control_groups_of_version_one() {
    let vm = facts("vm-2").cgroup;
    assert_eq!((vm.quota, vm.memory_max), (None, None));
    assert_eq!((vm.cpus, vm.memory_bytes), (cpus("0-1"), Some(382_742_528)));
}

/// As in a container that sees its own part of the hierarchy at the usual place.
#[test]
fn a_group_that_is_the_root_of_a_mount_is_found_there() {
    let tree = lines(
        "proc/self/cgroup = 4:cpu,cpuacct:/docker/5d1c\\n3:memory:/docker/5d1c\n\
         proc/self/mountinfo = 41 40 0:33 /docker/5d1c /sys/fs/cgroup/cpu,cpuacct ro - cgroup \
         cgroup rw,cpu,cpuacct\\n42 40 0:34 /docker/5d1c /sys/fs/cgroup/memory ro - cgroup cgroup \
         rw,memory\n\
         sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us = 50000\n\
         sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us = 100000\n\
         sys/fs/cgroup/memory/memory.limit_in_bytes = 1048576\n",
    );
    let cgroup = HostFacts::read(&tree).cgroup;
    assert_eq!(cgroup.quota.unwrap().cpus(), 0.5);
    assert_eq!(cgroup.memory_max.unwrap().bytes, 1 << 20);
}

#[test]
fn limits_and_privileges() {
    let vm = facts("vm-2").process;
    assert_eq!((vm.user, vm.may_lock_all), (Some(0), true));
    assert_eq!(vm.memlock.unwrap().soft, Some(8 << 20));
    let container = facts("container-quota").process;
    assert!(!container.may_lock_all, "docker takes CAP_IPC_LOCK away");
    let right = facts("server-2s-mlx5-right").process;
    assert_eq!((right.user, right.memlock.unwrap().hard), (Some(990), None));
}

#[test]
fn a_privilege_in_a_user_namespace_of_ones_own_is_none() {
    let tree =
        lines("proc/self/status = CapEff:\\t000001ffffffffff\nproc/self/uid_map = 0 1000 1\n");
    assert!(!HostFacts::read(&tree).process.may_lock_all);
}

#[test]
fn adapters_and_their_place() {
    let rdma = facts("server-2s-mlx5-wrong").rdma;
    assert_eq!((rdma.uverbs.len(), rdma.has_rdma_cm), (1, true));
    assert_eq!(rdma.library_version.as_deref(), Some("44.0"));
    let adapter = &rdma.adapters[0];
    assert_eq!(adapter.device.driver.as_deref(), Some("mlx5_core"));
    assert_eq!((adapter.node, adapter.local_cpus.clone()), (Some(1), cpus("8-15,24-31")));
    assert_eq!(adapter.smallest_mtu_bytes(), Some(1500));
    let pci = adapter.pci.as_ref().unwrap();
    assert_eq!((pci.address.as_str(), pci.width), ("0000:98:00.0", Some((8, 16))));
    assert_eq!((pci.speed, pci.read_request_bytes), (Some((16.0, 16.0)), None), "of 64 bytes");

    let right = facts("server-2s-mlx5-right").rdma;
    assert_eq!(right.adapters[0].pci.as_ref().unwrap().read_request_bytes, Some(4096));
    let kinds = right.adapters[0].device.ports[0].gids.iter().map(|gid| gid.kind.clone());
    assert_eq!(kinds.flatten().filter(|kind| kind == "RoCE v2").count(), 2);
}

#[test]
fn the_version_of_the_library_is_in_the_name_of_its_file() {
    let version = |name: &str| {
        let tree = lines(&format!("usr/lib64/libibverbs.so.1 -> {name}\n"));
        HostFacts::read(&tree).rdma.library_version
    };
    assert_eq!(version("libibverbs.so.1.5.22.1").as_deref(), Some("22.1"));
    assert_eq!(version("libibverbs.so.1.0"), None);
}

#[test]
fn devices_made_by_software_have_no_place() {
    let rdma = facts("guest-rxe-siw").rdma;
    let [rxe, siw] = &rdma.adapters[..] else { unreachable!() };
    assert_eq!(rxe.device.ports[0].transport, Transport::Roce);
    assert_eq!(siw.device.ports[0].transport, Transport::Iwarp);
    assert!(rxe.device.is_software && rxe.pci.is_none() && rxe.node.is_none());
    assert_eq!(rxe.smallest_mtu_bytes(), Some(1500));
}

#[test]
fn counters_of_what_should_not_happen() {
    let counters = facts("server-2s-mlx5-wrong").counters;
    assert_eq!(counters["mlx5_0/1 out_of_sequence"], 5120);
    assert_eq!(counters["mlx5_0/1 symbol_error"], 0);
    assert!(facts("guest-rxe-siw").counters.contains_key("rxe0/1 rcvd_rnr_err"));
    assert!(facts("vm-2").counters.is_empty());
}

#[test]
fn times_of_cpus_and_what_was_added() {
    let times = facts("container-quota").times;
    assert_eq!((times.len(), times[&3].steal), (8, 420));
    let earlier = facts("laptop-8-smt").times[&3];
    assert_eq!(times[&3].since(&earlier).steal, 420);
    assert_eq!(earlier.since(&times[&3]).steal, 0, "counters that went back count for nothing");
}

#[test]
fn tasks_that_stand_in_the_way() {
    let laptop = facts("laptop-8-smt").tasks;
    assert!(laptop.has_irqbalance);
    let [task] = &laptop.realtime[..] else { unreachable!() };
    assert_eq!((task.name.as_str(), task.priority, task.cpu), ("data-loop.0", 20, 2));
    assert_eq!(laptop.load_average, Some(0.61));
    assert!(!facts("server-2s-mlx5-right").tasks.has_irqbalance);
    assert_eq!(facts("chiplets-2-l3").tasks.tuned.as_deref(), Some("throughput-performance"));
    assert_eq!(laptop.tuned, None);
}

/// Reading always terminates and reports no unknown facts, whatever a tree contains.
#[test]
fn odd_contents_are_not_known_and_do_no_harm() {
    let text = std::fs::read_to_string(record_path("server-2s-mlx5-wrong")).unwrap();
    let odd = ["", "-1", "99999999999999999999", "0-", "4-1", "[", "max max", "\\n\\n\\n", "é"];
    for value in odd {
        let bent = text.lines().map(|line| match line.split_once(" = ") {
            Some((path, _)) => format!("{path} = {value}\n"),
            None => format!("{line}\n"),
        });
        let tree = Tree::record(bent.collect::<String>().parse().unwrap());
        let facts = HostFacts::read(&tree);
        assert!(facts.cpus.online.is_none_or(|online| online.is_empty()), "{value}");
        assert_eq!(facts.memory.total_bytes, None, "{value}");
        assert_eq!(facts.rdma.adapters.len(), 1, "the rest of it is there: {value}");
    }
}

#[test]
fn text_is_bounded_and_does_not_disturb_a_terminal() {
    let folder = Folder::new("disturbing");
    folder.write("long", &"x".repeat(3 << 20));
    folder.write("escape", "a\u{1b}[2Jb\n");
    std::fs::write(folder.path("bytes"), [0x66, 0xff, 0x67]).unwrap();
    let tree = Tree::directory(folder.path(""));
    assert_eq!(tree.text("long").unwrap().len(), spinrpc_tuning::host::tree::TEXT_BYTES_MAX);
    assert_eq!(tree.line("escape").unwrap(), "a\u{fffd}[2Jb");
    assert_eq!(tree.line("bytes").unwrap(), "f\u{fffd}g");
    assert_eq!(tree.text("."), None);
}

/// As after chroot: a copied host has links that are right on that host, and one from elsewhere may have others.
#[test]
fn links_do_not_lead_out_of_a_directory() {
    use std::os::unix::fs::symlink;
    let outside = Folder::new("outside");
    outside.write("secret", "secret");
    let folder = Folder::new("links");
    std::fs::create_dir_all(folder.path("etc/more")).unwrap();
    folder.write("etc/more/inside", "inside");
    symlink("/etc/more/inside", folder.path("etc/absolute")).unwrap();
    symlink("more/../more/inside", folder.path("etc/relative")).unwrap();
    symlink("../../../../../../../../../etc/more/inside", folder.path("etc/upwards")).unwrap();
    symlink(outside.path("secret"), folder.path("etc/out")).unwrap();
    symlink(outside.path(""), folder.path("folder")).unwrap();
    let tree = Tree::directory(folder.path(""));
    for link in ["etc/absolute", "etc/relative", "etc/upwards"] {
        assert_eq!(tree.text(link).as_deref(), Some("inside"), "{link}");
        assert_eq!(tree.bytes(link).as_deref(), Some(&b"inside"[..]), "{link}");
        let is_right = |file: Permissions| file.is_readable && file.is_file;
        assert!(tree.permissions(link).is_some_and(is_right), "{link}");
        assert_eq!(tree.is_writable(link), Some(true), "{link}");
        assert_eq!(tree.link_name(link).as_deref(), Some("inside"), "{link}");
    }
    for link in ["etc/out", "folder/secret", "../outside/secret"] {
        assert_eq!(tree.text(link), None, "{link}");
        assert_eq!(tree.bytes(link), None, "{link}");
        assert_eq!(tree.permissions(link), None, "{link}");
        assert_ne!(tree.is_writable(link), Some(true), "{link}");
    }
    assert!(tree.permissions("etc").is_some_and(|folder| !folder.is_file));
    assert!(tree.exists("etc/out") && !tree.exists("folder/secret"));
    assert_eq!((tree.names("folder"), tree.names("etc/more")), (vec![], vec!["inside".to_owned()]));
}

#[test]
fn a_pipe_in_the_place_of_a_file_holds_nobody_up() {
    let folder = Folder::new("pipe");
    let path = folder.path("online");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert_eq!(Tree::directory(folder.path("")).text("online"), None);
}

#[test]
fn what_is_no_record_is_refused() {
    let folder = Folder::new("no_record");
    folder.write("passwd", "root:x:0:0\n");
    for (name, words) in [("passwd", "begins with \"# spintune record 1\""), ("x", "No such file")]
    {
        let error = Tree::open(Path::new(&folder.path(name))).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn names_come_in_the_order_of_their_numbers() {
    let tree = lines("a/cpu10 = x\na/cpu9/b = x\na/cpu9/c = x\na/online = x\n");
    assert_eq!(tree.names("a"), ["cpu9", "cpu10", "online"]);
    assert!(tree.names("b").is_empty() && tree.exists("a/cpu9") && !tree.exists("a/cpu"));
}

#[test]
fn a_capability_list_without_end_or_beyond_its_end_is_given_up() {
    let path = "sys/class/infiniband/x/device";
    let read = |config: &[u8]| {
        let hex: String = config.iter().map(|byte| format!("{byte:02x}")).collect();
        let tree = lines(&format!("{path} -> ../0000:00:01.0\n{path}/config = {hex}\n"));
        HostFacts::read(&tree).rdma.adapters[0].pci.clone().unwrap().read_request_bytes
    };
    let mut config = [0; 256];
    config[0x34] = 0x40;
    config[0x41] = 0x40;
    assert_eq!(read(&config), None, "a ring");
    config[0x40] = 0x10;
    config[0x49] = 0x20;
    assert_eq!(read(&config), Some(512));
    assert_eq!(read(&config[..0x49]), None, "cut off");
    assert_eq!(read(&[]), None);
}
