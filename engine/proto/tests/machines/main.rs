//! The state machines, message by message: receive X, expect Y.
//!
//! `recorder` is the sink that writes down what follows from a message, `messages` builds what a
//! peer sends, `two` the same in version two. What must hold for every history is in `model` and
//! `fleet`, what must hold for any bytes in
//! `hostile`.
// The helpers of tests are tests as well; clippy's exception for tests does not see that.
#![allow(clippy::unwrap_used, clippy::panic)]

mod call_headers;
mod connection;
mod deadlines;
mod dones;
mod errors;
mod exports;
mod fleet;
mod hostile;
mod late;
mod messages;
mod model;
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
mod responder;
mod roundup;
mod stream;
mod two;
mod two_way;
mod version_two;
