//! Plays a scenario: one thread, virtual time, and after every step the question what is wrong.

use super::caller::{Caller, StartedCall, Tried};
use super::fleet::Cut;
use super::foreign;
use super::hostile::Hostile;
use super::kept::Kept;
use super::ledger::Ledger;
use super::negotiation::Step;
use super::oracle::{Oracle, Seen};
use super::program::{HostileSides, Waiting};
use super::scenario::{Fault, Node, Scenario};
use super::setup::{self, address_at, server_address};
use spinrpc::fabric::sim::{Observed, Rng, SideId, Waker, What, World};
use spinrpc::{Core, Engine};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Virtual time that the calls of a scenario may take; then no more are made.
const TRAFFIC_NS: u64 = 200_000_000;
/// Turns without work after which a core has looked at everything, its clock included.
const TURNS_TO_SEE_ALL: u32 = 6;
/// Minimum and maximum time until all nodes are polled when no event is scheduled.
const HEARTBEAT_NS: (u64, u64) = (20_000, 5_000_000);
/// Between two tries of a call that found no room.
const RETRY_NS: u64 = 3_000;

/// Between two looks at a connection that is not up yet.
const CONNECTING_NS: u64 = 20_000;

#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Of everything on the wire, in order.
    pub(crate) digest: u64,
    pub(crate) seen: Seen,
    pub(crate) succeeded: u64,
    pub(crate) virtual_ns: u64,
    pub(crate) failures: Vec<String>,
}

impl Outcome {
    fn failed(why: String) -> Self {
        Self { failures: vec![why], ..Self::default() }
    }
}

/// Plays the scenario of `seed`; with `trace` every step is printed.
pub(crate) fn run_seed(seed: u64, trace: bool) -> Outcome {
    let ledger = Ledger::default();
    let shared = ledger.clone();
    let played = catch_unwind(AssertUnwindSafe(move || {
        let scenario = match Scenario::of(seed) {
            Ok(scenario) => scenario,
            Err(error) => return Outcome::failed(format!("no scenario: {error}")),
        };
        if trace {
            println!("{scenario:#?}");
        }
        let mut outcome = setup::simulation(seed, &scenario, shared, trace).play();
        foreign::play(seed, trace, &mut outcome);
        outcome
    }));
    let mut outcome = played.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("?");
        Outcome::failed(format!("a panic: {text}"))
    });
    let told = std::mem::take(&mut ledger.entries().failures);
    outcome.failures.splice(0..0, told);
    outcome
}

/// A core, and when it runs.
pub(crate) struct Place {
    pub(crate) core: Core,
    pub(crate) waker: Arc<Waker>,
    /// Not scheduled before this time.
    pub(crate) stalled_until: u64,
    /// Turns it gets whether or not there is anything to do.
    pub(crate) turns: u32,
    /// Blocks of its own memory when none is lent.
    pub(crate) blocks: usize,
}

pub(crate) enum Action {
    Call(usize),
    Answer(Box<Waiting>),
    Cancel(usize, StartedCall),
    LetGo(Kept),
    Act(usize),
    Fault(Fault),
    /// An end of a connection dies while its version is found.
    Cut(SideId),
    Wake(usize),
    ShutDown(usize),
    Revive(usize),
}

