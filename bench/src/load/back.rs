//! The server's half of a measurement in both directions: a closed loop of its own, of calls in reverse
//! (RFC 8167) by the connection that asked for it. Used by the server's program.

use super::driver::{Driver, LaneHandler};
use super::program::{PROGRAM, VERSION};
use super::workload::{BackPlan, Figures, Operation, Workload};
use crate::pattern::Verify;
use spinrpc::sys::clock::Clock;
use spinrpc::{
    AcceptStatus, Call, CallError, Client, ConnectionEvent, ConnectionId, DecodeError, Decoder,
    Deferred, Encoder, Reply, ReplyHandler, ReverseOptions, Token,
};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// The loops of one core.
#[derive(Default)]
pub(super) struct Backs(Vec<Back>);

struct Back {
    connection: ConnectionId,
    workload: Workload,
    driver: Rc<RefCell<Driver>>,
    end: Rc<RefCell<End>>,
}

/// What a drive came to, and who waits for that.
#[derive(Default)]
struct End {
    waiting: Option<Deferred>,
    figures: Option<Result<Figures, ()>>,
}

impl End {
    /// Answers who waits, when the drive is over.
    fn settle(&mut self) {
        if self.figures.is_none() {
            return;
        }
        let Some(waiting) = self.waiting.take() else { return };
        match self.figures.take() {
            Some(Ok(figures)) => waiting.reply(|results| figures.encode(results)),
            _ => waiting.reject(AcceptStatus::SystemErr),
        }
    }
}

/// Hears the replies of one loop.
struct BackHandler {
    lane: LaneHandler,
    end: Rc<RefCell<End>>,
}

impl ReplyHandler for BackHandler {
    fn on_reply(&mut self, token: Token, reply: Result<Reply<'_>, CallError>) {
        self.lane.on_reply(token, reply);
        look(&self.lane.driver, &self.end);
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        self.lane.on_event(event);
    }
}

/// Lets stalled calls go on, and notices the end of the drive.
fn look(driver: &RefCell<Driver>, end: &RefCell<End>) {
    let mut driver = driver.borrow_mut();
    if !driver.turn() {
        return;
    }
    let mut end = end.borrow_mut();
    end.figures = Some(driver.finish().map(|tally| Figures::of(&tally)).map_err(drop));
    end.settle();
}

impl Backs {
    /// Begins to call the caller; the answer says that it has begun.
    pub(super) fn start(&mut self, call: Call<'_>, plan: &BackPlan) {
        let Some(back) = self.back(&call, plan.workload) else {
            return call.reject(AcceptStatus::SystemErr);
        };
        let clock = Clock::shared();
        back.end.borrow_mut().figures = None;
        let ticks = |ns| clock.from_duration(Duration::from_nanos(ns));
        let (warmup, duration) = (ticks(plan.warmup_ns), ticks(plan.duration_ns));
        back.driver.borrow_mut().start(warmup, duration, plan.calls_max);
        look(&back.driver, &back.end);
        call.reply(|_| {});
    }

    /// Answers with the figures, when the drive is over.
    pub(super) fn finish(&mut self, call: Call<'_>) {
        let connection = call.connection();
        let Some(back) = self.0.iter().find(|back| back.connection == connection) else {
            return call.reject(AcceptStatus::ProcUnavail);
        };
        let mut end = back.end.borrow_mut();
        end.waiting = call.defer();
        end.settle();
    }

    pub(super) fn forget(&mut self, connection: ConnectionId) {
        self.0.retain(|back| back.connection != connection);
    }

    /// The loop of this connection: there is one, of one workload.
    fn back(&mut self, call: &Call<'_>, workload: Workload) -> Option<&Back> {
        let connection = call.connection();
        if let Some(index) = self.0.iter().position(|back| back.connection == connection) {
            return self.0.get(index).filter(|back| back.workload == workload);
        }
        let driver = Driver::new(workload).ok()?;
        let end = Rc::default();
        let lane = LaneHandler { driver: Rc::clone(&driver), lane: 0 };
        let handler = BackHandler { lane, end: Rc::clone(&end) };
        let options = ReverseOptions::new();
        let client: Client = call.reverse_client(PROGRAM, VERSION, &options, |_| handler).ok()?;
        driver.borrow_mut().add_lane(client).ok()?;
        self.0.push(Back { connection, workload, driver, end });
        self.0.last()
    }
}

impl BackPlan {
    /// Reads what a client asks for; `None` for what this version does not know, or beyond
    /// `bytes_max` and the deepest loop there is.
    pub(super) fn decode(
        mut args: Decoder<'_>,
        bytes_max: usize,
    ) -> Result<Option<Self>, DecodeError> {
        let op = Operation::from_wire(args.u32()?);
        let (call_bytes, reply_bytes) = (args.u32()? as usize, args.u32()? as usize);
        let depth = args.u32()? as usize;
        let verify = Verify::from_wire(args.u32()?);
        let (warmup_ns, duration_ns, calls) = (args.u64()?, args.u64()?, args.u64()?);
        args.finish()?;
        let (Some(op), Some(verify)) = (op, verify) else { return Ok(None) };
        if call_bytes.max(reply_bytes) > bytes_max || !(1..=DEPTH_MAX).contains(&depth) {
            return Ok(None);
        }
        let workload = Workload::ping_pong(op, call_bytes).at_depth(depth).verified(verify);
        let workload = Workload { reply_bytes, ..workload }.in_reverse();
        let calls_max = (calls != 0).then_some(calls);
        Ok(Some(Self { workload, warmup_ns, duration_ns, calls_max }))
    }

    pub(super) fn encode(&self, args: &mut Encoder<'_>) {
        let workload = &self.workload;
        args.u32(workload.op.to_wire());
        args.u32(workload.call_bytes as u32);
        args.u32(workload.reply_bytes as u32);
        args.u32(workload.depth as u32);
        args.u32(workload.verify.to_wire());
        args.u64(self.warmup_ns);
        args.u64(self.duration_ns);
        args.u64(self.calls_max.unwrap_or(0));
    }
}

/// As deep as the command line lets a loop be.
const DEPTH_MAX: usize = 4096;
