//! State shared by all cores and threads of a server: exports, the seal of handles, limits; and the
//! resolution of a call's handle and credential to a file and a user.

use super::exports::{Caller, Claim, Export, ExportTable, Exports, Peer, Refusal};
use super::file_system::{Change, FileKey, FileSystem, Outcome};
use super::handle::Seal;
use crate::protocol::{Fattr3, FileHandle, NfsFh3, Nfsstat3, Writeverf3};
use spinrpc::CoreContext;
use std::sync::Arc;

/// Limits of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// Threads for blocking operations; only started if a back end has any.
    pub threads: usize,
    /// Maximum number of calls that wait for one of them; further ones are answered
    /// NFS3ERR_JUKEBOX.
    pub queue_max: usize,
    /// Maximum bytes of one READ (`rtmax` of FSINFO); not more than `rpc.max_read_bytes`.
    pub read_bytes_max: u32,
    /// Maximum bytes of one WRITE (`wtmax` of FSINFO); not more than `rpc.max_write_bytes`.
    pub write_bytes_max: u32,
    /// Maximum bytes of the results of READDIR and READDIRPLUS (`dtpref` of FSINFO).
    pub list_bytes_max: u32,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            threads: 4,
            queue_max: 1024,
            read_bytes_max: 1 << 20,
            write_bytes_max: 1 << 20,
            list_bytes_max: 64 << 10,
        }
    }
}

#[derive(Debug)]
pub(super) struct Site {
    pub(super) table: Arc<ExportTable>,
    pub(super) seal: Seal,
    pub(super) options: ServerOptions,
    /// Differs between processes.
    pub(super) instance: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Visit<'a> {
    pub(super) export: &'a Export,
    pub(super) file: FileKey,
    pub(super) caller: Caller,
}

impl Visit<'_> {
    pub(super) fn by<'a, W>(&'a self, wcc: &'a mut W) -> Change<'a, W> {
        Change { caller: &self.caller, wcc }
    }
}

impl Site {
    /// Write verifier, which changes when unstable data of an export may be lost: in another
    /// process, and when its back end detects a loss (RFC 1813 section 3.3.7).
    pub(super) fn verifier(&self, file_system: &dyn FileSystem) -> Writeverf3 {
        self.instance.wrapping_add(file_system.losses()).to_be_bytes()
    }

    pub(super) fn enter<'a>(
        &self,
        exports: &'a Exports,
        handle: &[u8],
        (peer, claim): (&Peer, Claim<'_>),
    ) -> Result<Visit<'a>, Refusal> {
        let opened = self.seal.open(handle)?;
        let export = exports.by_id(opened.export()).ok_or(Nfsstat3::Nfs3errStale)?;
        let file = opened.below(&export.file_system.root())?;
        let caller = export.admit(peer, claim)?;
        Ok(Visit { export, file, caller })
    }

    /// The root of an export for a client that does not use Kerberos yet, as the anonymous user. FSINFO may be answered there:
    /// clients call it at a mount, where the user has no ticket perhaps (RFC 2623 section 2.3.2).
    pub(super) fn enter_root<'a>(
        &self,
        exports: &'a Exports,
        handle: &[u8],
        peer: &Peer,
    ) -> Option<Visit<'a>> {
        let opened = self.seal.open(handle).ok()?;
        let export = exports.by_id(opened.export())?;
        let root = export.file_system.root();
        let file = opened.below(&root).ok()?;
        let is_root = export.options.accepts_kerberos() && file == root;
        let caller = export.anonymous();
        (is_root && export.has_client(peer)).then_some(Visit { export, file, caller })
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RequestContext<'a> {
    pub(super) site: &'a Site,
    pub(super) visit: Visit<'a>,
    /// Core whose memory replies may use.
    pub(super) core: &'a CoreContext,
}

impl RequestContext<'_> {
    pub(super) fn handle(&self, file: &FileKey) -> FileHandle {
        let export = self.visit.export;
        self.site.seal.handle(export.id, &export.file_system.root(), file)
    }

    /// The file of a second handle, which must be in the same export.
    pub(super) fn second(&self, handle: NfsFh3<'_>) -> Outcome<FileKey> {
        let opened = self.site.seal.open(&handle.data)?;
        if opened.export() != self.visit.export.id {
            return Err(Nfsstat3::Nfs3errXdev);
        }
        opened.below(&self.visit.export.file_system.root())
    }

    pub(super) fn file_system(&self) -> &dyn FileSystem {
        &*self.visit.export.file_system
    }

    pub(super) fn attributes(&self) -> Outcome<Fattr3> {
        self.file_system().attributes(&self.visit.file)
    }
}
