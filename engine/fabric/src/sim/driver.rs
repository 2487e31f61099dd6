//! The data plane of one core of a node: the buffers it holds, and its calls into the world.

use super::super::{
    Access, Caps, CompletionKind, Completions, DownCause, Endpoint, ExposeError, Fabric,
    FabricError, Full, InFlight, NextShort, QpId, RemoteSlice, Revoked, SendWr, Short,
    ShortEndpoint, ShortEndpointOps, ShortMessages, Wake, WrError, link_of,
};
use super::config::Device;
use super::connector::{SimLink, Waker};
use super::endpoint::{Flying, Side};
use super::rng::Rng;
use super::short_endpoint::SimShortEndpoint;
use super::state::State;
use super::trace::{SideId, What};
use super::world::Shared;
use crate::mem::{Buf, Bulk, BulkPool, Lease, Region};
use crate::sys::clock::{Clock, Ticks};
use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The data plane of one core; dropping it closes its connections.
#[derive(Debug)]
pub struct SimFabric {
    world: Arc<Shared>,
    device: Arc<Device>,
    caps: Caps,
    waker: Arc<Waker>,
    places: Vec<Rc<RefCell<Place>>>,
    takes_shorts: bool,
    is_in_turn: bool,
    /// Drawn for each turn: which connection is looked at first, and which are cold.
    draw: u64,
    first: usize,
    /// The place at which the next turn begins, if there was no room for all messages in this one. A place drawn
    /// at random would not do: busy connections that lie together would mostly be served from the first of them on.
    left_out: Option<usize>,
}

/// A place for a queue pair. Buffers cannot leave their thread, so they wait here and the world
/// knows their lengths.
#[derive(Debug, Default)]
pub(super) struct Place {
    pub(super) generation: u32,
    pub(super) side: Option<SideId>,
    /// Posted and not flushed.
    pub(super) queued: VecDeque<Queued>,
    /// Messages by value that were offered.
    pub(super) shorts: u32,
    /// Messages that left, by the number of their work request: until it completes.
    sends: VecDeque<(u64, Buf)>,
    launched: u64,
    receives: VecDeque<Buf>,
    /// Number of `receives`, counted from the last one, that are not flushed.
    fresh: usize,
    /// Receives used by short messages, to be posted again by the next flush.
    of_shorts: VecDeque<Buf>,
    lends_receive: bool,
}

#[derive(Debug)]
pub(super) enum Queued {
    Request(SendWr),
    Short(Arc<[u8]>),
}

impl SimFabric {
    pub(super) fn new(world: Arc<Shared>, device: Arc<Device>, waker: Arc<Waker>) -> Self {
        let caps = Caps {
            message_bytes_max: device.message_bytes_max,
            reads_max: device.reads_max,
            send_queue_depth: device.send_queue_depth,
            recv_queue_depth: device.recv_queue_depth,
            remote_invalidate: device.remote_invalidate,
            sends_shorts: true,
            takes_shorts: true,
            // Virtual time, a tick being a nanosecond.
            simulated_clock: Some(Clock::monotonic()),
        };
        Self {
            world,
            device,
            caps,
            waker,
            places: Vec::new(),
            takes_shorts: false,
            is_in_turn: false,
            draw: 0,
            first: 0,
            left_out: None,
        }
    }

    fn find(&self, qp: QpId) -> Option<(RefMut<'_, Place>, SideId)> {
        let place = self.places.get(qp.index() as usize)?.borrow_mut();
        let side = place.side.filter(|_| place.generation == qp.generation())?;
        Some((place, side))
    }

    /// Once per turn and before the first look: everything in the turn has the same time stamp.
    fn begin_turn(&mut self) {
        if !std::mem::replace(&mut self.is_in_turn, true) {
            let mut state = self.world.state();
            let poll_ns = state.network.poll_ns;
            state.pass(poll_ns);
            self.draw = state.rng.any();
            let count = self.places.len().max(1);
            let drawn = (self.draw % count as u64) as usize;
            self.first = self.left_out.take().map_or(drawn, |at| at % count);
        }
    }

    fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, count) = (self.first, self.places.len());
        (first..count).chain(0..first.min(count))
    }

    fn is_hot(&self, at: usize) -> bool {
        let is_cold = || Rng::new(self.draw ^ at as u64).chance(self.device.cold_per_mille);
        self.takes_shorts && !is_cold()
    }

    fn next_with_short(&self) -> Option<QpId> {
        let mut state = self.world.state();
        self.order().filter(|at| self.is_hot(*at)).find_map(|at| {
            let place = self.places[at].borrow();
            state.side(place.side?).short_length()?;
            Some(place.id(at))
        })
    }

    fn side_of(&self, qp: QpId) -> Option<SideId> {
        self.find(qp).map(|(_, side)| side)
    }
}

impl Place {
    fn id(&self, index: usize) -> QpId {
        QpId::new(index as u32, self.generation)
    }

    pub(super) fn room(&self, side: &Side, depth: u16) -> usize {
        let held = self.queued.len() as u64 + self.launched - side.done;
        if side.is_down() { 0 } else { usize::from(depth).saturating_sub(held as usize) }
    }

    /// Receives first, then sends: a grant must not be there before the receive that it promises.
    fn flush(&mut self, state: &mut State, side: SideId) {
        self.fresh += self.of_shorts.len();
        self.receives.append(&mut self.of_shorts);
        if state.side(side).is_down() {
            return;
        }
        let at = self.receives.len() - std::mem::take(&mut self.fresh);
        if at < self.receives.len() {
            state.add_receives(side, self.receives.range(at..).map(Buf::capacity));
        }
        while !state.side(side).is_down() {
            let Some(queued) = self.queued.pop_front() else { return };
            let number = self.launched;
            self.launched += 1;
            let (flying, sent) = match queued {
                Queued::Request(wr) => Flying::of(wr),
                Queued::Short(message) => (Flying::Send { message, invalidate: None }, None),
            };
            let sent = sent.filter(|buf| !state.side(side).copies(buf.len()));
            self.sends.extend(sent.map(|buf| (number, buf)));
            state.launch(side, flying);
        }
    }

    /// True when it is over.
    fn poll(
        &mut self,
        state: &mut State,
        (id, side, is_hot): (QpId, SideId, bool),
        out: &mut Completions,
    ) -> bool {
        while self.sends.front().is_some_and(|(number, _)| *number < state.side(side).done) {
            self.sends.pop_front();
        }
        // A short one behind others comes with them, as over shared memory.
        let waits = is_hot && state.side(side).short_length().is_some();
        while out.room() > 0 && !waits {
            let Some((message, dead)) = state.side(side).arrived.pop_front() else { break };
            let Some(mut buf) = self.receives.pop_front() else { break };
            // The world has compared the lengths.
            if buf.set_received(message.len()) {
                buf.bytes_mut().copy_from_slice(&message);
            }
            state.see(side, What::Received { message });
            out.push_received(id, buf, dead);
        }
        while out.room() > 0 {
            let Some((id_of, result)) = state.side(side).fetched.pop_front() else { break };
            out.push(id, CompletionKind::Read { id: id_of, result });
        }
        while out.room() > 0 {
            let Some(handle) = state.side(side).revoked.pop_front() else { break };
            out.push(id, CompletionKind::Revoked { handle });
        }
        let it = state.side(side);
        let ended = it.is_down() && it.arrived.is_empty() && it.fetched.is_empty();
        let ended = ended && it.revoked.is_empty() && self.of_shorts.is_empty();
        ended && self.drain(it.cause.clone(), id, out)
    }

    /// The next poll finds something here that no event tells of: a short message that was left, or the end of a
    /// connection whose last receive is given back by the flush before.
    fn has_more(&self, side: &Side) -> bool {
        side.short_length().is_some() || (side.is_down() && !self.of_shorts.is_empty())
    }

    /// The world has seen to it that there is a receive for it.
    pub(super) fn take_short(
        &mut self,
        state: &mut State,
        side: SideId,
        into: &mut Short,
    ) -> Option<()> {
        let length = state.side(side).short_length()?;
        let (message, _) = state.side(side).arrived.pop_front()?;
        debug_assert!(!self.receives.is_empty(), "a message without a receive");
        self.of_shorts.extend(self.receives.pop_front());
        self.lends_receive = true;
        into.set_len(length);
        into.whole_mut()[..length].copy_from_slice(&message);
        state.see(side, What::Received { message });
        Some(())
    }

