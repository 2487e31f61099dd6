//! Addresses of the network interfaces, read from the kernel over netlink (RFC 3549).

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{self, AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A network interface with one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interface {
    /// Its name: `eth0`.
    pub name: String,
    /// One of its addresses.
    pub address: IpAddr,
}

impl Interface {
    /// Creates an interface with this name and address.
    #[must_use]
    pub fn new(name: impl Into<String>, address: IpAddr) -> Self {
        Self { name: name.into(), address }
    }
}

/// Every address of every network interface in the current network namespace.
///
/// # Errors
/// The system's error if a netlink socket cannot be opened.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
    let socket = net::socket_with(family, kind, SocketFlags::CLOEXEC, NETLINK_ROUTE)?;
    let kernel = SocketAddrNetlink::new(0, 0);
    net::sendto(&socket, &dump_request(), SendFlags::empty(), &kernel)?;
    let mut found = Vec::new();
    let mut buffer = vec![0; ANSWER_BYTES_MAX];
    loop {
        let (bytes, _) = net::recv(&socket, &mut buffer, RecvFlags::empty())?;
        match parse(&buffer[..bytes], &mut found) {
            More::Comes => {}
            More::Done => break,
            More::Failed => return Err(io::Error::other("the kernel's answer is malformed")),
        }
    }
    // Fails only if the interface has just been removed.
    let name = |index| net::netdevice::index_to_name(&socket, index).ok();
    let named = |(index, address)| Some(Interface { name: name(index)?, address });
    Ok(found.into_iter().filter_map(named).collect())
}

/// Tells whether more datagrams follow.
#[derive(Debug, PartialEq, Eq)]
enum More {
    Comes,
    Done,
    Failed,
}

/// `struct nlmsghdr` and `struct ifaddrmsg`: all addresses of both families.
fn dump_request() -> Vec<u8> {
    let mut request = Vec::with_capacity(HEADER_BYTES + ADDRESS_BYTES);
    request.extend(((HEADER_BYTES + ADDRESS_BYTES) as u32).to_ne_bytes());
    request.extend(RTM_GETADDR.to_ne_bytes());
    request.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    request.resize(HEADER_BYTES + ADDRESS_BYTES, 0); // sequence, port, and any address
    request
}

/// The addresses in one datagram of the answer, each with its interface index.
fn parse(mut datagram: &[u8], found: &mut Vec<(u32, IpAddr)>) -> More {
    while datagram.len() >= HEADER_BYTES {
        let (length, kind) = (u32_at(datagram, 0) as usize, u16_at(datagram, 4));
        let Some(message) = datagram.get(HEADER_BYTES..length) else { return More::Failed };
        match kind {
            NLMSG_DONE => return More::Done,
            NLMSG_ERROR => return More::Failed,
            RTM_NEWADDR => found.extend(address(message)),
            _ => {}
        }
        datagram = datagram.get(aligned(length)..).unwrap_or_default();
    }
    More::Comes
}

/// `struct ifaddrmsg` and its attributes: the local address, or the address on a link with more
/// than two ends.
fn address(message: &[u8]) -> Option<(u32, IpAddr)> {
    let family = *message.first()?;
    let mut attributes = message.get(ADDRESS_BYTES..)?;
    let (mut local, mut any) = (None, None);
    while attributes.len() >= ATTRIBUTE_BYTES {
        let (length, kind) = (u16_at(attributes, 0) as usize, u16_at(attributes, 2));
        let value = attributes.get(ATTRIBUTE_BYTES..length)?;
        match kind {
            IFA_LOCAL => local = ip(family, value),
            IFA_ADDRESS => any = ip(family, value),
            _ => {}
        }
        attributes = attributes.get(aligned(length)..).unwrap_or_default();
    }
    Some((u32_at(message, 4), local.or(any)?))
}

fn ip(family: u8, value: &[u8]) -> Option<IpAddr> {
    match u16::from(family) {
        family if family == AddressFamily::INET.as_raw() => {
            Some(Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?).into())
        }
        family if family == AddressFamily::INET6.as_raw() => {
            Some(Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?).into())
        }
        _ => None,
    }
}

/// The callers have checked the length.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Messages and attributes are aligned to four bytes.
fn aligned(length: usize) -> usize {
    length.next_multiple_of(4).max(4)
}

/// Buffer size recommended by netlink(7).
const ANSWER_BYTES_MAX: usize = 32 << 10;
/// Protocol 0 of this family.
const NETLINK_ROUTE: Option<Protocol> = None;
const HEADER_BYTES: usize = 16;
const ADDRESS_BYTES: usize = 8;
const ATTRIBUTE_BYTES: usize = 4;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_DUMP: u16 = 0x300;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut message = ((HEADER_BYTES + body.len()) as u32).to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.resize(HEADER_BYTES, 0);
        message.extend(body);
        message.resize(message.len().next_multiple_of(4), 0);
        message
    }

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut attribute = ((ATTRIBUTE_BYTES + value.len()) as u16).to_ne_bytes().to_vec();
        attribute.extend(kind.to_ne_bytes());
        attribute.extend(value);
        attribute.resize(attribute.len().next_multiple_of(4), 0);
        attribute
    }

    fn of_interface(index: u32, family: u8, attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut body = vec![family, 24, 0, 0];
        body.extend(index.to_ne_bytes());
        body.extend(attributes.concat());
        message(RTM_NEWADDR, &body)
    }

    #[test]
    fn the_loopback_interface_has_its_address() {
        let lo = Interface { name: "lo".to_owned(), address: Ipv4Addr::LOCALHOST.into() };
        assert!(interfaces().unwrap().contains(&lo));
    }

    #[test]
    fn of_two_ends_the_local_one_counts() {
        let ends = [attribute(IFA_ADDRESS, &[10, 0, 0, 2]), attribute(IFA_LOCAL, &[10, 0, 0, 1])];
        let label = attribute(3, b"tun0\0");
        let six = [attribute(IFA_ADDRESS, &Ipv6Addr::LOCALHOST.octets())];
        let mut datagram = of_interface(7, 2, &[ends[0].clone(), label, ends[1].clone()]);
        datagram.extend(of_interface(1, 10, &six));
        let mut found = Vec::new();
        assert_eq!(parse(&datagram, &mut found), More::Comes);
        let expected: [(u32, IpAddr); 2] =
            [(7, Ipv4Addr::new(10, 0, 0, 1).into()), (1, Ipv6Addr::LOCALHOST.into())];
        assert_eq!(found, expected);
        assert_eq!(parse(&message(NLMSG_DONE, &[0; 4]), &mut found), More::Done);
    }

    #[test]
    fn an_answer_that_is_cut_off_or_lies_about_lengths_ends_without_harm() {
        let address = attribute(IFA_ADDRESS, &[10, 0, 0, 2]);
        let whole = of_interface(7, 2, std::slice::from_ref(&address));
        for cut in 0..whole.len() {
            let mut found = Vec::new();
            parse(&whole[..cut], &mut found);
            assert!(found.is_empty());
        }
        for at in 0..whole.len() {
            for value in [0, 1, 3, 0xff] {
                let mut bent = whole.clone();
                bent[at] = value;
                parse(&bent, &mut Vec::new());
            }
        }
        assert_eq!(parse(&message(NLMSG_ERROR, &[0; 20]), &mut Vec::new()), More::Failed);
    }
}
