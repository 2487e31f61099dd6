use super::{not_tried, some_of};
use crate::doctor::input::are;
use crate::doctor::{Caps, CheckInput, Finding, Verdict};
use crate::host::{Adapter, PciLink, both, minus};
use crate::printable::shell_word;
use crate::rdma::{Port, Transport};
use spinrpc::config::{Config, Host, Registration};
use spinrpc::fabric::adapters::{self, Fault};
use spinrpc::sys::affinity::CpuSet;

pub(super) fn devices(input: &CheckInput<'_>) -> Finding {
    let rdma = &input.facts.rdma;
    let adapters = input.adapters();
    if adapters.is_empty() {
        return none(input);
    }
    let (names, uverbs) = (some_of(adapters.iter().map(name), 4), some_of(&rdma.uverbs, 4));
    let lacks = |says: &str, module: &str| {
        Finding::new(input.rdma_failure(), format!("{names}, but {says}"))
            .seen("/dev/infiniband", &uverbs)
            .remedy("Load the kernel module")
            .command(format!("modprobe {module}"))
    };
    if rdma.uverbs.is_empty() {
        return lacks("no device file for verbs", "ib_uverbs");
    }
    if !rdma.has_rdma_cm {
        return lacks("no device file for the connection manager", "rdma_ucm");
    }
    Finding::ok(&names).seen("/dev/infiniband", &uverbs)
}

fn name<'a>(adapter: &&'a Adapter) -> &'a str {
    &adapter.device.name
}

fn none(input: &CheckInput<'_>) -> Finding {
    let wanted = input.config().verbs().device.to_string();
    let others: Vec<&str> = input.facts.rdma.adapters.iter().map(|other| name(&other)).collect();
    if !others.is_empty() {
        let says = format!("no device {wanted} (verbs.device), but {}", some_of(&others, 4));
        return Finding::new(input.rdma_failure(), says)
            .remedy(format!("Set verbs.device to one of them, or to auto: {}", others.join(", ")));
    }
    if !input.goes_by_rdma() {
        return Finding::ok("none, and none is needed: the profile uses shared memory");
    }
    let netdev =
        input.facts.rdma.interfaces_up.first().map_or_else(|| "eth0".to_owned(), shell_word);
    Finding::fail("no RDMA device, but the profile uses them (fabric.driver)")
        .seen("/sys/class/infiniband", "nothing")
        .remedy("Load the driver of the adapter, create a software device, or use shm")
        .command(format!("modprobe rdma_rxe && rdma link add rxe0 type rxe netdev {netdev}"))
}

pub(super) fn ports(input: &CheckInput<'_>) -> Finding {
    let adapters = input.adapters();
    let down = adapters.iter().flat_map(|adapter| {
        let device = &adapter.device;
        let down = device.ports.iter().filter(|port| !port.is_active());
        down.map(|port| format!("{}/{} is {}", device.name, port.number, port.state))
    });
    let down: Vec<String> = down.collect();
    if adapters.is_empty() {
        return not_needed(input);
    }
    if adapters.iter().any(|adapter| adapter.device.is_active()) {
        return match down.is_empty() {
            true => Finding::ok("all active"),
            false => Finding::info(format!("some active; {}", some_of(&down, 4))),
        };
    }
    Finding::new(input.rdma_failure(), format!("no active port: {}", some_of(&down, 4)))
        .seen("/sys/class/infiniband/*/ports/*/state", some_of(&down, 4))
        .remedy("Check the cable, the switch and the network interface; InfiniBand needs a subnet manager")
        .command("rdma link")
}

