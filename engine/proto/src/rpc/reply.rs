//! The header of an RPC Reply (`reply_body`, RFC 5531 section 9).

use super::auth::{AuthStat, OpaqueAuth};
use super::{REPLY, word};
use crate::ids::Xid;
use crate::xdr::{DecodeError, Reader, Writer};
use core::fmt;

/// Bytes of a header that says success, with AUTH_NONE as verifier.
const SUCCESS_BYTES: usize = 24;

const MSG_ACCEPTED: u32 = 0;
const MSG_DENIED: u32 = 1;

/// RPC header in front of the results of a procedure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHeader<'a> {
    /// XID of the Call.
    pub xid: Xid,
    /// The outcome.
    pub body: ReplyBody<'a>,
}

/// Answer of the responder: it accepted the call, or denied it because of its RPC version or
/// credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyBody<'a> {
    /// MSG_ACCEPTED, which does not yet mean that the procedure ran.
    Accepted {
        /// Proof of the responder's identity.
        verifier: OpaqueAuth<'a>,
        /// Result of the procedure.
        status: AcceptStatus,
    },
    /// MSG_DENIED.
    Denied(RejectStatus),
}

/// Result of an accepted call (`accept_stat`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptStatus {
    /// SUCCESS, 0: the results follow. The only status with anything behind it.
    Success,
    /// PROG_UNAVAIL, 1: the program is not served here.
    ProgUnavail,
    /// PROG_MISMATCH, 2: the program is, but not in this version.
    ProgMismatch {
        /// Lowest version served.
        low: u32,
        /// Highest version served.
        high: u32,
    },
    /// PROC_UNAVAIL, 3: the program has no such procedure.
    ProcUnavail,
    /// GARBAGE_ARGS, 4: the procedure could not decode its arguments.
    GarbageArgs,
    /// SYSTEM_ERR, 5: the responder is in trouble, for example out of memory.
    SystemErr,
}

/// The name of the RFC, and the versions that are served instead.
impl fmt::Display for AcceptStatus {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Success => out.write_str("SUCCESS"),
            Self::ProgUnavail => out.write_str("PROG_UNAVAIL"),
            Self::ProgMismatch { low, high } => {
                write!(out, "PROG_MISMATCH, it serves versions {low} to {high}")
            }
            Self::ProcUnavail => out.write_str("PROC_UNAVAIL"),
            Self::GarbageArgs => out.write_str("GARBAGE_ARGS"),
            Self::SystemErr => out.write_str("SYSTEM_ERR"),
        }
    }
}

/// Reason why a call was denied (`reject_stat`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectStatus {
    /// RPC_MISMATCH, 0: not a version of RPC which the responder speaks.
    RpcMismatch {
        /// Lowest version of RPC.
        low: u32,
        /// Highest version of RPC.
        high: u32,
    },
    /// AUTH_ERROR, 1: the responder could not identify the caller, or does not trust it.
    AuthError(AuthStat),
}

emit_methods!(ReplyHeader);

impl<'a> ReplyHeader<'a> {
    /// The header of a procedure's results, without verifier.
    #[inline]
    pub const fn success(xid: Xid) -> Self {
        Self::accepted(xid, AcceptStatus::Success)
    }

    /// The header of an accepted call with any status, without verifier.
    #[inline]
    pub const fn accepted(xid: Xid, status: AcceptStatus) -> Self {
        Self { xid, body: ReplyBody::Accepted { verifier: OpaqueAuth::NONE, status } }
    }

    /// The header that denies a call.
    #[inline]
    pub const fn denied(xid: Xid, status: RejectStatus) -> Self {
        Self { xid, body: ReplyBody::Denied(status) }
    }

