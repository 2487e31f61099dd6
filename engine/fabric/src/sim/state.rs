//! State of the world: the agenda of events, and their effects.

use super::super::{DownCause, RemoteSlice, Revoked, WrError, WrId};
use super::config::Network;
use super::connector::{Listener, Waker};
use super::early_completion::Early;
use super::endpoint::{Flying, Side, Source};
use super::rng::Rng;
use super::trace::{NO_RECEIVE, Observed, SideId, Violation, What};
use crate::mem::{Lease, Region};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sys::mmap::{Mapping, PageRequest};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Address space that is mapped at a time for messages: the system calls of a mapping for each of dozens
/// of connections would take longer than their traffic.
const MESSAGE_MAPPING_BYTES: usize = 16 << 20;

#[derive(Debug)]
pub(super) struct State {
    pub(super) network: Network,
    pub(super) rng: Rng,
    /// Source of random numbers for engines, so that they do not change those of the network.
    pub(super) engines: Rng,
    /// Nanoseconds; kept where cores read it without the lock.
    clock: Arc<AtomicU64>,
    agenda: BinaryHeap<Reverse<Entry>>,
    tickets: u64,
    pub(super) sides: Vec<Side>,
    /// Unused part of the last mapping for messages.
    messages: Option<Region>,
    pub(super) listeners: BTreeMap<String, Listener>,
    /// Addresses that no connection reaches, even if a node listens there.
    pub(super) unreachable: BTreeSet<String>,
    pub(super) observed: Vec<Observed>,
    pub(super) violations: Vec<Violation>,
    /// Of everything that happened, in order: two runs with the same digest went the same way.
    digest: DefaultHasher,
}

/// Time, order among entries of the same time, side, and action.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry(u64, u64, SideId, Due);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// The side's item in flight under the entry's number arrives at its peer, or comes back.
    Land,
    Complete,
    /// A device that completes early reports the work request of this number.
    Report(u32),
    /// A message has waited for a receive of this side for too long, if it is still this one.
    GiveUp(u64),
    /// The side learns that a request of it failed: a Read of this id, or another one.
    Nak(Option<u64>),
    PeerDied,
    /// The device of the side has killed a key, unless the peer or the end was first.
    Revoke(u32),
}

impl State {
    pub(super) fn new(network: Network, clock: Arc<AtomicU64>) -> Self {
        Self {
            rng: Rng::new(network.seed),
            engines: Rng::new(!network.seed),
            network,
            clock,
            agenda: BinaryHeap::new(),
            tickets: 0,
            sides: Vec::new(),
            messages: None,
            listeners: BTreeMap::new(),
            unreachable: BTreeSet::new(),
            observed: Vec::new(),
            violations: Vec::new(),
            digest: DefaultHasher::new(),
        }
    }

    pub(super) fn now(&self) -> u64 {
        // Relaxed: only the thread that holds the lock on this state writes it.
        self.clock.load(Ordering::Relaxed)
    }

    pub(super) fn side(&mut self, id: SideId) -> &mut Side {
        &mut self.sides[id.0]
    }

    pub(super) fn message_memory(&mut self, bytes: usize) -> Option<Region> {
        if self.messages.as_ref().is_none_or(|left| left.len() < bytes) {
            let bytes = bytes.max(MESSAGE_MAPPING_BYTES);
            let mapping = Mapping::anonymous(bytes, PageRequest::default()).ok()?;
            self.messages = Some(Region::from_mapping(mapping));
        }
        self.messages.as_mut()?.split_to(bytes)
    }

    pub(super) fn digest(&self) -> u64 {
        self.digest.finish()
    }

    pub(super) fn next_at(&self) -> Option<u64> {
        self.agenda.peek().map(|Reverse(entry)| entry.0)
    }

    pub(super) fn pass(&mut self, ns: u64) {
        let until = self.now().saturating_add(ns);
        while let Some(Reverse(Entry(at, ticket, side, due))) = self.pop_until(until) {
            self.set_clock(at);
            self.happen(ticket, side, due);
        }
        self.set_clock(until);
    }

    fn set_clock(&mut self, at: u64) {
        // Relaxed: see `now`; time never goes back.
        self.clock.store(at.max(self.now()), Ordering::Relaxed);
    }

