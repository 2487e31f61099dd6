//! The end of a run: everything that was begun ends, everything lent comes back, what is left works
//! at full width once more, and then nothing is left.

use super::run::{Seat, Simulation};
use super::setup::free_blocks;
use spinrpc::fabric::sim::{Holding, SideId};
use std::cmp::Ordering;

/// Virtual time in which every call has to end: longer than any deadline and any deferred answer.
const CALLS_END_NS: u64 = 100_000_000;
/// Virtual time in which what was on its way arrives and completes.
const WIRE_RESTS_NS: u64 = 50_000_000;
/// Virtual time in which a server takes back what it exports to a hostile client that fetches nothing: 64
/// replies that are sent one after the other, each of which may be fetched for 60 ms (`Config::done_timeout`).
const EXPORTS_END_NS: u64 = 64 * 60_000_000;
/// Virtual time in which everything that has arrived completes.
const COMPLETIONS_NS: u64 = 500_000;

/// Short calls of a link, and those that all its connections may have in flight.
#[derive(Clone, Copy, Debug)]
struct Sent {
    calls: usize,
    credits: usize,
}

impl Simulation {
    pub(crate) fn finish(&mut self) {
        // A call whose answer its client cannot read keeps its slot and its memory.
        let is_mixed = self.ledger.entries().is_mixed;
        let at_rest: [fn(&mut Self); 5] =
            [Self::settle, Self::call_once, Self::rest, Self::fill_up, Self::rest];
        let at_rest = if is_mixed { &[][..] } else { &at_rest[..] };
        let steps = [Self::end_calls as fn(&mut Self)].iter().chain(at_rest);
        for step in steps.chain(&[Self::close_all as fn(&mut Self)]) {
            if self.has_failed() {
                return;
            }
            step(self);
        }
    }

    fn end_calls(&mut self) {
        self.say(|| "no more calls".into());
        self.is_ending = true;
        self.callers.iter_mut().for_each(|seat| seat.is_done = true);
        self.places.iter_mut().for_each(|place| place.stalled_until = 0);
        let all_ended = |sim: &Self| {
            let entries = sim.ledger.entries();
            let all_serve = sim.servers.iter().all(|server| !server.is_leaving);
            all_serve && sim.waiting == 0 && entries.ended == entries.calls.len() as u64
        };
        if !self.run_until(CALLS_END_NS, all_ended) {
            let open: Vec<usize> = {
                let entries = self.ledger.entries();
                (0..self.callers.len()).map(|link| entries.open_calls(link)).collect()
            };
            self.fail(format!("calls never end, by link: {open:?}"));
        }
    }

    /// Every call has been answered, if only after its end, and every RDMA_DONE that is owed is sent.
    fn settle(&mut self) {
        let is_settled = self.run_until(WIRE_RESTS_NS, |sim| sim.oracle.unsettled().is_none());
        if let (false, Some(what)) = (is_settled, self.oracle.unsettled()) {
            self.fail(what);
        }
    }

    /// A call on each connection, whose reply brings the credits of RDMA_DONEs back.
    fn call_once(&mut self) {
        self.run_until(COMPLETIONS_NS, |_| false);
        self.say(|| "one call each".into());
        self.call_shortly(1);
    }

    /// Between calls an engine holds nothing but its receives.
    fn rest(&mut self) {
        self.say(|| "rest".into());
        let came_to_rest = self
            .run_until(WIRE_RESTS_NS, |sim| sim.restless().is_none() && sim.no_call_is_fenced());
        let are_exports_over = self.run_until(EXPORTS_END_NS, |sim| sim.exporting().is_none());
        if self.has_failed() {
            return;
        }
        let left = if came_to_rest { None } else { self.restless() };
        let exported = if are_exports_over { None } else { self.exporting() };
        if let Some(holding) = left.or(exported) {
            return self.fail(format!("something is left over: {holding:?}"));
        }
        if !came_to_rest {
            let in_flight: Vec<usize> =
                self.callers.iter().map(|seat| seat.caller.client.in_flight()).collect();
            return self.fail(format!("a credit is left over, in flight by link: {in_flight:?}"));
        }
        // Late completions happen now.
        self.run_until(COMPLETIONS_NS, |_| false);
        if let Some((link, ups)) = self.crowded() {
            self.fail(format!("link {link} has {ups} connections left"));
        }
        if self.hostile.is_empty() {
            self.check_cores();
        }
    }

    /// The calls that were given up have been answered, late, and their slots and credits are back.
    fn no_call_is_fenced(&self) -> bool {
        let honest = self.callers.iter().filter(|seat| seat.caller.honest);
        honest.map(|seat| seat.caller.client.in_flight()).all(|calls| calls == 0)
    }

    /// An end of a connection between engines that holds more, or less, than it should.
    fn restless(&self) -> Option<Holding> {
        let distrusted = |side: SideId| !self.oracle.is_honest(side);
        self.world.find_holding(|it| {
            let is_at_rest = it.keys + it.blocks + it.flying + it.stalled == 0;
            let is_open = !distrusted(it.side) && !distrusted(it.side.peer());
            is_open && !(is_at_rest && has_its_receives(it))
        })
    }

    /// A server that exports memory: it ends that by itself, even if its client fetches nothing.
    fn exporting(&self) -> Option<Holding> {
        let exports = |side: SideId| self.oracle.is_honest(side) && !side.is_connector();
        self.world.find_holding(|it| exports(it.side) && it.keys > 0)
    }

