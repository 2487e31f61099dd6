//! Replies that have arrived and cannot be delivered yet: their keys are alive, or there is more to fetch.

use crate::mem::Buf;
use crate::reactor::pending::call_table::CallHold;
use spinrpc_proto::output::DeliveredReply;

/// A reply whose call has keys that are being killed.
pub(crate) struct FencedReply {
    pub(in crate::reactor) message: Buf,
    pub(in crate::reactor) reply: DeliveredReply,
    pub(in crate::reactor) hold: Box<CallHold>,
    /// The key that the peer invalidated with it.
    pub(in crate::reactor) invalidated: Option<u32>,
    /// It has a Read list: there is more to fetch.
    pub(in crate::reactor) is_partial: bool,
}
