//! Version of RPC-over-RDMA that a connection speaks, how its requester finds it (version two
//! section 5), and the decisions that version two leaves open.
//!
//! # How the reactor is to use it
//!
//! * `Limits::versions` says which versions are read at all; a responder answers every call in the
//!   version that it came in, and other versions with ERR_VERS and the whole range.
//! * "Implementations of RPC-over-RDMA Version Two are REQUIRED to support backwards direction
//!   operation" (section 4.2.2): a connection that may speak it is a `Connection::two_way`, or, at a
//!   client that takes no calls in reverse, `Connection::refusing_reverse`. On others version-two calls
//!   of the wrong direction are dropped.
//! * Room for a header is that of the longer one; `start_call`, `resend` and `reply_plain` write theirs
//!   so that it ends where the room ends, and say how long it is.
//! * On a new connection, before the first call, the side that connected gives its requester a
//!   [`Negotiation`]: [`Requester::negotiate`]. A responder remembered as one without version two gets
//!   [`Negotiation::settled`] on version one instead, if that is spoken.
//! * Before each call it asks [`Requester::negotiation`] for the version, for the room that header
//!   takes ([`TransportVersion::plain_header_bytes`], `CallChunks::header_bytes_in`) and for the
//!   longest Send ([`Negotiation::send_bytes_max`]), which both change while the connection lives.
//! * `Output::resend_call` names a call that the responder refused for its version. The call is
//!   held; its slot, its XID and its deadline stay. The reactor sends it again with
//!   `Requester::resend`, on the same connection. A call that fitted the first message fits again,
//!   because a version-one header is not longer. A reactor that cannot send it frees it with
//!   `Requester::release_held`, and tells the application.
//! * [`PeerMisbehaved::NoCommonVersion`] closes a connection that cannot be used.
//! * When a connection goes it asks [`Requester::verdict`] for the facts to remember of that
//!   responder, for a while, or until ERR_VERS names version two among those that it speaks. No
//!   answer at all is a lost connection too: the reactor closes it when the first call has timed
//!   out.
//! * The side that accepted does not negotiate. Its calls go in the version in which it is called, and
//!   that is known once it was: `requester.negotiate(Negotiation::settled(responder.version()))`
//!   before the first.
//!
//! [`Requester::negotiate`]: crate::requester::Requester::negotiate
//! [`Requester::negotiation`]: crate::requester::Requester::negotiation
//! [`Requester::verdict`]: crate::requester::Requester::verdict
//! [`PeerMisbehaved::NoCommonVersion`]: crate::events::PeerMisbehaved::NoCommonVersion
//!
//! # What version two leaves open
//!
//! Open points of the document, the decision taken here, and the reason:
//!
//! * 4.2.2 says nothing of a header whose direction is not that of its RPC message: *the header
//!   decides which end receives it: a reply that claims to be a call is answered with BAD_HEADER, a
//!   call that claims to be a reply is dropped*. By the header the peer chose the XID; an error has
//!   to meet that XID where it was chosen, and a reply is never answered (RFC 8166 section 4.5).
//! * 3.2 speaks of a direction in `rpcrdma2_error`, the XDR has none: *an error is a reply*.
//!   Section 4.2.2 says so.
//! * 4.2 calls the lists `rpcrdma2_chunks` and `rpcrdma2_chunk_lists`: *one structure*. Nothing
//!   else makes XDR of it.
//! * 4.2.1 has no rule for bytes behind an RDMA2_NOMSG: *they are ignored*, as in version one.
//! * 4.2.1: an RDMA2_ERROR MUST NOT be followed by a payload; if it is, *the payload is ignored*.
//!   Without it, the call that it ends would time out, and an error is never answered.
//! * 4.2.1: an RDMA2_MSG MUST be followed by a payload; if it is not, *a call is answered with
//!   BAD_HEADER, a reply dropped*. As in version one.
//! * Types 2, 3 and from 6 on: *BAD_HEADER, if a call can be meant, that is from the side that
//!   serves; types 2 and 3 are those of version one, 6 to 13 those of a later document*. They are
//!   not in the XDR, and the later document is another protocol under the same number.
//! * 3.1: an unknown RDMA2_OPTIONAL MUST be answered with an error; one of direction REPLY as well?
//!   *no: it is dropped, and the call with its XID goes on*. An error is always a reply, so the
//!   peer would take it for the answer to one of its calls that happens to have this XID, and end
//!   that call; an error in answer to a reply has no other effect.
//! * Extensions: *none is known, so each RDMA2_OPTIONAL of direction CALL gets INVALID_OPTION, and none is
//!   sent*. It takes no slot, and its answer returns its credit.
//! * 5.3: may a requester mix versions on one connection? *a responder answers each call in its
//!   version; a requester of ours does not*. Section 5.2 has the choice last "for the remainder
//!   of the connection lifetime", but the responder keeps no state for it.
//! * 5.2: ERR_VERS whose range has version two in it: *the version that was refused is not tried
//!   again: version one if it is in the range*. It would be refused again.
//! * 5.2: ERR_VERS whose range is empty (low above high), or has no version that is spoken: *the
//!   call fails, and the connection is closed*. "the requester selects a protocol version in the
//!   range".
//! * ERR_VERS once the version is settled: *the call fails for good, the version stays*. Section
//!   5.2: "for the remainder of the connection lifetime".
//! * Other errors before it is settled: *the call fails, and the offer goes on with the next*. The
//!   version is settled by a message that is not an error.
//! * A reply in another version than the calls: *dropped*. Section 5.3 forbids it.
//! * 5: the first message is of at most 1024 bytes, also where RFC 8797 data have agreed on more?
//!   *yes*. The section knows no exception.
//! * RDMA_MSGP, RDMA_DONE and Read lists in replies: *not in version two, whatever the profile:
//!   [`Profile::under`]*. The first two have no type there, and the last needs RDMA_DONE.
//!
//! [`Profile::under`]: crate::dialect::Profile::under

