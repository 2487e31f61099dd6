//! The engine of a client: its driver follows from the address, its sizes from the options.

use super::Options;
use super::error::Error;
use spinrpc::config::Host;
use spinrpc::fabric::Address;
use spinrpc::{Config, RawConfig, driver_of};
use spinrpc_tuning::Loader;

/// Memory for everything but the data of READ and WRITE, mainly listings, in MiB.
const OTHER_MIB: u64 = 4;
/// Calls in addition to those that move data.
const OTHER_CALLS: u64 = 4;

pub(super) fn config(server: &Address, options: &Options) -> Result<Config, Error> {
    let host = Host::current();
    let driver = driver_of(&server.to_string());
    let driver = driver.map_err(|error| Error::Local(error.to_string()))?;
    let usual = RawConfig::default();
    // Two blocks for each call in flight, so that one may be in use while the next arrives. All of
    // it is locked for a device, which takes time: a short-lived tool uses no more.
    let data_bytes = 2 * options.depth as u64 * u64::from(options.block_bytes);
    let arena_mib = data_bytes.div_ceil(1 << 20) + OTHER_MIB;
    let credits = options.depth as u64 + OTHER_CALLS;
    let block_bytes = u64::from(options.block_bytes);
    let needs = [
        ("mem.conn_arena_mib", arena_mib),
        ("mem.arena_mib", arena_mib),
        ("rpc.credits", credits),
        ("rpc.max_read_bytes", usual.rpc.max_read_bytes.max(block_bytes)),
        ("rpc.max_write_bytes", usual.rpc.max_write_bytes.max(block_bytes)),
    ];
    let loader = needs.iter().fold(Loader::new(&host), |loader, (key, value)| {
        loader.unless_set(format!("{key}={value}"))
    });
    let loader = loader.set(format!("rpc.timeout_ms={}", options.timeout.as_millis()));
    let profile = options.profile.load(loader, driver).map_err(Error::Usage)?;
    Ok(profile.config().clone())
}
