//! Threads that close descriptors from peers, because a peer decides how long that takes: closing a
//! TCP socket with `SO_LINGER` and unsent data, or a file of a FUSE server, can block for minutes.
//!
//! The threads are detached: nothing waits for them, at the end of the process neither. There are
//! [`THREADS_MAX`] at most, of which one peer process occupies [`THREADS_PER_PROCESS`], and they end
//! when there is nothing to do, as peers seldom leave descriptors. Peers that are not trusted count as one process.

use super::credentials::ProcessIdentity;
use crate::sync::lock;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::thread;

const THREADS_MAX: usize = 16;
const THREADS_PER_PROCESS: usize = 2;
/// Descriptors of one process that wait or are being closed, from which on it is refused.
const DESCRIPTORS_PER_PROCESS_MAX: usize = 128;
/// Descriptors of all, from which on all are refused: else peers that are many could take all
/// descriptors of this process.
const DESCRIPTORS_MAX: usize = 1024;

static CLOSER: Mutex<State> = Mutex::new(State::new());

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Process(ProcessIdentity),
    /// All peers that are not trusted.
    Strangers,
}

/// Does not block: a thread closes `fd`, which `origin` has sent, or by which it may have sent others.
pub(super) fn close(fd: OwnedFd, origin: Origin) {
    let mut state = lock(&CLOSER);
    state.waiting.push_back(Job { fd, origin });
    if state.threads < THREADS_MAX && state.closing_of(origin) < THREADS_PER_PROCESS {
        let thread = thread::Builder::new().name("spinrpc-closer".into());
        // Without a thread the descriptor stays until the next one is to be closed.
        state.threads += usize::from(thread.spawn(run).is_ok());
    }
}

/// `origin` gets no further connection then.
pub(super) fn is_full(origin: Origin) -> bool {
    lock(&CLOSER).is_full(origin)
}

pub(super) fn count_of(origin: Origin) -> usize {
    lock(&CLOSER).count_of(origin)
}

struct Job {
    fd: OwnedFd,
    origin: Origin,
}

struct State {
    waiting: VecDeque<Job>,
    /// Origins whose descriptors are being closed, one for each thread that closes.
    closing: Vec<Origin>,
    threads: usize,
}

impl State {
    const fn new() -> Self {
        Self { waiting: VecDeque::new(), closing: Vec::new(), threads: 0 }
    }

    fn closing_of(&self, origin: Origin) -> usize {
        self.closing.iter().filter(|other| **other == origin).count()
    }

    fn count_of(&self, origin: Origin) -> usize {
        let waiting = self.waiting.iter().filter(|job| job.origin == origin).count();
        waiting + self.closing_of(origin)
    }

    fn is_full(&self, origin: Origin) -> bool {
        self.count_of(origin) >= DESCRIPTORS_PER_PROCESS_MAX
            || self.waiting.len() + self.closing.len() >= DESCRIPTORS_MAX
    }

    fn take(&mut self) -> Option<Job> {
        let may_go = |job: &Job| self.closing_of(job.origin) < THREADS_PER_PROCESS;
        let at = self.waiting.iter().position(may_go)?;
        let job = self.waiting.remove(at)?;
        self.closing.push(job.origin);
        Some(job)
    }

    fn finish(&mut self, origin: Origin) {
        if let Some(at) = self.closing.iter().position(|other| *other == origin) {
            self.closing.swap_remove(at);
        }
    }
}

fn run() {
    let mut state = lock(&CLOSER);
    while let Some(job) = state.take() {
        drop(state);
        drop(job.fd);
        state = lock(&CLOSER);
        state.finish(job.origin);
    }
    state.threads -= 1;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn process(pid: usize) -> Origin {
        Origin::Process(ProcessIdentity::Pid(pid as u32))
    }

    #[test]
    fn processes_have_bounds_of_their_own_and_one_together() {
        let mut state = State::new();
        let mut block = |origin, count| {
            let fd = || std::fs::File::open("/dev/null").unwrap().into();
            state.waiting.extend((0..count).map(|_| Job { fd: fd(), origin }));
            (state.is_full(origin), state.is_full(Origin::Strangers))
        };
        assert_eq!(block(process(1), DESCRIPTORS_PER_PROCESS_MAX - 1), (false, false));
        assert_eq!(block(process(1), 1), (true, false));
        // However many processes there are.
        let others = DESCRIPTORS_MAX - DESCRIPTORS_PER_PROCESS_MAX;
        assert_eq!((2..others + 1).map(|pid| block(process(pid), 1)).last(), Some((false, false)));
        assert_eq!(block(process(0), 1), (true, true));
    }
}
