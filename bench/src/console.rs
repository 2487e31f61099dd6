//! Text on standard output and standard error, for people and for programs, and output files.
//!
//! Files are opened before anything is measured, so that a wrong path does not cost a measurement. The path `-` is standard
//! output, which is then for programs: text for people goes to standard error.

use crate::failure::Failure;
use spinrpc_tuning::printable::printable_lines;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Prints text for people. A closed pipe, as from `head`, is not an error.
pub(crate) fn say(text: &str) -> Result<(), Failure> {
    say_to(&mut io::stdout().lock(), &printable_lines(text))
}

/// Prints text for people; to standard error if a document goes to standard output.
pub(crate) fn say_to_people(is_output_taken: bool, text: &str) -> Result<(), Failure> {
    match is_output_taken {
        true => say_to(&mut io::stderr().lock(), &printable_lines(text)),
        false => say(text),
    }
}

fn say_to(output: &mut impl Write, text: &str) -> Result<(), Failure> {
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::system("standard output", error))
        }
        _ => Ok(()),
    }
}

/// A run that fails before there is anything to write leaves no new file, which would look like a document.
pub(crate) enum Sink {
    Nothing,
    StandardOutput,
    /// With its file if it existed before: a pipe has to stay open, or its reader would see its end.
    File(PathBuf, Option<File>),
}

/// Returns true for the path that stands for standard output. A file of that name is `./-`.
pub(crate) fn is_standard_output(path: &Path) -> bool {
    path.as_os_str() == "-"
}

impl Sink {
    /// Opens the file. Its contents are kept until something is written.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else { return Ok(Self::Nothing) };
        if is_standard_output(path) {
            return Ok(Self::StandardOutput);
        }
        find(path).map_err(|error| Failure::system(format!("opening {}", path.display()), error))
    }

    pub(crate) fn write(
        self,
        text: impl FnOnce() -> Result<String, Failure>,
    ) -> Result<(), Failure> {
        let (path, existing) = match self {
            Self::Nothing => return Ok(()),
            Self::StandardOutput => return say_to(&mut io::stdout().lock(), &text()?),
            Self::File(path, existing) => (path, existing),
        };
        let text = text()?;
        let written = match existing {
            Some(file) => replace(file, &text),
            None => fs::write(&path, &text),
        };
        written.map_err(|error| Failure::system(format!("writing {}", path.display()), error))
    }
}

fn find(path: &Path) -> io::Result<Sink> {
    let path = path.to_owned();
    match File::options().create_new(true).write(true).open(&path) {
        Ok(_) => {
            fs::remove_file(&path)?;
            Ok(Sink::File(path, None))
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // Creates the target of a symbolic link if necessary.
            let file = File::options().create(true).truncate(false).write(true).open(&path)?;
            Ok(Sink::File(path, Some(file)))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that fails with this error.
    struct Reader(ErrorKind);

    impl Write for Reader {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_has_gone_is_no_failure_and_a_full_disk_is() {
        assert!(say_to(&mut Reader(ErrorKind::BrokenPipe), "text").is_ok());
        let full = say_to(&mut Reader(ErrorKind::StorageFull), "text").unwrap_err();
        assert!(full.to_string().starts_with("standard output"), "{full}");
    }
}
