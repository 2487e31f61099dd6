//! Configuration of an engine: raw -> validated -> derived.
//!
//! [`RawConfig`] holds values as written, [`RawConfig::validate`] checks it against the limits in
//! [`KEYS`] and against the host, and [`Config`] is the only form the engine takes: once it exists,
//! nothing in it needs checking again. Files are not read here; profiles belong to the tuning
//! package. May use `sys` (which CPUs there are), `mem::budget` and the limits of `proto`; `api`,
//! `reactor` and the tools call it.

mod cores;
mod credits;
mod device;
mod gss;
mod keys;
mod limits;
mod raw;
mod schema;
mod value;

pub use cores::{CoreList, Host};
pub use device::DeviceName;
pub use keys::KEYS;
pub use limits::{Limits, Step};
pub use raw::{
    Attempt, BulkView, ConfigRole, Driver, IdlePolicy, Invalidation, NumaPolicy, OnPanic,
    RawConfig, RawCores, RawFabric, RawGss, RawHost, RawLimits, RawMem, RawPoll, RawRpc, RawShm,
    RawStats, RawVerbs, Registration, SmtPolicy, StatsExport, Want,
};
pub use schema::{Field, Key};
pub use spinrpc_proto::config_proto::Protection;
pub use spinrpc_proto::version::Versions;
pub use value::{Choice, Value};

use crate::mem::LINE_BYTES;
use crate::mem::budget::{Budget, SendBudget};
use crate::sync::ring::RingPlace;
use crate::sys::mmap::HugePages;
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::limits::INLINE_THRESHOLD_TWO_BYTES;
use spinrpc_proto::limits::Limits as PeerLimits;
use spinrpc_proto::profile::Profile;
use spinrpc_proto::rdma::v1::MSGP_FIELDS_BYTES;
use spinrpc_proto::rdma::v2::DEADLINE_EXTRA_BYTES;
use spinrpc_proto::version::TransportVersion;
use std::time::Duration;

/// A value that the engine cannot work with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: expected {expected}")]
#[non_exhaustive]
pub struct ConfigError {
    /// The key at fault, as in a profile: `rpc.credits`.
    pub key: &'static str,
    /// The rejected value, as it would be written in a profile.
    pub value: String,
    /// The allowed values.
    pub expected: String,
}

/// A validated configuration: immutable, cheap to clone, and good for this host.
///
/// Made by [`RawConfig::validate`]. [`Config::default`] takes every default and works on any host,
/// also on one with a single CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    raw: RawConfig,
    cpus: Vec<usize>,
    /// CPUs that `cores.list = "auto"` may take, best first; none with a list.
    candidates: Vec<usize>,
}

impl RawConfig {
    /// Checks every key against its limits, the keys against each other, and the cores against the
    /// CPUs that this process may use (it asks the system for them).
    ///
    /// # Errors
    /// The first invalid key, with the allowed values.
    pub fn validate(self) -> Result<Config, ConfigError> {
        self.validate_for(&Host::current())
    }

    /// Like [`RawConfig::validate`], for a host that the caller describes.
    ///
    /// # Errors
    /// The first invalid key, with the allowed values.
    pub fn validate_for(mut self, host: &Host) -> Result<Config, ConfigError> {
        for key in KEYS {
            let value = key.value(&self);
            key.set(&mut self, &value)?;
        }
        self.check_arenas()?;
        self.check_segments()?;
        self.check_alignment()?;
        self.check_reply_cache()?;
        let cpus = cores::resolve(&self.cores, host)?;
        let candidates = cores::candidates(&self.cores, host);
        let config = Config { raw: self, cpus, candidates };
        config.check_driver()?;
        Ok(config)
    }

    /// Bulk data of one call must fit the memory it is sent from and the memory it lands in,
    /// together with the rest of a long message.
    fn check_arenas(&self) -> Result<(), ConfigError> {
        let bulk = [
            ("rpc.max_read_bytes", self.rpc.max_read_bytes),
            ("rpc.max_write_bytes", self.rpc.max_write_bytes),
        ];
        let private = Some(("mem.arena_mib", self.mem.arena_mib));
        for (key, bytes) in bulk {
            for (arena, mib) in self.conn_arena().into_iter().chain(private) {
                let room_bytes = (mib << 20) - LONG_MESSAGE_ROOM_BYTES;
                if bytes > room_bytes {
                    let expected =
                        format!("at most {room_bytes}, what {arena} = {mib} has room for");
                    return Err(ConfigError { key, value: bytes.to_string(), expected });
                }
            }
        }
        Ok(())
    }

