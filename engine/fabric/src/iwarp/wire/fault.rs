//! Errors of a stream, and the Terminate codes that tell the peer (RFC 5040 section 4.8, RFC 5041 section 7.1, RFC 5044 section
//! 8, RFC 6581 section 8).

use std::fmt;

/// An error that ends the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Fault {
    /// The CRC of an FPDU is wrong.
    #[error("MPA: CRC error")]
    Crc,
    /// An FPDU is too short for what it carries.
    #[error("MPA: ULPDU length and contents do not match")]
    UlpduLength,
    /// A Request or Reply frame is malformed.
    #[error("MPA: invalid request or reply frame")]
    StartFrame,
    /// The peer serves fewer RDMA Reads than this end must have outstanding, or the reverse.
    #[error("MPA: insufficient IRD resources")]
    InsufficientIrd,
    /// The Reply names none of the first FPDUs that the Request offered.
    #[error("MPA: no matching RTR option")]
    NoMatchingRtr,
    /// This end cannot go on, in its lower half.
    #[error("DDP: local catastrophic error")]
    DdpCatastrophic,
    /// A tagged segment names a key that does not exist, or lacks the right.
    #[error("DDP: invalid STag of a tagged message")]
    TaggedStag,
    /// A tagged segment is not within the key's memory.
    #[error("DDP: base or bounds violation of a tagged message")]
    TaggedBounds,
    /// A tagged segment names a key of another connection.
    #[error("DDP: STag not associated with the stream")]
    TaggedAssociation,
    /// The offset of a tagged segment overflows.
    #[error("DDP: TO wrap of a tagged message")]
    TaggedWrap,
    /// Unknown version of DDP in a tagged segment.
    #[error("DDP: invalid version of a tagged message")]
    TaggedVersion,
    /// An untagged segment is for another queue than its opcode's.
    #[error("DDP: invalid queue number")]
    QueueNumber,
    /// A Send without a posted receive, or a Read Request beyond IRD.
    #[error("DDP: no buffer for this MSN")]
    NoBuffer,
    /// An untagged message out of sequence.
    #[error("DDP: MSN out of range")]
    MsnRange,
    /// An untagged segment does not continue its message.
    #[error("DDP: invalid MO")]
    MessageOffset,
    /// An untagged message is longer than its buffer.
    #[error("DDP: message too long for its buffer")]
    MessageTooLong,
    /// Unknown version of DDP in an untagged segment.
    #[error("DDP: invalid version of an untagged message")]
    UntaggedVersion,
    /// This end cannot go on.
    #[error("RDMAP: local catastrophic error")]
    RdmapCatastrophic,
    /// A Read Request names a key that does not exist.
    #[error("RDMAP: invalid STag")]
    ReadStag,
    /// A Read Request is not within the key's memory.
    #[error("RDMAP: base or bounds violation")]
    ReadBounds,
    /// A Read Request names a key that lacks the right.
    #[error("RDMAP: access rights violation")]
    AccessRights,
    /// A Read Request names a key of another connection.
    #[error("RDMAP: STag not associated with the stream")]
    ReadAssociation,
    /// The offset of a Read Request overflows.
    #[error("RDMAP: TO wrap")]
    ReadWrap,
    /// A Send with Invalidate names a key that it cannot invalidate.
    #[error("RDMAP: STag cannot be invalidated")]
    CannotInvalidate,
    /// Unknown version of RDMAP.
    #[error("RDMAP: invalid version")]
    RdmapVersion,
    /// An opcode that is unknown, or cannot come here.
    #[error("RDMAP: unexpected opcode")]
    Opcode,
    /// An RDMAP message that no other code fits.
    #[error("RDMAP: malformed message")]
    Malformed,
}

impl Fault {
    /// Layer, type and code of the Terminate message.
    pub const fn code(self) -> TerminateCode {
        let (layer, kind, code) = match self {
            Self::RdmapCatastrophic => (0, 0, 0),
            Self::ReadStag => (0, 1, 0),
            Self::ReadBounds => (0, 1, 1),
            Self::AccessRights => (0, 1, 2),
            Self::ReadAssociation => (0, 1, 3),
            Self::ReadWrap => (0, 1, 4),
            Self::CannotInvalidate => (0, 1, 9),
            Self::RdmapVersion => (0, 2, 5),
            Self::Opcode => (0, 2, 6),
            Self::Malformed => (0, 2, 0xff),
            Self::DdpCatastrophic => (1, 0, 0),
            Self::TaggedStag => (1, 1, 0),
            Self::TaggedBounds => (1, 1, 1),
            Self::TaggedAssociation => (1, 1, 2),
            Self::TaggedWrap => (1, 1, 3),
            Self::TaggedVersion => (1, 1, 4),
            Self::QueueNumber => (1, 2, 1),
            Self::NoBuffer => (1, 2, 2),
            Self::MsnRange => (1, 2, 3),
            Self::MessageOffset => (1, 2, 4),
            Self::MessageTooLong => (1, 2, 5),
            Self::UntaggedVersion => (1, 2, 6),
            Self::Crc => (2, 0, 2),
            Self::UlpduLength => (2, 0, 3),
            Self::StartFrame => (2, 0, 4),
            Self::InsufficientIrd => (2, 0, 6),
            Self::NoMatchingRtr => (2, 0, 7),
        };
        TerminateCode { layer, kind, code }
    }
}

/// Reason in a Terminate message. The peer's may be of any value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TerminateCode {
    /// 0 RDMAP, 1 DDP, 2 MPA.
    pub layer: u8,
    /// Error type within the layer.
    pub kind: u8,
    /// Error code within the type.
    pub code: u8,
}

impl TerminateCode {
    /// True if the peer refused access to its memory: key, right or bounds.
    pub const fn is_access_error(self) -> bool {
        self.layer <= 1 && self.kind == 1
    }
}

impl fmt::Display for TerminateCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layer = match self.layer {
            0 => "RDMAP",
            1 => "DDP",
            2 => "MPA",
            _ => "unknown layer",
        };
        write!(f, "{layer}, error type {}, code {:#04x}", self.kind, self.code)
    }
}
