//! Handlers that are futures.
//!
//! [`service`] runs handlers on the core, in [`slots`] made at the start; [`ready`] says which of them a waker has
//! named, and wakes the core. [`kept_arguments`] are what a handler reads later. Nothing here depends on a runtime: all is
//! `core::future`. Used by applications and the engine; knows the dispatch only as [`Service`](super::Service).

mod kept_arguments;
mod ready;
mod service;
mod slots;

pub use kept_arguments::KeptArguments;
pub use service::{AsyncService, Results, WithData, async_service};
