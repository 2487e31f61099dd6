//! RoCE: GIDs and packet sizes, which depend on the network interface.

use crate::doctor::{CheckInput, Finding, Verdict};
use crate::host::Adapter;
use crate::rdma::{Port, Transport};
use crate::text::shell_word;

pub(super) fn gids(input: &CheckInput<'_>) -> Finding {
    let ports = ports(input);
    if ports.is_empty() {
        return Finding::ok("no active RoCE port");
    }
    let has_v2 = |port: &Port| port.gids.iter().any(|gid| gid.kind.as_deref() == Some("RoCE v2"));
    let Some((adapter, port)) = ports.iter().find(|(_, port)| !has_v2(port)) else {
        return Finding::ok("every active RoCE port has one");
    };
    let name = format!("{}/{}", adapter.device.name, port.number);
    let kinds: Vec<String> = port.gids.iter().filter_map(|gid| gid.kind.clone()).collect();
    let folder = format!("/sys/class/infiniband/{}/ports/{}", adapter.device.name, port.number);
    let finding = Finding::new(input.rdma_failure(), format!("port {name} has none"))
        .seen(format!("{folder}/gid_attrs/types"), super::some_of(&kinds, 4))
        .remedy("Give its network interface an address, and bring it up");
    port.netdevs.iter().map(shell_word).fold(finding, |finding, netdev| {
        finding
            .command(format!("ip link set dev {netdev} up"))
            .command(format!("ip address add ADDRESS/24 dev {netdev}"))
    })
}

pub(super) fn mtu(input: &CheckInput<'_>) -> Finding {
    let mut adapters: Vec<&Adapter> =
        ports(input).into_iter().map(|(adapter, _)| adapter).collect();
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
    let finding = Finding::new(Verdict::Info, says)
        .remedy("Raise it on both hosts, if the switches between them support it");
    adapter.mtu_bytes.iter().fold(finding, |finding, (netdev, bytes)| {
        finding
            .seen(format!("/sys/class/net/{netdev}/mtu"), bytes)
            .command(format!("ip link set dev {} mtu 9000", shell_word(netdev)))
    })
}

/// Active RoCE ports.
fn ports<'a>(input: &CheckInput<'a>) -> Vec<(&'a Adapter, &'a Port)> {
    let ports = |adapter: &'a Adapter| adapter.device.ports.iter().map(move |port| (adapter, port));
    let works = |port: &Port| port.is_active() && port.transport == Transport::Roce;
    input.adapters().into_iter().flat_map(ports).filter(|(_, port)| works(port)).collect()
}

/// 4096 bytes plus Ethernet, IPv6, UDP and InfiniBand headers.
const FULL_PACKET_BYTES: u64 = 4200;
