//! A connection on its way from the control plane to the core that adopts it, and the number of those of one host.

use super::super::{Endpoint, LimitScope, Peer};
use super::wire::Agreed;
use crate::connector_common::PrivateData;
use crate::mem::RegionId;
use crate::sync::lock;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
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
        let mut hasher = DefaultHasher::new();
        peer.ip().hash(&mut hasher);
        Endpoint {
            peer_private_data: private_data.into(),
            peer: Peer::Socket(peer),
            peer_identity: hasher.finish().max(1),
            reads_max: self.agreed.ord,
            link: Box::new(self),
        }
    }
}

/// Connections that were accepted, by their hosts.
#[derive(Clone, Debug, Default)]
pub(super) struct Hosts(Arc<Mutex<HashMap<LimitScope, usize>>>);

impl Hosts {
    /// A place for one more connection of a host, which has `most` at most.
    pub(super) fn take(&self, host: LimitScope, most: usize) -> Option<HostPlace> {
        let mut counts = lock(&self.0);
        let count = counts.entry(host).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(HostPlace { hosts: self.clone(), host })
    }
}

/// Counts while it lives.
#[derive(Debug)]
pub(super) struct HostPlace {
    hosts: Hosts,
    pub(super) host: LimitScope,
}

impl Drop for HostPlace {
    fn drop(&mut self) {
        let mut counts = lock(&self.hosts.0);
        if let Some(count) = counts.get_mut(&self.host) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.host);
            }
        }
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
        assert!(lock(&hosts.0).is_empty(), "hosts without connections are forgotten");
    }
}
