//! The times of calls by stage. A handler whose call is timed runs between `begin_timer` and `end_timer`: that of every call
//! while latencies are requested, else one in a while. A call that waits, or is deferred, has its times in its slot.

use super::{Core, CoreCell, Reactor};
use crate::fabric::ConnId;
use crate::reactor::in_flight::deferred::Noted;
use crate::reactor::in_flight::slow_calls::{CallName, SlowCall};
use crate::reactor::state::connection::Conn;
use crate::reactor::types::header_bytes::xid_of;
use crate::reactor::types::latency::{CallTimes, Row, Spent, Stage};
use crate::sys::clock::Ticks;
use spinrpc_proto::events::SlotId;
use spinrpc_proto::ids::Xid;
use spinrpc_proto::rdma::v1::HeaderView;
use spinrpc_proto::rpc::CallHeader;
use std::time::Duration;

impl CoreCell {
    /// A handler begins with a call.
    pub(crate) fn begin_timer(&self, row: Row) {
        let mut reactor = self.reactor();
        let (now, is_counted) = (reactor.read_clock(), reactor.inbox.latencies().is_on());
        reactor.begin_timed(self.core_lane().turn(), now);
        let new = CallTimes::new(Stage::Queue, reactor.seen_from.min(now));
        let mut times = reactor.resumed.take().unwrap_or(new);
        times.enter_handler(now, Some(row).filter(|_| is_counted));
        reactor.timer = Some(times);
    }

    /// Returns true if the next handler is that of a call that has waited, whose times go on when it begins.
    pub(crate) fn is_resumed(&self) -> bool {
        self.reactor().resumed.is_some()
    }

    /// The handler has returned or panicked: the call has ended, unless it was deferred.
    pub(crate) fn end_timer(&self, conn: ConnId, name: CallName) {
        let mut reactor = self.reactor();
        let now = reactor.read_clock();
        reactor.timed_until = now;
        if let Some(mut times) = reactor.timer.take() {
            times.enter(Stage::Answer, now);
            reactor.end_times(conn, &times, now, name);
        }
    }

    /// A call of a client here was answered, which had waited for a credit before it was sent.
    pub(crate) fn note_own_call(
        &self,
        conn: ConnId,
        name: CallName,
        waited: Duration,
        sent: Ticks,
    ) {
        let mut reactor = self.reactor();
        let (now, mut spent) = (reactor.turn_time(), Spent::default());
        if !waited.is_zero() {
            spent[Stage::Credit as usize] = reactor.ticks(waited);
        }
        spent[Stage::Wire as usize] = now.0.saturating_sub(sent.0);
        reactor.keep_slow(conn, true, (now, spent.iter().sum(), &spent), name);
    }
}

impl Core {
    /// A timed handler begins. The calls of a turn were not there in the one before: they may have come while its handlers
    /// ran, if these were timed, and else since the core last looked at the clock.
    fn begin_timed(&mut self, turn: u32, now: Ticks) {
        let (last, began) = self.timed_turn;
        if turn == last {
            return;
        }
        self.seen_from = match turn.wrapping_sub(last) {
            2 => began,
            _ => self.busy_since.max(self.timed_until),
        };
        self.timed_turn = (turn, now);
    }

    #[inline]
    pub(in crate::reactor) fn has_timer(&self) -> bool {
        self.timer.is_some()
    }

    /// The times of a call whose reply a thread seals, if its handler is timed.
    #[cfg(feature = "gss")]
    pub(in crate::reactor) fn seal_times(&mut self) -> Option<CallTimes> {
        let mut times = self.timer.take()?;
        times.enter(Stage::Crypto, self.read_clock());
        Some(times)
    }

    /// The times of a call whose body a thread unseals.
    #[cfg(feature = "gss")]
    pub(in crate::reactor) fn unseal_times(&mut self) -> CallTimes {
        let now = self.read_clock();
        let seen = CallTimes::new(Stage::Queue, self.busy_since.min(now));
        let mut times = self.resumed.take().unwrap_or(seen);
        times.enter(Stage::Crypto, now);
        times
    }
}

impl Reactor {
    /// A call with a slot waits from now on, for its Read chunks or for memory.
    pub(in crate::reactor) fn begin_wait(&mut self, conn: ConnId, slot: SlotId) {
        let now = self.read_clock();
        if let Some(c) = self.conn(conn) {
            c.serves.put_times(slot, CallTimes::new(Stage::Fetch, now));
        }
    }

