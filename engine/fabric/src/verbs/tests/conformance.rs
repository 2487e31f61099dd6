//! The conformance suite over the soft devices of the kernel.

use super::super::{Registration, VerbsConfig, VerbsConnector};
use super::{RXE_HOST, SIW_HOST, address, connector};
use crate::mem::BulkClass;
use crate::tests::conformance::{Bounds, Limits, Provider, fabric_conformance};
use crate::{DownCause, WrError};

/// iWARP over TCP, on the loopback interface; by how it makes memory reachable.
struct Siw(Registration);

/// RoCEv2, on a dummy interface.
struct Rxe(Registration);

fn connect_by(device: &str, registration: Registration) -> VerbsConnector {
    let config = VerbsConfig {
        device: Some(device.into()),
        message_bytes_max: 4096,
        message_memory_bytes: 0,
        recv_queue_depth: 32,
        send_queue_depth: 32,
        signal_every: 8,
        // Six times 20.48 ms: long enough for ten turns on a busy host, and short enough for the
        // ten thousand messages of a test that waits in most of its turns.
        rnr_retry_count: 6,
        min_rnr_timer: 22,
        // Soft devices lose packets on a busy host: the wait for each is 67 ms, and not two seconds.
        ack_timeout: Some(14),
        registration,
        arena: vec![
            BulkClass { block_bytes: 4096, count: 16 },
            BulkClass { block_bytes: 64 << 10, count: 8 },
            BulkClass { block_bytes: 1 << 20, count: 2 },
        ],
        keys_max: 64,
        conns_max: 64,
        ..VerbsConfig::default()
    };
    connector(config)
}

/// Bounds of a key. Of a window rxe checks the right and the region, not the bounds.
fn bounds(registration: Registration) -> Bounds {
    match registration {
        Registration::Auto | Registration::Buffer => Bounds::Block,
        Registration::Window | Registration::Pool => Bounds::Region,
    }
}

fn is_failure(cause: &DownCause) -> bool {
    matches!(cause, DownCause::WorkRequest(_) | DownCause::ReceiverNotReady)
}

/// The end whose peer went beyond its rights may hear of that before it hears that it went.
fn is_blamed(expected: &DownCause, told: &DownCause) -> bool {
    matches!((expected, told), (DownCause::Remote, DownCause::PeerMisbehaved(_)))
}

impl Provider for Siw {
    type Connector = VerbsConnector;

    fn connector(&self) -> VerbsConnector {
        connect_by("siw0", self.0)
    }

    fn address(&self) -> String {
        address(SIW_HOST)
    }

    fn limits(&self) -> Limits {
        Limits {
            never_waits_for_receives: true,
            connector_speaks_first: true,
            accepts_when_adopted: true,
            keys_stay: true,
            bounds: bounds(self.0),
            reads_without_the_right: true,
            writes_without_the_right: self.0 == Registration::Pool,
            leases_nothing: self.0 == Registration::Pool,
            sends_one_by_one: true,
            serves_in_its_own_order: true,
            ..Limits::default()
        }
    }

    /// True for the reports of rxe. It flushes the request that failed like the others, refuses
    /// further ones, and ends the connection.
    fn agrees(expected: &DownCause, told: &DownCause) -> bool {
        let says_nothing = matches!(
            told,
            DownCause::Remote
                | DownCause::Local
                | DownCause::DeviceFailed
                | DownCause::WorkRequest(WrError::Flushed)
        );
        expected == told || is_failure(expected) && says_nothing || is_blamed(expected, told)
    }
}

impl Provider for Rxe {
    type Connector = VerbsConnector;

    fn connector(&self) -> VerbsConnector {
        connect_by("rxe0", self.0)
    }

    fn address(&self) -> String {
        address(RXE_HOST)
    }

    fn limits(&self) -> Limits {
        let has_windows = self.0 == Registration::Window;
        Limits {
            accepts_when_adopted: true,
            keys_stay: !has_windows,
            exposes_by_request: has_windows,
            invalidates_strictly: true,
            bounds: bounds(self.0),
            reads_without_the_right: self.0 == Registration::Pool,
            writes_without_the_right: self.0 == Registration::Pool,
            leases_nothing: self.0 == Registration::Pool,
            serves_in_its_own_order: true,
            ..Limits::default()
        }
    }

    /// The end that has no receive only sees the connection go.
    fn agrees(expected: &DownCause, told: &DownCause) -> bool {
        let ends = (expected, told);
        expected == told
            || ends == (&DownCause::ReceiverNotReady, &DownCause::Remote)
            || is_blamed(expected, told)
    }
}

mod siw {
    use super::super::super::silence::LOOK_EVERY;
    use super::*;
    use crate::tests::conformance::{Event, Pair};
    use std::time::Instant;

    fabric_conformance!(Siw(Registration::Buffer));

    /// By then the accepting end has looked several times at a connection on which nothing more arrived.
    #[test]
    fn a_first_message_is_answered_however_late() {
        let mut pair = Pair::new(&Siw(Registration::Buffer));
        let (near, far, begun) = (pair.at_near, pair.at_far, Instant::now());
        pair.until("four looks", |_| (begun.elapsed() > 4 * LOOK_EVERY).then_some(()));
        pair.near.post_recvs(near, 1);
        pair.far.send(far, b"late");
        assert_eq!(pair.next_near(near), Event::Message(b"late".to_vec(), None));
    }
}

mod rxe_windows {
    use super::*;
    fabric_conformance!(Rxe(Registration::Window));
}

mod rxe_buffers {
    use super::*;
    fabric_conformance!(Rxe(Registration::Buffer));
}

mod siw_pool {
    use super::*;
    fabric_conformance!(Siw(Registration::Pool));
}

mod rxe_pool {
    use super::*;
    fabric_conformance!(Rxe(Registration::Pool));
}
