//! One read, write or sync: the next request to the kernel, and the meaning of its answer.

use super::{Done, Durability, StableBytes};
use io_uring::opcode;
use io_uring::squeue::{Entry, Flags};
use io_uring::types::{Fd, FsyncFlags};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Most bytes of one request to the kernel, which itself stops short of 2 GiB.
const REQUEST_BYTES_MAX: usize = 1 << 30;

/// Stays in its slot until the kernel has ended it, so that it is safe to pass addresses to the kernel.
pub(super) struct Operation<B, T> {
    pub(super) work: Work,
    /// The kernel looks the descriptor up when it starts the request, which may be later and on
    /// another thread: it must not be closed, and its number not used again, before the end.
    pub(super) file: Arc<OwnedFd>,
    /// `None` for a sync.
    pub(super) buffer: Option<B>,
    pub(super) token: T,
    pub(super) offset: u64,
    /// Bytes that earlier requests for this operation have moved.
    pub(super) done_bytes: usize,
    pub(super) by_worker: bool,
    /// By the number the kernel gave; 0: those of the thread that owns the ring.
    pub(super) personality: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Read,
    Write(Option<Durability>),
    /// A write without the thread's own rights, on behalf of another user: it clears the set-user-ID and set-group-ID bits
    /// of the file's mode, and cannot use blocks reserved for root. If the ring [cannot do
    /// that](super::FileRing::has_nobody), it fails with EINVAL when it is done.
    WriteAsNobody(Option<Durability>),
    /// Brings to stable storage everything that completed operations, also of others, have written to the file.
    Sync(Durability),
}

impl Work {
    /// A sync waits for the disk, on some file systems on the submitting thread, even if it is not to wait.
    pub(super) fn may_sync(self) -> bool {
        !matches!(self, Self::Read | Self::Write(None) | Self::WriteAsNobody(None))
    }
}

pub(super) enum Step {
    /// The kernel is to be asked again, for the rest.
    Again,
    Finished(io::Result<()>),
}

impl<B: StableBytes, T> Operation<B, T> {
    /// The request for the rest. It holds addresses of the buffer and the number of the file, so
    /// the operation must stay in its slot until the kernel has answered.
    pub(super) fn request(&mut self, key: usize) -> Entry {
        let fd = Fd(self.file.as_raw_fd());
        // An offset of -1 would mean the position of the open file; one less is refused like all
        // that are negative.
        let offset = self.offset.saturating_add(self.done_bytes as u64).min(u64::MAX - 1);
        let left = self.left();
        let address = left.as_mut_ptr();
        let bytes = left.len().min(REQUEST_BYTES_MAX) as u32;
        let entry = match self.work {
            Work::Read => opcode::Read::new(fd, address, bytes).offset(offset).build(),
            Work::Write(durability) | Work::WriteAsNobody(durability) => {
                let write = opcode::Write::new(fd, address, bytes).offset(offset);
                write.rw_flags(write_flags(durability)).build()
            }
            Work::Sync(durability) => opcode::Fsync::new(fd).flags(sync_flags(durability)).build(),
        };
        let flags = if self.by_worker { Flags::ASYNC } else { Flags::empty() };
        entry.flags(flags).personality(self.personality).user_data(key as u64)
    }

    pub(super) fn advance(&mut self, answer: i32) -> Step {
        let Ok(bytes) = usize::try_from(answer) else { return self.failed(-answer) };
        self.done_bytes += bytes;
        let all = self.left().is_empty();
        match self.work {
            _ if all => Step::Finished(Ok(())),
            Work::Read if bytes == 0 => Step::Finished(Ok(())),
            _ if bytes == 0 => Step::Finished(Err(io::ErrorKind::WriteZero.into())),
            _ => Step::Again,
        }
    }

    /// A request that would have to wait goes to a worker; if that gets EAGAIN, too, the file never waits.
    fn failed(&mut self, errno: i32) -> Step {
        match errno {
            libc::EINTR => Step::Again,
            libc::EAGAIN if !self.by_worker => {
                self.by_worker = true;
                Step::Again
            }
            _ => Step::Finished(Err(io::Error::from_raw_os_error(errno))),
        }
    }

    pub(super) fn into_done(self, result: io::Result<()>) -> Done<B, T> {
        Done { token: self.token, buffer: self.buffer, bytes: self.done_bytes, result }
    }

    fn left(&mut self) -> &mut [u8] {
        let bytes = self.buffer.as_mut().map_or(&mut [][..], StableBytes::stable_bytes);
        bytes.get_mut(self.done_bytes..).unwrap_or_default()
    }
}

fn write_flags(durability: Option<Durability>) -> i32 {
    match durability {
        None => 0,
        Some(Durability::Data) => libc::RWF_DSYNC,
        Some(Durability::File) => libc::RWF_SYNC,
    }
}

fn sync_flags(durability: Durability) -> FsyncFlags {
    match durability {
        Durability::Data => FsyncFlags::DATASYNC,
        Durability::File => FsyncFlags::empty(),
    }
}
