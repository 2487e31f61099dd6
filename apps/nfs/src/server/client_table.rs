//! The clients of a server: each has a place, by which threads count its calls, as long as others do not need it.

use super::exports::Peer;
pub use super::stats::CLIENTS_MAX;
use super::stats::Usage;
use spinrpc::ConnectionId;
use spinrpc::sync::lock;
use std::sync::Mutex;
use std::time::SystemTime;

/// A client that is connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectedClient<C = (usize, ConnectionId)> {
    /// The client.
    pub peer: Peer,
    /// Beginning of its first connection, of those without a gap in between.
    pub since: SystemTime,
    /// Its connections, each with the index of its core.
    pub connections: Vec<C>,
    /// Calls that were answered; `None` if it shares a counter with others.
    pub usage: Option<Usage>,
}

/// See the module. Locks for a moment.
#[derive(Debug)]
pub(super) struct ClientTable<C = (usize, ConnectionId)>(Mutex<State<C>>);

#[derive(Debug)]
struct State<C> {
    places: Vec<Place<C>>,
    left: u64,
}

#[derive(Clone, Debug)]
struct Place<C> {
    peer: Peer,
    since: SystemTime,
    connections: Vec<C>,
    /// What was counted here for clients before this one.
    before: Usage,
    /// Order in which clients left; those who are connected have not.
    left: u64,
}

impl<C> Default for ClientTable<C> {
    fn default() -> Self {
        Self(Mutex::new(State { places: Vec::new(), left: 0 }))
    }
}

impl<C> Place<C> {
    fn new(peer: Peer, before: Usage) -> Self {
        Self { peer, since: SystemTime::now(), connections: Vec::new(), before, left: 0 }
    }
}

impl<C: Copy + PartialEq> ClientTable<C> {
    /// Adds a connection; returns the place of its client. `count` sums what threads have counted at a place.
    pub(super) fn enter(&self, peer: Peer, connection: C, count: impl Fn(usize) -> Usage) -> usize {
        let mut state = lock(&self.0);
        let at = state.place_for(peer, count);
        if let Some(place) = state.places.get_mut(at) {
            if place.connections.is_empty() {
                place.since = SystemTime::now();
            }
            place.connections.push(connection);
        }
        at.min(CLIENTS_MAX)
    }

    pub(super) fn leave(&self, peer: &Peer, connection: C) {
        let mut state = lock(&self.0);
        state.left += 1;
        let left = state.left;
        if let Some(place) = state.places.iter_mut().find(|place| place.peer == *peer) {
            place.connections.retain(|own| *own != connection);
            place.left = left;
        }
    }

    pub(super) fn connected(&self, count: impl Fn(usize) -> Usage) -> Vec<ConnectedClient<C>> {
        let mut clients = self.places();
        clients.retain(|(_, place)| !place.connections.is_empty());
        let client = |(at, place): (usize, Place<C>)| ConnectedClient {
            peer: place.peer,
            since: place.since,
            connections: place.connections,
            usage: (at < CLIENTS_MAX).then(|| count(at).since(&place.before)),
        };
        clients.into_iter().map(client).collect()
    }

    /// Usage of each client that has a place, and that of clients connected beyond these.
    pub(super) fn usage(&self, count: impl Fn(usize) -> Usage) -> (Vec<(Peer, Usage)>, Usage) {
        let of = |(at, place): (usize, Place<C>)| (place.peer, count(at).since(&place.before));
        let each = self.places().into_iter().take(CLIENTS_MAX).map(of).collect();
        (each, count(CLIENTS_MAX))
    }

    /// A copy: cores wait for the lock when clients connect, so that nothing is summed with it.
    fn places(&self) -> Vec<(usize, Place<C>)> {
        lock(&self.0).places.iter().cloned().enumerate().collect()
    }
}

