//! The grant of a responder while it changes (RFC 5666 section 3.3): "The value MAY be adjusted up or
//! down at each opportunity to match the server's needs or policies."
//!
//! A grant takes effect when the requester has received the reply with it, which the responder never
//! learns. It can tell what the requester may have sent, however. A requester that has received
//! `k` replies, the last of which granted `g`, has sent at most `k + g` calls, or what it might send
//! before. The largest `k + g` of all replies is therefore the number of the last call that can come:
//! an *edge*, like the right edge of the window of TCP, which never moves back. A reply with the same
//! grant as before moves it by one. After a reply with a smaller grant it stays, until as many more
//! replies have been sent as the grant has fallen by. So a receive is not needed any more once its
//! call was answered by a reply that did not move the edge, and never before: a requester that is silent
//! keeps what it was granted last.
//!
//! A call beyond the edge is refused, as one without a slot is: "The RPC client MUST NOT send unacknowledged requests in
//! excess of this granted RPC server credit limit" (section 3.3). Otherwise a requester that ignores a smaller grant could
//! keep its receives for as long as it has calls in progress.
//!
//! Calls that are refused, and so have no slot, are in none of the numbers here: neither they nor their
//! answers. This makes the edge look further away than it is, never closer.

use crate::output::Output;
use crate::responder::{Responder, SLOTS_MAX, ServeSlot};

impl<S: AsRef<[ServeSlot]> + AsMut<[ServeSlot]>> Responder<S> {
    /// The same with another grant at the start, at most one per slot. The caller changes it with
    /// [`Responder::set_grant`]. Not for responders whose replies are fetched
    /// ([`Responder::with_exports`]): their grant follows from what is owed.
    #[must_use]
    pub fn granting(mut self, credits: u32) -> Self {
        self.grant = credits.clamp(1, self.largest_grant());
        self.is_changing = true;
        self
    }

    /// Sets the grant of the replies from now on: at least one, "since such a value would result in
    /// deadlock", and at most one per slot. For a larger one, the caller has the receives already.
    pub fn set_grant(&mut self, credits: u32) {
        self.edge = self.edge();
        self.is_changing = true;
        self.grant = credits.clamp(1, self.largest_grant());
    }

    /// Receives that the calls of the requester need: those that hold a call in progress, and one for each
    /// call that may still come by what was granted.
    pub fn receives(&self) -> u32 {
        let to_come = u32::try_from(self.edge().saturating_sub(self.answered()));
        to_come.unwrap_or(u32::MAX).max(self.in_progress())
    }

    /// Asks for a look at the grant ([`Output::look_at_grant`]) after this number of further calls, and if
    /// `may_rise`, as soon as calls in progress use all of the grant. Changes [`Responder::has_slot`].
    pub fn look_after(&mut self, calls: Option<u32>, may_rise: bool) {
        self.look_at = calls.map_or(u64::MAX, |calls| self.calls_taken() + u64::from(calls));
        self.may_rise = may_rise;
    }

    /// True if the caller has asked to look at the grant by now.
    #[inline]
    pub fn is_look_due(&self) -> bool {
        let is_used = self.may_rise && self.in_progress() >= self.grant;
        self.is_changing && (is_used || self.calls_taken() >= self.look_at)
    }

    /// After a call: asks for a look at the grant if one is due.
    #[inline]
    pub(crate) fn ask_for_look(&self, out: &mut impl Output) {
        if self.is_look_due() {
            out.look_at_grant();
        }
    }

    /// True if a further call would be one that no grant lets the requester send. For responders whose grant changes.
    #[cold]
    pub(crate) fn is_spent(&self) -> bool {
        self.in_progress() >= self.grant && self.calls_taken() >= self.edge
    }

    /// True if the number of calls matters: for a look at the grant, or because as many as are granted are in progress.
    pub(crate) fn counts_each(&self) -> bool {
        self.may_rise || self.look_at != u64::MAX || self.in_progress() >= self.grant
    }

    fn edge(&self) -> u64 {
        self.edge.max(self.answered() + u64::from(self.grant))
    }

    /// Calls that have been answered. A plain call that gets a slot is counted later than its slot.
    fn answered(&self) -> u64 {
        self.calls_taken().saturating_sub(u64::from(self.in_progress()))
    }

    fn largest_grant(&self) -> u32 {
        (self.slots.as_ref().len().min(SLOTS_MAX) as u32).max(1)
    }
}
