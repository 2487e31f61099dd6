//! A received transport header, of either version: checked once, from end to end, then looked at.
//!
//! The contents and layout of a header are in [`super::v1`] and [`super::v2`], which also write
//! headers. The connection builds a [`HeaderView`] of each message and gives it to the requester or
//! the responder; the reactor builds it again when it resumes a call that was kept.

use core::fmt;

use super::chunk_list::{
    ReadList, WriteChunk, WriteList, check_reads, check_reply, check_writes, read_entries_bytes,
};
use super::error::RdmaError;
use super::v1::{self, DONE_BYTES};
use super::v2;
use crate::ids::Xid;
use crate::limits::Limits;
use crate::rpc::Direction;
use crate::version::TransportVersion;
use crate::xdr::{DecodeError, Reader};

/// Bytes of the four words that begin every header of every version (RFC 5666 section 4.1).
pub(crate) const START_BYTES: usize = 16;
/// Bytes of the word that says whether a list goes on.
pub(super) const LINK_BYTES: usize = 4;
const TYPE_AT: usize = 12;
const ERROR_BYTES_MIN: usize = START_BYTES + 4;

/// The type of a message (`rdma_proc`): RFC 5666 section 4.1, and version two section 4.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MessageType {
    /// RDMA_MSG: chunk lists, then an RPC message.
    Msg = 0,
    /// RDMA_NOMSG: chunk lists, one of which holds the RPC message.
    Nomsg = 1,
    /// RDMA_MSGP, of version one: as RDMA_MSG, with padding in the RPC message (RFC 5666 section
    /// 3.9).
    Msgp = 2,
    /// RDMA_DONE, of version one: the requester has read the chunks of a reply (RFC 5666 section
    /// 3.8).
    Done = 3,
    /// RDMA_ERROR: the peer could not decode a header.
    Error = 4,
    /// RDMA2_OPTIONAL, of version two: a message of an extension (version two section 3.1).
    Optional = 5,
}

impl MessageType {
    /// The type with the number `value` on the wire, if that version has it.
    #[must_use]
    pub const fn from_wire(version: TransportVersion, value: u32) -> Option<Self> {
        match (version, value) {
            (_, 0) => Some(Self::Msg),
            (_, 1) => Some(Self::Nomsg),
            (TransportVersion::One, 2) => Some(Self::Msgp),
            (TransportVersion::One, 3) => Some(Self::Done),
            (_, 4) => Some(Self::Error),
            (TransportVersion::Two, 5) => Some(Self::Optional),
            _ => None,
        }
    }

    /// The number on the wire.
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
    /// Only that of an RDMA2_OPTIONAL needs more than 16 bits.
    header_bytes: u32,
    /// Offset of the link word before the Reply chunk; 0 for a message without lists.
    reply_at: u16,
    read_segments: u16,
    write_chunks: u16,
    lists_at: u8,
    message_type: MessageType,
    version: TransportVersion,
}

impl<'a> HeaderView<'a> {
    /// Checks the header at the start of `bytes`, a message just received, against its length and
    /// against `limits` (of which a field above its constant bound counts as that bound). A header
    /// without chunks costs a few comparisons.
    ///
    /// The version is checked first, then the type, then the lists. RDMA_ERROR is accepted with any
    /// version word: its layout is the same in all (RFC 5666 section 4.1), and an answer to it would
    /// start a loop.
    ///
    /// # Errors
    /// [`HeaderError`] tells how to answer, if at all.
    #[inline]
    pub fn new_checked(bytes: &'a [u8], limits: &Limits) -> Result<Self, HeaderError> {
        match Self::chunkless(bytes) {
            Some(view) if limits.versions.speaks(TransportVersion::One) => Ok(view),
            _ => Self::check_other(bytes, limits),
        }
    }

    /// Like [`Self::new_checked`], for a version-one RDMA_MSG whose three lists are empty. `None`
    /// for everything else, valid or not. Does not check whether version one is spoken.
    #[must_use]
    #[inline]
    pub fn chunkless(bytes: &'a [u8]) -> Option<Self> {
        let is_chunkless = bytes.first_chunk().is_some_and(v1::is_chunkless);
        is_chunkless.then(|| Self::without_chunks(bytes, TransportVersion::One))
    }

    /// As [`Self::chunkless`], of an RDMA2_MSG.
    #[must_use]
    #[inline]
    pub fn chunkless_two(bytes: &'a [u8]) -> Option<Self> {
        let is_chunkless = bytes.first_chunk().is_some_and(v2::is_chunkless);
        is_chunkless.then(|| Self::without_chunks(bytes, TransportVersion::Two))
    }

