//! Memory that the kernel has looked up in advance: it moves bytes to and from it without asking, for
//! each operation, where the pages are and whether they may be touched.

use io_uring::IoUring;
use std::io;
use std::ptr::NonNull;

/// Most bytes of a buffer that is registered (io_uring_register(2)).
const PIECE_BYTES: usize = 1 << 30;

/// Memory that buffers of a [`FileRing`](super::FileRing) lie in.
///
/// # Safety
/// The range is the same at every call, and is mapped until the value is dropped, wherever that is
/// moved meanwhile.
pub unsafe trait StableMemory {
    /// Its first byte, and its length in bytes.
    fn range(&self) -> (NonNull<u8>, usize);
}

pub(super) struct Registered {
    /// The address of the first byte; the memory itself is not touched through this.
    start: usize,
    bytes: usize,
    _memory: Box<dyn StableMemory>,
}

impl Registered {
    /// Has the kernel pin the memory for `ring`, in pieces. The result is to be dropped after the ring.
    pub(super) fn with(ring: &IoUring, memory: Box<dyn StableMemory>) -> io::Result<Self> {
        let (first, bytes) = memory.range();
        let pieces: Vec<libc::iovec> = (0..bytes)
            .step_by(PIECE_BYTES)
            .map(|offset| libc::iovec {
                iov_base: first.as_ptr().wrapping_add(offset).cast(),
                iov_len: PIECE_BYTES.min(bytes - offset),
            })
            .collect();
        // SAFETY: the range is mapped as long as `memory` lives (`StableMemory`), which is kept
        // until the ring is gone.
        unsafe { ring.submitter().register_buffers(&pieces) }?;
        Ok(Self { start: first.as_ptr().addr(), bytes, _memory: memory })
    }

    /// The number of the piece that all of these bytes lie in, if there is one.
    pub(super) fn piece_of(&self, bytes: &[u8]) -> Option<u16> {
        let from = bytes.as_ptr().addr().checked_sub(self.start)?;
        let last = from.checked_add(bytes.len().checked_sub(1)?)?;
        let is_in_one = last < self.bytes && from / PIECE_BYTES == last / PIECE_BYTES;
        is_in_one.then(|| u16::try_from(from / PIECE_BYTES).ok()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nowhere(NonNull<u8>);

    // SAFETY: it is not mapped; only addresses are compared here, and nothing is registered.
    unsafe impl StableMemory for Nowhere {
        fn range(&self) -> (NonNull<u8>, usize) {
            (self.0, 0)
        }
    }

    #[test]
    fn bytes_are_in_a_piece_if_all_of_them_are_in_the_same() {
        let bytes = [0_u8; 64];
        let start = bytes[16..].as_ptr().addr();
        let memory = Box::new(Nowhere(NonNull::from(&bytes[0])));
        let mut registered = Registered { start, bytes: 32, _memory: memory };
        assert_eq!(registered.piece_of(&bytes[16..48]), Some(0));
        assert_eq!(registered.piece_of(&bytes[47..48]), Some(0));
        for outside in [15..17, 47..49, 48..49, 0..1, 16..16] {
            assert_eq!(registered.piece_of(&bytes[outside.clone()]), None, "{outside:?}");
        }
        (registered.start, registered.bytes) = (start - PIECE_BYTES, PIECE_BYTES + 32);
        assert_eq!(registered.piece_of(&bytes[16..48]), Some(1));
        assert_eq!(registered.piece_of(&bytes[15..17]), None, "half in each of two pieces");
    }
}
