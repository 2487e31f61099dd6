//! A place where one thread hands a value to another, which may have given up on it: an atomic pointer, without a lock.
//!
//! The api hands the answers of calls to the threads that made them.
#![allow(unsafe_code)]

use super::atomic::{AtomicPtr, Ordering};
use std::marker::PhantomData;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Mutex;

/// Address in the place of a value when the receiver has gone.
const ABANDONED: usize = 1;

/// One value on its way to one receiver; then [`Handoff::reset`] makes it ready for the next.
pub struct Handoff<T> {
    /// Null if neither has come.
    value: AtomicPtr<T>,
    /// Marks ownership of the value: threads share it if that can be sent.
    owned: PhantomData<Mutex<Box<T>>>,
}

impl<T> Default for Handoff<T> {
    fn default() -> Self {
        const { assert!(size_of::<T>() > 0, "a box of nothing has no address of its own") };
        Self { value: AtomicPtr::new(null_mut()), owned: PhantomData }
    }
}

impl<T> Handoff<T> {
    /// Gives the value; it comes back if the receiver has gone.
    pub fn give(&self, value: Box<T>) -> Result<(), Box<T>> {
        let value = Box::into_raw(value);
        // Release and Acquire pair with those of `swap`: of giver and receiver, the one that comes second has the value, and
        // sees what the first did before.
        let given =
            self.value.compare_exchange(null_mut(), value, Ordering::Release, Ordering::Acquire);
        // SAFETY: it is the box that was taken apart above, and nothing else has it.
        given.map(drop).map_err(|_| unsafe { Box::from_raw(value) })
    }

    pub fn take(&self) -> Option<Box<T>> {
        // Relaxed: what is there is taken by the swap.
        let is_there = !is_none(self.value.load(Ordering::Relaxed));
        is_there.then(|| self.swap(null_mut())).flatten()
    }

    /// The receiver goes. Returns the value, if it was there already; else [`Handoff::give`] gives it back.
    pub fn abandon(&self) -> Option<Box<T>> {
        self.swap(without_provenance_mut(ABANDONED))
    }

    fn swap(&self, other: *mut T) -> Option<Box<T>> {
        let value = self.value.swap(other, Ordering::AcqRel);
        // SAFETY: `give` took the box apart, and the swap took it out, once.
        (!is_none(value)).then(|| unsafe { Box::from_raw(value) })
    }

    pub fn is_abandoned(&self) -> bool {
        // Relaxed: a caller can always ask too early.
        self.value.load(Ordering::Relaxed).addr() == ABANDONED
    }

    /// Makes it ready for another value. The holder of the last value calls it: nothing else looks then.
    pub fn reset(&self) {
        // Relaxed: the value goes to the next giver by a queue, which orders this before.
        self.value.store(null_mut(), Ordering::Relaxed);
    }
}

fn is_none<T>(value: *mut T) -> bool {
    value.addr() <= ABANDONED
}

impl<T> Drop for Handoff<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl<T> std::fmt::Debug for Handoff<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handoff").field("value", &self.value).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_value_comes_to_its_receiver_once() {
        let handoff = Handoff::default();
        assert_eq!(handoff.take(), None);
        assert_eq!(handoff.give(Box::new(1)), Ok(()));
        assert_eq!((handoff.take(), handoff.take()), (Some(Box::new(1)), None));
        assert_eq!(handoff.abandon(), None);
    }

    #[test]
    fn a_value_that_is_not_wanted_comes_back() {
        let handoff = Handoff::default();
        assert_eq!((handoff.abandon(), handoff.is_abandoned()), (None, true));
        assert_eq!(handoff.give(Box::new(2)), Err(Box::new(2)));
        handoff.reset();
        assert!(!handoff.is_abandoned());
        assert_eq!(handoff.give(Box::new(3)), Ok(()));
        assert_eq!(handoff.abandon(), Some(Box::new(3)));
    }
}
