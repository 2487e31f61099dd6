//! A limit on how long CPUs take to wake up, as long as it is held (PM QoS of Linux).
//!
//! The kernel takes it back when the descriptor is closed, however the process ends: nothing is left
//! of it on the host. May use std; an engine takes it at its start.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// Device through which the kernel takes such limits.
pub const DEVICE: &str = "/dev/cpu_dma_latency";

/// A limit that lasts as long as this does.
#[derive(Debug)]
pub struct WakeLimit {
    #[expect(dead_code, reason = "open is all it has to be")]
    device: File,
}

impl WakeLimit {
    /// Asks that no CPU goes into an idle state that it takes longer than `at_most` to wake from;
    /// zero: that they poll instead. Blocks for a system call or two.
    ///
    /// # Errors
    /// The kernel's error: `NotFound` if it does not have the device, `PermissionDenied` if the
    /// user may not write to it.
    pub fn hold(device: &Path, at_most: Duration) -> io::Result<Self> {
        let limit_us = i32::try_from(at_most.as_micros()).unwrap_or(i32::MAX);
        let mut device = OpenOptions::new().write(true).open(device)?;
        device.write_all(&limit_us.to_ne_bytes())?;
        Ok(Self { device })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_written_as_the_kernel_reads_it() {
        let path = std::env::temp_dir().join(format!("spinrpc-latency-{}", std::process::id()));
        std::fs::write(&path, []).unwrap();
        let limit = WakeLimit::hold(&path, Duration::from_micros(70)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), 70_i32.to_ne_bytes());
        drop(limit);
        std::fs::remove_file(&path).unwrap();
        let gone = WakeLimit::hold(&path, Duration::ZERO).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    }
}
