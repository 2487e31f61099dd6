//! READ, WRITE and COMMIT, with the ring and with threads.

use super::*;
use crate::server::local_fs::data_path::PART_BYTES;
use crate::server::local_fs::node::{Node, Right};
use crate::server::local_fs::transfer::{Ended, Running};
use crate::server::nodes::Held;
use spinrpc::RawConfig;
use std::io::Read;
use std::iter;

/// Runs the test with both; only with threads if io_uring is denied.
fn both(test: impl Fn(&Export, &mut Data)) {
    for io in [IoMode::Auto, IoMode::Threads] {
        let export = Export::with(DirectoryOptions { io, ..DirectoryOptions::default() });
        let mut data = export.data();
        test(&export, &mut data);
    }
}

/// Reads as root from the start, and returns the answer, and whether it came at once.
fn read(data: &mut Data, file: &FileKey, bytes: usize) -> (Vec<u8>, bool, bool) {
    let into = Bulk::from_vec(vec![0; bytes]);
    let started = data.path.start(&ROOT, file, Request::Read { offset: 0, into });
    let is_at_once = matches!(started, Started::Done(_));
    let done = match started {
        Started::Done(done) => done,
        Started::Later(number) => data.wait(number),
    };
    let Done::Read { data, is_end, .. } = done else { panic!("{done:?}") };
    (data.bytes().to_vec(), is_end, is_at_once)
}

/// io_uring gives reads of tmpfs to a thread of the kernel, and one that waits for swap space must not wait on the core.
#[test]
fn short_reads_of_a_file_system_in_memory_are_done_at_once() {
    let export = Export::at(Path::new("/dev/shm").join(fresh_name()), DirectoryOptions::default());
    let swaps = rustix::system::sysinfo().totalswap > 0;
    assert_eq!(export.directory.kind.is_in_memory, !swaps, "/dev/shm is a tmpfs");
    let is_by_core = export.directory.uses_ring() && !swaps;
    let file = export.create("file");
    let mut data = export.data();
    for file_bytes in [PART_BYTES + 1, 10] {
        fs::write(export.local("file"), vec![7; file_bytes]).unwrap();
        assert_eq!(data.read_as(&ROOT, &file, (0, 1)).unwrap(), (vec![7], false), "opens the file");
        for (asked, is_short) in [(1, true), (PART_BYTES, true), (PART_BYTES + 1, false)] {
            let (bytes, is_end, is_at_once) = read(&mut data, &file, asked);
            assert!(bytes == vec![7; asked.min(file_bytes)], "{asked} of {file_bytes} bytes");
            assert_eq!(is_end, asked >= file_bytes);
            assert_eq!(is_at_once, is_short && is_by_core, "{asked} of {file_bytes} bytes");
        }
    }
    assert_eq!(data.write_as(&ROOT, &file, (0, b"x"), StableHow::Unstable).unwrap(), 1);
    assert_eq!(data.read_as(&ROOT, &file, (0, 1)).unwrap(), (vec![b'x'], false));
}

/// A file that counts as being in memory, not open yet, and its export. The core reads it itself, as it does only where
/// io_uring is used.
fn in_memory(bytes: usize) -> (Export, FileKey, Data) {
    let mut export = Export::new();
    Arc::get_mut(&mut export.directory).unwrap().kind.is_in_memory = true;
    let file = export.create("file");
    fs::write(export.local("file"), vec![7; bytes]).unwrap();
    let data = export.data();
    assert_eq!(export.directory.ways().io, IoMode::Uring, "this test needs io_uring");
    (export, file, data)
}

