//! The reactor's sink for received messages: the outcome of the state machine becomes one small event, which the turn
//! handles after the state machine has returned. RDMA Reads and Writes have sinks of their own, which post directly
//! to the driver.

use crate::reactor::types::calls::RpcRefusal;
use crate::reactor::types::header_bytes::SYSTEM_ERR;
use spinrpc_proto::events::{CallFailure, DeliveredReply, Dropped, Output, PeerMisbehaved, SlotId};
use spinrpc_proto::ids::Xid;
use spinrpc_proto::rdma::RdmaError;
use spinrpc_proto::rpc::AcceptStatus;
use spinrpc_proto::version::TransportVersion;

const PROG_UNAVAIL: RpcRefusal = RpcRefusal::Accepted(AcceptStatus::ProgUnavail);

/// Event caused by a message.
pub(crate) enum Event {
    None,
    Call(SlotId),
    Pull(SlotId),
    Reply(DeliveredReply),
    PullReply,
    /// A call whose version was refused.
    Resend(SlotId),
    FreeExports(SlotId),
    Failed {
        slot: SlotId,
        token: u64,
        failure: CallFailure,
    },
    Released(SlotId),
    Error(Xid, u32, RdmaError),
    Refuse(Xid, TransportVersion, RpcRefusal),
    Dropped(Dropped),
}

/// Collects the event of one message; a message makes one at the most, and perhaps a close.
pub(crate) struct EventSink {
    pub(crate) event: Event,
    /// Set with [`Event::PullReply`]. A separate field, because an event with two kinds of
    /// replies would need one more word to tell them apart, and each reply would be copied around it.
    pub(crate) to_pull: Option<DeliveredReply>,
    pub(crate) close: Option<PeerMisbehaved>,
}

impl EventSink {
    #[inline]
    pub(crate) fn new() -> Self {
        Self { event: Event::None, to_pull: None, close: None }
    }
}

impl Output for EventSink {
    #[inline]
    fn deliver_call(&mut self, slot: SlotId) {
        self.event = Event::Call(slot);
    }

    fn pull(&mut self, slot: SlotId) {
        self.event = Event::Pull(slot);
    }

    #[inline]
    fn deliver_reply(&mut self, reply: DeliveredReply) {
        self.event = Event::Reply(reply);
    }

    fn pull_reply(&mut self, reply: DeliveredReply) {
        self.event = Event::PullReply;
        self.to_pull = Some(reply);
    }

    fn resend_call(&mut self, slot: SlotId) {
        self.event = Event::Resend(slot);
    }

    fn free_exports(&mut self, slot: SlotId) {
        self.event = Event::FreeExports(slot);
    }

    fn fail_call(&mut self, slot: SlotId, token: u64, failure: CallFailure, _fenced: bool) {
        self.event = Event::Failed { slot, token, failure };
    }

    fn release_call(&mut self, slot: SlotId) {
        self.event = Event::Released(slot);
    }

    fn send_error(&mut self, xid: Xid, version: u32, error: RdmaError) {
        self.event = Event::Error(xid, version, error);
    }

    fn refuse_call(&mut self, xid: Xid, version: TransportVersion) {
        self.event = Event::Refuse(xid, version, SYSTEM_ERR);
    }

    fn refuse_program(&mut self, xid: Xid, version: TransportVersion) {
        self.event = Event::Refuse(xid, version, PROG_UNAVAIL);
    }

    fn dropped(&mut self, why: Dropped) {
        self.event = Event::Dropped(why);
    }

    fn close(&mut self, why: PeerMisbehaved) {
        self.close = Some(why);
    }
}
