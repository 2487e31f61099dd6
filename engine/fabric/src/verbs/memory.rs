//! The memory of a connection, as far as the device knows it: registrations, keys, and memory that
//! may be exposed to the peer.
//!
//! Made on the control thread, used by the core, and freed on the control thread again. Memory that
//! neither had been told of is registered when it is first posted, which is a system call, and
//! stays registered as long as it is used.

use super::super::FabricError;
use super::config::{Registration, VerbsConfig};
use super::device::DeviceCaps;
use super::exposure::{BlockKeys, Exposures};
use super::link::Side;
use super::objects::{
    LOCAL_WRITE, MemoryRegion, ProtectionDomain, REMOTE_READ, REMOTE_WRITE, WINDOW_BIND,
    WindowTable, with_error,
};
use super::resource_limits;
use crate::mem::{BulkClass, BulkPool, Lease, PoolError, Region, RegionHold, RegionId, Slab};
use crate::sys::mmap::{Mapping, PageRequest};
use rdma_sys::{ibv_mr, ibv_mw};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// Most regions registered with one connection. Beyond this, unused ones make room.
const REGIONS_MAX: usize = 256;

#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Not `Auto`.
    mode: Registration,
    /// Keys that may be in use at a time; zero if this side exposes nothing.
    keys_max: usize,
    /// RDMA Reads end in memory of the connection only.
    is_iwarp: bool,
}

impl Plan {
    pub(super) fn of(config: &VerbsConfig, caps: &DeviceCaps, side: Side) -> Self {
        let keys_max = if config.exposes(side) { config.keys_max } else { 0 };
        let mode = caps.registration(config.registration);
        Self { mode, keys_max, is_iwarp: caps.is_iwarp }
    }

    fn rights(self) -> u32 {
        match self.mode {
            Registration::Window => WINDOW_BIND,
            Registration::Buffer | Registration::Auto => 0,
            Registration::Pool => REMOTE_READ | REMOTE_WRITE,
        }
    }

    pub(super) fn windows(self) -> usize {
        if self.mode == Registration::Window { self.keys_max } else { 0 }
    }

    pub(super) fn is_by_block(self) -> bool {
        self.mode == Registration::Buffer && self.keys_max > 0
    }

    /// RDMA Reads fill memory that is never exposed.
    pub(super) fn has_only_sinks(self) -> bool {
        self.is_iwarp && self.keys_max == 0 && self.mode != Registration::Pool
    }

    /// Returns true if no key of the connection's registrations gives its peer a right, so that it may share a protection
    /// domain with others: where windows are used, which belong to a queue pair, and where nothing is exposed. Over iWARP
    /// peers write to the memory that RDMA Reads fill.
    pub(super) fn shares_domain(self) -> bool {
        !self.is_iwarp && !self.is_by_block() && self.mode != Registration::Pool
    }
}

/// Windows are freed first, regions after them.
#[derive(Debug)]
pub(super) struct LinkMemory {
    pub(super) windows: Arc<WindowTable>,
    /// Two for each block of the arena: one for reading, one for writing.
    blocks: Box<[[MemoryRegion; 2]]>,
    /// One for each block of a pool that RDMA Reads fill and that is never exposed. A block is registered, and with that
    /// pinned, when it is first used: most connections use few.
    sinks: Box<[Option<MemoryRegion>]>,
    registered: Registered,
    /// Memory that can be exposed: the connection's own arena, or the core's memory.
    pub(super) pool: BulkPool,
    lent: Vec<RegionId>,
    is_own_pool: bool,
    plan: Plan,
    /// For messages; given away bit by bit.
    pub(super) messages: Option<Region>,
}

