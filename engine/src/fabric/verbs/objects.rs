//! Owners of a device's objects: protection domains, completion queues and channels, memory regions
//! and windows. Each is freed when its owner is dropped, and keeps alive the objects it was created
//! from.
//!
//! Making and freeing them is a system call: the control thread does it, and a core when it
//! registers memory that it had not been told of. Polling a queue is none. The function pointers of
//! polling and arming are looked up once, not with each call as the binding's wrappers do.

use super::super::FabricError;
use rdma_sys::*;
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
type RequestNotify = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;

/// Rights of memory that the device only reads, or reads and writes, for this side.
pub(super) const LOCAL_WRITE: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
/// The peer may RDMA Read.
pub(super) const REMOTE_READ: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
/// The peer may RDMA Write; needs [`LOCAL_WRITE`].
pub(super) const REMOTE_WRITE: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
/// Memory windows may be bound to it.
pub(super) const WINDOW_BIND: u32 = ibv_access_flags::IBV_ACCESS_MW_BIND.0;

/// The error of the C library's last call on this thread.
fn failed(op: &str) -> FabricError {
    with_error(op, io::Error::last_os_error())
}

pub(super) fn with_error(op: &str, error: io::Error) -> FabricError {
    FabricError { op: op.into(), reason: error.to_string(), source: Some(error) }
}

/// Says so when something could not be freed: that is a leak until the process ends.
fn report(what: &'static str, error: c_int) {
    if error != 0 {
        let error = io::Error::from_raw_os_error(error.abs());
        tracing::warn!(%error, what, "could not free what a device keeps for us");
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

/// Object that memory and queue pairs must share to work together.
#[derive(Debug)]
pub(super) struct ProtectionDomain {
    raw: NonNull<ibv_pd>,
    thread: Option<ThreadDomain>,
}

/// A promise that one thread at a time posts, by which some drivers leave out their locks.
#[derive(Debug)]
struct ThreadDomain {
    raw: NonNull<ibv_td>,
    /// A domain over the plain one, for creating queue pairs.
    parent: NonNull<ibv_pd>,
    free: unsafe extern "C" fn(*mut ibv_td) -> c_int,
}

// SAFETY: the library's objects may be used from any thread; their contents are only changed by
// creating and freeing.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// A domain of the device, with a thread domain if that is asked for and the device has them.
    ///
    /// # Safety
    /// `context` is that of an open device, which stays open as long as the domain lives.
    pub(super) unsafe fn new(
        context: *mut ibv_context,
        thread_domain: bool,
    ) -> Result<Self, FabricError> {
        // SAFETY: the caller vouches for the context.
        let raw = NonNull::new(unsafe { ibv_alloc_pd(context) });
        let raw = raw.ok_or_else(|| failed("allocate a protection domain"))?;
        let mut domain = Self { raw, thread: None };
        if thread_domain {
            // SAFETY: both are of this open device.
            domain.thread = unsafe { ThreadDomain::new(context, raw) };
        }
        Ok(domain)
    }

    /// Domain to register memory with.
    pub(super) fn as_ptr(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }

    /// Domain to create a queue pair with.
    pub(super) fn for_queue_pair(&self) -> *mut ibv_pd {
        self.thread.as_ref().map_or(self.raw, |thread| thread.parent).as_ptr()
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        self.thread = None;
        // SAFETY: everything made with it holds a reference, so it is the last of them.
        let error = unsafe { ibv_dealloc_pd(self.raw.as_ptr()) };
        report("protection domain", error);
    }
}

impl ThreadDomain {
    /// `None` if the device has none.
    ///
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
        let raw = NonNull::new(unsafe { alloc(context, &mut wanted) })?;
        // SAFETY: a structure of integers and pointers, for which zero means "not given".
        let mut joined: ibv_parent_domain_init_attr = unsafe { std::mem::zeroed() };
        (joined.pd, joined.td) = (domain.as_ptr(), raw.as_ptr());
        // SAFETY: as above, and both domains are alive.
        let Some(parent) = NonNull::new(unsafe { join(context, &mut joined) }) else {
            // SAFETY: nothing was made with it.
            unsafe { free(raw.as_ptr()) };
            return None;
        };
        Some(Self { raw, parent, free })
    }
}

impl Drop for ThreadDomain {
    fn drop(&mut self) {
        // SAFETY: the queue pairs are gone by now, as for the plain domain; the derived object goes
        // first.
        unsafe {
            ibv_dealloc_pd(self.parent.as_ptr());
            (self.free)(self.raw.as_ptr());
        }
    }
}

