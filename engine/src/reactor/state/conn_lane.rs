//! State of one connection that the lane needs, shared by the connection and by its clients and services, so that a
//! short message needs no access to the tables of the core, which need not be borrowed.
//!
//! Everything else about a connection is in its [`Conn`](super::connection::Conn), which makes the gate unknown
//! whenever it may have changed. A closed connection opens none of the gate's ways.

use crate::fabric::{ConnId, ShortEndpoint};
use crate::reactor::state::connection::Protocol;
use crate::reactor::types::lane_gate::{LaneGate, LaneWay};
use spinrpc_proto::requester::{CallSlot, Requester};
use std::cell::{Cell, RefCell, RefMut};

/// See the module. The fields are in the order in which a message needs them.
#[repr(C)]
pub(crate) struct ConnLane {
    /// Takes and sends short messages, if these go by value.
    short_endpoint: Option<ShortEndpoint>,
    id: ConnId,
    /// Send-queue places kept for replies.
    send_reserved: Cell<usize>,
    /// The ways that the lane may take.
    gate: Cell<LaneGate>,
    protocol: RefCell<Protocol>,
}

impl ConnLane {
    pub(in crate::reactor) fn new(
        id: ConnId,
        endpoint: Option<ShortEndpoint>,
        protocol: Protocol,
    ) -> Self {
        Self {
            id,
            gate: Cell::new(LaneGate::UNKNOWN),
            send_reserved: Cell::new(0),
            short_endpoint: endpoint,
            protocol: RefCell::new(protocol),
        }
    }

    /// The state of the protocol, for one step.
    #[inline(always)]
    pub(in crate::reactor) fn proto(&self) -> RefMut<'_, Protocol> {
        self.protocol.borrow_mut()
    }

    #[inline(always)]
    pub(in crate::reactor) fn id(&self) -> ConnId {
        self.id
    }

    /// Takes and sends short messages, if these go by value.
    #[inline(always)]
    pub(in crate::reactor) fn short_endpoint(&self) -> Option<&ShortEndpoint> {
        self.short_endpoint.as_ref()
    }

    /// The connection may have changed: its gate is closed until the lane looks again.
    #[inline(always)]
    pub(in crate::reactor) fn forget_gate(&self) {
        self.gate.set(LaneGate::UNKNOWN);
    }

    /// Returns true if the lane has to look before it takes a way.
    #[inline(always)]
    pub(in crate::reactor) fn is_unknown(&self) -> bool {
        self.gate.get() == LaneGate::UNKNOWN
    }

    /// Sets which ways are open.
    pub(in crate::reactor) fn set_gate(&self, ways: &[(LaneWay, bool)]) {
        self.gate.set(LaneGate::of(ways));
    }

    /// Returns true if the gate is known to let a message through.
    #[inline(always)]
    pub(in crate::reactor) fn is_open(&self, way: LaneWay) -> bool {
        self.gate.get().is_open(way)
    }

    /// Places in the send queue that are reserved for replies.
    #[inline(always)]
    pub(in crate::reactor) fn reserved(&self) -> usize {
        self.send_reserved.get()
    }

    /// Reserves places in the send queue.
    #[inline(always)]
    pub(in crate::reactor) fn reserve(&self, places: usize) {
        self.send_reserved.set(self.send_reserved.get() + places);
    }

    /// Releases reserved places.
    #[inline(always)]
    pub(in crate::reactor) fn unreserve(&self, places: usize) {
        self.send_reserved.set(self.send_reserved.get().wrapping_sub(places));
    }

    /// Counts calls that were taken on without a slot.
    #[inline(always)]
    pub(in crate::reactor) fn count_calls(&self, calls: u64) {
        self.proto().responder.count_slotless(calls);
    }

    /// The calls of a connection that is gone, to be made on another one.
    #[cold]
    pub(in crate::reactor) fn take_requester(&self) -> Requester<Box<[CallSlot]>> {
        let none = Requester::new(Box::default(), 0);
        std::mem::replace(&mut self.proto().requester, none)
    }
}
