//! Rights on a block: exclusive ownership, shared reading, and loans to a driver.

#[cfg(feature = "verbs")]
use super::RegionHold;
use super::bulk::BlockRef;
use super::{Region, RegionId};
use crate::sync::arch::copy_bytes;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;

/// The exclusive owner of a block. It reads and writes the bytes, or lends ranges of them to a
/// driver; while a [`Lease`] is out it does neither. Memory that a peer can write at any time
/// ([`Bulk::is_exposed`]) is only copied in and out; clients and services get such memory as an
/// [`ExposedBulk`](super::ExposedBulk), never as this type.
///
/// # Contract
/// `unsafe impl StableBytes for Bulk` of spinrpc-nfs (`apps/nfs/src/sys/bulk.rs`) hands the bytes to the
/// kernel, together with this value. It is sound only while all of this stays true:
/// * The bytes that [`bytes_mut`](Self::bytes_mut) returns stay mapped at the same address until the value
///   is dropped, wherever it is moved, and forever if it is leaked.
/// * Only this value reads or writes them, unless a lease is out or the memory is exposed;
///   `bytes_mut` panics in both cases.
/// * Leases and other handles to the block come from `&mut self` or `self` only.
///
/// ```
/// # use spinrpc_fabric::mem::Bulk;
///
/// let mut block = Bulk::from_vec(vec![0; 4096]);
/// block.set_len(5);
/// block.copy_from(0, b"bytes");
/// assert_eq!(block.bytes(), b"bytes");
/// assert!(block.capacity() >= 4096 && !block.is_exposed());
/// // Replies can share it, and give it back with the last of them.
/// let shared = block.freeze();
/// assert_eq!(shared.clone().bytes(), b"bytes");
/// ```
pub struct Bulk {
    block: BlockRef,
    len: usize,
    /// Lowest start of the next lease: ranges lent at the same time must not overlap.
    leased_end: usize,
}

impl Bulk {
    #[inline]
    pub(super) fn block(&self) -> &BlockRef {
        &self.block
    }

    pub(super) fn new(block: BlockRef, len: usize) -> Self {
        Self { block, len, leased_end: 0 }
    }