    fn pop_until(&mut self, until: u64) -> Option<Reverse<Entry>> {
        if self.next_at()? > until {
            return None;
        }
        self.agenda.pop()
    }

    fn happen(&mut self, ticket: u64, side: SideId, due: Due) {
        match due {
            Due::Land => self.land(side, ticket),
            Due::Complete => {
                self.side(side).done += 1;
                self.side(side).wake();
            }
            Due::Report(number) => self.report(side, number),
            Due::GiveUp(stall) => self.give_up(side, stall),
            Due::Nak(read) => {
                if let Some(id) = read {
                    self.side(side).end_read(WrId(id), Err(WrError::RemoteAccess));
                }
                self.take_down(side, DownCause::WorkRequest(WrError::RemoteAccess));
            }
            Due::PeerDied => self.take_down(side, DownCause::PeerDied),
            Due::Revoke(handle) => self.end_revoking(side, handle),
        }
    }

    fn schedule(&mut self, at: u64, side: SideId, due: Due) -> u64 {
        self.tickets += 1;
        self.agenda.push(Reverse(Entry(at, self.tickets, side, due)));
        self.tickets
    }

    fn delay(&mut self) -> u64 {
        self.rng.within(self.network.delay_ns)
    }

    /// Puts something on the wire: a Send behind everything before it, a Write behind the Sends and
    /// Reads before it, but perhaps before other Writes (RFC 5666 section 2).
    pub(super) fn launch(&mut self, from: SideId, flying: Flying) {
        let travel = self.delay() + (flying.len() / 4096) as u64 * self.network.page_ns;
        let (now, side) = (self.now(), &mut self.sides[from.0]);
        let in_order = !matches!(flying, Flying::Write { .. });
        let behind = if in_order { side.newest_at } else { side.ordered_at };
        let at = (now + travel).max(behind);
        side.newest_at = side.newest_at.max(at);
        if in_order {
            side.ordered_at = at;
        }
        if let Flying::Read { id, .. } = &flying {
            side.reads.push_back(*id);
            self.see_read(from);
        }
        if let Flying::Send { message, invalidate } = &flying {
            let side = &self.sides[from.0];
            let receives = side.receives.len() + side.arrived.len();
            let (message, invalidate) = (Arc::clone(message), *invalidate);
            self.see(from, What::Sent { message, invalidate, receives });
        }
        self.fly(at, from, flying);
    }

    fn see_read(&mut self, side: SideId) {
        let it = &self.sides[side.0];
        let (outstanding, reads_max) = (it.reads.len(), it.device.reads_max);
        self.see(side, What::Reading { outstanding });
        if outstanding > usize::from(reads_max) {
            self.blame(side, "more RDMA Reads are outstanding than the device takes");
        }
    }

    fn fly(&mut self, at: u64, from: SideId, flying: Flying) {
        let ticket = self.schedule(at, from, Due::Land);
        let mut flying = flying;
        let early = self.side(from).early.as_mut();
        let reported = early.and_then(|early| early.take(ticket, &mut flying));
        self.side(from).flying.push((ticket, flying));
        if let Some(number) = reported {
            self.complete_as(from, Due::Report(number));
        }
    }

    fn land(&mut self, from: SideId, ticket: u64) {
        let Some(flying) = self.side(from).land(ticket) else { return };
        let to = from.peer();
        match flying {
            Flying::Back { id, bytes, mut into } => {
                into.write_at(0, &bytes);
                drop(into);
                self.side(from).end_read(id, Ok(()));
                match self.side(from).early.as_mut().and_then(Early::read_back) {
                    Some(number) => self.complete_as(from, Due::Report(number)),
                    None => self.complete(from),
                }
                self.side(from).wake();
            }
            _ if self.side(to).is_down() => {}
            flying if self.side(to).stalled.is_empty() => self.arrive(to, flying),
            flying => self.side(to).stalled.push_back(flying),
        }
    }

    /// A work request of `side` has done its work; its place in the queue is free a little later.
    fn complete(&mut self, side: SideId) {
        if self.side(side).early.is_none() {
            self.complete_as(side, Due::Complete);
        }
    }

