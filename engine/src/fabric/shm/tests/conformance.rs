//! The conformance suite over shared memory.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::fabric::conformance::{Provider, fabric_conformance};
use crate::fabric::shm::{ShmConfig, ShmConnector};
use crate::mem::BulkClass;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Shared memory with small limits.
pub(in crate::fabric) struct Shm;

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
            // Only one test waits for it; the others may be paused while no receive is posted.
            rnr_timeout: Duration::from_secs(1),
            // So few that connections go cold in some tests, and ring.
            idle_polls: 20,
            ..ShmConfig::default()
        };
        ShmConnector::new(config).unwrap()
    }

    fn address(&self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        format!("shm:conformance-{}-{number}", std::process::id())
    }
}

fabric_conformance!(Shm);
