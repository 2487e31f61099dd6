//! The header of RPC-over-RDMA version one (RFC 5666 section 4, RFC 8166 section 4).
//!
//! ```text
//! xid | version = 1 | credits | type | body
//! RDMA_MSG:   Read list, Write list, Reply chunk; then the RPC message
//! RDMA_NOMSG: Read list, Write list, Reply chunk
//! RDMA_MSGP:  align, thresh, Read list, Write list, Reply chunk; then the RPC message
//! RDMA_DONE:  nothing
//! RDMA_ERROR: error code, for ERR_VERS also the lowest and highest version
//! ```
//!
//! [`HeaderView`] is a received header, [`HeaderRepr`] one to send, and [`emit_reply`] sends the
//! chunks of a call back. The connection, the requester and the responder use them.

use core::fmt;

use super::chunk_list::{
    ReadList, WriteChunk, WriteList, check_reads, check_reply, check_writes, read_entries_bytes,
    write_chunk, write_reads,
};
use super::error::RdmaError;
use super::reply::ReplyRepr;
use super::segment::{ReadSegment, Segment};
use crate::alignment::Alignment;
use crate::ids::Xid;
use crate::limits::{Limits, READ_SEGMENTS_MAX, SEGMENTS_MAX, WRITE_CHUNKS_MAX};
use crate::xdr::{DecodeError, Reader, Writer};

/// The version word of this header.
pub const VERSION: u32 = 1;

/// Bytes of a header of type RDMA_MSG or RDMA_NOMSG with no chunks. A shorter message is dropped
/// unless it is RDMA_DONE or RDMA_ERROR (RFC 8166 section 4.5).
pub const MSG_HEADER_BYTES: usize = 28;

/// Bytes of the four words that begin every header of every version (RFC 5666 section 4.1).
const START_BYTES: usize = 16;
/// Bytes of an RDMA_DONE.
pub const DONE_BYTES: usize = START_BYTES;
const ERROR_BYTES_MIN: usize = START_BYTES + 4;
const LINK_BYTES: usize = 4;
/// Bytes by which the header of an RDMA_MSGP is longer than that of an RDMA_MSG.
pub const MSGP_FIELDS_BYTES: usize = 8;

/// Bytes of the largest header that any [`Limits`] let through.
pub const HEADER_BYTES_MAX: usize = START_BYTES
    + MSGP_FIELDS_BYTES
    + read_entries_bytes(READ_SEGMENTS_MAX)
    + (WRITE_CHUNKS_MAX + 1) * (LINK_BYTES + 4 + SEGMENTS_MAX * Segment::WIRE_BYTES)
    + 2 * LINK_BYTES;

// Offsets in a checked header are kept in 16 bits.
const _: () = assert!(HEADER_BYTES_MAX <= u16::MAX as usize);

/// The type of a message (`rdma_proc`, RFC 5666 section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MessageType {
    /// RDMA_MSG: chunk lists, then an RPC message.
    Msg = 0,
    /// RDMA_NOMSG: chunk lists, one of which holds the RPC message.
    Nomsg = 1,
    /// RDMA_MSGP: as RDMA_MSG, with padding in the RPC message (RFC 5666 section 3.9).
    Msgp = 2,
    /// RDMA_DONE: the requester has read the chunks of a reply (RFC 5666 section 3.8).
    Done = 3,
    /// RDMA_ERROR: the peer could not decode a header.
    Error = 4,
}

impl MessageType {
    /// The type with the number `value` on the wire, if there is one.
    #[must_use]
    pub const fn from_wire(value: u32) -> Option<Self> {
        match value {
            0 => Some(Self::Msg),
            1 => Some(Self::Nomsg),
            2 => Some(Self::Msgp),
            3 => Some(Self::Done),
            4 => Some(Self::Error),
            _ => None,
        }
    }

    /// The number on the wire.
    #[must_use]
    #[inline]
    pub const fn to_wire(self) -> u32 {
        self as u32
    }
}

