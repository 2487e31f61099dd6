//! One client core: opens the connections of a workload, drives them, asks the server for its
//! activity, and closes them.

use super::control::{BackPlan, Calls, FIGURES_BYTES_MAX, Figures, Intent, Welcome};
use super::driver::{Driver, LaneHandler, Recorders, Tally};
use super::fleet::Party;
use super::outcome::Driven;
use super::program::{
    BACK, BACK_BEGIN, BACK_END, HOLDINGS, INTENT, JOIN, PROGRAM, STATUS, STATUS_BYTES_MAX, VERSION,
};
use super::rendezvous::{Join, Joined, pause};
use super::schedule::Drive;
use super::status::Status;
use super::workload::{Limits, Workload};
use crate::env::{Holdings, ThreadTimes};
use crate::failure::Failure;
use crate::interrupt;
use spinrpc::config::IdlePolicy;
use spinrpc::sys::clock::Clock;
use spinrpc::{
    CallError, CallSpec, Client, ClientHandle, ConnectError, ConnectOptions, ConnectionEvent, Core,
    DecodeError, Decoder, Encoder, Engine, Procedure, Program, Reply, ReplyHandler, Slab,
    SlabLayout, Token, Version,
};
use spinrpc_xdr::{Decode, Encode};
use std::cell::{Cell, OnceCell, RefCell};
use std::fmt::{self, Display};
use std::rc::Rc;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Callee<'a> {
    address: &'a str,
    program: Program,
    version: Version,
    /// Has spinperf's own procedures, and a connection for questions about the activity of its cores.
    pub(crate) is_asked: bool,
}

impl<'a> Callee<'a> {
    pub(crate) fn spinperf(address: &'a str) -> Self {
        let (program, version) = (PROGRAM, VERSION);
        Self { address, program, version, is_asked: true }
    }

    pub(crate) fn not_asked(address: &'a str) -> Self {
        Self { is_asked: false, ..Self::spinperf(address) }
    }

    pub(super) fn is_local(&self) -> bool {
        self.address.starts_with("shm:")
    }

    /// Only its NULL procedure is called, which every program has (RFC 5531 section 12.1).
    pub(crate) fn other(address: &'a str, program: u32, version: u32) -> Self {
        let (program, version) = (Program(program), Version(version));
        let is_asked = (program, version) == (PROGRAM, VERSION);
        Self { address, program, version, is_asked }
    }
}

impl fmt::Display for Callee<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "program {} version {}", self.program.0, self.version.0)
    }
}

/// A client core with a connection to each server for questions, if it is asked any; lives on the core's thread.
pub(super) struct Session<'a> {
    engine: Engine,
    core: Core,
    index: usize,
    /// The servers; at least one. All of them are asked, or none.
    callees: &'a [Callee<'a>],
    questions: Vec<Questions>,
    /// A server's core that this thread polls as well, and the CPU that is left to callers.
    pub(super) beside: Option<(Core, usize)>,
    loaded: Option<Load>,
    /// For the samples of the next drive: of the core, or of each thread that calls.
    pub(super) memory: Vec<Recorders>,
}

/// A server whose core has no thread of its own: that of the client's core polls it as well.
pub(crate) struct Beside {
    pub(crate) server: Engine,
    pub(crate) free_cpu: usize,
}

/// A connection for questions to the server, one at a time.
#[derive(Clone)]
struct Questions {
    client: Client,
    waiting: Waiting,
    /// Token of procedure 0; the others follow.
    tokens_from: u64,
    what: &'static str,
}

impl Questions {
    fn failed(&self, why: &dyn Display) -> Failure {
        Failure::Measurement(format!("{}: {why}", self.what))
    }
}

/// Place of what takes the reply to the last question, with its token.
#[derive(Clone, Default)]
struct Waiting(Rc<Cell<Option<(Token, TakeReply)>>>);

