//! MOUNT over RDMA and shared memory, at the same address as NFS.

use super::Registry;
use crate::server::exports::Peer;
use spinrpc::{Call, ConnectionEvent, ConnectionId, Service};
use std::collections::HashMap;
use std::sync::Arc;

/// MOUNT on one core of an engine.
pub struct MountService {
    registry: Arc<Registry>,
    /// As many as the core has connections.
    peers: HashMap<ConnectionId, Peer>,
}

impl MountService {
    /// For one core.
    pub fn new(registry: Arc<Registry>) -> Self {
        Self { registry, peers: HashMap::new() }
    }
}

impl Service for MountService {
    fn call(&mut self, mut call: Call<'_>) {
        let peer = self.peers.get(&call.connection()).unwrap_or(&Peer::Unknown);
        let procedure = call.procedure();
        match self.registry.answer(peer, procedure, call.args()) {
            Ok(results) => call.reply(|to| to.fixed(&results)),
            Err(status) => call.reject(status),
        }
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        match event {
            ConnectionEvent::Up { connection, peer, .. } => {
                self.peers.insert(*connection, Peer::from(peer));
            }
            ConnectionEvent::Down { connection, .. } => drop(self.peers.remove(connection)),
            _ => {}
        }
    }
}