pub(super) fn gids(input: &CheckInput<'_>) -> Finding {
    let ports = roce_ports(input);
    if ports.is_empty() {
        return infiniband(input).unwrap_or_else(|| Finding::ok("no active RoCE port"));
    }
    let has_v2 = |port: &Port| port.gids.iter().any(|gid| gid.kind.as_deref() == Some("RoCE v2"));
    let Some((adapter, port)) = ports.iter().find(|(_, port)| !has_v2(port)) else {
        return Finding::ok("every active RoCE port has one");
    };
    let name = format!("{}/{}", adapter.device.name, port.number);
    let kinds = port.gids.iter().filter_map(|gid| gid.kind.as_ref());
    let folder = format!("/sys/class/infiniband/{}/ports/{}", adapter.device.name, port.number);
    let commands = port.netdevs.iter().map(shell_word).flat_map(|netdev| {
        [format!("ip link set dev {netdev} up"), format!("ip address add ADDRESS/24 dev {netdev}")]
    });
    Finding::new(input.rdma_failure(), format!("port {name} has none"))
        .seen(format!("{folder}/gid_attrs/types"), some_of(kinds, 4))
        .remedy("Give its network interface an address, and bring it up")
        .commands(commands)
}

/// Over RoCE the path to a peer has its address, and a peer that claims another is refused.
fn infiniband(input: &CheckInput<'_>) -> Option<Finding> {
    let is_active = |port: &&Port| port.is_active() && port.transport == Transport::InfiniBand;
    let adapters = input.adapters();
    let adapter =
        adapters.iter().find(|one| one.device.ports.iter().any(|port| is_active(&port)))?;
    let name = &adapter.device.name;
    let says = format!("{name} is InfiniBand: the address of a peer is its own claim");
    Some(Finding::info(says).remedy(
        "Admit hosts by partitions (P_Keys) of the subnet manager, and users by RPCSEC_GSS, not by \
         address",
    ))
}

pub(super) fn mtu(input: &CheckInput<'_>) -> Finding {
    let mut adapters: Vec<&Adapter> =
        roce_ports(input).into_iter().map(|(adapter, _)| adapter).collect();
    adapters.retain(|adapter| !adapter.device.is_software);
    let small = adapters.iter().find(|adapter| {
        adapter.smallest_mtu_bytes().is_some_and(|bytes| bytes < FULL_PACKET_BYTES)
    });
    let Some(adapter) = small else {
        return Finding::ok("no network interface limits the packets of its adapter");
    };
    let bytes = adapter.smallest_mtu_bytes().unwrap_or_default();
    let says = format!(
        "packets of {} carry 1024 bytes or less: the MTU of its network interface is {bytes}",
        adapter.device.name
    );
    let finding = Finding::info(says)
        .remedy("Raise it on both hosts, if the switches between them support it");
    adapter.mtu_bytes.iter().fold(finding, |finding, (netdev, bytes)| {
        finding
            .seen(format!("/sys/class/net/{netdev}/mtu"), bytes)
            .command(format!("ip link set dev {} mtu 9000", shell_word(netdev)))
    })
}

fn roce_ports<'a>(input: &CheckInput<'a>) -> Vec<(&'a Adapter, &'a Port)> {
    let ports = |adapter: &'a Adapter| adapter.device.ports.iter().map(move |port| (adapter, port));
    let works = |port: &Port| port.is_active() && port.transport == Transport::Roce;
    input.adapters().into_iter().flat_map(ports).filter(|(_, port)| works(port)).collect()
}

pub(super) fn node(input: &CheckInput<'_>) -> Finding {
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
        return Finding::ok(format!("{} on the node of the device", are(&input.cores())));
    };
    let (name, node) = (&adapter.device.name, adapter.node.unwrap_or_default());
    let says = format!("{name} is on node {node}, and {} not", are(&far));
    let verdict = if input.goes_by_rdma() { Verdict::Warn } else { Verdict::Info };
    let finding = Finding::new(verdict, says)
        .seen(format!("/sys/class/infiniband/{name}/device/numa_node"), node);
    match better_cores(input, adapter) {
        Some(better) => {
            finding.remedy(format!("Poll on CPUs near the device: cores.list=\"{better}\""))
        }
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
    let host = Host { allowed: near.iter().collect(), ..cpus.for_engine() };
    let better = cpus.select(&host, input.config().cores() as u64, false);
    (!better.is_empty()).then_some(better)
}