type TakeReply = Box<dyn FnOnce(Result<Reply<'_>, CallError>)>;

impl Waiting {
    fn take(&self, token: Token, reply: Result<Reply<'_>, CallError>) {
        match self.0.take() {
            Some((asked, take)) if asked == token => take(reply),
            // The reply to a question that was given up.
            other => self.0.set(other),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Rank {
    pub(super) index: usize,
    pub(super) of: usize,
    /// Start time in ticks; a time in the past means at once.
    pub(super) begin: u64,
}

impl Rank {
    /// A drive that begins now.
    pub(super) fn drive(self, limits: &Limits) -> Drive {
        let clock = Clock::shared();
        let ticks = |time| clock.from_duration(time);
        let (rank, ranks) = limits.rank;
        Drive {
            begin: clock.now().0,
            warmup: ticks(limits.warmup),
            measured: ticks(limits.duration),
            calls_max: limits.calls,
            grace: ticks(limits.grace),
            can_be_interrupted: limits.can_be_interrupted,
            core: (rank * self.of + self.index, ranks * self.of),
            window: limits.window,
        }
    }
}

impl<'a> Session<'a> {
    /// Makes the calling thread core `index` of the engine and connects it.
    pub(super) fn open(
        engine: &Engine,
        index: usize,
        callees: &'a [Callee<'a>],
        beside: Option<&Beside>,
    ) -> Result<Self, Failure> {
        let core_of = |engine: &Engine, index| {
            let failed = |error| Failure::Measurement(format!("client core {index}: {error}"));
            engine.core(index).map_err(failed)
        };
        let core = core_of(engine, index)?;
        let polled = |one: &Beside| Ok::<_, Failure>((core_of(&one.server, 0)?, one.free_cpu));
        let beside = beside.map(polled).transpose()?;
        let (engine, questions, memory) = (engine.clone(), Vec::new(), Vec::new());
        let loaded = None;
        let mut session = Self { engine, core, index, callees, questions, beside, loaded, memory };
        for number in (0..callees.len()).filter(|number| callees[*number].is_asked) {
            let waiting = Waiting::default();
            let handler = QuestionHandler(waiting.clone());
            let client = session.connect(number, &ConnectOptions::new(), |_| handler)?;
            let what = "asking the server";
            session.questions.push(Questions { client, waiting, tokens_from: 0, what });
        }
        Ok(session)
    }

    pub(super) fn load(&mut self, workload: Workload) -> Result<(), Failure> {
        self.announce(&workload)?;
        self.loaded = Some(self.opened(workload)?);
        Ok(())
    }

    fn opened(&mut self, workload: Workload) -> Result<Load, Failure> {
        if workload.both {
            return self.load_both(workload);
        }
        let driver = Driver::new(workload);
        let idle = self.connect_idle(workload.idle_connections)?;
        if workload.threads > 0 {
            let handle = Some(self.handle()?);
            return Ok(Load { workload, driver, idle, handle, both: None });
        }
        let slab = workload.slabs.then(|| self.slab(&workload)).transpose()?;
        let options = slab.iter().fold(ConnectOptions::new(), ConnectOptions::lend);
        for lane in 0..workload.connections {
            let handler = LaneHandler { driver: driver.clone(), lane };
            let client = self.connect(lane, &options, |_| handler)?;
            driver.borrow_mut().add_lane(client, slab.as_ref())?;
        }
        Ok(Load { workload, driver, idle, handle: None, both: None })
    }

    fn slab(&self, workload: &Workload) -> Result<Slab, Failure> {
        let bytes = workload.shares().iter().map(|share| share.call_bytes).max().unwrap_or(0);
        let blocks = workload.connections * workload.depth;
        let layout = SlabLayout::new().block_bytes(bytes).blocks(blocks);
        let failed = |error| Failure::Measurement(format!("mapping a slab: {error}"));
        self.engine.slab(layout).map_err(failed)
    }

    /// Makes the memory for samples, which takes longer than any lead: before the start is chosen.
    pub(super) fn prepare(&mut self, limits: &Limits) -> Result<(), Failure> {
        let Load { workload, both, .. } = self.loaded.as_ref().ok_or_else(server_lost)?;
        let memory = (0..workload.threads.max(1)).map(|_| Recorders::new(workload));
        self.memory = memory.collect::<Result<_, _>>()?;
        let plan = both.clone().map(|both| (both, BackPlan::new(workload, limits)));
        plan.map_or(Ok(()), |(both, plan)| self.prepare_reverse(&both, &plan))
    }

    pub(super) fn drive(&mut self, limits: &Limits, rank: Rank) -> Result<Driven, Failure> {
        let load = self.loaded.take().ok_or_else(server_lost)?;
        let driven = self.drive_load(&load, limits, rank);
        self.loaded = Some(load);
        driven
    }

    fn drive_load(&mut self, load: &Load, limits: &Limits, rank: Rank) -> Result<Driven, Failure> {
        // The report has a note about it.
        if load.workload.rate.is_some() {
            self.core.set_idle(IdlePolicy::Busy);
        }
        let clock = Clock::shared();
        self.turn_until(|| clock.now().0 >= rank.begin);
        let before = self.own_status();
        if let Some(both) = &load.both {
            self.ask(both, BACK_BEGIN, CallSpec::short(), |_| {}, |_| Ok(()))?;
        }
        let tally = match &load.handle {
            None => self.run_loop(load, limits, rank).map(|tally| (tally, None)),
            Some(handle) => self.run_callers(handle, &load.workload, limits, rank),
        };
        let mut client = before.until(&self.own_status()).first().copied().unwrap_or_default();
        self.core.set_idle(self.engine.config().idle_policy());
        let (tally, waited) = tally?;
        client.waited_percent = client.waited_percent.into_iter().chain(waited).reduce(f64::max);
        let both = load.both.as_ref();
        let reverse = both.map_or(Ok(None), |both| self.end_reverse(both, &tally))?;
        Ok(Driven { tally, client, reverse })
    }

    fn run_loop(&mut self, load: &Load, limits: &Limits, rank: Rank) -> Result<Tally, Failure> {
        let Load { driver, .. } = load;
        let not_prepared = "no memory was made for samples";
        let memory = self.memory.pop();
        let memory = memory.ok_or_else(|| Failure::Measurement(not_prepared.to_owned()))?;
        driver.borrow_mut().start(&rank.drive(limits), memory)?;
        self.turn_until(|| driver.borrow_mut().turn());
        driver.borrow_mut().finish()
    }

    /// Runs turns until `done` returns true: of the server as well, if no other thread does.
    pub(super) fn turn_until(&mut self, mut done: impl FnMut() -> bool) {
        let Some((server, _)) = &mut self.beside else {
            return self.core.run_until(done);
        };
        while !done() {
            self.core.poll_once();
            server.poll_once();
        }
    }

    pub(super) fn unload(&mut self) {
        let Some(load) = self.loaded.take() else { return };
        let clients: Vec<Client> = load.driver.borrow_mut().close().chain(load.idle).collect();
        clients.iter().for_each(Client::close);
        load.handle.iter().for_each(ClientHandle::close);
        let is_up =
            || clients.iter().any(Client::is_up) || load.handle.iter().any(ClientHandle::is_up);
        let deadline = Instant::now() + CLOSE_TIMEOUT;
        self.turn_until(|| !is_up() || Instant::now() > deadline);
    }

    /// Counters are published by one of several turns without work: most of these end before.
    fn own_status(&mut self) -> Status {
        for _ in 0..SETTLING_TURNS {
            // Not `turn_until`, which sleeps: part of the measured time.
            self.core.poll_once();
            if let Some((server, _)) = &mut self.beside {
                server.poll_once();
            }
        }
        Status::observe(&self.engine, std::iter::once(self.index), |_| ThreadTimes::own())
    }

    /// Counters of the cores of each server, if they can be asked. Blocks for a round trip to each.
    pub(super) fn server_status(&mut self) -> Result<Option<Vec<Status>>, Failure> {
        let servers = self.questions.len();
        let ask = |server| self.question(server, STATUS, |_| {}, Status::decode);
        (servers > 0).then(|| (0..servers).map(ask).collect()).transpose()
    }

    /// Resources that the first server holds. Blocks for a round trip.
    pub(super) fn server_holdings(&mut self) -> Result<Holdings, Failure> {
        self.question(0, HOLDINGS, |_| {}, |mut from| Holdings::decode(&mut from))
    }

    /// Fails if a server has no room. Blocks for a round trip to each; returns the inline sizes of the first.
    pub(super) fn announce(&mut self, workload: &Workload) -> Result<Option<[usize; 2]>, Failure> {
        let shares: Vec<Calls> = workload.shares().iter().map(Calls::of).collect();
        let rejects =
            |why: &dyn Display| Failure::Measurement(format!("the server rejects it: {why}"));
        let intent = Intent::of(workload, &shares, self.callees.len());
        let intent = intent.map_err(|error| rejects(&error))?;
        let mut first = None;
        for server in 0..self.questions.len() {
            let answer = |mut from: Decoder<'_>| Welcome::decode(&mut from).map(Welcome::answer);
            let answer = self.question(server, INTENT, |args| intent.encode(args), answer)?;
            first.get_or_insert(answer.map_err(|refusal| rejects(&refusal))?);
        }
        Ok(first)
    }

    /// Waits at the first server for the other ranks, or fails; returns the common start in ticks.
    pub(super) fn join(&mut self, party: &Party, round: u32) -> Result<u64, Failure> {
        let Party { ref rank, process, patience } = *party;
        let deadline = Instant::now() + patience;
        let ranks = rank.ranks;
        let join = Join::new(rank, process, round)?;
        // The server may not have noticed yet that the last job of this name has ended.
        let settled = Instant::now() + patience.min(SETTLING);
        loop {
            let asked = Instant::now();
            let joined = self.question(0, JOIN, |args| join.encode(args), Joined::decode)?;
            let now = Instant::now();
            if !joined.refusal.is_empty() && asked > settled {
                return Err(Failure::Measurement(joined.refusal));
            }
            if let Some(start_in) = joined.start_in {
                let clock = Clock::shared();
                return Ok(clock.now().0 + clock.from_duration(start_in));
            }
            if now > deadline {
                let (missing, seconds) = (joined.shown(ranks), patience.as_secs_f64());
                return Err(Failure::Measurement(format!(
                    "missing after {seconds} s: {missing}; start every rank with the same \
                     --address, or wait longer (--rank-wait)"
                )));
            }
            if let Some(signal) = interrupt::signal() {
                return Err(Failure::Interrupted(signal));
            }
            let next = Instant::now() + pause(ranks);
            self.turn_until(|| Instant::now() > next);
        }
    }

    fn question<T: 'static>(
        &mut self,
        server: usize,
        procedure: Procedure,
        encode: impl Fn(&mut Encoder<'_>),
        decode: impl FnOnce(Decoder<'_>) -> Result<T, DecodeError> + 'static,
    ) -> Result<T, Failure> {
        let questions = self.questions.get(server).cloned().ok_or_else(server_lost)?;
        let spec = CallSpec::new().reply_bytes_max(STATUS_BYTES_MAX);
        self.ask(&questions, procedure, spec, encode, decode)
    }

    fn ask<T: 'static>(
        &mut self,
        questions: &Questions,
        procedure: Procedure,
        mut spec: CallSpec,
        encode: impl Fn(&mut Encoder<'_>),
        decode: impl FnOnce(Decoder<'_>) -> Result<T, DecodeError> + 'static,
    ) -> Result<T, Failure> {
        let token = Token(questions.tokens_from + u64::from(procedure.0));
        let answer = Rc::new(OnceCell::new());
        let place = Rc::clone(&answer);
        let take = move |reply: Result<Reply<'_>, CallError>| {
            let decoded = reply
                .map_err(|error| error.to_string())
                .and_then(|mut reply| decode(reply.results()).map_err(|error| error.to_string()));
            // Empty until now.
            let _ = place.set(decoded);
        };
        questions.waiting.0.set(Some((token, Box::new(take))));
        let called = questions.client.call(procedure, token, &mut spec, encode);
        called.map_err(|refused| questions.failed(&refused))?;
        self.wait_for(|| answer.get().is_some());
        match Rc::into_inner(answer).and_then(OnceCell::into_inner) {
            Some(answer) => answer.map_err(|why| questions.failed(&why)),
            None => Err(Failure::Measurement(format!(
                "the server has not answered a query for {} s",
                ANSWER_TIMEOUT.as_secs()
            ))),
        }
    }

    fn wait_for(&mut self, is_answered: impl Fn() -> bool) {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        self.turn_until(|| is_answered() || Instant::now() > deadline);
    }

    /// Opens connections that stay idle, several at a time: so the steps of one are taken while others wait.
    fn connect_idle(&mut self, count: usize) -> Result<Vec<Client>, Failure> {
        // Their handshakes need CPUs, of which this core may have one of few.
        self.core.set_idle(IdlePolicy::Adaptive);
        let opened = self.open_idle(count);
        self.core.set_idle(self.engine.config().idle_policy());
        opened
    }

    fn open_idle(&mut self, count: usize) -> Result<Vec<Client>, Failure> {
        let mut clients = Vec::with_capacity(count);
        let mut waiting = Vec::with_capacity(CONNECTING_MAX);
        for number in 0..count {
            // Nothing is asked over it.
            let handler = QuestionHandler(Waiting::default());
            let client = self.begin_connecting(number, &ConnectOptions::new(), |_| handler)?;
            waiting.push(client.clone());
            clients.push(client);
            let left = if number + 1 == count { 0 } else { CONNECTING_MAX - 1 };
            self.wait_until_up(&mut waiting, left).map_err(|error| not_connected(&error))?;
        }
        match clients.iter().all(Client::is_up) {
            true => Ok(clients),
            false => Err(server_lost()),
        }
    }

    fn wait_until_up(
        &mut self,
        waiting: &mut Vec<Client>,
        left: usize,
    ) -> Result<(), ConnectError> {
        let mut deadline = Instant::now() + ANSWER_TIMEOUT;
        let failure = |waiting: &[Client]| waiting.iter().find_map(Client::failure);
        self.turn_until(|| {
            let before = waiting.len();
            waiting.retain(|client| !client.is_up());
            if waiting.len() < before {
                deadline = Instant::now() + ANSWER_TIMEOUT;
            }
            waiting.len() <= left || failure(waiting).is_some() || Instant::now() > deadline
        });
        match waiting.len() <= left {
            true => Ok(()),
            false => Err(failure(waiting).unwrap_or(ConnectError::TimedOut(ANSWER_TIMEOUT))),
        }
    }

    fn connect<H: ReplyHandler + 'static>(
        &mut self,
        number: usize,
        options: &ConnectOptions,
        make: impl FnOnce(Client) -> H,
    ) -> Result<Client, Failure> {
        let client = self.begin_connecting(number, options, make)?;
        let address = self.callees[number % self.callees.len()].address;
        let failed = |error| Failure::Measurement(format!("connecting to {address}: {error}"));
        self.wait_until_up(&mut vec![client.clone()], 0).map_err(failed)?;
        Ok(client)
    }

    fn begin_connecting<H: ReplyHandler + 'static>(
        &mut self,
        number: usize,
        options: &ConnectOptions,
        make: impl FnOnce(Client) -> H,
    ) -> Result<Client, Failure> {
        let Callee { address, program, version, .. } = self.callees[number % self.callees.len()];
        let failed = |error| Failure::Measurement(format!("connecting to {address}: {error}"));
        self.core.connect_with(address, program, version, options, make).map_err(failed)
    }

    fn handle(&mut self) -> Result<ClientHandle, Failure> {
        let Callee { address, program, version, .. } = self.callees[0];
        let options = ConnectOptions::new();
        let handle = self
            .engine
            .connect(self.index, address, program, version, &options)
            .map_err(|error| not_connected(&error))?;
        self.wait_for(|| handle.is_up() || handle.failure().is_some());
        match handle.is_up() {
            true => Ok(handle),
            false => {
                let error = handle.failure().unwrap_or(ConnectError::TimedOut(ANSWER_TIMEOUT));
                Err(not_connected(&error))
            }
        }
    }
}

/// While a core drives its loop, the server drives one over the same connection.
impl Session<'_> {
    fn load_both(&mut self, workload: Workload) -> Result<Load, Failure> {
        let (driver, waiting) = (Driver::new(workload), Waiting::default());
        let lane = LaneHandler { driver: driver.clone(), lane: 0 };
        let handler = BothHandler { lane, waiting: waiting.clone() };
        let options = ConnectOptions::new().take_reverse_calls();
        let client = self.connect(0, &options, |_| handler)?;
        driver.borrow_mut().add_lane(client.clone(), None)?;
        let what = "the server does not call in reverse";
        let both = Some(Questions { client, waiting, tokens_from: QUESTIONS_FROM, what });
        Ok(Load { workload, driver, idle: Vec::new(), handle: None, both })
    }

    fn prepare_reverse(&mut self, both: &Questions, plan: &BackPlan) -> Result<(), Failure> {
        let answer = |mut from: Decoder<'_>| Welcome::decode(&mut from).map(Welcome::answer);
        let answer = self.ask(both, BACK, CallSpec::short(), |args| plan.encode(args), answer)?;
        answer.map(drop).map_err(|refusal| both.failed(&refusal))
    }

    fn end_reverse(&mut self, both: &Questions, tally: &Tally) -> Result<Option<Figures>, Failure> {
        if tally.is_stuck {
            // The server would not answer the question either.
            return Ok(None);
        }
        let at_once = u32::from(tally.is_interrupted);
        let spec = CallSpec::short().reply_bytes_max(FIGURES_BYTES_MAX);
        self.ask(both, BACK_END, spec, |args| args.u32(at_once), Figures::decode).map(Some)
    }
}

fn not_connected(error: &dyn Display) -> Failure {
    Failure::Measurement(format!("connecting: {error}"))
}

struct Load {
    workload: Workload,
    driver: Rc<RefCell<Driver>>,
    idle: Vec<Client>,
    handle: Option<ClientHandle>,
    both: Option<Questions>,
}

struct QuestionHandler(Waiting);

impl ReplyHandler for QuestionHandler {
    fn on_reply(&mut self, token: Token, reply: Result<Reply<'_>, CallError>) {
        self.0.take(token, reply);
    }
}

struct BothHandler {
    lane: LaneHandler,
    waiting: Waiting,
}

impl ReplyHandler for BothHandler {
    fn on_reply(&mut self, token: Token, reply: Result<Reply<'_>, CallError>) {
        match token.0 < QUESTIONS_FROM {
            true => self.lane.on_reply(token, reply),
            false => self.waiting.take(token, reply),
        }
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        self.lane.on_event(event);
    }
}

fn server_lost() -> Failure {
    Failure::Measurement("the connection to the server was lost".to_owned())
}

/// Tokens of questions to the server are above those of a loop's slots.
const QUESTIONS_FROM: u64 = 1 << 32;
/// Number of turns in which replies or calls in reverse may still arrive, and after which counters are published.
const SETTLING_TURNS: usize = 100;
/// Idle connections that are requested at a time: their handshakes follow each other, on the thread for their address, while
/// those before them make their first call.
const CONNECTING_MAX: usize = 64;
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time in which a server notices that a connection is down, also if a thread of it is paused meanwhile.
const SETTLING: Duration = Duration::from_secs(5);
/// Longer than the default deadline of a call, whose error says more.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
