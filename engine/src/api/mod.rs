//! Types that an application links: [`Engine`], [`Core`], [`Service`] and [`Call`], [`Client`] and
//! [`ReplyHandler`], and the errors.
//!
//! May use the reactor and protocol types; of the drivers it knows only which one to start, in
//! `engine.rs`. Nothing here is generic over a driver.

mod arrived;
#[cfg(feature = "async")]
mod asynchronous;
pub mod blocking;
mod call;
mod client;
mod client_entry;
mod codec;
mod contained;
mod core;
mod dialing;
mod directory;
mod dispatch;
mod driver;
mod engine;
mod errors;
#[cfg(feature = "gss")]
pub mod gss;
mod handle;
mod helper;
mod identity;
mod listening;
mod metrics;
mod observer;
mod once;
mod opening;
mod reconnect;
mod reply_status;
mod reverse;
mod rfc5666;
mod runtime;
mod service;
mod spread;
mod versions;

#[cfg(feature = "async")]
pub use asynchronous::{
    AsyncService, CallStream, IncomingCall, KeptArguments, Results, WithData, async_service,
};
pub use call::{Call, Deferred};
pub use client::{CallEnded, Client, Reply, ReplyHandler, Token};
pub use codec::{Data, Decoder, Encoder, ExposedData, Span};
pub use core::{Core, CoreContext, Work};
pub use directory::Directory;
pub use driver::driver_of;
pub use engine::{Engine, Running};
pub use errors::{CallError, ConnectError, EngineError, Failure, HostError};
pub use handle::{Answer, AnswerQueue, ClientHandle, OnAnswer, PendingCall};
pub use helper::spawn_helper;
pub use identity::Identity;
pub use listening::ListenOptions;
pub use reconnect::{ConnectOptions, Reconnect};
pub use reverse::ReverseOptions;
pub use service::{ConnectionEvent, ConnectionId, Service};
