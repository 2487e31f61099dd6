//! Clients with several connections, to one address of their server or to several: those of one seed in 22, none of which had failed
//! before. Decided apart from the rest of a scenario, so that the other seeds mean what they meant.

use super::scenario::{Fault, LinkPlan, Node, Target, comeback};
use spinrpc::config::ConfigError;
use spinrpc::fabric::sim::Rng;
use std::time::Duration;

/// Connections of a client, and addresses of its server.
pub(crate) const MOST: u64 = 4;

/// Returns when an address cannot be reached, and when it can be again.
pub(crate) fn form(
    seed: u64,
    is_calm: bool,
    (servers, clients): (&mut [Node], &mut [Node]),
    links: &mut [LinkPlan],
) -> Result<Vec<(u64, Fault)>, ConfigError> {
    if !(seed / 8).is_multiple_of(22) {
        return Ok(Vec::new());
    }
    let mut rng = Rng::new(seed ^ 0x6772_6f75_7073);
    let conns = rng.pick(&[16, 64, 64]);
    for node in servers.iter_mut().chain(clients) {
        node.change(|raw| raw.limits.conns = conns)?;
    }
    for link in links {
        link.connections = rng.within((1, MOST)) as usize;
        if let Target::Server(index) = link.target {
            link.addresses = rng.within((1, MOST)) as usize;
            servers[index].addresses = servers[index].addresses.max(link.addresses);
        }
        let has_comeback = link.comeback.is_some() || rng.chance(700);
        let policy = link.comeback.unwrap_or_else(|| comeback(&mut rng));
        // One that closes each connection at once would be asked thousands of times.
        let pause = Duration::from_nanos(rng.pick(&[2_000, 50_000]));
        let policy = match link.target {
            Target::Server(_) => policy,
            Target::Hostile(_) => policy.first_delay(pause).max_delay(pause),
        };
        link.comeback = has_comeback.then_some(policy);
    }
    Ok(if is_calm { Vec::new() } else { outages(&mut rng) })
}

fn outages(rng: &mut Rng) -> Vec<(u64, Fault)> {
    let end_ns = rng.pick(&[50_000, 1_000_000]);
    let mut all = Vec::new();
    for _ in 0..rng.pick(&[0, 1, 4, 16]) {
        let (which, from_ns) = (rng.any(), rng.below(end_ns));
        all.push((from_ns, Fault::Reach { which, is_reachable: false }));
        all.push((from_ns + rng.below(end_ns), Fault::Reach { which, is_reachable: true }));
    }
    all
}