pub(super) fn pcie(input: &CheckInput<'_>) -> Finding {
    let adapters = input.adapters();
    let links: Vec<(&Adapter, &PciLink)> =
        adapters.into_iter().filter_map(|adapter| Some((adapter, adapter.pci.as_ref()?))).collect();
    if links.is_empty() {
        return Finding::ok("no device on PCI Express");
    }
    let slow = links.iter().find_map(|(adapter, link)| slow_link(adapter, link));
    slow.or_else(|| links.iter().find_map(|(adapter, link)| short_reads(adapter, link)))
        .unwrap_or_else(|| Finding::ok("at the device's full width and speed"))
}

fn slow_link(adapter: &Adapter, link: &PciLink) -> Option<Finding> {
    let narrow = link.width.filter(|(now, most)| now < most);
    let slow = link.speed.filter(|(now, most)| now < most);
    let width = narrow.map(|(now, most)| format!("{now} of {most} lanes"));
    let speed = slow.map(|(now, most)| format!("{now} of {most} GT/s"));
    let parts: Vec<String> = [width, speed].into_iter().flatten().collect();
    let folder = format!("/sys/class/infiniband/{}/device", adapter.device.name);
    (!parts.is_empty()).then(|| {
        Finding::warn(format!("{} is connected with {}", adapter.device.name, parts.join(" and ")))
            .seen(format!("{folder}/current_link_*, max_link_*"), parts.join(", "))
            .remedy("Use a full-width slot, reseat the adapter, or check the BIOS settings")
            .command(format!("lspci -vv -s {} | grep Lnk", shell_word(&link.address)))
    })
}

fn short_reads(adapter: &Adapter, link: &PciLink) -> Option<Finding> {
    let bytes = link.read_request_bytes.filter(|bytes| *bytes < READ_REQUEST_BYTES)?;
    let says = format!("{} reads memory {bytes} bytes at a time", adapter.device.name);
    let finding = Finding::info(says)
        .seen(format!("/sys/class/infiniband/{}/device/config", adapter.device.name), bytes)
        .remedy("Let it read 4096 bytes at a time, for more throughput of large transfers")
        .command(format!("setpci -s {} CAP_EXP+8.w=5000:7000", shell_word(&link.address)));
    Some(finding)
}

pub(super) fn library(input: &CheckInput<'_>) -> Finding {
    let rdma = &input.facts.rdma;
    let Some((path, version)) = rdma.library_path.as_ref().zip(rdma.library_version.as_ref())
    else {
        if !input.goes_by_rdma() {
            return not_needed(input);
        }
        return Finding::fail("libibverbs was not found")
            .remedy("Install rdma-core")
            .command("apt install ibverbs-providers librdmacm1");
    };
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_some_and(|major| major < OLDEST_LIBRARY) {
        let says = format!("rdma-core {version} is too old: version {OLDEST_LIBRARY} is required");
        return Finding::new(input.rdma_failure(), says).seen(path, version);
    }
    let adapters = input.adapters();
    let is_present = |fault: &Fault| major.is_some_and(|major| fault.is_in(major));
    let faults = adapters_faults(&adapters).filter(|(_, fault)| is_present(fault));
    let faults = some_of(faults.map(|(device, fault)| format!("{device}: {}", fault.effect)), 3);
    if faults.is_empty() {
        return Finding::ok(format!("rdma-core {version}")).seen(path, version);
    }
    let newest = adapters_faults(&adapters).map(|(_, fault)| fault.until).max();
    Finding::warn(format!("rdma-core {version} has known errors: {faults}"))
        .seen(path, version)
        .remedy(format!(
            "Install rdma-core {} or later, or a package that has the commits",
            newest.unwrap_or(major.unwrap_or_default())
        ))
}

