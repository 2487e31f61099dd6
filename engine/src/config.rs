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
mod enums;
mod keys;
mod ranges;
mod schema;
mod test_settings;
mod value;

pub use cores::{CoreList, Host};
pub use device::DeviceName;
pub use enums::{
    BulkView, ConfigRole, Driver, IdlePolicy, OnPanic, Registration, StatsExport, Want,
};
pub use keys::{
    KEYS, RawConfig, RawCores, RawFabric, RawHost, RawIwarp, RawLimits, RawMem, RawPoll, RawRpc,
    RawShm, RawStats, RawVerbs,
};
pub use ranges::{Limits, Step};
pub use schema::{Field, Key};
pub use spinrpc_proto::config_proto::Protection;
pub use spinrpc_proto::version::Versions;
#[doc(hidden)]
pub use test_settings::Fixed;
pub use value::{Choice, Value};

use crate::mem::budget::Budget;
use crate::sync::ring::RingPlace;
use crate::sys::mmap::HugePages;
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::limits::Limits as PeerLimits;
use spinrpc_proto::limits::{CALL_SEGMENTS_MAX, INLINE_THRESHOLD_TWO_BYTES};
use spinrpc_proto::rdma::v1::MSGP_FIELDS_BYTES;
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
    /// Kept, as messages ask for it, and a division takes longer than most of what they do.
    segment_bytes: usize,
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
        self.check_alignment()?;
        let cpus = cores::resolve(&self.cores, host)?;
        let candidates = cores::candidates(&self.cores, host);
        let segment_bytes = self.segment_bytes();
        let config = Config { raw: self, cpus, candidates, segment_bytes };
        config.check_driver()?;
        Ok(config)
    }

    /// See [`Config::segment_bytes`]. A chunk of a call has as many segments as leave room for those of its other lists.
    fn segment_bytes(&self) -> usize {
        let segments = self.rpc.max_segments.min(CHUNK_SEGMENTS_MAX as u64);
        let needed_bytes = self.longest_payload_bytes().div_ceil(segments);
        to_usize(self.rpc.segment_bytes.max(needed_bytes))
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
            (Driver::Iwarp, _) | (Driver::Verbs, Registration::Window | Registration::Pool) => None,
            _ => Some(("mem.conn_arena_mib", self.mem.conn_arena_mib)),
        }
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

    fn longest_payload_bytes(&self) -> u64 {
        self.rpc.max_read_bytes.max(self.rpc.max_write_bytes) + LONG_MESSAGE_ROOM_BYTES
    }
}

