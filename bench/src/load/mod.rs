//! The benchmark program and both of its ends: the only part of spinperf that uses the engine.

mod callers;
mod control;
mod driver;
mod fleet;
mod hdr_encoding;
mod measurement;
mod open_loop;
mod outcome;
mod program;
mod rendezvous;
mod reverse_load;
mod schedule;
mod server;
mod session;
mod slot;
mod status;
mod workload;

pub(crate) use control::refusal_of_size;
pub(crate) use fleet::{Fleet, Party, with_fleet};
pub(crate) use measurement::{Arrivals, CoreUse, CutShort, Measurement, OpenLoop, nanoseconds};
pub(crate) use outcome::Measured;
pub(crate) use schedule::shuffle;
pub(crate) use server::{register, serve};
pub(crate) use session::{Beside, Callee};
pub(crate) use workload::{
    Ends, IN_FLIGHT_MAX, Limits, Mix, Mode, Operation, Rate, Share, Workload, describe_paths,
};
