//! The benchmark program and both of its ends: the only part of spinperf that talks to the engine.
//!
//! `workload` says what is measured, `program` how it travels; `callee` whom it is asked of; `server` answers; `driver` is the
//! client's closed loop, `session` one client core, `fleet` several; `both` drives both directions of
//! a connection, with `back` at the server.

mod back;
mod both;
mod callee;
mod driver;
mod fleet;
mod measurement;
mod program;
mod server;
mod session;
mod workload;

pub(crate) use both::run_both;
pub(crate) use callee::Callee;
pub(crate) use fleet::run as run_on_all_cores;
#[expect(unused_imports, reason = "reports and modes come to use them")]
pub(crate) use measurement::{Arrivals, Interval, OpenLoop, Samples};
pub(crate) use measurement::{CoreUse, Measurement};
pub(crate) use server::{register, serve};
pub(crate) use session::Session;
#[expect(unused_imports, reason = "reports and modes come to use them")]
pub(crate) use workload::{Limits, Mix, Mode, Operation, Rate, Share, Workload};