    /// A call that has waited goes on.
    pub(in crate::reactor) fn end_wait(&mut self, conn: ConnId, slot: SlotId) {
        self.resumed = self.conn(conn).and_then(|c| c.serves.take_times(slot));
    }

    /// It has ended, or waits again: if no handler has taken its times, nor its slot, it was refused.
    pub(in crate::reactor) fn end_resumed(&mut self, conn: ConnId, xid: Xid) {
        let Some(mut times) = self.resumed.take() else { return };
        let now = self.read_clock();
        times.enter(Stage::Answer, now);
        self.end_times(conn, &times, now, CallName { xid, called: None });
    }

    /// A call that waits is refused.
    pub(in crate::reactor) fn end_unread(&mut self, call: (ConnId, SlotId)) {
        let now = self.read_clock();
        let times = self.conn(call.0).and_then(|c| c.serves.take_times(call.1));
        times.into_iter().for_each(|times| self.end_in_slot(call, times, now));
    }

    /// A call whose handler is timed is deferred.
    #[cold]
    pub(in crate::reactor) fn defer_times(&mut self, conn: ConnId, slot: SlotId) {
        let now = self.read_clock();
        let Some(mut times) = self.timer.take() else { return };
        times.enter(Stage::Deferred, now);
        if let Some(c) = self.conn(conn) {
            c.serves.put_times(slot, times);
        }
    }

    /// A deferred call is answered, or its answer has been sealed.
    #[cold]
    pub(in crate::reactor) fn end_deferred(&mut self, call: (ConnId, SlotId), noted: Noted) {
        let now = self.read_clock();
        if let Some((times, _)) = self.answered_times(call, noted, now) {
            self.end_in_slot(call, times, now);
        }
    }

    /// A call whose message is in its slot has ended.
    fn end_in_slot(&mut self, (conn, slot): (ConnId, SlotId), mut times: CallTimes, now: Ticks) {
        times.enter(Stage::Answer, now);
        let Some(c) = self.conn(conn) else { return };
        if let Some(name) = c.serves.message(slot).map(|message| name_of(c, message.bytes())) {
            self.end_times(conn, &times, now, name);
        }
    }

    /// The times of a call that a thread has answered, which it keeps no longer, if its slot still waits for the answer.
    pub(in crate::reactor) fn answered_times(
        &mut self,
        (conn, slot): (ConnId, SlotId),
        noted: Noted,
        now: Ticks,
    ) -> Option<(CallTimes, &mut Conn)> {
        let disk = self.ticks(Duration::from_nanos(noted.disk_ns));
        let c = self.conn(conn).filter(|c| c.lane.proto().responder.is_delivered(slot))?;
        let mut times = c.serves.take_times(slot)?;
        if noted.answered != Ticks(0) {
            times.enter(Stage::Answer, times.not_after(now, noted.answered));
        }
        times.assign(Stage::Disk, disk);
        Some((times, c))
    }

    /// A call has left its last stage: it is counted if it was measured, and kept if it is slow.
    fn end_times(&mut self, conn: ConnId, times: &CallTimes, now: Ticks, name: CallName) {
        if let Some((row, ticks)) = times.counted(now) {
            self.inbox.latencies().record(row, self.clock.to_ns(ticks));
        }
        self.keep_slow(conn, false, (now, times.total(now), times.spent()), name);
    }

    fn keep_slow(
        &mut self,
        conn: ConnId,
        is_ours: bool,
        (now, total, spent): (Ticks, u64, &Spent),
        name: CallName,
    ) {
        if !self.slow.takes(total, now) {
            return;
        }
        let (conns, core) = self.split();
        let Some(c) = conns.find_for_lane(conn) else { return };
        let (peer, spent) = (c.peer(), *spent);
        core.slow.keep(SlowCall { name, is_ours, peer, ended: now.0, total, spent });
    }
}

/// Of a call without an RPC header in its message, a long one, only the XID is known.
fn name_of(c: &Conn, message: &[u8]) -> CallName {
    let view = HeaderView::new_checked(message, c.lane.proto().limits());
    let header = view.ok().and_then(|view| CallHeader::parse(view.payload()).ok());
    let called = header.map(|(header, _)| (header.program, header.version, header.procedure));
    CallName { xid: xid_of(message), called }
}
