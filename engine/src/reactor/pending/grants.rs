//! Credits of the accepted connections of a core, and their receives: numbers alone. `state/grants.rs` says how they
//! change, and why.

use crate::config::Config;
use crate::fabric::ConnId;
use crate::mem::BufPool;
use crate::sys::clock::Clock;
use spinrpc_proto::ids::Instant;

/// Credits of the accepted connections of a core.
pub(in crate::reactor) struct Grants {
    /// Grant of a connection that is not busy.
    pub(in crate::reactor) idle: u32,
    /// Largest grant.
    pub(in crate::reactor) most: u32,
    /// Receives of each connection for other messages than calls.
    pub(in crate::reactor) beyond: u32,
    /// Credits that connections may have beyond `idle`, all together ...
    pub(in crate::reactor) shared: u32,
    /// ... and those that they have.
    pub(in crate::reactor) lent: u32,
    /// Those of connections that are not busy.
    pub(in crate::reactor) at_rest: u32,
    /// Connections whose grant has risen, or would rise if there were credits.
    pub(in crate::reactor) busy: Vec<ConnId>,
    /// Connections with more receives than their grant needs.
    pub(in crate::reactor) shedding: u32,
    pub(in crate::reactor) period_ticks: u64,
    /// Time of the next look at busy connections. While it goes on, that of its begin.
    pub(in crate::reactor) next: Instant,
    /// Number of the busy connections that it has seen.
    pub(in crate::reactor) looked_at: usize,
    /// Receives of all connections; made with the first one, if the driver lets them share.
    pub(in crate::reactor) pool: Option<BufPool>,
}

/// Credits of one connection.
#[derive(Default)]
pub(in crate::reactor) struct ConnGrant {
    /// The grant changes.
    pub(in crate::reactor) is_dynamic: bool,
    /// Receives: posted, or with a message that is in use.
    pub(in crate::reactor) owned: u32,
    /// Calls by the last look at it, and its time.
    pub(in crate::reactor) counted: u64,
    pub(in crate::reactor) looked_at: Instant,
    /// Calls that had been answered when the grant rose, and the grant before: until another one is answered, the client
    /// knows of no more.
    pub(in crate::reactor) untold: (u64, u32),
    pub(in crate::reactor) is_busy: bool,
    /// Its place among the busy ones, if it is one.
    pub(in crate::reactor) place: usize,
    pub(in crate::reactor) is_shedding: bool,
    /// There is no memory for a larger grant before.
    pub(in crate::reactor) retry_at: Instant,
    /// Memory of the connection's own for receives that it does not have from the start, made when it first needs them.
    pub(in crate::reactor) more: Option<BufPool>,
}

impl ConnGrant {
    /// A connection whose grant changes if it `is_dynamic`.
    pub(in crate::reactor) fn new(is_dynamic: bool) -> Self {
        Self { is_dynamic, ..Self::default() }
    }

    pub(in crate::reactor) fn is_dynamic(&self) -> bool {
        self.is_dynamic
    }
}

impl Grants {
    pub(in crate::reactor) fn new(config: &Config, clock: &Clock) -> Self {
        let changes = config.changes_grants();
        Self {
            idle: config.credits_idle() as u32,
            most: config.credits() as u32,
            beyond: config.receives_beyond_calls() as u32,
            shared: config.credits_shared() as u32,
            lent: 0,
            at_rest: 0,
            // Nothing is allocated when a connection becomes busy, and none is there after its end.
            busy: Vec::with_capacity(if changes { config.conns_max() } else { 0 }),
            shedding: 0,
            period_ticks: clock.from_duration(config.credits_period()),
            next: Instant(u64::MAX),
            looked_at: 0,
            pool: None,
        }
    }

    /// Number of receives of a new connection.
    pub(in crate::reactor) fn receives_at_first(&self) -> u64 {
        u64::from(self.idle + self.beyond)
    }

    /// Most that a busy connection may be granted now.
    pub(in crate::reactor) fn share(&self) -> u32 {
        let busy = (self.busy.len() as u32).max(1);
        (self.idle + self.shared.saturating_sub(self.at_rest) / busy).min(self.most)
    }

    /// Credits beyond those of an idle connection for which it has receives.
    pub(in crate::reactor) fn lent_to(&self, grant: &ConnGrant) -> u32 {
        grant.owned.saturating_sub(self.idle + self.beyond)
    }

    /// A connection has so many receives from now on.
    pub(in crate::reactor) fn own(&mut self, grant: &mut ConnGrant, owned: u32) {
        let before = self.lent_to(grant);
        grant.owned = owned;
        let after = self.lent_to(grant);
        self.lent = self.lent - before + after;
        if !grant.is_busy {
            self.at_rest = self.at_rest - before + after;
        }
    }

    pub(in crate::reactor) fn set_shedding(&mut self, grant: &mut ConnGrant, is_shedding: bool) {
        self.shedding -= u32::from(grant.is_shedding);
        grant.is_shedding = is_shedding;
        self.shedding += u32::from(is_shedding);
    }

    /// Some connection gives up receives.
    #[inline(always)]
    pub(in crate::reactor) fn any_sheds(&self) -> bool {
        self.shedding > 0
    }

    /// All busy connections have been looked at.
    pub(in crate::reactor) fn end_looks(&mut self, now: Instant) {
        let next = now.0.saturating_add(self.period_ticks);
        self.next = Instant(if self.busy.is_empty() { u64::MAX } else { next });
        self.looked_at = 0;
    }
}
