//! Reasons to wait for memory, a buffer or room in the send queue.

use crate::reactor::in_flight::read_ids::ReadOwner;
use crate::reactor::types::calls::RpcRefusal;
use spinrpc_proto::ids::Xid;
use spinrpc_proto::rdma::RdmaError;
use spinrpc_proto::version::TransportVersion;

/// Entry of a core's queue, which is tried again in whole turns. The queue's length is bounded by the calls and replies
/// in progress, and by the answers that a connection may be owed.
pub(in crate::reactor) enum Waiting {
    /// A call that finds no room, or a message with more to fetch. It is in the queue at most once.
    Message(ReadOwner),
    /// RDMA_ERROR, to a message with that version word.
    Error(Xid, u32, RdmaError),
    /// Another answer without results.
    Refusal(Xid, TransportVersion, RpcRefusal),
}