impl<C> State<C> {
    /// A new place, or that of the client that left longest ago; beyond [`CLIENTS_MAX`] if all are connected.
    fn place_for(&mut self, peer: Peer, count: impl Fn(usize) -> Usage) -> usize {
        if let Some(own) = self.places.iter().position(|place| place.peer == peer) {
            return own;
        }
        let idle = |(_, place): &(usize, &Place<C>)| place.connections.is_empty();
        let free = self.places.iter().enumerate().filter(idle);
        let oldest = match self.places.len() < CLIENTS_MAX {
            true => None,
            false => free.min_by_key(|(at, place)| (*at >= CLIENTS_MAX, place.left)),
        };
        let at = oldest.map_or(self.places.len(), |(at, _)| at);
        let before = if at < CLIENTS_MAX { count(at) } else { Usage::default() };
        match self.places.get_mut(at) {
            Some(place) => *place = Place::new(peer, before),
            None => self.places.push(Place::new(peer, before)),
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// The table with counters of its places. All connections are the same one.
    struct Counted {
        table: ClientTable<()>,
        calls: RefCell<Vec<u64>>,
    }

    impl Counted {
        fn usage(&self, at: usize) -> Usage {
            Usage { calls: self.calls.borrow()[at], ..Usage::default() }
        }

        fn enter(&self, uid: u32) -> usize {
            self.table.enter(Peer::Local { uid }, (), |at| self.usage(at))
        }

        fn leave(&self, uid: u32) {
            self.table.leave(&Peer::Local { uid }, ());
        }

        fn call(&self, uid: u32) {
            let at = self.enter(uid);
            self.calls.borrow_mut()[at] += 1;
        }

        /// Calls of a client, and those of others.
        fn counted(&self, uid: u32) -> (Option<u64>, u64) {
            let (each, others) = self.table.usage(|at| self.usage(at));
            let own = each.iter().find(|(peer, _)| *peer == Peer::Local { uid });
            (own.map(|(_, usage)| usage.calls), others.calls)
        }
    }

    fn counted() -> Counted {
        Counted { table: ClientTable::default(), calls: RefCell::new(vec![0; CLIENTS_MAX + 1]) }
    }

    #[test]
    fn a_client_that_comes_back_keeps_its_count_and_the_first_to_leave_loses_its_place() {
        let it = counted();
        (0..CLIENTS_MAX as u32).for_each(|uid| it.call(uid));
        [7, 3, 7].iter().for_each(|uid| it.leave(*uid));
        it.enter(7);
        it.leave(7);
        assert_eq!(it.counted(7), (Some(1), 0));
        let place = it.enter(3);
        it.leave(3);
        it.call(5000);
        // What 7 had counted appears nowhere else: a sum for others would jump.
        assert_eq!((it.counted(7), it.counted(5000)), ((None, 0), (Some(1), 0)));
        assert_ne!(it.enter(5000), place);
        assert_eq!(it.counted(3), (Some(1), 0));
    }

    #[test]
    fn the_lock_that_cores_take_is_free_while_calls_are_summed() {
        let table = ClientTable::<()>::default();
        table.enter(Peer::Local { uid: 1 }, (), |_| Usage::default());
        let count = |_: usize| {
            assert!(table.0.try_lock().is_ok(), "a core would wait");
            Usage::default()
        };
        assert_eq!((table.usage(count).0.len(), table.connected(count).len()), (1, 1));
    }

    #[test]
    fn clients_beyond_the_limit_share_a_counter_and_are_listed_as_long_as_they_are_connected() {
        let it = counted();
        let all = CLIENTS_MAX as u32 + 2;
        (0..all).for_each(|uid| it.call(uid));
        assert_eq!(it.counted(all - 1), (None, 2));
        let connected = it.table.connected(|at| it.usage(at));
        assert_eq!(connected.len(), all as usize);
        assert_eq!(connected.iter().filter(|client| client.usage.is_none()).count(), 2);
        it.leave(all - 1);
        assert_eq!(it.table.connected(|at| it.usage(at)).len(), all as usize - 1);
        // Its row is used again: rows do not grow with clients that come and go.
        it.enter(all);
        assert_eq!(lock(&it.table.0).places.len(), all as usize);
    }
}
