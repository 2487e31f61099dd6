//! Encryption types and the keys derived from a session key, one for each use (RFC 3961 section
//! 5.1, RFC 8009 section 3).

use sha2::{Sha256, Sha384};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::cipher::{BLOCK_BYTES, Chain, EncryptKey};
use crate::mac::{HmacKey, TAG_MAX_BYTES};
use crate::short_hash::Compression;

/// Longest key of an encryption type.
pub const KEY_MAX_BYTES: usize = 32;

/// Encryption types of Kerberos that can protect messages here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Enctype {
    /// aes128-cts-hmac-sha1-96, 17 (RFC 3962).
    Aes128Sha1,
    /// aes256-cts-hmac-sha1-96, 18 (RFC 3962).
    Aes256Sha1,
    /// aes128-cts-hmac-sha256-128, 19 (RFC 8009).
    Aes128Sha256,
    /// aes256-cts-hmac-sha384-192, 20 (RFC 8009).
    Aes256Sha384,
}

impl Enctype {
    /// All of them, by number.
    pub const ALL: [Self; 4] =
        [Self::Aes128Sha1, Self::Aes256Sha1, Self::Aes128Sha256, Self::Aes256Sha384];

    /// The encryption type with this number. `None` for those that are not offered: older ones are
    /// broken, and Camellia has no user.
    #[must_use]
    pub const fn from_number(number: i32) -> Option<Self> {
        match number {
            17 => Some(Self::Aes128Sha1),
            18 => Some(Self::Aes256Sha1),
            19 => Some(Self::Aes128Sha256),
            20 => Some(Self::Aes256Sha384),
            _ => None,
        }
    }

    /// The number in Kerberos' registry.
    pub const fn number(self) -> i32 {
        match self {
            Self::Aes128Sha1 => 17,
            Self::Aes256Sha1 => 18,
            Self::Aes128Sha256 => 19,
            Self::Aes256Sha384 => 20,
        }
    }

    /// Length of a session key.
    pub const fn key_bytes(self) -> usize {
        match self {
            Self::Aes128Sha1 | Self::Aes128Sha256 => 16,
            Self::Aes256Sha1 | Self::Aes256Sha384 => 32,
        }
    }

    /// Length of a checksum.
    pub const fn checksum_bytes(self) -> usize {
        match self {
            Self::Aes128Sha1 | Self::Aes256Sha1 => 12,
            Self::Aes128Sha256 => 16,
            Self::Aes256Sha384 => TAG_MAX_BYTES,
        }
    }

    /// The checksum of an encrypted message covers the ciphertext (RFC 8009), not the plain text
    /// (RFC 3962).
    pub(crate) const fn signs_ciphertext(self) -> bool {
        matches!(self, Self::Aes128Sha256 | Self::Aes256Sha384)
    }
}

/// The key of a context, from which all others are derived.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct SessionKey {
    #[zeroize(skip)]
    enctype: Enctype,
    bytes: [u8; KEY_MAX_BYTES],
}

/// A session key of another length than its encryption type has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "key of encryption type {} has {length} bytes, not {}",
    .enctype.number(),
    .enctype.key_bytes()
)]
pub struct WrongKeyLength {
    /// The encryption type.
    pub enctype: Enctype,
    /// Length given.
    pub length: usize,
}

impl SessionKey {
    /// The key `bytes` of an encryption type. The caller clears its own copy.
    ///
    /// # Errors
    /// [`WrongKeyLength`].
    pub fn new(enctype: Enctype, bytes: &[u8]) -> Result<Self, WrongKeyLength> {
        let length = bytes.len();
        if length != enctype.key_bytes() {
            return Err(WrongKeyLength { enctype, length });
        }
        let mut key = Self { enctype, bytes: [0; KEY_MAX_BYTES] };
        key.bytes[..length].copy_from_slice(bytes);
        Ok(key)
    }

