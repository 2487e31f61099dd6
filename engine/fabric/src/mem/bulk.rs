//! Pools of blocks for one-sided transfers, by size class, for any thread.

use super::RegionHold;
use super::share::Share;
use super::{Bulk, LINE_BYTES, PoolError, Region, RegionId};
use crate::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use crate::sync::free_list::FreeList;
use std::fmt;
use std::process::abort;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, OnceLock};

pub(super) const CLASSES_MAX: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkClass {
    pub block_bytes: usize,
    pub count: usize,
}

/// State of a size class; a snapshot, as other threads take and free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassStats {
    pub block_bytes: usize,
    /// Blocks in the pool now.
    pub free: usize,
    pub total: usize,
}

/// Blocks of several sizes carved from one region. Clones are the same pool; any thread may take
/// and free. The memory lives until the last handle to a block is gone.
#[derive(Clone)]
pub struct BulkPool(Arc<PoolCore>);

impl BulkPool {
    /// Carves `classes`, given in any order, from `region`.
    ///
    /// # Errors
    /// [`PoolError`] if there are no classes, a number is zero or too large, or the region is
    /// smaller than [`BulkPool::region_bytes`].
    pub fn new(region: Region, classes: &[BulkClass]) -> Result<Self, PoolError> {
        let needed_bytes = Self::region_bytes(classes)?;
        let lead_in = region.as_ptr().align_offset(LINE_BYTES);
        if region.len() < needed_bytes.saturating_add(lead_in) {
            return Err(PoolError::RegionTooSmall { needed_bytes, region_bytes: region.len() });
        }
        let mut classes = classes.to_vec();
        classes.sort_by_key(|class| class.block_bytes);
        Ok(Self(Arc::new(PoolCore::carve(region, lead_in, &classes))))
    }

    /// Bytes a line-aligned region must have for these classes.
    ///
    /// # Errors
    /// [`PoolError::Empty`] and [`PoolError::TooLarge`].
    pub fn region_bytes(classes: &[BulkClass]) -> Result<usize, PoolError> {
        if classes.len() > CLASSES_MAX {
            return Err(PoolError::TooLarge);
        }
        let mut blocks = 0_usize;
        let mut bytes = 0_usize;
        for class in classes {
            if class.block_bytes == 0 || class.count == 0 {
                return Err(PoolError::Empty);
            }
            let class_bytes = stride_bytes(class.block_bytes).checked_mul(class.count);
            bytes = class_bytes.and_then(|more| more.checked_add(bytes)).unwrap_or(usize::MAX);
            blocks = blocks.saturating_add(class.count);
        }
        match (blocks, u32::try_from(blocks), isize::try_from(bytes)) {
            (0, ..) => Err(PoolError::Empty),
            (_, Ok(_), Ok(_)) => Ok(bytes),
            _ => Err(PoolError::TooLarge),
        }
    }

    /// A block from the smallest class that fits `bytes` and has a free one, its length set to
    /// `bytes`; `None` if all are too small or taken. It still has the bytes of the previous owner.
    #[inline]
    pub fn take(&self, bytes: usize) -> Option<Bulk> {
        let fitting = self.0.classes.iter().filter(|class| class.block_bytes >= bytes);
        let index = fitting.filter_map(Class::take).next()?;
        Some(Bulk::new(BlockRef::first(&self.0, index), bytes))
    }

    /// The same, only of the class that fits best.
    #[inline]
    pub fn take_fitting(&self, bytes: usize) -> Option<Bulk> {
        let class = self.0.classes.iter().find(|class| class.block_bytes >= bytes)?;
        Some(Bulk::new(BlockRef::first(&self.0, class.take()?), bytes))
    }

    /// True if a peer can write the blocks at any time ([`Region::is_exposed`]).
    pub fn is_exposed(&self) -> bool {
        self.0.region.is_exposed()
    }

    pub fn region_id(&self) -> RegionId {
        self.0.region.id()
    }

