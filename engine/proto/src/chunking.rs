//! The pure choice of how an RPC message travels: inline, with chunks, or as a long message
//! (RFC 5666 sections 3.4 to 3.6 and 5, RFC 8166 section 3.5), and the XDR stream with data items
//! taken out of it ("reduced").
//!
//! Used by the api to encode and decode, by the reactor to choose. No state outlives a message.

use crate::limits::{CALL_SEGMENTS_MAX, ITEMS_MAX};
use crate::rdma::{ReadSegment, Segment};
use crate::version::TransportVersion;
use crate::xdr::{DecodeError, Padding, Reader, Writer, padding, roundup4};

const READ_ENTRY_BYTES: usize = 4 + ReadSegment::WIRE_BYTES;
const CHUNK_FRAME_BYTES: usize = 8;

/// Our own memory behind a chunk: one key, split into segments of at most `segment_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ChunkOffer {
    /// Key of the exposure.
    pub handle: u32,
    /// Bytes of the whole chunk.
    pub length: u32,
    /// Offset of its first byte.
    pub offset: u64,
    /// Longest segment; zero means one segment.
    pub segment_bytes: u32,
}

impl ChunkOffer {
    const NONE: Self = Self { handle: 0, length: 0, offset: 0, segment_bytes: 0 };

    /// Number of segments: at least one.
    pub fn segment_count(&self) -> usize {
        if self.segment_bytes == 0 || self.length == 0 {
            return 1;
        }
        self.length.div_ceil(self.segment_bytes) as usize
    }

    /// The segments in order.
    pub fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
        let step = if self.segment_bytes == 0 { self.length } else { self.segment_bytes };
        (0..self.segment_count() as u32).map(move |k| {
            let start = k * step;
            Segment {
                handle: self.handle,
                length: step.min(self.length - start),
                offset: self.offset + u64::from(start),
            }
        })
    }
}

/// The chunks of one call as its requester offers them.
#[derive(Clone, Copy, Debug)]
pub struct CallChunks {
    /// Read chunks by rising position. For a long call the first has position zero.
    reads: [(u32, ChunkOffer); ITEMS_MAX + 1],
    read_count: u8,
    pub(crate) results: ResultChunks,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ResultChunks {
    writes: [ChunkOffer; ITEMS_MAX],
    write_count: u8,
    pub(crate) reply: Option<ChunkOffer>,
}

impl ResultChunks {
    pub(crate) const NONE: Self =
        Self { writes: [ChunkOffer::NONE; ITEMS_MAX], write_count: 0, reply: None };

    pub(crate) fn writes(&self) -> &[ChunkOffer] {
        &self.writes[..usize::from(self.write_count)]
    }
}

impl CallChunks {
    /// A call without chunks.
    pub const EMPTY: Self = Self {
        reads: [(0, ChunkOffer::NONE); ITEMS_MAX + 1],
        read_count: 0,
        results: ResultChunks::NONE,
    };

    /// Adds a Read chunk at `position` of the unreduced stream; positions come in rising order.
    /// `false`, and nothing is added, when there are too many chunks or segments.
    #[must_use]
    pub fn push_read(&mut self, position: u32, offer: ChunkOffer) -> bool {
        let has_room = self.has_room(&offer);
        let place = self.reads.get_mut(usize::from(self.read_count)).filter(|_| has_room);
        let Some(place) = place else { return false };
        *place = (position, offer);
        self.read_count += 1;
        true
    }

    /// Adds a Write chunk; `false`, and nothing is added, when there are too many chunks or
    /// segments.
    #[must_use]
    pub fn push_write(&mut self, offer: ChunkOffer) -> bool {
        let has_room = self.has_room(&offer);
        let ResultChunks { writes, write_count, .. } = &mut self.results;
        let place = writes.get_mut(usize::from(*write_count)).filter(|_| has_room);
        let Some(place) = place else { return false };
        *place = offer;
        *write_count += 1;
        true
    }

    /// Offers a Reply chunk, after all other chunks; `false`, and nothing is offered, when there
    /// are too many segments.
    #[must_use]
    pub fn set_reply(&mut self, offer: ChunkOffer) -> bool {
        let has_room = self.results.reply.is_none() && self.has_room(&offer);
        if has_room {
            self.results.reply = Some(offer);
        }
        has_room
    }

