//! Memory that the kernel has looked up in advance: it moves bytes to and from it without asking, for
//! each operation, where the pages are and whether they may be touched.

use io_uring::IoUring;
use std::io;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;

/// Most bytes of a buffer that is registered (io_uring_register(2)).
const PIECE_BYTES: usize = 1 << 30;

/// Entries of the kernel's table: pieces of memory that are registered at a time. Each costs 8 bytes
/// there and 40 here.
pub(super) const PIECES_MAX: u16 = 1024;

/// Length in bytes of a read or write from which unregistered memory is registered.
// The gain from a registered buffer grows with the transfer: three fifths of the time of 1 MiB
// where the CPU copies from the memory of a user slowly (an emulated one), and nothing measurable
// for 4 KiB. Pinning 17 MiB that have been touched before takes 0.45 ms, unpinning them 0.1 ms, and
// freeing them 1.2 ms (Linux 6.18, pages of 4 KiB, virtual CPUs). Untouched pages are allocated by
// pinning them, in 12 ms, but a connection's memory was pinned by its device before.
pub(super) const LEARN_FROM_BYTES: usize = 64 << 10;

/// Number of polls between two looks for unused memory.
const POLLS_BETWEEN_LOOKS: u32 = 1 << 16;

/// Memory that buffers of a [`FileRing`](super::FileRing) lie in.
///
/// # Safety
/// The range is the same at every call, and is mapped until the value is dropped, wherever that is
/// moved meanwhile. [`is_unused`](Self::is_unused) keeps its word.
pub(crate) unsafe trait StableMemory {
    /// Its first byte, and its length in bytes.
    fn range(&self) -> (NonNull<u8>, usize);

    /// Returns whether no buffer lies in it, now and later, so that it can be unregistered. Stays
    /// true once it is. Called at intervals; must not wait.
    fn is_unused(&self) -> bool {
        false
    }
}

/// Used entries of the kernel's table of buffers. To be dropped after the ring.
pub(super) struct Registered {
    /// Ascending by address.
    pieces: Vec<Piece>,
    /// Entries of the table that are empty. None at all where the kernel has no such table.
    free: Vec<u16>,
    /// No more memory could be registered, and none has been unregistered since.
    is_exhausted: bool,
    polls: u32,
}

struct Piece {
    /// The address of the first byte; the memory itself is not touched through this.
    start: usize,
    bytes: usize,
    /// Index in the kernel's table.
    entry: u16,
    /// Shared by the pieces of the same memory.
    memory: Rc<dyn StableMemory>,
}

impl Registered {
    /// Lets the kernel create a table of `pieces` entries for `ring`, all empty (Linux 5.19). If
    /// that fails, no memory will be registered.
    pub(super) fn none_yet(ring: &IoUring, pieces: u16) -> Self {
        let made = ring.submitter().register_buffers_sparse(pieces.into());
        let pieces = made.map_or(0, |()| pieces);
        Self {
            pieces: Vec::with_capacity(pieces.into()),
            free: (0..pieces).rev().collect(),
            is_exhausted: false,
            polls: 0,
        }
    }

    /// The entry of the piece that contains all of these bytes, if there is one.
    pub(super) fn entry_of(&self, address: usize, bytes: usize) -> Option<u16> {
        let last = address.checked_add(bytes.checked_sub(1)?)?;
        let piece = self.piece_at(address)?;
        (last - piece.start < piece.bytes).then_some(piece.entry)
    }

    fn piece_at(&self, address: usize) -> Option<&Piece> {
        let behind = self.pieces.partition_point(|piece| piece.start <= address);
        let piece = self.pieces.get(behind.checked_sub(1)?)?;
        (address - piece.start < piece.bytes).then_some(piece)
    }

    /// Registers the memory around these bytes, which `memory` returns, if that pays and was not
    /// done yet.
    #[inline]
    pub(super) fn meet(
        &mut self,
        ring: &IoUring,
        (address, bytes): (usize, usize),
        memory: impl FnOnce() -> Option<Box<dyn StableMemory>>,
    ) {
        if bytes >= LEARN_FROM_BYTES && !self.is_exhausted && self.piece_at(address).is_none() {
            self.learn(ring, memory());
        }
    }

    #[cold]
    fn learn(&mut self, ring: &IoUring, memory: Option<Box<dyn StableMemory>>) {
        if let Some(memory) = memory {
            self.is_exhausted = self.add(ring, memory).is_err();
        }
    }

