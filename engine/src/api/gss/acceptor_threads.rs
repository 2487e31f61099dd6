//! Tokens of clients, each on a thread that does nothing else meanwhile, of which there are a few: a mechanism asks name
//! services, which may block for long. One host has at most half of the threads that the others leave, so that a name service
//! that does not answer for the users of a few hosts does not hold up the next one.

use super::threads::{Busy, GssShared, Job, run_job};
use crate::api::helper_thread::spawn_helper;
use crate::reactor::types::protection::now;
use crate::sync::{lock, wait_for_change};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

/// Tokens that wait for a thread at most, and those of one host.
const TOKENS_MAX: usize = 256;
const HOST_TOKENS_MAX: usize = 64;

/// Tokens that threads work on at a time.
const THREADS_MAX: usize = 8;

/// So often a thread without tokens looks for contexts that have ended.
const SWEEP_PAUSE: Duration = Duration::from_secs(10);

/// Hands out tokens; its threads are there from the first ones on, and end with it.
#[derive(Default)]
pub(super) struct Accepting(Arc<Queue>);

#[derive(Default)]
struct Queue {
    tokens: Mutex<Tokens>,
    changed: Condvar,
}

#[derive(Default)]
struct Tokens {
    /// With their hosts, the first that came first.
    waiting: VecDeque<(u64, Job)>,
    running: Vec<u64>,
    threads: usize,
    swept: Option<Instant>,
    is_over: bool,
}

impl Accepting {
    /// Has a thread take a token of this host.
    pub(super) fn run(&self, host: u64, job: Job, shared: Weak<GssShared>) -> Result<(), Busy> {
        let mut tokens = lock(&self.0.tokens);
        let own = tokens.waiting.iter().filter(|(other, _)| *other == host).count();
        if tokens.waiting.len() >= TOKENS_MAX || own >= HOST_TOKENS_MAX {
            return Err(Busy);
        }
        let idle = tokens.threads - tokens.running.len();
        if idle <= tokens.waiting.len() && tokens.threads < THREADS_MAX {
            let queue = Arc::clone(&self.0);
            let spawned = spawn_helper("spin-gss-accept", move || queue.run_jobs(&shared));
            tokens.threads += usize::from(spawned.is_ok());
        }
        if tokens.threads == 0 {
            return Err(Busy);
        }
        tokens.waiting.push_back((host, job));
        self.0.changed.notify_all();
        Ok(())
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        let mut tokens = lock(&self.0.tokens);
        tokens.is_over = true;
        let waiting = std::mem::take(&mut tokens.waiting);
        self.0.changed.notify_all();
        // Not under the lock: a job is dropped with what it holds.
        drop(tokens);
        drop(waiting);
    }
}

impl Queue {
    /// Until the engine is gone. Contexts that have ended are forgotten, with their keys, also when no other comes.
    fn run_jobs(&self, shared: &Weak<GssShared>) {
        let mut tokens = lock(&self.tokens);
        while !tokens.is_over {
            let Some((host, job)) = tokens.next() else {
                tokens = self.rest(tokens, shared);
                continue;
            };
            drop(tokens);
            run_job(job);
            tokens = lock(&self.tokens);
            tokens.end(host);
            self.changed.notify_all();
        }
    }

    /// Waits for a change. Looks for contexts that have ended once in a while.
    fn rest<'a>(
        &'a self,
        tokens: MutexGuard<'a, Tokens>,
        shared: &Weak<GssShared>,
    ) -> MutexGuard<'a, Tokens> {
        let mut tokens = wait_for_change(&self.changed, tokens, &self.tokens, SWEEP_PAUSE);
        if tokens.swept.is_some_and(|swept| swept.elapsed() < SWEEP_PAUSE) {
            return tokens;
        }
        tokens.swept = Some(Instant::now());
        // Not under the lock: this may be the last to have the engine's state.
        drop(tokens);
        if let Some(shared) = shared.upgrade()
            && let Some(acceptor) = shared.acceptor.get()
        {
            acceptor.table.sweep(now());
        }
        lock(&self.tokens)
    }
}

