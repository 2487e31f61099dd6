//! A finished connection on its way to its core.

use super::super::{Endpoint, FabricError, Peer};
use super::link::Link;
use crate::mem::Slab;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;

/// A connection made by a [`VerbsConnector`](super::VerbsConnector) and not adopted yet.
#[derive(Debug)]
pub struct VerbsEndpoint {
    pub(super) link: Link,
    pub(super) private_data: Box<[u8]>,
    pub(super) peer: SocketAddr,
}

impl VerbsEndpoint {
    /// See [`LinkMemory::lend`](super::memory::LinkMemory::lend).
    pub(super) fn lend(&mut self, slabs: &[Slab]) -> Result<(), FabricError> {
        self.link.memory.lend(slabs)
    }
}

impl Endpoint for VerbsEndpoint {
    fn peer_private_data(&self) -> &[u8] {
        &self.private_data
    }

    fn peer(&self) -> Peer {
        Peer::Socket(self.peer)
    }

    fn peer_identity(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.peer.ip().hash(&mut hasher);
        hasher.finish().max(1)
    }

    fn reads_max(&self) -> u16 {
        self.link.limits.reads_out
    }
}
