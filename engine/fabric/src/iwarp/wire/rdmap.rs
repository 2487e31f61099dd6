//! RDMAP's part of the headers: control byte, Read Request, Terminate (RFC 5040 section 4).

use super::ddp::{Header, Target, UNTAGGED_BYTES};
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

pub(super) const READ_REQUEST_BYTES: usize = 28;

/// A Read Request: the peer fetches memory of this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Its number on the peer's queue of Read Requests.
    pub msn: u32,
    /// Key of the memory that the bytes go to.
    pub sink_stag: u32,
    /// Offset there.
    pub sink_offset: u64,
    /// Number of bytes.
    pub length: u32,
    /// Key of the memory that is read. One of a request for no bytes means nothing.
    pub source_stag: u32,
    /// Offset there.
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
        let target = Target::Untagged { ulp_word: 0, queue: READ_QUEUE, msn: self.msn, offset: 0 };
        Header { last: true, ulp: Opcode::ReadRequest.to_control(), target }
    }

    /// Writes the 28 bytes behind the DDP header.
    pub(super) fn emit(&self, into: &mut [u8]) {
        into[0..4].copy_from_slice(&self.sink_stag.to_be_bytes());
        into[4..12].copy_from_slice(&self.sink_offset.to_be_bytes());
        into[12..16].copy_from_slice(&self.length.to_be_bytes());
        into[16..20].copy_from_slice(&self.source_stag.to_be_bytes());
        into[20..28].copy_from_slice(&self.source_offset.to_be_bytes());
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
    /// The reason.
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
        match (fault.code(), Header::parse(segment)) {
            (TerminateCode { layer: 2, .. } | TerminateCode { kind: 0, .. }, _) => {
                Self::bare(fault)
            }
            _ if matches!(fault, Fault::RdmapVersion | Fault::Opcode) => Self::bare(fault),
            (code, Ok(header)) => {
                let is_request = Opcode::from_control(header.ulp) == Ok(Opcode::ReadRequest);
                let body = segment.array(UNTAGGED_BYTES);
                let body = body.filter(|_| code.layer == 0 && code.kind == 1 && is_request);
                Self::with_header(fault, length, &header, body)
            }
            (_, Err(_)) => Self::bare(fault),
        }
    }

    /// About a Read Request whose FPDU is not readable any more.
    pub fn about_request(fault: Fault, request: &ReadRequest) -> Self {
        let mut body = [0; READ_REQUEST_BYTES];
        request.emit(&mut body);
        let length = (UNTAGGED_BYTES + READ_REQUEST_BYTES) as u16;
        Self::with_header(fault, length, &request.ddp_header(), Some(body))
    }

    fn with_header(
        fault: Fault,
        segment_bytes: u16,
        header: &Header,
        request: Option<[u8; READ_REQUEST_BYTES]>,
    ) -> Self {
        let mut terminate = Self::bare(fault);
        terminate.body[2] = LENGTH_VALID | HAS_DDP_HEADER;
        terminate.body[4..6].copy_from_slice(&segment_bytes.to_be_bytes());
        header.emit(&mut terminate.body[TERMINATE_FIXED_BYTES..]);
        terminate.length = TERMINATE_FIXED_BYTES + header.bytes();
        if let Some(request) = request {
            terminate.body[2] |= HAS_RDMAP_HEADER;
            let end = terminate.length + READ_REQUEST_BYTES;
            terminate.body[terminate.length..end].copy_from_slice(&request);
            terminate.length = end;
        }
        terminate
    }

    /// The bytes behind the DDP header.
    pub(super) fn body(&self) -> &[u8] {
        &self.body[..self.length]
    }

    pub(super) const fn ddp_header() -> Header {
        let target = Target::Untagged { ulp_word: 0, queue: TERMINATE_QUEUE, msn: 1, offset: 0 };
        Header { last: true, ulp: Opcode::Terminate.to_control(), target }
    }

    /// The reason in the payload of a peer's Terminate. What follows is not read: its form differs among peers, and it is
    /// known from this end's own requests.
    pub(super) fn parse(payload: Readable<'_>) -> Result<TerminateCode, Fault> {
        let [first, code, _, _] = payload.array::<CONTROL_BYTES>(0).ok_or(Fault::Malformed)?;
        Ok(TerminateCode { layer: first >> 4, kind: first & 0xf, code })
    }
}
