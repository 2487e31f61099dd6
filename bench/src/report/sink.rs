//! Files that results go to, opened before anything is measured: a wrong path costs no measurement.
//! The path `-` is standard output, which is then for programs: text for people goes to standard error.

use crate::failure::Failure;
use crate::output::write_document;
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file to be written at the end, if one was asked for. A run that fails before
/// there is anything to write leaves no new file: an empty one would look like a document.
pub(crate) struct Sink(Target);

enum Target {
    Nothing,
    StandardOutput,
    /// It can be made, and is when there is something to write.
    New(PathBuf),
    /// It was there before: a pipe has to stay open, or its reader would see an end.
    Existing {
        path: PathBuf,
        file: File,
    },
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
        let target = find(path)
            .map_err(|error| Failure::system(format!("opening {}", path.display()), error))?;
        Ok(Self(target))
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
        let (path, written) = match self.0 {
            Target::Nothing => return Ok(()),
            Target::StandardOutput => return write_document(&text()?),
            Target::New(path) => {
                let text = text()?;
                let written =
                    File::create(&path).and_then(|mut file| file.write_all(text.as_bytes()));
                (path, written)
            }
            Target::Existing { path, file } => {
                let written = replace(file, &text()?);
                (path, written)
            }
        };
        written.map_err(|error| Failure::system(format!("writing {}", path.display()), error))
    }
}

/// Finds out if the file can be written, and leaves everything as it was.
fn find(path: &Path) -> io::Result<Target> {
    let path = path.to_owned();
    match File::options().create_new(true).write(true).open(&path) {
        Ok(_) => {
            fs::remove_file(&path)?;
            Ok(Target::New(path))
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // Makes the file that a symbolic link points to, if it has to.
            let file = File::options().create(true).truncate(false).write(true).open(&path)?;
            Ok(Target::Existing { path, file })
        }
        Err(error) => Err(error),
    }
}

/// Writes `text` in the place of what a file holds. Devices and pipes cannot be cut, and need not be.
fn replace(mut file: File, text: &str) -> io::Result<()> {
    if file.metadata().is_ok_and(|meta| meta.is_file()) {
        file.set_len(0)?;
    }
    file.write_all(text.as_bytes())
}