/// Other calls of the core have their turn between the parts. A part holds what the file has when it is read, and the end
/// of a file that has become shorter is found there.
#[test]
fn a_long_read_of_a_file_system_in_memory_is_done_in_parts_one_per_poll() {
    let (export, file, mut data) = in_memory(3 * PART_BYTES);
    data.read_as(&ROOT, &file, (0, 1)).unwrap();
    for (file_bytes, expected) in [
        (None, [vec![7; 3 * PART_BYTES], vec![]]),
        (Some(PART_BYTES + 10), [vec![7; PART_BYTES], vec![8; 10]]),
        (Some(0), [vec![7; PART_BYTES], vec![]]),
    ] {
        let into = Bulk::from_vec(vec![0; 3 * PART_BYTES]);
        let started = data.path.start(&ROOT, &file, Request::Read { offset: 0, into });
        assert!(matches!(started, Started::Later(_)), "{started:?}");
        let mut ended = None;
        let (mut polls, mut events) = (0, 0);
        while ended.is_none() {
            let polled = data.path.poll(true, &mut |_, done| ended = Some(done));
            (polls, events) = (polls + 1, events + polled.events);
            assert_eq!(polled.is_waiting, ended.is_none());
            if let (1, Some(file_bytes)) = (polls, file_bytes) {
                fs::write(export.local("file"), vec![8; file_bytes]).unwrap();
            }
            let short = data.path.start(
                &ROOT,
                &file,
                Request::Read { offset: 0, into: Bulk::from_vec(vec![0; 1]) },
            );
            assert!(matches!(short, Started::Done(Done::Read { .. })), "{short:?}");
        }
        let Some(Done::Read { data: read, is_end, .. }) = ended else { panic!("{ended:?}") };
        assert!(read.bytes() == expected.concat(), "{file_bytes:?}");
        assert!(is_end);
        assert_eq!(polls, if file_bytes.is_none() { 3 } else { 2 });
        assert_eq!(events, polls, "a part each");
        fs::write(export.local("file"), vec![7; 3 * PART_BYTES]).unwrap();
    }
}

/// Threads of the kernel may have other CPUs.
#[test]
fn only_one_of_several_long_reads_of_a_file_system_in_memory_is_done_by_the_core() {
    let (_export, file, mut data) = in_memory(2 * PART_BYTES);
    let start = |data: &mut Data| {
        let into = Bulk::from_vec(vec![0; 2 * PART_BYTES]);
        match data.path.start(&ROOT, &file, Request::Read { offset: 0, into }) {
            Started::Later(number) => number,
            Started::Done(done) => panic!("{done:?}"),
        }
    };
    // A thread opens the file first.
    let opening = start(&mut data);
    data.wait(opening);
    let mut expected = [0; 3].map(|_| start(&mut data));
    let mut ended = Vec::new();
    let parts = data.wait_for_all(|number, done| {
        let Done::Read { data, is_end: true, .. } = done else { panic!("{done:?}") };
        assert!(data.bytes() == vec![7; 2 * PART_BYTES]);
        ended.push(number);
    });
    ended.sort_unstable();
    expected.sort_unstable();
    assert_eq!(ended, expected);
    assert_eq!(parts, 2, "of the first");
    // Another export has its turn.
    start(&mut data);
    let polled = data.path.poll(false, &mut |_, done| panic!("{done:?}"));
    assert_eq!(polled, Progress { events: 0, is_waiting: true });
}

#[test]
fn a_path_that_is_dropped_during_a_long_read_gives_its_buffer_back() {
    let (_export, file, mut data) = in_memory(2 * PART_BYTES);
    data.read_as(&ROOT, &file, (0, 1)).unwrap();
    let mut raw = RawConfig::default();
    (raw.cores.max, raw.mem.arena_mib) = (1, 4);
    let core = Engine::new(raw.validate().unwrap()).unwrap().core(0).unwrap().context();
    let into = core.bulk(2 * PART_BYTES).unwrap();
    let others: Vec<Bulk> = iter::from_fn(|| core.bulk(2 * PART_BYTES)).collect();
    assert!(!others.is_empty());
    let started = data.path.start(&ROOT, &file, Request::Read { offset: 0, into });
    assert!(matches!(started, Started::Later(_)), "{started:?}");
    assert_eq!(data.path.poll(true, &mut |_, done| panic!("{done:?}")).events, 1);
    assert!(core.bulk(2 * PART_BYTES).is_none());
    drop(data);
    assert!(core.bulk(2 * PART_BYTES).is_some());
}

