//! Memory in which a core encodes its messages, and the lane's record of the call that is being served.

use crate::fabric::ConnId;
use crate::mem::Buf;
use crate::reactor::words::message_memory::MessageMemory;
use crate::reactor::words::stats::StatsSnapshot;
use crate::sys::clock::{Clock, Ticks};
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::ids::Instant;
use std::cell::{Cell, RefCell};

/// Memory in which a core encodes its messages, and the call that is being served.
pub(in crate::reactor) struct Lane {
    /// The driver sends messages by value, nothing in them is ever padded, and calls do not say how much time
    /// they have.
    pub(in crate::reactor) takes_calls: bool,
    /// Nothing in replies is ever padded, so that they need not be drafted.
    pub(in crate::reactor) takes_replies: bool,
    /// Receives are not chained, so that a short message in one is handled as one that comes by value.
    pub(in crate::reactor) takes_received: bool,
    /// The driver never hands out a short message by value: a turn begins with its poll.
    pub(in crate::reactor) polls_first: bool,
    /// The receive of the message that is handled, if it came in one; empty between messages.
    pub(in crate::reactor) receive: Cell<Option<Buf>>,
    /// Padding in messages of connections that have it.
    pub(in crate::reactor) alignment: Alignment,
    /// Calls are written here.
    pub(in crate::reactor) call: RefCell<MessageMemory>,
    /// Replies are written here.
    pub(in crate::reactor) reply: RefCell<MessageMemory>,
    /// The connection whose call is being served.
    pub(in crate::reactor) serving: Cell<Option<ConnId>>,
    /// It is to be closed when that call is answered.
    pub(in crate::reactor) closing: Cell<Option<ConnId>>,
    pub(in crate::reactor) in_turn: Cell<bool>,
    /// Number of turns so far, those that end early included: work under RPCSEC_GSS has a budget in each.
    #[cfg(feature = "gss")]
    pub(in crate::reactor) turns: Cell<u64>,
    /// Start of the first call of the turn, within a turn: the deadlines of its other calls count from then, too.
    pub(in crate::reactor) stamp: Cell<Option<Ticks>>,
    /// Read by calls that start; none where the driver simulates time.
    pub(in crate::reactor) clock: Option<Clock>,
    pub(in crate::reactor) default_timeout_ticks: u64,
    /// The earliest deadline of a call that was sent here since the core last read it.
    pub(in crate::reactor) next_deadline: Cell<Instant>,
    pub(in crate::reactor) counts: LaneCounts,
}

/// Messages sent and received here that are not in the statistics yet.
#[derive(Default)]
pub(in crate::reactor) struct LaneCounts {
    pub(in crate::reactor) calls_sent: Cell<u64>,
    pub(in crate::reactor) replies_received: Cell<u64>,
    pub(in crate::reactor) calls_received: Cell<u64>,
    pub(in crate::reactor) replies_sent: Cell<u64>,
    pub(in crate::reactor) bytes_inline: Cell<u64>,
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
}

impl Lane {
    /// `longest_bytes`: of a stream. The memory for it is not touched before it is used.
    pub(in crate::reactor) fn new(
        (has_shorts, chains): (bool, bool),
        alignment: Alignment,
        longest_bytes: usize,
        (clock, default_timeout_ticks): (Option<Clock>, u64),
    ) -> Self {
        let pads = alignment != Alignment::NONE;
        let memory = || RefCell::new(MessageMemory::with_capacity(longest_bytes));
        Self {
            takes_calls: has_shorts && !pads,
            takes_replies: !pads,
            takes_received: has_shorts && !chains,
            polls_first: false,
            receive: Cell::new(None),
            alignment,
            call: memory(),
            reply: memory(),
            serving: Cell::new(None),
            closing: Cell::new(None),
            in_turn: Cell::new(false),
            #[cfg(feature = "gss")]
            turns: Cell::new(0),
            stamp: Cell::new(None),
            clock,
            default_timeout_ticks,
            next_deadline: Cell::new(Instant(u64::MAX)),
            counts: LaneCounts::default(),
        }
    }
}
