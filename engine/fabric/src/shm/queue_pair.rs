//! One connection's queue pair: receive queue, send queue, keys, and how it ends.
//!
//! It behaves as a reliable-connected queue pair does: a message consumes a posted receive, work
//! requests take effect in the order of posting, and any error ends the connection.

use super::super::{
    Access, CompletionKind, Completions, DownCause, ExposeError, Full, InFlight, LineHead, QpId,
    RemoteSlice, SendWr, Short, ShortEndpointOps, WrError, WrId,
};
use super::config::ShmConfig;
use super::copy_order::{FETCH_COST_BYTES, FETCHES_MAX, Fetch, Fetching};
use super::endpoint::Link;
use super::exposure::{Exposures, PeerTable};
use super::layout::OPENING_SLOTS;
use super::short_endpoint::{PendingConns, ShmShortEndpoint};
use super::window::copy_bytes;
use crate::mem::{Buf, Lease, Slab};
use crate::sync::atomic::{Ordering, fence};
use crate::sync::ring::{Arrival, Corrupt, PushError};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

// Why a side ended the connection, for the other one.
pub(super) const CLOSED_IN_GOOD_ORDER: u64 = 1;
const CLOSED_LENGTH: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Nothing,
    /// Messages, and no more for now.
    Messages,
    /// More than could be taken: no room for completions, or no posted receive.
    More,
}

/// Set in the number of an arrived message that waits, among those of [`QueuePair::outstanding`].
const ARRIVED: u64 = 1 << 63;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Empty,
    /// It waits for room at the peer, or for its next turn.
    Waiting,
}

#[derive(Debug)]
pub(super) struct QueuePair {
    pub(super) id: QpId,
    pub(super) short_endpoint: Rc<ShmShortEndpoint>,
    /// The peer rings for every message.
    idle: bool,
    pub(super) hot: bool,
    /// In the core's list of those with a send queue that is not empty.
    pub(super) waiting: bool,
    /// All of the ring that it sends on is in memory ([`QueuePair::open_ring`]).
    ring_open: bool,
    recv_queue: Vec<Buf>,
    /// Without memory until something waits or the rings open.
    send_queue: VecDeque<SendWr>,
    /// Reads posted whose completions the reactor has not got yet.
    reads: usize,
    is_not_ready: bool,
    waits: u64,
    pub(super) cause: Option<DownCause>,
    exposures: Exposures,
    peer_table: PeerTable,
    /// The peer's order at the head of the ring, once it is begun.
    fetching: Option<Fetching>,
    recv_queue_depth: usize,
    send_queue_depth: usize,
    pub(super) link: Link,
    /// What orders to the peer name, by the progress of its ring that ends each, the oldest first. Given up after the link
    /// has said that the connection is over.
    pub(super) lent: VecDeque<(u64, Lease)>,
}

impl QueuePair {
    pub(super) fn new(
        id: QpId,
        mut link: Link,
        config: &ShmConfig,
        listed: Rc<PendingConns>,
    ) -> io::Result<Self> {
        let Link { side, layout, ref window, ref lent, .. } = link;
        let endpoint =
            ShmShortEndpoint::new(id, &link, layout, listed).ok_or(io::ErrorKind::InvalidInput)?;
        endpoint.tx.hold_back(OPENING_SLOTS);
        endpoint.allow(config.send_queue_depth.into(), true);
        let arena = link.bulk.region_id();
        let slabs = lent.iter().map(Slab::region_id).collect();
        let exposures = Exposures::new(window.clone(), layout.table(side), arena, slabs)?;
        let (window, peer_table) = (window.clone(), layout.table(side.peer()));
        let peer_slabs = std::mem::take(&mut link.theirs.slabs);
        let peer_table = PeerTable::new(window, peer_table, link.theirs.arena.clone(), peer_slabs);
        let recv_queue_depth = config.recv_queue_depth.into();
        Ok(Self {
            id,
            short_endpoint: Rc::new(endpoint),
            ring_open: false,
            recv_queue: Vec::with_capacity(recv_queue_depth),
            send_queue: VecDeque::new(),
            reads: 0,
            is_not_ready: false,
            waits: 0,
            idle: false,
            hot: false,
            waiting: false,
            cause: None,
            exposures,
            peer_table,
            fetching: None,
            recv_queue_depth,
            send_queue_depth: config.send_queue_depth.into(),
            link,
            lent: VecDeque::new(),
        })
    }

