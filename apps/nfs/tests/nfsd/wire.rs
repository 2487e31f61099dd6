//! Encoded arguments of every procedure can be decoded; undecodable bytes do not make the decoder
//! panic.

use crate::reference::to_bytes;
use proptest::prelude::*;
use spinrpc::Decoder;
use spinrpc_nfs::nfs3::PROCEDURES;
use spinrpc_nfs::protocol::ProcedureId;
use spinrpc_nfs::server::procedures::Arguments;

#[path = "../../../../engine/fuzz/bodies/nfs.rs"]
#[allow(unreachable_pub, reason = "the body is the public part of another crate")]
mod body;
#[path = "../../../../engine/fuzz/bodies/replay.rs"]
mod replay;

/// The corpus of the fuzz target `nfs`.
#[test]
fn the_corpus_of_the_fuzz_target() {
    replay::replay("nfs", body::run);
}

proptest! {
    #[test]
    fn words_at_random_are_read_as_they_are_written_or_not_at_all(
        choice in any::<u8>(),
        words in prop::collection::vec(prop_oneof![0..5_u32, Just(u32::MAX), any::<u32>()], 0..40),
    ) {
        let bytes = words.iter().flat_map(|word| word.to_be_bytes());
        body::run(&std::iter::once(choice).chain(bytes).collect::<Vec<u8>>());
    }

    #[test]
    fn names_handles_and_words_are_read_as_they_are_written(
        procedure in 0..PROCEDURES as u32,
        handle in prop::collection::vec(any::<u8>(), 0..=64),
        name in prop::collection::vec(any::<u8>(), 0..=1024),
        tail in prop::collection::vec(0..3_u32, 0..12),
    ) {
        let written = to_bytes(|to| {
            to.opaque(&handle);
            to.opaque(&name);
            tail.iter().for_each(|word| to.u32(*word));
        });
        let operation = ProcedureId::new(procedure).unwrap();
        let read = Arguments::decode(operation, &mut Decoder::plain(&written));
        if let Ok(Some(arguments)) = read {
            prop_assert_eq!(arguments.handle().data.bytes(), &handle[..]);
        }
        body::run(&[&[procedure as u8], &written[..]].concat());
    }
}
