//! Source of facts: this host's file system, a copy of parts of one, or a record.
//!
//! All reads from a host go through here. They are bounded in length, and characters that would
//! disturb a terminal are removed. Anything missing or unreadable is `None` and never an error:
//! hosts differ in what they report.

use super::record::{Entry, Record};
use super::root::Root;
use crate::printable::is_harmless;
use rustix::fs::{Access, OFlags};
use spinrpc::sys::affinity::CpuSet;
use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::str::FromStr;

/// A host's files. Paths are relative to its root and have no leading slash:
/// `sys/devices/system/cpu/online`.
#[derive(Debug)]
pub struct Tree {
    source: Source,
    /// Everything read so far, if the tree is being recorded.
    log: Option<RefCell<Record>>,
}

#[derive(Debug)]
enum Source {
    Directory(Root),
    Record(Record),
}

impl Tree {
    pub fn host() -> Self {
        Self::directory("/")
    }

    /// The files below a directory that stands for a host's root. Symbolic links in it cannot lead out of it: as after chroot, `/` is
    /// this directory, and so is its parent. Needs Linux 5.6; nothing is read on older kernels ([`Tree::open`] fails there).
    /// The directory is opened here: what is put in its place later is not read. One that cannot be opened has no files.
    pub fn directory(root: impl AsRef<Path>) -> Self {
        Root::open(root.as_ref()).map_or_else(|_| Self::record(Record::default()), Self::below)
    }

    pub(crate) fn below(root: Root) -> Self {
        Self { source: Source::Directory(root), log: None }
    }

    pub fn record(record: Record) -> Self {
        Self { source: Source::Record(record), log: None }
    }

    /// Opens a directory that stands for a host's root, or a record.
    ///
    /// # Errors
    /// The file does not exist or is not a record, or the directory has nothing of a host (`InvalidData`). The kernel does not open
    /// files below a directory (`openat2`): it is older than Linux 5.6, or a seccomp filter denies it.
    pub fn open(path: &Path) -> io::Result<Self> {
        if !fs::metadata(path)?.is_dir() {
            return Record::load(path).map(Self::record);
        }
        let root = Root::checked(path)?;
        let is_there = |name| root.file(name, OFlags::PATH | OFlags::DIRECTORY).is_ok();
        if !["proc", "sys"].into_iter().any(is_there) {
            let message = "neither proc nor sys is in this directory";
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Ok(Self::below(root))
    }

    /// The same tree, which now records what is read; see [`Tree::into_record`].
    pub fn recorded(self) -> Self {
        Self { log: Some(RefCell::default()), ..self }
    }

    /// Everything read since [`Tree::recorded`]; empty without it.
    pub fn into_record(self) -> Record {
        self.log.map(RefCell::into_inner).unwrap_or_default()
    }

    pub fn is_this_host(&self) -> bool {
        self.root().is_some_and(Root::is_host)
    }

    pub(crate) fn root(&self) -> Option<&Root> {
        match &self.source {
            Source::Directory(root) => Some(root),
            Source::Record(_) => None,
        }
    }

    pub(crate) fn is_record(&self) -> bool {
        matches!(self.source, Source::Record(_))
    }

    /// A file's text without trailing white space, up to [`TEXT_BYTES_MAX`].
    pub fn text(&self, path: &str) -> Option<String> {
        self.reduced(path, str::to_owned)
    }

    /// A file's first line without surrounding white space; `None` if it is empty.
    pub fn line(&self, path: &str) -> Option<String> {
        let text = self.text(path)?;
        let line = text.lines().next()?.trim();
        (!line.is_empty()).then(|| line.to_owned())
    }

    pub fn value<T: FromStr>(&self, path: &str) -> Option<T> {
        self.line(path)?.parse().ok()
    }

    pub fn flag(&self, path: &str) -> Option<bool> {
        self.value::<u64>(path).map(|number| number != 0)
    }

    pub fn cpus(&self, path: &str) -> Option<CpuSet> {
        self.text(path)?.parse().ok()
    }

    /// The word in brackets in a file that offers several: `always [madvise] never`.
    pub fn chosen(&self, path: &str) -> Option<String> {
        let line = self.line(path)?;
        let (_, rest) = line.split_once('[')?;
        Some(rest.split_once(']')?.0.to_owned())
    }

    /// Like [`Tree::text`], reduced by `reduce`; a record keeps only the reduced text. `reduce`
    /// must be idempotent.
    pub fn reduced(&self, path: &str, reduce: impl Fn(&str) -> String) -> Option<String> {
        let text = reduce(&self.peek(path)?).trim_end().to_owned();
        self.note(path, || Entry::Text(text.clone()));
        Some(text)
    }

    /// Like [`Tree::text`], but not recorded.
    pub fn peek(&self, path: &str) -> Option<String> {
        match &self.source {
            Source::Directory(root) => Some(clean(&read(root, path, TEXT_BYTES_MAX)?)),
            Source::Record(record) => record.text(path).map(|text| clean(text.as_bytes())),
        }
    }

    /// The first bytes of a binary file, at most [`BYTES_MAX`]. A record stores them in
    /// hexadecimal.
    pub fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        let bytes = match &self.source {
            Source::Directory(root) => read(root, path, BYTES_MAX)?,
            Source::Record(record) => from_hex(record.text(path)?)?,
        };
        self.note(path, || Entry::Text(bytes.iter().map(|byte| format!("{byte:02x}")).collect()));
        Some(bytes)
    }

