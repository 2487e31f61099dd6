//! The threads that seal and unseal the long bodies of a core. They start with the first such body, and end with the core.
//! Connections take turns, however many bodies one of them has.

use crate::reactor::in_flight::gss_bodies::{Body, Finished};
use crate::reactor::in_flight::mailbox::{Inbox, Mail};
use crate::reactor::types::crypto_counts::CryptoCounts;
use crate::reactor::types::protection::ProtectError;
use crate::sync::{lock, wait_for_change};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Threads of one core: with two the next body does not wait for the longest one, and the threads of all cores do not take
/// many CPUs from others.
const THREADS: usize = 2;

/// A thread without work looks around so often, although it is woken for work and for the end of its core.
const REST: Duration = Duration::from_secs(10);

/// Starts a thread; returns false if the system has none.
pub(crate) type Spawn = fn(Box<dyn FnOnce() + Send>) -> bool;

pub(super) struct BodyThreads {
    queue: Arc<Queue>,
    spawn: Option<Spawn>,
}

struct Queue {
    bodies: Mutex<Bodies>,
    changed: Condvar,
    inbox: Arc<Inbox>,
    crypto: Arc<CryptoCounts>,
}

struct Bodies {
    waiting: VecDeque<Body>,
    done: VecDeque<Finished>,
    /// Index of the connection whose body was begun last.
    last: u32,
    threads: usize,
    is_over: bool,
}

impl BodyThreads {
    /// With room for this number of bodies.
    pub(super) fn new(inbox: Arc<Inbox>, crypto: Arc<CryptoCounts>, bodies_max: usize) -> Self {
        let bodies = Mutex::new(Bodies {
            waiting: VecDeque::with_capacity(bodies_max),
            done: VecDeque::with_capacity(bodies_max),
            last: u32::MAX,
            threads: 0,
            is_over: false,
        });
        let queue = Queue { bodies, changed: Condvar::new(), inbox, crypto };
        Self { queue: Arc::new(queue), spawn: None }
    }

    pub(super) fn start_by(&mut self, spawn: Spawn) {
        self.spawn = Some(spawn);
    }

    /// Has a thread seal or unseal a body. Without one does so itself, and returns true.
    pub(super) fn hand_over(&self, mut body: Body) -> bool {
        let mut bodies = lock(&self.queue.bodies);
        if let Some(spawn) = self.spawn.filter(|_| bodies.threads == 0) {
            // All at once: to start one later would allocate among messages.
            for _ in 0..THREADS {
                let queue = Arc::clone(&self.queue);
                bodies.threads += usize::from(spawn(Box::new(move || queue.run_thread())));
            }
        }
        if bodies.threads == 0 {
            let end = body.seal_or_unseal(&self.queue.crypto);
            bodies.done.push_back((body, end));
            return true;
        }
        bodies.waiting.push_back(body);
        drop(bodies);
        self.queue.changed.notify_one();
        false
    }

    pub(super) fn take_done(&self) -> Option<Finished> {
        lock(&self.queue.bodies).done.pop_front()
    }
}

impl Drop for BodyThreads {
    fn drop(&mut self) {
        let mut bodies = lock(&self.queue.bodies);
        bodies.is_over = true;
        let unfinished = (std::mem::take(&mut bodies.waiting), std::mem::take(&mut bodies.done));
        drop(bodies);
        self.queue.changed.notify_all();
        drop(unfinished);
    }
}

impl Queue {
    fn run_thread(&self) {
        let mut bodies = lock(&self.bodies);
        while !bodies.is_over {
            let Some(mut body) = bodies.next() else {
                bodies = wait_for_change(&self.changed, bodies, &self.bodies, REST);
                continue;
            };
            drop(bodies);
            // A body that does not come back would keep its call for ever.
            let end = catch_unwind(AssertUnwindSafe(|| body.seal_or_unseal(&self.crypto)));
            let finished = (body, end.unwrap_or(Err(ProtectError::Failed)));
            bodies = lock(&self.bodies);
            if !bodies.is_over {
                bodies.done.push_back(finished);
                drop(bodies);
                self.tell();
                bodies = lock(&self.bodies);
            }
        }
    }

    /// A body is done: its core looks for it when it reads its mail.
    fn tell(&self) {
        // A mailbox that is full is read soon, and bodies are looked for behind that. The core may wait for this thread.
        drop(self.inbox.post(Mail::GssResult));
    }
}

impl Bodies {
    /// The first body of the connection that follows the one of the body before.
    fn next(&mut self) -> Option<Body> {
        let place = |index: &usize| {
            let conn = self.waiting[*index].conn.index();
            (conn <= self.last, conn)
        };
        let index = (0..self.waiting.len()).min_by_key(place)?;
        let next = self.waiting.remove(index);
        self.last = next.as_ref().map_or(self.last, |body| body.conn.index());
        next
    }
}
