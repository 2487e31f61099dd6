//! HMAC (RFC 2104) with the hashes of Kerberos, truncated as the encryption type says.

use sha1::{Digest, Sha1};
use sha2::{Sha256, Sha384};
use std::hint::black_box;
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::enctype::{Enctype, Purpose, SessionKey};
use crate::short_hash::Compression;

/// Longest truncated HMAC: that of encryption type 20.
pub(crate) const TAG_MAX_BYTES: usize = 24;

/// The header of a token, which its checksum covers behind the message.
pub(crate) const HEADER_BYTES: usize = 16;

/// The block of SHA-384, the longest of all.
const BLOCK_MAX_BYTES: usize = 128;

/// Longest message, padded, whose HMAC is computed in one piece: two blocks of SHA-384, and four of the others.
const SHORT_BYTES_MAX: usize = 2 * BLOCK_MAX_BYTES;

/// An HMAC key: both pads are hashed once, which saves two of the four compressions of a short
/// message.
pub(crate) struct HmacKey<D: Compression> {
    inner: D,
    outer: D,
    pads: Pads<D::State>,
}

/// The hashes of both pads, for short messages.
#[derive(Zeroize, ZeroizeOnDrop)]
struct Pads<S: Zeroize> {
    inner: S,
    outer: S,
}

impl<D: Compression> HmacKey<D> {
    pub(crate) fn new(key: &[u8]) -> Self {
        let mut pad = Zeroizing::new([0; BLOCK_MAX_BYTES]);
        let block = &mut pad[..D::block_size()];
        debug_assert!(key.len() <= block.len(), "no key of Kerberos is longer than a block");
        block.iter_mut().zip(key).for_each(|(byte, key)| *byte = *key);
        block.iter_mut().for_each(|byte| *byte ^= 0x36);
        let (inner, inner_state) = (D::new_with_prefix(&block), D::after(block));
        block.iter_mut().for_each(|byte| *byte ^= 0x36 ^ 0x5c);
        let pads = Pads { inner: inner_state, outer: D::after(block) };
        Self { inner, outer: D::new_with_prefix(&block), pads }
    }

    /// The HMAC of a short message and the header behind it: without the buffers and copies of a hash that takes a message bit
    /// by bit, which cost more than the hash itself. `None` if it is too long.
    fn short(&self, message: &[u8], header: &[u8; HEADER_BYTES]) -> Option<Tag> {
        let block_bytes = D::block_size();
        let length = message.len().checked_add(HEADER_BYTES)?;
        let padded = length.checked_add(1 + D::LENGTH_BYTES)?.next_multiple_of(block_bytes);
        let mut text = [0; SHORT_BYTES_MAX];
        let text = text.get_mut(..padded)?;
        let (place, rest) = text.split_at_mut(message.len());
        place.copy_from_slice(message);
        *rest.first_chunk_mut()? = *header;
        let inner = D::end(self.pads.inner, text, length);
        let mut text = [0; BLOCK_MAX_BYTES];
        let length = D::emit(&inner, &mut text);
        let outer = D::end(self.pads.outer, &mut text[..block_bytes], length);
        let mut tag = Tag([0; TAG_MAX_BYTES]);
        D::emit(&outer, &mut tag.0);
        Some(tag)
    }

    pub(crate) fn begin(&self) -> D {
        self.inner.clone()
    }

    /// The first bytes of the HMAC of what `inner` was fed.
    pub(crate) fn finish<const N: usize>(&self, inner: D) -> [u8; N] {
        let mut outer = self.outer.clone();
        outer.update(inner.finalize());
        // A whole key, where the HMAC derives one.
        let mut whole = outer.finalize();
        let mut first = [0; N];
        first.iter_mut().zip(&whole).for_each(|(byte, whole)| *byte = *whole);
        whole.as_mut_slice().zeroize();
        first
    }
}

/// The first bytes of an HMAC. Not comparable but in constant time.
pub(crate) struct Tag(pub(crate) [u8; TAG_MAX_BYTES]);

/// Cleared in whole words: that of a forged message would be what the forger lacks. `Zeroize` clears byte by byte, which
/// takes a tenth of the time of a short verifier.
impl Drop for Tag {
    fn drop(&mut self) {
        self.0 = [0; TAG_MAX_BYTES];
        black_box(&mut self.0);
    }
}

impl Tag {
    pub(crate) fn put(&self, checksum: &mut [u8]) {
        checksum.iter_mut().zip(&self.0).for_each(|(byte, tag)| *byte = *tag);
    }

