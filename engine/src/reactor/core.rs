//! A core: one thread's reactor, and its turn.
//!
//! The turn reaps completions, advances connections, runs handlers, reads mail, looks at
//! deadlines, and flushes. The state is borrowed for one step at a time and never while a handler
//! runs, so that handlers may start calls and answer others.

use super::calls::ArrivedReply;
use super::connection::Conn;
use super::mailbox::{Inbox, Mail};
use super::memory::DEFERRED_MAX;
use super::negotiate::{Negotiated, Offer};
use super::ops::{CallEnd, CallFrame, RpcRefusal, Upcalls};
use super::replies::SYSTEM_ERR;
use super::sink::{Event, EventSink};
use super::stats::{StatsCells, StatsSnapshot};
use crate::config::Config;
use crate::fabric::{
    CompletionKind, Completions, ConnId, DownCause, Endpoint, Fabric, FabricError, QpId,
};
use crate::mem::{Buf, BulkPool};
use crate::sys::clock::{Clock, Ticks};
use spinrpc_proto::connection::Side;
use spinrpc_proto::ids::{Instant, Xid};
use spinrpc_proto::output::{CallFailure, Output, PeerMisbehaved, SlotId};
use spinrpc_proto::rdma::{RdmaError, v1};
use spinrpc_proto::rpc::ReplyHeader;
use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::sync::Arc;

/// Empty turns between two publications of the statistics.
const PUBLISH_EVERY: u64 = 1024;

/// A core's state behind the seam: what handlers and the turn share.
pub(crate) struct CoreCell<F: Fabric> {
    state: RefCell<Reactor<F>>,
    pub(super) connect: ConnectRequests,
}

/// Hands a connection request to the control thread.
pub(crate) type ConnectRequests = Box<dyn Fn(&str, std::time::Duration) -> u64>;

/// Everything one core owns.
pub(crate) struct Reactor<F: Fabric> {
    pub(super) fabric: F,
    pub(super) config: Config,
    pub(super) clock: Clock,
    pub(super) conns: ConnTable,
    pub(super) bulk: BulkPool,
    pub(super) inbox: Arc<Inbox<F::Endpoint>>,
    pub(super) stats: StatsSnapshot,
    pub(super) next_deadline: Instant,
    pub(super) default_timeout_ticks: u64,
    pub(super) put_off: VecDeque<(ConnId, SlotId)>,
    given_up: VecDeque<GivenUp>,
    pub(super) deferred: usize,
    pub(super) deferred_max: usize,
    cells: Arc<StatsCells>,
    offer: Offer,
    /// The turn's time stamp; `None` between turns.
    turn: Option<Ticks>,
    last_turn: Ticks,
    worked: bool,
    next_xid: u32,
}

/// The connections of a core by queue pair.
#[derive(Default)]
pub(crate) struct ConnTable(Vec<Option<Box<Conn>>>);

impl ConnTable {
    #[inline]
    pub(crate) fn find(&mut self, id: ConnId) -> Option<&mut Conn> {
        let conn = self.0.get_mut(id.index as usize)?.as_deref_mut()?;
        (conn.id == id).then_some(conn)
    }

    fn insert(&mut self, conn: Conn) {
        let index = conn.id.index as usize;
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        self.0[index] = Some(Box::new(conn));
    }

    fn remove(&mut self, id: ConnId) -> Option<Box<Conn>> {
        self.find(id)?;
        self.0.get_mut(id.index as usize)?.take()
    }

    fn ids(&self) -> Vec<ConnId> {
        self.0.iter().flatten().map(|conn| conn.id).collect()
    }
}

/// What a received message leads to, once the state is no longer borrowed.
enum Step {
    Done,
    Call(CallFrame),
    Reply(ArrivedReply),
    Failed { token: u64, failure: CallFailure },
}

impl<F: Fabric> CoreCell<F> {
    pub(crate) fn new(reactor: Reactor<F>, connect: ConnectRequests) -> Self {
        Self { state: RefCell::new(reactor), connect }
    }

