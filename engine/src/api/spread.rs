//! Which core gets an accepted connection. Called by the fabric's control thread, for each listener; never by a core.

use crate::fabric::{Acceptor, AnyEndpoint};
use crate::reactor::StatsCells;
use crate::reactor::pending::mailbox::{Inbox, Mail};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a connection that was given to a core may be missing in what the core publishes: its handshake goes on, and a core
/// under load publishes every few turns.
const UNSEEN: Duration = Duration::from_millis(100);

/// Connections that are remembered for [`UNSEEN`]; beyond it, the oldest is forgotten.
const UNSEEN_MAX: usize = 4096;

/// Gives each connection to the core that has the fewest, made or accepted, by any listener; of several, in turn.
pub(super) struct Spread {
    cores: Vec<Target>,
    next: usize,
    /// Those of the last [`UNSEEN`], with the index of their core.
    unseen: VecDeque<(Instant, usize)>,
}

struct Target {
    inbox: Arc<Inbox>,
    cells: Arc<StatsCells>,
    unseen: u64,
}

impl Spread {
    pub(super) fn over(cores: impl Iterator<Item = (Arc<Inbox>, Arc<StatsCells>)>) -> Self {
        let cores = cores.map(|(inbox, cells)| Target { inbox, cells, unseen: 0 }).collect();
        Self { cores, next: 0, unseen: VecDeque::new() }
    }

    fn pick(&mut self, full: &[usize], now: Instant) -> Option<usize> {
        self.forget_seen(now);
        let count = self.cores.len();
        let in_turn = (self.next..self.next + count).map(|core| core % count);
        // A core that has ended, for example after a panic, gets no connections.
        let open =
            in_turn.filter(|core| !full.contains(core) && !self.cores[*core].inbox.is_closed());
        // Of equal ones, the first.
        let picked = open.min_by_key(|core| self.cores[*core].connections())?;
        self.next = (picked + 1) % count;
        self.cores[picked].unseen += 1;
        self.unseen.push_back((now, picked));
        Some(picked)
    }

    fn forget_seen(&mut self, now: Instant) {
        let is_seen = |(at, _): &mut (Instant, usize)| now.duration_since(*at) >= UNSEEN;
        while let Some((_, core)) = match self.unseen.len() < UNSEEN_MAX {
            true => self.unseen.pop_front_if(is_seen),
            false => self.unseen.pop_front(),
        } {
            self.cores[core].unseen -= 1;
        }
    }
}

impl Target {
    fn connections(&self) -> u64 {
        self.cells.connections() + self.unseen
    }
}

impl Acceptor<AnyEndpoint> for Spread {
    fn pick_core(&mut self, full: &[usize]) -> Option<usize> {
        self.pick(full, Instant::now())
    }

    fn accepted(&mut self, core: usize, endpoint: AnyEndpoint) {
        // A full mailbox drops the endpoint, which closes the connection: the peer notices that.
        if self.cores[core].inbox.post(Mail::Accepted(endpoint)).is_err() {
            tracing::warn!(core, "a connection was closed: the core's mailbox is full");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StatsSnapshot;

    fn spread(open: &[u64]) -> Spread {
        let spread = Spread::over(open.iter().map(|_| (Arc::new(Inbox::new(4)), Arc::default())));
        for (core, open) in open.iter().enumerate() {
            publish(&spread, core, *open);
        }
        spread
    }

    /// The core has had ten more, which have ended.
    fn publish(spread: &Spread, core: usize, open: u64) {
        let (connections_opened, connections_closed) = (open + 10, 10);
        let counts = StatsSnapshot { connections_opened, connections_closed, ..Default::default() };
        spread.cores[core].cells.publish(&counts);
    }

    fn picks(spread: &mut Spread, count: usize, now: Instant) -> Vec<usize> {
        (0..count).map(|_| spread.pick(&[], now).unwrap()).collect()
    }

    #[test]
    fn cores_with_as_many_connections_get_them_in_turn() {
        let mut spread = spread(&[5, 5, 5]);
        assert_eq!(picks(&mut spread, 6, Instant::now()), [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn the_core_with_the_fewest_is_filled_up_first_also_while_it_has_published_none_of_them() {
        let mut spread = spread(&[3, 0, 2]);
        assert_eq!(picks(&mut spread, 6, Instant::now()), [1, 1, 2, 1, 2, 0]);
    }

    #[test]
    fn those_that_failed_are_forgotten_and_those_that_succeeded_count_once() {
        let (mut spread, start) = (spread(&[0, 0]), Instant::now());
        assert_eq!(picks(&mut spread, 2, start), [0, 1]);
        publish(&spread, 0, 1);
        // The other's handshake has failed.
        assert_eq!(picks(&mut spread, 2, start + UNSEEN), [1, 0]);
        assert_eq!(spread.unseen.len(), 2);
    }

    #[test]
    fn a_core_that_is_full_or_has_ended_gets_none() {
        let mut spread = spread(&[0, 7, 9]);
        assert_eq!(spread.pick(&[0], Instant::now()), Some(1));
        assert_eq!(spread.pick(&[0, 1], Instant::now()), Some(2));
        assert_eq!(spread.pick(&[0, 1, 2], Instant::now()), None);
        spread.cores[0].inbox.close();
        assert_eq!(spread.pick(&[], Instant::now()), Some(1));
    }

    #[test]
    fn a_flood_of_handshakes_is_remembered_as_far_as_there_is_room() {
        let mut spread = spread(&[0, 0]);
        picks(&mut spread, 3 * UNSEEN_MAX, Instant::now());
        assert_eq!(spread.unseen.len(), UNSEEN_MAX);
        assert_eq!(spread.cores.iter().map(|core| core.unseen).sum::<u64>(), UNSEEN_MAX as u64);
    }
}
