//! Reminders of a connection's first message (iWARP): a few bytes behind it, until the peer speaks.
//!
//! Linux's siw takes over the socket of a connection that it accepts only after its answer has
//! left. A first message that arrives earlier stays unread until more bytes come, and an RPC client
//! that waits for its reply does not send any. Therefore the side that connected repeats a Write of
//! no bytes for some seconds. Such a Write changes nothing at the peer and is not a message (RFC
//! 5040 section 5.1). For sockets and for devices.

use super::QpId;
use std::time::{Duration, Instant};

/// Wait for the peer's first message before the first reminder, and twice as long before each
/// further one. Peers at work answer sooner.
pub(crate) const FIRST_WAIT: Duration = Duration::from_millis(10);

/// The last is sent after five seconds: by then a peer's kernel that lives has its socket.
const COUNT: u8 = 9;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reminder {
    pub(crate) qp: QpId,
    at: Instant,
    wait: Duration,
    left: u8,
}

impl Reminder {
    pub(crate) fn new(qp: QpId, now: Instant) -> Self {
        Self { qp, at: now + FIRST_WAIT, wait: FIRST_WAIT, left: COUNT }
    }

    /// True if a reminder is due; schedules the next one.
    pub(crate) fn take_due(&mut self, now: Instant) -> bool {
        if now < self.at || self.is_over() {
            return false;
        }
        self.wait *= 2;
        self.at = now + self.wait;
        self.left -= 1;
        true
    }

    /// Time of the next reminder.
    pub(crate) fn at(&self) -> Instant {
        self.at
    }

    pub(crate) fn is_over(&self) -> bool {
        self.left == 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Have the peer say nothing. Expect reminders after 10, 30, 70 ms and so on, the last of them
    /// after five seconds.
    #[test]
    fn a_silent_peer_is_reminded_ever_more_rarely_and_then_no_more() {
        let start = Instant::now();
        let mut reminder = Reminder::new(QpId::new(3, 1), start);
        let is_due = |ms: &u64| reminder.take_due(start + Duration::from_millis(*ms));
        let due: Vec<u64> = (0..20_000).filter(is_due).collect();
        assert_eq!(due, [10, 30, 70, 150, 310, 630, 1270, 2550, 5110]);
        assert!(reminder.is_over());
    }

    /// Look long after the time of several. Expect one.
    #[test]
    fn reminders_that_were_missed_are_not_sent_at_once() {
        let start = Instant::now();
        let mut reminder = Reminder::new(QpId::new(3, 1), start);
        let late = start + Duration::from_secs(1);
        assert!(reminder.take_due(late));
        assert!(!reminder.take_due(late));
    }
}