/// A received header that was checked from end to end. Small, and cheap to copy.
///
/// No accessor fails or panics.
#[derive(Clone, Copy, Debug)]
pub struct HeaderView<'a> {
    /// The whole message, so that the payload can be had.
    bytes: &'a [u8],
    header_bytes: u16,
    /// Offset of the link word before the Reply chunk; `header_bytes` where there are no lists.
    reply_at: u16,
    read_segments: u16,
    write_chunks: u16,
    message_type: MessageType,
}

impl<'a> HeaderView<'a> {
    /// Checks the header at the start of `bytes`, a message just received, against what was
    /// received and against `limits` (of which a field above its constant bound counts as that
    /// bound). A header without chunks costs a few comparisons.
    ///
    /// The version is checked first, then the type, then the lists. RDMA_ERROR is accepted with any
    /// version word: its layout is the same in all (RFC 5666 section 4.1), and an answer to it would
    /// start a loop.
    ///
    /// # Errors
    /// [`HeaderError`] says what to answer, if anything.
    #[inline]
    pub fn new_checked(bytes: &'a [u8], limits: &Limits) -> Result<Self, HeaderError> {
        match Self::plain(bytes) {
            Some(view) => Ok(view),
            None => Self::check_any(bytes, limits),
        }
    }

    /// As [`Self::new_checked`], of a version-one RDMA_MSG whose three lists are empty. `None` for
    /// everything else, valid or not.
    #[must_use]
    #[inline]
    pub fn plain(bytes: &'a [u8]) -> Option<Self> {
        bytes.first_chunk().is_some_and(is_plain).then(|| Self::without_chunks(bytes))
    }

