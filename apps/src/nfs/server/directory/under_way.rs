//! The syncs of one file that are under way, so that none is taken for done before it is known what
//! became of those that overlapped with it.
//!
//! The kernel tells of an error of write-back once for each open file description, and all cores and
//! threads share those of a file: of two syncs that overlap, one gets the error of what the other was to
//! bring to the disk, and that one gets none. So a sync that succeeded waits for the others to have said
//! how they ended, and fails if one of them did. It does not wait for what began behind its own end.
//!
//! Its lock is held for a few instructions, also by cores. Called by `transfer` and `tree`.

use crate::nfs::protocol::Nfsstat3;
use crate::nfs::server::file_system::Outcome;
use spinrpc::sync::lock;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// See the module.
#[derive(Default)]
pub(super) struct UnderWay {
    book: Mutex<Book>,
    ended: Condvar,
}

#[derive(Default)]
struct Book {
    /// Number that were started, which is the number of the next one.
    begun: u64,
    under_way: Vec<u64>,
    /// Number that ended with an error that may be that of another one.
    losses: u64,
}

/// A sync that is under way, until it is ended or, its result being unknown, dropped.
pub(super) struct Syncing {
    of: Arc<UnderWay>,
    number: u64,
    losses_before: u64,
}

/// Syncs that overlapped with one that ended.
pub(super) struct Overlap {
    of: Arc<UnderWay>,
    /// The number of the first one that began behind its end.
    next: u64,
    losses_before: u64,
}

impl UnderWay {
    /// Before the kernel is asked.
    pub(super) fn begin(self: &Arc<Self>) -> Syncing {
        let mut book = lock(&self.book);
        let number = book.begun;
        book.begun += 1;
        book.under_way.push(number);
        Syncing { of: Arc::clone(self), number, losses_before: book.losses }
    }
}

impl Syncing {
    /// When the kernel has answered, and its error, if that may be another's, was taken note of.
    pub(super) fn end(self, is_loss: bool) -> Overlap {
        let mut book = lock(&self.of.book);
        book.losses += u64::from(is_loss);
        Overlap { of: Arc::clone(&self.of), next: book.begun, losses_before: self.losses_before }
    }
}

impl Drop for Syncing {
    fn drop(&mut self) {
        lock(&self.of.book).under_way.retain(|number| *number != self.number);
        self.of.ended.notify_all();
    }
}

impl Overlap {
    /// Returns whether all syncs that it overlapped with have ended.
    pub(super) fn is_over(&self) -> bool {
        !self.is_open(&lock(&self.of.book))
    }

    /// Waits for that.
    pub(super) fn wait(&self) {
        let book = lock(&self.of.book);
        let over = self.of.ended.wait_while(book, |book| self.is_open(book));
        drop(over.unwrap_or_else(PoisonError::into_inner));
    }

    /// NFS3ERR_IO if the error of this sync may have been told to one that it overlapped with.
    pub(super) fn outcome(&self) -> Outcome<()> {
        match lock(&self.of.book).losses == self.losses_before {
            true => Ok(()),
            false => Err(Nfsstat3::Nfs3errIo),
        }
    }

    fn is_open(&self, book: &Book) -> bool {
        book.under_way.iter().any(|number| *number < self.next)
    }
}
