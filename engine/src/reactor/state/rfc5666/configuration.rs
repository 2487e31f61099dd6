//! The Connection Configuration Protocol on one connection (RFC 5666 section 6.2).

use crate::reactor::state::connection::Conn;
use crate::reactor::types::negotiate::Negotiated;
use spinrpc_proto::config_proto::{ConfigReply, ConfigRequest};
use spinrpc_proto::version::TransportVersion;

impl Conn {
    /// A client has stated its limits. Messages from now on respect them, in the place of earlier statements (RFC
    /// 5666 section 6.2).
    pub(crate) fn configure(&mut self, request: &ConfigRequest) {
        self.negotiated = self.terms.with_request(request);
    }

    /// The server has stated its limits. Messages from now on respect them.
    pub(crate) fn take_config(&mut self, reply: &ConfigReply) -> Negotiated {
        let version = self.lane.proto().requester.negotiation().version();
        let padding = self.negotiated.alignment(TransportVersion::One);
        self.negotiated = self.terms.with_reply(reply).settled(version);
        if self.sends_promised > 0 {
            // Replies to deferred reverse calls are padded as agreed when the calls arrived.
            self.negotiated = self.negotiated.padded(padding);
        }
        self.negotiated
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::fabric::QpId;
    use crate::reactor::in_flight::roles::Roles;
    use crate::reactor::types::negotiate::{Offer, Terms};
    use crate::reactor::types::peer_id::Instance;

    fn served(reads_max: u16) -> Conn {
        let config = Config::default();
        let terms =
            Terms::new(&Offer::of(&config, false, Instance::Passing), (&[], 0), reads_max, &config);
        let roles = Roles::accepted(&config);
        Conn::open(QpId::new(0, 0), roles, &config, terms, 1, (None, None)).unwrap()
    }

    /// R5666-56: "If more than this number of RDMA Read operations by the connected peer are issued
    /// simultaneously, connection loss or suboptimal flow control may result".
    #[test]
    fn receive_maxrdmaread_expect_no_room_for_more_reads_than_it_and_the_driver_allow() {
        let mut conn = served(8);
        let request = |reads| ConfigRequest { call_bytes: 4096, reply_bytes: 4096, reads };
        assert_eq!(conn.reads_room(), 8);
        for (said, outstanding, room) in
            [(2, 0, 2), (2, 1, 1), (2, 2, 0), (1, 2, 0), (0, 0, 0), (9, 3, 5), (u32::MAX, 8, 0)]
        {
            conn.configure(&request(said));
            conn.reads_outstanding = outstanding;
            assert_eq!(conn.reads_room(), room, "maxrdmaread {said}, {outstanding} outstanding");
        }
    }
}
