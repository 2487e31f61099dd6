//! Messages as words, for peers that send messages the engine would not send (RFC 5666 section 4).

pub(crate) const MSG: u32 = 0;
pub(crate) const NOMSG: u32 = 1;
pub(crate) const MSGP: u32 = 2;
pub(crate) const DONE: u32 = 3;
pub(crate) const ERROR: u32 = 4;

pub(crate) fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// The words of a message; extra bytes at its end are not seen.
pub(crate) fn words_of(message: &[u8]) -> Vec<u32> {
    message.chunks_exact(4).map(|w| u32::from_be_bytes([w[0], w[1], w[2], w[3]])).collect()
}

pub(crate) fn word(message: &[u8], index: usize) -> u32 {
    let bytes = message.get(index * 4..index * 4 + 4);
    bytes.and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u32::from_be_bytes(*bytes))
}
