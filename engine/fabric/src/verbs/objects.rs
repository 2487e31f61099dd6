//! Owners of a device's objects: protection domains, completion queues and channels, memory regions
//! and windows. Each is freed when its owner is dropped, and keeps alive the objects it was created
//! from.
//!
//! Making and freeing them is a system call: the control thread does it, and a core when it
//! registers memory that it had not been told of. Polling a queue is none. The function pointers of
//! polling and arming are looked up once, not with each call as the binding's wrappers do.

use super::super::FabricError;
use super::resource_limits;
use crate::mem::RegionId;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::lock;
use crate::sys::journal::event;
use rdma_sys::*;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, OnceLock, Weak};

type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
type RequestNotify = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;

pub(super) const LOCAL_WRITE: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
pub(super) const REMOTE_READ: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
/// The peer may RDMA Write; needs [`LOCAL_WRITE`].
pub(super) const REMOTE_WRITE: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
pub(super) const WINDOW_BIND: u32 = ibv_access_flags::IBV_ACCESS_MW_BIND.0;

/// Relaxed order of PCI Express for the device's writes to memory, on CPUs that are slow without it: UCX takes it on
/// the same ones. A completion ensures all the same that everything before it is visible (ibv_reg_mr(3)).
fn order() -> u32 {
    static ORDER: OnceLock<u32> = OnceLock::new();
    *ORDER.get_or_init(|| {
        let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let is_wanted = prefers_relaxed_order(&cpus);
        if is_wanted { ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0 } else { 0 }
    })
}

/// AMD EPYC and its relatives by Hygon, from the first one on; Fujitsu's processors for ARM.
fn prefers_relaxed_order(cpus: &str) -> bool {
    let value = |name: &str| {
        let mut fields = cpus.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(key, _)| key.trim() == name).map_or("", |(_, value)| value.trim())
    };
    let is_zen = value("cpu family").parse::<u32>().is_ok_and(|family| family >= 0x17);
    let is_amd = matches!(value("vendor_id"), "AuthenticAMD" | "HygonGenuine");
    is_amd && is_zen || value("CPU implementer") == "0x46"
}

pub(super) fn with_error(op: &str, error: io::Error) -> FabricError {
    FabricError { op: op.into(), reason: resource_limits::explain(&error), source: Some(error) }
}

/// `-1` and an error number, as the libraries' calls say that they failed.
pub(super) fn checked(result: c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        error => Err(io::Error::from_raw_os_error(error.abs())),
    }
}

/// Something could not be freed: that is a leak until the process ends.
fn report(what: &'static str, error: c_int) {
    if let Err(error) = checked(error) {
        event!(WARN, %error, what, "could not free what a device keeps for us");
    }
}

/// An object of the library, which is freed when its owner is dropped. All that is made with it holds a reference to the
/// owner, and nothing that is posted names it any more then, by the order in which a connection ends.
pub(super) struct Owned<T> {
    raw: NonNull<T>,
    what: &'static str,
    free: unsafe extern "C" fn(*mut T) -> c_int,
}

// SAFETY: the library's objects may be used and freed from any thread: it keeps their counts under locks, and drivers lock
// their queues. The one driver that can be told not to is not used then: see `unlocked_driver`.
unsafe impl<T> Send for Owned<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Owned<T> {}

impl<T> Owned<T> {
    pub(super) fn new(
        raw: *mut T,
        what: &'static str,
        free: unsafe extern "C" fn(*mut T) -> c_int,
    ) -> io::Result<Self> {
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { raw, what, free })
    }

    #[inline]
    pub(super) fn as_ptr(&self) -> *mut T {
        self.raw.as_ptr()
    }

    pub(super) fn raw(&self) -> NonNull<T> {
        self.raw
    }
}

impl<T> fmt::Debug for Owned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:p}", self.what, self.raw)
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: it was made by the library, and this is its one owner.
        report(self.what, unsafe { (self.free)(self.raw.as_ptr()) });
    }
}