    /// Lets the kernel pin memory, in pieces. Memory that it has already is not pinned again.
    pub(super) fn add(&mut self, ring: &IoUring, memory: Box<dyn StableMemory>) -> io::Result<()> {
        let (first, bytes) = memory.range();
        if self.piece_at(first.as_ptr().addr()).is_some() {
            return Ok(());
        }
        self.make_room(ring, bytes.div_ceil(PIECE_BYTES))?;
        let memory = Rc::from(memory);
        let added = pieces_of(bytes).try_for_each(|(at, bytes)| {
            let piece = first.as_ptr().wrapping_add(at);
            self.add_piece(ring, piece, bytes, &memory)
        });
        added.inspect_err(|_| self.remove(ring, &memory))
    }

    fn add_piece(
        &mut self,
        ring: &IoUring,
        first: *mut u8,
        bytes: usize,
        memory: &Rc<dyn StableMemory>,
    ) -> io::Result<()> {
        let Some(&entry) = self.free.last() else { return Err(no_room()) };
        fill(ring, entry, first, bytes)?;
        self.free.pop();
        let start = first.addr();
        let place = self.pieces.partition_point(|piece| piece.start < start);
        self.pieces.insert(place, Piece { start, bytes, entry, memory: Rc::clone(memory) });
        Ok(())
    }

    fn make_room(&mut self, ring: &IoUring, entries: usize) -> io::Result<()> {
        while self.free.len() < entries {
            if !self.let_go_of_one(ring) {
                return Err(no_room());
            }
        }
        Ok(())
    }

    /// Counts a poll. At intervals, unused memory is unregistered: one piece at a time, because
    /// that may free it, which takes time in proportion to its size.
    #[inline]
    pub(super) fn tend(&mut self, ring: &IoUring) {
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(POLLS_BETWEEN_LOOKS) {
            self.let_go_of_one(ring);
        }
    }

    /// Unregisters one unused piece; returns `false` if all are in use. No operation has a buffer in
    /// unused memory, so none that the kernel has yet to start refers to the emptied entry.
    #[cold]
    fn let_go_of_one(&mut self, ring: &IoUring) -> bool {
        let unused = self.pieces.iter().find(|piece| piece.memory.is_unused());
        let Some(unused) = unused.map(|piece| Rc::clone(&piece.memory)) else { return false };
        self.remove(ring, &unused);
        self.is_exhausted = false;
        true
    }

    /// If the kernel does not empty the entry, for which no reason is known, the entry is not used
    /// again, and the kernel keeps its pages.
    fn remove(&mut self, ring: &IoUring, memory: &Rc<dyn StableMemory>) {
        let Self { pieces, free, .. } = self;
        pieces.retain(|piece| {
            let stays = !Rc::ptr_eq(&piece.memory, memory);
            if !stays && fill(ring, piece.entry, null_mut(), 0).is_ok() {
                free.push(piece.entry);
            }
            stays
        });
    }
}

/// Start and length of each piece of this many bytes.
fn pieces_of(bytes: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..bytes).step_by(PIECE_BYTES).map(move |at| (at, PIECE_BYTES.min(bytes - at)))
}

/// Puts memory in an entry of the kernel's table, or empties it.
fn fill(ring: &IoUring, entry: u16, first: *mut u8, bytes: usize) -> io::Result<()> {
    let piece = libc::iovec { iov_base: first.cast(), iov_len: bytes };
    // SAFETY: the range is mapped while it is in the table (`StableMemory`): its `Piece` keeps the
    // memory until the entry is empty again, or the ring is gone. The kernel takes references to the
    // pages, and accesses them only for operations that name the entry. The buffers of those lie in
    // it, and keep the memory in use until they are done; memory in use is not taken out.
    unsafe { ring.submitter().register_buffers_update(entry.into(), &[piece], None) }
}

fn no_room() -> io::Error {
    io::Error::new(io::ErrorKind::StorageFull, "the kernel's table of buffers has no entry left")
}

#[cfg(test)]
mod tests {
    use super::super::setup;
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    use std::cell::Cell;

    const PAGE: usize = 4096;

    /// Bytes of the heap, in use until told otherwise.
    #[derive(Clone)]
    struct Memory {
        bytes: Rc<[Cell<u8>]>,
        is_unused: Rc<Cell<bool>>,
    }

    impl Memory {
        fn of(bytes: usize) -> Self {
            Self { bytes: vec![Cell::new(0); bytes].into(), is_unused: Rc::default() }
        }

        fn boxed(&self) -> Box<dyn StableMemory> {
            Box::new(self.clone())
        }

        fn address(&self) -> usize {
            self.bytes.as_ptr().addr()
        }

