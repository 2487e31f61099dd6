//! Credit accounting of one direction of a connection (RFC 5666 section 3.3, RFC 8166 section
//! 3.3.1). Used by the requester; the responder only states its grant.

/// The requester's view: what it asked for, what it was granted, what is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits {
    requested: u32,
    granted: u32,
    in_flight: u32,
}

impl Credits {
    /// A new connection: exactly one credit until the first reply (RFC 8166 section 3.3.3).
    /// `requested` is what every call will ask for; zero is raised to one.
    pub const fn new(requested: u32) -> Self {
        let requested = if requested == 0 { 1 } else { requested };
        Self { requested, granted: 1, in_flight: 0 }
    }

    /// The credit word of our calls.
    #[inline]
    pub const fn requested(&self) -> u32 {
        self.requested
    }

    /// The peer's newest grant, clamped to what was requested and never zero.
    #[inline]
    pub const fn granted(&self) -> u32 {
        self.granted
    }

    /// Calls sent whose reply has not arrived.
    #[inline]
    pub const fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Whether one more call may be sent: "The RPC client MUST NOT send unacknowledged requests in
    /// excess of this granted RPC server credit limit" (RFC 5666 section 3.3).
    #[inline]
    pub const fn available(&self) -> bool {
        self.in_flight < self.granted
    }

    /// One call leaves. The caller has checked [`Credits::available`].
    #[inline]
    pub fn spend(&mut self) {
        debug_assert!(self.available(), "a call was sent without a credit");
        self.in_flight += 1;
    }

    /// A reply came with a new grant: a grant of zero counts as one (a peer's known bug), one above
    /// our request as our request.
    #[inline]
    pub fn replied(&mut self, granted: u32) {
        self.granted = granted.clamp(1, self.requested);
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// A call ended without a credit word that counts: RDMA_ERROR.
    #[inline]
    pub fn ended(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_connection_has_exactly_one_credit() {
        let mut credits = Credits::new(32);
        assert!(credits.available());
        credits.spend();
        assert!(!credits.available());
    }

    #[test]
    fn receive_a_grant_expect_it_clamped_to_one_and_to_the_request() {
        let mut credits = Credits::new(8);
        credits.spend();
        credits.replied(0);
        assert_eq!(credits.granted(), 1);
        credits.spend();
        credits.replied(1000);
        assert_eq!(credits.granted(), 8);
    }

    #[test]
    fn a_lowered_grant_stops_new_calls_until_replies_come() {
        let mut credits = Credits::new(8);
        credits.spend();
        credits.replied(8);
        for _ in 0..8 {
            credits.spend();
        }
        credits.replied(4);
        assert_eq!(credits.in_flight(), 7);
        assert!(!credits.available());
        for _ in 0..4 {
            credits.replied(4);
        }
        assert!(credits.available());
    }

    #[test]
    fn a_request_of_zero_is_never_sent() {
        assert_eq!(Credits::new(0).requested(), 1);
    }
}
