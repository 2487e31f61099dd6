//! A connection on its way from the control plane to the core that adopts it, and the number of those of one host.

use super::super::{Endpoint, LimitScope, Peer};
use super::wire::Agreed;
use crate::connector_common::{PrivateData, identity_of};
use crate::mem::RegionId;
use crate::sync::lock;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};

/// Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) socket: TcpStream,
    pub(super) agreed: Agreed,
    /// This side asked for the connection, and so sends first.
    pub(super) is_connecting: bool,
    /// Memory of the application that the connection may expose.
    pub(super) lent: Box<[RegionId]>,
    /// Of a connection that was accepted.
    #[expect(dead_code, reason = "held to be dropped")]
    pub(super) place: Option<HostPlace>,
}

impl Link {
    pub(super) fn into_endpoint(self, peer: SocketAddr, private_data: PrivateData) -> Endpoint {
        Endpoint {
            peer_private_data: private_data.into(),
            peer: Peer::Socket(peer),
            peer_identity: identity_of(peer),
            reads_max: self.agreed.ord,
            link: Box::new(self),
        }
    }
}

/// A connection of a host, counted while it lives.
pub(super) type HostPlace = Arc<LimitScope>;

/// Connections that were accepted, by their hosts.
#[derive(Clone, Debug, Default)]
pub(super) struct Hosts(Arc<Mutex<Vec<HostPlace>>>);

impl Hosts {
    /// A place for one more connection of a host, which has `most` at most.
    pub(super) fn take(&self, host: LimitScope, most: usize) -> Option<HostPlace> {
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

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
}
