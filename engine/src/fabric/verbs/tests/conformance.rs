//! The conformance suite over the soft devices of the kernel.

use super::super::{Registration, VerbsConfig, VerbsConnector};
use super::{RXE_HOST, SIW_HOST, address, connector};
use crate::fabric::DownCause;
use crate::fabric::conformance::{Limits, Provider, fabric_conformance};
use crate::mem::BulkClass;
use std::time::Duration;

/// A device, by how it makes memory reachable.
struct Device {
    name: &'static str,
    host: &'static str,
    registration: Registration,
}

impl Device {
    /// iWARP over TCP, on the loopback interface.
    const fn siw(registration: Registration) -> Self {
        Self { name: "siw0", host: SIW_HOST, registration }
    }

    /// RoCEv2, on a dummy interface.
    const fn rxe(registration: Registration) -> Self {
        Self { name: "rxe0", host: RXE_HOST, registration }
    }

    fn is_iwarp(&self) -> bool {
        self.name == "siw0"
    }
}

impl Provider for Device {
    type Connector = VerbsConnector;

    fn connector(&self) -> VerbsConnector {
        let config = VerbsConfig {
            device: Some(self.name.into()),
            message_bytes_max: 4096,
            message_memory_bytes: 0,
            recv_queue_depth: 32,
            send_queue_depth: 32,
            signal_every: 8,
            // Six times 15.36 ms.
            rnr_retry_count: 6,
            min_rnr_timer: 21,
            registration: self.registration,
            arena: vec![
                BulkClass { block_bytes: 4096, count: 16 },
                BulkClass { block_bytes: 64 << 10, count: 8 },
                BulkClass { block_bytes: 1 << 20, count: 2 },
            ],
            keys_max: 64,
            conns_max: 64,
            drain_timeout: Duration::from_secs(1),
            ..VerbsConfig::default()
        };
        connector(config)
    }

    fn address(&self) -> String {
        address(self.host)
    }

    fn limits(&self) -> Limits {
        Limits {
            never_waits_for_receives: self.is_iwarp(),
            connector_speaks_first: self.is_iwarp(),
            accepts_when_adopted: true,
            keys_stay: self.registration != Registration::Window,
            exposes_by_request: self.registration == Registration::Window,
            exposes_any_memory: false,
            invalidates_strictly: true,
        }
    }

    fn agrees(expected: &DownCause, told: &DownCause) -> bool {
        expected == told
    }
}

mod siw {
    use super::*;
    fabric_conformance!(Device::siw(Registration::Buffer));
}

mod rxe_windows {
    use super::*;
    fabric_conformance!(Device::rxe(Registration::Window));
}

mod rxe_buffers {
    use super::*;
    fabric_conformance!(Device::rxe(Registration::Buffer));
}
