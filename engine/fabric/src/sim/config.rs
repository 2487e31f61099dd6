//! Properties of a simulated network and its devices.

use crate::mem::BulkClass;

/// Behaviour of the network; times in virtual nanoseconds, ranges with both ends.
#[derive(Clone, Debug)]
pub struct Network {
    /// Decides everything that is left to chance.
    pub seed: u64,
    /// Duration of a poll: time passes while cores work.
    pub poll_ns: u64,
    /// Delay of a message or a transfer.
    pub delay_ns: (u64, u64),
    /// Additional delay for each full 4096 bytes of a message or a transfer.
    pub page_ns: u64,
    /// Time from the arrival of a work request until its place in the send queue, and its buffer,
    /// are free again.
    pub completion_ns: (u64, u64),
    /// Time that an arrived message waits for a receive before the connection is lost; `u64::MAX`: for ever, as a device
    /// whose peer has asked for RNR retries without end.
    pub rnr_timeout_ns: u64,
    /// A side that closes discards its messages that have not arrived, as a device does whose queue
    /// pair goes into the error state.
    pub close_loses: bool,
    /// Number of connection attempts of a thousand that fail.
    pub connect_fails: u64,
    /// Keep observations for [`World::take_observed`](super::World::take_observed).
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
    /// The driver has at least every n-th request reported, ...
    pub signal_every: u16,
    /// ... and each with a source of this many bytes or more. More than `late_from_bytes` is the mistake
    /// that makes a peer receive wrong data.
    pub signal_from_bytes: u32,
}

/// Resources of one node's device.
#[derive(Clone, Debug)]
pub struct Device {
    /// True if the node's owner keeps the rules. An access outside of the memory that such a peer
    /// exposes is a [`Violation`](super::Violation), and so is a message between two such nodes
    /// that finds no receive.
    pub trusted: bool,
    /// What peers know the node by on each of its connections; zero for nothing.
    pub identity: u64,
    /// Block classes of each connection's memory for RDMA Reads and Writes.
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
    /// True if the device understands Send With Invalidate.
    pub remote_invalidate: bool,
    /// Ending an exposure takes it this long at most, in virtual nanoseconds; zero: no time at all.
    pub revoke_ns: u64,
    /// Some if the device completes requests before it has read their memory.
    pub early: Option<EarlyCompletion>,
    /// Connections of a thousand that are cold in a turn: short messages of theirs are received, not taken
    /// by value, as those of a connection over shared memory are that was silent.
    pub cold_per_mille: u64,
}

impl Default for Device {
    fn default() -> Self {
        Self {
            trusted: false,
            identity: 0,
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
