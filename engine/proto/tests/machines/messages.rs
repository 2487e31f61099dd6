//! Messages of a peer, and a machine that receives them.

use spinrpc_proto::chunking::CallChunks;
use spinrpc_proto::connection::{Connection, Side};
use spinrpc_proto::dialect::Profile;
use spinrpc_proto::events::SlotId;
use spinrpc_proto::ids::{Instant, Xid};
use spinrpc_proto::limits::Limits;
use spinrpc_proto::rdma::{Body, HeaderRepr, HeaderView, Lists, MessageType, ReadSegment, Segment};
use spinrpc_proto::requester::{CallSlot, Requester, StartedCall};
use spinrpc_proto::responder::{Responder, ServeSlot};
use spinrpc_proto::rpc::Direction;
use spinrpc_proto::version::{Negotiation, TransportVersion};

use crate::recorder::{Event, Recorder};

pub(crate) const NEVER: Instant = Instant(u64::MAX);

pub(crate) fn wire(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// An RPC call of 40 bytes, without arguments.
pub(crate) fn rpc_call(xid: Xid) -> Vec<u8> {
    wire(&[xid.0, 0, 2, 100_003, 3, 0, 0, 0, 0, 0])
}

/// An RPC reply that says success, without results.
pub(crate) fn rpc_reply(xid: Xid) -> Vec<u8> {
    wire(&[xid.0, 1, 0, 0, 0, 0])
}

/// A segment whose offset does not fit 32 bits.
pub(crate) fn segment(handle: u32, length: u32) -> Segment {
    Segment { handle, length, offset: u64::from(handle) << 32 | 0x40 }
}

const ONE: (TransportVersion, Direction) = (TransportVersion::One, Direction::Call);

/// The chunk lists of a message.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chunks {
    pub(crate) reads: Vec<ReadSegment>,
    pub(crate) writes: Vec<Vec<Segment>>,
    pub(crate) reply: Option<Vec<Segment>>,
}

impl Chunks {
    pub(crate) fn none() -> Self {
        Self::default()
    }

    pub(crate) fn read(mut self, position: u32, handle: u32, length: u32) -> Self {
        self.reads.push(ReadSegment { position, target: segment(handle, length) });
        self
    }

    pub(crate) fn write(mut self, segments: &[Segment]) -> Self {
        self.writes.push(segments.to_vec());
        self
    }

    pub(crate) fn reply(mut self, segments: &[Segment]) -> Self {
        self.reply = Some(segments.to_vec());
        self
    }

    /// A header of either version; version one does not say the direction.
    pub(crate) fn emit(
        &self,
        (version, direction): (TransportVersion, Direction),
        kind: MessageType,
        xid: Xid,
        credits: u32,
    ) -> Vec<u8> {
        let writes: Vec<&[Segment]> = self.writes.iter().map(Vec::as_slice).collect();
        let lists = Lists { reads: &self.reads, writes: &writes, reply: self.reply.as_deref() };
        let body = match kind {
            MessageType::Nomsg => Body::Nomsg(lists),
            MessageType::Msgp => Body::Msgp { align: 4096, thresh: 512, lists },
            _ => Body::Msg(lists),
        };
        let header = HeaderRepr::new(version, direction, xid, credits.max(1), body);
        let mut bytes = vec![0; header.buffer_len()];
        header.emit(&mut bytes);
        // Peers have sent a zero although they must not.
        bytes[8..12].copy_from_slice(&credits.to_be_bytes());
        bytes
    }

    pub(crate) fn msg(&self, xid: Xid, credits: u32, payload: &[u8]) -> Vec<u8> {
        [&self.emit(ONE, MessageType::Msg, xid, credits), payload].concat()
    }

    pub(crate) fn nomsg(&self, xid: Xid, credits: u32) -> Vec<u8> {
        self.emit(ONE, MessageType::Nomsg, xid, credits)
    }

    pub(crate) fn msgp(&self, xid: Xid, credits: u32, payload: &[u8]) -> Vec<u8> {
        [&self.emit(ONE, MessageType::Msgp, xid, credits), payload].concat()
    }
}

pub(crate) fn plain_call(xid: Xid) -> Vec<u8> {
    Chunks::none().msg(xid, 32, &rpc_call(xid))
}

pub(crate) fn plain_reply(xid: Xid, grant: u32) -> Vec<u8> {
    Chunks::none().msg(xid, grant, &rpc_reply(xid))
}

pub(crate) fn rdma_error(xid: Xid, version: u32, body: &[u32]) -> Vec<u8> {
    wire(&[&[xid.0, version, 999, 4], body].concat())
}

pub(crate) fn rdma_done(xid: Xid) -> Vec<u8> {
    wire(&[xid.0, 1, 32, 3])
}

/// Every set of rules with replies that are fetched.
pub(crate) const READ_PROFILES: [Profile; 3] =
    [Profile::Rfc5666, Profile::Draft03, Profile::Draft00];

/// The header of a message that is well-formed.
pub(crate) fn view(bytes: &[u8]) -> HeaderView<'_> {
    HeaderView::new_checked(bytes, &Limits::DEFAULT).unwrap()
}

