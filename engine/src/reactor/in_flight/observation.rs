//! A letter that asks a core for its state, and the answer.

use crate::fabric::Peer;
use crate::mem::ClassStats;
use crate::reactor::in_flight::slow_calls::{SLOW_CALLS_MAX, SlowCall};
use std::sync::mpsc::SyncSender;

/// Most connections that one letter inspects.
pub(in crate::reactor) const ROWS_MAX: usize = 16;

/// Number of slots after which it inspects no further connection: the time to inspect a connection grows with its
/// slots.
pub(in crate::reactor) const SLOTS_MAX: usize = 512;

/// Size classes of a core's memory; see [`memory::classes`](super::memory::classes).
pub(in crate::reactor) const CLASSES_MAX: usize = 8;

/// A request and its answer.
pub(crate) struct Observation {
    /// Core and round of the request, for the observer.
    pub(crate) core: usize,
    pub(crate) round: u64,
    /// The place of connections to look at next.
    from: usize,
    /// All connections have been seen.
    pub(crate) is_whole: bool,
    /// Connections seen.
    pub(crate) rows: Vec<ConnRow>,
    /// Blocks of the core's memory by size.
    pub(crate) memory: Vec<ClassStats>,
    /// Calls that services have deferred.
    pub(crate) deferred: usize,
    /// Calls, replies and answers that wait for memory or room.
    pub(crate) put_off: usize,
    /// The slowest calls of the last minutes.
    pub(crate) slow: Vec<SlowCall>,
    back: SyncSender<Box<Self>>,
}

/// One connection as it is now.
#[derive(Clone, Debug)]
pub(crate) struct ConnRow {
    pub(crate) place: u32,
    pub(crate) generation: u32,
    pub(crate) peer: Option<Peer>,
    /// Opened by this side.
    pub(crate) is_ours: bool,
    /// Version of RPC-over-RDMA, as in messages.
    pub(crate) version: u32,
    pub(crate) is_closing: bool,
    /// As a requester.
    pub(crate) calls_sent: u64,
    pub(crate) in_flight: u32,
    pub(crate) requested: u32,
    pub(crate) granted: u32,
    /// As a responder.
    pub(crate) calls_received: u64,
    pub(crate) in_progress: u32,
    pub(crate) grant: u32,
    pub(crate) moved: RdmaBytes,
    /// Buffers that messages are received to and sent from.
    pub(crate) receives: Buffers,
    pub(crate) sends: Buffers,
    /// Holders of blocks of registered memory.
    pub(crate) blocks: Blocks,
    /// The connection's own registered memory: bytes of blocks in use, and of all blocks.
    pub(crate) memory: Option<(usize, usize)>,
}

/// One pool of message buffers of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffers {
    pub(crate) buf_bytes: usize,
    pub(crate) total: usize,
    /// In the pool.
    pub(crate) free: usize,
    /// Receives: held by calls and replies in progress. Sends: promised to deferred calls, and still in the pool.
    pub(crate) kept: usize,
}

/// Blocks of registered memory that a connection holds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Blocks {
    /// For calls in flight: arguments, results, replies.
    pub(crate) calls: usize,
    /// For calls received whose arguments are fetched.
    pub(crate) fetches: usize,
    /// For replies that are fetched.
    pub(crate) pulls: usize,
    /// For replies that the client fetches, one for each key.
    pub(crate) exports: usize,
}

impl Observation {
    /// The next place to look at, of this number of places of connections.
    pub(in crate::reactor) fn next_place(&mut self, places: usize) -> Option<usize> {
        let place = self.from;
        self.from += 1;
        self.is_whole = self.from >= places;
        (place < places).then_some(place)
    }

    /// Goes back with the answer. The observer has stopped waiting, or has room for each of its letters.
    pub(in crate::reactor) fn give_back(self: Box<Self>) {
        let back = self.back.clone();
        let _ = back.try_send(self);
    }

    pub(crate) fn new(core: usize, round: u64, back: SyncSender<Box<Self>>) -> Self {
        Self {
            core,
            round,
            from: 0,
            is_whole: false,
            rows: Vec::with_capacity(ROWS_MAX),
            memory: Vec::with_capacity(CLASSES_MAX),
            deferred: 0,
            put_off: 0,
            slow: Vec::with_capacity(SLOW_CALLS_MAX),
            back,
        }
    }
}

/// Bytes that this side moved over a connection by RDMA Read and Write. Bytes of messages are only counted by the
/// core: counting them here, too, would cost each message a nanosecond.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RdmaBytes {
    /// By RDMA Read.
    pub(crate) read: u64,
    /// By RDMA Write.
    pub(crate) written: u64,
}
