//! A place where one thread hands a value to another, which may have given up on it. No lock, no
//! unsafe code: the value is moved by an atomic pointer, and one state records which thread came
//! first.
//!
//! The api hands the answers of calls to the threads that made them.

use super::atomic::{AtomicU32, Ordering};

/// Neither has come.
const EMPTY: u32 = 0;
/// The value is there, or was.
const GIVEN: u32 = 1;
/// The receiver has gone.
const ABANDONED: u32 = 2;

/// One value on its way to one receiver; then [`Handoff::reset`] makes it ready for the next.
pub struct Handoff<T> {
    state: AtomicU32,
    value: Place<T>,
}

impl<T> Default for Handoff<T> {
    fn default() -> Self {
        Self { state: AtomicU32::new(EMPTY), value: Place::default() }
    }
}

impl<T> Handoff<T> {
    /// Gives the value; it comes back if the receiver has gone.
    pub fn give(&self, value: Box<T>) -> Result<(), Box<T>> {
        self.value.put(value);
        // AcqRel pairs with that of `abandon`: of the two, the one that comes second has the value.
        match self.state.swap(GIVEN, Ordering::AcqRel) {
            ABANDONED => self.value.take().map_or(Ok(()), Err),
            _ => Ok(()),
        }
    }

    pub fn take(&self) -> Option<Box<T>> {
        // Acquire pairs with the AcqRel of `give`.
        if self.state.load(Ordering::Acquire) != GIVEN {
            return None;
        }
        self.value.take()
    }

    /// The receiver goes. Returns the value, if it was there already; else [`Handoff::give`] gives it back.
    pub fn abandon(&self) -> Option<Box<T>> {
        match self.state.swap(ABANDONED, Ordering::AcqRel) {
            GIVEN => self.value.take(),
            _ => None,
        }
    }

    pub fn is_abandoned(&self) -> bool {
        // Relaxed: a caller can always ask too early.
        self.state.load(Ordering::Relaxed) == ABANDONED
    }

    /// Makes it ready for another value. The holder of the last value calls it: nothing else looks then.
    pub fn reset(&self) {
        // Relaxed: the value goes to the next giver by a queue, which orders this before.
        self.state.store(EMPTY, Ordering::Relaxed);
    }
}

impl<T> std::fmt::Debug for Handoff<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handoff").field("state", &self.state).finish_non_exhaustive()
    }
}

/// The place of the value meanwhile.
#[cfg(not(loom))]
struct Place<T>(crossbeam::atomic::AtomicCell<Option<Box<T>>>);

#[cfg(not(loom))]
impl<T> Default for Place<T> {
    fn default() -> Self {
        // Else it would be a lock.
        const { assert!(crossbeam::atomic::AtomicCell::<Option<Box<T>>>::is_lock_free()) };
        Self(crossbeam::atomic::AtomicCell::new(None))
    }
}

#[cfg(not(loom))]
impl<T> Place<T> {
    fn put(&self, value: Box<T>) {
        self.0.store(Some(value));
    }

    fn take(&self) -> Option<Box<T>> {
        self.0.take()
    }
}

/// The same with a lock, for models: it orders no less, so that the model is of the state alone.
#[cfg(loom)]
struct Place<T>(loom::sync::Mutex<Option<Box<T>>>);

#[cfg(loom)]
impl<T> Default for Place<T> {
    fn default() -> Self {
        Self(loom::sync::Mutex::new(None))
    }
}

#[cfg(loom)]
impl<T> Place<T> {
    fn put(&self, value: Box<T>) {
        if let Ok(mut place) = self.0.lock() {
            *place = Some(value);
        }
    }

    fn take(&self) -> Option<Box<T>> {
        self.0.lock().ok()?.take()
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
