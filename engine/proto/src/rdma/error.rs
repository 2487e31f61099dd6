//! The body of an RDMA_ERROR message (`rpc_rdma_error`, RFC 5666 sections 4.2 and 4.3).

use crate::xdr::{DecodeError, Reader, Writer};

const ERR_VERS: u32 = 1;
const ERR_CHUNK: u32 = 2;

/// Words which RFC 5666 section 4.3 puts behind an error code it does not define.
const EXTRA_WORDS: usize = 8;

/// Why a peer could not make sense of a transport header. It completes the call it names, for good
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
    /// A code which version one does not define.
    Other(u32),
}

impl RdmaError {
    /// Reads the body. What follows a code that is not defined is left alone: RFC 5666 puts 32
    /// octets there, RFC 8166 nothing.
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match reader.u32()? {
            ERR_VERS => Self::Version { low: reader.u32()?, high: reader.u32()? },
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
            Self::Other(code) => {
                writer.u32(code);
                writer.fixed(&[0; EXTRA_WORDS * 4]);
            }
        }
    }
}