pub(crate) struct Simulation {
    pub(crate) world: World,
    pub(crate) rng: Rng,
    pub(crate) ledger: Ledger,
    pub(crate) oracle: Oracle,
    pub(crate) trace: bool,
    pub(crate) engines: Vec<Engine>,
    pub(crate) servers: Vec<Server>,
    pub(crate) places: Vec<Place>,
    pub(crate) callers: Vec<Seat>,
    pub(crate) hostile: Vec<Hostile>,
    pub(crate) hostile_sides: HostileSides,
    /// Calls that are deferred, and items that are kept.
    pub(crate) waiting: usize,
    /// Nothing is begun any more, and nothing goes wrong by itself.
    pub(crate) is_ending: bool,
    /// Calls in reverse at a time by each connection.
    pub(crate) reverse_calls: usize,
    pub(crate) cuts: Vec<Cut>,
    seen: Vec<Observed>,
    /// Cores and hostile nodes that may be next; kept for its memory.
    ready: Vec<usize>,
    agenda: BinaryHeap<Reverse<(u64, usize)>>,
    actions: Vec<Option<Action>>,
    /// Everybody looks at the clock at this time, and then after so long again.
    next_beat_ns: u64,
    heartbeat_ns: u64,
    failures: Vec<String>,
}

/// A server, which may be replaced by the next one.
pub(crate) struct Server {
    pub(crate) node: Node,
    pub(crate) engine: usize,
    /// It ends, and is to be replaced.
    pub(crate) is_leaving: bool,
}

/// A caller, its place and its target.
pub(crate) struct Seat {
    pub(crate) caller: Caller,
    pub(crate) place: usize,
    pub(crate) address: String,
    /// Calls that both ends let be in flight.
    pub(crate) credits: usize,
    /// It makes no more calls.
    pub(crate) is_done: bool,
}

impl Simulation {
    pub(crate) fn new(world: World, seed: u64, ledger: Ledger, trace: bool) -> Self {
        ledger.entries().world = Some(world.clone());
        Self {
            world,
            rng: Rng::new(seed ^ 0x5eed),
            ledger,
            oracle: Oracle::default(),
            trace,
            engines: Vec::new(),
            servers: Vec::new(),
            places: Vec::new(),
            callers: Vec::new(),
            hostile: Vec::new(),
            hostile_sides: HostileSides::default(),
            waiting: 0,
            is_ending: false,
            reverse_calls: 0,
            cuts: Vec::new(),
            seen: Vec::new(),
            ready: Vec::new(),
            agenda: BinaryHeap::new(),
            actions: Vec::new(),
            next_beat_ns: HEARTBEAT_NS.0,
            heartbeat_ns: HEARTBEAT_NS.0,
            failures: Vec::new(),
        }
    }

    fn play(mut self) -> Outcome {
        let is_over = |sim: &Self| sim.callers.iter().all(|seat| seat.is_done);
        self.run_until(TRAFFIC_NS, is_over);
        self.oracle.end_traffic();
        self.finish();
        self.oracle.count_cuts();
        for engine in &self.engines {
            for stats in (0..engine.cores()).filter_map(|core| engine.stats(core).ok()) {
                self.oracle.seen.resent += stats.calls_resent;
                self.oracle.seen.replayed += stats.replies_replayed;
            }
        }
        let succeeded = self.ledger.entries().succeeded;
        self.oracle.seen.joined += self.ledger.entries().joined;
        Outcome {
            digest: self.world.digest(),
            seen: self.oracle.seen,
            succeeded,
            virtual_ns: self.world.now_ns(),
            failures: std::mem::take(&mut self.failures),
        }
    }

