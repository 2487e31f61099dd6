//! Types that an application links: [`Engine`], [`Core`], [`Service`] and [`Call`], [`Client`] and
//! [`ReplyHandler`], and the errors.
//!
//! May use the reactor and protocol types; of the drivers it knows only which one to start, in
//! `engine.rs`. Nothing here is generic over a driver.

#[cfg(feature = "async")]
mod asynchronous;
mod at_most_once;
pub mod blocking;
mod blocking_threads;
mod call;
mod catch_panic;
mod client;
mod client_state;
mod codec;
mod connection_setup;
mod control_socket;
mod core;
mod core_balancing;
mod dialing;
mod dispatch;
mod engine;
mod errors;
mod group;
#[cfg(feature = "gss")]
pub mod gss;
mod handle;
mod helper_thread;
mod identity;
mod listening;
mod metrics;
mod observer;
mod owned_reply;
mod reconnect;
mod reply_status;
mod reverse;
mod rfc5666;
mod runtime;
mod select_driver;
mod served_programs;
mod service;
mod version_cache;

#[cfg(feature = "async")]
pub use asynchronous::{AsyncService, KeptArguments, Results, WithData, async_service};
pub use call::Call;
pub use client::{CallEnded, Client, Reply, ReplyHandler, Token};
pub use codec::{Data, Decoder, Encoder, ExposedData, Span};
pub use core::{Core, CoreContext, Work};
pub use engine::{Engine, Running};
pub use errors::{CallError, ConnectError, EngineError, Failure, HostError};
pub use handle::{Answer, AnswerQueue, ClientHandle, OnAnswer, PendingCall};
pub use helper_thread::spawn_helper;
pub use identity::Identity;
pub use listening::ListenOptions;
pub use reconnect::{ConnectOptions, Reconnect};
pub use reverse::ReverseOptions;
pub use select_driver::driver_of;
pub use served_programs::Directory;
pub use service::{ConnectionEvent, ConnectionId, Service};
