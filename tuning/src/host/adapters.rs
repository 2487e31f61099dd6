//! RDMA devices beyond their ports: location, PCI link, counters, and the files and libraries that
//! programs need.

use super::Tree;
use crate::rdma::{self, Device};
use spinrpc::sys::affinity::CpuSet;
use std::collections::BTreeMap;

facts! {
    Rdma(tree) {
        adapters: Vec<Adapter> = adapters(tree);
        /// Device files of verbs: `uverbs0`.
        uverbs: Vec<String> = uverbs(tree);
        has_rdma_cm: bool = tree.exists("dev/infiniband/rdma_cm");
        /// Version of rdma-core that libibverbs was installed from: `44.0`.
        library_version: Option<String> = library(tree).map(|(_, version)| version);
        library_path: Option<String> = library(tree).map(|(path, _)| path);
        /// Network interfaces that are up, on which a software device could be created.
        interfaces_up: Vec<String> = interfaces_up(tree);
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    pub device: Device,
    pub node: Option<u32>,
    pub local_cpus: Option<CpuSet>,
    pub pci: Option<PciLink>,
    pub mtu_bytes: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PciLink {
    /// `0000:3b:00.0`.
    pub address: String,
    /// Current and maximum number of lanes.
    pub width: Option<(u32, u32)>,
    /// Current and maximum speed in GT/s.
    pub speed: Option<(f64, f64)>,
    /// Maximum read request size in bytes; only root can read it.
    pub read_request_bytes: Option<u32>,
}

fn adapters(tree: &Tree) -> Vec<Adapter> {
    let ask = || rdma::interfaces().unwrap_or_default();
    let interfaces = if tree.is_this_host() { ask() } else { Vec::new() };
    let devices = rdma::devices(tree, &interfaces).into_iter();
    devices.map(|device| Adapter::read(tree, device)).collect()
}

fn uverbs(tree: &Tree) -> Vec<String> {
    let names = tree.names(DEV).into_iter().filter(|name| name.starts_with("uverbs"));
    names.filter(|name| tree.exists(&format!("{DEV}/{name}"))).collect()
}

fn interfaces_up(tree: &Tree) -> Vec<String> {
    let state = |name: &String| tree.line(&format!("sys/class/net/{name}/operstate"));
    let is_up = |name: &String| state(name).as_deref() == Some("up");
    tree.names("sys/class/net").into_iter().filter(is_up).collect()
}

impl Adapter {
    fn read(tree: &Tree, device: Device) -> Self {
        let folder = format!("{CLASS}/{}/device", device.name);
        let mtu =
            |name: &String| Some((name.clone(), tree.value(&format!("sys/class/net/{name}/mtu"))?));
        let netdevs = device.ports.iter().flat_map(|port| &port.netdevs);
        Self {
            // -1 if the kernel does not know.
            node: tree.value(&format!("{folder}/numa_node")),
            local_cpus: tree.cpus(&format!("{folder}/local_cpulist")),
            pci: PciLink::read(tree, &folder),
            mtu_bytes: netdevs.filter_map(mtu).collect(),
            device,
        }
    }

    pub fn smallest_mtu_bytes(&self) -> Option<u64> {
        self.mtu_bytes.values().min().copied()
    }
}

impl PciLink {
    fn read(tree: &Tree, folder: &str) -> Option<Self> {
        let address = tree.link_name(folder)?;
        let width = |file| tree.value(&format!("{folder}/{file}"));
        let speed = |file| giga_transfers(&tree.line(&format!("{folder}/{file}"))?);
        let config = tree.bytes(&format!("{folder}/config"));
        Some(Self {
            address,
            width: width("current_link_width").zip(width("max_link_width")),
            speed: speed("current_link_speed").zip(speed("max_link_speed")),
            read_request_bytes: config.and_then(|config| read_request_bytes(&config)),
        })
    }
}

fn giga_transfers(line: &str) -> Option<f64> {
    let number: f64 = line.split_once(" GT/s")?.0.trim().parse().ok()?;
    number.is_finite().then_some(number)
}

/// Max_Read_Request_Size of the PCI Express capability: bits 14 to 12 of the Device Control
/// register, eight bytes into it. Capabilities form a list that begins at the offset in byte 0x34.
fn read_request_bytes(config: &[u8]) -> Option<u32> {
    let mut at = usize::from(*config.get(0x34)?) & 0xfc;
    for _ in 0..CAPABILITIES_MAX {
        let (id, next) = (*config.get(at)?, *config.get(at + 1)?);
        if at == 0 {
            return None;
        }
        if id == PCI_EXPRESS {
            let control = u16::from_le_bytes([*config.get(at + 8)?, *config.get(at + 9)?]);
            return Some(128 << ((control >> 12) & 7));
        }
        at = usize::from(next) & 0xfc;
    }
    None
}

const PCI_EXPRESS: u8 = 0x10;

/// As many as fit into the standard configuration space.
const CAPABILITIES_MAX: usize = 48;

/// Path and version of the libibverbs that programs would load. rdma-core names the file behind the
/// link `libibverbs.so.1.ABI.VERSION`.
fn library(tree: &Tree) -> Option<(String, String)> {
    LIBRARY_FOLDERS.iter().find_map(|folder| {
        let path = format!("{folder}/libibverbs.so.1");
        let name = tree.link_name(&path)?;
        let numbers = name.strip_prefix("libibverbs.so.1.")?;
        let (_, version) = numbers.split_once('.')?;
        Some((format!("/{path}"), version.to_owned()))
    })
}

const LIBRARY_FOLDERS: &[&str] = &[
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "lib/x86_64-linux-gnu",
    "lib64",
];

const CLASS: &str = "sys/class/infiniband";
const DEV: &str = "dev/infiniband";
