//! Tasks that wait for something that other threads free. They lock for the time that it takes to find a place among them,
//! and so does who frees something while some wait.

use super::atomic::{AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::task::Waker;

#[cfg(loom)]
use loom::sync::Mutex;
#[cfg(not(loom))]
use std::sync::Mutex;

/// The tasks that wait, in order.
#[derive(Default)]
pub struct Waiting {
    /// Their number, which each release looks at.
    count: AtomicUsize,
    tasks: Mutex<Tasks>,
}

#[derive(Default)]
struct Tasks {
    next_number: u64,
    wakers: VecDeque<(u64, Waker)>,
}

impl Waiting {
    /// Wakes the first task. The caller has freed something, and a sequentially consistent fence has followed: it pairs with
    /// that of a task, between [`Waiting::register`] and its next attempt. Either this finds the task, or the task what was
    /// freed.
    #[inline]
    pub fn wake_one(&self) {
        if self.count.load(Ordering::Relaxed) > 0 {
            self.wake_first();
        }
    }

    /// Wakes those that wait now, for another reason, after a fence as for [`Waiting::wake_one`].
    #[cold]
    pub fn wake_all(&self) {
        let all = self.change(|tasks| std::mem::take(&mut tasks.wakers));
        all.into_iter().for_each(|(_, waker)| waker.wake());
    }

    #[cold]
    fn wake_first(&self) {
        let first = self.change(|tasks| tasks.wakers.pop_front());
        // Outside of the lock: a waker may run the task.
        if let Some((_, waker)) = first {
            waker.wake();
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut Tasks) -> T) -> T {
        #[cfg(not(loom))]
        let mut tasks = super::lock(&self.tasks);
        #[cfg(loom)]
        let mut tasks = self.tasks.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let changed = change(&mut tasks);
        self.count.store(tasks.wakers.len(), Ordering::Relaxed);
        changed
    }

    /// Registers a task, or its other waker, at the place that its number gives it. Returns the number. A fence and another
    /// attempt have to follow.
    pub fn register(&self, number: Option<u64>, waker: &Waker) -> u64 {
        let waker = waker.clone();
        let (number, _other) = self.change(|tasks| {
            let number = number.unwrap_or(tasks.next_number);
            tasks.next_number = tasks.next_number.max(number + 1);
            let other = match tasks.place(number) {
                Ok(at) => Some(std::mem::replace(&mut tasks.wakers[at].1, waker)),
                Err(at) => {
                    tasks.wakers.insert(at, (number, waker));
                    None
                }
            };
            (number, other)
        });
        number
    }

    pub fn remove(&self, number: u64) -> bool {
        let removed = self.change(|tasks| {
            let at = tasks.place(number).ok()?;
            tasks.wakers.remove(at)
        });
        removed.is_some()
    }
}

impl Tasks {
    fn place(&self, number: u64) -> Result<usize, usize> {
        self.wakers.binary_search_by_key(&number, |(number, _)| *number)
    }
}