    /// Reads the header at the start of `message`; also returns the offset in bytes at which the
    /// results begin, of a reply that has any.
    ///
    /// # Errors
    /// Error in the header; [`DecodeError::BadEnum`] at offset 4 if it is not a Reply.
    #[inline]
    pub fn parse(message: &'a [u8]) -> Result<(Self, usize), DecodeError> {
        let mut reader = Reader::new(message);
        Self::read(&mut reader).map(|header| (header, reader.position()))
    }

    /// Reads the header of the reply that begins where `reader` stands.
    ///
    /// # Errors
    /// As [`Self::parse`].
    #[inline]
    pub fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match reader.rest.split_first_chunk::<SUCCESS_BYTES>() {
            Some((header, rest)) if is_success(header) => {
                reader.rest = rest;
                Ok(Self::success(Xid(word(header, 0))))
            }
            _ => Self::read_any(reader),
        }
    }

    #[inline(never)]
    fn read_any(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let xid = Xid(reader.u32()?);
        match reader.u32()? {
            REPLY => {}
            value => return Err(DecodeError::BadEnum { at: 4, value }),
        }
        Ok(Self { xid, body: ReplyBody::parse(reader)? })
    }

    /// Writes the header into a stream.
    #[inline]
    pub fn write(&self, writer: &mut Writer<'_>) {
        writer.u32(self.xid.0);
        writer.u32(REPLY);
        match &self.body {
            ReplyBody::Accepted { verifier, status } => {
                writer.u32(MSG_ACCEPTED);
                verifier.write(writer);
                status.write(writer);
            }
            ReplyBody::Denied(status) => {
                writer.u32(MSG_DENIED);
                status.write(writer);
            }
        }
    }
}

/// True if this is an accepted Reply with AUTH_NONE as verifier and SUCCESS: after the direction
/// all words are 0.
#[inline]
fn is_success(header: &[u8; SUCCESS_BYTES]) -> bool {
    word(header, 1) == REPLY && header.last_chunk::<16>() == Some(&[0; 16])
}

impl<'a> ReplyBody<'a> {
    fn parse(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let at = reader.position();
        match reader.u32()? {
            MSG_ACCEPTED => Ok(Self::Accepted {
                verifier: OpaqueAuth::parse(reader)?,
                status: AcceptStatus::parse(reader)?,
            }),
            MSG_DENIED => RejectStatus::parse(reader).map(Self::Denied),
            value => Err(DecodeError::BadEnum { at, value }),
        }
    }
}

impl AcceptStatus {
    fn parse(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let at = reader.position();
        Ok(match reader.u32()? {
            0 => Self::Success,
            1 => Self::ProgUnavail,
            2 => Self::ProgMismatch { low: reader.u32()?, high: reader.u32()? },
            3 => Self::ProcUnavail,
            4 => Self::GarbageArgs,
            5 => Self::SystemErr,
            value => return Err(DecodeError::BadEnum { at, value }),
        })
    }

    #[inline]
    fn write(self, writer: &mut Writer<'_>) {
        match self {
            Self::Success => writer.u32(0),
            Self::ProgUnavail => writer.u32(1),
            Self::ProgMismatch { low, high } => {
                writer.u32(2);
                writer.u32(low);
                writer.u32(high);
            }
            Self::ProcUnavail => writer.u32(3),
            Self::GarbageArgs => writer.u32(4),
            Self::SystemErr => writer.u32(5),
        }
    }
}

impl RejectStatus {
    fn parse(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let at = reader.position();
        Ok(match reader.u32()? {
            0 => Self::RpcMismatch { low: reader.u32()?, high: reader.u32()? },
            1 => Self::AuthError(AuthStat::from_wire(reader.u32()?)),
            value => return Err(DecodeError::BadEnum { at, value }),
        })
    }

    fn write(self, writer: &mut Writer<'_>) {
        match self {
            Self::RpcMismatch { low, high } => {
                writer.u32(0);
                writer.u32(low);
                writer.u32(high);
            }
            Self::AuthError(status) => {
                writer.u32(1);
                writer.u32(status.to_wire());
            }
        }
    }
}
