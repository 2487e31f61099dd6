//! Messages of extensions of version two that the application knows (version two section 3): calls of
//! its own, those of the peer on their way to their handler, and the answers to both. A call of an
//! extension is admitted, put off and handed on as any call; here it parts from RPC calls, and an answer
//! from RPC replies. What the bytes mean is the application's.

use super::call_table::CallHold;
use super::core::{CoreCell, Reactor};
use super::ops::{Backpressure, CallFrame, CallOutcome, CallSpec, ReplyTarget, Upcalls};
use super::replies::release;
use crate::fabric::{ConnId, Fabric};
use crate::mem::Buf;
use spinrpc_proto::ids::Xid;
use spinrpc_proto::limits::OPTION_INFO_MAX_BYTES;
use spinrpc_proto::options::{Carries, OptionalRefused};
use spinrpc_proto::output::{DeliveredReply, SlotId};
use spinrpc_proto::rdma::v1::HeaderView;
use spinrpc_proto::rdma::v2::optional_header_bytes;
use spinrpc_proto::rdma::{MessageType, RdmaError};
use spinrpc_proto::version::TransportVersion;

/// Where the type of a message stands in every header.
const TYPE_AT: usize = 12;

/// A message of an extension of version two: an RDMA2_OPTIONAL (draft-cel-nfsv4-rpcrdma-version-two-01
/// section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionMessage<'a> {
    /// Which operation it is (`rdma_opttype`).
    pub option: u32,
    /// What the operation needs to know (`rdma_optinfo`); 512 bytes at the most.
    pub info: &'a [u8],
    /// What stands behind the header. Of an option that carries a whole RPC message
    /// ([`Carries::Message`](crate::options::Carries)) the first word is its XID: the engine puts in
    /// that of the transport header when it is sent.
    pub payload: &'a [u8],
}

impl<'a> OptionMessage<'a> {
    /// What stands in a message whose header was checked when it came.
    fn of(view: &HeaderView<'a>) -> Option<Self> {
        let body = view.optional()?;
        Some(Self { option: body.option, info: body.info, payload: view.payload() })
    }

    fn bytes(&self) -> usize {
        optional_header_bytes(self.info.len()) + self.payload.len()
    }

    fn check(&self, room_bytes: usize) -> Result<(), Backpressure> {
        let needed_bytes = self.bytes();
        let fits = needed_bytes <= room_bytes && self.info.len() <= OPTION_INFO_MAX_BYTES;
        fits.then_some(()).ok_or(Backpressure::TooLarge { needed_bytes })
    }

    /// Puts the payload behind the header.
    fn put_payload(&self, xid: Xid, carries: Option<Carries>, message: &mut Buf) {
        let at = optional_header_bytes(self.info.len());
        let place = &mut message.whole_mut()[at..at + self.payload.len()];
        place.copy_from_slice(self.payload);
        if carries == Some(Carries::Message)
            && let Some(word) = place.first_chunk_mut()
        {
            *word = xid.0.to_be_bytes();
        }
        message.set_range(0..self.bytes());
    }
}

/// Whether a message is an RDMA2_OPTIONAL, by its type alone.
pub(super) fn is_optional(message: &[u8]) -> bool {
    const OPTIONAL: [u8; 4] = MessageType::Optional.to_wire().to_be_bytes();
    message.get(TYPE_AT..TYPE_AT + 4) == Some(&OPTIONAL)
}

/// The XID of a message, which is the first word of every header.
fn xid_of(message: &[u8]) -> Xid {
    Xid(message.first_chunk().map_or(0, |word| u32::from_be_bytes(*word)))
}

impl<F: Fabric> CoreCell<F> {
    /// A call of an extension goes to its handler, which answers it, or will. `None` for other calls.
    pub(super) fn deliver_option(
        &self,
        frame: &CallFrame,
        up: &mut impl Upcalls,
    ) -> Option<CallOutcome> {
        let message = frame.message.bytes();
        let limits = match self.reactor().conns.find(frame.conn) {
            Some(c) if is_optional(message) => *c.proto.limits(),
            _ => return None,
        };
        let view = HeaderView::new_checked(message, &limits).ok();
        let option = view.as_ref().and_then(OptionMessage::of)?;
        let to = ReplyTarget { conn: frame.conn, slot: frame.slot, message, plain: false };
        Some(up.on_option(&to, option))
    }

    /// The answer to a call came that is a message of an extension.
    #[cold]
    pub(super) fn take_option_reply(
        &self,
        conn: ConnId,
        message: Buf,
        reply: &DeliveredReply,
        invalidated: Option<u32>,
        up: &mut impl Upcalls,
    ) {
        let hold = self.reactor().arrive_reply(conn, reply, invalidated);
        match hold {
            Ok(hold) => self.deliver_option_reply(conn, message, reply, hold, up),
            Err(why) => self.put_aside(conn, message, reply, (why, invalidated), up),
        }
    }