impl LinkMemory {
    /// Control thread.
    pub(super) fn prepare(
        domain: &Arc<ProtectionDomain>,
        plan: Plan,
        (config, caps): (&VerbsConfig, &DeviceCaps),
        lent: Option<&BulkPool>,
    ) -> Result<Self, FabricError> {
        if plan.mode == Registration::Window && (caps.windows_max == 0 || !caps.has_invalidate) {
            let reason = "the device has no memory windows of type 2";
            return Err(FabricError::because("register memory by windows", reason, None));
        }
        let (rights, is_iwarp) = (plan.rights(), plan.is_iwarp);
        let mut registered = Registered::new(domain);
        if let Some(lent) = lent {
            let exposed = if is_iwarp { 0 } else { rights };
            registered.add_shared(lent.hold_region(), LOCAL_WRITE | exposed)?;
        }
        let core = lent.filter(|_| !is_iwarp && !plan.is_by_block());
        let is_own_pool = core.is_none();
        let pool = match core {
            Some(lent) => lent.clone(),
            None if plan.has_only_sinks() => arena(&config.sink_classes(), true)?,
            None => {
                let arena = arena(&config.arena, is_iwarp || plan.mode != Registration::Window)?;
                let is_sink = is_iwarp && !plan.is_by_block();
                let sink = if is_sink { REMOTE_WRITE } else { 0 };
                registered.add(arena.hold_region(), LOCAL_WRITE | sink | rights)?;
                arena
            }
        };
        let blocks = match plan.is_by_block() {
            true => register_blocks(domain, &pool)?,
            false => Box::default(),
        };
        let sinks = match plan.has_only_sinks() {
            true => pool.blocks().map(|_| None).collect(),
            false => Box::default(),
        };
        let windows = windows(domain, config, caps, plan.windows())?;
        let messages = messages(config.message_memory_bytes, &mut registered)?;
        let lent = Vec::new();
        Ok(Self { windows, blocks, sinks, registered, pool, lent, is_own_pool, plan, messages })
    }

    /// Registers slabs of the application, for windows: the keys of other modes outlive calls, and their blocks are
    /// copied. Before the core has the connection.
    pub(super) fn lend(&mut self, slabs: &[Slab]) -> Result<(), FabricError> {
        if self.plan.mode != Registration::Window {
            return Ok(());
        }
        for slab in slabs {
            self.registered.add_shared(slab.hold_region(), LOCAL_WRITE | WINDOW_BIND)?;
            self.lent.push(slab.region_id());
        }
        Ok(())
    }

    pub(super) fn exposures(&self) -> Exposures {
        let region = self.pool.region_id();
        match self.plan.mode {
            Registration::Buffer | Registration::Auto => {
                let keys = |[read, write]: &[MemoryRegion; 2]| BlockKeys {
                    read: read.remote_key(),
                    write: write.remote_key(),
                };
                let keys: Vec<_> = self.blocks.iter().map(keys).collect();
                Exposures::of_blocks(region, &keys, self.plan.keys_max)
            }
            Registration::Window => {
                let regions = [region].iter().chain(&self.lent).copied().collect();
                let mut exposures = Exposures::by_windows(regions, self.windows.most());
                exposures.add_windows(|first| self.windows.keys(first));
                exposures
            }
            Registration::Pool => {
                let key = self.registered.find(region).map_or(0, MemoryRegion::remote_key);
                Exposures::by_one_key(region, key)
            }
        }
    }

    pub(super) fn read_sinks(&self) -> Option<&BulkPool> {
        self.plan.is_iwarp.then_some(&self.pool)
    }

    pub(super) fn own_pool(&self) -> Option<&BulkPool> {
        self.is_own_pool.then_some(&self.pool)
    }

