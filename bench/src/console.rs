//! Text on standard output and standard error, for people and for programs.

use crate::failure::Failure;
use spinrpc_tuning::text::printable_lines;
use std::io::{ErrorKind, Write};

/// Prints text for people. A closed pipe, as from `head`, is not an error.
pub(crate) fn say(text: &str) -> Result<(), Failure> {
    say_to(&mut std::io::stdout().lock(), &printable_lines(text))
}

/// Prints text for people; to standard error if a document goes to standard output.
pub(crate) fn say_to_people(is_output_taken: bool, text: &str) -> Result<(), Failure> {
    match is_output_taken {
        true => say_to(&mut std::io::stderr().lock(), &printable_lines(text)),
        false => say(text),
    }
}

/// Writes a document for programs to standard output, byte for byte.
pub(crate) fn write_document(text: &str) -> Result<(), Failure> {
    say_to(&mut std::io::stdout().lock(), text)
}

fn say_to(output: &mut impl Write, text: &str) -> Result<(), Failure> {
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::system("writing to standard output", error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

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
        assert!(full.to_string().starts_with("writing to standard output"), "{full}");
    }
}
