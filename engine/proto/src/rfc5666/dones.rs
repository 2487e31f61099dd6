//! RDMA_DONEs in the requester's account of credits (RFC 5666 section 3.8). Used by
//! [`crate::credit`], whose head says when the credit of one comes back.

use crate::credit::Credits;

/// RDMA_DONEs that hold credits of the requester. All are zero where replies have no Read list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dones {
    /// Replies that are being fetched, and will be followed by an RDMA_DONE. Counted as in flight.
    owed: u32,
    /// RDMA_DONEs sent that no answer has covered. Counted as in flight.
    pub(crate) sent: u32,
    /// RDMA_DONEs that an answer has covered, modulo 2^32.
    covered: u32,
}

impl Dones {
    pub(crate) const NONE: Self = Self { owed: 0, sent: 0, covered: 0 };

    /// Number of RDMA_DONEs sent, modulo 2^32.
    #[inline]
    pub(crate) const fn total(&self) -> u32 {
        self.covered.wrapping_add(self.sent)
    }
}

impl Credits {
    /// Credits in flight that RDMA_DONEs hold.
    pub const fn dones(&self) -> u32 {
        self.dones.owed + self.dones.sent
    }

    #[cold]
    pub(crate) const fn has_only_sent_dones(&self) -> bool {
        self.in_flight() == self.dones.sent
    }

    /// A reply came that has to be fetched: its credit stays, for RDMA_DONE.
    #[cold]
    pub(crate) fn owe_done(&mut self, granted: u32) {
        self.granted = granted.min(self.requested).max(self.least);
        self.dones.owed += 1;
    }

    #[cold]
    pub(crate) fn spend_done(&mut self) {
        self.dones.owed = self.dones.owed.saturating_sub(1);
        self.dones.sent += 1;
    }

    /// An answer came to a call that left after `dones_total` RDMA_DONEs.
    #[cold]
    pub(crate) fn cover_sent(&mut self, dones_total: u32) {
        let news = dones_total.wrapping_sub(self.dones.covered);
        // Not of an older call, whose answer says nothing new.
        if news <= self.dones.sent {
            self.dones.covered = dones_total;
            self.dones.sent -= news;
            self.in_flight = self.in_flight.saturating_sub(news);
        }
    }
}