    /// True when the last completion, `Down`, is out.
    fn drain(&mut self, cause: Option<DownCause>, id: QpId, out: &mut Completions) -> bool {
        while out.room() > 0 {
            let kind = if let Some(queued) = self.queued.pop_front() {
                let Queued::Request(SendWr::Read { id, .. }) = queued else { continue };
                CompletionKind::Read { id, result: Err(WrError::Flushed) }
            } else if let Some(buf) = self.receives.pop_front() {
                CompletionKind::RecvFlushed { buf }
            } else {
                let cause = cause.unwrap_or(DownCause::Local);
                out.push(id, CompletionKind::Down { cause });
                return true;
            };
            out.push(id, kind);
        }
        false
    }

    fn clear(&mut self) {
        *self = Self { generation: self.generation.wrapping_add(1), ..Self::default() };
    }
}

impl ShortMessages for SimFabric {
    fn short_endpoint(&self, qp: QpId) -> Option<ShortEndpoint> {
        let (world, waker) = (Arc::clone(&self.world), Arc::clone(&self.waker));
        let place = Rc::clone(self.places.get(qp.index() as usize)?);
        let (side, send_queue_depth) = (self.side_of(qp)?, self.caps.send_queue_depth);
        Some(ShortEndpoint::Sim(Rc::new(SimShortEndpoint {
            place,
            qp,
            side,
            world,
            waker,
            send_queue_depth,
        })))
    }

    fn next_short(&mut self, message: &mut Short) -> Option<NextShort> {
        if !self.takes_shorts {
            return None;
        }
        self.begin_turn();
        let qp = self.next_with_short();
        // The next turn begins behind the last place that was served, unless all were.
        self.left_out = qp.map(|qp| qp.index() as usize + 1);
        let qp = qp?;
        let goes_on = self.short_endpoint(qp)?.take(message)?;
        Some(NextShort { qp, goes_on, is_last: false })
    }

    /// Messages that wait for a poll stay for a later turn: the waker is as it was.
    fn skip_poll(&mut self, _: bool) -> bool {
        let skips = self.is_in_turn && self.takes_shorts && Rng::new(!self.draw).chance(700);
        self.is_in_turn &= !skips;
        skips
    }

    fn receive_of_short(&mut self, qp: QpId) -> Option<Buf> {
        let (mut place, _) = self.find(qp)?;
        std::mem::take(&mut place.lends_receive).then(|| place.of_shorts.pop_back())?
    }
}

impl Fabric for SimFabric {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn begin(&mut self, _lent: Option<&BulkPool>, takes_shorts: bool) -> Arc<dyn Wake> {
        self.takes_shorts |= takes_shorts;
        Arc::clone(&self.waker) as Arc<dyn Wake>
    }

    #[inline]
    fn now(&self, _: &Clock) -> Ticks {
        Ticks(self.world.now())
    }

    fn poll(&mut self, out: &mut Completions) -> usize {
        let room = out.room();
        self.waker.take();
        self.begin_turn();
        self.is_in_turn = false;
        let mut state = self.world.state();
        let (mut has_more, mut left_out) = (false, None);
        for at in self.order() {
            if out.room() == 0 {
                left_out.get_or_insert(at);
            }
            let is_hot = self.is_hot(at);
            let mut place = self.places[at].borrow_mut();
            let Some(side) = place.side else { continue };
            let id = place.id(at);
            if place.poll(&mut state, (id, side, is_hot), out) {
                state.side(side).over = true;
                place.clear();
            }
            has_more |= place.has_more(state.side(side));
        }
        self.left_out = left_out.or(self.left_out);
        if out.room() == 0 || has_more {
            self.waker.set();
        }
        room - out.room()
    }

