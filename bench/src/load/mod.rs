//! The benchmark program and both of its ends: the only part of spinperf that talks to the engine.
//!
//! `workload` says what is measured, `program` how it travels; `server` answers; `driver` is the
//! client's closed loop, `session` one client core, `fleet` several.

mod driver;
mod fleet;
mod program;
mod server;
mod session;
mod workload;

pub(crate) use fleet::run as run_on_all_cores;
pub(crate) use server::serve;
pub(crate) use session::Session;
pub(crate) use workload::{CoreUse, Limits, Measurement, Operation, Workload};
