//! The files that are changed, below a root directory.

use crate::host::{Record, Tree};
use rustix::fs::{self, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// The files of a host below its root directory: `/`, or that of a copy; or those in a record, which
/// can only be read.
#[derive(Clone, Debug)]
pub struct Site {
    root: PathBuf,
    record: Option<Record>,
}

impl Site {
    /// Opens the host with this root directory.
    ///
    /// # Errors
    /// The directory does not exist.
    pub fn new(root: &Path) -> io::Result<Self> {
        let root = root.canonicalize()?;
        match root.is_dir() {
            true => Ok(Self { root, record: None }),
            false => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    /// The host of a record, whose paths are those on that host.
    #[must_use]
    pub fn recorded(record: Record) -> Self {
        Self { root: PathBuf::from("/"), record: Some(record) }
    }

    /// Returns whether this is a record, which has only the files that spintune reads.
    #[must_use]
    pub fn is_record(&self) -> bool {
        self.record.is_some()
    }

    /// The tree to read facts from.
    #[must_use]
    pub fn tree(&self) -> Tree {
        match &self.record {
            Some(record) => Tree::record(record.clone()),
            None => Tree::directory(&self.root),
        }
    }

    /// Returns whether this is the host that the process runs on.
    #[must_use]
    pub fn is_this_host(&self) -> bool {
        self.record.is_none() && self.root == Path::new("/")
    }

    /// Absolute path of a file.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
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
    /// set. A record does not say.
    pub(super) fn may_be_set(&self, path: &str) -> bool {
        if self.is_record() {
            return true;
        }
        std::fs::metadata(self.path(path)).is_ok_and(|metadata| !metadata.permissions().readonly())
    }

    /// Sets a value. A file of a copy gets the form that the kernel gives its own file.
    ///
    /// # Errors
    /// Errors of the system; `PermissionDenied` also for a link that leads out of a copy.
    pub fn write(&self, path: &str, value: &str) -> io::Result<()> {
        let text = match self.is_this_host() {
            true => format!("{value}\n"),
            false => as_kernel(&self.text(path)?, value),
        };
        let within = match self.is_this_host() {
            true => ResolveFlags::empty(),
            false => ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
        };
        let mut file = self.open(path, OFlags::WRONLY | OFlags::TRUNC, within)?;
        // A single write: the kernel parses each write as a separate value.
        file.write_all(text.as_bytes())
    }

    fn text(&self, path: &str) -> io::Result<String> {
        if self.is_record() {
            return self.tree().peek(path).ok_or_else(|| io::ErrorKind::NotFound.into());
        }
        let mut text = String::new();
        let file = self.open(path, OFlags::RDONLY, ResolveFlags::empty())?;
        file.take(TEXT_BYTES_MAX).read_to_string(&mut text)?;
        Ok(text)
    }

    /// Opens a regular file. The kernel keeps the path below the root (`within`): the owner of a copy
    /// could replace a file or folder by a link between check and use.
    fn open(&self, path: &str, how: OFlags, within: ResolveFlags) -> io::Result<File> {
        if self.is_record() {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        let root = fs::open(&self.root, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        // O_NONBLOCK keeps a pipe from blocking; the type is checked before any change.
        let how = how | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = fs::openat2(&root, path, how, Mode::empty(), within);
        let file = File::from(file.map_err(|error| match error {
            Errno::XDEV => io::ErrorKind::PermissionDenied.into(),
            error => io::Error::from(error),
        })?);
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Content of a file that had `before`, after `value` was written to it.
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
mod tests {
    use super::*;

    #[test]
    fn a_copy_shows_what_the_kernel_would() {
        assert_eq!(as_kernel("always [madvise] never\n", "always"), "[always] madvise never\n");
        assert_eq!(as_kernel("powersave\n", "performance"), "performance\n");
        assert_eq!(as_kernel("1", "0"), "0");
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
