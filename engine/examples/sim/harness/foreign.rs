//! Hosts with clients of other implementations: they are known by the fabric alone, count their XIDs in whatever byte and
//! step, lose connections in the middle of calls that must not be executed twice, and send them again over the same
//! connection or another one (RFC 5531 section 4). Decided apart from the rest of a seed, in a world of their own.
//!
//! A call is executed once, and has the first answer however often it is sent, as long as its reply can be kept: see
//! [`record`]. The places of the server's reply cache are as many as it documents.

mod host;
mod record;
mod service;

use super::run::Outcome;
use host::Host;
use record::{Record, Shared};
use service::Counter;
use spinrpc::config::{ConfigError, CoreList, OnPanic, RawConfig, Versions, Want};
use spinrpc::fabric::sim::{Device, Network, Rng, Waker, World};
use spinrpc::{Core, CoreContext, Deferred, Engine, EngineError};
use std::sync::Arc;

const ADDRESS: &str = "server";
/// Virtual time in which all calls are answered.
const LIMIT_NS: u64 = 2_000_000_000;
/// Time after which everybody gets a turn when nothing happens.
const BEAT_NS: u64 = 20_000;

/// What is decided before time begins.
#[derive(Debug)]
struct Plan {
    network: Network,
    cores: usize,
    budget: u64,
    credits: u64,
    /// Longest message, by the private data of the hosts.
    inline_bytes: usize,
    /// Of the results of a call.
    result_bytes_max: u64,
    hosts: Vec<HostPlan>,
    /// Connections that are lost, and the mean time between two.
    losses: u64,
    loss_ns: u64,
}

/// A host, and how it counts.
#[derive(Clone, Debug)]
pub(crate) struct HostPlan {
    pub(crate) connections: usize,
    /// Calls that it sends on a connection before there is an answer.
    pub(crate) window: usize,
    pub(crate) calls: usize,
    pub(crate) xids: Xids,
    /// Connections count each by itself.
    pub(crate) counts_apart: bool,
    /// Parts of a thousand of the answered calls that are sent again after a loss, as if their replies had been lost.
    pub(crate) forgets: u64,
    pub(crate) deferred: u64,
}

/// XIDs that count: from a start, by a step, in bytes of an order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Xids {
    next: u32,
    step: u32,
    /// Bits by which the count is rotated.
    rotated: u32,
    is_swapped: bool,
}

impl Xids {
    fn draw(rng: &mut Rng) -> Self {
        let any = rng.any() as u32;
        Self {
            next: rng.pick(&[0, 1, u32::MAX - 20, 0x00ff_fff0, any, any]),
            step: rng.pick(&[1, 1, 1, 3, 64, 256, 0x1_0001, u32::MAX, u32::MAX - 2, any | 1]),
            rotated: rng.pick(&[0, 0, 4, 8, 16]),
            is_swapped: rng.chance(500),
        }
    }

    /// Those of another connection begin anywhere, as Linux has them.
    pub(crate) fn elsewhere(self, rng: &mut Rng) -> Self {
        Self { next: rng.any() as u32, ..self }
    }

    pub(crate) fn take(&mut self) -> u32 {
        let xid = self.next.rotate_left(self.rotated);
        self.next = self.next.wrapping_add(self.step);
        if self.is_swapped { xid.swap_bytes() } else { xid }
    }
}

impl Plan {
    fn draw(rng: &mut Rng) -> Self {
        let slowest = rng.pick(&[0, 2_000, 20_000]);
        let network = Network {
            seed: rng.any(),
            poll_ns: rng.pick(&[100, 1000]),
            delay_ns: (slowest / rng.pick(&[1, 10]), slowest),
            close_loses: rng.chance(500),
            ..Network::default()
        };
        // More than the pool of the cache, or less.
        let is_large = rng.chance(30);
        let (hosts, calls) = if is_large { ((2, 12), (100, 300)) } else { ((1, 4), (5, 60)) };
        let inline_bytes = rng.pick(&[1024, 1024, 4096]);
        Self {
            network,
            cores: rng.pick(&[1, 1, 2]),
            budget: rng.pick(&[1, 8, 32]),
            credits: rng.pick(&[1, 4, 16, 32]),
            inline_bytes,
            result_bytes_max: rng.pick(&[16, 500, inline_bytes as u64 - 100]),
            hosts: (0..rng.within(hosts)).map(|_| HostPlan::draw(rng, calls)).collect(),
            losses: rng.pick(&[1, 10, 60]),
            loss_ns: rng.pick(&[5_000, 50_000, 500_000]),
        }
    }

