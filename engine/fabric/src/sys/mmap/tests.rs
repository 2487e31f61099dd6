//! Mappings have the requested properties, and a descriptor from a peer is only mapped if it can do
//! no harm.

use super::*;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;

const PAGE: usize = 4096;

fn page_multiple(len: usize) -> usize {
    len.next_multiple_of(param::page_size())
}

/// A memfd as a peer might make it.
pub(crate) fn memfd(len: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = fs::memfd_create("peer", flags).unwrap();
    fs::ftruncate(&fd, len).unwrap();
    fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

fn refusal(fd: OwnedFd, len_max: usize) -> String {
    let error = SharedMemory::from_fd(fd, len_max).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    error.to_string()
}

/// Flags of the mapping at `at`, as the kernel abbreviates them.
pub(super) fn flags_of(at: NonNull<u8>) -> String {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let start = format!("{:08x}-", at.addr());
    let at_start = maps.lines().skip_while(|line| !line.starts_with(&start));
    let flags = at_start.into_iter().find_map(|line| line.strip_prefix("VmFlags: "));
    format!("{} ", flags.unwrap())
}

#[test]
fn shared_memory_of_both_ends_expect_it_left_out_of_core_dumps_and_forks() {
    let pool = AddressPool::new(PAGE, 4);
    for pool in [None, Some(&pool)] {
        let (made, fd) = SharedMemory::create_in(pool, "ring", PAGE).unwrap();
        let mapped = SharedMemory::from_fd_in(pool, &fd, PAGE).unwrap();
        for flags in [&made, &mapped].map(|memory| flags_of(memory.as_ptr())) {
            assert!(flags.contains("dd ") && flags.contains("dc "), "{flags}");
        }
    }
}

/// Bytes of the file that have memory behind them.
fn resident(fd: &OwnedFd) -> usize {
    let blocks = fs::fstat(fd).unwrap().st_blocks;
    usize::try_from(blocks).unwrap() * 512
}

#[test]
fn a_mapping_is_whole_pages_of_zeroes() {
    let requests = [
        PageRequest::default(),
        PageRequest { prefault: true, ..PageRequest::default() },
        PageRequest { lock: true, ..PageRequest::default() },
        PageRequest { huge: HugePages::Try, ..PageRequest::default() },
    ];
    for request in requests {
        let mapping = Mapping::anonymous(PAGE + 1, request).unwrap();
        assert_eq!(mapping.len(), page_multiple(PAGE + 1), "{request:?}");
        assert_eq!(mapping.pages(), PageKind::Small, "one huge page would be mostly empty");
        // SAFETY: the mapping is this test's own.
        let bytes = unsafe { std::slice::from_raw_parts(mapping.as_ptr().as_ptr(), mapping.len()) };
        assert!(bytes.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn huge_pages_are_had_or_not_but_never_a_signal() {
    let request = |huge| PageRequest { huge, prefault: true, ..PageRequest::default() };
    let tried = Mapping::anonymous(HUGE_PAGE_BYTES + 1, request(HugePages::Try)).unwrap();
    let expected = match tried.pages() {
        PageKind::Huge2M => 2 * HUGE_PAGE_BYTES,
        PageKind::Small => page_multiple(HUGE_PAGE_BYTES + 1),
    };
    assert_eq!(tried.len(), expected);
    // SAFETY: the mapping is this test's own, and this long.
    unsafe { tried.as_ptr().as_ptr().write_bytes(1, tried.len()) };
    if let Ok(required) = Mapping::anonymous(1, request(HugePages::Require)) {
        assert_eq!((required.pages(), required.len()), (PageKind::Huge2M, HUGE_PAGE_BYTES));
    }
}

#[test]
fn huge_pages_beyond_all_memory_are_refused() {
    const TERABYTE: usize = 1 << 40;
    let request = PageRequest { huge: HugePages::Require, ..PageRequest::default() };
    let error = Mapping::anonymous(TERABYTE, request).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
}

#[test]
fn a_node_is_a_wish() {
    for node in [0, 1, 63, 64, 1023, 1024, u32::MAX] {
        let request = PageRequest { node: Some(node), prefault: true, ..PageRequest::default() };
        assert_eq!(Mapping::anonymous(1, request).unwrap().len(), param::page_size());
    }
}

#[test]
fn memory_is_placed_on_nodes_that_exist() {
    let mapping = Mapping::anonymous(1, PageRequest::default()).unwrap();
    let placed = mapping.span.place(0..mapping.len(), 0).map_err(|error| error.raw_os_error());
    // A kernel without NUMA, or a container, may not know the call or forbid it.
    let refused = [Err(Some(libc::ENOSYS)), Err(Some(libc::EPERM))];
    assert!(placed == Ok(()) || refused.contains(&placed), "{placed:?}");
    for absent in [1023, 1024, u32::MAX] {
        assert!(mapping.span.place(0..mapping.len(), absent).is_err(), "node {absent}");
    }
}

#[test]
fn lengths_that_cannot_be_are_refused() {
    for len in [0, usize::MAX, usize::MAX / 2 + 1] {
        let error = Mapping::anonymous(len, PageRequest::default()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let error = SharedMemory::create("test", len).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}

#[test]
fn touching_brings_private_and_shared_pages_into_being() {
    let len = 4 * param::page_size();
    let (memory, fd) = SharedMemory::create("test", len).unwrap();
    // SAFETY: the memory is this test's own.
    unsafe { memory.as_ptr().as_ptr().write(7) };
    memory.span.touch(0..len);
    assert!(resident(&fd) >= len);
    // SAFETY: as above.
    assert_eq!(unsafe { memory.as_ptr().as_ptr().read() }, 7, "touching changes nothing");

    let mapping = Mapping::anonymous(len, PageRequest::default()).unwrap();
    mapping.span.touch(0..len);
    let mut present = [0_u8; 4];
    // SAFETY: one byte for each page of the mapping.
    let result = unsafe {
        libc::mincore(mapping.as_ptr().as_ptr().cast(), mapping.len(), present.as_mut_ptr())
    };
    assert_eq!((result, present.map(|page| page & 1)), (0, [1; 4]));
}

#[test]
fn shared_memory_costs_nothing_until_it_is_used() {
    let page = param::page_size();
    let (memory, fd) = SharedMemory::create("test", 256 * page).unwrap();
    assert_eq!(memory.len(), 256 * page);
    assert_eq!(resident(&fd), 0);
    memory.prefault(page + 1..2 * page + 1).unwrap();
    assert!(resident(&fd) >= 2 * page);
    memory.prefault(5..5).unwrap();
    for beyond in [0..256 * page + 1, 257 * page..257 * page, 0..usize::MAX] {
        let error = memory.prefault(beyond).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}

#[test]
fn both_sides_see_the_same_bytes() {
    let (ours, passed) = SharedMemory::create("test", PAGE).unwrap();
    let theirs = SharedMemory::from_fd(passed, ours.len()).unwrap();
    // SAFETY: both mappings are this test's own.
    unsafe {
        theirs.as_ptr().as_ptr().add(100).write_volatile(42);
        assert_eq!(ours.as_ptr().as_ptr().add(100).read_volatile(), 42);
    }
}

#[test]
fn a_sealed_size_is_final() {
    let (memory, fd) = SharedMemory::create("test", PAGE).unwrap();
    for len in [0, memory.len() as u64 / 2, memory.len() as u64 * 2] {
        assert_eq!(fs::ftruncate(&fd, len), Err(Errno::PERM));
    }
    assert_eq!(fs::fcntl_add_seals(&fd, SealFlags::WRITE), Err(Errno::PERM));
}

#[test]
fn memory_that_the_peer_punches_holes_into_can_still_be_accessed() {
    let peer = memfd(16 * page_multiple(PAGE) as u64, SEALS);
    let memory = SharedMemory::from_fd(peer.try_clone().unwrap(), 1 << 20).unwrap();
    memory.prefault(0..memory.len()).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fs::fallocate(&peer, punch, 0, memory.len() as u64).unwrap();
    assert_eq!(resident(&peer), 0);
    for offset in (0..memory.len()).step_by(param::page_size()) {
        // SAFETY: within the mapping, which is this test's own.
        assert_eq!(unsafe { memory.as_ptr().as_ptr().add(offset).read_volatile() }, 0);
    }
}

#[test]
fn memory_without_each_of_the_seals_is_refused() {
    let len = page_multiple(PAGE) as u64;
    let missing_one = [
        SealFlags::empty(),
        SealFlags::GROW | SealFlags::SHRINK,
        SealFlags::GROW | SealFlags::SEAL,
        SealFlags::SHRINK | SealFlags::SEAL,
    ];
    for seals in missing_one {
        assert!(refusal(memfd(len, seals), 1 << 20).contains("not sealed"), "{seals:?}");
    }
    let unsealable = fs::memfd_create("peer", MemfdFlags::CLOEXEC).unwrap();
    fs::ftruncate(&unsealable, len).unwrap();
    assert!(refusal(unsealable, 1 << 20).contains("not sealed"));
}

#[test]
fn memory_of_a_wrong_size_is_refused() {
    let page = page_multiple(1) as u64;
    for len in [0, 1, page + 1, 3 * page, 1 << 60] {
        let reason = refusal(memfd(len, SEALS), 2 * page as usize);
        assert!(reason.contains(&format!("its size, {len} bytes")), "{reason}");
    }
    assert!(SharedMemory::from_fd(memfd(2 * page, SEALS), 2 * page as usize).is_ok());
}

#[test]
fn what_is_no_memory_is_refused() {
    let (read_end, write_end) = rustix::pipe::pipe().unwrap();
    let socket = std::os::unix::net::UnixStream::pair().unwrap().0;
    let file = File::open("/proc/self/exe").unwrap();
    let directory = File::open("/").unwrap();
    let device = File::open("/dev/zero").unwrap();
    let path = fs::open("/proc/self/exe", OFlags::PATH, Mode::empty()).unwrap();
    let others =
        [read_end, write_end, socket.into(), file.into(), directory.into(), device.into(), path];
    for fd in others {
        let reason = refusal(fd, 1 << 20);
        assert!(reason.contains("not a memfd"), "{reason}");
    }
}

#[test]
fn memory_that_cannot_be_written_is_refused() {
    let sealed = memfd(page_multiple(PAGE) as u64, SealFlags::WRITE | SEALS);
    let error = SharedMemory::from_fd(sealed, 1 << 20).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);

    let writable = memfd(page_multiple(PAGE) as u64, SEALS);
    let read_only = File::open(format!("/proc/self/fd/{}", writable.as_raw_fd())).unwrap();
    let error = SharedMemory::from_fd(read_only, 1 << 20).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
}

#[test]
fn memory_of_huge_pages_is_refused() {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    // A kernel without huge pages does not give out such a descriptor.
    let Ok(fd) = fs::memfd_create("peer", flags) else { return };
    fs::ftruncate(&fd, HUGE_PAGE_BYTES as u64).unwrap();
    fs::fcntl_add_seals(&fd, SEALS).unwrap();
    let reason = refusal(fd, HUGE_PAGE_BYTES);
    assert!(reason.contains("huge pages"), "{reason}");
}

fn made_in(pool: &Arc<AddressPool>, len: usize) -> SharedMemory {
    SharedMemory::create_in(Some(pool), "pooled", len).unwrap().0
}

fn address(memory: &SharedMemory) -> usize {
    memory.as_ptr().addr().get()
}

#[test]
fn mappings_of_a_pool_lie_side_by_side_an_odd_number_of_pages_apart() {
    let page = param::page_size();
    for (pages, apart) in [(1, 3), (2, 3), (41, 43)] {
        let pool = AddressPool::new(pages * page, 3);
        let made = [(); 3].map(|()| made_in(&pool, pages * page));
        let [first, second, third] = made.each_ref().map(address);
        assert_eq!((second - first, third - second), (apart * page, apart * page), "{pages} pages");
    }
}

#[test]
fn the_lowest_free_addresses_of_a_pool_are_used_next() {
    let page = param::page_size();
    let pool = AddressPool::new(page, 4);
    let mut made = [(); 3].map(|()| Some(made_in(&pool, page)));
    let places = made.each_ref().map(|memory| address(memory.as_ref().unwrap()));
    (made[2], made[0]) = (None, None);
    let again = [(); 2].map(|()| made_in(&pool, page));
    assert_eq!(again.each_ref().map(address), [places[0], places[2]]);
}

#[test]
fn pools_do_not_overlap() {
    let page = param::page_size();
    let first = AddressPool::new(page, 2);
    let impossible = AddressPool::new(isize::MAX as usize, 2);
    assert_eq!(made_in(&impossible, page).len(), page, "no addresses, and no error");
    let pools = [first, AddressPool::new(page, 2)];
    let made = pools.each_ref().map(|pool| [(); 2].map(|()| made_in(pool, page)));
    let [[a, b], [c, d]] = made.each_ref().map(|both| both.each_ref().map(address));
    assert_eq!((b - a, d - c), (3 * page, 3 * page));
    assert!(b < c || d < a, "{a:x} {b:x} {c:x} {d:x}");
}

#[test]
fn a_mapping_lies_elsewhere_if_its_pool_has_no_room_or_its_addresses_are_taken() {
    let page = param::page_size();
    let pool = AddressPool::new(page, 2);
    let (first, last) = (made_in(&pool, page), made_in(&pool, page));
    let (block, next) = (address(&first), address(&last));
    let surplus = made_in(&pool, page);
    assert!(![block, next].contains(&address(&surplus)), "the pool is empty");
    drop(first);
    let large = made_in(&pool, 3 * page);
    assert_ne!(address(&large), block, "it would not fit");
    // SAFETY: a new mapping, which replaces nothing.
    let other = unsafe {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        mm::mmap_anonymous(ptr::without_provenance_mut(block), page, ProtFlags::READ, flags)
    };
    let elsewhere = made_in(&pool, page);
    assert_ne!(address(&elsewhere), block, "somebody else's");
    // SAFETY: mapped above.
    unsafe { mm::munmap(other.unwrap(), page) }.unwrap();
    drop(elsewhere);
    assert_eq!(address(&made_in(&pool, page)), block);
}

#[test]
fn a_descriptor_that_cannot_be_mapped_costs_a_pool_nothing() {
    let page = param::page_size();
    let pool = AddressPool::new(page, 1);
    let first = made_in(&pool, page);
    let at = address(&first);
    drop(first);
    let fd = memfd(page as u64, SEALS);
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let read_only = File::open(path).unwrap();
    let refused = SharedMemory::from_fd_in(Some(&pool), &read_only, page).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    assert_eq!(address(&SharedMemory::from_fd_in(Some(&pool), fd, page).unwrap()), at);
}
