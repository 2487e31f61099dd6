//! Reads, writes and syncs of files through io_uring, polled by the thread that owns the ring.
//!
//! For storage services on a polling core. Only dropping a ring with outstanding operations waits in
//! a system call. May use std, libc and io-uring. An operation owns its file and its buffer, in a
//! slot of the ring, until the kernel no longer uses them: that makes it safe to pass their
//! addresses and numbers to the kernel.

mod operation;
mod setup;

pub(crate) use operation::Work;

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, SubmissionQueue, opcode};
use operation::{Operation, Step};
use setup::OWN;
use slab::Slab;
use std::io;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A buffer whose bytes stay where they are, and belong to it alone, while a [`FileRing`] has it.
///
/// # Safety
/// From one call of [`StableBytes::stable_bytes`] to the next, or to the drop of the value, the
/// bytes it returned are valid at the same address, wherever the value is moved meanwhile, and no
/// other code reads or writes them. If the value is leaked, that holds forever: a type that borrows
/// its bytes cannot implement this.
pub(crate) unsafe trait StableBytes {
    /// The bytes to fill or to write out: all of them.
    ///
    /// # Panics
    /// It may, but not any more once a call has returned.
    fn stable_bytes(&mut self) -> &mut [u8];
}

/// Most operations a ring can have outstanding, the kernel's limit (`IORING_MAX_ENTRIES`).
pub(crate) const DEPTH_MAX: u32 = 32_768;

/// Length in bytes from which a read or write is left to a thread of the kernel.
// Measured with reads of ext4's page cache (Linux 6.18, two virtual CPUs, both busy with other work).
// Performed by the polling thread, a read takes 0.6 to 2 us at 4 KiB, 5 at 128 KiB, 16 at 512 KiB and
// 34 at 1 MiB; queued reads add up. Passing one to a worker costs the polling thread 6 to 9 us. It
// delays a small read by 8 us, and a large one by 30 or more. So a worker gets an operation that
// takes about twice as long as passing it on. For buffered writes of ext4 there was no difference.
const WORKER_FROM_BYTES: usize = 512 << 10;

/// Data on stable storage when a write or a sync is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// The data, and the metadata needed to read them back (fdatasync, `RWF_DSYNC`).
    Data,
    /// The data and all metadata of the file (fsync, `RWF_SYNC`).
    File,
}

#[derive(Debug)]
pub(crate) struct Done<B, T> {
    /// The caller's name for it.
    pub token: T,
    /// The buffer; none for a sync.
    pub buffer: Option<B>,
    /// Bytes that were read or written, from the start of the buffer, including those before an
    /// error. After a durable write, all of them are durable.
    pub bytes: usize,
    /// Result of the operation. A successful read of fewer bytes than its buffer has reached the end
    /// of the file; a successful write wrote all.
    pub result: io::Result<()>,
}

/// The number of outstanding operations has reached the depth; nothing was queued.
#[derive(Debug)]
pub(crate) struct Full;

/// A queue of file operations with buffers of type `B`, each named by a token of type `T`.
///
/// [`queue`](Self::queue) queues operations. [`poll`](Self::poll) submits them to the kernel, and returns completed ones.
/// Queueing neither makes a system call nor allocates.
/// Operations run in any order: queue one that must come after another when that one is done.
///
/// The ring stays on the thread that created it (it is not `Send`): the kernel then needs no locks,
/// and completes operations when this thread asks, without interrupting it. Its thread never sleeps while operations are
/// outstanding.
///
/// Dropping it cancels outstanding operations and waits, in the kernel, until none of them can
/// access a buffer; that takes as long as the slowest disk being read or written. The buffers and
/// tokens are dropped.
pub(crate) struct FileRing<B: StableBytes, T> {
    ring: IoUring,
    /// Credentials for a write as the user nobody, if they are available.
    nobody: Option<u16>,
    /// By the `user_data` of requests. Dropped only when the kernel uses nothing in it any more.
    slots: ManuallyDrop<Slab<Operation<B, T>>>,
    depth: usize,
    worker_from_bytes: usize,
    not_send: PhantomData<*const ()>,
}

