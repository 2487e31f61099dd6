//! What of the driver can be set.

use crate::mem::BulkClass;
use std::time::Duration;

/// How memory is made reachable for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// `Window` where the device has type-2 memory windows, else `Buffer`.
    Auto,
    /// Each block of a connection's own arena is registered when the connection is made, once for
    /// reading and once for writing. The keys live as long as the connection: what a peer may still
    /// reach after a call is memory that only calls to this peer use.
    Buffer,
    /// A type-2 memory window is bound for each exposure, and its key dies with it.
    Window,
    /// One key for all private memory of a core, with every right: for peers that are trusted.
    Pool,
}

/// Settings of the driver; a plain value, checked when a connector is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsConfig {
    /// Name of the only device to use; `None`: whichever leads to the peer.
    pub device: Option<String>,
    /// Longest message, in bytes.
    pub message_bytes_max: usize,
    /// Memory for messages that a connection is given ([`Fabric::message_memory`]), in bytes.
    ///
    /// [`Fabric::message_memory`]: crate::fabric::Fabric::message_memory
    pub message_memory_bytes: usize,
    /// Receives one queue pair may have posted.
    pub recv_queue_depth: u16,
    /// Work requests of the reactor one queue pair holds; binding and invalidating come on top.
    pub send_queue_depth: u16,
    /// Entries of one completion queue at the most; more queues are made as they are needed.
    pub cq_depth: u32,
    /// A completion is asked for at least once in so many Sends.
    pub signal_every: u16,
    /// Longest message that is copied into the work request.
    pub inline_bytes_max: u32,
    /// RDMA Reads outstanding from this side of a connection (ORD), at the most.
    pub reads_out_max: u8,
    /// RDMA Reads outstanding at this side of a connection (IRD), at the most.
    pub reads_in_max: u8,
    /// Transport retries, 0 to 7.
    pub retry_count: u8,
    /// Retries when the receiver is not ready, 0 to 7; 7: without end.
    pub rnr_retry_count: u8,
    /// How long a peer waits after "receiver not ready", as InfiniBand codes it: 1 to 31.
    pub min_rnr_timer: u8,
    /// Local ACK timeout: 4.096 µs times two to the power of this; 0 to 31.
    pub ack_timeout: u8,
    /// Type of service (IPv4) or traffic class (IPv6) of a connection.
    pub type_of_service: u8,
    /// See [`Registration`].
    pub registration: Registration,
    /// Say that remote invalidation is understood, where it is.
    pub remote_invalidate: bool,
    /// Use thread domains where the device has them.
    pub thread_domains: bool,
    /// What a connection's own memory for exposures is cut into, in the registration mode `Buffer`.
    pub arena: Vec<BulkClass>,
    /// Keys a connection may have in use at a time.
    pub keys_max: usize,
    /// Connections per core.
    pub conns_max: usize,
    /// Connection requests the kernel keeps for a listener.
    pub backlog: u16,
    /// Handshakes that may be open at a time.
    pub handshakes_max: usize,
    /// How long a peer may take for its part of a handshake, and address and route resolution for
    /// each step.
    pub handshake_timeout: Duration,
    /// How long what was sent before a close may take to arrive, before the connection is cut.
    pub drain_timeout: Duration,
}
