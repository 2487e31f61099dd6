//! The contexts of a responder: one table for a process, because a handle may arrive over any
//! connection, on any core (RFC 2203 section 5.3.3.1 binds it to neither).
//!
//! A handle names its slot, so that a context is found without a search. A generation tells the
//! contexts of a slot apart, and random bytes of the process those of an earlier process: after a
//! restart every handle is unknown, and clients establish new contexts.
//!
//! The table is bounded, and so is the part of one host. When a bound is reached the context that
//! has been idle longest goes, which RFC 2203 section 5.3.3.3 allows: its client hears
//! RPCSEC_GSS_CREDPROBLEM and establishes another. One that no verified call has come under goes before all that have
//! been used: a token that is sent again makes a context without its sender having the key. Such a context has a shorter time, too.

use spinrpc_proto::ids::Instant;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use subtle::ConstantTimeEq;

use crate::context::{Context, lock};

/// Length of a handle.
pub const HANDLE_BYTES: usize = 16;

/// Name of a context in the credentials of its calls.
pub type Handle = [u8; HANDLE_BYTES];

/// Contexts of the table for each one that a single host may have.
const HOST_SHARE: usize = 8;

/// Limits of a table.
#[derive(Clone, Copy, Debug)]
pub struct TableLimits {
    /// Maximum number of contexts, at least one.
    pub contexts: usize,
    /// Nanoseconds without a call after which a context expires.
    pub idle: u64,
    /// Nanoseconds after which a context goes under which no verified call has come (`Config::gss_unused`).
    pub unused: u64,
}

/// The contexts of a process. To find or remove one locks its slot for a few instructions. To add one
/// looks at every slot, and belongs on a thread that establishes contexts.
pub struct ContextTable {
    slots: Box<[Mutex<TableSlot>]>,
    process: [u8; 8],
    limits: TableLimits,
    adding: Mutex<()>,
    expired: AtomicU64,
    evicted: AtomicU64,
}

#[derive(Default)]
struct TableSlot {
    generation: u32,
    entry: Option<Entry>,
}

struct Entry {
    context: Arc<Context>,
    host: u64,
    made: Instant,
    last_used: Instant,
}

impl ContextTable {
    /// An empty table. `process` are random bytes of the system.
    pub fn new(limits: TableLimits, process: [u8; 8]) -> Self {
        let slots = (0..limits.contexts.max(1)).map(|_| Mutex::new(TableSlot::default()));
        Self {
            slots: slots.collect(),
            process,
            limits,
            adding: Mutex::new(()),
            expired: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// Adds a context that was established from `host`. Where a bound is reached, that of the host
    /// or of the table, the context that has been idle longest goes.
    pub fn insert(&self, context: Arc<Context>, host: u64, now: Instant) -> Handle {
        let _adding = lock(&self.adding);
        self.sweep(now);
        let index = self.place(host, now);
        let mut slot = lock(&self.slots[index]);
        slot.generation = slot.generation.wrapping_add(1);
        let handle = self.handle(index, slot.generation);
        let before = slot.entry.replace(Entry { context, host, made: now, last_used: now });
        drop(slot);
        self.evicted.fetch_add(u64::from(before.is_some()), Ordering::Relaxed);
        // Not under the lock: its keys are cleared.
        drop(before);
        handle
    }

    /// The context of a handle, unless it has expired or been idle for too long.
    pub fn find(&self, handle: &[u8], now: Instant) -> Option<Arc<Context>> {
        let (index, generation) = self.parse(handle)?;
        let mut slot = lock(self.slots.get(index)?);
        if slot.generation != generation {
            return None;
        }
        let entry = slot.entry.as_mut().filter(|entry| self.is_live(entry, now))?;
        entry.last_used = entry.last_used.max(now);
        Some(Arc::clone(&entry.context))
    }

    /// Removes a context, as DESTROY asks; the caller has checked its verifier. `false` if there is
    /// none of that handle.
    pub fn remove(&self, handle: &[u8]) -> bool {
        let Some((index, generation)) = self.parse(handle) else { return false };
        let Some(slot) = self.slots.get(index) else { return false };
        let mut slot = lock(slot);
        let removed = if slot.generation == generation { slot.entry.take() } else { None };
        drop(slot);
        removed.is_some()
    }

    /// Removes all contexts that have expired or been idle for too long; returns their number.
    pub fn sweep(&self, now: Instant) -> usize {
        let dead = |slot: &Mutex<TableSlot>| {
            let mut slot = lock(slot);
            let dead = slot.entry.take_if(|entry| !self.is_live(entry, now));
            drop(slot);
            dead.is_some()
        };
        let count = self.slots.iter().filter(|slot| dead(slot)).count();
        self.expired.fetch_add(count as u64, Ordering::Relaxed);
        count
    }

    /// Contexts that went because they had expired, or had been idle or unused for too long.
    pub fn expired(&self) -> u64 {
        self.expired.load(Ordering::Relaxed)
    }

    /// Contexts that made way for others.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Contexts in the table.
    pub fn len(&self) -> usize {
        self.slots.iter().filter(|slot| lock(slot).entry.is_some()).count()
    }

    /// There are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn host_max(&self) -> usize {
        (self.slots.len() / HOST_SHARE).max(1)
    }

    fn is_live(&self, entry: &Entry, now: Instant) -> bool {
        let since = |then: Instant| now.0.saturating_sub(then.0);
        // Forged calls name it, too: until one is verified its time does not start again.
        let in_use = entry.context.is_proved() || since(entry.made) < self.limits.unused;
        !entry.context.is_expired(now) && since(entry.last_used) < self.limits.idle && in_use
    }

    /// The slot for a new context of `host`: one that is empty or has a dead context, else that of
    /// the context idle longest; of a host at its bound, among its own.
    fn place(&self, host: u64, now: Instant) -> usize {
        let (mut held, mut own, mut any) = (0, None, None);
        for (index, slot) in self.slots.iter().enumerate() {
            let slot = lock(slot);
            let live = slot.entry.as_ref().filter(|entry| self.is_live(entry, now));
            let used = live.map(|entry| (entry.context.is_proved(), entry.last_used));
            any = earlier(any, (used, index));
            if live.is_some_and(|entry| entry.host == host) {
                held += 1;
                own = earlier(own, (used, index));
            }
        }
        let chosen = if held >= self.host_max() { own } else { any };
        chosen.map_or(0, |(_, index)| index)
    }

    fn handle(&self, index: usize, generation: u32) -> Handle {
        let mut handle = [0; HANDLE_BYTES];
        handle[..4].copy_from_slice(&(index as u32).to_be_bytes());
        handle[4..8].copy_from_slice(&generation.to_be_bytes());
        handle[8..].copy_from_slice(&self.process);
        handle
    }

    fn parse(&self, handle: &[u8]) -> Option<(usize, u32)> {
        let (words, process) = handle.split_first_chunk::<8>()?;
        if !bool::from(process.ct_eq(&self.process)) {
            return None;
        }
        let both = u64::from_be_bytes(*words);
        Some(((both >> 32) as usize, both as u32))
    }
}

shown!(ContextTable: limits);

/// Of a slot in use, if a verified call came under its context and when it was used last; and its place.
type Candidate = (Option<(bool, Instant)>, usize);

/// The one used earlier; unused ones first.
fn earlier(best: Option<Candidate>, other: Candidate) -> Option<Candidate> {
    best.filter(|best| best.0 <= other.0).or(Some(other))
}
