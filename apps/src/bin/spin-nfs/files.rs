//! Commands for a single file: getattr, cat and put.

use crate::progress::Progress;
use crate::{Opened, print, show, written};
use spinrpc_nfs::client::{Error, Nfs, Source};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Permission bits copied to a new file.
const MODE_BITS: u32 = 0o777;

pub(crate) fn getattr(nfs: &Nfs, opened: &Opened<'_>, json: bool) -> Result<(), Error> {
    let found = nfs.find(&opened.root, &opened.below, false)?;
    let shown = if json { show::json_file } else { show::file };
    print(&shown(opened.path, &found))
}

pub(crate) fn cat(nfs: &Nfs, opened: &Opened<'_>) -> Result<(), Error> {
    let found = nfs.find(&opened.root, &opened.below, true)?;
    let mut progress = Progress::start(found.attributes.size);
    let mut stdout = io::stdout().lock();
    let mut sink = |bytes: &[u8]| {
        progress.add(bytes.len() as u64);
        written(stdout.write_all(bytes))
    };
    nfs.read_file(&opened.root, &found, &mut sink).map_err(|error| error.at(opened.path))?;
    written(stdout.flush())
}

pub(crate) fn put(nfs: &Nfs, opened: &Opened<'_>, path: &Path) -> Result<(), Error> {
    let name = path.display().to_string();
    let failed = |source| Error::File { subject: name.clone(), source };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::other("not a regular file")));
    }
    let (parent, new_name) = nfs.find_parent(&opened.root, &opened.below)?;
    let source = Source { file: &file, name: &name, size: metadata.len() };
    let mut progress = Progress::start(source.size);
    let place = (&parent.handle, new_name);
    let mode = metadata.mode() & MODE_BITS;
    nfs.write_file(&opened.root, place, mode, &source, &mut |bytes| progress.add(bytes))
        .map_err(|error| error.at(opened.path))
}
