//! Settings of the driver.

use super::link::Side;
use crate::mem::BulkClass;
use std::time::Duration;

/// Blocks that RDMA Reads fill: as many as a call may have Read chunks.
pub(super) const SINKS: usize = 8;
/// Devices register whole pages.
const PAGE_BYTES: usize = 4096;

/// Way in which memory is made accessible to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// `Window` where the device has type-2 memory windows that can be relied on, else `Buffer`: also
    /// on rxe.
    Auto,
    /// Each block of a connection's own arena is registered when the connection is established,
    /// once for reading and once for writing. The keys live as long as the connection: memory that
    /// a peer can still reach after a call is used only by calls to this peer, and references to it
    /// are never given out ([`Bulk::is_exposed`](crate::mem::Bulk::is_exposed)).
    Buffer,
    /// A type-2 memory window is bound for each exposure, and its key dies with it. Not for rxe with
    /// peers that are not trusted: it does not check a window's bounds, so that a key opens the whole
    /// region that the window lies in, which is all private memory of a core.
    Window,
    /// One key for all private memory of a core, with every right, also while safe code has references
    /// to it: for peers that are trusted with the memory of this process.
    Pool,
}

/// Settings of the driver. The configuration of the engine has the limits of their values, and those of the device are
/// checked when a connection is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsConfig {
    /// Name of the only device to use; `None`: whichever leads to the peer.
    pub device: Option<String>,
    /// Longest message, in bytes.
    pub message_bytes_max: usize,
    /// Memory for messages that a connection is given ([`Fabric::message_memory`]), in bytes.
    ///
    /// [`Fabric::message_memory`]: crate::Fabric::message_memory
    pub message_memory_bytes: usize,
    /// Connections that this side accepts expose memory: for calls in reverse, or for replies that are fetched. The others
    /// get neither memory windows nor an arena for that.
    pub accepted_exposes: bool,
    /// Receives one queue pair may have posted.
    pub recv_queue_depth: u16,
    /// Work requests of the reactor one queue pair holds; binding and invalidating come on top.
    pub send_queue_depth: u16,
    /// Entries of a core's first completion queue on a device, at most; more queues are made as
    /// they are needed, each with twice as many.
    pub cq_depth: u32,
    /// Longest run of Sends without a requested completion. Until then their buffers are not
    /// free, but for those that are copied: a connection with no more buffers than this gets stuck.
    pub signal_every: u16,
    /// RDMA Reads outstanding from this side of a connection (ORD), at most.
    pub reads_out_max: u8,
    /// RDMA Reads outstanding at this side of a connection (IRD), at most.
    pub reads_in_max: u8,
    /// Number of retransmissions of a packet without an acknowledgement, 0 to 7: by both sides of
    /// the connections that this side requests. An accepting side follows its peer's request.
    pub retry_count: u8,
    /// Number of times that the peer sends a message again to this side when it has no receive
    /// posted, 0 to 7; 7: without end.
    pub rnr_retry_count: u8,
    /// Time that a peer waits after "receiver not ready", in the encoding of InfiniBand: 1 to 31.
    pub min_rnr_timer: u8,
    /// Local ACK timeout: 4.096 µs times two to the power of this; 1 to 31. `None`: the kernel's for RoCE, or the subnet
    /// manager's.
    pub ack_timeout: Option<u8>,
    /// Type of service (IPv4) or traffic class (IPv6) of a connection. `None`: the kernel's, which the operator sets for
    /// each device (`cma_roce_tos`).
    pub type_of_service: Option<u8>,
    /// See [`Registration`].
    pub registration: Registration,
    /// Block classes of a connection's own memory for exposures, in the registration mode `Buffer`.
    pub arena: Vec<BulkClass>,
    /// Keys a connection may have in use at a time.
    pub keys_max: usize,
    /// Memory windows that a connection has from the start, at most `keys_max`: enough for any one call. The control thread
    /// adds as many again when more than half are in use.
    pub keys_first: usize,
    /// Connections per core.
    pub conns_max: usize,
    /// Handshakes that may be open at a time; with one host a quarter of them, and one at least.
    pub handshakes_max: usize,
    /// Connections that are accepted from one host, see [`LimitScope`](crate::LimitScope).
    pub host_conns_max: usize,
    /// Longest wait for the peer's address and for the route to it, each, when connecting; and for
    /// the whole handshake when accepting. A connecting side waits for the answer as long as it is
    /// told to ([`Connector::connect`]).
    ///
    /// [`Connector::connect`]: crate::Connector::connect
    pub handshake_timeout: Duration,
}

