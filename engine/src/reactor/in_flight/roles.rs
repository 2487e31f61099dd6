//! The ends of a connection: which of them may call, and with how many slots (RFC 8167).

use crate::config::Config;
use spinrpc_proto::connection::Side;
use spinrpc_proto::requester::INDEX_BITS;

/// Role of one end of a connection, and its room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Roles {
    pub(crate) side: Side,
    /// Reverse calls at a time; 0: none.
    pub(crate) reverse_calls: usize,
    /// Set for a client that takes no reverse calls: it still answers those of version two, with a refusal.
    pub(crate) refuses_reverse: bool,
}

impl Roles {
    /// Roles of an accepted connection.
    pub(in crate::reactor) fn accepted(config: &Config) -> Self {
        let reverse_calls = config.reverse_calls();
        Self { side: Side::Server, reverse_calls, refuses_reverse: false }
    }

    /// Roles of a requested connection, whose peer may make reverse calls if so requested.
    pub(in crate::reactor) fn requested(config: &Config, takes_reverse: bool) -> Self {
        let reverse_calls = if takes_reverse { config.reverse_calls() } else { 0 };
        let refuses_reverse = !takes_reverse && config.refuses_reverse();
        Self { side: Side::Client, reverse_calls, refuses_reverse }
    }

    /// Receives for messages of the reverse direction.
    pub(in crate::reactor) fn reverse_receives(&self) -> usize {
        self.reverse_calls + usize::from(self.refuses_reverse)
    }

    /// Slots for calls of this side and for those of its peer. A client has one slot beyond the
    /// credits, for a call of the connection's own.
    pub(in crate::reactor) fn slots(&self, config: &Config) -> (usize, usize) {
        match self.side {
            Side::Client => (config.slots_per_conn() + 1, self.reverse_calls),
            Side::Server => (self.reverse_calls, config.slots_per_conn()),
        }
    }

    /// First XID of this end. Each direction has its own XIDs (section 4). Where the direction of a message follows
    /// from the XID ([`spinrpc_proto::connection`]), the XIDs of both ends should differ even if their seeds are
    /// equal, so they are half of all XIDs apart.
    pub(in crate::reactor) fn first_xid(&self, seed: u32) -> u32 {
        match self.side {
            Side::Client => seed,
            Side::Server => seed ^ (1 << (u32::BITS - INDEX_BITS - 1)),
        }
    }

    /// Credits of each grant that are not for calls.
    pub(in crate::reactor) fn credits_held_back(&self) -> usize {
        match self.side {
            Side::Client => self.reverse_calls.min(CREDITS_FOR_ANSWERS),
            Side::Server => 0,
        }
    }

    /// Credits to request.
    pub(in crate::reactor) fn credits(&self, config: &Config) -> usize {
        match self.side {
            Side::Client => config.slots_per_conn(),
            Side::Server => self.reverse_calls,
        }
    }
}

/// Credits of a client's grant that are left for its answers to calls in reverse, if it takes any: as many as the NFS server of Linux
/// calls at a time.
pub(crate) const CREDITS_FOR_ANSWERS: usize = 2;

/// Reason why reverse calls are not possible on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoReverse {
    /// This engine has no room for such calls: set `rpc.reverse_calls`.
    #[error("no calls in reverse are configured: set rpc.reverse_calls")]
    NotConfigured,
    /// This side opened the connection: it makes forward calls.
    #[error("this side made the connection, and calls forward")]
    NotAccepted,
    /// The connection already has a client, with its credits and its replies.
    #[error("the connection has a client in reverse already")]
    Taken,
    /// Both versions of RPC-over-RDMA are spoken here, and the client has not called yet, so the version for reverse
    /// calls is not known.
    #[error("the client has not called yet, which would tell the version that it speaks")]
    NotCalled,
    /// The connection is down.
    #[error("the connection is down")]
    Down,
}

/// Client that the application of a server has on a connection, for reverse calls.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::reactor) enum ReverseClient {
    #[default]
    None,
    Any,
    /// Its calls have no chunks.
    Inline,
}
