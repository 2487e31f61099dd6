//! One connection as its core sees it: the protocol state, the buffers it lends to the driver, and
//! the memory of every call in progress.

use crate::config::Config;
use crate::fabric::{
    AnyFabric, ConnId, DownCause, FabricError, Peer, QpId, SHORT_BYTES_MAX, ShortEndpoint,
};
use crate::mem::{Buf, BufPool, Region, Share};
use crate::reactor::in_flight::call_table::{CallTable, FencedReplies};
use crate::reactor::in_flight::deadlines::MessageWait;
use crate::reactor::in_flight::deferred::Caller;
#[cfg(feature = "gss")]
use crate::reactor::in_flight::gss_calls::GssCalls;
use crate::reactor::in_flight::observation::RdmaBytes;
use crate::reactor::in_flight::origins::OriginIndex;
use crate::reactor::in_flight::outgoing::Outgoing;
use crate::reactor::in_flight::read_buffers::ReadBuffers;
use crate::reactor::in_flight::read_ids::ReadOwner;
use crate::reactor::in_flight::roles::{NoReverse, ReverseClient, Roles};
use crate::reactor::in_flight::stalls::Outstanding;
use crate::reactor::state::conn_lane::ConnLane;
use crate::reactor::state::rfc5666::Dialect;
use crate::reactor::state::serve_table::ServeTable;
use crate::reactor::types::memory::lazy_pool;
use crate::reactor::types::negotiate::{Negotiated, Settled, Terms};
#[cfg(feature = "gss")]
use crate::reactor::types::protection::{ClientContext, Protection};
use spinrpc_proto::connection::Connection;
use spinrpc_proto::events::SlotId;
use spinrpc_proto::requester::{CallSlot, Requester};
use spinrpc_proto::responder::{Responder, ServeSlot};
use spinrpc_proto::version::{Negotiation, Stage, TransportVersion};
use std::cell::RefMut;
use std::rc::Rc;
use std::sync::Arc;

/// Protocol state with slots on the heap, allocated when the connection opens.
pub(crate) type Protocol = Connection<Box<[CallSlot]>, Box<[ServeSlot]>>;

/// See [`Conn::fetched`].
pub(in crate::reactor) type Fetched<'c> =
    (&'c Buf, &'c mut ReadBuffers, RefMut<'c, Protocol>, &'c Share);

/// One connection of a core.
pub(crate) struct Conn {
    pub(crate) id: ConnId,
    /// State that short messages need.
    pub(crate) lane: Rc<ConnLane>,
    /// Peer at the other end, for observers.
    peer: Option<Peer>,
    /// Shared with threads that answer its calls later.
    caller: Option<Arc<Caller>>,
    pub(crate) calls: CallTable,
    pub(crate) serves: ServeTable,
    /// State of the dialects of RFC 5666.
    pub(super) dialect: Dialect,
    /// Replies that have arrived while keys of their calls are being killed, in order of arrival.
    pub(crate) fenced: FencedReplies,
    pub(super) recvs: BufPool,
    pub(crate) sends: BufPool,
    /// Limits of messages from now on.
    pub(crate) negotiated: Negotiated,
    /// Terms from which `negotiated` follows, apart from the Connection Configuration Protocol.
    pub(super) terms: Terms,
    /// For observers.
    moved: RdmaBytes,
    origin: OriginIndex,
    /// Blocks of the core's memory that its calls hold.
    share: Share,
    pub(crate) reads_outstanding: u16,
    /// At the last looks of the timer.
    outstanding: Outstanding,
    /// Deferred calls, for each of which a send buffer is reserved.
    pub(super) sends_promised: usize,
    /// Send buffers that calls leave free: those of deferred calls, and one for a handler, which may start calls
    /// before it answers its own, if this side both calls and serves.
    sends_left_by_calls: u32,
    /// Restrictions of calls in reverse.
    reverse: ReverseClient,
    /// Answers without a slot that wait for a buffer; at most one for each slot, and at least one.
    pub(super) answers_owed: usize,
    /// Cause for which this side began to close it; the first one is kept.
    pub(crate) closing: Option<DownCause>,
    /// Set if its calls go under RPCSEC_GSS.
    #[cfg(feature = "gss")]
    gss: Option<Box<GssCalls>>,
    /// A call under RPCSEC_GSS has arrived whose verifier checks.
    #[cfg(feature = "gss")]
    is_secured: bool,
}