/// A COMMIT that started after a WRITE and ended before it may have missed its data.
#[test]
fn a_write_that_ends_after_a_sync_has_to_be_synced_still() {
    let export = Export::new();
    let tree = &export.directory.tree;
    let node = tree.node(&export.create("file")).unwrap();
    let data = Bulk::from_vec(vec![1]);
    let write = started(&node, &Request::Write { offset: 0, data, stable: StableHow::Unstable });
    let commit = started(&node, &COMMIT);
    let committed = commit.end(tree, Ended { buffer: None, bytes: 0, result: Ok(()) });
    let Ok(Done::Committed { wcc }) = committed else { panic!("it overlaps with no sync") };
    assert_eq!(wcc.before, None, "the write may be in the attributes from after it");
    assert!(!node.is_dirty());
    let _ = write.end(tree, Ended { buffer: None, bytes: 1, result: Ok(()) });
    assert!(node.is_dirty());
}

#[test]
fn stable_means_synced_before_the_reply() {
    both(|export, data| {
        let (file, losses) = (export.create("file"), export.directory.losses());
        let synced = |data: &mut Data, stable| {
            let before = export.directory.syncs();
            data.write_as(&ROOT, &file, (0, b"x"), stable).unwrap();
            let after = export.directory.syncs();
            (after.data - before.data, after.file - before.file)
        };
        assert_eq!(synced(data, StableHow::Unstable), (0, 0));
        assert_eq!(synced(data, StableHow::DataSync), (1, 0));
        assert_eq!(synced(data, StableHow::FileSync), (0, 1));
        let before = export.directory.syncs();
        data.commit(&file).unwrap();
        assert_eq!(export.directory.syncs().file - before.file, 1);
        assert_eq!(export.directory.losses(), losses);
    });
}

#[test]
fn changes_of_names_are_synced_before_the_reply() {
    let export = Export::new();
    let root = export.root();
    let mut last = export.directory.syncs().file;
    let mut synced = |what: &str, at_least: u64| {
        let now = export.directory.syncs().file;
        assert!(now - last >= at_least, "{what}: {} of {at_least}", now - last);
        last = now;
    };
    let file = export.create("file");
    synced("CREATE: the file and the directory", 2);
    export.make_directory("directory");
    synced("MKDIR", 2);
    export.directory.link(by(&ROOT, &mut Default::default()), &file, at(&root, "link")).unwrap();
    synced("LINK", 2);
    export.rename(at(&root, "link"), at(&export.key("directory"), "link")).unwrap();
    synced("RENAME: both directories", 2);
    export.set(&ROOT, &file, &with_mode(0o600)).unwrap();
    synced("SETATTR", 1);
    export.remove("file").unwrap();
    synced("REMOVE", 1);
}

#[test]
fn a_create_that_changes_nothing_syncs_nothing() {
    let export = Export::new();
    let (exclusive, size) = (Createhow3::Exclusive([7; 8]), |size| Sattr3 { size, ..with_mode(0) });
    export.create_as(&ROOT, "file", &exclusive).unwrap();
    for (how, expected) in [
        (Createhow3::Unchecked(size(None)), 0),
        (exclusive, 2),
        (Createhow3::Unchecked(size(Some(1))), 1),
    ] {
        let before = export.directory.syncs().file;
        export.create_as(&ROOT, "file", &how).unwrap();
        assert_eq!(export.directory.syncs().file - before, expected, "{how:?}");
    }
}

