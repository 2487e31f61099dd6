//! The document whose rules a connection follows. RFC 8166 removed features that had never been
//! implemented. The older documents have them, and the wire does not tell which document applies,
//! so both ends must be configured alike.
//!
//! Used by the state machines, which ask for a rule and never for a name.

use crate::rdma::HeaderView;
use crate::rpc::{self, Direction};
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
    /// RDMA_DONE (section 3.6), a responder after a call as well.
    Draft00,
    /// The same, with RDMA_DONE after replies only: after a call it "is not necessary" (section 3.8), and a
    /// requester that reads the document so has no receive for it.
    Draft00Replies,
}

impl Profile {
    const fn is_draft(self) -> bool {
        matches!(self, Self::Draft00 | Self::Draft00Replies | Self::Draft03)
    }

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
        self.is_draft()
    }

    /// The responder, too, sends RDMA_DONE when it has pulled the Read chunks of a call
    /// (draft -00 section 3.6).
    #[inline]
    pub const fn has_done_after_calls(self) -> bool {
        matches!(self, Self::Draft00)
    }

    /// The XID of the transport header "mirrors the XID in the RPC header, and takes precedence" (both
    /// drafts, section 4.1). RFC 5666 has it that they are equal, and a message whose XIDs differ is
    /// neither a call nor a reply.
    #[inline]
    pub const fn prefers_header_xid(self) -> bool {
        self.is_draft()
    }

    /// True if the RPC message behind a header is of that direction and, unless the header's XID takes
    /// precedence, has the XID of the header.
    #[inline(always)]
    pub(crate) fn carries(self, view: &HeaderView<'_>, direction: Direction) -> bool {
        rpc::opens_with(view.payload(), view.xid(), direction)
            || self.carries_other_xid(view, direction)
    }

    #[cold]
    fn carries_other_xid(self, view: &HeaderView<'_>, direction: Direction) -> bool {
        self.under(view.transport_version()).prefers_header_xid()
            && rpc::message_direction(view.payload()) == Some(direction)
    }

    /// The Connection Configuration Protocol "will be used for connection setup" (both drafts, section
    /// 6.1). RFC 5666 leaves it to each end, and RFC 8166 took it away.
    #[inline]
    pub const fn begins_with_configuration(self) -> bool {
        self.is_draft()
    }

    /// That protocol, "when used, MUST be protected by an appropriate RPC security flavor" (RFC 5666 section
    /// 11). The drafts say nothing of that.
    #[inline]
    pub const fn protects_configuration(self) -> bool {
        !self.is_draft()
    }

    /// A body with the integrity or privacy of RPCSEC_GSS may be a Read chunk: "presenting it as a single
    /// chunk" (RFC 5666 section 11, the drafts have the same). RFC 8166 section 8.2.2.3 has it in a long
    /// message only.
    #[inline]
    pub const fn has_bodies_in_chunks(self) -> bool {
        !matches!(self, Self::Rfc8166)
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

    /// One item may be several Read chunks next to each other, each with a position of its own: chunks "might all have
    /// the same position" (both drafts, section 3.4). RFC 5666 section 3.4: "all chunks belonging to a single RPC
    /// argument or result will have the same position".
    #[inline]
    pub const fn has_split_items(self) -> bool {
        matches!(self, Self::Draft00 | Self::Draft03)
    }

    /// Each result consumes one entry of the Write list, used or not (RFC 5666 section 3.6, the drafts have the same). Under RFC
    /// 8166 an entry that is not used is left for the next result (section 4.3.2.2).
    #[inline]
    pub const fn has_entry_for_each_item(self) -> bool {
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
        assert!(!profile.has_bodies_in_chunks() && !profile.prefers_header_xid());
        assert!(!profile.has_entry_for_each_item());
    }

    #[test]
    fn rdma_done_follows_calls_under_draft_00_alone() {
        assert!(Profile::Draft00.has_done_after_calls());
        for profile in
            [Profile::Rfc8166, Profile::Rfc5666, Profile::Draft03, Profile::Draft00Replies]
        {
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
            assert!(profile.protects_configuration(), "{profile:?}");
        }
    }
}
