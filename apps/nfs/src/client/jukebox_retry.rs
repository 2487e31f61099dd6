//! Retries after NFS3ERR_JUKEBOX: "wait, and then try again" (RFC 1813 section 2.6).

use super::connection::Connection;
use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

pub(super) struct Patience {
    left: Duration,
    next: Duration,
}

impl Patience {
    pub(super) fn new(whole: Duration) -> Self {
        Self { left: whole, next: FIRST_PAUSE }
    }

    /// Waits before another attempt; returns `false` without waiting when the time is used up.
    pub(super) fn pause(&mut self, connection: &impl Connection) -> bool {
        if self.left.is_zero() {
            return false;
        }
        let pause = self.next.min(self.left);
        connection.pause(pause);
        self.left -= pause;
        self.next = (self.next * 2).min(LONGEST_PAUSE);
        true
    }
}
