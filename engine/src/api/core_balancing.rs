//! The choice of a core for an accepted connection, by load. Called by the fabric, once for each connection that a listener accepts.

use super::listening::Admission;
use crate::fabric::{Acceptor, Endpoint, Peer};
use crate::reactor::StatsCells;
use crate::reactor::in_flight::mailbox::{Inbox, Mail};
use crate::sys::journal::event;
use std::sync::Arc;

/// Gives connections to the cores in turn; a core that has more than the mean, made or accepted, gives up every other turn.
///
/// That evens out what ends at different times, and no more: the core with the fewest may be one that is stuck, or that
/// peers have emptied to send others there. It gets at most two connections for each that another core gets.
pub(super) struct CoreBalancer {
    cores: Vec<Target>,
    next: usize,
    admission: Option<Admission>,
}

struct Target {
    inbox: Arc<Inbox>,
    cells: Arc<StatsCells>,
    gave_up: bool,
}

impl CoreBalancer {
    /// Over these cores, for the peers that `admission` admits; `None` admits all.
    pub(super) fn over(
        cores: impl Iterator<Item = (Arc<Inbox>, Arc<StatsCells>)>,
        admission: Option<Admission>,
    ) -> Self {
        let cores = cores.map(|(inbox, cells)| Target { inbox, cells, gave_up: false }).collect();
        Self { cores, next: 0, admission }
    }

    /// Returns true if the core has more connections than the mean of those that have not ended.
    fn is_above_mean(&self, core: usize) -> bool {
        let going_on = self.cores.iter().filter(|core| !core.inbox.is_closed());
        let (cores, all) = going_on.fold((0, 0), |(cores, all), core| {
            (cores + 1, u64::saturating_add(all, core.cells.connections()))
        });
        self.cores[core].cells.connections().saturating_mul(cores) > all
    }

    /// Returns true if it is the turn of this core, which has room, and it takes the connection.
    fn takes(&mut self, core: usize) -> bool {
        // A core that has ended, for example after a panic, gets no connections.
        if self.cores[core].inbox.is_closed() {
            return false;
        }
        let gives_up = !self.cores[core].gave_up && self.is_above_mean(core);
        self.cores[core].gave_up = gives_up;
        !gives_up
    }
}

impl Acceptor for CoreBalancer {
    fn admits(&mut self, peer: &Peer) -> bool {
        self.admission.as_ref().is_none_or(|admits| admits(peer))
    }

    fn pick_core(&mut self, full: &[usize]) -> Option<usize> {
        let count = self.cores.len();
        // In the second round, those that have just given up.
        let mut in_turn = (self.next..self.next + 2 * count).map(|core| core % count);
        let picked = in_turn.find(|core| !full.contains(core) && self.takes(*core))?;
        self.next = (picked + 1) % count;
        Some(picked)
    }

    fn accepted(&mut self, core: usize, endpoint: Endpoint) {
        // A full mailbox drops the endpoint, which closes the connection: the peer notices that.
        if self.cores[core].inbox.post(Mail::Accepted(Box::new(endpoint))).is_err() {
            event!(WARN, core, "a connection was closed: the core's mailbox is full");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reactor::StatsSnapshot;

    fn spread(open: &[u64]) -> CoreBalancer {
        let spread = CoreBalancer::over(
            open.iter().map(|_| (Arc::new(Inbox::new(4)), Arc::default())),
            None,
        );
        for (core, open) in open.iter().enumerate() {
            publish(&spread, core, *open);
        }
        spread
    }

    /// The core has had ten more, which have ended.
    fn publish(spread: &CoreBalancer, core: usize, open: u64) {
        let (connections_opened, connections_closed) = (open + 10, 10);
        let counts = StatsSnapshot { connections_opened, connections_closed, ..Default::default() };
        spread.cores[core].cells.publish(&counts);
    }

    fn picks(spread: &mut CoreBalancer, count: usize) -> Vec<usize> {
        (0..count).map(|_| spread.pick_core(&[]).unwrap()).collect()
    }

    #[test]
    fn cores_with_as_many_connections_get_them_in_turn() {
        assert_eq!(picks(&mut spread(&[5, 5, 5]), 6), [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn cores_that_have_more_than_the_mean_give_up_every_other_turn() {
        // The first of them has published none of what it gets.
        assert_eq!(picks(&mut spread(&[0, 4, 4]), 8), [0, 0, 1, 2, 0, 0, 1, 2]);
        assert_eq!(picks(&mut spread(&[9, 0]), 6), [1, 0, 1, 1, 0, 1]);
    }

    #[test]
    fn cores_become_even_when_connections_of_one_have_ended() {
        let mut open = [12, 0, 12, 12];
        let mut spread = spread(&open);
        for _ in 0..60 {
            let core = spread.pick_core(&[]).unwrap();
            open[core] += 1;
            publish(&spread, core, open[core]);
        }
        let (least, most) = (open.iter().min().unwrap(), open.iter().max().unwrap());
        assert!(most - least <= 2, "{open:?}");
    }

    #[test]
    fn a_core_that_is_full_or_has_ended_gets_none() {
        let mut spread = spread(&[0, 7, 9]);
        assert_eq!(spread.pick_core(&[0]), Some(1));
        assert_eq!(spread.pick_core(&[0, 1]), Some(2));
        assert_eq!(spread.pick_core(&[0, 1, 2]), None);
        spread.cores[0].inbox.close();
        assert!(picks(&mut spread, 8).iter().all(|core| *core != 0));
    }
}
