use crate::export_spec::{ExportSpec, What};
use crate::failure::{Failure, Failures};
use crate::names::Names;
use spinrpc::sys::journal::event;
use spinrpc_nfs::server::exports::{Client, Export, Exports, NamedHosts};
use spinrpc_nfs::server::file_system::FileSystem;
use spinrpc_nfs::server::local_fs::{Directory, DirectoryOptions, Ways, open_files_affordable};
use spinrpc_nfs::server::memfs::{Memory, MemoryOptions};
use std::path::Path;
use std::sync::Arc;

const MEMORY_BYTES_MAX: u64 = 1 << 30;
const MEMORY_FILES_MAX: u64 = 1_000_000;
/// Every admitted user may create files there, but only remove their own.
const MEMORY_ROOT_MODE: u32 = 0o1777;

#[derive(Debug, Default)]
pub(crate) struct Opened {
    pub(crate) exports: Vec<Export>,
    /// In the same order.
    pub(crate) specs: Vec<ExportSpec>,
}

impl Opened {
    pub(crate) fn clients(&self) -> impl Iterator<Item = &Client> {
        self.exports.iter().flat_map(|export| &export.options.clients)
    }

    pub(crate) fn named(&self, names: &Names) -> Result<Exports, Failure> {
        let named = |export: &Export| {
            let named = names.hosts(&export.options.clients);
            Export { named, ..export.clone() }
        };
        let all = self.exports.iter().map(named).collect();
        Exports::new(all).map_err(|error| Failure::Usage(error.to_string()))
    }

    /// The back end of an export that stays exported: it stays open.
    fn back_end(&self, spec: &ExportSpec, id: u32) -> Result<Option<Arc<dyn FileSystem>>, Failure> {
        let all = self.specs.iter().zip(&self.exports);
        let found = all.into_iter().find(|(old, export)| old.what == spec.what && export.id == id);
        let Some((old, export)) = found else { return Ok(None) };
        if matches!(spec.what, What::Memory(_))
            && memory_options(old, id) != memory_options(spec, id)
        {
            return Err(Failure::Usage(format!(
                "{}: bytes, files and anon of a tree in memory only change with a restart, which \
                 empties it",
                spec.what
            )));
        }
        Ok(Some(Arc::clone(&export.file_system)))
    }
}

/// Opens everything in `specs` that is not open `before`. Each directory has this many threads, and directories share the
/// process's descriptors.
pub(crate) fn open(
    specs: &[ExportSpec],
    threads: usize,
    before: &Opened,
) -> Result<Opened, Vec<Failure>> {
    let directories = specs.iter().filter(|spec| matches!(spec.what, What::Directory(_))).count();
    let open_files_max = open_files_of_each(directories, open_files_affordable());
    let options = DirectoryOptions { threads, open_files_max, ..DirectoryOptions::default() };
    let mut failures = Failures::default();
    let mut exports: Vec<Export> =
        specs.iter().filter_map(|spec| failures.keep(export(spec, &options, before))).collect();
    let opened = Opened { exports: exports.clone(), specs: specs.to_vec() };
    let conflicts = Exports::problems(&mut exports);
    failures.add_usage(conflicts.iter().map(ToString::to_string));
    failures.or(Some(opened))
}

fn open_files_of_each(directories: usize, affordable: usize) -> usize {
    DirectoryOptions::default().open_files_max.min(affordable / directories.max(1))
}

fn export(
    spec: &ExportSpec,
    options: &DirectoryOptions,
    before: &Opened,
) -> Result<Export, Failure> {
    let path = spec.path().map_err(Failure::Usage)?;
    let id = spec.id().map_err(Failure::Usage)?;
    let file_system = match (before.back_end(spec, id)?, &spec.what) {
        (Some(open), _) => open,
        (None, What::Directory(directory)) => open_directory(directory, id, options)?,
        (None, What::Cephfs(path)) => cephfs(path, id, options.threads)?,
        (None, What::Memory(_)) => memory(spec, id)?,
    };
    let options = spec.settings.options.clone();
    Ok(Export { id, path, file_system, options, named: NamedHosts::default() })
}

fn open_directory(
    path: &Path,
    id: u32,
    options: &DirectoryOptions,
) -> Result<Arc<dyn FileSystem>, Failure> {
    let options = DirectoryOptions { fsid: id.into(), ..options.clone() };
    let opened = Directory::open(path, &options);
    let directory = opened.map_err(|error| Failure::Failed(error.to_string()))?;
    warn(path, directory.ways());
    Ok(directory)
}

fn warn(path: &Path, ways: &Ways) {
    let path = path.display();
    if let Some(why) = &ways.ring_denied {
        event!(WARN, "{path}: uses threads instead of io_uring, which is slower: {why}");
    }
    if !ways.acts_as_callers {
        event!(
            WARN,
            "{path}: all clients act as the user of this process; only root can act as its \
               callers"
        );
    }
}

#[cfg(feature = "cephfs")]
fn cephfs(path: &str, id: u32, threads: usize) -> Result<Arc<dyn FileSystem>, Failure> {
    use spinrpc_nfs::server::cephfs::{Cephfs, CephfsOptions};
    let options = CephfsOptions { fsid: id.into(), threads, ..CephfsOptions::default() };
    let opened = Cephfs::open(path, &options);
    Ok(opened.map_err(|error| Failure::Failed(format!("cephfs {path}: {error}")))?)
}

#[cfg(not(feature = "cephfs"))]
fn cephfs(path: &str, _: u32, _: usize) -> Result<Arc<dyn FileSystem>, Failure> {
    Err(Failure::Usage(format!(
        "cephfs {path}: this spin-nfsd was built without CephFS; build it with --features cephfs"
    )))
}

fn memory(spec: &ExportSpec, id: u32) -> Result<Arc<dyn FileSystem>, Failure> {
    let made = Memory::new(&memory_options(spec, id));
    Ok(made.map_err(|error| Failure::failed(&spec.what, error))?)
}

fn memory_options(spec: &ExportSpec, id: u32) -> MemoryOptions {
    let (uid, gid) = spec.settings.options.anonymous;
    MemoryOptions {
        fsid: id.into(),
        bytes_max: spec.settings.bytes_max.unwrap_or(MEMORY_BYTES_MAX),
        files_max: spec.settings.files_max.unwrap_or(MEMORY_FILES_MAX),
        uid,
        gid,
        mode: MEMORY_ROOT_MODE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_share_the_files_that_can_be_open() {
        assert_eq!(
            [0, 1, 2, 3].map(|count| open_files_of_each(count, 6000)),
            [4096, 4096, 3000, 2000]
        );
    }
}
