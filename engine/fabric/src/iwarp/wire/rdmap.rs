//! RDMAP's part of the headers: control byte, Read Request, Terminate (RFC 5040 section 4).

use super::ddp::{Header, Target, UNTAGGED_BYTES, Untagged};
use super::fpdu::LENGTH_BYTES;
use super::{Fault, Readable, TerminateCode};

const VERSION: u8 = 1;

/// Queues of untagged messages (RFC 5040 section 4.1).
pub(super) const SEND_QUEUE: u32 = 0;
pub(super) const READ_QUEUE: u32 = 1;
pub(super) const TERMINATE_QUEUE: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opcode {
    Write,
    ReadRequest,
    ReadResponse,
    Send { invalidates: bool, solicited: bool },
    Terminate,
}

impl Opcode {
    /// The control byte.
    pub(super) const fn to_control(self) -> u8 {
        let opcode = match self {
            Self::Write => 0,
            Self::ReadRequest => 1,
            Self::ReadResponse => 2,
            Self::Send { invalidates, solicited } => 3 + invalidates as u8 + 2 * solicited as u8,
            Self::Terminate => 7,
        };
        VERSION << 6 | opcode
    }

    pub(super) const fn from_control(control: u8) -> Result<Self, Fault> {
        if control >> 6 != VERSION {
            return Err(Fault::RdmapVersion);
        }
        Ok(match control & 0xf {
            0 => Self::Write,
            1 => Self::ReadRequest,
            2 => Self::ReadResponse,
            kind @ 3..=6 => Self::Send { invalidates: kind & 1 == 0, solicited: kind >= 5 },
            7 => Self::Terminate,
            _ => return Err(Fault::Opcode),
        })
    }
}

/// Of a message that is one segment.
const fn untagged_header(opcode: Opcode, queue: u32, msn: u32) -> Header {
    let target = Target::Untagged(Untagged { ulp_word: 0, queue, msn, offset: 0 });
    Header { last: true, ulp: opcode.to_control(), target }
}

pub(super) const READ_REQUEST_BYTES: usize = 28;

/// A Read Request: the peer fetches memory of this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Its number on the peer's queue of Read Requests.
    pub msn: u32,
    pub sink_stag: u32,
    pub sink_offset: u64,
    pub length: u32,
    /// Means nothing in a request for no bytes.
    pub source_stag: u32,
    pub source_offset: u64,
}

impl ReadRequest {
    /// The request in the 28 bytes behind a DDP header. Their offsets do not overflow.
    pub(super) fn parse(msn: u32, body: [u8; READ_REQUEST_BYTES]) -> Result<Self, Fault> {
        let body = Readable::new(&body, &[]);
        let word = |at| body.array(at).map_or(0, u32::from_be_bytes);
        let offset = |at| body.array(at).map_or(0, u64::from_be_bytes);
        let request = Self {
            msn,
            sink_stag: word(0),
            sink_offset: offset(4),
            length: word(12),
            source_stag: word(16),
            source_offset: offset(20),
        };
        let ends = |offset: u64| offset.checked_add(request.length.into()).is_some();
        let is_sound = ends(request.sink_offset) && ends(request.source_offset);
        if is_sound { Ok(request) } else { Err(Fault::ReadWrap) }
    }

    pub(super) const fn ddp_header(&self) -> Header {
        untagged_header(Opcode::ReadRequest, READ_QUEUE, self.msn)
    }

