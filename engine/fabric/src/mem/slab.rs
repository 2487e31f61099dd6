//! Memory of the application's own: registered once, used for calls and for files.

use super::{Bulk, BulkClass, BulkPool, Region, RegionId};
use crate::sys::mmap::{LendableMemory, PageKind, PageRequest};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Alignment of blocks, whose sizes are multiples of it: required for file I/O without the page cache (`O_DIRECT`).
const BLOCK_ALIGN_BYTES: usize = 4096;

/// Slabs that one connection can be lent.
pub const SLABS_MAX: usize = 4;

/// Number and size of the blocks of a slab, for `Engine::slab` and [`Slab::from_memfd`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlabLayout {
    block_bytes: usize,
    blocks: usize,
}

impl SlabLayout {
    /// A layout without blocks, which is not valid for a slab: both numbers must be set.
    pub const fn new() -> Self {
        Self { block_bytes: 0, blocks: 0 }
    }

    /// Bytes of each block, rounded up to a multiple of 4096.
    #[must_use]
    pub const fn block_bytes(mut self, bytes: usize) -> Self {
        self.block_bytes = bytes;
        self
    }

    /// Number of blocks. [`Slab::from_memfd`] makes as many as the file has, and refuses a larger file than these need.
    #[must_use]
    pub const fn blocks(mut self, count: usize) -> Self {
        self.blocks = count;
        self
    }

    fn sizes(self) -> Option<(usize, usize)> {
        let block_bytes = self.block_bytes.checked_next_multiple_of(BLOCK_ALIGN_BYTES)?;
        Some((block_bytes, block_bytes.checked_mul(self.blocks)?))
    }
}

impl fmt::Display for SlabLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks of {} bytes", self.blocks, self.block_bytes)
    }
}

/// Memory of an application, cut into blocks of one size; clones are the same slab. Any thread may take blocks, and
/// drop them. The memory lives until the last block and the last clone are gone.
///
/// A block is a [`Bulk`]: a `&mut [u8]` for the application's own I/O, an argument
/// (`CallSpec::argument`) or a result (`CallSpec::result_into`) of a call, or data of a reply
/// (`ReplyData::bulk`). It moves into the call and comes back with the answer, so nothing else
/// uses it meanwhile. It starts at a multiple of 4096 bytes, as `O_DIRECT` asks for.
///
/// With any connection, blocks are used as other private memory is. Connections that a slab is lent to
/// (`ConnectOptions::lend`, `ListenOptions::lend`) use arguments from it without a copy at this end:
///
/// | fabric | arguments | results |
/// |---|---|---|
/// | `shm:` | the server reads the block in place | copied by this end: out of a slab that the server lends, else once more, out of memory of the connection |
/// | `rdma:`, `verbs.registration = "window"` | the device reads the block | the device writes the block |
/// | `rdma:`, others | copied, by memory of the connection | copied |
///
/// A server's results that lie in a slab that it lends are copied once, by the client, to wherever it wants them.
///
/// Over shared memory the server, or each client of a server that lends, gets a descriptor and a read-only mapping of
/// the **whole** slab: it can read all blocks at any time, including those of other calls and of other connections.
/// It cannot write the slab: the kernel denies that to every process but this one ([`Slab::from_memfd`] tells how).
/// So lend a slab only to servers that may know all of its contents; otherwise keep a slab for each server, or set
/// `mem.bulk = "copy"`.
///
/// A hostile server can keep the descriptor. It can then read the memory as long as that exists, even after the
/// connection has ended: make a new slab after lending to a server that may not see later contents. Such a server
/// also keeps the memory alive after the slab is dropped, charged to the client (its memory cgroup).
#[derive(Clone)]
pub struct Slab {
    memory: Arc<LendableMemory>,
    pool: BulkPool,
    block_bytes: usize,
}

impl Slab {
    /// Maps these blocks, and has all their pages in place.
    #[doc(hidden)]
    pub fn new(layout: SlabLayout, request: PageRequest) -> io::Result<Self> {
        let (block_bytes, bytes) = layout.sizes().ok_or_else(too_large)?;
        let memory = LendableMemory::create("spinrpc-slab", bytes, request)?;
        Self::cut(memory, block_bytes, layout.blocks)
    }

