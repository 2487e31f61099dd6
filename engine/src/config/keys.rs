//! The table of all keys of the configuration, and the structs that hold their values as written. The text of a
//! key stands here and nowhere else: the documentation of its field, checks, messages, help, the reference of keys and
//! the profile `base` come from it.

use super::cores::CoreList;
use super::device::DeviceName;
use super::enums::{
    BulkView, ConfigRole, Driver, IdlePolicy, OnPanic, Registration, StatsExport, Want,
};
use super::ranges::{Limits, Step};
use super::schema::{AUTO, Field, Key, OFF};
use super::test_settings::Fixed;
use super::{Config, mib_to_bytes, to_u16, to_usize};
use spinrpc_proto::config_proto::Protection;
use spinrpc_proto::dialect::Profile;
use spinrpc_proto::limits::SEGMENTS_MAX;
use spinrpc_proto::version::Versions;
use std::time::Duration;

/// RFC 8797 section 4.1 codes an inline threshold as its number of KiB.
const INLINE: Limits = Limits { min: 1024, max: 65536, step: Step::MultipleOf(1024) };
/// Headers of usual calls fit before the data; beyond a page alignment gains nothing.
const MSGP_ALIGN: Limits = Limits { min: 512, max: 4096, step: Step::PowerOfTwoOrZero };
const RING: Limits = Limits { min: 64, max: 4096, step: Step::PowerOfTwo };
/// A transfer must fit the 32-bit length of a segment.
const BULK: Limits = Limits::between(4096, 1 << 30);
/// A core that spins for a second yields for four: more is a mistake.
const IDLE_US: Limits = Limits::between(0, 1_000_000);
const ARENA_MIB: Limits = Limits::between(1, 65536);
/// One octet of private data at connecting says it.
const RDMA_READS: Limits = Limits::between(0, 255);

macro_rules! converted {
    ($value:expr, $convert:path) => {
        $convert($value)
    };
    ($value:expr) => {
        $value
    };
}

