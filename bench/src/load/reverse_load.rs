//! The server's half of a bidirectional measurement: its own closed loop of calls in reverse (RFC
//! 8167) over the connection that requested it.

use super::control::{BackPlan, Figures};
use super::driver::{Driver, LaneHandler, Recorders};
use super::program::{PROGRAM, VERSION};
use super::schedule::Drive;
use super::workload::{Limits, Workload};
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
    /// The next drive, until it begins.
    next: Option<(Drive, Recorders)>,
    end: Rc<RefCell<End>>,
}

#[derive(Default)]
struct End {
    waiting: Option<Deferred>,
    is_over: bool,
}

impl End {
    /// Figures are not computed before the client asks for them: until then its own calls are measured.
    fn settle(&mut self, driver: &mut Driver) {
        let Some(waiting) = self.waiting.take_if(|_| self.is_over) else { return };
        match driver.finish().and_then(|tally| Figures::of(&tally)) {
            Ok(figures) => waiting.reply(|results| figures.encode(results)),
            Err(_) => waiting.reject(AcceptStatus::SystemErr),
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
    let (mut driver, mut end) = (driver.borrow_mut(), end.borrow_mut());
    end.is_over |= driver.turn();
    end.settle(&mut driver);
}

impl Backs {
    /// Fails with the reason for rejecting the request.
    pub(super) fn prepare(&mut self, call: &Call<'_>, plan: &BackPlan) -> Result<(), String> {
        let back = self.back(call, plan.workload())?;
        let memory = Recorders::new(&back.workload).map_err(|failure| failure.to_string())?;
        let clock = Clock::shared();
        let ticks = |ns| clock.from_duration(Duration::from_nanos(ns));
        let drive = Drive {
            warmup: ticks(plan.warmup_ns),
            measured: ticks(plan.duration_ns),
            calls_max: Some(plan.calls_max).filter(|calls| *calls > 0),
            grace: clock.from_duration(Limits::default().grace),
            core: (0, 1),
            ..Drive::default()
        };
        back.next = Some((drive, memory));
        Ok(())
    }

    pub(super) fn begin(&mut self, call: Call<'_>) {
        let connection = call.connection();
        let Some(back) = self.0.iter_mut().find(|back| back.connection == connection) else {
            return call.reject(AcceptStatus::ProcUnavail);
        };
        let Some((drive, memory)) = back.next.take() else {
            return call.reject(AcceptStatus::SystemErr);
        };
        let drive = Drive { begin: Clock::shared().now().0, ..drive };
        if back.driver.borrow_mut().start(&drive, memory).is_err() {
            return call.reject(AcceptStatus::SystemErr);
        }
        *back.end.borrow_mut() = End::default();
        look(&back.driver, &back.end);
        call.reply(|_| {});
    }

    /// Answers with the figures when the drive is over; ends it first if the call says so.
    pub(super) fn finish(&mut self, mut call: Call<'_>) {
        let connection = call.connection();
        let at_once = call.args().u32().is_ok_and(|word| word != 0);
        let Some(back) = self.0.iter().find(|back| back.connection == connection) else {
            return call.reject(AcceptStatus::ProcUnavail);
        };
        if at_once && !back.end.borrow().is_over {
            back.driver.borrow_mut().interrupt(Clock::shared().now().0);
        }
        back.end.borrow_mut().waiting = call.defer();
        look(&back.driver, &back.end);
    }

    pub(super) fn forget(&mut self, connection: ConnectionId) {
        self.0.retain(|back| back.connection != connection);
    }

    /// The loop of this connection: there is one, with one workload.
    fn back(&mut self, call: &Call<'_>, workload: Workload) -> Result<&mut Back, String> {
        let connection = call.connection();
        let known = self.0.iter().position(|back| back.connection == connection);
        let index = match known {
            Some(index) => index,
            None => self.add(call, workload)?,
        };
        let back = self.0.get_mut(index).filter(|back| back.workload == workload);
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
        self.0.push(Back { connection: call.connection(), workload, driver, next: None, end });
        Ok(self.0.len() - 1)
    }
}
