//! Files read and written through a ring have the right contents, and a dropped ring releases
//! everything it was given. These tests need a kernel that lets this process use io_uring.

use super::*;
use rustix::fs::{self, Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use spinrpc::sys::random::Random;
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::thread;
use std::time::{Duration, Instant};

const DEPTH: u32 = 8;

type Ring = FileRing<Vec<u8>, u32>;

// SAFETY: the bytes are on the heap, where they stay when the vector is moved, and are its own.
unsafe impl StableBytes for Vec<u8> {
    fn stable_bytes(&mut self) -> &mut [u8] {
        self
    }
}

fn needs_io_uring<R>(ring: io::Result<R>) -> R {
    ring.unwrap_or_else(|error| {
        panic!(
            "this test needs io_uring: {error}. A sandbox may deny it (seccomp), or sysctl \
             kernel.io_uring_disabled, or a kernel without CONFIG_IO_URING"
        )
    })
}

fn ring<B: StableBytes, T>(depth: u32) -> FileRing<B, T> {
    needs_io_uring(FileRing::new(depth))
}

/// A ring as kernels before 6.1 make it.
fn plain_ring(depth: u32) -> Ring {
    FileRing::over(needs_io_uring(setup::plain(depth)), None, depth)
}

/// A file on disk, without a name.
fn file_on_disk() -> Arc<OwnedFd> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Arc::new(fs::open(std::env::temp_dir(), flags, Mode::RUSR | Mode::WUSR).unwrap())
}

fn file_with(content: &[u8]) -> Arc<OwnedFd> {
    let file = file_on_disk();
    assert_eq!(rustix::io::write(&file, content).unwrap(), content.len());
    file
}

fn content(file: &OwnedFd) -> Vec<u8> {
    let mut content = vec![0; fs::fstat(file).unwrap().st_size as usize];
    assert_eq!(rustix::io::pread(file, &mut content, 0).unwrap(), content.len());
    content
}

/// A pipe without a writer: a read from it never ends. The other end keeps it open.
fn silent_pipe() -> (Arc<OwnedFd>, OwnedFd) {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    (Arc::new(reader), writer)
}

/// Polls until `count` operations are done.
fn finish<B: StableBytes, T>(ring: &mut FileRing<B, T>, count: usize) -> Vec<Done<B, T>> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut ended = Vec::new();
    while ended.len() < count {
        let before = ended.len();
        assert_eq!(ring.poll(|done| ended.push(done)).unwrap(), ended.len() - before);
        assert!(Instant::now() < deadline, "{} of {count} operations were done", ended.len());
    }
    ended
}

fn only<B: StableBytes, T>(ring: &mut FileRing<B, T>) -> Done<B, T> {
    let done = finish(ring, 1).pop().unwrap();
    assert_eq!(ring.outstanding(), 0);
    done
}

fn error_of<B: StableBytes + fmt::Debug, T: fmt::Debug>(ring: &mut FileRing<B, T>) -> Option<i32> {
    only(ring).result.unwrap_err().raw_os_error()
}

#[test]
fn what_is_written_is_read_again_with_every_durability_and_either_way() {
    for mut ring in [ring(DEPTH), plain_ring(DEPTH)] {
        for worker_from_bytes in [0, usize::MAX] {
            ring.set_worker_from_bytes(worker_from_bytes);
            for durability in [None, Some(Durability::Data), Some(Durability::File)] {
                let file = file_on_disk();
                ring.queue(Work::Write(durability), file.clone(), 3, Some(b"seven".to_vec()), 1)
                    .unwrap();
                let written = only(&mut ring);
                assert!(written.result.is_ok(), "{written:?}");
                assert_eq!((written.token, written.bytes), (1, 5));
                assert_eq!(content(&file), b"\0\0\0seven");
                ring.queue(Work::Read, file, 4, Some(vec![0; 3]), 2).unwrap();
                let read = only(&mut ring);
                assert!(read.result.is_ok(), "{read:?}");
                assert_eq!((read.token, read.bytes), (2, 3));
                assert_eq!(read.buffer.unwrap(), b"eve");
            }
        }
    }
}

#[test]
fn nothing_is_done_before_a_poll() {
    let mut ring: Ring = ring(DEPTH);
    let file = file_on_disk();
    ring.queue(Work::Write(None), file.clone(), 0, Some(vec![1]), 0).unwrap();
    assert_eq!((ring.outstanding(), content(&file).len()), (1, 0));
    only(&mut ring);
    assert_eq!(content(&file), [1]);
    assert_eq!(ring.poll(|_| panic!("nothing is outstanding")).unwrap(), 0);
}

