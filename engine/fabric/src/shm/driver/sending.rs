//! Sends that could not be made at once: send queues, doorbells, and memory that peers fetch.

use super::super::super::DownCause;
use super::super::copy_order::FETCH_COST_BYTES;
use super::super::queue_pair::{Progress, QueuePair};
use super::ShmFabric;
use crate::sync::atomic::{Ordering, fence};

impl ShmFabric {
    /// Goes on with the send queues. They share what the orders of this turn have left of its budget. Copies take long:
    /// peers that sleep are woken first, for what has been sent already.
    #[cold]
    pub(super) fn progress_waiting(&mut self) {
        self.ring_bells();
        let mut at = 0;
        while let Some(place) = self.waiting.get(at).copied() {
            let share = self.copy_share(self.waiting.len() - at);
            match self.progress(place, share) {
                Ok(Progress::Waiting) => at += 1,
                Ok(Progress::Empty) => self.stop_waiting(at, place),
                // Takes it off the list, too.
                Err(cause) => self.take_down(place, cause),
            }
        }
        // Turns that end early flush without a poll.
        self.copied = 0;
        self.note_waiting();
    }

    pub(super) fn note_waiting(&self) {
        self.listed.waits.set(!self.waiting.is_empty());
    }

    /// Equal part of one connection in the bytes that may still be copied in this turn, where `sharers` want some: a peer
    /// with endless orders or long transfers does not delay others. Each has a little in any case, so that none starves.
    pub(super) fn copy_share(&self, sharers: usize) -> usize {
        // More where no other connection could wait for the end of a copy, not even one that is silent now.
        let budget = match self.live.len() {
            0 | 1 => self.config.copy_bytes_alone,
            _ => self.config.copy_bytes_per_flush,
        };
        (budget.saturating_sub(self.copied) / sharers.max(1)).max(FETCH_COST_BYTES)
    }

    fn progress(&mut self, place: u32, budget: usize) -> Result<Progress, DownCause> {
        let pair = self.places.get_mut(place as usize).and_then(|place| place.pair.as_deref_mut());
        let Some(pair) = pair else { return Ok(Progress::Empty) };
        pair.short_endpoint.note_sent();
        let mut left = budget;
        let progress = pair.progress(&mut self.done, &mut left);
        self.copied += budget - left;
        // A peer that does not read has its queue come here in each turn: that alone is nothing to poll for.
        if !self.done.is_empty() {
            self.listed.news.set(true);
        }
        if !pair.lent.is_empty() && !self.lending.contains(&place) {
            self.lending.push(place);
        }
        progress
    }

    pub(super) fn release_fetched(&mut self) {
        let mut at = 0;
        while let Some(place) = self.lending.get(at).copied() {
            match self.pair_at(place).map_or(Ok(false), QueuePair::release_fetched) {
                Ok(true) => at += 1,
                Ok(false) => {
                    self.lending.swap_remove(at);
                }
                // Takes it off the list, too.
                Err(cause) => self.take_down(place, cause),
            }
        }
    }

    fn stop_waiting(&mut self, at: usize, place: u32) {
        self.waiting.swap_remove(at);
        if let Some(pair) = self.pair_at(place) {
            pair.waiting = false;
        }
    }

    /// One fence for all that was sent.
    #[inline]
    pub(super) fn ring_bells(&mut self) {
        if self.has_sent_nothing() {
            return;
        }
        // Pairs with the fence of the peer's `go_idle`.
        fence(Ordering::SeqCst);
        while let Some(place) = self.listed.sent.pop() {
            let Some(ends) = self.ends_at(place) else { continue };
            if !ends.take_sent() {
                self.ring_or_take_down(place);
            }
        }
    }

    /// Only the connection that was alone is listed, and has sent nothing since: then the list is cleared.
    #[inline]
    fn has_sent_nothing(&mut self) -> bool {
        let Some(place) = self.listed.sent.only() else { return false };
        let Some(ends) = self.ends_at(place) else { return false };
        let has_sent_nothing = ends.forget_unless_sent();
        if has_sent_nothing {
            self.listed.sent.pop();
        }
        has_sent_nothing
    }

    #[cold]
    fn ring_or_take_down(&mut self, place: u32) {
        let Some(pair) = self.pair_at(place) else { return };
        match pair.short_endpoint.take_broken() {
            Some(broken) => self.take_down(place, broken.into()),
            None => pair.link.theirs.bell.ring(pair.link.peer_place),
        }
    }
}
