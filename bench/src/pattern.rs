//! Data that proves its origin: every byte depends on a seed and on its own position. A reply of an earlier call, a page
//! that was never copied, and bytes shifted by one or truncated all differ from the expected data.

use spinrpc_xdr::Xdr;

#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Xdr,
    clap::ValueEnum,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verify {
    /// Only lengths are checked.
    #[default]
    Off,
    /// One byte of every cache line is checked, at both ends.
    Touch,
    /// Every byte is checked, at both ends.
    Full,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {index} of {length} is wrong (pattern of call {seed})")]
pub(crate) struct Mismatch {
    /// Index within the payload; equal to `length` if the payload ended early.
    pub(crate) index: u64,
    pub(crate) length: u64,
    /// Seed of the pattern: the number of the call.
    pub(crate) seed: u64,
}

/// Fills `bytes` with the pattern of `seed`, beginning at `position`, a multiple of 8.
pub(crate) fn fill(bytes: &mut [u8], seed: u64, position: u64) {
    for (index, chunk) in (position / WORD_BYTES..).zip(bytes.chunks_mut(WORD_BYTES as usize)) {
        chunk.copy_from_slice(&word(seed, index)[..chunk.len()]);
    }
}

/// Compares `bytes` with `length` bytes of the pattern of `seed` from `position`, a multiple of 8.
pub(crate) fn check(
    bytes: &[u8],
    length: usize,
    seed: u64,
    position: u64,
    verify: Verify,
) -> Result<(), Mismatch> {
    let wrong = if bytes.len() == length {
        first_wrong(bytes, seed, position, verify)
    } else {
        Some(bytes.len().min(length))
    };
    match wrong {
        None => Ok(()),
        Some(index) => Err(Mismatch { index: index as u64, length: length as u64, seed }),
    }
}

fn first_wrong(bytes: &[u8], seed: u64, position: u64, verify: Verify) -> Option<usize> {
    let step_words = match verify {
        Verify::Off => return None,
        Verify::Touch => CACHE_LINE_BYTES / WORD_BYTES as usize,
        Verify::Full => 1,
    };
    bytes.chunks(WORD_BYTES as usize).enumerate().step_by(step_words).find_map(|(index, chunk)| {
        let found = if verify == Verify::Touch { &chunk[..1] } else { chunk };
        let expected = word(seed, position / WORD_BYTES + index as u64);
        if *found == expected[..found.len()] {
            return None;
        }
        let wrong = found.iter().zip(expected).position(|(&byte, right)| byte != right)?;
        Some(index * WORD_BYTES as usize + wrong)
    })
}

/// Eight bytes of the pattern: a mix in which each bit of seed and index reaches every byte.
fn word(seed: u64, index: u64) -> [u8; WORD_BYTES as usize] {
    let mut mixed = seed.wrapping_mul(0xd134_2543_de82_ef95) ^ index;
    mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).to_le_bytes()
}

const WORD_BYTES: u64 = 8;
const CACHE_LINE_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(length: usize, position: u64) -> Vec<u8> {
        let mut bytes = vec![0; length];
        fill(&mut bytes, 3, position);
        bytes
    }

    #[test]
    fn what_was_filled_checks() {
        for length in [0, 1, 7, 8, 63, 64, 65, 4096] {
            for verify in [Verify::Off, Verify::Touch, Verify::Full] {
                let checked = check(&sample(length, 128), length, 3, 128, verify);
                assert_eq!(checked, Ok(()), "{length} {verify:?}");
            }
        }
    }

    /// A touch looks at the start of each cache line only.
    #[test]
    fn a_flipped_byte_is_found_and_told() {
        for at in 0..200 {
            let mut bytes = sample(200, 0);
            bytes[at] ^= 0x10;
            let mismatch = Mismatch { index: at as u64, length: 200, seed: 3 };
            assert_eq!(check(&bytes, 200, 3, 0, Verify::Full), Err(mismatch));
            let touched = check(&bytes, 200, 3, 0, Verify::Touch);
            assert_eq!(touched, if at % 64 == 0 { Err(mismatch) } else { Ok(()) });
        }
    }

    #[test]
    fn another_length_call_or_place_is_a_mismatch() {
        let bytes = sample(64, 64);
        let wrong = |length, seed, position, verify| {
            check(&bytes, length, seed, position, verify).unwrap_err().index
        };
        assert_eq!(wrong(65, 3, 64, Verify::Off), 64, "even unverified");
        assert_eq!(wrong(10, 3, 64, Verify::Off), 10);
        wrong(64, 4, 64, Verify::Touch);
        wrong(64, 3, 128, Verify::Touch);
    }
}