#[test]
fn offsets_that_no_file_has_are_errors_and_not_the_position() {
    let mut ring: Ring = ring(DEPTH);
    let file = file_with(b"ab");
    for offset in [1 << 63, u64::MAX - 1, u64::MAX] {
        ring.queue(Work::Read, file.clone(), offset, Some(vec![0; 1]), 0).unwrap();
        assert_eq!(error_of(&mut ring), Some(libc::EINVAL), "read at {offset:#x}");
        ring.queue(Work::Write(None), file.clone(), offset, Some(vec![7; 1]), 0).unwrap();
        assert_eq!(error_of(&mut ring), Some(libc::EINVAL), "write at {offset:#x}");
    }
    assert_eq!(content(&file), b"ab");
}

#[test]
fn errors_of_files_are_handed_back_with_the_buffer() {
    let mut ring: Ring = ring(DEPTH);
    let (reader, writer) = silent_pipe();
    ring.queue(Work::Read, Arc::new(writer), 0, Some(vec![5; 4]), 1).unwrap();
    let done = only(&mut ring);
    assert_eq!(done.result.unwrap_err().raw_os_error(), Some(libc::EBADF), "no reader");
    assert_eq!((done.buffer, done.bytes), (Some(vec![5; 4]), 0));
    ring.queue(Work::Sync(Durability::Data), reader, 0, None, 3).unwrap();
    assert_eq!(error_of(&mut ring), Some(libc::EINVAL), "fsync(2) of a pipe");
}

