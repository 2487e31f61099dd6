//! Counters of a server. Every thread that answers calls has counters of its own, which it alone
//! writes; whoever wants to know adds them up.

use crate::nfs::nfs3::PROCEDURES;
use crate::nfs::protocol::{Nfsstat3, ProcedureId};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of one procedure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcedureStats {
    /// Calls that came in.
    pub calls: u64,
    /// Those that were answered with a status other than NFS3_OK.
    pub errors: u64,
}

/// Counts since the server started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// By procedure number.
    pub procedures: [ProcedureStats; PROCEDURES],
    /// Bytes that READ gave.
    pub bytes_read: u64,
    /// Bytes that WRITE took.
    pub bytes_written: u64,
    /// Answers NFS3ERR_JUKEBOX: something was full.
    pub jukebox: u64,
    /// Handles that this server did not make (NFS3ERR_BADHANDLE).
    pub bad_handles: u64,
    /// Calls that were denied for their credential.
    pub denied: u64,
    /// Calls whose arguments could not be read.
    pub garbage: u64,
}

/// A number that one thread writes, and any thread reads.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    /// Relaxed, and no read-modify-write: there is one writer, and readers want a recent value only.
    pub(super) fn add(&self, more: u64) {
        self.0.store(self.value().wrapping_add(more), Ordering::Relaxed);
    }

    fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of one thread.
#[derive(Debug, Default)]
pub(super) struct Counters {
    calls: [Counter; PROCEDURES],
    errors: [Counter; PROCEDURES],
    pub(super) bytes_read: Counter,
    pub(super) bytes_written: Counter,
    jukebox: Counter,
    bad_handles: Counter,
    pub(super) denied: Counter,
    pub(super) garbage: Counter,
}

impl Counters {
    pub(super) fn count_call(&self, operation: ProcedureId) {
        count(&self.calls, operation);
    }

    pub(super) fn count_answer(&self, operation: ProcedureId, status: Nfsstat3) {
        match status {
            Nfsstat3::Nfs3Ok => return,
            Nfsstat3::Nfs3errJukebox => self.jukebox.add(1),
            Nfsstat3::Nfs3errBadhandle => self.bad_handles.add(1),
            _ => {}
        }
        count(&self.errors, operation);
    }

    pub(super) fn add_to(&self, sum: &mut ServerStats) {
        let each = self.calls.iter().zip(&self.errors);
        for (procedure, (calls, errors)) in sum.procedures.iter_mut().zip(each) {
            procedure.calls += calls.value();
            procedure.errors += errors.value();
        }
        sum.bytes_read += self.bytes_read.value();
        sum.bytes_written += self.bytes_written.value();
        sum.jukebox += self.jukebox.value();
        sum.bad_handles += self.bad_handles.value();
        sum.denied += self.denied.value();
        sum.garbage += self.garbage.value();
    }
}

fn count(counters: &[Counter; PROCEDURES], operation: ProcedureId) {
    if let Some(counter) = counters.get(operation as usize) {
        counter.add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_threads_add_up() {
        let (core, thread) = (Counters::default(), Counters::default());
        core.count_call(ProcedureId::Nfsproc3Lookup);
        thread.count_answer(ProcedureId::Nfsproc3Lookup, Nfsstat3::Nfs3errNoent);
        thread.count_answer(ProcedureId::Nfsproc3Read, Nfsstat3::Nfs3errJukebox);
        core.bytes_read.add(7);
        let mut sum = ServerStats::default();
        core.add_to(&mut sum);
        thread.add_to(&mut sum);
        assert_eq!(sum.procedures[3], ProcedureStats { calls: 1, errors: 1 });
        assert_eq!((sum.bytes_read, sum.jukebox, sum.bad_handles), (7, 1, 0));
    }
}
