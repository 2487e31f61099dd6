//! Source of facts: this host's file system, a copy of parts of one, or a record.
//!
//! All reads from a host go through here. They are bounded in length, and characters that would
//! disturb a terminal are removed. Anything missing or unreadable is `None` and never an error:
//! hosts differ in what they report.

use super::record::{Entry, Record};
use crate::printable::is_harmless;
use rustix::fs::{Access, CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use spinrpc::sys::affinity::CpuSet;
use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
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
    /// The root directory of this host, or what stands for it in tests. Links are followed.
    Host(PathBuf),
    /// That of a copy. It stays open, so that another directory, or a link, that is put in its place later changes nothing.
    Copy(OwnedFd),
    Record(Record),
}

impl Tree {
    pub fn host() -> Self {
        Self::below(Path::new("/"))
    }

    pub(crate) fn below(root: &Path) -> Self {
        Self { source: Source::Host(root.to_owned()), log: None }
    }

    /// The files below a directory that stands for a host's root. Symbolic links in it cannot lead out of it: as after chroot, `/` is
    /// this directory, and so is its parent. Needs Linux 5.6; nothing is read on older kernels ([`Tree::open`] fails there).
    /// The directory is opened here: what is put in its place later is not read. One that cannot be opened has no files.
    pub fn directory(root: impl AsRef<Path>) -> Self {
        Self::copy(root.as_ref()).unwrap_or_else(|_| Self::record(Record::default()))
    }

    fn copy(root: &Path) -> Result<Self, Errno> {
        let folder = openat(CWD, root, FOLDER | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { source: Source::Copy(folder), log: None })
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
        if path == Path::new("/") {
            return Ok(Self::host());
        }
        let tree = Self::copy(path)?;
        // Otherwise, all of its files would seem not to exist.
        tree.file(".", FOLDER).map_err(not_opened)?;
        if !["proc", "sys"].into_iter().any(|name| tree.file(name, FOLDER).is_ok()) {
            let message = "neither proc nor sys is in this directory";
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Ok(tree)
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
        matches!(&self.source, Source::Host(root) if root == Path::new("/"))
    }

    /// Opens a file of a host. Links below the root of a copy lead to files of the copy only ([`Tree::directory`]), also while
    /// folders are being replaced by links.
    fn file(&self, path: &str, how: OFlags) -> Result<OwnedFd, Errno> {
        let how = how | OFlags::CLOEXEC;
        let folder = match &self.source {
            Source::Host(root) => return openat(CWD, root.join(path), how, Mode::empty()),
            Source::Copy(folder) => folder,
            Source::Record(_) => return Err(Errno::NOENT),
        };
        let open = || openat2(folder, path, how, Mode::empty(), ResolveFlags::IN_ROOT);
        // The kernel asks for another attempt when something was renamed or mounted meanwhile, anywhere.
        let mut attempts = std::iter::repeat_with(open).take(OPEN_ATTEMPTS);
        attempts.find(|file| !matches!(file, Err(Errno::AGAIN))).unwrap_or(Err(Errno::AGAIN))
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
            Source::Record(record) => record.text(path).map(|text| clean(text.as_bytes())),
            _ => Some(clean(&self.read(path, TEXT_BYTES_MAX)?)),
        }
    }

