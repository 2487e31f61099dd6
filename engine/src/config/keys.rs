//! The table of all keys of the configuration.

use super::limits::{Limits, Step};
use super::schema::{Field, Key};
use crate::mem::SLABS_MAX;
use spinrpc_proto::limits::{READ_CHUNKS_MAX, SEGMENTS_MAX, WRITE_CHUNKS_MAX};
use spinrpc_proto::rpc::AUTH_BODY_MAX_BYTES;

/// RFC 8797 section 4.1 codes an inline threshold as its number of KiB.
const INLINE: Limits = Limits { min: 1024, max: 65536, step: Step::MultipleOf(1024) };
const _: () = assert!(READ_CHUNKS_MAX == WRITE_CHUNKS_MAX); // rpc.max_chunks is for both
/// Headers of usual calls fit before the data; receive buffers are aligned to a page.
const MSGP_ALIGN: Limits = Limits { min: 512, max: 4096, step: Step::PowerOfTwoOrZero };
/// No credential or verifier, which are counted data too, is ever padded.
const MSGP_THRESHOLD: Limits = Limits::between(512, 65536);
const _: () = assert!(MSGP_THRESHOLD.min > AUTH_BODY_MAX_BYTES as u64);
const RING: Limits = Limits { min: 64, max: 4096, step: Step::PowerOfTwo };
/// A place for each XID modulo their number.
const CACHE_ENTRIES: Limits = Limits { min: 2, max: 4096, step: Step::PowerOfTwo };
/// A transfer must fit the 32-bit length of a segment.
const BULK: Limits = Limits::between(4096, 1 << 30);
/// An idle phase longer than a second looks like a hang to a waiting caller.
const IDLE_US: Limits = Limits::between(0, 1_000_000);
const ARENA_MIB: Limits = Limits::between(1, 65536);
/// One octet of private data at connecting says it, and Linux servers refuse a peer that offers 0.
const RDMA_READS: Limits = Limits::between(1, 255);
/// InfiniBand has 3 bits for a count of retries.
const RETRIES: Limits = Limits::between(0, 7);

