//! The client's half of a measurement in both directions: while this core drives its loop, the server
//! drives one by the same connection.

use super::callee::Callee;
use super::driver::{Driver, LaneHandler};
use super::measurement::Measurement;
use super::program::{BACK, BACK_END};
use super::session::{Load, Session, combine};
use super::workload::{BackPlan, Figures, Limits, Workload};
use crate::failure::Failure;
use spinrpc::{
    CallError, CallSpec, Client, ConnectOptions, ConnectionEvent, Encoder, Engine, Procedure,
    Reply, ReplyHandler, Token,
};
use std::cell::RefCell;
use std::rc::Rc;

/// Of questions to the server, beyond those of a loop's slots.
const QUESTION: Token = Token(1 << 32);

/// What the server answered; the figures are all zero where it has none to say.
type Answer = Rc<RefCell<Option<Result<Figures, String>>>>;

/// Drives `workload` in both directions of one connection at once, `repeats` times: forward and in
/// reverse. Blocks until all are done.
pub(crate) fn run_both(
    engine: &Engine,
    callee: Callee<'_>,
    workload: Workload,
    limits: Limits,
    repeats: u32,
) -> Result<Vec<[Measurement; 2]>, Failure> {
    let mut session = Session::open(engine, 0, callee)?;
    let (load, both) = session.load_both(workload)?;
    let measured = (0..repeats).map(|_| session.measure_both(&load, &both, limits)).collect();
    session.unload(load);
    measured
}

/// The connection of both loops.
struct Both {
    client: Client,
    answer: Answer,
}

/// Hears the replies of the loop, and the answers of the server.
struct BothHandler {
    lane: LaneHandler,
    answer: Answer,
}

impl ReplyHandler for BothHandler {
    fn on_reply(&mut self, token: Token, reply: Result<Reply<'_>, CallError>) {
        if token != QUESTION {
            return self.lane.on_reply(token, reply);
        }
        let figures = reply.and_then(|mut reply| Ok(Figures::decode(&mut reply.results())?));
        *self.answer.borrow_mut() = Some(figures.map_err(|error| error.to_string()));
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        if let ConnectionEvent::ConnectFailed { error } = event {
            *self.answer.borrow_mut() = Some(Err(error.to_string()));
        }
        self.lane.on_event(event);
    }
}

impl Session<'_> {
    fn load_both(&mut self, workload: Workload) -> Result<(Load, Both), Failure> {
        let driver = Driver::new(workload)?;
        let answer = Answer::default();
        let lane = LaneHandler { driver: driver.clone(), lane: 0 };
        let handler = BothHandler { lane, answer: Rc::clone(&answer) };
        let callee = self.callee;
        let options = ConnectOptions::new().take_reverse_calls();
        let client = self
            .core
            .connect_with(callee.address, callee.program, callee.version, &options, |_| handler)
            .map_err(|error| Failure::Measurement(format!("connecting: {error}")))?;
        self.core.run_until(|| client.is_up() || answer.borrow().is_some());
        if let Some(Err(error)) = answer.take() {
            return Err(Failure::Measurement(format!("connecting: {error}")));
        }
        driver.borrow_mut().add_lane(client.clone())?;
        Ok((Load { workload, driver, idle: Vec::new() }, Both { client, answer }))
    }

    fn measure_both(
        &mut self,
        load: &Load,
        both: &Both,
        limits: Limits,
    ) -> Result<[Measurement; 2], Failure> {
        let plan = BackPlan {
            workload: load.workload.in_reverse(),
            warmup_ns: limits.warmup.as_nanos() as u64,
            duration_ns: limits.duration.as_nanos() as u64,
            calls_max: limits.calls,
        };
        let before = self.server_status()?;
        self.ask(both, BACK, |args| plan.encode(args))?;
        let driven = self.drive(load, limits)?;
        let figures = self.ask(both, BACK_END, |_| {})?;
        let server = before.until(self.server_status()?);
        let forward = combine(&load.workload, vec![driven], Some(server))?;
        // Who calls is named first: that is the server.
        let reverse = figures.measurement(&plan.workload, server, Some(forward.client))?;
        Ok([forward, reverse])
    }

    /// Asks the server by the measured connection. Blocks until it has answered.
    fn ask(
        &mut self,
        both: &Both,
        procedure: Procedure,
        encode: impl Fn(&mut Encoder<'_>),
    ) -> Result<Figures, Failure> {
        let failed = |what: &dyn std::fmt::Display| {
            Failure::Measurement(format!(
                "the server does not call in reverse ({what}): start it with --bidir"
            ))
        };
        let mut spec = CallSpec::new();
        both.client
            .call(procedure, QUESTION, &mut spec, encode)
            .map_err(|refused| failed(&refused))?;
        self.core.run_until(|| both.answer.borrow().is_some());
        match both.answer.take() {
            Some(Ok(figures)) => Ok(figures),
            Some(Err(error)) => Err(failed(&error)),
            None => Err(failed(&"no answer")),
        }
    }
}
