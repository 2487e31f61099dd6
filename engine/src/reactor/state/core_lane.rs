//! The part of the lane that all connections of a core share: memory in which messages are encoded, the call that is being served,
//! and what is counted and timed without a look at the rest of the core.

use crate::fabric::ConnId;
use crate::mem::Buf;
use crate::reactor::types::encode_buffer::MessageMemory;
use crate::reactor::types::stats::StatsSnapshot;
use crate::sys::clock::{Clock, Ticks};
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::ids::Instant;
use std::cell::{Cell, RefCell};

/// See the module.
pub(in crate::reactor) struct CoreLane {
    /// The driver sends messages by value, and nothing in them is ever padded.
    takes_calls: bool,
    /// Nothing in replies is ever padded, so that they need not be drafted.
    takes_replies: bool,
    /// The driver sends messages by value, so that a short one in a receive is handled as one that comes by value.
    takes_received: bool,
    /// The driver never hands out a short message by value: a turn begins with its poll.
    polls_first: bool,
    /// The receive of the message that is handled, if it came in one; empty between messages.
    receive: Cell<Option<Buf>>,
    /// Padding in messages of connections that have it.
    alignment: Alignment,
    call: RefCell<MessageMemory>,
    reply: RefCell<MessageMemory>,
    /// The connection whose call is being served.
    serving: Cell<Option<ConnId>>,
    /// It is to be closed when that call is answered.
    closing: Cell<Option<ConnId>>,
    /// Number of the turn: odd within it, even after it.
    turn: Cell<u32>,
    /// Start of the first call of the turn, within a turn: the deadlines of its other calls count from then, too.
    stamp: Cell<Option<Ticks>>,
    /// Read by calls that start; none where the driver simulates time.
    clock: Option<Clock>,
    default_timeout_ticks: u64,
    /// The earliest deadline of a call that was sent here since the core last read it.
    next_deadline: Cell<Instant>,
    counts: LaneCounts,
}

/// Messages sent and received here that are not in the statistics yet.
#[derive(Default)]
pub(in crate::reactor) struct LaneCounts {
    calls_sent: Cell<u64>,
    replies_received: Cell<u64>,
    calls_received: Cell<u64>,
    replies_sent: Cell<u64>,
    bytes_inline: Cell<u64>,
}

/// Adds to a counter of the lane; the statistics are published from there.
#[inline(always)]
fn count(of: &Cell<u64>, more: usize) {
    of.set(of.get().wrapping_add(more as u64));
}

impl LaneCounts {
    /// Moves them into the statistics.
    pub(in crate::reactor) fn move_into(&self, stats: &mut StatsSnapshot) {
        stats.calls_sent += self.calls_sent.take();
        stats.replies_received += self.replies_received.take();
        stats.calls_received += self.calls_received.take();
        stats.replies_sent += self.replies_sent.take();
        stats.bytes_inline += self.bytes_inline.take();
    }

    #[inline(always)]
    pub(in crate::reactor) fn count_call_sent(&self, bytes: usize) {
        count(&self.calls_sent, 1);
        count(&self.bytes_inline, bytes);
    }

    #[inline(always)]
    pub(in crate::reactor) fn count_replies_sent(&self, replies: usize, bytes: usize) {
        count(&self.replies_sent, replies);
        count(&self.bytes_inline, bytes);
    }

    #[inline(always)]
    pub(in crate::reactor) fn count_calls_received(&self, calls: usize) {
        count(&self.calls_received, calls);
    }

    #[inline(always)]
    pub(in crate::reactor) fn count_replies_received(&self, replies: usize) {
        count(&self.replies_received, replies);
    }
}

/// Clears the cell on drop, also by unwinding.
pub(in crate::reactor) struct Held<'a, T>(&'a Cell<Option<T>>);

impl<T> Held<'_, T> {
    /// It, unless somebody else has taken it.
    pub(in crate::reactor) fn take(self) -> Option<T> {
        self.0.take()
    }
}

impl<T> Drop for Held<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.set(None);
    }
}

impl CoreLane {
    /// `longest_bytes`: of a stream. The memory for it is not touched before it is used.
    pub(in crate::reactor) fn new(
        (has_shorts, polls_first): (bool, bool),
        alignment: Alignment,
        longest_bytes: usize,
        (clock, default_timeout_ticks): (Option<Clock>, u64),
    ) -> Self {
        let pads = alignment != Alignment::NONE;
        let memory = || RefCell::new(MessageMemory::with_capacity(longest_bytes));
        Self {
            takes_calls: has_shorts && !pads,
            takes_replies: !pads,
            takes_received: has_shorts,
            polls_first,
            receive: Cell::new(None),
            alignment,
            call: memory(),
            reply: memory(),
            serving: Cell::new(None),
            closing: Cell::new(None),
            turn: Cell::new(0),
            stamp: Cell::new(None),
            clock,
            default_timeout_ticks,
            next_deadline: Cell::new(Instant(u64::MAX)),
            counts: LaneCounts::default(),
        }
    }

