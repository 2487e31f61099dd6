//! Fetches the Read chunks of arriving messages, of calls and of replies (RFC 5666 sections 3.4 and 3.5): memory first, for all
//! chunks or none, then RDMA Reads, never more than the queue pair may have outstanding. A message that cannot continue
//! now is deferred and retried in whole turns; their number is bounded by the calls in progress.

use crate::fabric::ConnId;
use crate::reactor::in_flight::read_buffers::SinkPools;
use crate::reactor::in_flight::read_ids::{ReadOwner, ReadSink};
use crate::reactor::state::connection::Protocol;
use crate::reactor::state::core::Reactor;
use spinrpc_proto::ids::Instant;
use spinrpc_proto::pull::Pull;
use spinrpc_proto::rdma::v1::HeaderView;
use std::iter::empty;

/// Reason why the chunks of a message are not fetched.
pub(in crate::reactor) enum NotFetched {
    /// They exceed the whole memory (`mem.arena_mib`).
    TooLong,
    /// They have waited for memory too long.
    Late,
}

impl Reactor {
    /// Finds memory for the chunks of a message, unless it has it, and posts the next RDMA Reads.
    pub(in crate::reactor) fn fetch(
        &mut self,
        conn: ConnId,
        what: ReadOwner,
    ) -> Result<(), NotFetched> {
        if !self.find_memory(conn, what) {
            return self.wait_for_memory(conn, what);
        }
        let Some((c, core)) = self.conn_and_core(conn) else { return Ok(()) };
        let room = usize::from(c.reads_room()).min(c.queue_room(core.fabric())) as u16;
        let Some((message, sinks, mut proto, _)) = c.fetched(what) else { return Ok(()) };
        let limits = *proto.limits();
        let Ok(view) = HeaderView::new_checked(message.bytes(), &limits) else { return Ok(()) };
        let mut sink = ReadSink::new(core.fabric_mut(), conn, what, sinks);
        let read = |read| sink.read(read);
        let asked = match what {
            ReadOwner::Call(slot) => proto.responder.pull(slot, &view, room, read),
            ReadOwner::Reply(slot) => proto.requester.pull(slot, &view, room, read),
        };
        let (bytes, overrun) = sink.end();
        let is_stuck = asked == 0 && plan_of(&proto, what).is_some_and(Pull::wants_reads);
        drop(proto);
        c.reads_outstanding += asked;
        c.count_read(bytes);
        core.stats().bytes_read += bytes;
        if overrun {
            self.close_overrun(conn, "send queue");
        } else if is_stuck {
            self.put_off(conn, what);
        }
        Ok(())
    }

    /// Finds memory for all Read chunks of a message; returns true if it has that.
    fn find_memory(&mut self, conn: ConnId, what: ReadOwner) -> bool {
        let Some((c, core)) = self.conn_and_core(conn) else { return false };
        let Some((_, sinks, proto, share)) = c.fetched(what) else { return false };
        let Some(plan) = plan_of(&proto, what) else { return false };
        if sinks.count == plan.chunks().len() {
            return true;
        }
        let has_share = what.is_reply() || core.arena().admits_all(empty(), lengths(plan), share);
        let pools = SinkPools::of(core.fabric(), conn, core.arena());
        let has_all = has_share && sinks.fill(plan.chunks(), pools);
        sinks.charge(core.arena(), share);
        has_all
    }

    /// A message whose chunks fit into memory waits until others release memory, for at most `Config::memory_wait`: the
    /// holders may wait for an answer of the peer, which waits for this one. It waits without that limit for RDMA Reads
    /// to memory of the connection (iWARP), which is free after them, and a call for calls of its own peer, which
    /// hold their share: an error would end calls of a client whose server is merely slow.
    #[cold]
    fn wait_for_memory(&mut self, conn: ConnId, what: ReadOwner) -> Result<(), NotFetched> {
        self.stats().no_buffer += 1;
        let (now, ends) = (self.read_clock(), self.memory_wait_ends());
        let Some((c, core)) = self.conn_and_core(conn) else { return Ok(()) };
        let proto = c.lane.proto();
        let Some(plan) = plan_of(&proto, what) else { return Ok(()) };
        let pools = SinkPools::of(core.fabric(), conn, core.arena());
        if !pools.could_hold(lengths(plan)) {
            return Err(NotFetched::TooLong);
        }
        let has_share =
            what.is_reply() || core.arena().admits_all(empty(), lengths(plan), c.share());
        let has_own = core.fabric().memory(conn).read_sinks.is_some();
        let waits_for_own = !has_share || (has_own && c.reads_outstanding > 0);
        drop(proto);
        let wait = c.wait_of(what);
        if waits_for_own || wait.is_some_and(|wait| Instant(now.0) < wait.ends(what.slot(), ends)) {
            self.put_off(conn, what);
            return Ok(());
        }
        Err(NotFetched::Late)
    }
}

/// The Read chunks of a message that waits for them.
fn plan_of(proto: &Protocol, what: ReadOwner) -> Option<&Pull> {
    match what {
        ReadOwner::Call(slot) => proto.responder.pull_plan(slot),
        ReadOwner::Reply(slot) => proto.requester.pull_plan(slot),
    }
}

fn lengths(plan: &Pull) -> impl Iterator<Item = usize> + Clone {
    plan.chunks().iter().map(|chunk| chunk.length as usize)
}
