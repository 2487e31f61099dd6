//! The padding of an RDMA_MSGP in an XDR stream (RFC 5666 section 3.9): read, written, and stated in
//! the transport header.
//!
//! The cursors of [`crate::xdr`] come here for data with padding before them, and for data that are
//! not there in full.

use crate::rdma::v1::MSGP_FIELDS_BYTES;
use crate::rdma::{MessageType, START_BYTES};
use crate::rfc5666::alignment::Alignment;
use crate::xdr::{DecodeError, Reader, Writer, roundup4};

/// The padding of a stream that is being written (RFC 5666 section 3.9).
#[derive(Debug)]
pub struct Padding {
    alignment: Alignment,
    /// Position of the first byte of the stream in the Send.
    start: usize,
    pub(crate) skipped: usize,
    is_padded: bool,
    /// Places of counted data that would have padding, if those are noted and none is written.
    noted: Option<Counted>,
}

/// Places in a stream of the counted data that padding would go before: bytes from its start to the count
/// of each.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    at: [u32; COUNTED_MAX],
    count: usize,
}

/// Counted data of one stream whose places can be noted. A stream with more is never padded when it is
/// written again; padding is optional (RFC 5666 section 3.9).
pub const COUNTED_MAX: usize = 16;

impl Counted {
    /// No places.
    pub const NONE: Self = Self { at: [0; COUNTED_MAX], count: 0 };

    /// The places, in rising order; `None` when there were too many.
    #[must_use]
    pub fn places(&self) -> Option<&[u32]> {
        self.at.get(..self.count)
    }

    fn note(&mut self, at: usize) {
        if let Some(place) = self.at.get_mut(self.count) {
            *place = at as u32;
        }
        self.count = self.count.saturating_add(1);
    }
}

impl Padding {
    /// For a stream whose first byte stands `start` bytes behind that of an RDMA_MSGP.
    pub const fn new(alignment: Alignment, start: usize) -> Self {
        Self { alignment, start, skipped: 0, is_padded: false, noted: None }
    }

    /// Writes no padding, and notes where this alignment would have some.
    pub fn noting(alignment: Alignment) -> Self {
        Self { noted: Some(Counted::NONE), ..Self::new(alignment, 0) }
    }

    /// The places that were noted.
    pub fn noted(&self) -> Counted {
        self.noted.unwrap_or(Counted::NONE)
    }

    /// The padding of data.
    pub const fn alignment(&self) -> Alignment {
        self.alignment
    }

    pub(crate) const fn gap(&self, at: usize, length: usize) -> usize {
        match self.noted {
            None => self.alignment.gap(self.start.saturating_add(at), length),
            Some(_) => 0,
        }
    }
}

impl<'a> Reader<'a> {
    /// A reader at the first of `bytes`, which stands `start` bytes behind the first of an
    /// RDMA_MSGP: it passes over the padding before counted data (RFC 5666 section 3.9).
    #[inline]
    pub const fn aligned(bytes: &'a [u8], alignment: Alignment, start: usize) -> Self {
        Self { rest: bytes, total: bytes.len(), alignment, start, skipped: 0 }
    }

    /// True if there may be padding before data, as in an RDMA_MSGP.
    pub(crate) fn may_have_gaps(&self) -> bool {
        self.alignment != Alignment::NONE
    }

    /// Padding of the data, and the distance in bytes of the next item from the start of the Send: a
    /// reader of the bytes from here on is made with both ([`Self::aligned`]).
    #[inline]
    pub const fn alignment(&self) -> (Alignment, usize) {
        (self.alignment, self.start.saturating_add(self.position()))
    }

    /// Opaque data with padding before them, or not there in full.
    #[cold]
    #[inline(never)]
    pub(crate) fn opaque_behind_gap(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let mut ahead = self.clone();
        ahead.skip(4)?;
        if self.alignment.applies_to(length) {
            ahead.skip_gap(length)?;
        }
        let data = ahead.fixed(length)?;
        *self = ahead;
        Ok(data)
    }

    /// Padding before data of this length, if their count word was just read.
    fn gap(&self, length: usize) -> usize {
        self.alignment.gap(self.start.saturating_add(self.position()), length)
    }

    #[cold]
    fn skip_gap(&mut self, length: usize) -> Result<(), DecodeError> {
        let gap = self.gap(length);
        self.skip(gap)?;
        self.skipped += gap;
        Ok(())
    }
}

impl<'a> Writer<'a> {
    /// A writer that puts padding before counted data.
    #[inline]
    pub const fn aligned(buffer: &'a mut [u8], padding: &'a mut Padding) -> Self {
        Self { buffer, len: 0, more: &mut [], padding: Some(padding) }
    }

