//! A view of memory that is lent to a driver, for observers of traffic: the capture of packets.

use super::bulk::BlockRef;
use crate::sync::words::WORD_BYTES;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// Sees the bytes of a [`Lease`](super::Lease) that another owner holds. It counts as a lease of
/// the block: while it lives, the memory does, and the owner gets at none of it.
///
/// A driver writes leased memory by the processor on the thread that polls it, or by a device. A
/// witness is made on that thread (which is why only this crate can make one) and stays on it, so
/// the first does not happen while bytes are copied; the second may, and then the copy has old bytes
/// or new ones.
pub(crate) struct Witness {
    block: BlockRef,
    start: usize,
    len: usize,
    stays_on_its_thread: PhantomData<*const ()>,
}

impl Witness {
    #[inline]
    pub(super) fn new(block: BlockRef, start: usize, len: usize) -> Self {
        Self { block, start, len, stays_on_its_thread: PhantomData }
    }

    /// Bytes it sees.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Copies the bytes at `from` to the start of `out`, as many as exist and fit.
    pub(crate) fn copy_to(&self, from: usize, out: &mut [u8]) {
        let from = from.min(self.len);
        let bytes = out.len().min(self.len - from);
        // SAFETY: `start` and `len` are those of a lease, so within the block.
        let first = unsafe { self.block.first_byte().add(self.start + from) };
        let (head, rest) = out[..bytes].split_at_mut(first.align_offset(WORD_BYTES).min(bytes));
        let (words, tail) = rest.as_chunks_mut::<WORD_BYTES>();
        let tail_at = head.len() + words.len() * WORD_BYTES;
        self.copy_bytes(first, head);
        for (index, word) in words.iter_mut().enumerate() {
            // SAFETY: as in `copy_bytes`; the head ended where words are aligned.
            let address = unsafe { first.add(head.len() + index * WORD_BYTES) }.cast::<u64>();
            // SAFETY: as above.
            *word = unsafe { address.read_volatile() }.to_ne_bytes();
        }
        // SAFETY: at most `bytes` behind the first, so within the lease.
        self.copy_bytes(unsafe { first.add(tail_at) }, tail);
    }

    /// Copies as many bytes as `out` takes, all of them within the lease.
    fn copy_bytes(&self, first: NonNull<u8>, out: &mut [u8]) {
        for (at, byte) in out.iter_mut().enumerate() {
            // SAFETY: the caller's promise; the block is initialised, and `self.block` keeps it.
            // There are no references to it: the owner's accessors refuse while another handle
            // exists, and a driver has a pointer only. No other thread writes it, as said at the
            // type. A device may write it meanwhile; a volatile read may see that write or not.
            *byte = unsafe { first.add(at).read_volatile() };
        }
    }
}
