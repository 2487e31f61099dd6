//! Sizes of pools: sums of named holders, one line each.
//!
//! A pool that is one buffer short stops a connection for good, so nothing here is a guess: every
//! buffer has a holder that can be named. All counts are per connection.

/// Receives of one connection that a driver may post behind the sends of the same flush.
pub const RECVS_BEHIND_MAX: u32 = 1;

/// Receive buffers of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvBudget {
    /// Calls and replies that our grants and our own calls let the peer send.
    pub credits: u32,
    /// Messages of the reverse direction.
    pub reverse: u32,
    /// Those that a driver posts behind sends: [`RECVS_BEHIND_MAX`].
    pub behind_sends: u32,
    /// A call beyond the credits, from a client that gave up an earlier one; it gets an error.
    pub slack: u32,
    /// RDMA_DONEs, of peers that do not count them among their credits (section 3.8).
    pub dones: u32,
}

/// Send buffers of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendBudget {
    /// Replies in flight: one for each credit granted.
    pub replies: u32,
    /// Calls in flight: one for each slot of the requester.
    pub calls: u32,
    /// RDMA_ERROR messages in flight.
    pub errors: u32,
    /// RDMA_DONE messages in flight.
    pub dones: u32,
    /// Messages that are sent, which the driver has not said yet: it does for several at a time.
    pub unreported: u32,
}

/// A sum of named holders.
pub trait Budget {
    /// Each holder with its count, as they stand in the type.
    fn explain(&self) -> impl Iterator<Item = (&'static str, u32)>;

    /// Buffers of one connection.
    fn total(&self) -> u64 {
        self.explain().map(|(_, count)| u64::from(count)).sum()
    }
}

impl Budget for RecvBudget {
    fn explain(&self) -> impl Iterator<Item = (&'static str, u32)> {
        let Self { credits, reverse, behind_sends, slack, dones } = *self;
        [
            ("credits", credits),
            ("reverse", reverse),
            ("behind_sends", behind_sends),
            ("slack", slack),
            ("dones", dones),
        ]
        .into_iter()
    }
}

impl Budget for SendBudget {
    fn explain(&self) -> impl Iterator<Item = (&'static str, u32)> {
        let Self { replies, calls, errors, dones, unreported } = *self;
        [
            ("replies", replies),
            ("calls", calls),
            ("errors", errors),
            ("dones", dones),
            ("unreported", unreported),
        ]
        .into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECV: RecvBudget =
        RecvBudget { credits: 32, reverse: 4, behind_sends: 1, slack: 2, dones: 0 };
    const SEND: SendBudget =
        SendBudget { replies: 32, calls: 64, errors: 2, dones: 1, unreported: 0 };

    #[test]
    fn a_budget_is_the_sum_of_its_holders() {
        assert_eq!(RECV.total(), 39);
        assert_eq!(SEND.total(), 99);
        let explained: Vec<_> = RECV.explain().collect();
        let expected =
            [("credits", 32), ("reverse", 4), ("behind_sends", 1), ("slack", 2), ("dones", 0)];
        assert_eq!(explained, expected);
        let sum: u64 = SEND.explain().map(|(_, count)| u64::from(count)).sum();
        assert_eq!(sum, SEND.total());
    }

    #[test]
    fn sums_beyond_32_bits_do_not_wrap() {
        let huge = RecvBudget { credits: u32::MAX, reverse: u32::MAX, ..RECV };
        assert_eq!(huge.total(), 2 * u64::from(u32::MAX) + 3);
    }
}
