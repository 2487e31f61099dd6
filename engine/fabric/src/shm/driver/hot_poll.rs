//! Looks at hot connections, for short messages: the driver's `next_short` begins here, and its polls share the place at
//! which the next look begins.

use super::super::super::{NextShort, Short};
use super::super::short_endpoint::{Found, QUICK_LOOKS, ShmShortEndpoint};
use super::{QUICK_HOT_MAX, ShmFabric};
use std::rc::Rc;

impl ShmFabric {
    /// Each hot connection is looked at once per turn.
    #[inline(always)]
    pub(super) fn next_of_hot(&mut self, message: &mut Short) -> Option<NextShort> {
        loop {
            while self.looks_left > 0 {
                let Some(endpoint) = self.hot.get(self.hot_at) else { break };
                match endpoint.look(message) {
                    Found::Short { goes_on } => {
                        endpoint.empty_looks.set(0);
                        let qp = endpoint.id;
                        self.scan_is_over = true;
                        self.look_at_next();
                        return Some(NextShort { qp, goes_on, is_last: self.looks_left == 0 });
                    }
                    Found::Nothing => {
                        endpoint.set_burst(false);
                        let looks = endpoint.empty_looks.get() + 1;
                        endpoint.empty_looks.set(looks);
                        match looks > self.idle_polls {
                            true => self.pass_idle(),
                            false => self.look_at_next(),
                        }
                    }
                    Found::Other => self.pass_long(),
                }
            }
            if self.scan_is_over || !self.wait_a_little() {
                return None;
            }
        }
    }

    #[inline(always)]
    fn look_at_next(&mut self) {
        self.looks_left -= 1;
        self.hot_at += 1;
        self.keep_in_hot();
    }

    #[cold]
    fn pass_idle(&mut self) {
        let left = self.looks_left.saturating_sub(1);
        if !self.cool(self.hot_at) {
            return self.look_at_next();
        }
        // Another one has taken its place, and has its look.
        self.looks_left = left.min(self.hot.len());
    }

    #[inline(always)]
    pub(super) fn keep_in_hot(&mut self) {
        if self.hot_at >= self.hot.len() {
            self.hot_at = 0;
        }
    }

    #[cold]
    fn pass_long(&mut self) {
        self.scan_is_over = true;
        if let Some(endpoint) = self.hot.get(self.hot_at) {
            endpoint.note_long();
        }
        self.look_at_next();
    }

    /// Polls the hot connections a few more times when the scan found nothing. Most turns are empty, and a
    /// message waits as long as such a turn takes. Returns true if the caller must scan again.
    #[inline(never)]
    fn wait_a_little(&mut self) -> bool {
        self.scan_is_over = true;
        let arrived = self.takes_shorts && self.look_quickly();
        self.looks_left = if arrived { self.hot.len() } else { 0 };
        arrived
    }

    pub(super) fn look_quickly(&self) -> bool {
        let is_here = |endpoint: &Rc<ShmShortEndpoint>| endpoint.rx.has_arrival();
        self.hot.len() <= QUICK_HOT_MAX && (0..QUICK_LOOKS).any(|_| self.hot.iter().any(is_here))
    }
}
