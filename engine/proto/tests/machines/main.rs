//! The state machines, message by message: receive X, expect Y.
//!
//! `recorder` is the sink that records the events that a message causes, `messages` builds the
//! messages of a peer, `two` those of version two. Properties of every history and of any bytes are
//! those of the fuzz targets (`../fuzz.rs`), except those of `fleet`.
// The helpers of tests are tests as well; clippy's exception for tests does not see that.
#![allow(clippy::unwrap_used, clippy::panic)]

mod call_headers;
mod connection;
mod errors;
mod exports;
mod fleet;
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