/// The part of a device's context that newer operations are in; `None` if its driver has none.
///
/// The binding's own look-up compares with a marker of 32 bits where the library has one of the
/// width of a pointer, so it never finds it.
///
/// # Safety
/// `context` is that of an open device.
unsafe fn extended(context: *mut ibv_context) -> Option<NonNull<verbs_context>> {
    // SAFETY: the caller vouches for the context.
    let marker = unsafe { (*context).abi_compat };
    if marker.addr() != usize::MAX {
        return None;
    }
    let first = context.wrapping_byte_sub(std::mem::offset_of!(verbs_context, context));
    NonNull::new(first.cast())
}

/// True if the driver's part reaches back as far as the operation at `offset`: operations are added
/// in front, and `sz` counts from the end.
///
/// # Safety
/// `extended` is the result of the function of that name.
unsafe fn has_operation(extended: NonNull<verbs_context>, offset: usize) -> bool {
    // SAFETY: the size lies right in front of the context, in every version.
    let bytes = unsafe { (*extended.as_ptr()).sz };
    bytes >= size_of::<verbs_context>() - offset
}

/// The order of the fields is that of the end.
#[derive(Debug)]
pub(super) struct ProtectionDomain {
    thread: Option<ThreadDomain>,
    /// Registrations that its connections share, as long as one of them is there.
    shared: Mutex<Vec<(RegionId, Weak<MemoryRegion>)>>,
    /// Bound to nothing, left by connections that have ended.
    spare_windows: Mutex<Vec<MemoryWindow>>,
    raw: Owned<ibv_pd>,
}

/// A promise that one thread at a time posts, by which some drivers leave out their locks. The derived object goes first.
#[derive(Debug)]
struct ThreadDomain {
    /// A domain over the plain one, for creating queue pairs.
    parent: Owned<ibv_pd>,
    _thread: Owned<ibv_td>,
}

impl ProtectionDomain {
    /// # Safety
    /// `context` is that of an open device, which stays open as long as the domain lives.
    pub(super) unsafe fn new(
        context: *mut ibv_context,
        thread_domain: bool,
    ) -> Result<Self, FabricError> {
        // SAFETY: the caller vouches for the context.
        let raw = unsafe { ibv_alloc_pd(context) };
        let raw = Owned::new(raw, "protection domain", ibv_dealloc_pd)
            .map_err(|error| with_error("allocate a protection domain", error))?;
        // SAFETY: both are of this open device.
        let join = || unsafe { ThreadDomain::new(context, raw.raw) };
        let thread = thread_domain.then(join).flatten();
        Ok(Self { thread, shared: Mutex::default(), spare_windows: Mutex::default(), raw })
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }

    /// The registration of a region that all connections of the domain use; `register` makes it for the first of them.
    pub(super) fn share(
        &self,
        id: RegionId,
        register: impl FnOnce() -> io::Result<MemoryRegion>,
    ) -> io::Result<Arc<MemoryRegion>> {
        if let Some(region) = known(&lock(&self.shared), id) {
            return Ok(region);
        }
        // Without the lock: it may pin gigabytes, and the control thread is not to wait for another one meanwhile.
        let made = Arc::new(register()?);
        let mut shared = lock(&self.shared);
        if let Some(first) = known(&shared, id) {
            return Ok(first);
        }
        shared.retain(|(_, region)| region.strong_count() > 0);
        shared.push((id, Arc::downgrade(&made)));
        Ok(made)
    }

    pub(super) fn for_queue_pair(&self) -> *mut ibv_pd {
        self.thread.as_ref().map_or(&self.raw, |thread| &thread.parent).as_ptr()
    }
}

fn known(shared: &[(RegionId, Weak<MemoryRegion>)], id: RegionId) -> Option<Arc<MemoryRegion>> {
    shared.iter().find(|(other, region)| *other == id && region.strong_count() > 0)?.1.upgrade()
}