    /// Size of a connection's separate arena, and its key.
    fn conn_arena(&self) -> Option<(&'static str, u64)> {
        match (self.fabric.driver, self.verbs.registration) {
            (Driver::Shm, _) => Some(("shm.arena_mib", self.shm.arena_mib)),
            (Driver::Verbs, Registration::Auto | Registration::Buffer) => {
                Some(("verbs.arena_mib", self.verbs.arena_mib))
            }
            (Driver::Verbs, Registration::Window | Registration::Pool) => None,
        }
    }

    /// The largest transfer must be expressible in the segments that a chunk may have.
    fn check_segments(&self) -> Result<(), ConfigError> {
        let needed_bytes = self.longest_payload_bytes().div_ceil(self.rpc.max_segments);
        if self.rpc.segment_bytes >= needed_bytes {
            return Ok(());
        }
        Err(ConfigError {
            key: "rpc.segment_bytes",
            value: self.rpc.segment_bytes.to_string(),
            expected: format!("at least {needed_bytes}, for rpc.max_segments of them per transfer"),
        })
    }

    /// Padded data begin within the inline message, or no message could have any.
    fn check_alignment(&self) -> Result<(), ConfigError> {
        let inline = [
            ("rpc.inline_send_bytes", self.rpc.inline_send_bytes),
            ("rpc.inline_recv_bytes", self.rpc.inline_recv_bytes),
        ];
        let align = self.rpc.msgp_align_bytes;
        match inline.into_iter().find(|(_, bytes)| align >= *bytes) {
            None => Ok(()),
            Some((key, bytes)) => Err(ConfigError {
                key: "rpc.msgp_align_bytes",
                value: align.to_string(),
                expected: format!("less than {key} = {bytes}"),
            }),
        }
    }

    /// Each slot of a client has a place for its reply, and so has the one that the connection
    /// itself uses: no call displaces another's reply.
    fn check_reply_cache(&self) -> Result<(), ConfigError> {
        let (entries, credits) = (self.rpc.reply_cache_entries, self.rpc.credits);
        if self.rpc.reply_cache_clients == 0 || entries > credits {
            return Ok(());
        }
        Err(ConfigError {
            key: "rpc.reply_cache_entries",
            value: entries.to_string(),
            expected: format!("more than {credits}, as many as rpc.credits lets be outstanding"),
        })
    }

    fn longest_payload_bytes(&self) -> u64 {
        self.rpc.max_read_bytes.max(self.rpc.max_write_bytes) + LONG_MESSAGE_ROOM_BYTES
    }
}

/// Room that the keys of the driver in use must provide.
impl Config {
    fn check_driver(&self) -> Result<(), ConfigError> {
        match self.driver() {
            Driver::Shm => self.check_ring(),
            Driver::Verbs => self.check_verbs(),
        }
    }

    /// A message that the ring never takes would cost the connection.
    fn check_ring(&self) -> Result<(), ConfigError> {
        let slots = self.raw.shm.ring_slots;
        let longest_bytes =
            RingPlace { control: 0, slots_at: 0, slots: slots as u32 }.message_bytes_max() as u64;
        let inline = [
            ("rpc.inline_send_bytes", self.raw.rpc.inline_send_bytes),
            ("rpc.inline_recv_bytes", self.raw.rpc.inline_recv_bytes),
        ];
        match inline.into_iter().find(|(_, bytes)| *bytes > longest_bytes) {
            None => Ok(()),
            Some((key, bytes)) => {
                let expected = format!(
                    "at most {longest_bytes}, what a ring of shm.ring_slots = {slots} takes"
                );
                Err(refusal(key, bytes, expected))
            }
        }
    }

