//! ONC RPC over RDMA for programs that cannot wait.
//!
#![doc = include_str!("guide.md")]
#![forbid(unsafe_code)]
// Output may block its thread: events go by `sys::journal`.
#![warn(clippy::print_stdout, clippy::print_stderr)]
// Data flows one way: wire -> proto -> reactor -> api, and back. Each module's head states its
// purpose, the modules it may use, and its callers; `tests/architecture.rs` checks the edges. Items
// that are hidden from the documentation are for the crates of this workspace and for tests: they
// do not belong to the public API, and may change in any version.

pub mod api;
pub mod config;
pub mod control;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod guide;
mod reactor;
pub mod rpcbind;

#[cfg(feature = "gss")]
pub use api::gss;
pub use api::{
    Answer, AnswerQueue, Call, CallEnded, CallError, Client, ClientHandle, ConnectError,
    ConnectOptions, ConnectionEvent, ConnectionId, Core, CoreContext, Data, Decoder, Directory,
    Encoder, Engine, EngineError, ExposedData, Failure, HostError, ListenOptions, OnAnswer,
    PendingCall, Reconnect, Reply, ReplyHandler, ReverseOptions, Running, Service, Token, Work,
    blocking, driver_of, spawn_helper,
};
#[cfg(feature = "async")]
pub use api::{AsyncService, KeptArguments, Results, WithData, async_service};
pub use api::{Identity, Span};
pub use config::{Config, ConfigError, IdlePolicy, RawConfig};
#[doc(inline)]
pub use fabric::capture::CaptureCounters;
/// ```
/// use spinrpc::{CaptureCounters, CaptureSink, Config, Engine};
///
/// # let dir = std::env::temp_dir().join(format!("doc-capture-{}", std::process::id()));
/// # std::fs::create_dir_all(&dir)?;
/// # let path = dir.join("rpc.pcapng");
/// let sink = CaptureSink::create(&path)?.snap_bytes(4096);
/// let counters: CaptureCounters = sink.counters();
/// let engine = Engine::with_capture(Config::default(), sink)?;
/// // ... serve, connect, call; drop the cores ...
/// drop(engine);
/// assert_eq!((counters.dropped(), counters.failure()), (0, None));
/// # assert!(std::fs::metadata(&path)?.len() > 0);
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use fabric::capture::CaptureSink;
#[doc(inline)]
pub use fabric::{DownCause, Peer};
#[doc(inline)]
pub use mem::{Bulk, ExposedBulk, SharedBulk, Slab, SlabLayout};
pub use reactor::{
    Backpressure, CallId, CallSpec, Deferred, Negotiated, NoReverse, Progress, ReplyData, Resend,
    StatsSnapshot,
};
#[doc(inline)]
pub use spinrpc_fabric as fabric;
#[doc(hidden)]
pub use spinrpc_fabric::{mem, sync, sys};
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