    #[inline]
    const fn without_chunks(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            header_bytes: MSG_HEADER_BYTES as u16,
            reply_at: (MSG_HEADER_BYTES - LINK_BYTES) as u16,
            read_segments: 0,
            write_chunks: 0,
            message_type: MessageType::Msg,
        }
    }

    #[inline(never)]
    fn check_any(bytes: &'a [u8], limits: &Limits) -> Result<Self, HeaderError> {
        let [xid, version, credits, message_type] =
            first_words(bytes).ok_or(HeaderError::TooShort)?;
        let xid = Xid(xid);
        let known_type = MessageType::from_wire(message_type);
        if is_too_short(bytes.len(), version, known_type) {
            return Err(HeaderError::TooShort);
        }
        match (version, known_type) {
            (_, Some(MessageType::Error)) => Self::check_error(bytes),
            (VERSION, Some(MessageType::Done)) => {
                Ok(Self::without_lists(bytes, DONE_BYTES, MessageType::Done))
            }
            (VERSION, Some(message_type)) => Self::check_lists(bytes, message_type, limits)
                .map_err(|cause| HeaderError::Malformed { xid, credits, cause }),
            (VERSION, None) => Err(HeaderError::UnknownType { xid, credits, message_type }),
            _ => Err(HeaderError::Version { xid, version }),
        }
    }

    fn check_error(bytes: &'a [u8]) -> Result<Self, HeaderError> {
        let mut reader = Reader::new(bytes);
        reader
            .skip(START_BYTES)
            .and_then(|()| RdmaError::parse(&mut reader))
            .map_err(|_| HeaderError::TooShort)?;
        Ok(Self::without_lists(bytes, reader.position(), MessageType::Error))
    }

    const fn without_lists(
        bytes: &'a [u8],
        header_bytes: usize,
        message_type: MessageType,
    ) -> Self {
        let header_bytes = header_bytes as u16;
        Self {
            bytes,
            header_bytes,
            reply_at: header_bytes,
            read_segments: 0,
            write_chunks: 0,
            message_type,
        }
    }

    fn check_lists(
        bytes: &'a [u8],
        message_type: MessageType,
        limits: &Limits,
    ) -> Result<Self, DecodeError> {
        // Clamped limits keep the header within HEADER_BYTES_MAX, so that offsets fit 16 bits.
        let limits = limits.clamped();
        let mut reader = Reader::new(bytes);
        reader.skip(lists_at(message_type))?;
        let read_segments = check_reads(&mut reader, &limits)?;
        let write_chunks = check_writes(&mut reader, &limits)?;
        let reply_at = reader.position() as u16;
        check_reply(&mut reader, &limits)?;
        let header_bytes = reader.position() as u16;
        Ok(Self { bytes, header_bytes, reply_at, read_segments, write_chunks, message_type })
    }

    /// The word at offset `at`, which a checked header has.
    #[inline]
    fn word(&self, at: usize) -> u32 {
        let word = self.bytes.get(at..).and_then(|rest| rest.first_chunk());
        word.map_or(0, |word| u32::from_be_bytes(*word))
    }

    /// Transaction this message belongs to, in the XID space of its direction.
    #[must_use]
    #[inline]
    pub fn xid(&self) -> Xid {
        Xid(self.word(0))
    }

    /// Version word; other than [`VERSION`] only in RDMA_ERROR.
    #[must_use]
    #[inline]
    pub fn version(&self) -> u32 {
        self.word(4)
    }

    /// The credit word as received, zero included: credits requested in a call, granted in a reply,
    /// to be ignored in RDMA_DONE and RDMA_ERROR.
    #[must_use]
    #[inline]
    pub fn credits(&self) -> u32 {
        self.word(8)
    }

    /// The type of the message.
    #[must_use]
    #[inline]
    pub const fn message_type(&self) -> MessageType {
        self.message_type
    }

    /// The Read list; empty in RDMA_DONE and RDMA_ERROR.
    #[must_use]
    #[inline]
    pub fn reads(&self) -> ReadList<'a> {
        let start = lists_at(self.message_type);
        let end = start + read_entries_bytes(usize::from(self.read_segments));
        // RDMA_DONE has no bytes at `start`; that is an empty list as well.
        ReadList::from_checked(self.bytes.get(start..end).unwrap_or_default())
    }

    /// The Write list; empty in RDMA_DONE and RDMA_ERROR.
    #[must_use]
    #[inline]
    pub fn writes(&self) -> WriteList<'a> {
        let rest = self.bytes.get(self.writes_at()..).unwrap_or_default();
        WriteList::from_checked(rest, self.write_chunks)
    }

    /// The Reply chunk, if the message has one.
    #[must_use]
    #[inline]
    pub fn reply_chunk(&self) -> Option<WriteChunk<'a>> {
        // Without Reply chunk only its link word is left before the end of the header, so that the
        // range below runs backwards and yields nothing.
        let segments_at = usize::from(self.reply_at) + LINK_BYTES + 4;
        self.bytes.get(segments_at..usize::from(self.header_bytes)).map(WriteChunk::from_checked)
    }

    #[inline]
    const fn writes_at(&self) -> usize {
        lists_at(self.message_type) + read_entries_bytes(self.read_segments as usize) + LINK_BYTES
    }

    /// Alignment and threshold of the padding in an RDMA_MSGP (RFC 5666 section 3.9), in bytes.
    #[must_use]
    pub fn msgp(&self) -> Option<(u32, u32)> {
        (self.message_type == MessageType::Msgp)
            .then(|| (self.word(START_BYTES), self.word(START_BYTES + 4)))
    }

    /// What an RDMA_ERROR says.
    #[must_use]
    pub fn error(&self) -> Option<RdmaError> {
        if self.message_type != MessageType::Error {
            return None;
        }
        RdmaError::parse(&mut Reader::new(self.bytes.get(START_BYTES..)?)).ok()
    }

    /// An RDMA_MSG whose three lists are empty: the message is all in what follows the header.
    #[must_use]
    #[inline]
    pub const fn is_plain(&self) -> bool {
        self.header_bytes as usize == MSG_HEADER_BYTES
            && matches!(self.message_type, MessageType::Msg)
    }

    /// Length of the header in bytes.
    #[must_use]
    #[inline]
    pub const fn header_bytes(&self) -> usize {
        self.header_bytes as usize
    }

    /// What was received behind the header: the RPC message of RDMA_MSG and RDMA_MSGP. The other
    /// types have no message there, and anything in its place means nothing.
    #[must_use]
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.bytes.get(self.header_bytes()..).unwrap_or_default()
    }

    /// Checks what holds for the header of a Call, where [`Self::new_checked`] cannot know the
    /// direction: a Position-Zero Read chunk is the RPC message of an RDMA_NOMSG (RFC 5666 section
    /// 5.1, RFC 8166 section 3.5.1), so a call has it in exactly that type.
    ///
    /// # Errors
    /// [`DecodeError::UnexpectedPositionZero`] or [`DecodeError::MissingPositionZero`]; both deserve
    /// ERR_CHUNK.
    #[inline]
    pub fn check_call(&self) -> Result<(), DecodeError> {
        let position_zero = self.reads().any(|segment| segment.position == 0);
        match self.message_type {
            MessageType::Msg | MessageType::Msgp if position_zero => {
                Err(DecodeError::UnexpectedPositionZero)
            }
            MessageType::Nomsg if !position_zero => Err(DecodeError::MissingPositionZero),
            _ => Ok(()),
        }
    }
}

