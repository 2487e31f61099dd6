//! The sending half of a stream: messages in, headers of FPDUs out, one segment after the other.

use super::ddp::{Header, TAGGED_BYTES, Target, UNTAGGED_BYTES, Untagged};
use super::fpdu::{CRC_BYTES, LENGTH_BYTES, fpdu_bytes, pad_bytes};
use super::rdmap::{Opcode, SEND_QUEUE, TERMINATE_BYTES_MAX};
use super::{Crc, ReadRequest, Terminate, Trailer};

/// Bytes of the longest header of an FPDU, with its length field: that of a Terminate message.
pub const HEADER_BYTES_MAX: usize = LENGTH_BYTES + UNTAGGED_BYTES + TERMINATE_BYTES_MAX;

/// Bytes of the longest FPDU that is sent.
pub const SEGMENT_BYTES_MAX: usize = 64 * 1024;

/// The least that [`Sender::new`] takes: room for a Terminate message.
pub const SEGMENT_BYTES_MIN: usize = 128;

const _: () = assert!(HEADER_BYTES_MAX + CRC_BYTES <= SEGMENT_BYTES_MIN);
const _: () = assert!(SEGMENT_BYTES_MAX - LENGTH_BYTES - CRC_BYTES <= u16::MAX as usize);

/// A message of this end's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// To the peer's next posted receive.
    Send {
        length: u32,
        /// The peer's key that dies on arrival.
        invalidate: Option<u32>,
        /// With Solicited Event: wakes a peer that waits for such.
        solicited: bool,
    },
    /// Into the peer's memory.
    Write { stag: u32, offset: u64, length: u32 },
    /// Fetches the peer's memory. The request's number is filled in.
    Read(ReadRequest),
}

/// The answer to a [`ReadRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadResponse {
    pub stag: u32,
    pub offset: u64,
    pub length: u32,
}

impl From<&ReadRequest> for ReadResponse {
    fn from(request: &ReadRequest) -> Self {
        Self { stag: request.sink_stag, offset: request.sink_offset, length: request.length }
    }
}

/// The message before it has segments left, as many Reads are outstanding as ORD allows, or the stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// Origin of a segment's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The message of [`Sender::start`].
    Message,
    /// The one of [`Sender::respond`].
    ReadResponse,
    /// The one of [`Sender::terminate`]: the header has all of it.
    Terminate,
}

/// One FPDU to send: its header, this payload, and its [`Segment::trailer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub source: Source,
    /// Offset of the payload in the message.
    pub offset: u32,
    pub length: u32,
    /// The last segment of its message: its place is free again.
    pub last: bool,
    /// Bytes of header that [`Sender::next`] has written.
    pub header_bytes: usize,
}

impl Segment {
    const fn ulpdu_bytes(&self) -> usize {
        self.header_bytes - LENGTH_BYTES + self.length as usize
    }

    /// Bytes of all of the FPDU.
    pub const fn fpdu_bytes(&self) -> usize {
        fpdu_bytes(self.ulpdu_bytes())
    }

    /// Pad and CRC behind the payload. `crc` has been updated with the header and the payload; `None` if no CRC is used.
    pub fn trailer(&self, crc: Option<Crc>) -> Trailer {
        Trailer::new(pad_bytes(self.ulpdu_bytes()), crc)
    }
}

/// A message with segments left.
#[derive(Clone, Copy, Debug)]
struct InProgress {
    header: Header,
    request: Option<ReadRequest>,
    length: u32,
    sent: u32,
}

/// The sending half of a stream.
#[derive(Debug)]
pub struct Sender {
    segment_bytes: usize,
    send_msn: u32,
    read_msn: u32,
    message: Option<InProgress>,
    response: Option<InProgress>,
    terminate: Option<Terminate>,
    is_terminated: bool,
    /// A Read Response takes the next turn.
    message_was_last: bool,
}

