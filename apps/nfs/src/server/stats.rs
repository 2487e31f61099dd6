//! Counters of a server. Every thread that answers calls has its own counters, which only it
//! writes; readers add them up.

use crate::nfs3::PROCEDURES;
use crate::protocol::{Nfsstat3, ProcedureId};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one procedure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcedureStats {
    /// Calls received.
    pub calls: u64,
    /// Calls answered with a status other than NFS3_OK.
    pub errors: u64,
}

/// Counters since the server started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// By procedure number.
    pub procedures: [ProcedureStats; PROCEDURES],
    /// Bytes returned by READ.
    pub bytes_read: u64,
    /// Bytes accepted by WRITE.
    pub bytes_written: u64,
    /// NFS3ERR_JUKEBOX answers: a resource was exhausted.
    pub jukebox: u64,
    /// Handles that this server did not make (NFS3ERR_BADHANDLE).
    pub bad_handles: u64,
    /// Calls denied because of their credential.
    pub denied: u64,
    /// Calls with malformed arguments.
    pub garbage: u64,
}

/// A number with a single writer and any readers.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    /// Relaxed, without read-modify-write: there is one writer, and readers only need a recent
    /// value.
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
