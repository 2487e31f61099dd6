//! What a simulated network and its devices are like.

use crate::mem::BulkClass;

/// How the network behaves; times in virtual nanoseconds, ranges with both ends.
#[derive(Clone, Debug)]
pub struct Network {
    /// Decides everything that is left to chance.
    pub seed: u64,
    /// What a poll takes: time passes while cores work.
    pub poll_ns: u64,
    /// How long a message or a transfer is on its way.
    pub delay_ns: (u64, u64),
    /// What each full 4096 bytes of a message or a transfer take beside that.
    pub page_ns: u64,
    /// From the arrival of a work request until its place in the send queue, and its buffer, are
    /// free again.
    pub completion_ns: (u64, u64),
    /// How long an arrived message waits for a receive before the connection is lost.
    pub rnr_timeout_ns: u64,
    /// A side that closes takes with it what it has sent and what has not arrived, as a device
    /// does whose queue pair goes into the error state.
    pub close_loses: bool,
    /// How many connection attempts of a thousand fail.
    pub connect_fails: u64,
    /// Keep what is seen for [`World::take_observed`](super::World::take_observed).
    pub observe: bool,
}

impl Default for Network {
    /// Without delays and faults, 100 ns to a poll.
    fn default() -> Self {
        Self {
            seed: 0,
            poll_ns: 100,
            delay_ns: (0, 0),
            page_ns: 0,
            completion_ns: (0, 0),
            rnr_timeout_ns: 1_000_000,
            close_loses: false,
            connect_fails: 0,
            observe: false,
        }
    }
}

/// A device that completes requests when TCP has taken them, as siw does: it copies the source of a request
/// that is short or signalled, and reads that of another one when it is transmitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlyCompletion {
    /// Unsignalled requests with a source of this many bytes or more are read late.
    pub late_from_bytes: u32,
    /// The driver has at least each so manyth request reported, ...
    pub signal_every: u16,
    /// ... and each with a source of this many bytes or more. More than `late_from_bytes` is the mistake
    /// that makes a peer receive wrong data.
    pub signal_from_bytes: u32,
}

/// What the device of one node has.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its owner keeps the rules: an access of it outside of what a peer that keeps them, too,
    /// exposes is a [`Violation`](super::Violation), and so is a message between the two that finds
    /// no receive.
    pub trusted: bool,
    /// What the memory of each connection for RDMA Reads and Writes is cut into.
    pub arena: Vec<BulkClass>,
    /// Longest message, in bytes.
    pub message_bytes_max: usize,
    /// Receives one queue pair may have posted.
    pub recv_queue_depth: u16,
    /// Work requests the send queue of one queue pair holds, until they complete.
    pub send_queue_depth: u16,
    /// RDMA Reads one queue pair may have outstanding.
    pub reads_max: u16,
    /// Keys one connection may have alive.
    pub keys_max: usize,
    /// Connections of one core.
    pub conns_max: usize,
    /// It understands Send With Invalidate.
    pub remote_invalidate: bool,
    /// Ending an exposure takes it this long at most, in virtual nanoseconds; zero: no time at all.
    pub revoke_ns: u64,
    /// It completes requests before it has read their memory.
    pub early: Option<EarlyCompletion>,
    /// Connections of a thousand that are cold in a turn: short messages of theirs are received, not taken
    /// by value, as those of a connection over shared memory are that was silent.
    pub cold_per_mille: u64,
}

impl Default for Device {
    fn default() -> Self {
        Self {
            trusted: false,
            arena: vec![
                BulkClass { block_bytes: 4096, count: 16 },
                BulkClass { block_bytes: 64 << 10, count: 8 },
            ],
            message_bytes_max: 64 << 10,
            recv_queue_depth: 64,
            send_queue_depth: 64,
            reads_max: 16,
            keys_max: 64,
            conns_max: 64,
            remote_invalidate: true,
            revoke_ns: 0,
            early: None,
            cold_per_mille: 0,
        }
    }
}
