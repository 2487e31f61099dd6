//! Where facts come from: this host's file system, a copy of parts of one, or a record.
//!
//! Everything that is read from a host goes through here, bounded in length and rid of what would
//! disturb a terminal. What is not there, or cannot be read, is `None` and never an error: hosts
//! differ in what they tell.

use super::record::{Entry, Record};
use crate::text::is_harmless;
use rustix::fs::{Access, Mode, OFlags};
use spinrpc::sys::affinity::CpuSet;
use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A host's files. Paths are relative to its root, without a slash before them:
/// `sys/devices/system/cpu/online`.
#[derive(Debug)]
pub struct Tree {
    source: Source,
    /// What was read so far, of a tree that is being recorded.
    log: Option<RefCell<Record>>,
}

#[derive(Debug)]
enum Source {
    Directory(PathBuf),
    Record(Record),
}

impl Tree {
    /// This host.
    #[must_use]
    pub fn host() -> Self {
        Self::directory("/")
    }

    /// The files below a directory, which stands for a host's root.
    #[must_use]
    pub fn directory(root: impl Into<PathBuf>) -> Self {
        Self { source: Source::Directory(root.into()), log: None }
    }

    /// What a record says of a host.
    #[must_use]
    pub fn record(record: Record) -> Self {
        Self { source: Source::Record(record), log: None }
    }

    /// A directory that stands for a host's root, or the file of a record.
    ///
    /// # Errors
    /// There is no such file, or it is no record (`InvalidData`).
    pub fn open(path: &Path) -> io::Result<Self> {
        match fs::metadata(path)?.is_dir() {
            true => Ok(Self::directory(path)),
            false => Record::load(path).map(Self::record),
        }
    }

    /// The same tree, which from now on keeps what is read; [`Tree::into_record`] gives it.
    #[must_use]
    pub fn recorded(self) -> Self {
        Self { log: Some(RefCell::default()), ..self }
    }

    /// What was read since [`Tree::recorded`]; nothing without it.
    #[must_use]
    pub fn into_record(self) -> Record {
        self.log.map(RefCell::into_inner).unwrap_or_default()
    }

    /// Whether it is the host that this process runs on, which can be tried out, and not only read.
    #[must_use]
    pub fn is_this_host(&self) -> bool {
        matches!(&self.source, Source::Directory(root) if root == Path::new("/"))
    }