impl ThreadDomain {
    /// # Safety
    /// `context` is that of an open device, and `domain` one of its protection domains.
    unsafe fn new(context: *mut ibv_context, domain: NonNull<ibv_pd>) -> Option<Self> {
        // SAFETY: the caller vouches for the context.
        let more = unsafe { extended(context) }?;
        let farthest = std::mem::offset_of!(verbs_context, alloc_parent_domain)
            .min(std::mem::offset_of!(verbs_context, alloc_td))
            .min(std::mem::offset_of!(verbs_context, dealloc_td));
        // SAFETY: it is the result of `extended`.
        if !unsafe { has_operation(more, farthest) } {
            return None;
        }
        let more = more.as_ptr();
        // SAFETY: the driver's part reaches as far, as was just checked.
        let (alloc, free, join) =
            unsafe { ((*more).alloc_td?, (*more).dealloc_td?, (*more).alloc_parent_domain?) };
        let mut wanted = ibv_td_init_attr { comp_mask: 0 };
        // SAFETY: the context is open, the attributes are complete.
        let thread =
            Owned::new(unsafe { alloc(context, &mut wanted) }, "thread domain", free).ok()?;
        // SAFETY: a structure of integers and pointers, for which zero means "not given".
        let mut joined: ibv_parent_domain_init_attr = unsafe { std::mem::zeroed() };
        (joined.pd, joined.td) = (domain.as_ptr(), thread.as_ptr());
        // SAFETY: as above, and both domains are alive.
        let parent = unsafe { join(context, &mut joined) };
        let parent = Owned::new(parent, "parent domain", ibv_dealloc_pd).ok()?;
        Some(Self { parent, _thread: thread })
    }
}

#[derive(Debug)]
pub(super) struct CompletionChannel(Owned<ibv_comp_channel>);

impl CompletionChannel {
    /// # Safety
    /// `context` is that of an open device, which stays open as long as the channel lives.
    pub(super) unsafe fn new(context: *mut ibv_context) -> Result<Self, FabricError> {
        // SAFETY: the caller vouches for the context.
        let raw = unsafe { ibv_create_comp_channel(context) };
        let made = Owned::new(raw, "completion channel", ibv_destroy_comp_channel).map(Self);
        let made = made.and_then(|channel| {
            rustix::io::ioctl_fionbio(&channel, true)?;
            Ok(channel)
        });
        made.map_err(|error| with_error("make a completion channel", error))
    }

    /// A queue that reported is not armed any more.
    pub(super) fn take_events(&self) {
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel is alive; both results have a place. It does not block.
        while unsafe { ibv_get_cq_event(self.0.as_ptr(), &mut cq, &mut context) } == 0 {
            // SAFETY: a queue waits with its end until its events are acknowledged, so it is alive.
            unsafe { ibv_ack_cq_events(cq, 1) };
        }
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel lives.
        unsafe { BorrowedFd::borrow_raw(self.0.raw.as_ref().fd) }
    }
}

fn interrupt(core: usize, count: c_int) -> c_int {
    let count = usize::try_from(count).unwrap_or(0).max(1);
    (core % count) as c_int
}

/// Completions that a driver fills in. It leaves fields as they were that an operation does not have (mlx5 those of an
/// error), so they are zeroes from the start.
pub(super) fn blank_completions<const COUNT: usize>() -> Box<[ibv_wc; COUNT]> {
    // SAFETY: structures of integers, and a union of such.
    Box::new(unsafe { std::mem::zeroed() })
}

#[derive(Debug)]
pub(super) struct CompletionQueue {
    raw: Owned<ibv_cq>,
    poll: PollCq,
    request_notify: RequestNotify,
    /// Completions it has room for: as many as asked for, or more.
    pub(super) depth: u32,
    pub(super) channel: Arc<CompletionChannel>,
}

impl CompletionQueue {
    /// A queue for `depth` completions at least, which reports to `channel`, by the interrupt that `core` has of the
    /// device's: each core that sleeps is woken by one of its own, as far as there are as many.
    ///
    /// # Safety
    /// `context` is that of an open device, which stays open as long as the queue lives; the channel
    /// is of the same device.
    pub(super) unsafe fn new(
        context: *mut ibv_context,
        depth: u32,
        channel: &Arc<CompletionChannel>,
        core: usize,
    ) -> Result<Self, FabricError> {
        const OP: &str = "make a completion queue";
        let wanted = c_int::try_from(depth)
            .map_err(|_| with_error(OP, io::ErrorKind::InvalidInput.into()))?;
        // SAFETY: the caller vouches for the context and the channel.
        let (raw, ops) = unsafe {
            let vector = interrupt(core, (*context).num_comp_vectors);
            let channel = channel.0.as_ptr();
            (ibv_create_cq(context, wanted, null_mut(), channel, vector), (*context).ops)
        };
        let raw = Owned::new(raw, "completion queue", ibv_destroy_cq)
            .map_err(|error| with_error(OP, error))?;
        let (Some(poll), Some(request_notify)) = (ops.poll_cq, ops.req_notify_cq) else {
            return Err(with_error(OP, io::ErrorKind::Unsupported.into()));
        };
        // SAFETY: it was just made.
        let depth = unsafe { raw.raw.as_ref().cqe }.unsigned_abs();
        Ok(Self { raw, poll, request_notify, depth, channel: Arc::clone(channel) })
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
    }

