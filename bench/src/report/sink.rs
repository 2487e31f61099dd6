//! Files that results go to, opened before anything is measured: a wrong path costs no measurement.

use crate::failure::Failure;
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A file to be written at the end, if one was asked for.
pub(crate) struct Sink(Option<(PathBuf, File)>);

impl Sink {
    /// Opens the file. What it held is gone when something is written, not before.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else { return Ok(Self(None)) };
        let opened = File::options().create(true).truncate(false).write(true).open(path);
        let file = opened
            .map_err(|error| Failure::system(format!("opening {}", path.display()), error))?;
        Ok(Self(Some((path.to_owned(), file))))
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
        let Some((path, mut file)) = self.0 else { return Ok(()) };
        let text = text()?;
        // Devices and pipes cannot be cut, and need not be.
        let regular = file.metadata().is_ok_and(|meta| meta.is_file());
        let cut = if regular { file.set_len(0) } else { Ok(()) };
        cut.and_then(|()| file.write_all(text.as_bytes()))
            .map_err(|error| Failure::system(format!("writing {}", path.display()), error))
    }
}