/// Channel on which armed completion queues report that they are no longer empty.
#[derive(Debug)]
pub(super) struct CompletionChannel {
    raw: NonNull<ibv_comp_channel>,
}

// SAFETY: a file descriptor and a reference count that the library keeps under a lock.
unsafe impl Send for CompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    /// A channel whose events are taken without blocking.
    ///
    /// # Safety
    /// `context` is that of an open device, which stays open as long as the channel lives.
    pub(super) unsafe fn new(context: *mut ibv_context) -> Result<Self, FabricError> {
        // SAFETY: the caller vouches for the context.
        let raw = NonNull::new(unsafe { ibv_create_comp_channel(context) });
        let channel = Self { raw: raw.ok_or_else(|| failed("make a completion channel"))? };
        // SAFETY: the descriptor is open as long as the channel lives.
        let fd = unsafe { BorrowedFd::borrow_raw(channel.as_raw_fd()) };
        rustix::fs::fcntl_getfl(fd)
            .and_then(|flags| rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK))
            .map_err(|error| with_error("make a completion channel", error.into()))?;
        Ok(channel)
    }

    /// Takes the events there are, for queues of any number; says how many. A queue that reported
    /// is armed no more.
    pub(super) fn take_events(&self) -> usize {
        let mut taken = 0;
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel is alive; both results have a place. It does not block.
        while unsafe { ibv_get_cq_event(self.raw.as_ptr(), &mut cq, &mut context) } == 0 {
            // SAFETY: a queue waits with its end until its events are acknowledged, so it is alive.
            unsafe { ibv_ack_cq_events(cq, 1) };
            taken += 1;
        }
        taken
    }
}

impl AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the channel is alive.
        unsafe { self.raw.as_ref().fd }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: each queue that reports here holds a reference, so it is the last of them.
        let error = unsafe { ibv_destroy_comp_channel(self.raw.as_ptr()) };
        report("completion channel", error);
    }
}

/// Queue that takes the work completions of queue pairs.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    raw: NonNull<ibv_cq>,
    poll: PollCq,
    request_notify: RequestNotify,
    depth: u32,
    /// Channel on which it reports.
    channel: Arc<CompletionChannel>,
}

// SAFETY: the drivers lock their queues, as those of the control thread's queue pairs may be polled
// by a core meanwhile.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// A queue for `depth` completions at least, which reports to `channel`.
    ///
    /// # Safety
    /// `context` is that of an open device, which stays open as long as the queue lives; the channel
    /// is of the same device.
    pub(super) unsafe fn new(
        context: *mut ibv_context,
        depth: u32,
        channel: &Arc<CompletionChannel>,
    ) -> Result<Self, FabricError> {
        const OP: &str = "make a completion queue";
        let wanted = c_int::try_from(depth)
            .map_err(|_| with_error(OP, io::ErrorKind::InvalidInput.into()))?;
        // SAFETY: the caller vouches for the context and the channel.
        let (raw, ops) = unsafe {
            (ibv_create_cq(context, wanted, null_mut(), channel.raw.as_ptr(), 0), (*context).ops)
        };
        let raw = NonNull::new(raw).ok_or_else(|| failed(OP))?;
        let (Some(poll), Some(request_notify)) = (ops.poll_cq, ops.req_notify_cq) else {
            // SAFETY: it is not in use.
            unsafe { ibv_destroy_cq(raw.as_ptr()) };
            return Err(with_error(OP, io::ErrorKind::Unsupported.into()));
        };
        // SAFETY: it was just made.
        let depth = unsafe { raw.as_ref().cqe }.unsigned_abs();
        Ok(Self { raw, poll, request_notify, depth, channel: Arc::clone(channel) })
    }

    /// Pointer for creating a queue pair.
    pub(super) fn as_ptr(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
    }

    /// Completions it has room for: as many as asked for, or more.
    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// Channel on which it reports once it is armed.
    pub(super) fn channel(&self) -> &Arc<CompletionChannel> {
        &self.channel
    }

    /// Takes completions, as many as `into` has room for.
    ///
    /// # Errors
    /// The queue is broken, as that of a device that was removed.
    #[inline]
    pub(super) fn poll<'a>(
        &self,
        into: &'a mut [MaybeUninit<ibv_wc>],
    ) -> Result<&'a [ibv_wc], CqBroken> {
        let room = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
        let first = into.as_mut_ptr().cast::<ibv_wc>();
        // SAFETY: the queue is alive, and there is room for as many.
        let count = unsafe { (self.poll)(self.raw.as_ptr(), room, first) };
        let count = usize::try_from(count).map_err(|_| CqBroken)?;
        // SAFETY: the driver has filled in the first `count`, of fields that take any bits.
        Ok(unsafe { std::slice::from_raw_parts(first, count.min(into.len())) })
    }

    /// Arms the queue: its channel gets an event with the next completion (may be a system call).
    /// Earlier completions are not reported: poll once more.
    pub(super) fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue is alive.
        let error = unsafe { (self.request_notify)(self.raw.as_ptr(), 0) };
        if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error.abs())) }
    }
}

