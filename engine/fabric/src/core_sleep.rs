//! Sleep of a core whose descriptors are in one set of epoll, and the event by which other threads end it. For sockets and for
//! devices.

use super::{FabricError, Wake};
use crate::connector_common::starting;
use crate::sync::atomic::{AtomicBool, Ordering, fence};
use crate::sync::cache_lines::assert_lines;
use crate::sync::wake_request::WakeRequest;
use rustix::buffer::Buffer;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Number of the core's own event in its set of descriptors.
pub(crate) const EVENT: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct CoreSleep {
    event: OwnedFd,
    /// Of the event, and of what the core waits for besides.
    epoll: OwnedFd,
    /// The core sleeps, or is about to.
    parked: AtomicBool,
    wake_request: WakeRequest,
    /// A fabric runs on it.
    pub(crate) taken: AtomicBool,
}

// Threads that make calls write it, and the core reads its neighbours.
assert_lines!(CoreSleep: wake_request);

impl CoreSleep {
    /// Of core number `core`.
    pub(crate) fn new(core: usize) -> Result<Self, FabricError> {
        Self::make().map_err(|error| {
            FabricError::because(&starting(core), "no descriptor for waking it", Some(error))
        })
    }

    fn make() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &event, epoll::EventData::new_u64(EVENT), epoll::EventFlags::IN)?;
        Ok(Self {
            event,
            epoll,
            parked: AtomicBool::new(false),
            wake_request: WakeRequest::default(),
            taken: AtomicBool::new(false),
        })
    }

    /// Has sleeps end when the descriptor is ready for one of `wanted`. It leaves the set when it is closed.
    pub(crate) fn watch(
        &self,
        descriptor: impl AsFd,
        number: u64,
        wanted: epoll::EventFlags,
    ) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, descriptor, epoll::EventData::new_u64(number), wanted)?)
    }

    /// Takes a descriptor out of the set that a process which was forked may hold open.
    #[cfg(feature = "verbs")]
    pub(crate) fn forget(&self, descriptor: impl AsFd) {
        let _ = epoll::delete(&self.epoll, descriptor);
    }

    /// Fills `events` with descriptors that are ready. Waits for the first one for `at_most` (system call); a signal ends the
    /// wait early.
    pub(crate) fn wait(&self, events: impl Buffer<epoll::Event>, at_most: Duration) {
        let timeout = Timespec::try_from(at_most).ok();
        // However it ends, the caller looks at everything.
        let _ = epoll::wait(&self.epoll, events, timeout.as_ref());
    }

    /// Announces that the core is going to sleep. False when it must not, as it was to wake up; either way
    /// [`CoreSleep::unpark`] ends it. What other threads have written before a [`CoreSleep::wake_parked`] that found the core
    /// awake is seen behind this.
    #[must_use = "when false, the core must not sleep"]
    pub(crate) fn park(&self) -> bool {
        self.parked.store(true, Ordering::Relaxed);
        // Pairs with the fence of `wake_parked`: either this core sees the work left for it, or its thread sees that the core
        // is parked.
        fence(Ordering::SeqCst);
        !self.wake_request.is_made()
    }

    pub(crate) fn unpark(&self) {
        self.wake_request.take();
        self.parked.store(false, Ordering::Relaxed);
        // Each time: a thread that took the flag may write after this. That ends the next sleep early, and would end
        // all later ones if they did not take it either.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }

    /// Ends a sleep, if there is one. The caller has put a `fence(SeqCst)` behind what the core is to see.
    pub(crate) fn wake_parked(&self) -> bool {
        // The look spares the line to all but the first.
        let was_parked =
            self.parked.load(Ordering::Relaxed) && self.parked.swap(false, Ordering::Relaxed);
        if was_parked {
            // A full counter wakes, too.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
        was_parked
    }
}

impl Wake for CoreSleep {
    fn wake(&self) -> bool {
        self.wake_request.make();
        self.wake_parked()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use rustix::buffer::spare_capacity;
    use std::time::Instant;

    /// Wake a core that has parked: it sleeps no longer. Wake one that is awake: it does not park once, and its next sleep
    /// lasts.
    #[test]
    fn a_parked_core_is_woken_by_its_event_and_one_that_is_awake_by_not_sleeping() {
        let core = CoreSleep::new(0).unwrap();
        let sleep = |ms| {
            let start = Instant::now();
            core.wait(spare_capacity(&mut Vec::with_capacity(1)), Duration::from_millis(ms));
            start.elapsed()
        };
        assert!(core.park());
        assert!(core.wake());
        assert!(sleep(3_600_000) < Duration::from_secs(3000));
        core.unpark();
        assert!(!core.wake());
        assert!(!core.park());
        core.unpark();
        assert!(core.park(), "nothing is left over");
        core.unpark();
        assert!(sleep(20) >= Duration::from_millis(20), "it is awake: waking it costs nothing");
    }
}
