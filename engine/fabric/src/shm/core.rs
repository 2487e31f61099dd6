//! State that a core shares with its peers and with the control thread: two doorbells, and the means to wake it.

use super::super::Wake;
use super::layout::Layout;
use super::window::Window;
use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::mapped::AtomicU32;
use crate::sync::cache_lines::assert_lines;
use crate::sync::doorbell::{BELL_BITS, BELL_PARKED_WORD, BELL_WORDS, Doorbell};
use crate::sync::wake_request::WakeRequest;
use crate::sync::words::{HeapWords, WORD_BYTES};
use crate::sys::mmap::{AddressPool, SharedMemory};
use crate::sys::topology::Topology;
use crossbeam::queue::ArrayQueue;
use rustix::io::Errno;
use rustix::thread::{Timespec, futex, sched_getcpu};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Bit of a bell that stands for the connection in `place`, and on a core with very many for others, too: all of them
/// are then looked at.
fn bit_of(place: u32) -> u32 {
    place % BELL_BITS as u32
}

#[derive(Debug)]
pub(super) struct CoreShared {
    /// Rung by peers. In shared memory: any peer of this core can clear what others rang, or keep
    /// them from ending its sleep. So it is a hint, and the core makes rounds besides.
    pub(super) bell: PeerBell,
    pub(super) bell_fd: OwnedFd,
    /// Rung by this process only.
    pub(super) notices: Doorbell<HeapWords>,
    pub(super) free: ArrayQueue<u32>,
    pub(super) rings: Arc<AddressPool>,
    wake_request: WakeRequest,
    pub(super) taken: AtomicBool,
    /// NUMA node of its CPU, if there are several and memory is to be near it; known when it has started.
    node: OnceLock<u32>,
}

// The first is written by threads that make calls, the second one by the control thread, and the core reads their neighbours.
assert_lines!(CoreShared: wake_request, free);

impl CoreShared {
    pub(super) fn new(places: u32, layout: Layout) -> io::Result<Self> {
        let (memory, bell_fd) = SharedMemory::create("spinrpc-bell", PeerBell::BYTES)?;
        let free = ArrayQueue::new(places as usize);
        for place in 0..places {
            // Has room for all of them.
            let _ = free.push(place);
        }
        Ok(Self {
            bell: PeerBell::new(Arc::new(memory))?,
            bell_fd,
            notices: Doorbell::new(HeapWords::new(BELL_WORDS))
                .ok_or(io::ErrorKind::InvalidInput)?,
            free,
            rings: AddressPool::new(layout.bytes(), places as usize),
            wake_request: WakeRequest::default(),
            taken: AtomicBool::new(false),
            node: OnceLock::new(),
        })
    }

    pub(super) fn node(&self) -> Option<u32> {
        self.node.get().copied()
    }

    /// Memory is to be near the CPU of the calling thread, which is the core's, from now on.
    pub(super) fn stay_near(&self) {
        let Ok(topology) = Topology::current() else { return };
        let node = topology.node_of(sched_getcpu()).filter(|_| topology.nodes().len() > 1);
        if let Some(node) = node {
            // A core starts once.
            let _ = self.node.set(node);
        }
    }

    pub(super) fn notify(&self, place: u32) {
        if self.notices.ring(bit_of(place)) {
            self.wake_parked();
        }
    }

    /// The core is awake.
    pub(super) fn notify_self(&self, place: u32) {
        let parked = self.notices.ring(bit_of(place));
        debug_assert!(!parked, "only the core itself calls this");
    }

    /// True if `at_most` is over.
    pub(super) fn park(&self, at_most: Duration) -> bool {
        let mut is_over = false;
        // The shared word first: a thread that sees the private one sees this one, too, and can end the
        // sleep by changing it.
        if self.bell.bell.park() && self.notices.park() && !self.wake_request.take() {
            let slept = self.bell.sleep(at_most);
            is_over = !self.wake_request.take() && slept;
        }
        self.notices.awake();
        self.bell.bell.awake();
        is_over
    }

    /// The core is parked by its private word, which no peer can touch.
    fn wake_parked(&self) {
        self.bell.bell.unpark();
        self.bell.wake();
    }
}

impl Wake for CoreShared {
    fn wake(&self) -> bool {
        self.wake_request.make();
        let was_parked = self.notices.unpark();
        if was_parked {
            self.wake_parked();
        }
        was_parked
    }
}

#[derive(Clone, Debug)]
pub(super) struct PeerBell {
    bell: Arc<Doorbell<Window>>,
    memory: Arc<SharedMemory>,
}

impl PeerBell {
    /// Bytes of the memory, page-rounded by the kernel.
    pub(super) const BYTES: usize = BELL_WORDS * WORD_BYTES;

    pub(super) fn new(memory: Arc<SharedMemory>) -> io::Result<Self> {
        let bell = Doorbell::new(Window::new(Arc::clone(&memory)))
            .ok_or_else(|| io::Error::other("the memory is too small for a bell"))?;
        Ok(Self { bell: Arc::new(bell), memory })
    }

    #[inline]
    pub(super) fn bits(&self) -> &Doorbell<Window> {
        &self.bell
    }

    /// A system call if the listener sleeps.
    pub(super) fn ring(&self, place: u32) {
        if self.bell.ring(bit_of(place)) {
            self.wake();
        }
    }

    fn futex(&self) -> &AtomicU32 {
        let half = usize::from(cfg!(target_endian = "big"));
        // SAFETY: `Doorbell::new` has checked that the memory has this word, which is mapped as long as `self` lives. All
        // access it atomically.
        unsafe {
            self.memory.as_ptr().cast::<AtomicU32>().add(BELL_PARKED_WORD * 2 + half).as_ref()
        }
    }

    fn wake(&self) {
        // Of an address that is mapped it does not fail.
        let _ = futex::wake(self.futex(), futex::Flags::empty(), 1);
    }

    /// True if the time was over.
    fn sleep(&self, at_most: Duration) -> bool {
        let timeout = Timespec::try_from(at_most).ok();
        let slept = futex::wait(self.futex(), futex::Flags::empty(), 1, timeout.as_ref());
        slept == Err(Errno::TIMEDOUT)
    }
}

#[derive(Debug)]
pub(super) struct PlaceLease {
    core: Arc<CoreShared>,
    place: u32,
}

impl PlaceLease {
    /// `None` when the core has as many connections as it takes.
    pub(super) fn take(core: &Arc<CoreShared>) -> Option<Self> {
        let place = core.free.pop()?;
        Some(Self { core: Arc::clone(core), place })
    }

    pub(super) fn core(&self) -> &Arc<CoreShared> {
        &self.core
    }

    pub(super) fn index(&self) -> u32 {
        self.place
    }
}

impl Drop for PlaceLease {
    fn drop(&mut self) {
        // Has room: the place was taken from here.
        let _ = self.core.free.push(self.place);
    }
}