/// A completion queue cannot be polled any more.
#[derive(Clone, Copy, Debug)]
pub(super) struct CqBroken;

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: each queue pair that completes here holds a reference, so it is the last of them.
        let error = unsafe { ibv_destroy_cq(self.raw.as_ptr()) };
        report("completion queue", error);
    }
}

/// Registered memory.
#[derive(Debug)]
pub(super) struct MemoryRegion {
    raw: NonNull<ibv_mr>,
    _domain: Arc<ProtectionDomain>,
}

// SAFETY: its keys never change, and freeing it may be done from any thread.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Registers `bytes` bytes from `first` on (system call: pins them).
    ///
    /// # Errors
    /// The error of ibv_reg_mr(3): ENOMEM or EAGAIN if the process may not lock that much memory.
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
        let first = first.as_ptr().cast::<c_void>();
        // SAFETY: the domain is alive, and the caller vouches for the memory. None of the rights is
        // one of those that need the newer call.
        let raw = unsafe { ibv_reg_mr(domain.as_ptr(), first, bytes, access as c_int) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { raw, _domain: Arc::clone(domain) })
    }

    /// Pointer for binding a window.
    pub(super) fn as_ptr(&self) -> *mut ibv_mr {
        self.raw.as_ptr()
    }

    /// Address of its first byte.
    pub(super) fn first_address(&self) -> usize {
        // SAFETY: it is alive, and the field never changes.
        unsafe { self.raw.as_ref().addr }.addr()
    }

    /// Key for work requests of this side.
    #[inline]
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: it is alive, and the field never changes.
        unsafe { self.raw.as_ref().lkey }
    }

    /// Key for the peer.
    #[inline]
    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: it is alive, and the field never changes.
        unsafe { self.raw.as_ref().rkey }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: nothing that is posted names it any more, by the order in which a connection ends.
        let error = unsafe { ibv_dereg_mr(self.raw.as_ptr()) };
        report("memory region", error);
    }
}

/// A memory window of type 2: bound to a part of a region, and freed of it, by work requests.
#[derive(Debug)]
pub(super) struct MemoryWindow {
    raw: NonNull<ibv_mw>,
    free: unsafe extern "C" fn(*mut ibv_mw) -> c_int,
    _domain: Arc<ProtectionDomain>,
}

// SAFETY: its key is changed by its owner only, and freeing it may be done from any thread.
unsafe impl Send for MemoryWindow {}
// SAFETY: as above.
unsafe impl Sync for MemoryWindow {}

impl MemoryWindow {
    /// A window that is bound to nothing (system call).
    ///
    /// # Errors
    /// The error of ibv_alloc_mw(3); `Unsupported` if the device does not have windows.
    pub(super) fn new(domain: &Arc<ProtectionDomain>) -> io::Result<Self> {
        // SAFETY: the domain is alive, and so is the context it is of.
        let ops = unsafe { (*(*domain.as_ptr()).context).ops };
        let (Some(alloc), Some(free)) = (ops.alloc_mw, ops.dealloc_mw) else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        // SAFETY: as above.
        let raw = unsafe { alloc(domain.as_ptr(), ibv_mw_type::IBV_MW_TYPE_2) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { raw, free, _domain: Arc::clone(domain) })
    }

    /// Pointer for a work request that binds it.
    pub(super) fn as_ptr(&self) -> *mut ibv_mw {
        self.raw.as_ptr()
    }

    /// Its key; the last eight bits change with each binding.
    pub(super) fn key(&self) -> u32 {
        // SAFETY: it is alive.
        unsafe { self.raw.as_ref().rkey }
    }
}

impl MemoryWindow {
    /// A binding with this key was posted.
    pub(super) fn set_key(&mut self, key: u32) {
        // SAFETY: it is alive and this is its owner; a driver reads the field while it is posted to,
        // by the same thread.
        unsafe { (*self.raw.as_ptr()).rkey = key };
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        // SAFETY: nothing that is posted names it any more. Freeing one that is bound ends that.
        let error = unsafe { (self.free)(self.raw.as_ptr()) };
        report("memory window", error);
    }
}
