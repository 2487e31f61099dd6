//! A request of other threads that a core looks around before it sleeps.
//!
//! A core that never sleeps takes none, so that all requests but the first find one there and write nothing: threads on several
//! CPUs share the line.

use super::CachePadded;
use super::atomic::{AtomicBool, Ordering, fence};

#[derive(Debug)]
pub struct WakeRequest(CachePadded<AtomicBool>);

impl Default for WakeRequest {
    fn default() -> Self {
        Self(CachePadded::new(AtomicBool::new(false)))
    }
}

impl WakeRequest {
    /// Makes a request. What this thread wrote before is seen by whoever takes it, or by a core that is not yet parked behind
    /// this: the caller then looks if it has to end the sleep of one that is.
    pub fn make(&self) {
        // Pairs with the fence of `take`: a request that is found here is taken later, by a core that sees the writes. And with
        // the one between a core's announcement that it is parked and its look at the request. Callers rely on it, too.
        fence(Ordering::SeqCst);
        if !self.0.load(Ordering::Relaxed) {
            self.0.store(true, Ordering::Release);
            fence(Ordering::SeqCst);
        }
    }

    /// True if there is one; the core has announced that it is parked, and put a fence behind that.
    pub fn is_made(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes the request. Returns true if there was one.
    pub fn take(&self) -> bool {
        // Acquire pairs with the Release of `make`.
        let was_made = self.0.swap(false, Ordering::Acquire);
        fence(Ordering::SeqCst);
        was_made
    }
}
