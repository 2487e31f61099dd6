//! A core's state: everything that one thread owns, and the steps that all parts of it share.

mod ended_calls;
mod latency;
mod memory_shares;
mod time;

use crate::config::Config;
use crate::fabric::{
    AnyFabric, ConnId, DownCause, Endpoint, FabricError, ShortEndpoint, ShortEndpointOps,
};
use crate::mem::{Buf, Bulk, BulkPool};
use crate::reactor::in_flight::box_pool::BoxPool;
use crate::reactor::in_flight::deadlines::{Overdue, Waiting};
use crate::reactor::in_flight::deferred::{Caller, DeferredReply};
use crate::reactor::in_flight::detached_clients::DetachedClients;
use crate::reactor::in_flight::drain::{DrainRequest, Leaving};
#[cfg(feature = "gss")]
use crate::reactor::in_flight::gss_bodies::{Body, GssWork};
use crate::reactor::in_flight::mailbox::Inbox;
use crate::reactor::in_flight::origins::Origins;
use crate::reactor::in_flight::panic_log::LogLimit;
use crate::reactor::in_flight::read_ids::ReadOwner;
use crate::reactor::in_flight::roles::Roles;
use crate::reactor::in_flight::slow_calls::SlowCalls;
use crate::reactor::in_flight::stalls::StallTimer;
use crate::reactor::state::conn_table::ConnTable;
use crate::reactor::state::connection::Conn;
use crate::reactor::state::core_lane::CoreLane;
#[cfg(feature = "gss")]
use crate::reactor::types::crypto_counts::CryptoCounts;
use crate::reactor::types::latency::CallTimes;
use crate::reactor::types::memory::{DeferredPlaces, longest_block_bytes, message_bytes};
use crate::reactor::types::negotiate::{Offer, Terms};
use crate::reactor::types::peer_id::Instance;
use crate::reactor::types::stats::{StatsCells, StatsSnapshot};
use crate::sys::clock::{Clock, Ticks};
use spinrpc_proto::connection::Side;
use spinrpc_proto::events::PeerMisbehaved;
use spinrpc_proto::ids::Instant;
use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A core's state: what handlers and the turn share.
// Short messages use the lane only, and it is next to what points here.
#[repr(C)]
pub(crate) struct CoreCell {
    core_lane: CoreLane,
    state: RefCell<Reactor>,
    /// Mailbox of the state.
    inbox: Arc<Inbox>,
    /// Counters of bodies under RPCSEC_GSS.
    #[cfg(feature = "gss")]
    pub(crate) crypto: Arc<CryptoCounts>,
}

/// Everything one core owns. What its connections share is a [`Core`].
pub(crate) struct Reactor {
    // Dropped first: the driver uses memory of the connections.
    core: Core,
    conns: ConnTable,
}