    fn has_room(&self, offer: &ChunkOffer) -> bool {
        self.segment_count() + offer.segment_count() <= CALL_SEGMENTS_MAX
    }

    /// The Read chunks with their positions.
    pub fn reads(&self) -> &[(u32, ChunkOffer)] {
        &self.reads[..usize::from(self.read_count)]
    }

    /// The Write chunks.
    pub fn writes(&self) -> &[ChunkOffer] {
        self.results.writes()
    }

    /// The Reply chunk.
    pub fn reply(&self) -> Option<&ChunkOffer> {
        self.results.reply.as_ref()
    }

    /// No list has an entry.
    #[inline]
    pub fn is_empty(&self) -> bool {
        let ResultChunks { write_count, reply, .. } = &self.results;
        self.read_count == 0 && *write_count == 0 && reply.is_none()
    }

    /// True if the whole RPC message travels in the Position-Zero Read chunk.
    pub fn is_long_call(&self) -> bool {
        self.reads().first().is_some_and(|(position, _)| *position == 0)
    }

    /// Segments in all lists together: at most [`CALL_SEGMENTS_MAX`].
    pub fn segment_count(&self) -> usize {
        let offers = self.reads().iter().map(|(_, offer)| offer).chain(self.writes());
        offers.chain(self.reply()).map(ChunkOffer::segment_count).sum()
    }

    /// Bytes of the version-one transport header that carries these lists.
    pub fn header_bytes(&self) -> usize {
        self.header_bytes_in(TransportVersion::One)
    }

    /// Bytes of the transport header of that version that carries these lists.
    pub fn header_bytes_in(&self, version: TransportVersion) -> usize {
        let reads: usize = self.reads().iter().map(|(_, c)| c.segment_count()).sum();
        let writes: usize = self.writes().iter().map(write_chunk_bytes).sum();
        let reply = self.reply().map_or(0, |c| write_chunk_bytes(c) - 4);
        version.chunkless_header_bytes() + reads * READ_ENTRY_BYTES + writes + reply
    }

    /// The Read list, segment by segment, into `out`; returns how many there are.
    pub fn read_segments(&self, out: &mut [ReadSegment; CALL_SEGMENTS_MAX]) -> usize {
        let all = self.reads().iter().flat_map(|(position, offer)| {
            offer.segments().map(|target| ReadSegment { position: *position, target })
        });
        all.zip(out.iter_mut()).map(|(segment, place)| *place = segment).count()
    }
}

fn write_chunk_bytes(offer: &ChunkOffer) -> usize {
    CHUNK_FRAME_BYTES + Segment::WIRE_BYTES * offer.segment_count()
}

/// Destination of a data item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Into the stream.
    Inline,
    /// Out of the stream, into a chunk.
    Chunk,
    /// Into the stream while there is room, else into a chunk.
    InlineIfRoom,
    /// Out of the stream, into a chunk of this many bytes. The writer is not given them, because they
    /// lie where a peer can write.
    Unseen(u32),
}

/// A DDP-eligible data item that an application gives in addition to its stream.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// The bytes, without roundup.
    pub bytes: &'a [u8],
    /// Allowed destinations.
    pub placement: Placement,
}

/// A data item that was taken out of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Reduced {
    /// Index of the item.
    pub index: u8,
    /// Offset in the stream as it would be with all items in it (RFC 8166 section 3.4.5).
    pub position: u32,
    /// Bytes, without roundup.
    pub length: u32,
}

/// Result of encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Bytes of the stream, reduced items not counted; may exceed the buffer (see `fits`).
    pub stream_bytes: usize,
    /// The buffer was long enough.
    pub fits: bool,
    /// Number of items that the stream has used.
    pub items_used: u8,
    /// The stream asked for more items than were given: a mistake of the application.
    pub items_missing: bool,
    /// The stream has padding, possibly of zero bytes: it goes in an RDMA_MSGP.
    pub padded: bool,
    /// Bytes of the XDR stream with all items in it and without padding.
    pub unreduced_bytes: usize,
    reduced: [Reduced; ITEMS_MAX],
    reduced_count: u8,
}

