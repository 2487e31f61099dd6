//! Limits stated in the Connection Configuration Protocol (RFC 5666 section 6): the words of this side, and their
//! combination with the terms of a connection.
//!
//! Every limit is the minimum of the peer's statement and the local configuration, as while connecting.

use crate::config::Config;
use crate::mem::LINE_BYTES;
use crate::reactor::types::negotiate::{Negotiated, Terms};
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::config_proto::{ConfigReply, ConfigRequest};
use spinrpc_proto::limits::INLINE_THRESHOLD_MIN_BYTES;

/// Statement of a peer in the Connection Configuration Protocol, whichever end it is.
struct Said {
    /// Longest inline message it takes.
    takes_bytes: u32,
    /// Longest inline message it wants to send, if stated.
    sends_bytes: Option<u32>,
    reads: u32,
    align_bytes: Option<u32>,
}

impl Terms {
    /// Applies a client's request, at the server.
    pub(crate) fn with_request(&self, request: &ConfigRequest) -> Negotiated {
        self.limited(&Said {
            takes_bytes: request.reply_bytes,
            sends_bytes: Some(request.call_bytes),
            reads: request.reads,
            align_bytes: None,
        })
    }

    /// Applies a server's reply, at the client. The reply may be "smaller or larger than the client's request" (RFC
    /// 5666 section 6.2); a larger one raises no limit.
    pub(crate) fn with_reply(&self, reply: &ConfigReply) -> Negotiated {
        self.limited(&Said {
            takes_bytes: reply.call_bytes,
            sends_bytes: None,
            reads: reply.reads,
            align_bytes: reply.usable_align_bytes(),
        })
    }

    /// A peer that was silent while connecting is bound only by this statement: the default of RFC 8797 stands for
    /// unknown sizes, and now they are known.
    ///
    /// A peer is never sent an RPC message inline that is longer than it takes, however little that is: "MUST NOT send an
    /// inline call message larger than what the server will accept" (RFC 5666 section 6.2). What it wants to send itself
    /// is not below the base level of 1 KB (section 6.1), for which this side has receives.
    fn limited(&self, said: &Said) -> Negotiated {
        let before = self.agreed();
        let bound = |ours: usize, agreed: usize| if self.theirs.is_some() { agreed } else { ours };
        let (send_before, recv_before) = before.one_bytes();
        let takes_bytes = said.takes_bytes as usize;
        let send_bytes = bound(self.ours.send_bytes, send_before).min(takes_bytes);
        let sends = self.thresholds(send_bytes, self.two_bytes.0.min(takes_bytes), true);
        let recvs = said.sends_bytes.map_or(before.recvs, |sends_bytes| {
            let sends_bytes = sends_bytes.max(INLINE_THRESHOLD_MIN_BYTES) as usize;
            let recv_bytes = bound(self.ours.recv_bytes, recv_before).min(sends_bytes);
            self.thresholds(recv_bytes, self.two_bytes.1.min(sends_bytes), false)
        });
        let mut agreed = before;
        (agreed.sends, agreed.recvs) = (sends, recvs);
        agreed.reads_max = agreed.reads_max.min(u16::try_from(said.reads).unwrap_or(u16::MAX));
        agreed.takes_read_chunks &= said.reads > 0;
        agreed.msgp_align_bytes = said.align_bytes;
        agreed.is_configured = true;
        agreed.padded(self.alignment_for(said.align_bytes))
    }

    /// A side that pads uses the alignment that its peer recommends; a side that does not pad never starts to.
    fn alignment_for(&self, recommended: Option<u32>) -> Alignment {
        match recommended {
            Some(align) if self.alignment != Alignment::NONE => {
                Alignment::new(align, self.alignment.threshold_bytes())
            }
            _ => self.alignment,
        }
    }
}

impl Config {
    /// The request that a client with this configuration sends to the server.
    pub(crate) fn ccp_request(&self) -> ConfigRequest {
        ConfigRequest {
            call_bytes: self.send_room_bytes() as u32,
            reply_bytes: self.recv_buffer_bytes() as u32,
            reads: u32::from(self.rdma_reads_max()),
        }
    }