    /// The 28 bytes behind the DDP header.
    pub(super) fn to_bytes(self) -> [u8; READ_REQUEST_BYTES] {
        let mut bytes = [0; READ_REQUEST_BYTES];
        for (at, word) in [(0, self.sink_stag), (12, self.length), (16, self.source_stag)] {
            bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        for (at, offset) in [(4, self.sink_offset), (20, self.source_offset)] {
            bytes[at..at + 8].copy_from_slice(&offset.to_be_bytes());
        }
        bytes
    }
}

/// Control bits, reserved bits and DDP Segment Length.
const TERMINATE_FIXED_BYTES: usize = 6;
const CONTROL_BYTES: usize = 4;
pub(super) const TERMINATE_BYTES_MAX: usize =
    TERMINATE_FIXED_BYTES + UNTAGGED_BYTES + READ_REQUEST_BYTES;
const LENGTH_VALID: u8 = 0x80;
const HAS_DDP_HEADER: u8 = 0x40;
const HAS_RDMAP_HEADER: u8 = 0x20;

/// A Terminate message: the reason and, where there is one, the header of the segment at fault (RFC 5040 section 4.8).
#[derive(Clone, Copy, Debug)]
pub struct Terminate {
    pub code: TerminateCode,
    body: [u8; TERMINATE_BYTES_MAX],
    length: usize,
}

impl Terminate {
    /// Without a header.
    pub fn bare(fault: Fault) -> Self {
        let code = fault.code();
        let mut body = [0; TERMINATE_BYTES_MAX];
        body[0] = code.layer << 4 | code.kind;
        body[1] = code.code;
        Self { code, body, length: CONTROL_BYTES }
    }

    /// About the FPDU that the readable bytes begin with. Its header is copied unless its layout is unknown (RFC 5040
    /// section 4.8).
    pub fn about(fault: Fault, readable: Readable<'_>) -> Self {
        let length = readable.array(0).map_or(0, u16::from_be_bytes);
        let segment = readable.range(LENGTH_BYTES..LENGTH_BYTES + usize::from(length));
        match Header::parse(segment) {
            Ok(header) if fault.names_a_segment() => {
                let is_of_request = (Fault::ReadStag..=Fault::ReadWrap).contains(&fault)
                    && header.bytes() == UNTAGGED_BYTES;
                let body = segment.array(UNTAGGED_BYTES).filter(|_| is_of_request);
                Self::with_header(fault, length, &header, body)
            }
            _ => Self::bare(fault),
        }
    }

    /// About a Read Request whose FPDU is not readable any more.
    pub fn about_request(fault: Fault, request: &ReadRequest) -> Self {
        let length = (UNTAGGED_BYTES + READ_REQUEST_BYTES) as u16;
        Self::with_header(fault, length, &request.ddp_header(), Some(request.to_bytes()))
    }

    fn with_header(
        fault: Fault,
        segment_bytes: u16,
        header: &Header,
        request: Option<[u8; READ_REQUEST_BYTES]>,
    ) -> Self {
        let Self { code, mut body, .. } = Self::bare(fault);
        body[2] = LENGTH_VALID | HAS_DDP_HEADER;
        body[CONTROL_BYTES..TERMINATE_FIXED_BYTES].copy_from_slice(&segment_bytes.to_be_bytes());
        header.emit(&mut body[TERMINATE_FIXED_BYTES..]);
        let mut length = TERMINATE_FIXED_BYTES + header.bytes();
        if let Some(request) = request {
            body[2] |= HAS_RDMAP_HEADER;
            body[length..length + READ_REQUEST_BYTES].copy_from_slice(&request);
            length += READ_REQUEST_BYTES;
        }
        Self { code, body, length }
    }

    /// The bytes behind the DDP header.
    pub(super) fn body(&self) -> &[u8] {
        &self.body[..self.length]
    }

    pub(super) const fn ddp_header() -> Header {
        untagged_header(Opcode::Terminate, TERMINATE_QUEUE, 1)
    }

    /// The reason in the payload of a peer's Terminate. What follows is not read: its form differs among peers, and it is
    /// known from this end's own requests.
    pub(super) fn parse(payload: Readable<'_>) -> Result<TerminateCode, Fault> {
        let [first, code, _, _] = payload.array::<CONTROL_BYTES>(0).ok_or(Fault::Malformed)?;
        Ok(TerminateCode { layer: first >> 4, kind: first & 0xf, code })
    }
}