    /// Takes over a memfd of the application's own, of usual or huge pages, and cuts it into as many blocks of
    /// `layout` as it has room for. All of its pages are brought into being.
    ///
    /// The file is sealed (`F_SEAL_SHRINK`, `F_SEAL_GROW`, `F_SEAL_FUTURE_WRITE`, `F_SEAL_SEAL`): from then on its
    /// size stays, and it can be written by way of the blocks only. `write(2)`, writable mappings and holes are
    /// refused by the kernel to everybody who has a descriptor of it, this process included.
    ///
    /// # Safety
    /// Seals do not touch what exists already, and blocks must not be references to bytes that change. So:
    ///
    /// * The file has no shared mapping (`MAP_SHARED`), in this process or another, and none is being made. That
    ///   includes mappings for reading, as `mprotect` can make one writable if it is older than the seals.
    /// * Nothing in flight can write the file's pages: no registration for RDMA, no fixed buffer of io_uring, and no
    ///   I/O that has been started.
    ///
    /// # Errors
    /// `InvalidInput`, with a text that says why, if `fd` is not a memfd that can be sealed like that, if its size is
    /// not that of whole pages, or is less than one block or more than all blocks of `layout`; otherwise what the kernel
    /// reports: `PermissionDenied` for a descriptor that is not open for writing, `OutOfMemory` where huge pages are
    /// missing. With `InvalidInput` the file is as it was, unless its size changed meanwhile; with other errors some or
    /// all of the seals may be set.
    ///
    /// ```
    /// use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    /// # use spinrpc_fabric::mem::{Slab, SlabLayout};
    ///
    /// let fd = memfd_create("mine", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    /// ftruncate(&fd, 1 << 20)?;
    /// // SAFETY: the file was just made, and nothing has mapped it.
    /// let slab = unsafe { Slab::from_memfd(fd, SlabLayout::new().block_bytes(64 << 10).blocks(1024)) }?;
    /// assert_eq!(slab.free(), 16);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub unsafe fn from_memfd(fd: OwnedFd, layout: SlabLayout) -> io::Result<Self> {
        let (block_bytes, bytes_max) = layout.sizes().ok_or_else(too_large)?;
        if bytes_max == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the layout has no bytes"));
        }
        // SAFETY: the caller's promise.
        let memory = unsafe {
            LendableMemory::from_memfd(fd, block_bytes, bytes_max, PageRequest::default())
        }?;
        let count = memory.mapping().len() / block_bytes;
        Self::cut(memory, block_bytes, count)
    }

    fn cut(memory: LendableMemory, block_bytes: usize, count: usize) -> io::Result<Self> {
        let memory = Arc::new(memory);
        let region = Region::from_lendable(Arc::clone(&memory));
        let pool = BulkPool::new(region, &[BulkClass { block_bytes, count }])
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        Ok(Self { memory, pool, block_bytes })
    }

    /// Takes a block and sets its length to `bytes`; it still has the bytes of its last owner. `None` when all are
    /// taken, or if a block has fewer bytes. The block goes back when it is dropped.
    #[inline]
    pub fn take(&self, bytes: usize) -> Option<Bulk> {
        self.pool.take(bytes)
    }

    /// Bytes of each block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Blocks that are not taken now; other threads may take them meanwhile.
    pub fn free(&self) -> usize {
        self.pool.classes().map(|class| class.free).sum()
    }

    /// Bytes of the memory, which a peer maps when it is lent.
    pub fn bytes(&self) -> usize {
        self.memory.mapping().len()
    }

    /// It consists of huge pages.
    pub fn has_huge_pages(&self) -> bool {
        self.memory.mapping().pages() == PageKind::Huge2M
    }

    /// The pages stay in memory (mlock was asked for and granted).
    #[doc(hidden)]
    pub fn is_locked(&self) -> bool {
        self.memory.mapping().is_locked()
    }

    pub(crate) fn region_id(&self) -> RegionId {
        self.pool.region_id()
    }

    #[cfg(feature = "verbs")]
    pub(crate) fn hold_region(&self) -> super::RegionHold {
        self.pool.hold_region()
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "no memory is as large as that")
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slab({:?}, {} bytes, {} are free)", self.region_id(), self.bytes(), self.free())
    }
}