        fn is_held(&self) -> bool {
            Rc::strong_count(&self.bytes) > 1
        }
    }

    // SAFETY: the bytes stay where they are as long as a clone of the counter is there.
    unsafe impl StableMemory for Memory {
        fn range(&self) -> (NonNull<u8>, usize) {
            (NonNull::from(&self.bytes[0]).cast(), self.bytes.len())
        }

        fn is_unused(&self) -> bool {
            self.is_unused.get()
        }
    }

    /// Addresses that cannot be read or written, and that the kernel cannot pin.
    struct Forbidden(NonNull<u8>);

    impl Forbidden {
        fn new() -> Self {
            // SAFETY: a new mapping, where the kernel likes.
            let mapped =
                unsafe { mmap_anonymous(null_mut(), PAGE, ProtFlags::empty(), MapFlags::PRIVATE) };
            Self(NonNull::new(mapped.unwrap().cast()).unwrap())
        }
    }

    impl Drop for Forbidden {
        fn drop(&mut self) {
            // SAFETY: the mapping is this value's, and there are no references to its bytes.
            unsafe { munmap(self.0.as_ptr().cast(), PAGE) }.unwrap();
        }
    }

    // SAFETY: it is mapped as long as the value lives.
    unsafe impl StableMemory for Forbidden {
        fn range(&self) -> (NonNull<u8>, usize) {
            (self.0, PAGE)
        }
    }

    fn table(pieces: u16) -> (IoUring, Registered) {
        let ring = setup::plain(2).expect("this test needs io_uring, which a sandbox may deny");
        let registered = Registered::none_yet(&ring, pieces);
        assert_eq!(registered.free.len(), usize::from(pieces), "this test needs Linux 5.19");
        (ring, registered)
    }

    #[test]
    fn bytes_are_in_a_piece_if_all_of_them_are_in_the_same() {
        let (ring, mut registered) = table(4);
        let memory = Memory::of(32);
        registered.add(&ring, memory.boxed()).unwrap();
        let (start, entry) = (memory.address(), registered.pieces[0].entry);
        for (at, bytes) in [(0, 32), (0, 1), (31, 1), (7, 9)] {
            assert_eq!(registered.entry_of(start + at, bytes), Some(entry), "{at}+{bytes}");
        }
        for (at, bytes) in [(31, 2), (32, 1), (0, 0), (0, usize::MAX)] {
            assert_eq!(registered.entry_of(start + at, bytes), None, "{at}+{bytes}");
        }
        assert_eq!(registered.entry_of(start - 1, 2), None, "from before it on");
        assert_eq!(registered.entry_of(usize::MAX, 1), None);
    }

    #[test]
    fn memory_beyond_a_gibibyte_is_in_several_pieces() {
        const GIB: usize = 1 << 30;
        assert_eq!(pieces_of(0).count(), 0);
        assert_eq!(pieces_of(GIB).collect::<Vec<_>>(), [(0, GIB)]);
        let pieces: Vec<_> = pieces_of(2 * GIB + 1).collect();
        assert_eq!(pieces, [(0, GIB), (GIB, GIB), (2 * GIB, 1)]);
        // Addresses alone, of memory that is never used.
        let (start, memory) = (1 << 40, Rc::from(Memory::of(1).boxed()));
        let (_ring, mut registered) = table(4);
        registered.pieces.extend((0_u16..).zip(pieces).map(|(entry, (at, bytes))| Piece {
            start: start + at,
            bytes,
            entry,
            memory: Rc::clone(&memory),
        }));
        let places = [(0, GIB, Some(0)), (GIB, 5, Some(1)), (2 * GIB, 1, Some(2))];
        for (at, bytes, entry) in places {
            assert_eq!(registered.entry_of(start + at, bytes), entry, "{at:#x}+{bytes:#x}");
        }
        assert_eq!(registered.entry_of(start + GIB - 1, 2), None, "half in each of two pieces");
    }

    #[test]
    fn each_of_several_memories_has_an_entry_of_its_own() {
        let (ring, mut registered) = table(4);
        let memories: Vec<_> = (1..=4).map(|pages| Memory::of(pages * PAGE)).collect();
        for memory in memories.iter().rev().chain(&memories) {
            registered.add(&ring, memory.boxed()).unwrap();
        }
        let entry = |memory: &Memory| registered.entry_of(memory.address(), memory.bytes.len());
        let mut entries: Vec<_> = memories.iter().map(|memory| entry(memory).unwrap()).collect();
        entries.sort_unstable();
        assert_eq!(entries, [0, 1, 2, 3]);
    }

