//! Writes that the peer carries out itself: this side says where the bytes lie in a slab that the peer may read, and
//! the peer copies them to where it wants them. So memory that only the peer can write is filled by one copy.
//!
//! It is an order in the ring ([`Fetch`]), in its place among the messages. The peer carries it out before it takes what
//! comes behind it, and frees its slot of the ring only then. Until that this side keeps the lease on the bytes
//! (`QueuePair::lent`); when the connection ends before, it first says so and then gives the lease up, and a peer that finds the
//! connection ended has nothing to show for its copy. A peer that frees the slot too early may read bytes of a later
//! use, of memory that it can read at any time.

use crate::sync::ring::ORDER_BYTES;

/// Orders of one connection that may be in its ring: a peer that does not take them holds no more blocks than these, and
/// those of the connection's send queue, and no longer than the reactor's timer for outstanding requests allows.
pub(super) const FETCHES_MAX: usize = 64;

/// An order costs as much as a copy of so many bytes at least, so that a peer cannot keep the core in one poll by
/// short ones.
pub(super) const FETCH_COST_BYTES: usize = 4096;

/// An order to fetch, one byte or more: 32 bytes in the ring, in the byte order of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fetch {
    /// Key of the receiver's memory, which is exposed to be written.
    pub(super) handle: u32,
    pub(super) slab: u32,
    pub(super) length: u32,
    /// Where in the receiver's memory, as a Write would say.
    pub(super) to: u64,
    /// Where in the slab.
    pub(super) from: u64,
}

impl Fetch {
    pub(super) fn encode(&self) -> [u8; ORDER_BYTES] {
        let mut order = [0; ORDER_BYTES];
        order[..4].copy_from_slice(&self.handle.to_ne_bytes());
        order[4..8].copy_from_slice(&self.slab.to_ne_bytes());
        order[8..12].copy_from_slice(&self.length.to_ne_bytes());
        order[16..24].copy_from_slice(&self.to.to_ne_bytes());
        order[24..].copy_from_slice(&self.from.to_ne_bytes());
        order
    }

    pub(super) fn decode(order: &[u8; ORDER_BYTES]) -> Option<Self> {
        let short = |at: usize| order[at..].first_chunk().map(|word| u32::from_ne_bytes(*word));
        let long = |at: usize| order[at..].first_chunk().map(|word| u64::from_ne_bytes(*word));
        (short(12)? == 0).then_some(())?;
        let (handle, slab, length) = (short(0)?, short(4)?, short(8)?);
        Some(Self { handle, slab, length, to: long(16)?, from: long(24)? })
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Fetching {
    pub(super) order: Fetch,
    pub(super) done: usize,
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn orders_come_back_as_they_were_and_others_are_none() {
        let fetch = Fetch { handle: 7, slab: 3, length: u32::MAX, to: 1 << 40, from: u64::MAX };
        let mut order = fetch.encode();
        assert_eq!(Fetch::decode(&order), Some(fetch));
        order[13] = 1;
        assert_eq!(Fetch::decode(&order), None);
    }
}
