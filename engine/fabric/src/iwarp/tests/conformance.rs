//! The conformance suite over the loopback interface.

use super::*;
use crate::tests::conformance::arena;
use std::sync::atomic::{AtomicU32, Ordering};

/// Sockets with small limits.
pub(crate) struct Iwarp;

/// Small limits, as the suite wants them.
pub(super) fn config() -> IwarpConfig {
    IwarpConfig {
        message_bytes_max: 4096,
        recv_queue_depth: 32,
        send_queue_depth: 32,
        receive_patience: Duration::from_millis(100),
        arena: arena(),
        conns_max: 64,
        ..IwarpConfig::default()
    }
}

/// An address that no other test, and no other run, uses: below the ports that the kernel hands out.
pub(super) fn address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("iwarp://127.0.0.1:{}", 10_000 + std::process::id() % 90 * 200 + number % 200)
}

impl Provider for Iwarp {
    type Connector = IwarpConnector;

    fn connector(&self) -> IwarpConnector {
        IwarpConnector::new(config())
    }

    fn address(&self) -> String {
        address()
    }

    /// The end whose peer went beyond its rights says so.
    fn agrees(expected: &DownCause, told: &DownCause) -> bool {
        let is_blamed =
            matches!((expected, told), (DownCause::Remote, DownCause::PeerMisbehaved(_)));
        expected == told || is_blamed
    }
}

fabric_conformance!(Iwarp);
