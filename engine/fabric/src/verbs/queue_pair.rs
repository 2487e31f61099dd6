//! One connection's queue pair: the requests that the reactor posted, those on the device, and
//! their fate when the connection ends.
//!
//! A buffer is given back when the device has reported its work request, or a later one of the same
//! queue, or when the queue pair is destroyed: never before. For devices of which that is not enough,
//! see `send_queue`.

mod flush;

use super::super::ShortEndpointOps;
use super::super::send_queue::SendQueue;
use super::super::{
    Access, CompletionKind, ConnMemory, DownCause, ExposeError, FabricError, Full, InFlight, QpId,
    RemoteSlice, Revoked, SendWr, WrError, WrId,
};
use super::control::Event;
use super::exposure::{Ended, Exposed, Exposures};
use super::link::{Link, Side};
use super::poll::{Outbox, Outcome, invalidated_key};
use super::post::{Binding, Operation, Piece, RecvChain, SendChain};
use super::recv_queue::RecvQueue;
use super::short_endpoint::{DirtyPairs, VerbsShortEndpoint};
use super::silence::Silence;
use super::work_id::{Queue, WorkId};
use crate::mem::{Buf, Lease};
use crate::sys::journal::event;
use rdma_sys::ibv_wc;
use std::ptr::NonNull;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Time that a device may stay silent about its remaining requests, once its queue pair is to end,
/// before the queue pair is destroyed anyway.
const QUIET: Duration = Duration::from_millis(200);
/// Time that data sent before a close may take to arrive, before the connection is cut.
pub(super) const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The mark behind the last request, and a reminder of the first.
pub(super) const MARKS: u32 = 2;

