//! Version of RPC-over-RDMA that a connection speaks, how its requester finds it (version two
//! section 5), and the decisions that version two leaves open.
//!
#![doc = include_str!("version.md")]

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
    #[inline]
    pub const fn to_wire(self) -> u32 {
        self as u32
    }

    /// Bytes of a header with three empty lists.
    #[inline]
    pub const fn chunkless_header_bytes(self) -> usize {
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
    #[inline]
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

    #[inline]
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
