//! Registers NFS and MOUNT with rpcbind while they are served.

use crate::cli::Register;
use crate::failure::Failure;
use spinrpc::fabric::Address;
use spinrpc::rpcbind::{self, Client, Daemon, Endpoint, Registration, RpcbindError};
use spinrpc::sys::journal::event;
use spinrpc::{Program, Version};
use spinrpc_nfs::{mount3, nfs3};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

const NFS: (Program, Version) = (nfs3::PROGRAM, nfs3::VERSION);
const MOUNT: (Program, Version) = (mount3::PROGRAM, mount3::VERSION);
/// Maximum time for a live listener on this host to accept a connection.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// The registrations; dropping it removes them.
#[derive(Debug, Default)]
pub(crate) struct Registered(Vec<Registration>);

impl Registered {
    /// With `auto`, a failure is only a warning.
    pub(crate) fn new(
        how: &Register,
        listen: &[String],
        mount: Option<SocketAddr>,
    ) -> Result<Self, Failure> {
        let all = endpoints(listen, mount)?;
        match how {
            Register::No => Ok(Self::default()),
            Register::Daemon(daemon) => {
                let each = all.iter().map(|(program, endpoint)| set(daemon, *program, endpoint));
                let all = each.collect::<Result<_, _>>();
                all.map(Self).map_err(|error| Failure::Failed(error.to_string()))
            }
            Register::Auto => Ok(Self(register_what_can_be(&all))),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }
}

type Service = ((Program, Version), Endpoint);

fn endpoints(listen: &[String], mount: Option<SocketAddr>) -> Result<Vec<Service>, Failure> {
    let mut all = Vec::new();
    for address in listen {
        let endpoint = Address::parse(address)
            .map_err(|error| Failure::failed(address, error))
            .and_then(|parsed| {
                Endpoint::resolve(&parsed).map_err(|error| Failure::failed(address, error))
            })?;
        all.extend([(NFS, endpoint.clone()), (MOUNT, endpoint)]);
    }
    all.extend(mount.into_iter().flat_map(tcp_endpoints).map(|endpoint| (MOUNT, endpoint)));
    Ok(all)
}

/// A listener at every IPv6 address also covers every IPv4 address.
fn tcp_endpoints(address: SocketAddr) -> Vec<Endpoint> {
    let at = |ip: IpAddr| Endpoint::Tcp(SocketAddr::new(ip, address.port()));
    match address.ip() {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => {
            vec![at(Ipv4Addr::UNSPECIFIED.into()), at(address.ip())]
        }
        ip => vec![at(ip)],
    }
}

fn set(
    daemon: &Daemon,
    (program, version): (Program, Version),
    endpoint: &Endpoint,
) -> Result<Registration, RpcbindError> {
    let registration = Registration::new(daemon, program, version, endpoint)?;
    if let Some(before) = registration.replaced().filter(|before| *before != endpoint.universal()) {
        event!(WARN,
            %program, netid = %endpoint.netid(), ?before,
            "rpcbind sent callers elsewhere before; a server there can no longer be found"
        );
    }
    Ok(registration)
}

/// Registers as many services as rpcbind accepts; shared memory does not need it.
fn register_what_can_be(all: &[Service]) -> Vec<Registration> {
    let mut registered = Vec::new();
    for (program, endpoint) in all.iter().filter(|(_, endpoint)| endpoint.port().is_some()) {
        match set_if_free(*program, endpoint) {
            Ok(Some(registration)) => registered.push(registration),
            Ok(None) => {}
            Err(error @ RpcbindError::NotRunning { .. }) => {
                event!(INFO, %error, "not registered; clients must name the ports themselves");
                break;
            }
            Err(error) => event!(WARN, %error, "not registered"),
        }
    }
    registered
}

/// One that answers is kept: otherwise another server's clients would be sent here.
fn set_if_free(
    program: (Program, Version),
    endpoint: &Endpoint,
) -> Result<Option<Registration>, RpcbindError> {
    let daemon = Daemon::Local;
    let held =
        Client::connect(&daemon, rpcbind::TIMEOUT)?.find(program.0, program.1, endpoint.netid());
    match held {
        Ok(held) if held != *endpoint && answers(&held) => {
            event!(WARN,
                program = %program.0, at = %held, here = %endpoint,
                "rpcbind sends callers to another server on this host; clients of this one must \
                 name its ports (port=, mountport=), or use --register=local"
            );
            Ok(None)
        }
        Ok(_) | Err(RpcbindError::NotRegistered { .. } | RpcbindError::Address(_)) => {
            set(&daemon, program, endpoint).map(Some)
        }
        Err(error) => Err(error),
    }
}

/// Unknown for RDMA, which cannot be probed without a device: a registration is replaced then.
fn answers(held: &Endpoint) -> bool {
    let loopback = |ip: &IpAddr| match ip {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    match held {
        Endpoint::Tcp(address) => {
            let host =
                if address.ip().is_unspecified() { loopback(&address.ip()) } else { address.ip() };
            let place = SocketAddr::new(host, address.port());
            TcpStream::connect_timeout(&place, PROBE_TIMEOUT).is_ok()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spinrpc::rpcbind::Netid;

    #[test]
    fn what_is_registered_is_what_is_served() {
        let listen = ["rdma://192.0.2.1".to_owned(), "rdma://[::]:7".to_owned()];
        let all = endpoints(&listen, Some("[::]:20048".parse().unwrap())).unwrap();
        let shown: Vec<_> =
            all.iter().map(|((program, _), at)| (program.0, at.netid(), at.universal())).collect();
        let expected = [
            (100_003, Netid::Rdma, "192.0.2.1.78.81"),
            (100_005, Netid::Rdma, "192.0.2.1.78.81"),
            (100_003, Netid::Rdma6, "::.0.7"),
            (100_005, Netid::Rdma6, "::.0.7"),
            (100_005, Netid::Tcp, "0.0.0.0.78.80"),
            (100_005, Netid::Tcp6, "::.78.80"),
        ];
        assert_eq!(shown, expected.map(|(program, netid, at)| (program, netid, at.to_owned())));
    }

    #[test]
    fn a_port_at_one_address_is_of_one_netid() {
        let netids = |address: &str| {
            let all = tcp_endpoints(address.parse().unwrap());
            all.iter().map(Endpoint::netid).collect::<Vec<_>>()
        };
        assert_eq!(netids("127.0.0.1:1"), [Netid::Tcp]);
        assert_eq!(netids("0.0.0.0:1"), [Netid::Tcp]);
        assert_eq!(netids("[::1]:1"), [Netid::Tcp6]);
    }

    #[test]
    fn who_listens_answers() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let every = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
        assert!(answers(&Endpoint::Tcp(address)) && answers(&Endpoint::Tcp(every)));
        drop(listener);
        assert!(!answers(&Endpoint::Tcp(every)));
    }
}
