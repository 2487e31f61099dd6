//! One client core: opens the connections of a workload, drives them, asks the server for its
//! activity, and closes them.

use super::callee::Callee;
use super::control::{Intent, Welcome};
use super::driver::{Driver, LaneHandler, Tally};
use super::measurement::CoreUse;
use super::outcome::{Driven, Measured, combine};
use super::program::{HOLDINGS, INTENT, JOIN, STATUS, STATUS_BYTES_MAX};
use super::rendezvous::{Join, Joined, pause};
use super::schedule::Drive;
use super::status::{Status, decode_holdings};
use super::workload::{Limits, Workload};
use crate::env::Holdings;
use crate::failure::Failure;
use crate::interrupt;
use spinrpc::config::IdlePolicy;
use spinrpc::sys::clock::Clock;
use spinrpc::{
    CallError, CallSpec, Client, ConnectionEvent, Core, DecodeError, Decoder, Encoder, Engine,
    Procedure, Reply, ReplyHandler, Token,
};
use std::cell::{OnceCell, RefCell};
use std::fmt::Display;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// A client core with a connection to each server for questions; lives on the core's thread.
pub(crate) struct Session<'a> {
    engine: Engine,
    pub(super) core: Core,
    index: usize,
    /// The servers; at least one.
    pub(super) callees: &'a [Callee<'a>],
    /// A connection to each server.
    questions: Vec<Client>,
    answer: AnswerPlace,
}

/// Answer of the server to a question.
enum Answer {
    Status(Status),
    Welcome(Welcome),
    Holdings(Holdings),
    Joined(Joined),
}

type AnswerPlace = Rc<RefCell<Option<Result<Answer, String>>>>;

/// A core of the client among those that measure together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rank {
    pub(super) index: usize,
    pub(super) of: usize,
    /// Start time in ticks; a time in the past means at once.
    pub(super) begin: u64,
}

impl Rank {
    /// A single core that starts at once.
    pub(super) fn alone() -> Self {
        Self { index: 0, of: 1, begin: Clock::shared().now().0 }
    }
}

