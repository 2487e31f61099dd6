//! The document whose rules a connection follows. RFC 8166 removed features that had never been
//! implemented. The older documents have them, and the wire does not tell which document applies,
//! so both ends must be configured alike.
//!
//! Used by the state machines, which ask for a rule and never for a name.

use crate::version::TransportVersion;

/// A set of rules of version one.
///
/// Every profile understands the messages that all documents allow. Messages that only the older
/// documents allow are sent, and accepted, by their profiles alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Profile {
    /// RFC 8166: no RDMA_MSGP, no RDMA_DONE, no Read list in a reply.
    #[default]
    Rfc8166,
    /// RFC 5666 whole.
    Rfc5666,
    /// draft-ietf-nfsv4-rpcrdma-03: as RFC 5666, without its rules on roundup and on exhausted
    /// credits.
    Draft03,
    /// draft-ietf-nfsv4-rpcrdma-00: as draft -03, and the end that has pulled Read chunks sends an
    /// RDMA_DONE.
    Draft00,
}

impl Profile {
    /// The rules for a message of that version. The profiles differ in version one only: version two
    /// builds upon RFC 8166, and has neither RDMA_MSGP nor RDMA_DONE.
    #[inline]
    pub const fn under(self, version: TransportVersion) -> Self {
        match version {
            TransportVersion::One => self,
            TransportVersion::Two => Self::Rfc8166,
        }
    }

    /// RDMA_MSGP is decoded, and may be sent (RFC 5666 section 3.9). RFC 8166 section 4.6.1
    /// reserves it.
    #[inline]
    pub const fn has_padded_messages(self) -> bool {
        !matches!(self, Self::Rfc8166)
    }

    /// A reply may carry a Read list, which the requester pulls and ends with RDMA_DONE (RFC 5666
    /// section 3.8). RFC 8166 sections 4.3.1 and 4.6.2 forbid both.
    #[inline]
    pub const fn has_reads_in_replies(self) -> bool {
        !matches!(self, Self::Rfc8166)
    }

    /// A long reply without a Reply chunk that takes it must go back as a Read chunk (both drafts,
    /// section 5.2). RFC 5666 leaves that to the upper layer.
    #[inline]
    pub const fn always_returns_long_replies(self) -> bool {
        matches!(self, Self::Draft00 | Self::Draft03)
    }

    /// The responder, too, sends RDMA_DONE when it has pulled the Read chunks of a call
    /// (draft -00 section 3.6).
    #[inline]
    pub const fn has_done_after_calls(self) -> bool {
        matches!(self, Self::Draft00)
    }

    /// The Connection Configuration Protocol "will be used for connection setup" (both drafts, section
    /// 6.1). RFC 5666 leaves it to each end, and RFC 8166 took it away.
    #[inline]
    pub const fn begins_with_configuration(self) -> bool {
        matches!(self, Self::Draft00 | Self::Draft03)
    }

    /// A request of less than 28 bytes is answered with RDMA_ERROR, as any that cannot be decoded (RFC
    /// 5666 section 4.2). RFC 8166 section 4.5 has it dropped.
    #[inline]
    pub const fn answers_short_requests(self) -> bool {
        !matches!(self, Self::Rfc8166)
    }

    /// True if separate Read chunks for the roundup of an item are taken (RFC 5666 section 3.7).
    /// They start within a word, which RFC 8166 section 3.4.5 forbids.
    #[inline]
    pub const fn has_roundup_chunks(self) -> bool {
        !matches!(self, Self::Rfc8166)
    }

    /// The length that a reply returns for a Write chunk counts the roundup, which is not
    /// transferred (RFC 5666 section 3.7).
    #[inline]
    pub const fn counts_roundup(self) -> bool {
        matches!(self, Self::Rfc5666)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_has_nothing_that_rfc_8166_took_away() {
        let profile = Profile::default();
        assert!(!profile.has_padded_messages() && !profile.has_reads_in_replies());
        assert!(!profile.has_done_after_calls() && !profile.counts_roundup());
    }

    #[test]
    fn rdma_done_follows_calls_under_draft_00_alone() {
        assert!(Profile::Draft00.has_done_after_calls());
        for profile in [Profile::Rfc8166, Profile::Rfc5666, Profile::Draft03] {
            assert!(!profile.has_done_after_calls(), "{profile:?}");
        }
    }

    #[test]
    fn the_drafts_return_long_replies_by_read_chunk_whatever_the_upper_layer_says() {
        assert!(Profile::Draft00.always_returns_long_replies());
        assert!(Profile::Draft03.always_returns_long_replies());
        assert!(!Profile::Rfc5666.always_returns_long_replies());
    }

    #[test]
    fn the_configuration_protocol_belongs_to_connection_setup_under_the_drafts_alone() {
        assert!(Profile::Draft00.begins_with_configuration());
        assert!(Profile::Draft03.begins_with_configuration());
        for profile in [Profile::Rfc8166, Profile::Rfc5666] {
            assert!(!profile.begins_with_configuration(), "{profile:?}");
        }
    }
}
