//! The engine of a client: its driver follows from the address, its sizes from the options.
//!
//! Called when a session starts.

use super::Options;
use super::error::Error;
use spinrpc::config::{Choice, Host, Versions};
use spinrpc::fabric::Address;
use spinrpc::{Config, Engine, RawConfig, driver_of};
use spinrpc_tuning::Loader;

/// Memory for everything but the data of READ and WRITE, mainly listings, in MiB.
const OTHER_MIB: u64 = 4;
/// Calls in addition to those that move data.
const OTHER_CALLS: u64 = 4;
/// Bytes of a message for each slot of a ring that holds it: a message uses at most half of the
/// slots, and most of their 256 bytes.
const RING_SLOT_BYTES: u64 = 64;

/// Maximum length of inline messages, in bytes, unless the session or the profile sets it.
const INLINE_BYTES: u32 = 4096;

/// An engine that can reach `server`.
///
/// # Errors
/// [`Error::Local`] or [`Error::Usage`] for a feature that the engine or the host lacks.
pub(super) fn engine_for(server: &Address, options: &Options) -> Result<Engine, Error> {
    Engine::new(config(server, options)?).map_err(|error| Error::Local(error.to_string()))
}

fn config(server: &Address, options: &Options) -> Result<Config, Error> {
    let host = Host::current();
    let driver = driver_of(&server.to_string());
    let driver = driver.map_err(|error| Error::Local(error.to_string()))?;
    let loader = needs(options).iter().fold(Loader::new(&host), |loader, (key, value)| {
        loader.unless_set(format!("{key}={value}"))
    });
    let loader = asked(options)
        .iter()
        .fold(loader, |loader, (key, value)| loader.set(format!("{key}={value}")));
    let profile = options.profile.load(loader, driver).map_err(Error::Usage)?;
    Ok(profile.config().clone())
}

/// Values requested by the session, which override the profile.
fn asked(options: &Options) -> Vec<(&'static str, String)> {
    let asked = [
        ("rpc.version", options.versions.map(|versions| versions.name().to_owned())),
        ("rpc.inline_send_bytes", options.inline_bytes.map(|bytes| bytes.to_string())),
        ("rpc.inline_recv_bytes", options.inline_bytes.map(|bytes| bytes.to_string())),
        ("poll.mode", options.idle.map(|idle| idle.name().to_owned())),
        ("rpc.timeout_ms", Some(options.timeout.as_millis().to_string())),
    ];
    asked.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
}

/// Values that suit the session, for keys that the profile does not set.
fn needs(options: &Options) -> Vec<(&'static str, String)> {
    let usual = RawConfig::default();
    // Two blocks for each call in flight, so that one may be in use while the next arrives. All of
    // it is locked for a device, which takes time: a short-lived tool uses no more.
    let data_bytes = 2 * options.depth as u64 * u64::from(options.block_bytes);
    let arena_mib = data_bytes.div_ceil(1 << 20) + OTHER_MIB;
    // A call has at most one chunk of one segment; invalidating its key may take time.
    let credits = options.depth as u64 + OTHER_CALLS;
    let inline_bytes = u64::from(options.inline_bytes.unwrap_or(INLINE_BYTES));
    let ring_slots = inline_bytes.div_ceil(RING_SLOT_BYTES).next_power_of_two();
    let block_bytes = u64::from(options.block_bytes);
    let needs = [
        ("cores.skip", 1),
        ("shm.arena_mib", arena_mib),
        ("verbs.arena_mib", arena_mib),
        ("mem.arena_mib", arena_mib),
        ("rpc.credits", credits),
        ("verbs.keys", 2 * credits),
        ("rpc.inline_send_bytes", inline_bytes),
        ("rpc.inline_recv_bytes", inline_bytes),
        ("shm.ring_slots", usual.shm.ring_slots.max(ring_slots)),
        ("rpc.max_read_bytes", usual.rpc.max_read_bytes.max(block_bytes)),
        ("rpc.max_write_bytes", usual.rpc.max_write_bytes.max(block_bytes)),
    ];
    let mut needs: Vec<_> = needs.map(|(key, value)| (key, value.to_string())).into();
    needs.push(("rpc.version", Versions::One.name().to_owned()));
    needs
}