    /// The first message after silence comes alone: to look for a second one costs a line that the
    /// peer has just asked for, and the answer to the first would wait for it.
    pub(super) fn receive(
        &mut self,
        out: &mut Completions,
        fetch_bytes: &mut usize,
    ) -> Result<Seen, DownCause> {
        let mut seen = Seen::Nothing;
        while let Some(arrival) = self.short_endpoint.rx.arrival()? {
            if arrival.is_order {
                if *fetch_bytes == 0 || !self.fetch(fetch_bytes)? {
                    return Ok(Seen::More);
                }
                seen = Seen::Messages;
                continue;
            }
            if out.room() == 0 {
                return Ok(Seen::More);
            }
            if self.short_endpoint.is_burst() {
                self.short_endpoint.rx.fetch_ahead();
            }
            if self.recv_queue.is_empty() {
                self.wait_for_receive();
                return Ok(Seen::More);
            }
            self.take_posted(arrival, out)?;
            seen = Seen::Messages;
            if !self.short_endpoint.is_burst() {
                break;
            }
        }
        self.short_endpoint.set_burst(seen == Seen::Messages);
        Ok(seen)
    }

    /// A page that the system refuses to one that writes it ends the process: so all pages of this ring come into
    /// being here. Where they are refused (not by kernels before 5.14, which touch them), the message waits, and the next
    /// turn tries again. Returns true if there is more room now.
    #[cold]
    fn open_ring(&mut self) -> bool {
        if self.ring_open {
            return false;
        }
        self.make_send_queue();
        let Link { side, layout, ref window, .. } = self.link;
        self.ring_open = window.memory.prefault(layout.ring_bytes(side)).is_ok();
        if self.ring_open {
            self.short_endpoint.tx.release();
        }
        self.ring_open
    }

    /// Takes memory for all that the send queue may hold: at the latest with the rings, as whether anything ever waits is
    /// a matter of time.
    #[cold]
    fn make_send_queue(&mut self) {
        self.send_queue.reserve_exact(self.send_queue_depth - self.send_queue.len());
    }

    #[cold]
    fn fetch(&mut self, budget: &mut usize) -> Result<bool, DownCause> {
        let begin = || {
            Fetch::decode(&self.short_endpoint.rx.order()).map(|order| Fetching { order, done: 0 })
        };
        let fetching = self.fetching.take().or_else(begin);
        let wrong =
            DownCause::PeerMisbehaved("an order that has nothing to fetch, or nowhere to put it");
        let fetching = fetching.filter(|fetching| fetching.order.length > 0);
        let Some(Fetching { order, done }) = fetching else { return Err(wrong) };
        // Looked up in each step: the key may die between two of them.
        let to = self.exposures.target(order.handle, order.to, order.length);
        let from = self.peer_table.in_slab(order.slab, order.from, order.length);
        let (Some(from), Some(to)) = (from, to) else { return Err(wrong) };
        let step = (order.length as usize - done).min(*budget);
        // SAFETY: both have `order.length` bytes, as was just found, and `done + step` is at most that. There is
        // no reference to those that are written: they are leased. Different mappings cannot overlap.
        unsafe { copy_bytes(from.add(done), to.add(done), step) };
        *budget = budget.saturating_sub(step.max(FETCH_COST_BYTES));
        self.check_open()?;
        self.exposures.note_fetched(order.handle, order.to + done as u64, step);
        let done = done + step;
        if done < order.length as usize {
            self.fetching = Some(Fetching { order, done });
            return Ok(false);
        }
        self.short_endpoint.rx.finish_order();
        Ok(true)
    }

