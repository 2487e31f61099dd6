//! Settings of the driver, and its limits.

use crate::mem::BulkClass;
use crate::sync::doorbell::BELL_BITS;
use std::time::Duration;

/// Connections that a core may have: a few for each bit of its bell.
pub(super) const CONNS_MAX: u32 = 4 * BELL_BITS as u32;

/// Largest arena of a peer: as large as `mem.conn_arena_mib` can make it.
pub(super) const ARENA_BYTES_MAX: usize = 4 << 30;

/// Settings of the shared-memory driver. The configuration of the engine has the limits of their values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmConfig {
    /// Slots of 256 bytes per ring, of which a connection has two: a power of two, 16 to 65536.
    /// The listener decides; a connector with smaller rings is refused. The longest message takes half
    /// of a ring.
    pub ring_slots: u32,
    /// Blocks of a connection's memory for RDMA Reads and Writes. It takes address space
    /// when a connection is made, and memory when it is used.
    pub arena: Vec<BulkClass>,
    /// Slabs that a peer may lend one connection, at most 4.
    pub peer_slabs_max: usize,
    /// All slabs that a peer lends one connection, in bytes.
    pub peer_slab_bytes_max: usize,
    /// Shared memory of all connections with one process, in bytes: rings, both arenas, and the peer's slabs. An arena of
    /// a peer is accepted if it fits beside the rings and this side's arena, and has 4 GiB at most.
    pub peer_memory_bytes_max: usize,
    /// Shared memory of all connections of one core, in bytes.
    pub core_memory_bytes_max: usize,
    /// Receives one queue pair may have posted.
    pub recv_queue_depth: u16,
    /// Work requests one queue pair holds that found no room at the peer.
    pub send_queue_depth: u16,
    /// Connections per core, 1 to 16384.
    pub conns_max: u32,
    /// Polls without a message after which a core no longer looks at a connection in every poll: its peer
    /// must ring the core's bell from then on. Fewer when a core looks at more than 32 connections, so that
    /// connections which fall silent together cost no more looks.
    pub idle_polls: u32,
    /// Bytes that a core with two or more connections copies per turn: for Reads, Writes and orders to fetch, of all
    /// connections together. Long transfers of one hold up short messages of others no longer than that takes.
    pub copy_bytes_per_flush: usize,
    /// Bytes that a core with one connection copies per turn, in the place of `copy_bytes_per_flush`, also where that is
    /// smaller: for short turns lower both. There is no other connection to hold up, and each step of a copy costs
    /// a turn of the core, about 1 % of a transfer of 1 MiB.
    pub copy_bytes_alone: usize,
    /// Have the memory of a connection on the NUMA node of its core: its arena, and the ring that it sends on. What both
    /// sides write is on the connector's.
    pub near_cores: bool,
    /// Time that a peer may take for its part of the handshake.
    pub handshake_timeout: Duration,
    /// Handshakes that may be open at a time. One more, and a silent one has to go: the oldest of the
    /// process that has most of them.
    pub handshakes_max: usize,
}

impl Default for ShmConfig {
    fn default() -> Self {
        Self {
            ring_slots: 256,
            arena: vec![
                BulkClass { block_bytes: 4 << 10, count: 128 },
                BulkClass { block_bytes: 64 << 10, count: 40 },
                BulkClass { block_bytes: (1 << 20) + (64 << 10), count: 12 },
            ],
            peer_slabs_max: 4,
            peer_slab_bytes_max: 4 << 30,
            peer_memory_bytes_max: 16 << 30,
            core_memory_bytes_max: 36 << 30,
            recv_queue_depth: 256,
            send_queue_depth: 256,
            conns_max: BELL_BITS as u32,
            idle_polls: 2048,
            copy_bytes_per_flush: 256 << 10,
            copy_bytes_alone: 1 << 20,
            near_cores: true,
            // Longer than a host pauses a virtual CPU.
            handshake_timeout: Duration::from_secs(5),
            handshakes_max: 64,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::mem::BulkPool;

    #[test]
    fn an_arena_is_about_16_mib() {
        let config = ShmConfig::default();
        let arena_bytes = BulkPool::region_bytes(&config.arena).unwrap();
        assert!((15 << 20..17 << 20).contains(&arena_bytes), "{arena_bytes}");
    }
}
