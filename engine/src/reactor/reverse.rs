//! Calls in reverse (RFC 8167): a connection that has room for them lets its server call and its
//! client serve, beside the calls of the forward direction.
//!
//! Who connects says for each connection whether it takes such calls, and then has slots, receives
//! and send buffers for them from the first message on; who accepts has them on every connection, if
//! they are configured at all (`rpc.reverse_calls`). Nothing on the wire says whether the other end
//! takes them: that is for the upper layer. Version two asks every end to answer them, so that a client
//! which takes none refuses them there. On a new connection the first call in
//! reverse goes alone, until its reply brings more credits (section 4).
//!
//! Everything else is the same code in both directions. Calls in reverse end with the connection, and
//! are not sent again on the next one: that one has a client that says anew whom it lets call.

use super::core::Reactor;
use crate::config::Config;
use crate::fabric::{ConnId, Fabric};
use spinrpc_proto::connection::Side;
use spinrpc_proto::requester::INDEX_BITS;
use spinrpc_proto::version::Versions;

/// What one end of a connection is, and what it has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Roles {
    pub(crate) side: Side,
    /// Calls in reverse at a time; 0: none.
    pub(crate) reverse_calls: usize,
    /// A client that takes none answers those of version two all the same, with a refusal.
    pub(crate) refuses_reverse: bool,
}

impl Roles {
    /// Of a connection that was accepted.
    pub(super) fn accepted(config: &Config) -> Self {
        let reverse_calls = config.reverse_calls();
        Self { side: Side::Server, reverse_calls, refuses_reverse: false }
    }

    /// Receives for messages of the reverse direction.
    pub(super) fn reverse_receives(&self) -> usize {
        self.reverse_calls + usize::from(self.refuses_reverse)
    }

    /// Slots for calls of this side and for those of its peer. A client has one slot beyond the
    /// credits, for a call of the connection's own.
    pub(super) fn slots(&self, config: &Config) -> (usize, usize) {
        match self.side {
            Side::Client => (config.slots_per_conn() + 1, self.reverse_calls),
            Side::Server => (self.reverse_calls, config.slots_per_conn()),
        }
    }

    /// Where the XIDs of this end start. Each direction has its own (section 4), but where the rules
    /// leave it to the XID which way a message goes ([`spinrpc_proto::connection`]), those of both
    /// ends should differ, though their seeds may be equal: they are half of all XIDs apart.
    pub(super) fn first_xid(&self, seed: u32) -> u32 {
        match self.side {
            Side::Client => seed,
            Side::Server => seed ^ (1 << (u32::BITS - INDEX_BITS - 1)),
        }
    }

    /// Credits to ask for.
    pub(super) fn credits(&self, config: &Config) -> usize {
        match self.side {
            Side::Client => config.slots_per_conn(),
            Side::Server => self.reverse_calls,
        }
    }
}

/// Why a connection cannot be called on in reverse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoReverse {
    /// This engine has no room for such calls: set `rpc.reverse_calls`.
    #[error("no calls in reverse are configured: set rpc.reverse_calls")]
    NotConfigured,
    /// This side connected: it calls forward.
    #[error("this side made the connection, and calls forward")]
    NotAccepted,
    /// There is a client on the connection already, with its credits and its replies.
    #[error("the connection has a client in reverse already")]
    Taken,
    /// Both versions of RPC-over-RDMA are spoken here, and the client has not called yet: in which of
    /// them it can be called is not known.
    #[error("the client has not called yet, which would tell the version that it speaks")]
    NotCalled,
    /// The connection is down.
    #[error("the connection is down")]
    Down,
}

/// What is known of calls in reverse beside the slots: where messages stay inline, and who calls.
#[derive(Default)]
pub(crate) struct ReverseState {
    /// The server's application has its client.
    has_client: bool,
    /// The client's calls have no chunks.
    pub(super) is_inline: bool,
}

impl<F: Fabric> Reactor<F> {
    /// The connection that was asked for under this number takes calls in reverse.
    pub(super) fn take_reverse_calls(&mut self, request: u64) {
        self.reverse_requests.push(request);
    }

    /// What this end of a connection is that was asked for under this number, now that it is there,
    /// or never will be.
    pub(super) fn roles_of(&mut self, request: u64) -> Roles {
        let place = self.reverse_requests.iter().position(|asked| *asked == request);
        if let Some(place) = place {
            self.reverse_requests.swap_remove(place);
        }
        let reverse_calls = place.map_or(0, |_| self.config.reverse_calls());
        let refuses_reverse = place.is_none() && self.config.refuses_reverse();
        Roles { side: Side::Client, reverse_calls, refuses_reverse }
    }

    /// The application of a server has a client on this connection from now on; its calls stay
    /// inline if that is asked for.
    pub(super) fn begin_reverse(&mut self, conn: ConnId, is_inline: bool) -> Result<(), NoReverse> {
        let Some(c) = self.conns.find(conn) else { return Err(NoReverse::Down) };
        if c.closing.is_some() {
            return Err(NoReverse::Down);
        }
        if c.proto.side() == Side::Client {
            return Err(NoReverse::NotAccepted);
        }
        if !c.proto.is_two_way() {
            return Err(NoReverse::NotConfigured);
        }
        if c.reverse.has_client {
            return Err(NoReverse::Taken);
        }
        if self.config.versions() == Versions::Both && !c.proto.responder.was_called() {
            return Err(NoReverse::NotCalled);
        }
        c.reverse = ReverseState { has_client: true, is_inline };
        self.settle_in_reverse(conn);
        Ok(())
    }
}