    /// The state, for one step.
    #[inline]
    pub(super) fn reactor(&self) -> RefMut<'_, Reactor<F>> {
        self.state.borrow_mut()
    }

    /// One turn. Returns how many completions and letters it handled.
    pub(crate) fn turn(&self, batch: &mut Completions, up: &mut impl Upcalls) -> usize {
        let reaped = self.reactor().begin_turn(batch);
        for completion in batch.drain() {
            self.advance(completion.qp, completion.kind, up);
        }
        let letters = self.read_mail(up);
        self.end_overdue(up);
        if self.reactor().has_put_off() {
            self.resume(up);
        }
        self.reactor().end_turn(reaped + letters)
    }

    #[inline]
    fn advance(&self, qp: QpId, kind: CompletionKind, up: &mut impl Upcalls) {
        let step = match kind {
            CompletionKind::Received { message, invalidated } => {
                self.reactor().on_message(qp, message, invalidated)
            }
            CompletionKind::Read { id, result } => {
                self.reactor().on_read(qp, id, result).map_or(Step::Done, Step::Call)
            }
            CompletionKind::RecvFlushed { buf } => return drop(buf),
            CompletionKind::Down { cause } => return self.on_down(qp, &cause, up),
        };
        match step {
            Step::Done => {}
            Step::Call(frame) => self.deliver_call(frame, up),
            Step::Reply(arrived) => self.deliver_reply(arrived, up),
            Step::Failed { token, failure } => {
                up.on_call_failed(qp, token, CallEnd::Failed(failure));
            }
        }
    }

    fn read_mail(&self, up: &mut impl Upcalls) -> usize {
        let mut letters = 0;
        loop {
            // Taken in a statement of its own: the borrow must end before a handler runs.
            let mail = self.reactor().inbox.take();
            let Some(mail) = mail else { return letters };
            letters += 1;
            match mail {
                Mail::Connected { request, result } => self.on_connected(request, result, up),
                Mail::Accepted(endpoint) => self.on_accepted(endpoint, up),
                Mail::Reply(reply) => self.reactor().finish_deferred(reply),
                Mail::Shutdown => self.reactor().close_all(),
            }
        }
    }

    fn on_connected(
        &self,
        request: u64,
        result: Result<F::Endpoint, FabricError>,
        up: &mut impl Upcalls,
    ) {
        let opened = result.and_then(|endpoint| self.reactor().open(endpoint, Side::Client));
        match opened {
            Ok((conn, peer, negotiated)) => {
                up.on_connected(request, Ok(conn));
                up.on_up(conn, &peer, negotiated);
            }
            Err(error) => up.on_connected(request, Err(error)),
        }
    }

    fn on_accepted(&self, endpoint: F::Endpoint, up: &mut impl Upcalls) {
        let opened = self.reactor().open(endpoint, Side::Server);
        match opened {
            Ok((conn, peer, negotiated)) => up.on_up(conn, &peer, negotiated),
            Err(error) => tracing::warn!(%error, "an accepted connection could not be opened"),
        }
    }

    /// The last completion of a connection: every call of it ends now.
    fn on_down(&self, conn: ConnId, cause: &DownCause, up: &mut impl Upcalls) {
        let Some(mut gone) = self.reactor().remove(conn) else { return };
        let cause = gone.closing.take().unwrap_or_else(|| cause.clone());
        gone.proto.requester.on_down(|_, token| {
            if let Some(token) = token {
                up.on_call_failed(conn, token, CallEnd::Down(cause.clone()));
            }
        });
        up.on_down(conn, &cause);
    }

    /// Tells the application of calls that passed their deadline or were cancelled. Their memory
    /// stays fenced until the responder answers or the connection goes.
    fn end_overdue(&self, up: &mut impl Upcalls) {
        if self.reactor().deadline_passed() {
            self.reactor().expire();
        }
        loop {
            let ended = self.reactor().given_up.pop_front();
            let Some(GivenUp { conn, token, failure }) = ended else { return };
            up.on_call_failed(conn, token, CallEnd::Failed(failure));
        }
    }

    /// Sleeps until there is work, for `at_most`, and not beyond the next deadline.
    pub(crate) fn park(&self, at_most: std::time::Duration) {
        let mut reactor = self.reactor();
        let until_deadline = reactor.until_deadline();
        if !reactor.has_put_off() {
            reactor.stats.parks += 1;
            reactor.fabric.park(at_most.min(until_deadline));
        }
    }

    /// Connections that are not down yet.
    pub(crate) fn connections(&self) -> usize {
        self.reactor().conns.ids().len()
    }

    pub(super) fn cancel_call(&self, conn: ConnId, token: u64) -> bool {
        let reactor = &mut *self.reactor();
        let Some(c) = reactor.conns.find(conn) else { return false };
        let Some(slot) = c.proto.requester.find(token) else { return false };
        let mut sink = GiveUp { conn, calls: &mut reactor.given_up };
        c.proto.requester.cancel(slot, &mut sink)
    }
}

