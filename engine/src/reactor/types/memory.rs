//! Sizes of the memory of a core and its connections, derived from the configuration.

use crate::config::{Config, Want};
use crate::fabric::FabricError;
use crate::mem::{BufPool, BulkClass, BulkPool, PoolError, Region, Slab, SlabLayout};
use crate::sys::mmap::{HugePages, Mapping, PageRequest};
use crate::sys::topology::Topology;
use std::io;

/// Letters a core's mailbox holds: deferred replies, new connections, and shutdown.
pub(crate) const MAILBOX_LETTERS: usize = 4096;
/// Calls of one core that may be deferred at a time: their replies always find room in the mailbox.
pub(crate) const DEFERRED_MAX: usize = MAILBOX_LETTERS / 2;

/// Places for deferred calls of a core. While no more than `common` of them are taken, and there are blocks of the size that
/// fits best, any call gets one; the rest is for connections and origins that hold few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeferredPlaces {
    pub(crate) common: usize,
    pub(crate) all: usize,
}

impl DeferredPlaces {
    /// As many as half of the letters of the mailbox, and as blocks for their replies. A quarter is not common, or less
    /// where the credits of one connection would not fit into the others.
    pub(crate) fn new(config: &Config, pool: &BulkPool, letters: usize) -> Self {
        let blocks: usize = pool.classes().map(|class| class.total).sum();
        let all = blocks.min(letters / 2);
        Self { common: all - (all / 4).min(all.saturating_sub(config.credits())), all }
    }

    /// Returns true if one more call may be deferred when no common place or block is left, `free` of both are, and its
    /// connection and origin have deferred so many: an origin holds fewer than it leaves to others, and one of its
    /// connections half as many. One that holds none gets the last place.
    pub(crate) fn admit(of_conn: usize, of_origin: usize, free: usize) -> bool {
        let is_only = of_conn >= of_origin;
        let has_share = of_origin == 0 || (of_origin < free && (is_only || 2 * of_conn < free));
        free > 0 && has_share
    }
}

const SMALL_BLOCK_BYTES: usize = 8 << 10;
const MIDDLE_BLOCK_BYTES: usize = 128 << 10;
const LARGE_BLOCK_BYTES: usize = (1 << 20) + (64 << 10);

/// Cuts an arena into blocks: a sixteenth of it small ones, an eighth middle ones, the rest large
/// ones, of which there is at least one.
pub(crate) fn classes(arena_bytes: usize, largest_bytes: usize) -> Vec<BulkClass> {
    let large = large_block_bytes(largest_bytes);
    let small_count = (arena_bytes / 16 / SMALL_BLOCK_BYTES).max(1);
    let middle_count = (arena_bytes / 8 / MIDDLE_BLOCK_BYTES).max(1);
    let rest = arena_bytes
        .saturating_sub(small_count * SMALL_BLOCK_BYTES + middle_count * MIDDLE_BLOCK_BYTES);
    vec![
        BulkClass { block_bytes: SMALL_BLOCK_BYTES, count: small_count },
        BulkClass { block_bytes: MIDDLE_BLOCK_BYTES, count: middle_count },
        BulkClass { block_bytes: large, count: (rest / large).max(1) },
    ]
}

/// The longest block of an arena that is cut as the configuration says.
pub(crate) fn longest_block_bytes(config: &Config) -> usize {
    large_block_bytes(config.peer_limits().payload_bytes_max as usize)
}

fn large_block_bytes(largest_bytes: usize) -> usize {
    LARGE_BLOCK_BYTES.max(largest_bytes)
}

/// Bytes of the buffers of a connection, which are in a region of their own.
pub(crate) fn message_bytes(config: &Config) -> usize {
    let sends = config.requester_send_budget().total().max(config.responder_send_budget().total());
    let pools = [
        (config.recv_buffer_bytes(), config.recv_budget().total()),
        (config.send_buffer_bytes(), sends),
    ];
    let bytes = |(bytes, count)| BufPool::region_bytes(bytes, count as usize).unwrap_or(0);
    pools.into_iter().map(bytes).sum()
}

