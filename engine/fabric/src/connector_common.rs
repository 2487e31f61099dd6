//! Common parts of the drivers' control planes: an attempted operation, private data, the cores, and limits of accepting.

use super::{Acceptor, Endpoint, FabricError, LimitScope, Peer, RdmaAddress};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::lock;
use crate::sys::journal::event;
use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::SocketAddr;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Bytes of private data of each end of a connection: as many as rdma_cm lets an application have. RFC 8797 needs fewer.
pub(crate) const PRIVATE_DATA_BYTES: usize = 56;

/// With zeroes behind what the application gave.
pub(crate) type PrivateData = [u8; PRIVATE_DATA_BYTES];

/// As many bytes as there is room for.
pub(crate) fn padded(bytes: &[u8]) -> PrivateData {
    std::array::from_fn(|at| bytes.get(at).copied().unwrap_or(0))
}

pub(crate) struct Attempt {
    pub(crate) op: String,
}

impl Attempt {
    pub(crate) fn failed(
        &self,
        reason: impl fmt::Display,
        source: Option<io::Error>,
    ) -> FabricError {
        FabricError::because(&self.op, reason, source)
    }

    pub(crate) fn padded(&self, private_data: &[u8]) -> Result<PrivateData, FabricError> {
        let too_long = || format!("private data beyond {PRIVATE_DATA_BYTES} bytes");
        let fits = private_data.len() <= PRIVATE_DATA_BYTES;
        fits.then(|| padded(private_data)).ok_or_else(|| self.failed(too_long(), None))
    }

    /// Addresses of a name. Takes as long as the system's resolver does.
    pub(crate) fn resolve(
        &self,
        address: &str,
        is_socket: bool,
    ) -> Result<Vec<SocketAddr>, FabricError> {
        let address = RdmaAddress::of_driver(address, is_socket);
        let address = address.map_err(|error| FabricError::of_address(&self.op, error))?;
        address.resolve().map_err(|error| self.failed("the name is not known", Some(error)))
    }

    /// The address to listen at: the first one of a name.
    pub(crate) fn resolve_own(
        &self,
        address: &str,
        is_socket: bool,
    ) -> Result<SocketAddr, FabricError> {
        let first = self.resolve(address, is_socket)?.into_iter().next();
        first.ok_or_else(|| self.failed("the name has no address", None))
    }

    /// Tries each address of a name, with a fair share of the time; the first one's error is told.
    pub(crate) fn connect_any(
        &self,
        peers: Vec<SocketAddr>,
        deadline: Instant,
        connect: impl Fn(SocketAddr, Instant) -> Result<Endpoint, FabricError>,
    ) -> Result<Endpoint, FabricError> {
        let mut first = None;
        let mut untried = peers.len() as u32;
        for peer in peers {
            let now = Instant::now();
            let share = deadline.saturating_duration_since(now) / untried;
            untried -= 1;
            match connect(peer, now + share) {
                Ok(endpoint) => return Ok(endpoint),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(|| self.failed("the name has no address", None)))
    }
}

#[derive(Debug)]
pub(crate) struct Cores<T>(Mutex<HashMap<usize, Arc<T>>>);

impl<T> Default for Cores<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Cores<T> {
    /// Made when it is first asked for.
    pub(crate) fn get(
        &self,
        index: usize,
        make: impl FnOnce() -> Result<T, FabricError>,
    ) -> Result<Arc<T>, FabricError> {
        let mut cores = lock(&self.0);
        if let Some(core) = cores.get(&index) {
            return Ok(Arc::clone(core));
        }
        let core = Arc::new(make()?);
        cores.insert(index, Arc::clone(&core));
        Ok(core)
    }
}

/// A number that stands for the host of a peer, see [`Endpoint::peer_identity`].
pub(crate) fn identity_of(peer: SocketAddr) -> u64 {
    let mut hasher = DefaultHasher::new();
    peer.ip().hash(&mut hasher);
    hasher.finish().max(1)
}

/// Takes a core for a data plane, which gives it back with [`Ordering::Release`] when it ends.
pub(crate) fn take_core(core: usize, taken: &AtomicBool) -> Result<(), FabricError> {
    // Acquire pairs with that of the previous data plane's end.
    match taken.swap(true, Ordering::Acquire) {
        true => Err(FabricError::because(&starting(core), "it runs already", None)),
        false => Ok(()),
    }
}

pub(crate) fn starting(core: usize) -> String {
    format!("start core {core}")
}

/// Hosts that can fill the room for handshakes only together.
const HOSTS_AT_ONCE: usize = 4;

/// A single host has at most a quarter of the room, so that it cannot keep all others out.
pub(crate) fn is_crowded(
    others: impl Iterator<Item = LimitScope>,
    peer: LimitScope,
    most: usize,
) -> bool {
    let (all, same) =
        others.fold((0, 0), |(all, same), other| (all + 1, same + usize::from(other == peer)));
    all >= most || same >= (most / HOSTS_AT_ONCE).max(1)
}

/// A connection of a host, counted while it lives.
pub(crate) type HostPlace = Arc<LimitScope>;

/// Connections that were accepted, by their hosts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hosts(Arc<Mutex<Vec<HostPlace>>>);

impl Hosts {
    /// A place for one more connection of a host, which has `most` at most.
    pub(crate) fn take(&self, host: LimitScope, most: usize) -> Option<HostPlace> {
        let mut hosts = lock(&self.0);
        hosts.retain(|known| Arc::strong_count(known) > 1);
        let known = hosts.iter().find(|known| ***known == host).map(Arc::clone);
        let place = known.unwrap_or_else(|| {
            hosts.push(Arc::new(host));
            Arc::clone(&hosts[hosts.len() - 1])
        });
        // One count is that of the list, and one is `place`.
        (Arc::strong_count(&place) - 2 < most).then_some(place)
    }
}

/// An acceptor of a listener. If it panics, that ends this request, and not the thread that all connections depend on.
pub(crate) struct Guarded {
    op: String,
    acceptor: Box<dyn Acceptor>,
}

impl Guarded {
    pub(crate) fn new(op: &str, acceptor: Box<dyn Acceptor>) -> Self {
        Self { op: op.to_owned(), acceptor }
    }

