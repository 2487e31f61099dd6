//! Facts of a host in one file, for analysis elsewhere and for testing the readers.
//!
//! ```text
//! # spintune record 1
//! sys/devices/system/cpu/online = 0-7
//! sys/class/infiniband/mlx5_0/device -> ../../../0000:3b:00.0
//! proc/self/limits = Limit  Soft  Hard  Units\nMax locked memory  8388608  8388608  bytes
//! dev/infiniband/rdma_cm
//! ```
//! Each line is a file with its text, a symbolic link, or a path that exists. In texts and link
//! targets, `\n` and `\\` stand for a line feed and a backslash. Lines that begin with `#` are
//! comments, except the first.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::str::FromStr;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record(BTreeMap<String, Entry>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Entry {
    Present,
    Link(String),
    Text(String),
}

impl Record {
    /// Loads a record from a file.
    ///
    /// # Errors
    /// The file cannot be read, is longer than 16 MiB, or is not a record (`InvalidData`).
    pub fn load(path: &Path) -> io::Result<Self> {
        let mut text = String::new();
        File::open(path)?.take(RECORD_BYTES_MAX + 1).read_to_string(&mut text)?;
        let too_long = text.len() as u64 > RECORD_BYTES_MAX;
        let record = if too_long { Err(NotARecord) } else { text.parse() };
        record.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    pub(super) fn add(&mut self, path: &str, entry: Entry) {
        let known = self.0.entry(path.to_owned()).or_insert(Entry::Present);
        if *known < entry {
            *known = entry;
        }
    }

    pub(super) fn text(&self, path: &str) -> Option<&str> {
        match self.0.get(path)? {
            Entry::Text(text) => Some(text),
            Entry::Link(_) | Entry::Present => None,
        }
    }

    pub(super) fn link(&self, path: &str) -> Option<&str> {
        match self.0.get(path)? {
            Entry::Link(target) => Some(target),
            Entry::Text(_) | Entry::Present => None,
        }
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.0.contains_key(path) || self.below(path).next().is_some()
    }

    fn below(&self, path: &str) -> impl Iterator<Item = &str> {
        let folder = format!("{path}/");
        let paths = self.0.range(folder.clone()..).map(|(path, _)| path.as_str());
        paths.map_while(move |path| path.strip_prefix(folder.as_str()))
    }

    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let first = |rest: &str| rest.split('/').next().unwrap_or_default().to_owned();
        let mut names: Vec<String> = self.below(path).map(first).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

impl FromStr for Record {
    type Err = NotARecord;

    fn from_str(text: &str) -> Result<Self, NotARecord> {
        let mut lines = text.lines();
        if lines.next() != Some(HEADER) {
            return Err(NotARecord);
        }
        let mut record = Self::default();
        for line in lines.filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            let (path, entry) = entry(line);
            record.add(path, entry);
        }
        Ok(record)
    }
}

fn entry(line: &str) -> (&str, Entry) {
    if let Some((path, text)) = line.split_once(" =") {
        return (path, Entry::Text(unescape(text.trim_start())));
    }
    match line.split_once(" -> ") {
        Some((path, target)) => (path, Entry::Link(unescape(target.trim()))),
        None => (line.trim_end(), Entry::Present),
    }
}

impl fmt::Display for Record {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{HEADER}")?;
        for (path, entry) in &self.0 {
            match entry {
                Entry::Text(text) if text.is_empty() => writeln!(out, "{path} =")?,
                Entry::Text(text) => writeln!(out, "{path} = {}", escape(text))?,
                Entry::Link(target) => writeln!(out, "{path} -> {}", escape(target))?,
                Entry::Present => writeln!(out, "{path}")?,
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a record of a host: a record begins with \"{HEADER}\" and has at most 16 MiB")]
pub struct NotARecord;

const HEADER: &str = "# spintune record 1";

const RECORD_BYTES_MAX: u64 = 16 << 20;

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n")
}

fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => plain.extend(letters.next().map(|next| if next == 'n' { '\n' } else { next })),
            other => plain.push(other),
        }
    }
    plain
}
