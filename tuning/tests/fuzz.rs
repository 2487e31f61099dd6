//! Replays the corpora of the fuzz targets of this library. See `engine/fuzz/README.md`.
#![allow(unreachable_pub, reason = "the bodies are the public part of another crate")]
#![allow(clippy::unwrap_used, reason = "all of this is tests")]

#[path = "../../engine/fuzz/bodies/profile.rs"]
mod profile;
#[path = "../../engine/fuzz/bodies/replay.rs"]
mod replay;

replay::replay_each! { profile }
