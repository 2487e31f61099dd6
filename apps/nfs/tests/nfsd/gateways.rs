//! Several servers on one file system of Ceph, and failures of the cluster. They need a cluster to
//! themselves, one test at a time: `.ci/run cephfs`.

use crate::*;
use rustix::process::{Pid, Signal, kill_process};
use spinrpc_nfs::protocol::{Nfsstat3, Sattr3};
use spinrpc_nfs::server::cephfs::{Cephfs, CephfsOptions};
use spinrpc_nfs::server::exports::CallerGroups;
use spinrpc_nfs::server::file_system::{Change, NewFile};
use std::process::Command;

/// Longer than it takes until a cluster on a loaded machine answers again.
const PATIENCE: Duration = Duration::from_secs(90);

const BLOCK: usize = 4096;

/// A directory of the file system, as a server opens it.
pub(crate) fn open(path: &str) -> Arc<Cephfs> {
    Cephfs::open(path, &CephfsOptions::default()).unwrap()
}

/// Path of a new directory, of one of two metadata servers. It goes with the cluster.
pub(crate) fn new_directory() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let all = open("/shared");
    let at = Place { directory: &all.root(), name: name.as_bytes() };
    let new = NewFile::Directory(&Sattr3::default());
    let caller = Caller { uid: 0, gid: 0, groups: CallerGroups::default() };
    let mut wcc = Default::default();
    all.make(Change { caller: &caller, wcc: &mut wcc }, at, new).unwrap();
    format!("/shared/{name}")
}

/// A server of this directory, and its client of Ceph.
fn gateway(path: &str) -> (Host, Arc<Cephfs>) {
    let cephfs = open(path);
    (Host::start(BackEnd::new(Arc::clone(&cephfs) as _, ())), cephfs)
}

/// Sends a signal to a daemon of the cluster.
fn signal(daemon: &str, signal: Signal) {
    let folder = PathBuf::from(std::env::var("CEPH_CONF").unwrap()).with_file_name("");
    let id = fs::read_to_string(folder.join(format!("{daemon}.pid"))).unwrap();
    kill_process(Pid::from_raw(id.trim().parse().unwrap()).unwrap(), signal).unwrap();
}

fn block(number: usize) -> Vec<u8> {
    vec![number as u8 | 1; BLOCK]
}

/// A daemon that does not run until this is dropped.
struct Stopped(&'static str);

impl Stopped {
    fn new(daemon: &'static str) -> Self {
        signal(daemon, Signal::STOP);
        Self(daemon)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.0, Signal::CONT);
    }
}

#[test]
fn two_gateways_serve_one_file_system() {
    let path = new_directory();
    let ((a, _), (b, _)) = (gateway(&path), gateway(&path));
    let (on_a, on_b) = (a.session(), b.session());
    assert_eq!(a.root().data.as_ref(), b.root().data.as_ref());
    let root = a.root();
    let file = on_a.create(&root, "file");
    // Unstable data, and attributes that the other gateway has in its cache.
    for turn in 0..10 {
        let size = on_b.getattr(&file).unwrap().size;
        assert_eq!(size as usize, turn * BLOCK);
        let offset = size;
        on_a.write_as(&file, offset, &block(turn), stable_how::UNSTABLE).unwrap();
        assert_eq!(on_b.getattr(&file).unwrap().size as usize, (turn + 1) * BLOCK);
        assert_eq!(on_b.read(&file, offset, BLOCK as u32), Ok((block(turn), true)));
    }
    // A retry of an exclusive create may come to the other one.
    let how = || createhow3::EXCLUSIVE(createverf3(*b"verifier"));
    let first = made(on_a.create_as(&root, "exclusive", how()));
    let again = made(on_b.create_as(&root, "exclusive", how()));
    assert_eq!(first.data.as_ref(), again.data.as_ref());
    on_b.rename((&root, "file"), (&root, "renamed")).unwrap();
    assert_eq!(status(on_a.lookup(&root, "file")), nfsstat3::NFS3ERR_NOENT);
    on_a.setattr(&file, mode(0o600), None).unwrap();
    assert_eq!(on_b.getattr(&file).unwrap().mode, 0o600);
    on_a.remove(&root, "renamed").unwrap();
    assert_eq!(on_b.getattr(&file).err(), Some(nfsstat3::NFS3ERR_STALE));
    assert_eq!(on_a.getattr(&file).err(), Some(nfsstat3::NFS3ERR_STALE));
}

