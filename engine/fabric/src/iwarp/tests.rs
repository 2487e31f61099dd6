//! Tests of the driver: the conformance suite, and peers that break the rules.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod conformance;
mod handshakes;
mod hostile;
mod raw_peer;
mod turns;