impl Encoded {
    /// A stream of `stream_bytes` bytes without items.
    pub const fn without_items(stream_bytes: usize) -> Self {
        Self {
            stream_bytes,
            fits: true,
            items_used: 0,
            items_missing: false,
            padded: false,
            unreduced_bytes: stream_bytes,
            reduced: [Reduced { index: 0, position: 0, length: 0 }; ITEMS_MAX],
            reduced_count: 0,
        }
    }

    /// The reduced items in stream order.
    pub fn reduced(&self) -> &[Reduced] {
        &self.reduced[..usize::from(self.reduced_count)]
    }
}

/// Writes an XDR stream and takes data items out of it.
#[derive(Debug)]
pub struct StreamWriter<'a> {
    xdr: Writer<'a>,
    room_bytes: usize,
    items: &'a [Item<'a>],
    next_item: usize,
    removed_bytes: usize,
    items_missing: bool,
    /// Nothing as long as there are none, as in most streams.
    reduced: Option<[Reduced; ITEMS_MAX]>,
    reduced_count: u8,
}

/// Declares functions of [`StreamWriter`] that write XDR other than data items.
macro_rules! write_xdr {
    ($($(#[$doc:meta])* $name:ident($value:ident: $type:ty);)+) => {
        impl StreamWriter<'_> {
            $(
                $(#[$doc])*
                #[inline]
                pub fn $name(&mut self, $value: $type) {
                    self.xdr.$name($value);
                }
            )+
        }
    };
}

write_xdr! {
    /// Writes an unsigned integer.
    u32(value: u32);
    /// Writes an integer.
    i32(value: i32);
    /// Writes an unsigned hyper integer.
    u64(value: u64);
    /// Writes a hyper integer.
    i64(value: i64);
    /// Writes a boolean.
    bool(value: bool);
    /// Writes `opaque[n]`: the bytes and their roundup, without a count.
    fixed(bytes: &[u8]);
    /// Writes `opaque<>`: count, bytes, roundup. The bytes are copied into the stream; for large
    /// ones give a registered buffer in addition to the stream and use [`StreamWriter::bulk`].
    opaque(bytes: &[u8]);
    /// Writes a `string<>`.
    string(text: &str);
}

impl<'a> StreamWriter<'a> {
    /// Writes into `buf`, with at most [`ITEMS_MAX`] items (more are not seen, and missed when the
    /// stream asks for them).
    #[inline]
    pub fn new(buf: &'a mut [u8], items: &'a [Item<'a>]) -> Self {
        Self::over(buf.len(), Writer::new(buf), items)
    }

    /// As [`StreamWriter::new`], without items. A stream that does not fit `buf` is written to `more`, all of
    /// it, if that is longer.
    #[inline]
    pub fn with_more(buf: &'a mut [u8], more: &'a mut [u8]) -> Self {
        Self::over(buf.len(), Writer::with_more(buf, more), &[])
    }

    /// As [`StreamWriter::new`] for the stream of an RDMA_MSGP, with padding before counted data
    /// (RFC 5666 section 3.9).
    #[inline]
    pub fn aligned(buf: &'a mut [u8], items: &'a [Item<'a>], padding: &'a mut Padding) -> Self {
        Self::over(buf.len(), Writer::aligned(buf, padding), items)
    }

    #[inline]
    fn over(room_bytes: usize, xdr: Writer<'a>, items: &'a [Item<'a>]) -> Self {
        Self {
            room_bytes,
            xdr,
            items,
            next_item: 0,
            removed_bytes: 0,
            items_missing: false,
            reduced: None,
            reduced_count: 0,
        }
    }

    /// The XDR writer.
    #[inline]
    pub fn xdr(&mut self) -> &mut Writer<'a> {
        &mut self.xdr
    }

    /// Writes the next data item as `opaque<>`: its count word stays in the stream, the bytes go
    /// where its placement says. Roundup of a reduced item is neither in the chunk nor in the
    /// stream (RFC 8166 sections 3.4.5.2 and 3.4.6.2).
    pub fn bulk(&mut self) {
        let Some(item) = self.items.iter().take(ITEMS_MAX).nth(self.next_item) else {
            self.items_missing = true;
            return self.xdr.u32(0);
        };
        let index = self.next_item as u8;
        self.next_item += 1;
        if self.stays_inline(item) {
            return self.xdr.opaque(item.bytes);
        }
        let length = match item.placement {
            Placement::Unseen(length) => length,
            _ => item.bytes.len() as u32,
        };
        self.xdr.u32(length);
        self.reduce(index, length as usize);
    }

    fn stays_inline(&self, item: &Item<'_>) -> bool {
        match item.placement {
            Placement::Inline => true,
            Placement::Chunk => item.bytes.is_empty(),
            Placement::Unseen(length) => length == 0,
            Placement::InlineIfRoom => {
                self.xdr.len() + self.xdr.opaque_bytes(item.bytes.len()) <= self.room_bytes
            }
        }
    }

    fn reduce(&mut self, index: u8, length: usize) {
        let position = (self.xdr.stream_len() + self.removed_bytes) as u32;
        self.removed_bytes += roundup4(length);
        let reduced = self.reduced.get_or_insert_default();
        reduced[usize::from(self.reduced_count)] =
            Reduced { index, position, length: length as u32 };
        self.reduced_count += 1;
    }

    /// Bytes of the stream, if it fits the first buffer and asked for no data item: all that is to be known
    /// of most.
    #[inline]
    pub fn itemless_bytes(&self) -> Option<usize> {
        let has_no_item =
            self.xdr.len() <= self.room_bytes && self.next_item == 0 && !self.items_missing;
        has_no_item.then_some(self.xdr.len())
    }

    /// Returns the result of encoding.
    #[inline]
    pub fn finish(self) -> Encoded {
        Encoded {
            stream_bytes: self.xdr.len(),
            fits: self.xdr.len() <= self.xdr.capacity(),
            items_used: self.next_item as u8,
            items_missing: self.items_missing,
            padded: self.xdr.is_padded(),
            unreduced_bytes: self.xdr.stream_len() + self.removed_bytes,
            reduced: self.reduced.unwrap_or_default(),
            reduced_count: self.reduced_count,
        }
    }
}

/// A data item found while reading a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found<'a> {
    /// Its bytes stand in the stream.
    Inline(&'a [u8]),
    /// Its bytes came in a Read chunk of the call or were placed in a Write chunk of the reply, in
    /// number `index` of its kind; `length` of them belong to the item.
    Chunk {
        /// Index of the chunk, in order.
        index: usize,
        /// Bytes of the item.
        length: usize,
    },
    /// Its bytes came in a Read chunk of the reply (RFC 5666 section 3.5).
    Pulled {
        /// Index of the Read chunk, in order.
        index: usize,
        /// Bytes of the item.
        length: usize,
    },
}

/// Data that came outside the stream of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside<'a> {
    /// A call's Read chunks: position and length of each, by rising position.
    Reads(&'a [(u32, u32)]),
    /// A reply's Write chunks: bytes placed in each.
    Writes(&'a [u32]),
    /// A reply's Write chunks, and its Read chunks as those of a call.
    Both {
        /// Position and length of each Read chunk, by rising position.
        reads: &'a [(u32, u32)],
        /// Bytes placed in each Write chunk.
        writes: &'a [u32],
    },
}

/// Reads an XDR stream whose data items may have been taken out.
#[derive(Clone, Debug)]
pub struct StreamReader<'a> {
    xdr: Reader<'a>,
    /// Read chunks not met yet, and how many were.
    reads: &'a [(u32, u32)],
    reads_met: usize,
    /// Write chunks of items not met yet, and how many were.
    writes: &'a [u32],
    writes_met: usize,
    is_reply: bool,
    removed_bytes: usize,
    /// Position of the stream's first byte in the unreduced RPC message.
    base: usize,
}

impl<'a> StreamReader<'a> {
    /// Reads `stream`, which starts at byte `base` of the RPC message.
    #[inline]
    pub fn new(stream: &'a [u8], base: usize, beside: Beside<'a>) -> Self {
        Self::over(Reader::new(stream), base, beside)
    }

    /// Reads the data of `xdr`, which began at byte `base` of the RPC message.
    #[inline]
    pub fn over(xdr: Reader<'a>, base: usize, beside: Beside<'a>) -> Self {
        let (reads, writes): (&[_], &[_]) = match beside {
            Beside::Reads(reads) => (reads, &[]),
            Beside::Writes(writes) => (&[], writes),
            Beside::Both { reads, writes } => (reads, writes),
        };
        let is_reply = !matches!(beside, Beside::Reads(_));
        Self { xdr, reads, reads_met: 0, writes, writes_met: 0, is_reply, removed_bytes: 0, base }
    }

    /// The XDR reader. Data items in it are found by [`StreamReader::item`].
    #[inline]
    pub fn xdr(&mut self) -> &mut Reader<'a> {
        &mut self.xdr
    }

    /// A Read chunk is left, so the next bytes may be in it.
    #[inline]
    pub fn has_reads(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Passes over the bytes up to `end`, a later state of [`StreamReader::xdr`], and returns them.
    ///
    /// # Errors
    /// [`DecodeError::LimitExceeded`] if a Read chunk belongs there, so that not all bytes up to `end`
    /// are in the stream; nothing is passed then.
    pub fn pass_to(&mut self, end: &Reader<'a>) -> Result<&'a [u8], DecodeError> {
        let position = self.base + end.stream_position() + self.removed_bytes;
        match self.reads.first() {
            Some((at, _)) if (*at as usize) < position => Err(CHUNK_IN_SPAN),
            _ => self.xdr.pass_to(end),
        }
    }

    /// Reads one `opaque<max>` wherever its bytes are. A failed read leaves the reader as it was.
    ///
    /// "Any byte count in the XDR stream MUST match the sum of the byte counts present in the
    /// corresponding read or write chunk list" (RFC 5666 section 3.4); a chunk may or may not
    /// include the roundup (section 3.7), so both lengths are accepted.
    ///
    /// # Errors
    /// [`DecodeError::ChunkMismatch`] for a chunk of another length, or as [`Reader::opaque`].
    pub fn item(&mut self, max_bytes: usize) -> Result<Found<'a>, DecodeError> {
        match self.writes.split_first() {
            // An entry with bytes is not that of an item without: RFC 8166 leaves it to the next one.
            Some((1.., _)) if self.xdr.clone().u32() == Ok(0) => self.opaque(max_bytes),
            Some((placed, rest)) => {
                // Nothing placed means that the item stands in the stream (RFC 8166 section
                // 4.3.2), or in a Read chunk.
                let found = match *placed {
                    0 => self.opaque(max_bytes)?,
                    placed => self.placed_item(max_bytes, placed as usize)?,
                };
                // Each item consumes one entry of the Write list, used or not (RFC 5666 section
                // 3.6). Under RFC 8166 one without bytes consumes none with room, so that nothing
                // is placed in one that it meets here only if no other item will be.
                self.writes = rest;
                self.writes_met += 1;
                Ok(found)
            }
            None => self.opaque(max_bytes),
        }
    }

    /// Reads one `opaque<max>` that no Write chunk is for, as [`StreamReader::item`].
    ///
    /// # Errors
    /// As [`StreamReader::item`].
    pub fn opaque(&mut self, max_bytes: usize) -> Result<Found<'a>, DecodeError> {
        let mut ahead = self.xdr.clone();
        let at = ahead.position();
        let length = ahead.u32()? as usize;
        let Some(chunk_bytes) = self.read_at(&ahead) else {
            return self.xdr.opaque(max_bytes).map(Found::Inline);
        };
        check_length(at, length, max_bytes, chunk_bytes)?;
        self.xdr = ahead;
        Ok(self.take_read(length, chunk_bytes))
    }

    /// Reads one `opaque[length]`, as [`StreamReader::item`]: it has no count word, and may follow
    /// another chunk without a byte of the stream between them.
    ///
    /// # Errors
    /// As [`StreamReader::item`].
    pub fn fixed(&mut self, length: usize) -> Result<Found<'a>, DecodeError> {
        let Some(chunk_bytes) = self.read_at(&self.xdr) else {
            return self.xdr.fixed(length).map(Found::Inline);
        };
        check_length(self.xdr.position(), length, length, chunk_bytes)?;
        Ok(self.take_read(length, chunk_bytes))
    }

    fn placed_item(&mut self, max_bytes: usize, placed: usize) -> Result<Found<'a>, DecodeError> {
        let mut ahead = self.xdr.clone();
        let at = ahead.position();
        let length = ahead.u32()? as usize;
        // Part of a roundup that is delivered, if the roundup is counted and not transferred: as
        // much as the room of a Write chunk takes.
        let with_roundup = roundup4(length);
        let counted = if (length..with_roundup).contains(&placed) { with_roundup } else { placed };
        check_length(at, length, max_bytes, counted)?;
        self.xdr = ahead;
        self.removed_bytes += with_roundup;
        Ok(Found::Chunk { index: self.writes_met, length })
    }

    fn read_at(&self, xdr: &Reader<'_>) -> Option<usize> {
        let (at, bytes) = *self.reads.first()?;
        let position = self.base + xdr.stream_position() + self.removed_bytes;
        (at as usize == position).then_some(bytes as usize)
    }

    /// The bytes of the next Read chunk stand here. The position goes on behind their roundup,
    /// whether it was transferred or not: where "no data remains to be decoded from the inline
    /// portion, the receiver MUST conclude that roundup is present" (RFC 5666 section 3.7), and
    /// where some does, it starts with a word, or with the roundup.
    fn take_read(&mut self, length: usize, chunk_bytes: usize) -> Found<'a> {
        let index = self.reads_met;
        let inline_bytes = self.inline_roundup(chunk_bytes);
        self.reads = self.reads.get(1..).unwrap_or_default();
        self.reads_met += 1;
        self.removed_bytes += roundup4(length) - inline_bytes;
        self.xdr.rest = self.xdr.rest.get(inline_bytes..).unwrap_or_default();
        match self.is_reply {
            true => Found::Pulled { index, length },
            false => Found::Chunk { index, length },
        }
    }

    /// Bytes of the roundup of the next Read chunk that stand in the stream: "the receiver decoding will fall back to
    /// inspecting the remaining inline portion" (RFC 5666 section 3.7). A stream without roundups in it is a number of
    /// words; they stand there if they make it longer. Padding need not be a number of words.
    fn inline_roundup(&self, chunk_bytes: usize) -> usize {
        let (beyond_words, roundup) = (self.xdr.remaining() % 4, padding(chunk_bytes));
        let all: usize = self.reads.iter().map(|(_, bytes)| padding(*bytes as usize)).sum();
        let stands_there =
            !self.xdr.may_have_gaps() && beyond_words != 0 && beyond_words == all % 4;
        if stands_there && roundup <= self.xdr.remaining() { roundup } else { 0 }
    }

    /// Every byte was read, and every chunk that has any.
    ///
    /// # Errors
    /// [`DecodeError::ChunkUnused`] or [`DecodeError::TrailingBytes`].
    pub fn finish(self) -> Result<(), DecodeError> {
        if !self.reads.is_empty() {
            return Err(DecodeError::ChunkUnused { index: self.reads_met });
        }
        match self.writes.iter().position(|placed| *placed > 0) {
            Some(index) => Err(DecodeError::ChunkUnused { index: self.writes_met + index }),
            None => self.xdr.finish(),
        }
    }
}

const CHUNK_IN_SPAN: DecodeError =
    DecodeError::LimitExceeded { what: "chunks in an array or list" };

/// The chunk of an item is as long as its count word says, or as that rounded up.
fn check_length(
    at: usize,
    length: usize,
    max_bytes: usize,
    chunk_bytes: usize,
) -> Result<(), DecodeError> {
    if length > max_bytes {
        return Err(DecodeError::TooLong { at, length, max: max_bytes });
    }
    if chunk_bytes != length && chunk_bytes != roundup4(length) {
        return Err(DecodeError::ChunkMismatch { at, length, chunk: chunk_bytes });
    }
    Ok(())
}
