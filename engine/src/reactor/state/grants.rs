//! Grants of accepted connections, which follow their use: "Fixed limits scale poorly, since posted buffers are dedicated
//! to the associated connection until consumed by receive operations" (RFC 5666 section 3.3).
//!
//! A connection begins with `rpc.credits_idle`. When it has made as many calls as it is granted within
//! `rpc.credits_period_ms`, or has all of them in progress, its grant doubles, at most to its share of `rpc.credits_shared`. Receives are posted before
//! the larger grant is sent. Once per period the core looks at those of its connections whose grant has risen, and halves
//! the grant of each that did not use it. Nothing is done for a connection that does nothing, and nothing for a message
//! where grants do not change. Where they do, plain calls take the shortest path while the grant is the connection's share. Before,
//! each is counted ([`Responder::has_slot`](spinrpc_proto::responder::Responder::has_slot)), and the one with which a look
//! is due takes the general path.
//!
//! A smaller grant takes effect with replies only. Receives become free as fast as
//! [`Responder::receives`](spinrpc_proto::responder::Responder::receives) proves that no call can come for them: one with
//! each reply. A client that falls silent at once therefore keeps its receives until it calls again, as it may call
//! with all of them. So a client that falls silent after a burst has what it was granted for as long as it likes: first come, first
//! kept. Others share the rest, and get little more than `rpc.credits_idle` when nothing is left.
//!
//! A call that hangs keeps its credit, and one more is granted beyond those in progress. A client that gave up a call which the
//! server still executes, and counts its credit as free, may exceed a small grant by it: if no credits are left
//! to raise the grant, its next calls get an error until that call ends. There is a receive for one call too many. If
//! two such calls arrive, a RoCE device retries, and an iWARP device ends the connection.
//!
//! Shares: credits of connections that are not busy are left out, and the rest is divided equally among the busy
//! ones. When more become busy, grants above the new share are lowered to it. So under saturation, all have the same grant
//! after a few periods, and none has to wait for another one to end, unless silent ones keep too much.
//!
//! Over shared memory, and in the simulation, the connections of a core take their receives from one pool. A device has
//! its receives registered with the protection domain of their connection, of which each connection has its own, so that
//! keys of one peer mean nothing on the connection of another one. A shared receive queue has one domain for all its
//! receives, and Linux' software device checks them against the domain of the queue pair: `send_data_in` of `rxe_resp.c`
//! copies with `qp->pd`, also to a receive that `get_srq_wqe` has taken, and `lookup_mr` of `rxe_mr.c` accepts no memory of
//! another domain. So a connection over a device has its own receives: memory for those that it has at least, and memory
//! for all the others it can be granted, registered when it is first busy, until it ends. Its buffers to send from are
//! registered with the first message that is too long to be copied into a work request (`verbs.max_inline_bytes`): a system call, once for each connection. They
//! stay registered until the connection ends, also when it is idle again.

use crate::config::Config;
use crate::fabric::{AnyFabric, ConnId, Fabric, FabricError};
use crate::mem::BufPool;
use crate::reactor::pending::grants::{ConnGrant, Grants};
use crate::reactor::pending::roles::Roles;
use crate::reactor::state::conn_table::ConnTable;
use crate::reactor::state::connection::{Conn, buffers};
use crate::reactor::state::core::Reactor;
use crate::reactor::words::gate::Gate;
use spinrpc_proto::connection::Side;
use spinrpc_proto::ids::Instant;

/// Periods after which memory for a larger grant is asked for again, if there was none.
const RETRY_PERIODS: u64 = 64;

impl Grants {
    /// The connection has ended, and is not among the others any more.
    pub(in crate::reactor) fn forget(&mut self, conn: &mut Conn, others: &mut ConnTable) {
        if conn.grant.is_dynamic {
            self.set_shedding(&mut conn.grant, false);
            others.set_place_in_busy(self.leave_busy(&mut conn.grant));
            self.own(&mut conn.grant, 0);
        }
    }
}

