//! The values as written: plain public fields, every one with its default.
//!
//! The effect, unit and limits of each key are in one place, `schema.rs`; a field here has only the
//! facts that are needed to set it from code.

use super::cores::CoreList;
use super::device::DeviceName;
use super::value::Choice;
use spinrpc_proto::config_proto::Protection;
use spinrpc_proto::profile::Profile;
use spinrpc_proto::version::Versions;

/// An unchecked configuration, grouped as in a profile.
///
/// Releases may add keys, so start from the defaults:
/// ```no_run
/// use spinrpc::config::{IdlePolicy, RawConfig};
/// let mut raw = RawConfig::default();
/// raw.poll.mode = IdlePolicy::Busy;
/// raw.rpc.credits = 128;
/// let config = raw.validate()?;
/// # Ok::<(), spinrpc::config::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawConfig {
    /// CPUs that the cores run on.
    pub cores: RawCores,
    /// Turns of a core, and its behaviour when idle.
    pub poll: RawPoll,
    /// Private registered memory.
    pub mem: RawMem,
    /// The protocol.
    pub rpc: RawRpc,
    /// Calls under RPCSEC_GSS.
    pub gss: RawGss,
    /// Driver that transports messages.
    pub fabric: RawFabric,
    /// The shared-memory fabric.
    pub shm: RawShm,
    /// The fabric of RDMA devices.
    pub verbs: RawVerbs,
    /// Admission.
    pub limits: RawLimits,
    /// Requirements on the host while an engine runs.
    pub host: RawHost,
    /// Being looked at.
    pub stats: RawStats,
}

/// Keys `cores.*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawCores {
    /// CPUs to poll on; `Auto` picks them.
    pub list: CoreList,
    /// Most cores that `Auto` takes.
    pub max: u64,
    /// CPUs that `Auto` leaves to processes of the same host which come before this one.
    pub skip: u64,
    /// Permission for `Auto` to put two cores on one physical core.
    pub smt: SmtPolicy,
}

/// Keys `poll.*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawPoll {
    /// Behaviour of an idle core.
    pub mode: IdlePolicy,
    /// Events per source and turn.
    pub budget: u64,
    /// Idle time spent spinning, in microseconds.
    pub spin_us: u64,
    /// Idle time spent yielding after that, in microseconds.
    pub yield_us: u64,
    /// Longest sleep after that, in microseconds.
    pub park_us: u64,
}

/// Keys `mem.*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawMem {
    /// Registered memory of each core, in MiB.
    pub arena_mib: u64,
    /// Huge pages for it.
    pub hugepages: Want,
    /// Touch it at start.
    pub prefault: bool,
    /// Lock it in memory.
    pub lock: Want,
    /// Keep it on the core's NUMA node.
    pub numa: NumaPolicy,
}

/// Keys `rpc.*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawRpc {
    /// Profile of the protocol.
    pub protocol: Profile,
    /// Versions of RPC-over-RDMA that are spoken.
    pub version: Versions,
    /// Time that a responder without version two is remembered, in milliseconds.
    pub version_memory_ms: u64,
    /// Calls say how much time they have.
    pub propagate_deadlines: bool,
    /// Calls outstanding on one connection.
    pub credits: u64,
    /// Calls granted to a connection that makes few.
    pub credits_idle: u64,
    /// Calls granted to busy connections of a core beyond those.
    pub credits_shared: u64,
    /// Time in which a busy connection makes as many calls as it is granted, in milliseconds.
    pub credits_period_ms: u64,
    /// Calls outstanding in reverse on one connection; 0: none.
    pub reverse_calls: u64,
    /// Role in the Connection Configuration Protocol.
    pub ccp: ConfigRole,
    /// The flavor it is protected by.
    pub ccp_auth: Protection,
    /// RDMA Reads a peer may have active at this side; 0: none.
    pub max_rdma_reads: u64,
    /// Longest inline message sent, in bytes.
    pub inline_send_bytes: u64,
    /// Longest inline message received, in bytes.
    pub inline_recv_bytes: u64,
    /// Most bytes of results by Write and Reply chunks in one call.
    pub max_read_bytes: u64,
    /// Most bytes of arguments by Read chunks in one call.
    pub max_write_bytes: u64,
    /// Longest segment of a chunk that this side offers, in bytes.
    pub segment_bytes: u64,
    /// Segments of one chunk.
    pub max_segments: u64,
    /// Chunks of one list.
    pub max_chunks: u64,
    /// Alignment of data in padded messages, in bytes; 0 sends none.
    pub msgp_align_bytes: u64,
    /// Shortest data that are padded, in bytes.
    pub msgp_threshold_bytes: u64,
    /// Deadline of a call that names none, in milliseconds; 0 is none.
    pub timeout_ms: u64,
    /// Time that the memory of a reply stays exported without RDMA_DONE, in milliseconds.
    pub done_timeout_ms: u64,
    /// Time that a call or a reply waits for memory for its Read chunks, in milliseconds.
    pub memory_wait_ms: u64,
    /// Clients whose replies are kept; 0 keeps none.
    pub reply_cache_clients: u64,
    /// Replies kept for one client; a power of two.
    pub reply_cache_entries: u64,
    /// Longest reply that is kept, in bytes.
    pub reply_cache_bytes: u64,
    /// Time that those of a client that has gone are kept, in milliseconds.
    pub reply_cache_keep_ms: u64,
    /// Consequence of a panic in a handler.
    pub on_panic: OnPanic,
    /// Calls of handles that may be in flight on one core.
    pub handle_calls: u64,
}

