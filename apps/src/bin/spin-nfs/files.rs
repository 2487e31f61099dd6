//! Commands for a single file: getattr, cat and put. The file `-` of put is standard input.

use crate::progress::Progress;
use crate::{Opened, print, show, written};
use rustix::fs::OFlags;
use spinrpc_nfs::client::{Error, Files, Nfs, Source};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

const MODE_BITS: u32 = 0o777;

/// Permission bits of a file from standard input, without those of the umask.
const NEW_FILE_MODE: u32 = 0o666;

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

/// A file to put, opened and read before the server is contacted: the file there must not be lost for one that cannot be
/// read, standard input may take long to come, and a server ends connections that are silent for minutes.
pub(crate) struct Local {
    file: File,
    name: String,
    size: u64,
    mode: u32,
}

impl Local {
    /// Reads what cannot be read twice: data lost before the commit are sent again (RFC 1813 section 3.3.21).
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let is_stdin = path == Path::new("-");
        let name = if is_stdin { "standard input".to_owned() } else { path.display().to_string() };
        let failed = |error: io::Error| Error::file(&name, &error);
        // From its present position: what was read before belongs to another program.
        let stdin = || io::stdin().as_fd().try_clone_to_owned().map(File::from);
        let file = if is_stdin { stdin() } else { File::open(path) }.map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        if found.is_dir() {
            return Err(failed(io::Error::other("not a regular file")));
        }
        let file = if ends_as_it_says(&file).map_err(failed)? {
            file
        } else {
            copy(file).map_err(failed)?
        };
        let metadata = file.metadata().map_err(failed)?;
        let of_mode = if found.is_file() && !is_stdin { &found } else { &metadata };
        let (size, mode) = (metadata.len(), of_mode.mode() & MODE_BITS);
        Ok(Self { file, name, size, mode })
    }
}

pub(crate) fn put(nfs: &Nfs, opened: &Opened<'_>, local: &Local) -> Result<(), Error> {
    let (parent, new_name) = nfs.find_parent(&opened.root, &opened.below)?;
    let source = Source { file: &local.file, name: &local.name, size: local.size };
    let mut progress = Progress::start(source.size);
    let place = (&parent.handle, new_name);
    nfs.write_file(&opened.root, place, local.mode, &source, &mut |bytes| progress.add(bytes))
        .map_err(|error| error.at(opened.path))
}

/// Returns whether this is a regular file, at its start, that ends where its length says. Files of procfs have content and
/// no length, those of sysfs are shorter than their length, and pipes have neither.
fn ends_as_it_says(mut file: &File) -> io::Result<bool> {
    let found = file.metadata()?;
    if !found.is_file() || file.stream_position()? != 0 {
        return Ok(false);
    }
    let is_there = |offset| file.read_at(&mut [0], offset).map(|bytes| bytes > 0);
    let is_long_enough = found.len() == 0 || is_there(found.len() - 1)?;
    Ok(is_long_enough && !is_there(found.len())?)
}

/// From the position to the end. The copy has no name, and the mode of any new file.
fn copy(mut from: File) -> io::Result<File> {
    let folder = std::env::temp_dir();
    let failed = |error: io::Error| {
        let shown = folder.display();
        let what = format!(
            "cannot be copied to {shown}: {error}; set TMPDIR to a directory with room for it, whose file system \
             has files without a name (O_TMPFILE)"
        );
        io::Error::new(error.kind(), what)
    };
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(NEW_FILE_MODE).custom_flags(OFlags::TMPFILE.bits() as i32);
    let mut copy = options.open(&folder).map_err(failed)?;
    io::copy(&mut from, &mut copy).map_err(failed)?;
    Ok(copy)
}
