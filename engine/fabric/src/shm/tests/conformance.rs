//! The conformance suite over shared memory.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::{ShmConfig, ShmConnector};
use crate::tests::conformance::{Limits, Provider, arena, fabric_conformance};
use std::sync::atomic::{AtomicU32, Ordering};

/// Shared memory with small limits.
pub(crate) struct Shm;

impl Provider for Shm {
    type Connector = ShmConnector;

    fn connector(&self) -> ShmConnector {
        let config = ShmConfig {
            ring_slots: 64,
            arena: arena(),
            recv_queue_depth: 32,
            send_queue_depth: 32,
            conns_max: 64,
            // So few that connections go cold in some tests, and ring.
            idle_polls: 20,
            ..ShmConfig::default()
        };
        ShmConnector::new(config).unwrap()
    }

    fn limits(&self) -> Limits {
        Limits { waits_without_end: true, ..Limits::default() }
    }

    fn address(&self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        format!("shm:conformance-{}-{number}", std::process::id())
    }
}

fabric_conformance!(Shm);
