//! A finished connection on its way to its core, and the part of it that lives as long as it does.

use super::super::{Endpoint, Peer};
use super::budget::MemoryLease;
use super::control::WatchLease;
use super::core::{PeerBell, PlaceLease};
use super::layout::{Layout, Side};
use super::queue_pair::CLOSED_IN_GOOD_ORDER;
use super::window::Window;
use crate::mem::{BulkPool, Slab};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::ring::Producer;
use crate::sys::credentials::Credentials;
use crate::sys::mmap::BorrowedMemory;
use std::sync::Arc;

/// Bytes of private data that a handshake carries (RFC 8797 needs fewer; rdma_cm allows 56).
pub(super) const PRIVATE_DATA_BYTES: usize = 56;

/// Facts of the control thread about the process at the other end.
#[derive(Debug, Default)]
pub(super) struct PeerState {
    gone: AtomicBool,
}

impl PeerState {
    /// The peer died or its socket closed.
    pub(super) fn set_gone(&self) {
        // Release pairs with the Acquire of `gone`: what the peer wrote before is visible; the
        // kernel has ordered its writes before the end of the socket.
        self.gone.store(true, Ordering::Release);
    }

    /// See `set_gone`.
    pub(super) fn gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}

/// Both sides' memory and the watch over the peer. Dropping it ends the connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) side: Side,
    pub(super) layout: Layout,
    /// Rings and tables.
    pub(super) window: Window,
    /// Memory that the peer may reach.
    pub(super) bulk: BulkPool,
    /// Memory of the peer that this side may reach.
    pub(super) peer_arena: Window,
    /// Slabs that the peer may read. Leases on their blocks keep them, too.
    pub(super) lent: Box<[Slab]>,
    /// The peer's, which we may read. The queue pair has them while it lives, and puts them back.
    pub(super) peer_slabs: Box<[BorrowedMemory]>,
    pub(super) peer_bell: PeerBell,
    /// Our place at the peer's core: what we ring.
    pub(super) peer_place: u32,
    pub(super) peer: Arc<PeerState>,
    pub(super) closed: bool,
    /// The control thread watches the peer as long as this lives. Given up before the place is.
    #[expect(dead_code, reason = "held to be dropped")]
    pub(super) watch: WatchLease,
    /// Our own place.
    pub(super) place: PlaceLease,
    /// Share of the process's memory, given back after all of it is unmapped.
    #[expect(dead_code, reason = "held to be dropped")]
    pub(super) memory: MemoryLease,
}

impl Link {
    /// Tells the peer that this side has ended the connection, and why. Only the first time counts.
    pub(super) fn close(&mut self, reason: u64) {
        let producer = Producer::new(self.window.clone(), self.layout.ring(self.side));
        if let (false, Some(producer)) = (self.closed, producer) {
            producer.close(reason);
            self.peer_bell.ring(self.peer_place);
        }
        self.closed = true;
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close(CLOSED_IN_GOOD_ORDER);
    }
}

/// A connection made by a [`ShmConnector`](super::ShmConnector) and not adopted yet.
#[derive(Debug)]
pub struct ShmEndpoint {
    pub(super) link: Link,
    pub(super) private_data: [u8; PRIVATE_DATA_BYTES],
    pub(super) peer: Credentials,
}

impl Endpoint for ShmEndpoint {
    fn peer_private_data(&self) -> &[u8] {
        &self.private_data
    }

    fn peer(&self) -> Peer {
        Peer::Process { uid: self.peer.uid, pid: self.peer.pid }
    }

    fn peer_identity(&self) -> u64 {
        u64::from(self.peer.uid) << 32 | u64::from(self.peer.process.low_bits())
    }
}