    /// Fails if the queue is broken, as that of a device that was removed.
    #[inline]
    pub(super) fn poll<'a>(&self, into: &'a mut [ibv_wc]) -> Result<&'a [ibv_wc], CqBroken> {
        let room = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
        // SAFETY: the queue is alive, and there is room for as many.
        let count = unsafe { (self.poll)(self.raw.as_ptr(), room, into.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| CqBroken)?;
        Ok(&into[..count.min(into.len())])
    }

    /// Arming may be a system call. Earlier completions are not reported: poll once more.
    pub(super) fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue is alive.
        checked(unsafe { (self.request_notify)(self.raw.as_ptr(), 0) })
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct CqBroken;

#[derive(Debug)]
pub(super) struct MemoryRegion {
    raw: Owned<ibv_mr>,
    _domain: Arc<ProtectionDomain>,
}

impl MemoryRegion {
    /// A system call, which pins the memory. ENOMEM or EAGAIN if the process may not lock that much.
    ///
    /// # Safety
    /// The memory stays mapped as long as the result lives. While a peer knows keys with remote
    /// rights, the bytes in their reach are used only as the rights allow.
    pub(super) unsafe fn register(
        domain: &Arc<ProtectionDomain>,
        first: NonNull<u8>,
        bytes: usize,
        access: u32,
    ) -> io::Result<Self> {
        let at = first.as_ptr().expose_provenance() as u64;
        let first = first.as_ptr().cast::<c_void>();
        let try_with = |access| {
            // SAFETY: the domain is alive, and the caller vouches for the memory.
            let raw = unsafe { ibv_reg_mr_iova2(domain.as_ptr(), first, bytes, at, access) };
            Owned::new(raw, "memory region", ibv_dereg_mr)
        };
        // The library leaves relaxed order out where the kernel does not know it, but drivers of some kernels refuse it:
        // mana before June 2024, rxe of the first half of 2023.
        let is_refused = |error: &io::Error| {
            order() != 0 && matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
        };
        let raw = match try_with(access | order()) {
            Err(error) if is_refused(&error) => try_with(access)?,
            tried => tried?,
        };
        Ok(Self { raw, _domain: Arc::clone(domain) })
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_mr {
        self.raw.as_ptr()
    }

    pub(super) fn first_address(&self) -> usize {
        // SAFETY: it is alive, and the field never changes.
        unsafe { self.raw.raw.as_ref().addr }.addr()
    }

    #[inline]
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: it is alive, and the field never changes.
        unsafe { self.raw.raw.as_ref().lkey }
    }

    #[inline]
    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: it is alive, and the field never changes.
        unsafe { self.raw.raw.as_ref().rkey }
    }
}

/// A memory window of type 2: bound to a part of a region, and freed of it, by work requests.
#[derive(Debug)]
pub(super) struct MemoryWindow {
    raw: NonNull<ibv_mw>,
    free: unsafe extern "C" fn(*mut ibv_mw) -> c_int,
    is_free: AtomicBool,
}

// SAFETY: its key is changed by its owner only, and freeing it may be done from any thread.
unsafe impl Send for MemoryWindow {}
// SAFETY: as above.
unsafe impl Sync for MemoryWindow {}