impl<B: StableBytes, T> FileRing<B, T> {
    /// A ring for at most `depth` operations at a time, which has proved by an empty operation that
    /// it works. Needs Linux 5.15. Allocates and makes system calls.
    ///
    /// # Errors
    /// `InvalidInput` for a depth of 0 or more than [`DEPTH_MAX`]. Any other error means that
    /// io_uring cannot be used here, and the caller falls back to threads:
    /// * `PermissionDenied` (EPERM): denied by seccomp, as in the profiles of docker and podman, or
    ///   by sysctl `kernel.io_uring_disabled`;
    /// * `Unsupported` (ENOSYS): the kernel was built without it, or a sandbox hides it;
    /// * `OutOfMemory` or EMFILE: not enough memory or descriptors.
    pub(crate) fn new(depth: u32) -> io::Result<Self> {
        check_depth(depth)?;
        Ok(Self::over(setup::working_ring(depth)?, None, depth))
    }

    /// Like [`new`](Self::new), for a thread with rights that some of its writes must not have.
    /// Where that is possible, as it is for root, the ring can [write as the user
    /// nobody](Work::WriteAsNobody). Waits for a thread that it starts.
    pub(crate) fn with_nobody(depth: u32) -> io::Result<Self> {
        check_depth(depth)?;
        match setup::working_ring_with_nobody(depth) {
            Ok((ring, nobody)) => Ok(Self::over(ring, Some(nobody), depth)),
            Err(_) => Self::new(depth),
        }
    }

    fn over(ring: IoUring, nobody: Option<u16>, depth: u32) -> Self {
        let depth = depth as usize;
        let slots = ManuallyDrop::new(Slab::with_capacity(depth));
        let worker_from_bytes = WORKER_FROM_BYTES;
        Self { ring, nobody, slots, depth, worker_from_bytes, not_send: PhantomData }
    }

    pub(crate) fn has_nobody(&self) -> bool {
        self.nobody.is_some()
    }

    /// Leaves reads and writes of at least this many bytes to a thread of the kernel from the start.
    /// Smaller ones are done within [`poll`](Self::poll) if that takes no waiting, which is quicker
    /// for them, but nothing else is served while their bytes are copied. Without a spare CPU for
    /// the kernel's threads, that is better at every size: `usize::MAX`. Durable writes and syncs,
    /// which wait for the disk, are left to them in any case.
    #[cfg(test)]
    pub(crate) fn set_worker_from_bytes(&mut self, bytes: usize) {
        self.worker_from_bytes = bytes;
    }

    #[cfg(test)]
    pub(crate) fn outstanding(&self) -> usize {
        self.slots.len()
    }

    /// Queues an operation; a read or write begins at `offset` (in bytes). A read is done when the buffer is full, at the
    /// end of the file, or with an error, and a write when all of the buffer is written, or with an error. An offset above
    /// the maximum of files (2^63 - 1) fails with EINVAL when it is done. A sync has no buffer.
    ///
    /// # Errors
    /// [`Full`].
    ///
    /// # Panics
    /// If the buffer says so: a [`Bulk`](spinrpc::mem::Bulk) with a lease out.
    pub(crate) fn queue(
        &mut self,
        work: Work,
        file: Arc<OwnedFd>,
        offset: u64,
        mut buffer: Option<B>,
        token: T,
    ) -> Result<(), Full> {
        if self.slots.len() == self.depth {
            return Err(Full);
        }
        let mut by_worker = work.may_sync();
        if let Some(buffer) = &mut buffer {
            // Before the buffer is in a slot, because this may panic.
            by_worker |= buffer.stable_bytes().len() >= self.worker_from_bytes;
        }
        let personality = match work {
            Work::WriteAsNobody(_) => self.nobody.unwrap_or(NEVER_GIVEN),
            Work::Read | Work::Write(_) | Work::Sync(_) => OWN,
        };
        let vacancy = self.slots.vacant_entry();
        let key = vacancy.key();
        let operation = vacancy.insert(Operation {
            work,
            file,
            buffer,
            token,
            offset,
            done_bytes: 0,
            by_worker,
            personality,
        });
        push(&mut self.ring.submission(), key, operation);
        Ok(())
    }

