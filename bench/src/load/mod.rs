//! The benchmark program and both of its ends: the only part of spinperf that talks to the engine.

mod workload;

pub(crate) use workload::{CoreUse, Limits, Measurement, Operation, Workload};
