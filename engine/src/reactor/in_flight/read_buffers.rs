//! Memory that the Read chunks of one message, a call or a reply, are fetched to.

use crate::fabric::{AnyFabric, ConnId};
use crate::mem::{Bulk, BulkPool, Share};
use spinrpc_proto::limits::READ_CHUNKS_MAX;
use spinrpc_proto::pull::PullChunk;

/// Memory that Read chunks are fetched to.
#[derive(Clone, Copy)]
pub(in crate::reactor) struct SinkPools<'a> {
    /// Pool that RDMA Reads write to, if not `private` ([`ConnMemory::read_sinks`](crate::fabric::ConnMemory::read_sinks)).
    sinks: Option<&'a BulkPool>,
    /// The core's.
    private: &'a BulkPool,
}

impl<'a> SinkPools<'a> {
    pub(in crate::reactor) fn of(
        fabric: &'a AnyFabric,
        conn: ConnId,
        private: &'a BulkPool,
    ) -> Self {
        Self { sinks: fabric.memory(conn).read_sinks, private }
    }

    /// A block for an RDMA Read, and one for its bytes afterwards if the peer can write the first.
    fn take(self, bytes: usize) -> Option<(Bulk, Option<Bulk>)> {
        let sink = self.sinks.unwrap_or(self.private).take(bytes)?;
        match sink.is_exposed() {
            true => Some((sink, Some(self.private.take(bytes)?))),
            false => Some((sink, None)),
        }
    }

    /// See [`BulkPool::could_hold`].
    pub(in crate::reactor) fn could_hold(
        self,
        lengths: impl Iterator<Item = usize> + Clone,
    ) -> bool {
        let sinks = self.sinks.unwrap_or(self.private);
        sinks.could_hold(lengths.clone())
            && (!sinks.is_exposed() || self.private.could_hold(lengths))
    }
}

/// The Read chunks of one message being fetched, and where their bytes are.
#[derive(Default)]
pub(crate) struct ReadBuffers {
    /// Position and length of each, by rising position.
    pub(crate) chunks: [(u32, u32); READ_CHUNKS_MAX],
    pub(crate) count: usize,
    pub(crate) bulks: [Option<Bulk>; READ_CHUNKS_MAX],
    /// Private memory for data that were fetched to memory that the peer can write.
    homes: [Option<Bulk>; READ_CHUNKS_MAX],
}

impl ReadBuffers {
    /// Takes memory for all Read chunks of a message: all at once or none, so that two messages cannot wait for each
    /// other. Returns true if they have it.
    pub(in crate::reactor) fn fill(&mut self, chunks: &[PullChunk], pools: SinkPools<'_>) -> bool {
        if self.count == chunks.len() {
            return true;
        }
        self.count = chunks.len();
        for (index, chunk) in chunks.iter().enumerate() {
            let Some((bulk, home)) = pools.take(chunk.length as usize) else {
                self.clear();
                return false;
            };
            (self.bulks[index], self.homes[index]) = (Some(bulk), home);
            self.chunks[index] = (chunk.position, chunk.length);
        }
        true
    }

    /// Copies completely fetched data to memory that the peer cannot write. Returns the number of copies.
    pub(in crate::reactor) fn take_home(&mut self) -> u64 {
        let mut copies = 0;
        for (bulk, home) in self.bulks.iter_mut().zip(&mut self.homes).take(self.count) {
            if let (Some(fetched), Some(mut home)) = (&mut *bulk, home.take()) {
                home.copy_from_bulk(fetched, fetched.len());
                *bulk = Some(home);
                copies += 1;
            }
        }
        copies
    }

    /// Counts the blocks in a share of `pool`, as far as they are of it.
    pub(in crate::reactor) fn charge(&self, pool: &BulkPool, share: &Share) {
        self.all().for_each(|block| pool.charge(block, share));
    }

    /// Blocks of registered memory that it holds.
    pub(in crate::reactor) fn blocks(&self) -> usize {
        self.all().count()
    }

    fn all(&self) -> impl Iterator<Item = &Bulk> {
        self.bulks.iter().chain(&self.homes).flatten()
    }

    pub(crate) fn clear(&mut self) {
        self.bulks[..self.count].fill_with(|| None);
        self.homes[..self.count].fill_with(|| None);
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{BulkClass, Region};
    use crate::sys::mmap::SharedMemory;
    use std::sync::Arc;

    fn pool(region: Region, count: usize) -> BulkPool {
        BulkPool::new(region, &[BulkClass { block_bytes: 64, count }]).unwrap()
    }

    /// Over iWARP a peer is told a key to write where our RDMA Reads end (RFC 5040 section 4.4).
    #[test]
    fn chunks_that_were_fetched_to_memory_that_a_peer_can_write_are_delivered_as_private_copies() {
        let (memory, _) = SharedMemory::create("test", 4096).unwrap();
        let sinks = pool(Region::from_shared(Arc::new(memory)), 2);
        let private = pool(Region::from_boxed(vec![0; 256].into()), 2);
        let pools = SinkPools { sinks: Some(&sinks), private: &private };
        let mut chunks = [PullChunk::default(); 2];
        (chunks[0].length, chunks[1].length) = (5, 3);
        let free = |pool: &BulkPool| pool.classes().map(|class| class.free).sum::<usize>();
        let mut fetch = ReadBuffers::default();
        assert!(fetch.fill(&chunks, pools));
        assert!(fetch.bulks.iter().flatten().all(Bulk::is_exposed));
        assert!(!ReadBuffers::default().fill(&chunks, pools), "all at once or none");
        fetch.bulks[0].as_mut().unwrap().copy_from(0, b"first");
        fetch.bulks[1].as_mut().unwrap().copy_from(0, b"2nd");
        assert_eq!((fetch.take_home(), fetch.take_home()), (2, 0));
        let delivered = fetch.bulks.iter().flatten().map(Bulk::bytes);
        assert!(delivered.eq([&b"first"[..], b"2nd"]));
        assert_eq!((free(&sinks), free(&private)), (2, 0));
        fetch.clear();
        assert_eq!((free(&sinks), free(&private)), (2, 2));
        assert!(pools.could_hold([64, 64].into_iter()));
        assert!(!pools.could_hold([64, 64, 1].into_iter()));
    }
}