impl Sender {
    /// A half whose FPDUs have at most so many bytes: a multiple of four between [`SEGMENT_BYTES_MIN`] and
    /// [`SEGMENT_BYTES_MAX`]. One that fills a TCP segment can be placed by adapters without reassembly.
    pub fn new(segment_bytes: usize) -> Self {
        Self {
            segment_bytes: segment_bytes.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX) & !3,
            send_msn: 1,
            read_msn: 1,
            message: None,
            response: None,
            terminate: None,
            is_terminated: false,
            message_was_last: false,
        }
    }

    /// True if [`Sender::start`] takes a message.
    pub const fn is_free(&self) -> bool {
        self.message.is_none() && !self.is_terminated
    }

    /// True if [`Sender::respond`] takes a response.
    pub const fn is_free_to_respond(&self) -> bool {
        self.response.is_none() && !self.is_terminated
    }

    /// Takes the next message of this end, once the last segment of the one before is out.
    pub fn start(&mut self, message: Message) -> Result<(), Busy> {
        if !self.is_free() {
            return Err(Busy);
        }
        self.message = Some(match message {
            Message::Send { length, invalidate, solicited } => {
                let opcode = Opcode::Send { invalidates: invalidate.is_some(), solicited };
                let (ulp_word, msn) = (invalidate.unwrap_or(0), self.send_msn);
                self.send_msn = msn.wrapping_add(1);
                let target = Untagged { ulp_word, queue: SEND_QUEUE, msn, offset: 0 };
                InProgress::new(opcode, Target::Untagged(target), length)
            }
            Message::Write { stag, offset, length } => {
                InProgress::new(Opcode::Write, Target::Tagged { stag, offset }, length)
            }
            Message::Read(request) => {
                let request = ReadRequest { msn: self.read_msn, ..request };
                self.read_msn = self.read_msn.wrapping_add(1);
                let header = request.ddp_header();
                InProgress { header, request: Some(request), length: 0, sent: 0 }
            }
        });
        Ok(())
    }

    /// Takes the next Read Response, once the last segment of the one before is out. Responses are given in the order of
    /// requests.
    pub fn respond(&mut self, response: ReadResponse) -> Result<(), Busy> {
        if !self.is_free_to_respond() {
            return Err(Busy);
        }
        let target = Target::Tagged { stag: response.stag, offset: response.offset };
        self.response = Some(InProgress::new(Opcode::ReadResponse, target, response.length));
        Ok(())
    }

    /// Ends the stream: the Terminate message is the next and last segment. Further ones are ignored.
    pub fn terminate(&mut self, terminate: Terminate) {
        if !self.is_terminated {
            self.is_terminated = true;
            self.terminate = Some(terminate);
        }
    }

    /// The next segment, its header written to the start of `header`; `None` if nothing is in progress. Segments of own
    /// messages and of Read Responses take turns, so that neither waits for the end of a long one.
    pub fn next(&mut self, header: &mut [u8; HEADER_BYTES_MAX]) -> Option<Segment> {
        if self.is_terminated {
            let terminate = self.terminate.take()?;
            let header_bytes = emit(&Terminate::ddp_header(), terminate.body(), 0, header);
            let (source, offset, length) = (Source::Terminate, 0, 0);
            return Some(Segment { source, offset, length, last: true, header_bytes });
        }
        let limit = self.segment_bytes;
        let is_message = match (&self.message, &self.response) {
            (Some(message), Some(response)) => {
                // Linux's siw takes segments of a tagged message between those of an untagged one and the reverse, but
                // not of two tagged ones.
                let is_bound = message.is_tagged();
                match (is_bound && message.sent > 0, is_bound && response.sent > 0) {
                    (true, _) => true,
                    (_, true) => false,
                    _ => !self.message_was_last,
                }
            }
            (message, _) => message.is_some(),
        };
        self.message_was_last = is_message;
        let (source, place) = if is_message {
            (Source::Message, &mut self.message)
        } else {
            (Source::ReadResponse, &mut self.response)
        };
        let segment = place.as_mut()?.next(source, limit, header);
        if segment.last {
            *place = None;
        }
        Some(segment)
    }
}

impl InProgress {
    const fn new(opcode: Opcode, target: Target, length: u32) -> Self {
        let header = Header { last: false, ulp: opcode.to_control(), target };
        Self { header, request: None, length, sent: 0 }
    }

    const fn is_tagged(&self) -> bool {
        matches!(self.header.target, Target::Tagged { .. })
    }

    fn next(&mut self, source: Source, limit: usize, into: &mut [u8; HEADER_BYTES_MAX]) -> Segment {
        // A multiple of four, as the limit and both headers are: only the last segment needs a pad.
        let room = (limit - LENGTH_BYTES - self.header.bytes() - CRC_BYTES) as u32;
        let (offset, length) = (self.sent, (self.length - self.sent).min(room));
        self.sent += length;
        let mut header = self.header;
        header.last = self.sent == self.length;
        match &mut header.target {
            Target::Tagged { offset: tagged, .. } => *tagged = tagged.wrapping_add(offset.into()),
            Target::Untagged(untagged) => untagged.offset = offset,
        }
        let body = self.request.map(ReadRequest::to_bytes);
        let body = body.as_ref().map_or(&[][..], |body| body);
        let header_bytes = emit(&header, body, length, into);
        Segment { source, offset, length, last: header.last, header_bytes }
    }
}

const _: () = assert!(pad_bytes(TAGGED_BYTES) == 0 && pad_bytes(UNTAGGED_BYTES) == 0);

/// Writes length, DDP header and the body of a message without payload; returns the number of bytes.
fn emit(header: &Header, body: &[u8], payload: u32, into: &mut [u8; HEADER_BYTES_MAX]) -> usize {
    let at = LENGTH_BYTES + header.bytes();
    let end = at + body.len();
    let ulpdu_bytes = (end - LENGTH_BYTES + payload as usize) as u16;
    into[..LENGTH_BYTES].copy_from_slice(&ulpdu_bytes.to_be_bytes());
    header.emit(&mut into[LENGTH_BYTES..at]);
    into[at..end].copy_from_slice(body);
    end
}
