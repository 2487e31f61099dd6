//! Replays the corpora of the fuzz targets of descriptions and generated types. See `engine/fuzz/README.md`.
#![allow(unreachable_pub, reason = "the bodies are the public part of another crate")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of this is tests")]

#[path = "../../../fuzz/bodies/replay.rs"]
mod replay;
#[path = "../../../fuzz/bodies/xdr.rs"]
mod xdr;
#[path = "../../../fuzz/bodies/xdrgen.rs"]
mod xdrgen;

replay::replay_each! { xdr, xdrgen }
