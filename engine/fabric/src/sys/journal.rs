//! The log of the process: one thread writes what all others report.
//!
//! A write to a log blocks while its reader does not read, so only this thread calls `tracing`. All other code leaves an
//! event in a bounded queue ([`event!`](crate::sys::journal::event)), and never waits. Peers can cause events at any rate,
//! so the lines per second of each place in the code are bounded, too. Events beyond either bound are counted, and their
//! number is logged. An engine starts the thread; until then events wait.

use crate::sync::atomic::Ordering;
use crate::sync::atomic::mapped::AtomicU64;
use crossbeam::queue::ArrayQueue;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;
use std::sync::{Mutex, OnceLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};
use tracing::Dispatch;

#[doc(hidden)]
pub use tracing;

pub const EVENTS_MAX: usize = 1024;
/// Maximum number of lines per second of one place in the code.
pub const LINES_MAX: u32 = 100;
/// Maximum time for which the end of an engine waits for the log.
pub const FLUSH_MAX: Duration = Duration::from_secs(1);
/// Shortest time between two lines that tell the number of lost events.
const INTERVAL: Duration = Duration::from_secs(1);
const FLUSH_POLL: Duration = Duration::from_millis(1);

static JOURNAL: LazyLock<Journal> = LazyLock::new(Journal::default);
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Reports an event to the thread that logs: a level, fields as in the macros of `tracing`, and a message. Values with `%`
/// and `?` are formatted at once, others must be `Copy` and `'static`. Does nothing if the level is not logged.
#[doc(hidden)]
#[macro_export]
macro_rules! event {
    (@keep $level:ident $kept:tt $fields:tt % $name:ident, $($rest:tt)+) => {
        $crate::sys::journal::event!(@keep $level $kept $fields $name = % $name, $($rest)+)
    };
    (@keep $level:ident $kept:tt $fields:tt ? $name:ident, $($rest:tt)+) => {
        $crate::sys::journal::event!(@keep $level $kept $fields $name = ? $name, $($rest)+)
    };
    (@keep $level:ident $kept:tt $fields:tt $name:ident, $($rest:tt)+) => {
        $crate::sys::journal::event!(@keep $level $kept $fields $name = $name, $($rest)+)
    };
    (@keep $level:ident [$($kept:tt)*] [$($fields:tt)*] $name:ident = % $value:expr, $($rest:tt)+) => {
        $crate::sys::journal::event!(@keep $level [$($kept)* let $name = $value.to_string();]
            [$($fields)* $name = %$name,] $($rest)+)
    };
    (@keep $level:ident [$($kept:tt)*] [$($fields:tt)*] $name:ident = ? $value:expr, $($rest:tt)+) => {
        $crate::sys::journal::event!(@keep $level [$($kept)* let $name = format!("{:?}", $value);]
            [$($fields)* $name = %$name,] $($rest)+)
    };
    (@keep $level:ident [$($kept:tt)*] [$($fields:tt)*] $name:ident = $value:expr, $($rest:tt)+) => {
        $crate::sys::journal::event!(@keep $level [$($kept)* let $name = $value;]
            [$($fields)* $name,] $($rest)+)
    };
    (@keep $level:ident [$($kept:tt)*] [$($fields:tt)*] $($message:tt)+) => {{
        static PLACE: $crate::sys::journal::Place = $crate::sys::journal::Place::new();
        if $crate::sys::journal::tracing::level_enabled!(
            $crate::sys::journal::tracing::Level::$level
        ) && PLACE.admits()
        {
            $($kept)*
            let message = format!($($message)+);
            $crate::sys::journal::report(Box::new(move || {
                $crate::sys::journal::tracing::event!(
                    $crate::sys::journal::tracing::Level::$level,
                    $($fields)*
                    "{message}"
                );
            }));
        }
    }};
    ($level:ident, $($event:tt)+) => {
        $crate::sys::journal::event!(@keep $level [] [] $($event)+)
    };
}
pub use event;

#[derive(Debug)]
pub struct Place(
    /// The last second with an event, and the number of its lines.
    AtomicU64,
);

impl Place {
    #[expect(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Returns true for an event to report; counts it as lost otherwise.
    pub fn admits(&self) -> bool {
        let admitted = !JOURNAL.events.is_full() && self.admits_at(EPOCH.elapsed().as_secs());
        if !admitted {
            JOURNAL.lose(1);
        }
        admitted
    }

