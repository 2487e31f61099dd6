//! Sizes of pools: sums of named holders.
//!
//! A pool that is one buffer short stops a connection for good, so nothing here is a guess: every
//! buffer has a holder that can be named. All counts are per connection.

/// Receives of one connection that a driver may post behind the sends of the same flush.
pub const RECVS_BEHIND_MAX: u32 = 1;

/// Message buffers of one connection: their holders, each with its count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget(pub [(&'static str, u32); 5]);

impl Budget {
    /// Buffers of one connection.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|(_, count)| u64::from(*count)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_the_sum_of_its_holders_and_does_not_wrap() {
        let budget =
            Budget([("calls", u32::MAX), ("replies", u32::MAX), ("slack", 3), ("", 0), ("", 0)]);
        assert_eq!(budget.total(), 2 * u64::from(u32::MAX) + 3);
    }
}
