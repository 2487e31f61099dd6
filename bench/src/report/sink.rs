//! Output files, opened before anything is measured, so that a wrong path does not cost a
//! measurement. The path `-` is standard output, which is then for programs: text for people goes
//! to standard error.

use crate::console::write_document;
use crate::failure::Failure;
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file to be written at the end, if one was requested. A run that fails before there is anything
/// to write leaves no new file: an empty one would look like a document.
pub(crate) struct Sink(Target);

enum Target {
    Nothing,
    StandardOutput,
    /// It can be created, and is when there is something to write.
    New(PathBuf),
    /// It existed before: a pipe has to stay open, or its reader would see its end.
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
    /// Opens the file. Its contents are kept until something is written.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else { return Ok(Self(Target::Nothing)) };
        if is_standard_output(path) {
            return Ok(Self(Target::StandardOutput));
        }
        let target = find(path)
            .map_err(|error| Failure::system(format!("opening {}", path.display()), error))?;
        Ok(Self(target))
    }

    /// Writes a report, or other results of a command, as JSON.
    pub(crate) fn write_json(self, document: &impl Serialize) -> Result<(), Failure> {
        self.write(|| Ok(serde_json::to_string_pretty(document)? + "\n"))
    }

    /// Writes text, which is only made if there is a file for it.
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

/// Checks that the file can be written, without changing anything.
fn find(path: &Path) -> io::Result<Target> {
    let path = path.to_owned();
    match File::options().create_new(true).write(true).open(&path) {
        Ok(_) => {
            fs::remove_file(&path)?;
            Ok(Target::New(path))
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // Creates the target of a symbolic link if necessary.
            let file = File::options().create(true).truncate(false).write(true).open(&path)?;
            Ok(Target::Existing { path, file })
        }
        Err(error) => Err(error),
    }
}

/// Replaces the contents of a file. Devices and pipes cannot be truncated, and need not be.
fn replace(mut file: File, text: &str) -> io::Result<()> {
    if file.metadata().is_ok_and(|meta| meta.is_file()) {
        file.set_len(0)?;
    }
    file.write_all(text.as_bytes())
}
