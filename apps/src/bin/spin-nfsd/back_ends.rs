//! Opens the exports.

use crate::export_spec::{ExportSpec, What};
use crate::failure::Failure;
use spinrpc_apps::nfs::server::directory::{
    Directory, DirectoryOptions, Ways, open_files_affordable,
};
use spinrpc_apps::nfs::server::exports::{Export, Exports};
use spinrpc_apps::nfs::server::file_system::FileSystem;
use spinrpc_apps::nfs::server::memory::{Memory, MemoryOptions};
use std::path::Path;
use std::sync::Arc;
use tracing::warn;

/// Default size limit of an in-memory tree.
const MEMORY_BYTES_MAX: u64 = 1 << 30;
const MEMORY_FILES_MAX: u64 = 1_000_000;
/// Root mode of an in-memory tree: every admitted user may create files there, but only remove
/// their own.
const MEMORY_ROOT_MODE: u32 = 0o1777;

/// Opens everything in `specs`. Each directory has this many threads, and directories share the
/// process's descriptors.
pub(crate) fn open(specs: &[ExportSpec], threads: usize) -> Result<Exports, Failure> {
    let directories = specs.iter().filter(|spec| matches!(spec.what, What::Directory(_))).count();
    let open_files_max = open_files_of_each(directories, open_files_affordable());
    let options = DirectoryOptions { threads, open_files_max, ..DirectoryOptions::default() };
    let all = specs.iter().map(|spec| export(spec, &options)).collect::<Result<_, _>>()?;
    Exports::new(all).map_err(|error| Failure::Usage(error.to_string()))
}

fn open_files_of_each(directories: usize, affordable: usize) -> usize {
    DirectoryOptions::default().open_files_max.min(affordable / directories.max(1))
}

fn export(spec: &ExportSpec, options: &DirectoryOptions) -> Result<Export, Failure> {
    let path = spec.path().map_err(Failure::Usage)?;
    let id = spec.id().map_err(Failure::Usage)?;
    let file_system = match &spec.what {
        What::Directory(directory) => open_directory(directory, id, options)?,
        What::Memory(_) => memory(spec, id)?,
    };
    Ok(Export { id, path, file_system, options: spec.settings.options.clone() })
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

/// Warns about fallbacks, with the reason.
fn warn(path: &Path, ways: &Ways) {
    let path = path.display();
    if let Some(why) = &ways.ring_denied {
        warn!("{path}: uses threads instead of io_uring, which is slower: {why}");
    }
    if !ways.acts_as_callers {
        warn!(
            "{path}: all clients act as the user of this process; only root can act as its \
               callers"
        );
    }
}

fn memory(spec: &ExportSpec, id: u32) -> Result<Arc<dyn FileSystem>, Failure> {
    let (uid, gid) = spec.settings.options.anonymous;
    let options = MemoryOptions {
        fsid: id.into(),
        bytes_max: spec.settings.bytes_max.unwrap_or(MEMORY_BYTES_MAX),
        files_max: spec.settings.files_max.unwrap_or(MEMORY_FILES_MAX),
        uid,
        gid,
        mode: MEMORY_ROOT_MODE,
    };
    Ok(Memory::new(&options).map_err(|error| Failure::failed(&spec.what, error))?)
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
