//! The last message of a server that shuts down gracefully: it has answered every call that it has
//! executed, and executes none that it has not answered. So its client knows of each call in flight on
//! the connection that it was not executed there, and may send it to another server.
//!
//! Only an end that is known to understand it gets it, because no document has such a message. All others
//! see the connection close after the last reply, as RFC 8166 leaves it.
//!
//! ```text
//! version one: RDMA_ERROR, XID 0xffffffff, error code 0x73702d03
//! version two: RDMA2_OPTIONAL, XID 0xffffffff, REPLY, option 0x73702d03, opaque<>: empty
//! ```
//!
//! An implementation that does not know the message drops it: it is an error of an unknown number,
//! or the answer of an unknown option. The receive that it needs is the one outside of the credits,
//! which every requester has for RDMA_ERROR (RFC 5666 section 4.2); it is sent once. Used by the
//! reactor.

use crate::ids::Xid;
use crate::rdma::v1::{self, MessageType};
use crate::rdma::v2::{Body, HeaderRepr, OptionalBody};
use crate::rpc::Direction;
use crate::version::TransportVersion;
use crate::xdr::Writer;

/// Its number: an error code, or an option (`rdma_opttype`).
pub const GOODBYE: u32 = 0x7370_2d03;

/// Bytes of the message, in either version at most.
pub const GOODBYE_BYTES: usize = 28;

const XID: Xid = Xid(u32::MAX);

/// Position of the credit word, which has no meaning here.
const CREDITS_AT: core::ops::Range<usize> = 8..12;

/// Writes the message at the start of `buffer`; returns its length.
pub fn emit(buffer: &mut [u8], version: TransportVersion, credits: u32) -> usize {
    if version == TransportVersion::Two {
        let body = OptionalBody { direction: Direction::Reply, option: GOODBYE, info: &[] };
        return HeaderRepr { xid: XID, credits, body: Body::Optional(body) }.emit(buffer);
    }
    let mut writer = Writer::new(buffer);
    let words = [XID.0, v1::VERSION, credits, MessageType::Error.to_wire(), GOODBYE];
    words.into_iter().for_each(|word| writer.u32(word));
    writer.len()
}

/// True if the message is a goodbye.
#[must_use]
pub fn is_goodbye(message: &[u8]) -> bool {
    [TransportVersion::One, TransportVersion::Two].into_iter().any(|version| {
        let mut expected = [0; GOODBYE_BYTES];
        let length = emit(&mut expected, version, 1);
        let Some(credits) = message.get(CREDITS_AT) else { return false };
        expected[CREDITS_AT].copy_from_slice(credits);
        message == &expected[..length]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goodbye_is_recognised_in_either_version_and_nothing_else_is() {
        for version in [TransportVersion::One, TransportVersion::Two] {
            let mut message = [0; GOODBYE_BYTES];
            let length = emit(&mut message, version, 77);
            let message = &mut message[..length];
            assert!(is_goodbye(message), "{version:?}");
            assert!(!is_goodbye(&message[..length - 1]));
            for at in (0..length).filter(|at| !CREDITS_AT.contains(at)) {
                message[at] ^= 1;
                assert!(!is_goodbye(message), "{version:?}: byte {at}");
                message[at] ^= 1;
            }
        }
        assert!(!is_goodbye(&[]));
    }

    #[test]
    fn the_words_of_a_goodbye_are_those_documented() {
        let error = [u32::MAX, 1, 77, 4, 0x7370_2d03];
        let optional = [u32::MAX, 2, 77, 5, 1, 0x7370_2d03, 0];
        for (version, words) in
            [(TransportVersion::One, &error[..]), (TransportVersion::Two, &optional)]
        {
            let mut message = [0; GOODBYE_BYTES];
            let length = emit(&mut message, version, 77);
            let expected: std::vec::Vec<u8> =
                words.iter().flat_map(|word| word.to_be_bytes()).collect();
            assert_eq!(message[..length], expected, "{version:?}");
        }
    }
}
