//! Observations of a world: the record an oracle works from, and its digest.

use super::super::{Access, DownCause};
use std::fmt;
use std::sync::Arc;

/// One end of a connection; a world numbers them in the order of connecting, the connecting end
/// first, and never uses a number again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
#[derive(Clone, Debug, Hash)]
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
