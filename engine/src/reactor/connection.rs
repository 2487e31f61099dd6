//! One connection as its core sees it: the protocol state, the buffers it lends to the driver, and
//! the memory of every call in progress.

use super::call_table::{CallHold, CallTable};
use super::chains::ReceiveChains;
use super::deadlines::Expiry;
use super::exports::{ExportHold, KeptReply};
use super::fenced::FencedReply;
use super::leaving::Goodbye;
use super::negotiate::{Negotiated, Terms};
use super::reply_pulls::ReplyPull;
use super::reverse::{ReverseState, Roles};
use super::versions::Offered;
use crate::config::Config;
use crate::fabric::{ConnId, DownCause, Fabric, FabricError, Peer, QpId, Revoked};
use crate::mem::budget::Budget;
use crate::mem::{Buf, BufPool, Bulk, BulkPool, Region};
use crate::sys::mmap::{HugePages, Mapping, PageRequest};
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::config_proto::{ConfigReply, ConfigRequest};
use spinrpc_proto::connection::Connection;
use spinrpc_proto::limits::READ_CHUNKS_MAX;
use spinrpc_proto::output::SlotId;
use spinrpc_proto::pull::PullChunk;
use spinrpc_proto::requester::{CallSlot, Requester};
use spinrpc_proto::responder::{Responder, ServeSlot};
use spinrpc_proto::version::TransportVersion;
use std::cell::Cell;
use std::collections::VecDeque;

/// Protocol state with slots on the heap, allocated when the connection opens.
pub(crate) type Protocol = Connection<Box<[CallSlot]>, Box<[ServeSlot]>>;

/// Memory that Read chunks are fetched to.
#[derive(Clone, Copy)]
pub(super) struct SinkPools<'a> {
    /// Where RDMA Reads end, if that is not `private` ([`Fabric::read_sinks`]).
    sinks: Option<&'a BulkPool>,
    /// The core's.
    private: &'a BulkPool,
}

impl<'a> SinkPools<'a> {
    pub(super) fn of(fabric: &'a impl Fabric, conn: ConnId, private: &'a BulkPool) -> Self {
        Self { sinks: fabric.read_sinks(conn), private }
    }

    /// A block for an RDMA Read, and one for its bytes afterwards if the peer can write the first.
    fn take(self, bytes: usize) -> Option<(Bulk, Option<Bulk>)> {
        let sink = self.sinks.unwrap_or(self.private).take(bytes)?;
        match sink.is_exposed() {
            true => Some((sink, Some(self.private.take(bytes)?))),
            false => Some((sink, None)),
        }
    }

    /// See [`BulkPool::could_hold`].
    pub(super) fn could_hold(self, lengths: impl Iterator<Item = usize> + Clone) -> bool {
        let sinks = self.sinks.unwrap_or(self.private);
        sinks.could_hold(lengths.clone())
            && (!sinks.is_exposed() || self.private.could_hold(lengths))
    }
}

/// The Read chunks of one message being fetched, and where their bytes are.
#[derive(Default)]
pub(crate) struct Sinks {
    /// Position and length of each, by rising position.
    pub(crate) chunks: [(u32, u32); READ_CHUNKS_MAX],
    pub(crate) count: usize,
    pub(crate) bulks: [Option<Bulk>; READ_CHUNKS_MAX],
    /// Private memory for what was fetched to where the peer can write.
    homes: [Option<Bulk>; READ_CHUNKS_MAX],
    /// Parts of the message were copied together while it was decoded.
    pub(crate) joined: Cell<bool>,
}

impl Sinks {
    /// Memory for all Read chunks of a message: all at once or none, so that two messages cannot
    /// wait for each other. True if they have it.
    pub(super) fn fill(&mut self, chunks: &[PullChunk], pools: SinkPools<'_>) -> bool {
        if self.count == chunks.len() {
            return true;
        }
        self.count = chunks.len();
        for (index, chunk) in chunks.iter().enumerate() {
            let Some((bulk, home)) = pools.take(chunk.length as usize) else {
                self.clear();
                return false;
            };
            (self.bulks[index], self.homes[index]) = (Some(bulk), home);
            self.chunks[index] = (chunk.position, chunk.length);
        }
        true
    }

