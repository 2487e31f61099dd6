//! The client's closed loop: every slot of every lane has one call under way; its reply starts the
//! next. One clock read per reply serves as end of one call and start of the next.
//!
//! A lane is a busy connection. All lanes of a core share one [`Driver`], which the reply handlers
//! reach through a `RefCell`: the engine never runs two handlers of a core at a time, and runs none
//! within `Client::call`.

use super::program::{
    Check, ECHO, NONE_WRONG, NULL, READ, READ_OFFSETS, READ_STRIDE_BYTES, SERVED_SEED, WRITE,
};
use super::workload::{Operation, Workload};
use crate::failure::Failure;
use crate::latency::Recorder;
use crate::pattern::{Mismatch, Verify, check, fill};
use spinrpc::sys::clock::{Clock, Ticks};
use spinrpc::{
    Backpressure, Bulk, CallError, CallSpec, Client, ConnectionEvent, Data, Reply, ReplyHandler,
    Token,
};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// The closed loop of one core.
pub(super) struct Driver {
    workload: Workload,
    clock: Clock,
    lanes: Vec<Lane>,
    /// Calls that could not start for want of credits or room, oldest first.
    stalled: VecDeque<(usize, usize)>,
    in_flight: usize,
    /// Since when calls have found no memory, with none under way that could give some back.
    starved_since: Option<Ticks>,
    /// Number of the last call; stays 0 when nothing is verified.
    last_seed: u64,
    window: Window,
    recorder: Recorder,
    failure: Option<Failure>,
    /// Connections may go down without that being a failure.
    closing: bool,
}

/// When replies count, in ticks.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    start: u64,
    end: u64,
    calls_left: u64,
}

/// A busy connection.
struct Lane {
    client: Client,
    slots: Vec<Slot>,
}

/// One call at a time, again and again.
struct Slot {
    spec: CallSpec,
    /// Payload of an echo.
    payload: Vec<u8>,
    /// What a write sends from or a read receives into, while no call has it.
    memory: Option<Bulk>,
    started: u64,
    seed: u64,
}

/// What a drive yields.
pub(super) struct Tally {
    /// The samples; their number is the number of calls.
    pub(super) recorder: Recorder,
    /// Measured time.
    pub(super) ticks: u64,
}

impl Driver {
    /// A loop without lanes.
    pub(super) fn new(workload: Workload) -> Result<Rc<RefCell<Self>>, Failure> {
        let slots = workload.connections * workload.depth;
        Ok(Rc::new(RefCell::new(Self {
            workload,
            clock: Clock::shared(),
            lanes: Vec::with_capacity(workload.connections),
            stalled: VecDeque::with_capacity(slots),
            in_flight: 0,
            starved_since: None,
            last_seed: 0,
            window: Window::default(),
            recorder: Recorder::new()?,
            failure: None,
            closing: false,
        })))
    }

    /// Adds a busy connection, with memory for all its slots.
    pub(super) fn add_lane(&mut self, client: Client) -> Result<(), Failure> {
        let slots: Result<_, _> =
            (0..self.workload.depth).map(|_| Slot::new(&self.workload, &client)).collect();
        self.lanes.push(Lane { client, slots: slots? });
        Ok(())
    }

    /// Begins a drive: every slot starts its first call.
    pub(super) fn start(&mut self, warmup_ticks: u64, ticks: u64, calls_max: Option<u64>) {
        let now = self.clock.now().0;
        let start = now.saturating_add(warmup_ticks);
        let calls_left = calls_max.unwrap_or(u64::MAX);
        self.window = Window { start, end: start.saturating_add(ticks), calls_left };
        self.recorder.reset();
        for lane in 0..self.lanes.len() {
            for slot in 0..self.workload.depth {
                self.lanes[lane].slots[slot].started = now;
                self.issue(lane, slot);
            }
        }
    }

    /// Tries stalled calls again; says whether the drive is over. Called every turn.
    #[inline]
    pub(super) fn turn(&mut self) -> bool {
        if !self.stalled.is_empty() {
            self.retry_stalled();
        }
        self.in_flight == 0 && self.stalled.is_empty()
    }