/// State that the connections of a core share. A part that needs several of these at once is given them by a method here.
pub(crate) struct Core {
    fabric: AnyFabric,
    config: Config,
    clock: Clock,
    bulk: BulkPool,
    /// Of `bulk`, for each origin that has connections.
    origins: Origins,
    inbox: Arc<Inbox>,
    stats: StatsSnapshot,
    next_deadline: Instant,
    overdue: Overdue,
    default_timeout_ticks: u64,
    memory_wait_ticks: u64,
    stalls: StallTimer,
    /// Messages and answers that wait for memory or room, and are tried again in whole turns.
    waiting: VecDeque<(ConnId, Waiting)>,
    /// Calls that have ended without an answer, in the order in which the application is told.
    ended: ended_calls::EndedCalls,
    detached_clients: DetachedClients,
    panic_log: LogLimit,
    /// Replies of deferred calls. Those of calls whose answers have not arrived by mail are out; each has its place there.
    deferred: BoxPool<DeferredReply>,
    deferred_places: DeferredPlaces,
    cells: Arc<StatsCells>,
    offer: Offer,
    /// Time that the memory of a reply waits for RDMA_DONE.
    done_timeout_ticks: u64,
    now: Ticks,
    /// Time of the last reading of the clock, whether or not the turn got it.
    busy_since: Ticks,
    /// In a turn that does not end early.
    in_turn: bool,
    /// Turns with work since the statistics were published.
    unpublished: u32,
    /// Whole turns without work since the clock was read.
    unstamped: u32,
    /// Number of turns at the last publication.
    published_at: u64,
    /// Varies the first XID of new connections.
    xid_seed: u32,
    is_shut_down: bool,
    /// Set during a graceful shutdown; connections of clients are then refused, too.
    leaving: Option<Leaving>,
    /// The call that a timed handler is processing and has not deferred.
    timer: Option<CallTimes>,
    /// The times of a call that has waited in its slot, until its handler begins.
    resumed: Option<CallTimes>,
    /// Time from which on the calls of the turn may have been here.
    seen_from: Ticks,
    /// The last turn with a timed handler, and the start of the first one in it.
    timed_turn: (u32, Ticks),
    /// End of the last handler that was timed.
    timed_until: Ticks,
    /// The next calls are to be timed.
    is_sample_due: bool,
    next_sample: Ticks,
    slow: SlowCalls,
    /// Bodies that threads seal and unseal, and calls that wait.
    #[cfg(feature = "gss")]
    gss_work: GssWork,
}

impl CoreCell {
    pub(crate) fn new(reactor: Reactor) -> Self {
        let core = &reactor.core;
        let caps = core.fabric.caps();
        let clock = Some(core.clock).filter(|_| caps.simulated_clock.is_none());
        let shorts = (caps.sends_shorts, !caps.takes_shorts);
        let longest_bytes = longest_block_bytes(&core.config);
        let times = (clock, core.default_timeout_ticks);
        let core_lane = CoreLane::new(shorts, core.config.msgp_alignment(), longest_bytes, times);
        let inbox = Arc::clone(&core.inbox);
        #[cfg(feature = "gss")]
        let crypto = Arc::clone(core.gss_work.crypto());
        Self {
            core_lane,
            state: RefCell::new(reactor),
            inbox,
            #[cfg(feature = "gss")]
            crypto,
        }
    }

    /// The state, for one step.
    #[inline]
    pub(in crate::reactor) fn reactor(&self) -> RefMut<'_, Reactor> {
        self.state.borrow_mut()
    }

    /// The same, unless a panic has left it in use.
    pub(in crate::reactor) fn try_reactor(&self) -> Option<RefMut<'_, Reactor>> {
        self.state.try_borrow_mut().ok()
    }

    #[inline(always)]
    pub(in crate::reactor) fn core_lane(&self) -> &CoreLane {
        &self.core_lane
    }

    #[inline(always)]
    pub(in crate::reactor) fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// Memory of the connection, or of the core if a peer can write that of the connection.
    pub(in crate::reactor) fn private_bulk(&self, conn: ConnId, bytes: usize) -> Option<Bulk> {
        self.reactor().conn_and_core(conn)?.1.private_bulk(conn, bytes)
    }
}

impl Deref for Reactor {
    type Target = Core;

    #[inline(always)]
    fn deref(&self) -> &Core {
        &self.core
    }
}

impl DerefMut for Reactor {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Core {
        &mut self.core
    }
}

impl Reactor {
    /// Creates a core at rest.
    pub(crate) fn new(
        fabric: AnyFabric,
        config: Config,
        bulk: BulkPool,
        inbox: Arc<Inbox>,
        cells: Arc<StatsCells>,
    ) -> Self {
        Self { core: Core::new(fabric, config, bulk, inbox, cells), conns: ConnTable::default() }
    }

    #[inline(always)]
    pub(in crate::reactor) fn conns(&mut self) -> &mut ConnTable {
        &mut self.conns
    }

    /// The connections, and what they share.
    #[inline(always)]
    pub(in crate::reactor) fn split(&mut self) -> (&mut ConnTable, &mut Core) {
        (&mut self.conns, &mut self.core)
    }