    /// All has been fetched: copies it to where the peer cannot write. Returns the number of copies.
    pub(super) fn take_home(&mut self) -> u64 {
        let mut copies = 0;
        for (bulk, home) in self.bulks.iter_mut().zip(&mut self.homes).take(self.count) {
            if let (Some(fetched), Some(mut home)) = (&mut *bulk, home.take()) {
                home.copy_from_bulk(fetched, fetched.len());
                *bulk = Some(home);
                copies += 1;
            }
        }
        copies
    }

    /// Blocks of registered memory that it holds.
    pub(super) fn blocks(&self) -> usize {
        self.bulks.iter().chain(&self.homes).flatten().count()
    }

    pub(crate) fn clear(&mut self) {
        self.bulks[..self.count].fill_with(|| None);
        self.homes[..self.count].fill_with(|| None);
        self.count = 0;
        self.joined.set(false);
    }
}

/// A call being fetched or deferred: its message stays, because the reply echoes its lists.
pub(crate) struct ServeHold {
    pub(crate) message: Option<Buf>,
    /// Lent to the handler while it runs; allocated when the connection opens.
    pub(crate) sinks: Option<Box<Sinks>>,
    /// Send-queue places kept for its reply.
    pub(crate) reserved: u16,
    /// It stands among the calls that wait for memory or room.
    pub(crate) put_off: bool,
    /// When the time of the call that named it is over.
    pub(super) expiry: Expiry,
    /// When it has waited for memory for long enough, if it waits.
    pub(super) patience: Expiry,
}

/// Bytes that this side moved over a connection beside messages, whose bytes only the core counts: to
/// count them here, too, costs each message a nanosecond.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moved {
    /// By RDMA Read.
    pub(crate) read: u64,
    /// By RDMA Write.
    pub(crate) written: u64,
}

/// One connection of a core.
pub(crate) struct Conn {
    pub(crate) id: ConnId,
    /// Who is at the other end, for those who look at the core.
    pub(super) peer: Option<Peer>,
    pub(crate) proto: Protocol,
    pub(crate) calls: CallTable,
    pub(crate) serves: Box<[ServeHold]>,
    /// Replies that are being fetched; no places where the rules have none.
    pub(crate) pulls: Box<[Option<ReplyPull>]>,
    /// What is exported for the reply of each call; no places where the rules have none.
    pub(crate) exports: Box<[ExportHold]>,
    /// Replies that wait for an earlier RDMA_DONE, the oldest first.
    pub(crate) kept: VecDeque<KeptReply>,
    /// Replies that are here, while keys of their calls are being killed, in order of arrival.
    pub(crate) fenced: VecDeque<FencedReply>,
    pub(crate) recvs: BufPool,
    /// The second buffers of its receives, if they have any.
    pub(crate) chains: Option<ReceiveChains>,
    pub(crate) sends: BufPool,
    /// What messages from now on keep to.
    pub(crate) negotiated: Negotiated,
    /// What that follows from, beside the Connection Configuration Protocol.
    pub(crate) terms: Terms,
    /// For those who look at the core.
    pub(super) moved: Moved,
    pub(crate) reads_outstanding: u16,
    pub(crate) send_reserved: usize,
    /// Deferred calls: a send buffer is kept for each of them.
    pub(crate) sends_promised: usize,
    /// Send buffers that calls leave: those, and one for a handler, which may start calls before it
    /// answers its own, where this side both calls and serves.
    sends_left_by_calls: u32,
    pub(super) reverse: ReverseState,
    /// The first call, while another version than its own may have to be tried.
    pub(super) offer: Option<Box<Offered>>,
    /// Answers without a slot that wait for a buffer; at most one for each slot, and at least one.
    pub(crate) answers_owed: usize,
    /// The call that tries whether the peer knows that calls say how much time they have.
    pub(super) trial: Option<Box<Offered>>,
    /// Why this side began to close it; the first cause stands.
    pub(crate) closing: Option<DownCause>,
    /// The last message of a connection whose server shuts down gracefully.
    pub(super) goodbye: Goodbye,
}

