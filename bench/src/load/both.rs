//! The client's half of a bidirectional measurement: while a core drives its loop, the server
//! drives one over the same connection.

use super::control::{BackPlan, FIGURES_BYTES_MAX, Figures, Intent, Welcome};
use super::driver::{Driver, LaneHandler};
use super::outcome::Driven;
use super::program::{BACK, BACK_END};
use super::session::{Load, Rank, Session};
use super::workload::{Limits, Workload};
use crate::failure::Failure;
use spinrpc::{
    CallError, CallSpec, Client, ConnectOptions, ConnectionEvent, Decoder, Encoder, Procedure,
    Reply, ReplyHandler, Token,
};
use std::cell::RefCell;
use std::rc::Rc;

/// Token of questions to the server, above those of a loop's slots.
const BEGIN: Token = Token(1 << 32);
const END: Token = Token(BEGIN.0 + 1);

/// Answer of the server: the loop has started, without figures, or has ended, with its figures.
type Answer = Rc<RefCell<Option<Result<Option<Figures>, String>>>>;

/// The connection of both loops.
pub(super) struct Both {
    client: Client,
    answer: Answer,
}

/// Handles the replies of the loop, and the answers of the server.
struct BothHandler {
    lane: LaneHandler,
    answer: Answer,
}

impl ReplyHandler for BothHandler {
    fn on_reply(&mut self, token: Token, reply: Result<Reply<'_>, CallError>) {
        if token != BEGIN && token != END {
            return self.lane.on_reply(token, reply);
        }
        let answer = match reply {
            Ok(mut reply) => decode_answer(token, reply.results()),
            Err(error) => Err(error.to_string()),
        };
        *self.answer.borrow_mut() = Some(answer);
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        if let ConnectionEvent::ConnectFailed { error } = event {
            *self.answer.borrow_mut() = Some(Err(error.to_string()));
        }
        self.lane.on_event(event);
    }
}

fn decode_answer(token: Token, results: Decoder<'_>) -> Result<Option<Figures>, String> {
    if token == END {
        return Figures::decode(results).map(Some).map_err(|error| error.to_string());
    }
    match Welcome::decode(results) {
        Ok(Welcome { refusal, .. }) if refusal.is_empty() => Ok(None),
        Ok(Welcome { refusal, .. }) => Err(refusal),
        Err(error) => Err(error.to_string()),
    }
}

impl Session<'_> {
    /// Opens the connection of a bidirectional workload, if the server has room for it.
    pub(super) fn load_both(&mut self, workload: Workload) -> Result<(Load, Both), Failure> {
        self.announce(&Intent::of(&workload, true))?;
        let driver = Driver::new(workload);
        let answer = Answer::default();
        let lane = LaneHandler { driver: driver.clone(), lane: 0 };
        let handler = BothHandler { lane, answer: Rc::clone(&answer) };
        let callee = self.callee();
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

    /// Drives a load once while the server drives it in reverse; returns its figures, unless it has
    /// stopped answering.
    pub(super) fn drive_both(
        &mut self,
        load: &Load,
        both: &Both,
        limits: &Limits,
        rank: Rank,
    ) -> Result<(Driven, Option<Figures>), Failure> {
        let plan = BackPlan {
            workload: load.workload.in_reverse(),
            warmup_ns: (limits.ramp + limits.warmup).as_nanos() as u64,
            duration_ns: limits.duration.as_nanos() as u64,
            calls_max: limits.calls,
        };
        self.ask_both(both, BACK, BEGIN, |args| plan.encode(args))?;
        let driven = self.drive(load, limits, rank)?;
        let tally = &driven.tally;
        if tally.is_stuck {
            // The server would not answer the question either.
            return Ok((driven, None));
        }
        let at_once = u32::from(tally.is_interrupted);
        let figures = self.ask_both(both, BACK_END, END, |args| args.u32(at_once))?;
        Ok((driven, figures))
    }

    /// Asks the server over the measured connection. Blocks until it has answered.
    fn ask_both(
        &mut self,
        both: &Both,
        procedure: Procedure,
        token: Token,
        encode: impl Fn(&mut Encoder<'_>),
    ) -> Result<Option<Figures>, Failure> {
        let mut spec = CallSpec::new();
        if token == END {
            spec = spec.reply_bytes_max(FIGURES_BYTES_MAX);
        }
        let asked = both.client.call(procedure, token, &mut spec, encode);
        asked.map_err(|refused| failed(&refused))?;
        self.wait_for(|| both.answer.borrow().is_some());
        match both.answer.take() {
            Some(Ok(figures)) => Ok(figures),
            Some(Err(error)) => Err(failed(&error)),
            None => Err(failed(&"no answer")),
        }
    }
}

fn failed(why: &dyn std::fmt::Display) -> Failure {
    Failure::Measurement(format!("the server does not call in reverse: {why}"))
}