impl Reactor {
    /// The pool of receives for a new connection; `None` if it has its own.
    ///
    /// # Errors
    /// There is no memory for the pool.
    pub(in crate::reactor) fn shared_receives(
        &mut self,
        roles: Roles,
    ) -> Result<Option<BufPool>, FabricError> {
        let count = self.config.shared_receives().filter(|_| roles.side == Side::Server);
        let Some(count) = count else { return Ok(None) };
        if self.dialect.chains() || !self.fabric.shares_receives() {
            return Ok(None);
        }
        if self.grants.pool.is_none() {
            let bytes = self.config.recv_buffer_bytes();
            self.grants.pool = Some(buffers("receive", bytes, count as u64, &mut None)?);
        }
        Ok(self.grants.pool.clone())
    }

    /// Posts the receives of a new connection.
    pub(in crate::reactor) fn post_receives(&mut self, conn: &mut Conn) {
        let is_dynamic = conn.grant.is_dynamic;
        let most = if is_dynamic { self.grants.receives_at_first() } else { u64::MAX };
        let posted = conn.post_receives(&mut self.fabric, most);
        if is_dynamic {
            self.grants.own(&mut conn.grant, posted);
            conn.grant.looked_at = Instant(self.time().0);
            conn.look_after(Some(self.grants.idle), true);
        }
    }

    /// Decides whether the grant of a connection rises, when a look at it is due.
    #[cold]
    pub(in crate::reactor) fn look_at_grant(&mut self, conn: ConnId) {
        let now = Instant(self.time().0);
        let Self { conns, grants, fabric, config, .. } = self;
        let Some(c) = conns.find_for_lane(conn) else { return };
        let (calls, in_progress, granted) = c.use_of_grant();
        grants.shed(c, fabric);
        let is_recent = now.0.saturating_sub(c.grant.looked_at.0) <= grants.period_ticks;
        let made = calls.wrapping_sub(c.grant.counted);
        let is_used = in_progress >= granted || (is_recent && made >= u64::from(granted));
        (c.grant.counted, c.grant.looked_at) = (calls, now);
        if !is_used && granted <= grants.idle {
            return c.look_after(Some(granted), true);
        }
        grants.join_busy(c, now);
        let granted = match is_used {
            true => grants.raise(c, (fabric, config, now), granted),
            false => granted,
        };
        grants.watch(c, granted);
    }

    /// Looks at the grant if that is due after a call: also one that is fetched first, or was refused.
    #[cold]
    pub(in crate::reactor) fn look_if_due(&mut self, conn: ConnId) {
        let is_due = |c: &mut Conn| c.lane.proto().responder.is_look_due();
        if self.conns.find_for_lane(conn).is_some_and(is_due) {
            self.look_at_grant(conn);
        }
    }

    /// Looks at the busy connections, once in a period: in one turn, at as many as it may handle messages.
    pub(in crate::reactor) fn look_at_busy(&mut self) {
        let now = Instant(self.now.0);
        if now < self.grants.next {
            return;
        }
        let Self { conns, grants, fabric, config, .. } = self;
        for _ in 0..config.poll_budget() {
            let Some(id) = grants.busy.get(grants.looked_at) else { break };
            let Some(c) = conns.find_for_lane(*id) else {
                grants.looked_at += 1;
                continue;
            };
            if grants.keeps_busy(c, now, fabric) {
                grants.looked_at += 1;
                continue;
            }
            let moved = grants.leave_busy(&mut c.grant);
            conns.set_place_in_busy(moved);
        }
        if grants.looked_at >= grants.busy.len() {
            grants.end_looks(now);
        }
    }

    /// True if a receive that came back is one too many, and the connection does not have it any more.
    #[cold]
    pub(in crate::reactor) fn sheds_receive(&mut self, conn: ConnId) -> bool {
        let Self { conns, grants, .. } = self;
        conns.find_for_lane(conn).is_some_and(|c| grants.sheds_one(c))
    }
}