    fn post_recv(&mut self, qp: QpId, buf: Buf) -> Result<(), Full<Buf>> {
        let (depth, world) = (usize::from(self.caps.recv_queue_depth), Arc::clone(&self.world));
        let Some((mut place, side)) = self.find(qp) else { return Err(Full(buf)) };
        if world.state().side(side).is_down() || place.receives.len() >= depth {
            return Err(Full(buf));
        }
        place.receives.push_back(buf);
        place.fresh += 1;
        self.waker.set();
        Ok(())
    }

    fn post(&mut self, qp: QpId, wr: SendWr) -> Result<(), Full<SendWr>> {
        if self.room(qp) == 0 {
            return Err(Full(wr));
        }
        if let Some((mut place, _)) = self.find(qp) {
            place.queued.push_back(Queued::Request(wr));
        }
        self.waker.set();
        Ok(())
    }

    fn flush(&mut self) {
        let mut state = self.world.state();
        for place in &self.places {
            let mut place = place.borrow_mut();
            if let Some(side) = place.side {
                place.flush(&mut state, side);
            }
        }
        state.pass(0);
    }

    fn room(&self, qp: QpId) -> usize {
        let Some((place, side)) = self.find(qp) else { return 0 };
        place.room(self.world.state().side(side), self.caps.send_queue_depth)
    }

    fn outstanding(&self, qp: QpId) -> InFlight {
        let Some((place, side)) = self.find(qp) else { return InFlight::default() };
        let mut state = self.world.state();
        let side = state.side(side);
        if side.is_down() {
            return InFlight::default();
        }
        let numbers = side.done..place.launched + place.queued.len() as u64;
        let numbers = Some(numbers).filter(|numbers| !numbers.is_empty());
        InFlight { numbers, is_unsent: !place.queued.is_empty() }
    }

    fn adopt(&mut self, endpoint: Endpoint) -> Result<QpId, FabricError> {
        let mut link = link_of::<SimLink>(endpoint.link)?;
        let free = self.places.iter().position(|place| place.borrow().side.is_none());
        let index = free.unwrap_or(self.places.len());
        if index >= self.device.conns_max {
            let reason = "the core has all it may have";
            return Err(FabricError::because("adopt a connection", reason, None));
        }
        if free.is_none() {
            self.places.push(Rc::default());
        }
        link.adopted = true;
        self.places[index].borrow_mut().side = Some(link.side);
        self.world.state().adopt(link.side, Arc::clone(&self.waker));
        let id = self.places[index].borrow().id(index);
        Ok(id)
    }

    fn message_memory(&mut self, _: QpId, bytes: usize) -> Option<Region> {
        self.world.state().message_memory(bytes)
    }

    fn close(&mut self, qp: QpId) {
        if let Some(side) = self.side_of(qp) {
            self.world.state().close(side);
        }
    }

    fn bulk(&mut self, qp: QpId, bytes: usize) -> Option<Bulk> {
        let side = self.side_of(qp)?;
        let pool = self.world.state().side(side).pool.clone();
        pool.take(bytes)
    }

    fn expose(
        &mut self,
        qp: QpId,
        memory: Lease,
        access: Access,
        _home: Option<Lease>,
    ) -> Result<RemoteSlice, ExposeError> {
        let side = self.side_of(qp).ok_or(ExposeError::Down)?;
        let mut state = self.world.state();
        if state.side(side).is_down() {
            return Err(ExposeError::Down);
        }
        let slice = state.side(side).exposures.expose(memory, access)?;
        let (handle, length) = (slice.handle, slice.length);
        state.see(side, What::Exposed { handle, length, access });
        Ok(slice)
    }

    fn revoke(&mut self, qp: QpId, handle: u32) -> Revoked {
        let Some(side) = self.side_of(qp) else { return Revoked::Now };
        self.world.state().begin_revoking(side, handle)
    }

    /// Returns at once: the code that runs the world decides when a core has its next turn.
    fn park(&mut self, _at_most: Duration) {}
}

impl Drop for SimFabric {
    fn drop(&mut self) {
        let mut state = self.world.state();
        for side in self.places.iter().filter_map(|place| place.borrow().side) {
            state.close(side);
            state.side(side).over = true;
        }
    }
}