impl<F: Fabric> Reactor<F> {
    /// A core at rest. `deferred_max` calls may be deferred at a time.
    pub(crate) fn new(
        fabric: F,
        config: Config,
        bulk: BulkPool,
        inbox: Arc<Inbox<F::Endpoint>>,
        cells: Arc<StatsCells>,
    ) -> Self {
        let clock = Clock::shared();
        inbox.set_waker(fabric.waker());
        Self {
            offer: Offer::of(&config, fabric.caps().remote_invalidate),
            default_timeout_ticks: match config.timeout() {
                Some(timeout) => clock.from_duration(timeout),
                None => u64::MAX,
            },
            deferred_max: DEFERRED_MAX,
            put_off: VecDeque::with_capacity(config.slots_per_conn()),
            given_up: VecDeque::with_capacity(config.slots_per_conn()),
            conns: ConnTable::default(),
            stats: StatsSnapshot::default(),
            next_deadline: Instant(u64::MAX),
            deferred: 0,
            turn: None,
            last_turn: clock.now(),
            worked: false,
            next_xid: clock.now().0 as u32,
            fabric,
            config,
            clock,
            bulk,
            inbox,
            cells,
        }
    }

    #[inline]
    fn begin_turn(&mut self, batch: &mut Completions) -> usize {
        let now = self.clock.now();
        if self.worked {
            self.stats.busy_ticks += now.0.wrapping_sub(self.last_turn.0);
        }
        self.last_turn = now;
        self.turn = Some(now);
        self.fabric.poll(batch)
    }

    #[inline]
    fn end_turn(&mut self, events: usize) -> usize {
        self.fabric.flush();
        self.turn = None;
        self.worked = events > 0;
        self.stats.polls += 1;
        self.stats.empty_polls += u64::from(events == 0);
        if events > 0 || self.stats.polls.is_multiple_of(PUBLISH_EVERY) {
            self.cells.publish(&self.stats);
        }
        events
    }

    fn until_deadline(&self) -> std::time::Duration {
        let ticks = self.next_deadline.0.saturating_sub(self.clock.now().0);
        std::time::Duration::from_nanos(self.clock.to_ns(ticks))
    }

    /// The turn's time stamp, or the time now between turns.
    #[inline]
    pub(super) fn time(&self) -> Ticks {
        self.turn.unwrap_or_else(|| self.clock.now())
    }

    #[inline]
    fn has_put_off(&self) -> bool {
        !self.put_off.is_empty()
    }

    #[inline]
    fn on_message(&mut self, qp: QpId, message: Buf, invalidated: Option<u32>) -> Step {
        let Some(c) = self.conns.find(qp) else { return Step::Done };
        let mut sink = EventSink::new();
        c.proto.on_receive(message.bytes(), &mut sink);
        if let Some(why) = sink.close {
            self.close_peer(qp, why);
        }
        match sink.event {
            Event::Call(slot) => self.frame_call(qp, slot, message).map_or(Step::Done, Step::Call),
            Event::Reply(reply) => {
                self.arrive_reply(qp, message, reply, invalidated).map_or(Step::Done, Step::Reply)
            }
            other => self.on_rare(qp, message, other),
        }
    }

    #[cold]
    fn on_rare(&mut self, qp: QpId, message: Buf, event: Event) -> Step {
        if let Event::Pull(slot) = event {
            self.begin_pull(qp, slot, message);
            return Step::Done;
        }
        self.repost(qp, message);
        match event {
            Event::Failed { slot, token, failure } => {
                self.forget_call(qp, slot);
                return Step::Failed { token, failure };
            }
            Event::Released(slot) => self.forget_call(qp, slot),
            Event::Error(xid, version, error) => self.send_error(qp, xid, version, error),
            Event::Refuse(xid) => {
                self.stats.calls_refused += 1;
                self.send_refusal(qp, xid, &SYSTEM_ERR);
            }
            Event::Dropped(why) => {
                self.stats.messages_dropped += 1;
                tracing::debug!(?why, "dropped a message");
            }
            Event::None | Event::Call(_) | Event::Pull(_) | Event::Reply(_) => {}
        }
        Step::Done
    }

    /// The memory of a call that ended without a reply goes back.
    fn forget_call(&mut self, conn: ConnId, slot: SlotId) {
        let Some(c) = self.conns.find(conn) else { return };
        if let Some(hold) = c.end_call(slot, &mut self.fabric) {
            c.recycle_hold(hold);
        }
    }

    /// Gives a receive buffer back to the driver. A full queue means that the queue pair is going
    /// down; then the buffer goes back to its pool.
    #[inline]
    pub(super) fn repost(&mut self, conn: ConnId, message: Buf) {
        drop(self.fabric.post_recv(conn, message));
    }