/// Keys `gss.*`. They mean nothing without the feature `gss`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawGss {
    /// Bytes of a body that are sealed or opened in one turn.
    pub step_bytes: u64,
    /// Time that an unused context is kept.
    pub unused_ms: u64,
    /// Deadline of a client's mechanism.
    pub mechanism_ms: u64,
}

/// Keys `fabric.*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawFabric {
    /// The fabric of all connections.
    pub driver: Driver,
}

/// Keys `shm.*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawShm {
    /// Slots of a ring; a power of two.
    pub ring_slots: u64,
    /// Shared memory of one connection for bulk data, in MiB.
    pub arena_mib: u64,
    /// View that the application gets of bulk data that arrived.
    pub bulk: BulkView,
    /// Patience with a peer that posts no receive, in milliseconds.
    pub rnr_timeout_ms: u64,
    /// Patience with a client that does not fetch results from a lent slab, in milliseconds.
    pub fetch_timeout_ms: u64,
}

/// Keys `verbs.*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawVerbs {
    /// The device for connections.
    pub device: DeviceName,
    /// Entries of a core's first completion queue on a device.
    pub cq_depth: u64,
    /// Work requests of which one asks for a completion.
    pub signal_every: u64,
    /// Longest message that is copied into its work request, in bytes.
    pub max_inline_bytes: u64,
    /// RDMA Reads of one connection that this side has in flight.
    pub ord: u64,
    /// RDMA Reads of one connection that the peer may have in flight.
    pub ird: u64,
    /// Transmissions again before a silent peer is given up, on connections that this side asks for;
    /// 3 bits.
    pub retry: u64,
    /// Transmissions again by the peer when this side has no receive posted; 3 bits, 7 is without
    /// end.
    pub rnr_retry: u64,
    /// Time that such a peer is told to wait, in the encoding of InfiniBand.
    pub min_rnr_timer: u64,
    /// Wait for an acknowledgement, 4.096 µs times two to this power.
    pub ack_timeout: u64,
    /// Type of service, or traffic class.
    pub tos: u64,
    /// Use of queues without locks.
    pub thread_domain: Attempt,
    /// Registration of memory for access by peers.
    pub registration: Registration,
    /// Permission for peers to invalidate keys with their Sends.
    pub remote_invalidate: Invalidation,
    /// Memory of one connection for bulk data, in MiB, where memory is opened block by block.
    pub arena_mib: u64,
    /// Keys of one connection that are in use at a time.
    pub keys: u64,
    /// Connection requests that wait at a listener.
    pub backlog: u64,
    /// Time to find an address, and time to find the route, in milliseconds.
    pub connect_timeout_ms: u64,
    /// View that the application gets of bulk data that arrived.
    pub bulk: BulkView,
}

/// Keys `limits.*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawLimits {
    /// Connections of one core.
    pub conns: u64,
    /// Connections being accepted at a time.
    pub handshakes: u64,
    /// Connections accepted from one host over RDMA.
    pub host_conns: u64,
    /// Replies of one connection that are exported at a time.
    pub exports: u64,
    /// Largest arena of a peer over shared memory, in MiB.
    pub peer_arena_mib: u64,
    /// Slabs that a peer over shared memory may lend one connection.
    pub peer_slabs: u64,
    /// All slabs that a peer over shared memory lends one connection, in MiB.
    pub peer_slab_mib: u64,
    /// Shared memory of all connections with one process, in MiB.
    pub peer_mib: u64,
    /// Shared memory of all connections of one core, in MiB.
    pub core_mib: u64,
}