    fn config(&self) -> Result<spinrpc::Config, ConfigError> {
        let mut raw = RawConfig::default();
        raw.rpc.on_panic = OnPanic::End;
        raw.cores.list = CoreList::Cpus((0..self.cores).collect());
        raw.poll.budget = self.budget;
        raw.mem.arena_mib = 32;
        (raw.mem.hugepages, raw.mem.lock) = (Want::Off, Want::Off);
        raw.fixed.is_near_cpu = false;
        raw.limits.conns = 256;
        (raw.rpc.version, raw.rpc.credits) = (Versions::One, self.credits);
        raw.rpc.reply_cache_mib = 1;
        (raw.rpc.inline_send_bytes, raw.rpc.inline_recv_bytes) = (4096, 4096);
        raw.validate_for(&super::scenario::host())
    }
}

impl HostPlan {
    fn draw(rng: &mut Rng, calls: (u64, u64)) -> Self {
        let connections = rng.pick(&[1, 1, 2, 4, 16]);
        Self {
            connections,
            // Together fewer than calls in progress may have places.
            window: rng.pick(&[1, 4, 16]).min(64 / connections),
            calls: rng.within(calls) as usize,
            xids: Xids::draw(rng),
            counts_apart: rng.chance(500),
            forgets: rng.pick(&[0, 300, 1000]),
            deferred: rng.pick(&[0, 300]),
        }
    }
}

enum Action {
    Lose,
    Answer(Box<(Deferred, u32)>),
    Connect(usize, usize),
}

/// A core, its waker, and turns that it gets in any case.
struct Place {
    core: Core,
    waker: Arc<Waker>,
    turns: u32,
}

struct Play {
    world: World,
    rng: Rng,
    record: Shared,
    plan: Plan,
    places: Vec<Place>,
    hosts: Vec<Host>,
    agenda: Vec<(u64, Action)>,
    /// Connections that are still to be lost.
    losses: u64,
    trace: bool,
    // After the cores: engines end last.
    _engine: Engine,
}

/// Plays the hosts of a seed, of every fourth one, and adds what happened to the outcome.
pub(crate) fn play(seed: u64, trace: bool, outcome: &mut Outcome) {
    if !seed.is_multiple_of(4) {
        return;
    }
    let mut rng = Rng::new(seed ^ 0x666f_7265_6967_6e73);
    let plan = Plan::draw(&mut rng);
    if trace {
        println!("{plan:#?}");
    }
    match Play::new(plan, rng, trace) {
        Ok(mut play) => {
            play.run();
            play.tell(outcome);
        }
        Err(error) => outcome.failures.push(format!("no server for other clients: {error}")),
    }
}

impl Play {
    fn new(plan: Plan, mut rng: Rng, trace: bool) -> Result<Self, EngineError> {
        let world = World::new(plan.network.clone());
        let record = Record::shared(plan.result_bytes_max);
        let mut made = None;
        let engine = Engine::simulated(plan.config()?, |device| {
            made.insert(world.connector(device)).clone()
        })?;
        let of_service = Arc::clone(&record);
        let service = move |_: &CoreContext| Counter::new(Arc::clone(&of_service));
        engine.serve_once(super::program::PROGRAM, super::program::VERSION, service)?;
        engine.listen(ADDRESS)?;
        let node = made.unwrap_or_else(|| world.connector(Device::default()));
        let place = |index: usize| {
            engine.core(index).map(|core| Place { core, waker: node.waker(index), turns: 1 })
        };
        let places = (0..engine.cores()).map(place).collect::<Result<_, _>>()?;
        let hosts = (0..plan.hosts.len()).filter_map(|number| {
            let own = rng.fork();
            Host::new(&world, number, plan.hosts[number].clone(), plan.inline_bytes, own)
        });
        let hosts = hosts.collect();
        let agenda = vec![(plan.loss_ns, Action::Lose)];
        let (losses, _engine) = (plan.losses, engine);
        Ok(Self { world, rng, record, plan, places, hosts, agenda, losses, trace, _engine })
    }

    fn run(&mut self) {
        for number in 0..self.hosts.len() {
            (0..self.plan.hosts[number].connections).for_each(|lane| self.connect(number, lane));
        }
        self.run_until_done("calls");
        // All of them are sent once more, the last ones first.
        self.losses = 0;
        for number in 0..self.hosts.len() {
            for lane in 0..self.plan.hosts[number].connections {
                self.hosts[number].cut(lane);
            }
            self.hosts[number].forget_all();
        }
        self.run_until_done("calls that were answered before");
    }

