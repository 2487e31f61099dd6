//! One client core at work: opens the connections of a workload, drives them, asks the server what
//! it did meanwhile, and closes them again.

use super::callee::Callee;
use super::driver::{Driver, LaneHandler, Tally};
use super::measurement::{CoreUse, Measurement, Samples};
use super::program::STATUS;
use super::workload::{Limits, Workload};
use crate::failure::Failure;
use crate::latency::Recorder;
use spinrpc::sys::clock::Clock;
use spinrpc::{CallError, CallSpec, Client, Core, Engine, Reply, ReplyHandler, Token};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// A client core with a connection for questions; lives on the core's thread.
pub(crate) struct Session<'a> {
    engine: Engine,
    pub(super) core: Core,
    index: usize,
    pub(super) callee: Callee<'a>,
    status: Client,
    answer: StatusAnswer,
}

/// What a core counted, and when.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Status {
    ticks: u64,
    busy_ticks: u64,
    polls: u64,
    empty_polls: u64,
    credit_stalls: u64,
    queue_full: u64,
    copies: u64,
}

type StatusAnswer = Rc<Cell<Option<Result<Status, Lost>>>>;

/// Why there is no status.
#[derive(Clone, Copy, Debug)]
struct Lost;

impl<'a> Session<'a> {
    /// Makes the calling thread core `index` of the engine and connects it.
    pub(crate) fn open(engine: &Engine, index: usize, callee: Callee<'a>) -> Result<Self, Failure> {
        let mut core = engine
            .core(index)
            .map_err(|error| Failure::Measurement(format!("client core {index}: {error}")))?;
        let answer = StatusAnswer::default();
        let handler = StatusHandler(answer.clone());
        let status = core
            .connect_wait(
                callee.address,
                callee.program,
                callee.version,
                |_| handler,
                CONNECT_TIMEOUT,
            )
            .map_err(|error| {
                Failure::Measurement(format!("connecting to {}: {error}", callee.address))
            })?;
        Ok(Self { engine: engine.clone(), core, index, callee, status, answer })
    }

    /// Opens the connections of a workload.
    pub(crate) fn load(&mut self, workload: Workload) -> Result<Load, Failure> {
        let driver = Driver::new(workload)?;
        let mut idle = Vec::with_capacity(workload.idle_connections);
        for _ in 0..workload.idle_connections {
            idle.push(self.connect(|_| IdleHandler)?);
        }
        for lane in 0..workload.connections {
            let handler = LaneHandler { driver: driver.clone(), lane };
            let client = self.connect(|_| handler)?;
            driver.borrow_mut().add_lane(client)?;
        }
        Ok(Load { workload, driver, idle })
    }

    /// Drives a load once and says what both sides did.
    pub(crate) fn measure(&mut self, load: &Load, limits: Limits) -> Result<Measurement, Failure> {
        let before = self.server_status()?;
        let driven = self.drive(load, limits)?;
        let server = before.until(self.server_status()?);
        combine(&load.workload, vec![driven], Some(server))
    }

    /// Drives a load once; the samples are this core's.
    pub(super) fn drive(&mut self, load: &Load, limits: Limits) -> Result<Driven, Failure> {
        let before = self.own_status();
        let tally = self.run_loop(&load.driver, limits)?;
        Ok(Driven { tally, client: before.until(self.own_status()) })
    }

    fn run_loop(&mut self, driver: &RefCell<Driver>, limits: Limits) -> Result<Tally, Failure> {
        let clock = Clock::shared();
        driver.borrow_mut().start(
            clock.from_duration(limits.warmup),
            clock.from_duration(limits.duration),
            limits.calls,
        );
        self.core.run_until(|| driver.borrow_mut().turn());
        driver.borrow_mut().finish()
    }

    /// Closes the connections of a load and waits until they are gone.
    pub(crate) fn unload(&mut self, load: Load) {
        let clients: Vec<Client> = load.driver.borrow_mut().close().chain(load.idle).collect();
        clients.iter().for_each(Client::close);
        let deadline = std::time::Instant::now() + CLOSE_TIMEOUT;
        self.core.run_until(|| {
            !clients.iter().any(Client::is_up) || std::time::Instant::now() > deadline
        });
    }

    fn own_status(&self) -> Status {
        let stats = self.engine.stats(self.index);
        Status {
            ticks: Clock::shared().now().0,
            busy_ticks: stats.busy_ticks,
            polls: stats.polls,
            empty_polls: stats.empty_polls,
            credit_stalls: stats.credit_stalls,
            queue_full: stats.queue_full,
            copies: stats.copies,
        }
    }

