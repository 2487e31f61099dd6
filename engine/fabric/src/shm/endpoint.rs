//! A finished connection on its way to its core, and the part of it that lives as long as it does.

use super::super::{Endpoint, Peer};
use super::budget::MemoryLease;
use super::control::{State, Watch, WatchLease};
use super::core::PlaceLease;
use super::handshake::{Own, Packet, Theirs};
use super::layout::{Layout, Side};
use super::queue_pair::CLOSED_IN_GOOD_ORDER;
use super::window::Window;
use crate::mem::{BulkPool, Slab};
use crate::sync::atomic::AtomicBool;
use crate::sync::ring::Producer;
use crate::sys::credentials::Credentials;
use crate::sys::mailbox::Mailbox;
use crate::sys::peer_socket::PeerSocket;
use std::sync::Arc;

pub(super) struct Made {
    pub(super) side: Side,
    pub(super) layout: Layout,
    pub(super) window: Window,
    pub(super) own: Own,
    pub(super) theirs: Theirs,
    pub(super) lent: Box<[Slab]>,
    pub(super) memory: MemoryLease,
    pub(super) socket: PeerSocket,
    pub(super) credentials: Credentials,
}

impl Made {
    /// The control thread watches the peer from now on.
    pub(super) fn watched(self, control: &Arc<Mailbox<State>>, packet: &Packet) -> Endpoint {
        let Self { side, layout, window, own, theirs, lent, memory, socket, credentials } = self;
        let peer_is_gone = Arc::default();
        let watch = Watch {
            socket,
            peer_is_gone: Arc::clone(&peer_is_gone),
            core: Arc::clone(own.place.core()),
            place: own.place.index(),
            credentials,
        };
        let link = Link {
            side,
            layout,
            window,
            bulk: own.bulk,
            theirs,
            lent,
            peer_place: packet.place,
            peer_is_gone,
            closed: false,
            watch: WatchLease::new(control, watch),
            place: own.place,
            memory,
        };
        let Credentials { uid, pid, process } = credentials;
        Endpoint {
            peer_private_data: packet.private_data.into(),
            peer: Peer::Process { uid, pid },
            peer_identity: u64::from(uid) << 32 | u64::from(process.low_bits()),
            reads_max: u16::MAX,
            link: Box::new(link),
        }
    }
}

/// Dropping it ends the connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) side: Side,
    pub(super) layout: Layout,
    pub(super) window: Window,
    pub(super) bulk: BulkPool,
    /// Memory of the peer that this side may reach. The queue pair has the slabs while it lives, and puts them back.
    pub(super) theirs: Theirs,
    /// Slabs that the peer may read. Leases on their blocks keep them, too.
    pub(super) lent: Box<[Slab]>,
    /// Our place at the peer's core: what we ring.
    pub(super) peer_place: u32,
    /// Set by the control thread, with Release: what the peer wrote before is visible, as the kernel has ordered its
    /// writes before the end of the socket.
    pub(super) peer_is_gone: Arc<AtomicBool>,
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
    /// Only the first time counts.
    pub(super) fn close(&mut self, reason: u64) {
        let producer = Producer::new(self.window.clone(), self.layout.ring(self.side));
        if let (false, Some(producer)) = (self.closed, producer) {
            producer.close(reason);
            self.theirs.bell.ring(self.peer_place);
        }
        self.closed = true;
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close(CLOSED_IN_GOOD_ORDER);
    }
}
