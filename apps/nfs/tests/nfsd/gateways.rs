//! Several servers on one file system of Ceph, and failures of the cluster. They need a cluster to
//! themselves, one test at a time: `.ci/run cephfs`.

use crate::back_end::BackEnd;
use crate::host::Host;
use crate::session::{Session, made, mode, status};
use nfs3_types::nfs3::{createhow3, createverf3, nfs_fh3, nfsstat3, stable_how, writeverf3};
use rustix::process::{Pid, Signal, kill_process};
use spinrpc_nfs::protocol::Sattr3;
use spinrpc_nfs::server::cephfs::{Cephfs, CephfsOptions};
use spinrpc_nfs::server::exports::{Caller, CallerGroups};
use spinrpc_nfs::server::file_system::{FileSystem, NewFile, Place};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longer than it takes until a cluster on a loaded machine answers again.
const PATIENCE: Duration = Duration::from_secs(90);

const BLOCK: usize = 4096;

/// A directory of the file system, as a server opens it.
pub(crate) fn open(path: &str) -> Arc<Cephfs> {
    Cephfs::open(path, &CephfsOptions::default()).unwrap()
}

/// Path of a new directory. It goes with the cluster.
pub(crate) fn new_directory() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let all = open("/");
    let at = Place { directory: &all.root(), name: name.as_bytes() };
    let new = NewFile::Directory(&Sattr3::default());
    let caller = Caller { uid: 0, gid: 0, groups: CallerGroups::default() };
    all.make(&caller, at, new, &mut Default::default()).unwrap();
    format!("/{name}")
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

/// The metadata server is stopped: a reply can only come from capabilities.
#[test]
fn cached_attributes_are_answered_without_the_metadata_server() {
    let (host, _) = gateway(&new_directory());
    let session = host.session();
    let file = session.create(&host.root(), "file");
    assert_eq!(session.write(&file, 0, b"content"), nfsstat3::NFS3_OK);
    session.getattr(&file).unwrap();
    let stopped = Stopped::new("mds.a");
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

/// Evicts a client of Ceph, as an administrator does.
fn evict(client: &Cephfs) {
    let id = format!("id={}", client.client());
    let done = Command::new("ceph").args(["tell", "mds.a", "client", "evict", &id]).output();
    let done = done.unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
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

#[test]
fn an_evicted_client_fails_calls_and_changes_the_write_verifier() {
    let path = new_directory();
    let ((host, client), (other, _)) = (gateway(&path), gateway(&path));
    let (session, reader) = (host.session(), other.session());
    let file = session.create(&host.root(), "file");
    let stable = session.write_as(&file, 0, &block(0), stable_how::FILE_SYNC).unwrap();
    let offset = BLOCK as u64;
    let unstable = session.write_as(&file, offset, &block(1), stable_how::UNSTABLE).unwrap();
    assert_eq!(stable.verf, unstable.verf);
    let before = client.client();
    evict(&client);
    let commit = session.commit(&file, 0, 0);
    let read = |offset| reader.read(&file, offset, BLOCK as u32).map(|(data, _)| data);
    match &commit {
        // It came before the eviction reached the data.
        Ok(done) if done.verf == unstable.verf => assert_eq!(read(offset), Ok(block(1))),
        Ok(_) => {}
        Err((status, _)) => assert_eq!(*status, nfsstat3::NFS3ERR_IO),
    }
    let (verifier, failures) = write_until_renewed(&session, &file, unstable.verf);
    let failed = failures.iter().chain(commit.as_ref().err().map(|(status, _)| status));
    let failed: Vec<_> = failed.collect();
    assert!(!failed.is_empty() && failed.iter().all(|status| **status == nfsstat3::NFS3ERR_IO));
    assert_ne!(client.client(), before);
    // As a client does that has not committed it.
    let again = session.write_as(&file, offset, &block(1), stable_how::UNSTABLE).unwrap();
    assert_eq!(again.verf, verifier);
    assert_eq!(session.commit(&file, 0, 0).unwrap().verf, verifier);
    assert_eq!((read(0), read(offset)), (Ok(block(0)), Ok(block(1))));
}
