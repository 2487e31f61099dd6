//! The times of calls by stage. A handler whose call is timed runs between `begin_timer` and `end_timer`: that of every call
//! while latencies are requested, else that of the first call after statistics were published. A call that waits, or is
//! deferred, has its times in its slot.

use super::{Core, CoreCell, Reactor};
use crate::fabric::ConnId;
use crate::reactor::in_flight::slow_calls::{CallName, SlowCall};
use crate::reactor::state::connection::Conn;
use crate::reactor::types::header_bytes::xid_of;
use crate::reactor::types::latency::{CallTimes, Row, Spent, Stage};
use crate::sys::clock::Ticks;
use spinrpc_proto::events::SlotId;
use spinrpc_proto::rdma::v1::HeaderView;
use spinrpc_proto::rpc::CallHeader;
use std::time::Duration;

impl CoreCell {
    /// A handler begins with a call.
    pub(crate) fn begin_timer(&self, row: Row) {
        let is_first = self.lane().begin_timed();
        let mut reactor = self.reactor();
        let (now, is_counted) = (reactor.read_clock(), reactor.inbox.latencies().is_on());
        if is_first {
            reactor.begin_timed_turn(now, is_counted);
        }
        let new = CallTimes::new(Stage::Queue, reactor.seen_from.min(now));
        let mut times = reactor.resumed.take().unwrap_or(new);
        times.enter_handler(now, Some(row).filter(|_| is_counted));
        reactor.timer = Some(times);
    }

    /// The handler has returned or panicked: the call has ended, unless it was deferred.
    pub(crate) fn end_timer(&self, conn: ConnId, name: CallName) {
        let mut reactor = self.reactor();
        let now = reactor.read_clock();
        reactor.timed_until = now;
        if let Some(mut times) = reactor.timer.take() {
            times.enter(Stage::Answer, now);
            reactor.end_times(conn, &times, now, |_| name);
        }
    }

    /// A call of a client here was answered.
    pub(crate) fn note_own_call(&self, conn: ConnId, name: CallName, parts: [Duration; 2]) {
        let mut reactor = self.reactor();
        let mut spent = Spent::default();
        for (stage, time) in [Stage::Credit, Stage::Wire].into_iter().zip(parts) {
            spent[stage as usize] = reactor.ticks(time);
        }
        let now = reactor.read_clock();
        reactor.keep_slow(conn, true, (now, spent.iter().sum(), &spent), |_| name);
    }
}

impl Core {
    /// The first timed handler of a turn begins. Its call was not there when the core last found nothing to do; if it had
    /// something to do in all turns since the last timed handler, as far as is known while all are timed, the call may have come
    /// while that ran.
    fn begin_timed_turn(&mut self, now: Ticks, are_all_timed: bool) {
        let is_unbroken = are_all_timed && self.timed_turn.1 == self.stats.empty_polls;
        self.seen_from = match is_unbroken {
            true => self.timed_turn.0,
            false => self.busy_since.max(self.timed_until),
        };
        self.timed_turn = (now, self.stats.empty_polls);
    }

    #[inline]
    pub(in crate::reactor) fn has_timer(&self) -> bool {
        self.timer.is_some()
    }

    /// The times of a call that its handler defers, if that is timed.
    #[cold]
    pub(in crate::reactor) fn defer_times(&mut self) -> Option<CallTimes> {
        let mut times = self.timer.take()?;
        times.enter(Stage::Deferred, self.read_clock());
        Some(times)
    }

    /// The times of a call whose reply a thread seals, if its handler is timed.
    #[cfg(feature = "gss")]
    pub(in crate::reactor) fn seal_times(&mut self) -> Option<CallTimes> {
        let mut times = self.timer.take()?;
        times.enter(Stage::Crypto, self.read_clock());
        Some(times)
    }

    /// The times of a call whose body a thread opens.
    #[cfg(feature = "gss")]
    pub(in crate::reactor) fn open_times(&mut self) -> CallTimes {
        let now = self.read_clock();
        let seen = CallTimes::new(Stage::Queue, self.busy_since.min(now));
        let mut times = self.resumed.take().unwrap_or(seen);
        times.enter(Stage::Crypto, now);
        times
    }

    /// The next handler is that of a call with these times, if there are any: they go on when it begins.
    pub(in crate::reactor) fn resume_times(&mut self, times: Option<CallTimes>) {
        self.resumed = times;
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
        let times = self.conn(conn).and_then(|c| c.serves.take_times(slot));
        self.resume_times(times);
    }

    /// A call with this message, deferred since then or with times, was answered: at that time, if the thread that did so
    /// knows it, and after so many nanoseconds with a disk.
    #[inline]
    pub(in crate::reactor) fn end_deferred(
        &mut self,
        call: (ConnId, SlotId),
        since: Ticks,
        parts: (Ticks, u64),
        message: &[u8],
    ) {
        // The clock is read of those only that may be slow: the time of the turn may lack the turn before.
        let now = self.turn_time();
        if self.slow.takes(now.0.saturating_sub(since.0), now) {
            self.end_slow(call, since, parts, message);
        }
    }

    #[cold]
    fn end_slow(
        &mut self,
        (conn, slot): (ConnId, SlotId),
        since: Ticks,
        (answered, disk_ns): (Ticks, u64),
        message: &[u8],
    ) {
        let now = self.read_clock();
        let times = self.conn(conn).and_then(|c| c.serves.take_times(slot));
        let mut times = times.unwrap_or_else(|| CallTimes::new(Stage::Deferred, since));
        if answered != Ticks(0) {
            times.enter(Stage::Answer, times.not_after(now, answered));
        }
        times.enter(Stage::Answer, now);
        times.assign(Stage::Disk, self.ticks(Duration::from_nanos(disk_ns)));
        self.end_times(conn, &times, now, |c| name_of(c, message));
    }

    /// A call has left its last stage: it is counted if it was measured, and kept if it is slow.
    fn end_times(
        &mut self,
        conn: ConnId,
        times: &CallTimes,
        now: Ticks,
        name: impl FnOnce(&Conn) -> CallName,
    ) {
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
        name: impl FnOnce(&Conn) -> CallName,
    ) {
        if !self.slow.takes(total, now) {
            return;
        }
        let (conns, core) = self.split();
        let Some(c) = conns.find_for_lane(conn) else { return };
        let (name, peer, spent) = (name(c), c.peer(), *spent);
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
