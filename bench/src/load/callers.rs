//! Calls from threads other than the core's, through a handle: each thread drives a closed loop of null calls, of its own
//! depth.

use super::driver::{Calls, Driver, Recorders, Tally};
use super::program::NULL;
use super::schedule::Drive;
use super::session::{Rank, Session};
use super::workload::{Limits, Workload};
use crate::cores::pin;
use crate::env::ThreadTimes;
use crate::failure::Failure;
use spinrpc::sys::clock::Clock;
use spinrpc::{
    Answer, AnswerQueue, Backpressure, CallError, CallSpec, ClientHandle, PendingCall, Token,
    spawn_helper,
};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

impl Session<'_> {
    pub(super) fn run_callers(
        &mut self,
        handle: &ClientHandle,
        workload: &Workload,
        limits: &Limits,
        rank: Rank,
    ) -> Result<(Tally, Option<f64>), Failure> {
        let (workload, limits) = (*workload, *limits);
        let memory = std::mem::take(&mut self.memory);
        let ready = Arc::new(Barrier::new(memory.len()));
        let cpu = self.beside.as_ref().map(|(_, free_cpu)| *free_cpu);
        let left = Arc::new(AtomicUsize::new(memory.len()));
        let start = |memory| {
            let end = End { left: Arc::clone(&left), handle: handle.clone() };
            let ready = Arc::clone(&ready);
            let run = move || {
                let end = end;
                let pinned = cpu.map_or(Ok(()), pin);
                let driver = pinned.and_then(|()| driver_by(&end.handle, workload));
                ready.wait();
                // Not before the last of them is there to call.
                let before = ThreadTimes::own();
                let tally = drive_by(&mut driver?.borrow_mut(), &rank.drive(&limits), memory)?;
                let times = before.zip(ThreadTimes::own());
                Ok((tally, times.and_then(|(before, after)| Turns::between(&before, &after))))
            };
            spawn_helper("caller", run).map_err(|error| Failure::system("starting a thread", error))
        };
        let threads: Vec<_> = memory.into_iter().map(start).collect::<Result<_, _>>()?;
        self.turn_until(|| left.load(Ordering::Acquire) == 0);
        let failed = |why| Failure::Measurement(format!("calling from other threads: {why}"));
        let ended = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(failed("a thread panicked"))));
        let ended = ended.collect::<Result<Vec<_>, Failure>>()?;
        let (tallies, turns): (Vec<_>, Vec<_>) = ended.into_iter().unzip();
        let all = tallies.into_iter().reduce(Tally::and);
        let all = all.ok_or_else(|| failed("there was no thread"))?;
        let turns = turns.into_iter().collect::<Option<Vec<_>>>();
        let waited_ns = turns.map(|turns| Turns::others_ns(&turns) as f64);
        let [start, end] = all.span;
        let lasted_ns = Clock::shared().to_ns(end - start) as f64 + limits.warmup.as_nanos() as f64;
        Ok((all, waited_ns.map(|ns| ns * 100.0 / lasted_ns.max(1.0))))
    }
}

/// Times that a thread that calls had a CPU, and waited for one.
#[derive(Clone, Copy)]
struct Turns {
    cpu_ns: u64,
    waited_ns: u64,
}

impl Turns {
    fn between(before: &ThreadTimes, after: &ThreadTimes) -> Option<Self> {
        let waited_ns = after.waited_ns?.saturating_sub(before.waited_ns?);
        Some(Self { cpu_ns: after.cpu_ns.saturating_sub(before.cpu_ns), waited_ns })
    }

    /// Time that a thread waited for others than these, at least: they may share a CPU.
    fn others_ns(all: &[Self]) -> u64 {
        let own_ns: u64 = all.iter().map(|one| one.cpu_ns).sum();
        let ready_ns = all.iter().map(|one| one.cpu_ns + one.waited_ns).max();
        ready_ns.unwrap_or(0).saturating_sub(own_ns)
    }
}

fn driver_by(handle: &ClientHandle, workload: Workload) -> Result<Rc<RefCell<Driver>>, Failure> {
    let driver = Driver::new(workload);
    let caller = Caller::new(handle, workload.depth)?;
    driver.borrow_mut().add(Calls::Thread(caller), None)?;
    Ok(driver)
}

fn drive_by(driver: &mut Driver, drive: &Drive, memory: Recorders) -> Result<Tally, Failure> {
    driver.start(drive, memory)?;
    while !driver.turn() {
        if !driver.take_answer() {
            // For the other threads: all calls of this one are in flight.
            std::thread::yield_now();
        }
    }
    driver.finish()
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

pub(super) struct Caller {
    handle: ClientHandle,
    answers: Answers,
}

enum Answers {
    /// The only call in flight, which is waited for.
    Next(Option<PendingCall>),
    Queue(AnswerQueue),
}

impl Caller {
    fn new(handle: &ClientHandle, depth: usize) -> Result<Self, Failure> {
        let answers = match depth {
            1 => Answers::Next(None),
            _ => AnswerQueue::new(depth)
                .map(Answers::Queue)
                .map_err(|error| Failure::system("creating a queue", error))?,
        };
        Ok(Self { handle: handle.clone(), answers })
    }

    pub(super) fn call(&mut self, token: Token) -> Result<(), Backpressure> {
        let spec = CallSpec::short();
        match &mut self.answers {
            Answers::Next(pending) => self.handle.start(NULL, spec, |_| {}).map(|call| {
                *pending = Some(call);
            }),
            Answers::Queue(queue) => self.handle.start_to_queue(queue, token, NULL, spec, |_| {}),
        }
    }

    pub(super) fn answer(&mut self) -> Option<(Token, Result<Answer, CallError>)> {
        match &mut self.answers {
            Answers::Next(pending) => Some((Token(0), pending.take()?.wait())),
            Answers::Queue(queue) => queue.next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Turns;

    /// Threads on one CPU wait for each other, which disturbs nothing.
    #[test]
    fn threads_that_call_do_not_disturb_each_other() {
        let one = |cpu_ns, waited_ns| Turns { cpu_ns, waited_ns };
        assert_eq!(Turns::others_ns(&[one(900, 100)]), 100);
        assert_eq!(Turns::others_ns(&[one(500, 500), one(500, 500)]), 0);
        assert_eq!(Turns::others_ns(&[one(400, 600), one(400, 550)]), 200);
        assert_eq!(Turns::others_ns(&[one(1000, 0), one(1000, 0)]), 0);
    }
}
