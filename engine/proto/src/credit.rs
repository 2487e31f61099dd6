//! Credit accounting of one direction of a connection (RFC 5666 section 3.3, RFC 8166 section
//! 3.3.1). Used by the requester; the responder only states its grant.
//!
//! "The RPC client MUST account for its required Done messages to the server in its accounting of
//! available credits" (RFC 5666 section 3.8), which leaves open when such a credit comes back.
//! Here, the credit of a call whose reply has to be fetched stays taken for its RDMA_DONE. It comes
//! back with the first answer to a call that was sent after that RDMA_DONE. As Sends arrive in
//! order, the responder had taken the RDMA_DONE by then and posted its receive again, so that calls
//! and RDMA_DONEs together never need more receives than were granted. There is one exception,
//! because an RDMA_DONE is never answered: while only sent RDMA_DONEs hold credits, one call may be
//! sent, as "an RPC server MUST always provide at least one credit to each connected RPC client
//! from which no requests are outstanding" (section 3.3).

use crate::rfc5666::dones::Dones;

/// The requester's view: credits requested, granted, and in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits {
    pub(crate) requested: u32,
    pub(crate) granted: u32,
    pub(crate) in_flight: u32,
    /// The least that counts as granted: one call beside what is held back.
    pub(crate) least: u32,
    pub(crate) dones: Dones,
    /// Credits of calls that are not sent yet. Counted as in flight.
    reserved: u32,
}

impl Credits {
    /// A new connection: exactly one credit until the first reply (RFC 8166 section 3.3.3).
    /// `requested` is the number that every call asks for; zero is raised to one.
    pub const fn new(requested: u32) -> Self {
        let requested = if requested == 0 { 1 } else { requested };
        Self { requested, granted: 1, in_flight: 0, least: 1, dones: Dones::NONE, reserved: 0 }
    }

    /// The same, with calls in one grant less `credits`, at least one. An answer to a call in reverse needs no credit (RFC 8167
    /// section 4.2), as whoever calls has a receive for it on top of its grant. The NFS server of Linux has none on top: it
    /// posts receives again when fewer are left than it grants, and an answer beside as many calls breaks the connection. They
    /// are in flight from the first, so that no reply costs more for it.
    #[must_use]
    pub(crate) const fn holding_back(mut self, credits: u32) -> Self {
        self.least = 1 + credits;
        self.granted = self.least;
        self.in_flight = credits;
        self
    }

    const fn held_back(&self) -> u32 {
        self.least - 1
    }

    /// Those of the next connection.
    pub(crate) const fn renewed(&self) -> Self {
        Self::new(self.requested).holding_back(self.held_back())
    }

    /// The credit word of our calls.
    #[inline]
    pub const fn requested(&self) -> u32 {
        self.requested
    }

    /// The peer's newest grant, less what is held back, clamped to what was requested and never zero.
    #[inline]
    pub const fn granted(&self) -> u32 {
        self.granted - self.held_back()
    }

    /// Credits in use: calls sent whose reply has not arrived, and RDMA_DONEs, owed or sent.
    #[inline]
    pub const fn in_flight(&self) -> u32 {
        self.in_flight - self.held_back()
    }

    /// True if one more call may be sent: "The RPC client MUST NOT send unacknowledged requests in
    /// excess of this granted RPC server credit limit" (RFC 5666 section 3.3).
    #[inline]
    pub const fn available(&self) -> bool {
        self.in_flight < self.granted || self.has_only_sent_dones()
    }

    /// Number of RDMA_DONEs sent, modulo 2^32. Each call records it when it is sent.
    #[inline]
    pub const fn dones_total(&self) -> u32 {
        self.dones.total()
    }

    /// One call leaves. The caller has checked [`Credits::available`].
    #[inline]
    pub fn spend(&mut self) {
        debug_assert!(self.available(), "a call was sent without a credit");
        self.in_flight += 1;
    }

    /// The credit that was spent last is that of a call to be sent later.
    #[cold]
    pub(crate) fn reserve(&mut self) {
        self.reserved += 1;
    }

    /// True if a call that has a credit may be sent: the peer may have lowered its grant since, so that calls sent before
    /// it take all that there is.
    #[cold]
    pub(crate) const fn lets_reserved(&self) -> bool {
        let sent = self.in_flight().saturating_sub(self.reserved);
        sent < self.granted() || sent == self.dones.sent
    }

    /// Such a call leaves.
    #[cold]
    pub(crate) fn spend_reserved(&mut self) {
        self.reserved = self.reserved.saturating_sub(1);
    }

    /// Such a call ends.
    #[cold]
    pub(crate) fn end_reserved(&mut self) {
        self.spend_reserved();
        self.ended();
    }

    /// A reply came with a new grant: a grant of zero counts as one (a peer's known bug), one above
    /// our request as our request. One call may always be sent.
    #[inline]
    pub fn replied(&mut self, granted: u32) {
        // Not `clamp`, whose check of the bounds is a call from here.
        self.granted = granted.min(self.requested).max(self.least);
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// An answer came to a call that left after `dones_total` RDMA_DONEs.
    #[inline]
    pub(crate) fn cover(&mut self, dones_total: u32) {
        if self.dones.sent > 0 {
            self.cover_sent(dones_total);
        }
    }

    /// A reply is kept, and with it the receive that it came in: its credit stays taken, because a
    /// requester has a receive posted for every reply that it expects (RFC 8166 section 3.3.1).
    #[cold]
    pub fn keep(&mut self) {
        self.in_flight += 1;
    }

    /// The receive of a reply that was kept is posted again.
    #[cold]
    pub fn release(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// A call ended without a credit word that counts: RDMA_ERROR.
    #[inline]
    pub fn ended(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }
}