/// Room that the keys of the driver in use must provide.
impl Config {
    fn check_driver(&self) -> Result<(), ConfigError> {
        match self.driver() {
            Driver::Shm => self.check_ring(),
            Driver::Verbs | Driver::Iwarp => Ok(()),
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
}

fn refusal(key: &'static str, value: u64, expected: String) -> ConfigError {
    ConfigError { key, value: value.to_string(), expected }
}

impl Default for Config {
    fn default() -> Self {
        let raw = RawConfig::default();
        let cpus = cores::automatic(&raw.cores, &Host::current());
        let candidates = cores::candidates(&raw.cores, &Host::current());
        let segment_bytes = raw.segment_bytes();
        Self { raw, cpus, candidates, segment_bytes }
    }
}

/// Values without a key.
impl Config {
    /// Time that a responder is remembered as one without version two.
    pub fn version_memory(&self) -> Duration {
        Duration::from_millis(self.raw.fixed.version_memory_ms)
    }

    /// Calls of handles that may be in flight on one core.
    pub fn handle_calls(&self) -> usize {
        to_usize(self.raw.fixed.handle_calls)
    }

    /// Most Read chunks, and most Write chunks, of one message, sent or accepted.
    pub fn chunks_max(&self) -> usize {
        to_usize(self.raw.fixed.max_chunks)
    }

    /// Time that the memory of a reply with a Read list stays exported without RDMA_DONE (RFC 5666
    /// section 11).
    pub fn done_timeout(&self) -> Duration {
        Duration::from_millis(self.raw.fixed.done_timeout_ms)
    }

    /// Time that a call or a reply that arrives with Read chunks waits for memory for them.
    pub fn memory_wait(&self) -> Duration {
        Duration::from_millis(self.raw.fixed.memory_wait_ms)
    }

    /// Longest body under RPCSEC_GSS that a core seals or unseals itself.
    pub fn gss_at_once_bytes(&self) -> usize {
        to_usize(self.raw.fixed.gss_at_once_bytes)
    }

    /// Time after which an unused security context is dropped.
    pub fn gss_unused(&self) -> Duration {
        Duration::from_millis(self.raw.fixed.gss_unused_ms)
    }

    /// Time that a client waits for its security mechanism.
    pub fn gss_mechanism_time(&self) -> Duration {
        Duration::from_millis(self.raw.fixed.gss_mechanism_ms)
    }
}

/// Configured values that take more than that.
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

    /// True if the thread of each core is tied to its CPU; false with `cores.list = "any"`.
    pub fn pins_cores(&self) -> bool {
        self.raw.cores.list != CoreList::Any
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
    /// ([`Engine::config`](crate::Engine::config)). With `any` the numbers mean nothing
    /// ([`Config::pins_cores`]).
    pub fn cpus(&self) -> &[usize] {
        &self.cpus
    }

    /// Number of cores that the engine runs; at least 1.
    pub fn cores(&self) -> usize {
        self.cpus.len()
    }

    /// Time that an idle core yields, after spinning, before it parks.
    pub fn yield_time(&self) -> Duration {
        YIELDS_PER_SPIN * self.spin_time()
    }

    /// Use of huge pages for arenas.
    pub fn hugepages(&self) -> HugePages {
        match self.raw.mem.hugepages {
            Want::Off => HugePages::Off,
            Want::Try => HugePages::Try,
            Want::Require => HugePages::Require,
        }
    }

    /// True if a core's arena is touched at start, so that no page fault comes later: where it is to be locked, even if
    /// the host refuses that.
    pub fn prefault(&self) -> bool {
        self.lock() != Want::Off
    }

    /// True if the memory of a core is on the NUMA node of its CPU. A core that is not pinned is on no node.
    pub(crate) fn is_near_cpu(&self) -> bool {
        self.pins_cores() && self.raw.fixed.is_near_cpu
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

    /// The flavor it is protected by: AUTH_SYS proves nothing, which is enough where the document asks for nothing.
    pub fn ccp_protection(&self) -> Protection {
        let asked_for = match self.protocol().protects_configuration() {
            true => Protection::Gss,
            false => Protection::Sys,
        };
        self.raw.rpc.ccp_auth.unwrap_or(asked_for)
    }

    /// `rpc.max_rdma_reads` as a device is told of it, at least 1: Linux servers refuse a peer that offers 0.
    pub fn device_reads_max(&self) -> u8 {
        self.raw.rpc.max_rdma_reads.clamp(1, u8::MAX.into()) as u8
    }

    /// Longest segment of a chunk that this side offers, in bytes: `rpc.segment_bytes`, or more where the segments that a
    /// chunk may have could not express the largest transfer else.
    pub fn segment_bytes(&self) -> usize {
        self.segment_bytes
    }

    /// Most bytes of one chunk that a call of this side can name next to its other lists.
    #[cfg(feature = "gss")]
    pub(crate) fn chunk_bytes_max(&self) -> usize {
        self.segment_bytes().saturating_mul(self.segments_max().min(CHUNK_SEGMENTS_MAX))
    }

    /// Alignment of inline data in messages sent by this end (RFC 5666 section 3.9);
    /// [`Alignment::NONE`] if they are not padded.
    pub fn msgp_alignment(&self) -> Alignment {
        let rpc = &self.raw.rpc;
        match rpc.msgp_align_bytes {
            align if align > 0 && rpc.protocol.has_padded_messages() => {
                Alignment::new(to_u32(align), to_u32(self.raw.fixed.msgp_threshold_bytes))
            }
            _ => Alignment::NONE,
        }
    }

    /// Deadline of a call that names none; `None` waits forever.
    pub fn timeout(&self) -> Option<Duration> {
        let timeout_ms = self.raw.rpc.timeout_ms;
        (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms))
    }

    /// The keys of the fabric of RDMA devices, each within its limits.
    pub fn verbs(&self) -> &RawVerbs {
        &self.raw.verbs
    }

    /// Longest wake-up of a CPU from an idle state that the host is asked for; `None`: not asked.
    pub fn cpu_dma_latency(&self) -> Option<Duration> {
        self.raw.host.cpu_dma_latency_us.map(Duration::from_micros)
    }

    /// Most replies of one connection that are exported, or kept back for that, at a time; none
    /// where the rules have no such replies.
    pub fn exports_max(&self) -> u32 {
        match self.protocol().has_reads_in_replies() {
            true => to_u32(self.raw.fixed.exports.min(self.raw.rpc.credits)),
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
        let chunks = to_u16(self.raw.fixed.max_chunks);
        PeerLimits {
            versions: self.versions(),
            answers_short: self.protocol().answers_short_requests(),
            segments_max: to_u16(self.raw.rpc.max_segments),
            read_chunks_max: chunks,
            write_chunks_max: chunks,
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
    pub fn requester_send_budget(&self) -> Budget {
        self.send_budget(self.credits(), self.reverse_calls())
    }

    /// Send buffers of a connection that this side answers calls on, and makes calls in reverse, if
    /// there may be any.
    pub fn responder_send_budget(&self) -> Budget {
        self.send_budget(self.reverse_calls(), self.credits())
    }

    /// Send buffers of a connection for these numbers of calls of this side and of its peer.
    pub(crate) fn send_budget(&self, calls: usize, serves: usize) -> Budget {
        // A requester's RDMA_DONEs use credits of calls, except for the one call that may be sent
        // in addition to RDMA_DONEs already sent.
        let of_requester = self.protocol().has_reads_in_replies() && calls > 0;
        let of_responder = if self.protocol().has_done_after_calls() { serves as u32 } else { 0 };
        Budget([
            // One for each credit granted, and one for each slot of the requester.
            ("replies", serves as u32),
            ("calls", calls as u32),
            ("errors", SEND_ERRORS),
            ("dones", u32::from(of_requester) + of_responder),
            // Messages that are sent, which the driver has not said yet: it does for several at a time.
            ("unreported", self.unreported_sends_max()),
        ])
    }

    /// Sends that have completed without the driver knowing: of so many in a row the last one says so for all. With fewer
    /// buffers than that none would ever come back.
    fn unreported_sends_max(&self) -> u32 {
        match self.driver() {
            Driver::Shm | Driver::Iwarp => 0,
            Driver::Verbs => u32::from(self.signal_every()) - 1,
        }
    }

    /// Maximum number of consecutive Sends of which only the last one reports its completion; 1 at least.
    pub(crate) fn signal_every(&self) -> u16 {
        (self.send_queue_depth() / 4).clamp(1, SIGNAL_EVERY)
    }

    /// Keys that a connection over a device may have in use at a time: those of any one call, and some for each call.
    pub fn keys_max(&self) -> usize {
        (KEYS_PER_CALL * self.credits()).max(CALL_SEGMENTS_MAX)
    }

    /// Work requests the send queue of a connection holds: every call and reply at once, and for
    /// replies as many RDMA Writes as one call can ask for.
    pub fn send_queue_depth(&self) -> u16 {
        let writes = 2 * self.segments_max(); // Write list, Reply chunk
        let depth = (self.slots_per_conn() + self.reverse_calls()) * 4 + writes;
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

    /// Bytes of one send buffer: the inline message, behind headroom for its transport header,
    /// whose length is known only when the payload has been encoded.
    pub fn send_buffer_bytes(&self) -> usize {
        self.headroom_bytes() + self.send_room_bytes()
    }

    /// Room in front of the payload of a send buffer: the longest transport header that this side sends, in whole cache
    /// lines. That of a reply returns lists that came in a receive buffer.
    pub fn headroom_bytes(&self) -> usize {
        let of_calls = self.header_bytes_of(CALL_SEGMENTS_MAX, CALL_SEGMENTS_MAX);
        let of_replies = self.recv_buffer_bytes() + MSGP_FIELDS_BYTES;
        let sent = of_calls.max(of_replies).min(self.header_bytes_max());
        sent.next_multiple_of(CACHE_LINE_BYTES)
    }

    /// Longest transport header that these limits allow, in bytes: all lists full (RFC 8166 section
    /// 4.1), and in version two the direction (version two section 4.2).
    pub fn header_bytes_max(&self) -> usize {
        self.header_bytes_of(self.segments_max(), 2 * self.segments_max())
    }

    /// The same with these numbers of segments in the Read list, and in Write list and Reply chunk.
    fn header_bytes_of(&self, reads: usize, writes: usize) -> usize {
        let fixed = WORD_BYTES * 4; // xid, version, credits, procedure
        let list_ends = WORD_BYTES * 3; // "no more" of Read list and Write list, Reply chunk or not
        let read_list = reads * (WORD_BYTES * 2 + SEGMENT_BYTES); // "more", position
        let write_list = self.chunks_max() * WORD_BYTES * 2; // "more", count
        let reply_chunk = WORD_BYTES + writes * SEGMENT_BYTES; // count
        let padded = self.protocol().has_padded_messages();
        let alignment = if padded { MSGP_FIELDS_BYTES } else { 0 };
        let speaks_two = self.versions().speaks(TransportVersion::Two);
        let direction = if speaks_two { WORD_BYTES } else { 0 };
        // No header has both.
        fixed + alignment.max(direction) + list_ends + read_list + write_list + reply_chunk
    }
}

/// Segments of one chunk of a call: of a long call that offers a Write list and a Reply chunk as well.
const CHUNK_SEGMENTS_MAX: usize = CALL_SEGMENTS_MAX / 4;
/// Lets others run for longer than the core spins, while a wake-up still costs the peer no system call.
const YIELDS_PER_SPIN: u32 = 4;
/// Each completion costs a cache line, and send buffers must return soon enough.
const SIGNAL_EVERY: u16 = 16;
/// Two segments of a call in flight, and two that are being invalidated.
const KEYS_PER_CALL: usize = 4;
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
