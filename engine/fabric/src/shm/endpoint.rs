//! A finished connection on its way to its core, and the part of it that lives as long as it does.

use super::super::{DriverLink, Endpoint, Peer};
use super::budget::MemoryLease;
use super::control::WatchLease;
use super::core::{PeerBell, PlaceLease};
use super::layout::{Layout, Side};
use super::queue_pair::CLOSED_IN_GOOD_ORDER;
use super::window::Window;
use crate::attempt::PrivateData;
use crate::mem::{BulkPool, Slab};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::ring::Producer;
use crate::sys::credentials::Credentials;
use crate::sys::mmap::BorrowedMemory;
use std::sync::Arc;

/// Facts of the control thread about the process at the other end.
#[derive(Debug, Default)]
pub(super) struct PeerState {
    gone: AtomicBool,
}

impl PeerState {
    pub(super) fn set_gone(&self) {
        // Release pairs with the Acquire of `gone`: what the peer wrote before is visible; the
        // kernel has ordered its writes before the end of the socket.
        self.gone.store(true, Ordering::Release);
    }

    pub(super) fn gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}

/// Both sides' memory and the watch over the peer. Dropping it ends the connection.
#[derive(Debug)]
pub(crate) struct Link {
    pub(super) side: Side,
    pub(super) layout: Layout,
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

pub(super) fn endpoint(link: Link, private_data: PrivateData, peer: Credentials) -> Endpoint {
    Endpoint {
        peer_private_data: private_data.into(),
        peer: Peer::Process { uid: peer.uid, pid: peer.pid },
        peer_identity: u64::from(peer.uid) << 32 | u64::from(peer.process.low_bits()),
        reads_max: u16::MAX,
        link: DriverLink::Shm(Box::new(link)),
    }
}