impl Conn {
    /// Sets up everything a connection needs, so that no message allocates (slow path). Its messages
    /// lie in `memory`, where that is enough, and else in memory of their own.
    pub(crate) fn open(
        id: QpId,
        roles: Roles,
        config: &Config,
        terms: Terms,
        chained: Option<Alignment>,
        first_xid: u32,
        mut memory: Option<Region>,
    ) -> Result<Self, FabricError> {
        let ((calls, serves), credits) = (roles.slots(config), roles.credits(config));
        let sends = config.send_budget(credits, serves).total();
        let first_xid = roles.first_xid(first_xid);
        let requester = Requester::new(vec![CallSlot::FREE; calls].into_boxed_slice(), first_xid);
        let requester = requester.requesting(credits as u32);
        let responder = Responder::new(vec![ServeSlot::FREE; serves].into_boxed_slice())
            .with_exports(config.exports_max());
        let has_reads = config.protocol().has_reads_in_replies();
        let (pulls, exports) = if has_reads { (calls, serves) } else { (0, 0) };
        let recvs = config.recv_budget_with(roles.reverse_receives()).total();
        let chains = chained.map(|alignment| ReceiveChains::new(config, alignment, recvs));
        let chains = chains.transpose()?;
        let extra_bytes = chains.as_ref().map_or(0, ReceiveChains::extra_bytes);
        Ok(Self {
            id,
            peer: None,
            proto: protocol(roles, requester, responder, config),
            calls: CallTable::new(calls),
            serves: (0..serves).map(|_| ServeHold::new()).collect(),
            pulls: (0..pulls).map(|_| None).collect(),
            exports: (0..exports).map(|_| ExportHold::default()).collect(),
            kept: VecDeque::with_capacity(exports),
            fenced: VecDeque::with_capacity(calls),
            recvs: buffers(
                "receive",
                config.recv_buffer_bytes() + extra_bytes,
                recvs,
                &mut memory,
            )?,
            chains,
            sends: buffers("send", config.send_buffer_bytes(), sends, &mut memory)?,
            negotiated: terms.agreed(),
            terms,
            moved: Moved::default(),
            reads_outstanding: 0,
            send_reserved: 0,
            sends_promised: 0,
            sends_left_by_calls: u32::from(roles.reverse_calls > 0),
            reverse: ReverseState::default(),
            offer: None,
            answers_owed: 0,
            trial: None,
            closing: None,
            goodbye: Goodbye::default(),
        })
    }

    /// A client has said its limits: what is sent from now on keeps to them, in the place of what it
    /// may have said before (RFC 5666 section 6.2).
    pub(crate) fn configure(&mut self, request: &ConfigRequest) {
        self.negotiated = self.terms.with_request(request);
    }

    /// The server has said its limits: what is sent from now on keeps to them.
    pub(crate) fn take_config(&mut self, reply: &ConfigReply) -> Negotiated {
        let version = self.proto.requester.negotiation().version();
        let padding = self.negotiated.alignment(TransportVersion::One);
        self.negotiated = self.terms.with_reply(reply).settled(version);
        if self.sends_promised > 0 {
            // Replies to calls in reverse that are deferred are padded as it was when they came.
            self.negotiated = self.negotiated.padded(padding);
        }
        self.negotiated
    }

    /// Work requests that may still be posted without taking those kept for replies.
    #[inline]
    pub(crate) fn send_room<F: Fabric>(&self, fabric: &F) -> usize {
        fabric.send_room(self.id).saturating_sub(self.send_reserved)
    }

