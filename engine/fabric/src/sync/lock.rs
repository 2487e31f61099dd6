//! Locks of the control plane: a core never takes one per message.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Pause between two attempts where waiting polls. Not a yield: threads that yield in a loop share a CPU with the thread that
/// they wait for.
#[cfg(thread_sanitized)]
const PAUSE: Duration = Duration::from_micros(50);

/// Locks, and waits for the current holder (blocks the thread). A panic of another thread that held
/// the lock is ignored: use it only where a panic leaves nothing half done.
///
/// ```
/// use std::sync::Mutex;
///
/// let names = Mutex::new(Vec::new());
/// spinrpc_fabric::sync::lock(&names).push("echo");
/// assert_eq!(spinrpc_fabric::sync::lock(&names).len(), 1);
/// ```
#[cfg(not(thread_sanitized))]
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The same for ThreadSanitizer, which does not see the waiting part of the standard library's
/// lock, and with it not that one holder comes after the other. Its first attempt is inlined, and
/// so is seen.
#[cfg(thread_sanitized)]
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    use std::sync::TryLockError;
    loop {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
        }
    }
}

/// Waits until another thread has changed the protected state, or until `at_most` has passed, or
/// wakes spuriously (blocks the thread): the caller checks again.
#[cfg(not(thread_sanitized))]
pub fn wait_for_change<'a, T>(
    changed: &Condvar,
    held: MutexGuard<'a, T>,
    _: &'a Mutex<T>,
    at_most: Duration,
) -> MutexGuard<'a, T> {
    let waited = changed.wait_timeout(held, at_most);
    waited.unwrap_or_else(std::sync::PoisonError::into_inner).0
}

/// The same for ThreadSanitizer, which does not see the standard library's lock after a wait either.
#[cfg(thread_sanitized)]
pub fn wait_for_change<'a, T>(
    _: &Condvar,
    held: MutexGuard<'a, T>,
    mutex: &'a Mutex<T>,
    _: Duration,
) -> MutexGuard<'a, T> {
    drop(held);
    std::thread::sleep(PAUSE);
    lock(mutex)
}
