//! The commonest messages, the plain call and the plain reply: an RDMA_MSG of version one without
//! chunks (RFC 5666 section 4.1), and in it an RPC message with AUTH_NONE for credential and verifier
//! (RFC 5531 section 9).
//!
//! ```text
//! call   xid | 1 credits | RDMA_MSG - | - - | xid CALL | 2 program | version procedure | 0 0 | 0 0
//! reply  xid | 1 credits | RDMA_MSG - | - - | xid REPLY | MSG_ACCEPTED 0 | 0 SUCCESS
//! ```
//!
//! Pure functions over the words of both headers as they lie in memory. The caller loads them into
//! registers first, because another process may rewrite the memory. The XID stands alone and the
//! other words in pairs, two in one `u64`. Each message accepted here is accepted by the general
//! parsers with the same fields, and each message emitted here is emitted by them byte for byte.
//! All other messages are left to them. Uses the numbers of `ids`.

use crate::ids::{Procedure, Program, Version, Xid};
use crate::rdma::{v1, v2};
use crate::rpc::{CALL, REPLY, RPC_VERSION};

/// Two words of a header, the first of them first in memory.
pub type Pair = u64;

/// Pairs of a plain call behind its XID.
pub const CALL_PAIRS: usize = 8;

/// Pairs of a plain reply behind its XID.
pub const REPLY_PAIRS: usize = 6;

/// Bytes of both headers of a plain call; its arguments begin there.
pub const CALL_BYTES: usize = 4 + 8 * CALL_PAIRS;

/// Bytes of both headers of a plain reply; its results begin there.
pub const REPLY_BYTES: usize = 4 + 8 * REPLY_PAIRS;

const NOTHING: Pair = 0;
/// The word that comes first in memory.
const FIRST: Pair = pair(u32::MAX, 0);

/// A call of version one without chunks, with AUTH_NONE for credential and verifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainCall {
    /// Pairs the reply with it; the same in both headers.
    pub xid: Xid,
    /// Credits that the requester asks for.
    pub credits: u32,
    /// Program that is called.
    pub program: Program,
    /// Version of the program.
    pub version: Version,
    /// Procedure within that version.
    pub procedure: Procedure,
}

impl PlainCall {
    /// Reads the words of both headers, as they lie in memory; `None` for any other message,
    /// valid or not.
    #[must_use]
    #[inline(always)]
    pub const fn parse(xid: [u8; 4], pairs: &[Pair; CALL_PAIRS]) -> Option<Self> {
        let [version, kind, lists, direction, program, procedure, credential, verifier] = *pairs;
        // First: messages of version two, and calls with a credential, leave here.
        if is_other_version(version) || credential != NOTHING {
            return None;
        }
        let other = kind
            | lists
            | (direction ^ with_first(xid, CALL))
            | ((program ^ pair(RPC_VERSION, 0)) & FIRST)
            | verifier;
        if other != NOTHING {
            return None;
        }
        let (version_of_program, procedure) = words(procedure);
        Some(Self {
            xid: Xid(u32::from_be_bytes(xid)),
            credits: words(version).1,
            program: Program(words(program).1),
            version: Version(version_of_program),
            procedure: Procedure(procedure),
        })
    }

    /// The words of both headers, as they lie in memory. The credits are not zero, as those of no message
    /// sent are (RFC 8166 section 3.3.1), although those of one that came may be.
    #[inline(always)]
    pub const fn emit(&self) -> ([u8; 4], [Pair; CALL_PAIRS]) {
        debug_assert!(self.credits != 0, "no message asks for zero credits");
        let xid = self.xid.0.to_be_bytes();
        let pairs = [
            pair(v1::VERSION, self.credits),
            NOTHING,
            NOTHING,
            with_first(xid, CALL),
            pair(RPC_VERSION, self.program.0),
            pair(self.version.0, self.procedure.0),
            NOTHING,
            NOTHING,
        ];
        (xid, pairs)
    }
}

/// The first pairs of a plain call, which those of its RPC message follow.
#[inline(always)]
pub const fn call_head(xid: Xid, credits: u32) -> ([u8; 4], [Pair; 4]) {
    debug_assert!(credits != 0, "no message asks for zero credits");
    let xid = xid.0.to_be_bytes();
    (xid, [pair(v1::VERSION, credits), NOTHING, NOTHING, with_first(xid, CALL)])
}

/// A reply of version one without chunks, with AUTH_NONE for its verifier, which says SUCCESS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainReply {
    /// XID of the call; the same in both headers.
    pub xid: Xid,
    /// Credits that the responder grants.
    pub credits: u32,
}

impl PlainReply {
    /// As [`PlainCall::parse`].
    #[must_use]
    #[inline(always)]
    pub const fn parse(xid: [u8; 4], pairs: &[Pair; REPLY_PAIRS]) -> Option<Self> {
        let [version, kind, lists, direction, accepted, success] = *pairs;
        if is_other_version(version) {
            return None;
        }
        let other = kind | lists | (direction ^ with_first(xid, REPLY)) | accepted | success;
        if other != NOTHING {
            return None;
        }
        Some(Self { xid: Xid(u32::from_be_bytes(xid)), credits: words(version).1 })
    }

    /// As [`PlainCall::emit`].
    #[inline(always)]
    pub const fn emit(&self) -> ([u8; 4], [Pair; REPLY_PAIRS]) {
        debug_assert!(self.credits != 0, "no message grants zero credits");
        let xid = self.xid.0.to_be_bytes();
        let pairs = [
            pair(v1::VERSION, self.credits),
            NOTHING,
            NOTHING,
            with_first(xid, REPLY),
            NOTHING,
            NOTHING,
        ];
        (xid, pairs)
    }

    /// The same of a reply of version two, whose header has a word more: the last word of its RPC header, which is
    /// zero, follows.
    #[inline(always)]
    pub const fn emit_two(&self) -> ([u8; 4], [Pair; REPLY_PAIRS]) {
        debug_assert!(self.credits != 0, "no message grants zero credits");
        let pairs = [
            pair(v2::VERSION, self.credits),
            pair(0, REPLY),
            NOTHING,
            pair(0, self.xid.0),
            pair(REPLY, 0),
            NOTHING,
        ];
        (self.xid.0.to_be_bytes(), pairs)
    }
}

/// True if a plain message is a reply.
#[must_use]
#[inline(always)]
pub const fn says_reply(pairs: &[Pair; REPLY_PAIRS]) -> bool {
    words(pairs[3]).1 == REPLY
}

#[inline(always)]
const fn is_other_version(version: Pair) -> bool {
    (version ^ pair(v1::VERSION, 0)) & FIRST != NOTHING
}

/// The pair that lies in memory as these two words do on the wire.
#[inline(always)]
const fn pair(first: u32, second: u32) -> Pair {
    Pair::from_be((first as u64) << 32 | second as u64)
}

/// As [`pair`], of a first word that is as it lies in memory already.
#[inline(always)]
const fn with_first([a, b, c, d]: [u8; 4], second: u32) -> Pair {
    Pair::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]) | pair(0, second)
}

#[inline(always)]
const fn words(pair: Pair) -> (u32, u32) {
    let both = Pair::to_be(pair);
    ((both >> 32) as u32, both as u32)
}