impl Conn {
    /// Sets up everything a connection needs, so that no message allocates (slow path). Its messages
    /// lie in `memory`, where that is enough, and else in memory of their own.
    pub(crate) fn open(
        id: QpId,
        roles: Roles,
        config: &Config,
        terms: Terms,
        first_xid: u32,
        (endpoint, mut memory): (Option<ShortEndpoint>, Option<Region>),
    ) -> Result<Self, FabricError> {
        let ((calls, serves), credits) = (roles.slots(config), roles.credits(config));
        let sends = config.send_budget(credits, serves).total();
        let first_xid = roles.first_xid(first_xid);
        let requester = Requester::new(vec![CallSlot::FREE; calls].into_boxed_slice(), first_xid);
        let requester =
            requester.requesting(credits as u32).holding_back(roles.credits_held_back() as u32);
        let responder = Responder::new(vec![ServeSlot::FREE; serves].into_boxed_slice())
            .with_exports(config.exports_max());
        let recvs = config.recv_budget_with(roles.reverse_receives()).total();
        let dialect = Dialect::new(config, calls, serves);
        let protocol = protocol(roles, requester, responder, config);
        Ok(Self {
            id,
            lane: Rc::new(ConnLane::new(id, endpoint, protocol)),
            peer: None,
            caller: None,
            calls: CallTable::new(calls),
            serves: ServeTable::new(serves),
            dialect,
            fenced: FencedReplies::default(),
            recvs: buffers("receive", config.recv_buffer_bytes(), recvs, &mut memory)?,
            sends: buffers("send", config.send_buffer_bytes(), sends, &mut memory)?,
            negotiated: terms.agreed(),
            terms,
            moved: RdmaBytes::default(),
            origin: OriginIndex::NONE,
            share: Share::default(),
            reads_outstanding: 0,
            outstanding: Outstanding::default(),
            sends_promised: 0,
            sends_left_by_calls: u32::from(roles.reverse_calls > 0),
            reverse: ReverseClient::default(),
            answers_owed: 0,
            closing: None,
            #[cfg(feature = "gss")]
            gss: None,
            #[cfg(feature = "gss")]
            is_secured: false,
        })
    }

    /// Gives all receive buffers to the driver: as many as credits, and the slack.
    pub(crate) fn post_receives(&mut self, fabric: &mut AnyFabric) {
        while let Some(buf) = self.recvs.take() {
            if fabric.post_recv(self.id, buf).is_err() {
                break;
            }
        }
    }

    /// Returns true if a short message of that version may have the maximum length.
    #[inline(always)]
    pub(in crate::reactor) fn takes_any_short(&self, version: TransportVersion) -> bool {
        self.negotiated.unpadded_bytes_max(version) >= SHORT_BYTES_MAX
    }

    /// Work requests that may be posted without using those reserved for replies.
    #[inline]
    pub(crate) fn queue_room(&self, fabric: &AnyFabric) -> usize {
        fabric.room(self.id).saturating_sub(self.lane.reserved())
    }

    /// RDMA Reads that may be posted now without exceeding the number that the driver takes and the peer has stated:
    /// "the value SHOULD be observed at all times" (RFC 5666 section 6.2).
    pub(crate) fn reads_room(&self) -> u16 {
        self.negotiated.reads_max().saturating_sub(self.reads_outstanding)
    }

    /// The wait of a message; `None` for a reply that is not fetched any more.
    pub(in crate::reactor) fn wait_of(&mut self, what: ReadOwner) -> Option<&mut MessageWait> {
        match what {
            ReadOwner::Call(slot) => Some(&mut self.serves.of(slot).wait),
            ReadOwner::Reply(slot) => self.dialect.wait(slot),
        }
    }

