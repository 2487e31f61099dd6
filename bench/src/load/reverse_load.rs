//! The server's half of a bidirectional measurement: its own closed loop of calls in reverse (RFC
//! 8167) over the connection that requested it.

use super::control::{BackPlan, Figures};
use super::driver::{Driver, LaneHandler, Recorders};
use super::program::{PROGRAM, VERSION};
use super::schedule::Drive;
use super::workload::{Limits, Workload};
use crate::failure::Failure;
use spinrpc::sys::clock::Clock;
use spinrpc::{
    AcceptStatus, Call, CallError, Client, ConnectionEvent, ConnectionId, Deferred, Reply,
    ReplyHandler, ReverseOptions, Token,
};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

#[derive(Default)]
pub(super) struct Backs(Vec<Back>);

struct Back {
    connection: ConnectionId,
    workload: Workload,
    driver: Rc<RefCell<Driver>>,
    end: Rc<RefCell<End>>,
}

#[derive(Default)]
struct End {
    waiting: Option<Deferred>,
    figures: Option<Result<Figures, ()>>,
}

impl End {
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

fn look(driver: &RefCell<Driver>, end: &RefCell<End>) {
    let mut driver = driver.borrow_mut();
    if !driver.turn() {
        return;
    }
    let mut end = end.borrow_mut();
    end.figures = Some(driver.finish().and_then(|tally| Figures::of(&tally)).map_err(drop));
    end.settle();
}

impl Backs {
    /// Fails with the reason for rejecting the request.
    pub(super) fn start(&mut self, call: &Call<'_>, plan: &BackPlan) -> Result<(), String> {
        let back = self.back(call, plan.workload())?;
        let failed = |failure: Failure| failure.to_string();
        let memory = Recorders::new(&back.workload).map_err(failed)?;
        let clock = Clock::shared();
        back.end.borrow_mut().figures = None;
        let ticks = |ns| clock.from_duration(Duration::from_nanos(ns));
        let drive = Drive {
            begin: clock.now().0,
            warmup: ticks(plan.warmup_ns),
            measured: ticks(plan.duration_ns),
            calls_max: Some(plan.calls_max).filter(|calls| *calls > 0),
            grace: clock.from_duration(Limits::default().grace),
            core: (0, 1),
            ..Drive::default()
        };
        back.driver.borrow_mut().start(&drive, memory).map_err(failed)?;
        look(&back.driver, &back.end);
        Ok(())
    }

    /// Answers with the figures when the drive is over; ends it first if the call says so.
    pub(super) fn finish(&mut self, mut call: Call<'_>) {
        let connection = call.connection();
        let at_once = call.args().u32().is_ok_and(|word| word != 0);
        let Some(back) = self.0.iter().find(|back| back.connection == connection) else {
            return call.reject(AcceptStatus::ProcUnavail);
        };
        let is_over = back.end.borrow().figures.is_some();
        if at_once && !is_over {
            back.driver.borrow_mut().interrupt(Clock::shared().now().0);
            look(&back.driver, &back.end);
        }
        let mut end = back.end.borrow_mut();
        end.waiting = call.defer();
        end.settle();
    }

    pub(super) fn forget(&mut self, connection: ConnectionId) {
        self.0.retain(|back| back.connection != connection);
    }

    /// The loop of this connection: there is one, with one workload.
    fn back(&mut self, call: &Call<'_>, workload: Workload) -> Result<&Back, String> {
        let connection = call.connection();
        let known = self.0.iter().position(|back| back.connection == connection);
        let index = match known {
            Some(index) => index,
            None => self.add(call, workload)?,
        };
        let back = self.0.get(index).filter(|back| back.workload == workload);
        back.ok_or_else(|| "this connection already has another loop".to_owned())
    }

    fn add(&mut self, call: &Call<'_>, workload: Workload) -> Result<usize, String> {
        let driver = Driver::new(workload);
        let end = Rc::default();
        let lane = LaneHandler { driver: Rc::clone(&driver), lane: 0 };
        let handler = BackHandler { lane, end: Rc::clone(&end) };
        let options = ReverseOptions::new();
        let client: Client = call
            .reverse_client(PROGRAM, VERSION, &options, |_| handler)
            .map_err(|error| error.to_string())?;
        driver.borrow_mut().add_lane(client, None).map_err(|failure| failure.to_string())?;
        self.0.push(Back { connection: call.connection(), workload, driver, end });
        Ok(self.0.len() - 1)
    }
}
