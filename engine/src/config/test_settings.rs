//! Constants that tests change, with the reason for each. No key sets them.

use spinrpc_proto::limits::{READ_CHUNKS_MAX, WRITE_CHUNKS_MAX};
use spinrpc_proto::rpc::AUTH_BODY_MAX_BYTES;

/// Values that only a test has reason to change. They are not checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// The memory of a pinned core is on the NUMA node of its CPU.
    pub is_near_cpu: bool,
    /// Time that a responder without version two is remembered, in milliseconds.
    pub version_memory_ms: u64,
    /// Chunks of a Read list or a Write list, sent or accepted.
    pub max_chunks: u64,
    /// Shortest data that are padded, in bytes.
    pub msgp_threshold_bytes: u64,
    /// Time that the memory of a reply stays exported without RDMA_DONE, in milliseconds.
    pub done_timeout_ms: u64,
    /// Replies of one connection that are exported at a time.
    pub exports: u64,
    /// Time that a call or a reply waits for memory for its Read chunks, in milliseconds.
    pub memory_wait_ms: u64,
    /// Calls of handles that may be in flight on one core.
    pub handle_calls: u64,
    /// Longest body under RPCSEC_GSS that a core seals or unseals itself, in bytes.
    pub gss_at_once_bytes: u64,
    /// Time that an unused security context is kept, in milliseconds.
    pub gss_unused_ms: u64,
    /// Deadline of a client's security mechanism, in milliseconds.
    pub gss_mechanism_ms: u64,
}

impl Default for Fixed {
    fn default() -> Self {
        Self {
            // Memory of another node is slower; on a single node there is no difference.
            is_near_cpu: true,
            // Long enough that reconnects need no offer, short enough to notice an upgrade.
            version_memory_ms: 600_000,
            // As many as the protocol core takes; upper layers in use need one or two (RFC 8166 section 3.4.4).
            max_chunks: READ_CHUNKS_MAX as u64,
            // Copying shorter data takes less time than the padding (RFC 5666 section 3.9). No credential or verifier,
            // which are counted data too, is ever padded.
            msgp_threshold_bytes: MSGP_THRESHOLD_BYTES,
            // Longer than the deadline of a call, after which the caller no longer waits for the reply (RFC 5666
            // section 11).
            done_timeout_ms: 20_000,
            // A reply to every call of the default credits; the memory of the connection is less (RFC 5666 section 3.8).
            exports: 64,
            // Shorter than the deadline of a call, so that its client learns of it, and than the time for RDMA_DONE: a
            // reply fetched later costs the connection. Calls that wait for each other's memory fail.
            memory_wait_ms: 5_000,
            // Sixteen threads with as many calls each as a connection has credits.
            handle_calls: 1024,
            // About 60 microseconds of encryption: to wake a thread and to be woken by it take as long.
            gss_at_once_bytes: 32_768,
            // Clients use a context at once; the sender of a copied token never can, as it lacks the key (RFC 2203
            // section 5.3.3.3).
            gss_unused_ms: 60_000,
            // MIT's library gives up an unresponsive key distribution center after 27 seconds (RFC 2203 section 5.2).
            gss_mechanism_ms: 60_000,
        }
    }
}

const MSGP_THRESHOLD_BYTES: u64 = 1024;
const _: () = assert!(READ_CHUNKS_MAX == WRITE_CHUNKS_MAX); // `max_chunks` is for both
const _: () = assert!(MSGP_THRESHOLD_BYTES > AUTH_BODY_MAX_BYTES as u64);