    /// RDMA Reads that may be posted now without more being active than the driver takes and the
    /// peer has said: "the value SHOULD be observed at all times" (RFC 5666 section 6.2).
    pub(crate) fn reads_room(&self) -> u16 {
        self.negotiated.reads_max().saturating_sub(self.reads_outstanding)
    }

    /// A send buffer for a call.
    #[inline]
    pub(super) fn take_for_call(&self) -> Option<Buf> {
        self.sends.take_beyond(self.sends_left_by_calls)
    }

    /// Keeps a send buffer for a call that is deferred.
    pub(super) fn promise_send(&mut self) {
        self.sends_promised += 1;
        self.sends_left_by_calls += 1;
    }

    /// The deferred call is answered, and takes it.
    pub(super) fn redeem_send(&mut self) {
        self.sends_promised = self.sends_promised.saturating_sub(1);
        self.sends_left_by_calls = self.sends_left_by_calls.saturating_sub(1);
    }

    /// A send buffer is free that no deferred call will need.
    #[inline]
    pub(crate) fn has_spare_send(&self) -> bool {
        self.sends.available() > self.sends_promised
    }

    /// Takes the memory of an ended call out of its slot and kills its keys: nobody but the caller can
    /// touch it then, unless the device is still at it ([`CallHold::is_dying`]). `None` for a call
    /// that had no chunks.
    #[inline(always)]
    pub(crate) fn end_call<F: Fabric>(
        &mut self,
        slot: SlotId,
        fabric: &mut F,
    ) -> Option<Box<CallHold>> {
        let mut hold = self.calls.take(slot)?;
        self.kill_keys(&mut hold, fabric);
        Some(hold)
    }

    /// As [`Conn::end_call`], for a call that goes on until its reply is fetched.
    pub(crate) fn suspend_call<F: Fabric>(
        &mut self,
        slot: SlotId,
        fabric: &mut F,
    ) -> Option<Box<CallHold>> {
        let mut hold = self.calls.take_hold(slot)?;
        self.kill_keys(&mut hold, fabric);
        Some(hold)
    }

    #[inline(never)]
    fn kill_keys<F: Fabric>(&self, hold: &mut CallHold, fabric: &mut F) {
        let revoked = hold.handles().iter().map(|handle| fabric.revoke(self.id, *handle));
        let dying = revoked.filter(|revoked| *revoked == Revoked::Soon).count();
        // There are far fewer keys than 256.
        hold.set_dying(dying as u8);
    }
}

impl ServeHold {
    fn new() -> Self {
        Self {
            message: None,
            sinks: Some(Box::default()),
            reserved: 0,
            put_off: false,
            expiry: Expiry::NONE,
            patience: Expiry::NONE,
        }
    }
}

fn protocol(
    roles: Roles,
    requester: Requester<Box<[CallSlot]>>,
    responder: Responder<Box<[ServeSlot]>>,
    config: &Config,
) -> Protocol {
    let (limits, profile) = (config.peer_limits(), config.protocol());
    let connection = Connection::new(roles.side, requester, responder, limits, profile);
    match (roles.reverse_calls, roles.refuses_reverse) {
        (0, false) => connection,
        (0, true) => connection.refusing_reverse(),
        _ => connection.two_way(),
    }
}

/// Buffers of a connection. Those that the driver gives no memory for take address space when it
/// opens, and memory as they are used: an idle connection holds next to none.
fn buffers(
    what: &str,
    bytes: usize,
    count: u64,
    memory: &mut Option<Region>,
) -> Result<BufPool, FabricError> {
    let failed = |reason: String, source: Option<std::io::Error>| FabricError {
        op: format!("map {count} {what} buffers of {bytes} bytes"),
        reason,
        source,
    };
    let count = count as usize;
    let needed = BufPool::region_bytes(bytes, count).map_err(|e| failed(e.to_string(), None))?;
    if let Some(given) = memory.as_mut().and_then(|memory| memory.split_to(needed)) {
        return BufPool::new(given, bytes, count).map_err(|e| failed(e.to_string(), None));
    }
    let request = PageRequest { huge: HugePages::Off, prefault: false, lock: false, node: None };
    let mapping =
        Mapping::anonymous(needed, request).map_err(|e| failed(e.to_string(), Some(e)))?;
    BufPool::new(Region::from_mapping(mapping), bytes, count)
        .map_err(|e| failed(e.to_string(), None))
}

