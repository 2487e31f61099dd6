//! Bytes that tell which call and which item they belong to.

/// The key of item `index` of call `token`.
pub(crate) fn key(token: u64, index: usize) -> u64 {
    token.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (index as u64) << 56 | 1
}

/// Writes the bytes of `key`.
pub(crate) fn fill(key: u64, bytes: &mut [u8]) {
    for (chunk, word) in bytes.chunks_mut(8).zip(words(key)) {
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}

/// The bytes of `key`.
pub(crate) fn bytes(key: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fill(key, &mut bytes);
    bytes
}

/// Whether these are the bytes of `key`.
pub(crate) fn is(key: u64, bytes: &[u8]) -> bool {
    let mut chunks = bytes.chunks(8).zip(words(key));
    chunks.all(|(chunk, word)| *chunk == word.to_le_bytes()[..chunk.len()])
}

/// A number that looks like chance.
pub(crate) fn mix(key: u64) -> u64 {
    let mixed = (key ^ key >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
    mixed ^ mixed >> 27
}

fn words(key: u64) -> impl Iterator<Item = u64> {
    let step = |word: &u64| {
        Some(word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f))
    };
    std::iter::successors(Some(key), step)
}