    getters! {
        takes_calls: bool,
        takes_replies: bool,
        takes_received: bool,
        polls_first: bool,
        alignment: Alignment,
        /// Calls are written here.
        call: &RefCell<MessageMemory>,
        /// Replies are written here.
        reply: &RefCell<MessageMemory>,
        counts: &LaneCounts,
    }
}

/// The message that is being handled.
impl CoreLane {
    pub(in crate::reactor) fn hold_receive(&self, receive: Buf) -> Held<'_, Buf> {
        self.receive.set(Some(receive));
        Held(&self.receive)
    }

    /// Lends the receive of the message that is handled to `then`, which may keep it.
    #[inline(always)]
    pub(in crate::reactor) fn with_receive<T>(
        &self,
        then: impl FnOnce(&mut Option<Buf>) -> T,
    ) -> T {
        let mut receive = self.receive.take();
        let result = then(&mut receive);
        self.receive.set(receive);
        result
    }

    /// A call of this connection is served as long as the returned value lives.
    #[inline(always)]
    pub(in crate::reactor) fn begin_serving(&self, conn: ConnId) -> Held<'_, ConnId> {
        self.serving.set(Some(conn));
        Held(&self.serving)
    }

    /// Returns true if a call of the connection is being served.
    pub(in crate::reactor) fn is_serving(&self, conn: ConnId) -> bool {
        self.serving.get() == Some(conn)
    }

    /// Requests the connection to be closed when its call that is being served is answered.
    pub(in crate::reactor) fn close_when_served(&self, conn: ConnId) {
        self.closing.set(Some(conn));
    }

    /// Returns true if the connection closes as soon as the call that is being served is answered.
    pub(in crate::reactor) fn is_closing(&self, conn: ConnId) -> bool {
        self.closing.get() == Some(conn)
    }

    /// Returns true if a handler has requested its connection to be closed.
    #[inline(always)]
    pub(in crate::reactor) fn has_closing(&self) -> bool {
        self.closing.get().is_some()
    }

    pub(in crate::reactor) fn take_closing(&self) -> Option<ConnId> {
        self.closing.take()
    }
}

/// The time of the turn.
impl CoreLane {
    #[inline(always)]
    pub(in crate::reactor) fn begin_turn(&self) {
        // A turn that a panic has ended has not ended here.
        self.turn.set(self.turn.get() | 1);
    }

    pub(in crate::reactor) fn turn(&self) -> u32 {
        self.turn.get()
    }

    #[inline(always)]
    pub(in crate::reactor) fn end_turn(&self) {
        self.turn.set(self.turn.get().wrapping_add(1));
        self.stamp.set(None);
    }

    /// The core takes a turn at this time, should it sleep then.
    #[cold]
    pub(in crate::reactor) fn note_deadline(&self, at: Instant) {
        self.next_deadline.set(self.next_deadline.get().min(at));
    }

    /// The earliest deadline noted since this was called before.
    #[inline(always)]
    pub(in crate::reactor) fn take_deadline(&self) -> Instant {
        self.next_deadline.replace(Instant(u64::MAX))
    }

    /// Deadline, as configured, of a call that starts now; that of `other` where the processor has no counter.
    #[inline(always)]
    pub(in crate::reactor) fn default_deadline_or(
        &self,
        other: impl FnOnce() -> Instant,
    ) -> Instant {
        if let Some(now) = self.stamp.get() {
            return self.timeout_from(now);
        }
        if let Some(now) = self.clock.and_then(|clock| clock.counter()) {
            self.keep_stamp(now);
            return self.timeout_from(now);
        }
        other()
    }

    /// The same by the clock of the system, unless time is simulated.
    pub(in crate::reactor) fn deadline_by_clock(&self) -> Option<Instant> {
        let now = self.clock?.now();
        self.keep_stamp(now);
        Some(self.timeout_from(now))
    }

    #[inline(always)]
    fn timeout_from(&self, now: Ticks) -> Instant {
        Instant(now.0.saturating_add(self.default_timeout_ticks))
    }

    /// Keeps the time for all calls of the turn, if there is a turn: it is not older than the turn, however long the
    /// application was busy.
    #[inline(always)]
    fn keep_stamp(&self, now: Ticks) {
        if self.turn.get() & 1 == 1 {
            self.stamp.set(Some(now));
        }
    }
}
