//! Files that results go to, opened before anything is measured: a wrong path costs no measurement.
//! The path `-` is standard output, which is then for programs: text for people goes to standard error.

use crate::failure::Failure;
use crate::output::write_document;
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file to be written at the end, if one was asked for. A new one to which nothing was written goes
/// when this is dropped: an empty document would be none.
pub(crate) struct Sink(Target);

enum Target {
    Nothing,
    StandardOutput,
    File { path: PathBuf, file: File, is_new: bool },
}

/// Returns true for the path that stands for standard output. A file of that name is `./-`.
pub(crate) fn is_standard_output(path: &Path) -> bool {
    path.as_os_str() == "-"
}

impl Sink {
    /// Opens the file. What it held is gone when something is written, not before.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else { return Ok(Self(Target::Nothing)) };
        if is_standard_output(path) {
            return Ok(Self(Target::StandardOutput));
        }
        let (file, is_new) = open_file(path)
            .map_err(|error| Failure::system(format!("opening {}", path.display()), error))?;
        Ok(Self(Target::File { path: path.to_owned(), file, is_new }))
    }

    /// Writes a report, or whatever else a command has found out, as JSON.
    pub(crate) fn write_json(self, document: &impl Serialize) -> Result<(), Failure> {
        self.write(|| {
            serde_json::to_string_pretty(document)
                .map(|text| text + "\n")
                .map_err(|error| Failure::Measurement(format!("the report is not JSON: {error}")))
        })
    }

    /// Writes a text, which is made only if there is a file for it.
    pub(crate) fn write(
        mut self,
        text: impl FnOnce() -> Result<String, Failure>,
    ) -> Result<(), Failure> {
        let (path, file, is_new) = match &mut self.0 {
            Target::Nothing => return Ok(()),
            Target::StandardOutput => return write_document(&text()?),
            Target::File { path, file, is_new } => (path, file, is_new),
        };
        let text = text()?;
        *is_new = false;
        // Devices and pipes cannot be cut, and need not be.
        let regular = file.metadata().is_ok_and(|meta| meta.is_file());
        let cut = if regular { file.set_len(0) } else { Ok(()) };
        cut.and_then(|()| file.write_all(text.as_bytes()))
            .map_err(|error| Failure::system(format!("writing {}", path.display()), error))
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if let Target::File { path, is_new: true, .. } = &self.0 {
            // The command ends with an error already.
            let _ = fs::remove_file(path);
        }
    }
}

/// Opens a file for writing, with what is in it; says if it was not there before.
fn open_file(path: &Path) -> io::Result<(File, bool)> {
    match File::options().create_new(true).write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let file = File::options().create(true).truncate(false).write(true).open(path)?;
            Ok((file, false))
        }
        opened => opened.map(|file| (file, true)),
    }
}