    /// Hands it to the handler of its client. Memory that an RPC call had lent goes back.
    #[cold]
    pub(super) fn deliver_option_reply(
        &self,
        conn: ConnId,
        message: Buf,
        reply: &DeliveredReply,
        hold: Option<Box<CallHold>>,
        up: &mut impl Upcalls,
    ) {
        let limits = self.reactor().conns.find(conn).map(|c| *c.proto.limits());
        let view = limits.and_then(|limits| HeaderView::new_checked(message.bytes(), &limits).ok());
        if let Some(option) = view.as_ref().and_then(OptionMessage::of) {
            up.on_option_reply(conn, reply.token, option);
        }
        self.reactor().finish_reply(conn, message, hold);
    }
}

impl<F: Fabric> Reactor<F> {
    /// Starts a call of an extension, with the configured deadline.
    pub(super) fn call_option(
        &mut self,
        conn: ConnId,
        token: u64,
        option: &OptionMessage<'_>,
    ) -> Result<(), Backpressure> {
        let deadline = self.deadline(&CallSpec::new());
        let Some(carries) = self.options.find(option.option) else {
            return Err(Backpressure::Misuse("the option is not registered with the engine"));
        };
        let (mut message, c) = self.take_send_buffer(conn)?;
        let negotiation = c.proto.requester.negotiation();
        if negotiation.version() != TransportVersion::Two {
            return Err(Backpressure::NotVersionTwo);
        }
        option.check(negotiation.send_bytes_max(c.negotiated.sends()) as usize)?;
        let Some(c) = self.conns.find(conn) else { return Err(Backpressure::Down) };
        let header = &mut message.whole_mut()[..optional_header_bytes(option.info.len())];
        let requester = &mut c.proto.requester;
        let started = requester.start_optional(token, deadline, option.option, option.info, header);
        let (started, _) = started.map_err(|refused| match refused {
            OptionalRefused::Call(refused) => self.stats.refuse(refused),
            _ => Backpressure::NotVersionTwo,
        })?;
        option.put_payload(started.xid, Some(carries), &mut message);
        self.next_deadline = self.next_deadline.min(deadline);
        self.post_call(conn, message);
        Ok(())
    }

    /// Answers a call of an extension that was deferred, or refuses it. Nothing happens if its
    /// connection has gone.
    pub(super) fn finish_option(
        &mut self,
        conn: ConnId,
        slot: SlotId,
        xid: Xid,
        answer: Option<&OptionMessage<'_>>,
    ) -> Result<(), Backpressure> {
        self.options_deferred = self.options_deferred.saturating_sub(1);
        let c = self.conns.find(conn).filter(|c| c.proto.responder.is_delivered(slot));
        let Some(c) = c else {
            self.stats.stale += 1;
            return Ok(());
        };
        // Still in its handler, the message is with who called that, and nothing is promised yet.
        let is_kept = c.serves[usize::from(slot.index)].message.is_some();
        let message = if is_kept { c.take_deferred(slot) } else { None };
        let word = xid.0.to_be_bytes();
        let to = ReplyTarget { conn, slot, message: &word, plain: false };
        let answered = match answer {
            Some(option) => self.reply_option(&to, option),
            None => {
                self.refuse_option(&to);
                Ok(())
            }
        };
        if let Some(message) = message {
            self.repost(conn, message);
        }
        answered
    }

    /// Answers a call of an extension with RDMA2_ERR_BAD_HEADER and frees its slot. Of its message the
    /// first word is enough.
    pub(super) fn refuse_option(&mut self, to: &ReplyTarget<'_>) {
        let Some(c) = self.conns.find(to.conn) else { return };
        if c.proto.responder.abandon(to.slot) {
            release(c, to.slot);
            let version = TransportVersion::Two;
            let error = RdmaError::of_header(version);
            self.send_error(to.conn, xid_of(to.message), version.to_wire(), error);
        }
    }

    /// Answers a call of an extension by another message of one. If that is too long, the call is
    /// refused. Of its message the first word is enough.
    pub(super) fn reply_option(
        &mut self,
        to: &ReplyTarget<'_>,
        option: &OptionMessage<'_>,
    ) -> Result<(), Backpressure> {
        let carries = self.options.find(option.option);
        let Some(c) = self.conns.find(to.conn) else {
            self.stats.stale += 1;
            return Ok(());
        };
        let checked = option.check(c.negotiated.send_bytes_max_in(TransportVersion::Two));
        if checked.is_err() {
            self.refuse_option(to);
            return checked;
        }
        release(c, to.slot);
        // A call is admitted only while there is one for its answer.
        let Some(mut message) = c.sends.take() else {
            self.close_overrun(to.conn, "send buffers");
            return Ok(());
        };
        let header = &mut message.whole_mut()[..optional_header_bytes(option.info.len())];
        let xid = xid_of(to.message);
        let responder = &mut c.proto.responder;
        match responder.reply_optional(to.slot, xid, option.option, option.info, header) {
            Ok(_) => {
                option.put_payload(xid, carries, &mut message);
                self.post_answer(to.conn, message, None);
            }
            Err(_) => self.stats.stale += 1,
        }
        Ok(())
    }
}