    #[inline]
    const fn without_chunks(bytes: &'a [u8], version: TransportVersion) -> Self {
        let header_bytes = version.chunkless_header_bytes();
        Self {
            bytes,
            header_bytes: header_bytes as u32,
            reply_at: (header_bytes - LINK_BYTES) as u16,
            read_segments: 0,
            write_chunks: 0,
            lists_at: version.lists_at() as u8,
            message_type: MessageType::Msg,
            version,
        }
    }

    #[inline(never)]
    fn check_other(bytes: &'a [u8], limits: &Limits) -> Result<Self, HeaderError> {
        match Self::chunkless_two(bytes) {
            Some(view) if limits.versions.speaks(TransportVersion::Two) => Ok(view),
            _ => Self::check_any(bytes, limits),
        }
    }

    fn check_any(bytes: &'a [u8], limits: &Limits) -> Result<Self, HeaderError> {
        let [xid, version_word, credits, message_type] =
            first_words(bytes).ok_or_else(|| fragment(bytes, limits))?;
        let xid = Xid(xid);
        let is_two = version_word == v2::VERSION && limits.versions.speaks(TransportVersion::Two);
        let drops_short = is_two || !limits.answers_short;
        if drops_short && is_too_short(bytes.len(), version_word, message_type) {
            return Err(HeaderError::TooShort);
        }
        if message_type == MessageType::Error.to_wire() {
            return Self::check_error(bytes, version_word);
        }
        let spoken = TransportVersion::from_wire(version_word);
        let Some(version) = spoken.filter(|version| limits.versions.speaks(*version)) else {
            return Err(HeaderError::Version { xid, version: version_word });
        };
        let malformed =
            |direction, cause| HeaderError::Malformed { xid, credits, version, direction, cause };
        let Some(known_type) = MessageType::from_wire(version, message_type) else {
            let cause = DecodeError::BadEnum { at: TYPE_AT, value: message_type };
            return Err(malformed(None, cause));
        };
        Self::check_body(bytes, version, known_type, limits).map_err(|cause| {
            let is_two = version == TransportVersion::Two;
            malformed(v2::direction_of(bytes).filter(|_| is_two), cause)
        })
    }

    fn check_body(
        bytes: &'a [u8],
        version: TransportVersion,
        message_type: MessageType,
        limits: &Limits,
    ) -> Result<Self, DecodeError> {
        match message_type {
            MessageType::Done => {
                Ok(Self::without_lists(bytes, DONE_BYTES, MessageType::Done, version))
            }
            MessageType::Optional => {
                let mut reader = Reader::new(bytes);
                reader.skip(START_BYTES)?;
                v2::pass_optional(&mut reader)?;
                Ok(Self::without_lists(bytes, reader.position(), message_type, version))
            }
            _ => Self::check_lists(bytes, version, message_type, limits),
        }
    }

    fn check_error(bytes: &'a [u8], version_word: u32) -> Result<Self, HeaderError> {
        let mut reader = Reader::new(bytes);
        reader
            .skip(START_BYTES)
            .and_then(|()| RdmaError::parse(&mut reader, version_word))
            .map_err(|_| HeaderError::TooShort)?;
        let version = TransportVersion::from_wire(version_word).unwrap_or(TransportVersion::One);
        Ok(Self::without_lists(bytes, reader.position(), MessageType::Error, version))
    }

    const fn without_lists(
        bytes: &'a [u8],
        header_bytes: usize,
        message_type: MessageType,
        version: TransportVersion,
    ) -> Self {
        Self {
            bytes,
            header_bytes: header_bytes as u32,
            reply_at: 0,
            read_segments: 0,
            write_chunks: 0,
            lists_at: START_BYTES as u8,
            message_type,
            version,
        }
    }

