//! NUMA nodes: page migration, and devices or memory on the wrong node.

use crate::doctor::input::{agree, both, cores, minus};
use crate::doctor::{CheckInput, Finding, Verdict};
use crate::host::Adapter;
use spinrpc::sys::affinity::CpuSet;

pub(super) fn balancing(input: &CheckInput<'_>) -> Finding {
    let nodes = input.facts.cpus.nodes.len();
    match input.facts.memory.numa_balancing {
        None => Finding::ok("the kernel does not migrate pages between nodes"),
        Some(false) => Finding::ok("pages stay on their node").seen(FILE, 0),
        Some(true) if nodes < 2 => Finding::ok("there is only one node").seen(FILE, 1),
        Some(true) => {
            let says = format!("pages are unmapped to find out which of {nodes} nodes uses them");
            Finding::new(input.interference(), says)
                .seen(FILE, 1)
                .remedy("Disable it: the memory of cores is on their node already (mem.numa)")
                .command("sysctl -w kernel.numa_balancing=0")
        }
    }
}

pub(super) fn device(input: &CheckInput<'_>) -> Finding {
    let placed: Vec<&Adapter> =
        input.adapters().into_iter().filter(|adapter| adapter.node.is_some()).collect();
    if placed.is_empty() {
        return Finding::ok("no device reports a node");
    }
    let remote = placed.iter().find_map(|adapter| {
        let far = far_cores(input, adapter);
        (!far.is_empty()).then_some((adapter, far))
    });
    let Some((adapter, far)) = remote else {
        let polled = input.cores();
        let says =
            format!("{} {} on the node of the device", cores(&polled), agree(&polled, "is", "are"));
        return Finding::ok(says);
    };
    let (name, node) = (&adapter.device.name, adapter.node.unwrap_or_default());
    let does = agree(&far, "is", "are");
    let says = format!("{name} is on node {node}, and {} {does} not", cores(&far));
    let verdict = if input.goes_by_rdma() { Verdict::Warn } else { Verdict::Info };
    let finding = Finding::new(verdict, says)
        .seen(format!("/sys/class/infiniband/{name}/device/numa_node"), node);
    match better_cores(input, adapter) {
        Some(better) => finding.remedy(format!(
            "Poll on CPUs near the device: \
                                                cores.list=\"{better}\""
        )),
        None => finding,
    }
}

fn far_cores(input: &CheckInput<'_>, adapter: &Adapter) -> CpuSet {
    let node = adapter.node.and_then(|node| input.facts.cpus.nodes.get(&node));
    let near = adapter.local_cpus.as_ref().or(node);
    near.map_or_else(CpuSet::default, |near| minus(&input.cores(), near))
}

/// As many CPUs near the device as there are cores, isolated ones if there are any.
fn better_cores(input: &CheckInput<'_>, adapter: &Adapter) -> Option<CpuSet> {
    let cpus = &input.facts.cpus;
    let near = both(adapter.local_cpus.as_ref()?, cpus.allowed.as_ref()?);
    let isolated = both(&near, cpus.isolated.as_ref()?);
    let choice = if isolated.is_empty() { near } else { isolated };
    let second =
        |cpu: usize| cpus.siblings.get(&cpu).is_some_and(|all| all.iter().next() != Some(cpu));
    let first_threads = choice.iter().filter(|cpu| *cpu != 0 && !second(*cpu));
    let better: CpuSet = first_threads.take(input.config().cores()).collect();
    (!better.is_empty()).then_some(better)
}

const FILE: &str = "/proc/sys/kernel/numa_balancing";
