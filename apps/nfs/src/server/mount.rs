//! MOUNT, version 3 (RFC 1813 appendix I): gives admitted clients the handle of an export.
//!
//! [`Registry`] answers calls of any transport; `fabric` is MOUNT over RDMA and shared memory, on
//! the same engine as NFS, `tcp` MOUNT for ordinary clients. A client is identified only by its
//! address: the credential of a call proves nothing more (RFC 2623 section 2.3).

mod fabric;
mod tcp;

pub use fabric::MountService;

use crate::mount3::{
    DUMP, Dirpath, EXPORT, Exportnode, Groupnode, MNT, Mountbody, Mounted, Mountstat3, NULL, UMNT,
    UMNTALL,
};
use crate::protocol::FileHandle;
use crate::server::exports::{Client, Export, ExportTable, Exports, Flavor, Peer};
use spinrpc::sync::lock;
use spinrpc::sys::journal::event;
use spinrpc::{AcceptStatus, DecodeError, Decoder, Procedure};
use spinrpc_xdr::{Decode, Encode, List, Opaque, bytes_of, to_bytes};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Maximum length of the list of mounts. It is only informative, and never quite accurate (RFC 1813
/// section 5.2.2): the oldest entry is dropped.
pub const MOUNTS_MAX: usize = 256;

/// The exports of a server, and the clients that mounted them.
pub struct Registry {
    table: Arc<ExportTable>,
    root_handle: Box<dyn Fn(&Export) -> FileHandle + Send + Sync>,
    mounts: Mutex<VecDeque<MountEntry>>,
    refused: AtomicU64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct MountEntry {
    host: String,
    path: String,
}

impl Registry {
    /// A registry of the exports in `table`, with root handles from `root_handle`.
    pub fn new(
        table: Arc<ExportTable>,
        root_handle: impl Fn(&Export) -> FileHandle + Send + Sync + 'static,
    ) -> Self {
        let (root_handle, mounts) = (Box::new(root_handle), Mutex::default());
        Self { table, root_handle, mounts, refused: AtomicU64::new(0) }
    }

    /// Number of rejected requests for the handle of an export (MNT3ERR_ACCES), and of peers that
    /// [`Registry::admits`] rejected. Callable from any thread.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns whether any export names the peer as a client, so that it may connect; counts it as
    /// refused otherwise. Callable from any thread.
    #[must_use]
    pub fn admits(&self, peer: &Peer) -> bool {
        let is_listed = self.table.current().iter().any(|export| export.has_client(peer));
        self.refused.fetch_add(u64::from(!is_listed), Ordering::Relaxed);
        is_listed
    }

    fn answer(
        &self,
        peer: &Peer,
        procedure: Procedure,
        args: Decoder<'_>,
    ) -> Result<Vec<u8>, AcceptStatus> {
        let garbage = |_: DecodeError| AcceptStatus::GarbageArgs;
        match procedure {
            MNT => Ok(self.mount(peer, &path_of(args).map_err(garbage)?)),
            UMNT => {
                self.unmount(peer, &path_of(args).map_err(garbage)?);
                Ok(Vec::new())
            }
            NULL | DUMP | UMNTALL | EXPORT => {
                args.finish().map_err(garbage)?;
                Ok(self.answer_plain(peer, procedure))
            }
            _ => Err(AcceptStatus::ProcUnavail),
        }
    }

    fn answer_plain(&self, peer: &Peer, procedure: Procedure) -> Vec<u8> {
        match procedure {
            DUMP => {
                let mounts = lock(&self.mounts);
                let bodies: Vec<Mountbody<'_>> = mounts.iter().map(mount_body).collect();
                to_bytes(&List::new(&bodies))
            }
            EXPORT => list_of(&self.table.current()),
            UMNTALL => {
                let host = peer.to_string();
                lock(&self.mounts).retain(|entry| entry.host != host);
                event!(INFO, "{peer} unmounted everything");
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn mount(&self, peer: &Peer, path: &str) -> Vec<u8> {
        // Paths come from clients: quoted, with control characters escaped.
        let refused = |why| event!(INFO, "rejected a mount of {path:?} by {peer}: {why}");
        let exports = self.table.current();
        let Some(export) = exports.by_path(path) else {
            refused("there is no such export");
            return to_bytes(&Mountstat3::Mnt3errNoent);
        };
        if !export.has_client(peer) {
            refused("it is not a client of this export");
            self.refused.fetch_add(1, Ordering::Relaxed);
            return to_bytes(&Mountstat3::Mnt3errAcces);
        }
        self.note(MountEntry { host: peer.to_string(), path: export.path.clone() });
        event!(INFO, "{peer} mounted {:?}", export.path);
        let flavors = export.options.flavors.iter().copied().map(Flavor::to_wire).collect();
        let mounted = Mounted { handle: (self.root_handle)(export), flavors };
        bytes_of(|to| {
            Mountstat3::Mnt3Ok.encode(to);
            mounted.encode(to);
        })
    }

    fn note(&self, entry: MountEntry) {
        let mut mounts = lock(&self.mounts);
        mounts.retain(|other| *other != entry);
        if mounts.len() == MOUNTS_MAX {
            mounts.pop_front();
        }
        mounts.push_back(entry);
    }

    fn unmount(&self, peer: &Peer, path: &str) {
        if let Some(export) = self.table.current().by_path(path) {
            event!(INFO, "{peer} unmounted {:?}", export.path);
            let entry = MountEntry { host: peer.to_string(), path: export.path.clone() };
            lock(&self.mounts).retain(|other| *other != entry);
        }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("table", &self.table).finish_non_exhaustive()
    }
}

/// A path that is not UTF-8 names no export, because their paths are text.
fn path_of(mut args: Decoder<'_>) -> Result<String, DecodeError> {
    let path = String::from_utf8_lossy(&Dirpath::decode(&mut args)?).into_owned();
    args.finish()?;
    Ok(path)
}

fn mount_body(entry: &MountEntry) -> Mountbody<'_> {
    Mountbody { ml_hostname: cut(&entry.host), ml_directory: cut(&entry.path) }
}

/// Host names are only informative, and paths of exports are not longer.
fn cut<const MAX: u32>(text: &str) -> Opaque<'_, MAX> {
    let bytes = text.as_bytes();
    Opaque::new(bytes.get(..MAX as usize).unwrap_or(bytes)).unwrap_or_default()
}

fn list_of(exports: &Exports) -> Vec<u8> {
    // An empty group list would mean everyone.
    let shown = exports.iter().filter(|export| !export.options.clients.is_empty());
    let shown: Vec<&Export> = shown.collect();
    let texts: Vec<Vec<String>> = shown.iter().map(|export| clients_of(export)).collect();
    let group = |text| Groupnode { gr_name: cut(text) };
    let groups: Vec<Vec<Groupnode<'_>>> =
        texts.iter().map(|texts| texts.iter().map(String::as_str).map(group).collect()).collect();
    let nodes: Vec<Exportnode<'_>> = shown
        .iter()
        .zip(&groups)
        .map(|(export, groups)| Exportnode {
            ex_dir: cut(&export.path),
            ex_groups: List::new(groups),
        })
        .collect();
    to_bytes(&List::new(&nodes))
}

/// The clients of an export, each as a group; empty if it is for all hosts.
fn clients_of(export: &Export) -> Vec<String> {
    let clients = &export.options.clients;
    match clients.contains(&Client::Any) {
        true => Vec::new(),
        false => clients.iter().map(Client::to_string).collect(),
    }
}

#[cfg(test)]
mod tests;
