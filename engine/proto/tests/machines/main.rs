//! The state machines, message by message: receive X, expect Y.
//!
//! `recorder` is the sink that records the events that a message causes, `messages` builds the
//! messages of a peer, `two` those of version two. Properties of every history and of any bytes are
//! those of the fuzz targets (`../fuzz.rs`). The simulation has fleets of old and new ends, cut anywhere.
// The helpers of tests are tests as well; clippy's exception for tests does not see that.
#![allow(clippy::unwrap_used, clippy::panic)]

mod call_headers;
mod connection;
mod errors;
mod exports;
mod messages;
mod negotiation;
mod options;
mod padding;
mod plain;
mod pulls;
mod recorder;
mod replies;
mod reply_pulls;
mod reply_shapes;
mod requester;
mod resend;
mod reserve;
mod responder;
mod roundup;
mod stream;
mod two;
mod two_way;
mod two_xids;
mod version_two;

/// Names that most of them use.
mod prelude {
    pub(crate) use crate::messages::*;
    pub(crate) use crate::recorder::{Event, Recorder};
    pub(crate) use spinrpc_proto::alignment::Alignment;
    pub(crate) use spinrpc_proto::chunking::*;
    pub(crate) use spinrpc_proto::connection::*;
    pub(crate) use spinrpc_proto::dialect::Profile;
    pub(crate) use spinrpc_proto::events::*;
    pub(crate) use spinrpc_proto::ids::{Instant, Xid};
    pub(crate) use spinrpc_proto::limits::*;
    pub(crate) use spinrpc_proto::rdma::*;
    pub(crate) use spinrpc_proto::requester::{
        CallRefused, CallSlot, Requester, StartedCall, index_of,
    };
    pub(crate) use spinrpc_proto::responder::*;
    pub(crate) use spinrpc_proto::rpc::{CallHeader, Direction};
    pub(crate) use spinrpc_proto::version::*;
    pub(crate) use spinrpc_proto::xdr::*;
}
