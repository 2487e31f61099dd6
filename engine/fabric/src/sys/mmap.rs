//! Memory straight from the kernel: private mappings, and memory that two processes share.

mod lent;
mod pool;

pub use lent::{BorrowedMemory, LendableMemory};
pub(crate) use pool::AddressPool;

use super::topology::Topology;
use rustix::fs::{MemfdFlags, SealFlags, Stat};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::{fs, mm, param};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Use of huge pages, which save TLB misses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Small pages only.
    #[default]
    Off,
    /// Reserved huge pages if there are enough and at least one would be filled; otherwise small
    /// ones, which the kernel is asked to merge (transparent huge pages).
    Try,
    /// Reserved huge pages or an error.
    Require,
}

impl HugePages {
    fn make<T>(self, len: usize, make: impl Fn(PageKind) -> io::Result<T>) -> io::Result<T> {
        let is_large = len >= HUGE_PAGE_BYTES;
        match self {
            Self::Require => make(PageKind::Huge2M),
            Self::Try if is_large => make(PageKind::Huge2M).or_else(|_| make(PageKind::Small)),
            Self::Off | Self::Try => make(PageKind::Small),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Reserved huge pages of 2 MiB, all of them in place.
    Huge2M,
    /// Pages of the system's usual size.
    Small,
}

/// Kind of memory that [`Mapping::anonymous`] should get. The default is small pages, which are
/// allocated when they are first touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageRequest {
    /// Page size.
    pub huge: HugePages,
    /// Allocate every page before the first use, so that the data path takes no page fault.
    pub prefault: bool,
    /// Lock the pages in memory (mlock), which also allocates them. [`Mapping::is_locked`] tells
    /// whether it worked.
    pub lock: bool,
    /// The NUMA node to take memory from as long as it has some. Ignored where there is only one.
    pub node: Option<u32>,
}

/// Writable memory at a fixed address; dropping it unmaps it.
#[derive(Debug)]
pub struct Mapping {
    span: Span,
    pages: PageKind,
    locked: bool,
}

#[expect(clippy::len_without_is_empty, reason = "it never is")]
impl Mapping {
    /// Maps at least `len` zeroed bytes of this process alone, rounded up to whole pages.
    ///
    /// # Errors
    /// `InvalidInput` if `len` is 0; otherwise the kernel's error, such as `OutOfMemory` for huge
    /// pages that are required and not available. A lock or a NUMA placement that is refused is not
    /// an error.
    pub fn anonymous(len: usize, request: PageRequest) -> io::Result<Self> {
        request.huge.make(len, |pages| {
            let span = Span::anonymous(len, pages)?;
            let locked = span.settle(pages, request)?;
            Ok(Self { span, pages, locked })
        })
    }

    /// Fails where a sandbox refuses it.
    pub(crate) fn keep_from_dumps(&self) -> io::Result<()> {
        self.span.advise(Advice::LinuxDontDump)
    }

    pub fn as_ptr(&self) -> NonNull<u8> {
        self.span.base
    }

    /// Bytes, a whole number of pages.
    pub fn len(&self) -> usize {
        self.span.len
    }

    pub fn pages(&self) -> PageKind {
        self.pages
    }

    /// The pages stay in memory (mlock was asked for and granted).
    pub fn is_locked(&self) -> bool {
        self.locked
    }
}

/// Memory that two processes map at the same time: a memfd whose size is sealed.
///
/// A hostile peer may write any bytes at any time: no Rust reference may be made to them, atomics
/// apart, unless the peer is trusted with it. It cannot shrink the file below this mapping: no
/// access within [`SharedMemory::len`] fails (SIGBUS) but for want of memory. Pages are allocated
/// when they are first touched. Dropping it unmaps; it keeps no descriptor open, as there may be
/// thousands of these.
#[derive(Debug)]
pub struct SharedMemory {
    span: Span,
}

const WRITABLE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
const SEALS: SealFlags = SealFlags::GROW.union(SealFlags::SHRINK).union(SealFlags::SEAL);

#[expect(clippy::len_without_is_empty, reason = "it never is")]
impl SharedMemory {
    /// Makes zeroed memory of at least `len` bytes, rounded up to whole pages. `name` shows in
    /// `/proc/PID/maps` and nowhere else; nothing is left behind when all processes are gone. The
    /// descriptor is for passing it to a peer.
    ///
    /// # Errors
    /// `InvalidInput` if `len` is 0; otherwise the kernel's error.
    pub fn create(name: &str, len: usize) -> io::Result<(Self, OwnedFd)> {
        Self::create_in(None, name, len)
    }

    /// The same, at addresses of `pool` while it has some.
    pub(crate) fn create_in(
        pool: Option<&Arc<AddressPool>>,
        name: &str,
        len: usize,
    ) -> io::Result<(Self, OwnedFd)> {
        let len = whole_pages(len, param::page_size())?;
        let fd = fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        fs::ftruncate(&fd, len as u64)?;
        fs::fcntl_add_seals(&fd, SEALS)?;
        Ok((Self { span: Span::shared(fd.as_fd(), len, pool, WRITABLE)? }, fd))
    }