use crate::limits::{INLINE_THRESHOLD_MIN_BYTES, INLINE_THRESHOLD_TWO_BYTES};
use crate::rdma::{v1, v2};

/// A version of RPC-over-RDMA that this crate knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum TransportVersion {
    /// RFC 5666 and RFC 8166.
    One = 1,
    /// draft-cel-nfsv4-rpcrdma-version-two-01.
    Two = 2,
}

impl TransportVersion {
    /// The version with the number `value` on the wire, if it is known.
    #[must_use]
    #[inline]
    pub const fn from_wire(value: u32) -> Option<Self> {
        match value {
            v1::VERSION => Some(Self::One),
            v2::VERSION => Some(Self::Two),
            _ => None,
        }
    }

    /// The number on the wire.
    pub const fn to_wire(self) -> u32 {
        self as u32
    }

    /// Bytes of a header with three empty lists.
    #[inline]
    pub const fn plain_header_bytes(self) -> usize {
        match self {
            Self::One => v1::MSG_HEADER_BYTES,
            Self::Two => v2::MSG_HEADER_BYTES,
        }
    }

    /// Offset of the Read list in a header without padding words.
    #[inline]
    pub(crate) const fn lists_at(self) -> usize {
        match self {
            Self::One => v1::LISTS_AT,
            Self::Two => v2::LISTS_AT,
        }
    }
}

/// The versions that one side speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Versions {
    /// Version one alone.
    #[default]
    One,
    /// Version two alone.
    Two,
    /// Both, version two rather.
    Both,
}

impl Versions {
    /// True if that version is in the set.
    #[must_use]
    #[inline]
    pub const fn speaks(self, version: TransportVersion) -> bool {
        match version {
            TransportVersion::One => !matches!(self, Self::Two),
            TransportVersion::Two => !matches!(self, Self::One),
        }
    }

    /// True if all of these are in the set.
    #[must_use]
    pub fn include(self, others: Self) -> bool {
        self == Self::Both || self == others
    }

    /// The lowest of them.
    pub const fn low(self) -> TransportVersion {
        match self {
            Self::One | Self::Both => TransportVersion::One,
            Self::Two => TransportVersion::Two,
        }
    }

    /// The highest of them.
    pub const fn high(self) -> TransportVersion {
        match self {
            Self::One => TransportVersion::One,
            Self::Two | Self::Both => TransportVersion::Two,
        }
    }

    fn best_in(self, low: u32, high: u32, refused: TransportVersion) -> Option<TransportVersion> {
        [TransportVersion::Two, TransportVersion::One].into_iter().find(|version| {
            let in_range = (low..=high).contains(&version.to_wire());
            in_range && self.speaks(*version) && *version != refused
        })
    }
}

/// Progress of a requester with its responder.
///
/// ```text
///   Offered ---- message that is not an error ------------> Settled
///      |                                                      ^
///      | ERR_VERS with a version in its range                 | message that is not an error
///      +--------------------------------> FellBack -----------+
///      |                                     | ERR_VERS
///      | ERR_VERS without                    v
///      +--------------------------------> NoneInCommon
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The highest version goes out in the next call, or has; only errors have been received so far.
    Offered,
    /// The highest version was refused: a lower one is sent, or has been.
    FellBack,
    /// The version is settled for the rest of the connection.
    Settled,
    /// The connection is not usable.
    NoneInCommon,
}

/// Versions that a requester and its responder speak (version two section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiation {
    speaks: Versions,
    stage: Stage,
    /// Version of this end's calls.
    version: TransportVersion,
    /// Some when settled: every reply is compared with it.
    settled: Option<TransportVersion>,
    two_refused: bool,
}