/// Declares the groups of keys: for each group a struct with a field for each key, whose documentation is the effect of
/// the key, and for each key an entry of the table. With `get`, [`Config`] has a function of that name for the value. A key
/// without `unit` is not a number, one without `origin` concerns this engine only, and one without `related` keys stands alone.
macro_rules! groups {
    ($(
        $(#[$about:meta])*
        $group:ident: $Group:ident {
            $($name:ident: $type:ty = $default:expr => $kind:ident $(($($limit:expr),+))? {
                $(get: $get:ident -> $got:ty $(= $convert:path)?,)?
                $(unit: $unit:literal,)?
                effect: $effect:literal,
                reason: $reason:literal,
                $(origin: $origin:literal,)?
                $(related: [$($related:literal),* $(,)?],)?
            })+
        }
    )+) => {
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
            $($(#[$about])* pub $group: $Group,)+
            /// Values without a key, which tests change.
            #[doc(hidden)]
            pub fixed: Fixed,
        }

        $(
            $(#[$about])*
            #[derive(Clone, Debug, PartialEq, Eq)]
            pub struct $Group {
                $(#[doc = $effect] pub $name: $type,)+
            }

            impl Default for $Group {
                fn default() -> Self {
                    Self { $($name: $default),+ }
                }
            }
        )+

        /// Values of keys, in the types that their users need.
        impl Config {
            $($($(
                #[doc = $effect]
                pub fn $get(&self) -> $got {
                    converted!(self.raw.$group.$name $(, $convert)?)
                }
            )?)+)+
        }

        /// All keys, in the order to show them, those of a group together.
        pub static KEYS: &[Key] = &[$($(
            Key {
                name: concat!(stringify!($group), ".", stringify!($name)),
                unit: concat!($($unit)?),
                effect: $effect,
                reason: $reason,
                origin: concat!($($origin)?),
                related: &[$($($related),*)?],
                field: |raw| Field::$kind(&mut raw.$group.$name $($(, $limit)+)?),
            },
        )+)+];
    };
}

groups! {
    /// CPUs that the cores run on.
    cores: RawCores {
        list: CoreList = CoreList::Auto => Cores {
            effect: "CPUs to poll on, one core each, in this order; a list is used as written, any \
                     pins no core.",
            reason: "auto takes isolated CPUs, else the allowed ones, and CPU 0 only if it must.",
            related: ["cores.max"],
        }
        max: u64 = 1 => Integer(Limits::between(1, 256)) {
            unit: "cores",
            effect: "Maximum number of cores that auto or any takes.",
            reason: "A busy core takes a whole CPU; add cores when one is full.",
            related: ["cores.list", "mem.arena_mib"],
        }
    }
    /// Turns of a core, and its behaviour when idle.
    poll: RawPoll {
        mode: IdlePolicy = IdlePolicy::Adaptive => Choice {
            get: idle_policy -> IdlePolicy,
            effect: "Behaviour of an idle core: poll; or spin, yield and park; or park at once.",
            reason: "adaptive is near busy under load, and leaves the CPU to others when idle.",
            related: ["poll.spin_us", "poll.park_us", "host.cpu_dma_latency_us"],
        }
        budget: u64 = 32 => Integer(Limits::between(1, 1024)) {
            get: poll_budget -> usize = to_usize,
            unit: "events",
            effect: "Maximum number of events a core takes from one source per turn.",
            reason: "Enough to share a doorbell, few enough that no source waits long.",
        }
        spin_us: u64 = 50 => Integer(IDLE_US) {
            get: spin_time -> Duration = Duration::from_micros,
            unit: "µs",
            effect: "Time an idle core in mode adaptive spins before it yields its CPU; it yields \
                     for four times as long before it parks.",
            reason: "Longer than a round trip, shorter than a time slice.",
            related: ["poll.mode"],
        }
        park_us: u64 = 1000 => Integer(Limits::between(1, 1_000_000)) {
            get: park_time -> Duration = Duration::from_micros,
            unit: "µs",
            effect: "Maximum time a parked core sleeps before it looks for work without a wake-up.",
            reason: "A safety net: a thousand turns per second cost next to nothing.",
            related: ["poll.mode"],
        }
    }
    /// Private registered memory.
    mem: RawMem {
        arena_mib: u64 = 64 => Integer(ARENA_MIB) {
            get: arena_bytes -> usize = mib_to_bytes,
            unit: "MiB",
            effect: "Registered private memory of each core, for Read chunks and results.",
            reason: "Room for 48 calls of the largest size at a time.",
            related: ["rpc.max_read_bytes", "rpc.max_write_bytes", "mem.hugepages", "mem.lock"],
        }
        conn_arena_mib: u64 = 16 => Integer(Limits::between(1, 4096)) {
            get: conn_arena_bytes -> usize = mib_to_bytes,
            unit: "MiB",
            effect: "Memory of one connection for bulk data: shared memory, of which only the used \
                     part takes memory, or with verbs.registration = buffer memory of a device, \
                     locked as long as the connection exists.",
            reason: "Twelve calls of the largest size at a time.",
            related: ["verbs.registration", "rpc.max_read_bytes", "rpc.max_write_bytes"],
        }
        bulk: BulkView = BulkView::Lent => Choice {
            get: bulk_view -> BulkView,
            effect: "Form in which applications get bulk data: lent in place on request \
                     (ExposedBulk), or as a private copy only.",
            reason: "Saves a copy; safe code gets no reference to memory that a peer can still \
                     write.",
            related: ["verbs.registration"],
        }
        hugepages: Want = Want::Try => Choice {
            effect: "Use of huge pages for arenas; with require, the engine needs them to start.",
            reason: "They save TLB misses where an administrator has reserved some.",
            related: ["mem.arena_mib"],
        }
        lock: Want = Want::Try => Choice {
            get: lock -> Want,
            effect: "Lock the arena of each core in memory; with require, the engine needs that to \
                     start. With off, its pages come with their first use, else all at start.",
            reason: "Never swapped where RLIMIT_MEMLOCK allows it, and no failure where it does \
                     not; a page fault during a call costs more than the whole call.",
            related: ["mem.arena_mib"],
        }
    }
    /// The protocol.
    rpc: RawRpc {
        protocol: Profile = Profile::Rfc8166 => Choice {
            get: protocol -> Profile,
            effect: "Rules that connections follow; for any but rfc8166, configure both ends \
                     alike. draft00 sends RDMA_DONE after calls with Read chunks, too, for which a \
                     peer needs a receive that no credit covers: without one it loses the \
                     connection. draft00-replies does not send it.",
            reason: "Current peers speak it; the older documents have messages that RFC 8166 \
                     removed.",
            origin: "RFC 8166, RFC 5666, draft-ietf-nfsv4-rpcrdma-03 and -00",
            related: ["rpc.msgp_align_bytes", "rpc.ccp"],
        }
        version: Versions = Versions::One => Choice {
            get: versions -> Versions,
            effect: "Versions of RPC-over-RDMA to speak. auto offers version two on outgoing \
                     connections, falls back to version one, and serves both. With version two, \
                     the inline limits are at least 4096 bytes.",
            reason: "No public peer speaks version two, and an offer costs a round trip.",
            origin: "draft-cel-nfsv4-rpcrdma-version-two-01",
        }
        credits: u64 = 64 => Integer(Limits::between(1, 1024)) {
            get: credits -> usize = to_usize,
            unit: "calls",
            effect: "Maximum outstanding calls on one connection: requested as a client, granted \
                     as a server. Each costs buffers of the inline sizes on both sides.",
            reason: "NFS servers grant 64 to 128; the lower end takes less memory.",
            origin: "RFC 8166 section 3.3.1",
            related: ["rpc.reverse_calls", "rpc.inline_recv_bytes", "rpc.reply_cache_mib"],
        }
        reverse_calls: u64 = 0 => Integer(Limits::between(0, 1024)) {
            get: reverse_calls -> usize = to_usize,
            unit: "calls",
            effect: "Maximum outstanding calls of a server to its client on one connection (RFC \
                     8167). Connections that are opened with `take_reverse_calls` have room to \
                     answer them, and accepted ones room to make them. Each costs buffers of the \
                     inline sizes on both sides. A client that takes them leaves up to two credits \
                     of each grant for its answers.",
            reason: "Few programs call back; with 0, connections pay nothing for it.",
            origin: "RFC 8167 section 4",
            related: ["rpc.credits", "rpc.inline_recv_bytes"],
        }
        ccp: ConfigRole = ConfigRole::Auto => Choice {
            effect: "Use of the Connection Configuration Protocol of RFC 5666: serve answers it on \
                     accepted connections, ask uses it on outgoing ones. auto is both under the \
                     drafts of rpc.protocol, where it is part of every connection, and else off.",
            reason: "RFC 8166 removed it: most peers answer that they do not serve it.",
            origin: "RFC 5666 section 6",
            related: ["rpc.ccp_auth", "rpc.max_rdma_reads", "rpc.inline_recv_bytes"],
        }
        ccp_auth: Option<Protection> = None => Choice {
            effect: "RPC security flavor of a client that uses this protocol, and the least that a \
                     server accepts. With `gss`, it is asked by clients whose calls have the \
                     integrity or privacy of RPCSEC_GSS, once they have a context, and by no \
                     others. `sys` and `none` prove nothing: any peer sets the limits of its \
                     connection. auto is `sys` under the drafts of rpc.protocol, which ask for no \
                     protection, and else `gss`.",
            reason: "RFC 5666 requires an appropriate flavor, and only RPCSEC_GSS protects.",
            origin: "RFC 5666 section 11",
            related: ["rpc.ccp"],
        }
        max_rdma_reads: u64 = 16 => Integer(RDMA_READS) {
            get: rdma_reads_max -> u16 = to_u16,
            unit: "reads",
            effect: "RDMA Reads that may be in flight on a connection in each direction, as \
                     announced by that protocol and, to a device, when connecting; the peer and \
                     the device may lower it. With 0, the protocol announces none, and nothing is \
                     offered as a Read chunk.",
            reason: "Common adapters accept as many; more in flight gain nothing.",
            origin: "RFC 5666 section 6",
            related: ["rpc.ccp"],
        }
        inline_send_bytes: u64 = 4096 => Integer(INLINE) {
            get: inline_send_bytes -> usize = to_usize,
            unit: "bytes",
            effect: "Maximum length of messages sent inline, with transport header; the peer may \
                     lower it.",
            reason: "Common peers offer this; RFC 8166 guarantees 1024.",
            origin: "RFC 8166 section 3.3.2; RFC 8797 section 4",
            related: ["rpc.inline_recv_bytes", "shm.ring_slots"],
        }
        inline_recv_bytes: u64 = 4096 => Integer(INLINE) {
            get: inline_recv_bytes -> usize = to_usize,
            unit: "bytes",
            effect: "Maximum length of messages received inline: the size of every posted receive.",
            reason: "Common peers offer this; RFC 8166 guarantees 1024.",
            origin: "RFC 8166 section 3.3.2; RFC 8797 section 4",
            related: ["rpc.inline_send_bytes", "rpc.credits", "shm.ring_slots"],
        }
        max_read_bytes: u64 = 1 << 20 => Integer(BULK) {
            get: read_bytes_max -> usize = to_usize,
            unit: "bytes",
            effect: "Maximum bytes of results that one call of this side may return by Write \
                     chunks, and by a Reply chunk, which may have 64 KiB more. Peers are allowed \
                     these 64 KiB in either.",
            reason: "The largest read that common NFS clients request.",
            origin: "RFC 8166 section 3.4",
            related: ["rpc.max_write_bytes", "mem.arena_mib", "mem.conn_arena_mib"],
        }
        max_write_bytes: u64 = 1 << 20 => Integer(BULK) {
            get: write_bytes_max -> usize = to_usize,
            unit: "bytes",
            effect: "Maximum bytes of arguments that one call of this side may pass by Read \
                     chunks; a whole message as a chunk may have 64 KiB more. Peers are allowed \
                     these 64 KiB in either.",
            reason: "The largest write that common NFS clients send.",
            origin: "RFC 8166 section 3.4",
            related: ["rpc.max_read_bytes", "mem.arena_mib", "mem.conn_arena_mib"],
        }
        segment_bytes: u64 = 16 << 20 => Integer(BULK) {
            unit: "bytes",
            effect: "Maximum length of a segment of a chunk that this side offers, but at least \
                     what the largest transfer needs; longer buffers have several segments.",
            reason: "One segment for every transfer of the usual sizes, and so the shortest \
                     headers.",
            origin: "RFC 8166 section 3.4.3",
            related: ["rpc.max_segments", "rpc.max_read_bytes", "rpc.max_write_bytes"],
        }
        max_segments: u64 = 288 => Integer(Limits::between(1, SEGMENTS_MAX as u64)) {
            get: segments_max -> usize = to_usize,
            unit: "segments",
            effect: "Maximum number of segments of a Read list, of a Write list and of a Reply \
                     chunk, sent or accepted; a peer that sends more gets ERR_CHUNK.",
            reason: "1 MiB that a peer registered page by page, and a long message.",
            origin: "RFC 8166 section 3.4.3",
        }
        msgp_align_bytes: u64 = 0 => Integer(MSGP_ALIGN) {
            unit: "bytes",
            effect: "With a protocol that has RDMA_MSGP: long inline data of messages from this end \
                     begin at a multiple of this. 0 disables it.",
            reason: "Pays off if the peer's receives are aligned to it.",
            origin: "RFC 5666 section 3.9",
            related: ["rpc.protocol", "rpc.inline_send_bytes"],
        }
        timeout_ms: u64 = 10_000 => Integer(Limits::between(0, 86_400_000)) {
            unit: "ms",
            effect: "Deadline of a call that does not set one; 0 means no deadline.",
            reason: "Detects a dead server, and does not mistake a slow one for it.",
        }
        stall_timeout_ms: u64 = 30_000 => Integer(Limits::between(1, 3_600_000)) {
            get: stall_timeout -> Duration = Duration::from_millis,
            unit: "ms",
            effect: "Time within which a quarter of the Sends, RDMA Writes and RDMA Reads must \
                     complete that were outstanding on a connection. Otherwise it is closed, over \
                     every fabric, and the memory that its peer held back is free: a peer that \
                     posts no receives, lets no Read complete, or fetches no results from a slab \
                     that the server lends.",
            reason: "Longer than any pause of a live peer; on a link that others share, too, a \
                     quarter gets through.",
            origin: "RFC 8166 section 3.3",
        }
        reply_cache_mib: u64 = 0 => Integer(Limits::between(0, 65536)) {
            get: reply_cache_mib -> usize = to_usize,
            unit: "MiB",
            effect: "Memory for the replies that are kept, for programs whose calls must not be \
                     executed twice; 0 keeps none. A reply takes 1 KiB, or more if it is longer \
                     than 512 bytes, and stays until that is needed: then the oldest one makes \
                     room, first of a host or user whose clients have more than a quarter. One \
                     client has at most an eighth of the memory, or 4 MiB, and a quarter of that \
                     for certain. A call is not executed while calls in progress hold that \
                     quarter.",
            reason: "Memory is used only if programs ask for it, and as replies need it.",
            origin: "RFC 5666 section 8; RFC 5531 section 4",
            related: ["rpc.credits"],
        }
        on_panic: OnPanic = OnPanic::Answer => Choice {
            get: on_panic -> OnPanic,
            effect: "Consequence of a panic in a handler: the call is answered SYSTEM_ERR and the \
                     core continues, or the engine ends with an error.",
            reason: "One bad call costs its caller an answer, and other callers nothing.",
            origin: "RFC 5531 section 9",
        }
    }
    /// Driver that transports messages.
    fabric: RawFabric {
        driver: Driver = Driver::Shm => Choice {
            get: driver -> Driver,
            effect: "Driver of all connections of an engine: shared memory, RDMA devices, or iWARP over \
                     TCP sockets.",
            reason: "No device is needed; the programs here choose by the address they are given.",
            related: ["verbs.device", "shm.ring_slots", "iwarp.crc"],
        }
    }
    /// The shared-memory fabric.
    shm: RawShm {
        ring_slots: u64 = 256 => Integer(RING) {
            get: shm_ring_slots -> usize = to_usize,
            unit: "slots",
            effect: "Slots of a shared-memory ring; a connection has one ring per direction.",
            reason: "Room for calls of all credits with their bulk transfers, without waiting.",
            related: ["rpc.inline_send_bytes", "rpc.inline_recv_bytes", "rpc.credits"],
        }
    }
    /// The fabric of RDMA devices.
    verbs: RawVerbs {
        device: DeviceName = DeviceName::Auto => Device {
            effect: "RDMA device for connections; auto takes the device that leads to the address.",
            reason: "An address is reached through one device; a name keeps an engine off all \
                     others.",
            related: ["fabric.driver"],
        }
        ack_timeout: Option<u64> = None => Optional(Limits::between(1, 31), AUTO) {
            unit: "exponent",
            effect: "Time to wait for an acknowledgement before a packet is retransmitted: 4.096 \
                     µs times two to this power, if the device allows setting it; auto leaves it \
                     to the kernel, which for RoCE takes 17 to 19, and to the subnet manager of \
                     InfiniBand. After seven times what is set, a peer without a sign of life is \
                     given up, also where a driver tries for longer.",
            reason: "With the retries, connections outlast the fail-over of a switch. For a \
                     fail-over to another rail in half a second set 12.",
        }
        tos: Option<u64> = None => Optional(Limits::between(0, 255), AUTO) {
            unit: "code",
            effect: "Type of service of IPv4, or traffic class of IPv6 and InfiniBand, of all \
                     packets; auto leaves it to the kernel, which for RoCE takes cma_roce_tos of \
                     the device.",
            reason: "The operator's class for RoCE may be the lossless one.",
        }
        registration: Registration = Registration::Auto => Choice {
            effect: "Way in which memory is exposed to a peer: window uses a memory window for \
                     each exposure, buffer has keys for each block of the connection's own memory, \
                     and pool has one key for all memory of a core, which no call revokes.",
            reason: "auto is window if the device has windows of type 2, else buffer, and buffer \
                     on rxe, whose driver neither checks the bounds of windows nor always frees \
                     them; pool is for trusted fabrics only.",
            origin: "RFC 8166 section 8.1",
            related: ["mem.conn_arena_mib", "mem.bulk"],
        }
        connect_timeout_ms: u64 = 5000 => Integer(Limits::between(1, 60_000)) {
            unit: "ms",
            effect: "Maximum wait for the peer's address and for the route to it, each, when \
                     connecting, and for the whole handshake when accepting. The answer to a \
                     request may take as long as the caller allows.",
            reason: "Several ARP requests; an absent host is reported as such.",
            related: ["limits.handshakes"],
        }
    }
    /// The fabric of TCP sockets.
    iwarp: RawIwarp {
        crc: bool = true => Choice {
            get: iwarp_crc -> bool,
            effect: "CRC32c of every message over iwarp://, in both directions. Both ends need off to \
                     leave it out; siw of Linux leaves it out if its peer does.",
            reason: "The checksum of TCP is weak. off saves a pass over the bytes at each end, for links \
                     that are protected otherwise: within one host, or by IPsec.",
            origin: "RFC 5044 section 4.4",
            related: ["fabric.driver"],
        }
    }
    /// Admission.
    limits: RawLimits {
        conns: u64 = 1024 => Integer(Limits::between(1, 16_384)) {
            get: conns_max -> usize = to_usize,
            unit: "connections",
            effect: "Maximum connections of one core; more are rejected.",
            reason: "Bounds the memory of a core to about a gigabyte when all are in use.",
            related: ["limits.handshakes", "limits.host_conns", "rpc.credits"],
        }
        handshakes: u64 = 64 => Integer(Limits::between(1, 4096)) {
            get: handshakes_max -> usize = to_usize,
            unit: "connections",
            effect: "Maximum concurrent handshakes. At the limit, the oldest idle handshake of the \
                     process with the most handshakes is refused. Over RDMA the new handshake is \
                     refused, and a single host may use at most a quarter of the limit.",
            reason: "Peers that connect and send nothing cannot use up descriptors.",
            related: ["limits.conns", "limits.host_conns"],
        }
        host_conns: u64 = 256 => Integer(Limits::between(1, 65_536)) {
            get: host_conns_max -> usize = to_usize,
            unit: "connections",
            effect: "Maximum connections that an engine accepts from one host over RDMA, or from \
                     one /64 of IPv6; more are rejected.",
            reason: "One host cannot take all places of a core; a mount with nconnect takes 16.",
            related: ["limits.conns", "limits.handshakes"],
        }
        peer_slab_mib: u64 = 4 << 10 => Integer(Limits::between(0, 1 << 20)) {
            get: peer_slab_bytes_max -> usize = mib_to_bytes,
            unit: "MiB",
            effect: "Maximum size of all slabs (Slab) of its own memory that a peer over shared \
                     memory lends one connection, at most four, which are mapped here for reading; \
                     with 0 none is accepted.",
            reason: "Room for the caches of a storage program; limits.peer_mib bounds all its \
                     connections.",
            related: ["limits.peer_mib", "limits.core_mib"],
        }
        peer_mib: u64 = 16 << 10 => Integer(Limits::between(1, 1 << 30)) {
            get: peer_memory_bytes_max -> usize = mib_to_bytes,
            unit: "MiB",
            effect: "Maximum shared memory of all connections with one process: rings, both arenas \
                     and the peer's slabs.",
            reason: "Five hundred connections with default settings; only the used part takes \
                     memory.",
            related: ["limits.core_mib", "limits.peer_slab_mib", "mem.conn_arena_mib"],
        }
        core_mib: u64 = 36 << 10 => Integer(Limits::between(1, 1 << 30)) {
            get: core_memory_bytes_max -> usize = mib_to_bytes,
            unit: "MiB",
            effect: "Maximum shared memory of all connections of one core: rings, both arenas and \
                     the peers' slabs.",
            reason: "All connections of a core with default settings.",
            related: ["limits.conns", "limits.peer_mib", "mem.conn_arena_mib"],
        }
    }
    /// Requirements on the host while an engine runs.
    host: RawHost {
        cpu_dma_latency_us: Option<u64> = None => Optional(IDLE_US, OFF) {
            unit: "µs",
            effect: "Maximum wake-up latency of the idle states of CPUs while an engine runs. An \
                     engine that may not request it (/dev/cpu_dma_latency) does not start.",
            reason: "Only root can allow it, and it costs all CPUs of the host power and heat.",
            related: ["poll.mode"],
        }
    }
    /// Being looked at.
    stats: RawStats {
        export: StatsExport = StatsExport::Socket => Choice {
            get: stats_export -> StatsExport,
            effect: "Access of processes of the same user, and of root, to the engine's control \
                     socket, as spinperf top has it: they see its counters, and can change how its \
                     cores idle.",
            reason: "It costs a sleeping thread, and nothing more until it is used.",
        }
    }
}
