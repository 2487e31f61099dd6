//! Calls that state their remaining time, by the extension of [`spinrpc_proto::deadlines`].
//!
//! The first call of a connection that states its time tests if the server knows the extension. It is kept until its
//! answer, because a server without the extension has executed nothing, and the call is then sent again without its
//! time; meanwhile all other calls go without.

use crate::reactor::pending::offered::Offered;
use crate::reactor::state::connection::Conn;
use crate::reactor::state::core::Reactor;
use spinrpc_proto::deadlines::Support;
use spinrpc_proto::ids::Instant;
use spinrpc_proto::payload::CallChunks;
use spinrpc_proto::rdma::v2::DEADLINE_EXTRA_BYTES;
use spinrpc_proto::version::TransportVersion;

impl Conn {
    /// Returns true if a call that starts now may state its remaining time.
    pub(in crate::reactor) fn may_name_time(&self) -> bool {
        let requester = &self.lane.proto().requester;
        let speaks_two = requester.negotiation().version() == TransportVersion::Two;
        speaks_two
            && match requester.deadlines() {
                Support::Known => true,
                Support::Unknown => self.trial.is_none(),
                Support::Refused => false,
            }
    }

    /// The time that a call states, in microseconds. `None` if its message would be longer than `room_bytes`, or if
    /// it would have to be sent again and has chunks, which cannot be kept.
    pub(in crate::reactor) fn time_to_name(
        &self,
        left_us: Option<u64>,
        chunks: &CallChunks,
        stream_bytes: usize,
        room_bytes: usize,
    ) -> Option<u64> {
        let header_bytes = chunks.header_bytes_in(TransportVersion::Two) + DEADLINE_EXTRA_BYTES;
        let is_sure = self.lane.proto().requester.deadlines() == Support::Known;
        let may = (is_sure || chunks.is_empty()) && header_bytes + stream_bytes <= room_bytes;
        left_us.filter(|_| may)
    }

    /// A call was started, with the RPC message `stream`. A call that offers a version, or tests the extension, may
    /// have to be sent again.
    pub(in crate::reactor) fn keep_to_resend(&mut self, stream: &[u8], names_time: bool) {
        if let Some(offer) = &mut self.offer {
            offer.keep(stream);
        }
        if names_time && self.lane.proto().requester.deadlines() == Support::Unknown {
            self.trial.get_or_insert_with(Offered::new).keep(stream);
        }
    }
}

impl Reactor {
    /// Microseconds until a deadline of this side's; none for a call that has none.
    pub(in crate::reactor) fn time_left(&self, deadline: Instant) -> Option<u64> {
        let ticks = deadline.0.saturating_sub(self.read_clock().0);
        (deadline.0 != u64::MAX).then(|| self.clock.to_ns(ticks) / 1000)
    }
}