    /// Maps memory that a peer made and passed, having checked that it can do no harm: it is a sealed
    /// memfd of usual pages, and not larger than `len_max` bytes. Asks the descriptor nothing that could
    /// block.
    ///
    /// # Errors
    /// `InvalidData` if it is anything else; otherwise the kernel's error, such as
    /// `PermissionDenied` for a descriptor that is not open for writing.
    pub fn from_fd(fd: impl AsFd, len_max: usize) -> io::Result<Self> {
        Self::from_fd_in(None, fd, len_max)
    }

    pub(crate) fn from_fd_in(
        pool: Option<&Arc<AddressPool>>,
        fd: impl AsFd,
        len_max: usize,
    ) -> io::Result<Self> {
        check_seals(fd.as_fd())?;
        let len = checked_len(&fs::fstat(&fd)?, param::page_size(), (1, len_max));
        let len = len.map_err(|reason| refused(&reason))?;
        Ok(Self { span: Span::shared(fd.as_fd(), len, pool, WRITABLE)? })
    }

    pub fn as_ptr(&self) -> NonNull<u8> {
        self.span.base
    }

    /// Bytes, a whole number of pages.
    pub fn len(&self) -> usize {
        self.span.len
    }

    /// Asks for pages of `range` on this NUMA node, as long as it has some, whichever of the processes allocates them.
    /// Pages that exist stay where they are. A wish: nothing is said of a range or node that cannot be.
    pub(crate) fn prefer_node(&self, range: Range<usize>, node: u32) {
        if range.start <= range.end && range.end <= self.span.len {
            let _ = self.span.place(range, node);
        }
    }

