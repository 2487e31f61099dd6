//! Chunk lists: walked once to check them, then iterated over as bytes that are known to be sound.
//!
//! The `check_*` functions bound every step by the received bytes and by [`Limits`]; the iterators
//! over what they passed cannot run past it, end too early or find a bad value. Only a header's
//! views build the iterators.

use super::segment::{ReadSegment, Segment};
use crate::limits::{Limits, READ_CHUNKS_MAX};
use crate::xdr::{DecodeError, Reader, Writer};

const LINK_BYTES: usize = 4;
const READ_ENTRY_BYTES: usize = LINK_BYTES + ReadSegment::WIRE_BYTES;

/// Bytes of the Read list entries of `segments` segments, without the link that ends the list.
#[inline]
pub(super) const fn read_entries_bytes(segments: usize) -> usize {
    segments * READ_ENTRY_BYTES
}

/// The Read list of a checked header: segments in the order received, which is not always that of
/// their positions.
#[derive(Clone, Debug)]
pub struct ReadList<'a> {
    entries: &'a [u8],
}

impl<'a> ReadList<'a> {
    /// `entries` are whole entries that [`check_reads`] has passed.
    #[inline]
    pub(super) const fn from_checked(entries: &'a [u8]) -> Self {
        Self { entries }
    }

    /// Segments not yet taken.
    #[inline]
    pub const fn len(&self) -> usize {
        self.entries.len() / READ_ENTRY_BYTES
    }

    /// True if no segment is left.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl Iterator for ReadList<'_> {
    type Item = ReadSegment;

    #[inline]
    fn next(&mut self) -> Option<ReadSegment> {
        let (entry, rest) = self.entries.split_first_chunk::<READ_ENTRY_BYTES>()?;
        let [_, _, _, _, p0, p1, p2, p3, target @ ..] = entry;
        self.entries = rest;
        Some(ReadSegment {
            position: u32::from_be_bytes([*p0, *p1, *p2, *p3]),
            target: Segment::from_wire(target),
        })
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.len(), Some(self.len()))
    }
}

impl ExactSizeIterator for ReadList<'_> {}

/// The Write list of a checked header: chunks in the order received.
#[derive(Clone, Debug)]
pub struct WriteList<'a> {
    rest: &'a [u8],
    chunks: u16,
}

impl<'a> WriteList<'a> {
    /// `rest` begins with `chunks` entries that [`check_writes`] has passed.
    #[inline]
    pub(super) const fn from_checked(rest: &'a [u8], chunks: u16) -> Self {
        Self { rest, chunks }
    }

    /// Chunks not yet taken.
    #[inline]
    pub const fn len(&self) -> usize {
        self.chunks as usize
    }

    /// True if no chunk is left.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.chunks == 0
    }
}

impl<'a> Iterator for WriteList<'a> {
    type Item = WriteChunk<'a>;

    #[inline]
    fn next(&mut self) -> Option<WriteChunk<'a>> {
        self.chunks = self.chunks.checked_sub(1)?;
        let (head, rest) = self.rest.split_first_chunk::<{ LINK_BYTES + 4 }>()?;
        let [_, _, _, _, count @ ..] = head;
        let segments = u32::from_be_bytes(*count) as usize;
        let (segments, rest) = rest.split_at_checked(segments * Segment::WIRE_BYTES)?;
        self.rest = rest;
        Some(WriteChunk::from_checked(segments))
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.len(), Some(self.len()))
    }
}

impl ExactSizeIterator for WriteList<'_> {}

/// Memory of the requester for one result, or for a whole Reply: segments to be filled in order.
///
/// A chunk of no segments is "empty": the requester wants that result inline (RFC 8166 section
/// 4.3.2).
#[derive(Clone, Copy, Debug)]
pub struct WriteChunk<'a> {
    segments: &'a [u8],
}

impl<'a> WriteChunk<'a> {
    /// `segments` are whole segments that [`check_chunk`] has passed.
    #[inline]
    pub(super) const fn from_checked(segments: &'a [u8]) -> Self {
        Self { segments }
    }

    /// The segments, in order.
    #[inline]
    pub const fn segments(&self) -> Segments<'a> {
        Segments { rest: self.segments }
    }

    /// Number of segments.
    #[inline]
    pub const fn segment_count(&self) -> usize {
        self.segments.len() / Segment::WIRE_BYTES
    }

    /// Bytes of all segments together.
    #[inline]
    pub fn total_length(&self) -> u64 {
        self.segments().map(|segment| u64::from(segment.length)).sum()
    }

    /// The segments as they are once `length` bytes are placed in them: filled in order without
    /// gaps, unused ones at length zero (RFC 5666 section 3.6, RFC 8166 section 4.3.2).
    ///
    /// Segments that a reply of this length fills. A responder's Writes and the lengths in its
    /// reply both come from here. Bytes beyond [`Self::total_length`] have no place and do not
    /// appear.
    #[inline]
    pub fn filled(&self, length: u32) -> impl ExactSizeIterator<Item = Segment> + Clone + use<'a> {
        let mut left = length;
        self.segments().map(move |segment| {
            let placed = left.min(segment.length);
            left -= placed;
            Segment { length: placed, ..segment }
        })
    }
}