/// Keys `host.*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawHost {
    /// Longest wake-up of a CPU from an idle state, in microseconds; `None` asks for nothing.
    pub cpu_dma_latency_us: Option<u64>,
}

/// Keys `stats.*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawStats {
    /// Access of other processes to the engine's statistics.
    pub export: StatsExport,
}

impl Default for RawCores {
    fn default() -> Self {
        Self { list: CoreList::Auto, max: 1, skip: 0, smt: SmtPolicy::Avoid }
    }
}

impl Default for RawPoll {
    fn default() -> Self {
        Self { mode: IdlePolicy::Adaptive, budget: 32, spin_us: 50, yield_us: 200, park_us: 1000 }
    }
}

impl Default for RawMem {
    fn default() -> Self {
        Self {
            arena_mib: 64,
            hugepages: Want::Try,
            prefault: true,
            lock: Want::Try,
            numa: NumaPolicy::Local,
        }
    }
}

impl Default for RawRpc {
    fn default() -> Self {
        Self {
            protocol: Profile::Rfc8166,
            version: Versions::One,
            version_memory_ms: 600_000,
            propagate_deadlines: false,
            credits: 64,
            credits_idle: 1024,
            credits_shared: 4096,
            credits_period_ms: 100,
            reverse_calls: 0,
            ccp: ConfigRole::Auto,
            ccp_auth: Protection::Sys,
            max_rdma_reads: 16,
            inline_send_bytes: 4096,
            inline_recv_bytes: 4096,
            max_read_bytes: 1 << 20,
            max_write_bytes: 1 << 20,
            segment_bytes: 16 << 20,
            max_segments: 16,
            max_chunks: 8,
            msgp_align_bytes: 0,
            msgp_threshold_bytes: 1024,
            timeout_ms: 10_000,
            done_timeout_ms: 20_000,
            memory_wait_ms: 5_000,
            reply_cache_clients: 0,
            reply_cache_entries: 128,
            reply_cache_bytes: 1024,
            reply_cache_keep_ms: 120_000,
            on_panic: OnPanic::Answer,
            handle_calls: 1024,
        }
    }
}

impl Default for RawGss {
    fn default() -> Self {
        Self { step_bytes: 16_384, unused_ms: 60_000, mechanism_ms: 60_000 }
    }
}

impl Default for RawFabric {
    fn default() -> Self {
        Self { driver: Driver::Shm }
    }
}

impl Default for RawShm {
    fn default() -> Self {
        Self {
            ring_slots: 256,
            arena_mib: 16,
            bulk: BulkView::Lent,
            rnr_timeout_ms: 1000,
            fetch_timeout_ms: 30_000,
        }
    }
}

impl Default for RawVerbs {
    fn default() -> Self {
        Self {
            device: DeviceName::Auto,
            cq_depth: 4096,
            signal_every: 16,
            max_inline_bytes: 220,
            ord: 16,
            ird: 16,
            retry: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            ack_timeout: 14,
            tos: 0,
            thread_domain: Attempt::Try,
            registration: Registration::Auto,
            remote_invalidate: Invalidation::Auto,
            arena_mib: 16,
            keys: 256,
            backlog: 128,
            connect_timeout_ms: 5000,
            bulk: BulkView::Lent,
        }
    }
}

impl Default for RawLimits {
    fn default() -> Self {
        Self {
            conns: 1024,
            handshakes: 64,
            host_conns: 256,
            exports: 64,
            peer_arena_mib: 64,
            peer_slabs: 4,
            peer_slab_mib: 4 << 10,
            peer_mib: 16 << 10,
            core_mib: 36 << 10,
        }
    }
}

impl Default for RawStats {
    fn default() -> Self {
        Self { export: StatsExport::Socket }
    }
}

/// Behaviour of an idle core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdlePolicy {
    /// Keeps polling: lowest latency, all of the CPU.
    Busy,
    /// Spins, then yields, then parks on an event.
    Adaptive,
    /// Parks at once: lowest use of the CPU.
    Sleep,
}

/// An engine's role in the Connection Configuration Protocol (RFC 5666 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigRole {
    /// Both under the drafts, where it "will be used for connection setup" (draft-ietf-nfsv4-rpcrdma-00
    /// and -03, section 6.1); otherwise nothing.
    Auto,
    /// Nothing: RFC 8166 took it away.
    Off,
    /// Answers it on the connections it accepts.
    Serve,
    /// Calls it first on the connections it makes.
    Ask,
    /// Both.
    Both,
}