    fn check_verbs(&self) -> Result<(), ConfigError> {
        let verbs = &self.raw.verbs;
        let sends = u64::from(self.send_queue_depth());
        let receives = self.recv_budget().total();
        if verbs.cq_depth < sends + receives {
            let least = sends + receives;
            let expected = format!("at least {least}, the work requests of one connection");
            return Err(refusal("verbs.cq_depth", verbs.cq_depth, expected));
        }
        if verbs.signal_every > sends / 4 {
            let expected = format!("at most {}, a quarter of the send queue", sends / 4);
            return Err(refusal("verbs.signal_every", verbs.signal_every, expected));
        }
        self.check_promised_reads()
    }

    /// Checks that the queue pair has room for the Reads that the Connection Configuration Protocol
    /// announces to a peer.
    fn check_promised_reads(&self) -> Result<(), ConfigError> {
        let (promised, ird) = (self.raw.rpc.max_rdma_reads, self.raw.verbs.ird);
        if self.ccp() == ConfigRole::Off || promised <= ird {
            return Ok(());
        }
        let expected =
            format!("at most {ird}, the Reads that verbs.ird lets a peer have in flight");
        Err(refusal("rpc.max_rdma_reads", promised, expected))
    }
}

fn refusal(key: &'static str, value: u64, expected: String) -> ConfigError {
    ConfigError { key, value: value.to_string(), expected }
}

impl Default for Config {
    fn default() -> Self {
        let raw = RawConfig::default();
        let cpus = cores::automatic(&raw.cores, &Host::current());
        let candidates = cores::candidates(&raw.cores, &Host::current());
        Self { raw, cpus, candidates }
    }
}

/// Configured values.
impl Config {
    /// The same with another driver (`fabric.driver`), which [`driver_of`](crate::driver_of) an
    /// address says.
    ///
    /// # Errors
    /// A key that does not fit that driver: some are checked only for the driver in use.
    pub fn with_driver(mut self, driver: Driver) -> Result<Self, ConfigError> {
        self.raw.fabric.driver = driver;
        self.raw.check_arenas()?;
        self.check_driver()?;
        Ok(self)
    }

    /// The values behind this configuration, to change a copy of them and validate it again.
    pub fn raw(&self) -> &RawConfig {
        &self.raw
    }

    /// CPUs that cores may run on by `cores.list = "auto"`, best first; none with a list.
    pub(crate) fn candidates(&self) -> &[usize] {
        &self.candidates
    }

    /// The same with its cores on these CPUs, as many as before.
    pub(crate) fn on_cpus(self, cpus: Vec<usize>) -> Self {
        Self { cpus, ..self }
    }

    /// The CPU of each core, by core number; never empty. With `cores.list = "auto"` an engine takes
    /// others if those are taken by other engines of this host: ask its own configuration
    /// ([`Engine::config`](crate::Engine::config)).
    pub fn cpus(&self) -> &[usize] {
        &self.cpus
    }

    /// Number of cores that the engine runs; at least 1.
    pub fn cores(&self) -> usize {
        self.cpus.len()
    }

    /// Behaviour of an idle core.
    pub fn idle_policy(&self) -> IdlePolicy {
        self.raw.poll.mode
    }

    /// Most events a core takes from one source per turn.
    pub fn poll_budget(&self) -> usize {
        to_usize(self.raw.poll.budget)
    }

    /// Time that an idle core spins before it starts to yield.
    pub fn spin_time(&self) -> Duration {
        Duration::from_micros(self.raw.poll.spin_us)
    }

    /// Time that an idle core yields, after spinning, before it parks.
    pub fn yield_time(&self) -> Duration {
        Duration::from_micros(self.raw.poll.yield_us)
    }

    /// Longest time a core stays parked before it looks around.
    pub fn park_time(&self) -> Duration {
        Duration::from_micros(self.raw.poll.park_us)
    }

    /// Registered private memory of each core, in bytes.
    pub fn arena_bytes(&self) -> usize {
        mib_to_bytes(self.raw.mem.arena_mib)
    }

    /// Use of huge pages for arenas.
    pub fn hugepages(&self) -> HugePages {
        match self.raw.mem.hugepages {
            Want::Off => HugePages::Off,
            Want::Try => HugePages::Try,
            Want::Require => HugePages::Require,
        }
    }

    /// True if a core's arena is touched at start, so that no page fault comes later.
    pub fn prefault(&self) -> bool {
        self.raw.mem.prefault
    }

