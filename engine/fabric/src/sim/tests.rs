//! The conformance suite over a simulated network, and tests that only a simulation can run.

use super::{Device, Network, SimConnector, World};
use crate::tests::conformance::{Limits, Provider, arena, fabric_conformance};

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
            arena: arena(),
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
