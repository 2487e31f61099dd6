//! The conformance suite over shared memory.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::{ShmConfig, ShmConnector};
use crate::mem::BulkClass;
use crate::tests::conformance::{Limits, Provider, fabric_conformance};
use std::sync::atomic::{AtomicU32, Ordering};

/// Shared memory with small limits.
pub(crate) struct Shm;

impl Provider for Shm {
    type Connector = ShmConnector;

    fn connector(&self) -> ShmConnector {
        let config = ShmConfig {
            ring_slots: 64,
            arena: vec![
                BulkClass { block_bytes: 4096, count: 16 },
                BulkClass { block_bytes: 64 << 10, count: 16 },
                BulkClass { block_bytes: 1 << 20, count: 2 },
            ],
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