    /// Locking of a core's arena in memory.
    pub fn lock(&self) -> Want {
        self.raw.mem.lock
    }

    /// Placement of a core's arena on a host with several NUMA nodes.
    pub fn numa(&self) -> NumaPolicy {
        self.raw.mem.numa
    }

    /// Profile of the protocol that connections follow.
    pub fn protocol(&self) -> Profile {
        self.raw.rpc.protocol
    }

    /// Versions of RPC-over-RDMA that are spoken.
    pub fn versions(&self) -> Versions {
        self.raw.rpc.version
    }

    /// Consequence of a panic in a handler.
    pub fn on_panic(&self) -> OnPanic {
        self.raw.rpc.on_panic
    }

    /// True if calls carry their remaining time, where the server understands that.
    pub fn propagates_deadlines(&self) -> bool {
        self.raw.rpc.propagate_deadlines
    }

    /// Time that a responder is remembered as one without version two.
    pub fn version_memory(&self) -> Duration {
        Duration::from_millis(self.raw.rpc.version_memory_ms)
    }

    /// Calls in reverse that may be outstanding on one connection (RFC 8167): granted as a client,
    /// requested as a server; 0: none.
    pub fn reverse_calls(&self) -> usize {
        to_usize(self.raw.rpc.reverse_calls)
    }

    /// Calls of handles that may be in flight on one core.
    pub fn handle_calls(&self) -> usize {
        to_usize(self.raw.rpc.handle_calls)
    }

    /// True if clients that take no calls in reverse answer them, which version two asks of every
    /// end (section 4.2.2); one receive buffer is reserved for it.
    pub(crate) fn refuses_reverse(&self) -> bool {
        self.versions().speaks(TransportVersion::Two)
    }

    /// True if the Connection Configuration Protocol is served (RFC 5666 section 6).
    pub fn serves_ccp(&self) -> bool {
        matches!(self.ccp(), ConfigRole::Serve | ConfigRole::Both)
    }

    fn ccp(&self) -> ConfigRole {
        self.raw.rpc.ccp.under(self.protocol())
    }

    /// True if it is used before the first call of a connection.
    pub fn asks_ccp(&self) -> bool {
        matches!(self.ccp(), ConfigRole::Ask | ConfigRole::Both)
    }

    /// The flavor it is protected by (RFC 5666 section 11).
    pub fn ccp_protection(&self) -> Protection {
        self.raw.rpc.ccp_auth
    }

    /// RDMA Reads that a peer may have active at this side of a connection; zero: none.
    pub fn rdma_reads_max(&self) -> u16 {
        to_u16(self.raw.rpc.max_rdma_reads)
    }

    /// Longest message sent inline, transport header included, in bytes; a peer may lower it
    /// (RFC 8166 section 3.3.2).
    pub fn inline_send_bytes(&self) -> usize {
        to_usize(self.raw.rpc.inline_send_bytes)
    }

    /// Longest message received inline, transport header included, in bytes.
    pub fn inline_recv_bytes(&self) -> usize {
        to_usize(self.raw.rpc.inline_recv_bytes)
    }

    /// Most bytes that one reply brings to the requester by Write and Reply chunks.
    pub fn read_bytes_max(&self) -> usize {
        to_usize(self.raw.rpc.max_read_bytes)
    }

    /// Most bytes that one call brings to the responder by Read chunks.
    pub fn write_bytes_max(&self) -> usize {
        to_usize(self.raw.rpc.max_write_bytes)
    }

    /// Longest segment of a chunk that this side offers, in bytes.
    pub fn segment_bytes(&self) -> usize {
        to_usize(self.raw.rpc.segment_bytes)
    }

    /// Most segments of one chunk, sent or accepted.
    pub fn segments_max(&self) -> usize {
        to_usize(self.raw.rpc.max_segments)
    }

    /// Most Read chunks, and most Write chunks, of one message, sent or accepted.
    pub fn chunks_max(&self) -> usize {
        to_usize(self.raw.rpc.max_chunks)
    }

    /// Alignment of inline data in messages sent by this end (RFC 5666 section 3.9);
    /// [`Alignment::NONE`] if they are not padded.
    pub fn msgp_alignment(&self) -> Alignment {
        let rpc = &self.raw.rpc;
        match rpc.msgp_align_bytes {
            align if align > 0 && rpc.protocol.has_padded_messages() => {
                Alignment::new(to_u32(align), to_u32(rpc.msgp_threshold_bytes))
            }
            _ => Alignment::NONE,
        }
    }