/// Whether this is a version-one RDMA_MSG with three empty lists.
#[inline]
fn is_plain(header: &[u8; MSG_HEADER_BYTES]) -> bool {
    // The type word and the three links, all zero.
    let no_lists = header.last_chunk() == Some(&[0; 4 + 3 * LINK_BYTES]);
    let [_, _, _, _, v0, v1, v2, v3, ..] = *header;
    no_lists && u32::from_be_bytes([v0, v1, v2, v3]) == VERSION
}

/// RFC 8166 section 4.5: what is shorter than the smallest header with lists is dropped, unless it
/// is one of the types that have none. Of other versions only RDMA_ERROR is known.
fn is_too_short(length: usize, version: u32, message_type: Option<MessageType>) -> bool {
    length < MSG_HEADER_BYTES
        && !matches!(
            (version, message_type, length),
            (VERSION, Some(MessageType::Done), DONE_BYTES)
                | (_, Some(MessageType::Error), ERROR_BYTES_MIN)
        )
}

fn first_words(bytes: &[u8]) -> Option<[u32; 4]> {
    let mut reader = Reader::new(bytes);
    let mut words = [0; 4];
    for word in &mut words {
        *word = reader.u32().ok()?;
    }
    Some(words)
}

/// Offset of the Read list in a message of this type.
#[inline]
const fn lists_at(message_type: MessageType) -> usize {
    match message_type {
        MessageType::Msgp => START_BYTES + MSGP_FIELDS_BYTES,
        _ => START_BYTES,
    }
}

/// Why a received message has no usable header, with what is needed to answer. Only calls are
/// answered: the same error in a reply means that it is dropped (RFC 8166 section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// Too short to be anything, to be dropped silently (RFC 8166 section 4.5).
    TooShort,
    /// Another version: to be answered with ERR_VERS (RFC 5666 section 4.2), see [`emit_error`].
    Version {
        /// The XID to answer.
        xid: Xid,
        /// The version received.
        version: u32,
    },
    /// Broken lists, or more than the limits allow: to be answered with ERR_CHUNK.
    Malformed {
        /// The XID to answer.
        xid: Xid,
        /// The credit word received.
        credits: u32,
        /// What is wrong, with offsets from the start of the message.
        cause: DecodeError,
    },
    /// A type which version one does not have: to be answered with ERR_CHUNK.
    UnknownType {
        /// The XID to answer.
        xid: Xid,
        /// The credit word received.
        credits: u32,
        /// The type received.
        message_type: u32,
    },
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort => f.write_str("message too short for a transport header"),
            Self::Version { xid, version } => {
                write!(f, "message {xid} has transport version {version}")
            }
            Self::Malformed { xid, cause, .. } => {
                write!(f, "message {xid} has a malformed transport header: {cause}")
            }
            Self::UnknownType { xid, message_type, .. } => {
                write!(f, "message {xid} has unknown type {message_type}")
            }
        }
    }
}

