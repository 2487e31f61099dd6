//! A list of everything that follows from inputs.

use spinrpc_proto::events::{
    self as proto, Arrival, CallFailure, DeliveredReply, Dropped, FailedCall, PeerMisbehaved,
    ReadRequest, SlotId, WriteRequest,
};
use spinrpc_proto::ids::Xid;
use spinrpc_proto::rdma::RdmaError;
use spinrpc_proto::rpc::AcceptStatus;
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

    /// Everything that follows from a message.
    pub(crate) fn note(&mut self, arrival: Arrival) {
        self.0.extend(match arrival.event {
            proto::Event::None => None,
            proto::Event::Call(slot) => Some(Event::Call(slot)),
            proto::Event::Pull(slot) => Some(Event::Pull(slot)),
            proto::Event::Reply(reply) => Some(Event::Reply(reply)),
            proto::Event::PullReply => arrival.to_pull.map(Event::PullReply),
            proto::Event::FreeExports(slot) => Some(Event::FreeExports(slot)),
            proto::Event::Failed(failed) => Some(failed.into()),
            proto::Event::Released(slot) => Some(Event::Released(slot)),
            proto::Event::Resend(slot) => Some(Event::Resend(slot)),
            proto::Event::Error(xid, version, error) => Some(Event::Error(xid, version, error)),
            proto::Event::Refused(xid, version, AcceptStatus::SystemErr) => {
                Some(Event::Refused(xid, version))
            }
            proto::Event::Refused(xid, version, _) => Some(Event::ProgramRefused(xid, version)),
            proto::Event::Dropped(why) => Some(Event::Dropped(why)),
        });
        self.0.extend(arrival.close.map(Event::Closed));
    }

    pub(crate) fn arriving(&mut self, receive: impl FnOnce(&mut Arrival)) {
        let mut arrival = Arrival::default();
        receive(&mut arrival);
        self.note(arrival);
    }

    /// A message leads to one event, and perhaps the end of the connection.
    pub(crate) fn of_message(receive: impl FnOnce(&mut Arrival)) -> Vec<Event> {
        let mut out = Self::default();
        out.arriving(receive);
        let closes = out.0.iter().filter(|event| matches!(event, Event::Closed(_))).count();
        assert!(closes <= 1 && !out.0.is_empty() && out.0.len() - closes <= 1, "{out:?}");
        out.0
    }

    pub(crate) fn fail(&mut self, failed: FailedCall) {
        self.0.push(failed.into());
    }

    pub(crate) fn read(&mut self, read: ReadRequest) {
        self.0.push(Event::Read(read));
    }

    pub(crate) fn write(&mut self, write: WriteRequest) {
        self.0.push(Event::Write(write));
    }
}

impl From<FailedCall> for Event {
    fn from(failed: FailedCall) -> Self {
        let FailedCall { slot, token, failure, is_fenced: fenced } = failed;
        Self::Failed { slot, token, failure, fenced }
    }
}