/// The private registered memory of a core, for RDMA Read sinks, long replies and the
/// application's results. Called on the core's own thread, which is pinned already.
pub(crate) fn core_pool(config: &Config, cpu: usize) -> Result<BulkPool, FabricError> {
    let mib = config.arena_bytes() >> 20;
    let failed = not_mapped(format!("map {mib} MiB of registered memory (mem.arena_mib)"));
    let classes = classes(config.arena_bytes(), config.peer_limits().payload_bytes_max as usize);
    let bytes = BulkPool::region_bytes(&classes).map_err(|e| failed(e.to_string(), None))?;
    let mapping = Mapping::anonymous(bytes, page_request(config, cpu))
        .map_err(|error| failed(why_unmapped(&error, config), Some(error)))?;
    if config.lock() == Want::Require && !mapping.is_locked() {
        return Err(failed(LOCK_REMEDY.into(), None));
    }
    BulkPool::new(Region::from_mapping(mapping), &classes).map_err(|e| failed(e.to_string(), None))
}

fn page_request(config: &Config, cpu: usize) -> PageRequest {
    PageRequest {
        huge: config.hugepages(),
        prefault: config.prefault(),
        lock: config.lock() != Want::Off,
        node: numa_node(config, cpu),
    }
}

/// A pool in a part of `given`, or else in address space that takes memory as it is used: an idle connection holds almost none.
/// A device is told of it, and pins all of it, with the first buffer that is posted.
pub(in crate::reactor) fn lazy_pool<P>(
    what: String,
    bytes: Result<usize, PoolError>,
    given: &mut Option<Region>,
    pool: impl FnOnce(Region) -> Result<P, PoolError>,
) -> Result<P, FabricError> {
    let failed = not_mapped(format!("map {what}"));
    let no_pool = |error: PoolError| failed(error.to_string(), None);
    let bytes = bytes.map_err(no_pool)?;
    let request = PageRequest { huge: HugePages::Off, prefault: false, lock: false, node: None };
    let map = || Mapping::anonymous(bytes, request).map(Region::from_mapping);
    let region = given.as_mut().and_then(|memory| memory.split_to(bytes)).map_or_else(map, Ok);
    pool(region.map_err(|error| failed(error.to_string(), Some(error)))?).map_err(no_pool)
}

fn not_mapped(op: String) -> impl Fn(String, Option<io::Error>) -> FabricError {
    move |reason, source| FabricError { op: op.clone(), reason, source }
}

/// Memory for the application, near the first core.
pub(crate) fn slab(config: &Config, layout: SlabLayout) -> Result<Slab, FabricError> {
    let failed = not_mapped(format!("map a slab of {layout}"));
    let cpu = config.cpus().first().copied().unwrap_or(0);
    let slab = Slab::new(layout, page_request(config, cpu))
        .map_err(|error| failed(why_unmapped(&error, config), Some(error)))?;
    match config.lock() == Want::Require && !slab.is_locked() {
        true => Err(failed(LOCK_REMEDY.into(), None)),
        false => Ok(slab),
    }
}

const LOCK_REMEDY: &str = "mem.lock = require, and the memory cannot be locked: raise the limit \
     (ulimit -l; LimitMEMLOCK= for a service), shrink mem.arena_mib or the slab, or set mem.lock = try";

fn why_unmapped(error: &io::Error, config: &Config) -> String {
    match config.hugepages() {
        HugePages::Require => format!("mem.hugepages = require: {error}; {HUGE_PAGES_REMEDY}"),
        HugePages::Try | HugePages::Off => error.to_string(),
    }
}

const HUGE_PAGES_REMEDY: &str = "reserve enough huge pages of 2 MiB (sysctl vm.nr_hugepages; HugePages_Free \
     in /proc/meminfo tells how many are left), shrink mem.arena_mib or the slab, or set mem.hugepages = try";

fn numa_node(config: &Config, cpu: usize) -> Option<u32> {
    let topology = config.is_near_cpu().then(Topology::current);
    topology?.ok()?.node_of(cpu)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{CoreList, Host, RawConfig};

    #[test]
    fn memory_is_asked_for_on_the_node_of_a_pinned_core() {
        let cpu = Host::current().allowed[0];
        let config = |list| {
            let mut raw = RawConfig::default();
            raw.cores.list = list;
            raw.validate().unwrap()
        };
        let node = Topology::current().ok().and_then(|topology| topology.node_of(cpu));
        assert_eq!(numa_node(&config(CoreList::Auto), cpu), node);
        assert_eq!(numa_node(&config(CoreList::Any), cpu), None);
    }
}
