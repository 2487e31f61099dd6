//! Progress lines on standard error for long operations.

use std::time::{Duration, Instant};

/// Reports progress at most every two seconds and never in the first two.
pub(crate) struct Progress {
    steps: usize,
    done: usize,
    started: Instant,
    said: Instant,
}

impl Progress {
    /// Starts an operation with this number of steps.
    pub(crate) fn start(steps: usize) -> Self {
        let now = Instant::now();
        Self { steps, done: 0, started: now, said: now }
    }

    /// Starts the next step.
    pub(crate) fn step(&mut self, what: &str) {
        self.done += 1;
        if self.said.elapsed() < INTERVAL {
            return;
        }
        self.said = Instant::now();
        let (done, steps, seconds) = (self.done, self.steps, self.started.elapsed().as_secs());
        eprintln!("spinperf: {seconds:3} s, step {done} of {steps}: {what}");
    }
}

const INTERVAL: Duration = Duration::from_secs(2);
