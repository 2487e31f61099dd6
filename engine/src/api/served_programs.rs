//! Programs that an engine serves, and their addresses, for registration with a portmapper and the
//! like.

use crate::sync::lock;
use spinrpc_proto::ids::{Program, Version};
use std::sync::{Arc, Mutex, MutexGuard};

/// The programs of an engine and the addresses it listens at, as they are when asked; clones are
/// the same one, and keep no engine alive. Each method takes a lock for a moment and allocates.
#[derive(Clone, Debug, Default)]
pub struct Directory(Arc<Mutex<Contents>>);

#[derive(Debug, Default)]
struct Contents {
    services: Vec<(Program, Version)>,
    addresses: Vec<String>,
}

impl Directory {
    /// Every program and version given to [`Engine::serve`](crate::Engine::serve), in that order.
    pub fn services(&self) -> Vec<(Program, Version)> {
        self.lock().services.clone()
    }

    /// Every address the engine listens at, in the order of [`Engine::listen`](crate::Engine::listen);
    /// none after [`Engine::shutdown`](crate::Engine::shutdown), or once
    /// [`Engine::drain`](crate::Engine::drain) has begun. All programs are served at each.
    pub fn addresses(&self) -> Vec<String> {
        self.lock().addresses.clone()
    }

    pub(super) fn add_service(&self, program: Program, version: Version) {
        self.lock().services.push((program, version));
    }

    pub(super) fn add_address(&self, address: &str) {
        self.lock().addresses.push(address.to_owned());
    }

    pub(super) fn forget_addresses(&self) {
        self.lock().addresses.clear();
    }

    /// Nothing that a thread could panic in leaves the contents half changed.
    fn lock(&self) -> MutexGuard<'_, Contents> {
        lock(&self.0)
    }
}