    /// Fails if the peer has ended the connection, and may have reused the slabs that were just read.
    fn check_open(&self) -> Result<(), DownCause> {
        // Pairs with the fence of `go_down`: a thread that has read what the peer wrote after it gave up a lease sees that it
        // has ended the connection.
        fence(Ordering::Acquire);
        match self.short_endpoint.rx.closed() {
            0 => Ok(()),
            reason => Err(cause_of(reason)),
        }
    }

    #[inline]
    fn take_posted(&mut self, arrival: Arrival, out: &mut Completions) -> Result<(), DownCause> {
        let Some(mut message) = self.pop_receive() else { return Ok(()) };
        if let Err(cause) = self.take(arrival, &mut message) {
            self.push_receive(message);
            return Err(cause);
        }
        match arrival.lead {
            None => out.push_received(self.id, message, None),
            Some(handle) => self.receive_invalidate(message, handle, out),
        }
        Ok(())
    }

    pub(super) fn receive_of_short(&mut self) -> Option<Buf> {
        self.short_endpoint.lend_receive().then(|| self.pop_receive())?
    }

    #[inline]
    fn pop_receive(&mut self) -> Option<Buf> {
        let receive = self.recv_queue.pop();
        self.short_endpoint.note_receive_taken();
        receive
    }

    #[inline]
    fn push_receive(&mut self, receive: Buf) {
        self.recv_queue.push(receive);
        self.short_endpoint.note_receive();
    }

    #[cold]
    fn receive_invalidate(&mut self, message: Buf, handle: u32, out: &mut Completions) {
        let invalidated = Some(handle).filter(|handle| self.exposures.kill(*handle));
        out.push_received(self.id, message, invalidated);
    }

    #[inline]
    fn take(&mut self, arrival: Arrival, into: &mut Buf) -> Result<(), DownCause> {
        if !into.set_received(arrival.length) {
            return Err(DownCause::WorkRequest(WrError::Length));
        }
        Ok(self.short_endpoint.rx.take(arrival, into.bytes_mut())?)
    }

    /// Receiver not ready: the message stays in the ring.
    #[cold]
    fn wait_for_receive(&mut self) {
        self.waits += u64::from(!self.is_not_ready);
        self.is_not_ready = true;
    }

    /// See [`Fabric::outstanding`](super::super::Fabric::outstanding). Requests have the numbers of their slots in the
    /// ring, or of slots that they will have. If there are only messages in the ring, which are copied, nothing is
    /// outstanding. A message that has arrived beyond the posted receives is not this side's, but ends the connection in
    /// the same way; such messages have numbers of their own.
    pub(super) fn outstanding(&self) -> InFlight {
        let is_unsent =
            self.cause.is_none() && !(self.send_queue.is_empty() && self.lent.is_empty());
        let unsent =
            |consumed| consumed..self.short_endpoint.tx.produced() + self.send_queue.len() as u64;
        let number = ARRIVED | self.waits;
        let numbers = match is_unsent {
            true => self.short_endpoint.tx.consumed().ok().map(unsent),
            false => (self.is_not_ready && self.cause.is_none()).then_some(number..number + 1),
        };
        InFlight { numbers, is_unsent }
    }

    /// For when nothing was found: it costs more than a look, and what was sent before the end is taken first.
    pub(super) fn check_end(&self) -> Result<(), DownCause> {
        // Gone first: a peer that closes and then goes has closed by the time we look.
        let gone = self.link.peer_is_gone.load(Ordering::Acquire);
        match self.short_endpoint.rx.closed() {
            0 if gone => Err(DownCause::PeerDied),
            0 => Ok(()),
            // Something may have been sent between our look at the ring and the close.
            _ if !matches!(self.short_endpoint.rx.arrival(), Ok(None)) => Ok(()),
            reason => Err(cause_of(reason)),
        }
    }

    /// Returns whether the peer must ring from now on; false if it has just sent something.
    pub(super) fn go_idle(&mut self) -> bool {
        self.short_endpoint.empty_looks.set(0);
        self.idle = self.idle || self.short_endpoint.rx.go_idle();
        self.idle
    }

    pub(super) fn go_busy(&mut self) {
        self.short_endpoint.empty_looks.set(0);
        self.idle = false;
        self.short_endpoint.rx.go_busy();
    }