    /// Deadline of a call that names none; `None` waits forever.
    pub fn timeout(&self) -> Option<Duration> {
        let timeout_ms = self.raw.rpc.timeout_ms;
        (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms))
    }

    /// Time that the memory of a reply with a Read list stays exported without RDMA_DONE (RFC 5666
    /// section 11).
    pub fn done_timeout(&self) -> Duration {
        Duration::from_millis(self.raw.rpc.done_timeout_ms)
    }

    /// Time that a call or a reply that arrives with Read chunks waits for memory for them.
    pub fn memory_wait(&self) -> Duration {
        Duration::from_millis(self.raw.rpc.memory_wait_ms)
    }

    /// Clients whose replies are kept; 0 keeps none.
    pub fn reply_cache_clients(&self) -> usize {
        to_usize(self.raw.rpc.reply_cache_clients)
    }

    /// Replies kept for one client; a power of two.
    pub fn reply_cache_entries(&self) -> usize {
        to_usize(self.raw.rpc.reply_cache_entries)
    }

    /// Longest reply that is kept, in bytes.
    pub fn reply_cache_bytes(&self) -> usize {
        to_usize(self.raw.rpc.reply_cache_bytes)
    }

    /// Time that the replies of a client that has gone are kept.
    pub fn reply_cache_keep(&self) -> Duration {
        Duration::from_millis(self.raw.rpc.reply_cache_keep_ms)
    }

    /// Slots of a shared-memory ring, one ring per direction and connection; a power of two.
    pub fn shm_ring_slots(&self) -> usize {
        to_usize(self.raw.shm.ring_slots)
    }

    /// Shared memory of one connection for bulk data, in bytes.
    pub fn shm_arena_bytes(&self) -> usize {
        mib_to_bytes(self.raw.shm.arena_mib)
    }

    /// Driver of all connections.
    pub fn driver(&self) -> Driver {
        self.raw.fabric.driver
    }

    /// View that the application gets of bulk data that arrived through this driver.
    pub fn bulk_view(&self) -> BulkView {
        match self.driver() {
            Driver::Shm => self.raw.shm.bulk,
            Driver::Verbs => self.raw.verbs.bulk,
        }
    }

    /// The keys of the fabric of RDMA devices, each within its limits.
    pub fn verbs(&self) -> &RawVerbs {
        &self.raw.verbs
    }

    /// Time that an arriving message waits for a posted receive before the connection is lost.
    pub fn shm_rnr_timeout(&self) -> Duration {
        Duration::from_millis(self.raw.shm.rnr_timeout_ms)
    }

    /// Longest time for a client to fetch results from a slab before the connection is lost.
    pub fn shm_fetch_timeout(&self) -> Duration {
        Duration::from_millis(self.raw.shm.fetch_timeout_ms)
    }

    /// Access of other processes to the engine's statistics.
    pub fn stats_export(&self) -> StatsExport {
        self.raw.stats.export
    }

    /// Most connections of one core.
    pub fn conns_max(&self) -> usize {
        to_usize(self.raw.limits.conns)
    }

    /// Longest wake-up of a CPU from an idle state that the host is asked for; `None`: not asked.
    pub fn cpu_dma_latency(&self) -> Option<Duration> {
        self.raw.host.cpu_dma_latency_us.map(Duration::from_micros)
    }

    /// Most connections that are being accepted at a time.
    pub fn handshakes_max(&self) -> usize {
        to_usize(self.raw.limits.handshakes)
    }

    /// Largest arena of a peer that is accepted over shared memory, in bytes.
    pub fn peer_arena_bytes_max(&self) -> usize {
        to_usize(self.raw.limits.peer_arena_mib << 20)
    }

    /// Slabs that a peer may lend a connection over shared memory.
    pub fn peer_slabs_max(&self) -> usize {
        to_usize(self.raw.limits.peer_slabs)
    }

    /// All slabs that a peer lends a connection over shared memory, in bytes.
    pub fn peer_slab_bytes_max(&self) -> usize {
        to_usize(self.raw.limits.peer_slab_mib << 20)
    }

    /// Most shared memory of all connections with one process, in bytes.
    pub fn peer_memory_bytes_max(&self) -> usize {
        to_usize(self.raw.limits.peer_mib << 20)
    }

    /// Most shared memory of all connections of one core, in bytes.
    pub fn core_memory_bytes_max(&self) -> usize {
        to_usize(self.raw.limits.core_mib << 20)
    }

    /// Most connections that are accepted from one host over RDMA.
    pub fn host_conns_max(&self) -> usize {
        to_usize(self.raw.limits.host_conns)
    }

    /// Most replies of one connection that are exported, or kept back for that, at a time; none
    /// where the rules have no such replies.
    pub fn exports_max(&self) -> u32 {
        match self.protocol().has_reads_in_replies() {
            true => to_u32(self.raw.limits.exports.min(self.raw.rpc.credits)),
            false => 0,
        }
    }
}

