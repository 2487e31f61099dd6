//! The conformance suite over a simulated network, and tests that only a simulation can run.

use super::{Device, Network, SimConnector, World};
use crate::mem::BulkClass;
use crate::tests::conformance::{Limits, Provider, fabric_conformance};

/// A world per connector. Time passes by polling.
struct Sim;

impl Provider for Sim {
    type Connector = SimConnector;

    fn connector(&self) -> SimConnector {
        let network = Network {
            poll_ns: 1000,
            page_ns: 10_000,
            rnr_timeout_ns: 50_000_000,
            ..Network::default()
        };
        World::new(network).connector(Device {
            arena: vec![
                BulkClass { block_bytes: 4096, count: 16 },
                BulkClass { block_bytes: 64 << 10, count: 16 },
                BulkClass { block_bytes: 1 << 20, count: 2 },
            ],
            recv_queue_depth: 32,
            send_queue_depth: 32,
            ..Device::default()
        })
    }

    fn address(&self) -> String {
        "sim".into()
    }

    /// Each turn begins at a connection drawn by chance: over a few turns that is not even.
    fn limits(&self) -> Limits {
        Limits { serves_in_its_own_order: true, ..Limits::default() }
    }
}

fabric_conformance!(Sim);