    fn call<T>(&mut self, call: impl FnOnce(&mut dyn Acceptor) -> T) -> Option<T> {
        // State that the call leaves half changed belongs to the acceptor; nothing of this crate is
        // changed in it.
        let result = panic::catch_unwind(AssertUnwindSafe(|| call(self.acceptor.as_mut())));
        if result.is_err() {
            event!(ERROR, op = ?self.op, "an acceptor has panicked; the connection request is refused");
        }
        result.ok()
    }
}

impl Acceptor for Guarded {
    fn admits(&mut self, peer: &Peer) -> bool {
        self.call(|acceptor| acceptor.admits(peer)).unwrap_or_default()
    }

    fn pick_core(&mut self, full: &[usize]) -> Option<usize> {
        self.call(|acceptor| acceptor.pick_core(full)).flatten()
    }

    /// After a panic the endpoint is dropped, which closes the connection.
    fn accepted(&mut self, core: usize, endpoint: Endpoint) {
        let _ = self.call(|acceptor| acceptor.accepted(core, endpoint));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Ask for connections from one host, then from others. Expect a quarter of the room for each,
    /// and no more than all of it.
    #[test]
    fn one_host_does_not_take_the_room_of_others() {
        let host = |number: u8| LimitScope::of([10, 0, 0, number].into());
        let two_each = |hosts: u8| (0..hosts).flat_map(move |number| [host(number); 2]);
        let crowded = |hosts, peer| is_crowded(two_each(hosts), host(peer), 8);
        assert!(!crowded(0, 0));
        assert!(crowded(1, 0), "it has its quarter");
        assert!(!crowded(3, 3), "another one has none yet");
        assert!(crowded(4, 4), "all room is taken");
    }

    #[test]
    fn a_host_has_a_limit_of_its_own_and_gets_its_places_back() {
        let (hosts, host) = (Hosts::default(), |last| LimitScope::of([10, 0, 0, last].into()));
        let places = [hosts.take(host(1), 2), hosts.take(host(1), 2)];
        assert!(places.iter().all(Option::is_some));
        assert!(hosts.take(host(1), 2).is_none() && hosts.take(host(2), 2).is_some());
        drop(places);
        assert!(hosts.take(host(1), 2).is_some());
        assert_eq!(lock(&hosts.0).len(), 1, "hosts without connections are forgotten");
    }

    #[test]
    fn a_host_has_room_for_one_handshake_however_little_there_is() {
        let host = LimitScope::of([10, 0, 0, 1].into());
        assert!(!is_crowded([].into_iter(), host, 1));
        assert!(is_crowded([host].into_iter(), host, 3));
    }
}