    /// The key of the block that a Read fills, where the peer is told it; `None`: the region's will do. The first time the
    /// block may have to be registered (system call).
    pub(super) fn sink_key(&mut self, into: &Lease) -> Result<Option<u32>, FabricError> {
        if !self.plan.is_iwarp || into.region_id() != self.pool.region_id() {
            return Ok(None);
        }
        let at = into.block_index();
        if let Some(Some(known)) = self.sinks.get(at) {
            return Ok(Some(known.local_key()));
        }
        let Some(place) = self.sinks.get_mut(at) else {
            return Ok(self.blocks.get(at).map(|[_, write]| write.local_key()));
        };
        let Some(block) = self.pool.blocks().nth(at) else { return Ok(None) };
        let sink = register_block(&self.registered.domain, block, REMOTE_WRITE)?;
        Ok(Some(place.insert(sink).local_key()))
    }

    /// The first time the region, which `hold` keeps, may have to be registered (system call).
    #[inline]
    pub(super) fn local_key(
        &mut self,
        id: RegionId,
        hold: impl FnOnce() -> RegionHold,
    ) -> Result<u32, FabricError> {
        if self.registered.latest.0 == id {
            return Ok(self.registered.latest.1);
        }
        self.registered.look_up(id, hold)
    }

    pub(super) fn window(&self, at: usize, id: RegionId) -> Option<(*mut ibv_mw, *mut ibv_mr)> {
        let window = self.windows.get(at)?.as_ptr();
        Some((window, self.registered.find(id)?.as_ptr()))
    }

    /// The key that a window was just bound with: drivers name a window by its current one.
    pub(super) fn set_window_key(&self, at: usize, key: u32) {
        if let Some(window) = self.windows.get(at) {
            window.set_key(key);
        }
    }
}

#[derive(Debug)]
struct Registered {
    domain: Arc<ProtectionDomain>,
    /// Ascending by id.
    regions: Vec<RegisteredRegion>,
    /// The region asked for last, and its key: nearly always the next one, too.
    latest: (RegionId, u32),
}

/// A registered region; the owner of the memory is dropped after the registration.
#[derive(Debug)]
struct RegisteredRegion {
    region: Arc<MemoryRegion>,
    hold: RegionHold,
}

impl Registered {
    fn new(domain: &Arc<ProtectionDomain>) -> Self {
        let regions = Vec::with_capacity(REGIONS_MAX);
        // No region has this id.
        let latest = (RegionId(0), 0);
        Self { domain: Arc::clone(domain), regions, latest }
    }

    fn place(&self, id: RegionId) -> Result<usize, usize> {
        self.regions.binary_search_by_key(&id, |registered| registered.hold.id())
    }

    fn find(&self, id: RegionId) -> Option<&MemoryRegion> {
        let at = self.place(id).ok()?;
        Some(&*self.regions[at].region)
    }

    #[cold]
    fn look_up(
        &mut self,
        id: RegionId,
        hold: impl FnOnce() -> RegionHold,
    ) -> Result<u32, FabricError> {
        if self.place(id).is_err() {
            self.make_room();
            self.add(hold(), LOCAL_WRITE)?;
        }
        let key = self.find(id).map_or(0, MemoryRegion::local_key);
        self.latest = (id, key);
        Ok(key)
    }

    fn make_room(&mut self) {
        if self.regions.len() >= REGIONS_MAX {
            self.regions.retain(|registered| !registered.hold.is_unused());
            self.latest = (RegionId(0), 0);
        }
    }

    fn add(&mut self, hold: RegionHold, access: u32) -> Result<(), FabricError> {
        self.insert(hold, |domain, hold| register(domain, hold, access).map(Arc::new))
    }

    fn add_shared(&mut self, hold: RegionHold, access: u32) -> Result<(), FabricError> {
        self.insert(hold, |domain, hold| domain.share(hold.id(), || register(domain, hold, access)))
    }

    fn insert(
        &mut self,
        hold: RegionHold,
        make: impl FnOnce(&Arc<ProtectionDomain>, &RegionHold) -> io::Result<Arc<MemoryRegion>>,
    ) -> Result<(), FabricError> {
        let Err(place) = self.place(hold.id()) else { return Ok(()) };
        if self.regions.len() >= REGIONS_MAX {
            let reason = format!("{REGIONS_MAX} regions of one connection are in use");
            return Err(FabricError::because("register memory", reason, None));
        }
        let region = make(&self.domain, &hold);
        let region = region.map_err(|error| cannot_register(hold.len(), error))?;
        self.regions.insert(place, RegisteredRegion { region, hold });
        Ok(())
    }
}