    #[inline]
    pub(super) fn post_recv(&mut self, buf: Buf) -> Result<(), Full<Buf>> {
        if self.recv_queue.len() == self.recv_queue_depth || self.cause.is_some() {
            return Err(Full(buf));
        }
        self.push_receive(buf);
        self.is_not_ready = false;
        Ok(())
    }

    #[inline]
    pub(super) fn post(&mut self, wr: SendWr) -> Result<Result<Progress, DownCause>, Full<SendWr>> {
        if self.cause.is_some() {
            return Err(Full(wr));
        }
        match wr {
            SendWr::Send { message, invalidate } if self.send_queue.is_empty() => {
                match self.push(invalidate, &message) {
                    Ok(true) => Ok(Ok(Progress::Empty)),
                    Ok(false) => self.queue(SendWr::Send { message, invalidate }),
                    Err(cause) => Ok(Err(cause)),
                }
            }
            wr => self.queue(wr),
        }
    }

    /// As [`ShmShortEndpoint::send`], of a message of any length; one that the ring never takes is not sent either.
    /// `short` is memory for one that is short.
    #[inline]
    pub(super) fn send_copied(
        &mut self,
        message: &[u8],
        short: &mut Short,
    ) -> Result<bool, DownCause> {
        if short.copy_from(message) {
            let head = LineHead::new(short.first_word(), short.pairs());
            return Ok(self.short_endpoint.send(head, short, short.length()));
        }
        if !self.short_endpoint.sends_at_once.get() {
            return Ok(false);
        }
        match self.short_endpoint.tx.push(None, message) {
            Ok(()) => Ok(true),
            Err(PushError::Corrupt(corrupt)) => Err(corrupt.into()),
            Err(PushError::Full | PushError::TooLong) => Ok(false),
        }
    }

    #[cold]
    fn queue(&mut self, wr: SendWr) -> Result<Result<Progress, DownCause>, Full<SendWr>> {
        if self.short_endpoint.room() == 0 {
            return Err(Full(wr));
        }
        self.reads += usize::from(matches!(wr, SendWr::Read { .. }));
        if self.send_queue.capacity() == 0 {
            self.make_send_queue();
        }
        self.send_queue.push_back(wr);
        self.count_room();
        Ok(Ok(Progress::Waiting))
    }

    /// Reads keep their place until their completion is taken.
    fn count_room(&mut self) {
        let is_up = self.cause.is_none();
        let taken = self.send_queue.len().max(self.reads);
        let room = if is_up { self.send_queue_depth - taken } else { 0 };
        self.short_endpoint.allow(room, is_up && self.send_queue.is_empty());
    }

    #[inline]
    fn push(&mut self, lead: Option<u32>, message: &Buf) -> Result<bool, DownCause> {
        match self.short_endpoint.tx.push(lead, message.bytes()) {
            Ok(()) => Ok(true),
            Err(PushError::Full) if self.open_ring() => self.push(lead, message),
            Err(PushError::Full) => Ok(false),
            Err(PushError::TooLong) => Err(DownCause::WorkRequest(WrError::Length)),
            Err(PushError::Corrupt(corrupt)) => Err(corrupt.into()),
        }
    }

    pub(super) fn progress(
        &mut self,
        done: &mut VecDeque<(QpId, WrId, Result<(), WrError>)>,
        budget: &mut usize,
    ) -> Result<Progress, DownCause> {
        let progress = self.go_on(done, budget);
        self.count_room();
        progress
    }