    /// Registers application memory: a separate region with one block, freed with the last handle.
    /// Allocates and, if the vector has spare capacity, may copy; keep it for reuse. Calls copy it
    /// through memory of the connection; a [`Slab`](super::Slab) can be lent instead.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        Self::new(BlockRef::of_region(Region::from_boxed(bytes.into_boxed_slice())), len)
    }

    /// Bytes the block has.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.block.capacity()
    }

    /// Bytes in use, from the start.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// No bytes in use.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets the number of bytes in use.
    ///
    /// # Panics
    /// If that is more than the capacity: a length that a peer named is compared before.
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        let capacity = self.capacity();
        assert!(len <= capacity, "length {len} is beyond the block of {capacity} bytes");
        self.len = len;
    }

    /// The bytes in use.
    ///
    /// # Panics
    /// If a lease is out ([`Bulk::is_leased`]): a driver may be writing there. If the memory
    /// [is exposed](Bulk::is_exposed): the peer may be.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.assert_private();
        // SAFETY: `len` initialised bytes of this block, which has no other handle and no peer, as
        // was just checked; a lease, through which a driver could write, takes `&mut self`.
        unsafe { slice::from_raw_parts(self.block.first_byte().as_ptr(), self.len) }
    }

    /// The bytes in use, to write to.
    ///
    /// # Panics
    /// If a lease is out ([`Bulk::is_leased`]): a driver may be reading or writing there. If the
    /// memory [is exposed](Bulk::is_exposed): the peer may be.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.assert_private();
        // SAFETY: as in `bytes`, and `&mut self` keeps readers out while the slice lives.
        unsafe { slice::from_raw_parts_mut(self.block.first_byte().as_ptr(), self.len) }
    }

    /// True if the peer of a connection can write the memory at any time.
    #[inline]
    pub fn is_exposed(&self) -> bool {
        self.block.is_exposed()
    }

    /// Copies bytes in use, from byte `at` on, to `into`. Works for any memory: a peer that writes during the copy
    /// can tear it, but cannot cause other harm.
    ///
    /// # Panics
    /// If a lease is out ([`Bulk::is_leased`]), or if fewer bytes than `into` takes are in use there.
    pub fn copy_to(&self, at: usize, into: &mut [u8]) {
        let (from, length) = (self.part(at, into.len()), into.len());
        // SAFETY: `part` has found as many initialised bytes, to which there are no references:
        // only `self` creates references to this block, none that can be written through while
        // `&self` lives. `into` is a reference, so it points to other memory.
        unsafe { copy_bytes(from, NonNull::from(into).cast(), length) };
    }

    /// Copies `bytes` to byte `at` and on, all within those in use. For any memory.
    ///
    /// # Panics
    /// As [`Bulk::copy_to`].
    pub fn copy_from(&mut self, at: usize, bytes: &[u8]) {
        let to = self.part(at, bytes.len());
        // SAFETY: as in `copy_to`, and `&mut self` keeps all references to the block away.
        unsafe { copy_bytes(NonNull::from(bytes).cast(), to, bytes.len()) };
    }

    /// Copies the first `length` bytes of another block here. For any memory on either side.
    ///
    /// # Panics
    /// If a lease of either is out, or if fewer bytes are in use in either.
    pub fn copy_from_bulk(&mut self, other: &Self, length: usize) {
        let (from, to) = (other.part(0, length), self.part(0, length));
        // SAFETY: as in `copy_to` and `copy_from`; blocks do not overlap.
        unsafe { copy_bytes(from, to, length) };
    }

    pub(super) fn address(&self) -> (NonNull<u8>, usize) {
        (self.part(0, self.len), self.len)
    }

    fn part(&self, at: usize, bytes: usize) -> NonNull<u8> {
        self.assert_home();
        let fits = at <= self.len && bytes <= self.len - at;
        assert!(fits, "{bytes} bytes at {at} are not within the {} in use", self.len);
        // SAFETY: `at` is within the block.
        unsafe { self.block.first_byte().add(at) }
    }

    /// Lends `range` of the whole block, in use or not, to a driver that reads or writes it.
    ///
    /// # Panics
    /// If the range is not within the capacity, or starts before the end of an earlier lease while
    /// one is still out: two drivers must never get the same bytes to write. Lend ranges in
    /// ascending order, or lend all and [`Lease::split_to`].
    #[inline]
    pub fn lease(&mut self, range: Range<usize>) -> Lease {
        if !self.is_leased() {
            self.leased_end = 0;
        }
        assert!(self.leased_end <= range.start, "lease {range:?} overlaps one that is still out");
        let lease = Lease::new(&self.block, range, self.capacity(), true);
        self.leased_end = lease.start + lease.len;
        lease
    }

    /// A lease is out.
    #[inline]
    pub fn is_leased(&self) -> bool {
        !self.block.is_only()
    }

    /// Gives up writing permanently, so that there can be several readers. Memory of a call, which counts for its
    /// peer until it is free (see the limits in the guide), becomes the application's own: freeze what is kept longer
    /// than the call.
    ///
    /// # Panics
    /// If a lease is out ([`Bulk::is_leased`]): a driver may be writing there. If the memory
    /// [is exposed](Bulk::is_exposed): the peer may be.
    pub fn freeze(self) -> SharedBulk {
        self.assert_private();
        self.block.uncharge();
        SharedBulk { block: self.block, len: self.len }
    }

    /// The region it lies in.
    #[inline]
    pub fn region_id(&self) -> RegionId {
        self.block.region_id()
    }

    #[inline]
    fn assert_home(&self) {
        assert!(!self.is_leased(), "the block is lent to a driver");
    }

    #[inline]
    fn assert_private(&self) {
        self.assert_home();
        assert!(!self.is_exposed(), "a peer can write the block: copy its bytes");
    }
}

impl fmt::Debug for Bulk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let leased = if self.is_leased() { ", leased" } else { "" };
        write!(f, "Bulk({:?}, {} of {}{leased})", self.region_id(), self.len, self.capacity())
    }
}

/// A block that is not written any more: clones and leases of it only read.
#[derive(Clone)]
pub struct SharedBulk {
    block: BlockRef,
    len: usize,
}

impl SharedBulk {
    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes of a block that is frozen: no handle to it writes.
        unsafe { slice::from_raw_parts(self.block.first_byte().as_ptr(), self.len) }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// No bytes at all.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Lends `range` of the bytes to a driver that reads them.
    ///
    /// # Panics
    /// If the range is not within the length.
    #[inline]
    pub fn lease(&self, range: Range<usize>) -> Lease {
        Lease::new(&self.block, range, self.len, false)
    }

    /// The region it lies in.
    #[inline]
    pub fn region_id(&self) -> RegionId {
        self.block.region_id()
    }
}

impl fmt::Debug for SharedBulk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBulk({:?}, {})", self.region_id(), self.len)
    }
}

/// A range of a block on loan to a driver. It keeps the memory alive, even if the owner is dropped.
///
/// Guarantee for a driver: while a [writable](Lease::writable) lease lives, its bytes are not
/// accessed through any other handle; while another lease lives, they are not written.
pub struct Lease {
    block: BlockRef,
    writable: bool,
    /// Another lease of the bytes may be written meanwhile.
    is_witness: bool,
    start: usize,
    len: usize,
}