#[test]
fn a_file_that_was_removed_while_it_was_open_is_stale() {
    both(|export, data| {
        let file = export.create("file");
        data.write_as(&ROOT, &file, (0, b"text"), StableHow::Unstable).unwrap();
        data.read_as(&ROOT, &file, (0, 4)).unwrap();
        fs::remove_file(export.local("file")).unwrap();
        assert_eq!(status(data.read_as(&ROOT, &file, (0, 4))), Nfsstat3::Nfs3errStale);
        let written = data.write_as(&ROOT, &file, (0, b"x"), StableHow::Unstable);
        assert_eq!(status(written), Nfsstat3::Nfs3errStale);
        assert_eq!(status(data.commit(&file)), Nfsstat3::Nfs3errStale);
    });
}

#[test]
fn many_requests_run_at_a_time_and_too_many_are_told_to_come_back() {
    for io in [IoMode::Auto, IoMode::Threads] {
        let options = DirectoryOptions { io, ring_depth: 8, ..DirectoryOptions::default() };
        let export = Export::with(options);
        let mut data = export.data();
        let file = export.create("file");
        let mut later = Vec::new();
        for offset in 0..8 {
            let data_of = WriteData::Inline(b"x");
            let request = Request::Write { offset, data: data_of, stable: StableHow::Unstable };
            match data.path.start(&ROOT, &file, request) {
                Started::Later(number) => later.push(number),
                Started::Done(done) => panic!("{done:?}"),
            }
        }
        let request = Request::Commit { offset: 0, count: 0 };
        let refused = data.path.start(&ROOT, &file, request);
        let too_much = Nfsstat3::Nfs3errJukebox;
        assert!(
            matches!(refused, Started::Done(Done::Failed { status, .. }) if status == too_much)
        );
        let mut ended = Vec::new();
        data.wait_for_all(|number, done| {
            assert!(matches!(done, Done::Written { count: 1, .. }), "{done:?}");
            ended.push(number);
        });
        ended.sort_unstable();
        later.sort_unstable();
        assert_eq!(ended, later);
        assert_eq!(fs::read(export.local("file")).unwrap(), b"xxxxxxxx");
        assert_eq!(data.path.poll(true, &mut |_, done| panic!("{done:?}")), Progress::default());
    }
}

/// All cores share the threads' queue, and each may have as many requests in progress.
#[test]
fn each_of_many_cores_has_as_much_in_flight_as_one() {
    let io = IoMode::Threads;
    let options = DirectoryOptions { io, ring_depth: 8, threads: 1, ..DirectoryOptions::default() };
    let export = Export::with(options);
    let file = export.create("file");
    let node = export.directory.tree.node(&file).unwrap();
    // The single thread stops at the end of the first request.
    let other = started(&node, &COMMIT);
    let mut cores: Vec<_> = (0..3).map(|_| export.data()).collect();
    for core in &mut cores {
        for _ in 0..8 {
            let commit = Request::Commit { offset: 0, count: 0 };
            let started = core.path.start(&ROOT, &file, commit);
            assert!(matches!(started, Started::Later(_)), "{started:?}");
        }
    }
    drop(other);
    for core in &mut cores {
        let mut ended = 0;
        core.wait_for_all(|_, done| {
            assert!(matches!(done, Done::Committed { .. }), "{done:?}");
            ended += 1;
        });
        assert_eq!(ended, 8);
    }
}

#[test]
fn writes_that_overlap_in_time_do_not_claim_to_be_alone() {
    let export = Export::new();
    let mut data = export.data();
    let file = export.create("file");
    data.write_as(&ROOT, &file, (0, b"open it"), StableHow::Unstable).unwrap();
    assert_eq!(export.directory.ways().io, IoMode::Uring, "this test needs io_uring");
    for offset in 0..2 {
        let data_of = WriteData::Inline(b"x");
        let request = Request::Write { offset, data: data_of, stable: StableHow::Unstable };
        assert!(matches!(data.path.start(&ROOT, &file, request), Started::Later(_)));
    }
    let mut alone = 0;
    data.wait_for_all(|_, done| {
        let Done::Written { wcc, .. } = done else { panic!("{done:?}") };
        alone += u32::from(wcc.before.is_some());
    });
    assert_eq!(alone, 0);
}

