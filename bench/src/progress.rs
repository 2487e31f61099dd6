//! Progress lines on standard error for long operations.

use spinrpc_tuning::printable::to_stderr;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

/// Times of progress lines: at most every two seconds on a terminal and every minute in a file, and never at once.
pub(crate) struct Pace {
    interval: Duration,
    said: Instant,
}

impl Pace {
    pub(crate) fn start() -> Self {
        Self::of(io::stderr().is_terminal())
    }

    fn of(is_terminal: bool) -> Self {
        let interval = Duration::from_secs(if is_terminal { 2 } else { 60 });
        Self { interval, said: Instant::now() }
    }

    /// Returns whether a line is due now, which then counts as printed.
    pub(crate) fn is_due(&mut self) -> bool {
        self.is_due_at(Instant::now())
    }

    fn is_due_at(&mut self, now: Instant) -> bool {
        let is_due = now.duration_since(self.said) >= self.interval;
        if is_due {
            self.said = now;
        }
        is_due
    }
}

pub(crate) struct Progress {
    steps: usize,
    done: usize,
    started: Instant,
    pace: Pace,
}

impl Progress {
    pub(crate) fn start(steps: usize) -> Self {
        Self { steps, done: 0, started: Instant::now(), pace: Pace::start() }
    }

    pub(crate) fn step(&mut self, what: &str) {
        self.done += 1;
        if self.pace.is_due() {
            let (done, steps, seconds) = (self.done, self.steps, self.started.elapsed().as_secs());
            to_stderr(format_args!("spinperf: {seconds:3} s, step {done} of {steps}: {what}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of half a second for ten minutes.
    #[test]
    fn a_file_gets_a_line_per_minute() {
        let lines = |is_terminal| {
            let mut pace = Pace::of(is_terminal);
            let start = pace.said;
            let times = (1..=1200).map(|step| start + Duration::from_millis(500 * step));
            times.filter(|now| pace.is_due_at(*now)).count()
        };
        assert_eq!((lines(true), lines(false)), (300, 10));
    }
}
