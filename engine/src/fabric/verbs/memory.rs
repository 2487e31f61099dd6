//! The memory of a connection, as far as the device knows it.

use super::super::FabricError;
use super::config::VerbsConfig;
use super::device::DeviceCaps;
use super::objects::ProtectionDomain;
use std::sync::Arc;

/// A core's memory that its connections may use.
#[derive(Clone, Debug)]
pub(super) struct LentMemory;

/// What of a connection's memory is registered.
#[derive(Debug)]
pub(super) struct LinkMemory;

impl LinkMemory {
    /// Registers what a connection needs from the start (control thread).
    pub(super) fn prepare(
        _domain: &Arc<ProtectionDomain>,
        _caps: &DeviceCaps,
        _config: &VerbsConfig,
        _lent: Option<&LentMemory>,
    ) -> Result<Self, FabricError> {
        Ok(Self)
    }
}
