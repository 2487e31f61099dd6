//! Memory that is lent can be written by its owner alone, and nothing that a peer passes is mapped otherwise.

use super::*;
use crate::sys::mmap::HugePages;
use crate::sys::mmap::tests::{flags_of, memfd};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{self, MapFlags};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::ptr;

const PAGE: usize = 4096;
const SMALL: PageRequest =
    PageRequest { huge: HugePages::Off, prefault: false, lock: false, node: None };

fn put(memory: &LendableMemory, at: usize, bytes: &[u8]) {
    assert!(at + bytes.len() <= memory.mapping().len());
    // SAFETY: as many bytes are mapped, as was just checked, and nothing has a reference to them.
    unsafe {
        memory
            .mapping()
            .as_ptr()
            .add(at)
            .copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len())
    };
}

fn adopt(fd: OwnedFd, len_max: usize) -> io::Result<LendableMemory> {
    // SAFETY: tests map none of these files themselves.
    unsafe { LendableMemory::from_memfd(fd, 2, len_max, SMALL) }
}

fn writable_mapping(fd: impl AsFd) -> Result<(), Errno> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
    unsafe { mm::mmap(ptr::null_mut(), PAGE, protection, MapFlags::SHARED, fd, 0) }.map(drop)
}

/// Rights of a process that has the descriptor.
#[track_caller]
fn expect_read_only(memory: &LendableMemory) {
    let file = File::from(memory.as_fd().try_clone_to_owned().unwrap());
    put(memory, 0, b"mine");
    for attempt in [file.write_all_at(b"yours", 0), file.set_len(0), file.set_len(1 << 30)] {
        let error = attempt.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
    }
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(fs::fallocate(&file, punch, 0, PAGE as u64), Err(Errno::PERM));
    assert_eq!(writable_mapping(&file), Err(Errno::PERM));
    let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let again = File::options().read(true).write(true).open(again).unwrap();
    assert_eq!(writable_mapping(&again), Err(Errno::PERM));
    let mut seen = [0; 4];
    file.read_exact_at(&mut seen, 0).unwrap();
    assert_eq!(&seen, b"mine");
}

#[test]
fn nobody_but_its_owner_can_write_it_whoever_has_the_descriptor() {
    expect_read_only(&LendableMemory::create("slab", PAGE + 1, SMALL).unwrap());
    expect_read_only(&adopt(memfd(2 * PAGE as u64, SealFlags::empty()), 1 << 20).unwrap());
    let sealed = memfd(PAGE as u64, SealFlags::SHRINK);
    expect_read_only(&adopt(sealed, 1 << 20).unwrap());
}

#[test]
fn a_borrower_sees_what_the_owner_writes_and_cannot_write() {
    let owner = LendableMemory::create("slab", 2 * PAGE, SMALL).unwrap();
    let borrower = BorrowedMemory::from_fd(&owner, 2 * PAGE).unwrap();
    put(&owner, PAGE, &[7]);
    let seen = borrower.bytes(PAGE, 1).unwrap();
    // SAFETY: a mapped byte that nothing writes now.
    assert_eq!(unsafe { seen.read_volatile() }, 7);
    let protection = mm::MprotectFlags::READ | mm::MprotectFlags::WRITE;
    // SAFETY: the kernel refuses it, as is asserted, and the range is this test's own.
    let raised = unsafe { mm::mprotect(borrower.span.base.as_ptr().cast(), PAGE, protection) };
    assert_eq!(raised, Err(Errno::ACCESS));
    for (offset, len) in [(0, 2 * PAGE), (2 * PAGE, 0), (PAGE, PAGE)] {
        assert!(borrower.bytes(offset, len).is_some(), "{offset} {len}");
    }
    for (offset, len) in [(0, 2 * PAGE + 1), (2 * PAGE, 1), (PAGE, usize::MAX), (usize::MAX, 1)] {
        assert!(borrower.bytes(offset, len).is_none(), "{offset} {len}");
    }
}

