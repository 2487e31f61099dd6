//! Addresses of the network interfaces, from the C library.

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use std::io;
use std::net::IpAddr;

/// Every address of every network interface in the current network namespace, with the name of the interface: `eth0`.
///
/// # Errors
/// The system's error if it cannot be asked.
pub fn interfaces() -> io::Result<Vec<(String, IpAddr)>> {
    Ok(getifaddrs()?.filter_map(interface).collect())
}

/// `None` for an address of another family. Of a link with two ends, the address is the local one.
fn interface(of: InterfaceAddress) -> Option<(String, IpAddr)> {
    let address = of.address?;
    let v4 = address.as_sockaddr_in().map(|socket| IpAddr::V4(socket.ip()));
    let address = v4.or_else(|| address.as_sockaddr_in6().map(|socket| IpAddr::V6(socket.ip())))?;
    // The label of an IPv4 address, in place of a name, is DEVICE:TEXT.
    let device = of.interface_name.split(':').next().unwrap_or_default();
    Some((device.to_owned(), address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn the_loopback_interface_has_its_address() {
        let lo = ("lo".to_owned(), Ipv4Addr::LOCALHOST.into());
        assert!(interfaces().unwrap().contains(&lo));
    }
}