    /// Compares with a received one, in a time that depends on its length only.
    pub(crate) fn matches(&self, received: &[u8]) -> bool {
        let Some(own) = self.0.get(..received.len()) else { return false };
        // Compared once, which costs a third of what comparing each byte for itself does.
        let differing = own.iter().zip(received).fold(0, |all, (own, other)| all | (own ^ other));
        differing.ct_eq(&0_u8).into()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrongChecksum;

#[expect(clippy::large_enum_variant, reason = "four for each end of a context, in one piece")]
pub(crate) enum MacKey {
    Sha1(HmacKey<Sha1>),
    Sha256(HmacKey<Sha256>),
    Sha384(HmacKey<Sha384>),
}

/// An HMAC in the making. Zeroed on drop: it is as good as the key.
pub(crate) enum MacState {
    Sha1(Sha1),
    Sha256(Sha256),
    Sha384(Sha384),
}

impl MacKey {
    pub(crate) fn derive(key: &SessionKey, usage: u32, purpose: Purpose) -> Self {
        let derived = key.derive(usage, purpose);
        let key_bytes = derived.as_slice();
        match key.enctype() {
            Enctype::Aes128Sha1 | Enctype::Aes256Sha1 => Self::Sha1(HmacKey::new(key_bytes)),
            Enctype::Aes128Sha256 => Self::Sha256(HmacKey::new(key_bytes)),
            Enctype::Aes256Sha384 => Self::Sha384(HmacKey::new(key_bytes)),
        }
    }

    pub(crate) fn begin(&self) -> MacState {
        match self {
            Self::Sha1(key) => MacState::Sha1(key.begin()),
            Self::Sha256(key) => MacState::Sha256(key.begin()),
            Self::Sha384(key) => MacState::Sha384(key.begin()),
        }
    }

    pub(crate) fn tag(&self, message: &[u8], header: &[u8; HEADER_BYTES]) -> Option<Tag> {
        let short = match self {
            Self::Sha1(key) => key.short(message, header),
            Self::Sha256(key) => key.short(message, header),
            Self::Sha384(key) => key.short(message, header),
        };
        short.or_else(|| {
            let mut state = self.begin();
            state.update(message);
            state.update(header);
            self.finish(state)
        })
    }

    pub(crate) fn put(&self, state: MacState, checksum: &mut [u8]) {
        if let Some(tag) = self.finish(state) {
            tag.put(checksum);
        }
    }

    pub(crate) fn check(&self, state: MacState, checksum: &[u8]) -> Result<(), WrongChecksum> {
        let tag = self.finish(state).ok_or(WrongChecksum)?;
        if tag.matches(checksum) { Ok(()) } else { Err(WrongChecksum) }
    }

    /// `None` for a state that another kind of key began.
    fn finish(&self, state: MacState) -> Option<Tag> {
        match (self, state) {
            (Self::Sha1(key), MacState::Sha1(inner)) => Some(Tag(key.finish(inner))),
            (Self::Sha256(key), MacState::Sha256(inner)) => Some(Tag(key.finish(inner))),
            (Self::Sha384(key), MacState::Sha384(inner)) => Some(Tag(key.finish(inner))),
            _ => None,
        }
    }
}

impl MacState {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha1(inner) => inner.update(bytes),
            Self::Sha256(inner) => inner.update(bytes),
            Self::Sha384(inner) => inner.update(bytes),
        }
    }
}

/// The hashes clear their state, which is as good as the key.
const fn _hashes_are_zeroed<T: ZeroizeOnDrop>() {}
const _: () = {
    _hashes_are_zeroed::<Sha1>();
    _hashes_are_zeroed::<Sha256>();
    _hashes_are_zeroed::<Sha384>();
};

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 2202 test case 2 and RFC 4231 test case 2: key "Jefe".
    #[test]
    fn hmacs_of_the_rfcs() {
        let data = b"what do ya want for nothing?";
        let cases: [(MacKey, &[u8]); 3] = [
            (MacKey::Sha1(HmacKey::new(b"Jefe")), &[0xef, 0xfc, 0xdf, 0x6a, 0xe5, 0xeb, 0x2f]),
            (MacKey::Sha256(HmacKey::new(b"Jefe")), &[0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60]),
            (MacKey::Sha384(HmacKey::new(b"Jefe")), &[0xaf, 0x45, 0xd2, 0xe3, 0x76, 0x48]),
        ];
        for (key, expected) in cases {
            let mut state = key.begin();
            data.chunks(5).for_each(|part| state.update(part));
            assert!(key.finish(state).unwrap().matches(expected));
        }
    }

    /// Whatever the length of the message.
    #[test]
    fn an_hmac_in_one_piece_is_that_of_the_message_given_bit_by_bit() {
        let message: Vec<u8> = (0..600_u32).map(|at| at as u8).collect();
        for enctype in Enctype::ALL {
            let key = SessionKey::new(enctype, &message[..enctype.key_bytes()]).unwrap();
            let key = MacKey::derive(&key, 23, Purpose::Checksum);
            for length in 0..message.len() {
                let message = &message[..length];
                let mut state = key.begin();
                state.update(message);
                let expected = key.finish(state).unwrap();
                let Some((message, header)) = message.split_last_chunk() else { continue };
                let tag = key.tag(message, header).unwrap();
                // An encryption type with a short checksum leaves the rest of the tag alone.
                let bytes = enctype.checksum_bytes();
                assert_eq!(tag.0[..bytes], expected.0[..bytes], "{enctype:?} {length}");
            }
        }
    }

    #[test]
    fn a_tag_matches_nothing_longer_and_nothing_else() {
        let tag = Tag([7; TAG_MAX_BYTES]);
        assert!(tag.matches(&[7; TAG_MAX_BYTES]));
        assert!(!tag.matches(&[7; TAG_MAX_BYTES + 1]));
        let mut other = [7; TAG_MAX_BYTES];
        other[TAG_MAX_BYTES - 1] = 6;
        assert!(!tag.matches(&other));
    }
}
