//! RDMA devices: usability and performance.

use super::{not_tried, some_of};
use crate::doctor::{Caps, CheckInput, Finding, Verdict, counters_risen};
use crate::host::{Adapter, PciLink};
use crate::text::shell_word;
use spinrpc::Config;
use spinrpc::config::Registration;
use spinrpc::mem::budget::Budget;

pub(super) fn devices(input: &CheckInput<'_>) -> Finding {
    let rdma = &input.facts.rdma;
    let names: Vec<String> =
        input.adapters().iter().map(|adapter| adapter.device.name.clone()).collect();
    if names.is_empty() {
        return none(input);
    }
    let lacks = |says: &str, module: &str| {
        Finding::new(input.rdma_failure(), format!("{}, but {says}", some_of(&names, 4)))
            .seen("/dev/infiniband", some_of(&rdma.uverbs, 4))
            .remedy("Load the kernel module")
            .command(format!("modprobe {module}"))
    };
    if rdma.uverbs.is_empty() {
        return lacks("no device file for verbs", "ib_uverbs");
    }
    if !rdma.has_rdma_cm {
        return lacks("no device file for the connection manager", "rdma_ucm");
    }
    Finding::ok(some_of(&names, 4)).seen("/dev/infiniband", some_of(&rdma.uverbs, 4))
}

fn none(input: &CheckInput<'_>) -> Finding {
    let wanted = input.config().verbs().device.to_string();
    let others: Vec<String> =
        input.facts.rdma.adapters.iter().map(|adapter| adapter.device.name.clone()).collect();
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
    Finding::new(Verdict::Fail, "no RDMA device, but the profile uses them (fabric.driver)")
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
            false => Finding::new(Verdict::Info, format!("some active; {}", some_of(&down, 4))),
        };
    }
    Finding::new(input.rdma_failure(), format!("no active port: {}", some_of(&down, 4)))
        .seen("/sys/class/infiniband/*/ports/*/state", some_of(&down, 4))
        .remedy(
            "Check the cable, the switch and the network interface; InfiniBand needs a subnet \
                 manager",
        )
        .command("rdma link")
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
        Finding::new(
            Verdict::Warn,
            format!("{} is connected with {}", adapter.device.name, parts.join(" and ")),
        )
        .seen(format!("{folder}/current_link_*, max_link_*"), parts.join(", "))
        .remedy("Use a full-width slot, reseat the adapter, or check the BIOS settings")
        .command(format!("lspci -vv -s {} | grep Lnk", shell_word(&link.address)))
    })
}

fn short_reads(adapter: &Adapter, link: &PciLink) -> Option<Finding> {
    let bytes = link.read_request_bytes.filter(|bytes| *bytes < READ_REQUEST_BYTES)?;
    let says = format!("{} reads memory {bytes} bytes at a time", adapter.device.name);
    let finding = Finding::new(Verdict::Info, says)
        .seen(format!("/sys/class/infiniband/{}/device/config", adapter.device.name), bytes)
        .remedy("Let it read 4096 bytes at a time, for more throughput of large transfers")
        .command(format!("setpci -s {} CAP_EXP+8.w=5000:7000", shell_word(&link.address)));
    Some(finding)
}

pub(super) fn counters(input: &CheckInput<'_>) -> Finding {
    let now = &input.facts.counters;
    if now.is_empty() {
        return Finding::ok("no device has error counters");
    }
    let ever: Vec<String> = now
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(name, n)| format!("{name} {n}"))
        .collect();
    let ever = if ever.is_empty() { "all 0".to_owned() } else { some_of(&ever, 6) };
    let Some(tried) = input.tried else {
        return not_tried().seen("since device start", ever);
    };
    let risen: Vec<String> = counters_risen(&tried.counters_before, &tried.counters_after)
        .into_iter()
        .map(|(name, by)| format!("{name} +{by}"))
        .collect();
    let over = format!("over {} ms", tried.interval.as_millis());
    if risen.is_empty() {
        return Finding::ok(format!("no increase {over}")).seen("since device start", ever);
    }
    Finding::new(Verdict::Warn, format!("increased {over}: {}", some_of(&risen, 4)))
        .seen("/sys/class/infiniband/*/ports/*/hw_counters", some_of(&risen, 12))
        .remedy(
            "Packets are lost or arrive too early: check flow control (PFC, ECN) between the \
             hosts, cables, and servers that are slow to post receives",
        )
}

pub(super) fn library(input: &CheckInput<'_>) -> Finding {
    let rdma = &input.facts.rdma;
    let Some((path, version)) = rdma.library_path.as_ref().zip(rdma.library_version.as_ref())
    else {
        if !input.goes_by_rdma() {
            return not_needed(input);
        }
        return Finding::new(Verdict::Fail, "libibverbs was not found")
            .remedy("Install rdma-core")
            .command("apt install ibverbs-providers librdmacm1");
    };
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_some_and(|major| major < OLDEST_LIBRARY) {
        let says = format!("rdma-core {version} is too old: version {OLDEST_LIBRARY} is required");
        return Finding::new(input.rdma_failure(), says).seen(path, version);
    }
    Finding::ok(format!("rdma-core {version}")).seen(path, version)
}

pub(super) fn caps(input: &CheckInput<'_>) -> Finding {
    if input.adapters().is_empty() {
        return not_needed(input);
    }
    let Some(caps) = input.tried.map(|tried| &tried.caps) else { return not_tried() };
    let caps = match caps {
        None => return Finding::unknown("this spintune is built without verbs"),
        Some(Err(error)) => return Finding::new(input.rdma_failure(), error.clone()),
        Some(Ok(caps)) => caps,
    };
    let adapters = input.adapters();
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
        false => {
            Finding::new(Verdict::Info, format!("less than requested: {}", some_of(&lowered, 3)))
                .seen("rdma-core", some_of(&lowered, 8))
        }
    }
}

impl Caps {
    /// Requirements of the profile that the device does not meet.
    fn lacks(&self, config: &Config) -> Vec<String> {
        let receives = config.recv_budget().total();
        // Binding and invalidating a memory window take one work request each.
        let windows = config.verbs().registration == Registration::Window;
        let binds = if windows { config.verbs().keys * 2 } else { 0 };
        let deepest = (u64::from(config.send_queue_depth()) + binds).max(receives);
        let queue = [("work requests for rpc.credits and verbs.keys", deepest, self.work_requests)];
        let mut lacks = self.less(&queue);
        if windows && self.memory_windows == 0 {
            let device = &self.device;
            lacks.push(format!("verbs.registration = window, and {device} has no memory windows"));
        }
        lacks
    }

    /// Settings of the profile that the device reduces.
    fn lowers(&self, config: &Config) -> Vec<String> {
        let verbs = config.verbs();
        self.less(&[
            ("verbs.cq_depth", verbs.cq_depth, self.completions),
            ("verbs.ord", verbs.ord, self.reads_out),
            ("verbs.ird", verbs.ird, self.reads_in),
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
