//! Exports a directory of CephFS through libcephfs (feature `cephfs`).
//!
//! Several servers with this back end, on several hosts, may serve one file system, next to other clients
//! of Ceph: handles are numbers of files, the same on all of them if they share a seal key, and Ceph's
//! "capabilities" keep their caches coherent. An attribute is answered from memory for as long as the
//! metadata server has granted the right to cache it; libcephfs does not tell in advance, so that all
//! calls are made by threads, and none by a core.
//!
//! libcephfs keeps unstable data in its memory. COMMIT and stable writes sync them (`ceph_ll_fsync`), and
//! changes of names and attributes wait until the metadata server has journaled them. When Ceph evicts
//! this client, because it did not answer for long or by a command, libcephfs drops these data and fails
//! all calls: they end with NFS3ERR_IO, the write verifier changes, and the file system is mounted again.
//! COMMIT waits for that and succeeds, so that clients, by the verifier, write again what they have not
//! committed. This rests on `mds_session_blocklist_on_evict`, a default of Ceph.
//!
//! Snapshots are not served. The parent of a directory is only found below the root.
//!
//! Permissions are checked here, by mode bits.

mod attributes;
mod data;
mod names;
mod node;
mod rights;
mod session;
mod setattr;

pub use super::errors::OpenError;

use super::caller::Caller;
use super::file_system::{
    Abilities, Change, DataPath, FileKey, FileSystem, Found, ListFrom, Listed, NewFile, Outcome,
    Place, Renaming, Setting, Take, first_losses, forward_operations,
};
use super::nodes::Held;
use crate::protocol::{Fattr3, Fsstat3resok, Nfsstat3};
use crate::sys::ceph::{Step, text};
use data::{CephPath, Workers};
use rustix::io::Errno;
use session::Session;
use spinrpc::CoreContext;
use spinrpc::sys::journal::event;
use std::ffi::CString;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

const NAME_BYTES_MAX: u32 = 255;
/// Number of links of a file. Ceph has no limit.
const LINKS_MAX: u32 = i32::MAX as u32;
const RENEWAL_PAUSE: Duration = Duration::from_secs(1);

/// Options of a directory of CephFS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CephfsOptions {
    /// Distinguishes the file systems of a server (`fsid` of RFC 1813 section 2.6).
    pub fsid: u64,
    /// Maximum number of files held. A file not used for 5 seconds is released.
    pub open_files_max: usize,
    /// Maximum number of data requests that one core has in progress, 1 or more; further ones get
    /// NFS3ERR_JUKEBOX.
    pub depth: u32,
    /// Threads for the data requests of all cores: each waits for the cluster.
    pub threads: usize,
}

impl Default for CephfsOptions {
    fn default() -> Self {
        Self { fsid: 1, open_files_max: 4096, depth: 256, threads: 4 }
    }
}

/// An exported directory of CephFS.
pub struct Cephfs {
    gateway: Arc<Gateway>,
    workers: Workers,
}

struct Gateway {
    path: CString,
    options: CephfsOptions,
    root: FileKey,
    current: RwLock<Arc<Session>>,
    /// The next attempt to mount again comes no earlier.
    renewal: Mutex<Instant>,
    losses: Arc<AtomicU64>,
}

impl Cephfs {
    /// Mounts a directory of CephFS, and starts its threads. Dropping it waits for operations in
    /// progress. Waits for the cluster for 30 seconds at most.
    ///
    /// The file system, the client and its key are those of `ceph.conf` and of the environment variables
    /// `CEPH_CONF` and `CEPH_ARGS`, as for the programs of Ceph.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: &str, options: &CephfsOptions) -> Result<Arc<Self>, OpenError> {
        let in_c = text(path.as_bytes()).map_err(|error| open_error(path, Step::Mount, error))?;
        let losses = Arc::new(first_losses());
        let opened = Session::open(&in_c, options.fsid, options.open_files_max, &losses);
        let session = opened.map_err(|(step, error)| open_error(path, step, error))?;
        let gateway = Arc::new(Gateway {
            path: in_c,
            options: options.clone(),
            root: *session.root.key(),
            current: RwLock::new(Arc::new(session)),
            renewal: Mutex::new(Instant::now()),
            losses,
        });
        let workers = Workers::start(&gateway, "spin-nfs-ceph-", options.threads, None)
            .map_err(OpenError::of_threads)?;
        Ok(Arc::new(Self { gateway, workers }))
    }

    /// Number of this client of Ceph, as in `ceph tell mds.* client ls`. It changes when the file system
    /// is mounted again. Callable from any thread at any time.
    pub fn client(&self) -> u64 {
        self.gateway.current().client()
    }
}

fn open_error(path: &str, step: Step, error: Errno) -> OpenError {
    match step {
        Step::Configure => OpenError::of(
            "cannot read the configuration of Ceph",
            "install /etc/ceph/ceph.conf, or name another file by the environment variable CEPH_CONF",
        )(error),
        Step::Mount => OpenError::of(
            format!("cannot mount {path} of CephFS"),
            "check that the directory exists, that the cluster is up, and that the client of CEPH_ARGS (such as \
             --id=nfs) has a keyring in /etc/ceph",
        )(error),
    }
}

impl Gateway {
    /// The mount; another one if Ceph has evicted the client. NFS3ERR_IO while there is none.
    fn session(&self) -> Outcome<Arc<Session>> {
        let session = self.current();
        if session.is_lost() { self.renew() } else { Ok(session) }
    }

    fn current(&self) -> Arc<Session> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Mounts again. One thread does; others do not wait for it.
    fn renew(&self) -> Outcome<Arc<Session>> {
        let Ok(mut next) = self.renewal.try_lock() else { return Err(Nfsstat3::Nfs3errIo) };
        let present = self.current();
        if !present.is_lost() {
            return Ok(present);
        }
        present.await_loss();
        if Instant::now() < *next {
            return Err(Nfsstat3::Nfs3errIo);
        }
        let CephfsOptions { fsid, open_files_max, .. } = self.options;
        match Session::open(&self.path, fsid, open_files_max, &self.losses) {
            // Another directory has its path now, to which handles must not lead.
            Ok(session) if *session.root.key() != self.root => {
                let path = self.path.to_string_lossy();
                event!(WARN, "{path} of CephFS is another directory than at the start");
                *next = Instant::now() + RENEWAL_PAUSE;
                Err(Nfsstat3::Nfs3errIo)
            }
            Ok(session) => {
                let session = Arc::new(session);
                let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
                *current = Arc::clone(&session);
                Ok(session)
            }
            Err((_, error)) => {
                event!(
                    WARN,
                    "cannot mount {} of CephFS again: {error}",
                    self.path.to_string_lossy()
                );
                *next = Instant::now() + RENEWAL_PAUSE;
                Err(Nfsstat3::Nfs3errIo)
            }
        }
    }
}

impl FileSystem for Cephfs {
    fn blocks(&self) -> bool {
        true
    }

    fn losses(&self) -> u64 {
        self.gateway.losses.load(Ordering::SeqCst)
    }

    fn root(&self) -> FileKey {
        self.gateway.root
    }

    forward_operations!(self => self.gateway.session()?, self.gateway.session()?);

    fn abilities(&self) -> Abilities {
        Abilities { name_bytes_max: NAME_BYTES_MAX, links_max: LINKS_MAX }
    }

    fn stop(&self) {
        self.workers.stop();
    }

    fn data_path(self: Arc<Self>, core: &CoreContext) -> Box<dyn DataPath> {
        let depth = self.gateway.options.depth;
        Box::new(CephPath::new(self, core, depth))
    }
}
