//! Errors of a stream, and the Terminate codes that tell the peer (RFC 5040 section 4.8, RFC 5041 section 7, RFC 5044 section
//! 8, RFC 6581).

/// An error that ends the stream. Its number is that of the Terminate message: layer and type in four bits each, and code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "named as in the RFCs")]
#[repr(u16)]
pub enum Fault {
    RdmapCatastrophic = 0x0000,
    ReadStag = 0x0100,
    ReadBounds = 0x0101,
    AccessRights = 0x0102,
    ReadWrap = 0x0104,
    CannotInvalidate = 0x0109,
    RdmapVersion = 0x0205,
    Opcode = 0x0206,
    ReadsExceeded = 0x0207,
    Malformed = 0x02ff,
    DdpCatastrophic = 0x1000,
    TaggedStag = 0x1100,
    TaggedBounds = 0x1101,
    TaggedWrap = 0x1103,
    TaggedVersion = 0x1104,
    QueueNumber = 0x1201,
    NoBuffer = 0x1202,
    MsnRange = 0x1203,
    MessageOffset = 0x1204,
    MessageTooLong = 0x1205,
    UntaggedVersion = 0x1206,
    Crc = 0x2002,
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