    /// Ends a drive.
    pub(super) fn finish(&mut self) -> Result<Tally, Failure> {
        match self.failure.take() {
            Some(failure) => Err(failure),
            None => {
                let recorder = std::mem::replace(&mut self.recorder, Recorder::new()?);
                Ok(Tally { recorder, ticks: self.window.end - self.window.start })
            }
        }
    }

    /// Takes the lanes out, to close them.
    pub(super) fn close(&mut self) -> impl Iterator<Item = Client> {
        self.closing = true;
        self.lanes.drain(..).map(|lane| lane.client)
    }

    /// Goes on until the first refusal, which puts its call at the end: the next turn begins with
    /// another, perhaps of a lane that has credits.
    fn retry_stalled(&mut self) {
        while let Some((lane, slot)) = self.stalled.pop_front() {
            if !self.attempt(lane, slot) {
                break;
            }
            self.starved_since = None;
        }
    }

    /// Starts the next call of a slot, whose start time is set.
    #[inline]
    fn issue(&mut self, lane: usize, slot: usize) {
        if self.workload.verify != Verify::Off {
            self.last_seed += 1;
        }
        let Some(Lane { client, slots }) = self.lanes.get_mut(lane) else { return };
        match slots[slot].prepare(client, &self.workload, self.last_seed) {
            Ok(()) => {
                self.attempt(lane, slot);
            }
            Err(failure) => self.fail(failure),
        }
    }

    /// Starts the call that a slot has prepared, or puts it off and says `false`.
    #[inline]
    fn attempt(&mut self, lane_index: usize, slot_index: usize) -> bool {
        let Some(lane) = self.lanes.get_mut(lane_index) else { return false };
        let slot = &mut lane.slots[slot_index];
        match slot.call(&lane.client, &self.workload, Token(slot_index as u64)) {
            Ok(()) => {
                self.in_flight += 1;
                true
            }
            Err(refused) => {
                self.put_off(lane_index, slot_index, &refused);
                false
            }
        }
    }

    #[cold]
    fn put_off(&mut self, lane: usize, slot: usize, refused: &Backpressure) {
        match refused {
            Backpressure::NoBuffer if self.is_starved() => self.fail(no_memory(&self.workload)),
            Backpressure::NoCredit | Backpressure::NoBuffer | Backpressure::SendQueueFull => {
                self.stalled.push_back((lane, slot));
            }
            _ => self.fail(Failure::Measurement(format!("a call was refused: {refused}"))),
        }
    }

    /// Calls have found no memory for so long that they never will. What the last calls used comes back
    /// a little after their replies.
    fn is_starved(&mut self) -> bool {
        if self.in_flight > 0 {
            self.starved_since = None;
            return false;
        }
        let now = self.clock.now();
        let since = *self.starved_since.get_or_insert(now);
        now.0.saturating_sub(since.0) > self.clock.from_duration(STARVED_AFTER)
    }

    #[inline]
    fn on_reply(&mut self, lane: usize, token: Token, reply: Result<Reply<'_>, CallError>) {
        let now = self.clock.now().0;
        let slot_index = token.0 as usize;
        self.in_flight -= 1;
        let Some(slot) = self.lanes.get_mut(lane).and_then(|lane| lane.slots.get_mut(slot_index))
        else {
            return;
        };
        if let Err(failure) = slot.take_reply(&self.workload, reply) {
            return self.fail(failure);
        }
        let started = std::mem::replace(&mut slot.started, now);
        if now >= self.window.end {
            return;
        }
        let counts = now >= self.window.start;
        self.window.calls_left -= u64::from(counts);
        if self.window.calls_left == 0 {
            self.window.end = now;
        } else {
            self.issue(lane, slot_index);
        }
        // After the next call has left: the histogram is not part of the round trip.
        if counts {
            self.recorder.record(now - started);
        }
    }

