//! Progress lines on standard error for long operations.

use spinrpc_tuning::printable::to_stderr;
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(2);

/// Reports the bytes transferred, at most every two seconds and never in the first two.
pub(crate) struct Progress {
    bytes: u64,
    done_bytes: u64,
    began: Instant,
    said: Instant,
}

impl Progress {
    pub(crate) fn start(bytes: u64) -> Self {
        let now = Instant::now();
        Self { bytes, done_bytes: 0, began: now, said: now }
    }

    pub(crate) fn add(&mut self, bytes: u64) {
        self.done_bytes += bytes;
        if self.said.elapsed() < INTERVAL {
            return;
        }
        self.said = Instant::now();
        let (done, all) = (self.done_bytes >> 10, self.bytes >> 10);
        let seconds = self.began.elapsed().as_secs_f64();
        let rate = self.done_bytes as f64 / seconds / 1e6;
        to_stderr(format_args!("spin-nfs: {seconds:.0} s, {done} of {all} KiB, {rate:.1} MB/s"));
    }
}
