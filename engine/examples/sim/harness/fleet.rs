//! Mixed fleets: which nodes speak which versions, and which connections are cut while a version is found.
//! Decided apart from the rest of a scenario, so that the seeds that once failed still mean what they meant.

use super::negotiation::Step;
use super::scenario::Node;
use spinrpc::config::{ConfigError, RawConfig, Versions};
use spinrpc::fabric::sim::Rng;

/// Longer than any message is on its way.
const PAUSE_NS: u64 = 500_000;

#[derive(Debug)]
pub(crate) struct Fleet {
    /// Not all nodes need speak the same versions.
    pub(crate) is_mixed: bool,
    pub(crate) cuts: Vec<Cut>,
}

/// A connection is cut when its ends have come so far with finding their version.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) at: Step,
    /// All cores sleep for this long first: messages in flight arrive, and are taken when the cores
    /// know of the end.
    pub(crate) pause_ns: u64,
    /// The end that dies is that of the client.
    pub(crate) is_of_client: bool,
}

impl Fleet {
    /// Every other seed is a mixed fleet, and half of those have cuts.
    pub(crate) fn of(
        seed: u64,
        servers: &mut [Node],
        clients: &mut [Node],
    ) -> Result<Self, ConfigError> {
        let (is_mixed, has_cuts) = (seed % 2 == 1, seed % 4 == 1);
        if is_mixed {
            speak(seed, servers, clients)?;
        }
        if !has_cuts {
            return Ok(Self { is_mixed, cuts: Vec::new() });
        }
        let mut rng = Rng::new(seed ^ 0x6375_7473);
        if rng.chance(600) {
            fall_behind(&mut rng, servers, clients)?;
        }
        // Drawn for a feature that was deleted, so that the seeds keep their cuts.
        let thousandth = rng.pick(&[0, 500, 1000]);
        for _ in 0..servers.len() + clients.len() {
            rng.chance(thousandth);
        }
        let cuts = (0..rng.within((1, 4))).map(|_| Cut::draw(&mut rng)).collect();
        Ok(Self { is_mixed, cuts })
    }
}

impl Cut {
    fn draw(rng: &mut Rng) -> Self {
        use Step::{Answered, Connected, FallbackAnswered, FellBack, Offered, Refused};
        let often = [FellBack, FallbackAnswered, FallbackAnswered];
        let steps = [[Connected, Offered, Answered], [Refused; 3], often].concat();
        Self {
            at: rng.pick(&steps),
            pause_ns: rng.pick(&[0, PAUSE_NS]),
            is_of_client: rng.chance(500),
        }
    }
}

/// Old nodes, new ones, and those that are between, as long as any two of them have a version in
/// common.
fn speak(seed: u64, servers: &mut [Node], clients: &mut [Node]) -> Result<(), ConfigError> {
    use Versions::{Both, One, Two};
    let mut rng = Rng::new(seed ^ 0x7665_7273);
    let fleet = rng.pick(&[&[One, Both][..], &[One, Both, Both], &[Both], &[Two, Both]]);
    for node in servers.iter_mut().chain(clients) {
        let versions = rng.pick(fleet);
        node.change(|raw| raw.rpc.version = versions)?;
    }
    Ok(())
}

/// New clients call servers most of which are old, and may forget that soon.
fn fall_behind(
    rng: &mut Rng,
    servers: &mut [Node],
    clients: &mut [Node],
) -> Result<(), ConfigError> {
    use Versions::{Both, One};
    for node in servers {
        let versions = rng.pick(&[One, One, Both]);
        node.change(|raw| raw.rpc.version = versions)?;
    }
    let memory_ms = rng.pick(&[1, 600_000]);
    for node in clients {
        node.change(|raw| (raw.rpc.version, raw.fixed.version_memory_ms) = (Both, memory_ms))?;
    }
    Ok(())
}

impl Node {
    pub(crate) fn change(
        &mut self,
        change: impl FnOnce(&mut RawConfig),
    ) -> Result<(), ConfigError> {
        let mut raw = self.config.raw().clone();
        change(&mut raw);
        self.config = raw.validate_for(&super::scenario::host())?;
        Ok(())
    }
}
