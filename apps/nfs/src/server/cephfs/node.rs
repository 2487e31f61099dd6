//! A file that is held: found once, then queried, read and written without another lookup.

use crate::protocol::{Ftype3, Nfsstat3};
use crate::server::file_system::{FileKey, Outcome};
use crate::server::nodes::{Held, HeldState};
use crate::server::open_syncs::OpenSyncs;
use crate::sys::ceph::{self, Inode, OpenFile};
use std::sync::{Arc, OnceLock};

pub(super) struct Node {
    key: FileKey,
    pub(super) kind: Ftype3,
    /// Open for reading. While a client of Ceph has a file open for writing, no other may cache it or its attributes; so
    /// files that are only read are not. Closed before `inode`.
    reading: OnceLock<OpenFile>,
    writing: OnceLock<OpenFile>,
    pub(super) inode: Inode,
    pub(super) syncs: Arc<OpenSyncs>,
    state: HeldState,
}

impl Node {
    pub(super) fn new(stat: &super::attributes::Stat, inode: Inode) -> Self {
        Self {
            key: stat.key(),
            kind: stat.attributes.r#type,
            reading: OnceLock::new(),
            writing: OnceLock::new(),
            inode,
            syncs: Arc::default(),
            state: HeldState::default(),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.opened().is_some()
    }

    fn opened(&self) -> Option<&OpenFile> {
        self.writing.get().or_else(|| self.reading.get())
    }

    pub(super) fn open_to_read(&self) -> ceph::Result<&OpenFile> {
        self.opened().map_or_else(|| once(&self.reading, || self.inode.open_to_read()), Ok)
    }

    pub(super) fn open_to_write(&self) -> ceph::Result<&OpenFile> {
        once(&self.writing, || self.inode.open_to_write())
    }

    pub(super) fn demand_regular(&self) -> Outcome<()> {
        match self.kind {
            Ftype3::Nf3reg => Ok(()),
            Ftype3::Nf3dir => Err(Nfsstat3::Nfs3errIsdir),
            _ => Err(Nfsstat3::Nfs3errInval),
        }
    }
}

/// What is open, or opened now. If two threads open it, one of them closes its own again.
fn once(
    file: &OnceLock<OpenFile>,
    open: impl FnOnce() -> ceph::Result<OpenFile>,
) -> ceph::Result<&OpenFile> {
    if let Some(file) = file.get() {
        return Ok(file);
    }
    let opened = open()?;
    Ok(file.get_or_init(|| opened))
}

impl Held for Node {
    fn key(&self) -> &FileKey {
        &self.key
    }

    fn state(&self) -> &HeldState {
        &self.state
    }

    fn is_open_to_write(&self) -> bool {
        self.writing.get().is_some()
    }
}