pub(crate) type Proto = Connection<Vec<CallSlot>, Vec<ServeSlot>>;

/// An end that has so many slots for its calls, and for those of its peer.
pub(crate) fn with_slots(
    side: Side,
    (calls, serves): (usize, usize),
    profile: Profile,
    limits: Limits,
) -> Proto {
    let mut requester = Requester::new(vec![CallSlot::FREE; calls], 0x0700_0000);
    requester.negotiate(Negotiation::new(limits.versions));
    let responder = Responder::new(vec![ServeSlot::FREE; serves]);
    Connection::new(side, requester, responder, limits, profile)
}

/// A client that calls or a server that is called, with four slots.
pub(crate) fn under(side: Side, profile: Profile) -> Proto {
    let slots = match side {
        Side::Client => (4, 0),
        Side::Server => (0, 4),
    };
    with_slots(side, slots, profile, Limits::DEFAULT)
}

pub(crate) fn receive(connection: &mut Proto, message: &[u8]) -> Vec<Event> {
    Recorder::of_message(|out| connection.on_receive(message, out))
}

/// The slot of the one call that was delivered.
#[track_caller]
pub(crate) fn delivered(events: &[Event]) -> SlotId {
    let [Event::Call(slot)] = events[..] else { panic!("no call: {events:?}") };
    slot
}

/// The slot of the one call whose chunks are to be read.
#[track_caller]
pub(crate) fn to_pull(events: &[Event]) -> SlotId {
    let [Event::Pull(slot)] = events[..] else { panic!("no pull: {events:?}") };
    slot
}

/// The token of the one call that was answered.
#[track_caller]
pub(crate) fn replied(events: &[Event]) -> u64 {
    let [Event::Reply(reply)] = events[..] else { panic!("no reply: {events:?}") };
    reply.token
}

pub(crate) struct Caller {
    pub(crate) requester: Requester<Vec<CallSlot>>,
    pub(crate) out: Recorder,
}

impl Caller {
    pub(crate) fn new(slots: usize) -> Self {
        let requester = Requester::new(vec![CallSlot::FREE; slots], 0x1234_5678);
        Self { requester, out: Recorder::default() }
    }

    pub(crate) fn under(profile: Profile, slots: usize) -> Self {
        let Self { requester, out } = Self::new(slots);
        let responder = Responder::new(Vec::new());
        let side = Side::Client;
        let rules = Connection::new(side, requester, responder, Limits::DEFAULT, profile);
        Self { requester: rules.requester, out }
    }

    /// A connection with as many credits granted as it has slots.
    pub(crate) fn granted(slots: usize) -> Self {
        Self::granted_under(Profile::Rfc8166, slots)
    }

    pub(crate) fn granted_under(profile: Profile, slots: usize) -> Self {
        let mut caller = Self::under(profile, slots);
        let first = caller.call(0);
        caller.receive(&plain_reply(first.xid, slots as u32));
        caller
    }

    pub(crate) fn call(&mut self, token: u64) -> StartedCall {
        self.call_with(token, NEVER, &CallChunks::EMPTY).0
    }

    /// Starts a call; also returns its transport header.
    pub(crate) fn call_with(
        &mut self,
        token: u64,
        deadline: Instant,
        chunks: &CallChunks,
    ) -> (StartedCall, Vec<u8>) {
        let mut room = vec![0xee; chunks.header_bytes() + 20];
        let started = self.requester.start_call(token, deadline, chunks, &mut room);
        let (started, length) = started.unwrap();
        let header = room.split_off(room.len() - length);
        assert!(room.iter().all(|byte| *byte == 0xee), "a header ends where its buffer ends");
        (started, header)
    }

    pub(crate) fn receive(&mut self, message: &[u8]) -> Vec<Event> {
        self.out.arriving(|out| self.requester.on_receive(&view(message), out));
        self.out.take()
    }

    pub(crate) fn at(&mut self, now: u64) -> Vec<Event> {
        self.requester.on_time(Instant(now), |failed| self.out.fail(failed));
        self.out.take()
    }
}

pub(crate) struct Server {
    pub(crate) responder: Responder<Vec<ServeSlot>>,
    pub(crate) out: Recorder,
}

impl Server {
    pub(crate) fn new(slots: usize) -> Self {
        let responder = Responder::new(vec![ServeSlot::FREE; slots]);
        Self { responder, out: Recorder::default() }
    }

    /// A new connection under other rules, with room for so many exported replies.
    pub(crate) fn under(profile: Profile, slots: usize, exports_max: u32) -> Self {
        let Self { responder, out } = Self::new(slots);
        let (requester, side) = (Requester::new(Vec::new(), 0), Side::Server);
        let responder = responder.with_exports(exports_max);
        let rules = Connection::new(side, requester, responder, Limits::DEFAULT, profile);
        Self { responder: rules.responder, out }
    }

    pub(crate) fn receive(&mut self, message: &[u8]) -> Vec<Event> {
        self.out.arriving(|out| self.responder.on_receive(&view(message), out));
        self.out.take()
    }
}
