//! A core's pool of equal-size message buffers.

use super::buf::Slot;
use super::{Buf, LINE_BYTES, PoolError, Region};
use std::cell::{Cell, OnceCell};
use std::fmt;
use std::rc::Rc;

/// Equal-size buffers carved from one region, for one core: neither it nor its buffers can leave
/// the thread. Clones are the same pool. The memory lives until the last [`Buf`] is gone.
///
/// ```compile_fail
/// fn is_send<T: Send>() {}
/// is_send::<spinrpc_fabric::mem::Buf>();
/// ```
#[derive(Clone)]
pub struct BufPool(Rc<PoolCore>);

impl BufPool {
    /// Carves `count` buffers of `buf_bytes` from the start of `region`.
    ///
    /// # Errors
    /// [`PoolError`] if a number is zero or too large, or the region is smaller than
    /// [`BufPool::region_bytes`] or [exposed](Region::is_exposed).
    pub fn new(region: Region, buf_bytes: usize, count: usize) -> Result<Self, PoolError> {
        let needed_bytes = Self::region_bytes(buf_bytes, count)?;
        if region.is_exposed() {
            return Err(PoolError::Exposed);
        }
        let capacity = u32::try_from(buf_bytes).map_err(|_| PoolError::TooLarge)?;
        let count = u32::try_from(count).map_err(|_| PoolError::TooLarge)?;
        let lead_in = region.as_ptr().align_offset(LINE_BYTES);
        if region.len() < needed_bytes.saturating_add(lead_in) {
            return Err(PoolError::RegionTooSmall { needed_bytes, region_bytes: region.len() });
        }
        let free: Box<[Cell<u32>]> = (0..count).rev().map(Cell::new).collect();
        let (available, slots) = (Cell::new(count), OnceCell::new());
        Ok(Self(Rc::new(PoolCore { capacity, available, lead_in, free, slots, region })))
    }

    /// Bytes a line-aligned region must have for this pool.
    ///
    /// # Errors
    /// [`PoolError::Empty`] and [`PoolError::TooLarge`].
    pub fn region_bytes(buf_bytes: usize, count: usize) -> Result<usize, PoolError> {
        if buf_bytes == 0 || count == 0 {
            return Err(PoolError::Empty);
        }
        if buf_bytes > u32::MAX as usize || count > u32::MAX as usize {
            return Err(PoolError::TooLarge);
        }
        stride_bytes(buf_bytes, count)
            .checked_mul(count)
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or(PoolError::TooLarge)
    }

    /// A buffer, with an empty range; `None` when all are out. It still has the bytes of the
    /// previous owner. The buffer given back last comes first: it is the one still in the cache.
    #[inline]
    pub fn take(&self) -> Option<Buf> {
        self.take_beyond(0)
    }

    /// As [`BufPool::take`], but `None` unless more than `kept` are in the pool.
    #[inline]
    pub fn take_beyond(&self, kept: u32) -> Option<Buf> {
        let index = self.0.pop_beyond(kept)?;
        Some(Buf::new(&self.0, index))
    }

    /// Number of buffers in the pool now.
    #[inline]
    pub fn available(&self) -> usize {
        self.0.available.get() as usize
    }

    /// Total number of buffers.
    pub fn capacity(&self) -> usize {
        self.0.free.len()
    }

    pub fn buf_bytes(&self) -> usize {
        self.0.capacity as usize
    }
}

impl fmt::Debug for BufPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufPool({} of {} are free)", self.available(), self.capacity())
    }
}

pub(super) struct PoolCore {
    capacity: u32,
    /// The first `available` entries of `free` are the indices in the pool.
    available: Cell<u32>,
    /// Bytes of the region before the first buffer.
    lead_in: usize,
    free: Box<[Cell<u32>]>,
    /// Made when the first buffer is taken: most connections take none to send.
    slots: OnceCell<Box<[Slot]>>,
    region: Region,
}

impl PoolCore {
    pub(super) fn region(&self) -> &Region {
        &self.region
    }

    #[inline]
    pub(super) fn slot(&self, index: u32) -> &Slot {
        &self.slots.get_or_init(|| self.make_slots())[index as usize]
    }

    #[cold]
    fn make_slots(&self) -> Box<[Slot]> {
        let stride = stride_bytes(self.capacity as usize, self.free.len());
        let slot = |index: usize| {
            // SAFETY: `BufPool::new` checked that the region has as many strides behind `lead_in`.
            let first = unsafe { self.region.as_ptr().add(self.lead_in + index * stride) };
            Slot::new(first, index as u32, self.capacity)
        };
        (0..self.free.len()).map(slot).collect()
    }

    #[inline]
    fn pop_beyond(&self, kept: u32) -> Option<u32> {
        let available = self.available.get();
        if available <= kept {
            return None;
        }
        let available = available - 1;
        self.available.set(available);
        Some(self.free[available as usize].get())
    }

    /// Takes buffer `index` back from its only owner.
    #[inline]
    pub(super) fn push(&self, index: u32) {
        let available = self.available.get();
        self.free[available as usize].set(index);
        self.available.set(available + 1);
    }
}

/// An odd number of cache lines: with an even one, and a power of two above all, the headers of all
/// buffers would compete for the same few sets of the first-level cache. Few buffers do not, and then fill their pages.
fn stride_bytes(buf_bytes: usize, count: usize) -> usize {
    let odd = usize::from(count > ADJACENT_MAX);
    (buf_bytes.div_ceil(LINE_BYTES) | odd) * LINE_BYTES
}

/// Most buffers of a pool that are adjacent: half of the ways of a first-level cache.
const ADJACENT_MAX: usize = 4;
