//! One mount of the file system, with the files that are held; another takes its place when Ceph has
//! evicted this client.

use super::attributes::{Stat, vino};
use super::node::Node;
use crate::protocol::{Fattr3, Fsstat3resok, Ftype3, Nfsstat3, WccData};
use crate::server::errors::status;
use crate::server::file_system::{FileKey, Found, Outcome};
use crate::server::nodes::{Held, Nodes};
use crate::sys::ceph::{self, CephStatx, Inode, Mount, Step};
use rustix::io::Errno;
use spinrpc::sync::lock;
use spinrpc::sys::journal::event;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

pub(super) struct Session {
    mount: Arc<Mount>,
    pub(super) root: Arc<Node>,
    nodes: Nodes<Node>,
    fsid: u64,
    is_lost: AtomicBool,
    /// Held while the loss is recorded.
    losing: Mutex<()>,
    /// See [`FileSystem::losses`](crate::server::file_system::FileSystem::losses).
    losses: Arc<AtomicU64>,
}

impl Session {
    /// Mounts a directory of the file system. Waits for the cluster.
    pub(super) fn open(
        path: &CStr,
        fsid: u64,
        files_max: usize,
        losses: &Arc<AtomicU64>,
    ) -> Result<Self, (Step, Errno)> {
        let mount = Mount::open(path)?;
        let failed = |error| (Step::Mount, error);
        let root = mount.root().map_err(failed)?;
        let stat = Stat::new(&root.stat().map_err(failed)?, fsid);
        stat.demand_present().map_err(|_| failed(Errno::STALE))?;
        let root = Arc::new(Node::new(&stat, root));
        let (nodes, losses) = (Nodes::new(files_max), Arc::clone(losses));
        let (is_lost, losing) = (AtomicBool::new(false), Mutex::default());
        Ok(Self { mount, root, nodes, fsid, is_lost, losing, losses })
    }