    /// A connection, for any use: its gate is closed until the lane looks again.
    #[inline]
    pub(in crate::reactor) fn conn(&mut self, conn: ConnId) -> Option<&mut Conn> {
        self.conns.find(conn)
    }

    /// The same, with what it shares with others.
    #[inline]
    pub(in crate::reactor) fn conn_and_core(
        &mut self,
        conn: ConnId,
    ) -> Option<(&mut Conn, &mut Core)> {
        Some((self.conns.find(conn)?, &mut self.core))
    }

    /// As [`Reactor::conn_and_core`], for the lane, which keeps the gate up to date.
    #[inline(always)]
    pub(in crate::reactor) fn conn_for_lane(
        &mut self,
        conn: ConnId,
    ) -> Option<(&mut Conn, &mut Core)> {
        Some((self.conns.find_for_lane(conn)?, &mut self.core))
    }

    pub(in crate::reactor) fn remove(&mut self, conn: ConnId) -> Option<Box<Conn>> {
        let mut gone = self.conns.remove(conn)?;
        let caller = gone.take_caller();
        self.origins.leave(gone.origin(), caller);
        self.stats().connections_closed += 1;
        Some(gone)
    }

    /// Closes every connection, and refuses new ones. The last report of a graceful shutdown is final: calls are abandoned, not
    /// finished.
    pub(in crate::reactor) fn close_all(&mut self) {
        (self.core.is_shut_down, self.core.leaving) = (true, None);
        for conn in self.conns.ids() {
            self.begin_close(conn, DownCause::Local);
        }
    }

    /// The core has ended.
    pub(in crate::reactor) fn drop_conns(&mut self) {
        self.conns = ConnTable::default();
    }

    /// Gives a receive buffer back to the driver. A full queue means that the queue pair is going
    /// down; then the buffer goes back to its pool.
    #[inline(always)]
    pub(in crate::reactor) fn repost(&mut self, conn: ConnId, message: Buf) {
        drop(self.core.fabric.post_recv(conn, message));
    }

    /// The same of a short message, whose connection may take its receive back without the driver.
    #[inline(always)]
    pub(in crate::reactor) fn repost_short(
        &mut self,
        conn: ConnId,
        endpoint: &ShortEndpoint,
        message: Buf,
    ) {
        if let Some(message) = endpoint.give_back(message) {
            self.repost(conn, message);
        }
    }

    pub(in crate::reactor) fn close_misbehaving(&mut self, conn: ConnId, why: PeerMisbehaved) {
        self.begin_close(conn, DownCause::PeerMisbehaved(why.as_str()));
    }

    /// This side can no longer keep its promises to the peer.
    pub(in crate::reactor) fn close_overrun(&mut self, conn: ConnId, what: &'static str) {
        self.begin_close(conn, DownCause::Overrun(what));
    }

    /// Begins to close a connection; the first cause stands.
    pub(in crate::reactor) fn begin_close(&mut self, conn: ConnId, cause: DownCause) {
        let Some(c) = self.conns.find(conn) else { return };
        if c.closing.is_none() {
            c.closing = Some(cause);
            self.core.fabric.close(conn);
        }
    }

    /// Looks at the outstanding requests of each connection, if that is due, and closes the connections with a request that
    /// has been outstanding for too long.
    pub(in crate::reactor) fn end_stalled(&mut self, now: Instant) {
        if !self.stalls.take_due(now) {
            return;
        }
        let (conns, core) = self.split();
        let mut stalled: Vec<ConnId> = Vec::new();
        for c in conns.iter_mut().filter(|c| c.closing.is_none()) {
            core.stalls.begin(now);
            if c.is_stalled(core.fabric()) {
                stalled.push(c.id);
            }
        }
        self.stats().connections_stalled += stalled.len() as u64;
        for conn in stalled {
            self.begin_close(conn, DownCause::Stalled);
        }
    }
}

