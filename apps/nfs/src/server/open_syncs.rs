//! The syncs of one file in progress, so that none counts as done before the results of overlapping
//! ones are known.
//!
//! An error of write-back is reported once per open file, which all cores and threads share: by the kernel,
//! and by libcephfs. Of two overlapping syncs, only one gets the error, although it may concern the
//! data of the other. So a successful sync waits for the results of the others, and fails if one of
//! them failed. It does not wait for syncs that started after its own end.
//!
//! The lock is held for a few instructions, also by cores.

use super::file_system::Outcome;
use crate::protocol::Nfsstat3;
use spinrpc::sync::lock;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

#[derive(Default)]
pub(super) struct OpenSyncs {
    book: Mutex<Book>,
    ended: Condvar,
}

#[derive(Default)]
struct Book {
    /// Number of started syncs, which is the number of the next one.
    begun: u64,
    numbers: Vec<u64>,
    /// Number of syncs that ended with an error that may be that of another one.
    losses: u64,
}

/// A sync in progress, until it ends or, its result being unknown, is dropped.
pub(super) struct Syncing {
    of: Arc<OpenSyncs>,
    number: u64,
    losses_before: u64,
}

/// Syncs that overlapped with one that has ended.
pub(super) struct Overlap {
    of: Arc<OpenSyncs>,
    /// The number of the first one that started after its end.
    next: u64,
    losses_before: u64,
}

impl OpenSyncs {
    /// Must come before the system call.
    pub(super) fn begin(self: &Arc<Self>) -> Syncing {
        let mut book = lock(&self.book);
        let number = book.begun;
        book.begun += 1;
        book.numbers.push(number);
        Syncing { of: Arc::clone(self), number, losses_before: book.losses }
    }
}

impl Syncing {
    /// After the system call has returned, and its error, if it may be another's, was recorded.
    pub(super) fn end(self, is_loss: bool) -> Overlap {
        let mut book = lock(&self.of.book);
        book.losses += u64::from(is_loss);
        Overlap { of: Arc::clone(&self.of), next: book.begun, losses_before: self.losses_before }
    }
}

impl Drop for Syncing {
    fn drop(&mut self) {
        lock(&self.of.book).numbers.retain(|number| *number != self.number);
        self.of.ended.notify_all();
    }
}

impl Overlap {
    pub(super) fn is_over(&self) -> bool {
        !self.is_open(&lock(&self.of.book))
    }

    pub(super) fn wait(&self) {
        let book = lock(&self.of.book);
        let over = self.of.ended.wait_while(book, |book| self.is_open(book));
        drop(over.unwrap_or_else(PoisonError::into_inner));
    }

    /// NFS3ERR_IO if an overlapping sync may have received the error of this one.
    pub(super) fn outcome(&self) -> Outcome<()> {
        match lock(&self.of.book).losses == self.losses_before {
            true => Ok(()),
            false => Err(Nfsstat3::Nfs3errIo),
        }
    }

    fn is_open(&self, book: &Book) -> bool {
        book.numbers.iter().any(|number| *number < self.next)
    }
}
