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
    LOCAL_WRITE, MemoryRegion, MemoryWindow, ProtectionDomain, REMOTE_READ, REMOTE_WRITE,
    WINDOW_BIND,
};
use crate::mem::{Bulk, BulkClass, BulkPool, Region, RegionHold, RegionId, Slab};
use crate::sys::mmap::{Mapping, PageRequest};
use rdma_sys::{ibv_mr, ibv_mw};
use rustix::process::{Resource, getrlimit};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// Most regions registered with one connection. Beyond this, unused ones make room.
const REGIONS_MAX: usize = 256;

/// A core's memory that its connections may use.
#[derive(Clone, Debug)]
pub(super) struct LentMemory(BulkPool);

impl LentMemory {
    pub(super) fn new(pool: &BulkPool) -> Self {
        Self(pool.clone())
    }
}

/// The peer's access to memory: [`Registration`], decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Buffer,
    Window,
    Pool,
}

impl Mode {
    fn decide(wanted: Registration, caps: &DeviceCaps) -> Result<Self, FabricError> {
        match caps.registration(wanted) {
            Registration::Window if caps.windows_max == 0 || !caps.has_invalidate => {
                Err(FabricError {
                    op: "register memory by windows".into(),
                    reason: "the device has no memory windows of type 2".into(),
                    source: None,
                })
            }
            Registration::Window => Ok(Self::Window),
            Registration::Buffer | Registration::Auto => Ok(Self::Buffer),
            Registration::Pool => Ok(Self::Pool),
        }
    }

    /// Rights on the whole of the memory that can be exposed, in addition to those of this side.
    fn access(self) -> u32 {
        match self {
            Self::Buffer => 0,
            Self::Window => WINDOW_BIND,
            Self::Pool => REMOTE_READ | REMOTE_WRITE,
        }
    }
}

/// Registrations of a connection's memory. Windows are freed first, regions after them.
#[derive(Debug)]
pub(super) struct LinkMemory {
    windows: Box<[Option<MemoryWindow>]>,
    /// Two for each block of the arena: one for reading, one for writing.
    blocks: Box<[[MemoryRegion; 2]]>,
    registered: Registered,
    /// Memory that can be exposed: the connection's own arena, or the core's memory.
    pool: BulkPool,
    /// Slabs that windows can be bound to, too.
    lent: Vec<RegionId>,
    /// The pool is not the core's.
    is_own_pool: bool,
    /// RDMA Reads end in that pool only.
    has_own_sinks: bool,
    mode: Mode,
    keys_max: usize,
    /// For messages; given away bit by bit.
    messages: Option<Region>,
}

impl LinkMemory {
    /// Registers the memory that a connection needs from the start (control thread).
    pub(super) fn prepare(
        domain: &Arc<ProtectionDomain>,
        caps: &DeviceCaps,
        (config, side): (&VerbsConfig, Side),
        lent: Option<&LentMemory>,
    ) -> Result<Self, FabricError> {
        let mode = Mode::decide(config.registration, caps)?;
        let exposes = config.exposes(side);
        let mut registered = Registered::new(domain);
        if let Some(LentMemory(lent)) = lent {
            let exposed = if caps.is_iwarp { 0 } else { mode.access() };
            registered.add(lent.hold_region(), LOCAL_WRITE | exposed)?;
        }
        let has_own_sinks = caps.is_iwarp;
        let needs_own = has_own_sinks || mode == Mode::Buffer && exposes;
        let core = lent.filter(|_| !needs_own);
        let is_own_pool = core.is_none();
        let pool = match core {
            Some(LentMemory(lent)) => lent.clone(),
            None => {
                let is_reachable = caps.is_iwarp || mode != Mode::Window;
                let arena = arena(&config.arena, is_reachable)?;
                // Blocks have separate keys.
                let is_sink = caps.is_iwarp && mode != Mode::Buffer;
                let sink = if is_sink { REMOTE_WRITE } else { 0 };
                registered.add(arena.hold_region(), LOCAL_WRITE | sink | mode.access())?;
                arena
            }
        };
        let blocks = match mode {
            Mode::Buffer if is_own_pool => register_blocks(domain, &pool)?,
            Mode::Buffer | Mode::Window | Mode::Pool => Box::default(),
        };
        let keys_max = if exposes { config.keys_max } else { 0 };
        let count = if mode == Mode::Window { keys_max } else { 0 };
        let windows = (0..count).map(|_| MemoryWindow::new(domain).map(Some));
        let windows = windows.collect::<io::Result<_>>().map_err(|error| FabricError {
            op: format!("allocate {count} memory windows for a connection"),
            reason: format!("{error}; the device has {} in all", caps.windows_max),
            source: Some(error),
        })?;
        let messages = messages(config.memory_bytes(side), &mut registered)?;
        let lent = Vec::new();
        Ok(Self {
            windows,
            blocks,
            registered,
            pool,
            lent,
            is_own_pool,
            has_own_sinks,
            mode,
            keys_max,
            messages,
        })
    }

