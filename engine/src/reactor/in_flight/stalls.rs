//! Time limit of posted requests: one timer for every fabric.
//!
//! A Send, a Write or a Read holds memory of this side until the peer lets it complete, and a peer may retry for ever
//! ("infinite" RNR retries), answer no Read, or fetch nothing. The timer looks at all connections a few times within
//! the limit; no message pays for it.

use spinrpc_proto::ids::Instant;
use std::ops::Range;

/// Looks within the limit: a connection ends at most a part of it too late.
const LOOKS: usize = 4;

/// Times at which a core looks at its connections.
pub(in crate::reactor) struct StallTimer {
    limit_ticks: u64,
    /// The next look; none while there is no connection.
    next: Instant,
}

impl StallTimer {
    pub(in crate::reactor) fn new(limit_ticks: u64) -> Self {
        Self { limit_ticks, next: Instant(u64::MAX) }
    }

    /// Time of the next look.
    pub(in crate::reactor) fn next(&self) -> Instant {
        self.next
    }

    /// There is a connection to look at. Returns the time of the next look.
    pub(in crate::reactor) fn begin(&mut self, now: Instant) -> Instant {
        self.next =
            self.next.min(Instant(now.0.saturating_add(self.limit_ticks.div_ceil(LOOKS as u64))));
        self.next
    }

    /// Returns true if a look is due. Another one follows only after [`StallTimer::begin`].
    pub(in crate::reactor) fn take_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next;
        if is_due {
            self.next = Instant(u64::MAX);
        }
        is_due
    }
}

/// Outstanding requests of a connection at the last looks, by their numbers
/// ([`Fabric::outstanding`](crate::fabric::Fabric::outstanding)). Looks are counted, and not the time: while this process is
/// stopped, completions wait for it, which is not the peer's fault.
#[derive(Default)]
pub(in crate::reactor) struct Outstanding {
    /// First number and end at each look, the last one first; 0 where nothing was outstanding.
    looks: [(u64, u64); LOOKS],
}

impl Outstanding {
    /// Notes the outstanding requests at a look. Returns true if less than a quarter of those completed that were
    /// outstanding before a time as long as the limit. A peer that takes one at a time holds the memory of all; one at the
    /// end of a slow link, which others share, does not get all of them so soon.
    pub(in crate::reactor) fn is_stalled(&mut self, numbers: Option<Range<u64>>) -> bool {
        let Range { start: oldest, end } = numbers.unwrap_or_default();
        if end == 0 || oldest < self.looks[0].0 {
            // Nothing is outstanding, or requests are counted from another number.
            *self = Self::default();
        }
        let (oldest_before, end_before) = self.looks[LOOKS - 1];
        self.looks.rotate_right(1);
        self.looks[0] = (oldest, end);
        let completed = oldest.saturating_sub(oldest_before);
        oldest < end_before && completed.saturating_mul(4) < end_before - oldest_before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At which of the looks a connection with these requests is stalled.
    fn stalled(looks: impl IntoIterator<Item = Option<Range<u64>>>) -> Vec<usize> {
        let mut outstanding = Outstanding::default();
        let stalled = looks.into_iter().map(|numbers| outstanding.is_stalled(numbers));
        stalled.enumerate().filter_map(|(look, is_stalled)| is_stalled.then_some(look)).collect()
    }

    #[test]
    fn a_request_is_stalled_when_it_does_not_complete_within_the_limit() {
        assert_eq!(stalled([const { Some(0..1) }; 5]), [4]);
        let one_then_another = [Some(0..1), Some(0..1), Some(1..2), Some(1..2), Some(1..2)];
        assert_eq!(stalled(one_then_another.into_iter().chain([const { Some(1..2) }; 2])), [6]);
        assert!(
            stalled((0..9).map(|look| (look % 4 > 0).then_some(1..2))).is_empty(),
            "idle between"
        );
    }

    #[test]
    fn a_quarter_of_the_requests_has_to_complete_within_the_limit() {
        // One of 64 completes between two looks, or three, or four.
        assert_eq!(stalled((0..6).map(|look| Some(look..64))), [4, 5]);
        assert_eq!(stalled((0..6).map(|look| Some(3 * look..64 + 3 * look))), [4, 5]);
        assert!(stalled((0..9).map(|look| Some(4 * look..64 + 4 * look))).is_empty());
        // All of them do, and there are others.
        assert!(stalled((0..9).map(|look| Some(64 * look..64 * look + 65))).is_empty());
        // The requests of the first looks complete in time.
        assert!(stalled((0..9).map(|look| Some(8 * look..8 * look + 31))).is_empty());
    }

    #[test]
    fn requests_that_are_counted_from_another_number_have_the_whole_limit() {
        let other = (1 << 63)..(1 << 63) + 1;
        let looks =
            [Some(5..9), Some(other.clone()), Some(other), Some(5..9), Some(5..9), Some(5..9)];
        assert!(stalled(looks).is_empty());
    }

    #[test]
    fn looks_go_on_while_there_are_connections() {
        let mut timer = StallTimer::new(100);
        assert!(!timer.take_due(Instant(5000)));
        assert_eq!(timer.begin(Instant(1000)), Instant(1025));
        assert_eq!(timer.begin(Instant(1010)), Instant(1025), "a later connection changes nothing");
        assert!(!timer.take_due(Instant(1024)) && timer.take_due(Instant(1025)));
        assert!(!timer.take_due(Instant(u64::MAX - 1)));
    }
}
