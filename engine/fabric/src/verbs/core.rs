//! State that a core shares with the control thread: news of its connections, what it sleeps on, the queues its
//! connections complete on, and the memory it has lent.
//!
//! The control thread makes and takes down; the core polls, and holds no lock while it does.

use super::super::{FabricError, Wake};
use super::objects::{CompletionChannel, CompletionQueue, ProtectionDomain, with_error};
use crate::core_sleep::CoreSleep;
use crate::mem::BulkPool;
use crate::sync::atomic::{AtomicU32, Ordering, fence};
use crate::sync::cache_lines::assert_lines;
use crate::sync::{CachePadded, lock};
use rdma_sys::ibv_context;
use rustix::event::epoll::EventFlags;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, Weak};

/// A device's context, by which devices are told apart. Opened by librdmacm, it stays open as long
/// as a connection of the device is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Context(pub(super) NonNull<ibv_context>);

// SAFETY: the library's contexts may be used from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// The state of a connection has changed.
pub(super) const CHANGED: u32 = 1;
/// It is time to look which connections are silent.
pub(super) const LOOK: u32 = 2;

#[derive(Debug)]
pub(super) struct CoreShared {
    index: usize,
    /// Bits: [`CHANGED`] and [`LOOK`].
    news: CachePadded<AtomicU32>,
    /// Waits for the completion channels.
    pub(super) sleep: CoreSleep,
    /// Set by [`Fabric::begin`](super::super::Fabric::begin), before connections come.
    pub(super) lent: Mutex<Option<BulkPool>>,
    queues: Mutex<Vec<DeviceQueues>>,
    /// The domain of connections whose peers can reach nothing by its keys, for each device, as long as one of them is there.
    domains: Mutex<Vec<(Context, Weak<ProtectionDomain>)>>,
}

assert_lines!(CoreShared: news);

#[derive(Debug)]
struct DeviceQueues {
    context: Context,
    channel: Arc<CompletionChannel>,
    queues: Vec<SharedQueue>,
}

#[derive(Debug)]
struct SharedQueue {
    queue: Arc<CompletionQueue>,
    reserved: u32,
}

/// Entries of the completion queues that a core makes on a device. Each has twice as many as the one before,
/// so that a core with many connections polls few queues in each turn, and one with few wastes no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CqDepth {
    pub(super) first: u32,
    pub(super) most: u32,
}

/// As far as they double: beyond that the memory of a queue that is half used would count.
const DOUBLINGS: usize = 6;

impl CqDepth {
    fn beside(self, queues: usize) -> u32 {
        let doubled = u64::from(self.first) << queues.min(DOUBLINGS);
        u32::try_from(doubled).unwrap_or(u32::MAX).min(self.most)
    }
}

impl CoreShared {
    pub(super) fn new(index: usize) -> Result<Self, FabricError> {
        Ok(Self {
            index,
            news: CachePadded::default(),
            sleep: CoreSleep::new(index)?,
            lent: Mutex::new(None),
            queues: Mutex::new(Vec::new()),
            domains: Mutex::new(Vec::new()),
        })
    }

    pub(super) fn notify(&self) {
        self.tell(CHANGED);
    }

    pub(super) fn ask_for_look(&self) {
        self.tell(LOOK);
    }

    fn tell(&self, news: u32) {
        // Release pairs with the Acquire of `take_news`: the state that changed is seen.
        self.news.fetch_or(news, Ordering::Release);
        // Pairs with that of `CoreSleep::park`.
        fence(Ordering::SeqCst);
        self.sleep.wake_parked();
    }

    #[inline]
    pub(super) fn has_news(&self) -> bool {
        // Relaxed: news that is missed now is seen by the next poll.
        self.news.load(Ordering::Relaxed) != 0
    }

    pub(super) fn take_news(&self) -> u32 {
        if self.has_news() { self.news.swap(0, Ordering::Acquire) } else { 0 }
    }

    /// Announces that the core is going to sleep, see [`CoreSleep::park`]. False also when there is news.
    #[must_use = "when false, the core must not sleep"]
    pub(super) fn park(&self) -> bool {
        self.sleep.park() && !self.has_news()
    }

    /// Makes a queue if none has as many entries left (control thread).
    ///
    /// # Safety
    /// The context is open, and stays so as long as the lease lives.
    pub(super) unsafe fn reserve(
        self: &Arc<Self>,
        context: Context,
        entries: u32,
        depth: CqDepth,
    ) -> Result<QueueLease, FabricError> {
        let mut devices = lock(&self.queues);
        // SAFETY: the caller vouches for the context.
        let device = unsafe { device_queues(&mut devices, context, &self.sleep)? };
        let fits = |shared: &&mut SharedQueue| shared.queue.depth - shared.reserved >= entries;
        if let Some(shared) = device.queues.iter_mut().find(fits) {
            shared.reserved += entries;
            let queue = Arc::clone(&shared.queue);
            return Ok(QueueLease { core: Arc::clone(self), queue, entries });
        }
        let make = |depth: u32| {
            // SAFETY: as above, and the channel is of the same device.
            unsafe {
                let (context, depth) = (context.0.as_ptr(), depth.max(entries));
                CompletionQueue::new(context, depth, &device.channel, self.index)
            }
        };
        // A device may have no memory for the longer one.
        let queue = match make(depth.beside(device.queues.len())).or_else(|_| make(depth.first)) {
            Ok(queue) => Arc::new(queue),
            Err(error) => {
                devices.retain(|device| !device.queues.is_empty());
                return Err(error);
            }
        };
        device.queues.push(SharedQueue { queue: Arc::clone(&queue), reserved: entries });
        Ok(QueueLease { core: Arc::clone(self), queue, entries })
    }