/// Values derived from the configuration.
impl Config {
    /// Slots for transactions of one connection: one per credit.
    pub fn slots_per_conn(&self) -> usize {
        self.credits()
    }

    /// Limits on a peer's chunk lists; beyond them it gets ERR_CHUNK.
    pub fn peer_limits(&self) -> PeerLimits {
        let (chunks, segments) =
            (to_u16(self.raw.rpc.max_chunks), to_u16(self.raw.rpc.max_segments));
        PeerLimits {
            versions: self.versions(),
            deadlines: self.versions().speaks(TransportVersion::Two),
            answers_short: self.protocol().answers_short_requests(),
            read_segments_max: chunks * segments,
            read_chunks_max: chunks,
            write_chunks_max: chunks,
            segments_per_chunk_max: segments,
            payload_bytes_max: to_u32(self.raw.longest_payload_bytes()),
        }
    }

    /// Most bytes that the Read list of a call of ours names: its bulk arguments, or the whole of a
    /// long call.
    pub(crate) fn read_list_bytes_max(&self) -> usize {
        self.write_bytes_max() + LONG_MESSAGE_ROOM_BYTES as usize
    }

    /// Most bytes that the Write list, or the Reply chunk, of a call of ours names.
    pub(crate) fn write_list_bytes_max(&self) -> usize {
        self.read_bytes_max() + LONG_MESSAGE_ROOM_BYTES as usize
    }

    /// Maximum number of RDMA_DONEs for this many calls in flight to one end. Requesters count
    /// theirs among their credits (RFC 5666 section 3.8). Extra receives cover requesters that do
    /// not, and the RDMA_DONEs of a responder (draft-ietf-nfsv4-rpcrdma-00 section 3.6), which no
    /// credits cover.
    fn dones_received_max(&self, calls: usize) -> u32 {
        match self.protocol().has_done_after_calls() {
            true => calls as u32,
            false => self.exports_max().min(calls as u32),
        }
    }

    /// Send buffers of a connection that this side makes calls on, and answers calls in reverse, if
    /// there may be any.
    pub fn requester_send_budget(&self) -> SendBudget {
        self.send_budget(self.credits(), self.reverse_calls())
    }

    /// Send buffers of a connection that this side answers calls on, and makes calls in reverse, if
    /// there may be any.
    pub fn responder_send_budget(&self) -> SendBudget {
        self.send_budget(self.reverse_calls(), self.credits())
    }

    /// Send buffers of a connection for these numbers of calls of this side and of its peer.
    pub(crate) fn send_budget(&self, calls: usize, serves: usize) -> SendBudget {
        // A requester's RDMA_DONEs use credits of calls, except for the one call that may be sent
        // in addition to RDMA_DONEs already sent.
        let of_requester = self.protocol().has_reads_in_replies() && calls > 0;
        let of_responder = if self.protocol().has_done_after_calls() { serves as u32 } else { 0 };
        SendBudget {
            replies: serves as u32,
            calls: calls as u32,
            errors: SEND_ERRORS,
            dones: u32::from(of_requester) + of_responder,
            unreported: self.unreported_sends_max(),
        }
    }

    /// Sends that have completed without the driver knowing: of `verbs.signal_every` in a row the
    /// last one says so for all. With fewer buffers than that none would ever come back.
    fn unreported_sends_max(&self) -> u32 {
        match self.driver() {
            Driver::Shm => 0,
            Driver::Verbs => to_u32(self.raw.verbs.signal_every).saturating_sub(1),
        }
    }

