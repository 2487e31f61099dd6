//! Devices and their ports, from sysfs (`Documentation/ABI/stable/sysfs-class-infiniband` of the
//! kernel).

use crate::host::Tree;
use std::net::{IpAddr, Ipv6Addr};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name, as `verbs.device` takes it: `mlx5_0`.
    pub name: String,
    pub driver: Option<String>,
    /// True for a device in software over a network interface (rdma_rxe, siw).
    pub is_software: bool,
    pub firmware: Option<String>,
    pub ports: Vec<Port>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Port number, from 1.
    pub number: u32,
    /// State in the kernel's words: `ACTIVE` if it works.
    pub state: String,
    /// Link layer: `Ethernet` or `InfiniBand`.
    pub link_layer: String,
    pub transport: Transport,
    /// In the kernel's words: `100 Gb/sec (4X EDR)`. A software device reports an invented one.
    pub rate: Option<String>,
    pub netdevs: Vec<String>,
    /// Addresses of these interfaces, which connections use.
    pub addresses: Vec<IpAddr>,
    pub gids: Vec<Gid>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// InfiniBand over its own link layer.
    InfiniBand,
    /// InfiniBand over Ethernet.
    Roce,
    /// RDMA over TCP.
    Iwarp,
    /// A transport that verbs do not support.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    pub index: usize,
    /// The identifier, written as an IPv6 address; for RoCE v2 it is one.
    pub gid: Ipv6Addr,
    /// Type in the kernel's words: `RoCE v2`, `IB/RoCE v1`.
    pub kind: Option<String>,
}

/// Devices of a host by name; empty if the kernel has no RDMA support. `interfaces` are the network
/// interfaces of the host ([`interfaces`](super::interfaces)). Reads a few files for each entry of each port's GID table, up to the first 64 unused ones in
/// a row.
pub fn devices(tree: &Tree, interfaces: &[(String, IpAddr)]) -> Vec<Device> {
    let mut names = tree.names(CLASS);
    names.sort();
    names.into_iter().map(|name| device(tree, name, interfaces)).collect()
}

impl Device {
    pub fn is_active(&self) -> bool {
        self.ports.iter().any(Port::is_active)
    }

    pub fn has_address(&self, address: IpAddr) -> bool {
        self.ports.iter().any(|port| port.addresses.contains(&address))
    }
}

impl Port {
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }
}

impl Transport {
    pub const fn name(self) -> &'static str {
        match self {
            Self::InfiniBand => "InfiniBand",
            Self::Roce => "RoCE",
            Self::Iwarp => "iWARP",
            Self::Other => "other",
        }
    }

    fn of(node_type: Option<&str>, link_layer: &str) -> Self {
        match (node_type, link_layer) {
            (Some("CA"), "InfiniBand") => Self::InfiniBand,
            (Some("CA"), _) => Self::Roce,
            (Some("RNIC"), _) => Self::Iwarp,
            _ => Self::Other,
        }
    }
}

fn device(tree: &Tree, name: String, interfaces: &[(String, IpAddr)]) -> Device {
    let path = format!("{CLASS}/{name}");
    let is_software = !tree.exists(&format!("{path}/device"));
    let node_type = code_name(tree, &format!("{path}/node_type"));
    let numbers = tree.names(&format!("{path}/ports"));
    let numbers = numbers.iter().filter_map(|number| number.parse().ok());
    let ports = numbers.map(|number| port(tree, &path, number, node_type.as_deref()));
    let mut ports: Vec<Port> = ports.collect();
    for port in &mut ports {
        let own = interfaces.iter().filter(|(name, _)| port.netdevs.contains(name));
        port.addresses = own.map(|(_, ip)| *ip).filter(|ip| !ip.is_loopback()).collect();
    }
    let driver = match is_software {
        true => software_driver(&ports),
        false => tree.link_name(&format!("{path}/device/driver")),
    };
    Device { name, driver, is_software, firmware: tree.line(&format!("{path}/fw_ver")), ports }
}