    /// The encryption type.
    pub const fn enctype(&self) -> Enctype {
        self.enctype
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.enctype.key_bytes()]
    }

    pub(crate) fn derive(&self, usage: u32, purpose: Purpose) -> DerivedKey {
        let [a, b, c, d] = usage.to_be_bytes();
        let constant = [a, b, c, d, purpose as u8];
        let length = purpose.key_bytes(self.enctype);
        let bytes = match self.enctype {
            Enctype::Aes128Sha1 | Enctype::Aes256Sha1 => {
                derive_by_cipher(&EncryptKey::new(self.enctype, &self.bytes), &constant)
            }
            Enctype::Aes128Sha256 => derive_by_hmac::<Sha256>(self.as_slice(), &constant, length),
            Enctype::Aes256Sha384 => derive_by_hmac::<Sha384>(self.as_slice(), &constant, length),
        };
        DerivedKey { bytes, length }
    }
}

shown!(SessionKey: enctype);

/// Purpose of a derived key, by the last byte of its constant.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(crate) enum Purpose {
    /// Kc: checksums of plain text.
    Checksum = 0x99,
    /// Ke: encryption.
    Encryption = 0xaa,
    /// Ki: checksums of encrypted messages.
    Integrity = 0x55,
}

impl Purpose {
    /// RFC 8009 section 3: keys for checksums are as long as the checksum. With RFC 3962 all keys are
    /// as long as the session key.
    const fn key_bytes(self, enctype: Enctype) -> usize {
        match (self, enctype) {
            (Self::Checksum | Self::Integrity, Enctype::Aes256Sha384) => enctype.checksum_bytes(),
            _ => enctype.key_bytes(),
        }
    }
}

#[derive(Zeroize, ZeroizeOnDrop)]
pub(crate) struct DerivedKey {
    bytes: [u8; KEY_MAX_BYTES],
    length: usize,
}

impl DerivedKey {
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    pub(crate) const fn bytes(&self) -> &[u8; KEY_MAX_BYTES] {
        &self.bytes
    }
}

/// DK of RFC 3961 section 5.1 with the cipher of RFC 3962: the folded constant, encrypted again and
/// again.
pub(crate) fn derive_by_cipher(base: &EncryptKey, constant: &[u8]) -> [u8; KEY_MAX_BYTES] {
    let mut block = fold(constant);
    let mut key = [0; KEY_MAX_BYTES];
    for part in key.as_chunks_mut::<BLOCK_BYTES>().0 {
        base.encrypt_block(&mut block);
        *part = block;
    }
    block.zeroize();
    key
}

/// KDF-HMAC-SHA2 of RFC 8009 section 3; one round is enough for every key.
fn derive_by_hmac<D: Compression>(base: &[u8], label: &[u8], length: usize) -> [u8; KEY_MAX_BYTES] {
    let key = HmacKey::<D>::new(base);
    let mut hash = key.begin();
    hash.update(1_u32.to_be_bytes());
    hash.update(label);
    hash.update([0]);
    hash.update((length as u32 * 8).to_be_bytes());
    key.finish(hash)
}

/// n-fold of RFC 3961 section 5.1, to the length of a block: copies of the input, each rotated by 13
/// bits more than the one before, added up in ones' complement.
pub(crate) fn fold(input: &[u8]) -> Chain {
    debug_assert!(
        !input.is_empty() && input.len() <= BLOCK_BYTES,
        "constants of Kerberos are short"
    );
    let copies = least_common_multiple(input.len(), BLOCK_BYTES);
    let mut sum = [0; BLOCK_BYTES];
    let mut carry = 0;
    for at in (0..copies).rev() {
        let place = &mut sum[at % BLOCK_BYTES];
        carry += u32::from(*place) + u32::from(rotated_byte(input, at));
        *place = carry as u8;
        carry >>= 8;
    }
    // What overflowed at the front goes in at the back.
    while carry != 0 {
        for place in sum.iter_mut().rev() {
            carry += u32::from(*place);
            *place = carry as u8;
            carry >>= 8;
        }
    }
    sum
}

/// Byte `at` of the copies of the input.
fn rotated_byte(input: &[u8], at: usize) -> u8 {
    let bits = input.len() * 8;
    // The first bit of this byte, before the copy was rotated to the right.
    let first = (at % input.len() * 8 + bits * 13 - 13 * (at / input.len()) % bits) % bits;
    (0..8).fold(0, |byte, bit| {
        let from = (first + bit) % bits;
        byte << 1 | (input[from / 8] >> (7 - from % 8) & 1)
    })
}

const fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}
