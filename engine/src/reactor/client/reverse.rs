//! Reverse calls (RFC 8167): a connection that has room for them lets its server call and its client serve, in
//! addition to the calls of the forward direction.
//!
//! The connecting side decides for each connection if it takes such calls, and then has slots, receives and send
//! buffers for them from the first message on. The accepting side has them on every connection, if they are
//! configured at all (`rpc.reverse_calls`). The wire does not show if the other end takes them: that is left to the
//! upper layer. Version two requires every end to answer them, so a client that takes none refuses them there. On a
//! new connection the first reverse call goes alone, until its reply brings more credits (section 4).
//!
//! Everything else is the same code in both directions. Reverse calls end with the connection, and are not sent again
//! on the next one: that connection has a new client, which decides again if it takes them.

use crate::fabric::ConnId;
use crate::reactor::in_flight::roles::NoReverse;
use crate::reactor::state::core::Reactor;
use spinrpc_proto::connection::Side;
use spinrpc_proto::version::Versions;

impl Reactor {
    /// The application of a server has a client on this connection from now on; its calls stay inline if so
    /// requested. `is_served`: a call of the connection is being served.
    pub(in crate::reactor) fn begin_reverse(
        &mut self,
        conn: ConnId,
        is_inline: bool,
        is_served: bool,
    ) -> Result<(), NoReverse> {
        let Some((c, core)) = self.conn_and_core(conn) else { return Err(NoReverse::Down) };
        if c.closing.is_some() {
            return Err(NoReverse::Down);
        }
        if c.lane.proto().side() == Side::Client {
            return Err(NoReverse::NotAccepted);
        }
        if !c.lane.proto().is_two_way() {
            return Err(NoReverse::NotConfigured);
        }
        let was_called = is_served || c.lane.proto().responder.was_called();
        if core.config().versions() == Versions::Both && !was_called {
            return Err(NoReverse::NotCalled);
        }
        c.begin_reverse(is_inline)?;
        self.settle_in_reverse(conn);
        Ok(())
    }
}