fn adapters_faults<'a>(
    adapters: &'a [&'a Adapter],
) -> impl Iterator<Item = (&'a str, &'static Fault)> {
    let of_driver = |adapter: &'a Adapter| {
        let known = adapters::Adapter::of_driver(adapter.device.driver.as_deref()?)?;
        Some(known.faults.iter().map(|fault| (adapter.device.name.as_str(), fault)))
    };
    adapters.iter().copied().filter_map(of_driver).flatten()
}

pub(super) fn caps(input: &CheckInput<'_>) -> Finding {
    let adapters = input.adapters();
    if adapters.is_empty() {
        return not_needed(input);
    }
    let Some(caps) = input.tried.map(|tried| &tried.caps) else { return not_tried() };
    let caps = match caps {
        None => return Finding::unknown("this spintune is built without verbs"),
        Some(Err(error)) => return Finding::new(input.rdma_failure(), error.clone()),
        Some(Ok(caps)) => caps,
    };
    let wanted = |one: &&Caps| adapters.iter().any(|adapter| adapter.device.name == one.device);
    let caps: Vec<&Caps> = caps.iter().filter(wanted).collect();
    let config = input.config();
    let lacks: Vec<String> = caps.iter().flat_map(|one| one.lacks(config)).collect();
    if !lacks.is_empty() {
        return Finding::new(input.rdma_failure(), some_of(&lacks, 3))
            .seen("rdma-core", some_of(&lacks, 8))
            .remedy("Reduce these keys, or try the profiles verbs-mlx5, verbs-rxe and verbs-siw");
    }
    let lowered: Vec<String> = caps.iter().flat_map(|one| one.lowers(config)).collect();
    match lowered.is_empty() {
        true => Finding::ok("sufficient for the profile"),
        false => Finding::info(format!("less than requested: {}", some_of(&lowered, 3)))
            .seen("rdma-core", some_of(&lowered, 8)),
    }
}

impl Caps {
    /// Requirements of the profile that the device does not meet.
    fn lacks(&self, config: &Config) -> Vec<String> {
        let receives = config.recv_budget().total();
        // Binding and invalidating a memory window take one work request each.
        let windows = config.verbs().registration == Registration::Window;
        let binds = if windows { config.keys_max() as u64 * 2 } else { 0 };
        let deepest = (u64::from(config.send_queue_depth()) + binds).max(receives);
        let queue = [("work requests for rpc.credits", deepest, self.work_requests)];
        let mut lacks = self.less(&queue);
        if windows && self.memory_windows == 0 {
            let device = &self.device;
            lacks.push(format!("verbs.registration = window, and {device} has no memory windows"));
        }
        lacks
    }

    /// Settings of the profile that the device reduces.
    fn lowers(&self, config: &Config) -> Vec<String> {
        let reads = config.device_reads_max().into();
        self.less(&[
            ("rpc.max_rdma_reads", reads, self.reads_out.min(self.reads_in)),
            // Cores that sleep are woken by interrupts.
            ("the number of cores", config.cpus().len() as u64, self.interrupts),
        ])
    }

    fn less(&self, wants: &[(&str, u64, u64)]) -> Vec<String> {
        let device = &self.device;
        let less = wants.iter().filter(|(_, wanted, has)| wanted > has);
        less.map(|(what, wanted, has)| format!("{what} is {wanted}, {device} has {has}")).collect()
    }
}

fn not_needed(input: &CheckInput<'_>) -> Finding {
    match input.goes_by_rdma() {
        true => Finding::unknown("no device"),
        false => Finding::ok("not needed: the profile uses shared memory"),
    }
}

/// The default of PCI Express.
const READ_REQUEST_BYTES: u32 = 512;

/// Oldest rdma-core that the binding supports.
const OLDEST_LIBRARY: u32 = 28;

/// 4096 bytes plus Ethernet, IPv6, UDP and InfiniBand headers.
const FULL_PACKET_BYTES: u64 = 4200;
