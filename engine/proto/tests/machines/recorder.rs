//! A sink that writes everything down.

use spinrpc_proto::events::{
    CallFailure, DeliveredReply, Dropped, Output, PeerMisbehaved, ReadRequest, SlotId, WriteRequest,
};
use spinrpc_proto::ids::Xid;
use spinrpc_proto::rdma::RdmaError;
use spinrpc_proto::version::TransportVersion;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Call(SlotId),
    Pull(SlotId),
    Read(ReadRequest),
    Write(WriteRequest),
    Reply(DeliveredReply),
    PullReply(DeliveredReply),
    FreeExports(SlotId),
    Failed { slot: SlotId, token: u64, failure: CallFailure, fenced: bool },
    Released(SlotId),
    Error(Xid, u32, RdmaError),
    Refused(Xid, TransportVersion),
    ProgramRefused(Xid, TransportVersion),
    Resend(SlotId),
    Dropped(Dropped),
    Closed(PeerMisbehaved),
}

/// Events since the recorder was last read.
#[derive(Debug, Default)]
pub(crate) struct Recorder(Vec<Event>);

impl Recorder {
    pub(crate) fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.0)
    }
}

impl Output for Recorder {
    fn deliver_call(&mut self, slot: SlotId) {
        self.0.push(Event::Call(slot));
    }

    fn pull(&mut self, slot: SlotId) {
        self.0.push(Event::Pull(slot));
    }

    fn read(&mut self, read: ReadRequest) {
        self.0.push(Event::Read(read));
    }

    fn write(&mut self, write: WriteRequest) {
        self.0.push(Event::Write(write));
    }

    fn deliver_reply(&mut self, reply: DeliveredReply) {
        self.0.push(Event::Reply(reply));
    }

    fn pull_reply(&mut self, reply: DeliveredReply) {
        self.0.push(Event::PullReply(reply));
    }

    fn free_exports(&mut self, slot: SlotId) {
        self.0.push(Event::FreeExports(slot));
    }

    fn fail_call(&mut self, slot: SlotId, token: u64, failure: CallFailure, fenced: bool) {
        self.0.push(Event::Failed { slot, token, failure, fenced });
    }

    fn resend_call(&mut self, slot: SlotId) {
        self.0.push(Event::Resend(slot));
    }

    fn release_call(&mut self, slot: SlotId) {
        self.0.push(Event::Released(slot));
    }

    fn send_error(&mut self, xid: Xid, version: u32, error: RdmaError) {
        self.0.push(Event::Error(xid, version, error));
    }

    fn refuse_call(&mut self, xid: Xid, version: TransportVersion) {
        self.0.push(Event::Refused(xid, version));
    }

    fn refuse_program(&mut self, xid: Xid, version: TransportVersion) {
        self.0.push(Event::ProgramRefused(xid, version));
    }

    fn dropped(&mut self, why: Dropped) {
        self.0.push(Event::Dropped(why));
    }

    fn close(&mut self, why: PeerMisbehaved) {
        self.0.push(Event::Closed(why));
    }
}