impl Grants {
    /// A connection is busy from now on.
    fn join_busy(&mut self, c: &mut Conn, now: Instant) {
        if !c.grant.is_busy {
            self.at_rest -= self.lent_to(&c.grant);
            (c.grant.is_busy, c.grant.place) = (true, self.busy.len());
            self.busy.push(c.id);
            self.next = self.next.min(Instant(now.0.saturating_add(self.period_ticks)));
        }
    }

    /// A connection is not busy any more. Another one has its place then.
    fn leave_busy(&mut self, grant: &mut ConnGrant) -> Option<(ConnId, usize)> {
        if !std::mem::take(&mut grant.is_busy) {
            return None;
        }
        self.at_rest += self.lent_to(grant);
        self.busy.swap_remove(grant.place);
        self.busy.get(grant.place).map(|id| (*id, grant.place))
    }

    /// Raises the grant of a busy connection to twice the value, as far as its share and the memory permit. Returns
    /// the new value.
    fn raise(
        &mut self,
        c: &mut Conn,
        (fabric, config, now): (&mut AnyFabric, &Config, Instant),
        granted: u32,
    ) -> u32 {
        let wanted = granted.saturating_mul(2).min(self.share()).max(granted);
        let missing = (wanted + self.beyond).saturating_sub(c.grant.owned);
        let missing = missing.min(self.shared.saturating_sub(self.lent));
        if missing > 0 && c.needs_more() && now >= c.grant.retry_at && !c.map_more(fabric, config) {
            let pause = self.period_ticks.saturating_mul(RETRY_PERIODS);
            c.grant.retry_at = Instant(now.0.saturating_add(pause));
        }
        let got = (0..missing).take_while(|_| c.post_another(fabric).is_some()).count();
        let owned = c.grant.owned + got as u32;
        self.own(&mut c.grant, owned);
        // Fewer than before only if the connection is going down.
        let raised = wanted.min(c.grant.owned.saturating_sub(self.beyond)).max(granted);
        if raised > granted {
            let (calls, in_progress, _) = c.use_of_grant();
            c.grant.untold = (calls.saturating_sub(u64::from(in_progress)), granted);
            c.set_grant(raised);
            self.end_shedding(c);
        }
        raised
    }

    /// Halves the grant of a connection that did not use it, and lowers one that is above its share. Returns false if
    /// the connection is not busy any more: it made no call, and will be looked at when it makes one. Whatever it is
    /// granted stays as it is until then.
    fn keeps_busy(&mut self, c: &mut Conn, now: Instant, fabric: &mut AnyFabric) -> bool {
        let (calls, in_progress, granted) = c.use_of_grant();
        let made = calls.wrapping_sub(c.grant.counted);
        // A client all of whose calls are in progress can make no others, nor be told of a larger grant.
        let (answered, told) = c.grant.untold;
        let is_told = answered + u64::from(in_progress) != calls || in_progress < told;
        let waits = in_progress > 0 && !is_told;
        // It rose less than a period ago: the client may not have had time to use all of it.
        let is_recent = now.0.saturating_sub(c.grant.looked_at.0) < self.period_ticks;
        let is_used = waits || is_recent || made + u64::from(in_progress) >= u64::from(granted);
        // With no more than those in progress, the client could make no other call until one of them ends.
        let least = self.idle.max(in_progress + 1).min(granted);
        let lowered = if is_used { granted } else { (granted / 2).max(least) }.min(self.share());
        (c.grant.counted, c.grant.looked_at) = (calls, now);
        if lowered < granted {
            c.set_grant(lowered);
            self.set_shedding(&mut c.grant, true);
        }
        let is_still = made == 0 && lowered == granted && !is_recent;
        let is_busy = !is_still && (is_used || lowered > self.idle);
        match is_busy {
            true => self.watch(c, lowered),
            false if lowered > self.idle => c.look_after(Some(1), true),
            false => c.look_after(Some(lowered), true),
        }
        self.shed(c, fabric);
        is_busy
    }

