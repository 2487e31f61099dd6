//! Memory of this process that others may map, to read and never to write: a memfd that is sealed so.

use super::{
    HUGE_PAGE_BYTES, Mapping, PageKind, PageRequest, SEALS, Span, TMPFS_MAGIC, WRITABLE,
    checked_len, whole_pages,
};
use rustix::fs::{self, MemfdFlags, SealFlags};
use rustix::mm::{Advice, ProtFlags};
use rustix::param;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// Writable memory of this process, and a descriptor by which others can map it for reading. All of its
/// pages are in place. Dropping it unmaps it here.
///
/// The kernel refuses every later attempt to write the file, to map it for writing, to make it shorter, or to
/// punch holes into it (`F_SEAL_FUTURE_WRITE`, Linux 5.1), by any process that has the descriptor.
#[derive(Debug)]
pub struct LendableMemory {
    mapping: Mapping,
    fd: OwnedFd,
}

/// Memory of another process, mapped for reading. Its owner may write it at any time.
#[derive(Debug)]
pub struct BorrowedMemory {
    span: Span,
}

/// Seals of memory that its maker alone can write.
const READ_ONLY_SEALS: SealFlags = SEALS.union(SealFlags::FUTURE_WRITE);

/// Unit of `st_blocks`, of tmpfs and hugetlbfs alike.
const STAT_BLOCK_BYTES: u64 = 512;

/// See statfs(2).
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

impl LendableMemory {
    /// Makes zeroed memory of at least `len` bytes, rounded up to whole pages. `name` shows in `/proc/PID/maps`.
    ///
    /// # Errors
    /// `InvalidInput` if `len` is 0; otherwise the kernel's error, such as `OutOfMemory` for huge
    /// pages that are required and not available, or `InvalidInput` for a seal that it does not
    /// know.
    pub fn create(name: &str, len: usize, request: PageRequest) -> io::Result<Self> {
        request.huge.make(len, |pages| {
            let (page_bytes, flags) = match pages {
                PageKind::Huge2M => (HUGE_PAGE_BYTES, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB),
                PageKind::Small => (param::page_size(), MemfdFlags::empty()),
            };
            let len = whole_pages(len, page_bytes)?;
            let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let fd = fs::memfd_create(name, flags)?;
            fs::ftruncate(&fd, len as u64)?;
            Self::map(fd, len, pages, request)
        })
    }

    /// Takes over a memfd of the application's own, of usual or huge pages, and seals it.
    ///
    /// # Safety
    /// The file has no shared mapping, in this process or another, and none is being made: not even one for reading, as
    /// `mprotect` can make it writable if it is older than the seals. And nothing in flight can write the file's
    /// pages: no buffer registered for RDMA or io_uring, and no I/O. (Mappings made after the return of this function
    /// are for reading, and stay so.)
    ///
    /// # Errors
    /// `InvalidInput`, with a text that says why, if the file cannot be sealed as it must be, or
    /// its size is not that of whole pages, or less than `len_min` or more than `len_max`: then the
    /// file is as it was. Otherwise the kernel's error, such as `PermissionDenied` for a descriptor
    /// that is not open for writing, and a file that may be sealed.
    pub unsafe fn from_memfd(
        fd: OwnedFd,
        len_min: usize,
        len_max: usize,
        request: PageRequest,
    ) -> io::Result<Self> {
        let present = fs::fcntl_get_seals(&fd).map_err(|_| unfit("it is not a memfd"))?;
        if present.contains(SealFlags::SEAL) && !present.contains(READ_ONLY_SEALS) {
            return Err(unfit("it can no longer be sealed (MFD_ALLOW_SEALING)"));
        }
        if present.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
            return Err(unfit("it is sealed against writing already"));
        }
        // A file that is refused for its size stays as it is.
        fit_size(fd.as_fd(), len_min, len_max)?;
        fs::fcntl_add_seals(&fd, SealFlags::GROW | SealFlags::SHRINK)?;
        // Again, as only now the size stays.
        let (len, pages) = fit_size(fd.as_fd(), len_min, len_max)?;
        Self::map(fd, len, pages, request)
    }

    /// The file's size is `len`. Keeps all others from writing it, and allocates all of it.
    fn map(fd: OwnedFd, len: usize, pages: PageKind, request: PageRequest) -> io::Result<Self> {
        let span = Span::shared(fd.as_fd(), len, None, WRITABLE)?;
        // Before the pages are allocated: another holder of the descriptor could punch holes until
        // then.
        fs::fcntl_add_seals(&fd, READ_ONLY_SEALS)?;
        let locked = span.settle(pages, PageRequest { prefault: true, ..request })?;
        Ok(Self { mapping: Mapping { span, pages, locked }, fd })
    }

    /// The memory as this process has it.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }
}

