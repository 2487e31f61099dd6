//! Common parts of the drivers' control planes: an attempted operation, private data, and the cores.

use super::FabricError;
use crate::sync::lock;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};

/// Bytes of private data of each end of a connection: as many as rdma_cm lets an application have. RFC 8797 needs fewer.
pub(crate) const PRIVATE_DATA_BYTES: usize = 56;

/// With zeroes behind what the application gave.
pub(crate) type PrivateData = [u8; PRIVATE_DATA_BYTES];

pub(crate) struct Attempt {
    pub(crate) op: String,
}

impl Attempt {
    pub(crate) fn failed(
        &self,
        reason: impl fmt::Display,
        source: Option<io::Error>,
    ) -> FabricError {
        FabricError::because(&self.op, reason, source)
    }

    pub(crate) fn padded(&self, private_data: &[u8]) -> Result<PrivateData, FabricError> {
        let mut padded = [0; PRIVATE_DATA_BYTES];
        let too_long = || format!("private data beyond {PRIVATE_DATA_BYTES} bytes");
        let start = padded.get_mut(..private_data.len());
        start.ok_or_else(|| self.failed(too_long(), None))?.copy_from_slice(private_data);
        Ok(padded)
    }
}

/// The cores of a connector by their numbers, as other threads see them.
#[derive(Debug)]
pub(crate) struct Cores<T>(Mutex<HashMap<usize, Arc<T>>>);

impl<T> Default for Cores<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Cores<T> {
    /// Core number `index`, made when it is first asked for.
    pub(crate) fn get(
        &self,
        index: usize,
        make: impl FnOnce() -> Result<T, FabricError>,
    ) -> Result<Arc<T>, FabricError> {
        let mut cores = lock(&self.0);
        if let Some(core) = cores.get(&index) {
            return Ok(Arc::clone(core));
        }
        let core = Arc::new(make()?);
        cores.insert(index, Arc::clone(&core));
        Ok(core)
    }
}

pub(crate) fn runs_already(core: usize) -> FabricError {
    FabricError::because(&format!("start core {core}"), "it runs already", None)
}