impl MemoryWindow {
    /// A system call. `Unsupported` if the device does not have windows.
    ///
    /// # Safety
    /// The domain outlives the window.
    pub(super) unsafe fn new(domain: &ProtectionDomain) -> io::Result<Self> {
        // SAFETY: the domain is alive, and so is the context it is of.
        let ops = unsafe { (*(*domain.as_ptr()).context).ops };
        let (Some(alloc), Some(free)) = (ops.alloc_mw, ops.dealloc_mw) else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        // SAFETY: as above.
        let raw = unsafe { alloc(domain.as_ptr(), ibv_mw_type::IBV_MW_TYPE_2) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { raw, free, is_free: AtomicBool::new(false) })
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_mw {
        self.raw.as_ptr()
    }

    /// The last eight bits change with each binding.
    pub(super) fn key(&self) -> u32 {
        // SAFETY: it is alive.
        unsafe { self.raw.as_ref().rkey }
    }

    /// A binding with this key was posted, by the thread that calls.
    pub(super) fn set_key(&self, key: u32) {
        // SAFETY: it is alive. One thread at a time posts to queue pairs of the connection that has the window, and with
        // that reads the field.
        unsafe { (*self.raw.as_ptr()).rkey = key };
    }

    /// Frees it, bound or not (system call). Returns false if its key may be alive still: then the queue pair that it is bound
    /// to has to stay.
    pub(super) fn free(&self) -> bool {
        // Relaxed: one thread at a time frees.
        if self.is_free.swap(true, Ordering::Relaxed) {
            return true;
        }
        // SAFETY: nothing that is posted names it any more. Freeing one that is bound ends that. It is done once.
        let error = unsafe { (self.free)(self.raw.as_ptr()) };
        report("memory window", error);
        error == 0
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        self.free();
    }
}

/// The memory windows of one connection. The control thread adds some when the core runs short of them; those left at the
/// end go to later connections of the protection domain. A window of type 2 belongs to a queue pair only while it is bound.
#[derive(Debug)]
pub(super) struct WindowTable {
    /// The first ones are filled.
    places: Box<[OnceLock<MemoryWindow>]>,
    domain: Arc<ProtectionDomain>,
}

impl WindowTable {
    pub(super) fn new(domain: &Arc<ProtectionDomain>, most: usize) -> Self {
        let places = (0..most).map(|_| OnceLock::new()).collect();
        Self { places, domain: Arc::clone(domain) }
    }

    /// Spare windows, or new ones (a system call each), as far as there are places. By one thread at a time (the control
    /// thread). Windows that were added before an error stay.
    pub(super) fn add(&self, count: usize) -> io::Result<()> {
        for place in self.places.iter().skip(self.count()).take(count) {
            let spare = lock(&self.domain.spare_windows).pop();
            // SAFETY: the domain lives as long as the table, and as its own spare windows.
            let window = spare.map_or_else(|| unsafe { MemoryWindow::new(&self.domain) }, Ok)?;
            // The control thread alone fills it.
            let _ = place.set(window);
        }
        Ok(())
    }

    pub(super) fn count(&self) -> usize {
        self.places.partition_point(|place| place.get().is_some())
    }

    pub(super) fn most(&self) -> usize {
        self.places.len()
    }

    pub(super) fn get(&self, at: usize) -> Option<&MemoryWindow> {
        self.places.get(at)?.get()
    }

    pub(super) fn keys(&self, first: usize) -> impl Iterator<Item = u32> + '_ {
        let added = self.places.iter().skip(first).map_while(OnceLock::get);
        added.map(MemoryWindow::key)
    }
}