/// Iterator over the segments of one chunk.
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    rest: &'a [u8],
}

impl Iterator for Segments<'_> {
    type Item = Segment;

    #[inline]
    fn next(&mut self) -> Option<Segment> {
        let (segment, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(Segment::from_wire(segment))
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.rest.len() / Segment::WIRE_BYTES;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Segments<'_> {}

/// Walks a Read list, up to and including the link that ends it; returns how many segments it has.
pub(super) fn check_reads(reader: &mut Reader<'_>, limits: &Limits) -> Result<u16, DecodeError> {
    let mut tally = ReadTally::default();
    while reader.bool()? {
        tally.add(&ReadSegment::parse(reader)?, limits)?;
    }
    Ok(tally.total.segments)
}

/// Walks a Write list, up to and including the link that ends it; returns how many chunks it has.
pub(super) fn check_writes(reader: &mut Reader<'_>, limits: &Limits) -> Result<u16, DecodeError> {
    let (mut chunks, mut total) = (0, Total::default());
    while reader.bool()? {
        count_one(&mut chunks, limits.write_chunks_max, "chunks in the Write list")?;
        check_chunk(reader, limits, &mut total)?;
    }
    Ok(chunks)
}

pub(super) fn check_reply(reader: &mut Reader<'_>, limits: &Limits) -> Result<(), DecodeError> {
    if reader.bool()? {
        check_chunk(reader, limits, &mut Total::default())?;
    }
    Ok(())
}

#[derive(Default)]
struct Total {
    segments: u16,
    bytes: u64,
}

impl Total {
    fn add(&mut self, length: u32, limits: &Limits) -> Result<(), DecodeError> {
        count_one(&mut self.segments, limits.segments_max, "segments in one chunk list")?;
        count_bytes(&mut self.bytes, length, limits)
    }
}

fn check_chunk(
    reader: &mut Reader<'_>,
    limits: &Limits,
    total: &mut Total,
) -> Result<(), DecodeError> {
    for _ in 0..reader.u32()? {
        total.add(Segment::parse(reader)?.length, limits)?;
    }
    Ok(())
}

#[derive(Default)]
struct ReadTally {
    /// Chunks in the order of their first segments.
    chunks: [Option<ReadChunkTally>; READ_CHUNKS_MAX],
    total: Total,
}

#[derive(Clone, Copy)]
struct ReadChunkTally {
    /// Position of its last segment.
    position: u32,
    /// Position behind it, where a chunk can be that belongs to the same item.
    end: u64,
}

impl ReadTally {
    fn add(&mut self, segment: &ReadSegment, limits: &Limits) -> Result<(), DecodeError> {
        let ReadSegment { position, target: Segment { length, .. } } = *segment;
        self.total.add(length, limits)?;
        let mut chunks = self.chunks.iter_mut().take(usize::from(limits.read_chunks_max));
        let chunk = chunks
            .find(|chunk| chunk.is_none_or(|chunk| chunk.goes_on_at(position)))
            .ok_or(DecodeError::LimitExceeded { what: "chunks in the Read list" })?;
        let start = chunk.map_or(u64::from(position), |chunk| chunk.end);
        *chunk = Some(ReadChunkTally { position, end: start + u64::from(length) });
        Ok(())
    }
}

impl ReadChunkTally {
    fn goes_on_at(self, position: u32) -> bool {
        self.position == position || self.end == u64::from(position)
    }
}

fn count_one(count: &mut u16, max: u16, what: &'static str) -> Result<(), DecodeError> {
    if *count >= max {
        return Err(DecodeError::LimitExceeded { what });
    }
    *count += 1;
    Ok(())
}

/// The sum has 64 bits, so that no number of 32-bit lengths can wrap it.
fn count_bytes(total: &mut u64, length: u32, limits: &Limits) -> Result<(), DecodeError> {
    *total += u64::from(length);
    if *total > u64::from(limits.payload_bytes_max) {
        return Err(DecodeError::LimitExceeded { what: "bytes in one chunk list" });
    }
    Ok(())
}

pub(super) fn write_reads(writer: &mut Writer<'_>, segments: &[ReadSegment]) {
    for segment in segments {
        writer.bool(true);
        segment.write(writer);
    }
    writer.bool(false);
}

/// Writes an entry of a Write list or a Reply chunk, with the link word before it.
#[inline]
pub(super) fn write_chunk(
    writer: &mut Writer<'_>,
    segments: impl ExactSizeIterator<Item = Segment>,
) {
    writer.bool(true);
    // A chunk has at most SEGMENTS_MAX segments in any header that a receiver accepts.
    writer.u32(u32::try_from(segments.len()).unwrap_or(u32::MAX));
    for segment in segments {
        segment.write(writer);
    }
}