    #[test]
    fn unknown_memory_is_asked_for_and_learnt_if_the_transfer_is_large() {
        let (ring, mut registered) = table(2);
        let memory = Memory::of(2 * LEARN_FROM_BYTES);
        let (start, asked) = (memory.address(), Cell::new(0));
        let name = || {
            asked.set(asked.get() + 1);
            Some(memory.boxed())
        };
        registered.meet(&ring, (start, LEARN_FROM_BYTES - 1), name);
        assert_eq!((asked.get(), registered.pieces.len()), (0, 0));
        for _ in 0..2 {
            registered.meet(&ring, (start, LEARN_FROM_BYTES), name);
            assert_eq!((asked.get(), registered.pieces.len()), (1, 1));
        }
        assert!(registered.entry_of(start + LEARN_FROM_BYTES, LEARN_FROM_BYTES).is_some());
        let nameless = Memory::of(LEARN_FROM_BYTES);
        registered.meet(&ring, (nameless.address(), LEARN_FROM_BYTES), || None);
        assert_eq!((registered.pieces.len(), registered.is_exhausted), (1, false));
    }

    #[test]
    fn unused_memory_is_let_go_of_after_many_polls() {
        let (ring, mut registered) = table(2);
        let memories = [Memory::of(PAGE), Memory::of(PAGE)];
        memories.iter().for_each(|memory| registered.add(&ring, memory.boxed()).unwrap());
        let mut polled = || (0..POLLS_BETWEEN_LOOKS).for_each(|_| registered.tend(&ring));
        polled();
        assert!(memories.iter().all(Memory::is_held), "they are in use");
        memories[1].is_unused.set(true);
        polled();
        assert_eq!(memories.each_ref().map(Memory::is_held), [true, false]);
        assert_eq!((registered.pieces.len(), registered.free.len()), (1, 1));
        assert_eq!(registered.entry_of(memories[1].address(), 1), None);
    }

    #[test]
    fn a_full_table_makes_room_by_what_is_unused_and_else_takes_no_more() {
        let (ring, mut registered) = table(2);
        let memories: [Memory; 4] = std::array::from_fn(|_| Memory::of(LEARN_FROM_BYTES));
        assert!(meet_whole(&mut registered, &ring, &memories[0]));
        assert!(meet_whole(&mut registered, &ring, &memories[1]));
        assert!(!meet_whole(&mut registered, &ring, &memories[2]), "all is in use");
        memories[0].is_unused.set(true);
        assert!(!meet_whole(&mut registered, &ring, &memories[2]), "not tried at every transfer");
        registered.let_go_of_one(&ring);
        assert!(meet_whole(&mut registered, &ring, &memories[2]), "there is room again");
        memories[1].is_unused.set(true);
        assert!(meet_whole(&mut registered, &ring, &memories[3]), "room is made at once");
        assert_eq!(memories.each_ref().map(Memory::is_held), [false, false, true, true]);
    }

    fn meet_whole(registered: &mut Registered, ring: &IoUring, memory: &Memory) -> bool {
        let place = (memory.address(), memory.bytes.len());
        registered.meet(ring, place, || Some(memory.boxed()));
        registered.entry_of(place.0, place.1).is_some()
    }

    #[test]
    fn what_cannot_be_pinned_is_not_tried_at_every_transfer() {
        let (ring, mut registered) = table(3);
        let memory = Memory::of(PAGE);
        registered.add(&ring, memory.boxed()).unwrap();
        let forbidden = Forbidden::new();
        let place = (forbidden.0.as_ptr().addr(), LEARN_FROM_BYTES);
        registered.meet(&ring, place, || Some(Box::new(forbidden)));
        assert_eq!((registered.pieces.len(), registered.free.len()), (1, 2));
        registered.meet(&ring, place, || panic!("asked again"));
        memory.is_unused.set(true);
        registered.let_go_of_one(&ring);
        let tried = Cell::new(false);
        registered.meet(&ring, place, || {
            tried.set(true);
            None
        });
        assert!(tried.get(), "less is pinned now");
    }

    #[test]
    fn without_a_table_nothing_is_registered() {
        let ring = setup::plain(2).expect("this test needs io_uring, which a sandbox may deny");
        // A second table is refused, as older kernels refuse the first.
        let _first = Registered::none_yet(&ring, 2);
        let mut registered = Registered::none_yet(&ring, 2);
        let memory = Memory::of(LEARN_FROM_BYTES);
        let error = registered.add(&ring, memory.boxed()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(!meet_whole(&mut registered, &ring, &memory));
        assert!(!memory.is_held());
    }
}
