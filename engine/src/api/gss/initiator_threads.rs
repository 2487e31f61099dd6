//! Steps of clients' mechanisms, which begin when they are due, and are late when their time is over (`Config::gss_mechanism_time`).

use super::context_threads::run_job;
use crate::api::blocking_threads::{Entry, Job, Kind, State, Workers};
use crate::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::time::Instant;

/// Mechanisms that run at a time; those beyond wait. One that never returns keeps its thread.
const THREADS_MAX: usize = 4;

/// Steps that wait to be dropped, or are being dropped. As long as there are so many no other step is accepted: those beyond
/// can only be steps that had been accepted before, of which each client has one.
const DROPS_MAX: usize = 256;

pub(super) struct Initiating(Workers);

impl Default for Initiating {
    fn default() -> Self {
        Self(Workers::new("spin-gss-step", run_job, |running, _| running < THREADS_MAX))
    }
}

impl Initiating {
    /// Begins `job` when it is due, and runs `late` at the deadline, unless `wanted` is false by then: its client does not wait
    /// any longer. Returns false if as many jobs wait as may, or there is no thread.
    pub(super) fn run(
        &self,
        (due, deadline): (Instant, Instant),
        wanted: Arc<AtomicBool>,
        (job, late): (Job, Job),
    ) -> bool {
        // Each step is of an owner of its own.
        let kind = Kind::Of(Arc::as_ptr(&wanted).addr() as u64);
        let step = Entry { kind, due, wanted: Some(Arc::clone(&wanted)), job };
        let late = Entry { kind: Kind::Quick, due: deadline, wanted: Some(wanted), job: late };
        let is_drop = |kind| kind == Kind::Drop;
        let has_room = |state: &State| state.waiting(is_drop) + state.running(is_drop) < DROPS_MAX;
        self.0.shared().add([step, late], has_room)
    }

    pub(super) fn forget_unwanted(&self) {
        self.0.forget_unwanted();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::atomic::Ordering;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    const LIMIT: Duration = Duration::from_secs(20);
    const HOUR: Duration = Duration::from_secs(3600);

    /// As the destructor of an application's mechanism may: says where it runs, waits for leave, and panics.
    struct Stubborn {
        at: Sender<Option<String>>,
        leave: Receiver<()>,
    }

    impl Drop for Stubborn {
        fn drop(&mut self) {
            self.at.send(std::thread::current().name().map(str::to_owned)).unwrap();
            self.leave.recv_timeout(LIMIT).unwrap();
            // Not by panic!, whose message the harness may be reading by then: nothing waits for this thread.
            std::panic::resume_unwind(Box::new("asked for"));
        }
    }

    fn run(initiating: &Initiating, after: Duration, wanted: &Arc<AtomicBool>, job: Job) {
        let (due, wanted) = (Instant::now() + after, Arc::clone(wanted));
        assert!(initiating.run((due, due + HOUR), wanted, (job, Box::new(|| {}))));
    }

    /// A step that is wanted runs.
    fn goes_on(initiating: &Initiating) {
        let (done, heard) = channel();
        let job = Box::new(move || done.send(()).unwrap());
        run(initiating, Duration::ZERO, &Arc::new(AtomicBool::new(true)), job);
        heard.recv_timeout(LIMIT).unwrap();
    }

    #[test]
    fn a_destructor_that_blocks_and_panics_holds_up_no_step() {
        let initiating = Initiating::default();
        let (at, dropped) = channel();
        // Each twice: its end lets the next one go on.
        for ends in [false, true, false, true] {
            let (give, leave) = channel();
            let (stubborn, wanted) =
                (Stubborn { at: at.clone(), leave }, Arc::new(AtomicBool::new(true)));
            run(&initiating, HOUR, &wanted, Box::new(move || drop(stubborn)));
            wanted.store(false, Ordering::Relaxed);
            match ends {
                false => initiating.forget_unwanted(),
                // Another step does the same.
                true => goes_on(&initiating),
            }
            let name = dropped.recv_timeout(LIMIT).unwrap();
            assert_eq!(name.as_deref(), Some("spin-gss-step"));
            goes_on(&initiating);
            give.send(()).unwrap();
        }
        // At the end of the engine, too.
        let (give, leave) = channel();
        let stubborn = Stubborn { at, leave };
        let job = Box::new(move || drop(stubborn));
        run(&initiating, HOUR, &Arc::new(AtomicBool::new(true)), job);
        drop(initiating);
        let name = dropped.recv_timeout(LIMIT).unwrap();
        assert_eq!(name.as_deref(), Some("spin-gss-step"));
        give.send(()).unwrap();
    }

    /// The first destructor does not return. What comes behind it is bounded, and so is the memory.
    #[test]
    fn no_step_is_accepted_while_too_many_wait_to_be_dropped() {
        let initiating = Initiating::default();
        let ((at, dropped), (give, leave)) = (channel(), channel());
        let stubborn = Stubborn { at, leave };
        let unwanted = Arc::new(AtomicBool::new(true));
        run(&initiating, HOUR, &unwanted, Box::new(move || drop(stubborn)));
        for _ in 1..DROPS_MAX {
            run(&initiating, HOUR, &unwanted, Box::new(|| {}));
        }
        unwanted.store(false, Ordering::Relaxed);
        initiating.forget_unwanted();
        // All are given to the other thread at once, of which the first has begun.
        dropped.recv_timeout(LIMIT).unwrap();
        let begin = || {
            let (due, wanted) = (Instant::now(), Arc::new(AtomicBool::new(true)));
            initiating.run((due, due + HOUR), wanted, (Box::new(|| {}), Box::new(|| {})))
        };
        assert!(!begin(), "{DROPS_MAX} steps wait to be dropped");
        give.send(()).unwrap();
        let ends = Instant::now() + LIMIT;
        while !begin() {
            assert!(Instant::now() < ends, "none is accepted any more");
            std::thread::yield_now();
        }
    }
}
