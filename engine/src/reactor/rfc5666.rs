//! Operations of a core for the Connection Configuration Protocol (RFC 5666 section 6).

use crate::fabric::ConnId;
use crate::reactor::state::core::CoreCell;
use crate::reactor::types::negotiate::Negotiated;
use spinrpc_proto::config_proto::{ConfigReply, ConfigRequest};

impl CoreCell {
    /// A client of this connection stated its limits, which bind this side from now on. Returns the reply to the
    /// client.
    pub(crate) fn configure(&self, conn: ConnId, request: &ConfigRequest) -> ConfigReply {
        let mut reactor = self.reactor();
        if let Some(c) = reactor.conn(conn) {
            c.configure(request);
        }
        reactor.config().ccp_reply()
    }

    /// The request to the server of this connection.
    pub(crate) fn config_request(&self) -> ConfigRequest {
        self.reactor().config().ccp_request()
    }

    /// The server stated its limits, which bind this side from now on. `None` when it is down.
    pub(crate) fn take_config(&self, conn: ConnId, reply: &ConfigReply) -> Option<Negotiated> {
        Some(self.reactor().conn(conn)?.take_config(reply))
    }
}
