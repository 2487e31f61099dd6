//! Futures at both ends of a call: handlers that are futures, and calls that come as a stream.
//!
//! [`service`] runs handlers on the core, in [`slots`] made at the start; [`ready`] says which of them a waker has
//! named, and wakes the core. [`stream`] hands calls to another thread, in memory of [`incoming`]. Nothing here depends
//! on a runtime: all is `core::future`. Used by applications and the engine; knows the dispatch only as
//! [`Service`](super::Service).

mod owned_call;
mod ready;
mod service;
mod slots;
pub(super) mod stream;

pub use owned_call::{IncomingCall, KeptArguments};
pub use service::{AsyncService, Results, WithData, async_service};
pub use stream::CallStream;