impl<'a> Session<'a> {
    /// Makes the calling thread core `index` of the engine and connects it.
    pub(crate) fn open(
        engine: &Engine,
        index: usize,
        callees: &'a [Callee<'a>],
    ) -> Result<Self, Failure> {
        let mut core = engine
            .core(index)
            .map_err(|error| Failure::Measurement(format!("client core {index}: {error}")))?;
        let answer = AnswerPlace::default();
        let connect = |callee: &Callee<'_>| {
            let handler = QuestionHandler(Rc::clone(&answer));
            let Callee { address, program, version } = *callee;
            core.connect_wait(address, program, version, |_| handler, CONNECT_TIMEOUT)
                .map_err(|error| Failure::Measurement(format!("connecting to {address}: {error}")))
        };
        let questions = callees.iter().map(connect).collect::<Result<_, _>>()?;
        Ok(Self { engine: engine.clone(), core, index, callees, questions, answer })
    }

    /// Opens the connections of a workload, if the server has room for it.
    pub(crate) fn load(&mut self, workload: Workload) -> Result<Load, Failure> {
        self.announce(&Intent::of(&workload, false))?;
        let driver = Driver::new(workload);
        let idle = self.connect_idle(workload.idle_connections)?;
        for lane in 0..workload.connections {
            let handler = LaneHandler { driver: driver.clone(), lane };
            let client = self.connect(lane, |_| handler)?;
            driver.borrow_mut().add_lane(client)?;
        }
        Ok(Load { workload, driver, idle })
    }

    /// Drives a load once and returns the activity of both sides.
    pub(crate) fn measure(
        &mut self,
        load: &Load,
        limits: &Limits,
    ) -> Result<Vec<Measured>, Failure> {
        let before = self.server_status()?;
        let driven = self.drive(load, limits, Rank::alone())?;
        // A server that does not answer calls does not answer questions.
        let after = if driven.tally.is_stuck { None } else { self.server_status()? };
        let server = before.zip(after).map(|(before, after)| until(&before, &after));
        combine(&load.workload, limits, vec![driven], server)
    }

    /// Drives a load once; the samples are this core's.
    pub(super) fn drive(
        &mut self,
        load: &Load,
        limits: &Limits,
        rank: Rank,
    ) -> Result<Driven, Failure> {
        // A core that sleeps between two calls would be late for the next.
        if load.workload.rate.is_some() || !limits.ramp.is_zero() {
            self.core.set_idle(IdlePolicy::Busy);
        }
        let before = self.own_status();
        let tally = self.run_loop(&load.driver, limits, rank);
        let client = before.until(&self.own_status()).first().copied().unwrap_or_default();
        self.core.set_idle(self.engine.config().idle_policy());
        Ok(Driven { tally: tally?, client })
    }

    fn run_loop(
        &mut self,
        driver: &RefCell<Driver>,
        limits: &Limits,
        rank: Rank,
    ) -> Result<Tally, Failure> {
        let clock = Clock::shared();
        self.core.run_until(|| clock.now().0 >= rank.begin);
        let ticks = |time| clock.from_duration(time);
        let drive = Drive {
            begin: clock.now().0,
            ramp: ticks(limits.ramp),
            warmup: ticks(limits.warmup),
            measured: ticks(limits.duration),
            cooldown: ticks(limits.cooldown),
            interval: ticks(limits.interval()),
            calls_max: limits.calls,
            grace: ticks(limits.grace),
            can_be_interrupted: limits.can_be_interrupted,
            core: limits.core_of_all(rank.index, rank.of),
        };
        driver.borrow_mut().start(&drive)?;
        self.core.run_until(|| driver.borrow_mut().turn());
        driver.borrow_mut().finish()
    }

    /// Closes the connections of a load and waits until they are gone.
    pub(crate) fn unload(&mut self, load: Load) {
        let clients: Vec<Client> = load.driver.borrow_mut().close().chain(load.idle).collect();
        clients.iter().for_each(Client::close);
        let deadline = Instant::now() + CLOSE_TIMEOUT;
        self.core.run_until(|| !clients.iter().any(Client::is_up) || Instant::now() > deadline);
    }

    /// Counters are published by one of several turns without work: most of these end before.
    fn own_status(&mut self) -> Status {
        for _ in 0..SETTLING_TURNS {
            self.core.poll_once();
        }
        Status::observe(&self.engine, std::iter::once(self.index))
    }

    /// Counters of the cores of each server, if they can be asked. Blocks for a round trip to each.
    pub(super) fn server_status(&mut self) -> Result<Option<Vec<Status>>, Failure> {
        if !self.callee().is_spinperf() {
            return Ok(None);
        }
        let servers = self.callees.len();
        let ask = |server| match self.ask(server, STATUS, |_| {})? {
            Answer::Status(status) => Ok(status),
            _ => Err(server_lost()),
        };
        (0..servers).map(ask).collect::<Result<_, _>>().map(Some)
    }

    /// Resources that the first server holds. Blocks for a round trip.
    pub(super) fn server_holdings(&mut self) -> Result<Holdings, Failure> {
        match self.ask(0, HOLDINGS, |_| {})? {
            Answer::Holdings(holdings) => Ok(holdings),
            _ => Err(server_lost()),
        }
    }

    /// Announces the load to each spinperf server; an error if one has no room for it. Blocks for a
    /// round trip to each; returns the answer of the first.
    pub(super) fn announce(&mut self, intent: &Intent) -> Result<Option<Welcome>, Failure> {
        if !self.callee().is_spinperf() {
            return Ok(None);
        }
        let intent = intent.split(self.callees.len());
        let mut first = None;
        for server in 0..self.callees.len() {
            match self.ask(server, INTENT, |args| intent.encode(args))? {
                Answer::Welcome(welcome) if welcome.refusal.is_empty() => {
                    first.get_or_insert(welcome);
                }
                Answer::Welcome(Welcome { refusal, .. }) => {
                    let rejects = format!("the server rejects it: {refusal}");
                    return Err(Failure::Measurement(rejects));
                }
                _ => return Err(server_lost()),
            }
        }
        Ok(first)
    }

    /// Waits at the first server for the other ranks; returns the common start in ticks.
    ///
    /// # Errors
    /// Not all came within this time; says which are missing.
    pub(super) fn join(&mut self, join: &Join, patience: Duration) -> Result<u64, Failure> {
        let deadline = Instant::now() + patience;
        let ranks = join.rank.ranks;
        // The server may not have noticed yet that the last job of this name has ended.
        let settled = Instant::now() + patience.min(SETTLING);
        loop {
            let answer = self.ask(0, JOIN, |args| join.encode(args))?;
            let Answer::Joined(joined) = answer else { return Err(server_lost()) };
            let now = Instant::now();
            if !joined.refusal.is_empty() && now > settled {
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
            self.core.run_until(|| Instant::now() > next);
        }
    }

    /// The first server.
    pub(super) fn callee(&self) -> Callee<'a> {
        self.callees[0]
    }

    fn ask(
        &mut self,
        server: usize,
        procedure: Procedure,
        encode: impl Fn(&mut Encoder<'_>),
    ) -> Result<Answer, Failure> {
        *self.answer.borrow_mut() = None;
        let mut spec = CallSpec::new().reply_bytes_max(STATUS_BYTES_MAX);
        self.questions[server]
            .call(procedure, Token(u64::from(procedure.0)), &mut spec, encode)
            .map_err(|refused| Failure::Measurement(format!("asking the server: {refused}")))?;
        let answer = Rc::clone(&self.answer);
        self.wait_for(|| answer.borrow().is_some());
        match self.answer.borrow_mut().take() {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(why)) => Err(Failure::Measurement(format!("asking the server: {why}"))),
            None => Err(Failure::Measurement(format!(
                "the server has not answered a query for {} s",
                ANSWER_TIMEOUT.as_secs()
            ))),
        }
    }

    /// Runs turns until the server has answered, for a bounded time.
    pub(super) fn wait_for(&mut self, is_answered: impl Fn() -> bool) {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        self.core.run_until(|| is_answered() || Instant::now() > deadline);
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
        let failure = Rc::new(OnceCell::new());
        let mut clients = Vec::with_capacity(count);
        let mut waiting = Vec::with_capacity(CONNECTING_MAX);
        for number in 0..count {
            let Callee { address, program, version } = self.callees[number % self.callees.len()];
            let client = self
                .core
                .connect(address, program, version, |_| IdleHandler(Rc::clone(&failure)))
                .map_err(|error| not_connected(&error))?;
            waiting.push(client.clone());
            clients.push(client);
            let left = if number + 1 == count { 0 } else { CONNECTING_MAX - 1 };
            self.wait_until_up(&mut waiting, left, &failure)?;
        }
        Ok(clients)
    }

    /// Runs turns until no more than `left` of these clients are still to come up.
    fn wait_until_up(
        &mut self,
        waiting: &mut Vec<Client>,
        left: usize,
        failure: &OnceCell<String>,
    ) -> Result<(), Failure> {
        let mut deadline = Instant::now() + ANSWER_TIMEOUT;
        self.core.run_until(|| {
            let before = waiting.len();
            waiting.retain(|client| !client.is_up());
            if waiting.len() < before {
                deadline = Instant::now() + ANSWER_TIMEOUT;
            }
            waiting.len() <= left || failure.get().is_some() || Instant::now() > deadline
        });
        match failure.get() {
            Some(failure) => Err(not_connected(failure)),
            None if waiting.len() > left => {
                let (seconds, requested) = (ANSWER_TIMEOUT.as_secs(), waiting.len());
                let silence = format_args!(
                    "of {requested} that were requested, none came up for {seconds} s"
                );
                Err(not_connected(&silence))
            }
            None => Ok(()),
        }
    }

    /// Connects to one server after the other.
    fn connect<H: ReplyHandler + 'static>(
        &mut self,
        number: usize,
        make: impl FnOnce(Client) -> H,
    ) -> Result<Client, Failure> {
        let Callee { address, program, version } = self.callees[number % self.callees.len()];
        self.core
            .connect_wait(address, program, version, make, CONNECT_TIMEOUT)
            .map_err(|error| not_connected(&error))
    }
}

