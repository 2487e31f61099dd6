//! Headers of ONC RPC version 2 (RFC 5531), which stand between the transport header and the
//! arguments or results of a procedure.
//!
//! Parsing borrows from the received bytes and copies only words; emitting writes into the caller's
//! buffer. Used by the requester and responder; uses [`crate::xdr`] only.

/// Declares an enum of numbers on the wire, among which any other number is `Other`.
macro_rules! open_numbers {
    (
        $(#[$about:meta])*
        $name:ident {
            $($(#[$doc:meta])* $number:literal => $variant:ident,)+
        } else {
            $(#[$other:meta])* Other
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$doc])* $variant,)+
            $(#[$other])* Other(u32),
        }

        impl $name {
            /// The one with the number `value` on the wire.
            #[inline]
            pub const fn from_wire(value: u32) -> Self {
                match value {
                    $($number => Self::$variant,)+
                    other => Self::Other(other),
                }
            }

            /// The number on the wire.
            #[inline]
            pub const fn to_wire(self) -> u32 {
                match self {
                    $(Self::$variant => $number,)+
                    Self::Other(value) => value,
                }
            }
        }
    };
}

mod auth;
mod call;
mod gss;
mod reply;
mod window;

pub use auth::{
    AUTH_BODY_MAX_BYTES, AuthFlavor, AuthStat, AuthSys, GROUPS_MAX, Groups, MACHINE_NAME_MAX_BYTES,
    OpaqueAuth,
};
pub use call::{CallError, CallHeader};
pub use gss::{
    ContentError, GSS_CHECKSUM_MAX_BYTES, GSS_HANDLE_MAX_BYTES, GSS_TOKEN_MAX_BYTES, GSS_VERSION,
    GssAnswer, GssCredential, GssFault, GssInitResult, GssProcedure, GssService, IntegrityFrame,
    PrivacyFrame, content, parse_init_arguments, pseudo_flavor, signed_bytes,
};
pub use reply::{AcceptStatus, RejectStatus, ReplyBody, ReplyHeader};
pub use window::{Admission, SEQUENCE_MAX, SequenceWindow};

use crate::ids::Xid;

/// The version of RPC itself which this crate speaks (RFC 5531 section 9).
pub const RPC_VERSION: u32 = 2;

pub(crate) const CALL: u32 = 0;
pub(crate) const REPLY: u32 = 1;

/// Direction of an RPC message (`msg_type` of RFC 5531 section 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Direction {
    /// From the requester to the responder.
    Call = CALL as u8,
    /// From the responder to the requester.
    Reply = REPLY as u8,
}

impl Direction {
    /// The direction with the number `value` on the wire, if there is one.
    #[must_use]
    #[inline]
    pub const fn from_wire(value: u32) -> Option<Self> {
        match value {
            CALL => Some(Self::Call),
            REPLY => Some(Self::Reply),
            _ => None,
        }
    }

    /// The number on the wire.
    #[inline]
    pub const fn to_wire(self) -> u32 {
        self as u32
    }
}

/// The direction of the RPC message in `message`, from its second word. `None` if the word is not
/// there or says neither; then not even the credit word before it means anything (RFC 8167 section
/// 4.2).
#[must_use]
#[inline]
pub fn message_direction(message: &[u8]) -> Option<Direction> {
    let [_, _, _, _, word @ ..] = message.first_chunk::<8>()?;
    Direction::from_wire(u32::from_be_bytes(*word))
}

/// True if `message` starts with the first two words of an RPC message of this XID and direction:
/// the XID of the transport header is that of the RPC message (RFC 5666 section 4.1).
#[must_use]
#[inline]
pub fn opens_with(message: &[u8], xid: Xid, direction: Direction) -> bool {
    let expected = u64::from(xid.0) << 32 | u64::from(direction.to_wire());
    message.first_chunk::<8>().is_some_and(|words| u64::from_be_bytes(*words) == expected)
}

/// The word at `index` (in words) of a header whose size is known when compiling.
#[inline]
const fn word<const N: usize>(header: &[u8; N], index: usize) -> u32 {
    let at = index * 4;
    u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}