/// All keys, in the order to show them, those of a group together.
pub static KEYS: &[Key] = &[
    Key {
        name: "cores.list",
        unit: "",
        effect: "CPUs to poll on, one core each, in this order. A list is used as written.",
        reason: "auto takes isolated CPUs, else the allowed ones, and CPU 0 only if it must.",
        field: |raw| Field::Cores(&mut raw.cores.list),
    },
    Key {
        name: "cores.max",
        unit: "cores",
        effect: "Maximum number of cores that auto takes.",
        reason: "A busy core takes a whole CPU; add cores when one is full.",
        field: |raw| Field::Integer(&mut raw.cores.max, Limits::between(1, 256)),
    },
    Key {
        name: "cores.skip",
        unit: "CPUs",
        effect: "CPUs that auto leaves to processes of this host started earlier; it starts again \
                 with the first when they run out.",
        reason: "The first process takes the best CPU; give a client on the same host 1.",
        field: |raw| Field::Integer(&mut raw.cores.skip, Limits::between(0, 4095)),
    },
    Key {
        name: "cores.smt",
        unit: "",
        effect: "Controls whether auto may put two cores on hardware threads of one physical core.",
        reason: "Two pollers on one physical core take each other's cycles.",
        field: |raw| Field::Choice(&mut raw.cores.smt),
    },
    Key {
        name: "poll.mode",
        unit: "",
        effect: "Behaviour of an idle core: poll; or spin, yield and park; or park at once.",
        reason: "adaptive is near busy under load, and leaves the CPU to others when idle.",
        field: |raw| Field::Choice(&mut raw.poll.mode),
    },
    Key {
        name: "poll.budget",
        unit: "events",
        effect: "Maximum number of events a core takes from one source per turn.",
        reason: "Enough to share a doorbell, few enough that no source waits long.",
        field: |raw| Field::Integer(&mut raw.poll.budget, Limits::between(1, 1024)),
    },
    Key {
        name: "poll.spin_us",
        unit: "µs",
        effect: "Time an idle core in mode adaptive spins before it yields.",
        reason: "Longer than a round trip, shorter than a time slice.",
        field: |raw| Field::Integer(&mut raw.poll.spin_us, IDLE_US),
    },
    Key {
        name: "poll.yield_us",
        unit: "µs",
        effect: "Time an idle core in mode adaptive then yields its CPU before it parks.",
        reason: "Lets others run while a wake-up still costs the peer no system call.",
        field: |raw| Field::Integer(&mut raw.poll.yield_us, IDLE_US),
    },
    Key {
        name: "poll.park_us",
        unit: "µs",
        effect: "Maximum time a parked core sleeps before it looks for work without a wake-up.",
        reason: "A safety net: a thousand turns per second cost next to nothing.",
        field: |raw| Field::Integer(&mut raw.poll.park_us, Limits::between(1, 1_000_000)),
    },
    Key {
        name: "mem.arena_mib",
        unit: "MiB",
        effect: "Registered private memory of each core, for Read chunks and results.",
        reason: "Room for about sixty calls of the largest size at a time.",
        field: |raw| Field::Integer(&mut raw.mem.arena_mib, ARENA_MIB),
    },
    Key {
        name: "mem.hugepages",
        unit: "",
        effect: "Use of huge pages for arenas; with require, the engine needs them to start.",
        reason: "They save TLB misses where an administrator has reserved some.",
        field: |raw| Field::Choice(&mut raw.mem.hugepages),
    },
    Key {
        name: "mem.prefault",
        unit: "",
        effect: "Touch the arena of each core at start.",
        reason: "A page fault during a call costs more than the whole call.",
        field: |raw| Field::Flag(&mut raw.mem.prefault),
    },
    Key {
        name: "mem.lock",
        unit: "",
        effect: "Lock the arena of each core in memory; with require, the engine needs that to \
                 start.",
        reason: "Never swapped where RLIMIT_MEMLOCK allows it, and no failure where it does not.",
        field: |raw| Field::Choice(&mut raw.mem.lock),
    },
    Key {
        name: "mem.numa",
        unit: "",
        effect: "Place the arena of each core on the NUMA node of its CPU.",
        reason: "Memory of another node is slower; on a single node there is no difference.",
        field: |raw| Field::Choice(&mut raw.mem.numa),
    },
    Key {
        name: "rpc.protocol",
        unit: "",
        effect: "Rules that connections follow; for any but rfc8166, configure both ends alike.",
        reason: "Current peers speak it; the older documents have messages that RFC 8166 removed.",
        field: |raw| Field::Choice(&mut raw.rpc.protocol),
    },
    Key {
        name: "rpc.version",
        unit: "",
        effect: "Versions of RPC-over-RDMA to speak. auto offers version two on outgoing \
                 connections, falls back to version one, and serves both. With version two, the \
                 inline limits are at least 4096 bytes.",
        reason: "No public peer speaks version two, and an offer costs a round trip.",
        field: |raw| Field::Choice(&mut raw.rpc.version),
    },
    Key {
        name: "rpc.version_memory_ms",
        unit: "ms",
        effect: "Time for which a responder that rejected version two, or disconnected because of \
                 it, is asked in version one at once.",
        reason: "Long enough that reconnects need no offer, short enough to notice an upgrade.",
        field: |raw| Field::Integer(&mut raw.rpc.version_memory_ms, Limits::between(1, 86_400_000)),
    },
    Key {
        name: "rpc.propagate_deadlines",
        unit: "",
        effect: "Calls of version two carry their remaining time, and a server that knows the \
                 extension does not execute them later; other calls are unchanged.",
        reason: "Each such call has 16 bytes more, and does not take the shortest path.",
        field: |raw| Field::Flag(&mut raw.rpc.propagate_deadlines),
    },
    Key {
        name: "rpc.credits",
        unit: "calls",
        effect: "Maximum outstanding calls on one connection: requested as a client, granted as a \
                 server. Each costs buffers of the inline sizes on both sides.",
        reason: "NFS servers grant 64 to 128; the lower end takes less memory.",
        field: |raw| Field::Integer(&mut raw.rpc.credits, Limits::between(1, 1024)),
    },
    Key {
        name: "rpc.credits_idle",
        unit: "calls",
        effect: "Calls that a server grants a connection as long as it makes few, at most \
                 rpc.credits: one that makes as many within rpc.credits_period_ms, or has them \
                 in progress, is granted twice as many. For each one a receive is posted. Without \
                 effect where peers say RDMA_DONE (rpc.protocol): grants follow from that.",
        reason: "All credits always; less for a server with thousands of connections.",
        field: |raw| Field::Integer(&mut raw.rpc.credits_idle, Limits::between(1, 1024)),
    },
    Key {
        name: "rpc.credits_shared",
        unit: "calls",
        effect: "Calls that the busy connections of a server's core are granted beyond \
                 rpc.credits_idle, all together. Busy connections share what is left equally: one \
                 that falls silent keeps what it was granted until it calls again or ends.",
        reason: "With rpc.credits_idle = 8, 73 connections have all the default credits at the \
                 same time.",
        field: |raw| Field::Integer(&mut raw.rpc.credits_shared, Limits::between(0, 1 << 20)),
    },
    Key {
        name: "rpc.credits_period_ms",
        unit: "ms",
        effect: "Time in which a busy connection makes as many calls as it is granted. The grant \
                 of one that makes fewer is halved, with its next replies.",
        reason: "Clients that use all of a grant in each round trip are busy at any distance.",
        field: |raw| Field::Integer(&mut raw.rpc.credits_period_ms, Limits::between(1, 60_000)),
    },
    Key {
        name: "rpc.reverse_calls",
        unit: "calls",
        effect: "Maximum outstanding calls of a server to its client on one connection (RFC 8167). \
                 Connections that are opened with `take_reverse_calls` have room to answer them, \
                 and accepted ones room to make them. Each costs buffers of the inline sizes on \
                 both sides.",
        reason: "Few programs call back; with 0, connections pay nothing for it.",
        field: |raw| Field::Integer(&mut raw.rpc.reverse_calls, Limits::between(0, 1024)),
    },
    Key {
        name: "rpc.ccp",
        unit: "",
        effect: "Use of the Connection Configuration Protocol of RFC 5666: serve answers it on \
                 accepted connections, ask uses it on outgoing ones. auto is both under `draft00` \
                 and `draft03`, where it is part of every connection, and else off.",
        reason: "RFC 8166 removed it: most peers answer that they do not serve it.",
        field: |raw| Field::Choice(&mut raw.rpc.ccp),
    },
    Key {
        name: "rpc.ccp_auth",
        unit: "",
        effect: "RPC security flavor of a client that uses this protocol, and the least that a \
                 server accepts. With `gss`, it is asked by clients whose calls have the integrity \
                 or privacy of RPCSEC_GSS, once they have a context, and by no others.",
        reason: "RFC 5666 requires an appropriate flavor; RPCSEC_GSS needs a mechanism.",
        field: |raw| Field::Choice(&mut raw.rpc.ccp_auth),
    },
    Key {
        name: "rpc.max_rdma_reads",
        unit: "reads",
        effect: "RDMA Reads that a peer may have in flight to this side of a connection, as \
                 announced by that protocol. With 0 there are none, and nothing is offered as a \
                 Read chunk.",
        reason: "Common adapters accept as many; more in flight gain nothing.",
        field: |raw| Field::Integer(&mut raw.rpc.max_rdma_reads, Limits::between(0, 65_535)),
    },
    Key {
        name: "rpc.inline_send_bytes",
        unit: "bytes",
        effect: "Maximum length of messages sent inline, with transport header; the peer may \
                 lower it.",
        reason: "Common peers offer this; RFC 8166 guarantees 1024.",
        field: |raw| Field::Integer(&mut raw.rpc.inline_send_bytes, INLINE),
    },
    Key {
        name: "rpc.inline_recv_bytes",
        unit: "bytes",
        effect: "Maximum length of messages received inline: the size of every posted receive.",
        reason: "Common peers offer this; RFC 8166 guarantees 1024.",
        field: |raw| Field::Integer(&mut raw.rpc.inline_recv_bytes, INLINE),
    },
    Key {
        name: "rpc.max_read_bytes",
        unit: "bytes",
        effect: "Maximum bytes of results that one call may return by Write and Reply chunks.",
        reason: "The largest read that common NFS clients request.",
        field: |raw| Field::Integer(&mut raw.rpc.max_read_bytes, BULK),
    },
    Key {
        name: "rpc.max_write_bytes",
        unit: "bytes",
        effect: "Maximum bytes of arguments that one call may pass by Read chunks.",
        reason: "The largest write that common NFS clients send.",
        field: |raw| Field::Integer(&mut raw.rpc.max_write_bytes, BULK),
    },
    Key {
        name: "rpc.segment_bytes",
        unit: "bytes",
        effect: "Maximum length of a segment of a chunk that this side offers; longer buffers \
                 have several segments.",
        reason: "One segment for every transfer of the usual sizes, and so the shortest headers.",
        field: |raw| Field::Integer(&mut raw.rpc.segment_bytes, BULK),
    },
    Key {
        name: "rpc.max_segments",
        unit: "segments",
        effect: "Maximum number of segments of one chunk, sent or accepted; a peer that sends \
                 more gets ERR_CHUNK.",
        reason: "Peers that register page by page or in two extents stay within it.",
        field: |raw| {
            Field::Integer(&mut raw.rpc.max_segments, Limits::between(1, SEGMENTS_MAX as u64))
        },
    },
    Key {
        name: "rpc.max_chunks",
        unit: "chunks",
        effect: "Maximum number of chunks of a Read list or a Write list, sent or accepted; a \
                 peer that sends more gets ERR_CHUNK.",
        reason: "Upper layers in use need one or two.",
        field: |raw| {
            Field::Integer(&mut raw.rpc.max_chunks, Limits::between(1, READ_CHUNKS_MAX as u64))
        },
    },
    Key {
        name: "rpc.msgp_align_bytes",
        unit: "bytes",
        effect: "With a protocol that has RDMA_MSGP: long inline data begin at a multiple of \
                 this, and receives take a second, page-aligned buffer from there on. 0 disables \
                 both.",
        reason: "Pays off if applications keep the data of inline writes; set both ends alike.",
        field: |raw| Field::Integer(&mut raw.rpc.msgp_align_bytes, MSGP_ALIGN),
    },
    Key {
        name: "rpc.msgp_threshold_bytes",
        unit: "bytes",
        effect: "Minimum length of inline data that are padded in this way.",
        reason: "Copying shorter data takes less time than the padding.",
        field: |raw| Field::Integer(&mut raw.rpc.msgp_threshold_bytes, MSGP_THRESHOLD),
    },
    Key {
        name: "rpc.timeout_ms",
        unit: "ms",
        effect: "Deadline of a call that does not set one; 0 means no deadline.",
        reason: "Detects a dead server, and does not mistake a slow one for it.",
        field: |raw| Field::Integer(&mut raw.rpc.timeout_ms, Limits::between(0, 86_400_000)),
    },
    Key {
        name: "rpc.done_timeout_ms",
        unit: "ms",
        effect: "Time for which the memory of a reply that the client fetches waits for \
                 RDMA_DONE. Then it is revoked, and a client that is still reading loses its \
                 connection.",
        reason: "Longer than the deadline of a call, after which the caller no longer waits for the reply.",
        field: |raw| Field::Integer(&mut raw.rpc.done_timeout_ms, Limits::between(1, 3_600_000)),
    },
    Key {
        name: "rpc.memory_wait_ms",
        unit: "ms",
        effect: "Time for which a call or a reply that arrives with Read chunks waits for memory \
                 for them (`mem.arena_mib`). Then a call is answered SYSTEM_ERR without being \
                 executed, and a reply ends its call with `CallError::NoMemory`.",
        reason: "Shorter than the deadline of a call, so that its client learns of it, and \
                 shorter than the server's rpc.done_timeout_ms: a reply fetched later costs the \
                 connection. Calls that wait for each other's memory fail instead of waiting \
                 without end.",
        field: |raw| Field::Integer(&mut raw.rpc.memory_wait_ms, Limits::between(1, 3_600_000)),
    },
    Key {
        name: "rpc.reply_cache_clients",
        unit: "clients",
        effect: "Number of clients whose replies are kept at a time, for programs whose calls \
                 must not be executed twice; 0 keeps none. The clients of one host or process \
                 take at most an eighth of them, and at least one.",
        reason: "Memory is used only if programs ask for it: clients times entries times bytes.",
        field: |raw| Field::Integer(&mut raw.rpc.reply_cache_clients, Limits::between(0, 65536)),
    },
    Key {
        name: "rpc.reply_cache_entries",
        unit: "replies",
        effect: "Number of replies kept for one client: more than rpc.credits if any are kept.",
        reason: "One for each call that may be outstanding, and one for the connection's own.",
        field: |raw| Field::Integer(&mut raw.rpc.reply_cache_entries, CACHE_ENTRIES),
    },
    Key {
        name: "rpc.reply_cache_bytes",
        unit: "bytes",
        effect: "Maximum length of a reply that is kept, with its data items. A call with a \
                 longer reply is not executed again either; a repetition is answered SYSTEM_ERR.",
        reason: "Calls that change something return no more; longer replies are mostly of reads.",
        field: |raw| Field::Integer(&mut raw.rpc.reply_cache_bytes, Limits::between(64, 1 << 20)),
    },
    Key {
        name: "rpc.reply_cache_keep_ms",
        unit: "ms",
        effect: "Minimum time for which the replies of a disconnected client are kept.",
        reason: "Twice as long as clients try to reconnect.",
        field: |raw| {
            Field::Integer(&mut raw.rpc.reply_cache_keep_ms, Limits::between(1, 86_400_000))
        },
    },
    Key {
        name: "rpc.on_panic",
        unit: "",
        effect: "Consequence of a panic in a handler: the call is answered SYSTEM_ERR and the \
                 core continues, or the engine ends with an error.",
        reason: "One bad call costs its caller an answer, and other callers nothing.",
        field: |raw| Field::Choice(&mut raw.rpc.on_panic),
    },
    Key {
        name: "rpc.handle_calls",
        unit: "calls",
        effect: "Maximum calls in flight that threads of the application make on one core through \
                 handles (`ClientHandle`), over all its connections; one more is rejected.",
        reason: "Sixteen threads with as many calls each as a connection has credits.",
        field: |raw| Field::Integer(&mut raw.rpc.handle_calls, Limits::between(1, 65_536)),
    },
    Key {
        name: "gss.step_bytes",
        unit: "bytes",
        effect: "Bytes of bodies under RPCSEC_GSS that a core seals or opens in one turn as they \
                 arrive, and as many of those that wait because they are longer, or because \
                 others came before them in the turn. Bytes of encryption type 20 count double.",
        reason: "About 30 microseconds of encryption; a turn costs a hundredth of that.",
        field: |raw| Field::Integer(&mut raw.gss.step_bytes, Limits::between(1024, 16 << 20)),
    },
    Key {
        name: "gss.unused_ms",
        unit: "ms",
        effect: "Time after which a server drops a security context that no call has used; its \
                 client establishes another one.",
        reason: "Clients use a context at once; the sender of a copied token never can, as it \
                 lacks the key.",
        field: |raw| Field::Integer(&mut raw.gss.unused_ms, Limits::between(1, 86_400_000)),
    },
    Key {
        name: "gss.mechanism_ms",
        unit: "ms",
        effect: "Time that a client gives its mechanism for each step of a security context; then \
                 it fails as if the mechanism had refused.",
        reason: "MIT's library gives up an unresponsive key distribution center after 27 seconds.",
        field: |raw| Field::Integer(&mut raw.gss.mechanism_ms, Limits::between(1, 86_400_000)),
    },
    Key {
        name: "fabric.driver",
        unit: "",
        effect: "Driver of all connections of an engine: shared memory, or RDMA devices.",
        reason: "No device is needed; the programs here choose by the address they are given.",
        field: |raw| Field::Choice(&mut raw.fabric.driver),
    },
    Key {
        name: "shm.ring_slots",
        unit: "slots",
        effect: "Slots of a shared-memory ring; a connection has one ring per direction.",
        reason: "Room for calls of all credits with their bulk transfers, without waiting.",
        field: |raw| Field::Integer(&mut raw.shm.ring_slots, RING),
    },
    Key {
        name: "shm.arena_mib",
        unit: "MiB",
        effect: "Shared memory of one connection for bulk data; only the used part takes memory.",
        reason: "Sixteen calls of the largest size at a time.",
        field: |raw| Field::Integer(&mut raw.shm.arena_mib, Limits::between(1, 4096)),
    },
    Key {
        name: "shm.bulk",
        unit: "",
        effect: "Form in which applications get bulk data: lent in place on request \
                 (ExposedBulk), or as a copy only.",
        reason: "Saves a copy; safe code gets no reference to memory that a peer writes.",
        field: |raw| Field::Choice(&mut raw.shm.bulk),
    },
    Key {
        name: "shm.rnr_timeout_ms",
        unit: "ms",
        effect: "Time for which an arriving message waits for a posted receive before the \
                 connection is closed.",
        reason: "Longer than any pause of a live peer that polls.",
        field: |raw| Field::Integer(&mut raw.shm.rnr_timeout_ms, Limits::between(1, 60_000)),
    },
    Key {
        name: "shm.fetch_timeout_ms",
        unit: "ms",
        effect: "Maximum time that a client may take to fetch results from a slab that the server \
                 lends; then the connection is closed. Until then it holds at most 64 blocks, and \
                 those of waiting replies.",
        reason: "Longer than shm.rnr_timeout_ms: a busy application keeps its connection.",
        field: |raw| Field::Integer(&mut raw.shm.fetch_timeout_ms, Limits::between(1, 3_600_000)),
    },
    Key {
        name: "verbs.device",
        unit: "",
        effect: "RDMA device for connections; auto takes the device that leads to the address.",
        reason: "An address is reached through one device; a name keeps an engine off all others.",
        field: |raw| Field::Device(&mut raw.verbs.device),
    },
    Key {
        name: "verbs.cq_depth",
        unit: "entries",
        effect: "Maximum number of entries of a core's first completion queue on a device. Each \
                 further queue that its connections need has twice as many as the one before, up \
                 to 64 times this number or the limit of the device.",
        reason: "A few connections with all their work requests, in a size that devices have.",
        field: |raw| Field::Integer(&mut raw.verbs.cq_depth, Limits::between(64, 1 << 22)),
    },
    Key {
        name: "verbs.signal_every",
        unit: "Sends",
        effect: "Maximum number of consecutive Sends without a completion report.",
        reason: "Completions cost a cache line each, and send buffers return soon enough.",
        field: |raw| Field::Integer(&mut raw.verbs.signal_every, Limits::between(1, 1024)),
    },
    Key {
        name: "verbs.max_inline_bytes",
        unit: "bytes",
        effect: "Maximum length of a message that is copied into its work request, if the device \
                 allows as much; the device then need not fetch it from memory.",
        reason: "Small calls and replies, and work requests of four cache lines.",
        field: |raw| Field::Integer(&mut raw.verbs.max_inline_bytes, Limits::between(0, 1024)),
    },
    Key {
        name: "verbs.ord",
        unit: "reads",
        effect: "Maximum RDMA Reads of one connection that this side has in flight; the peer and \
                 the device may lower it.",
        reason: "Common adapters accept as many.",
        field: |raw| Field::Integer(&mut raw.verbs.ord, RDMA_READS),
    },
    Key {
        name: "verbs.ird",
        unit: "reads",
        effect: "Maximum RDMA Reads of one connection that the peer may have in flight.",
        reason: "Common adapters accept as many.",
        field: |raw| Field::Integer(&mut raw.verbs.ird, RDMA_READS),
    },
    Key {
        name: "verbs.retry",
        unit: "retries",
        effect: "Number of times an unacknowledged packet is retransmitted before the connection \
                 is lost. The connecting side sets it for both.",
        reason: "The maximum: a lossy network is not a dead peer.",
        field: |raw| Field::Integer(&mut raw.verbs.retry, RETRIES),
    },
    Key {
        name: "verbs.rnr_retry",
        unit: "retries",
        effect: "Number of times the peer retransmits a message for which this side has no \
                 receive posted; 7 means without limit. The peer's value applies to messages of \
                 this side.",
        reason: "A peer that is slow to post is not given up; the deadline of the call counts.",
        field: |raw| Field::Integer(&mut raw.verbs.rnr_retry, RETRIES),
    },
    Key {
        name: "verbs.min_rnr_timer",
        unit: "code",
        effect: "Time that a peer is told to wait before it retransmits such a message, in the \
                 code of InfiniBand: 1 is 0.01 ms, 12 is 0.64 ms, 31 is 491.52 ms.",
        reason: "Longer than a turn of a polling core; code 0 would be 655 ms.",
        field: |raw| Field::Integer(&mut raw.verbs.min_rnr_timer, Limits::between(1, 31)),
    },
    Key {
        name: "verbs.ack_timeout",
        unit: "exponent",
        effect: "Time to wait for an acknowledgement before a packet is retransmitted: 4.096 µs \
                 times two to this power, if the device allows setting it.",
        reason: "67 ms: with the retries, a dead peer is detected within seconds.",
        field: |raw| Field::Integer(&mut raw.verbs.ack_timeout, Limits::between(1, 31)),
    },
    Key {
        name: "verbs.tos",
        unit: "code",
        effect: "Type of service of IPv4, or traffic class of IPv6 and InfiniBand, of all packets.",
        reason: "Networks without classes of service expect it.",
        field: |raw| Field::Integer(&mut raw.verbs.tos, Limits::between(0, 255)),
    },
    Key {
        name: "verbs.thread_domain",
        unit: "",
        effect: "Create queues without locks, as one core is their only user.",
        reason: "Saves the locks if the device's library supports it; others ignore it.",
        field: |raw| Field::Choice(&mut raw.verbs.thread_domain),
    },
    Key {
        name: "verbs.registration",
        unit: "",
        effect: "Way in which memory is exposed to a peer: window uses a memory window for each \
                 exposure, buffer has keys for each block of the connection's own memory, and \
                 pool has one key for all memory of a core, which no call revokes.",
        reason: "auto is window if the device has windows of type 2, else buffer, and buffer on \
                 rxe, whose driver neither checks the bounds of windows nor always frees them; \
                 pool is for trusted fabrics only.",
        field: |raw| Field::Choice(&mut raw.verbs.registration),
    },
    Key {
        name: "verbs.remote_invalidate",
        unit: "",
        effect: "Allow a peer to revoke a call's key with its reply (RFC 8797), if it can.",
        reason: "Saves a work request of this side for each call with chunks.",
        field: |raw| Field::Choice(&mut raw.verbs.remote_invalidate),
    },
    Key {
        name: "verbs.arena_mib",
        unit: "MiB",
        effect: "With registration buffer: a connection's own memory for bulk arguments and \
                 results, locked as long as the connection exists.",
        reason: "Sixteen calls of the largest size at a time.",
        field: |raw| Field::Integer(&mut raw.verbs.arena_mib, Limits::between(1, 4096)),
    },
    Key {
        name: "verbs.keys",
        unit: "keys",
        effect: "Maximum keys of one connection in use, one for each exposed segment; with \
                 registration window, the number of memory windows.",
        reason: "Four segments for every call of the default credits.",
        field: |raw| Field::Integer(&mut raw.verbs.keys, Limits::between(1, 4096)),
    },
    Key {
        name: "verbs.backlog",
        unit: "connections",
        effect: "Maximum connection requests that wait at a listener; the system rejects more.",
        reason: "As many as may arrive in the milliseconds that creating a queue pair takes.",
        field: |raw| Field::Integer(&mut raw.verbs.backlog, Limits::between(1, 4096)),
    },
    Key {
        name: "verbs.connect_timeout_ms",
        unit: "ms",
        effect: "Maximum wait for the peer's address and for the route to it, each, when \
                 connecting, and for the whole handshake when accepting. The answer to a request \
                 may take as long as the caller allows.",
        reason: "Several ARP requests; an absent host is reported as such.",
        field: |raw| Field::Integer(&mut raw.verbs.connect_timeout_ms, Limits::between(1, 60_000)),
    },
    Key {
        name: "verbs.bulk",
        unit: "",
        effect: "Form in which applications get bulk data: lent in place, or as a private copy.",
        reason: "Saves a copy. Memory that a peer can still write is lent without references to \
                 it.",
        field: |raw| Field::Choice(&mut raw.verbs.bulk),
    },
    Key {
        name: "limits.conns",
        unit: "connections",
        effect: "Maximum connections of one core; more are rejected.",
        reason: "Bounds the memory of a core to about a gigabyte when all are in use.",
        field: |raw| Field::Integer(&mut raw.limits.conns, Limits::between(1, 16_384)),
    },
    Key {
        name: "limits.handshakes",
        unit: "connections",
        effect: "Maximum concurrent handshakes. At the limit, the oldest idle handshake of the \
                 process with the most handshakes is refused. Over RDMA the new handshake is \
                 refused, and a single host may use at most a quarter of the limit.",
        reason: "Peers that connect and send nothing cannot use up descriptors.",
        field: |raw| Field::Integer(&mut raw.limits.handshakes, Limits::between(1, 4096)),
    },
    Key {
        name: "limits.host_conns",
        unit: "connections",
        effect: "Maximum connections that an engine accepts from one host over RDMA, or from one \
                 /64 of IPv6; more are rejected.",
        reason: "One host cannot take all places of a core; a mount with nconnect takes 16.",
        field: |raw| Field::Integer(&mut raw.limits.host_conns, Limits::between(1, 65_536)),
    },
    Key {
        name: "limits.exports",
        unit: "replies",
        effect: "Maximum replies of one connection that wait for RDMA_DONE; one more is ERR_CHUNK \
                 unless it can be sent in another way.",
        reason: "A reply to every call of the default credits; the connection's memory is less.",
        field: |raw| Field::Integer(&mut raw.limits.exports, Limits::between(1, 1024)),
    },
    Key {
        name: "limits.peer_arena_mib",
        unit: "MiB",
        effect: "Maximum arena of a peer (its shm.arena_mib) that is accepted over shared memory; \
                 one as large as this side's always is.",
        reason: "The shipped profile with the largest arena needs it.",
        field: |raw| Field::Integer(&mut raw.limits.peer_arena_mib, Limits::between(1, 4096)),
    },
    Key {
        name: "limits.peer_slabs",
        unit: "slabs",
        effect: "Number of slabs (Slab) of its own memory that a peer over shared memory may lend \
                 one connection, which are mapped here for reading; with 0 none is accepted.",
        reason: "A connection can be lent as many; a mapped slab costs address space only.",
        field: |raw| {
            Field::Integer(&mut raw.limits.peer_slabs, Limits::between(0, SLABS_MAX as u64))
        },
    },
    Key {
        name: "limits.peer_slab_mib",
        unit: "MiB",
        effect: "Maximum size of all slabs that a peer over shared memory lends one connection.",
        reason: "Room for the caches of a storage program; limits.peer_mib bounds all its connections.",
        field: |raw| Field::Integer(&mut raw.limits.peer_slab_mib, Limits::between(1, 1 << 20)),
    },
    Key {
        name: "limits.peer_mib",
        unit: "MiB",
        effect: "Maximum shared memory of all connections with one process: rings, both arenas \
                 and the peer's slabs.",
        reason: "Five hundred connections with default settings; only the used part takes memory.",
        field: |raw| Field::Integer(&mut raw.limits.peer_mib, Limits::between(1, 1 << 30)),
    },
    Key {
        name: "limits.core_mib",
        unit: "MiB",
        effect: "Maximum shared memory of all connections of one core: rings, both arenas and the \
                 peers' slabs.",
        reason: "All connections of a core with default settings.",
        field: |raw| Field::Integer(&mut raw.limits.core_mib, Limits::between(1, 1 << 30)),
    },
    Key {
        name: "host.cpu_dma_latency_us",
        unit: "µs",
        effect: "Maximum wake-up latency of the idle states of CPUs while an engine runs. An \
                 engine that may not request it (/dev/cpu_dma_latency) does not start.",
        reason: "Only root can allow it, and it costs all CPUs of the host power and heat.",
        field: |raw| Field::Optional(&mut raw.host.cpu_dma_latency_us, IDLE_US),
    },
    Key {
        name: "stats.export",
        unit: "",
        effect: "Access of processes of the same user, and of root, to the engine's control \
                 socket, as spinperf top has it: they see its counters, and can change how its \
                 cores idle.",
        reason: "It costs a sleeping thread, and nothing more until it is used.",
        field: |raw| Field::Choice(&mut raw.stats.export),
    },
];
