//! Hashes by their compression functions, for messages short enough to be padded on the stack.

use sha1::Sha1;
use sha1::digest::Digest;
use sha1::digest::block_api::BlockSizeUser;
use sha2::{Sha256, Sha384};
use zeroize::Zeroize;

/// A hash of Kerberos with its compression function (RFC 3174, RFC 6234).
pub(crate) trait Compression: Digest + BlockSizeUser + Clone {
    type State: Copy + Zeroize;
    /// Bytes of the length at the end of a padded message.
    const LENGTH_BYTES: usize;

    /// The state after a first block.
    fn after(block: &[u8]) -> Self::State;

    fn compress(state: &mut Self::State, blocks: &[u8]);

    /// Writes the digest, as far as there is room; returns its length.
    fn emit(state: &Self::State, to: &mut [u8]) -> usize;

    /// Pads a message of `length` bytes which follows one block, in zeros up to whole blocks; returns the state after it.
    fn end(mut state: Self::State, text: &mut [u8], length: usize) -> Self::State {
        let bits = 8 * (Self::block_size() + length) as u64;
        text[length] = 0x80;
        if let Some(place) = text.last_chunk_mut() {
            *place = bits.to_be_bytes();
        }
        Self::compress(&mut state, text);
        state
    }
}

macro_rules! compression {
    ($hash:ty, $word:ty, $words:literal of $digest:literal, $compress:path, $initial:expr) => {
        impl Compression for $hash {
            type State = [$word; $words];
            const LENGTH_BYTES: usize = 2 * size_of::<$word>();

            fn after(block: &[u8]) -> Self::State {
                let mut state = $initial;
                Self::compress(&mut state, block);
                state
            }

            fn compress(state: &mut Self::State, blocks: &[u8]) {
                $compress(state, blocks.as_chunks().0);
            }

            fn emit(state: &Self::State, to: &mut [u8]) -> usize {
                let places = to.as_chunks_mut().0.iter_mut();
                let words = state[..$digest].iter();
                places.zip(words).for_each(|(place, word)| *place = word.to_be_bytes());
                $digest * size_of::<$word>()
            }
        }
    };
}

compression!(
    Sha1,
    u32,
    5 of 5,
    sha1::block_api::compress,
    [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0]
);
compression!(
    Sha256,
    u32,
    8 of 8,
    sha2::block_api::compress256,
    [
        0x6a09_e667,
        0xbb67_ae85,
        0x3c6e_f372,
        0xa54f_f53a,
        0x510e_527f,
        0x9b05_688c,
        0x1f83_d9ab,
        0x5be0_cd19,
    ]
);
compression!(
    Sha384,
    u64,
    8 of 6,
    sha2::block_api::compress512,
    [
        0xcbbb_9d5d_c105_9ed8,
        0x629a_292a_367c_d507,
        0x9159_015a_3070_dd17,
        0x152f_ecd8_f70e_5939,
        0x6733_2667_ffc0_0b31,
        0x8eb4_4a87_6858_1511,
        0xdb0c_2e0d_64f9_8fa7,
        0x47b5_481d_befa_4fa4,
    ]
);
