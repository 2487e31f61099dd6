//! Errors of a stream, and the Terminate codes that tell the peer (RFC 5040 section 4.8, RFC 5041 section 7, RFC 5044 section
//! 8, RFC 6581).

/// An error that ends the stream. Its number is that of the Terminate message: layer and type in four bits each, and code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
#[allow(missing_docs, reason = "the texts say it")]
#[repr(u16)]
pub enum Fault {
    #[error("RDMAP: local catastrophic error")]
    RdmapCatastrophic = 0x0000,
    #[error("RDMAP: invalid STag")]
    ReadStag = 0x0100,
    #[error("RDMAP: base or bounds violation")]
    ReadBounds = 0x0101,
    #[error("RDMAP: access rights violation")]
    AccessRights = 0x0102,
    #[error("RDMAP: TO wrap")]
    ReadWrap = 0x0104,
    #[error("RDMAP: STag cannot be invalidated")]
    CannotInvalidate = 0x0109,
    #[error("RDMAP: invalid version")]
    RdmapVersion = 0x0205,
    #[error("RDMAP: unexpected opcode")]
    Opcode = 0x0206,
    #[error("RDMAP: more Read Requests at a time than were agreed")]
    ReadsExceeded = 0x0207,
    #[error("RDMAP: malformed message")]
    Malformed = 0x02ff,
    #[error("DDP: local catastrophic error")]
    DdpCatastrophic = 0x1000,
    #[error("DDP: invalid STag of a tagged message")]
    TaggedStag = 0x1100,
    #[error("DDP: base or bounds violation of a tagged message")]
    TaggedBounds = 0x1101,
    #[error("DDP: TO wrap of a tagged message")]
    TaggedWrap = 0x1103,
    #[error("DDP: invalid version of a tagged message")]
    TaggedVersion = 0x1104,
    #[error("DDP: invalid queue number")]
    QueueNumber = 0x1201,
    #[error("DDP: no buffer for this MSN")]
    NoBuffer = 0x1202,
    #[error("DDP: MSN out of range")]
    MsnRange = 0x1203,
    #[error("DDP: invalid MO")]
    MessageOffset = 0x1204,
    #[error("DDP: message too long for its buffer")]
    MessageTooLong = 0x1205,
    #[error("DDP: invalid version of an untagged message")]
    UntaggedVersion = 0x1206,
    #[error("MPA: CRC error")]
    Crc = 0x2002,
    #[error("MPA: ULPDU length and contents do not match")]
    UlpduLength = 0x2003,
}

impl Fault {
    /// Layer, type and code of the Terminate message.
    pub const fn code(self) -> TerminateCode {
        let [types, code] = (self as u16).to_be_bytes();
        TerminateCode { layer: types >> 4, kind: types & 0xf, code }
    }

    /// A segment is at fault whose layout is known.
    pub(super) const fn names_a_segment(self) -> bool {
        let TerminateCode { layer, kind, .. } = self.code();
        layer <= 1 && kind > 0 && !matches!(self, Self::RdmapVersion | Self::Opcode)
    }
}

const LAYERS: [&str; 3] = ["RDMAP", "DDP", "MPA"];

/// Reason in a Terminate message. The peer's may be of any value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{}, error type {kind}, code {code:#04x}", LAYERS.get(usize::from(*layer)).unwrap_or(&"layer unknown"))]
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