impl ConfigRole {
    /// The role under these rules: never [`ConfigRole::Auto`].
    #[must_use]
    pub fn under(self, protocol: Profile) -> Self {
        match self {
            Self::Auto if protocol.begins_with_configuration() => Self::Both,
            Self::Auto => Self::Off,
            role => role,
        }
    }
}

/// Urgency of something that a host may refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Not requested.
    Off,
    /// Asked for; without it the engine goes on.
    Try,
    /// Asked for; without it the engine does not start.
    Require,
}

/// Placement of a core's arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumaPolicy {
    /// On the NUMA node of the core's CPU.
    Local,
    /// Wherever the system puts it.
    Off,
}

/// Permission for two cores to share a physical core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmtPolicy {
    /// One core per physical core.
    Avoid,
    /// Hardware threads count as CPUs.
    Allow,
}

/// Consequence of a panic in a handler of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnPanic {
    /// The call is answered SYSTEM_ERR, and the core goes on.
    Answer,
    /// The engine ends with an error.
    End,
}

/// View that the application may get of bulk data that arrives in memory that the peer can write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BulkView {
    /// In place, if it asks for that. Where the peer can write at any time, safe code gets no
    /// reference to the bytes ([`ExposedBulk`](crate::ExposedBulk)).
    Lent,
    /// As a private copy that the peer cannot reach.
    Copy,
}

/// The fabric that moves the bytes of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// Shared memory of one host; addresses `shm:NAME`.
    Shm,
    /// RDMA devices; addresses `rdma://HOST:PORT`. Needs the feature `verbs`.
    Verbs,
}

/// Use of a feature that a device may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Use it if the device has it.
    Try,
    /// Never.
    Off,
}

/// Registration of the memory behind chunks for access by the peer of an RDMA connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// `Window` where the device has memory windows of type 2, else `Buffer`; `Buffer` on rxe, too,
    /// whose windows its kernel driver does not always get rid of.
    Auto,
    /// Each block of the connection's own memory (`verbs.arena_mib`) has separate keys, which live
    /// as long as the connection. No reference to that memory is given out: data that are not asked
    /// for as an [`ExposedBulk`](crate::ExposedBulk) are copied.
    Buffer,
    /// A memory window for each exposure, bound to its very bytes of the core's memory
    /// (`mem.arena_mib`); its key dies with it. Not for rxe with peers that are not trusted: it does
    /// not check a window's bounds, so that a key opens all of that memory.
    Window,
    /// One key with every right for the core's memory: for trusted fabrics only.
    Pool,
}

/// Invalidation of keys by the peer's Send With Invalidate (RFC 8166 section 4.4, RFC 8797).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// Used if both ends announce that they can.
    Auto,
    /// Never; this end ends all keys by itself.
    Off,
}

/// Access of other processes to an engine's statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatsExport {
    /// Not at all.
    None,
    /// By its [control socket](crate::control).
    Socket,
}

/// Implements [`Choice`] from the list of names and variants, in the order shown to people.
macro_rules! choice {
    ($type:ident: $($name:literal => $variant:ident),+) => {
        impl Choice for $type {
            fn names(&self) -> &'static [&'static str] {
                &[$($name),+]
            }

            fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }

            fn set(&mut self, name: &str) -> bool {
                match name {
                    $($name => *self = Self::$variant,)+
                    _ => return false,
                }
                true
            }
        }
    };
}

choice!(IdlePolicy: "busy" => Busy, "adaptive" => Adaptive, "sleep" => Sleep);
choice!(Want: "off" => Off, "try" => Try, "require" => Require);
choice!(NumaPolicy: "local" => Local, "off" => Off);
choice!(SmtPolicy: "avoid" => Avoid, "allow" => Allow);
choice!(
    Profile: "rfc8166" => Rfc8166, "rfc5666" => Rfc5666, "draft03" => Draft03, "draft00" => Draft00
);
choice!(Versions: "auto" => Both, "1" => One, "2" => Two);
choice!(ConfigRole: "auto" => Auto, "off" => Off, "serve" => Serve, "ask" => Ask, "both" => Both);
choice!(Protection: "none" => None, "sys" => Sys, "gss" => Gss);
choice!(OnPanic: "answer" => Answer, "end" => End);
choice!(BulkView: "lent" => Lent, "copy" => Copy);
choice!(Driver: "shm" => Shm, "verbs" => Verbs);
choice!(Attempt: "try" => Try, "off" => Off);
choice!(
    Registration: "auto" => Auto, "buffer" => Buffer, "window" => Window, "pool" => Pool
);
choice!(Invalidation: "auto" => Auto, "off" => Off);
choice!(StatsExport: "none" => None, "socket" => Socket);
