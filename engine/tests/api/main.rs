//! The public API of the engine, with whole engines: over shared memory, or over what `SPINRPC_TEST_DEVICE` names. Tests that
//! count what a process has, or end one, are programs of their own beside this one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod async_service;
mod calls;
#[path = "../common/mod.rs"]
mod common;
mod config_protocol;
mod copies;
mod ddp;
mod deferred;
mod drain;
mod drivers;
mod fairness;
mod groups;
#[cfg(feature = "gss-test")]
mod gss;
mod handles;
mod hostile_client;
mod hostile_reads;
mod hostile_reverse;
mod hostile_server;
mod kept_arguments;
mod lane_time;
mod msgp;
mod poll;
mod portmapper;
mod reads;
mod reconnect;
mod reply_cache;
mod restart;
mod reverse;
mod rpcbind_client;
#[cfg(not(sanitized))]
mod runtime_core;
mod slabs;
mod time;
mod versions;