    /// Looks at a busy connection again when it has used its grant, if that can rise.
    fn watch(&self, c: &Conn, granted: u32) {
        let may_rise = granted < self.share();
        c.look_after(may_rise.then_some(granted), may_rise);
    }

    /// Takes receives back from the driver, if it can do without them at any time.
    fn shed(&mut self, c: &mut Conn, fabric: &mut AnyFabric) {
        while c.grant.is_shedding && self.has_one_too_many(c) {
            let Some(receive) = fabric.withdraw_recv(c.id) else { return };
            drop(receive);
            self.sheds_one(c);
        }
    }

    fn sheds_one(&mut self, c: &mut Conn) -> bool {
        if !c.grant.is_shedding || !self.has_one_too_many(c) {
            return false;
        }
        let owned = c.grant.owned - 1;
        self.own(&mut c.grant, owned);
        self.end_shedding(c);
        true
    }

    /// It has no more receives than its grant needs, because it gave some up or its grant has risen.
    fn end_shedding(&mut self, c: &mut Conn) {
        if c.grant.owned <= c.lane.proto().responder.grant() + self.beyond {
            self.set_shedding(&mut c.grant, false);
        }
    }

    fn has_one_too_many(&self, c: &Conn) -> bool {
        c.grant.owned > c.lane.proto().responder.receives() + self.beyond
    }
}

impl ConnTable {
    /// A connection has this place among the busy ones from now on.
    fn set_place_in_busy(&mut self, place: Option<(ConnId, usize)>) {
        if let Some((id, place)) = place
            && let Some(c) = self.find_for_lane(id)
        {
            c.grant.place = place;
        }
    }
}

impl Conn {
    /// Whether a plain call has a slot depends on the grant.
    fn set_grant(&self, credits: u32) {
        self.lane.proto().responder.set_grant(credits);
        self.lane.gate.set(Gate::UNKNOWN);
    }

    /// As [`Responder::look_after`](spinrpc_proto::responder::Responder::look_after).
    fn look_after(&self, calls: Option<u32>, may_rise: bool) {
        self.lane.proto().responder.look_after(calls, may_rise);
        self.lane.gate.set(Gate::UNKNOWN);
    }

    /// Calls that were ever accepted, calls in progress, and the grant.
    fn use_of_grant(&self) -> (u64, u32, u32) {
        let responder = &self.lane.proto().responder;
        (responder.calls_taken(), responder.in_progress(), responder.grant())
    }

    /// Posts a receive that the connection did not have.
    fn post_another(&mut self, fabric: &mut AnyFabric) -> Option<()> {
        let more = self.grant.more.as_ref();
        let receive = self.recvs.take().or_else(|| more?.take())?;
        fabric.post_recv(self.id, receive).ok()
    }

    /// The connection has its own receives, and memory only for those of an idle one.
    fn needs_more(&self) -> bool {
        self.grant.more.is_none() && !self.shares_receives
    }

    /// Maps memory for all receives that the connection can be granted, and makes it known to the device. Returns false
    /// if it cannot have that.
    fn map_more(&mut self, fabric: &mut AnyFabric, config: &Config) -> bool {
        let count = (config.credits() - config.credits_idle()) as u64;
        let more = buffers("receive", config.recv_buffer_bytes(), count, &mut None);
        let prepared = more.and_then(|more| match more.take() {
            Some(receive) => fabric.prepare_recv(self.id, &receive).map(|()| more),
            None => Ok(more),
        });
        let prepared = prepared.inspect_err(|error| tracing::debug!(%error, "a grant cannot rise"));
        self.grant.more = prepared.ok();
        self.grant.more.is_some()
    }
}
