//! `--capture FILE`: makes the engine capture to the file, and reports the result.

use crate::failure::Failure;
use crate::report::sink::is_standard_output;
use spinrpc::{CaptureCounters, CaptureSink};
use std::path::{Path, PathBuf};

pub(crate) struct Capture {
    path: PathBuf,
    counters: CaptureCounters,
}

impl Capture {
    /// Opens the file, if one was requested; the sink is for the engine.
    pub(crate) fn open(path: Option<&Path>) -> Result<Option<(Self, CaptureSink)>, Failure> {
        let Some(path) = path else { return Ok(None) };
        if is_standard_output(path) {
            return Err(Failure::Usage(NOT_TO_OUTPUT.to_owned()));
        }
        let failed = |error| Failure::system(format!("opening {}", path.display()), error);
        let sink = CaptureSink::create(path).map_err(failed)?;
        Ok(Some((Self { path: path.to_owned(), counters: sink.counters() }, sink)))
    }

    /// Summary of the file's contents and of lost packets, after the cores have stopped.
    ///
    /// # Errors
    /// The file could not be written.
    pub(crate) fn outcome(&self) -> Result<String, Failure> {
        let path = self.path.display();
        if let Some(failure) = self.counters.failure() {
            return Err(Failure::Measurement(format!("writing {path}: {failure}")));
        }
        let (written, dropped) = (self.counters.written(), self.counters.dropped());
        Ok(format!(
            "captured {written} packets to {path}, {dropped} dropped; \
             rates and latencies include capturing"
        ))
    }
}

const NOT_TO_OUTPUT: &str =
    "--capture takes a file or a named pipe, not - for standard output, which has the table";