#[test]
fn a_write_that_stops_short_goes_on_until_the_error_that_stopped_it() {
    // A pipe takes as much as it has room for; then its reader goes.
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let room = rustix::pipe::fcntl_getpipe_size(&writer).unwrap();
    let mut ring: Ring = ring(DEPTH);
    ring.queue(Work::Write(None), Arc::new(writer), 0, Some(vec![6; room + 1]), 0).unwrap();
    while rustix::io::ioctl_fionread(&reader).unwrap() < room as u64 {
        assert_eq!(ring.poll(|done| panic!("{done:?}")).unwrap(), 0);
    }
    drop(reader);
    let done = only(&mut ring);
    assert_eq!(done.result.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    assert_eq!((done.bytes, done.buffer.map(|buffer| buffer.len())), (room, Some(room + 1)));
}

#[test]
fn a_read_that_stops_short_goes_on_until_its_buffer_is_full() {
    let (reader, writer) = silent_pipe();
    let mut ring: Ring = ring(DEPTH);
    ring.queue(Work::Read, reader, 0, Some(vec![0; 4]), 0).unwrap();
    for part in [b"ab", b"cd"] {
        assert_eq!(ring.poll(|done| panic!("{done:?}")).unwrap(), 0);
        assert_eq!(rustix::io::write(&writer, part).unwrap(), 2);
    }
    let done = only(&mut ring);
    assert!(done.result.is_ok(), "{done:?}");
    assert_eq!((done.bytes, done.buffer.unwrap()), (4, b"abcd".to_vec()));
}

#[test]
fn depths_that_cannot_be_are_refused() {
    for depth in [0, DEPTH_MAX + 1, u32::MAX] {
        let error = Ring::new(depth).map(drop).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
    for depth in [1, 3, DEPTH_MAX] {
        let file = file_with(b"x");
        let mut ring: Ring = ring(depth);
        for token in 0..depth {
            ring.queue(Work::Read, file.clone(), 0, Some(vec![0]), token).unwrap();
        }
        ring.queue(Work::Read, file.clone(), 0, Some(vec![0]), depth).unwrap_err();
        ring.queue(Work::Sync(Durability::Data), file.clone(), 0, None, depth).unwrap_err();
        assert_eq!(finish(&mut ring, depth as usize).len(), depth as usize);
        ring.queue(Work::Write(None), file, 0, Some(vec![0]), depth).unwrap();
        assert_eq!(only(&mut ring).token, depth);
    }
}

#[test]
fn a_dropped_ring_lets_go_of_operations_that_would_never_end() {
    for (mut ring, polled) in [(ring(DEPTH), true), (ring(DEPTH), false), (plain_ring(DEPTH), true)]
    {
        let (reader, writer) = silent_pipe();
        for token in 0..DEPTH {
            // Every other one by a worker, which then waits in the middle of its system call.
            ring.set_worker_from_bytes(if token % 2 == 0 { 0 } else { usize::MAX });
            ring.queue(Work::Read, reader.clone(), 0, Some(vec![0; 1]), token).unwrap();
        }
        if polled {
            ring.poll(|done| panic!("{done:?}")).unwrap();
        }
        drop(ring);
        assert_eq!(Arc::strong_count(&reader), 1, "the ring has kept files");
        drop(reader);
        // A worker lets go of the file a little after the end of its operation.
        let end = Instant::now() + Duration::from_secs(60);
        let error = loop {
            match rustix::io::write(&writer, b"x") {
                Ok(_) => assert!(Instant::now() < end, "the kernel still reads"),
                Err(error) => break error,
            }
            thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(error, rustix::io::Errno::PIPE, "the kernel still reads");
    }
}

#[test]
fn a_dropped_ring_lets_go_of_writes_that_workers_are_in_the_middle_of() {
    let mut ring: FileRing<Vec<u8>, Arc<()>> = ring(DEPTH);
    let (file, token) = (file_on_disk(), Arc::new(()));
    for index in 0..u64::from(DEPTH) {
        let buffer = vec![1; 1 << 20];
        let durability = Some(Durability::File);
        ring.queue(Work::Write(durability), file.clone(), index << 20, Some(buffer), token.clone())
            .unwrap();
    }
    ring.poll(drop).unwrap();
    drop(ring);
    assert_eq!((Arc::strong_count(&token), Arc::strong_count(&file)), (1, 1));
}

#[test]
fn a_dropped_ring_drops_what_was_done_and_not_handed_back() {
    let token = Arc::new(());
    let mut ring: FileRing<Vec<u8>, Arc<()>> = ring(DEPTH);
    let file = file_with(&[7; 4096]);
    for _ in 0..DEPTH {
        ring.queue(Work::Read, file.clone(), 0, Some(vec![0; 4096]), token.clone()).unwrap();
    }
    enter(&mut ring.ring).unwrap();
    drop(ring);
    assert_eq!((Arc::strong_count(&token), Arc::strong_count(&file)), (1, 1));
}

#[test]
fn a_panic_while_something_is_handed_back_loses_only_that() {
    let mut ring: Ring = ring(DEPTH);
    let file = file_with(b"ab");
    for token in 0..3 {
        ring.queue(Work::Read, file.clone(), 0, Some(vec![0; 2]), token).unwrap();
    }
    // Some file systems leave even small reads to a worker, and the first polls with nothing.
    let poll = std::panic::AssertUnwindSafe(|| {
        while ring.poll(|_| panic!("as the test wants")).unwrap() == 0 {}
    });
    assert!(std::panic::catch_unwind(poll).is_err());
    assert_eq!(ring.outstanding(), 2);
    assert_eq!(finish(&mut ring, 2).len(), 2);
}

#[test]
fn a_write_as_nobody_takes_set_id_bits_and_one_of_roots_own_leaves_them() {
    let mut ring: Ring = needs_io_uring(FileRing::with_nobody(DEPTH));
    if !rustix::process::geteuid().is_root() {
        // The rest of the test: a thread without rights to give up has no separate credentials.
        assert!(!ring.has_nobody());
        return;
    }
    assert!(ring.has_nobody());
    for worker_from_bytes in [0, usize::MAX] {
        ring.set_worker_from_bytes(worker_from_bytes);
        for (is_nobody, left) in [(true, 0o755), (false, 0o6755)] {
            let file = file_with(b"program");
            fs::fchmod(&file, Mode::from_raw_mode(0o6755)).unwrap();
            let work = if is_nobody { Work::WriteAsNobody(None) } else { Work::Write(None) };
            ring.queue(work, file.clone(), 0, Some(b"trojan".to_vec()), 0).unwrap();
            let done = only(&mut ring);
            assert!(done.result.is_ok(), "{done:?}");
            assert_eq!(fs::fstat(&file).unwrap().st_mode & 0o7777, left, "as nobody: {is_nobody}");
            assert_eq!(content(&file), b"trojanm");
        }
    }
}

#[test]
fn a_write_as_nobody_by_a_ring_that_has_none_fails() {
    let mut ring: Ring = ring(DEPTH);
    assert!(!ring.has_nobody());
    let file = file_with(b"ab");
    ring.queue(Work::WriteAsNobody(None), file.clone(), 0, Some(b"x".to_vec()), 0).unwrap();
    ring.queue(Work::Read, file.clone(), 0, Some(vec![0; 2]), 1).unwrap();
    let mut done = finish(&mut ring, 2);
    done.sort_by_key(|done| done.token);
    let error = done[0].result.as_ref().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    assert_eq!((content(&file), done[1].bytes), (b"ab".to_vec(), 2));
}

/// Compares a file with a copy in memory, with many reads and writes of random places in flight.
struct Soak {
    random: Random,
    ring: FileRing<Vec<u8>, u64>,
    file: Arc<OwnedFd>,
    model: Vec<u8>,
    /// Place and, for a read, the expected bytes, by token. No two overlap if one is a write.
    flying: BTreeMap<u64, (std::ops::Range<usize>, Option<Vec<u8>>)>,
}

impl Soak {
    const FILE_BYTES: usize = 4 << 20;

    fn new(seed: u64, depth: u32) -> Self {
        let file = file_on_disk();
        fs::ftruncate(&file, Self::FILE_BYTES as u64).unwrap();
        let (random, ring) = (Random::seeded(seed), ring(depth));
        Self { random, ring, file, model: vec![0; Self::FILE_BYTES], flying: BTreeMap::new() }
    }

    fn place(&mut self) -> std::ops::Range<usize> {
        let len = 1 + self.random.at_most(199_999) as usize;
        let start = self.random.at_most((Self::FILE_BYTES - len) as u64) as usize;
        start..start + len
    }

    fn start(&mut self, token: u64) {
        let (place, is_write) = (self.place(), self.random.at_most(1) == 1);
        let conflicts = |(other, read): &(std::ops::Range<usize>, Option<Vec<u8>>)| {
            let overlap = other.start < place.end && place.start < other.end;
            overlap && (is_write || read.is_none())
        };
        if self.flying.values().any(conflicts) {
            return;
        }
        let (file, offset) = (self.file.clone(), place.start as u64);
        if is_write {
            let bytes: Vec<u8> = place.clone().map(|at| (at as u64 ^ token) as u8).collect();
            self.model[place.clone()].copy_from_slice(&bytes);
            let durability = token.is_multiple_of(16).then_some(Durability::Data);
            self.ring.queue(Work::Write(durability), file, offset, Some(bytes), token).unwrap();
            self.flying.insert(token, (place, None));
        } else {
            let expected = self.model[place.clone()].to_vec();
            self.ring.queue(Work::Read, file, offset, Some(vec![0; place.len()]), token).unwrap();
            self.flying.insert(token, (place, Some(expected)));
        }
    }

    fn poll(&mut self) {
        let flying = &mut self.flying;
        let check = |done: Done<Vec<u8>, u64>| {
            let (place, expected) = flying.remove(&done.token).unwrap();
            assert!(done.result.is_ok(), "{place:?}: {:?}", done.result);
            assert_eq!(done.bytes, place.len());
            if let Some(expected) = expected {
                assert!(done.buffer.unwrap()[..] == expected[..], "{place:?} differs");
            }
        };
        self.ring.poll(check).unwrap();
    }
}

#[test]
fn many_in_flight_read_what_was_written() {
    let seed = 0x5eed;
    println!("seed {seed:#x}");
    let depth = 32;
    let mut soak = Soak::new(seed, depth);
    for token in 0..3000 {
        if soak.ring.outstanding() < depth as usize {
            soak.start(token);
        }
        soak.poll();
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while soak.ring.outstanding() > 0 {
        soak.poll();
        assert!(Instant::now() < deadline, "{} operations never end", soak.ring.outstanding());
    }
    assert!(content(&soak.file) == soak.model);
}

/// Another file where a ring's descriptor was, for which io_uring_enter(2) fails.
struct Hidden {
    place: RawFd,
    ring: OwnedFd,
}

impl Hidden {
    fn of(ring: &Ring) -> Self {
        let place = ring.ring.as_raw_fd();
        // SAFETY: the ring keeps its descriptor open.
        let own = unsafe { BorrowedFd::borrow_raw(place) };
        let hidden = Self { place, ring: own.try_clone_to_owned().unwrap() };
        hidden.put(&file_on_disk());
        hidden
    }

    fn put(&self, file: &OwnedFd) {
        // SAFETY: it takes numbers, and the place is that of an open ring, which outlives this.
        let placed = unsafe { libc::dup3(file.as_raw_fd(), self.place, libc::O_CLOEXEC) };
        assert_eq!(placed, self.place, "{}", io::Error::last_os_error());
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        self.put(&self.ring);
    }
}

#[test]
fn a_poll_with_nothing_to_be_done_makes_no_system_call() {
    for mut ring in [ring(DEPTH), plain_ring(DEPTH)] {
        let (reader, writer) = silent_pipe();
        ring.queue(Work::Read, reader.clone(), 0, Some(vec![0]), 0).unwrap();
        ring.poll(|done| panic!("{done:?}")).unwrap();
        let hidden = Hidden::of(&ring);
        assert_eq!(ring.poll(|done| panic!("{done:?}")).unwrap(), 0, "the read waits");
        ring.queue(Work::Read, reader, 0, Some(vec![0]), 1).unwrap();
        let error = ring.poll(|done| panic!("{done:?}")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP), "a system call for the other");
        drop(hidden);
        assert_eq!(rustix::io::write(&writer, b"xy").unwrap(), 2);
        assert!(finish(&mut ring, 2).iter().all(|done| done.bytes == 1));
    }
}