/// A process that leases a file, and does not release the lease when asked to.
struct Leaser(std::process::Child);

impl Leaser {
    fn of(path: &Path) -> Option<Self> {
        let lease = "$SIG{IO} = 'IGNORE'; open F, '+<', $ARGV[0] or die; \
                     fcntl F, 1024, 1 or die $!; syswrite STDOUT, 'leased'; sleep 60";
        let mut command = std::process::Command::new("perl");
        command.args(["-e", lease]).arg(path).stdout(std::process::Stdio::piped());
        let mut child = command.spawn().ok()?;
        let mut said = [0; 6];
        let is_leased = child.stdout.take()?.read_exact(&mut said).is_ok();
        let leaser = Self(child);
        is_leased.then_some(leaser)
    }
}

impl Drop for Leaser {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_lease_of_another_process_is_not_waited_for() {
    both(|export, data| {
        fs::write(export.local("file"), "text").unwrap();
        let file = export.key("file");
        let Some(leaser) = Leaser::of(&export.local("file")) else {
            return eprintln!("not tested: it takes perl, and a file system with leases");
        };
        let begun = std::time::Instant::now();
        assert_eq!(status(data.read_as(&ROOT, &file, (0, 4))), Nfsstat3::Nfs3errJukebox);
        assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
        drop(leaser);
        assert_eq!(data.read_as(&ROOT, &file, (0, 4)).unwrap(), (b"text".to_vec(), true));
    });
}

#[test]
fn only_what_a_sync_may_have_met_counts_as_a_loss() {
    use Nfsstat3::*;
    let export = Export::new();
    let tree = &export.directory.tree;
    let node = tree.node(&export.create("file")).unwrap();
    let losses_of = |stable: Option<StableHow>, status, bytes| {
        let data = || Bulk::from_vec(vec![1, 2]);
        let operation =
            stable.map_or(COMMIT, |stable| Request::Write { offset: 0, data: data(), stable });
        let (running, _) = Running::begin(Arc::clone(&node), &operation).unwrap();
        let before = export.directory.losses();
        let _ = running.end(tree, Ended { buffer: None, bytes, result: Err(status) });
        export.directory.losses() - before
    };
    let durable = Some(StableHow::DataSync);
    for refusal in [
        Nfs3errFbig,
        Nfs3errInval,
        Nfs3errPerm,
        Nfs3errAcces,
        Nfs3errRofs,
        Nfs3errNxio,
        Nfs3errJukebox,
        Nfs3errStale,
        Nfs3errIsdir,
    ] {
        assert_eq!(losses_of(durable, refusal, 0), 0, "{refusal:?}");
    }
    for full in [Nfs3errNospc, Nfs3errDquot] {
        assert_eq!(losses_of(durable, full, 0), 0, "{full:?}");
        assert_eq!(losses_of(durable, full, 1), 1, "{full:?}");
        assert_eq!(losses_of(None, full, 0), 1, "{full:?} of COMMIT");
    }
    for operation in [durable, Some(StableHow::FileSync), None] {
        assert_eq!(losses_of(operation, Nfs3errIo, 0), 1, "{operation:?}");
    }
    assert_eq!(losses_of(Some(StableHow::Unstable), Nfs3errIo, 0), 0);
}

/// Else no program of this host could execute it as long as a client uses it.
#[test]
fn a_file_in_use_that_is_not_written_any_more_is_not_open_for_writing() {
    both(|export, data| {
        let file = export.create("file");
        let tree = &export.directory.tree;
        let is_open = || tree.node(&file).unwrap().is_open_to_write();
        let mut wait = || {
            for _ in 0..8 {
                data.read_as(&ROOT, &file, (0, 1)).unwrap();
                tree.tick_now();
            }
        };
        for stable in [StableHow::FileSync, StableHow::Unstable] {
            export.data().write_as(&ROOT, &file, (0, b"x"), stable).unwrap();
            assert!(is_open(), "{stable:?}");
            wait();
            let is_dirty = stable == StableHow::Unstable;
            assert_eq!(is_open(), is_dirty, "{stable:?}");
        }
        export.data().commit(&file).unwrap();
        wait();
        assert!(!is_open());
    });
}

/// As an export that is removed and added again. Expect that no write verifier comes back.
#[test]
fn a_directory_that_is_opened_again_has_other_losses() {
    let mut export = Export::new();
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(export.directory.losses());
        export.directory.tree.lost(Nfsstat3::Nfs3errIo);
        seen.push(export.directory.losses());
        export.restart();
    }
    seen.dedup();
    assert_eq!(seen.len(), 6);
    assert!(seen.is_sorted());
}