#[cfg(test)]
mod tests {
    use super::super::negotiate::Offer;
    use super::*;
    use crate::mem::BulkClass;
    use crate::reactor::instance::Instance;
    use crate::sys::mmap::SharedMemory;
    use std::sync::Arc;

    fn served(reads_max: u16) -> Conn {
        let config = Config::default();
        let terms =
            Terms::new(&Offer::of(&config, false, Instance::Passing), &[], reads_max, &config);
        let roles = Roles::accepted(&config);
        Conn::open(QpId::new(0, 0), roles, &config, terms, None, 1, None).unwrap()
    }

    fn pool(region: Region, count: usize) -> BulkPool {
        BulkPool::new(region, &[BulkClass { block_bytes: 64, count }]).unwrap()
    }

    /// Over iWARP a peer is told a key to write where our RDMA Reads end (RFC 5040 section 4.4).
    #[test]
    fn chunks_that_were_fetched_to_memory_that_a_peer_can_write_are_delivered_as_private_copies() {
        let (memory, _) = SharedMemory::create("test", 4096).unwrap();
        let sinks = pool(Region::from_shared(Arc::new(memory), 0..4096).unwrap(), 2);
        let private = pool(Region::from_boxed(vec![0; 256].into()), 2);
        let pools = SinkPools { sinks: Some(&sinks), private: &private };
        let mut chunks = [PullChunk::default(); 2];
        (chunks[0].length, chunks[1].length) = (5, 3);
        let free = |pool: &BulkPool| pool.classes().map(|class| class.free).sum::<usize>();
        let mut fetch = Sinks::default();
        assert!(fetch.fill(&chunks, pools));
        assert!(fetch.bulks.iter().flatten().all(Bulk::is_exposed));
        assert!(!Sinks::default().fill(&chunks, pools), "all at once or none");
        fetch.bulks[0].as_mut().unwrap().copy_from(0, b"first");
        fetch.bulks[1].as_mut().unwrap().copy_from(0, b"2nd");
        assert_eq!((fetch.take_home(), fetch.take_home()), (2, 0));
        let delivered = fetch.bulks.iter().flatten().map(Bulk::bytes);
        assert!(delivered.eq([&b"first"[..], b"2nd"]));
        assert_eq!((free(&sinks), free(&private)), (2, 0));
        fetch.clear();
        assert_eq!((free(&sinks), free(&private)), (2, 2));
        assert!(pools.could_hold([64, 64].into_iter()));
        assert!(!pools.could_hold([64, 64, 1].into_iter()));
    }

    /// R5666-56: "If more than this number of RDMA Read operations by the connected peer are issued
    /// simultaneously, connection loss or suboptimal flow control may result".
    #[test]
    fn receive_maxrdmaread_expect_no_room_for_more_reads_than_it_and_the_driver_allow() {
        let mut conn = served(8);
        let request = |reads| ConfigRequest { call_bytes: 4096, reply_bytes: 4096, reads };
        assert_eq!(conn.reads_room(), 8);
        for (said, outstanding, room) in
            [(2, 0, 2), (2, 1, 1), (2, 2, 0), (1, 2, 0), (0, 0, 0), (9, 3, 5), (u32::MAX, 8, 0)]
        {
            conn.configure(&request(said));
            conn.reads_outstanding = outstanding;
            assert_eq!(conn.reads_room(), room, "maxrdmaread {said}, {outstanding} outstanding");
        }
    }
}