    fn check_lists(
        bytes: &'a [u8],
        version: TransportVersion,
        message_type: MessageType,
        limits: &Limits,
    ) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        if version == TransportVersion::Two {
            reader.skip(START_BYTES)?;
            v2::read_direction(&mut reader)?;
        } else {
            reader.skip(lists_at(version, message_type))?;
        }
        // Clamped limits keep the header within HEADER_BYTES_MAX, so that offsets fit 16 bits.
        let limits = limits.clamped();
        let lists_at = reader.position() as u8;
        let read_segments = check_reads(&mut reader, &limits)?;
        let write_chunks = check_writes(&mut reader, &limits)?;
        let reply_at = reader.position() as u16;
        check_reply(&mut reader, &limits)?;
        let header_bytes = reader.position() as u32;
        Ok(Self {
            bytes,
            header_bytes,
            reply_at,
            read_segments,
            write_chunks,
            lists_at,
            message_type,
            version,
        })
    }

    /// The word at offset `at`, which a checked header has.
    #[inline]
    fn word(&self, at: usize) -> u32 {
        let word = self.bytes.get(at..).and_then(|rest| rest.first_chunk());
        word.map_or(0, |word| u32::from_be_bytes(*word))
    }

    /// Transaction this message belongs to, in the XID space of its direction.
    #[inline]
    pub fn xid(&self) -> Xid {
        Xid(self.word(0))
    }

    /// Version word; that of a version which this crate does not know only in RDMA_ERROR.
    #[inline]
    pub fn version(&self) -> u32 {
        self.word(4)
    }

    /// Version by whose rules the header was read; an RDMA_ERROR of a version which this crate does
    /// not know is read by those of version one.
    #[inline]
    pub const fn transport_version(&self) -> TransportVersion {
        self.version
    }

    /// Direction of a version-two message, as its header says: an RDMA_ERROR "is always
    /// Responder-to-Requester" (version two section 4.2.2). `None` in version one, whose headers
    /// have no direction.
    #[must_use]
    #[inline]
    pub fn direction(&self) -> Option<Direction> {
        match (self.version, self.message_type) {
            (TransportVersion::One, _) => None,
            (TransportVersion::Two, MessageType::Error) => Some(Direction::Reply),
            (TransportVersion::Two, _) => Direction::from_wire(self.word(START_BYTES)),
        }
    }

    /// The credit word as received, zero included: credits requested in a call, granted in a reply,
    /// to be ignored in RDMA_DONE and RDMA_ERROR.
    #[inline]
    pub fn credits(&self) -> u32 {
        self.word(8)
    }

    /// The type of the message.
    #[inline]
    pub const fn message_type(&self) -> MessageType {
        self.message_type
    }

    /// The Read list; empty where the type has no lists.
    #[inline]
    pub fn reads(&self) -> ReadList<'a> {
        let start = usize::from(self.lists_at);
        let end = start + read_entries_bytes(usize::from(self.read_segments));
        // RDMA_DONE has no bytes at `start`; that is an empty list as well.
        ReadList::from_checked(self.bytes.get(start..end).unwrap_or_default())
    }

    /// The Write list; empty where the type has no lists.
    #[inline]
    pub fn writes(&self) -> WriteList<'a> {
        let rest = self.bytes.get(self.writes_at()..).unwrap_or_default();
        WriteList::from_checked(rest, self.write_chunks)
    }

    /// The Reply chunk, if the message has one.
    #[must_use]
    #[inline]
    pub fn reply_chunk(&self) -> Option<WriteChunk<'a>> {
        if !self.has_lists() {
            return None;
        }
        // Without Reply chunk only its link word is left before the end of the header, so that the
        // range below runs backwards and yields nothing.
        let segments_at = usize::from(self.reply_at) + LINK_BYTES + 4;
        self.bytes.get(segments_at..self.header_bytes()).map(WriteChunk::from_checked)
    }

    #[inline]
    const fn writes_at(&self) -> usize {
        self.lists_at as usize + read_entries_bytes(self.read_segments as usize) + LINK_BYTES
    }

    /// True if messages of this type have chunk lists, even empty ones.
    #[inline]
    const fn has_lists(&self) -> bool {
        self.reply_at != 0
    }

    /// Bytes of the Write list and of the Reply chunk, with their links; a reply sends them back. A
    /// message without lists is answered as one whose lists are empty.
    pub(super) const fn results_bytes(&self) -> usize {
        if self.has_lists() { self.header_bytes() - self.writes_at() } else { 2 * LINK_BYTES }
    }

    /// Contents of an RDMA_ERROR.
    #[must_use]
    pub fn error(&self) -> Option<RdmaError> {
        if self.message_type != MessageType::Error {
            return None;
        }
        let mut reader = Reader::new(self.bytes.get(START_BYTES..)?);
        RdmaError::parse(&mut reader, self.version()).ok()
    }

    /// An RDMA_MSG whose three lists are empty: the whole message follows the header.
    #[must_use]
    #[inline]
    pub const fn is_chunkless(&self) -> bool {
        self.has_chunkless_length() && matches!(self.message_type, MessageType::Msg)
    }

    /// True if all lists are empty, in a message of a type with lists.
    #[inline]
    pub(crate) const fn has_chunkless_length(&self) -> bool {
        self.header_bytes() == self.version.chunkless_header_bytes()
    }

    /// Length of the header in bytes.
    #[inline]
    pub const fn header_bytes(&self) -> usize {
        self.header_bytes as usize
    }

    /// Bytes received behind the header: the RPC message of RDMA_MSG and RDMA_MSGP. The other types
    /// have no message there, and any bytes in its place mean nothing.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.bytes.get(self.header_bytes()..).unwrap_or_default()
    }

    /// Checks the rules for the header of a Call, where [`Self::new_checked`] does not know the
    /// direction: a Position-Zero Read chunk is the RPC message of an RDMA_NOMSG (RFC 5666 section
    /// 5.1, RFC 8166 section 3.5.1), so a call has it in exactly that type.
    ///
    /// # Errors
    /// [`DecodeError::UnexpectedPositionZero`] or [`DecodeError::MissingPositionZero`]; both deserve
    /// ERR_CHUNK, in version two BAD_HEADER.
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

