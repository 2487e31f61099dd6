//! MOUNT, version 3 (RFC 1813 appendix I): gives admitted clients the handle of an export.
//!
//! [`Registry`] answers calls of any transport; `fabric` is MOUNT over RDMA and shared memory, on
//! the same engine as NFS, `tcp` MOUNT for ordinary clients. A client is identified only by
//! its address: the credential of a call proves nothing more (RFC 2623 section 2.3). Called by
//! `spin-nfsd`.

mod fabric;
mod tcp;

pub use fabric::MountService;

use crate::mount3::{
    DUMP, Dirpath, EXPORT, Exportnode, Groupnode, MNT, Mountbody, Mounted, Mountstat3, NULL, UMNT,
    UMNTALL,
};
use crate::protocol::FileHandle;
use crate::server::exports::{Client, Export, ExportTable, Exports, Flavor, Peer};
use crate::server::journal::{Event, Journal};
use spinrpc::sync::lock;
use spinrpc::{AcceptStatus, DecodeError, Decoder, Encoder, Procedure};
use spinrpc_xdr::{Decode, Encode, List, Opaque};
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
    journal: Journal,
    mounts: Mutex<VecDeque<MountEntry>>,
    refused: AtomicU64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct MountEntry {
    host: String,
    path: String,
}

impl Registry {
    /// A registry of the exports in `table`, with root handles from `root_handle`. Logs to `journal`.
    pub fn new(
        table: Arc<ExportTable>,
        root_handle: impl Fn(&Export) -> FileHandle + Send + Sync + 'static,
        journal: Journal,
    ) -> Self {
        let (root_handle, mounts) = (Box::new(root_handle), Mutex::default());
        Self { table, root_handle, journal, mounts, refused: AtomicU64::new(0) }
    }

    /// Number of rejected requests for the handle of an export (MNT3ERR_ACCES). Callable from any
    /// thread.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns whether any export names the peer as a client.
    fn has_client(&self, peer: &Peer) -> bool {
        self.table.current().iter().any(|export| export.has_client(peer))
    }

    /// The answer to a call of `peer`, or the RPC error for a malformed call.
    fn answer(
        &self,
        peer: &Peer,
        procedure: Procedure,
        args: Decoder<'_>,
    ) -> Result<Answer, AcceptStatus> {
        let garbage = |_: DecodeError| AcceptStatus::GarbageArgs;
        match procedure {
            MNT | UMNT => {
                let path = path_of(args).map_err(garbage)?;
                Ok(if procedure == MNT {
                    self.mount(peer, &path)
                } else {
                    self.unmount(peer, &path)
                })
            }
            NULL | DUMP | UMNTALL | EXPORT => {
                args.finish().map_err(garbage)?;
                Ok(self.answer_plain(peer, procedure))
            }
            _ => Err(AcceptStatus::ProcUnavail),
        }
    }

    /// Handles the procedures without arguments.
    fn answer_plain(&self, peer: &Peer, procedure: Procedure) -> Answer {
        match procedure {
            DUMP => Answer::Mounts(lock(&self.mounts).iter().cloned().collect()),
            EXPORT => Answer::Exports(self.table.current()),
            UMNTALL => {
                let host = peer.to_string();
                lock(&self.mounts).retain(|entry| entry.host != host);
                self.journal.log(|| Event::UnmountedAll(peer.clone()));
                Answer::Nothing
            }
            _ => Answer::Nothing,
        }
    }

    fn mount(&self, peer: &Peer, path: &str) -> Answer {
        let refused = |why| self.journal.log(|| Event::NotMounted(peer.clone(), path.into(), why));
        let exports = self.table.current();
        let Some(export) = exports.by_path(path) else {
            refused("there is no such export");
            return Answer::NotMounted(Mountstat3::Mnt3errNoent);
        };
        if !export.has_client(peer) {
            refused("it is not a client of this export");
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Answer::NotMounted(Mountstat3::Mnt3errAcces);
        }
        self.note(MountEntry { host: peer.to_string(), path: export.path.clone() });
        self.journal.log(|| Event::Mounted(peer.clone(), export.path.clone()));
        let flavors = export.options.flavors.iter().copied().map(Flavor::to_wire).collect();
        Answer::Mounted(Mounted { handle: (self.root_handle)(export), flavors })
    }

    fn note(&self, entry: MountEntry) {
        let mut mounts = lock(&self.mounts);
        mounts.retain(|other| *other != entry);
        if mounts.len() == MOUNTS_MAX {
            mounts.pop_front();
        }
        mounts.push_back(entry);
    }

    fn unmount(&self, peer: &Peer, path: &str) -> Answer {
        if let Some(export) = self.table.current().by_path(path) {
            self.journal.log(|| Event::Unmounted(peer.clone(), export.path.clone()));
            let entry = MountEntry { host: peer.to_string(), path: export.path.clone() };
            lock(&self.mounts).retain(|other| *other != entry);
        }
        Answer::Nothing
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

/// The results of a call.
#[derive(Debug)]
enum Answer {
    Nothing,
    Mounted(Mounted),
    NotMounted(Mountstat3),
    Mounts(Vec<MountEntry>),
    Exports(Arc<Exports>),
}

impl Answer {
    fn encode(&self, to: &mut Encoder<'_>) {
        match self {
            Self::Nothing => {}
            Self::Mounted(mounted) => {
                Mountstat3::Mnt3Ok.encode(to);
                mounted.encode(to);
            }
            Self::NotMounted(status) => status.encode(to),
            Self::Mounts(mounts) => {
                let bodies: Vec<Mountbody<'_>> = mounts.iter().map(mount_body).collect();
                List::new(&bodies).encode(to);
            }
            Self::Exports(exports) => encode_exports(exports, to),
        }
    }
}

fn mount_body(entry: &MountEntry) -> Mountbody<'_> {
    Mountbody { ml_hostname: cut(&entry.host), ml_directory: cut(&entry.path) }
}

/// Truncates a text to its type's limit: host names are only informative, and paths of exports are
/// not longer.
fn cut<const MAX: u32>(text: &str) -> Opaque<'_, MAX> {
    let bytes = text.as_bytes();
    Opaque::new(bytes.get(..MAX as usize).unwrap_or(bytes)).unwrap_or_default()
}

/// Hides an export without clients: an empty group list would mean everyone.
fn has_clients(export: &&Export) -> bool {
    !export.options.clients.is_empty()
}

fn encode_exports(exports: &Exports, to: &mut Encoder<'_>) {
    let shown: Vec<&Export> = exports.iter().filter(has_clients).collect();
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
    List::new(&nodes).encode(to);
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
