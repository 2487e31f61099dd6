//! A core's state: everything that one thread owns, and the steps that all parts of it share.

use crate::config::Config;
use crate::fabric::{AnyFabric, ConnId, DownCause, Ends, ShortEnds};
use crate::mem::{Buf, Bulk, BulkPool, Slab};
use crate::reactor::pending::drain::Leaving;
use crate::reactor::pending::ended_calls::{GivenUp, OwedAnswer};
use crate::reactor::pending::expiry::Overdue;
#[cfg(feature = "gss")]
use crate::reactor::pending::gss_work::GssWork;
use crate::reactor::pending::interrupted::Interrupted;
use crate::reactor::pending::latency::Latencies;
use crate::reactor::pending::mailbox::Inbox;
use crate::reactor::pending::origins::Origins;
use crate::reactor::pending::panic_log::PanicLog;
use crate::reactor::pending::pulling::Pulling;
use crate::reactor::pending::stalls::StallTimer;
use crate::reactor::state::conn_table::ConnTable;
use crate::reactor::state::lane_memory::Lane;
use crate::reactor::state::rfc5666::CoreDialect;
#[cfg(feature = "gss")]
use crate::reactor::words::crypto_counts::CryptoCounts;
use crate::reactor::words::instance::Instance;
use crate::reactor::words::latency::CallTimer;
use crate::reactor::words::memory::{DeferredPlaces, longest_block_bytes};
use crate::reactor::words::negotiate::Offer;
use crate::reactor::words::stats::{StatsCells, StatsSnapshot};
use crate::sys::clock::{Clock, Ticks};
use spinrpc_proto::ids::Instant;
use spinrpc_proto::output::PeerMisbehaved;
use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::sync::Arc;

/// A core's state: what handlers and the turn share.
pub(crate) struct CoreCell {
    pub(in crate::reactor) state: RefCell<Reactor>,
    pub(in crate::reactor) lane: Lane,
    pub(in crate::reactor) connect: ConnectRequests,
    /// Mailbox of the state.
    pub(in crate::reactor) inbox: Arc<Inbox>,
    /// Counters of bodies under RPCSEC_GSS.
    #[cfg(feature = "gss")]
    pub(crate) crypto: Arc<CryptoCounts>,
}

/// Hands a connection request to the control thread.
pub(crate) type ConnectRequests =
    Box<dyn Fn(&str, std::time::Duration, Instance, &Arc<[Slab]>) -> u64>;

/// Everything one core owns.
pub(crate) struct Reactor {
    pub(in crate::reactor) fabric: AnyFabric,
    pub(in crate::reactor) config: Config,
    pub(in crate::reactor) clock: Clock,
    pub(in crate::reactor) conns: ConnTable,
    pub(in crate::reactor) bulk: BulkPool,
    /// Of `bulk`, for each origin that has connections.
    pub(in crate::reactor) origins: Origins,
    pub(in crate::reactor) inbox: Arc<Inbox>,
    pub(in crate::reactor) stats: StatsSnapshot,
    pub(in crate::reactor) next_deadline: Instant,
    pub(in crate::reactor) overdue: Overdue,
    pub(in crate::reactor) default_timeout_ticks: u64,
    pub(in crate::reactor) memory_wait_ticks: u64,
    pub(in crate::reactor) stalls: StallTimer,
    pub(in crate::reactor) put_off: VecDeque<(ConnId, Pulling)>,
    pub(in crate::reactor) given_up: VecDeque<GivenUp>,
    pub(in crate::reactor) owed_answers: VecDeque<OwedAnswer>,
    pub(in crate::reactor) interrupted: Interrupted,
    /// Requested connections on which the peer may make reverse calls.
    pub(in crate::reactor) reverse_requests: Vec<u64>,
    /// Panics of handlers of all cores.
    pub(in crate::reactor) panics: Arc<PanicLog>,
    /// Lost connections are not replaced any more.
    pub(in crate::reactor) ending: bool,
    /// Deferred calls whose answers have not arrived by mail; each has its place there.
    pub(in crate::reactor) deferred: usize,
    pub(in crate::reactor) deferred_places: DeferredPlaces,
    pub(in crate::reactor) cells: Arc<StatsCells>,
    pub(in crate::reactor) offer: Offer,
    /// Settings for the dialects of RFC 5666.
    pub(in crate::reactor) dialect: CoreDialect,
    pub(in crate::reactor) now: Ticks,
    /// Time of the last reading of the clock, whether or not the turn got it.
    pub(in crate::reactor) busy_since: Ticks,
    /// In a turn that does not end early.
    pub(in crate::reactor) in_turn: bool,
    /// Turns with work since the statistics were published.
    pub(in crate::reactor) unpublished: u32,
    /// Whole turns without work since the clock was read.
    pub(in crate::reactor) unstamped: u32,
    /// Number of turns at the last publication.
    pub(in crate::reactor) published_at: u64,
    /// Varies the first XID of new connections.
    pub(in crate::reactor) xid_seed: u32,
    /// New connections are refused.
    pub(in crate::reactor) is_shut_down: bool,
    /// Set during a graceful shutdown; connections of clients are then refused, too.
    pub(in crate::reactor) leaving: Option<Leaving>,
    /// The call that a measured handler is processing and has not deferred.
    pub(in crate::reactor) timer: Option<CallTimer>,
    /// Counts measured calls; kept when measuring ends, for calls that are still deferred.
    pub(in crate::reactor) latencies: Option<Arc<Latencies>>,
    /// Bodies that are sealed and opened in steps.
    #[cfg(feature = "gss")]
    pub(in crate::reactor) gss_work: GssWork,
}

