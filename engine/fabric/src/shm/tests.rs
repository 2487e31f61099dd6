//! Tests of the driver as a whole: what every driver must do, peers in other processes and their
//! death, and peers that are out to do harm.

pub(crate) mod conformance;
mod fetches;
mod hostile;
mod listeners;
mod processes;
