//! Shares of a core's memory: a connection, and all connections of one origin together, hold only so many blocks that
//! others get some. A call that is beyond that waits before it takes any, and a handler gets none.

use super::Reactor;
use crate::fabric::ConnId;
use crate::mem::{Bulk, BulkPool};
use crate::reactor::state::connection::Conn;
use crate::reactor::types::memory::DeferredPlaces;
use crate::reactor::types::reply_plan::EncodedReply;
use spinrpc_proto::rdma::v1::HeaderView;
use std::time::Duration;

/// Deferred calls of all origins are counted at most so often, while their common places are taken.
const COUNT_EVERY: Duration = Duration::from_millis(1);

impl Reactor {
    /// Memory for the reply of one more deferred call, from what is common to all connections, or else from its own share.
    #[inline]
    pub(in crate::reactor) fn reply_block(&mut self, conn: ConnId, bytes: usize) -> Option<Bulk> {
        let has_place = self.deferred() < self.core.deferred_places.common;
        let common = has_place.then(|| self.core.bulk.take_fitting(bytes)).flatten();
        common.or_else(|| self.reply_block_from_own_share(conn, bytes))
    }

    #[cold]
    fn reply_block_from_own_share(&mut self, conn: ConnId, bytes: usize) -> Option<Bulk> {
        let (conns, core) = self.split();
        let (now, ticks) = (core.turn_time(), core.ticks(COUNT_EVERY));
        let held = conns.iter().map(|c| (c.origin(), c.sends_promised));
        core.origins.count(now, ticks, held);
        let own = conns.find(conn)?;
        let fitting = core.arena().classes().filter(|class| class.block_bytes >= bytes);
        let blocks: usize = fitting.map(|class| class.free).sum();
        let free = blocks.min(core.deferred_places.all.saturating_sub(core.deferred()));
        let of_origin = *core.origins.deferred(own.origin())?;
        let is_admitted = DeferredPlaces::admit(own.sends_promised, of_origin, free);
        let stage = is_admitted.then(|| core.arena().take(bytes)).flatten()?;
        *core.origins.deferred(own.origin())? += 1;
        Some(stage)
    }

    /// Counts the memory of a reply, and returns true if the connection may hold that until its client has fetched it.
    pub(in crate::reactor) fn admits_reply(&mut self, conn: ConnId, reply: &EncodedReply) -> bool {
        self.charge_reply(conn, reply);
        let (own, none) = (reply.owned(), std::iter::empty());
        self.conn_and_core(conn)
            .is_some_and(|(c, core)| core.arena().admits_all(own, none, c.share()))
    }

    /// Memory for the results of a call; none beyond its share.
    pub(in crate::reactor) fn charged_bulk(&mut self, conn: ConnId, bytes: usize) -> Option<Bulk> {
        let (c, core) = self.conn_and_core(conn)?;
        core.arena().take_within(c.share(), bytes)
    }

    /// Counts the memory of a reply in the share of its connection, until it is sent. Shared memory is the application's
    /// own.
    pub(in crate::reactor) fn charge_reply(&mut self, conn: ConnId, reply: &EncodedReply) {
        let Some((c, core)) = self.conn_and_core(conn) else { return };
        reply.owned().for_each(|block| core.arena().charge(block, c.share()));
    }
}

impl Conn {
    /// Returns true if a call may take memory for its reply: the longest item that it takes back by Write chunk, or a long
    /// reply.
    pub(in crate::reactor) fn may_take(&self, bulk: &BulkPool, view: &HeaderView<'_>) -> bool {
        let chunks = view.writes().chain(view.reply_chunk());
        let bytes = chunks.map(|chunk| chunk.segments().map(|s| s.length as usize).sum());
        bytes.max().is_none_or(|bytes| bulk.admits(bytes, self.share()))
    }
}
