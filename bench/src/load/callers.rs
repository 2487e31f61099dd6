//! Calls from threads other than the core's, through a handle: each thread has a closed loop of null
//! calls, of its own depth.

use super::driver::{Tally, is_late};
use super::program::NULL;
use super::schedule::{Drive, Phase, Schedule};
use super::session::{Rank, Session};
use super::workload::{Limits, Workload};
use crate::cores::pin;
use crate::failure::Failure;
use crate::interrupt;
use crate::latency::Recorder;
use spinrpc::sys::clock::Clock;
use spinrpc::{Answer, AnswerQueue, CallError, CallSpec, ClientHandle, Token, spawn_helper};
use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

impl Session<'_> {
    pub(super) fn run_callers(
        &mut self,
        handle: &ClientHandle,
        workload: &Workload,
        limits: &Limits,
        rank: Rank,
    ) -> Result<Tally, Failure> {
        let drive = self.drive_at(limits, rank);
        let cpu = self.beside.as_ref().map(|(_, free_cpu)| *free_cpu);
        let left = Arc::new(AtomicUsize::new(workload.threads));
        let start = |_| {
            let caller = Caller::new(handle, workload.depth, &drive)?;
            let end = End { left: Arc::clone(&left), handle: handle.clone() };
            let run = move || {
                let _end = end;
                cpu.map_or(Ok(()), pin).and_then(|()| caller.run())
            };
            spawn_helper("caller", run).map_err(|error| Failure::system("starting a thread", error))
        };
        let threads: Vec<_> = (0..workload.threads).map(start).collect::<Result<_, _>>()?;
        self.turn_until(|| left.load(Ordering::Acquire) == 0);
        let ended = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(failed(&"a thread panicked"))));
        let all = ended.reduce(|all, one| Ok(all?.and(one?)));
        all.unwrap_or_else(|| Err(failed(&"there was no thread")))
    }
}

fn failed(why: &dyn Display) -> Failure {
    Failure::Measurement(format!("calling from other threads: {why}"))
}

/// Counts a thread as ended, also one that panics.
struct End {
    left: Arc<AtomicUsize>,
    handle: ClientHandle,
}

impl Drop for End {
    fn drop(&mut self) {
        self.left.fetch_sub(1, Ordering::Release);
        // The core may sleep: a call that needs no answer makes it look.
        drop(self.handle.start(NULL, CallSpec::short(), |_| {}));
    }
}

struct Caller {
    handle: ClientHandle,
    depth: usize,
    drive: Drive,
    clock: Clock,
    schedule: Schedule,
    recorder: Recorder,
    lost: u64,
    is_interrupted: bool,
    last_reply: u64,
    carried_in: u64,
}

impl Caller {
    fn new(handle: &ClientHandle, depth: usize, drive: &Drive) -> Result<Self, Failure> {
        Ok(Self {
            handle: handle.clone(),
            depth,
            drive: *drive,
            clock: Clock::shared(),
            schedule: Schedule::new(drive, 0),
            recorder: Recorder::new(drive.intervals())?,
            lost: 0,
            is_interrupted: false,
            last_reply: 0,
            carried_in: 0,
        })
    }

    fn run(mut self) -> Result<Tally, Failure> {
        let in_flight = match self.depth {
            1 => self.wait_for_each().map(|()| 0),
            _ => self.keep_many(),
        };
        let is_stuck = in_flight? > 0;
        let Schedule { start, end, .. } = self.schedule;
        Ok(Tally {
            recorded: vec![self.recorder.finish()],
            lost: vec![self.lost],
            is_stuck,
            is_interrupted: self.is_interrupted,
            carried_in: self.carried_in,
            span: [start, end.max(self.last_reply)],
            interval_ticks: self.schedule.interval(),
            open: None,
        })
    }

    fn wait_for_each(&mut self) -> Result<(), Failure> {
        let mut started = self.clock.now().0;
        while self.may_start(started) {
            let call = self.handle.start(NULL, CallSpec::short(), |_| {});
            let answer = call.map_err(|refused| failed(&refused))?.wait();
            started = self.count(started, answer)?;
        }
        Ok(())
    }

    /// Keeps calls in flight, and yields to the other threads when all of its own are. Returns the number of calls that
    /// were not answered.
    fn keep_many(&mut self) -> Result<usize, Failure> {
        let queue = AnswerQueue::new(self.depth)
            .map_err(|error| Failure::system("creating a queue", error))?;
        let mut now = self.clock.now().0;
        let mut started = vec![now; self.depth];
        // The reply to a call starts the next one of its slot, which is sent after those that wait longer: in the end all
        // that started in the measured time.
        let mut free: VecDeque<usize> = (0..self.depth).collect();
        while self.may_start(now)
            || free.len() < self.depth
            || self.schedule.is_measured(started[free[0]])
        {
            while let Some(&slot) = free.front()
                && (self.schedule.phase != Phase::Over || self.schedule.is_measured(started[slot]))
            {
                let token = Token(slot as u64);
                match self.handle.start_to_queue(&queue, token, NULL, CallSpec::short(), |_| {}) {
                    Ok(()) => {
                        free.pop_front();
                    }
                    Err(refused) if refused.is_transient() => break,
                    Err(refused) => return Err(failed(&refused)),
                }
            }
            let before = free.len();
            while let Some((Token(slot), answer)) = queue.next() {
                let slot = slot as usize;
                started[slot] = self.count(started[slot], answer)?;
                free.push_back(slot);
            }
            if free.len() == before {
                std::thread::yield_now();
            }
            now = self.clock.now().0;
            if now > self.schedule.stop.saturating_add(self.drive.grace) {
                break;
            }
        }
        let pending = started.iter().filter(|time| self.schedule.is_measured(**time));
        self.lost += pending.count() as u64;
        Ok(self.depth - free.len())
    }

    /// Advances to the phase at `now`; returns whether calls start in it.
    fn may_start(&mut self, now: u64) -> bool {
        self.advance(now);
        self.schedule.phase != Phase::Over
    }

    fn advance(&mut self, now: u64) {
        if self.schedule.is_due(now) {
            if let Some(interval) = self.schedule.advance(now) {
                self.recorder.select(interval);
            }
            if self.drive.can_be_interrupted && interrupt::signal().is_some() {
                self.is_interrupted = true;
                self.schedule.finish(now);
            }
        }
    }

    /// Counts a call that has ended; returns the time of its end.
    fn count(&mut self, started: u64, answer: Result<Answer, CallError>) -> Result<u64, Failure> {
        let now = self.clock.now().0;
        self.advance(now);
        let is_measured = self.schedule.is_measured(started);
        match answer {
            Err(error) if is_late(&error) => self.lost += u64::from(is_measured),
            Err(error) => return Err(failed(&error)),
            Ok(_) if is_measured => {
                self.last_reply = now;
                self.recorder.record(now.saturating_sub(started));
            }
            Ok(_) if started < self.schedule.start => {
                let carried = now.min(self.schedule.end).saturating_sub(self.schedule.start);
                self.carried_in = self.carried_in.max(carried);
            }
            Ok(_) => {}
        }
        Ok(now)
    }
}
