//! The file systems that the suite runs on.

use crate::gate::{Gate, Gated};
use spinrpc_apps::nfs::server::file_system::FileSystem;
use spinrpc_apps::nfs::server::memory::{Memory, MemoryOptions};
use std::any::Any;
use std::sync::Arc;

/// A file system that is empty, and that whoever runs the test may write to.
pub(crate) struct BackEnd {
    pub(crate) file_system: Arc<dyn FileSystem>,
    /// What has to be kept, or cleaned up when it is dropped.
    _keep: Box<dyn Any>,
}

impl BackEnd {
    pub(crate) fn new(file_system: Arc<dyn FileSystem>, keep: impl Any) -> Self {
        Self { file_system, _keep: Box::new(keep) }
    }
}

pub(crate) fn memory() -> BackEnd {
    small_memory(&MemoryOptions { bytes_max: 64 << 20, ..MemoryOptions::default() })
}

pub(crate) fn small_memory(options: &MemoryOptions) -> BackEnd {
    BackEnd::new(Memory::new(options).unwrap(), ())
}

/// Memory that says that it may wait, and answers READ, WRITE and COMMIT later.
pub(crate) fn waiting() -> BackEnd {
    gated(&Gate::open())
}

/// The same, which does what changes something only when the gate is open.
pub(crate) fn gated(gate: &Arc<Gate>) -> BackEnd {
    BackEnd::new(Gated::new(memory().file_system, gate), ())
}