    /// The same, if the server can be asked.
    pub(super) fn server_status_if_told(&mut self) -> Result<Option<Status>, Failure> {
        match self.callee.is_spinperf() {
            true => self.server_status().map(Some),
            false => Ok(None),
        }
    }

    /// Asks the server's core that serves this one. Blocks for a round trip.
    pub(super) fn server_status(&mut self) -> Result<Status, Failure> {
        self.answer.set(None);
        self.status
            .call(STATUS, Token(0), &mut CallSpec::new(), |_| {})
            .map_err(|refused| Failure::Measurement(format!("asking the server: {refused}")))?;
        let answer = self.answer.clone();
        self.core.run_until(|| answer.get().is_some());
        match self.answer.get() {
            Some(Ok(status)) => Ok(status),
            _ => Err(Failure::Measurement("the server was lost".to_owned())),
        }
    }

    fn connect<H: ReplyHandler + 'static>(
        &mut self,
        make: impl FnOnce(Client) -> H,
    ) -> Result<Client, Failure> {
        let callee = self.callee;
        self.core
            .connect_wait(callee.address, callee.program, callee.version, make, CONNECT_TIMEOUT)
            .map_err(|error| Failure::Measurement(format!("connecting: {error}")))
    }
}

/// The connections of a workload, ready to be driven.
pub(crate) struct Load {
    pub(super) workload: Workload,
    pub(super) driver: Rc<RefCell<Driver>>,
    pub(super) idle: Vec<Client>,
}

/// One drive of one core.
pub(super) struct Driven {
    tally: Tally,
    client: CoreUse,
}

/// Puts the cores of one repeat together; `driven` must not be empty.
pub(super) fn combine(
    workload: &Workload,
    driven: Vec<Driven>,
    server: Option<CoreUse>,
) -> Result<Measurement, Failure> {
    let clock = Clock::shared();
    let seconds = |ticks: u64| ticks as f64 / clock.ticks_per_second() as f64;
    let mut all: Option<Recorder> = None;
    let (mut calls_per_second, mut elapsed_s) = (0.0, 0.0);
    let mut client_cores = Vec::with_capacity(driven.len());
    for Driven { tally, client } in driven {
        let core_s = seconds(tally.ticks.max(1));
        calls_per_second += tally.recorder.samples() as f64 / core_s;
        elapsed_s = f64::max(elapsed_s, core_s);
        client_cores.push(client);
        match &mut all {
            Some(all) => all.merge(&tally.recorder),
            None => all = Some(tally.recorder),
        }
    }
    let latency =
        all.map(|all| all.summary(1e9 / clock.ticks_per_second() as f64)).unwrap_or_default();
    Ok(Measurement {
        calls: latency.samples,
        elapsed_s,
        calls_per_second,
        bytes_per_second: calls_per_second * workload.payload_bytes() as f64,
        latency,
        service: None,
        open: None,
        client: CoreUse::sum(&client_cores),
        server,
        client_cores,
        server_cores: server.into_iter().collect(),
        samples: Samples::none()?,
    })
}

struct StatusHandler(StatusAnswer);

impl ReplyHandler for StatusHandler {
    fn on_reply(&mut self, _: Token, reply: Result<Reply<'_>, CallError>) {
        self.0.set(Some(reply.map_err(|_| Lost).and_then(|mut reply| decode_status(&mut reply))));
    }
}

fn decode_status(reply: &mut Reply<'_>) -> Result<Status, Lost> {
    let mut results = reply.results();
    let mut next = || results.u64().map_err(|_| Lost);
    Ok(Status {
        ticks: next()?,
        busy_ticks: next()?,
        polls: next()?,
        empty_polls: next()?,
        credit_stalls: next()?,
        queue_full: next()?,
        copies: next()?,
    })
}

/// Handler of a connection that does nothing.
struct IdleHandler;

impl ReplyHandler for IdleHandler {
    fn on_reply(&mut self, _: Token, _: Result<Reply<'_>, CallError>) {}
}

impl Status {
    /// What happened from `self` to `after`.
    pub(super) fn until(self, after: Self) -> CoreUse {
        let ticks = (after.ticks - self.ticks).max(1);
        let busy_ticks = after.busy_ticks.wrapping_sub(self.busy_ticks);
        CoreUse {
            busy_percent: busy_ticks as f64 * 100.0 / ticks as f64,
            polls: after.polls.wrapping_sub(self.polls),
            empty_polls: after.empty_polls.wrapping_sub(self.empty_polls),
            credit_stalls: after.credit_stalls.wrapping_sub(self.credit_stalls),
            queue_full: after.queue_full.wrapping_sub(self.queue_full),
            copies: after.copies.wrapping_sub(self.copies),
            ..CoreUse::default()
        }
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
