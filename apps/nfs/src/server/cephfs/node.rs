//! A file that is held: found once, then queried, read and written without another lookup.

use crate::protocol::{Ftype3, Nfsstat3};
use crate::server::file_system::{FileKey, Outcome};
use crate::server::nodes::Held;
use crate::server::open_syncs::OpenSyncs;
use crate::sys::ceph::{self, Inode, OpenFile};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

pub(super) struct Node {
    key: FileKey,
    pub(super) kind: Ftype3,
    /// Closed before `inode`.
    file: OnceLock<OpenFile>,
    pub(super) inode: Inode,
    /// Syncs of its data.
    pub(super) syncs: Arc<OpenSyncs>,
    used: AtomicU32,
    /// Written and not synced since: closing it would lose an error of write-back.
    is_dirty: AtomicBool,
}

impl Node {
    pub(super) fn new(stat: &super::attributes::Stat, inode: Inode) -> Self {
        Self {
            key: stat.key(),
            kind: stat.attributes.r#type,
            file: OnceLock::new(),
            inode,
            syncs: Arc::default(),
            used: AtomicU32::new(0),
            is_dirty: AtomicBool::new(false),
        }
    }

    /// The file, if it is open for its data.
    pub(super) fn opened(&self) -> Option<&OpenFile> {
        self.file.get()
    }

    /// The file, open for its data: one for all readers and writers.
    pub(super) fn open(&self) -> ceph::Result<&OpenFile> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let file = self.inode.open()?;
        Ok(self.file.get_or_init(|| file))
    }

    /// NFS3ERR_NOTDIR if it is not a directory.
    pub(super) fn demand_directory(&self) -> Outcome<()> {
        if self.kind == Ftype3::Nf3dir { Ok(()) } else { Err(Nfsstat3::Nfs3errNotdir) }
    }

    /// The status for anything that has no data.
    pub(super) fn demand_regular(&self) -> Outcome<()> {
        match self.kind {
            Ftype3::Nf3reg => Ok(()),
            Ftype3::Nf3dir => Err(Nfsstat3::Nfs3errIsdir),
            _ => Err(Nfsstat3::Nfs3errInval),
        }
    }

    pub(super) fn set_dirty(&self, is_dirty: bool) {
        self.is_dirty.store(is_dirty, Ordering::Relaxed);
    }
}

impl Held for Node {
    fn key(&self) -> &FileKey {
        &self.key
    }

    fn is_dirty(&self) -> bool {
        self.is_dirty.load(Ordering::Relaxed)
    }

    fn last_use(&self) -> &AtomicU32 {
        &self.used
    }
}
