//! Replays the corpora of the fuzz targets of the engine, and sees to it that no target is left out
//! of `cargo test`. See `engine/fuzz/README.md`.
#![allow(unreachable_pub, reason = "the bodies are the public part of another crate")]
#![allow(clippy::unwrap_used, reason = "all of this is tests")]

#[path = "../fuzz/bodies/iwarp.rs"]
mod iwarp;
#[path = "../fuzz/bodies/replay.rs"]
mod replay;
#[path = "../fuzz/bodies/ring.rs"]
mod ring;
#[path = "../fuzz/bodies/rpcbind.rs"]
mod rpcbind;
#[path = "../fuzz/bodies/script.rs"]
mod script;

use std::fs;

use proptest::collection::vec;
use proptest::prelude::*;

replay::replay_each! { iwarp, ring, rpcbind }

/// The files that replay corpora, seen from the directory of the targets.
const REPLAYS: &[&str] = &[
    "../proto/tests/fuzz.rs",
    "../gss/tests/fuzz.rs",
    "../src/fuzz.rs",
    "../tests/fuzz.rs",
    "../../apps/nfs/tests/nfsd/wire.rs",
    "../../tuning/tests/fuzz.rs",
    "../xdr/suite/tests/fuzz.rs",
];

#[test]
fn every_target_is_replayed() {
    let fuzz = replay::fuzz_directory();
    let replays: String =
        REPLAYS.iter().map(|file| fs::read_to_string(fuzz.join(file)).unwrap()).collect();
    let targets = replay::files(&fuzz.join("fuzz_targets"));
    assert!(!targets.is_empty());
    let lists = replays.split("replay_each! {").skip(1).map(|rest| rest.split('}').next().unwrap());
    let listed: Vec<&str> = lists.flat_map(|list| list.split(',').map(str::trim)).collect();
    for target in targets {
        let name = target.file_stem().unwrap().to_str().unwrap();
        let by_hand = replays.contains(&format!("replay(\"{name}\", "));
        assert!(by_hand || listed.contains(&name), "{name} is not replayed");
    }
}

proptest! {
    /// The properties that the fuzzer of iWARP checks, for a few scripts each time: of small bytes, which decide something,
    /// and of any bytes.
    #[test]
    fn iwarp_holds_for_any_script(
        small in vec(0..12_u8, 0..300), any in vec(any::<u8>(), 0..300),
    ) {
        iwarp::run(&small);
        iwarp::run(&any);
        iwarp::run(&[small, any].concat());
    }
}
