//! The header of an RPC Call (`call_body`, RFC 5531 section 9).

use core::fmt;

use super::auth::{AuthStat, OpaqueAuth};
use super::{CALL, REPLY, RPC_VERSION, word};
use crate::ids::{Procedure, Program, Version, Xid};
use crate::xdr::{DecodeError, Reader, Writer};

/// Bytes of a header whose credential and verifier are AUTH_NONE.
const BYTES_WITHOUT_AUTH: usize = 40;

/// RPC header in front of the arguments of a procedure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallHeader<'a> {
    /// Pairs the Reply with this Call.
    pub xid: Xid,
    /// Program that is called.
    pub program: Program,
    /// Version of the program.
    pub version: Version,
    /// Procedure within that version.
    pub procedure: Procedure,
    /// Identity of the caller.
    pub credential: OpaqueAuth<'a>,
    /// Proof of the credential.
    pub verifier: OpaqueAuth<'a>,
}

emit_methods!(CallHeader);

impl<'a> CallHeader<'a> {
    /// Reads the header at the start of `message`; also returns the offset in bytes at which the
    /// arguments begin.
    ///
    /// # Errors
    /// [`CallError`] tells how to answer.
    #[inline]
    pub fn parse(message: &'a [u8]) -> Result<(Self, usize), CallError> {
        let mut reader = Reader::new(message);
        Self::read(&mut reader).map(|header| (header, reader.position()))
    }

    /// The header of a call without credentials, of which [`is_without_auth`] holds.
    #[inline]
    const fn without_auth(header: &[u8; BYTES_WITHOUT_AUTH]) -> Self {
        Self {
            xid: Xid(word(header, 0)),
            program: Program(word(header, 3)),
            version: Version(word(header, 4)),
            procedure: Procedure(word(header, 5)),
            credential: OpaqueAuth::NONE,
            verifier: OpaqueAuth::NONE,
        }
    }

    /// Reads the header of the call that begins where `reader` stands.
    ///
    /// # Errors
    /// [`CallError`] tells how to answer.
    #[inline]
    pub fn read(reader: &mut Reader<'a>) -> Result<Self, CallError> {
        match reader.rest.split_first_chunk::<BYTES_WITHOUT_AUTH>() {
            Some((header, rest)) if is_without_auth(header) => {
                reader.rest = rest;
                Ok(Self::without_auth(header))
            }
            _ => Self::read_any(reader),
        }
    }

    #[inline(never)]
    fn read_any(reader: &mut Reader<'a>) -> Result<Self, CallError> {
        // A reader of its own stays in registers.
        let mut own = reader.clone();
        let header = Self::read_fields(&mut own)?;
        *reader = own;
        Ok(header)
    }

    #[inline(always)]
    fn read_fields(reader: &mut Reader<'a>) -> Result<Self, CallError> {
        let xid = Xid(reader.u32()?);
        match reader.u32()? {
            CALL => {}
            REPLY => return Err(CallError::NotACall),
            value => return Err(DecodeError::BadEnum { at: 4, value }.into()),
        }
        match reader.u32()? {
            RPC_VERSION => {}
            version => return Err(CallError::RpcVersion { xid, version }),
        }
        Ok(Self {
            xid,
            program: Program(reader.u32()?),
            version: Version(reader.u32()?),
            procedure: Procedure(reader.u32()?),
            credential: OpaqueAuth::parse(reader)
                .map_err(|e| CallError::of(e, AuthStat::BadCred))?,
            verifier: OpaqueAuth::parse(reader).map_err(|e| CallError::of(e, AuthStat::BadVerf))?,
        })
    }

    /// Writes the header into a stream.
    #[inline]
    pub fn write(&self, writer: &mut Writer<'_>) {
        writer.u32(self.xid.0);
        writer.u32(CALL);
        writer.u32(RPC_VERSION);
        writer.u32(self.program.0);
        writer.u32(self.version.0);
        writer.u32(self.procedure.0);
        self.credential.write(writer);
        self.verifier.write(writer);
    }
}

/// True if this is a call of RPC version 2 with AUTH_NONE as credential and verifier: two flavors
/// of 0 and two lengths of 0 in a row.
#[inline]
fn is_without_auth(header: &[u8; BYTES_WITHOUT_AUTH]) -> bool {
    let auth_is_none = header.last_chunk::<16>() == Some(&[0; 16]);
    word(header, 1) == CALL && word(header, 2) == RPC_VERSION && auth_is_none
}

/// Reason why bytes are not the header of a call that can be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// A call of another version of RPC: to be denied with RPC_MISMATCH, low and high both
    /// [`RPC_VERSION`] (RFC 5531 section 9).
    RpcVersion {
        /// The call to deny.
        xid: Xid,
        /// The version received.
        version: u32,
    },
    /// A credential or verifier longer than any: to be denied with AUTH_ERROR (RFC 5531 sections 8.2 and 9).
    Auth(AuthStat),
    /// The bytes are not a well-formed RPC message.
    Malformed(DecodeError),
    /// A Reply.
    NotACall,
}

impl CallError {
    #[cold]
    fn of(cause: DecodeError, why: AuthStat) -> Self {
        match cause {
            DecodeError::TooLong { .. } => Self::Auth(why),
            _ => Self::Malformed(cause),
        }
    }
}

impl From<DecodeError> for CallError {
    fn from(cause: DecodeError) -> Self {
        Self::Malformed(cause)
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RpcVersion { xid, version } => write!(f, "call {xid} has RPC version {version}"),
            Self::Auth(why) => write!(f, "RPC call is denied: {why:?}"),
            Self::Malformed(cause) => write!(f, "malformed RPC call: {cause}"),
            Self::NotACall => f.write_str("RPC message is a reply, not a call"),
        }
    }
}

impl core::error::Error for CallError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Malformed(cause) => Some(cause),
            Self::RpcVersion { .. } | Self::Auth(_) | Self::NotACall => None,
        }
    }
}