impl Lease {
    #[inline]
    fn new(block: &BlockRef, range: Range<usize>, limit: usize, writable: bool) -> Self {
        assert!(
            range.start <= range.end && range.end <= limit,
            "lease {range:?} is not within the {limit} bytes there are"
        );
        let (start, len) = (range.start, range.len());
        Self { block: block.clone(), writable, is_witness: false, start, len }
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// No bytes at all, or all of them done.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// First byte, for a driver. Valid for [`Lease::len`] bytes while the lease lives; for writing
    /// only if [`Lease::writable`].
    #[inline]
    pub fn as_ptr(&self) -> NonNull<u8> {
        // SAFETY: `start` is within the block, as `new` checked and `advance` keeps.
        unsafe { self.block.first_byte().add(self.start) }
    }

    /// The region it lies in, by which a driver finds its registration.
    #[inline]
    pub fn region_id(&self) -> RegionId {
        self.block.region_id()
    }

    /// Offset of its first byte in its region.
    #[inline]
    pub fn region_offset(&self) -> usize {
        self.block.region_offset() + self.start
    }

    /// Number of its block in the pool ([`BulkPool`](super::BulkPool)) it was taken from.
    #[cfg(feature = "verbs")]
    #[inline]
    pub(crate) fn block_index(&self) -> usize {
        self.block.index() as usize
    }

    #[cfg(feature = "verbs")]
    pub(crate) fn hold_region(&self) -> RegionHold {
        self.block.hold_region()
    }

    /// May be the target of a transfer: lent by a [`Bulk`]. Otherwise it was lent by a [`SharedBulk`], and has other readers.
    #[inline]
    pub fn writable(&self) -> bool {
        self.writable
    }

    /// Another lease of these bytes, for the capture of a lease that is about to be posted: an exception to the guarantee, as
    /// the holder of this one, or a device for it, writes them meanwhile. Copies then have old bytes or new ones.
    #[inline]
    pub(crate) fn witness(&self) -> Self {
        let (block, start, len) = (self.block.clone(), self.start, self.len);
        Self { block, writable: false, is_witness: true, start, len }
    }

    /// For a driver that hands the bytes to the kernel and computes sums of them itself.
    #[inline]
    pub(crate) fn stable_bytes(&self) -> &[u8] {
        assert!(!self.block.is_exposed() && !self.is_witness, "another holder may write the bytes");
        // SAFETY: `len` initialised bytes of the block, as `new` checked and `advance` keeps. While this lease lives they
        // are written by `write_at` only, which `&self` keeps away while the slice lives: leases of a `Bulk` do not
        // overlap, its owner creates no reference while one is out, and a `SharedBulk` has readers only. A witness
        // copies, and does not write.
        unsafe { slice::from_raw_parts(self.as_ptr().as_ptr(), self.len) }
    }

    /// Copies from byte `at` of the lease on, for a driver that moves bytes itself.
    ///
    /// # Panics
    /// If the lease has fewer bytes behind `at` than `into` takes.
    pub fn read_at(&self, at: usize, into: &mut [u8]) {
        let (from, length) = (self.part(at, into.len()), into.len());
        // SAFETY: `part` has found as many initialised bytes, to which there are no references while the lease is out; of a
        // witness they may be written meanwhile. `into` is a reference, so it is not leased memory.
        unsafe { copy_bytes(from, NonNull::from(into).cast(), length) };
    }

    /// Copies to byte `at` of the lease and on, for a driver that moves bytes itself.
    ///
    /// # Panics
    /// If the lease is not [`Lease::writable`], or has fewer bytes behind `at` than `bytes` has.
    pub fn write_at(&mut self, at: usize, bytes: &[u8]) {
        assert!(self.writable, "a lease of shared memory cannot be a target");
        let to = self.part(at, bytes.len());
        // SAFETY: `part` has found as many bytes. No handle has them except a witness, which copies them: leases of
        // a `Bulk` do not overlap, its owner creates no reference while one is out, and `&mut self` keeps
        // `read_at` away. `bytes` is a reference, so it is not leased memory.
        unsafe { copy_bytes(NonNull::from(bytes).cast(), to, bytes.len()) };
    }

    fn part(&self, at: usize, bytes: usize) -> NonNull<u8> {
        let fits = at <= self.len && bytes <= self.len - at;
        assert!(fits, "{bytes} bytes at {at} are not within the {} leased", self.len);
        // SAFETY: `at` is within the lease, which is within the block.
        unsafe { self.as_ptr().add(at) }
    }

    /// Splits off the first `n` bytes; this lease keeps the rest.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    #[must_use]
    pub fn split_to(&mut self, n: usize) -> Self {
        let start = self.start;
        self.advance(n);
        let (block, writable, is_witness) = (self.block.clone(), self.writable, self.is_witness);
        Self { block, writable, is_witness, start, len: n }
    }

    /// Gives up the first `n` bytes, which are done.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub fn advance(&mut self, n: usize) {
        assert!(n <= self.len, "{n} bytes are more than the {} leased", self.len);
        self.start += n;
        self.len -= n;
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = if self.writable { " to write" } else { "" };
        write!(f, "Lease({:?}, {} at {}{to})", self.region_id(), self.len, self.region_offset())
    }
}
