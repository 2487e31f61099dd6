//! The second buffers of chained receives (RFC 5666 section 3.9).

use crate::config::Config;
use crate::fabric::FabricError;
use crate::mem::{Buf, BulkClass, BulkPool};
use crate::reactor::types::memory::lazy_pool;
use spinrpc_proto::alignment::Alignment;

/// Tails of a connection for each of its receives: one is posted, and one the application may hold.
/// When it holds more, receives are posted as whole buffers.
const TAILS_PER_RECEIVE: usize = 2;

/// Alignment of blocks of a page or more, and so of tails, whatever the alignment of data.
const PAGE_BYTES: usize = 4096;

/// The second buffers of one connection's receives.
pub(crate) struct ReceiveChains {
    tails: BulkPool,
    head_bytes: usize,
    tail_bytes: usize,
}

impl ReceiveChains {
    /// Creates the tails of a connection with this number of receives (slow path: maps memory).
    pub(in crate::reactor) fn new(
        config: &Config,
        alignment: Alignment,
        receives: u64,
    ) -> Result<Self, FabricError> {
        let head_bytes = alignment.align_bytes() as usize;
        let tail_bytes = config.recv_buffer_bytes().saturating_sub(head_bytes);
        let count = receives as usize * TAILS_PER_RECEIVE;
        let block_bytes = tail_bytes.next_multiple_of(PAGE_BYTES);
        let classes = [BulkClass { block_bytes, count }];
        let what = format!("{count} second receive buffers of {block_bytes} bytes");
        let bytes = BulkPool::region_bytes(&classes);
        let pool = |region| BulkPool::new(region, &classes);
        let tails = lazy_pool(what, bytes, &mut None, pool)?;
        Ok(Self { tails, head_bytes, tail_bytes })
    }

    /// Bytes each receive buffer has beyond a whole message, so that a head, and what is left of it
    /// when the tail begins, can be joined with the tail.
    pub(in crate::reactor) fn extra_bytes(&self) -> usize {
        self.head_bytes
    }

    /// Prepares a buffer to be posted. Returns false when no tail is left: then the whole buffer is posted, which
    /// holds any message.
    pub(in crate::reactor) fn prepare(&self, buf: &mut Buf) -> bool {
        let room = self.tail_bytes;
        if buf.tail().is_some_and(|tail| tail.len() == room) {
            return true;
        }
        let Some(mut tail) = buf.unchain().or_else(|| self.tails.take(room)) else { return false };
        tail.set_len(room);
        buf.chain(self.head_bytes, tail);
        true
    }
}
