//! A real file as storage. Used by `main`.

use crate::exercise::Storage;
use rustix::fs::{Advice, OFlags, fadvise};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

pub(crate) struct RealFile {
    path: PathBuf,
    is_direct: bool,
    file: File,
}

impl RealFile {
    /// Creates or truncates the file.
    pub(crate) fn create(path: &Path, is_direct: bool) -> io::Result<Self> {
        let mut options = options(is_direct);
        let file = options.create(true).truncate(true).open(path)?;
        Ok(Self { path: path.to_owned(), is_direct, file })
    }
}

fn options(is_direct: bool) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    if is_direct {
        options.custom_flags(OFlags::DIRECT.bits() as i32);
    }
    options
}

impl Storage for RealFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read(&mut self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < bytes.len() {
            match self.file.read_at(&mut bytes[done..], offset + done as u64)? {
                0 => break,
                count => done += count,
            }
        }
        Ok(done)
    }

    fn write(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn resize(&mut self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// Removes the written data from this host's caches, so that the next read asks the server.
    fn forget(&mut self) -> io::Result<()> {
        self.file.sync_data()?;
        Ok(fadvise(&self.file, 0, None, Advice::DontNeed)?)
    }

    fn reopen(&mut self) -> io::Result<()> {
        self.file = options(self.is_direct).open(&self.path)?;
        Ok(())
    }
}
