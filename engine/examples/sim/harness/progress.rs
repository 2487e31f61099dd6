//! Times at which a long run tells how far it is.

use std::time::Duration;

/// Every two seconds on a terminal. A file, which is read later, gets a line per minute.
pub(crate) struct Progress {
    every: Duration,
    next: Duration,
}

impl Progress {
    /// Progress that goes to a terminal, or to a file.
    pub(crate) fn new(is_terminal: bool) -> Self {
        let every = Duration::from_secs(if is_terminal { 2 } else { 60 });
        Self { every, next: every }
    }

    /// Returns whether a line is due so long after the start. The next one is due an interval later.
    pub(crate) fn is_due(&mut self, elapsed: Duration) -> bool {
        let is_due = elapsed >= self.next;
        if is_due {
            self.next = elapsed + self.every;
        }
        is_due
    }
}
