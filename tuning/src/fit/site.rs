//! The files that are changed, below a root directory.

use crate::host::root::Root;
use crate::host::{Record, Tree};
use rustix::fs::{self, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{self, Path, PathBuf};

/// The files of a host below its root directory: `/`, or that of a copy; or those in a record, which
/// can only be read.
#[derive(Debug)]
pub struct Site {
    /// Path of the root, for messages and scripts.
    path: PathBuf,
    tree: Tree,
}

impl Site {
    /// Opens the host with this root directory, which stays open: what is put in its place later is neither read nor changed.
    ///
    /// # Errors
    /// The directory does not exist. The kernel does not open files below a directory (`openat2`): it is older than Linux 5.6, or
    /// a seccomp filter denies it.
    pub fn new(path: &Path) -> io::Result<Self> {
        let root = Root::checked(path)?;
        // The shell that runs a plan follows the path later. That of `/proc/PID/root` would be `/`.
        let canonical = path.canonicalize().ok().filter(|path| root.is_at(path));
        let path = canonical.map_or_else(|| path::absolute(path), Ok)?;
        Ok(Self { path, tree: Tree::below(root) })
    }

    /// The host of a record, whose paths are those on that host.
    pub fn recorded(record: Record) -> Self {
        Self { path: PathBuf::from("/"), tree: Tree::record(record) }
    }

    /// Returns whether this is a record, which has only the files that spintune reads.
    pub fn is_record(&self) -> bool {
        self.tree.is_record()
    }

    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    pub fn is_this_host(&self) -> bool {
        self.tree.is_this_host()
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.path.join(path)
    }

    fn root(&self) -> io::Result<&Root> {
        self.tree.root().ok_or(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    /// Reads the current value: the first line of a file, or the word in brackets if it offers
    /// several.
    ///
    /// # Errors
    /// Errors of the system; `InvalidData` if the content is not a short line of text.
    pub fn read(&self, path: &str) -> io::Result<String> {
        let text = self.text(path)?;
        let line = text.lines().next().unwrap_or_default().trim();
        let chosen = line.split_once('[').and_then(|(_, rest)| Some(rest.split_once(']')?.0));
        let value = chosen.unwrap_or(line);
        match is_value(value) {
            true => Ok(value.to_owned()),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Returns whether the file is writable: the kernel clears the write bits of what cannot be
    /// set. A record does not say. Files of a copy that only links from its root lead to are left out: the shell that runs
    /// a plan would follow them from the root of this host.
    pub(super) fn may_be_set(&self, path: &str) -> bool {
        let Ok(root) = self.root() else { return true };
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let file = root.file_within(path, OFlags::PATH, within).map(File::from);
        let metadata = file.map_err(io::Error::from).and_then(|file| file.metadata());
        metadata.is_ok_and(|metadata| !metadata.permissions().readonly())
    }

    /// Sets a value. A file of a copy gets the form that the kernel gives its own file.
    ///
    /// # Errors
    /// Errors of the system; `PermissionDenied` also for a file of a copy that is a link, or has other names, which may lie outside of
    /// the copy.
    pub fn write(&self, path: &str, value: &str) -> io::Result<()> {
        let root = self.root()?;
        if root.is_host() {
            return set(&regular(root.file(path, SET)?)?, value);
        }
        let denied = |reason| io::Error::new(io::ErrorKind::PermissionDenied, reason);
        let file = regular(root.file(path, CHANGE).map_err(|error| match error {
            Errno::LOOP => denied("it is a symbolic link"),
            error => error.into(),
        })?)?;
        if is_kernels(&file)? {
            return set(&file, value);
        }
        if file.metadata()?.nlink() > 1 {
            return Err(denied("it has other names"));
        }
        let text = as_kernel(&text_of(&file)?, value);
        file.write_all_at(text.as_bytes(), 0)?;
        file.set_len(text.len() as u64)
    }

    /// Opens a folder of spintune's, which is created if it does not exist; its parent, too.
    pub(super) fn make_folder(&self, path: &str) -> io::Result<File> {
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let mode = Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH;
        let (parent, name) = path.rsplit_once('/').unwrap_or((".", path));
        let root = self.root()?;
        let make = |of: &OwnedFd, name| match fs::mkdirat(of, name, mode) {
            Err(Errno::EXIST) => Ok(()),
            made => made,
        };
        let parent_of = |path| root.file(path, FOLDER);
        let above = match parent_of(parent) {
            Err(Errno::NOENT) => {
                make(&parent_of(".")?, parent)?;
                parent_of(parent)?
            }
            opened => opened?,
        };
        make(&above, name)?;
        let folder = fs::openat(&above, name, how | OFlags::CLOEXEC, Mode::empty())?;
        Ok(File::from(folder))
    }

    /// Opens a file of spintune's, which is not a link.
    pub(super) fn open_own(&self, path: &str) -> io::Result<File> {
        regular(self.root()?.file(path, READ | OFlags::NOFOLLOW)?)
    }

    fn text(&self, path: &str) -> io::Result<String> {
        match self.tree.root() {
            None => self.tree.peek(path).ok_or(io::ErrorKind::NotFound.into()),
            Some(root) => text_of(&regular(root.file(path, READ)?)?),
        }
    }
}

const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);

/// O_NONBLOCK keeps a pipe from blocking; the type is checked before any change.
pub(super) const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
const SET: OFlags =
    OFlags::WRONLY.union(OFlags::TRUNC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
const CHANGE: OFlags =
    OFlags::RDWR.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

pub(super) fn regular(file: OwnedFd) -> io::Result<File> {
    let file = File::from(file);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file")),
    }
}

fn text_of(file: &File) -> io::Result<String> {
    let mut text = String::new();
    file.take(TEXT_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// No file can be created where `/proc` and `/sys` are mounted.
fn is_kernels(file: &File) -> io::Result<bool> {
    const SYSFS_MAGIC: fs::FsWord = 0x6265_6572;
    Ok([SYSFS_MAGIC, fs::PROC_SUPER_MAGIC].contains(&fs::fstatfs(file)?.f_type))
}

fn set(mut file: &File, value: &str) -> io::Result<()> {
    // A single write: the kernel parses each write as a separate value.
    file.write_all(format!("{value}\n").as_bytes())
}

fn as_kernel(before: &str, value: &str) -> String {
    let newline = if before.ends_with('\n') { "\n" } else { "" };
    if !before.contains('[') {
        return format!("{value}{newline}");
    }
    let words = before.split_whitespace().map(|word| {
        let word = word.trim_matches(['[', ']']);
        if word == value { format!("[{word}]") } else { word.to_owned() }
    });
    words.collect::<Vec<_>>().join(" ") + newline
}

/// One short line of plain characters, as all values here are.
pub(super) fn is_value(text: &str) -> bool {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_,.+".contains(letter);
    // A script's `echo` would take `-n` for an option.
    let is_option = text.starts_with('-');
    (1..=VALUE_BYTES_MAX).contains(&text.len()) && !is_option && text.chars().all(is_plain)
}

/// Enough for a list of every second CPU on the largest hosts.
const VALUE_BYTES_MAX: usize = 1 << 15;
const TEXT_BYTES_MAX: u64 = 1 << 16;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_shows_what_the_kernel_would() {
        assert_eq!(as_kernel("always [madvise] never\n", "always"), "[always] madvise never\n");
        assert_eq!(as_kernel("powersave\n", "performance"), "performance\n");
        assert_eq!(as_kernel("1", "0"), "0");
    }

    #[test]
    fn files_of_the_kernel_are_told_from_those_of_a_copy() {
        let file = |path| File::open(path).unwrap();
        assert!(is_kernels(&file("/proc/version")).unwrap());
        assert!(is_kernels(&file("/sys/devices/system/cpu/online")).unwrap());
        assert!(!is_kernels(&file(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))).unwrap());
    }

    #[test]
    fn values_are_short_and_plain() {
        assert!(["0", "0-3,8", "performance", "defer+madvise"].into_iter().all(is_value));
        assert!(
            ["", "a b", "$(x)", "'", "\n", "a\n", "-n"].into_iter().all(|text| !is_value(text))
        );
        assert!(!is_value(&"1".repeat(VALUE_BYTES_MAX + 1)));
    }
}