fn not_connected(error: &dyn Display) -> Failure {
    Failure::Measurement(format!("connecting: {error}"))
}

/// The connections of a workload, ready to be driven.
pub(crate) struct Load {
    pub(super) workload: Workload,
    pub(super) driver: Rc<RefCell<Driver>>,
    pub(super) idle: Vec<Client>,
}

/// Activity of the cores of all servers between two questions.
pub(super) fn until(before: &[Status], after: &[Status]) -> Vec<CoreUse> {
    before.iter().zip(after).flat_map(|(before, after)| before.until(after)).collect()
}

/// Handles the answers to questions, whose tokens are the procedures asked.
struct QuestionHandler(AnswerPlace);

impl ReplyHandler for QuestionHandler {
    fn on_reply(&mut self, token: Token, reply: Result<Reply<'_>, CallError>) {
        let answer = match reply {
            Ok(mut reply) => decode_answer(token, reply.results()).map_err(|e| e.to_string()),
            Err(error) => Err(error.to_string()),
        };
        *self.0.borrow_mut() = Some(answer);
    }
}

fn decode_answer(token: Token, results: Decoder<'_>) -> Result<Answer, DecodeError> {
    match Procedure(token.0 as u32) {
        INTENT => Welcome::decode(results).map(Answer::Welcome),
        HOLDINGS => decode_holdings(results).map(Answer::Holdings),
        JOIN => Joined::decode(results).map(Answer::Joined),
        _ => Status::decode(results).map(Answer::Status),
    }
}

/// Handler of a connection that does nothing; keeps the reason of the first one that cannot be made.
struct IdleHandler(Rc<OnceCell<String>>);

impl ReplyHandler for IdleHandler {
    fn on_reply(&mut self, _: Token, _: Result<Reply<'_>, CallError>) {}

    fn on_event(&mut self, event: &ConnectionEvent) {
        let reason = match event {
            ConnectionEvent::ConnectFailed { error } => error.to_string(),
            ConnectionEvent::Down { cause, .. } => cause.to_string(),
            _ => return,
        };
        // The first one is kept.
        let _ = self.0.set(reason);
    }
}

fn server_lost() -> Failure {
    Failure::Measurement("the connection to the server was lost".to_owned())
}

/// Number of turns in which replies or calls in reverse may still arrive, and after which counters are published.
const SETTLING_TURNS: usize = 100;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle connections that are requested at a time: their handshakes follow each other, on the thread for their address, while
/// those before them make their first call.
pub(crate) const CONNECTING_MAX: usize = 64;
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time in which a server notices that a connection is down.
const SETTLING: Duration = Duration::from_secs(1);
/// Longer than the default deadline of a call, whose error says more.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