    /// Registers slabs of the application, for windows: the keys of other modes outlive calls, and their blocks are
    /// copied. Before the core has the connection.
    ///
    /// # Errors
    /// The error of the registration.
    pub(super) fn lend(&mut self, slabs: &[Slab]) -> Result<(), FabricError> {
        if self.mode != Mode::Window {
            return Ok(());
        }
        for slab in slabs {
            self.registered.add(slab.hold_region(), LOCAL_WRITE | WINDOW_BIND)?;
            self.lent.push(slab.region_id());
        }
        Ok(())
    }

    /// Exposable memory, none of it exposed yet.
    pub(super) fn exposures(&self) -> Exposures {
        let region = self.pool.region_id();
        match self.mode {
            Mode::Buffer => {
                let keys = |[read, write]: &[MemoryRegion; 2]| BlockKeys {
                    read: read.remote_key(),
                    write: write.remote_key(),
                };
                let keys: Vec<_> = self.blocks.iter().map(keys).collect();
                Exposures::of_blocks(region, &keys, self.keys_max)
            }
            Mode::Window => {
                let windows = self.windows.iter().flatten();
                let regions = [region].iter().chain(&self.lent).copied().collect();
                Exposures::by_windows(regions, windows.map(MemoryWindow::key))
            }
            Mode::Pool => {
                let key = self.registered.find(region).map_or(0, MemoryRegion::remote_key);
                Exposures::by_one_key(region, key)
            }
        }
    }

    /// See [`Fabric::read_sinks`](super::super::Fabric::read_sinks).
    pub(super) fn read_sinks(&self) -> Option<&BulkPool> {
        self.has_own_sinks.then_some(&self.pool)
    }

    /// Its memory, where that is not the core's.
    pub(super) fn own_pool(&self) -> Option<&BulkPool> {
        self.is_own_pool.then_some(&self.pool)
    }

    /// The key of the block that a Read fills from `first` on, where the peer is told it; `None`: the
    /// region's will do.
    pub(super) fn sink_key(&self, first: NonNull<u8>) -> Option<u32> {
        if !self.has_own_sinks || self.mode != Mode::Buffer {
            return None;
        }
        let address = first.as_ptr().addr();
        let behind = self.blocks.partition_point(|[_, write]| write.first_address() <= address);
        let [_, write] = self.blocks.get(behind.checked_sub(1)?)?;
        Some(write.local_key())
    }

    /// A block that can be exposed.
    pub(super) fn take(&self, bytes: usize) -> Option<Bulk> {
        self.pool.take(bytes)
    }

    /// Registered memory for messages.
    pub(super) fn take_messages(&mut self, bytes: usize) -> Option<Region> {
        self.messages.as_mut()?.split_to(bytes)
    }

    /// The key for work requests of this side, of memory in the region `id`, which `hold` keeps. The
    /// first time it may have to be registered (system call).
    ///
    /// # Errors
    /// The error of the registration.
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

    /// Objects that a window is bound with: the window itself, and the region of the exposed
    /// memory.
    pub(super) fn window(&self, at: usize, id: RegionId) -> Option<(*mut ibv_mw, *mut ibv_mr)> {
        let window = self.windows.get(at)?.as_ref()?.as_ptr();
        Some((window, self.registered.find(id)?.as_ptr()))
    }

    /// The key that a window was just bound with: drivers name a window by its current one.
    pub(super) fn set_window_key(&mut self, at: usize, key: u32) {
        if let Some(Some(window)) = self.windows.get_mut(at) {
            window.set_key(key);
        }
    }

    /// Frees a window, bound or not (system call). A queue pair that has bound windows cannot be
    /// destroyed on some devices.
    pub(super) fn free_window(&mut self, at: usize) {
        if let Some(window) = self.windows.get_mut(at) {
            *window = None;
        }
    }
}