    fn go_on(
        &mut self,
        done: &mut VecDeque<(QpId, WrId, Result<(), WrError>)>,
        budget: &mut usize,
    ) -> Result<Progress, DownCause> {
        while let Some(wr) = self.send_queue.pop_front() {
            match wr {
                SendWr::Send { ref message, invalidate } => {
                    if !self.push(invalidate, message)? {
                        self.send_queue.push_front(wr);
                        return Ok(Progress::Waiting);
                    }
                }
                SendWr::Write { from, to } if self.exposures.slab_of(&from).is_some() => {
                    if let Some(from) = self.have_fetched(from, to)? {
                        self.send_queue.push_front(SendWr::Write { from, to });
                        return Ok(Progress::Waiting);
                    }
                }
                SendWr::Write { from, to } => {
                    let rest = self.copy(Access::RemoteWrite, to, from, budget);
                    let Some((to, from)) = rest.map_err(DownCause::WorkRequest)? else { continue };
                    self.send_queue.push_front(SendWr::Write { from, to });
                    return Ok(Progress::Waiting);
                }
                SendWr::Read { .. } if done.len() == done.capacity() => {
                    self.send_queue.push_front(wr);
                    return Ok(Progress::Waiting);
                }
                SendWr::Read { id, from, into } => {
                    match self.copy(Access::RemoteRead, from, into, budget) {
                        Ok(None) => done.push_back((self.id, id, Ok(()))),
                        Ok(Some((from, into))) => {
                            self.send_queue.push_front(SendWr::Read { id, from, into });
                            return Ok(Progress::Waiting);
                        }
                        Err(error) => {
                            done.push_back((self.id, id, Err(error)));
                            return Err(DownCause::WorkRequest(error));
                        }
                    }
                }
            }
        }
        Ok(Progress::Empty)
    }

    /// Tells the peer to fetch what it would be written. Gives the lease back if there is no room for that.
    fn have_fetched(&mut self, from: Lease, to: RemoteSlice) -> Result<Option<Lease>, DownCause> {
        let length = to.length as usize == from.len();
        let slab = self.exposures.slab_of(&from).filter(|_| length);
        let slab = slab.ok_or(DownCause::WorkRequest(WrError::Length))?;
        if to.length == 0 {
            return Ok(None);
        }
        self.release_fetched()?;
        if self.lent.len() >= FETCHES_MAX {
            return Ok(Some(from));
        }
        let RemoteSlice { handle, length, offset } = to;
        let order = Fetch { handle, slab, length, to: offset, from: from.region_offset() as u64 };
        match self.short_endpoint.tx.push_order(&order.encode()) {
            Ok(until) => {
                // The first time takes memory for as many as there may be.
                self.lent.reserve_exact(FETCHES_MAX - self.lent.len());
                self.lent.push_back((until, from));
            }
            Err(PushError::Full) if self.open_ring() => return self.have_fetched(from, to),
            Err(PushError::Corrupt(corrupt)) => return Err(corrupt.into()),
            Err(PushError::Full | PushError::TooLong) => return Ok(Some(from)),
        }
        Ok(None)
    }

    /// True if there is more that the peer has not fetched.
    pub(super) fn release_fetched(&mut self) -> Result<bool, DownCause> {
        if !self.lent.is_empty() {
            let consumed = self.short_endpoint.tx.consumed()?;
            while self.lent.pop_front_if(|(until, _)| *until <= consumed).is_some() {}
        }
        Ok(!self.lent.is_empty())
    }

    /// Copies as far as the budget goes. The key is checked each time: it may die between two steps.
    fn copy(
        &self,
        access: Access,
        mut remote: RemoteSlice,
        mut local: Lease,
        budget: &mut usize,
    ) -> Result<Option<(RemoteSlice, Lease)>, WrError> {
        if remote.length as usize != local.len() {
            return Err(WrError::Length);
        }
        let step = local.len().min(*budget);
        let here = local.as_ptr();
        match access {
            Access::RemoteWrite => {
                let there = self.peer_table.check(remote, access)?;
                // SAFETY: `check` has found `remote.length` mapped bytes at `there`; the lease vouches
                // for as many at `here`, to which there is no reference while it is out. Different
                // mappings cannot overlap.
                unsafe { copy_bytes(here, there, step) };
            }
            Access::RemoteRead if local.writable() => self.peer_table.read(remote, |there| {
                // SAFETY: as above; and the lease may be written to.
                unsafe { copy_bytes(there, here, step) };
            })?,
            Access::RemoteRead => return Err(WrError::RemoteAccess),
        }
        *budget -= step;
        local.advance(step);
        remote.offset += step as u64;
        remote.length -= step as u32;
        Ok((remote.length > 0).then_some((remote, local)))
    }