    /// Keeps that region, for the code that registers it.
    pub fn hold_region(&self) -> RegionHold {
        self.0.region.hold()
    }

    /// By number ([`Lease::block_index`](super::Lease::block_index)), for a driver that registers them one by one.
    #[cfg(feature = "verbs")]
    pub(crate) fn blocks(&self) -> impl ExactSizeIterator<Item = (NonNull<u8>, usize)> + '_ {
        self.0.make_blocks().iter().map(|block| (block.first_byte, block.block_bytes))
    }

    /// State of each class, smallest first.
    pub fn classes(&self) -> impl Iterator<Item = ClassStats> + '_ {
        self.0.classes.iter().map(|class| ClassStats {
            block_bytes: class.block_bytes,
            free: class.count.load(Ordering::Relaxed),
            total: class.free.total(),
        })
    }

    /// True if [`BulkPool::take`] for all of `lengths`, in their order, would find blocks in this
    /// pool if none were lent out. If false, waiting does not help.
    pub fn could_hold(&self, lengths: impl IntoIterator<Item = usize>) -> bool {
        let mut left = [0; CLASSES_MAX];
        for (left, class) in left.iter_mut().zip(&self.0.classes) {
            *left = class.free.total();
        }
        lengths.into_iter().all(|bytes| {
            let mut classes = left.iter_mut().zip(&self.0.classes);
            let fitting = classes.find(|(left, class)| **left > 0 && class.block_bytes >= bytes);
            fitting.map(|(left, _)| *left -= 1).is_some()
        })
    }

    /// Bytes of the largest block there is, taken or not.
    pub fn largest(&self) -> usize {
        self.0.classes.last().map_or(0, |class| class.block_bytes)
    }
}

impl fmt::Debug for BulkPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BulkPool({:?}, {:?})", self.region_id(), self.classes().collect::<Vec<_>>())
    }
}

struct PoolCore {
    region: Region,
    /// Bytes of the region before the first block.
    lead_in: usize,
    /// Ascending by size.
    classes: Box<[Class]>,
    /// Made when the first block is taken: most connections take none.
    blocks: OnceLock<Box<[Block]>>,
}

struct Class {
    block_bytes: usize,
    free: FreeList,
    /// Number of free blocks, for statistics; may be slightly outdated.
    count: AtomicUsize,
}

impl Class {
    fn new(block_bytes: usize, first: u32, count: usize) -> Self {
        let free = FreeList::full(first, count as u32);
        Self { block_bytes, free, count: AtomicUsize::new(count) }
    }

    #[inline]
    fn take(&self) -> Option<u32> {
        let index = self.free.take()?;
        self.count.fetch_sub(1, Ordering::Relaxed);
        Some(index)
    }

    #[inline]
    fn give(&self, index: u32) {
        // Counted first, so that the count never passes zero from above.
        self.count.fetch_add(1, Ordering::Relaxed);
        self.free.give(index);
    }
}

/// One block's state, on a separate cache line: different threads count references of neighbours.
#[repr(align(64))]
struct Block {
    /// Handles that exist: a `Bulk` or `SharedBulk`s, and leases. Zero while in the free list.
    references: AtomicU32,
    index: u32,
    class: u32,
    block_bytes: usize,
    first_byte: NonNull<u8>,
    /// The [`Share`] that it counts in while it is taken, if any.
    share: AtomicPtr<()>,
    is_exposed: bool,
}

// SAFETY: the address is that of the pool's region, which any thread may know; a block touches none
// of the bytes itself.
unsafe impl Send for Block {}
// SAFETY: as above; the count is atomic and the rest does not change.
unsafe impl Sync for Block {}

impl Block {
    fn new(
        region: &Region,
        (index, class): (u32, u32),
        block_bytes: usize,
        first_byte: NonNull<u8>,
    ) -> Self {
        let (references, is_exposed) = (AtomicU32::new(0), region.is_exposed());
        let share = AtomicPtr::new(null_mut());
        Self { references, index, class, block_bytes, first_byte, share, is_exposed }
    }
}