    /// Names in a directory, numbers in numeric order, at most [`NAMES_MAX`]; empty if the
    /// directory does not exist. Omits names that would disturb a terminal. A record knows the
    /// names that were read below it.
    pub fn names(&self, path: &str) -> Vec<String> {
        let mut names = match &self.source {
            Source::Directory(root) => names_in(root, path).unwrap_or_default(),
            Source::Record(record) => record.names(path),
        };
        names.retain(|name| name.chars().all(is_harmless));
        names.sort_by_cached_key(|name| natural(name));
        names.truncate(NAMES_MAX);
        names
    }

    pub fn exists(&self, path: &str) -> bool {
        let exists = match &self.source {
            Source::Directory(root) => found(root, path, OFlags::NOFOLLOW).is_some(),
            Source::Record(record) => record.exists(path),
        };
        if exists {
            self.note(path, || Entry::Present);
        }
        exists
    }

    /// Last component of a symbolic link's target.
    pub fn link_name(&self, path: &str) -> Option<String> {
        let target = match &self.source {
            Source::Directory(root) => {
                let link = found(root, path, OFlags::NOFOLLOW)?;
                clean(rustix::fs::readlinkat(&link, "", Vec::new()).ok()?.as_bytes())
            }
            Source::Record(record) => clean(record.link(path)?.as_bytes()),
        };
        self.note(path, || Entry::Link(target.clone()));
        Some(target.rsplit('/').next()?.to_owned())
    }

    /// Returns whether this process may write to the path; `None` if it does not exist.
    pub fn is_writable(&self, path: &str) -> Option<bool> {
        if !self.exists(path) {
            return None;
        }
        let writable = match &self.source {
            Source::Directory(root) => {
                found(root, path, OFlags::empty()).is_some_and(|file| may_write(&file))
            }
            Source::Record(record) => record.text(path) == Some(WRITABLE),
        };
        if writable {
            self.note(path, || Entry::Text(WRITABLE.to_owned()));
        }
        Some(writable)
    }

    /// Keeps the more specific entry: text takes precedence over mere presence.
    fn note(&self, path: &str, entry: impl FnOnce() -> Entry) {
        if let Some(log) = &self.log {
            log.borrow_mut().add(path, entry());
        }
    }
}

const WRITABLE: &str = "writable";

/// Longest text that is read from a file. Kernel files that grow with the host (one line per CPU)
/// are shorter on all but the largest, and begin with what matters.
pub const TEXT_BYTES_MAX: usize = 1 << 20;

/// Maximum number of bytes read from a binary file: the standard configuration space of a PCI
/// function.
pub const BYTES_MAX: usize = 256;

pub const NAMES_MAX: usize = 1 << 16;

/// Reads regular files only: a pipe would block, and reading a device can have side effects.
fn read(root: &Root, path: &str, bytes_max: usize) -> Option<Vec<u8>> {
    // Opened before the type is checked: the path may change in between.
    let how = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(root.file(path, how).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(bytes_max as u64).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn names_in(root: &Root, path: &str) -> Option<Vec<String>> {
    let folder = root.file(path, OFlags::RDONLY | OFlags::DIRECTORY).ok()?;
    let entries = rustix::fs::Dir::new(folder).ok()?.take(NAMES_MAX).map_while(Result::ok);
    let names = entries.filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
    Some(names.filter(|name| !matches!(name.as_str(), "." | "..")).collect())
}

fn found(root: &Root, path: &str, how: OFlags) -> Option<OwnedFd> {
    root.file(path, OFlags::PATH | how).ok()
}

/// Returns whether this process may write to a file: by its descriptor, because its path may lead elsewhere by now.
fn may_write(file: &OwnedFd) -> bool {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::access(path, Access::WRITE_OK).is_ok()
}

/// Removes invalid UTF-8 and control characters that a terminal would obey.
fn clean(bytes: &[u8]) -> String {
    let disturbs = |letter: char| !is_harmless(letter) && !matches!(letter, '\n' | '\t');
    let text = String::from_utf8_lossy(bytes);
    text.trim_end()
        .chars()
        .map(|letter| if disturbs(letter) { char::REPLACEMENT_CHARACTER } else { letter })
        .collect()
}

/// Sort key that puts `cpu10` after `cpu9`.
fn natural(name: &str) -> (String, u64, String) {
    let stem = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
    let number = name[stem.len()..].parse().unwrap_or(0);
    (stem.to_owned(), number, name.to_owned())
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2).take(BYTES_MAX);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.map(byte).collect()
}
