//! Being found without an address: the server registers with rpcbind, the client asks it.

use crate::{PROGRAM, VERSION};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use spinrpc::Engine;
use spinrpc::rpcbind::{Daemon, Endpoint, How, Netid, Registration, RpcbindError, find_service};
use std::io;

/// Where the server listens, as rpcbind says.
pub(crate) fn find(daemon: &Daemon) -> Result<String, RpcbindError> {
    let found = find_service(PROGRAM, VERSION, Netid::Shm, How::Rpcbind(daemon))?;
    Ok(found.to_string())
}

/// Tells rpcbind that the server listens at `address`, for as long as the registration is kept.
pub(crate) fn register(daemon: &Daemon, address: &str) -> Result<Registration, RpcbindError> {
    let endpoint = Endpoint::parse(Netid::Shm, address)?;
    let registration = Registration::new(daemon, PROGRAM, VERSION, &endpoint)?;
    if let Some(before) = registration.replaced() {
        eprintln!(
            "rpcbind sent callers to {before:?} before; a server there is not found any more"
        );
    }
    Ok(registration)
}

/// Ends `engine` on the first SIGINT or SIGTERM, so that the registration can be taken back, and
/// the process on the second.
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
