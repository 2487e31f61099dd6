//! Chains of work requests, in the form a driver takes them: one call for all that a queue pair has
//! to post, which is one doorbell. The arrays are made once; a request keeps its place from when it
//! is queued until it is posted.

use super::super::{DownCause, RemoteSlice};
use super::objects::{REMOTE_READ, REMOTE_WRITE};
use crate::sys::journal::event;
use rdma_sys::*;
use std::ffi::c_int;
use std::io;
use std::ptr::{NonNull, null_mut};

type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
type PostRecv = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) first: NonNull<u8>,
    pub(super) bytes: u32,
    pub(super) key: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Sends a message; `inline`: its bytes are copied when it is posted.
    Send { message: Piece, inline: bool, invalidate: Option<u32> },
    /// Fetches the peer's memory.
    Read { from: RemoteSlice, into: Piece },
    /// Writes the peer's memory.
    Write { from: Piece, to: RemoteSlice },
    /// Gives a memory window its key and its memory.
    Bind(Binding),
    /// Ends a key of this side.
    Invalidate { key: u32 },
    /// Writes nothing, nowhere: its completion says that all before it is done.
    Mark,
}

impl Operation {
    /// Bytes of memory that the device reads after the request was posted.
    #[inline]
    pub(super) fn source_bytes(&self) -> u32 {
        match self {
            Self::Send { message, inline: false, .. } => message.bytes,
            Self::Write { from, .. } => from.bytes,
            Self::Send { inline: true, .. }
            | Self::Read { .. }
            | Self::Bind(_)
            | Self::Invalidate { .. }
            | Self::Mark => 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Binding {
    pub(super) window: *mut ibv_mw,
    pub(super) region: *mut ibv_mr,
    pub(super) key: u32,
    pub(super) first: u64,
    pub(super) bytes: u64,
    /// The peer may write, and not read; or read, and not write.
    pub(super) is_writable: bool,
}

#[derive(Debug)]
pub(super) struct NotPosted {
    pub(super) posted: u32,
    /// `OutOfMemory`: the queue of the device is full, for now.
    pub(super) error: io::Error,
}

impl NotPosted {
    /// Returns true if the rest can be posted later, as the device is full for now; otherwise the connection has ended.
    /// A queue cannot be full if nothing `is_outstanding` in it: then the request would be refused for ever.
    #[cold]
    pub(super) fn still_alive(&self, is_outstanding: bool) -> Result<bool, DownCause> {
        if self.error.raw_os_error() == Some(libc::ENOMEM) && is_outstanding {
            return Ok(true);
        }
        event!(DEBUG, error = %self.error, "a device refused a work request");
        Err(self.cause())
    }

    /// siw refuses by ENOTCONN once the peer has gone, on a busy host long before the connection manager tells of it.
    fn cause(&self) -> DownCause {
        match self.error.raw_os_error() {
            Some(libc::ENOTCONN) => DownCause::PeerDied,
            _ => DownCause::DeviceFailed,
        }
    }
}

pub(super) struct SendChain {
    post: PostSend,
    requests: Vec<ibv_send_wr>,
    pieces: Vec<ibv_sge>,
}

impl SendChain {
    /// `places` is a power of two. `None` if the driver of the queue pair posts nothing.
    ///
    /// # Safety
    /// `qp` is alive.
    pub(super) unsafe fn new(qp: NonNull<ibv_qp>, places: usize) -> Option<Self> {
        // SAFETY: the caller vouches for the queue pair, which keeps its context open.
        let post = unsafe { (*qp.as_ref().context).ops.post_send }?;
        let requests = (0..places).map(|_| blank_send()).collect();
        Some(Self { post, requests, pieces: vec![NO_PIECE; places] })
    }

    #[inline]
    pub(super) fn set(&mut self, place: usize, id: u64, signalled: bool, operation: &Operation) {
        let request = &mut self.requests[place];
        request.wr_id = id;
        request.send_flags = if signalled { ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
        request.num_sge = 0;
        // irdma takes the first piece of an RDMA Write whatever their number is, and cxgb4 reads its length.
        self.pieces[place] = NO_PIECE;
        // rxe refuses to bind a window if a key of an earlier request is left here.
        request.imm_data_invalidated_rkey_union.invalidated_rkey = 0;
        match *operation {
            Operation::Send { message, inline, invalidate } => {
                request.opcode = ibv_wr_opcode::IBV_WR_SEND;
                if let Some(key) = invalidate {
                    request.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_INV;
                    request.imm_data_invalidated_rkey_union.invalidated_rkey = key;
                }
                if inline {
                    request.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
                }
                self.set_piece(place, message, false);
            }
            Operation::Read { from, into } => {
                request.opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
                request.wr.rdma = rdma_t { remote_addr: from.offset, rkey: from.handle };
                // Even one of nothing names its memory: drivers of iWARP want just one piece.
                self.set_piece(place, into, true);
            }
            Operation::Write { from, to } => {
                request.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
                request.wr.rdma = rdma_t { remote_addr: to.offset, rkey: to.handle };
                self.set_piece(place, from, false);
            }
            Operation::Bind(binding) => {
                request.opcode = ibv_wr_opcode::IBV_WR_BIND_MW;
                request.bind_mw_tso_union.bind_mw = binding.into();
            }
            Operation::Invalidate { key } => {
                request.opcode = ibv_wr_opcode::IBV_WR_LOCAL_INV;
                request.imm_data_invalidated_rkey_union.invalidated_rkey = key;
            }
            Operation::Mark => {
                request.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
                request.wr.rdma = rdma_t { remote_addr: 0, rkey: 0 };
            }
        }
    }

    /// As [`SendChain::set`] and [`SendChain::post`], for a message that is copied: number, if signalled, at least a byte.
    ///
    /// # Safety
    /// `qp` is alive and the one this was made for, and the message is valid for reads.
    #[inline]
    pub(super) unsafe fn post_short(
        &mut self,
        qp: NonNull<ibv_qp>,
        place: usize,
        (id, is_signalled, message): (u64, bool, Piece),
    ) -> Result<(), NotPosted> {
        self.pieces[place] = message.into();
        let request = &mut self.requests[place];
        request.wr_id = id;
        request.next = null_mut();
        request.sg_list = &raw mut self.pieces[place];
        request.num_sge = 1;
        request.opcode = ibv_wr_opcode::IBV_WR_SEND;
        let signalled = if is_signalled { ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
        request.send_flags = ibv_send_flags::IBV_SEND_INLINE.0 | signalled;
        request.imm_data_invalidated_rkey_union.invalidated_rkey = 0;
        let mut bad = null_mut();
        // SAFETY: the request was just filled in, and the caller vouches for the rest.
        let error = unsafe { (self.post)(qp.as_ptr(), request, &mut bad) };
        if error == 0 { Ok(()) } else { Err(not_posted(error, request, bad, 1, |bad| bad)) }
    }

    #[inline]
    fn set_piece(&mut self, place: usize, piece: Piece, even_if_empty: bool) {
        if piece.bytes > 0 || even_if_empty {
            self.pieces[place] = piece.into();
            self.requests[place].num_sge = 1;
        }
    }

    /// A doorbell; on some devices a system call.
    ///
    /// # Safety
    /// `qp` is alive and the one this was made for. The memory that the requests name stays as it is
    /// registered, and is the device's alone as far as it writes there, until they have completed or
    /// the queue pair is destroyed.
    #[inline]
    pub(super) unsafe fn post(
        &mut self,
        qp: NonNull<ibv_qp>,
        first: usize,
        count: u32,
    ) -> Result<(), NotPosted> {
        let mask = self.requests.len() - 1;
        let (requests, pieces) = (self.requests.as_mut_ptr(), self.pieces.as_mut_ptr());
        for ahead in 0..count as usize {
            let (place, next) = ((first + ahead) & mask, (first + ahead + 1) & mask);
            let is_last = ahead + 1 == count as usize;
            // SAFETY: places are below the number of requests and of pieces, which are equal.
            unsafe {
                (*requests.add(place)).sg_list = pieces.add(place);
                (*requests.add(place)).next = if is_last { null_mut() } else { requests.add(next) };
            }
        }
        let mut bad = null_mut();
        // SAFETY: the chain was just made of live requests, and the caller vouches for the rest.
        let error = unsafe { (self.post)(qp.as_ptr(), requests.add(first & mask), &mut bad) };
        match error {
            0 => Ok(()),
            error => {
                Err(not_posted(error, requests, bad, count, |bad| bad.wrapping_sub(first) & mask))
            }
        }
    }
}

pub(super) struct RecvChain {
    post: PostRecv,
    requests: Vec<ibv_recv_wr>,
    pieces: Vec<ibv_sge>,
}

impl RecvChain {
    /// `None` if the driver of the queue pair posts nothing.
    ///
    /// # Safety
    /// `qp` is alive.
    pub(super) unsafe fn new(qp: NonNull<ibv_qp>, places: usize) -> Option<Self> {
        // SAFETY: the caller vouches for the queue pair, which keeps its context open.
        let post = unsafe { (*qp.as_ref().context).ops.post_recv }?;
        let blank = || ibv_recv_wr { wr_id: 0, next: null_mut(), sg_list: null_mut(), num_sge: 1 };
        let requests = (0..places).map(|_| blank()).collect();
        Some(Self { post, requests, pieces: vec![NO_PIECE; places] })
    }

    #[inline]
    pub(super) fn set(&mut self, place: u32, id: u64, piece: Piece) {
        let place = place as usize;
        self.pieces[place] = piece.into();
        self.requests[place].wr_id = id;
    }

    /// # Safety
    /// As for [`SendChain::post`].
    pub(super) unsafe fn post(
        &mut self,
        qp: NonNull<ibv_qp>,
        places: &[u32],
    ) -> Result<(), NotPosted> {
        let (requests, pieces) = (self.requests.as_mut_ptr(), self.pieces.as_mut_ptr());
        let nothing = null_mut::<ibv_recv_wr>();
        let mut next = nothing;
        for place in places.iter().rev().map(|place| *place as usize) {
            // SAFETY: places are those that `set` was given, which checks them.
            unsafe {
                (*requests.add(place)).sg_list = pieces.add(place);
                (*requests.add(place)).next = next;
                next = requests.add(place);
            }
        }
        let mut bad = nothing;
        // SAFETY: the chain was just made of live requests, and the caller vouches for the rest.
        let error = unsafe { (self.post)(qp.as_ptr(), next, &mut bad) };
        match error {
            0 => Ok(()),
            error => Err(not_posted(error, requests, bad, places.len() as u32, |bad| {
                places.iter().position(|place| *place as usize == bad).unwrap_or(places.len())
            })),
        }
    }
}

/// Meaning of a driver's error: the request it names was not taken, nor any after it. Some drivers
/// name none when the doorbell failed: then all were taken, and come back when the queue pair ends.
fn not_posted<T>(
    error: c_int,
    requests: *const T,
    bad: *const T,
    count: u32,
    ahead: impl Fn(usize) -> usize,
) -> NotPosted {
    let error = io::Error::from_raw_os_error(error.abs());
    let bad = (!bad.is_null()).then(|| (bad.addr() - requests.addr()) / size_of::<T>());
    let posted = bad.map_or(count, |bad| ahead(bad).min(count as usize) as u32);
    NotPosted { posted, error }
}

const NO_PIECE: ibv_sge = ibv_sge { addr: 0, length: 0, lkey: 0 };

impl From<Piece> for ibv_sge {
    #[inline]
    fn from(piece: Piece) -> Self {
        let addr = piece.first.as_ptr().expose_provenance() as u64;
        Self { addr, length: piece.bytes, lkey: piece.key }
    }
}

impl From<Binding> for bind_mw_t {
    fn from(binding: Binding) -> Self {
        let right = if binding.is_writable { REMOTE_WRITE } else { REMOTE_READ };
        let bind_info = ibv_mw_bind_info {
            mr: binding.region,
            addr: binding.first,
            length: binding.bytes,
            mw_access_flags: right,
        };
        Self { mw: binding.window, rkey: binding.key, bind_info }
    }
}

fn blank_send() -> ibv_send_wr {
    // SAFETY: a structure of integers, null pointers, and unions of such.
    unsafe { std::mem::zeroed() }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// A request as a driver sees it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Seen {
        id: u64,
        opcode: u32,
        flags: u32,
        pieces: c_int,
        remote: u64,
        invalidated: u32,
    }

    thread_local! {
        static SEEN: RefCell<Vec<Seen>> = const { RefCell::new(Vec::new()) };
        /// Requests the driver takes before it says that it is full.
        static ROOM: std::cell::Cell<usize> = const { std::cell::Cell::new(usize::MAX) };
    }

    /// A driver without a device.
    ///
    /// # Safety
    /// `next` leads to a chain of live requests that ends with null, and `bad` has room for a pointer.
    unsafe extern "C" fn record_sends(
        _: *mut ibv_qp,
        mut next: *mut ibv_send_wr,
        bad: *mut *mut ibv_send_wr,
    ) -> c_int {
        while !next.is_null() {
            if SEEN.with_borrow(Vec::len) == ROOM.get() {
                // SAFETY: the caller has a place for it.
                unsafe { *bad = next };
                return libc::ENOMEM;
            }
            // SAFETY: the chain is made of live requests; all of them are initialised.
            let seen = unsafe {
                let request = &*next;
                next = request.next;
                Seen {
                    id: request.wr_id,
                    opcode: request.opcode,
                    flags: request.send_flags,
                    pieces: request.num_sge,
                    remote: request.wr.rdma.remote_addr,
                    invalidated: request.imm_data_invalidated_rkey_union.invalidated_rkey,
                }
            };
            SEEN.with_borrow_mut(|all| all.push(seen));
        }
        0
    }

    fn chain(places: usize) -> SendChain {
        let requests = (0..places).map(|_| blank_send()).collect();
        SendChain { post: record_sends, requests, pieces: vec![NO_PIECE; places] }
    }

    fn piece(bytes: u32) -> Piece {
        Piece { first: NonNull::dangling(), bytes, key: 7 }
    }

    fn post(chain: &mut SendChain, first: usize, count: u32) -> (Result<(), NotPosted>, Vec<Seen>) {
        SEEN.with_borrow_mut(Vec::clear);
        // SAFETY: the recording driver looks at no queue pair and at no memory.
        let result = unsafe { chain.post(NonNull::dangling(), first, count) };
        (result, SEEN.with_borrow(Clone::clone))
    }

    #[test]
    fn a_chain_runs_on_from_the_last_place_to_the_first_and_ends_where_it_is_told() {
        let mut chain = chain(4);
        for place in 0..4 {
            let message = piece(8);
            let send = Operation::Send { message, inline: place == 0, invalidate: None };
            chain.set(place, place as u64, place == 1, &send);
        }
        ROOM.set(usize::MAX);
        let (result, seen) = post(&mut chain, 2, 4);
        assert!(result.is_ok());
        let ids: Vec<_> = seen.iter().map(|seen| seen.id).collect();
        assert_eq!(ids, [2, 3, 0, 1]);
        let flags: Vec<_> = seen.iter().map(|seen| seen.flags).collect();
        let (signalled, inline) =
            (ibv_send_flags::IBV_SEND_SIGNALED.0, ibv_send_flags::IBV_SEND_INLINE.0);
        assert_eq!(flags, [0, 0, inline, signalled]);
        assert_eq!(post(&mut chain, 3, 1).1.len(), 1);
    }

    #[test]
    fn a_device_reads_the_sources_of_messages_and_of_writes_that_are_not_copied() {
        let (message, remote) = (piece(4096), RemoteSlice { handle: 3, length: 4096, offset: 0 });
        let send = |inline| Operation::Send { message, inline, invalidate: None };
        assert_eq!(send(false).source_bytes(), 4096);
        assert_eq!(send(true).source_bytes(), 0);
        assert_eq!(Operation::Write { from: piece(4095), to: remote }.source_bytes(), 4095);
        assert_eq!(Operation::Read { from: remote, into: piece(4096) }.source_bytes(), 0);
        assert_eq!(Operation::Mark.source_bytes(), 0);
    }

    #[test]
    fn a_driver_that_is_full_has_taken_what_came_before() {
        let mut chain = chain(4);
        ROOM.set(2);
        let (result, seen) = post(&mut chain, 3, 3);
        let refused = result.unwrap_err();
        assert_eq!((refused.posted, refused.still_alive(true), seen.len()), (2, Ok(true), 2));
    }

    #[test]
    fn a_device_that_is_not_connected_any_more_has_not_failed() {
        let cause =
            |errno| NotPosted { posted: 0, error: io::Error::from_raw_os_error(errno) }.cause();
        assert_eq!(cause(libc::ENOTCONN), DownCause::PeerDied);
        assert_eq!(cause(libc::EINVAL), DownCause::DeviceFailed);
    }

    /// Post a short message in the place of a request with a key. Expect the same request as of `set` and `post`.
    #[test]
    fn a_short_message_is_posted_like_any_inline_send() {
        ROOM.set(usize::MAX);
        let message = piece(68);
        let send = Operation::Send { message, inline: true, invalidate: None };
        for is_signalled in [false, true] {
            let mut chain = chain(4);
            chain.set(2, 5, is_signalled, &send);
            let expected = post(&mut chain, 2, 1).1;
            chain.set(2, 4, true, &Operation::Invalidate { key: 9 });
            chain.set(1, 3, true, &send);
            assert!(post(&mut chain, 1, 2).0.is_ok());
            SEEN.with_borrow_mut(Vec::clear);
            let request = (5, is_signalled, message);
            // SAFETY: the recording driver looks at no queue pair and at no memory.
            let result = unsafe { chain.post_short(NonNull::dangling(), 2, request) };
            assert!(result.is_ok());
            assert_eq!(SEEN.with_borrow(Clone::clone), expected);
            assert_eq!((chain.pieces[2].length, chain.pieces[2].lkey), (68, 7));
        }
    }

    #[test]
    fn a_short_message_that_the_driver_has_no_room_for_was_not_posted() {
        SEEN.with_borrow_mut(Vec::clear);
        ROOM.set(0);
        let mut chain = chain(4);
        // SAFETY: as above.
        let result = unsafe { chain.post_short(NonNull::dangling(), 3, (5, false, piece(68))) };
        let refused = result.unwrap_err();
        assert_eq!((refused.posted, refused.still_alive(true)), (0, Ok(true)));
        let empty = refused.still_alive(false);
        assert_eq!(empty, Err(DownCause::DeviceFailed), "an empty queue is not full");
    }

    #[test]
    fn a_request_keeps_no_key_of_the_one_before_it_in_its_place() {
        let mut chain = chain(4);
        ROOM.set(usize::MAX);
        chain.set(0, 0, false, &Operation::Invalidate { key: 9 });
        assert_eq!(post(&mut chain, 0, 1).1[0].invalidated, 9);
        chain.set(0, 1, false, &Operation::Mark);
        assert_eq!(post(&mut chain, 0, 1).1[0].invalidated, 0);
    }

    /// Post requests without a piece of memory in places that had one. Expect a piece of nothing: irdma and cxgb4 read the
    /// first piece of an RDMA Write whatever their number is.
    #[test]
    fn a_request_without_a_piece_has_none_of_the_one_before_it_in_its_place() {
        ROOM.set(usize::MAX);
        let remote = RemoteSlice { handle: 3, length: 0, offset: 1 << 40 };
        let binding = Binding {
            window: null_mut(),
            region: null_mut(),
            key: 1,
            first: 0,
            bytes: 1,
            is_writable: false,
        };
        let empty = [
            Operation::Mark,
            Operation::Write { from: piece(0), to: remote },
            Operation::Send { message: piece(0), inline: false, invalidate: None },
            Operation::Send { message: piece(0), inline: false, invalidate: Some(9) },
            Operation::Invalidate { key: 9 },
            Operation::Bind(binding),
        ];
        let mut chain = chain(1);
        for operation in empty {
            let message = piece(4096);
            chain.set(0, 0, false, &Operation::Send { message, inline: false, invalidate: None });
            assert_eq!(post(&mut chain, 0, 1).1[0].pieces, 1);
            chain.set(0, 1, true, &operation);
            let seen = post(&mut chain, 0, 1).1[0];
            assert_eq!(seen.pieces, 0, "{operation:?}");
            let kept = &chain.pieces[0];
            assert_eq!((kept.addr, kept.length, kept.lkey), (0, 0, 0), "{operation:?}");
        }
    }

    #[test]
    fn transfers_of_nothing_name_memory_only_where_they_must() {
        let mut chain = chain(4);
        let remote = RemoteSlice { handle: 3, length: 0, offset: 1 << 40 };
        chain.set(0, 0, true, &Operation::Read { from: remote, into: piece(0) });
        chain.set(1, 1, false, &Operation::Write { from: piece(0), to: remote });
        let send = Operation::Send { message: piece(0), inline: false, invalidate: Some(9) };
        chain.set(2, 2, false, &send);
        ROOM.set(usize::MAX);
        let (_, seen) = post(&mut chain, 0, 3);
        let shape: Vec<_> = seen.iter().map(|seen| (seen.opcode, seen.pieces)).collect();
        let expected = [
            (ibv_wr_opcode::IBV_WR_RDMA_READ, 1),
            (ibv_wr_opcode::IBV_WR_RDMA_WRITE, 0),
            (ibv_wr_opcode::IBV_WR_SEND_WITH_INV, 0),
        ];
        assert_eq!(shape, expected);
        assert_eq!((seen[0].remote, seen[1].remote), (1 << 40, 1 << 40));
    }
}
