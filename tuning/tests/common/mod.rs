//! A temporary folder for one test.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Parallel tests may make the same profile of the same host.
static MADE: AtomicUsize = AtomicUsize::new(0);

/// Names of all recorded hosts.
#[allow(dead_code, reason = "only some tests go through all hosts")]
pub(crate) fn hosts() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hosts");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let names = files.filter_map(|file| Some(file.to_str()?.strip_suffix(".txt")?.to_owned()));
    let names: Vec<String> = names.collect();
    assert!(!names.is_empty());
    names
}

/// Path of the record of a host.
#[allow(dead_code, reason = "only some tests read records")]
pub(crate) fn record_path(host: &str) -> String {
    format!("{}/tests/hosts/{host}.txt", env!("CARGO_MANIFEST_DIR"))
}

/// Emptied when created, below cargo's directory for test files.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Creates a new folder on each call; `name` is for people.
    pub(crate) fn new(name: &str) -> Self {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(concat!(env!("CARGO_CRATE_NAME"), "-tests"))
            .join(format!("{name}-{number}"));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }

    /// Path of a file in the folder; for an empty name, of the folder with a trailing slash.
    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}