/// Handles are valid on a server that has never seen the file, as after a restart.
#[test]
fn a_handle_outlives_the_server() {
    let path = new_directory();
    let (file, root) = {
        let (host, _) = gateway(&path);
        let session = host.session();
        let directory = session.mkdir(&host.root(), "directory");
        let file = session.create(&directory, "file");
        assert_eq!(session.write(&file, 0, b"content"), nfsstat3::NFS3_OK);
        (file, host.root())
    };
    let (host, _) = gateway(&path);
    assert_eq!(host.root().data.as_ref(), root.data.as_ref());
    assert_eq!(host.session().read(&file, 0, 100), Ok((b"content".to_vec(), true)));
}

/// The metadata servers are stopped: a reply can only come from capabilities.
#[test]
fn cached_attributes_are_answered_without_the_metadata_server() {
    let (host, _) = gateway(&new_directory());
    let (session, file) = host.session_and_file();
    assert_eq!(session.write(&file, 0, b"content"), nfsstat3::NFS3_OK);
    session.getattr(&file).unwrap();
    let stopped = ["mds.a", "mds.b"].map(Stopped::new);
    for _ in 0..100 {
        assert_eq!(session.getattr(&file).unwrap().size, 7);
        assert_eq!(session.read(&file, 0, 7), Ok((b"content".to_vec(), true)));
    }
    drop(stopped);
    session.create(&host.root(), "another");
}

/// All copies of the data are killed while clients write: what was acknowledged as stable, or committed,
/// is there once they have started again from their disks, and is read by a gateway without a cache.
#[test]
fn no_acknowledged_write_is_lost_when_osds_are_killed() {
    let path = new_directory();
    let (host, _) = gateway(&path);
    let session = host.session();
    let stable = session.create(&host.root(), "stable");
    let committed = session.create(&host.root(), "committed");
    let (blocks, killed_at) = (150, 75);
    for number in 0..blocks {
        if number == killed_at {
            signal("osd.0", Signal::KILL);
            signal("osd.1", Signal::KILL);
        }
        let offset = (number * BLOCK) as u64;
        assert_eq!(session.write(&stable, offset, &block(number)), nfsstat3::NFS3_OK);
        let unstable = stable_how::UNSTABLE;
        let written = session.write_as(&committed, offset, &block(number), unstable).unwrap();
        if number % 50 == 49 {
            let verifier = session.commit(&committed, 0, 0).unwrap().verf;
            assert_eq!(verifier, written.verf);
        }
    }
    signal("osd.0", Signal::KILL);
    signal("osd.1", Signal::KILL);
    let (other, _) = gateway(&path);
    let reader = other.session();
    for number in 0..blocks {
        for file in [&stable, &committed] {
            let read = reader.read(file, (number * BLOCK) as u64, BLOCK as u32).unwrap().0;
            assert!(read == block(number), "block {number} is lost");
        }
    }
}

/// Output of a command of an administrator. On a loaded host one in twenty of these commands never ends, whether it has
/// done its work or not.
fn ceph(arguments: &[&str]) -> Vec<u8> {
    const TIMED_OUT: i32 = 124;
    for _ in 0..8 {
        let command = [&["30", "ceph"], arguments].concat();
        let done = Command::new("timeout").args(command).output().unwrap();
        if done.status.code() != Some(TIMED_OUT) {
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            return done.stdout;
        }
    }
    panic!("{arguments:?} never ends");
}

fn evict(client: &Cephfs) {
    ceph(&["tell", "mds.*", "client", "evict", &format!("id={}", client.client())]);
}

/// Writes until the verifier is another one; returns it, and the failures before.
fn write_until_renewed(
    session: &Session,
    file: &nfs_fh3,
    old: writeverf3,
) -> (writeverf3, Vec<nfsstat3>) {
    let (end, mut failures) = (Instant::now() + PATIENCE, Vec::new());
    while Instant::now() < end {
        match session.write_as(file, 0, &block(0), stable_how::FILE_SYNC) {
            Ok(written) if written.verf != old => return (written.verf, failures),
            Ok(_) => {}
            Err((status, _)) => failures.push(status),
        }
    }
    panic!("the write verifier stays: {failures:?}");
}

