//! Files that results go to, opened before anything is measured: a wrong path costs no measurement.
//! The path `-` is standard output, which is then for programs: text for people goes to standard error.

use crate::failure::Failure;
use crate::output::write_document;
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A file to be written at the end, if one was asked for.
pub(crate) struct Sink(Target);

enum Target {
    Nothing,
    StandardOutput,
    File(PathBuf, File),
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
        let opened = File::options().create(true).truncate(false).write(true).open(path);
        let file = opened
            .map_err(|error| Failure::system(format!("opening {}", path.display()), error))?;
        Ok(Self(Target::File(path.to_owned(), file)))
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
        self,
        text: impl FnOnce() -> Result<String, Failure>,
    ) -> Result<(), Failure> {
        let (path, mut file) = match self.0 {
            Target::Nothing => return Ok(()),
            Target::StandardOutput => return write_document(&text()?),
            Target::File(path, file) => (path, file),
        };
        let text = text()?;
        // Devices and pipes cannot be cut, and need not be.
        let regular = file.metadata().is_ok_and(|meta| meta.is_file());
        let cut = if regular { file.set_len(0) } else { Ok(()) };
        cut.and_then(|()| file.write_all(text.as_bytes()))
            .map_err(|error| Failure::system(format!("writing {}", path.display()), error))
    }
}
