//! The files that are changed.

use crate::host::Tree;
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// The files of this host, below `/`, or below a directory that stands for it in tests.
#[derive(Debug)]
pub struct Site {
    root: PathBuf,
}

impl Site {
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// This host.
    pub fn host() -> Self {
        Self::new(Path::new("/"))
    }

    pub fn tree(&self) -> Tree {
        Tree::below(&self.root)
    }

    pub fn is_this_host(&self) -> bool {
        self.root == Path::new("/")
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// Reads the current value, as [`value_in`] finds it.
    ///
    /// # Errors
    /// Errors of the system; `InvalidData` if the content is not a short line of text.
    pub fn read(&self, path: &str) -> io::Result<String> {
        let mut text = String::new();
        self.open(path, OFlags::RDONLY)?.take(TEXT_BYTES_MAX).read_to_string(&mut text)?;
        value_in(&text).ok_or(io::ErrorKind::InvalidData.into())
    }

    /// Sets a value.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn write(&self, path: &str, value: &str) -> io::Result<()> {
        let mut file = self.open(path, OFlags::WRONLY | OFlags::TRUNC)?;
        // A single write: the kernel parses each write as a separate value.
        file.write_all(format!("{value}\n").as_bytes())
    }

    /// O_NONBLOCK keeps a pipe from blocking; the type is checked before any change.
    pub(super) fn open(&self, path: &str, how: OFlags) -> io::Result<File> {
        let how = how | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(openat(CWD, self.path(path), how, Mode::empty())?);
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file")),
        }
    }
}

/// The first line of a file, or the word in brackets if it offers several.
pub(super) fn value_in(text: &str) -> Option<String> {
    let line = text.lines().next().unwrap_or_default().trim();
    let chosen = line.split_once('[').and_then(|(_, rest)| Some(rest.split_once(']')?.0));
    let value = chosen.unwrap_or(line);
    is_value(value).then(|| value.to_owned())
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
    fn values_are_short_and_plain() {
        assert!(["0", "0-3,8", "performance", "defer+madvise"].into_iter().all(is_value));
        assert!(
            ["", "a b", "$(x)", "'", "\n", "a\n", "-n"].into_iter().all(|text| !is_value(text))
        );
        assert!(!is_value(&"1".repeat(VALUE_BYTES_MAX + 1)));
    }
}
