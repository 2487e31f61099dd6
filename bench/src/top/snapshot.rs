//! A snapshot, and latencies, as sent by an engine (`spinrpc::control`). Unknown fields are
//! skipped. `socket` reads it, `view` compares two.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;

/// One engine at one moment.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Snapshot {
    pub(crate) schema: String,
    pub(crate) engine: u32,
    pub(crate) version: String,
    pub(crate) fabric: String,
    pub(crate) uptime_ns: u64,
    pub(crate) ticks_per_second: u64,
    pub(crate) listens: Vec<String>,
    pub(crate) settings: BTreeMap<String, String>,
    /// Counters of security contexts.
    #[serde(default)]
    pub(crate) gss: BTreeMap<String, u64>,
    pub(crate) cores: Vec<Core>,
}

/// One core.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Core {
    pub(crate) index: u32,
    pub(crate) cpu: u32,
    pub(crate) idle: String,
    pub(crate) running: bool,
    pub(crate) answered: bool,
    pub(crate) stats: BTreeMap<String, u64>,
    #[serde(default)]
    pub(crate) deferred: u64,
    #[serde(default)]
    pub(crate) put_off: u64,
    #[serde(default)]
    pub(crate) memory: Vec<Blocks>,
    #[serde(default)]
    pub(crate) connections_open: u64,
    #[serde(default)]
    pub(crate) connections: Vec<Connection>,
}

/// Blocks of one size.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Blocks {
    pub(crate) block_bytes: usize,
    pub(crate) total: u64,
    pub(crate) free: u64,
}

/// One connection.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Connection {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) peer: String,
    pub(crate) made_by: String,
    pub(crate) state: String,
    pub(crate) version: u32,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    pub(crate) bytes: Moved,
    pub(crate) receives: Buffers,
    pub(crate) sends: Buffers,
    pub(crate) blocks: BTreeMap<String, u64>,
    #[serde(default)]
    pub(crate) memory_used_bytes: usize,
    #[serde(default)]
    pub(crate) memory_bytes: usize,
}

/// Calls made over a connection.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Requester {
    pub(crate) calls: u64,
    pub(crate) credits_granted: u64,
    pub(crate) credits_in_flight: u64,
}

/// Calls served over it.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Responder {
    pub(crate) calls: u64,
    pub(crate) credits_granted: u64,
    pub(crate) in_progress: u64,
}

/// Bytes that the engine moved over it by RDMA.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Moved {
    pub(crate) read: u64,
    pub(crate) written: u64,
}

/// One pool of its message buffers.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Buffers {
    pub(crate) total: u64,
    pub(crate) free: u64,
    pub(crate) kept: u64,
}

/// Latencies that one engine has counted.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Latencies {
    pub(crate) schema: String,
    pub(crate) cores: Vec<CoreLatencies>,
}

/// Latencies of one core.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct CoreLatencies {
    pub(crate) index: u32,
    pub(crate) procedures: Vec<Latency>,
}

/// Latencies of one procedure.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Latency {
    pub(crate) program: u32,
    pub(crate) version: u32,
    pub(crate) procedure: ProcedureName,
    pub(crate) sum_ns: u64,
    pub(crate) buckets: Vec<u64>,
}

/// A number, or `other`.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum ProcedureName {
    Number(u32),
    Text(String),
}

impl fmt::Display for ProcedureName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

impl Core {
    /// A counter; zero if the engine does not have it.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.stats.get(name).copied().unwrap_or(0)
    }
}