#[test]
fn memory_that_others_could_still_change_is_not_borrowed() {
    let all = READ_ONLY_SEALS;
    let missing = [SealFlags::SHRINK, SealFlags::GROW, SealFlags::FUTURE_WRITE, SealFlags::SEAL];
    let unsealed = missing.map(|seal| (memfd(PAGE as u64, all - seal), 1 << 20));
    let sizes = [(0, 1 << 20), (100, 1 << 20), (2 * PAGE as u64, PAGE), (1 << 50, 1 << 40)];
    let sizes = sizes.map(|(bytes, max)| (memfd(bytes, all), max));
    for (fd, len_max) in unsealed.into_iter().chain(sizes) {
        let error = BorrowedMemory::from_fd(&fd, len_max).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    }
    let file = File::open(std::env::current_exe().unwrap()).unwrap();
    let error = BorrowedMemory::from_fd(&file, 1 << 20).unwrap_err();
    assert!(error.to_string().contains("not a memfd"), "{error}");
}

#[test]
fn a_memfd_that_cannot_be_sealed_or_has_no_size_is_not_adopted() {
    let unsealable = fs::memfd_create("slab", MemfdFlags::CLOEXEC).unwrap();
    fs::ftruncate(&unsealable, PAGE as u64).unwrap();
    let file = OwnedFd::from(File::open(std::env::current_exe().unwrap()).unwrap());
    let (empty, page) = (SealFlags::empty(), PAGE as u64);
    let cases = [
        (unsealable, "can no longer be sealed"),
        (memfd(page, SealFlags::SEAL), "can no longer be sealed"),
        (memfd(page, SealFlags::WRITE), "sealed against writing"),
        (memfd(page, SealFlags::FUTURE_WRITE), "sealed against writing"),
        (memfd(0, empty), "its size, 0 bytes"),
        (memfd(page + 1, empty), "its size, 4097 bytes"),
        (memfd(1 << 45, empty), "its size, 35184372088832 bytes"),
        (file, "not a memfd"),
    ];
    for (fd, reason) in cases {
        let other = fd.try_clone().unwrap();
        let seals = fs::fcntl_get_seals(&other);
        let error = adopt(fd, 1 << 40).unwrap_err();
        assert_eq!(fs::fcntl_get_seals(&other), seals, "{reason}: sealed");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(reason), "{error}, not {reason}");
    }
}

/// Its pages would be those of the borrower, which gets SIGBUS where it may not have them.
#[test]
fn memory_without_pages_or_with_a_hole_is_not_borrowed() {
    let holes = memfd(64 * PAGE as u64, SealFlags::empty());
    for page in 0..63 {
        rustix::io::pwrite(&holes, &[1], (page * PAGE) as u64).unwrap();
    }
    fs::fcntl_add_seals(&holes, READ_ONLY_SEALS).unwrap();
    let empty = memfd(64 * PAGE as u64, READ_ONLY_SEALS);
    for (fd, reason) in [(empty, "0 of its 262144 bytes"), (holes, "258048 of its 262144 bytes")] {
        let error = BorrowedMemory::from_fd(&fd, 1 << 20).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        assert!(error.to_string().contains(reason), "{error}, not {reason}");
    }
}