impl Block {
    /// It does not count in its share any more: the last reference goes, or the application keeps it.
    #[cold]
    fn leave_share(&self) {
        let raw = self.share.swap(null_mut(), Ordering::Relaxed);
        if !raw.is_null() {
            // SAFETY: `charge` put it there with `into_raw`, and the swap took it out.
            let share = unsafe { Share::from_raw(raw) };
            share.uncount(self.class as usize);
        }
    }
}

impl PoolCore {
    /// The caller has checked that `classes` fit.
    fn carve(region: Region, lead_in: usize, classes: &[BulkClass]) -> Self {
        let mut blocks = 0;
        let carve = |class: &BulkClass| {
            let first = blocks;
            blocks += class.count as u32;
            Class::new(class.block_bytes, first, class.count)
        };
        let classes = classes.iter().map(carve).collect();
        Self { region, lead_in, classes, blocks: OnceLock::new() }
    }

    #[inline]
    fn make_blocks(&self) -> &[Block] {
        self.blocks.get_or_init(|| self.first_blocks())
    }

    #[cold]
    fn first_blocks(&self) -> Box<[Block]> {
        let mut blocks =
            Vec::with_capacity(self.classes.iter().map(|class| class.free.total()).sum());
        let mut offset = self.lead_in;
        for (class, number) in self.classes.iter().zip(0_u32..) {
            for _ in 0..class.free.total() {
                // SAFETY: `BulkPool::new` checked that all strides of these classes lie within the region.
                let first_byte = unsafe { self.region.as_ptr().add(offset) };
                let index = blocks.len() as u32;
                blocks.push(Block::new(
                    &self.region,
                    (index, number),
                    class.block_bytes,
                    first_byte,
                ));
                offset += stride_bytes(class.block_bytes);
            }
        }
        blocks.into()
    }

    fn whole(region: Region) -> Self {
        let block_bytes = region.len();
        let block: Box<[Block]> =
            [Block::new(&region, (0, 0), block_bytes, region.as_ptr())].into();
        let class = Class::new(block_bytes, 0, 1);
        class.take();
        Self { region, lead_in: 0, classes: Box::new([class]), blocks: block.into() }
    }
}

/// A counted reference to a block. It keeps the block out of the free list and the pool alive; the
/// handle around it decides what its holder may do with the bytes.
pub(super) struct BlockRef {
    /// Pointer from `Arc::into_raw`: one strong count for all references of a block together, so
    /// that making a further reference touches the block's own line only.
    core: NonNull<PoolCore>,
    block: NonNull<Block>,
}

// SAFETY: a reference is an index and a pointer to a `PoolCore`, which is Sync; counts are atomic.
// It gives out addresses, never Rust references to the bytes.
unsafe impl Send for BlockRef {}
// SAFETY: as above.
unsafe impl Sync for BlockRef {}

impl BlockRef {
    /// The first reference to a block that was just popped from its free list.
    #[inline]
    fn first(core: &Arc<PoolCore>, index: u32) -> Self {
        // Relaxed: popping it made this thread the only one that knows the block, and handing a
        // handle to another thread synchronises.
        let block = &core.make_blocks()[index as usize];
        block.references.store(1, Ordering::Relaxed);
        let block = NonNull::from(block);
        let raw = Arc::into_raw(Arc::clone(core));
        // SAFETY: `Arc::into_raw` never gives null.
        Self { core: unsafe { NonNull::new_unchecked(raw.cast_mut()) }, block }
    }

    /// The only block of application memory.
    pub(super) fn of_region(region: Region) -> Self {
        Self::first(&Arc::new(PoolCore::whole(region)), 0)
    }

    #[inline]
    fn block(&self) -> &Block {
        // SAFETY: it lies in the pool, which lives at least as long as `self` (see `core`) and makes its blocks once.
        unsafe { self.block.as_ref() }
    }