impl Core {
    fn new(
        mut fabric: AnyFabric,
        config: Config,
        bulk: BulkPool,
        inbox: Arc<Inbox>,
        cells: Arc<StatsCells>,
    ) -> Self {
        let clock = fabric.caps().simulated_clock.unwrap_or_else(Clock::shared);
        let now = fabric.now(&clock);
        let deferred_places = DeferredPlaces::new(&config, &bulk, inbox.letters());
        inbox.set_waker(fabric.begin(Some(&bulk), true));
        Self {
            // Thresholds depend on sizes only; our identity is only sent to peers.
            offer: Offer::of(&config, fabric.caps().remote_invalidate, Instance::Passing),
            done_timeout_ticks: clock.from_duration(config.done_timeout()),
            default_timeout_ticks: match config.timeout() {
                Some(timeout) => clock.from_duration(timeout),
                None => u64::MAX,
            },
            memory_wait_ticks: clock.from_duration(config.memory_wait()),
            origins: Origins::default(),
            stalls: StallTimer::new(clock.from_duration(config.stall_timeout())),
            waiting: VecDeque::with_capacity(config.slots_per_conn()),
            ended: VecDeque::with_capacity(config.slots_per_conn()),
            detached_clients: DetachedClients::default(),
            panic_log: LogLimit::default(),
            stats: StatsSnapshot::default(),
            next_deadline: Instant(u64::MAX),
            overdue: Overdue::default(),
            deferred: BoxPool::new(deferred_places.all),
            deferred_places,
            in_turn: false,
            now,
            busy_since: now,
            unpublished: 0,
            unstamped: 0,
            published_at: 0,
            xid_seed: now.0 as u32,
            is_shut_down: false,
            leaving: None,
            timer: None,
            resumed: None,
            seen_from: now,
            timed_turn: (0, now),
            timed_until: now,
            is_sample_due: false,
            next_sample: now,
            slow: SlowCalls::new(&clock),
            #[cfg(feature = "gss")]
            gss_work: GssWork::new(
                config.gss_at_once_bytes(),
                &bulk,
                &inbox,
                CryptoCounts::new(clock),
            ),
            fabric,
            config,
            clock,
            bulk,
            inbox,
            cells,
        }
    }

    getters! {
        fabric: &AnyFabric,
        config: &Config,
        done_timeout_ticks: u64,
        /// New connections are refused, and lost ones not replaced any more.
        is_shut_down: bool,
    }

    /// The core's own registered memory.
    #[inline(always)]
    pub(in crate::reactor) fn arena(&self) -> &BulkPool {
        &self.bulk
    }

    #[inline(always)]
    pub(in crate::reactor) fn fabric_mut(&mut self) -> &mut AnyFabric {
        &mut self.fabric
    }

    #[inline(always)]
    pub(in crate::reactor) fn stats(&mut self) -> &mut StatsSnapshot {
        &mut self.stats
    }

    /// Counts a panic of a handler. Returns the number of panics for the next log line, if one is due.
    pub(in crate::reactor) fn count_panic(&mut self) -> Option<u64> {
        self.stats.handler_panics += 1;
        let now_ns = self.now_ns();
        self.panic_log.count(now_ns)
    }

    pub(in crate::reactor) fn detached_clients(&mut self) -> &mut DetachedClients {
        &mut self.detached_clients
    }

    #[cfg(feature = "gss")]
    #[inline]
    pub(in crate::reactor) fn gss_work(&mut self) -> &mut GssWork {
        &mut self.gss_work
    }

    /// Has a thread of the core seal or unseal a body.
    #[cfg(feature = "gss")]
    pub(in crate::reactor) fn offload_body(&mut self, body: Body) {
        if self.gss_work.push(body) {
            self.wake_by(Instant(0));
        }
    }

