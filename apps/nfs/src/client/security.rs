//! Kerberos of a session: its calls to NFS prove their user. MOUNT goes without, as its answers are public
//! (RFC 2623 section 2.3).

#[cfg(feature = "krb5")]
mod tcp;

use super::Options;
use super::error::Error;
use spinrpc::fabric::Address;
use spinrpc::{ConnectOptions, GssService};
use std::path::PathBuf;

/// Protection by Kerberos, and the user's side of it. Tickets come from the cache of the user (`KRB5CCNAME`) unless there is a
/// keytab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Security {
    /// Protection of calls.
    pub service: GssService,
    /// Host in the principal of the server, `nfs/HOST`. `None`: that of the server's address, which must not be an IP address.
    pub host: Option<String>,
    /// Keytab with the key of the user, instead of a ticket.
    pub keytab: Option<PathBuf>,
    /// The user. `None`: that of the ticket, or the first of the keytab.
    pub principal: Option<String>,
    /// TCP port of the server for contexts that it denies over RDMA. Calls go over RDMA in any case.
    pub port: ContextPort,
}

/// TCP port at which a server establishes contexts that it denies over RDMA (RFC 8166 section 8.2.2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContextPort {
    /// 2049 of the server's host; none for a server in shared memory.
    #[default]
    Auto,
    /// This one of the server's host.
    At(u16),
    /// A denial is final.
    Off,
}

#[cfg(not(feature = "krb5"))]
pub(super) fn protected(_: &Address, _: &Security, _: &Options) -> Result<ConnectOptions, Error> {
    let message =
        "this program was built without Kerberos, which --sec needs; build it with --features krb5";
    Err(Error::Usage(message.to_owned()))
}

/// Fails if the host of the principal is not known.
#[cfg(feature = "krb5")]
pub(super) fn protected(
    server: &Address,
    security: &Security,
    options: &Options,
) -> Result<ConnectOptions, Error> {
    use spinrpc::gss::{GssInitiator, InitiatorOptions, Kerberos};
    use spinrpc::rpcbind::stream::Limits;
    let mut user = InitiatorOptions::new();
    if let Some(keytab) = &security.keytab {
        user = user.keytab(keytab);
    }
    if let Some(principal) = &security.principal {
        user = user.principal(principal);
    }
    let user = Kerberos::initiator(user);
    let user = user.map_err(|error| Error::Local(format!("Kerberos: {error}")))?;
    let target = format!("nfs@{}", host(server, security)?);
    let mut initiator = GssInitiator::new(user, &target).service(security.service);
    if let Some(port) = tcp_port(server, security.port) {
        // Half of the time for a connection: the reason for a failure is to be told, and not that the time is over.
        let time = tcp::TIMEOUT_MAX.min(super::connect_timeout(options) / 2);
        initiator = initiator.fallback(move |peer, call, awaited| {
            let is_awaited = || awaited.is_awaited();
            tcp::exchange(peer, port, Limits::within(time).while_awaited(&is_awaited), call)
        });
    }
    Ok(ConnectOptions::new().gss(initiator))
}

#[cfg(feature = "krb5")]
fn tcp_port(server: &Address, port: ContextPort) -> Option<u16> {
    match (server, port) {
        (_, ContextPort::Off) | (Address::Shm(_), ContextPort::Auto) => None,
        (Address::Rdma(_), ContextPort::Auto) => Some(tcp::PORT),
        (_, ContextPort::At(port)) => Some(port),
    }
}

/// Host of the principal: over shared memory this one.
#[cfg(feature = "krb5")]
fn host(server: &Address, security: &Security) -> Result<String, Error> {
    match (&security.host, server) {
        (Some(host), _) => Ok(host.clone()),
        (None, Address::Rdma(server)) => named(server.host()),
        (None, Address::Shm(_)) => {
            let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
            let failed =
                |error| Error::Local(format!("the name of this host: {error}; use --gss-host"));
            name.map(|name| name.trim_end().to_owned()).map_err(failed)
        }
    }
}

/// The library would ask the DNS for the name of an address, and the answerer of that would choose the server.
#[cfg(feature = "krb5")]
fn named(host: &str) -> Result<String, Error> {
    // An IPv6 address may name an interface.
    let address = host.split('%').next().unwrap_or_default();
    if address.parse::<std::net::IpAddr>().is_ok() {
        return Err(Error::Usage(format!(
            "{host} is an address, and Kerberos proves the name of a server; use its name, or \
             --gss-host"
        )));
    }
    Ok(host.to_owned())
}

#[cfg(test)]
#[cfg(feature = "krb5")]
mod tests {
    use super::*;

    fn host_of(address: &str, given: Option<&str>) -> Result<String, String> {
        let security = Security {
            service: GssService::Privacy,
            host: given.map(str::to_owned),
            keytab: None,
            principal: None,
            port: ContextPort::Auto,
        };
        let server = Address::parse(address).unwrap();
        super::host(&server, &security).map_err(|error| error.to_string())
    }

    #[test]
    fn a_server_is_proved_by_its_name_and_never_by_its_address() {
        for address in ["rdma://10.8.0.1", "rdma://[2001:db8::1]:4000", "rdma://[fe80::1%eth0]"] {
            let error = host_of(address, None).unwrap_err();
            assert!(error.contains("--gss-host"), "{error}");
            assert_eq!(host_of(address, Some("nfs.example")).as_deref(), Ok("nfs.example"));
        }
        assert_eq!(host_of("rdma://nfs.example", None).as_deref(), Ok("nfs.example"));
    }

    #[test]
    fn contexts_go_to_port_2049_and_for_shared_memory_to_none() {
        for (address, auto) in [("rdma://nfs.example:20049", Some(2049)), ("shm:nfs", None)] {
            let port = |port| tcp_port(&Address::parse(address).unwrap(), port);
            assert_eq!(port(ContextPort::Auto), auto);
            assert_eq!(port(ContextPort::At(7)), Some(7));
            assert_eq!(port(ContextPort::Off), None);
        }
    }
}
