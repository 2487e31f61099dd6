//! ONC RPC over RDMA for programs that cannot wait.
//!
#![doc = include_str!("guide.md")]
// Data flows one way: wire -> proto -> reactor -> api, and back. Each module's head states its
// purpose, the modules it may use, and its callers; `tests/architecture.rs` checks the edges. Items
// that are hidden from the documentation are for the crates of this workspace and for tests: they
// do not belong to the public API, and may change in any version.

pub mod api;
pub mod config;
pub mod control;
pub mod fabric;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod guide;
#[doc(hidden)]
pub mod mem;
mod reactor;
pub mod rpcbind;
#[doc(hidden)]
pub mod sync;
#[doc(hidden)]
pub mod sys;

#[cfg(feature = "gss")]
pub use api::gss;
pub use api::{
    Answer, AnswerQueue, Call, CallEnded, CallError, Client, ClientHandle, ConnectError,
    ConnectOptions, ConnectionEvent, ConnectionId, Core, CoreContext, Data, Decoder, Deferred,
    Directory, Encoder, Engine, EngineError, ExposedData, Failure, HostError, ListenOptions,
    OnAnswer, PendingCall, Reconnect, Reply, ReplyHandler, ReverseOptions, Running, Service, Token,
    Work, blocking, driver_of, spawn_helper,
};
#[cfg(feature = "async")]
pub use api::{AsyncService, CallStream, IncomingCall, Results, WithData, async_service};
pub use api::{Identity, Span, options};
pub use config::{Config, ConfigError, IdlePolicy, RawConfig};
pub use fabric::capture::{CaptureCounters, CaptureSink};
pub use fabric::{DownCause, Peer};
pub use mem::{Bulk, ExposedBulk, SharedBulk, Slab};
pub use reactor::{
    Backpressure, CallId, CallSpec, HandlerKind, HandlerPanic, Negotiated, NoReverse, Progress,
    ReplyData, Resend, StatsSnapshot,
};
pub use spinrpc_proto::ids::{Procedure, Program, Version, Xid};
pub use spinrpc_proto::rpc::{
    AcceptStatus, AuthFlavor, AuthStat, AuthSys, GROUPS_MAX, Groups, GssService, OpaqueAuth,
    RejectStatus,
};
pub use spinrpc_proto::version::TransportVersion;
pub use spinrpc_proto::xdr::DecodeError;

/// The code in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
