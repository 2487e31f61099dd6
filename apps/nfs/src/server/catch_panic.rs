//! Confines a panic of a back end to its call: neither a thread nor a core dies.

use super::file_system::Outcome;
use crate::protocol::Nfsstat3;
use spinrpc::sys::journal::event;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// The result of `work`, or NFS3ERR_SERVERFAULT if it panics. The location is printed to standard
/// error each time; the consequence is logged once, because a client may be able to cause more
/// panics.
///
/// Changes made by the work stay, as after an error.
pub(super) fn contained<T>(work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    static SAID: Once = Once::new();
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        SAID.call_once(|| {
            event!(
                ERROR,
                "a back end panicked: its call fails with \
                                           NFS3ERR_SERVERFAULT"
            )
        });
        Err(Nfsstat3::Nfs3errServerfault)
    })
}
