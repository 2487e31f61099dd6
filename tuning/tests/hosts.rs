//! The readers of facts, against records of hosts. See `hosts/README.md`.
#![allow(clippy::unwrap_used)] // helpers of tests are not marked as tests

mod common;

use common::{Folder, hosts, record_path};
use spinrpc::sys::affinity::CpuSet;
use spinrpc_tuning::host::{CpuTimes, HostFacts, Memory, Record, Tree};
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

/// In the form of Debug, with sets of CPUs as lists.
fn shown(facts: &HostFacts) -> String {
    let text = format!("{facts:?}");
    let mut parts = text.split("CpuSet({");
    let first = parts.next().unwrap().to_owned();
    parts.fold(first, |text, part| {
        let (numbers, rest) = part.split_once("})").unwrap();
        let numbers = numbers.split(", ").filter_map(|number| number.parse::<usize>().ok());
        format!("{text}{}{rest}", numbers.collect::<CpuSet>())
    })
}

#[test]
fn facts_are_those_of_the_table() {
    let (mut facts, mut only, mut cases) = (String::new(), String::new(), 0);
    for line in include_str!("facts.txt").lines().filter(|line| !line.starts_with('#')) {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        match first {
            "" if rest.is_empty() => {}
            "" => {
                assert!(facts.contains(rest.trim_start()), "{line}: {facts}");
                cases += 1;
            }
            "only" | "with" => {
                let before = if first == "only" { String::new() } else { only };
                only = format!("{before}{}\n", rest);
                facts = shown(&HostFacts::read(&lines(&only)));
            }
            host => facts = shown(&self::facts(host)),
        }
    }
    assert!(cases > 80, "{cases}");
}

#[test]
fn cpus_and_how_they_lie() {
    let laptop = facts("laptop-8-smt").cpus;
    assert_eq!((laptop.shared_cores().len(), &laptop.shared_cores()[1][..]), (8, &[2, 3][..]));
    let server = facts("server-2s-mlx5-right").cpus;
    assert_eq!([0, 17, 8, 31].map(|cpu| server.node_of(cpu)), [0, 0, 1, 1].map(Some));
    assert_eq!(server.node_of(32), None);
    let engine = server.for_engine();
    assert_eq!(engine.isolated, [10, 11, 12, 13, 14, 15, 26, 27, 28, 29, 30, 31]);
    assert_eq!(engine.smt_siblings[3], [3, 19]);
    assert_eq!(facts("container-quota").cpus.for_engine().allowed, [2, 3, 4, 5]);
    let without_affinity = HostFacts::read(&lines("sys/devices/system/cpu/online = 0,2\n"));
    assert_eq!(without_affinity.cpus.for_engine().allowed, [0, 2]);
    assert_eq!(facts("hybrid-6p-8e").cpus.l3.len(), 1);
}

#[test]
fn interrupts_are_in_order_and_go_to_the_cpus_that_take_them_now() {
    let irqs = facts("server-2s-mlx5-right").irqs;
    let named = |name: &str| irqs.iter().find(|irq| irq.name.starts_with(name)).unwrap();
    assert_eq!(named("mlx5_comp5@").cpus(), cpus("9").as_ref());
    assert_eq!(
        (&named("eno1").affinity, named("eno1").cpus()),
        (&cpus("0-9,16-25"), cpus("3").as_ref())
    );
    assert!(irqs.is_sorted_by_key(|irq| irq.number), "{irqs:?}");
}

#[test]
fn the_slowest_sleep_state_of_a_cpu() {
    for (host, cpu, name) in [
        ("laptop-8-smt", 3, "C3"),
        ("server-2s-mlx5-right", 31, "C1E"),
        ("vm-2", 1, "haltpoll idle"),
    ] {
        let power = facts(host).power;
        assert_eq!(power.slowest_state_of([cpu]).unwrap().name, name, "{host}");
    }
}

fn free(memory: &Memory, node: u32, page_bytes: u64) -> Option<u64> {
    memory.pool(node, page_bytes).map(|pool| pool.free)
}

#[test]
fn huge_pages_of_a_node() {
    let server = facts("server-2s-mlx5-right").memory;
    let pools = [(1, 2 << 20), (0, 2 << 20), (1, 1 << 30), (2, 2 << 20)];
    let pools = pools.map(|(node, page_bytes)| free(&server, node, page_bytes));
    assert_eq!(pools, [Some(1024), Some(0), Some(0), None]);
    let pool = server.huge_pages.iter().find(|pool| pool.free > 0).unwrap();
    let file = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages";
    assert_eq!(pool.file(), file);
}

#[test]
fn adapters_and_their_interfaces() {
    let right = facts("server-2s-mlx5-right").rdma;
    let kinds = right.adapters[0].device.ports[0].gids.iter().map(|gid| gid.kind.clone());
    assert_eq!(kinds.flatten().filter(|kind| kind == "RoCE v2").count(), 2);
    for host in ["server-2s-mlx5-wrong", "guest-rxe-siw"] {
        assert_eq!(facts(host).rdma.adapters[0].smallest_mtu_bytes(), Some(1500), "{host}");
    }
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
fn a_kernel_without_nodes_has_one_pool_for_all() {
    let pool = "sys/kernel/mm/hugepages/hugepages-2048kB";
    let tree = lines(&format!("{pool}/nr_hugepages = 9\n{pool}/free_hugepages = 7\n"));
    let memory = HostFacts::read(&tree).memory;
    assert_eq!(free(&memory, 0, 2 << 20), Some(7));
    assert_eq!(memory.huge_pages[0].file(), format!("/{pool}/nr_hugepages"));
}

#[test]
fn a_record_has_no_parameter_that_is_not_wanted() {
    let tree = lines("proc/cmdline = root=/dev/sda1 token=secret nohz_full=1-3 quiet nosmt\n");
    let record = HostFacts::record(tree).to_string();
    assert!(record.contains("proc/cmdline = nohz_full=1-3 nosmt\n"), "{record}");
}

#[test]
fn times_of_cpus_and_what_was_added() {
    let times =
        |host: &str| CpuTimes::read_all(&Tree::open(Path::new(&record_path(host))).unwrap());
    let earlier = times("laptop-8-smt")[&3];
    let times = times("container-quota");
    assert_eq!((times.len(), times[&3].steal), (8, 420));
    assert_eq!(times[&3].since(&earlier).steal, 420);
    assert_eq!(earlier.since(&times[&3]).steal, 0, "counters that went back count for nothing");
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
        assert_eq!(tree.is_writable(link), Some(true), "{link}");
        assert_eq!(tree.link_name(link).as_deref(), Some("inside"), "{link}");
    }
    for link in ["etc/out", "folder/secret", "../outside/secret"] {
        assert_eq!(tree.text(link), None, "{link}");
        assert_eq!(tree.bytes(link), None, "{link}");
        assert_ne!(tree.is_writable(link), Some(true), "{link}");
    }
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
