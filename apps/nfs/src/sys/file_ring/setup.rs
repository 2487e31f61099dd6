//! Creates a ring for a single polling thread, and checks that it works.

use crate::sys::thread_identity::as_nobody;
use io_uring::{Builder, IoUring, opcode};
use std::io;

pub(super) const OWN: u16 = 0;

/// A ring with at least `depth` entries that has done an empty operation.
pub(super) fn working_ring(depth: u32) -> io::Result<IoUring> {
    let mut ring = for_one_thread(depth).or_else(unless_unknown(|| plain(depth)))?;
    prove(&mut ring, OWN)?;
    Ok(ring)
}

/// The same, and a personality without rights. The kernel takes the credentials of the thread that
/// registers the personality. Only the thread that enables a ring like ours may use it, but any
/// thread may prepare it before.
pub(super) fn working_ring_with_nobody(depth: u32) -> io::Result<(IoUring, u16)> {
    let disabled = || {
        let mut builder = IoUring::builder();
        builder.setup_r_disabled();
        builder
    };
    let ring = flags_for_one_thread(&mut disabled()).build(depth);
    let mut ring = ring.or_else(unless_unknown(|| disabled().build(depth)))?;
    let nobody = as_nobody(|| ring.submitter().register_personality())??;
    ring.submitter().register_enable_rings()?;
    prove(&mut ring, OWN)?;
    prove(&mut ring, nobody)?;
    Ok((ring, nobody))
}

/// Falls back if the kernel refused a flag because it does not know it.
fn unless_unknown(
    otherwise: impl FnOnce() -> io::Result<IoUring>,
) -> impl FnOnce(io::Error) -> io::Result<IoUring> {
    |error| match error.raw_os_error() {
        Some(libc::EINVAL) => otherwise(),
        _ => Err(error),
    }
}

pub(super) fn for_one_thread(depth: u32) -> io::Result<IoUring> {
    flags_for_one_thread(&mut IoUring::builder()).build(depth)
}

/// Completions are posted when the owning thread asks for them (Linux 6.1); without that, the
/// kernel would interrupt it. The flag tells without a system call that there is something to ask
/// for. Per operation that costs no more than a plain ring (measured: no difference beyond the
/// noise).
fn flags_for_one_thread(builder: &mut Builder) -> &mut Builder {
    builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag()
}

pub(super) fn plain(depth: u32) -> io::Result<IoUring> {
    IoUring::new(depth)
}

/// A sandbox may allow a ring to be made but not to be used, or not with a personality.
fn prove(ring: &mut IoUring, personality: u16) -> io::Result<()> {
    let empty = opcode::Nop::new().build().personality(personality);
    // SAFETY: an empty operation holds no address.
    let pushed = unsafe { ring.submission().push(&empty) };
    pushed.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    let answer = ring.completion().next().map(|completion| completion.result());
    match answer {
        Some(0) => Ok(()),
        Some(error) => Err(io::Error::from_raw_os_error(-error)),
        None => Err(io::Error::other("io_uring did not complete an empty operation")),
    }
}
