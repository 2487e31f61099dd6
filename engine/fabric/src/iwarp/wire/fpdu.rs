//! MPA framing (RFC 5044 section 4): length, ULPDU, pad, CRC. Markers are never used.

use super::Fault;
use std::ops::Range;

/// Bytes of the longest FPDU; a receive ring must hold one.
pub const FPDU_BYTES_MAX: usize = fpdu_bytes(u16::MAX as usize);

/// Bytes of the length field before the ULPDU.
pub(super) const LENGTH_BYTES: usize = 2;
pub(super) const CRC_BYTES: usize = 4;

/// Makes the FPDU a multiple of four bytes long (RFC 5044 section 4.1).
pub(super) const fn pad_bytes(ulpdu_bytes: usize) -> usize {
    (LENGTH_BYTES + ulpdu_bytes).wrapping_neg() & 3
}

pub(super) const fn fpdu_bytes(ulpdu_bytes: usize) -> usize {
    LENGTH_BYTES + ulpdu_bytes + pad_bytes(ulpdu_bytes) + CRC_BYTES
}

/// Progress of a parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<T> {
    /// Nothing can be said before this many bytes are readable, those that are readable already included.
    Need(usize),
    /// All of it was readable.
    Done(T),
}

/// Readable bytes of a receive ring, in order: `second` begins where the ring wraps.
#[derive(Clone, Copy, Debug, Default)]
pub struct Readable<'a> {
    /// Bytes up to the end of the ring.
    pub first: &'a [u8],
    /// Bytes from the start of the ring.
    pub second: &'a [u8],
}

impl<'a> Readable<'a> {
    /// These bytes.
    pub const fn new(first: &'a [u8], second: &'a [u8]) -> Self {
        Self { first, second }
    }

    /// Number of bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.first.len() + self.second.len()
    }

    /// True if there are none.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A part of the bytes, cut off where they end.
    #[inline]
    pub fn range(&self, range: Range<usize>) -> Self {
        let part = |of: &'a [u8], before| {
            let place = |at: usize| at.saturating_sub(before).min(of.len());
            of.get(place(range.start)..place(range.end)).unwrap_or_default()
        };
        Self { first: part(self.first, 0), second: part(self.second, self.first.len()) }
    }

    /// Copies as many bytes as both have, and returns their number.
    pub fn copy_to(&self, into: &mut [u8]) -> usize {
        let head = self.first.len().min(into.len());
        let tail = self.second.len().min(into.len() - head);
        into[..head].copy_from_slice(&self.first[..head]);
        into[head..head + tail].copy_from_slice(&self.second[..tail]);
        head + tail
    }

    /// The `N` bytes at `at`; `None` past the end.
    #[inline]
    pub(super) fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        if let Some(bytes) = self.first.get(at..).and_then(|bytes| bytes.first_chunk()) {
            return Some(*bytes);
        }
        let mut bytes = [0; N];
        let copied = self.range(at..at.checked_add(N)?).copy_to(&mut bytes);
        (copied == N).then_some(bytes)
    }
}

/// CRC32c over an FPDU, from its length field to its pad (RFC 5044 section 4.4).
#[derive(Clone, Copy, Debug, Default)]
pub struct Crc(u32);

impl Crc {
    /// Of no bytes.
    pub const fn new() -> Self {
        Self(0)
    }

    /// Adds bytes.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.0 = crc32c::crc32c_append(self.0, bytes);
    }

    /// The CRC field, as it is sent: bytes are in the order of iSCSI (RFC 3720 appendix B.4).
    pub const fn to_bytes(self) -> [u8; CRC_BYTES] {
        self.0.to_le_bytes()
    }
}

/// Pad and CRC field behind the payload.
#[derive(Clone, Copy, Debug)]
pub struct Trailer {
    bytes: [u8; 3 + CRC_BYTES],
    pad: usize,
}

impl Trailer {
    /// Of an FPDU with this pad; `crc` covers everything before the pad. `None` leaves the CRC field, which is
    /// there without CRCs too, zero (RFC 5044 section 4.4).
    pub fn new(pad: usize, crc: Option<Crc>) -> Self {
        let mut trailer = Self { bytes: [0; 3 + CRC_BYTES], pad: pad.min(3) };
        if let Some(mut crc) = crc {
            crc.update(&trailer.bytes[..trailer.pad]);
            trailer.bytes[trailer.pad..trailer.pad + CRC_BYTES].copy_from_slice(&crc.to_bytes());
        }
        trailer
    }

    /// The bytes to send.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.pad + CRC_BYTES]
    }
}

/// The ULPDU of the FPDU that readable bytes begin with. None is handed over before its CRC is verified.
pub(super) fn parse(readable: Readable<'_>, uses_crc: bool) -> Result<Parsed<Range<usize>>, Fault> {
    let Some(length) = readable.array(0) else {
        return Ok(Parsed::Need(LENGTH_BYTES));
    };
    let ulpdu_bytes = usize::from(u16::from_be_bytes(length));
    let bytes = fpdu_bytes(ulpdu_bytes);
    if readable.len() < bytes {
        return Ok(Parsed::Need(bytes));
    }
    if uses_crc {
        let covered = readable.range(0..bytes - CRC_BYTES);
        let mut crc = Crc::new();
        crc.update(covered.first);
        crc.update(covered.second);
        if readable.array(bytes - CRC_BYTES) != Some(crc.to_bytes()) {
            return Err(Fault::Crc);
        }
    }
    Ok(Parsed::Done(LENGTH_BYTES..LENGTH_BYTES + ulpdu_bytes))
}