fn port(tree: &Tree, device: &str, number: u32, node_type: Option<&str>) -> Port {
    let path = format!("{device}/ports/{number}");
    let link_layer = tree.line(&format!("{path}/link_layer")).unwrap_or_default();
    let (gids, mut netdevs) = gid_table(tree, &path);
    if netdevs.is_empty() {
        netdevs = netdevs_of_function(tree, device, number);
    }
    Port {
        number,
        state: code_name(tree, &format!("{path}/state")).unwrap_or_default(),
        transport: Transport::of(node_type, &link_layer),
        link_layer,
        rate: tree.line(&format!("{path}/rate")),
        netdevs,
        addresses: Vec::new(),
        gids,
    }
}

/// The used entries of a port's GID table, and their network interfaces. The kernel gives a new entry the first free
/// place, so that after a long run of unused ones there are none (rxe has a table of 1,024).
fn gid_table(tree: &Tree, port: &str) -> (Vec<Gid>, Vec<String>) {
    let (mut gids, mut netdevs) = (Vec::new(), Vec::new());
    let mut end = UNUSED_GIDS_MAX;
    for index in 0..GIDS_MAX {
        if index == end {
            break;
        }
        let path = format!("{port}/gids/{index}");
        let Some(text) = tree.peek(&path) else { break };
        let Ok(gid) = text.parse::<Ipv6Addr>() else { continue };
        // Few entries are in use; the others are left out of the record.
        if gid.is_unspecified() || tree.text(&path).is_none() {
            continue;
        }
        end = index + 1 + UNUSED_GIDS_MAX;
        let attribute = |kind: &str| tree.line(&format!("{port}/gid_attrs/{kind}/{index}"));
        gids.push(Gid { index, gid, kind: attribute("types") });
        netdevs.extend(attribute("ndevs").filter(|name| !netdevs.contains(name)));
    }
    (gids, netdevs)
}

/// The network interfaces on the same bus function as a device whose table does not name them (IP
/// over InfiniBand); with several ports, the one of this port.
fn netdevs_of_function(tree: &Tree, device: &str, port: u32) -> Vec<String> {
    let net = format!("{device}/device/net");
    let of_port = |name: &String| {
        let dev_port = tree.value::<u32>(&format!("{net}/{name}/dev_port"));
        dev_port.is_none_or(|zero_based| zero_based.checked_add(1) == Some(port))
    };
    let mut names: Vec<String> = tree.names(&net).into_iter().filter(of_port).collect();
    names.sort();
    names
}

/// The kernel has one driver of each type, which sysfs does not name.
fn software_driver(ports: &[Port]) -> Option<String> {
    match ports.first()?.transport {
        Transport::Roce => Some("rdma_rxe".to_owned()),
        Transport::Iwarp => Some("siw".to_owned()),
        Transport::InfiniBand | Transport::Other => None,
    }
}

/// The word after the number of an attribute such as `4: ACTIVE`.
fn code_name(tree: &Tree, path: &str) -> Option<String> {
    let text = tree.line(path)?;
    let (_, name) = text.split_once(": ")?;
    Some(name.to_owned())
}

const CLASS: &str = "sys/class/infiniband";

/// More entries than any kernel driver has.
const GIDS_MAX: usize = 4096;

/// Unused entries in a row after which a GID table is taken to have no others.
const UNUSED_GIDS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// The indices that are found in a table of 300 entries, of which these are in use.
    fn found(used: &[usize]) -> Vec<usize> {
        let entry = |index| {
            let gid = if used.contains(&index) { "fe80::1" } else { "::" };
            format!("port/gids/{index} = {gid}\n")
        };
        let entries: String = (0..300).map(entry).collect();
        let record = format!("# spintune record 1\n{entries}").parse().unwrap();
        let (gids, _) = gid_table(&Tree::record(record), "port");
        gids.iter().map(|gid| gid.index).collect()
    }

    #[test]
    fn a_table_is_read_up_to_a_long_run_of_unused_entries() {
        assert_eq!(found(&[0, 1, 65, 129]), [0, 1, 65, 129]);
        assert_eq!(found(&[1, 66]), [1]);
        assert_eq!(found(&[63]), [63]);
        assert_eq!(found(&[64]), [] as [usize; 0]);
    }
}
