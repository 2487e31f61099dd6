//! Files of captures.

use rustix::fs::{FileType, Stat};
use rustix::fs::{Mode, OFlags, fchmod, fstat, ftruncate, open};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::fs::File;
use std::io;
use std::path::Path;

const OWNER_ONLY: Mode = Mode::RUSR.union(Mode::WUSR);

pub(super) fn create(path: &Path) -> io::Result<File> {
    // A pipe does not block, and nothing is cut off before it is known to be ours.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = open(path, flags | OFlags::CLOEXEC | OFlags::NOCTTY, OWNER_ONLY);
    let file = file.map_err(|error| match error {
        Errno::LOOP => refused("it is a symbolic link"),
        Errno::NXIO => refused("it is not a regular file"),
        error => error.into(),
    })?;
    check(&fstat(&file)?)?;
    fchmod(&file, OWNER_ONLY)?;
    ftruncate(&file, 0)?;
    Ok(file.into())
}

fn check(stat: &Stat) -> io::Result<()> {
    let wrong = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile if stat.st_uid != geteuid().as_raw() => "it belongs to another user",
        FileType::RegularFile if stat.st_nlink > 1 => "it has several names",
        FileType::RegularFile => return Ok(()),
        _ => "it is not a regular file",
    };
    Err(refused(wrong))
}

fn refused(why: &str) -> io::Error {
    let text = format!("{why}, and a capture has the data of all calls: name a new file");
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}