    pub(super) fn read_taken(&mut self) {
        self.reads -= 1;
        self.count_room();
    }

    pub(super) fn expose(
        &mut self,
        memory: Lease,
        access: Access,
    ) -> Result<RemoteSlice, ExposeError> {
        if self.cause.is_some() {
            return Err(ExposeError::Down);
        }
        self.exposures.expose(memory, access)
    }

    pub(super) fn revoke(&mut self, handle: u32) -> Option<u32> {
        let home_bytes = self.home_bytes(handle);
        self.exposures.revoke(handle);
        home_bytes
    }

    pub(super) fn set_home(&mut self, handle: u32, home: Lease) -> bool {
        self.peer_table.has_slabs() && self.exposures.set_home(handle, home)
    }

    pub(super) fn home_bytes(&self, handle: u32) -> Option<u32> {
        self.exposures.home_bytes(handle)
    }

    /// Tells the peer. Only the first cause counts.
    pub(super) fn go_down(&mut self, cause: DownCause) {
        self.link.close(match cause {
            DownCause::WorkRequest(WrError::Length) => CLOSED_LENGTH,
            _ => CLOSED_IN_GOOD_ORDER,
        });
        // Pairs with the fence of `check_open`: the peer has been told before the bytes it fetches are used again.
        fence(Ordering::Release);
        self.lent.clear();
        self.exposures.kill_all();
        self.cause.get_or_insert(cause);
        self.count_room();
        self.short_endpoint.end_receiving();
    }

    /// True when the last one, `Down`, is out.
    pub(super) fn drain(&mut self, out: &mut Completions) -> bool {
        while out.room() > 0 {
            let kind = if let Some(wr) = self.send_queue.pop_front() {
                let SendWr::Read { id, .. } = wr else { continue };
                CompletionKind::Read { id, result: Err(WrError::Flushed) }
            } else if let Some(buf) = self.recv_queue.pop() {
                CompletionKind::RecvFlushed { buf }
            } else {
                let cause = self.cause.clone().unwrap_or(DownCause::Local);
                out.push(self.id, CompletionKind::Down { cause });
                return true;
            };
            out.push(self.id, kind);
        }
        false
    }

    /// Memory to unmap on the control thread, as that takes long: the peer's slabs may have gigabytes.
    pub(super) fn into_link(self) -> Link {
        let mut link = self.link;
        link.theirs.slabs = self.peer_table.into_slabs();
        link
    }
}

fn cause_of(reason: u64) -> DownCause {
    match reason {
        CLOSED_LENGTH => DownCause::WorkRequest(WrError::Length),
        _ => DownCause::Remote,
    }
}

impl From<Corrupt> for DownCause {
    fn from(Corrupt(what): Corrupt) -> Self {
        Self::PeerMisbehaved(what)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::super::super::{ConnectRequest, Connector, ListenRequest, link_of};
    use super::super::ShmConnector;
    use super::*;
    use crate::tests::conformance::accept_into_channel;
    use crate::tests::slab;
    use std::time::Duration;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn lent_slabs_of_the_peer_go_back_into_the_link_for_the_control_thread() {
        let config = ShmConfig::default();
        let connector = ShmConnector::new(config.clone()).unwrap();
        let address = format!("shm:queue-pair-{}", std::process::id());
        let (acceptor, endpoints) = accept_into_channel(Some(1));
        let _listener = connector.listen(&ListenRequest::new(&address), acceptor).unwrap();
        let slab = slab(4096, 2);
        let lent = std::slice::from_ref(&slab);
        let request = ConnectRequest { lent, ..ConnectRequest::new(&address, PATIENCE) };
        let _client = connector.connect(&request).unwrap();
        let link = link_of::<Link>(endpoints.recv_timeout(PATIENCE).unwrap().link).unwrap();
        let pair = QueuePair::new(QpId::new(0, 0), *link, &config, PendingConns::new(1)).unwrap();
        let link = pair.into_link();
        let bytes: Vec<usize> = link.theirs.slabs.iter().map(|slab| slab.len()).collect();
        assert_eq!(bytes, [slab.bytes()]);
    }
}
