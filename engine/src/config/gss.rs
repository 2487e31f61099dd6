//! Values for RPCSEC_GSS.

use super::{Config, to_usize};
use std::time::Duration;

impl Config {
    /// Bytes of a body under RPCSEC_GSS that are sealed or opened in one turn.
    pub fn gss_step_bytes(&self) -> usize {
        to_usize(self.raw.fixed.gss_step_bytes)
    }

    /// Time after which an unused security context is dropped.
    pub fn gss_unused(&self) -> Duration {
        Duration::from_millis(self.raw.fixed.gss_unused_ms)
    }

    /// Time that a client waits for its security mechanism.
    pub fn gss_mechanism_time(&self) -> Duration {
        Duration::from_millis(self.raw.fixed.gss_mechanism_ms)
    }
}
