//! Devices as kernels describe them, from recorded trees of sysfs.
#![allow(clippy::unwrap_used)] // helpers of tests are not marked as tests

mod common;

use common::Folder;
use spinrpc_tuning::host::Tree;
use spinrpc_tuning::rdma::{Device, Transport, devices};
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

/// Lays out a record: `PATH = CONTENT` is a file, `PATH -> TARGET` a symbolic link.
fn sysfs(name: &str, record: &str) -> Tree {
    let folder = Folder::new(name);
    let root = PathBuf::from(folder.path("sys"));
    for line in record.lines().filter(|line| !line.starts_with('#')) {
        let is_link = line.contains(" -> ");
        let (path, content) = line.split_once(if is_link { " -> " } else { " =" }).unwrap();
        fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
        match is_link {
            true => std::os::unix::fs::symlink(content, root.join(path)).unwrap(),
            false => folder.write(&format!("sys/{path}"), &format!("{}\n", content.trim())),
        }
    }
    Tree::directory(folder.path(""))
}

fn interface(name: &str, address: &str) -> (String, IpAddr) {
    (name.to_owned(), address.parse().unwrap())
}

fn addresses(device: &Device) -> Vec<String> {
    device.ports[0].addresses.iter().map(IpAddr::to_string).collect()
}

#[test]
fn soft_devices_have_the_addresses_of_the_interfaces_below_them() {
    let sys = sysfs("soft", include_str!("rdma/soft.txt"));
    let interfaces = [
        interface("lo", "127.0.0.1"),
        interface("lo", "10.8.0.1"),
        interface("eth0", "192.0.2.1"),
        interface("d0", "10.9.0.1"),
        interface("d0", "fe80::94e9:46ff:fe46:b3fb"),
    ];
    let [rxe, siw] = &devices(&sys, &interfaces)[..] else { unreachable!() };
    assert_eq!((rxe.name.as_str(), rxe.driver.as_deref()), ("rxe0", Some("rdma_rxe")));
    assert_eq!(addresses(rxe), ["10.9.0.1", "fe80::94e9:46ff:fe46:b3fb"]);
    assert_eq!((siw.name.as_str(), siw.driver.as_deref()), ("siw0", Some("siw")));
    assert_eq!(addresses(siw), ["10.8.0.1"], "no other device has 127.0.0.1");
    for device in [rxe, siw] {
        assert!(device.is_software && device.is_active() && device.firmware.is_none());
        assert!(!device.has_address("192.0.2.1".parse().unwrap()));
    }
    assert_eq!(rxe.ports[0].transport, Transport::Roce);
    assert_eq!(siw.ports[0].transport, Transport::Iwarp);
    assert!(rxe.has_address("10.9.0.1".parse().unwrap()));
}

#[test]
fn unused_entries_of_the_table_are_left_out() {
    let sys = sysfs("table", include_str!("rdma/soft.txt"));
    let rxe = devices(&sys, &[]).remove(0);
    let gids: Vec<_> = rxe.ports[0].gids.iter().map(|gid| (gid.index, gid.gid)).collect();
    assert_eq!(
        gids,
        [
            (0, "fe80::94e9:46ff:fe46:b3fb".parse().unwrap()),
            (1, "::ffff:10.9.0.1".parse().unwrap())
        ]
    );
    assert_eq!(rxe.ports[0].gids[0].kind.as_deref(), Some("RoCE v2"));
}

#[test]
fn an_adapter_is_named_with_driver_firmware_and_the_interface_of_each_port() {
    let sys = sysfs("hardware", include_str!("rdma/hardware.txt"));
    let interfaces = [interface("ib0", "10.1.0.7"), interface("ib1", "10.2.0.7")];
    let [works, down] = &devices(&sys, &interfaces)[..] else { unreachable!() };
    assert_eq!(works.driver.as_deref(), Some("mlx5_core"));
    assert_eq!(works.firmware.as_deref(), Some("20.31.1014"));
    assert_eq!(works.ports[0].rate.as_deref(), Some("100 Gb/sec (4X EDR)"));
    assert_eq!(works.ports[0].transport, Transport::InfiniBand);
    assert_eq!((works.is_software, works.is_active()), (false, true));
    assert_eq!(addresses(works), ["10.1.0.7"]);
    assert_eq!((down.ports[0].transport, down.is_active()), (Transport::Roce, false));
    assert_eq!(down.ports[0].netdevs, ["eth7"]);
}

#[test]
fn a_host_whose_kernel_knows_no_rdma_has_no_device() {
    let sys = sysfs("nothing", "kernel/mm = x");
    assert_eq!(devices(&sys, &[]), []);
}

#[test]
fn a_device_that_goes_while_it_is_read_is_shown_with_what_is_left() {
    let sys = sysfs("going", "class/infiniband/rxe0/ports/1/rate = x");
    let device = devices(&sys, &[]).remove(0);
    assert_eq!((device.name.as_str(), device.is_active()), ("rxe0", false));
    assert_eq!(device.ports[0].transport, Transport::Other);
}