/// Two gateways, and a file of the first, whose client of Ceph is evicted: blocks 0 and 2 are committed,
/// block 1 is not.
struct Evicted {
    host: Host,
    client: Arc<Cephfs>,
    other: Host,
    file: nfs_fh3,
    /// Another file of the same gateway.
    another: nfs_fh3,
    /// The write verifier of all blocks.
    old: writeverf3,
}

impl Evicted {
    fn new() -> Self {
        let path = new_directory();
        let ((host, client), (other, _)) = (gateway(&path), gateway(&path));
        let (session, file) = host.session_and_file();
        let another = session.create(&host.root(), "another");
        let write = |number: usize, stable| {
            let offset = (number * BLOCK) as u64;
            session.write_as(&file, offset, &block(number), stable).unwrap().verf
        };
        let old = write(0, stable_how::FILE_SYNC);
        assert_eq!(write(2, stable_how::UNSTABLE), old);
        assert_eq!(session.commit(&file, 0, 0).unwrap().verf, old);
        assert_eq!(write(1, stable_how::UNSTABLE), old);
        evict(&client);
        Self { host, client, other, file, another, old }
    }

    /// Checks by the other gateway that nothing is lost that was committed.
    fn check_committed(&self) {
        let session = self.other.session();
        for number in [0, 2] {
            let read = session.read(&self.file, (number * BLOCK) as u64, BLOCK as u32).unwrap().0;
            assert!(read == block(number), "block {number} is lost");
        }
    }

    /// Writes block 1 as a client does that has not committed it.
    fn write_again(&self, verifier: writeverf3) {
        let (session, offset) = (self.host.session(), BLOCK as u64);
        let unstable = stable_how::UNSTABLE;
        let again = session.write_as(&self.file, offset, &block(1), unstable).unwrap();
        assert_eq!(again.verf, verifier);
        assert_eq!(session.commit(&self.file, 0, 0).unwrap().verf, verifier);
        let read = self.other.session().read(&self.file, offset, BLOCK as u32).unwrap().0;
        assert!(read == block(1));
    }
}

#[test]
fn an_evicted_client_fails_calls_and_changes_the_write_verifier() {
    let evicted = Evicted::new();
    let session = evicted.host.session();
    let (verifier, failures) = write_until_renewed(&session, &evicted.another, evicted.old);
    assert!(!failures.is_empty());
    assert!(failures.iter().all(|status| *status == nfsstat3::NFS3ERR_IO), "{failures:?}");
    evicted.check_committed();
    evicted.write_again(verifier);
}

/// A client that gets NFS3ERR_IO for a COMMIT gives up the data; with another verifier it writes them again.
#[test]
fn a_commit_after_an_eviction_demands_the_data_again() {
    let evicted = Evicted::new();
    let session = evicted.host.session();
    let (end, before) = (Instant::now() + PATIENCE, evicted.client.client());
    let verifier = loop {
        match session.commit(&evicted.file, 0, 0) {
            Ok(committed) => break committed.verf,
            Err((status, _)) => assert_eq!(status, nfsstat3::NFS3ERR_JUKEBOX),
        }
        assert!(Instant::now() < end);
    };
    assert_ne!(verifier, evicted.old, "block 1 is lost");
    assert_ne!(evicted.client.client(), before);
    evicted.check_committed();
    evicted.write_again(verifier);
}