impl VerbsConfig {
    /// The time of all tries of a packet by [`VerbsConfig::ack_timeout`], if that is set.
    pub(super) fn given_up_after(&self) -> Option<Duration> {
        let tries = u64::from(self.retry_count) + 1;
        self.ack_timeout.map(|code| Duration::from_nanos((4096 << code.min(31)) * tries))
    }
}

impl Default for VerbsConfig {
    fn default() -> Self {
        Self {
            device: None,
            message_bytes_max: 8192,
            message_memory_bytes: 4 << 20,
            accepted_exposes: true,
            recv_queue_depth: 256,
            send_queue_depth: 256,
            // A few connections with all their work requests, in a size that devices have.
            cq_depth: 4096,
            signal_every: 16,
            reads_out_max: 16,
            reads_in_max: 16,
            // The maximum: a lossy network is not a dead peer.
            // To rxe seven means without end, as it does of RNR (Linux 6.12, `rxe_completer`): a peer that is gone would never
            // be noticed.
            retry_count: 6,
            // Without end: a peer that is slow to post is not given up, and the deadlines of calls count.
            rnr_retry_count: 7,
            // 0.64 ms: longer than a turn of a polling core. Code 0 would be 655 ms.
            min_rnr_timer: 12,
            ack_timeout: None,
            type_of_service: None,
            registration: Registration::Auto,
            arena: vec![
                BulkClass { block_bytes: 4 << 10, count: 128 },
                BulkClass { block_bytes: 64 << 10, count: 40 },
                BulkClass { block_bytes: (1 << 20) + (64 << 10), count: 12 },
            ],
            keys_max: 256,
            keys_first: 4 * SINKS,
            conns_max: 256,
            handshakes_max: 64,
            host_conns_max: 256,
            handshake_timeout: Duration::from_secs(5),
        }
    }
}

impl VerbsConfig {
    pub(super) fn exposes(&self, side: Side) -> bool {
        side == Side::Connecting || self.accepted_exposes
    }

    /// Blocks for the RDMA Reads of a connection whose peer must not reach other memory (iWARP), and that exposes nothing:
    /// one of the longest that [`arena`](Self::arena) has, one of half of that, a third, and so on. Any call that is within
    /// the limits finds blocks, because of its chunks the longest has at most all of its bytes, the next one half, and so
    /// on; and several shorter calls find some at a time.
    pub(super) fn sink_classes(&self) -> Vec<BulkClass> {
        let longest = self.arena.iter().map(|class| class.block_bytes).max().unwrap_or(0);
        let block = |parts: usize| longest.div_ceil(parts).next_multiple_of(PAGE_BYTES);
        (1..=SINKS).map(|parts| BulkClass { block_bytes: block(parts), count: 1 }).collect()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::mem::{BulkPool, Region};

    #[test]
    fn any_call_within_the_limits_finds_sinks_and_they_are_small() {
        let classes = VerbsConfig::default().sink_classes();
        let bytes = BulkPool::region_bytes(&classes).unwrap();
        assert!(bytes < 3 << 20, "{bytes}");
        let pool = BulkPool::new(Region::from_boxed(vec![0; bytes + 64].into()), &classes).unwrap();
        let whole = 1 << 20;
        for parts in 1..=SINKS {
            assert!(pool.could_hold(vec![whole / parts; parts]), "{parts} parts");
            let mut chunks = vec![1; parts];
            chunks[parts - 1] = whole - parts + 1;
            assert!(pool.could_hold(chunks), "{parts} parts, the last one long");
        }
        assert!(pool.could_hold([whole / 4, whole / 8, whole / 2, whole / 8]));
        assert!(!pool.could_hold([whole, whole]));
    }
}
