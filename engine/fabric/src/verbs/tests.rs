//! Tests of the driver that need a device: in the guest, by `engine/tests/guest/suite conformance`.
//! Without a device they fail and say so.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod conformance;
mod control;

use super::VerbsConfig;
use super::VerbsConnector;
use crate::mem::BulkClass;
use std::sync::atomic::{AtomicU16, Ordering};

/// Addresses of the guest's devices: iWARP (siw) and RoCE (rxe).
const SIW_HOST: &str = "10.8.0.1";
const RXE_HOST: &str = "10.9.0.1";

/// Small limits, as the conformance suite wants them.
fn config() -> VerbsConfig {
    VerbsConfig {
        message_bytes_max: 8192,
        recv_queue_depth: 32,
        send_queue_depth: 32,
        conns_max: 64,
        cq_depth: 512,
        keys_max: 64,
        // By it the kernel also knows how long to wait for a message of a handshake that was lost.
        ack_timeout: Some(14),
        arena: vec![
            BulkClass { block_bytes: 4096, count: 16 },
            BulkClass { block_bytes: 64 << 10, count: 16 },
            BulkClass { block_bytes: 1 << 20, count: 2 },
        ],
        ..VerbsConfig::default()
    }
}

fn connector(config: VerbsConfig) -> VerbsConnector {
    match VerbsConnector::new(config) {
        Ok(connector) => connector,
        Err(error) => panic!("needs an RDMA device: engine/tests/guest/run ({error})"),
    }
}

/// An address at `host` that no other test uses.
fn address(host: &str) -> String {
    static NEXT: AtomicU16 = AtomicU16::new(21_000);
    let port = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("rdma://{host}:{port}")
}