    /// Keeps the first failure and starts nothing more.
    #[cold]
    fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
        self.stalled.clear();
        self.window = Window::default();
    }
}

impl Slot {
    fn new(workload: &Workload, client: &Client) -> Result<Self, Failure> {
        let mut slot =
            Self { spec: CallSpec::new(), payload: Vec::new(), memory: None, started: 0, seed: 0 };
        match workload.op {
            Operation::Null => {}
            Operation::Echo => {
                slot.payload = vec![0; workload.call_bytes];
                fill(&mut slot.payload, 0, 0);
                let reply_bytes_max = ECHO_RESULT_BYTES + workload.reply_bytes;
                slot.spec = CallSpec::new().reply_bytes_max(reply_bytes_max);
            }
            Operation::Read | Operation::Write => {
                let mut memory = bulk(client, workload.call_bytes)?;
                fill(memory.bytes_mut(), 0, 0);
                slot.memory = Some(memory);
            }
        }
        Ok(slot)
    }

    /// Makes call number `seed`: fills what it sends, if it is to be verified, and lends it memory.
    #[inline]
    fn prepare(&mut self, client: &Client, workload: &Workload, seed: u64) -> Result<(), Failure> {
        let check = Check::new(workload.verify, seed);
        self.seed = check.seed;
        match workload.op {
            Operation::Null => {}
            Operation::Echo => refresh(&mut self.payload, check),
            Operation::Read => {
                let mut memory = self.take_memory(client, workload)?;
                memory.set_len(workload.call_bytes);
                self.spec.add_result_into(memory);
            }
            Operation::Write => {
                let mut memory = self.take_memory(client, workload)?;
                refresh(memory.bytes_mut(), check);
                self.spec.add_argument(memory);
            }
        }
        Ok(())
    }

    /// The memory of the last call, or other memory where it went back to the connection.
    fn take_memory(&mut self, client: &Client, workload: &Workload) -> Result<Bulk, Failure> {
        self.memory.take().map_or_else(|| bulk(client, workload.call_bytes), Ok)
    }

    #[inline]
    fn call(
        &mut self,
        client: &Client,
        workload: &Workload,
        token: Token,
    ) -> Result<(), Backpressure> {
        let check = Check::new(workload.verify, self.seed).to_wire();
        match workload.op {
            Operation::Null => client.call(NULL, token, &mut self.spec, |_| {}),
            Operation::Echo => client.call(ECHO, token, &mut self.spec, |args| {
                args.u32(workload.reply_bytes as u32);
                args.u32(check);
                args.opaque(&self.payload);
            }),
            Operation::Read => client.call(READ, token, &mut self.spec, |args| {
                args.u32(read_offset(self.seed) as u32);
                args.u32(workload.call_bytes as u32);
            }),
            Operation::Write => client.call(WRITE, token, &mut self.spec, |args| {
                args.u32(check);
                args.bulk();
            }),
        }
    }

    /// Checks a reply and takes its buffers back for the next call.
    #[inline]
    fn take_reply(
        &mut self,
        workload: &Workload,
        reply: Result<Reply<'_>, CallError>,
    ) -> Result<(), Failure> {
        let mut reply = reply.map_err(|error| call_failed(workload.op, &error))?;
        match workload.op {
            Operation::Null => Ok(()),
            Operation::Echo => self.take_echo(workload, &mut reply),
            Operation::Read => self.take_read(workload, &mut reply),
            Operation::Write => self.take_write(workload, &mut reply),
        }
    }

    fn take_echo(&mut self, workload: &Workload, reply: &mut Reply<'_>) -> Result<(), Failure> {
        let mut results = reply.results();
        let wrong_at = results.u32().map_err(|error| garbled(workload.op, &error))?;
        let data =
            results.opaque(workload.reply_bytes).map_err(|error| garbled(workload.op, &error))?;
        self.check_sent(workload, wrong_at)?;
        let echoed = workload.reply_bytes <= workload.call_bytes;
        let seed = if echoed { self.seed } else { SERVED_SEED };
        Ok(check(data, workload.reply_bytes, seed, 0, workload.verify)?)
    }