impl core::error::Error for HeaderError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Malformed { cause, .. } => Some(cause),
            Self::TooShort | Self::Version { .. } | Self::UnknownType { .. } => None,
        }
    }
}

/// A header to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderRepr<'a> {
    /// That of the RPC message.
    pub xid: Xid,
    /// Credits requested in a call, granted in a reply; never zero (RFC 8166 section 3.3.1).
    pub credits: u32,
    /// The type and what belongs to it.
    pub body: Body<'a>,
}

/// The part of a header that depends on its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// RDMA_MSG.
    Msg(Lists<'a>),
    /// RDMA_NOMSG.
    Nomsg(Lists<'a>),
    /// RDMA_MSGP.
    Msgp {
        /// Alignment of padded data in bytes.
        align: u32,
        /// Size in bytes from which data is padded.
        thresh: u32,
        /// The chunk lists.
        lists: Lists<'a>,
    },
    /// RDMA_DONE.
    Done,
    /// RDMA_ERROR in answer to a version-one message; [`emit_error`] answers other versions.
    Error(RdmaError),
}

/// The chunk lists of a header to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lists<'a> {
    /// Read list: the segments of a chunk next to each other, in stream order.
    pub reads: &'a [ReadSegment],
    /// Write list: one slice of segments per chunk.
    pub writes: &'a [&'a [Segment]],
    /// Reply chunk.
    pub reply: Option<&'a [Segment]>,
}

impl Lists<'_> {
    /// No chunks at all.
    pub const EMPTY: Self = Self { reads: &[], writes: &[], reply: None };

    fn write(&self, writer: &mut Writer<'_>) {
        write_reads(writer, self.reads);
        for chunk in self.writes {
            write_chunk(writer, chunk.iter().copied());
        }
        writer.bool(false);
        match self.reply {
            Some(chunk) => write_chunk(writer, chunk.iter().copied()),
            None => writer.bool(false),
        }
    }
}

impl HeaderRepr<'_> {
    /// Bytes which [`Self::emit`] writes.
    #[must_use]
    pub fn buffer_len(&self) -> usize {
        let mut counter = Writer::new(&mut []);
        self.write(&mut counter);
        counter.len()
    }

    /// Writes the header at the start of `buffer`; returns its length, that of
    /// [`Self::buffer_len`].
    ///
    /// Never panics, except that debug builds assert that `credits` is not zero. A `buffer` shorter
    /// than that is left with part of a header, which the returned length tells.
    pub fn emit(&self, buffer: &mut [u8]) -> usize {
        let mut writer = Writer::new(buffer);
        self.write(&mut writer);
        writer.len()
    }

    fn write(&self, writer: &mut Writer<'_>) {
        write_start(writer, self.xid, VERSION, self.credits, self.body.message_type());
        match &self.body {
            Body::Msg(lists) | Body::Nomsg(lists) => lists.write(writer),
            Body::Msgp { align, thresh, lists } => {
                writer.u32(*align);
                writer.u32(*thresh);
                lists.write(writer);
            }
            Body::Done => {}
            Body::Error(error) => error.write(writer),
        }
    }
}

impl Body<'_> {
    /// The type of a message with this body.
    #[must_use]
    pub const fn message_type(&self) -> MessageType {
        match self {
            Body::Msg(_) => MessageType::Msg,
            Body::Nomsg(_) => MessageType::Nomsg,
            Body::Msgp { .. } => MessageType::Msgp,
            Body::Done => MessageType::Done,
            Body::Error(_) => MessageType::Error,
        }
    }
}

/// Writes the four words that begin every header.
#[inline]
pub(super) fn write_start(
    writer: &mut Writer<'_>,
    xid: Xid,
    version: u32,
    credits: u32,
    message_type: MessageType,
) {
    debug_assert!(credits != 0, "zero credits in a header to send");
    writer.u32(xid.0);
    writer.u32(version);
    writer.u32(credits);
    writer.u32(message_type.to_wire());
}

