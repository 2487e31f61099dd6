//! A folder for the files of one test.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Tests that run side by side may make the same profile of the same host.
static MADE: AtomicUsize = AtomicUsize::new(0);

/// Emptied when made, below cargo's directory for the files of tests.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Each call makes another one; `name` tells people which.
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

    /// Of a file in it; of the folder, with a slash at its end, for an empty name.
    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}
