//! State that a core shares with the threads that wake it, and what it sleeps on: its sockets, and an event.

use super::super::Wake;
use crate::sync::CachePadded;
use crate::sync::atomic::{AtomicBool, Ordering, fence};
use crate::sync::cache_lines::assert_lines;
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Mark of the core's event in its set of descriptors; sockets have the numbers of their places.
pub(super) const EVENT: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct CoreShared {
    event: OwnedFd,
    /// Of the event and of the sockets of connections.
    epoll: OwnedFd,
    /// The core sleeps, or is about to.
    parked: AtomicBool,
    /// `wake` was called. On lines of its own: threads that make calls write it, and the core reads its neighbours.
    wake_requested: CachePadded<AtomicBool>,
    /// A fabric runs on it.
    pub(super) taken: AtomicBool,
}

assert_lines!(CoreShared: wake_requested);

impl CoreShared {
    pub(super) fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &event, epoll::EventData::new_u64(EVENT), epoll::EventFlags::IN)?;
        Ok(Self {
            event,
            epoll,
            parked: AtomicBool::new(false),
            wake_requested: CachePadded::default(),
            taken: AtomicBool::new(false),
        })
    }

    /// Has sleeps end, and [`CoreShared::ready`] tell, when the socket is ready for one of `wanted`. A socket leaves the
    /// set when it is closed.
    pub(super) fn watch(
        &self,
        socket: impl AsFd,
        place: u32,
        wanted: epoll::EventFlags,
    ) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, epoll::EventData::new_u64(place.into()), wanted)?)
    }

    pub(super) fn want(&self, socket: impl AsFd, place: u32, wanted: epoll::EventFlags) {
        // It is in the set: nothing but a lack of memory can fail, and a timer looks at it then.
        let _ = epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(place.into()), wanted);
    }

    /// Fills `events`, as far as its capacity goes, with sockets that are ready. Waits for the first one for `at_most`
    /// (system call); a signal ends the wait early.
    pub(super) fn ready(&self, events: &mut Vec<epoll::Event>, at_most: Duration) {
        let timeout = Timespec::try_from(at_most).ok();
        events.clear();
        // However it ends, the caller looks at everything.
        let _ = epoll::wait(&self.epoll, spare_capacity(events), timeout.as_ref());
    }

    /// Announces that the core is going to sleep. False when it must not, as it was to wake up; either way
    /// [`CoreShared::unpark`] ends it.
    #[must_use = "when false, the core must not sleep"]
    pub(super) fn park(&self) -> bool {
        self.parked.store(true, Ordering::Relaxed);
        // Pairs with the fence of `wake`: either this core sees the request, or its caller sees that it is parked.
        fence(Ordering::SeqCst);
        !self.wake_requested.load(Ordering::Relaxed)
    }

    pub(super) fn unpark(&self) {
        // Acquire: everything written before the request is seen in the next turn.
        self.wake_requested.swap(false, Ordering::Acquire);
        self.parked.store(false, Ordering::Relaxed);
        // Each time: a thread that took the flag may write after this. That ends the next sleep early, and would end
        // all later ones if they did not take it either.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }
}

impl Wake for CoreShared {
    fn wake(&self) -> bool {
        // Release pairs with the Acquire of `unpark`: the next turn sees earlier writes.
        self.wake_requested.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        let was_parked = self.parked.swap(false, Ordering::Relaxed);
        if was_parked {
            // A full counter wakes, too.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
        was_parked
    }
}
