//! The Connection Configuration Protocol (RFC 5666 section 6): an RPC program with one procedure by
//! which both ends of a connection tell each other their limits. RFC 8166 took it away again.
//!
//! ```text
//! CONF_RDMA arguments: maxcall_sendsize | maxreply_sendsize | maxrdmaread
//!           results:   maxcall_sendsize | align             | maxrdmaread
//! ```
//!
//! draft-ietf-nfsv4-rpcrdma-00 has the same words and calls the first two maxcallsize and
//! maxreplysize; neither draft has a number for the program. The api serves it and calls it, the
//! reactor combines the answers. Uses `xdr`, and `rpc` for the credential.

use crate::ids::{Procedure, Program, Version};
use crate::rpc::{AuthFlavor, AuthStat, AuthSys, GssService, OpaqueAuth};
use crate::xdr::{DecodeError, Reader, Writer};

/// CONFIG_RDMA_PROG (RFC 5666 section 12).
pub const PROGRAM: Program = Program(100_417);
/// VERS1.
pub const VERSION: Version = Version(1);
/// CONF_RDMA.
pub const CONFIGURE: Procedure = Procedure(1);

/// Bytes of the arguments, and of the results, of CONF_RDMA.
pub const BODY_BYTES: usize = 12;

/// Largest alignment that is taken from a server. A page: no receive buffer has a larger one that
/// its owner could mean.
pub const ALIGN_MAX_BYTES: u32 = 4096;

/// The client's request (`config_rdma_req`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigRequest {
    /// `maxcall_sendsize`: longest inline call that the client wants to send, in bytes.
    pub call_bytes: u32,
    /// `maxreply_sendsize`: longest inline message that the client accepts, in bytes.
    pub reply_bytes: u32,
    /// `maxrdmaread`: RDMA Reads that may be active at the client.
    pub reads: u32,
}

/// The server's reply (`config_rdma_reply`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigReply {
    /// `maxcall_sendsize`: longest inline call that the server accepts, in bytes. It does not limit
    /// long calls, whose message goes in a Read chunk.
    pub call_bytes: u32,
    /// `align`: alignment of the server's receive buffers, in bytes.
    pub align_bytes: u32,
    /// `maxrdmaread`: RDMA Reads that may be active at the server.
    pub reads: u32,
}

impl ConfigRequest {
    /// Reads the arguments of CONF_RDMA. Any three words are a request.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] or [`DecodeError::TrailingBytes`] for more or fewer words.
    pub fn parse(arguments: &[u8]) -> Result<Self, DecodeError> {
        let [call_bytes, reply_bytes, reads] = words(arguments)?;
        Ok(Self { call_bytes, reply_bytes, reads })
    }

    /// The arguments of CONF_RDMA on the wire.
    pub fn emit(&self) -> [u8; BODY_BYTES] {
        bytes([self.call_bytes, self.reply_bytes, self.reads])
    }
}

impl ConfigReply {
    /// Reads the results of CONF_RDMA. Any three words are a reply.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] or [`DecodeError::TrailingBytes`] for more or fewer words.
    pub fn parse(results: &[u8]) -> Result<Self, DecodeError> {
        let [call_bytes, align_bytes, reads] = words(results)?;
        Ok(Self { call_bytes, align_bytes, reads })
    }

    /// The results of CONF_RDMA on the wire.
    pub fn emit(&self) -> [u8; BODY_BYTES] {
        bytes([self.call_bytes, self.align_bytes, self.reads])
    }

    /// The alignment that pad bytes may be computed with: a power of two from 4, the unit of XDR, to
    /// [`ALIGN_MAX_BYTES`]. `None` for any other value: "The client MAY use this value" (RFC 5666
    /// section 6.2), so that it also may not.
    #[must_use]
    pub const fn usable_align_bytes(&self) -> Option<u32> {
        let align = self.align_bytes;
        match align.is_power_of_two() && align >= 4 && align <= ALIGN_MAX_BYTES {
            true => Some(align),
            false => None,
        }
    }
}

/// The RPC security flavor that guards the program: "The Connection Configuration Protocol, when
/// used, MUST be protected by an appropriate RPC security flavor" (RFC 5666 section 11). The
/// administrator decides which one is appropriate. RPCSEC_GSS is the only flavor that proves anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// AUTH_NONE is enough: any client that can connect may configure its own connection.
    None,
    /// AUTH_SYS: the caller states its identity, which proves nothing.
    Sys,
    /// RPCSEC_GSS with integrity or privacy: the caller proves its identity, and the limits are as it sent them.
    Gss,
}

impl Protection {
    /// Checks whether a request with this credential is served.
    ///
    /// # Errors
    /// The reason for denial: [`AuthStat::TooWeak`] for a weaker flavor, [`AuthStat::BadCred`] for
    /// an AUTH_SYS credential that cannot be read, [`AuthStat::RejectedCred`] for a flavor that
    /// cannot be checked here.
    pub fn check(self, credential: &OpaqueAuth<'_>) -> Result<(), AuthStat> {
        match (credential.flavor, self) {
            (AuthFlavor::None, Self::None) => Ok(()),
            (AuthFlavor::None, Self::Sys | Self::Gss) | (AuthFlavor::Sys, Self::Gss) => {
                Err(AuthStat::TooWeak)
            }
            (AuthFlavor::Sys, _) => {
                AuthSys::parse(credential.body).map(|_| ()).map_err(|_| AuthStat::BadCred)
            }
            (AuthFlavor::Short | AuthFlavor::Gss | AuthFlavor::Other(_), _) => {
                Err(AuthStat::RejectedCred)
            }
        }
    }

    /// Checks whether a request is served whose caller RPCSEC_GSS has verified, under this service.
    ///
    /// # Errors
    /// [`AuthStat::TooWeak`] if its arguments have to be protected and are not.
    pub fn check_verified(self, service: GssService) -> Result<(), AuthStat> {
        match (service, self) {
            (GssService::Integrity | GssService::Privacy, _) => Ok(()),
            (GssService::None, Self::None | Self::Sys) => Ok(()),
            (GssService::None | GssService::Other(_), _) => Err(AuthStat::TooWeak),
        }
    }
}

fn words(body: &[u8]) -> Result<[u32; 3], DecodeError> {
    let mut reader = Reader::new(body);
    let words = [reader.u32()?, reader.u32()?, reader.u32()?];
    reader.finish().map(|()| words)
}

fn bytes(words: [u32; 3]) -> [u8; BODY_BYTES] {
    let mut body = [0; BODY_BYTES];
    let mut writer = Writer::new(&mut body);
    words.into_iter().for_each(|word| writer.u32(word));
    body
}
