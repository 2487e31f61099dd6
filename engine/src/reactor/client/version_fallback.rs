//! Negotiation of the RPC-over-RDMA version of a connection, as carried out by the reactor (version two section 5):
//! the api decides which version to offer, the requester reports the result, and the first call is kept here as long
//! as it may have to be sent in another version.
//!
//! Only calls with which a connection begins are sent before the version is settled, one at a time;
//! they have no chunks and fit the first message.

use crate::fabric::ConnId;
use crate::reactor::common::sends::Posted;
use crate::reactor::state::core::Reactor;
use crate::reactor::types::header_bytes::NO_CHUNKS;
use spinrpc_proto::events::SlotId;
use spinrpc_proto::version::{Negotiation, Versions};

impl Reactor {
    /// Sends the first call again on the same connection, in the version that the responder speaks (version two
    /// section 5.2). The call fits again, because headers of version one are not longer.
    #[cold]
    pub(in crate::reactor) fn fall_back(&mut self, conn: ConnId, slot: SlotId) {
        let stream_at = self.config().headroom_bytes();
        let Some(c) = self.conn(conn) else { return };
        let message = c.sends.take();
        let (Some(stream), Some(mut message)) = (&c.offer, message) else {
            return self.close_overrun(conn, "send buffers");
        };
        let end = stream_at + stream.len();
        message.whole_mut()[stream_at..end].copy_from_slice(stream);
        let header = &mut message.whole_mut()[..stream_at];
        let resent = c.lane.proto().requester.resend(slot, &NO_CHUNKS, header);
        match resent {
            Ok((_, header_bytes)) => {
                message.set_range(stream_at - header_bytes..end);
                self.post(conn, message, Posted::Call);
            }
            Err(_) => self.close_overrun(conn, "credits"),
        }
    }

    /// Settles the version of calls on an accepted connection: the version in which it is called, or the only one
    /// spoken (version two section 5.3).
    pub(in crate::reactor) fn settle_in_reverse(&mut self, conn: ConnId) {
        let versions = self.config().versions();
        let Some(c) = self.conn(conn) else { return };
        let version = match versions {
            Versions::One | Versions::Two => versions.high(),
            Versions::Both => c.lane.proto().responder.version(),
        };
        c.lane.proto().requester.negotiate(Negotiation::settled(version));
    }
}