    /// A file's text, without the white space at its end: what fits [`TEXT_BYTES_MAX`] of it.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<String> {
        self.reduced(path, str::to_owned)
    }

    /// A file's first line, without white space around it; `None` also where that is empty.
    #[must_use]
    pub fn line(&self, path: &str) -> Option<String> {
        let text = self.text(path)?;
        let line = text.lines().next()?.trim();
        (!line.is_empty()).then(|| line.to_owned())
    }

    /// What a file's first line says, if it says that.
    #[must_use]
    pub fn value<T: FromStr>(&self, path: &str) -> Option<T> {
        self.line(path)?.parse().ok()
    }

    /// A file's list of CPUs or nodes; an empty file is an empty set.
    #[must_use]
    pub fn cpus(&self, path: &str) -> Option<CpuSet> {
        self.text(path)?.parse().ok()
    }

    /// The word in brackets of a file that offers several: `always [madvise] never`.
    #[must_use]
    pub fn chosen(&self, path: &str) -> Option<String> {
        let line = self.line(path)?;
        let (_, rest) = line.split_once('[')?;
        Some(rest.split_once(']')?.0.to_owned())
    }

    /// Like [`Tree::text`], and only what `reduce` leaves of it: a record keeps no more. `reduce`
    /// must leave as it is what it has made itself.
    #[must_use]
    pub fn reduced(&self, path: &str, reduce: impl Fn(&str) -> String) -> Option<String> {
        let text = reduce(&self.peek(path)?).trim_end().to_owned();
        self.note(path, || Entry::Text(text.clone()));
        Some(text)
    }

    /// Like [`Tree::text`], for looking at what a record need not keep.
    #[must_use]
    pub fn peek(&self, path: &str) -> Option<String> {
        match &self.source {
            Source::Directory(root) => Some(clean(&read(&root.join(path), TEXT_BYTES_MAX)?)),
            Source::Record(record) => record.text(path).map(|text| clean(text.as_bytes())),
        }
    }

    /// The first bytes of a file that is no text, [`BYTES_MAX`] at most. A record has them in
    /// hexadecimal.
    #[must_use]
    pub fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        let bytes = match &self.source {
            Source::Directory(root) => read(&root.join(path), BYTES_MAX)?,
            Source::Record(record) => from_hex(record.text(path)?)?,
        };
        self.note(path, || Entry::Text(to_hex(&bytes)));
        Some(bytes)
    }

    /// What lies in a directory, numbers in their order, [`NAMES_MAX`] at most; nothing if there is
    /// no such directory. Names that would disturb a terminal are left out. A record knows what was
    /// read below it.
    #[must_use]
    pub fn names(&self, path: &str) -> Vec<String> {
        let mut names = match &self.source {
            Source::Directory(root) => names_in(&root.join(path)),
            Source::Record(record) => record.names(path),
        };
        names.retain(|name| name.chars().all(is_harmless));
        names.sort_by_cached_key(|name| natural(name));
        names.truncate(NAMES_MAX);
        names
    }

    /// Whether something is there.
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        let exists = match &self.source {
            Source::Directory(root) => fs::symlink_metadata(root.join(path)).is_ok(),
            Source::Record(record) => record.exists(path),
        };
        if exists {
            self.note(path, || Entry::Present);
        }
        exists
    }

    /// The last part of what a symbolic link points at.
    #[must_use]
    pub fn link_name(&self, path: &str) -> Option<String> {
        let target = match &self.source {
            Source::Directory(root) => {
                clean(fs::read_link(root.join(path)).ok()?.to_string_lossy().as_bytes())
            }
            Source::Record(record) => clean(record.link(path)?.as_bytes()),
        };
        self.note(path, || Entry::Link(target.clone()));
        Some(target.rsplit('/').next()?.to_owned())
    }

    /// Whether this process may write to something; `None` if it is not there.
    #[must_use]
    pub fn is_writable(&self, path: &str) -> Option<bool> {
        if !self.exists(path) {
            return None;
        }
        let writable = match &self.source {
            Source::Directory(root) => {
                rustix::fs::access(root.join(path), Access::WRITE_OK).is_ok()
            }
            Source::Record(record) => record.text(path) == Some(WRITABLE),
        };
        if writable {
            self.note(path, || Entry::Text(WRITABLE.to_owned()));
        }
        Some(writable)
    }

    /// What is known better stays: text goes before mere presence.
    fn note(&self, path: &str, entry: impl FnOnce() -> Entry) {
        if let Some(log) = &self.log {
            log.borrow_mut().add(path, entry());
        }
    }
}

/// How a record marks what may be written to.
const WRITABLE: &str = "writable";

/// Longest text that is read of a file. Files of the kernel that grow with the host (one line per
/// CPU) are shorter on all but the largest, and say what matters first.
pub const TEXT_BYTES_MAX: usize = 1 << 20;

/// Most bytes that are read of a file which is no text: the standard part of a PCI function's
/// configuration.
pub const BYTES_MAX: usize = 256;

/// Most names that are taken from a directory.
pub const NAMES_MAX: usize = 1 << 16;

/// Only of plain files: a pipe would block, a device do something.
fn read(path: &Path, bytes_max: usize) -> Option<Vec<u8>> {
    // Opened before it is looked at: what is there may change in between.
    let how = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, how, Mode::empty()).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(bytes_max as u64).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().take(NAMES_MAX);
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

/// Rid of what is no text, and of control characters that a terminal would obey.
fn clean(bytes: &[u8]) -> String {
    let disturbs = |letter: char| !is_harmless(letter) && !matches!(letter, '\n' | '\t');
    let text = String::from_utf8_lossy(bytes);
    text.trim_end()
        .chars()
        .map(|letter| if disturbs(letter) { char::REPLACEMENT_CHARACTER } else { letter })
        .collect()
}

/// `cpu10` comes after `cpu9`.
fn natural(name: &str) -> (String, u64, String) {
    let stem = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
    let number = name[stem.len()..].parse().unwrap_or(0);
    (stem.to_owned(), number, name.to_owned())
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2).take(BYTES_MAX);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.map(byte).collect()
}