    /// Allocates the pages of `range`, so that the data path takes no page fault there.
    ///
    /// # Errors
    /// `InvalidInput` if the range is not within the memory; otherwise the kernel's error.
    pub fn prefault(&self, range: Range<usize>) -> io::Result<()> {
        self.span.populate_or_touch(range)
    }
}

fn check_seals(fd: BorrowedFd<'_>) -> io::Result<()> {
    // Seals come first: asking for them never blocks, while a file system of the peer's making
    // (FUSE) could keep every other question waiting.
    let seals = fs::fcntl_get_seals(fd).map_err(|_| refused("it is not a memfd"))?;
    if !seals.contains(SEALS) {
        return Err(refused("its size is not sealed"));
    }
    // The peer may punch holes, and those of huge pages cannot be relied on to be filled again.
    if fs::fstatfs(fd)?.f_type as u64 != TMPFS_MAGIC {
        return Err(refused("it has huge pages"));
    }
    Ok(())
}

/// See statfs(2).
const TMPFS_MAGIC: u64 = 0x0102_1994;

fn checked_len(
    stat: &Stat,
    page_bytes: usize,
    (least, most): (usize, usize),
) -> Result<usize, String> {
    let len = usize::try_from(stat.st_size).unwrap_or(usize::MAX);
    if (least..=most).contains(&len) && len.is_multiple_of(page_bytes) {
        return Ok(len);
    }
    let size = stat.st_size;
    Err(format!(
        "its size, {size} bytes, is not that of whole pages of {page_bytes} bytes within {least} to {most}"
    ))
}

fn refused(reason: &str) -> io::Error {
    let message = format!("shared memory passed by the peer is refused: {reason}");
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[derive(Debug)]
struct Span {
    base: NonNull<u8>,
    len: usize,
    shared: bool,
    /// Keeps others of a pool from asking for these addresses. Dropped when they are free again.
    _block: Option<pool::Block>,
}

// SAFETY: an address range; it does not change the bytes.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

impl Span {
    fn anonymous(len: usize, pages: PageKind) -> io::Result<Self> {
        let (page_bytes, flags) = match pages {
            PageKind::Huge2M => (HUGE_PAGE_BYTES, MapFlags::HUGETLB | MapFlags::HUGE_2MB),
            PageKind::Small => (param::page_size(), MapFlags::empty()),
        };
        let (len, flags) = (whole_pages(len, page_bytes)?, flags | MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe { mm::mmap_anonymous(ptr::null_mut(), len, WRITABLE, flags) }?;
        Self::new(base.cast(), len, false)
    }

    fn shared(
        fd: BorrowedFd<'_>,
        len: usize,
        pool: Option<&Arc<AddressPool>>,
        protection: ProtFlags,
    ) -> io::Result<Self> {
        let block = pool.and_then(|pool| pool.take(len));
        let hint = block.as_ref().map_or(ptr::null_mut(), pool::Block::hint);
        // SAFETY: a new mapping at an address of the kernel's choice, for which it takes a hint, overlaps nothing. The
        // callers have sealed the file's size, or checked that it is.
        let base = unsafe { mm::mmap(hint, len, protection, MapFlags::SHARED, fd, 0) }?;
        let mut span = Self::new(base.cast(), len, true)?;
        span._block = block;
        // Processes that this one forks could write it.
        span.advise(Advice::LinuxDontFork)?;
        // A sandbox may refuse it; dumps then have the messages of peers.
        let _ = span.advise(Advice::LinuxDontDump);
        Ok(span)
    }

    fn new(base: *mut u8, len: usize, shared: bool) -> io::Result<Self> {
        let base = NonNull::new(base).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        Ok(Self { base, len, shared, _block: None })
    }

    fn lock(&self) -> io::Result<()> {
        // SAFETY: the range is mapped, and locking changes none of its bytes.
        Ok(unsafe { mm::mlock(self.base.as_ptr().cast(), self.len) }?)
    }

    /// Returns whether the pages are locked.
    fn settle(&self, pages: PageKind, request: PageRequest) -> io::Result<bool> {
        self.prefer_node(request.node);
        match pages {
            // A huge page that is missing at its first use (another process took it, or a cgroup forbids it) would be a
            // SIGBUS; missing here it is an error.
            PageKind::Huge2M => self.advise(Advice::LinuxPopulateWrite)?,
            PageKind::Small => {
                if request.huge == HugePages::Try {
                    // A wish: without transparent huge pages nothing is lost.
                    let _ = self.advise(Advice::LinuxHugepage);
                }
                if request.prefault {
                    self.populate_or_touch(0..self.len)?;
                }
            }
        }
        Ok(request.lock && self.lock().is_ok())
    }

    fn advise(&self, advice: Advice) -> io::Result<()> {
        self.advise_range(0..self.len, advice)
    }

    /// Gives an advice that changes no bytes, on a range within the mapping.
    fn advise_range(&self, range: Range<usize>, advice: Advice) -> io::Result<()> {
        // SAFETY: the range is mapped, as the callers have checked, and the advice changes none of its bytes.
        let advised = unsafe {
            let start = self.base.add(range.start).as_ptr();
            mm::madvise(start.cast(), range.len(), advice)
        };
        Ok(advised?)
    }

    /// Allocates the pages of `range`; missing pages are an error and not a signal. Kernels that cannot populate (before
    /// 5.14) do as far as touching does it.
    fn populate_or_touch(&self, range: Range<usize>) -> io::Result<()> {
        if range.start > range.end || range.end > self.len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let page_bytes = param::page_size();
        let start = range.start - range.start % page_bytes;
        let pages = start..range.end.next_multiple_of(page_bytes);
        match self.advise_range(pages.clone(), Advice::LinuxPopulateWrite) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => self.touch(pages),
            other => return other,
        }
        Ok(())
    }

    /// Accesses each page. Shared ones are allocated when they are read, private ones only when
    /// they are written.
    fn touch(&self, pages: Range<usize>) {
        for offset in pages.step_by(param::page_size()) {
            // SAFETY: the page is mapped. A shared one, which others may be using, is read only and
            // the value not used; a private one is still all zero and known to its maker alone.
            unsafe {
                let byte = self.base.add(offset).as_ptr();
                byte.read_volatile();
                if !self.shared {
                    byte.write_volatile(0);
                }
            }
        }
    }

    /// Asks for memory of `node` where there are several; a wish, too.
    fn prefer_node(&self, node: Option<u32>) {
        let several = || Topology::current().is_ok_and(|topology| topology.nodes().len() > 1);
        if let Some(node) = node.filter(|_| several()) {
            // A machine that refuses it has told `Topology` of a node that is gone.
            let _ = self.place(0..self.len, node);
        }
    }

    /// Memory of `node` for the pages of `range`, which is within the mapping, as long as the node has some: a strict
    /// binding would rather kill the process than use that of another node.
    fn place(&self, range: Range<usize>, node: u32) -> io::Result<()> {
        let start = range.start - range.start % param::page_size();
        let mut mask = [0_u64; 16];
        let word = mask.get_mut((node / u64::BITS) as usize);
        *word.ok_or(io::ErrorKind::InvalidInput)? = 1 << (node % u64::BITS);
        // The kernel takes one off.
        let mask_bits = size_of_val(&mask) * 8 + 1;
        // SAFETY: the range is mapped, as the callers have checked, and `mask` has as many bits as said.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base.add(start).as_ptr(),
                range.end - start,
                libc::c_long::from(libc::MPOL_PREFERRED),
                mask.as_ptr(),
                mask_bits,
                0 as libc::c_long,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        // SAFETY: mapped by this value, and there are no pointers into it any more: code that has
        // one holds the owner of this span.
        let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

fn whole_pages(len: usize, page_bytes: usize) -> io::Result<usize> {
    len.checked_next_multiple_of(page_bytes)
        .filter(|len| *len > 0 && isize::try_from(*len).is_ok())
        .ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

#[cfg(test)]
pub(crate) mod tests;