impl Negotiation {
    /// For a responder of which nothing is known: offers the highest version. Version one alone is
    /// nothing to negotiate.
    pub const fn new(speaks: Versions) -> Self {
        if matches!(speaks, Versions::One) {
            return Self::settled(TransportVersion::One);
        }
        Self {
            speaks,
            stage: Stage::Offered,
            version: speaks.high(),
            settled: None,
            two_refused: false,
        }
    }

    /// Starts with a version that is known beforehand: "a requester can avoid a possible version
    /// negotiation loop when re-establishing another connection by assuming that particular
    /// responder does not support RPC-over-RDMA Version Two" (section 5.2).
    pub const fn settled(version: TransportVersion) -> Self {
        let speaks = match version {
            TransportVersion::One => Versions::One,
            TransportVersion::Two => Versions::Two,
        };
        Self { speaks, stage: Stage::Settled, version, settled: Some(version), two_refused: false }
    }

    /// The version of the next call.
    pub const fn version(&self) -> TransportVersion {
        self.version
    }

    /// Current stage.
    pub const fn stage(&self) -> Stage {
        self.stage
    }

    /// Longest Send that the next call may be, in bytes, if `thresholds` hold for this connection. "This
    /// initial message can be no larger than the Version One default inline threshold of 1024 bytes"
    /// (section 5); afterwards that of the version counts, at once and without a new connection
    /// (section 5.2).
    pub fn send_bytes_max(&self, thresholds: &InlineThresholds) -> u32 {
        match self.stage {
            Stage::Offered => INLINE_THRESHOLD_MIN_BYTES.min(thresholds.of(self.version)),
            Stage::FellBack | Stage::Settled | Stage::NoneInCommon => thresholds.of(self.version),
        }
    }

    pub(crate) fn is_settled_on(&self, version: TransportVersion) -> bool {
        self.settled == Some(version)
    }

    /// `false` if its version is not that of this end's calls: then it is not an answer.
    #[cold]
    pub(crate) fn on_answer(&mut self, version: TransportVersion) -> bool {
        let is_ours = version == self.version && self.stage != Stage::NoneInCommon;
        if is_ours {
            self.stage = Stage::Settled;
            self.settled = Some(version);
        }
        is_ours
    }

    #[cold]
    pub(crate) fn on_refused(&mut self, low: u32, high: u32) -> Refused {
        if self.settled.is_some() || self.stage == Stage::NoneInCommon {
            return Refused::ForGood;
        }
        self.two_refused |= self.version == TransportVersion::Two;
        let next = match self.stage {
            Stage::Offered => self.speaks.best_in(low, high, self.version),
            // A third version does not exist.
            _ => None,
        };
        match next {
            Some(version) => {
                (self.stage, self.version) = (Stage::FellBack, version);
                Refused::TryAgain
            }
            None => {
                self.stage = Stage::NoneInCommon;
                Refused::NoneInCommon
            }
        }
    }

    /// State to remember of the responder after the connection is gone; `unanswered`: calls had
    /// been sent and not answered.
    pub fn verdict(&self, unanswered: bool) -> Verdict {
        let offers_two = self.version == TransportVersion::Two;
        match self.stage {
            _ if self.two_refused => Verdict::NoVersionTwo,
            // "If the initial negotiation message is lost or dropped" (section 5.2).
            Stage::Offered if offers_two && unanswered => Verdict::NoVersionTwo,
            Stage::Settled if offers_two => Verdict::SpeaksTwo,
            _ => Verdict::Unknown,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The call is to be sent again, in the version chosen now.
    TryAgain,
    /// The call fails; the connection goes on.
    ForGood,
    /// The call fails; the connection cannot be used.
    NoneInCommon,
}

/// State to remember of a responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing new.
    Unknown,
    /// The responder answers in version two: forget earlier results.
    SpeaksTwo,
    /// The responder refused version two, or went away because of it: offer version one for a while
    /// (version two section 5.2).
    NoVersionTwo,
}

/// The longest Send, in bytes, that each version allows on one connection, in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlineThresholds {
    one: u32,
    two: u32,
}

impl InlineThresholds {
    /// Version one: `one_bytes`, 1024 or the size agreed on by RFC 8797 data. Version two:
    /// `sent_bytes`, the size of this side's own buffers, but no more than the 4096 bytes that
    /// "senders MUST assume" (section 2.3), or `agreed_bytes` if the receiver is known to take
    /// more: RFC 8797 data, or both ends' configuration.
    pub fn new(one_bytes: u32, sent_bytes: u32, agreed_bytes: Option<u32>) -> Self {
        let receiver_bytes = agreed_bytes.unwrap_or(0).max(INLINE_THRESHOLD_TWO_BYTES);
        Self { one: one_bytes, two: sent_bytes.min(receiver_bytes) }
    }

    /// Threshold of a version.
    pub const fn of(&self, version: TransportVersion) -> u32 {
        match version {
            TransportVersion::One => self.one,
            TransportVersion::Two => self.two,
        }
    }
}
