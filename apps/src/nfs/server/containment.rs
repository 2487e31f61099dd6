//! Keeps a panic of a back end to the call that it fell into: neither a thread nor a core ends by it.
//! Called by `procedures`, `pool`, and the back ends' own threads.

use super::file_system::Outcome;
use crate::nfs::protocol::Nfsstat3;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// The result of `work`, NFS3ERR_SERVERFAULT if it panics. The place is on standard error each time;
/// what became of it is said once, as a client may know how to have it happen again.
///
/// Changes that the work has made stay. A call that changes that again finds it as after an error.
pub(super) fn contained<T>(work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    static SAID: Once = Once::new();
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        SAID.call_once(|| tracing::error!("a panic: its call fails with NFS3ERR_SERVERFAULT"));
        Err(Nfsstat3::Nfs3errServerfault)
    })
}