/// Writes the header of an RDMA_MSG without chunks at the start of `buffer`: the same bytes as
/// [`HeaderRepr::emit`], at the price of seven stores. Returns [`MSG_HEADER_BYTES`].
///
/// Never panics, except that debug builds assert that `credits` is not zero. Nothing is written
/// into a `buffer` that is too short.
#[inline]
pub fn emit_msg_header(buffer: &mut [u8], xid: Xid, credits: u32) -> usize {
    if let Some(header) = buffer.first_chunk_mut::<MSG_HEADER_BYTES>() {
        debug_assert!(credits != 0, "zero credits in a header to send");
        // In the pairs in which a driver with words of eight bytes copies it on, see there.
        let (xid_word, rest) = header.split_at_mut(4);
        xid_word.copy_from_slice(&xid.0.to_be_bytes());
        rest[..8].copy_from_slice(&(u64::from(VERSION) << 32 | u64::from(credits)).to_be_bytes());
        rest[8..].fill(0);
    }
    MSG_HEADER_BYTES
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

/// Alignment and threshold of a message whose header has been checked; [`Alignment::NONE`] unless
/// it is an RDMA_MSGP.
#[must_use]
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

/// Writes an RDMA_ERROR in answer to a message with the given `version` word, which is sent back
/// because it is the one version that the peer is known to take (RFC 5666 section 4.2: "any value
/// otherwise valid at the receiver"). Returns the length in bytes, at most [`MSG_HEADER_BYTES`] for
/// the errors of version one.
///
/// Never panics, except that debug builds assert that `credits` is not zero. A `buffer` that is too
/// short is left with part of a message, which the returned length tells.
pub fn emit_error(
    buffer: &mut [u8],
    xid: Xid,
    version: u32,
    credits: u32,
    error: RdmaError,
) -> usize {
    let mut writer = Writer::new(buffer);
    write_start(&mut writer, xid, version, credits, MessageType::Error);
    error.write(&mut writer);
    writer.len()
}

/// Bytes which [`emit_reply`] writes for a reply to `call`, whatever the lengths.
#[must_use]
#[inline]
pub const fn reply_header_bytes(call: &HeaderView<'_>) -> usize {
    // The Write list and the Reply chunk come back as they are; the Read list is one link word.
    let echoed = call.header_bytes().saturating_sub(call.writes_at());
    START_BYTES + LINK_BYTES + echoed
}

/// Writes the header of a reply at the start of `buffer`: the Write list and the Reply chunk of
/// `call` come back with the same chunks, segments, handles and offsets, and lengths that say what
/// was placed (RFC 8166 sections 4.3.2 and 4.3.3). The Read list is empty (section 4.3.1). Returns
/// the length, that of [`reply_header_bytes`].
///
/// * `message_type`: [`MessageType::Msg`], or [`MessageType::Nomsg`] if the RPC message is in the
///   Reply chunk.
/// * `write_lengths`: bytes placed in each Write chunk, in order; chunks beyond are unused.
/// * `reply_length`: bytes placed in the Reply chunk; `None` if unused.
///
/// `call` is the header of a call, thus of type Msg, Nomsg or Msgp. Never panics, except that debug
/// builds assert that, that `credits` is not zero and that each length fits its chunk. A `buffer`
/// that is too short is left with part of a header, which the returned length tells.
pub fn emit_reply(
    buffer: &mut [u8],
    xid: Xid,
    credits: u32,
    message_type: MessageType,
    call: &HeaderView<'_>,
    write_lengths: &[u32],
    reply_length: Option<u32>,
) -> usize {
    let repr = ReplyRepr {
        xid,
        credits,
        message_type,
        reads: &[],
        write_lengths,
        reply_length,
        counts_roundup: false,
    };
    repr.emit(buffer, call)
}
