//! Asking the kernel for a ring that suits one thread which polls, and finding out if it works.

use io_uring::{IoUring, opcode};
use std::io;

/// A ring with at least `depth` entries that has done an empty operation.
pub(super) fn working_ring(depth: u32) -> io::Result<IoUring> {
    proven(for_one_thread(depth).or_else(|error| match error.raw_os_error() {
        // The kernel does not know one of the flags.
        Some(libc::EINVAL) => plain(depth),
        _ => Err(error),
    })?)
}

/// Completions are posted when the owning thread asks for them (Linux 6.1); without that, the
/// kernel would interrupt it. The flag tells without a system call that there is something to ask
/// for. Per operation that costs no more than a plain ring (measured: no difference beyond the
/// noise).
pub(super) fn for_one_thread(depth: u32) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    builder.build(depth)
}

pub(super) fn plain(depth: u32) -> io::Result<IoUring> {
    IoUring::new(depth)
}

/// A sandbox may allow a ring to be made but not to be used.
fn proven(mut ring: IoUring) -> io::Result<IoUring> {
    // SAFETY: an empty operation holds no address.
    let pushed = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
    pushed.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    let answer = ring.completion().next().map(|completion| completion.result());
    match answer {
        Some(0) => Ok(ring),
        Some(error) => Err(io::Error::from_raw_os_error(-error)),
        None => Err(io::Error::other("io_uring did not complete an empty operation")),
    }
}
