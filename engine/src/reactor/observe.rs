//! What a core tells those who look at it: a letter of the control socket's thread asks, a few
//! connections at a time so that no turn takes long, and goes back with the answer. It brings the
//! memory for it, so that the core allocates nothing.

use super::connection::{Conn, Moved};
use super::core::Reactor;
use crate::fabric::{Fabric, Peer};
use crate::mem::{BulkPool, ClassStats};
use spinrpc_proto::connection::Side;
use std::sync::mpsc::SyncSender;

/// Connections that one letter looks at.
const ROWS_MAX: usize = 16;
/// Slots of connections after which it looks at no other: to look at one takes time in their number.
const SLOTS_MAX: usize = 512;
/// Size classes of a core's memory; see [`memory::classes`](super::memory::classes).
const CLASSES_MAX: usize = 8;

/// A letter that asks, and its answer.
pub(crate) struct Observation {
    /// Which core it is for, and which of its askings; for who asks.
    pub(crate) core: usize,
    pub(crate) round: u64,
    /// The place of connections to begin at.
    from: usize,
    /// All connections have been seen.
    pub(crate) is_whole: bool,
    /// Connections seen.
    pub(crate) rows: Vec<ConnRow>,
    /// Blocks of the core's memory by size.
    pub(crate) memory: Vec<ClassStats>,
    /// Calls that services have deferred.
    pub(crate) deferred: usize,
    /// Calls that wait for memory or room.
    pub(crate) put_off: usize,
    back: SyncSender<Box<Self>>,
}

/// One connection as it is now.
#[derive(Clone, Debug)]
pub(crate) struct ConnRow {
    pub(crate) place: u32,
    pub(crate) generation: u32,
    pub(crate) peer: Option<Peer>,
    /// This side asked for it.
    pub(crate) is_ours: bool,
    /// Of RPC-over-RDMA, as it is written.
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
    pub(crate) moved: Moved,
    /// Messages are received to, and sent from.
    pub(crate) receives: Buffers,
    pub(crate) sends: Buffers,
    /// Who holds blocks of registered memory.
    pub(crate) blocks: Blocks,
    /// Registered memory that is the connection's own: bytes of blocks in use, and of all.
    pub(crate) memory: Option<(usize, usize)>,
}

/// One pool of message buffers of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffers {
    pub(crate) buf_bytes: usize,
    pub(crate) total: usize,
    /// In the pool.
    pub(crate) free: usize,
    /// Receives: with calls and replies that are worked on. Sends: promised to deferred calls, and
    /// still in the pool.
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
            back,
        }
    }
}

impl<F: Fabric> Reactor<F> {
    /// Answers; the next asking of the same letter goes on behind the connections seen.
    #[cold]
    pub(super) fn observe(&mut self, mut to: Box<Observation>) {
        (to.deferred, to.put_off) = (self.all_deferred(), self.put_off.len());
        to.memory.clear();
        to.memory.extend(self.bulk.classes().take(CLASSES_MAX));
        to.rows.clear();
        let (places, mut slots) = (self.conns.places(), 0);
        while to.from < places && to.rows.len() < ROWS_MAX && slots < SLOTS_MAX {
            if let Some(c) = self.conns.at(to.from) {
                slots += c.calls.slots() + c.serves.len();
                to.rows.push(c.row(&self.fabric));
            }
            to.from += 1;
        }
        to.is_whole = to.from >= places;
        let back = to.back.clone();
        // Who has asked waits no longer, or has room for each of its letters.
        let _ = back.try_send(to);
    }
}

/// Of the blocks of a pool, the bytes of those in use, and of all.
fn bytes_used(pool: &BulkPool) -> (usize, usize) {
    pool.classes().fold((0, 0), |(used, all), class| {
        let out = class.total - class.free.min(class.total);
        (used + out * class.block_bytes, all + class.total * class.block_bytes)
    })
}

impl Conn {
    fn row<F: Fabric>(&self, fabric: &F) -> ConnRow {
        let (requester, responder) = (&self.proto.requester, &self.proto.responder);
        let is_ours = self.proto.side() == Side::Client;
        let version = if is_ours { requester.negotiation().version() } else { responder.version() };
        ConnRow {
            place: self.id.index(),
            generation: self.id.generation(),
            peer: self.peer,
            is_ours,
            version: version.to_wire(),
            is_closing: self.closing.is_some(),
            calls_sent: requester.calls_started(),
            in_flight: requester.credits().in_flight(),
            requested: requester.credits().requested(),
            granted: requester.credits().granted(),
            calls_received: responder.calls_taken(),
            in_progress: responder.in_progress(),
            grant: responder.grant(),
            moved: self.moved,
            receives: self.receives(),
            sends: Buffers {
                buf_bytes: self.sends.buf_bytes(),
                total: self.sends.capacity(),
                free: self.sends.available(),
                kept: self.sends_promised,
            },
            blocks: self.blocks(),
            memory: fabric.connection_memory(self.id).map(bytes_used),
        }
    }

    fn receives(&self) -> Buffers {
        let of_calls = self.serves.iter().filter(|hold| hold.message.is_some()).count();
        let of_replies = self.pulls.iter().flatten().count() + self.fenced.len();
        Buffers {
            buf_bytes: self.recvs.buf_bytes(),
            total: self.recvs.capacity(),
            free: self.recvs.available(),
            kept: of_calls + of_replies,
        }
    }

    fn blocks(&self) -> Blocks {
        let waiting = self.serves.iter().filter(|hold| hold.message.is_some());
        let sinks = waiting.filter_map(|hold| hold.sinks.as_ref());
        Blocks {
            calls: self.calls.blocks(),
            fetches: sinks.map(|sinks| sinks.blocks()).sum(),
            pulls: self.pulls.iter().flatten().map(|pull| pull.blocks()).sum(),
            exports: self.exports.iter().map(|hold| hold.keys()).sum(),
        }
    }
}
