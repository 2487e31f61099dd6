//! The engine of a client: which driver by the address, which sizes by the options.
//!
//! Called when a session begins.

use super::Options;
use super::error::Error;
use spinrpc::fabric::Address;
use spinrpc::{Config, Engine, RawConfig, driver_of};

/// Memory for what is not data of READ and WRITE: listings above all, in MiB.
const OTHER_MIB: u64 = 4;
/// Calls beside those that move data.
const OTHER_CALLS: u64 = 4;
/// Bytes of a message for each slot of a ring that takes it: a message fills half of the slots at most,
/// and most of their 256 bytes.
const RING_SLOT_BYTES: u64 = 64;

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
    // Two blocks for each call in flight, so that one may be in use while the next arrives. All of
    // it is locked for a device, which takes time: a tool that lives for a moment takes no more.
    let data_bytes = 2 * options.depth as u64 * u64::from(options.block_bytes);
    let arena_mib = data_bytes.div_ceil(1 << 20) + OTHER_MIB;
    raw.shm.arena_mib = arena_mib;
    raw.verbs.arena_mib = arena_mib;
    raw.mem.arena_mib = arena_mib;
    // Calls with a chunk have one, of one segment; its key may take its time to end.
    raw.rpc.credits = options.depth as u64 + OTHER_CALLS;
    raw.verbs.keys = 2 * raw.rpc.credits;
    raw.rpc.version = options.versions;
    raw.rpc.inline_send_bytes = u64::from(options.inline_bytes);
    raw.rpc.inline_recv_bytes = u64::from(options.inline_bytes);
    let ring_slots = raw.rpc.inline_send_bytes.div_ceil(RING_SLOT_BYTES).next_power_of_two();
    raw.shm.ring_slots = raw.shm.ring_slots.max(ring_slots);
    raw.rpc.max_read_bytes = raw.rpc.max_read_bytes.max(options.block_bytes.into());
    raw.rpc.max_write_bytes = raw.rpc.max_write_bytes.max(options.block_bytes.into());
    raw.poll.mode = options.idle;
    raw.rpc.timeout_ms = options.timeout.as_millis() as u64;
    raw.validate().map_err(|error| Error::Local(error.to_string()))
}