    /// Submits queued operations to the kernel and passes each completed one to `done`. Returns
    /// their number. It makes one system call if something was queued or the kernel has completions
    /// to post, and otherwise reads a few words of memory that is shared with the kernel.
    ///
    /// # Errors
    /// The error of io_uring_enter(2), except for a lack of resources, which may be over at the
    /// next poll. Drop the ring then. No cause is known once [`new`](Self::new) has found that the
    /// ring works.
    pub(crate) fn poll(&mut self, mut done: impl FnMut(Done<B, T>)) -> io::Result<usize> {
        if self.slots.is_empty() {
            return Ok(0);
        }
        enter(&mut self.ring)?;
        let mut handed_back = 0;
        let (_, mut queue, completions) = self.ring.split();
        for completion in completions {
            let key = completion.user_data() as usize;
            let Some(operation) = self.slots.get_mut(key) else { continue };
            match operation.advance(completion.result()) {
                Step::Again => push(&mut queue, key, operation),
                Step::Finished(result) => {
                    handed_back += 1;
                    done(self.slots.remove(key).into_done(result));
                }
            }
        }
        Ok(handed_back)
    }

    /// Returns when the kernel has ended every operation. Runs no code of the caller: it could
    /// panic while the kernel still uses buffers.
    fn cancel_all(&mut self) -> io::Result<()> {
        let mut left = self.slots.len();
        while left > 0 {
            enter(&mut self.ring)?;
            self.push_cancels();
            // A cancel does not find a request that moves between queues of the kernel at that
            // moment, so all are cancelled again after a while.
            while left > 0 && wait(&mut self.ring)? {
                let keys = self.ring.completion().map(|answer| answer.user_data() as usize);
                left -= keys.filter(|key| self.slots.contains(*key)).count();
            }
        }
        Ok(())
    }

    /// One for each operation, done or not; cancelling one that is done does nothing.
    fn push_cancels(&mut self) {
        let mut queue = self.ring.submission();
        for (key, _) in self.slots.iter() {
            let entry = opcode::AsyncCancel::new(key as u64).build();
            // SAFETY: a cancel holds no address. One that does not fit is left for the next time.
            let _ = unsafe { queue.push(&entry.user_data(CANCEL_USER_DATA)) };
        }
    }
}

impl<B: StableBytes, T> Drop for FileRing<B, T> {
    fn drop(&mut self) {
        if self.cancel_all().is_ok() {
            // SAFETY: only this drops them, and the ring is not used afterwards. The kernel uses
            // them no longer; if that is not known, they are leaked.
            unsafe { ManuallyDrop::drop(&mut self.slots) }
        }
    }
}

/// Names no slot: there are at most [`DEPTH_MAX`].
const CANCEL_USER_DATA: u64 = u64::MAX;

/// A personality that the kernel does not know: it counts them up from 1, and a ring has one.
const NEVER_GIVEN: u16 = u16::MAX;

fn check_depth(depth: u32) -> io::Result<()> {
    let is_possible = (1..=DEPTH_MAX).contains(&depth);
    if is_possible { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

fn push<B: StableBytes, T>(
    queue: &mut SubmissionQueue<'_>,
    key: usize,
    operation: &mut Operation<B, T>,
) {
    let entry = operation.request(key);
    // SAFETY: the file and the bytes that the entry names belong to the operation. It stays in its
    // slot, and they stay as they are (`StableBytes`), until the kernel has answered this entry.
    let pushed = unsafe { queue.push(&entry) };
    debug_assert!(pushed.is_ok(), "the queue has an entry for every slot");
}

/// Lets the kernel take queued operations and post completions, if there are any.
fn enter(ring: &mut IoUring) -> io::Result<()> {
    let queue = ring.submission();
    if queue.is_empty() && !queue.taskrun() && !queue.cq_overflow() {
        return Ok(());
    }
    drop(queue);
    ring.submit().map(drop).or_else(unless_for_now)
}

/// Waits for a completion. Returns `false` if there was none for a tenth of a second.
fn wait(ring: &mut IoUring) -> io::Result<bool> {
    let patience = Timespec::new().nsec(100_000_000);
    match ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&patience)) {
        Err(error) if error.raw_os_error() == Some(libc::ETIME) => Ok(false),
        other => other.map(drop).or_else(unless_for_now).map(|()| true),
    }
}

/// Ignores a signal, and a lack of resources (io_uring_enter(2)): both pass.
fn unless_for_now(error: io::Error) -> io::Result<()> {
    match error.raw_os_error() {
        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests;
