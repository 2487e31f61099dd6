//! Reports the state of a core to observers: a letter of the control socket's thread asks for a few connections at a
//! time, so that no turn takes long, and returns with the answer. It brings the memory for it, so that the core
//! allocates nothing.

use crate::fabric::AnyFabric;
use crate::mem::BulkPool;
use crate::reactor::in_flight::observation::{
    Blocks, Buffers, CLASSES_MAX, ConnRow, Observation, ROWS_MAX, SLOTS_MAX,
};
use crate::reactor::in_flight::rfc5666::ExportHold;
use crate::reactor::state::connection::Conn;
use crate::reactor::state::core::Reactor;
use crate::reactor::state::rfc5666::ReplyPull;
use spinrpc_proto::connection::Side;

impl Reactor {
    /// Answers; the next request of the same letter continues behind the connections already seen.
    #[cold]
    pub(in crate::reactor) fn observe(&mut self, mut to: Box<Observation>) {
        (to.deferred, to.put_off) = (self.deferred(), self.waiting());
        to.memory.clear();
        to.memory.extend(self.arena().classes().take(CLASSES_MAX));
        self.copy_slow_calls(&mut to.slow);
        to.rows.clear();
        let (conns, core) = self.split();
        let (places, mut slots) = (conns.places(), 0);
        while to.rows.len() < ROWS_MAX
            && slots < SLOTS_MAX
            && let Some(place) = to.next_place(places)
        {
            if let Some(c) = conns.at(place) {
                slots += c.calls.slots() + c.serves.slots();
                to.rows.push(c.row(core.fabric()));
            }
        }
        to.give_back();
    }
}

/// Bytes of the blocks of a pool: those in use, and all.
fn bytes_used(pool: &BulkPool) -> (usize, usize) {
    pool.classes().fold((0, 0), |(used, all), class| {
        let out = class.total - class.free.min(class.total);
        (used + out * class.block_bytes, all + class.total * class.block_bytes)
    })
}

impl Conn {
    fn row(&self, fabric: &AnyFabric) -> ConnRow {
        let proto = self.lane.proto();
        let (requester, responder) = (&proto.requester, &proto.responder);
        let is_ours = proto.side() == Side::Client;
        let version = if is_ours { requester.negotiation().version() } else { responder.version() };
        ConnRow {
            place: self.id.index(),
            generation: self.id.generation(),
            peer: self.peer(),
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
            moved: self.moved(),
            receives: self.receives(),
            sends: Buffers {
                buf_bytes: self.sends.buf_bytes(),
                total: self.sends.capacity(),
                free: self.sends.available(),
                kept: self.sends_promised,
            },
            blocks: self.blocks(),
            memory: fabric.memory(self.id).arena.map(bytes_used),
        }
    }

    fn receives(&self) -> Buffers {
        let of_replies = self.dialect.pulls().count() + self.fenced.len();
        Buffers {
            buf_bytes: self.recvs.buf_bytes(),
            total: self.recvs.capacity(),
            free: self.recvs.available(),
            kept: self.serves.messages() + of_replies,
        }
    }

    fn blocks(&self) -> Blocks {
        Blocks {
            calls: self.calls.blocks(),
            fetches: self.serves.blocks(),
            pulls: self.dialect.pulls().map(ReplyPull::blocks).sum(),
            exports: self.dialect.exports.iter().map(ExportHold::keys).sum(),
        }
    }
}
