//! Service discovery: the server registers with rpcbind, and the client asks it.

use crate::{PROGRAM, VERSION};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use spinrpc::Engine;
use spinrpc::fabric::Address;
use spinrpc::rpcbind::{Daemon, Endpoint, How, Netid, Registration, RpcbindError, find_service};
use spinrpc_tuning::printable::to_stderr;
use std::error::Error;
use std::io;
use std::net::Ipv4Addr;

/// Address of the server according to rpcbind: shared memory, or else RDMA.
pub(crate) fn find(daemon: &Daemon) -> Result<String, RpcbindError> {
    let asked = match daemon {
        Daemon::Tcp(address) => address.ip(),
        Daemon::Local | Daemon::Unix(_) => Ipv4Addr::LOCALHOST.into(),
    };
    let find = |netid| find_service(PROGRAM, VERSION, netid, How::Rpcbind(daemon));
    let found =
        or_else_by(find(Netid::Shm), || or_else_by(find(Netid::Rdma), || find(Netid::Rdma6)));
    found.map(|endpoint| endpoint.on_host(asked).to_string())
}

type Found = Result<Endpoint, RpcbindError>;

/// Tries the next netid if nothing is registered under this one.
fn or_else_by(found: Found, next: impl FnOnce() -> Found) -> Found {
    match found {
        Err(RpcbindError::NotRegistered { .. }) => next(),
        found => found,
    }
}

/// Registers the server's `address` with rpcbind, for the lifetime of the registration.
pub(crate) fn register(daemon: &Daemon, address: &str) -> Result<Registration, Box<dyn Error>> {
    let endpoint = Endpoint::resolve(&Address::parse(address)?)?;
    let registration = Registration::new(daemon, PROGRAM, VERSION, &endpoint)?;
    if let Some(before) = registration.replaced() {
        to_stderr(format_args!(
            "rpcbind sent callers to {before:?} before; a server there can no longer be found"
        ));
    }
    Ok(registration)
}

/// So that the server can unregister; a second signal exits.
pub(crate) fn shut_down_on_signals(engine: Engine) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let wait = move || {
        let mut arriving = signals.forever();
        if arriving.next().is_some() {
            engine.shutdown();
        }
        if let Some(signal) = arriving.next() {
            drop(emulate_default_handler(signal));
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).map(drop)
}