    pub(super) fn charge(&self, pool: &BulkPool, share: &Share) {
        if !std::ptr::eq(self.core.as_ptr(), Arc::as_ptr(&pool.0)) {
            return;
        }
        let (block, raw) = (self.block(), share.clone().into_raw());
        // Relaxed: `drop` sees it by the count of references, which this handle is one of.
        let set =
            block.share.compare_exchange(null_mut(), raw, Ordering::Relaxed, Ordering::Relaxed);
        match set {
            Ok(_) => share.count(block.class as usize),
            // SAFETY: it is of `into_raw` above, and the block has not got it.
            Err(_) => drop(unsafe { Share::from_raw(raw) }),
        }
    }

    pub(super) fn class_in(&self, pool: &BulkPool) -> Option<usize> {
        let is_ours = std::ptr::eq(self.core.as_ptr(), Arc::as_ptr(&pool.0));
        is_ours.then(|| self.block().class as usize)
    }

    pub(super) fn uncharge(&self) {
        self.block().leave_share();
    }

    #[inline]
    fn core(&self) -> &PoolCore {
        // SAFETY: `first` leaked a strong count, which the last reference to the block takes back,
        // so the pool lives at least as long as `self`.
        unsafe { self.core.as_ref() }
    }

    #[inline]
    pub(super) fn capacity(&self) -> usize {
        self.block().block_bytes
    }

    #[inline]
    pub(super) fn is_exposed(&self) -> bool {
        self.block().is_exposed
    }

    #[inline]
    pub(super) fn first_byte(&self) -> NonNull<u8> {
        self.block().first_byte
    }

    /// Offset of the block's first byte in the whole that was registered.
    #[inline]
    pub(super) fn region_offset(&self) -> usize {
        let region = &self.core().region;
        let in_part = self.first_byte().as_ptr().addr() - region.as_ptr().as_ptr().addr();
        region.offset() + in_part
    }

    #[inline]
    pub(super) fn region_id(&self) -> RegionId {
        self.core().region.id()
    }

    #[cfg(feature = "verbs")]
    #[inline]
    pub(super) fn index(&self) -> u32 {
        self.block().index
    }

    #[cfg(feature = "verbs")]
    pub(super) fn hold_region(&self) -> RegionHold {
        self.core().region.hold()
    }

    /// No other reference to the block exists. Then none can appear either, as references are made
    /// from references, and earlier accesses of their holders are visible here.
    #[inline]
    pub(super) fn is_only(&self) -> bool {
        // Acquire: pairs with the release in `drop`.
        self.block().references.load(Ordering::Acquire) == 1
    }
}

impl Clone for BlockRef {
    #[inline]
    fn clone(&self) -> Self {
        // Relaxed: `self` keeps the count above zero meanwhile.
        let before = self.block().references.fetch_add(1, Ordering::Relaxed);
        if before > u32::MAX / 2 {
            // Only leaking two billion handles gets here; a count that wraps would free the block
            // under its users. `Arc` does the same.
            abort();
        }
        Self { core: self.core, block: self.block }
    }
}

impl Drop for BlockRef {
    #[inline]
    fn drop(&mut self) {
        let block = self.block();
        // Release: this holder's accesses to the bytes happen before the block is used again.
        if block.references.fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        // Acquire: pairs with the release of every other holder. A load, as ThreadSanitizer does not
        // understand fences.
        block.references.load(Ordering::Acquire);
        if !block.share.load(Ordering::Relaxed).is_null() {
            block.leave_share();
        }
        // SAFETY: takes back the strong count that `first` leaked; this was the last reference.
        let core = unsafe { Arc::from_raw(self.core.as_ptr()) };
        core.classes[block.class as usize].give(block.index);
    }
}

/// Blocks start at a cache line, and those of a small page or more at a multiple of it, also where pages
/// are larger.
fn stride_bytes(block_bytes: usize) -> usize {
    const PAGE_BYTES: usize = 4096;
    let unit = if block_bytes < PAGE_BYTES { LINE_BYTES } else { PAGE_BYTES };
    block_bytes.div_ceil(unit).saturating_mul(unit)
}