/// Writes the header of a message of type Msg without chunks, in that version, so that it ends where
/// `buffer` ends; returns its length, [`TransportVersion::chunkless_header_bytes`]. Version one does not
/// say the direction.
///
/// # Panics
/// If `buffer` is shorter than that. Debug builds also assert that `credits` is not zero.
#[inline(always)]
pub fn emit_msg_header(
    buffer: &mut [u8],
    version: TransportVersion,
    xid: Xid,
    credits: u32,
    direction: Direction,
) -> usize {
    match version {
        // The lengths are constant in each arm, so that one comparison is left of all checks.
        TransportVersion::One => {
            let at = buffer.len() - v1::MSG_HEADER_BYTES;
            v1::emit_msg_header(&mut buffer[at..], xid, credits)
        }
        TransportVersion::Two => {
            let at = buffer.len() - v2::MSG_HEADER_BYTES;
            v2::emit_msg_header(&mut buffer[at..], xid, credits, direction)
        }
    }
}

/// RFC 8166 section 4.5: a message shorter than the smallest version-one header with lists is
/// dropped, unless it is one of the types that have none. In version two only RDMA_ERROR can be so
/// short. Of other versions only RDMA_ERROR is known.
fn is_too_short(length: usize, version_word: u32, message_type: u32) -> bool {
    const DONE: u32 = MessageType::Done.to_wire();
    const ERROR: u32 = MessageType::Error.to_wire();
    length < v1::MSG_HEADER_BYTES
        && !matches!(
            (version_word, message_type, length),
            (v1::VERSION, DONE, DONE_BYTES) | (_, ERROR, ERROR_BYTES_MIN..)
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

/// A message without the four words of every header. Under RFC 5666 section 4.2 one with an XID is answered, as any request
/// that cannot be decoded: as that of an unknown version, if it has the word for that. An answer has all four words, so
/// that two ends cannot answer each other for ever.
#[cold]
fn fragment(bytes: &[u8], limits: &Limits) -> HeaderError {
    let word = |index: usize| {
        let word = bytes.get(index * 4..).and_then(|rest| rest.first_chunk());
        word.map(|word| u32::from_be_bytes(*word))
    };
    let (Some(xid), true) = (word(0), limits.answers_short) else { return HeaderError::TooShort };
    let (xid, version_word) = (Xid(xid), word(1).unwrap_or(v1::VERSION));
    match TransportVersion::from_wire(version_word).filter(|spoken| limits.versions.speaks(*spoken))
    {
        None => HeaderError::Version { xid, version: version_word },
        Some(TransportVersion::Two) => HeaderError::TooShort,
        Some(version) => HeaderError::Malformed {
            xid,
            credits: word(2).unwrap_or(0),
            version,
            direction: None,
            cause: DecodeError::Truncated { at: bytes.len() & !3, wanted: 4 },
        },
    }
}

#[inline]
const fn lists_at(version: TransportVersion, message_type: MessageType) -> usize {
    match message_type {
        MessageType::Msgp => START_BYTES + v1::MSGP_FIELDS_BYTES,
        _ => version.lists_at(),
    }
}

/// Reason why a received message has no usable header, with the fields needed to answer. Only calls
/// are answered: the same error in a reply means that it is dropped (RFC 8166 section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// Too short for any message; dropped silently (RFC 8166 section 4.5). Under older rules only a
    /// message without an XID.
    TooShort,
    /// Another version: to be answered with ERR_VERS (RFC 5666 section 4.2), see [`super::emit_error`].
    Version {
        /// The XID to answer.
        xid: Xid,
        /// The version received.
        version: u32,
    },
    /// A type which the version does not have, broken lists, or more than the limits allow: to be answered
    /// with ERR_CHUNK, in version two with BAD_HEADER.
    Malformed {
        /// The XID to answer.
        xid: Xid,
        /// The credit word received.
        credits: u32,
        /// The version received.
        version: TransportVersion,
        /// Direction of the message, if it could be read: in version two only, and of a known type.
        direction: Option<Direction>,
        /// The decoding error, with offsets from the start of the message.
        cause: DecodeError,
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
        }
    }
}

impl core::error::Error for HeaderError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Malformed { cause, .. } => Some(cause),
            Self::TooShort | Self::Version { .. } => None,
        }
    }
}