    /// A link with more connections than its client is to have, of which those that left home end with their last call.
    fn crowded(&self) -> Option<(usize, usize)> {
        let ups = |(link, seat): (usize, &Seat)| (link, seat.caller.heard().ups(&self.world));
        let honest = self.callers.iter().enumerate().filter(|(_, seat)| seat.caller.honest);
        honest.map(ups).find(|(link, ups)| *ups > self.callers[*link].caller.plan.connections)
    }

    fn core_in_use(&self) -> Option<usize> {
        self.places.iter().position(|it| free_blocks(&it.core) != it.blocks)
    }

    /// Cores learn of an end in separate turns: behind all that has arrived for them, of which they may take one at a time.
    fn check_cores(&mut self) {
        for _ in 0..WIRE_RESTS_NS / COMPLETIONS_NS {
            if self.has_failed() || self.core_in_use().is_none() {
                return;
            }
            self.run_until(COMPLETIONS_NS, |_| false);
        }
        if let Some(place) = self.core_in_use() {
            let free = free_blocks(&self.places[place].core);
            let all = self.places[place].blocks;
            self.fail(format!("core {place} has {free} blocks of its memory left of {all}"));
        }
    }

    /// As many calls at once as there are credits: if a slot, a buffer or a credit was lost on the
    /// way, there is room for fewer, on each attempt. Buffers come back between rounds.
    fn fill_up(&mut self) {
        let mut short: Vec<usize> = (0..self.callers.len()).collect();
        let mut calls = Vec::new();
        for _ in 0..FILL_ROUNDS {
            self.say(|| "as many calls as there are credits".into());
            calls = self.call_shortly(usize::MAX);
            short.retain(|link| self.room_for(*link, &calls).is_some_and(|room| room.is_lt()));
            let beyond =
                |link: &usize| self.room_for(*link, &calls).is_some_and(|room| room.is_gt());
            let wrong = (0..self.callers.len()).find(beyond);
            if self.has_failed() || wrong.is_some() || short.is_empty() {
                return wrong.into_iter().for_each(|link| self.fail_room(link, &calls));
            }
            self.run_until(COMPLETIONS_NS / 2, |_| false);
        }
        self.fail_room(short[0], &calls);
    }

    /// Room for calls of a link, compared with its credits; `None` if it is not up.
    fn room_for(&self, link: usize, calls: &[Option<Sent>]) -> Option<Ordering> {
        let sent = calls[link].filter(|_| self.callers[link].caller.client.is_up())?;
        Some(sent.calls.cmp(&sent.credits))
    }

    fn fail_room(&mut self, link: usize, calls: &[Option<Sent>]) {
        self.fail(format!("link {link} has another room for calls: {:?}", calls[link]));
    }

    /// Makes short calls, as many at a time as there is room for, and waits for their replies; says
    /// how many on each link, unless that is not up: one may come up while the others are waited
    /// for.
    fn call_shortly(&mut self, most: usize) -> Vec<Option<Sent>> {
        let back = |sim: &Self| -> Vec<usize> {
            sim.callers.iter().map(|seat| seat.caller.heard().fillers.get()).collect()
        };
        let calls = |sent: Sent| sent.calls;
        let before = back(self);
        let mut sent = Vec::new();
        for seat in &self.callers {
            let is_open = seat.caller.honest && seat.caller.client.is_up();
            let ups = seat.caller.heard().ups(&self.world).max(1);
            // Which connection a call goes by is not for this side to say: all are full when none takes another one.
            let most = if ups > 1 { usize::MAX } else { most };
            let calls = if is_open { seat.caller.fill(most) } else { None };
            sent.push(calls.map(|calls| Sent { calls, credits: seat.credits * ups }));
        }
        let due: Vec<usize> =
            before.iter().zip(&sent).map(|(before, sent)| before + sent.map_or(0, calls)).collect();
        if !self.run_until(CALLS_END_NS, |sim| back(sim) == due) {
            let back = back(self);
            self.fail(format!("short calls are not answered: by link {back:?} of {due:?}"));
        }
        sent
    }

    fn close_all(&mut self) {
        self.say(|| "the end".into());
        for hostile in &mut self.hostile {
            hostile.close();
        }
        if self.rng.chance(500) {
            self.engines.iter().for_each(spinrpc::Engine::shutdown);
        } else {
            self.callers.iter().for_each(|seat| seat.caller.client.close());
        }
        let is_over = |sim: &Self| sim.waiting == 0 && sim.left_over().is_none();
        if !self.run_until(WIRE_RESTS_NS, is_over)
            && let Some(holding) = self.left_over()
        {
            self.fail(format!("something survives the end: {holding:?}"));
        }
        self.run_until(COMPLETIONS_NS, |_| false);
        self.check_cores();
    }

    fn left_over(&self) -> Option<Holding> {
        self.world.find_holding(|it| {
            !it.is_down || it.keys + it.blocks + it.flying + it.stalled + it.receives > 0
        })
    }
}

/// Rounds of calls after which all buffers are back, with time for late completions after each.
const FILL_ROUNDS: usize = 16;

fn has_its_receives(it: &Holding) -> bool {
    it.receives == if it.is_down { 0 } else { it.first_receives }
}
