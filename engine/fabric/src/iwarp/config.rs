//! Settings of the driver.

use crate::mem::BulkClass;
use std::time::Duration;

/// Settings of the driver. The configuration of the engine has the limits of their values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IwarpConfig {
    /// Longest message, in bytes.
    pub message_bytes_max: usize,
    /// Receives one queue pair may have posted.
    pub recv_queue_depth: u16,
    /// Work requests one queue pair holds.
    pub send_queue_depth: u16,
    /// RDMA Reads outstanding from this side of a connection (ORD), at most.
    pub reads_out_max: u8,
    /// RDMA Reads outstanding at this side of a connection (IRD), at most.
    pub reads_in_max: u8,
    /// Ask for CRCs (RFC 5044 section 4.4). Without them only if the peer does not ask, either.
    pub crc: bool,
    /// Time that an arrived message waits for a receive, and everything behind it, before the connection ends.
    pub receive_patience: Duration,
    /// Block classes of the memory of a connection, if the core has lent none.
    pub arena: Vec<BulkClass>,
    /// Keys a connection may have in use at a time.
    pub keys_max: usize,
    /// Connections per core.
    pub conns_max: usize,
    /// Handshakes that may be open at a time; with one host a quarter of them, and one at least. A new one ends the oldest where
    /// all are taken, of the host that has the most.
    pub handshakes_max: usize,
    /// Connections that are accepted from one host, see [`LimitScope`](crate::LimitScope).
    pub host_conns_max: usize,
    /// Longest handshake when accepting. A connecting side waits as long as it is told to
    /// ([`Connector::connect`](crate::Connector::connect)).
    pub handshake_timeout: Duration,
}

impl Default for IwarpConfig {
    fn default() -> Self {
        Self {
            message_bytes_max: 8192,
            recv_queue_depth: 256,
            send_queue_depth: 256,
            reads_out_max: 16,
            reads_in_max: 16,
            crc: true,
            // A core that is busy for longer than this has lost its peers' patience, too.
            receive_patience: Duration::from_secs(10),
            arena: vec![
                BulkClass { block_bytes: 4 << 10, count: 128 },
                BulkClass { block_bytes: 64 << 10, count: 40 },
                BulkClass { block_bytes: (1 << 20) + (64 << 10), count: 12 },
            ],
            keys_max: 256,
            conns_max: 256,
            handshakes_max: 64,
            host_conns_max: 256,
            handshake_timeout: Duration::from_secs(5),
        }
    }
}