    /// A message whose Read chunks are fetched, and the memory of its chunks, with what they need of the connection: the protocol
    /// and the share of memory.
    pub(in crate::reactor) fn fetched(&mut self, what: ReadOwner) -> Option<Fetched<'_>> {
        let (message, sinks) = match what {
            ReadOwner::Call(slot) => self.serves.fetched(slot)?,
            ReadOwner::Reply(slot) => self.dialect.fetched(slot)?,
        };
        Some((message, sinks, self.lane.proto(), &self.share))
    }

    /// A send buffer for a call.
    #[inline]
    pub(in crate::reactor) fn take_for_call(&self) -> Option<Buf> {
        self.sends.take_beyond(self.sends_left_by_calls)
    }

    /// Keeps a send buffer for a call that is deferred.
    pub(in crate::reactor) fn promise_send(&mut self) {
        self.sends_promised += 1;
        self.sends_left_by_calls += 1;
    }

    /// The deferred call is answered, and takes it.
    pub(in crate::reactor) fn redeem_send(&mut self) {
        if self.sends_promised > 0 {
            self.sends_promised -= 1;
            self.sends_left_by_calls -= 1;
        }
    }

    /// Number of free send buffers that no deferred call will need.
    #[inline(always)]
    pub(in crate::reactor) fn spare_sends(&self) -> usize {
        self.sends.available().saturating_sub(self.sends_promised)
    }

    #[inline]
    pub(crate) fn has_spare_send(&self) -> bool {
        self.spare_sends() > 0
    }

    /// Takes an ended call out of its slot and kills its keys: only the caller can access its memory then,
    /// unless the device is still using it ([`Lent::is_dying`](crate::reactor::in_flight::outgoing::Lent::is_dying)). `None` for
    /// a call that has nothing there.
    #[inline(always)]
    pub(crate) fn end_call(
        &mut self,
        slot: SlotId,
        fabric: &mut AnyFabric,
    ) -> Option<Box<Outgoing>> {
        let mut call = self.calls.take(slot)?;
        self.kill_keys(&mut call, fabric);
        Some(call)
    }

    #[inline(never)]
    fn kill_keys(&self, call: &mut Outgoing, fabric: &mut AnyFabric) {
        call.lent.kill_keys(|handle| fabric.revoke(self.id, handle));
    }

    /// Returns true if its calls do not go under RPCSEC_GSS: those and the replies to them have no plain headers.
    pub(in crate::reactor) fn is_without_gss(&self) -> bool {
        #[cfg(feature = "gss")]
        return self.gss.is_none();
        #[cfg(not(feature = "gss"))]
        return true;
    }

    /// A call ended without a checked reply: its protection is no longer needed.
    #[inline]
    pub(in crate::reactor) fn forget_sent(&mut self, slot: SlotId) {
        #[cfg(feature = "gss")]
        if let Some(gss) = &mut self.gss {
            drop(gss.take(slot.xid()));
        }
        #[cfg(not(feature = "gss"))]
        let _ = slot;
    }

    /// Releases the send-queue places reserved for a reply.
    #[inline]
    pub(in crate::reactor) fn release(&mut self, slot: SlotId) {
        self.lane.unreserve(self.serves.release(slot));
    }
}

/// Its peer, and what is shared with the peer's other connections.
impl Conn {
    /// Sets the peer, its origin and the share of the connection, and the handle of threads that answer its calls.
    pub(in crate::reactor) fn belong_to(
        &mut self,
        peer: Peer,
        (origin, share): (OriginIndex, Share),
        caller: Arc<Caller>,
    ) {
        (self.peer, self.caller) = (Some(peer), Some(caller));
        (self.origin, self.share) = (origin, share);
    }

    getters! {
        peer: Option<Peer>,
        origin: OriginIndex,
        share: &Share,
        sends_promised: usize,
        moved: RdmaBytes,
        reverse: ReverseClient,
    }

    /// Handle of threads that answer calls later.
    pub(in crate::reactor) fn caller(&self) -> Option<&Arc<Caller>> {
        self.caller.as_ref()
    }

