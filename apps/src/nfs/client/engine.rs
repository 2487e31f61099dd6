//! The engine of a client: which driver by the address, which sizes by the options.
//!
//! Called when a session begins.

use super::Options;
use super::error::Error;
use spinrpc::fabric::Address;
use spinrpc::{Config, Engine, RawConfig, driver_of};

/// Smallest memory of a connection for data, in MiB.
const ARENA_MIB_MIN: u64 = 16;

/// An engine that reaches `server`.
///
/// # Errors
/// What the engine or the host does not have.
pub(super) fn engine_for(server: &Address, options: &Options) -> Result<Engine, Error> {
    Engine::new(config(server, options)?).map_err(|error| Error::Local(error.to_string()))
}

fn config(server: &Address, options: &Options) -> Result<Config, Error> {
    let mut raw = RawConfig::default();
    let driver = driver_of(&server.to_string());
    raw.fabric.driver = driver.map_err(|error| Error::Local(error.to_string()))?;
    // Two blocks for each call in flight, so that one may be in use while the next arrives.
    let data_mib = (options.depth as u64 * u64::from(options.block_bytes)) >> 20;
    raw.shm.arena_mib = (2 * data_mib).max(ARENA_MIB_MIN);
    raw.verbs.arena_mib = raw.shm.arena_mib;
    raw.rpc.inline_send_bytes = u64::from(options.inline_bytes);
    raw.rpc.inline_recv_bytes = u64::from(options.inline_bytes);
    raw.rpc.max_read_bytes = raw.rpc.max_read_bytes.max(options.block_bytes.into());
    raw.rpc.max_write_bytes = raw.rpc.max_write_bytes.max(options.block_bytes.into());
    raw.rpc.timeout_ms = options.timeout.as_millis() as u64;
    raw.validate().map_err(|error| Error::Local(error.to_string()))
}
