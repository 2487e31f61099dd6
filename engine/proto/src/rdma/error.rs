//! The body of an RDMA_ERROR message (`rpc_rdma_error`, RFC 5666 sections 4.2 and 4.3;
//! `rpcrdma2_error`, version two section 4.2). Code and range of ERR_VERS are the same in every
//! version; the meaning of other codes depends on the version word.

use crate::version::TransportVersion;
use crate::xdr::{DecodeError, Reader, Writer};

const ERR_VERS: u32 = 1;
const ERR_CHUNK: u32 = 2;
const ERR_BAD_HEADER: u32 = 2;
const ERR_INVALID_OPTION: u32 = 3;

/// Words which RFC 5666 section 4.3 puts behind an error code it does not define.
const EXTRA_WORDS: usize = 8;

/// Reason why a peer could not use a transport header. It completes the call it names, for good
/// (RFC 8166 section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdmaError {
    /// ERR_VERS, 1: the peer does not speak that version.
    Version {
        /// Lowest version it speaks.
        low: u32,
        /// Highest version it speaks.
        high: u32,
    },
    /// ERR_CHUNK, 2: the peer could not decode the header or use its chunks.
    Chunk,
    /// RDMA2_ERR_BAD_HEADER, 2: as [`Self::Chunk`], in version two.
    BadHeader,
    /// RDMA2_ERR_INVALID_OPTION, 3: the peer does not know that kind of RDMA2_OPTIONAL (version two
    /// section 3.1).
    InvalidOption,
    /// A code which the version does not define.
    Other(u32),
}

impl RdmaError {
    /// The error that a responder sends for a header of that version which it cannot decode or use.
    pub const fn of_header(version: TransportVersion) -> Self {
        match version {
            TransportVersion::One => Self::Chunk,
            TransportVersion::Two => Self::BadHeader,
        }
    }

    /// Reads the body of an RDMA_ERROR with that version word. Bytes after an undefined code are
    /// ignored: RFC 5666 puts 32 octets there, RFC 8166 nothing.
    pub(super) fn parse(reader: &mut Reader<'_>, version_word: u32) -> Result<Self, DecodeError> {
        let is_two = version_word == TransportVersion::Two.to_wire();
        Ok(match reader.u32()? {
            ERR_VERS => Self::Version { low: reader.u32()?, high: reader.u32()? },
            ERR_BAD_HEADER if is_two => Self::BadHeader,
            ERR_INVALID_OPTION if is_two => Self::InvalidOption,
            ERR_CHUNK => Self::Chunk,
            code => Self::Other(code),
        })
    }

    pub(super) fn write(self, writer: &mut Writer<'_>) {
        match self {
            Self::Version { low, high } => {
                writer.u32(ERR_VERS);
                writer.u32(low);
                writer.u32(high);
            }
            Self::Chunk => writer.u32(ERR_CHUNK),
            Self::BadHeader => writer.u32(ERR_BAD_HEADER),
            Self::InvalidOption => writer.u32(ERR_INVALID_OPTION),
            Self::Other(code) => {
                writer.u32(code);
                writer.fixed(&[0; EXTRA_WORDS * 4]);
            }
        }
    }
}