    /// Work requests the send queue of a connection holds: every call and reply at once, and for
    /// replies as many RDMA Writes as one call can ask for.
    pub fn send_queue_depth(&self) -> u16 {
        let (chunks, segments) = (self.chunks_max() + 1, self.segments_max());
        let depth = (self.slots_per_conn() + self.reverse_calls()) * 4 + chunks * segments * 4;
        depth.min(usize::from(u16::MAX)) as u16
    }

    /// Bytes of one receive buffer.
    pub fn recv_buffer_bytes(&self) -> usize {
        self.inline_recv_bytes().max(self.inline_floor_bytes())
    }

    /// Longest message sent inline, in bytes, where the version in use does not ask for less: the
    /// configured size, and where version two is spoken at least its threshold.
    pub(crate) fn send_room_bytes(&self) -> usize {
        self.inline_send_bytes().max(self.inline_floor_bytes())
    }

    /// Version two counts on so much at every end (section 2.3).
    fn inline_floor_bytes(&self) -> usize {
        match self.versions().speaks(TransportVersion::Two) {
            true => INLINE_THRESHOLD_TWO_BYTES as usize,
            false => 0,
        }
    }

    /// Alignment of a receive buffer, in bytes, as announced to a peer that computes padding with
    /// it. With chained receives, it is that of the second buffers, at which data begin.
    pub fn recv_align_bytes(&self) -> usize {
        match self.msgp_alignment() {
            Alignment::NONE => LINE_BYTES,
            alignment => alignment.align_bytes() as usize,
        }
    }

    /// Bytes of one send buffer: the inline message, behind headroom for its transport header,
    /// whose length is known only when the payload has been encoded.
    pub fn send_buffer_bytes(&self) -> usize {
        self.headroom_bytes() + self.send_room_bytes()
    }

    /// Room in front of the payload of a send buffer: the longest transport header these limits
    /// allow, in whole cache lines.
    pub fn headroom_bytes(&self) -> usize {
        self.header_bytes_max().next_multiple_of(CACHE_LINE_BYTES)
    }

    /// Longest transport header that these limits allow, in bytes: all lists full (RFC 8166 section
    /// 4.1), and in version two the direction (version two section 4.2) and the remaining time.
    pub fn header_bytes_max(&self) -> usize {
        let (chunks, segments) = (self.chunks_max(), self.segments_max());
        let fixed = WORD_BYTES * 4; // xid, version, credits, procedure
        let list_ends = WORD_BYTES * 3; // "no more" of Read list and Write list, Reply chunk or not
        let read_list = chunks * segments * (WORD_BYTES * 2 + SEGMENT_BYTES); // "more", position
        let write_list = chunks * (WORD_BYTES * 2 + segments * SEGMENT_BYTES); // "more", count
        let reply_chunk = WORD_BYTES + segments * SEGMENT_BYTES; // count
        let padded = self.protocol().has_padded_messages();
        let alignment = if padded { MSGP_FIELDS_BYTES } else { 0 };
        let speaks_two = self.versions().speaks(TransportVersion::Two);
        let direction = if speaks_two { WORD_BYTES + DEADLINE_EXTRA_BYTES } else { 0 };
        // No header has both.
        fixed + alignment.max(direction) + list_ends + read_list + write_list + reply_chunk
    }
}

/// RDMA_ERROR messages on their way: one being sent while the next is written.
const SEND_ERRORS: u32 = 2;
/// Room in a long message for everything except the bulk data: RPC header and other arguments or
/// results.
const LONG_MESSAGE_ROOM_BYTES: u64 = 64 << 10;
const WORD_BYTES: usize = 4;
/// Handle, length and offset of a segment on the wire.
const SEGMENT_BYTES: usize = 16;
const CACHE_LINE_BYTES: usize = 64;

/// Lossless on the 64-bit hosts the engine runs on.
fn to_usize(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

fn to_u16(value: u64) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX)
}

fn to_u32(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn mib_to_bytes(mib: u64) -> usize {
    to_usize(mib << 20)
}

#[cfg(test)]
mod tests;