    pub(crate) fn say(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>10} ns  {}", self.world.now_ns(), what());
        }
    }

    pub(crate) fn fail(&mut self, what: String) {
        self.failures.push(what);
    }

    pub(crate) fn has_failed(&self) -> bool {
        !self.failures.is_empty() || !self.ledger.entries().failures.is_empty()
    }

    pub(crate) fn plan(&mut self, at_ns: u64, action: Action) {
        self.agenda.push(Reverse((at_ns, self.actions.len())));
        self.actions.push(Some(action));
    }

    pub(crate) fn plan_in(&mut self, ns: u64, action: Action) {
        self.plan(self.world.now_ns() + ns, action);
    }

    /// Runs until `done`, for so long at most; false if it did not come to that.
    pub(crate) fn run_until(&mut self, limit_ns: u64, done: impl Fn(&Self) -> bool) -> bool {
        let end_ns = self.world.now_ns() + limit_ns;
        loop {
            self.look();
            if self.has_failed() || done(self) {
                return true;
            }
            if self.world.now_ns() > end_ns {
                return false;
            }
            // Cores that are never idle do not keep the others from the clock.
            if self.world.now_ns() > self.next_beat_ns + HEARTBEAT_NS.1 {
                self.beat(self.world.now_ns());
            }
            if !self.act() && !self.take_turn() {
                self.advance();
            }
        }
    }

    fn look(&mut self) {
        let mut seen = std::mem::take(&mut self.seen);
        let violations = self.world.take_observed(&mut seen);
        for it in seen.drain(..) {
            self.say(|| format!("{}  {}", it.side, short(&it.what)));
            let step = self.oracle.step(it.side);
            if let Some(problem) = self.oracle.see(&it) {
                self.fail(problem);
            }
            let (is_new, now) = (matches!(it.what, What::Connected), self.oracle.step(it.side));
            if step != now || is_new && it.side.is_connector() {
                self.cut_at(it.side, now);
            }
        }
        self.seen = seen;
        for violation in violations {
            if !self.oracle.excuses(&violation) {
                self.fail(violation.to_string());
            }
        }
    }

    /// Both ends of a connection have come so far: perhaps no further.
    fn cut_at(&mut self, side: SideId, step: Step) {
        let has_rules = self.oracle.is_honest(side) && self.oracle.is_honest(side.peer());
        let planned = self.cuts.iter().position(|cut| cut.at == step);
        let Some(place) = planned.filter(|_| has_rules && !self.is_ending) else { return };
        let cut = self.cuts.swap_remove(place);
        let client = if side.is_connector() { side } else { side.peer() };
        let victim = if cut.is_of_client { client } else { client.peer() };
        let until = self.world.now_ns() + cut.pause_ns;
        for number in 0..self.places.len() {
            let place = &mut self.places[number];
            place.stalled_until = place.stalled_until.max(until);
            self.plan(until, Action::Wake(number));
        }
        self.plan(until, Action::Cut(victim));
    }

    fn act(&mut self) -> bool {
        let now = self.world.now_ns();
        self.ledger.entries().now_ns = now;
        if self.agenda.peek().is_none_or(|Reverse((at, _))| *at > now) {
            return false;
        }
        let due = self.agenda.pop();
        let action = due.and_then(|Reverse((_, number))| self.actions[number].take());
        match action {
            Some(Action::Call(caller)) => self.call(caller),
            Some(Action::Answer(waiting)) => {
                self.say(|| "a deferred call is answered".into());
                self.waiting -= 1;
                waiting.answer();
            }
            Some(Action::Cancel(caller, call)) => {
                self.say(|| format!("call {} is cancelled", call.token));
                let seat = &self.callers[caller];
                seat.caller.cancel(&call);
                self.places[seat.place].turns = TURNS_TO_SEE_ALL;
            }
            Some(Action::LetGo(kept)) => {
                self.waiting -= 1;
                self.failures.extend(kept.check().map(|what| format!("at {now} ns: {what}")));
            }
            Some(Action::Act(hostile)) => self.act_hostile(hostile),
            Some(Action::Fault(fault)) if !self.is_ending => self.go_wrong(fault),
            Some(Action::Cut(side)) if !self.is_ending => {
                self.say(|| format!("{side} dies, while a version is found"));
                self.world.kill(side);
            }
            Some(Action::Fault(_) | Action::Cut(_)) | None => {}
            Some(Action::Wake(place)) => self.places[place].turns = TURNS_TO_SEE_ALL,
            Some(Action::ShutDown(server)) => {
                self.say(|| format!("server {server} is shut down"));
                self.engines[self.servers[server].engine].shutdown();
            }
            Some(Action::Revive(server)) => self.revive(server),
        }
        true
    }

    fn revive(&mut self, number: usize) {
        self.say(|| format!("server {number} is there again"));
        self.oracle.seen.restarts += 1;
        let first = self.places.len();
        if let Err(error) = self.start_server(number) {
            self.fail(format!("a server does not start again: {error}"));
        }
        (first..self.places.len()).for_each(|place| self.plan_in(0, Action::Wake(place)));
    }

    fn call(&mut self, number: usize) {
        let place = self.callers[number].place;
        if self.callers[number].is_done {
            return;
        }
        let caller = &self.callers[number].caller;
        let heard = caller.heard();
        if heard.over.get() {
            return self.reconnect(number);
        }
        if !heard.up.get() && !caller.client.is_up() {
            return self.plan_in(CONNECTING_NS, Action::Call(number));
        }
        let mut pause_ns = self.callers[number].caller.think_ns();
        for _ in 0..self.callers[number].caller.burst() {
            if self.callers[number].caller.calls_left == 0 {
                self.callers[number].is_done = true;
                return;
            }
            match self.callers[number].caller.try_call() {
                Tried::Started(call) => {
                    self.say(|| format!("link {number} starts call {}", call.call.token));
                    if let Some(ns) = call.deadline_ns {
                        self.plan_in(ns + 1, Action::Wake(place));
                    }
                    if let Some(ns) = call.cancel_ns {
                        self.plan_in(ns, Action::Cancel(number, call.call));
                    }
                }
                Tried::Never => self.say(|| format!("link {number} gives a call up")),
                Tried::NotNow => {
                    pause_ns = pause_ns.max(RETRY_NS);
                    break;
                }
            }
        }
        self.plan_in(pause_ns, Action::Call(number));
    }

    fn reconnect(&mut self, number: usize) {
        let seat = &mut self.callers[number];
        let core = &mut self.places[seat.place].core;
        if seat.caller.calls_left == 0 || !seat.caller.reconnect(core, &seat.address) {
            seat.is_done = true;
            return;
        }
        self.say(|| format!("link {number} connects again"));
        self.plan_in(RETRY_NS, Action::Call(number));
    }

    fn act_hostile(&mut self, number: usize) {
        if self.hostile[number].act() {
            let pause_ns = self.rng.within((100, 20_000));
            self.plan_in(pause_ns, Action::Act(number));
        }
        self.distrust(number);
    }

    /// From now on everybody knows whose ends these are.
    fn distrust(&mut self, number: usize) {
        for side in self.hostile[number].take_sides() {
            self.oracle.distrust(side);
            if let Ok(mut sides) = self.hostile_sides.lock() {
                sides.push(side);
            }
        }
    }

    fn go_wrong(&mut self, fault: Fault) {
        self.say(|| format!("{fault:?}"));
        match fault {
            Fault::Kill(which) => {
                let ends = self.world.holdings().into_iter().filter(|end| !end.is_down);
                let sides: Vec<SideId> = ends.map(|end| end.side).collect();
                if !sides.is_empty() {
                    self.world.kill(sides[which as usize % sides.len()]);
                }
            }
            Fault::Close(which) => {
                let number = which as usize % self.callers.len();
                self.callers[number].caller.client.close();
            }
            Fault::Leave(which) => {
                let number = which as usize % self.callers.len();
                self.callers[number].caller.client.reconnect();
            }
            Fault::Restart { which, grace_ns, away_ns } => {
                let number = which as usize % self.servers.len();
                let server = &mut self.servers[number];
                if !std::mem::replace(&mut server.is_leaving, true) {
                    self.engines[server.engine].begin_drain();
                    self.plan_in(grace_ns, Action::ShutDown(number));
                    self.plan_in(grace_ns + away_ns, Action::Revive(number));
                }
            }
            Fault::Reach { which, is_reachable } => {
                let (which, count) = (which as usize, self.servers.len());
                let addresses = self.servers[which % count].node.addresses;
                let first = server_address(which % count);
                let address = address_at(&first, which / count % addresses);
                self.world.set_reachable(&address, is_reachable);
            }
            Fault::Stall(which, ns) => {
                let number = which as usize % self.places.len();
                self.places[number].stalled_until = self.world.now_ns() + ns;
                self.plan_in(ns, Action::Wake(number));
            }
        }
    }

    /// One core, or one hostile node, that has something to do takes a turn: any of them may be
    /// next. False if there is none.
    fn take_turn(&mut self) -> bool {
        let now = self.world.now_ns();
        let is_ready = |place: &Place| {
            let awake = place.stalled_until <= now;
            awake && (place.turns > 0 || place.waker.is_set())
        };
        let places = (0..self.places.len()).filter(|at| is_ready(&self.places[*at]));
        let count = self.places.len();
        let hostile = (0..self.hostile.len())
            .filter(|at| self.hostile[*at].waker.is_set())
            .map(|at| at + count);
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        ready.extend(places.chain(hostile));
        let next = (!ready.is_empty()).then(|| self.rng.pick(&ready));
        self.ready = ready;
        let Some(next) = next else { return false };
        match next.checked_sub(count) {
            Some(hostile) => {
                self.hostile[hostile].turn();
                self.distrust(hostile);
            }
            None => self.turn(next),
        }
        true
    }

    fn turn(&mut self, number: usize) {
        let place = &mut self.places[number];
        place.turns = place.turns.saturating_sub(1);
        let work = place.core.poll_once();
        if work.events > 0 {
            place.turns = place.turns.max(1);
            self.heartbeat_ns = HEARTBEAT_NS.0;
            self.next_beat_ns = self.next_beat_ns.min(self.world.now_ns() + HEARTBEAT_NS.0);
        }
        let (deferred, kept, called) = {
            let mut entries = self.ledger.entries();
            let called = std::mem::take(&mut entries.called);
            (std::mem::take(&mut entries.deferred), std::mem::take(&mut entries.kept), called)
        };
        let calls_back = self.reverse_calls > 0 && !self.is_ending;
        for (place, connection) in called.into_iter().filter(|_| calls_back) {
            self.add_reverse_caller(place, connection);
        }
        self.waiting += deferred.len() + kept.len();
        for waiting in deferred {
            self.plan_in(waiting.after_ns, Action::Answer(Box::new(waiting)));
        }
        for item in kept {
            self.plan_in(item.time_ns(), Action::LetGo(item));
        }
    }

    /// No node has anything to do: advances to the next event or heartbeat.
    fn advance(&mut self) {
        let now = self.world.now_ns();
        let planned = self.agenda.peek().map(|Reverse((at, _))| *at);
        let beat = self.next_beat_ns.max(now + 1);
        let next = planned.into_iter().chain(self.world.next_ns()).min().unwrap_or(beat);
        if next < beat {
            return self.world.advance_to(next.max(now + 1));
        }
        self.world.advance_to(beat);
        self.beat(beat);
    }

    fn beat(&mut self, beat: u64) {
        self.heartbeat_ns = (self.heartbeat_ns * 2).min(HEARTBEAT_NS.1);
        self.next_beat_ns = beat + self.heartbeat_ns;
        for place in &mut self.places {
            place.turns = TURNS_TO_SEE_ALL;
        }
    }
}

fn short(what: &What) -> String {
    match what {
        What::Sent { message, invalidate, receives } => {
            let words = super::words::words_of(&message[..message.len().min(64)]);
            let dies = invalidate.map(|key| format!(" invalidating {key:#x}")).unwrap_or_default();
            format!("sends {} bytes{dies}, {receives} receives: {words:x?}", message.len())
        }
        What::Received { message } => {
            format!("takes {} bytes: {:#x}", message.len(), super::words::word(message, 0))
        }
        other => format!("{other:x?}"),
    }
}