/// Runs statements of Python with a mount of the whole file system, `fs`.
fn with_python(statements: &str) {
    let program = format!(
        "import cephfs, os; fs = cephfs.LibCephFS(conffile=os.environ['CEPH_CONF']); fs.mount(); \
         {statements}; fs.shutdown()"
    );
    // The one of the system, for which Ceph has its module.
    let done = Command::new("/usr/bin/python3").args(["-c", &program]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn snapshots_are_not_served() {
    let path = new_directory();
    let (host, client) = gateway(&path);
    let (session, root, file) = host.session_root_and_file();
    assert_eq!(session.write(&file, 0, b"content"), nfsstat3::NFS3_OK);
    with_python(&format!("fs.mkdir('{path}/.snap/snapshot', 0o755)"));
    assert_eq!(status(session.lookup(&root, ".snap")), nfsstat3::NFS3ERR_NOENT);
    assert_eq!(status(session.try_mkdir(&root, ".snap")), nfsstat3::NFS3ERR_ACCES);
    assert_eq!(status(session.rename((&root, "file"), (&root, ".snap"))), nfsstat3::NFS3ERR_ACCES);
    assert_eq!(status(session.link(&file, &root, ".snap")), nfsstat3::NFS3ERR_ACCES);
    // Handles of an earlier version: of the first snapshots, and of what holds those of a directory.
    for of in [&root, &file] {
        let number = session.getattr(of).unwrap().fileid;
        for snapshot in (1..100).chain([u64::MAX]) {
            let key =
                FileKey::of(&((u128::from(number) << 64) | u128::from(snapshot)).to_be_bytes());
            assert_eq!(client.attributes(&key).err(), Some(Nfsstat3::Nfs3errStale));
        }
    }
    with_python(&format!("fs.rmdir('{path}/.snap/snapshot')"));
    assert_eq!(session.read(&file, 0, 7), Ok((b"content".to_vec(), true)));
}

/// A client of Ceph moves a directory out of the exported tree: its handle does not lead to others.
#[test]
fn parents_outside_the_tree_are_not_found() {
    let (path, outside) = (new_directory(), new_directory());
    let (moved, below) = {
        let (host, _) = gateway(&path);
        let session = host.session();
        let moved = session.mkdir(&host.root(), "moved");
        let below = session.mkdir(&moved, "below");
        assert_eq!(session.lookup(&below, "..").unwrap().object, moved);
        assert_eq!(session.lookup(&moved, "..").unwrap().object, host.root());
        (moved, below)
    };
    with_python(&format!("fs.rename('{path}/moved', '{outside}/moved')"));
    // Without a cache.
    let (host, _) = gateway(&path);
    let session = host.session();
    for directory in [&below, &moved] {
        assert_eq!(status(session.lookup(directory, "..")), nfsstat3::NFS3ERR_STALE);
    }
    let root = host.root();
    assert_eq!(session.lookup(&root, "..").unwrap().object, root);
}

/// Another directory takes the exported path, and then the client is evicted.
#[test]
fn another_directory_at_the_path_is_not_served() {
    let path = new_directory();
    let (host, client) = gateway(&path);
    let session = host.session();
    with_python(&format!("fs.rename('{path}', '{path}-old'); fs.mkdir('{path}', 0o777)"));
    evict(&client);
    let end = Instant::now() + Duration::from_secs(3);
    let mut failures = 0;
    while Instant::now() < end {
        let made = session.try_mkdir(&host.root(), &format!("directory-{failures}"));
        assert_eq!(status(made), nfsstat3::NFS3ERR_IO);
        failures += 1;
    }
    with_python(&format!("fs.rename('{path}', '{path}-new'); fs.rename('{path}-old', '{path}')"));
    let end = Instant::now() + PATIENCE;
    while session.try_mkdir(&host.root(), "directory").is_err() {
        assert!(Instant::now() < end);
    }
}

/// The client of `CEPH_ARGS`: by another process, because variables are those of a process.
#[test]
fn the_environment_names_the_client() {
    let folder = PathBuf::from(std::env::var("CEPH_CONF").unwrap()).with_file_name("");
    let ring = folder.join("keyring");
    let rights = ["mon", "allow r", "mds", "allow rw", "osd", "allow rw"];
    let mut keys = fs::read(&ring).unwrap();
    keys.extend(ceph(&[&["auth", "get-or-create", "client.nfs"], &rights[..]].concat()));
    fs::write(&ring, keys).unwrap();
    let mounts_as = |name: &str| {
        let mut test = Command::new(std::env::current_exe().unwrap());
        test.args(["--exact", "gateways::a_handle_outlives_the_server"]);
        test.env("CEPH_ARGS", format!("--id={name}")).output().unwrap().status.success()
    };
    assert!(mounts_as("nfs"));
    assert!(!mounts_as("nobody"));
}