/// Regions registered with one protection domain.
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
    region: MemoryRegion,
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
        Some(&self.regions[at].region)
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

    /// Deregisters regions that are not in use any more.
    fn make_room(&mut self) {
        if self.regions.len() >= REGIONS_MAX {
            self.regions.retain(|registered| !registered.hold.is_unused());
            self.latest = (RegionId(0), 0);
        }
    }

    fn add(&mut self, hold: RegionHold, access: u32) -> Result<(), FabricError> {
        let Err(place) = self.place(hold.id()) else { return Ok(()) };
        if self.regions.len() >= REGIONS_MAX {
            return Err(FabricError {
                op: "register memory".into(),
                reason: format!("{REGIONS_MAX} regions of one connection are in use"),
                source: None,
            });
        }
        // SAFETY: `hold` keeps the memory mapped and is dropped after the registration. The peer
        // gets rights on a whole region only where it is trusted (`Pool`), and over iWARP on an
        // arena of this connection alone, to which there are no references.
        let region =
            unsafe { MemoryRegion::register(&self.domain, hold.as_ptr(), hold.len(), access) };
        let region = region.map_err(|error| cannot_register(hold.len(), error))?;
        self.regions.insert(place, RegisteredRegion { region, hold });
        Ok(())
    }
}

/// An arena of a connection's own. Keys of it outlive calls if it `is_reachable`.
fn arena(classes: &[BulkClass], is_reachable: bool) -> Result<BulkPool, FabricError> {
    let failed = |reason: String, source: Option<io::Error>| FabricError {
        op: "make the arena of a connection".into(),
        reason,
        source,
    };
    let bytes = BulkPool::region_bytes(classes).map_err(|e| failed(e.to_string(), None))?;
    let mapping = Mapping::anonymous(bytes, PageRequest::default())
        .map_err(|error| failed(error.to_string(), Some(error)))?;
    let region = match is_reachable {
        true => Region::from_reachable_mapping(mapping),
        false => Region::from_mapping(mapping),
    };
    BulkPool::new(region, classes).map_err(|e| failed(e.to_string(), None))
}

/// Memory for messages, registered whole; `None` if none is configured.
fn messages(bytes: usize, registered: &mut Registered) -> Result<Option<Region>, FabricError> {
    if bytes == 0 {
        return Ok(None);
    }
    let mapping =
        Mapping::anonymous(bytes, PageRequest::default()).map_err(|error| FabricError {
            op: format!("map {bytes} bytes for the messages of a connection"),
            reason: error.to_string(),
            source: Some(error),
        })?;
    let region = Region::from_mapping(mapping);
    registered.add(region.hold(), LOCAL_WRITE)?;
    Ok(Some(region))
}

/// Registers each block twice: each key has exactly one right (RFC 5042 section 6.3.5).
fn register_blocks(
    domain: &Arc<ProtectionDomain>,
    arena: &BulkPool,
) -> Result<Box<[[MemoryRegion; 2]]>, FabricError> {
    let register = |(first, bytes)| {
        let with = |right| {
            // SAFETY: the arena outlives its registrations, by the order of `LinkMemory`'s fields.
            // The keys of a block are told to the peer while a lease is held for it; later accesses
            // with them affect only memory that calls to this peer use, as the settings say.
            unsafe { MemoryRegion::register(domain, first, bytes, LOCAL_WRITE | right) }
                .map_err(|error| cannot_register(bytes, error))
        };
        Ok([with(REMOTE_READ)?, with(REMOTE_WRITE)?])
    };
    arena.blocks().map(register).collect()
}

/// Reason why memory could not be registered, and the remedy.
fn cannot_register(bytes: usize, error: io::Error) -> FabricError {
    let reason = match error.raw_os_error() {
        Some(libc::ENOMEM | libc::EAGAIN) => {
            let limit = getrlimit(Resource::Memlock).current;
            let limit = limit.map_or("unlimited".into(), |bytes| format!("{} KiB", bytes >> 10));
            format!(
                "{error}: the process has pinned {}, and may lock {limit} (RLIMIT_MEMLOCK); raise \
                 the limit: ulimit -l, LimitMEMLOCK= of a service, docker --ulimit memlock=-1",
                pinned().unwrap_or_else(|| "an unknown amount".into())
            )
        }
        _ => error.to_string(),
    };
    FabricError { op: format!("register {bytes} bytes of memory"), reason, source: Some(error) }
}

/// Memory that the process has pinned for devices, as the kernel reports it.
fn pinned() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"))?;
    Some(line.trim().into())
}
