//! Tests of the capture: it changes nothing, and the file has the right contents, read by a reader
//! that shares no code with the writer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod conformance;
mod contents;
mod file;
mod losses;
mod reader;

use super::{CaptureConnector, CaptureSink};
use crate::shm::tests::conformance::Shm;
use crate::sync::lock;
use crate::tests::conformance::{Limits, Pair, Provider};
use reader::Capture;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

/// Shared memory, captured to a sink that is used up by the first connector.
struct Captured(Mutex<Option<CaptureSink>>);

impl Provider for Captured {
    type Connector = CaptureConnector;

    fn connector(&self) -> Self::Connector {
        let sink = lock(&self.0).take().unwrap_or_else(|| CaptureSink::new(io::sink()));
        CaptureConnector::new(Arc::new(Shm.connector()), sink).unwrap()
    }

    fn address(&self) -> String {
        Shm.address()
    }

    fn limits(&self) -> Limits {
        Shm.limits()
    }
}

type CapturedPair = Pair<CaptureConnector>;

/// Two ends with one connection, captured to `sink`.
fn captured(sink: CaptureSink) -> CapturedPair {
    Pair::new(&Captured(Mutex::new(Some(sink))))
}

/// A file in memory.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.0).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Memory {
    /// Contents of the capture after its end.
    fn read(&self) -> Capture {
        Capture::read(&lock(&self.0))
    }
}