    /// The connection has gone: threads learn it.
    pub(in crate::reactor) fn take_caller(&mut self) -> Option<Arc<Caller>> {
        self.caller.take().inspect(|caller| caller.go())
    }

    /// Replies that wait for more than the send queue: errors wait for a buffer, replies that the client fetches for
    /// their RDMA_DONE, or for an earlier one.
    pub(in crate::reactor) fn replies_held(&self) -> usize {
        let dones_owed = self.lane.proto().responder.dones_owed() as usize;
        self.answers_owed + self.dialect.kept.len() + dones_owed
    }

    /// Returns true if its outstanding requests have not completed for too long.
    pub(in crate::reactor) fn is_stalled(&mut self, fabric: &AnyFabric) -> bool {
        self.outstanding.is_stalled(fabric.outstanding(self.id).numbers)
    }

    /// Counts bytes that were moved by RDMA Read.
    pub(in crate::reactor) fn count_read(&mut self, bytes: u64) {
        self.moved.read += bytes;
    }

    /// Counts bytes that were moved by RDMA Write.
    pub(in crate::reactor) fn count_written(&mut self, bytes: u64) {
        self.moved.written += bytes;
    }
}

/// Its calls.
impl Conn {
    /// The application of a server has a client on this connection from now on; its calls stay inline if so requested.
    pub(in crate::reactor) fn begin_reverse(&mut self, is_inline: bool) -> Result<(), NoReverse> {
        if self.reverse != ReverseClient::None {
            return Err(NoReverse::Taken);
        }
        self.reverse = if is_inline { ReverseClient::Inline } else { ReverseClient::Any };
        Ok(())
    }

    /// Sets the negotiation of a new connection, before its first call.
    pub(in crate::reactor) fn negotiate(&mut self, negotiation: Negotiation) {
        self.lane.proto().requester.negotiate(negotiation);
        self.negotiated = match negotiation.stage() {
            Stage::Settled => self.negotiated.settled(negotiation.version()),
            _ => self.negotiated.offering(),
        };
    }

    /// The first call was answered: thresholds are those of its version from now on, on the same connection (version
    /// two section 5.2).
    pub(in crate::reactor) fn settle(&mut self) -> Settled {
        let version = self.lane.proto().requester.negotiation().version();
        self.negotiated = self.negotiated.settled(version);
        Settled { negotiated: self.negotiated, verdict: self.lane.proto().requester.verdict() }
    }
}

/// RPCSEC_GSS.
#[cfg(feature = "gss")]
impl Conn {
    /// Its calls, if they go under RPCSEC_GSS.
    #[inline]
    pub(in crate::reactor) fn gss(&self) -> Option<&GssCalls> {
        self.gss.as_deref()
    }

    #[inline]
    pub(in crate::reactor) fn gss_mut(&mut self) -> Option<&mut GssCalls> {
        self.gss.as_deref_mut()
    }

    /// Sets the context of calls from now on; `None` while another one is established.
    pub(in crate::reactor) fn set_context(&mut self, context: Option<Arc<ClientContext>>) {
        let slots = self.calls.slots();
        self.gss.get_or_insert_with(|| Box::new(GssCalls::new(slots))).change(context);
        self.lane.forget_gate();
    }

    /// The call in this slot is verified: every answer to it is protected from now on.
    pub(in crate::reactor) fn protect(&mut self, slot: SlotId, protection: Protection) {
        self.is_secured = true;
        self.serves.of(slot).protection = Some(protection);
    }

    /// Returns true if a call under RPCSEC_GSS has arrived whose verifier checks.
    pub(in crate::reactor) fn is_secured(&self) -> bool {
        self.is_secured
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

fn buffers(
    what: &str,
    bytes: usize,
    count: u64,
    memory: &mut Option<Region>,
) -> Result<BufPool, FabricError> {
    let (what, count) = (format!("{count} {what} buffers of {bytes} bytes"), count as usize);
    let needed = BufPool::region_bytes(bytes, count);
    lazy_pool(what, needed, memory, |region| BufPool::new(region, bytes, count))
}