impl Tokens {
    /// The first token of a host that has fewer threads than are free: 4, 2, 1 and 1 of 8 for those that block.
    fn next(&mut self) -> Option<(u64, Job)> {
        let running = |host: u64| self.running.iter().filter(|other| **other == host).count();
        let free = THREADS_MAX - self.running.len();
        let index = self.waiting.iter().position(|(host, _)| running(*host) < free)?;
        let (host, job) = self.waiting.remove(index)?;
        self.running.push(host);
        Some((host, job))
    }

    fn end(&mut self, host: u64) {
        if let Some(index) = self.running.iter().position(|other| *other == host) {
            self.running.swap_remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{RecvTimeoutError, channel};

    const LIMIT: Duration = Duration::from_secs(20);

    /// Name services answer for no user of three hosts. Expect that tokens of another one do not wait.
    #[test]
    fn tokens_that_block_hold_up_those_of_their_own_hosts_alone() {
        let (accepting, shared) = (Accepting::default(), Weak::new());
        let (release, blocked) = channel::<()>();
        let (blocked, (done, ended)) = (Arc::new(Mutex::new(blocked)), channel());
        let run = |host, job: Job| accepting.run(host, job, shared.clone()).is_ok();
        for number in 0..3 * HOST_TOKENS_MAX {
            let blocked = Arc::clone(&blocked);
            let job = Box::new(move || {
                let _ = lock(&blocked).recv();
            });
            assert!(run(number as u64 % 3, job));
        }
        for number in 0..2 * HOST_TOKENS_MAX {
            let done = done.clone();
            let job = Box::new(move || {
                let _ = done.send(number);
            });
            assert!(run(3, job));
            assert_eq!(ended.recv_timeout(LIMIT), Ok(number));
        }
        drop(release);
    }

    /// A mechanism that panics. Expect that its threads go on.
    #[test]
    fn a_token_that_panics_gives_its_thread_back() {
        let accepting = Accepting::default();
        let (done, ended) = channel();
        for number in 0..2 * THREADS_MAX {
            let done = done.clone();
            let job = Box::new(move || {
                // Not by panic!, whose message the harness may be reading by then.
                let _done = done;
                std::panic::resume_unwind(Box::new(number));
            });
            assert!(accepting.run(1, job, Weak::new()).is_ok());
        }
        drop(done);
        // All have run, and were dropped with what they held.
        assert_eq!(ended.recv_timeout(LIMIT), Err::<(), _>(RecvTimeoutError::Disconnected));
    }

    /// The engine ends while its threads are blocked. Expect that tokens that wait are dropped at once, and do not run.
    #[test]
    fn tokens_that_wait_are_dropped_with_the_engine() {
        let accepting = Accepting::default();
        let ((release, blocked), (begin, begun)) = (channel::<()>(), channel());
        let (blocked, (done, ended)) = (Arc::new(Mutex::new(blocked)), channel::<()>());
        for _ in 0..HOST_TOKENS_MAX {
            let (blocked, begin, done) = (Arc::clone(&blocked), begin.clone(), done.clone());
            let job = Box::new(move || {
                // Those that run leave only what waits with the sender.
                drop(done);
                let _ = begin.send(());
                let _ = lock(&blocked).recv();
            });
            assert!(accepting.run(1, job, Weak::new()).is_ok());
        }
        assert!((0..THREADS_MAX / 2).all(|_| begun.recv_timeout(LIMIT).is_ok()));
        drop(done);
        drop(accepting);
        assert_eq!(ended.recv_timeout(LIMIT), Err(RecvTimeoutError::Disconnected));
        drop(release);
    }

    #[test]
    fn tokens_that_wait_are_bounded_for_a_host_and_for_all() {
        let mut tokens = Tokens { threads: THREADS_MAX, ..Tokens::default() };
        tokens.running = vec![9; THREADS_MAX];
        let queue = Arc::new(Queue { tokens: Mutex::new(tokens), changed: Condvar::new() });
        let accepting = Accepting(queue);
        let taken = |host| {
            (0..TOKENS_MAX)
                .filter(|_| accepting.run(host, Box::new(|| {}), Weak::new()).is_ok())
                .count()
        };
        let hosts: Vec<usize> = (0..5).map(taken).collect();
        assert_eq!(hosts, [HOST_TOKENS_MAX, HOST_TOKENS_MAX, HOST_TOKENS_MAX, HOST_TOKENS_MAX, 0]);
    }
}