    fn complete_as(&mut self, side: SideId, due: Due) {
        let lag = self.rng.within(self.network.completion_ns);
        let at = (self.now() + lag).max(self.side(side).done_at);
        self.side(side).done_at = at;
        self.schedule(at, side, due);
    }

    /// Their messages that the device has still to read are spoilt.
    fn report(&mut self, id: SideId, number: u32) {
        let (at_ns, mut unread) = (self.now(), Vec::new());
        let side = &mut self.sides[id.0];
        let Some(early) = &mut side.early else { return };
        side.done += early.report(number, &mut unread);
        side.wake();
        for (_, flying) in side.flying.iter_mut().filter(|(ticket, _)| unread.contains(ticket)) {
            flying.spoil();
            let what = "memory was released before the device had read it";
            self.violations.push(Violation { at_ns, side: id, what });
        }
    }

    fn arrive(&mut self, to: SideId, flying: Flying) {
        match flying {
            Flying::Send { message, invalidate } => self.arrive_send(to, message, invalidate),
            Flying::Write { from, to: slice } => self.arrive_write(to, from, slice),
            Flying::Read { id, from, into } => self.arrive_read(to, id, from, into),
            Flying::End { cause } => self.take_down(to, cause),
            Flying::Back { .. } => {}
        }
    }

    fn arrive_send(&mut self, to: SideId, message: Arc<[u8]>, invalidate: Option<u32>) {
        let Some(room) = self.side(to).receives.pop_front() else {
            return self.stall(to, Flying::Send { message, invalidate });
        };
        if room < message.len() {
            let cause = DownCause::WorkRequest(WrError::Length);
            return self.both_down(to, cause);
        }
        let dead = invalidate.filter(|handle| self.revoke(to, *handle));
        let side = self.side(to);
        side.arrived.push_back((message, dead));
        side.wake();
        self.complete(to.peer());
    }

    /// Receiver not ready: the message waits, and everything behind it.
    fn stall(&mut self, to: SideId, flying: Flying) {
        let side = self.side(to);
        side.stalled.push_front(flying);
        side.stall += 1;
        // A side that has not adopted the connection yet has time: a real listener posts its
        // receives before it accepts.
        if side.waker.is_some() {
            self.see(to, What::NotReady);
            self.blame(to, NO_RECEIVE);
            self.lose_patience(to);
        }
    }

    fn lose_patience(&mut self, side: SideId) {
        let stall = self.side(side).stall;
        self.schedule(
            self.now().saturating_add(self.network.rnr_timeout_ns),
            side,
            Due::GiveUp(stall),
        );
    }

    pub(super) fn adopt(&mut self, id: SideId, waker: Arc<Waker>) {
        self.side(id).waker = Some(waker);
        self.side(id).wake();
        if !self.side(id).stalled.is_empty() {
            self.lose_patience(id);
        }
    }

    fn give_up(&mut self, side: SideId, stall: u64) {
        let it = self.side(side);
        if it.stall == stall && !it.stalled.is_empty() && !it.is_down() {
            self.both_down(side, DownCause::ReceiverNotReady);
        }
    }

    pub(super) fn add_receives(&mut self, id: SideId, lengths: impl Iterator<Item = usize>) {
        let side = self.side(id);
        if side.is_down() {
            return;
        }
        side.receives.extend(lengths);
        side.first_receives.get_or_insert(side.receives.len());
        let mut waiting = std::mem::take(&mut side.stalled);
        if !waiting.is_empty() && !side.receives.is_empty() {
            side.stall += 1;
            while self.side(id).stalled.is_empty() && !self.side(id).is_down() {
                let Some(next) = waiting.pop_front() else { return };
                self.arrive(id, next);
            }
        }
        if !self.side(id).is_down() {
            self.side(id).stalled.append(&mut waiting);
        }
    }

    fn arrive_write(&mut self, to: SideId, from: Source, slice: RemoteSlice) {
        let (handle, length) = (slice.handle, slice.length);
        let placed = match from.len() == length as usize {
            true => self.side(to).exposures.write(slice, &from.take()),
            false => Err(WrError::Length),
        };
        match placed {
            Ok(()) => {
                self.see(to, What::Written { handle, length });
                self.complete(to.peer());
            }
            Err(_) => self.refuse(to, handle, length, None),
        }
    }