    fn take_read(&mut self, workload: &Workload, reply: &mut Reply<'_>) -> Result<(), Failure> {
        let data = reply
            .results()
            .data(workload.call_bytes)
            .map_err(|error| garbled(workload.op, &error))?;
        let at = read_offset(self.seed);
        let checked = check(data.bytes(), workload.call_bytes, SERVED_SEED, at, workload.verify);
        if let Data::Bulk(memory) = data {
            self.memory = Some(memory);
        }
        Ok(checked?)
    }

    fn take_write(&mut self, workload: &Workload, reply: &mut Reply<'_>) -> Result<(), Failure> {
        let mut results = reply.results();
        let wrong_at = results.u32().map_err(|error| garbled(workload.op, &error))?;
        let count = results.u32().map_err(|error| garbled(workload.op, &error))?;
        self.memory = reply.take_argument();
        if count as usize != workload.call_bytes {
            let length = workload.call_bytes as u64;
            return Err(Mismatch { index: u64::from(count), length, seed: self.seed }.into());
        }
        self.check_sent(workload, wrong_at)
    }

    /// Fails if the server found a wrong byte in what this slot sent.
    fn check_sent(&self, workload: &Workload, wrong_at: u32) -> Result<(), Failure> {
        if wrong_at == NONE_WRONG {
            return Ok(());
        }
        let length = workload.call_bytes as u64;
        Err(Mismatch { index: u64::from(wrong_at), length, seed: self.seed }.into())
    }
}

/// Reply handler of a busy connection.
pub(super) struct LaneHandler {
    pub(super) driver: Rc<RefCell<Driver>>,
    pub(super) lane: usize,
}

impl ReplyHandler for LaneHandler {
    #[inline]
    fn on_reply(&mut self, token: Token, reply: Result<Reply<'_>, CallError>) {
        self.driver.borrow_mut().on_reply(self.lane, token, reply);
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        let mut driver = self.driver.borrow_mut();
        if let ConnectionEvent::Down { cause, .. } = event
            && !driver.closing
        {
            driver.fail(Failure::Measurement(format!("the connection was lost: {cause}")));
        }
    }
}

/// Where the data of a verified read begins; unverified reads have seed 0 and so begin at 0.
fn read_offset(seed: u64) -> u64 {
    seed % READ_OFFSETS * READ_STRIDE_BYTES
}

/// Puts fresh data where the receiver will look at it.
fn refresh(bytes: &mut [u8], check: Check) {
    if check.verify != Verify::Off {
        fill(bytes, check.seed, 0);
    }
}

fn bulk(client: &Client, bytes: usize) -> Result<Bulk, Failure> {
    client.bulk(bytes).ok_or_else(|| {
        Failure::Measurement(format!(
            "the connection has no {bytes} bytes left for bulk data: \
             lower --size or --depth, or raise shm.arena_mib (RDMA devices: mem.arena_mib and \
             verbs.arena_mib) in the profile"
        ))
    })
}

#[cold]
fn no_memory(workload: &Workload) -> Failure {
    let (op, call, reply) = (workload.op.name(), workload.call_bytes, workload.reply_bytes);
    Failure::Measurement(format!(
        "a connection has no memory for one {op} call of {call} bytes with a reply of {reply}: lower \
         --size, or raise shm.arena_mib (RDMA devices: mem.arena_mib and verbs.arena_mib) in the profile"
    ))
}

fn call_failed(op: Operation, error: &CallError) -> Failure {
    Failure::Measurement(format!("{} call failed: {error}", op.name()))
}

fn garbled(op: Operation, error: &spinrpc::DecodeError) -> Failure {
    Failure::Measurement(format!(
        "results of {} are not what the program defines: {error}",
        op.name()
    ))
}

/// Longer than what a finished call used takes to come back.
const STARVED_AFTER: Duration = Duration::from_secs(2);

/// `wrong_at`, the count of the data, and its roundup at most.
const ECHO_RESULT_BYTES: usize = 12;
