//! Starting calls that have nothing beside their stream, and whose reply fits inline anywhere: what
//! most calls are. Called by the lane where the call is not short, or its driver sends nothing by value.

use crate::fabric::ConnId;
use crate::reactor::state::core::Reactor;
use crate::reactor::words::calls::{Backpressure, CallId, CallSpec};
use crate::reactor::words::messages::{NO_CHUNKS, put_xid};

impl Reactor {
    /// Starts a call with this RPC message. `None` when it does not go inline; then nothing has happened.
    pub(in crate::reactor) fn start_plain_call(
        &mut self,
        conn: ConnId,
        token: u64,
        spec: &CallSpec,
        stream: &[u8],
    ) -> Result<Option<CallId>, Backpressure> {
        let deadline = self.deadline(spec);
        let (mut message, c) = self.take_send_buffer(conn)?;
        #[cfg(feature = "gss")]
        if c.gss.is_some() {
            return Ok(None);
        }
        let version = c.lane.proto().requester.negotiation().version();
        let header_bytes = version.plain_header_bytes();
        let bytes = header_bytes + stream.len();
        if bytes > c.negotiated.plain_bytes_max(version) {
            return Ok(None);
        }
        message.set_range(0..bytes);
        let (header, place) = message.bytes_mut().split_at_mut(header_bytes);
        place.copy_from_slice(stream);
        let started = c.lane.proto().requester.start_call(token, deadline, &NO_CHUNKS, header);
        let (started, _) = started.map_err(|refused| self.stats.refuse(refused))?;
        put_xid(place, started.xid);
        self.next_deadline = self.next_deadline.min(deadline);
        self.post_call(conn, message);
        Ok(Some(CallId::of(started.slot)))
    }
}
