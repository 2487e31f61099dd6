//! The RDMA Reads that both ends offer, and agree on.

use super::config::VerbsConfig;
use super::device::DeviceCaps;

/// RDMA Reads that may be outstanding, in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reads {
    /// Reads from this side (ORD).
    pub(super) out: u8,
    /// Reads at this side (IRD).
    pub(super) at: u8,
}

impl Reads {
    /// At least one at this side: a server that fetches Read chunks refuses a connection on which it could not.
    pub(super) fn offered(config: &VerbsConfig, caps: &DeviceCaps) -> Self {
        Self {
            out: config.reads_out_max.min(caps.reads_out_max),
            at: config.reads_in_max.min(caps.reads_in_max).max(1),
        }
    }

    /// Answer of an accepting side to the offer of the `peer`, as seen by the peer.
    pub(super) fn accepted(self, peer: Self) -> Self {
        Self { out: self.out.min(peer.at), at: self.at.min(peer.out) }
    }

    /// Of the two numbers in the answer an iWARP driver reports either the peer's or a combination
    /// of both, in one order or the other: the smaller one is right for all.
    pub(super) fn agreed(self, peer: Self, is_iwarp: bool) -> Self {
        let at = if is_iwarp { peer.at.min(peer.out) } else { peer.at };
        Self { out: self.out.min(at), at: self.at }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::device::tests::caps;
    use super::*;

    #[test]
    fn no_more_is_offered_than_the_device_can_do_and_one_read_at_least() {
        let config = VerbsConfig { reads_out_max: 32, reads_in_max: 0, ..VerbsConfig::default() };
        assert_eq!(Reads::offered(&config, &caps()), Reads { out: 16, at: 1 });
    }

    #[test]
    fn each_direction_has_the_lesser_of_both_sides() {
        let own = Reads { out: 16, at: 8 };
        assert_eq!(own.accepted(Reads { out: 4, at: 2 }), Reads { out: 2, at: 4 });
        // A client that takes no RDMA Read is sent none.
        assert_eq!(own.accepted(Reads { out: 0, at: 0 }), Reads { out: 0, at: 0 });
        assert_eq!(own.agreed(Reads { out: 9, at: 2 }, false), Reads { out: 2, at: 8 });
    }

    #[test]
    fn an_iwarp_answer_is_taken_for_the_lesser_of_its_numbers() {
        let own = Reads { out: 16, at: 16 };
        assert_eq!(own.agreed(Reads { out: 1, at: 16 }, true).out, 1);
        assert_eq!(own.agreed(Reads { out: 16, at: 1 }, true).out, 1);
    }
}
