//! Replays the corpora of the fuzz targets of tokens and bodies, and tries them with scripts of any
//! bytes. See `engine/fuzz/README.md`.
#![allow(unreachable_pub, reason = "the bodies are the public part of another crate")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "all of this is tests")]

#[path = "../../fuzz/bodies/gss_body.rs"]
mod gss_body;
#[path = "../../fuzz/bodies/replay.rs"]
mod replay;
#[path = "../../fuzz/bodies/script.rs"]
mod script;
#[path = "../../fuzz/bodies/token_open.rs"]
mod token_open;

use proptest::collection::vec;
use proptest::prelude::*;

replay::replay_each! { gss_body, token_open }

proptest! {
    #[test]
    fn bodies_hold_for_any_script(start in vec(0_u8..4, 5), rest in vec(any::<u8>(), 0..100)) {
        gss_body::run(&[start, rest].concat());
    }

    #[test]
    fn tokens_hold_for_any_script(start in vec(0_u8..4, 5), rest in vec(any::<u8>(), 0..100)) {
        token_open::run(&[start, rest].concat());
    }
}