#[derive(Debug)]
enum Sent {
    /// The message, until it has left; none if it was copied.
    Message(#[expect(dead_code, reason = "held to be dropped")] Option<Buf>),
    Inline(Option<Buf>),
    /// A message in a slot of the short endpoint, which is copied when it is posted.
    Short,
    Read {
        id: WrId,
        into: Lease,
        result: Option<Result<(), WrError>>,
    },
    Write(#[expect(dead_code, reason = "held to be dropped")] Lease),
    Bind {
        window: usize,
        key: u32,
    },
    Invalidate {
        window: usize,
        has_failed: bool,
    },
    Mark,
    Reminder,
}

impl Sent {
    #[inline]
    fn is_out(&self) -> bool {
        matches!(self, Self::Read { result: None, .. })
    }

    #[inline]
    fn uncount(&self, endpoint: &VerbsShortEndpoint, own: &mut u32) {
        match self {
            Self::Message(_)
            | Self::Inline(_)
            | Self::Short
            | Self::Read { .. }
            | Self::Write(_) => endpoint.uncount(),
            Self::Bind { .. } | Self::Invalidate { .. } => *own -= 1,
            Self::Mark | Self::Reminder => {}
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Live,
    /// This side closes: requests on the device may still leave, until then.
    Draining {
        until: Instant,
    },
    /// The device gave a request back unasked: the control thread will know why.
    Lost {
        until: Instant,
    },
    /// The device is to give back its requests; the time is that of its last activity.
    Flushing {
        moved: Instant,
    },
    Destroying,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Pending,
    Told,
}

pub(super) struct QueuePair {
    pub(super) id: QpId,
    recvs: RecvQueue<Buf>,
    recv_chain: RecvChain,
    sends: SendQueue<Sent>,
    send_chain: SendChain,
    /// Has the number of requests of the reactor.
    pub(super) short_endpoint: Rc<VerbsShortEndpoint>,
    /// Number of requests in the send queue that are the driver's.
    own: u32,
    asked_max: u32,
    own_max: u32,
    reads: u16,
    exposures: Exposures,
    phase: Phase,
    failed: Option<DownCause>,
    is_closed: bool,
    /// The peer's request is answered, or needs no answer.
    is_accepted: bool,
    silence: Silence,
    is_reminding: bool,
    /// A Write was posted, and no Send since.
    has_written: bool,
    /// Likely cause, until the control half or the device reports the true one.
    suspected: Option<DownCause>,
    pub(super) link: Link,
}

impl QueuePair {
    /// The reactor may post `asked_max` requests; `None` if the device cannot be posted to.
    pub(super) fn new(
        id: QpId,
        link: Link,
        (asked_max, signal_every): (u32, u32),
        dirty: &Rc<DirtyPairs>,
    ) -> Option<Self> {
        let limits = link.limits;
        // However many requests of the driver's own it holds, the reactor's must not run out first.
        let signal_every = signal_every.min(asked_max / 4).max(1);
        let sends = SendQueue::new(limits.send_depth, signal_every, limits.signal_from_bytes);
        // SAFETY: the queue pair is alive as long as the link is not destroyed.
        let send_chain = unsafe { SendChain::new(link.qp, sends.places()) }?;
        // SAFETY: as above.
        let recv_chain = unsafe { RecvChain::new(link.qp, limits.recv_depth as usize) }?;
        let places = asked_max.min(limits.send_depth.saturating_sub(MARKS));
        let endpoint = VerbsShortEndpoint::new(id.index(), dirty, places, limits.inline_bytes);
        Some(Self {
            id,
            recvs: RecvQueue::new(limits.recv_depth),
            recv_chain,
            sends,
            send_chain,
            short_endpoint: Rc::new(endpoint),
            own: 0,
            asked_max: places,
            own_max: limits.send_depth.saturating_sub(asked_max + MARKS),
            reads: 0,
            exposures: link.memory.exposures(),
            phase: Phase::Live,
            failed: None,
            is_closed: false,
            is_accepted: link.side == Side::Connecting,
            silence: Silence::new(),
            is_reminding: false,
            has_written: false,
            suspected: None,
            link,
        })
    }

    #[inline]
    pub(super) fn is_live(&self) -> bool {
        self.phase == Phase::Live
    }

    /// Queues a receive, or keeps it for the end of the next flush.
    #[inline]
    pub(super) fn post_recv(&mut self, buf: Buf) -> Result<Result<(), DownCause>, Full<Buf>> {
        if !self.is_live() || self.recvs.room() <= usize::from(self.short_endpoint.has_late()) {
            return Err(Full(buf));
        }
        match self.short_endpoint.give_back(buf) {
            Some(buf) => self.queue_recv(buf),
            None => Ok(Ok(())),
        }
    }

    #[inline(never)]
    fn queue_recv(&mut self, mut buf: Buf) -> Result<Result<(), DownCause>, Full<Buf>> {
        buf.set_range(0..0);
        let piece = self.receive_piece(&buf);
        let place = self.recvs.push(buf).map_err(Full)?;
        let id = WorkId::new(self.id, Queue::Recv, place);
        Ok(piece.map(|piece| self.recv_chain.set(place, id.0, piece)))
    }

    #[inline]
    fn receive_piece(&mut self, buf: &Buf) -> Result<Piece, DownCause> {
        let memory = &mut *self.link.memory;
        let key = known(memory.local_key(buf.region_id(), || buf.hold_region()))?;
        piece(buf.as_ptr(), buf.capacity(), key)
    }

    /// An inner error is the end of the connection, which the caller begins.
    #[inline]
    pub(super) fn post(&mut self, wr: SendWr) -> Result<Result<(), DownCause>, Full<SendWr>> {
        if self.short_endpoint.room() == 0 {
            return Err(Full(wr));
        }
        self.queue_shorts();
        let (sent, prepared, signal) = match wr {
            SendWr::Send { message, invalidate } => {
                let prepared = self.prepare_send(&message, invalidate);
                let sent = match prepared {
                    Ok(Operation::Send { inline: true, .. }) => Sent::Inline(Some(message)),
                    _ => Sent::Message(Some(message)),
                };
                (sent, prepared, std::mem::take(&mut self.has_written))
            }
            SendWr::Read { id, from, into } => {
                let piece = self.transfer_piece(&into, &from, true);
                let prepared = match into.writable() {
                    true => piece.map(|into| Operation::Read { from, into }),
                    false => Err(DownCause::WorkRequest(WrError::RemoteAccess)),
                };
                (Sent::Read { id, into, result: None }, prepared, true)
            }
            // The memory of a Write is not the connection's alone: it comes back with the Send behind it,
            // and does not wait for further ones.
            SendWr::Write { from, to } => {
                self.has_written = true;
                let piece = self.transfer_piece(&from, &to, false);
                (Sent::Write(from), piece.map(|from| Operation::Write { from, to }), false)
            }
        };
        self.short_endpoint.count();
        // One that failed is queued like others, so that its memory comes back like theirs. It is never posted.
        self.queue(sent, prepared.as_ref().unwrap_or(&Operation::Mark), signal);
        self.short_endpoint.mark();
        Ok(prepared.map(drop))
    }

    #[inline]
    fn prepare_send(
        &mut self,
        message: &Buf,
        invalidate: Option<u32>,
    ) -> Result<Operation, DownCause> {
        let inline = (1..=self.link.limits.inline_bytes as usize).contains(&message.len());
        let key = match inline {
            true => 0,
            false => {
                let hold = || message.hold_region();
                known(self.link.memory.local_key(message.region_id(), hold))?
            }
        };
        let message = piece(message.as_ptr(), message.len(), key)?;
        Ok(Operation::Send { message, inline, invalidate })
    }

    /// Over iWARP the peer is told the key of the destination of a Read: that of the block, and no more.
    fn transfer_piece(
        &mut self,
        local: &Lease,
        remote: &RemoteSlice,
        is_sink: bool,
    ) -> Result<Piece, DownCause> {
        let memory = &mut *self.link.memory;
        let of_block = if is_sink { known(memory.sink_key(local))? } else { None };
        if local.len() != remote.length as usize {
            return Err(TOO_LONG);
        }
        let key = match of_block {
            Some(key) => key,
            None => known(memory.local_key(local.region_id(), || local.hold_region()))?,
        };
        piece(local.as_ptr(), local.len(), key)
    }

    /// A first message may go unnoticed, and has not been answered; see `reminder`.
    pub(super) fn is_unanswered(&self) -> bool {
        let is_first = self.link.side == Side::Connecting && self.link.limits.is_iwarp;
        is_first && !self.silence.has_heard() && self.is_live()
    }

    /// Nothing to do while the first message, or another one, is still on its way. So it is the first of its chain: behind another
    /// request bnxt_re, before rdma-core 50, gives it the length of that.
    pub(super) fn remind(&mut self) {
        if self.short_endpoint.is_open() && !self.is_reminding && self.sends.waiting() == 0 {
            self.is_reminding = true;
            self.queue(Sent::Reminder, &Operation::Mark, true);
        }
        self.short_endpoint.mark();
    }

    /// Asks a peer for a sign of life of which nothing was heard for a while, also one that has not begun. Over iWARP an end that
    /// accepts may not ask before that.
    ///
    /// Returns for how many looks it has given none. Over iWARP the device reports what it has sent, not what has arrived.
    pub(super) fn look_for_silence(&mut self) -> u32 {
        let was_asking = self.is_reminding && self.is_live() && !self.link.limits.is_iwarp;
        let may_send = self.is_live() && (self.short_endpoint.is_open() || self.open());
        if may_send && self.silence.look(self.sends.pushed()) {
            let before = self.sends.pushed();
            self.remind();
            (before..self.sends.pushed()).for_each(|_| self.silence.asked());
        }
        self.silence.unanswered(was_asking, self.sends.released())
    }

    #[inline]
    pub(super) fn on_arrived(
        &mut self,
        completion: &ibv_wc,
        out: &mut Outbox<'_>,
    ) -> Result<(), DownCause> {
        let place = WorkId(completion.wr_id).position();
        let Some(mut message) = self.recvs.take(place) else { return Ok(()) };
        if !self.silence.is_broken() {
            self.end_silence();
        }
        let says_so = completion.wc_flags & self.link.limits.invalidated_flags != 0;
        let key = says_so.then(|| invalidated_key(completion));
        let key = key.filter(|key| self.exposures.on_remote_invalidate(*key));
        if !message.set_received(completion.byte_len as usize) {
            out.push(self.id, CompletionKind::RecvFlushed { buf: message });
            return Err(TOO_LONG);
        }
        out.push_received(self.id, message, key);
        Ok(())
    }

    /// The peer has sent: it knows that the connection is established. The connection manager may not, if the peer's
    /// confirmation was lost.
    #[cold]
    fn end_silence(&mut self) {
        self.silence.end();
        if !self.link.state.is_established() {
            self.link.tell(Event::FirstMessage);
        }
    }

    pub(super) fn on_other(
        &mut self,
        id: WorkId,
        completion: &ibv_wc,
        out: &mut Outbox<'_>,
    ) -> Outcome {
        let outcome = Outcome::of(completion, id.queue());
        match id.queue() {
            Queue::Send => self.on_sent(id.position(), outcome, out),
            Queue::Recv => {
                self.on_unused(id.position(), out);
                outcome
            }
        }
    }

    #[cold]
    fn on_unused(&mut self, place: u32, out: &mut Outbox<'_>) {
        if let Some(buf) = self.recvs.take(place) {
            out.push(self.id, CompletionKind::RecvFlushed { buf });
        }
        self.moved();
    }

    #[inline]
    fn on_sent(&mut self, position: u32, outcome: Outcome, out: &mut Outbox<'_>) -> Outcome {
        let Some(sent) = self.sends.report(position) else { return Outcome::Done };
        let outcome = match sent {
            Sent::Message(_) | Sent::Inline(_) | Sent::Short => outcome.of_message(),
            _ => outcome,
        };
        match sent {
            Sent::Read { result, .. } => *result = Some(outcome.result()),
            Sent::Invalidate { has_failed, .. } => *has_failed = outcome != Outcome::Done,
            _ => {}
        }
        if outcome != Outcome::Done {
            self.moved();
        }
        while let Some(sent) = self.sends.release_done(Sent::is_out) {
            self.finish(sent, out);
        }
        outcome
    }

    #[inline]
    fn finish(&mut self, sent: Sent, out: &mut Outbox<'_>) {
        sent.uncount(&self.short_endpoint, &mut self.own);
        match sent {
            Sent::Read { .. } => {
                self.reads -= 1;
                end_read(self.id, sent, out);
            }
            Sent::Reminder => self.is_reminding = false,
            Sent::Invalidate { window, has_failed: false } => {
                if let Some(handle) = self.exposures.on_invalidated(window) {
                    out.push(self.id, CompletionKind::Revoked { handle });
                }
            }
            _ => {}
        }
    }

    pub(super) fn outstanding(&self) -> InFlight {
        let numbers = self.sends.awaited().filter(|_| self.is_live());
        InFlight { numbers, is_unsent: self.has_waiting() }
    }

    /// True if waiting requests can go on: a Read is done, or the peer has spoken.
    #[inline]
    pub(super) fn has_waiting(&self) -> bool {
        (self.sends.waiting() > 0 || self.short_endpoint.has_written()) && self.is_live()
    }

    pub(super) fn memory(&self) -> ConnMemory<'_> {
        let memory = &self.link.memory;
        ConnMemory { arena: memory.own_pool(), read_sinks: memory.read_sinks() }
    }

    pub(super) fn expose(
        &mut self,
        memory: Lease,
        access: Access,
    ) -> Result<RemoteSlice, ExposeError> {
        if !self.is_live() {
            return Err(ExposeError::Down);
        }
        // One request to bind, and one kept for the end of the key.
        let room = self.own_max - self.own;
        if room < 2 && self.link.limits.send_depth > self.asked_max + MARKS {
            return Err(ExposeError::NoKey);
        }
        let exposed = self.exposures.expose(memory, access);
        if self.exposures.asks_for_windows() {
            self.link.leave(|thread, number| thread.add_windows(number));
        }
        let exposed = exposed?;
        if let Some(window) = exposed.window {
            self.bind(window, &exposed, access);
        }
        Ok(exposed.slice)
    }

    pub(super) fn take_windows(&mut self) {
        self.exposures.add_windows(|first| self.link.memory.windows.keys(first));
    }

    fn bind(&mut self, at: usize, exposed: &Exposed, access: Access) {
        let Exposed { slice, region, .. } = *exposed;
        let Some((window, region)) = self.link.memory.window(at, region) else { return };
        let binding = Binding {
            window,
            region,
            key: slice.handle,
            first: slice.offset,
            bytes: slice.length.into(),
            is_writable: access == Access::RemoteWrite,
        };
        self.own += 1;
        // Room for others comes back by reports only.
        let signal = self.own * 2 >= self.own_max;
        self.queue(Sent::Bind { window: at, key: slice.handle }, &Operation::Bind(binding), signal);
        self.short_endpoint.mark();
    }

    pub(super) fn revoke(&mut self, key: u32) -> Revoked {
        // Without a connection no key is alive; its memory comes free with `Down`.
        if !self.is_live() {
            return Revoked::Soon;
        }
        match self.exposures.revoke(key) {
            Ended::Now => Revoked::Now,
            Ended::ByDevice { window } if self.take_back_binding(window) => Revoked::Now,
            Ended::ByDevice { window } => {
                self.own += 1;
                let sent = Sent::Invalidate { window, has_failed: false };
                self.queue(sent, &Operation::Invalidate { key }, true);
                self.short_endpoint.mark();
                Revoked::Soon
            }
        }
    }

    /// A window that is not bound yet, and would be bound last, is not bound at all.
    fn take_back_binding(&mut self, at: usize) -> bool {
        let is_its = |sent: &Sent| matches!(sent, Sent::Bind { window, .. } if *window == at);
        let is_back = self.sends.take_last(is_its).is_some();
        if is_back {
            self.own -= 1;
            self.exposures.on_invalidated(at);
        }
        is_back
    }
}

impl QueuePair {
    /// This side closes the connection: flushed requests may still leave, for a while.
    pub(super) fn close(&mut self, out: &mut Outbox<'_>) {
        if !self.is_live() {
            return;
        }
        self.is_closed = true;
        self.give_back_waiting(out);
        let now = Instant::now();
        if self.sends.outstanding() == 0 {
            return self.flush_device(now);
        }
        self.phase = Phase::Draining { until: now + DRAIN_TIMEOUT };
        self.queue(Sent::Mark, &Operation::Mark, true);
        // The queue pair may have ended meanwhile, which the next look at it shows.
        let _ = self.flush_sends();
    }

    /// The connection is over. The cause is the one that the device reported, or else the one that
    /// the control half knows.
    #[cold]
    pub(super) fn end(&mut self, cause: Option<DownCause>, out: &mut Outbox<'_>) {
        self.failed = self.failed.take().or(cause);
        let is_known = self.failed.is_some() || self.is_closed || self.link.state.over().is_some();
        let now = Instant::now();
        match self.phase {
            Phase::Live if !is_known => {
                self.give_back_waiting(out);
                self.phase = Phase::Lost { until: now + QUIET };
            }
            Phase::Live | Phase::Draining { .. } => {
                self.give_back_waiting(out);
                self.flush_device(now);
            }
            Phase::Lost { .. } if is_known => self.flush_device(now),
            Phase::Lost { .. } | Phase::Flushing { .. } | Phase::Destroying => {}
        }
    }

    /// A device refused a request, which it does, too, when the peer or the device has gone and the
    /// news of that is still on its way.
    #[cold]
    pub(super) fn suspect(&mut self, cause: DownCause) {
        self.suspected.get_or_insert(cause);
    }

    fn flush_device(&mut self, now: Instant) {
        self.phase = Phase::Flushing { moved: now };
        self.link.tell(Event::DisconnectWanted);
    }

    fn moved(&mut self) {
        if let Phase::Flushing { moved } = &mut self.phase {
            *moved = Instant::now();
        }
    }

    fn give_back_waiting(&mut self, out: &mut Outbox<'_>) {
        let id = self.id;
        self.short_endpoint.end();
        for sent in self.sends.take_waiting() {
            sent.uncount(&self.short_endpoint, &mut self.own);
            end_read(id, sent, out);
        }
        for buf in self.short_endpoint.take_late().into_iter().chain(self.recvs.take_waiting()) {
            out.push(id, CompletionKind::RecvFlushed { buf });
        }
    }

    pub(super) fn advance_end(&mut self, now: Instant, out: &mut Outbox<'_>) -> End {
        if self.link.state.is_destroyed() {
            self.tell_end(out);
            return End::Told;
        }
        match self.phase {
            Phase::Draining { until } => {
                let is_over = self.link.state.over().is_some() || now >= until;
                if is_over || self.sends.outstanding() == 0 {
                    self.flush_device(now);
                }
            }
            Phase::Flushing { moved } => {
                let is_empty = self.sends.outstanding() == 0 && self.recvs.outstanding() == 0;
                if is_empty || now.saturating_duration_since(moved) >= QUIET {
                    self.destroy();
                }
            }
            Phase::Lost { until } => {
                if self.link.state.over().is_some() || now >= until {
                    self.flush_device(now);
                }
            }
            Phase::Live | Phase::Destroying => {}
        }
        End::Pending
    }

    fn destroy(&mut self) {
        self.phase = Phase::Destroying;
        let bound: Vec<_> = self.exposures.bound_windows().collect();
        self.link.leave(move |thread, number| thread.destroy(number, &bound));
    }

    /// The queue pair is destroyed, so the device is done with everything.
    fn tell_end(&mut self, out: &mut Outbox<'_>) {
        self.give_back_waiting(out);
        while let Some(sent) = self.sends.release() {
            end_read(self.id, sent, out);
        }
        for buf in self.recvs.take_all() {
            out.push(self.id, CompletionKind::RecvFlushed { buf });
        }
        let closed = self.is_closed.then_some(DownCause::Local);
        // That this side ended it is true of every connection that was lost.
        let over = self.link.state.over().filter(|over| **over != DownCause::Local).cloned();
        let cause = self.failed.take().or(closed).or(over).or(self.suspected.take());
        let cause = cause.unwrap_or(DownCause::PeerDied);
        out.push(self.id, CompletionKind::Down { cause });
    }
}

/// The reactor hears of a Read, which was not done if the device has not reported it.
#[inline]
fn end_read(id: QpId, sent: Sent, out: &mut Outbox<'_>) {
    if let Sent::Read { id: read, into, result } = sent {
        drop(into);
        let result = result.unwrap_or(Err(WrError::Flushed));
        out.push(id, CompletionKind::Read { id: read, result });
    }
}

const TOO_LONG: DownCause = DownCause::WorkRequest(WrError::Length);

fn piece(first: NonNull<u8>, bytes: usize, key: u32) -> Result<Piece, DownCause> {
    Ok(Piece { first, bytes: u32::try_from(bytes).map_err(|_| TOO_LONG)?, key })
}

#[inline]
fn known<T>(key: Result<T, FabricError>) -> Result<T, DownCause> {
    key.map_err(|error| {
        event!(WARN, %error, "memory cannot be posted");
        DownCause::Overrun("memory that can be registered")
    })
}
