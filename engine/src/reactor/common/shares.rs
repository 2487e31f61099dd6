//! Shares of a core's memory: a connection, and all connections of one origin together, hold only so many blocks that
//! others get some. A call that is beyond that waits before it takes any, and a handler gets none.

use crate::fabric::ConnId;
use crate::mem::Bulk;
use crate::reactor::state::core::Reactor;
use crate::reactor::words::memory::DeferredPlaces;
use crate::reactor::words::reply_plan::ReplyData;
use std::time::Duration;

/// Deferred calls of all origins are counted at most so often, while their common places are taken.
const COUNT_EVERY: Duration = Duration::from_millis(1);

impl Reactor {
    /// Memory for the reply of one more deferred call, when no common place or block is left for it.
    #[cold]
    pub(in crate::reactor) fn uncommon_stage(
        &mut self,
        conn: ConnId,
        bytes: usize,
    ) -> Option<Bulk> {
        let (now, ticks) = (self.time(), self.clock.from_duration(COUNT_EVERY));
        let held = self.conns.iter().map(|c| (c.origin, c.sends_promised));
        self.origins.count(now, ticks, held);
        let own = self.conns.find(conn)?;
        let of_origin = self.origins.deferred(own.origin)?;
        let fitting = self.bulk.classes().filter(|class| class.block_bytes >= bytes);
        let blocks: usize = fitting.map(|class| class.free).sum();
        let free = blocks.min(self.deferred_places.all.saturating_sub(self.deferred));
        let is_admitted = DeferredPlaces::admit(own.sends_promised, *of_origin, free);
        let stage = is_admitted.then(|| self.bulk.take(bytes)).flatten()?;
        *of_origin += 1;
        Some(stage)
    }

    /// Returns true if a reply of the connection with these data may take a block for so many bytes as well.
    pub(in crate::reactor) fn admits_stream(
        &mut self,
        conn: ConnId,
        data: &ReplyData,
        bytes: usize,
    ) -> bool {
        let Self { conns, bulk, .. } = self;
        let lengths = std::iter::once(bytes);
        conns.find(conn).is_some_and(|c| bulk.admits_all(data.owned(), lengths, &c.share))
    }

    /// Counts the memory of a reply, and returns true if the connection may hold that until its client has fetched it.
    pub(in crate::reactor) fn admits_reply(
        &mut self,
        conn: ConnId,
        data: &ReplyData,
        stream: Option<&Bulk>,
    ) -> bool {
        self.charge_reply(conn, data, stream);
        let Self { conns, bulk, .. } = self;
        let own = data.owned().chain(stream);
        conns.find(conn).is_some_and(|c| bulk.admits_all(own, std::iter::empty(), &c.share))
    }

    /// Memory for the results of a call; none beyond its share.
    pub(in crate::reactor) fn charged_bulk(&mut self, conn: ConnId, bytes: usize) -> Option<Bulk> {
        let c = self.conns.find(conn)?;
        let has_share = self.bulk.admits(bytes, &c.share);
        has_share
            .then(|| self.bulk.take(bytes))
            .flatten()
            .inspect(|block| self.bulk.charge(block, &c.share))
    }

    /// Counts the memory of a reply in the share of its connection, until it is sent. Shared memory is the application's
    /// own.
    pub(in crate::reactor) fn charge_reply(
        &mut self,
        conn: ConnId,
        data: &ReplyData,
        long: Option<&Bulk>,
    ) {
        let Self { conns, bulk, .. } = self;
        let Some(c) = conns.find(conn) else { return };
        data.owned().chain(long).for_each(|block| bulk.charge(block, &c.share));
    }
}