fn register(
    domain: &Arc<ProtectionDomain>,
    hold: &RegionHold,
    access: u32,
) -> io::Result<MemoryRegion> {
    // SAFETY: each connection that uses the registration has a hold, which keeps the memory mapped and is dropped after it.
    // The peer gets rights on a whole region only where it is trusted (`Pool`), and over iWARP on an arena of this
    // connection alone, to which there are no references.
    unsafe { MemoryRegion::register(domain, hold.as_ptr(), hold.len(), access) }
}

const ARENA: &str = "make the arena of a connection";

/// Keys of it outlive calls if it `is_reachable`.
fn arena(classes: &[BulkClass], is_reachable: bool) -> Result<BulkPool, FabricError> {
    let failed = |error: PoolError| FabricError::because(ARENA, error, None);
    let mapping = map(ARENA, BulkPool::region_bytes(classes).map_err(failed)?)?;
    let region = match is_reachable {
        true => Region::from_reachable_mapping(mapping),
        false => Region::from_mapping(mapping),
    };
    BulkPool::new(region, classes).map_err(failed)
}

fn map(op: &str, bytes: usize) -> Result<Mapping, FabricError> {
    Mapping::anonymous(bytes, PageRequest::default())
        .map_err(|error| FabricError::because(op, "no memory", Some(error)))
}

fn windows(
    domain: &Arc<ProtectionDomain>,
    config: &VerbsConfig,
    caps: &DeviceCaps,
    count: usize,
) -> Result<Arc<WindowTable>, FabricError> {
    let windows = Arc::new(WindowTable::new(domain, count));
    windows.add(config.keys_first).map_err(|error| FabricError {
        op: format!("allocate {} memory windows for a connection", config.keys_first.min(count)),
        reason: format!(
            "{}; the device has {} in all",
            resource_limits::explain(&error),
            caps.windows_max
        ),
        source: Some(error),
    })?;
    Ok(windows)
}

fn messages(bytes: usize, registered: &mut Registered) -> Result<Option<Region>, FabricError> {
    if bytes == 0 {
        return Ok(None);
    }
    let mapping = map(&format!("map {bytes} bytes for the messages of a connection"), bytes)?;
    let region = Region::from_mapping(mapping);
    registered.add(region.hold(), LOCAL_WRITE)?;
    Ok(Some(region))
}

/// Registers each block twice: each key has exactly one right (RFC 5042 section 6.3.5).
fn register_blocks(
    domain: &Arc<ProtectionDomain>,
    arena: &BulkPool,
) -> Result<Box<[[MemoryRegion; 2]]>, FabricError> {
    let register = |block| {
        let with = |right| register_block(domain, block, right);
        Ok([with(REMOTE_READ)?, with(REMOTE_WRITE)?])
    };
    arena.blocks().map(register).collect()
}

fn register_block(
    domain: &Arc<ProtectionDomain>,
    (first, bytes): (NonNull<u8>, usize),
    right: u32,
) -> Result<MemoryRegion, FabricError> {
    // SAFETY: the arena outlives its registrations, by the order of `LinkMemory`'s fields. The keys of a block are told to
    // the peer while a lease is held for it; later accesses with them affect only memory that calls to this peer use, as
    // the settings say.
    unsafe { MemoryRegion::register(domain, first, bytes, LOCAL_WRITE | right) }
        .map_err(|error| cannot_register(bytes, error))
}

fn cannot_register(bytes: usize, error: io::Error) -> FabricError {
    with_error(&format!("register {bytes} bytes of memory"), error)
}
