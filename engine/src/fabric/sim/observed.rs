//! Observations of a world: the record an oracle works from, and its digest.

use super::super::{Access, DownCause};
use std::fmt;
use std::sync::Arc;

/// One end of a connection; a world numbers them in the order of connecting, the connecting end
/// first, and never uses a number again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SideId(pub usize);

impl SideId {
    /// The other end.
    pub fn peer(self) -> Self {
        Self(self.0 ^ 1)
    }

    /// The end that connected, rather than the one that accepted.
    pub fn is_connector(self) -> bool {
        self.0.is_multiple_of(2)
    }
}

impl fmt::Display for SideId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = if self.is_connector() { "client" } else { "server" };
        write!(f, "{}.{role}", self.0 / 2)
    }
}

/// Something that happened on the wire or at a device.
#[derive(Clone, Debug)]
pub struct Observed {
    /// Time, in virtual nanoseconds.
    pub at_ns: u64,
    /// The end.
    pub side: SideId,
    /// The event.
    pub what: What,
}

/// See [`Observed`].
#[derive(Clone, Debug)]
pub enum What {
    /// A connection was created; recorded for both ends.
    Connected,
    /// This end's message left.
    Sent {
        /// All of it.
        message: Arc<[u8]>,
        /// The peer's key that dies with it.
        invalidate: Option<u32>,
        /// Receives which this end has posted now and has not got back.
        receives: usize,
    },
    /// The owner of this end polled a message.
    Received {
        /// All of it.
        message: Arc<[u8]>,
    },
    /// A message arrived at this end, where no receive was posted for it.
    NotReady,
    /// This end was refused memory for receives.
    RegionRefused,
    /// The peer placed bytes in this end's memory.
    Written {
        /// Handle of the key.
        handle: u32,
        /// Number of bytes.
        length: u32,
    },
    /// The peer fetched bytes of this end's memory.
    Fetched {
        /// Handle of the key.
        handle: u32,
        /// Number of bytes.
        length: u32,
    },
    /// The peer tried to reach memory of this end that it must not reach.
    Refused {
        /// Handle of the key.
        handle: u32,
        /// Number of bytes.
        length: u32,
    },
    /// This end began an RDMA Read.
    Reading {
        /// Number of its RDMA Reads in progress, including this one.
        outstanding: usize,
    },
    /// This end exposed memory.
    Exposed {
        /// Handle of the key.
        handle: u32,
        /// Number of bytes.
        length: u32,
        /// The right.
        access: Access,
    },
    /// A key of this end died.
    Revoked {
        /// Handle of the key.
        handle: u32,
    },
    /// This end went down.
    Down {
        /// Cause of the end.
        cause: DownCause,
    },
}

/// A rule that two nodes which keep the rules broke all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Time, in virtual nanoseconds.
    pub at_ns: u64,
    /// The end at which it showed.
    pub side: SideId,
    /// Description.
    pub what: &'static str,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {} ns, {}: {}", self.at_ns, self.side, self.what)
    }
}

/// A [`Violation`] by a sender that goes by a grant, or by the receiver.
pub const NO_RECEIVE: &str = "a message found no receive: more is granted than posted";

/// A digest of everything that happened, in order. Two runs with the same digest went the same way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Digest(u64);

impl Digest {
    pub(super) fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    pub(super) fn word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
    }

    pub(super) fn value(self) -> u64 {
        self.0
    }
}

impl What {
    /// Its kind and its important fields.
    pub(super) fn fold_into(&self, digest: &mut Digest) {
        let (kind, handle, length) = match self {
            Self::Connected => (1, 0, 0),
            Self::Sent { message, invalidate, receives } => {
                digest.bytes(message);
                (2, invalidate.unwrap_or(0), *receives as u32)
            }
            Self::Received { message } => (3, 0, message.len() as u32),
            Self::NotReady => (4, 0, 0),
            Self::Written { handle, length } => (5, *handle, *length),
            Self::Fetched { handle, length } => (6, *handle, *length),
            Self::Refused { handle, length } => (7, *handle, *length),
            Self::Exposed { handle, length, .. } => (8, *handle, *length),
            Self::Revoked { handle } => (9, *handle, 0),
            Self::Down { .. } => (10, 0, 0),
            Self::Reading { outstanding } => (11, 0, *outstanding as u32),
            Self::RegionRefused => (12, 0, 0),
        };
        digest.word(kind);
        digest.word(u64::from(handle) << 32 | u64::from(length));
    }
}
