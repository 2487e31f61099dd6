//! Additional conditions of one seed in seven: extremes of credits, cores that stop for longer than
//! a deadline, servers that are replaced by their next process, hostile peers that claim and send
//! all at once. Decided apart from the rest of a scenario, so that the other seeds mean what they
//! meant.

use super::scenario::{Fault, Node};
use spinrpc::config::ConfigError;
use spinrpc::fabric::sim::Rng;

/// Longer than the shorter deadline of calls, and less than an answer that is owed may take.
const STOP_NS: u64 = 8_000_000;

#[derive(Debug, Default)]
pub(crate) struct Wide {
    pub(crate) faults: Vec<(u64, Fault)>,
    /// Decides what hostile peers do beyond the rest.
    pub(crate) wild: Option<u64>,
}

impl Wide {
    pub(crate) fn of(
        seed: u64,
        is_calm: bool,
        servers: &mut [Node],
        clients: &mut [Node],
    ) -> Result<Self, ConfigError> {
        if seed % 7 != 5 {
            return Ok(Self::default());
        }
        let mut rng = Rng::new(seed ^ 0x7769_6465);
        for node in servers.iter_mut().chain(clients) {
            let credits = rng.pick(&[None, Some(1), Some(2), Some(32), Some(64)]);
            let Some(credits) = credits else { continue };
            node.change(|raw| raw.rpc.credits = credits)?;
        }
        let wild = Some(rng.any());
        let faults = if is_calm { Vec::new() } else { faults(&mut rng) };
        Ok(Self { faults, wild })
    }
}

fn faults(rng: &mut Rng) -> Vec<(u64, Fault)> {
    let end_ns = rng.pick(&[100_000, 2_000_000]);
    let restarts = rng.pick(&[0, 1, 1, 2]);
    let mut all = Vec::new();
    for _ in 0..restarts {
        let (which, grace_ns) = (rng.any(), rng.pick(&[0, 50_000, 1_500_000]));
        let away_ns = rng.pick(&[0, 100_000]);
        all.push((rng.below(end_ns), Fault::Restart { which, grace_ns, away_ns }));
    }
    // One: several would add up to more than an RDMA_DONE may take.
    if rng.chance(500) {
        all.push((rng.below(end_ns), Fault::Stall(rng.any(), rng.within((0, STOP_NS)))));
    }
    all
}