    fn run_until_done(&mut self, what: &str) {
        let end_ns = self.world.now_ns() + LIMIT_NS;
        while !self.record().has_failed() && !self.hosts.iter().all(Host::is_done) {
            if self.world.now_ns() > end_ns {
                let open: Vec<usize> = self.hosts.iter().map(Host::open).collect();
                return self.record().fail(format!("{what} are never answered, by host: {open:?}"));
            }
            if !self.act() && !self.take_turn() {
                self.advance();
            }
            self.look();
        }
    }

    fn record(&self) -> std::sync::MutexGuard<'_, Record> {
        record::lock(&self.record)
    }

    /// Takes what services and hosts leave to be done, and what the world has seen.
    fn look(&mut self) {
        let now = self.world.now_ns();
        let deferred = std::mem::take(&mut self.record().deferred);
        for (after_ns, deferred, token) in deferred {
            self.agenda.push((now + after_ns, Action::Answer(Box::new((deferred, token)))));
        }
        for violation in self.world.take_observed(&mut Vec::new()) {
            self.record().fail(violation.to_string());
        }
    }

    fn act(&mut self) -> bool {
        let now = self.world.now_ns();
        let Some(at) = self.agenda.iter().position(|(at, _)| *at <= now) else { return false };
        match self.agenda.remove(at).1 {
            Action::Lose => self.lose(),
            Action::Answer(call) => {
                let (deferred, token) = *call;
                let (stamp, bytes) = self.record().reply(token);
                deferred.reply(|results| service::encode(stamp, bytes, results));
            }
            Action::Connect(host, lane) => self.connect(host, lane),
        }
        true
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>10} ns  {}", self.world.now_ns(), what());
        }
    }

    /// A connection is lost: its client gives it up, or one of its ends dies. Another one follows.
    fn lose(&mut self) {
        let Some(left) = self.losses.checked_sub(1) else { return };
        self.losses = left;
        let host = self.rng.below(self.hosts.len() as u64) as usize;
        let lane = self.rng.below(self.plan.hosts[host].connections as u64) as usize;
        if let Some(side) = self.hosts[host].side(lane) {
            self.say(|| format!("host {host} loses connection {lane}"));
            match self.rng.below(3) {
                0 => self.hosts[host].cut(lane),
                1 => self.world.kill(side),
                _ => self.world.kill(side.peer()),
            }
        }
        let next = self.world.now_ns() + self.rng.within((1, 2 * self.plan.loss_ns));
        self.agenda.push((next, Action::Lose));
    }

    fn connect(&mut self, host: usize, lane: usize) {
        if !self.hosts[host].connect(lane, ADDRESS) {
            let later = self.world.now_ns() + BEAT_NS;
            self.agenda.push((later, Action::Connect(host, lane)));
        }
    }

    fn take_turn(&mut self) -> bool {
        let cores = self.places.iter().enumerate();
        let ready = cores.filter(|(_, place)| place.turns > 0 || place.waker.is_set());
        let count = self.places.len();
        let hosts = self.hosts.iter().enumerate().filter(|(_, host)| host.has_work());
        let ready: Vec<usize> =
            ready.map(|(at, _)| at).chain(hosts.map(|(at, _)| count + at)).collect();
        if ready.is_empty() {
            return false;
        }
        let next = self.rng.pick(&ready);
        if let Some(host) = next.checked_sub(count) {
            self.turn_of_host(host);
            return true;
        }
        let place = &mut self.places[next];
        place.turns = place.turns.saturating_sub(1);
        if place.core.poll_once().events > 0 {
            place.turns = place.turns.max(1);
        }
        true
    }

    fn turn_of_host(&mut self, number: usize) {
        let host = &mut self.hosts[number];
        let lost = host.turn(&mut record::lock(&self.record));
        for lane in lost {
            let after_ns = self.rng.pick(&[0, 3_000, 100_000]);
            self.agenda.push((self.world.now_ns() + after_ns, Action::Connect(number, lane)));
        }
    }

    fn advance(&mut self) {
        let now = self.world.now_ns();
        let planned = self.agenda.iter().map(|(at, _)| *at);
        let next = planned.chain(self.world.next_ns()).min().unwrap_or(u64::MAX);
        self.world.advance_to(next.min(now + BEAT_NS).max(now + 1));
        if next > now + BEAT_NS {
            self.places.iter_mut().for_each(|place| place.turns = 6);
            self.hosts.iter_mut().for_each(Host::wake);
        }
    }

    fn tell(self, outcome: &mut Outcome) {
        let mut record = record::lock(&self.record);
        outcome.failures.append(&mut record.failures);
        outcome.digest ^= self.world.digest().rotate_left(1);
        outcome.seen.returned += record.sent_again;
        outcome.seen.known += record.known_again;
    }
}