    /// The reply that a server with this configuration sends to the client.
    pub(crate) fn ccp_reply(&self) -> ConfigReply {
        ConfigReply {
            call_bytes: self.recv_buffer_bytes() as u32,
            // Receives begin in a cache line of their own.
            align_bytes: LINE_BYTES as u32,
            reads: u32::from(self.rdma_reads_max()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::config::RawConfig;
    use crate::reactor::types::negotiate::Offer;
    use crate::reactor::types::negotiate::tests::{OURS, sizes, terms};
    use spinrpc_proto::dialect::Profile;
    use spinrpc_proto::version::TransportVersion;

    const NONE: Alignment = Alignment::NONE;
    const ONE: TransportVersion = TransportVersion::One;
    const ALL: ConfigReply = ConfigReply { call_bytes: u32::MAX, align_bytes: 64, reads: u32::MAX };

    /// RFC 5666 section 6.2: "The client MAY use this value to compute the number of prepended pad
    /// bytes".
    #[test]
    fn data_are_padded_as_configured_and_to_what_the_peer_recommends() {
        let plain = terms(Some(OURS));
        assert_eq!(
            (plain.agreed().alignment(ONE), plain.agreed().unpadded_bytes_max(ONE)),
            (NONE, 4096)
        );
        assert_eq!(plain.with_reply(&ALL).alignment(ONE), NONE, "not configured, not begun");
        let padded = Terms { alignment: Alignment::new(1024, 600), ..plain };
        assert_eq!(padded.agreed().alignment(ONE), Alignment::new(1024, 600));
        assert_eq!(padded.with_reply(&ALL).alignment(ONE), Alignment::new(64, 600));
        let silent = ConfigReply { align_bytes: 0, ..ALL };
        assert_eq!(padded.with_reply(&silent).alignment(ONE), Alignment::new(1024, 600));
        // No data in so short a message reach the threshold.
        assert_eq!(padded.agreed().unpadded_bytes_max(ONE), 28 + 600);
        assert_eq!(padded.agreed().send_bytes_max(), 4096);
        // Version two has no padding.
        let two = padded.agreed().settled(TransportVersion::Two);
        assert_eq!(two.unpadded_bytes_max(TransportVersion::Two), 4096);
    }

    /// R5666-54: "The server MAY return a maxcall_sendsize value that is smaller or larger"; R5666-55:
    /// "MUST NOT send an inline call message larger than what the server will accept".
    #[test]
    fn receive_a_smaller_or_larger_size_expect_the_minimum_with_all_others() {
        let theirs = Offer { send_bytes: 2048, recv_bytes: 3072, ..OURS };
        let terms = terms(Some(theirs));
        for (said, sent) in [(0, 0), (100, 100), (2000, 2000), (3072, 3072), (u32::MAX, 3072)] {
            let agreed = terms.with_reply(&ConfigReply { call_bytes: said, ..ALL });
            assert_eq!(sizes(&agreed), (sent, 2048), "server says {said}");
            assert!(agreed.remote_invalidate() && agreed.is_configured());
            let asked = ConfigRequest { call_bytes: said, reply_bytes: said, reads: 1 };
            let expected = (sent, sent.clamp(1024, 2048));
            assert_eq!(sizes(&terms.with_request(&asked)), expected, "client says {said}");
        }
    }

    /// RFC 8797 section 3 has defaults for a silent peer. A peer that states its sizes later is no longer silent, and
    /// still raises no configured limit.
    #[test]
    fn a_peer_without_private_data_is_bound_by_what_it_says_later() {
        let terms = terms(None);
        assert_eq!(sizes(&terms.with_reply(&ALL)), (4096, 1024));
        let asked = ConfigRequest { call_bytes: u32::MAX, reply_bytes: 2048, reads: 1 };
        assert_eq!(sizes(&terms.with_request(&asked)), (2048, 8192));
    }

    /// R5666-56: "the value SHOULD be observed at all times"; R5666-57: "If zero, the peer MUST NOT
    /// issue requests that require RDMA Read to satisfy".
    #[test]
    fn receive_maxrdmaread_expect_the_minimum_and_no_read_chunks_for_zero() {
        for (said, reads) in [(0, 0), (1, 1), (127, 127), (65_536, 128), (u32::MAX, 128)] {
            let agreed = terms(Some(OURS)).with_reply(&ConfigReply { reads: said, ..ALL });
            assert_eq!(agreed.reads_max(), reads);
            assert_eq!(agreed.takes_read_chunks(), said > 0);
        }
        let none_here = Terms { peer_reads_max: 0, ..terms(Some(OURS)) };
        assert!(!none_here.agreed().takes_read_chunks());
        assert!(!none_here.with_reply(&ALL).takes_read_chunks());
        assert_eq!(none_here.with_reply(&ALL).reads_max(), 128);
    }

    /// Whatever this end pads its own messages to.
    #[test]
    fn a_server_announces_the_alignment_of_its_receives() {
        let mut raw = RawConfig::default();
        (raw.rpc.protocol, raw.rpc.msgp_align_bytes) = (Profile::Rfc5666, 1024);
        assert_eq!(raw.validate().unwrap().ccp_reply().align_bytes, 64);
    }

    #[test]
    fn receive_an_align_expect_it_kept_for_the_sender() {
        let align = |align_bytes| ConfigReply { align_bytes, ..ALL };
        let terms = terms(Some(OURS));
        assert_eq!(terms.agreed().msgp_align_bytes(), None);
        assert_eq!(terms.with_reply(&align(512)).msgp_align_bytes(), Some(512));
        assert_eq!(terms.with_reply(&align(u32::MAX)).msgp_align_bytes(), None);
    }
}