/// Version of the kernel.
fn release() -> (u32, u32) {
    let name = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = name.split(['.', '-']).map_while(|number| number.parse().ok());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

/// Pages allocated beyond the end must not make up for pages missing before it.
#[test]
fn memory_with_a_hole_and_pages_beyond_its_end_is_not_borrowed() {
    const PAGES: usize = 64;
    let fd = memfd((PAGES * PAGE) as u64, SealFlags::empty());
    for page in 1..PAGES {
        rustix::io::pwrite(&fd, &[1], (page * PAGE) as u64).unwrap();
    }
    let beyond = (PAGES * PAGE) as u64;
    fs::fallocate(&fd, FallocateFlags::KEEP_SIZE, beyond, 8 * PAGE as u64).unwrap();
    fs::fcntl_add_seals(&fd, READ_ONLY_SEALS).unwrap();
    let allocated_bytes = fs::fstat(&fd).unwrap().st_blocks as u64 * STAT_BLOCK_BYTES;
    assert!(allocated_bytes > beyond, "{allocated_bytes} bytes do not hide the hole");
    if release() < (6, 5) {
        return eprintln!(
            "NOT TESTED: memory_with_a_hole_and_pages_beyond_its_end: before Linux 6.5"
        );
    }
    let error = BorrowedMemory::from_fd(&fd, 1 << 20).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    assert!(error.to_string().contains("258048 of its 262144 bytes"), "{error}");
}

/// The seals come first, and the pages then.
#[test]
fn holes_that_another_holder_punches_meanwhile_are_filled() {
    const BYTES: usize = 16 << 20;
    let fd = memfd(BYTES as u64, SealFlags::empty());
    let other = fd.try_clone().unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fs::fallocate(&other, punch, 0, BYTES as u64).unwrap();
    let puncher = std::thread::spawn(move || {
        loop {
            if let Err(error) = fs::fallocate(&other, punch, 0, BYTES as u64) {
                return error;
            }
        }
    });
    let memory = adopt(fd, BYTES).unwrap();
    assert_eq!(puncher.join().unwrap(), Errno::PERM);
    assert_eq!(BorrowedMemory::from_fd(&memory, BYTES).unwrap().len(), BYTES);
}

/// `open` in /proc gives a descriptor of the same file that is for reading only.
#[test]
fn a_descriptor_for_reading_is_not_adopted() {
    let fd = memfd(PAGE as u64, SealFlags::empty());
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
    let error = adopt(File::open(path).unwrap().into(), 1 << 20).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
}

#[test]
fn a_file_that_is_cut_after_it_was_sized_keeps_what_is_mapped() {
    let fd = memfd(4 * PAGE as u64, SealFlags::empty());
    let other = fd.try_clone().unwrap();
    fs::ftruncate(&other, 2 * PAGE as u64).unwrap();
    let memory = adopt(fd, 1 << 20).unwrap();
    assert_eq!(memory.mapping().len(), 2 * PAGE, "the size it has once it is sealed");
    assert_eq!(fs::ftruncate(&other, PAGE as u64), Err(Errno::PERM));
    put(&memory, 0, &[1; 2 * PAGE]);
}

/// On a machine with huge pages: borrowed memory of huge pages is all there.
#[test]
fn huge_pages_are_had_and_lent_or_not_but_never_a_signal() {
    let request = PageRequest { huge: HugePages::Try, ..SMALL };
    let tried = LendableMemory::create("slab", 2 * HUGE_PAGE_BYTES, request).unwrap();
    assert_eq!(tried.mapping().len(), 2 * HUGE_PAGE_BYTES);
    expect_read_only_if_small(&tried);
    let borrower = BorrowedMemory::from_fd(&tried, tried.mapping().len()).unwrap();
    put(&tried, HUGE_PAGE_BYTES, &[9]);
    let seen = borrower.bytes(HUGE_PAGE_BYTES, 1).unwrap();
    // SAFETY: a mapped byte that nothing writes now.
    assert_eq!(unsafe { seen.read_volatile() }, 9);
    let request = PageRequest { huge: HugePages::Require, ..SMALL };
    match LendableMemory::create("slab", HUGE_PAGE_BYTES, request) {
        Ok(memory) => assert_eq!(memory.mapping().pages(), PageKind::Huge2M),
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::OutOfMemory, "{error}"),
    }
}

/// Huge pages know no `write(2)`: only holes and mappings are asked for.
fn expect_read_only_if_small(memory: &LendableMemory) {
    if memory.mapping().pages() == PageKind::Small {
        return expect_read_only(memory);
    }
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let hole = fs::fallocate(memory, punch, 0, HUGE_PAGE_BYTES as u64);
    assert_eq!(hole, Err(Errno::PERM));
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
    let mapped = unsafe {
        mm::mmap(ptr::null_mut(), HUGE_PAGE_BYTES, protection, MapFlags::SHARED, memory, 0)
    };
    assert_eq!(mapped.map(drop), Err(Errno::PERM));
}

#[test]
fn memory_of_others_expect_it_left_out_of_core_dumps_and_forks() {
    let owner = LendableMemory::create("slab", PAGE, SMALL).unwrap();
    let borrowed = BorrowedMemory::from_fd(&owner, PAGE).unwrap();
    let flags = flags_of(borrowed.bytes(0, 1).unwrap());
    assert!(flags.contains("dd ") && flags.contains("dc "), "{flags}");
}

#[test]
fn memory_of_others_is_prefaulted_expect_all_pages_mapped() {
    let owner = LendableMemory::create("slab", 64 * PAGE, SMALL).unwrap();
    let borrowed = BorrowedMemory::from_fd(&owner, 64 * PAGE).unwrap();
    let resident = || {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let start = format!("{:08x}-", borrowed.bytes(0, 1).unwrap().addr());
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&start));
        let line = lines.find(|line| line.starts_with("Rss:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap()
    };
    assert_eq!(resident(), 0);
    borrowed.prefault();
    if release() >= (5, 14) {
        assert_eq!(resident(), 64 * PAGE / 1024);
    }
}