    /// The protection domain that connections of a device share; `make` makes it for the first of them (control thread).
    pub(super) fn share_domain(
        &self,
        context: Context,
        make: impl FnOnce() -> Result<ProtectionDomain, FabricError>,
    ) -> Result<Arc<ProtectionDomain>, FabricError> {
        let mut domains = lock(&self.domains);
        domains.retain(|(_, domain)| domain.strong_count() > 0);
        let known = domains.iter().find(|(other, _)| *other == context);
        if let Some(domain) = known.and_then(|(_, domain)| domain.upgrade()) {
            return Ok(domain);
        }
        let domain = Arc::new(make()?);
        domains.push((context, Arc::downgrade(&domain)));
        Ok(domain)
    }

    fn give_back(&self, queue: &Arc<CompletionQueue>, entries: u32) {
        let mut devices = lock(&self.queues);
        for device in devices.iter_mut() {
            for shared in &mut device.queues {
                if Arc::ptr_eq(&shared.queue, queue) {
                    shared.reserved -= entries;
                }
            }
            // An unused device is released, so that it can be removed.
            device.queues.retain(|shared| shared.reserved > 0);
        }
        devices.retain(|device| {
            let is_used = !device.queues.is_empty();
            if !is_used {
                self.sleep.forget(&*device.channel);
            }
            is_used
        });
    }
}

/// # Safety
/// The context is open, and stays so as long as one of the queues lives.
unsafe fn device_queues<'a>(
    devices: &'a mut Vec<DeviceQueues>,
    context: Context,
    sleep: &CoreSleep,
) -> Result<&'a mut DeviceQueues, FabricError> {
    let at = match devices.iter().position(|device| device.context == context) {
        Some(at) => at,
        None => {
            // SAFETY: the caller vouches for the context.
            let channel = Arc::new(unsafe { CompletionChannel::new(context.0.as_ptr())? });
            sleep
                .watch(&*channel, 0, EventFlags::IN)
                .map_err(|error| with_error("wait for a completion channel", error))?;
            devices.push(DeviceQueues { context, channel, queues: Vec::new() });
            devices.len() - 1
        }
    };
    Ok(&mut devices[at])
}

impl Wake for CoreShared {
    fn wake(&self) -> bool {
        self.sleep.wake()
    }
}

/// Entries of a completion queue that are reserved for a queue pair; given back when dropped, which
/// comes after the end of the queue pair.
#[derive(Debug)]
pub(super) struct QueueLease {
    core: Arc<CoreShared>,
    pub(super) queue: Arc<CompletionQueue>,
    entries: u32,
}

impl Drop for QueueLease {
    fn drop(&mut self) {
        self.core.give_back(&self.queue, self.entries);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_completion_queue_is_twice_as_deep_as_the_one_before_up_to_a_limit() {
        let depth = CqDepth { first: 4096, most: 1 << 22 };
        let depths: Vec<_> = (0..9).map(|queues| depth.beside(queues)).collect();
        let doubled = (12..=18).map(|bits| 1 << bits);
        assert_eq!(depths, doubled.chain([1 << 18; 2]).collect::<Vec<_>>());
        let entries: u64 = depths.iter().map(|depth| u64::from(*depth)).sum();
        assert!(entries > 600 * 1414, "nine queues are enough for 600 connections");
        let small = CqDepth { first: 4096, most: 10_000 };
        assert_eq!([0, 1, 2, 60].map(|queues| small.beside(queues)), [4096, 8192, 10_000, 10_000]);
        let large = CqDepth { first: 1 << 31, most: u32::MAX };
        assert_eq!(large.beside(3), u32::MAX);
    }

    #[test]
    fn news_is_taken_once() {
        let core = CoreShared::new(0).unwrap();
        assert!(!core.has_news() && core.take_news() == 0);
        core.notify();
        core.notify();
        assert!(core.has_news() && core.take_news() == CHANGED);
        core.ask_for_look();
        core.notify();
        assert_eq!(core.take_news(), CHANGED | LOOK);
        assert!(!core.has_news() && core.take_news() == 0);
    }

    #[test]
    fn a_core_with_news_or_a_call_to_wake_does_not_sleep() {
        let core = CoreShared::new(0).unwrap();
        core.notify();
        assert!(!core.park());
        core.sleep.unpark();
        assert_eq!(core.take_news(), CHANGED);
        core.wake();
        assert!(!core.park());
        core.sleep.unpark();
        assert!(core.park(), "nothing is left over");
        core.sleep.unpark();
    }
}