    /// Memory of the core for a connection whose peer can write the connection's own, else of the connection.
    pub(in crate::reactor) fn private_bulk(&mut self, conn: ConnId, bytes: usize) -> Option<Bulk> {
        let is_exposed = self.fabric.memory(conn).arena.is_some_and(BulkPool::is_exposed);
        if is_exposed { self.bulk.take(bytes) } else { self.fabric.bulk(conn, bytes) }
    }
}

/// The queue of messages and answers that wait for memory or room.
impl Reactor {
    pub(in crate::reactor) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Postpones a message, which is retried in whole turns. It is in the queue at most once.
    pub(in crate::reactor) fn put_off(&mut self, conn: ConnId, what: ReadOwner) {
        let wait = self.conn(conn).and_then(|c| c.wait_of(what));
        if wait.is_some_and(|wait| !wait.set_queued(true)) {
            self.waiting.push_back((conn, Waiting::Message(what)));
        }
    }

    /// Postpones an answer. A peer that is owed as many answers as it has credits has exceeded them, and gets none.
    #[cold]
    pub(in crate::reactor) fn owe(&mut self, conn: ConnId, answer: Waiting) {
        let Some(c) = self.conn(conn) else { return };
        if c.answers_owed < c.serves.slots().max(1) {
            c.answers_owed += 1;
            self.waiting.push_back((conn, answer));
        }
    }

    /// Takes the oldest entry out of the queue; `None` if its connection is gone.
    pub(in crate::reactor) fn next_waiting(&mut self) -> Option<(ConnId, Waiting)> {
        let (conn, what) = self.waiting.pop_front()?;
        let c = self.conn(conn)?;
        match what {
            Waiting::Message(message) => _ = c.wait_of(message)?.set_queued(false),
            _ => c.answers_owed = c.answers_owed.saturating_sub(1),
        }
        Some((conn, what))
    }
}

/// Connections to come, and the end of all.
impl Core {
    /// Returns true if no connection with this side in that role is taken.
    pub(in crate::reactor) fn refuses(&self, side: Side) -> bool {
        self.is_shut_down || (side == Side::Server && self.leaving.is_some())
    }

    /// Opens a connection that an endpoint leads to.
    pub(in crate::reactor) fn open(
        &mut self,
        endpoint: Endpoint,
        roles: Roles,
    ) -> Result<Conn, FabricError> {
        let reads_max = self.fabric.caps().reads_max.min(endpoint.reads_max);
        let of_peer = (&endpoint.peer_private_data[..], endpoint.peer_identity);
        let terms = Terms::new(&self.offer, of_peer, reads_max, &self.config);
        let peer = endpoint.peer;
        let id = self.fabric.adopt(endpoint)?;
        self.xid_seed = self.xid_seed.wrapping_mul(0x9e37_79b9).wrapping_add(0x7f4a_7c15);
        let memory = self.fabric.message_memory(id, message_bytes(&self.config));
        let parts = (self.fabric.short_endpoint(id), memory);
        let opened = Conn::open(id, roles, &self.config, terms, self.xid_seed, parts);
        let mut conn = opened.inspect_err(|_| self.fabric.close(id))?;
        let (origin, share) = self.origins.admit(&peer);
        conn.belong_to(
            peer,
            (origin, share),
            Caller::new(Arc::clone(&self.inbox), self.real_clock()),
        );
        let look = self.stalls.begin(Instant(self.read_clock().0));
        self.wake_by(look);
        self.stats.connections_opened += 1;
        Ok(conn)
    }

    pub(in crate::reactor) fn leave(&mut self, request: DrainRequest) {
        self.leaving = Some(Leaving::new(request));
    }

    pub(in crate::reactor) fn leaving(&mut self) -> Option<&mut Leaving> {
        self.leaving.as_mut()
    }
}

/// Deferred calls.
impl Core {
    /// Their number.
    pub(in crate::reactor) fn deferred(&self) -> usize {
        self.deferred.out()
    }

    pub(in crate::reactor) fn deferred_replies(&mut self) -> &mut BoxPool<DeferredReply> {
        &mut self.deferred
    }
}