impl Drop for WindowTable {
    /// No window is bound: those that were have been freed with the queue pair.
    fn drop(&mut self) {
        let mut spare = lock(&self.domain.spare_windows);
        // As many as one connection may have.
        let room = self.places.len().saturating_sub(spare.len());
        let windows = self.places.iter_mut().filter_map(OnceLock::take);
        // Relaxed: the table has one owner now.
        spare.extend(windows.filter(|window| !window.is_free.load(Ordering::Relaxed)).take(room));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::atomic::AtomicUsize;
    use std::collections::HashSet;

    #[test]
    fn each_core_has_an_interrupt_of_its_own_as_long_as_there_are_some() {
        assert_eq!([0, 1, 7, 8, 9].map(|core| interrupt(core, 8)), [0, 1, 7, 0, 1]);
        for none_or_one in [-1, 0, 1] {
            assert_eq!([0, 3].map(|core| interrupt(core, none_or_one)), [0, 0]);
        }
    }

    #[test]
    fn writes_are_relaxed_on_the_cpus_that_gain_by_it() {
        let x86 = |vendor: &str, family: u32| {
            let cpus = format!("processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\n");
            prefers_relaxed_order(&cpus)
        };
        assert!(x86("AuthenticAMD", 23) && x86("AuthenticAMD", 26) && x86("HygonGenuine", 24));
        assert!(!x86("AuthenticAMD", 15) && !x86("GenuineIntel", 25));
        assert!(prefers_relaxed_order("CPU implementer\t: 0x46\n"));
        assert!(!prefers_relaxed_order("CPU implementer\t: 0x41\n") && !prefers_relaxed_order(""));
    }

    /// A driver of windows alone, which counts those that are there and those that were ever made.
    static THERE: AtomicUsize = AtomicUsize::new(0);
    static MADE: AtomicUsize = AtomicUsize::new(0);
    /// It makes no more than these.
    const MADE_MAX: usize = 7;

    unsafe extern "C" fn alloc_mw(_: *mut ibv_pd, _: ibv_mw_type::Type) -> *mut ibv_mw {
        if MADE.load(Ordering::Relaxed) == MADE_MAX {
            return null_mut();
        }
        THERE.fetch_add(1, Ordering::Relaxed);
        let number = MADE.fetch_add(1, Ordering::Relaxed) as u32;
        // SAFETY: a structure of integers and pointers, for which zero is a value.
        let window = ibv_mw { rkey: number << 8, ..unsafe { std::mem::zeroed() } };
        Box::into_raw(Box::new(window))
    }

    unsafe extern "C" fn dealloc_mw(window: *mut ibv_mw) -> c_int {
        THERE.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: it was made above, and is freed once.
        drop(unsafe { Box::from_raw(window) });
        0
    }

    /// Have a connection add windows, free one that is bound, and end; then a second one, which wants more. Expect it to have
    /// those that were not bound, and no more than there can be; and those that were added to stay when there are no more.
    #[test]
    fn windows_of_an_ended_connection_go_to_the_next_one() {
        // SAFETY: structures of integers, pointers and functions that may be null.
        let (mut context, mut raw) = unsafe { std::mem::zeroed::<(ibv_context, ibv_pd)>() };
        context.ops.alloc_mw = Some(alloc_mw);
        context.ops.dealloc_mw = Some(dealloc_mw);
        raw.context = &raw mut context;
        let raw = Owned::new(&raw mut raw, "domain", ibv_dealloc_pd).unwrap();
        let (thread, shared, spare_windows) = Default::default();
        let domain = Arc::new(ProtectionDomain { raw, thread, shared, spare_windows });
        let counts = || [&THERE, &MADE].map(|count| count.load(Ordering::Relaxed));
        let first = WindowTable::new(&domain, 6);
        assert!(first.add(2).is_ok() && first.add(2).is_ok());
        assert_eq!((first.count(), first.keys(2).collect::<Vec<_>>()), (4, vec![0x200, 0x300]));
        first.get(1).unwrap().set_key(0x105);
        assert!(first.get(2).unwrap().free() && first.get(2).unwrap().free());
        assert_eq!(counts(), [3, 4]);
        drop(first);
        assert_eq!(counts(), [3, 4], "they are kept");
        let second = WindowTable::new(&domain, 5);
        assert!(second.add(3).is_ok());
        let keys: HashSet<_> = second.keys(0).collect();
        assert_eq!((keys, counts()), ([0, 0x105, 0x300].into(), [3, 4]));
        assert!(second.add(3).is_ok());
        assert_eq!((second.count(), counts()), (5, [5, 6]));
        let third = WindowTable::new(&domain, 2);
        assert!(third.add(2).is_err());
        assert_eq!((third.count(), counts()), (1, [6, 7]));
        drop((second, third));
        assert_eq!(counts(), [5, 7], "as many as one connection may have");
        lock(&domain.spare_windows).clear();
        assert_eq!(counts(), [0, 7]);
        // It is none of the library's.
        std::mem::forget(domain);
    }

    #[test]
    fn completions_are_zeroes_before_a_driver_fills_them_in() {
        let blank = blank_completions::<2>();
        let fields = |one: &ibv_wc| (one.wr_id, one.opcode, one.byte_len, one.wc_flags);
        assert_eq!(blank.each_ref().map(fields), [(0, 0, 0, 0); 2]);
    }
}
