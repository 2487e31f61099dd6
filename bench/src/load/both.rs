//! The client's half of a bidirectional measurement: while a core drives its loop, the server
//! drives one over the same connection.

use super::control::{BackPlan, FIGURES_BYTES_MAX, Figures, Welcome};
use super::driver::{Driver, LaneHandler, Tally};
use super::program::{BACK, BACK_END};
use super::session::{Load, Questions, Session, Waiting};
use super::workload::{Limits, Workload};
use crate::failure::Failure;
use spinrpc::{
    CallError, CallSpec, ConnectOptions, ConnectionEvent, Decoder, Reply, ReplyHandler, Token,
};
use spinrpc_xdr::{Decode, Encode};

/// Tokens of questions to the server are above those of a loop's slots.
const QUESTIONS_FROM: u64 = 1 << 32;

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

impl Session<'_> {
    pub(super) fn load_both(&mut self, workload: Workload) -> Result<Load, Failure> {
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

    pub(super) fn begin_reverse(
        &mut self,
        load: &Load,
        both: &Questions,
        limits: &Limits,
    ) -> Result<(), Failure> {
        let plan = BackPlan::new(&load.workload, limits);
        let answer = |mut from: Decoder<'_>| Welcome::decode(&mut from).map(Welcome::answer);
        let answer = self.ask(both, BACK, CallSpec::short(), |args| plan.encode(args), answer)?;
        answer.map(drop).map_err(|refusal| both.failed(&refusal))
    }

    /// Waits for the figures of the server, unless it has stopped answering.
    pub(super) fn end_reverse(
        &mut self,
        both: &Questions,
        tally: &Tally,
    ) -> Result<Option<Figures>, Failure> {
        if tally.is_stuck {
            // The server would not answer the question either.
            return Ok(None);
        }
        let at_once = u32::from(tally.is_interrupted);
        let spec = CallSpec::short().reply_bytes_max(FIGURES_BYTES_MAX);
        self.ask(both, BACK_END, spec, |args| args.u32(at_once), Figures::decode).map(Some)
    }
}