    /// The padding of counted data.
    pub fn alignment(&self) -> Alignment {
        self.padding.as_ref().map_or(Alignment::NONE, |padding| padding.alignment())
    }

    /// Counted data have no padding from here on.
    pub fn stop_padding(&mut self) {
        if let Some(padding) = &mut self.padding {
            padding.alignment = Alignment::NONE;
        }
    }

    /// Some data had padding before them, possibly of zero bytes: the message is an RDMA_MSGP.
    #[must_use]
    #[inline]
    pub fn is_padded(&self) -> bool {
        self.padding.as_ref().is_some_and(|padding| padding.is_padded)
    }

    /// Opaque data that have no place here, or padding before them.
    #[cold]
    #[inline(never)]
    pub(crate) fn put_opaque_elsewhere(&mut self, data: &[u8]) {
        match u32::try_from(data.len()) {
            Ok(length) => {
                self.u32(length);
                if self.padding.is_some() {
                    self.pad(data.len());
                }
                self.fixed(data);
            }
            Err(_) => self.len = usize::MAX,
        }
    }

    /// Zeros up to where data of this length may begin.
    #[cold]
    fn pad(&mut self, length: usize) {
        let Some(padding) = &mut self.padding else { return };
        if let Some(noted) = &mut padding.noted {
            if padding.alignment.applies_to(length) {
                noted.note(self.len - 4);
            }
            return;
        }
        padding.is_padded |= padding.alignment.applies_to(length);
        let gap = padding.gap(self.len, length);
        // Never more than the length, which may have reached its end.
        padding.skipped = padding.skipped.saturating_add(gap).min(self.len.saturating_add(gap));
        if let Some(zeros) = self.place(gap) {
            zeros.fill(0);
        }
        self.len = self.len.saturating_add(gap);
    }
}

/// Makes an RDMA_MSGP of the RDMA_MSG whose header begins `at` bytes into `buffer`; returns where it
/// begins now: [`MSGP_FIELDS_BYTES`] before, for alignment and threshold stand "prior to the Read
/// and Write chunk lists" (RFC 5666 section 4.1).
///
/// Never panics. A `buffer` without room before the header, or without the header, stays as it is.
pub fn insert_alignment(buffer: &mut [u8], at: usize, alignment: Alignment) -> usize {
    let Some(before) = at.checked_sub(MSGP_FIELDS_BYTES) else { return at };
    let Some(start) = buffer.get_mut(before..at + START_BYTES) else { return at };
    start.copy_within(MSGP_FIELDS_BYTES.., 0);
    let words = [MessageType::Msgp.to_wire(), alignment.align_bytes(), alignment.threshold_bytes()];
    for (place, word) in start[START_BYTES - 4..].chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_be_bytes());
    }
    before
}

/// Takes the padding out of a stream of nothing but counted data, which begins `start` bytes behind the first of an
/// RDMA_MSGP; returns its length without. `None` if it is anything else.
///
/// What RPCSEC_GSS signs and seals is the XDR stream, to which padding does not belong: "This security mechanism will
/// be unaffected by the RDMA transport" (RFC 5666 section 11).
#[must_use]
pub fn strip_padding(stream: &mut [u8], alignment: Alignment, start: usize) -> Option<usize> {
    let (mut from, mut to) = (0, 0);
    while from < stream.len() {
        let count = *stream.get(from..)?.first_chunk::<4>()?;
        let length = u32::from_be_bytes(count) as usize;
        let data_at =
            (from + 4).checked_add(alignment.gap(start.checked_add(from + 4)?, length))?;
        let end = data_at.checked_add(roundup4(length))?;
        stream.get(data_at..end)?;
        stream[to..to + 4].copy_from_slice(&count);
        stream.copy_within(data_at..end, to + 4);
        (from, to) = (end, to + 4 + (end - data_at));
    }
    Some(to)
}

/// Alignment and threshold of a message whose header has been checked; [`Alignment::NONE`] unless
/// it is an RDMA_MSGP.
pub fn alignment_of(message: &[u8]) -> Alignment {
    let mut reader = Reader::new(message);
    let is_padded = reader.skip(START_BYTES - 4).and_then(|()| reader.u32());
    match (is_padded, reader.u32(), reader.u32()) {
        (Ok(kind), Ok(align), Ok(thresh)) if kind == MessageType::Msgp.to_wire() => {
            Alignment::new(align, thresh)
        }
        _ => Alignment::NONE,
    }
}
