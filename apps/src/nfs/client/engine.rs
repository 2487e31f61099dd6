//! The engine of a client: which fabric by the address, which sizes by the options.
//!
//! The only place of the client that knows fabrics apart. Called when a session begins.

use super::Options;
use super::error::Error;
use super::target::ServerAddress;
use spinrpc::{Config, Engine, RawConfig};

/// Smallest memory of a connection for data, in MiB.
const ARENA_MIB_MIN: u64 = 16;

/// An engine that reaches `server`.
///
/// # Errors
/// What the engine or the host does not have.
pub(super) fn engine_for(server: &ServerAddress, options: &Options) -> Result<Engine, Error> {
    match server {
        ServerAddress::Shm(_) => started(options),
        ServerAddress::Rdma { .. } => Err(Error::Local(format!(
            "no way to {server}: this program was built without RDMA; build it with --features \
             verbs, or name a server of this host (shm:NAME)"
        ))),
    }
}

fn started(options: &Options) -> Result<Engine, Error> {
    Engine::new(config(options)?).map_err(|error| Error::Local(error.to_string()))
}

/// Two blocks in memory for each call in flight, so that one may be in use while the next arrives.
fn config(options: &Options) -> Result<Config, Error> {
    let mut raw = RawConfig::default();
    let data_mib = (options.depth as u64 * u64::from(options.block_bytes)) >> 20;
    raw.shm.arena_mib = (2 * data_mib).max(ARENA_MIB_MIN);
    raw.rpc.inline_send_bytes = u64::from(options.inline_bytes);
    raw.rpc.inline_recv_bytes = u64::from(options.inline_bytes);
    raw.rpc.max_read_bytes = raw.rpc.max_read_bytes.max(options.block_bytes.into());
    raw.rpc.max_write_bytes = raw.rpc.max_write_bytes.max(options.block_bytes.into());
    raw.rpc.timeout_ms = options.timeout.as_millis() as u64;
    raw.validate().map_err(|error| Error::Local(error.to_string()))
}
