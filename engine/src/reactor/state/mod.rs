//! Layer 3: the state of a connection and of a core, also for observers. Knows what is in flight.

pub(crate) mod conn_lane;
pub(crate) mod conn_table;
pub(crate) mod connection;
pub(crate) mod core;
pub(crate) mod core_lane;
mod observe;
pub(crate) mod rfc5666;
pub(crate) mod serve_table;