    fn admits_at(&self, second: u64) -> bool {
        let next = |state: u64| match (state >> 32, state as u32) {
            (of, lines) if of == second => (lines < LINES_MAX).then_some(state + 1),
            _ => Some((second << 32) | 1),
        };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}

/// Reports an event that `write` logs on the thread, to the subscriber of the calling thread.
pub fn report(write: Box<dyn FnOnce() + Send>) {
    JOURNAL.report(write);
}

/// Starts the thread by `spawn`, unless it runs.
///
/// # Errors
/// Those of `spawn`.
pub fn start(
    spawn: impl FnOnce(Box<dyn FnOnce() + Send>) -> io::Result<thread::JoinHandle<()>>,
) -> io::Result<()> {
    static STARTED: Mutex<bool> = Mutex::new(false);
    let mut started = crate::sync::lock(&STARTED);
    if !*started {
        let handle = spawn(Box::new(|| JOURNAL.run()))?;
        // It is set once, as this runs once.
        let _ = JOURNAL.thread.set(handle.thread().clone());
        JOURNAL.wake();
        *started = true;
    }
    Ok(())
}

/// Waits until all reported events are logged, or for `at_most`. Without the thread it logs them itself.
pub fn flush(at_most: Duration) {
    JOURNAL.flush(at_most);
}

struct Event {
    dispatch: Dispatch,
    write: Box<dyn FnOnce() + Send>,
}

struct Journal {
    events: ArrayQueue<Event>,
    /// Number of events in the queue and in the hands of the thread.
    unwritten: AtomicU64,
    lost: AtomicU64,
    thread: OnceLock<Thread>,
}

impl Default for Journal {
    fn default() -> Self {
        let (unwritten, lost) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { events: ArrayQueue::new(EVENTS_MAX), unwritten, lost, thread: OnceLock::new() }
    }
}

impl Journal {
    fn report(&self, write: Box<dyn FnOnce() + Send>) {
        if !self.try_report(write) {
            self.lose(1);
        }
    }

    fn try_report(&self, write: Box<dyn FnOnce() + Send>) -> bool {
        let dispatch = tracing::dispatcher::get_default(Clone::clone);
        self.unwritten.fetch_add(1, Ordering::Relaxed);
        if self.events.push(Event { dispatch, write }).is_err() {
            self.unwritten.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        self.wake();
        true
    }

    fn lose(&self, count: u64) {
        if self.lost.fetch_add(count, Ordering::Relaxed) == 0 {
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    fn run(&self) {
        let mut due = None;
        loop {
            self.write_waiting();
            if self.lost.load(Ordering::Relaxed) == 0 {
                thread::park();
                continue;
            }
            let due_at = *due.get_or_insert_with(|| Instant::now() + INTERVAL);
            match due_at.saturating_duration_since(Instant::now()) {
                Duration::ZERO => {
                    due = None;
                    self.tell_lost();
                }
                left => thread::park_timeout(left),
            }
        }
    }

    fn write_waiting(&self) {
        while let Some(Event { dispatch, write }) = self.events.pop() {
            // A subscriber may panic if its output has gone.
            let write = || tracing::dispatcher::with_default(&dispatch, write);
            drop(catch_unwind(AssertUnwindSafe(write)));
            self.unwritten.fetch_sub(1, Ordering::Release);
        }
    }

    fn tell_lost(&self) {
        let count = self.lost.swap(0, Ordering::Relaxed);
        let tell = move || {
            tracing::event!(
                tracing::Level::WARN,
                "{count} events were not logged: too many at a time"
            );
        };
        if count > 0 && !self.try_report(Box::new(tell)) {
            self.lose(count);
        }
    }

    fn flush(&self, at_most: Duration) {
        let began = Instant::now();
        self.tell_lost();
        if self.thread.get().is_none() {
            return self.write_waiting();
        }
        while self.unwritten.load(Ordering::Acquire) > 0 && began.elapsed() < at_most {
            thread::sleep(FLUSH_POLL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// Posts an event that sends `number` when it is logged.
    fn numbered(journal: &Journal, number: u32, written: &std::sync::mpsc::Sender<u32>) {
        let written = written.clone();
        journal.report(Box::new(move || {
            let _ = written.send(number);
        }));
    }

    #[test]
    fn lines_of_a_place_are_bounded_per_second() {
        let place = Place::new();
        let admitted = |second| (0..3 * LINES_MAX).filter(|_| place.admits_at(second)).count();
        assert_eq!([7, 7, 8].map(admitted), [100, 0, 100]);
    }

    #[test]
    fn a_full_queue_does_not_block_and_what_is_lost_is_counted() {
        let (journal, (written, all)) = (Journal::default(), channel());
        let events = EVENTS_MAX as u32;
        (0..events + 9).for_each(|number| numbered(&journal, number, &written));
        assert_eq!((journal.events.len(), journal.lost.load(Ordering::Relaxed)), (EVENTS_MAX, 9));
        journal.write_waiting();
        assert!(all.try_iter().eq(0..events));
        journal.flush(Duration::ZERO);
        assert_eq!(journal.lost.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_subscriber_that_panics_loses_one_line() {
        let (journal, (written, all)) = (Journal::default(), channel());
        journal.report(Box::new(|| panic!("failed printing to stderr")));
        numbered(&journal, 1, &written);
        journal.write_waiting();
        assert_eq!(all.try_iter().collect::<Vec<_>>(), [1]);
        assert_eq!(journal.unwritten.load(Ordering::Relaxed), 0);
    }

    /// The thread is in a write that does not end. Expect that the end of an engine waits for the limit, and no longer.
    #[test]
    fn a_flush_gives_up_on_a_log_that_is_not_read() {
        let journal: &Journal = Box::leak(Box::default());
        let (release, blocked) = channel::<()>();
        journal.report(Box::new(move || {
            let _ = blocked.recv();
        }));
        let thread = thread::spawn(|| journal.run());
        journal.thread.set(thread.thread().clone()).unwrap();
        journal.flush(Duration::from_millis(1));
        assert_eq!(journal.unwritten.load(Ordering::Relaxed), 1);
        drop(release);
        journal.flush(Duration::MAX);
        assert_eq!(journal.unwritten.load(Ordering::Relaxed), 0);
    }
}
