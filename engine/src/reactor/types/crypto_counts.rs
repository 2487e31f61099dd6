//! Bodies that a core has sealed and unsealed under RPCSEC_GSS, and the time that took.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sys::clock::Clock;
use spinrpc_proto::rpc::GssService;

/// Counters of one core. Its thread writes them, those that seal and unseal its long bodies, and one that seals the reply of a
/// deferred call. Nothing
/// pairs with their orderings.
#[derive(Debug)]
pub(crate) struct CryptoCounts {
    clock: Clock,
    integrity: Counter,
    privacy: Counter,
    /// Bodies that were left to the core's threads.
    long: AtomicU64,
}

#[derive(Debug, Default)]
struct Counter {
    bytes: AtomicU64,
    ticks: AtomicU64,
}

impl CryptoCounts {
    pub(in crate::reactor) fn new(clock: Clock) -> Self {
        let (integrity, privacy) = Default::default();
        Self { clock, integrity, privacy, long: AtomicU64::new(0) }
    }

    /// Counts a body of this length, which is completely sealed or unsealed.
    pub(crate) fn count(&self, service: GssService, bytes: usize) {
        if let Some(counter) = self.of(service) {
            counter.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Counts a body that is left to the core's threads.
    pub(in crate::reactor) fn count_long(&self) {
        self.long.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn long(&self) -> u64 {
        self.long.load(Ordering::Relaxed)
    }

    /// Measures the work on a body. Not measured without a counter of the processor: reading the clock of the kernel
    /// costs more than sealing a short body.
    pub(crate) fn measure<T>(&self, service: GssService, work: impl FnOnce() -> T) -> T {
        let start = self.clock.counter();
        let result = work();
        if let (Some(start), Some(end)) = (start, self.clock.counter())
            && let Some(counter) = self.of(service)
        {
            counter.ticks.fetch_add(end.0.saturating_sub(start.0), Ordering::Relaxed);
        }
        result
    }

    /// Bytes of bodies of a service, and the nanoseconds that they took.
    pub(crate) fn of_service(&self, service: GssService) -> (u64, u64) {
        self.of(service).map_or((0, 0), |counter| {
            let ticks = counter.ticks.load(Ordering::Relaxed);
            (counter.bytes.load(Ordering::Relaxed), self.clock.to_ns(ticks))
        })
    }

    fn of(&self, service: GssService) -> Option<&Counter> {
        match service {
            GssService::Integrity => Some(&self.integrity),
            GssService::Privacy => Some(&self.privacy),
            GssService::None | GssService::Other(_) => None,
        }
    }
}