    pub(super) fn client(&self) -> u64 {
        self.mount.client()
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// Records that Ceph has evicted this client: data that were not synced are lost. They are counted
    /// before, so that another session commits nothing with the old write verifier, and after: a WRITE that
    /// began in between has taken a verifier that must not stay, and may still have come to this session.
    fn lose(&self) {
        let _losing = lock(&self.losing);
        if !self.is_lost() {
            event!(
                ERROR,
                "Ceph has evicted client {}: its unstable data are lost, and NFS clients write them again",
                self.client()
            );
            self.lost_data();
            self.mount.abandon();
            self.is_lost.store(true, Ordering::Release);
            self.lost_data();
        }
    }

    /// Waits until the loss of a session that is lost has been recorded.
    pub(super) fn await_loss(&self) {
        drop(lock(&self.losing));
    }

    /// An error of write-back is reported once, whosever data it was.
    pub(super) fn lost_data(&self) {
        self.losses.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn status(&self, error: Errno) -> Nfsstat3 {
        let is_evicted = match error {
            // How libcephfs calls the end of a session.
            Errno::SHUTDOWN | Errno::NOTCONN => true,
            // It refuses all calls to the metadata server so after an eviction. Permissions are not for it to
            // check, so this is rare otherwise.
            Errno::PERM => self.root.inode.stat().is_err(),
            _ => false,
        };
        if is_evicted {
            self.lose();
        }
        if self.is_lost() { Nfsstat3::Nfs3errIo } else { status(error) }
    }

    pub(super) fn ok<T>(&self, result: ceph::Result<T>) -> Outcome<T> {
        result.map_err(|error| self.status(error))
    }

    /// The file of a key. May wait for the cluster.
    pub(super) fn node(&self, key: &FileKey) -> Outcome<Arc<Node>> {
        if key == self.root.key() {
            return Ok(Arc::clone(&self.root));
        }
        if let Some(node) = self.nodes.find(key) {
            return Ok(node);
        }
        let vino = vino(key).ok_or(Nfsstat3::Nfs3errStale)?;
        let inode = self.ok(self.mount.find(vino)).map_err(|status| match status {
            Nfsstat3::Nfs3errNoent => Nfsstat3::Nfs3errStale,
            status => status,
        })?;
        let stat = self.live(&inode)?;
        Ok(self.hold(&stat, inode))
    }

    pub(super) fn directory(&self, key: &FileKey) -> Outcome<Arc<Node>> {
        let node = self.node(key)?;
        if node.kind == Ftype3::Nf3dir { Ok(node) } else { Err(Nfsstat3::Nfs3errNotdir) }
    }

    pub(super) fn hold(&self, stat: &Stat, inode: Inode) -> Arc<Node> {
        self.nodes.hold(Node::new(stat, inode), |node| self.close(node))
    }

    pub(super) fn forget(&self, key: &FileKey) {
        self.nodes.forget(key);
    }

    /// Attributes of a file. NFS3ERR_STALE if it has no name any more.
    pub(super) fn live(&self, inode: &Inode) -> Outcome<Stat> {
        let stat = self.stat_of(&self.ok(inode.stat())?);
        if stat.attributes.nlink == 0 { Err(Nfsstat3::Nfs3errStale) } else { Ok(stat) }
    }

    pub(super) fn stat_of(&self, raw: &CephStatx) -> Stat {
        Stat::new(raw, self.fsid)
    }

    pub(super) fn attributes(&self, key: &FileKey) -> Outcome<Fattr3> {
        Ok(self.live(&self.node(key)?.inode)?.attributes)
    }

    /// A file that was found or made; held, because it is likely to be used next.
    pub(super) fn found(&self, stat: &Stat, inode: Inode) -> Found {
        self.hold(stat, inode);
        Found { key: stat.key(), attributes: stat.attributes }
    }

    /// Runs `work`, a change of `node`, and returns the attributes from before and after.
    pub(super) fn changing<T>(
        &self,
        node: &Node,
        wcc: &mut WccData,
        work: impl FnOnce(&Stat) -> Outcome<T>,
    ) -> Outcome<T> {
        self.changing_by(1, node, wcc, work)
    }

    /// The same for work that Ceph counts as this number of changes.
    pub(super) fn changing_by<T>(
        &self,
        changes: u64,
        node: &Node,
        wcc: &mut WccData,
        work: impl FnOnce(&Stat) -> Outcome<T>,
    ) -> Outcome<T> {
        let earlier = self.live(&node.inode);
        let outcome = earlier.as_ref().map_err(|status| *status).and_then(work);
        // What failed has changed nothing, so that a change is another's.
        let changes = if outcome.is_ok() { changes } else { 0 };
        let later = self.ok(node.inode.stat()).ok().map(|raw| self.stat_of(&raw));
        let both = earlier.ok().zip(later);
        wcc.before = both.and_then(|(earlier, later)| earlier.before(&later, changes));
        wcc.after = later.map(|later| later.attributes);
        // libcephfs also reports success for what an eviction dropped.
        if self.is_lost() { Err(Nfsstat3::Nfs3errIo) } else { outcome }
    }

    /// Waits until changes of a file, or of the names in a directory, are on stable storage. libcephfs also
    /// reports success when it drops them because of an eviction; but then it has no right to cache
    /// the attributes any more, and the request for them fails.
    pub(super) fn settle(&self, inode: &Inode) -> Outcome<()> {
        self.ok(inode.sync())?;
        self.ok(inode.stat()).map(drop)
    }

    /// Syncs the data of a file. `work` is done before, as a part of it.
    pub(super) fn syncing(&self, node: &Node, work: impl FnOnce() -> Outcome<()>) -> Outcome<()> {
        let started = node.syncs.begin();
        work()?;
        // It may miss concurrent writes, which set the mark at their end.
        node.set_dirty(false);
        let synced = self.ok(node.open_to_read().and_then(ceph::OpenFile::sync));
        if synced.is_err() {
            self.lost_data();
        }
        let overlap = started.end(synced.is_err());
        synced?;
        overlap.wait();
        overlap.outcome()?;
        // See `settle`.
        self.ok(node.inode.stat())?;
        if self.is_lost() { Err(Nfsstat3::Nfs3errIo) } else { Ok(()) }
    }

    pub(super) fn space(&self) -> Outcome<Fsstat3resok> {
        let room = self.ok(self.root.inode.space())?;
        let bytes = |blocks: u64| blocks.saturating_mul(room.f_frsize);
        // Ceph does not limit the number of files.
        let files = u64::from(u32::MAX);
        Ok(Fsstat3resok {
            tbytes: bytes(room.f_blocks),
            fbytes: bytes(room.f_bfree),
            abytes: bytes(room.f_bavail),
            tfiles: files,
            ffiles: files,
            afiles: files,
            ..Fsstat3resok::default()
        })
    }

    /// Closes unused files. May wait for the cluster.
    pub(super) fn tend(&self) {
        self.nodes.tend(|_| false, |node| self.close(node));
    }

    /// Closes a file. Syncs its writes first, because an error can no longer be reported later.
    fn close(&self, node: Arc<Node>) {
        if node.is_dirty() && node.is_open() {
            let _ = self.syncing(&node, || Ok(()));
        }
        self.nodes.leave(node);
    }
}
