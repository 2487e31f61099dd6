//! Calls of extensions of version two that the application makes (version two section 3), and their answers. This is
//! the place where they differ from RPC calls and replies; their contents are defined by the application.

use crate::fabric::ConnId;
use crate::mem::Buf;
use crate::reactor::pending::call_table::CallHold;
use crate::reactor::pending::upcalls::Upcalls;
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::words::calls::{Backpressure, CallId, CallSpec};
use crate::reactor::words::option_message::OptionMessage;
use spinrpc_proto::options::OptionalRefused;
use spinrpc_proto::output::DeliveredReply;
use spinrpc_proto::rdma::v1::HeaderView;
use spinrpc_proto::rdma::v2::optional_header_bytes;
use spinrpc_proto::version::TransportVersion;

impl CoreCell {
    /// Takes an answer that is a message of an extension.
    #[cold]
    pub(in crate::reactor) fn take_option_reply(
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

    /// Passes it to the handler of its client. Memory that an RPC call had lent is released.
    #[cold]
    pub(in crate::reactor) fn deliver_option_reply(
        &self,
        conn: ConnId,
        message: Buf,
        reply: &DeliveredReply,
        hold: Option<Box<CallHold>>,
        up: &mut impl Upcalls,
    ) {
        let limits = self.reactor().conns.find(conn).map(|c| *c.lane.proto().limits());
        let view = limits.and_then(|limits| HeaderView::new_checked(message.bytes(), &limits).ok());
        if let Some(option) = view.as_ref().and_then(OptionMessage::of) {
            up.on_option_reply(conn, reply.token, option);
        }
        self.reactor().finish_reply(conn, message, hold);
    }
}

impl Reactor {
    /// Starts a call of an extension, with the configured deadline.
    pub(in crate::reactor) fn call_option(
        &mut self,
        conn: ConnId,
        token: u64,
        option: &OptionMessage<'_>,
    ) -> Result<CallId, Backpressure> {
        let deadline = self.deadline(&CallSpec::new());
        let Some(carries) = self.options.find(option.option) else {
            return Err(Backpressure::Misuse("the option is not registered with the engine"));
        };
        let (mut message, c) = self.take_send_buffer(conn)?;
        #[cfg(feature = "gss")]
        if c.gss.is_some() {
            return Err(Backpressure::Misuse("an option has no place under RPCSEC_GSS"));
        }
        let negotiation = *c.lane.proto().requester.negotiation();
        if negotiation.version() != TransportVersion::Two {
            return Err(Backpressure::NotVersionTwo);
        }
        option.check(negotiation.send_bytes_max(c.negotiated.sends()) as usize)?;
        let Some(c) = self.conns.find(conn) else { return Err(Backpressure::Down) };
        let header = &mut message.whole_mut()[..optional_header_bytes(option.info.len())];
        let (number, info) = (option.option, option.info);
        let started =
            c.lane.proto().requester.start_optional(token, deadline, number, info, header);
        let (started, _) = started.map_err(|refused| match refused {
            OptionalRefused::Call(refused) => self.stats.refuse(refused),
            _ => Backpressure::NotVersionTwo,
        })?;
        option.put_payload(started.xid, Some(carries), &mut message);
        self.next_deadline = self.next_deadline.min(deadline);
        self.post_call(conn, message);
        Ok(CallId::of(started.slot))
    }
}