    fn arrive_read(&mut self, to: SideId, id: WrId, from: RemoteSlice, into: Lease) {
        let (handle, length) = (from.handle, from.length);
        if into.len() != length as usize || !into.writable() {
            return self.refuse(to, handle, length, Some(id));
        }
        let Ok(bytes) = self.side(to).exposures.read(from) else {
            return self.refuse(to, handle, length, Some(id));
        };
        self.see(to, What::Fetched { handle, length });
        let travel = self.delay() + u64::from(length / 4096) * self.network.page_ns;
        let reader = to.peer();
        let at = (self.now() + travel).max(self.side(reader).back_at);
        self.side(reader).back_at = at;
        self.fly(at, reader, Flying::Back { id, bytes, into });
    }

    /// The peer of `to` tried to reach memory that it must not reach: the end for both, and when
    /// the two keep the rules, a mistake.
    fn refuse(&mut self, to: SideId, handle: u32, length: u32, read: Option<WrId>) {
        self.see(to, What::Refused { handle, length });
        self.blame(to, "memory was touched outside of a live exposure");
        let peer = to.peer();
        let at = (self.now() + self.delay()).max(self.side(peer).back_at);
        self.schedule(at, peer, Due::Nak(read.map(|id| id.0)));
        self.take_down(to, DownCause::Remote);
    }

    /// Something happened between two nodes that keep the rules which must not.
    fn blame(&mut self, side: SideId, what: &'static str) {
        let trusted = |id: SideId| self.sides[id.0].device.trusted;
        if trusted(side) && trusted(side.peer()) && !self.side(side.peer()).is_down() {
            self.violations.push(Violation { at_ns: self.now(), side, what });
        }
    }

    fn both_down(&mut self, side: SideId, cause: DownCause) {
        self.take_down(side, cause.clone());
        self.take_down(side.peer(), cause);
    }

    pub(super) fn take_down(&mut self, id: SideId, cause: DownCause) {
        if self.side(id).is_down() {
            return;
        }
        self.see(id, What::Down { cause: cause.clone() });
        let loses = self.network.close_loses;
        self.side(id).go_down(cause, loses);
        // What waits at the peer behind a message without a receive is still this side's.
        self.side(id.peer()).stalled.retain_mut(|flying| flying.outlives_sender(loses));
    }

    /// A side closes: its peer learns of it after everything that was sent before.
    pub(super) fn close(&mut self, id: SideId) {
        if !self.side(id).is_down() {
            self.take_down(id, DownCause::Local);
            self.launch(id, Flying::End { cause: DownCause::Remote });
        }
    }

    /// The owner of one side dies: it hears so itself, for it is only a simulation, and its peer
    /// does somewhat later.
    pub(super) fn kill(&mut self, id: SideId) {
        self.take_down(id, DownCause::PeerDied);
        let at = self.now() + self.delay();
        self.schedule(at, id.peer(), Due::PeerDied);
    }

    pub(super) fn begin_revoking(&mut self, id: SideId, handle: u32) -> Revoked {
        let takes_ns = self.side(id).device.revoke_ns;
        if takes_ns == 0 || !self.side(id).exposures.has(handle) {
            self.revoke(id, handle);
            return Revoked::Now;
        }
        let at = self.now() + self.rng.within((0, takes_ns));
        let at = at.max(self.side(id).revoked_at);
        self.side(id).revoked_at = at;
        self.schedule(at, id, Due::Revoke(handle));
        Revoked::Soon
    }

    fn end_revoking(&mut self, id: SideId, handle: u32) {
        if self.side(id).is_down() {
            return;
        }
        self.revoke(id, handle);
        self.side(id).revoked.push_back(handle);
        self.side(id).wake();
    }

    pub(super) fn revoke(&mut self, id: SideId, handle: u32) -> bool {
        let died = self.side(id).exposures.revoke(handle);
        if died {
            self.see(id, What::Revoked { handle });
        }
        died
    }

    pub(super) fn see(&mut self, side: SideId, what: What) {
        let at_ns = self.now();
        (at_ns, side, &what).hash(&mut self.digest);
        if self.network.observe {
            self.observed.push(Observed { at_ns, side, what });
        }
    }
}