    /// The first bytes of a binary file, at most [`BYTES_MAX`]. A record stores them in
    /// hexadecimal.
    pub fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        let bytes = match &self.source {
            Source::Record(record) => from_hex(record.text(path)?)?,
            _ => self.read(path, BYTES_MAX)?,
        };
        self.note(path, || Entry::Text(bytes.iter().map(|byte| format!("{byte:02x}")).collect()));
        Some(bytes)
    }

    /// Names in a directory, numbers in numeric order, at most [`NAMES_MAX`]; empty if the
    /// directory does not exist. Omits names that would disturb a terminal. A record knows the
    /// names that were read below it.
    pub fn names(&self, path: &str) -> Vec<String> {
        let mut names = match &self.source {
            Source::Record(record) => record.names(path),
            _ => self.names_in(path).unwrap_or_default(),
        };
        names.retain(|name| name.chars().all(is_harmless));
        names.sort_by_cached_key(|name| natural(name));
        names.truncate(NAMES_MAX);
        names
    }

    pub fn exists(&self, path: &str) -> bool {
        let exists = match &self.source {
            Source::Record(record) => record.exists(path),
            _ => self.file(path, OFlags::PATH | OFlags::NOFOLLOW).is_ok(),
        };
        if exists {
            self.note(path, || Entry::Present);
        }
        exists
    }

    /// Last component of a symbolic link's target.
    pub fn link_name(&self, path: &str) -> Option<String> {
        let target = match &self.source {
            Source::Record(record) => clean(record.link(path)?.as_bytes()),
            _ => {
                let link = self.file(path, OFlags::PATH | OFlags::NOFOLLOW).ok()?;
                clean(rustix::fs::readlinkat(&link, "", Vec::new()).ok()?.as_bytes())
            }
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
            Source::Record(record) => record.text(path) == Some(WRITABLE),
            _ => self.file(path, OFlags::PATH).is_ok_and(|file| may_write(&file)),
        };
        if writable {
            self.note(path, || Entry::Text(WRITABLE.to_owned()));
        }
        Some(writable)
    }

    /// Returns whether somebody may write to the file: the kernel clears the write bits of what cannot be set. A record does not
    /// say.
    pub(crate) fn may_be_set(&self, path: &str) -> bool {
        let mode = || self.file(path, OFlags::PATH).and_then(rustix::fs::fstat);
        let is_set = |mode: u32| Mode::from_raw_mode(mode).intersects(WRITE);
        matches!(self.source, Source::Record(_)) || mode().is_ok_and(|file| is_set(file.st_mode))
    }

    /// Reads regular files only: a pipe would block, and reading a device can have side effects.
    fn read(&self, path: &str, bytes_max: usize) -> Option<Vec<u8>> {
        // Opened before the type is checked: the path may change in between.
        let how = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = File::from(self.file(path, how).ok()?);
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        file.take(bytes_max as u64).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    fn names_in(&self, path: &str) -> Option<Vec<String>> {
        let folder = self.file(path, OFlags::RDONLY | OFlags::DIRECTORY).ok()?;
        let entries = rustix::fs::Dir::new(folder).ok()?.take(NAMES_MAX).map_while(Result::ok);
        let names = entries.filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
        Some(names.filter(|name| !matches!(name.as_str(), "." | "..")).collect())
    }

    /// Keeps the more specific entry: text takes precedence over mere presence.
    fn note(&self, path: &str, entry: impl FnOnce() -> Entry) {
        if let Some(log) = &self.log {
            log.borrow_mut().add(path, entry());
        }
    }
}

const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);
const WRITE: Mode = Mode::WUSR.union(Mode::WGRP).union(Mode::WOTH);
const OPEN_ATTEMPTS: usize = 32;
const WRITABLE: &str = "writable";

/// Longest text that is read from a file. Kernel files that grow with the host (one line per CPU)
/// are shorter on all but the largest, and begin with what matters.
pub const TEXT_BYTES_MAX: usize = 1 << 20;

/// Maximum number of bytes read from a binary file: the standard configuration space of a PCI
/// function.
pub const BYTES_MAX: usize = 256;

pub const NAMES_MAX: usize = 1 << 16;

fn not_opened(error: Errno) -> io::Error {
    let plain = io::Error::from(error);
    if !matches!(error, Errno::NOSYS | Errno::PERM) {
        return plain;
    }
    let why = "needs Linux 5.6, or is denied by a seccomp filter";
    io::Error::new(plain.kind(), format!("openat2: {plain}: {why}"))
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_in_which_no_file_can_be_opened_is_refused_with_the_reason() {
        for denied in [Errno::NOSYS, Errno::PERM] {
            let error = not_opened(denied).to_string();
            assert!(error.contains("needs Linux 5.6, or is denied by a seccomp filter"), "{error}");
        }
        let error = not_opened(Errno::ACCESS);
        assert_eq!(error.raw_os_error(), Some(Errno::ACCESS.raw_os_error()));
    }

    #[test]
    fn only_the_root_of_this_process_is_this_host() {
        let is_host = |path| Tree::open(Path::new(path)).unwrap().is_this_host();
        assert!(Tree::host().is_this_host() && is_host("/") && !is_host("/proc/self/root"));
        assert!(!Tree::below(Path::new("/proc")).is_this_host());
    }
}