impl AsFd for LendableMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[expect(clippy::len_without_is_empty, reason = "it never is")]
impl BorrowedMemory {
    /// Maps memory that a peer made and passed, having checked that it can do no harm: a memfd of usual or
    /// huge pages that has all its pages, keeps them and its size, and is not larger than `len_max` bytes. Asks the descriptor
    /// nothing that could block.
    ///
    /// # Errors
    /// `InvalidData` if it is anything else; otherwise the kernel's error.
    pub fn from_fd(fd: impl AsFd, len_max: usize) -> io::Result<Self> {
        // Seals come first, as in `SharedMemory::from_fd`.
        let seals = fs::fcntl_get_seals(&fd).map_err(|_| refused("it is not a memfd"))?;
        if !seals.contains(READ_ONLY_SEALS) {
            return Err(refused("its size and its bytes are not sealed"));
        }
        let (page_bytes, pages) =
            page_size_of(fd.as_fd()).ok_or_else(|| refused("its pages are of no known kind"))?;
        let stat = fs::fstat(&fd)?;
        let len =
            checked_len(&stat, page_bytes, (1, len_max)).map_err(|reason| refused(&reason))?;
        // This process would pay for the pages of holes, and get SIGBUS where it may not have them.
        let allocated_bytes =
            u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(STAT_BLOCK_BYTES);
        let present_bytes = match pages {
            PageKind::Small => allocated_bytes.min(present_bytes(fd.as_fd(), len)?),
            PageKind::Huge2M => allocated_bytes,
        };
        if present_bytes < len as u64 {
            return Err(refused(&format!("{present_bytes} of its {len} bytes have pages")));
        }
        let span = Span::shared(fd.as_fd(), len, None, ProtFlags::READ)?;
        // Memory of other processes must not get into dumps of this process.
        span.advise(Advice::LinuxDontDump)?;
        if pages == PageKind::Huge2M {
            // Pages that are in the file stay there, as the seal forbids holes; one that is missing would be a
            // SIGBUS later. There are few to map, and none to zero, as they are counted above.
            span.advise(Advice::LinuxPopulateRead)?;
        }
        Ok(Self { span })
    }

    /// Maps all pages now, so that the first access to each is not a page fault. Best effort: only
    /// time is lost without it.
    pub fn prefault(&self) {
        let _ = self.span.advise(Advice::LinuxPopulateRead);
    }

    /// Address of `len` bytes from `offset` on, all of which can be read; `None` if the mapping
    /// does not have them.
    pub fn bytes(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let fits = offset <= self.span.len && len <= self.span.len - offset;
        // SAFETY: `offset` is within the mapping, as was just checked.
        fits.then(|| unsafe { self.span.base.add(offset) })
    }

    /// Bytes, a whole number of pages.
    pub fn len(&self) -> usize {
        self.span.len
    }
}

/// Number of `cachestat`, the same on all machines.
const SYS_CACHESTAT: libc::c_long = 451;

/// Bytes of the first `len` of a memfd of usual pages that have pages, swapped ones included; all of them where the
/// kernel cannot tell (before Linux 6.5). Pages beyond the end, which `st_blocks` counts, do not count here.
///
/// `SEEK_HOLE` would tell everywhere, but waits for the lock of the inode, which a peer can hold for as long as it likes.
fn present_bytes(fd: BorrowedFd<'_>, len: usize) -> io::Result<u64> {
    let range = [0_u64, len as u64];
    // In the page cache, dirty, in writeback, evicted, recently evicted.
    let mut counts = [0_u64; 5];
    // SAFETY: the kernel reads a `struct cachestat_range` of two words, and writes a `struct cachestat` of five.
    let result = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            fd.as_raw_fd(),
            range.as_ptr(),
            counts.as_mut_ptr(),
            0 as libc::c_uint,
        )
    };
    if result == 0 {
        let [cached, _, _, swapped, _] = counts;
        return Ok(cached.saturating_add(swapped).saturating_mul(param::page_size() as u64));
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ENOSYS) => Ok(len as u64),
        error => Err(error),
    }
}

fn page_size_of(fd: BorrowedFd<'_>) -> Option<(usize, PageKind)> {
    let system = fs::fstatfs(fd).ok()?;
    match system.f_type as u64 {
        TMPFS_MAGIC => Some((param::page_size(), PageKind::Small)),
        HUGETLBFS_MAGIC => {
            let bytes =
                usize::try_from(system.f_bsize).ok().filter(|bytes| bytes.is_power_of_two())?;
            Some((bytes, PageKind::Huge2M))
        }
        _ => None,
    }
}

fn fit_size(fd: BorrowedFd<'_>, len_min: usize, len_max: usize) -> io::Result<(usize, PageKind)> {
    let (page_bytes, pages) =
        page_size_of(fd).ok_or_else(|| unfit("its pages are of no known kind"))?;
    let len = checked_len(&fs::fstat(fd)?, page_bytes, (len_min.max(1), len_max));
    let len = len.map_err(|reason| unfit(&reason))?;
    Ok((len, pages))
}

fn unfit(reason: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("the memory cannot be used as a slab: {reason}"),
    )
}

fn refused(reason: &str) -> io::Error {
    let message = format!("a slab passed by the peer is refused: {reason}");
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests;