impl CoreCell {
    pub(crate) fn new(reactor: Reactor, connect: ConnectRequests) -> Self {
        let longest_bytes = longest_block_bytes(&reactor.config);
        let alignment = reactor.config.msgp_alignment();
        let caps = reactor.fabric.caps();
        let clock = Some(reactor.clock).filter(|_| caps.simulated_clock.is_none());
        let shorts = (caps.sends_shorts, reactor.dialect.chains());
        let times = (clock, reactor.default_timeout_ticks);
        let polls_first = !reactor.dialect.chains() && !caps.takes_shorts;
        let lane = Lane::new(shorts, alignment, longest_bytes, times);
        let lane = Lane { polls_first, ..lane };
        let inbox = Arc::clone(&reactor.inbox);
        #[cfg(feature = "gss")]
        let crypto = Arc::clone(&reactor.gss_work.crypto);
        Self {
            state: RefCell::new(reactor),
            lane,
            connect,
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
}

impl Reactor {
    /// Creates a core at rest.
    pub(crate) fn new(
        mut fabric: AnyFabric,
        config: Config,
        bulk: BulkPool,
        inbox: Arc<Inbox>,
        cells: Arc<StatsCells>,
    ) -> Self {
        let clock = fabric.caps().simulated_clock.unwrap_or_else(Clock::shared);
        let now = fabric.now(&clock);
        let dialect = CoreDialect::new(&config, &fabric, &clock);
        // Receives that are chained cannot come by value.
        inbox.set_waker(fabric.begin(Some(&bulk), !dialect.chains()));
        Self {
            // Thresholds depend on sizes only; our identity is only sent to peers.
            offer: Offer::of(&config, fabric.caps().remote_invalidate, Instance::Passing),
            dialect,
            default_timeout_ticks: match config.timeout() {
                Some(timeout) => clock.from_duration(timeout),
                None => u64::MAX,
            },
            memory_wait_ticks: clock.from_duration(config.memory_wait()),
            origins: Origins::default(),
            stalls: StallTimer::new(clock.from_duration(config.stall_timeout())),
            put_off: VecDeque::with_capacity(config.slots_per_conn()),
            given_up: VecDeque::with_capacity(config.slots_per_conn()),
            owed_answers: VecDeque::with_capacity(config.slots_per_conn()),
            interrupted: Interrupted::default(),
            reverse_requests: Vec::new(),
            panics: Arc::default(),
            ending: false,
            conns: ConnTable::default(),
            stats: StatsSnapshot::default(),
            next_deadline: Instant(u64::MAX),
            overdue: Overdue::default(),
            deferred: 0,
            deferred_places: DeferredPlaces::new(&config, &bulk, inbox.letters()),
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
            latencies: None,
            #[cfg(feature = "gss")]
            gss_work: GssWork::new(config.gss_step_bytes(), &bulk, CryptoCounts::new(clock)),
            fabric,
            config,
            clock,
            bulk,
            inbox,
            cells,
        }
    }

    /// Sets the log of panics that the engine's cores share.
    pub(crate) fn with_panics(self, panics: Arc<PanicLog>) -> Self {
        Self { panics, ..self }
    }

    /// The time of the turn, at most a few turns old; outside of turns the current time.
    #[inline(always)]
    pub(in crate::reactor) fn time(&self) -> Ticks {
        if self.in_turn { self.now } else { self.read_clock() }
    }

    /// The driver's time: that of the processor's counter, or simulated.
    #[inline(always)]
    pub(in crate::reactor) fn read_clock(&self) -> Ticks {
        self.fabric.now(&self.clock)
    }

    /// Gives a receive buffer back to the driver. A full queue means that the queue pair is going
    /// down; then the buffer goes back to its pool.
    #[inline(always)]
    pub(in crate::reactor) fn repost(&mut self, conn: ConnId, mut message: Buf) {
        if self.dialect.chains() {
            self.prepare_receive(conn, &mut message);
        }
        drop(self.fabric.post_recv(conn, message));
    }

    /// The same of a short message, whose connection may take its receive back without the driver. Chained receives
    /// do not come here.
    #[inline(always)]
    pub(in crate::reactor) fn repost_short(&mut self, conn: ConnId, ends: &Ends, message: Buf) {
        if let Some(message) = ends.give_back(message) {
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
            self.fabric.close(conn);
        }
    }
}

impl CoreCell {
    /// Memory of the connection, or of the core if a peer can write that of the connection.
    pub(in crate::reactor) fn private_bulk(&self, conn: ConnId, bytes: usize) -> Option<Bulk> {
        let mut reactor = self.reactor();
        reactor.conns.find(conn)?;
        let is_exposed = reactor.fabric.memory(conn).arena.is_some_and(BulkPool::is_exposed);
        if is_exposed { reactor.bulk.take(bytes) } else { reactor.fabric.bulk(conn, bytes) }
    }
}
