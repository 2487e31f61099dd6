//! The fabric behind an address: the driver and, with RDMA, the device.

use crate::failure::Failure;
use spinrpc::config::Driver;
use spinrpc::fabric::{Address, RdmaAddress};
use spinrpc::{Config, driver_of};
use spinrpc_tuning::host::{Process, Tree};
use spinrpc_tuning::printable::to_stderr;
use spinrpc_tuning::raise_descriptor_limit;
use spinrpc_tuning::rdma::{self, Device, Memlock};
use std::net::IpAddr;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fabric {
    pub(crate) driver: Driver,
    /// With RDMA, the local device on the route, as far as known.
    pub(crate) device: Option<LocalDevice>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LocalDevice {
    pub(crate) name: String,
    shown: String,
    /// Absent for a software device, which has no link and reports an invented rate.
    pub(crate) bytes_per_second: Option<f64>,
}

impl Fabric {
    /// Queries the resolver for a name and the kernel for its devices, but sends nothing to the peer.
    pub(crate) fn of(address: &str) -> Result<Self, Failure> {
        let driver = driver_of(address).map_err(|error| Failure::Usage(error.to_string()))?;
        let device = match Address::parse(address) {
            Ok(Address::Rdma(address)) if driver == Driver::Verbs => device_towards(&address),
            _ => None,
        };
        Ok(Self { driver, device })
    }

    pub(crate) fn show(&self) -> String {
        match (self.driver, &self.device) {
            (Driver::Shm, _) => "shared memory".to_owned(),
            (Driver::Verbs, Some(device)) => device.shown.clone(),
            (Driver::Verbs, None) => "RDMA device, not found in sysfs".to_owned(),
            (Driver::Iwarp, _) => "iWARP over a TCP socket".to_owned(),
        }
    }
}

/// Connections need descriptors, and those of RDMA devices locked memory.
pub(crate) fn raise_limits(driver: Driver) {
    raise_descriptor_limit();
    if driver == Driver::Verbs {
        Memlock::raise();
    }
}

/// Warns if the first connection may fail for lack of locked memory, here or at the peer.
pub(crate) fn warn_of_memlock(config: &Config) {
    let process = Process::read(&Tree::host());
    let limit = process.memlock.and_then(|limit| limit.soft).filter(|_| !process.may_lock_all);
    let needed_bytes = Memlock::connection_bytes(config);
    if let Some(limit) = limit.filter(|limit| *limit < needed_bytes)
        && config.driver() == Driver::Verbs
    {
        let (limit_kib, needed) = (limit >> 10, needed_bytes.div_ceil(1 << 20));
        to_stderr(format_args!(
            "spinperf: {limit_kib} KiB may be locked, and a connection with this profile registers up to \
             {needed} MiB: {}",
            Memlock::REMEDY
        ));
    }
}

fn device_towards(address: &RdmaAddress) -> Option<LocalDevice> {
    let local = address.local_address().ok()?.ip();
    let interfaces = rdma::interfaces().unwrap_or_default();
    describe(&rdma::devices(&Tree::host(), &interfaces), local)
}

/// The device with this address: `rxe0: RoCE by rdma_rxe, port 1 ACTIVE, d0 10.9.0.1`.
fn describe(devices: &[Device], local: IpAddr) -> Option<LocalDevice> {
    let device = devices.iter().find(|device| device.has_address(local))?;
    let port = device.ports.iter().find(|port| port.addresses.contains(&local))?;
    let firmware = device.firmware.as_ref().map(|version| format!(" firmware {version}"));
    let rate = port.rate.as_deref().filter(|_| !device.is_software);
    let shown = format!(
        "{}: {} by {}{}, port {} {}, {} {local}",
        device.name,
        port.transport.name(),
        device.driver.as_deref().unwrap_or("an unknown driver"),
        firmware.unwrap_or_default(),
        port.number,
        port.state,
        port.netdevs.join(" "),
    );
    let bytes_per_second = rate.and_then(bytes_per_second);
    Some(LocalDevice { name: device.name.clone(), shown, bytes_per_second })
}

/// Parses a rate in the kernel's words: `100 Gb/sec (4X EDR)`.
fn bytes_per_second(rate: &str) -> Option<f64> {
    let gigabits: f64 = rate.split_once(" Gb/sec")?.0.parse().ok()?;
    Some(gigabits * 1e9 / 8.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_of_an_address_is_its_driver() {
        let shm = Fabric { driver: Driver::Shm, device: None };
        assert_eq!(Fabric::of("shm:x").unwrap(), shm);
        assert_eq!(shm.show(), "shared memory");
        assert_eq!(Fabric::of("rdma://127.0.0.1:1").unwrap().driver, Driver::Verbs);
        assert_eq!(Fabric::of("iwarp://127.0.0.1:1").unwrap().driver, Driver::Iwarp);
        assert!(matches!(Fabric::of("tcp:x"), Err(Failure::Usage(_))));
    }

    #[test]
    fn no_device_is_guessed() {
        assert_eq!(describe(&[], std::net::Ipv4Addr::LOCALHOST.into()), None);
        let unknown = Fabric { driver: Driver::Verbs, device: None };
        assert!(unknown.show().contains("not found"));
    }

    #[test]
    fn the_rate_of_a_link_is_in_gigabits() {
        assert_eq!(bytes_per_second("100 Gb/sec (4X EDR)"), Some(12.5e9));
        assert_eq!(bytes_per_second("2.5 Gb/sec (1X SDR)"), Some(0.3125e9));
        assert_eq!(bytes_per_second("fast"), None);
    }
}