const COMMIT: Request<Bulk> = Request::Commit { offset: 0, count: 0 };

/// A request in progress, without the kernel's knowledge.
fn started(node: &Arc<Node>, operation: &Request<Bulk>) -> Running {
    let mut running = Running::begin(Arc::clone(node), operation).unwrap().0;
    running.mark();
    running
}

/// The kernel reports an error once, to one of two overlapping syncs: neither has brought its data
/// to the disk.
#[test]
fn what_overlaps_with_a_sync_that_fails_fails() {
    let export = Export::new();
    let tree = &export.directory.tree;
    let node = tree.node(&export.create("file")).unwrap();
    let stable = StableHow::FileSync;
    let write = || Request::Write { offset: 0, data: Bulk::from_vec(vec![1]), stable };
    for operation in [COMMIT, write()] {
        let bytes = usize::from(operation.right() == Right::Write);
        let (told, untold) = (started(&node, &COMMIT), started(&node, &operation));
        let untold = untold.end(tree, Ended { buffer: None, bytes, result: Ok(()) }).unwrap_err();
        let later = started(&node, &operation);
        let before = export.directory.losses();
        let _ = told.end(tree, Ended { buffer: None, bytes: 0, result: Err(Nfsstat3::Nfs3errIo) });
        assert_eq!(export.directory.losses() - before, 1);
        let Ok(answer) = untold.answer(tree) else { panic!("it waits for what began later") };
        assert!(matches!(answer, Done::Failed { status: Nfsstat3::Nfs3errIo, .. }), "{answer:?}");
        drop(later);
    }
    let (first, second) = (started(&node, &write()), started(&node, &COMMIT));
    let good = || Ended { buffer: None, bytes: 1, result: Ok(()) };
    let first = first.end(tree, good()).unwrap_err();
    assert!(second.end(tree, good()).is_ok());
    assert!(matches!(first.wait(tree), Done::Written { count: 1, .. }));
}

/// Cores answer it when they are polled; threads wait for it.
#[test]
fn a_commit_waits_for_what_it_overlaps_with() {
    both(|export, data| {
        let file = export.create("file");
        data.write_as(&ROOT, &file, (0, b"x"), StableHow::Unstable).unwrap();
        let node = export.directory.tree.node(&file).unwrap();
        let other = started(&node, &COMMIT);
        let syncs = export.directory.syncs().file;
        let Started::Later(number) =
            data.path.start(&ROOT, &file, Request::Commit { offset: 0, count: 0 })
        else {
            panic!("it takes a while")
        };
        let mut polls_since = 0;
        while polls_since < 1000 {
            let polled = data.path.poll(true, &mut |_, done| panic!("{done:?}"));
            assert_eq!(polled, Progress { events: 0, is_waiting: true }, "it is in progress");
            polls_since += u32::from(export.directory.syncs().file > syncs);
            thread::yield_now();
        }
        let result = Err(Nfsstat3::Nfs3errIo);
        let _ = other.end(&export.directory.tree, Ended { buffer: None, bytes: 0, result });
        let status = Nfsstat3::Nfs3errIo;
        assert!(matches!(data.wait(number), Done::Failed { status: told, .. } if told == status));
        data.commit(&file).unwrap();
    });
}
