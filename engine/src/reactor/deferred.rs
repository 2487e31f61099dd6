//! A call that is answered away from its handler, perhaps on another thread: what its reply is
//! encoded into, and where the answer goes.

use super::mailbox::{DeferredAnswer, DeferredReply, PostReply};
use super::ops::{Encode, RpcRefusal};
use super::reply_cache::Ticket;
use super::reply_plan::{Form, ReplyData, ReplyPlan};
use crate::fabric::ConnId;
use crate::mem::{Bulk, BulkPool};
use spinrpc_proto::output::SlotId;
use spinrpc_proto::rpc::AcceptStatus;
use std::sync::Arc;

/// Lets a call be answered once, from any thread. Dropped unanswered it sends SYSTEM_ERR.
pub(crate) struct DeferTicket {
    inbox: Arc<dyn PostReply>,
    conn: ConnId,
    slot: SlotId,
    room: Option<Room>,
    is_answered: bool,
    /// Keeps the reply, for the same call by another connection.
    keep: Option<Ticket>,
}

/// What encoding a reply away from its core needs.
pub(super) struct Room {
    pub(super) pool: BulkPool,
    pub(super) stage: Bulk,
    pub(super) plan: ReplyPlan,
}

impl DeferTicket {
    pub(super) fn new(inbox: Arc<dyn PostReply>, conn: ConnId, slot: SlotId, room: Room) -> Self {
        Self { inbox, conn, slot, room: Some(room), is_answered: false, keep: None }
    }

    /// Which call it answers.
    pub(crate) fn slot(&self) -> SlotId {
        self.slot
    }

    /// Has the reply kept.
    pub(crate) fn keep_by(&mut self, ticket: Ticket) {
        self.keep = Some(ticket);
    }

    /// Answers with results.
    pub(crate) fn reply(mut self, data: ReplyData, encode: Encode<'_>) {
        if let Some(keep) = self.keep.take() {
            keep.record(&data, encode);
        }
        let answer = self.encode(data, encode);
        self.post(answer);
    }

    /// Answers with an RPC error.
    pub(crate) fn reject(mut self, status: AcceptStatus) {
        self.refuse(status);
    }

    /// Encodes results, to be sent by [`DeferTicket::answer`].
    pub(super) fn encode(&mut self, data: ReplyData, encode: Encode<'_>) -> DeferredAnswer {
        let refusal = DeferredAnswer::Reject(AcceptStatus::SystemErr);
        self.room.take().map_or(refusal, |room| room.encode(data, encode))
    }

    /// Sends an answer; may wait for room in the mailbox.
    pub(super) fn answer(mut self, answer: DeferredAnswer) {
        self.post(answer);
    }

    /// Memory for the data items of a reply.
    pub(super) fn bulk(&self, bytes: usize) -> Option<Bulk> {
        self.room.as_ref()?.pool.take(bytes)
    }

    fn refuse(&mut self, status: AcceptStatus) {
        if let Some(keep) = self.keep.take() {
            keep.refuse(RpcRefusal::Accepted(status));
        }
        self.post(DeferredAnswer::Reject(status));
    }

    fn post(&mut self, answer: DeferredAnswer) {
        self.is_answered = true;
        self.inbox.post_reply(DeferredReply { conn: self.conn, slot: self.slot, answer });
    }
}

impl Drop for DeferTicket {
    fn drop(&mut self) {
        // Also when an encoder panicked: the call must not keep its slot for ever.
        if !self.is_answered {
            self.refuse(AcceptStatus::SystemErr);
        }
    }
}

impl Room {
    /// Encodes inline; results that are too long for that go into memory for a Reply chunk, if
    /// there is one that takes them, or into what the client is to fetch, if that is allowed.
    fn encode(self, data: ReplyData, encode: Encode<'_>) -> DeferredAnswer {
        let Self { pool, mut stage, plan } = self;
        let encoded = plan.encode_inline(stage.bytes_mut(), &data, encode);
        let takes_long = plan.takes_long(encoded.stream_bytes);
        if encoded.fits || !(takes_long || plan.allows_reads(&data)) {
            return DeferredAnswer::Results { stream: stage, encoded, data };
        }
        if !takes_long {
            let room_bytes = stage.len().saturating_sub(plan.read_list_bytes(&data));
            let room = &mut stage.bytes_mut()[..room_bytes];
            let encoded = plan.encode(room, &data, Form::ByRead, encode);
            if encoded.fits {
                return DeferredAnswer::Results { stream: stage, encoded, data };
            }
        }
        let Some(mut stream) = pool.take(encoded.stream_bytes) else {
            return DeferredAnswer::Reject(AcceptStatus::SystemErr);
        };
        let encoded = plan.encode(stream.bytes_mut(), &data, Form::Direct, encode);
        DeferredAnswer::Results { stream, encoded, data }
    }
}