    /// Answers with RDMA_ERROR. Without a free buffer the peer gets none: it has sent more rubbish
    /// than credits.
    pub(super) fn send_error(&mut self, conn: ConnId, xid: Xid, version: u32, error: RdmaError) {
        let Some(c) = self.conns.find(conn) else { return };
        if c.send_room(&self.fabric) == 0 {
            return;
        }
        let Some(mut message) = c.sends.take() else { return };
        let grant = c.proto.responder.grant();
        let length = v1::emit_error(message.whole_mut(), xid, version, grant, error);
        message.set_range(0..length);
        self.stats.errors_sent += 1;
        self.post_answer(conn, message, None);
    }

    /// Sends an RPC reply without results that belongs to no slot any more.
    pub(super) fn send_refusal(&mut self, conn: ConnId, xid: Xid, answer: &RpcRefusal) {
        let Some(c) = self.conns.find(conn) else { return };
        if c.send_room(&self.fabric) == 0 {
            return;
        }
        let Some(mut message) = c.sends.take() else { return };
        let header = match *answer {
            RpcRefusal::Accepted(status) => ReplyHeader::accepted(xid, status),
            RpcRefusal::Denied(status) => ReplyHeader::denied(xid, status),
        };
        let grant = c.proto.responder.grant();
        let at = v1::emit_msg_header(message.whole_mut(), xid, grant);
        let length = header.emit(&mut message.whole_mut()[at..]);
        message.set_range(0..at + length);
        self.post_answer(conn, message, None);
    }

    fn close_peer(&mut self, conn: ConnId, why: PeerMisbehaved) {
        self.begin_close(conn, DownCause::PeerMisbehaved(why.as_str()));
    }

    pub(super) fn close_misbehaving(&mut self, conn: ConnId, why: &'static str) {
        self.begin_close(conn, DownCause::PeerMisbehaved(why));
    }

    /// This side can no longer keep its promises to the peer.
    pub(super) fn close_overrun(&mut self, conn: ConnId, what: &'static str) {
        self.begin_close(conn, DownCause::Overrun(what));
    }

    /// Begins to close a connection; the first cause stands.
    pub(super) fn begin_close(&mut self, conn: ConnId, cause: DownCause) {
        let Some(c) = self.conns.find(conn) else { return };
        if c.closing.is_none() {
            c.closing = Some(cause);
            self.fabric.close(conn);
        }
    }

    fn close_all(&mut self) {
        for conn in self.conns.ids() {
            self.begin_close(conn, DownCause::Local);
        }
    }

    /// Takes over a new connection (slow path: allocates).
    fn open(
        &mut self,
        endpoint: F::Endpoint,
        side: Side,
    ) -> Result<(ConnId, String, Negotiated), FabricError> {
        let theirs = Offer::decode(endpoint.peer_private_data());
        let negotiated = Negotiated::between(&self.offer, &theirs);
        let peer = endpoint.peer_name();
        let id = self.fabric.adopt(endpoint)?;
        self.next_xid = self.next_xid.wrapping_mul(0x9e37_79b9).wrapping_add(0x7f4a_7c15);
        let opened = Conn::open(id, side, &self.config, negotiated, self.next_xid);
        let mut conn = opened.inspect_err(|_| self.fabric.close(id))?;
        conn.post_receives(&mut self.fabric);
        self.conns.insert(conn);
        self.stats.connections_opened += 1;
        Ok((id, peer, negotiated))
    }

    fn remove(&mut self, conn: ConnId) -> Option<Box<Conn>> {
        let gone = self.conns.remove(conn)?;
        self.stats.connections_closed += 1;
        Some(gone)
    }

    #[inline]
    fn deadline_passed(&self) -> bool {
        self.turn.is_some_and(|now| now.0 >= self.next_deadline.0)
    }

    /// Fails the calls whose deadline has passed, and finds the next one. Takes time in the number
    /// of connections, but runs only when some deadline was reached.
    fn expire(&mut self) {
        let now = Instant(self.time().0);
        let before = self.given_up.len();
        self.next_deadline = Instant(u64::MAX);
        for conn in self.conns.0.iter_mut().flatten() {
            let mut sink = GiveUp { conn: conn.id, calls: &mut self.given_up };
            conn.proto.requester.on_time(now, &mut sink);
            self.next_deadline = self.next_deadline.min(conn.proto.requester.next_deadline());
        }
        self.stats.timeouts += (self.given_up.len() - before) as u64;
    }
}

/// A call the application has not been told of yet.
struct GivenUp {
    conn: ConnId,
    token: u64,
    failure: CallFailure,
}

/// Collects the calls of one connection that are given up.
struct GiveUp<'a> {
    conn: ConnId,
    calls: &'a mut VecDeque<GivenUp>,
}

impl Output for GiveUp<'_> {
    fn fail_call(&mut self, _: SlotId, token: u64, failure: CallFailure, _fenced: bool) {
        self.calls.push_back(GivenUp { conn: self.conn, token, failure });
    }
}
