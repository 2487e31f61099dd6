//! Both ends of a connection, each of which may call the other: what one sends the other takes, and
//! what is delivered is what was sent, item by item, whichever way each item went, in either version and
//! while the ends find out which one they speak.

use std::collections::{HashMap, VecDeque};

use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::chunking::{Beside, CallChunks, ChunkOffer, Found, Placement, StreamReader};
use spinrpc_proto::connection::{Connection, Side};
use spinrpc_proto::dialect::Profile;
use spinrpc_proto::events::{
    self, Arrival, DeliveredReply, FailedCall, ReadRequest, ReplyStream, SlotId, WriteSource,
};
use spinrpc_proto::ids::{Instant, Xid};
use spinrpc_proto::limits::Limits;
use spinrpc_proto::pull::Pulled;
use spinrpc_proto::rdma::v1::{DONE_BYTES, HeaderView, MessageType};
use spinrpc_proto::rdma::{RdmaError, ReadSegment, ReplyRepr, Segment, set_credits};
use spinrpc_proto::reply_pull::PullEnd;
use spinrpc_proto::requester::{CallSlot, INDEX_BITS, Requester, StartedCall};
use spinrpc_proto::responder::{ReplyShape, Responder, ServeSlot};
use spinrpc_proto::rpc::{CallHeader, ReplyHeader};
use spinrpc_proto::version::{Negotiation, TransportVersion, Versions};
use spinrpc_proto::xdr::Padding;

use crate::plan::{Plan, behind_header, call_header, check_items, with_stream};
use crate::recorder::{Event, Recorder};
use crate::script::Script;
use crate::wire;

const NEVER: Instant = Instant(u64::MAX);

/// Every item of a message.
const ALL: u8 = u8::MAX;

/// Limits of both ends' parsers.
const LIMITS: Limits = Limits { versions: Versions::Both, ..Limits::DEFAULT };

/// The end that connected, and the other one.
const CLIENT: usize = 0;
const SERVER: usize = 1;

type Proto = Connection<Vec<CallSlot>, Vec<ServeSlot>>;

/// Three bytes say whose rules apply, which versions the ends speak, whether both call, and how many
/// calls each end makes and takes at a time; the rest is what happens.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let terms = Terms::new(&mut script);
    let mut pair = Pair::new(&terms, 1 + script.below(5), 1 + script.below(5));
    while !script.is_over() {
        pair.step(&mut script);
    }
    pair.drain();
}

/// Terms of a connection.
struct Terms {
    profile: Profile,
    two_way: bool,
    /// By end; they have a version in common.
    versions: [Versions; 2],
    /// Replies that may wait to be fetched.
    exports_max: u32,
}

impl Terms {
    fn new(script: &mut Script<'_>) -> Self {
        use Versions::{Both, One, Two};
        let byte = script.byte();
        Self {
            profile: wire::profile(&mut Script::new(&[byte])),
            two_way: byte >> 2 & 1 != 0,
            versions: [[One, One], [Both, Both], [Both, One], [Two, Both]]
                [usize::from(byte >> 3 & 3)],
            exports_max: [4, 1, 2, 3, 5, 7, 9, 11][usize::from(byte >> 5)],
        }
    }
}

/// A call that was sent, as its sender knows it.
struct Sent {
    started: StartedCall,
    plan: Plan,
    chunks: CallChunks,
    awaited: bool,
    /// Its reply is being fetched.
    fetching: bool,
    /// Memory exposed for results and for the reply, by handle.
    results: Vec<u32>,
    reply: Option<u32>,
}

/// A call that is to be answered.
struct Served {
    slot: SlotId,
    message: Vec<u8>,
    outstanding: VecDeque<ReadRequest>,
    /// The bytes of its Read chunks.
    sinks: Vec<Vec<u8>>,
    whole: bool,
}

/// A reply that is being fetched.
struct Fetch {
    reply: DeliveredReply,
    message: Vec<u8>,
    sinks: Vec<Vec<u8>>,
    outstanding: VecDeque<ReadRequest>,
}

struct End {
    connection: Proto,
    /// Calls that it takes at a time.
    serves: usize,
    /// Messages on their way to it.
    inbox: VecDeque<Vec<u8>>,
    /// Its calls, by XID.
    sent: HashMap<u32, Sent>,
    fetches: Vec<Fetch>,
    served: Vec<Served>,
    /// Calls of the other end whose reply waits for RDMA_DONE, and those whose reply waits for a credit.
    owed: Vec<SlotId>,
    kept: VecDeque<(SlotId, Vec<u8>)>,
}

impl End {
    fn new(end: usize, terms: &Terms, calls: usize, serves: usize) -> Self {
        // Where an XID is to tell which way a message goes, those of the ends differ.
        let first_xid = 0xffff_fff0 ^ (end as u32) << (u32::BITS - INDEX_BITS - 1);
        let versions = terms.versions[end];
        let mut requester = Requester::new(vec![CallSlot::FREE; calls], first_xid);
        if end == CLIENT {
            requester.negotiate(Negotiation::new(versions));
        }
        let responder =
            Responder::new(vec![ServeSlot::FREE; serves]).with_exports(terms.exports_max);
        let side = if end == CLIENT { Side::Client } else { Side::Server };
        let limits = Limits { versions, ..Limits::DEFAULT };
        let connection = Connection::new(side, requester, responder, limits, terms.profile);
        Self {
            connection: if terms.two_way { connection.two_way() } else { connection },
            serves,
            inbox: VecDeque::new(),
            sent: HashMap::new(),
            fetches: Vec::new(),
            served: Vec::new(),
            owed: Vec::new(),
            kept: VecDeque::new(),
        }
    }

    fn check(&self) {
        let credits = self.connection.requester.credits();
        let unanswered = self.sent.len() - self.fetches.len();
        assert_eq!((credits.in_flight() - credits.dones()) as usize, unanswered);
        let exported = self.owed.len() + self.kept.len();
        let in_progress = self.connection.responder.in_progress() as usize;
        assert_eq!(in_progress, self.served.len() + exported);
    }

    fn is_quiet(&self) -> bool {
        self.inbox.is_empty() && self.served.is_empty() && self.fetches.is_empty()
    }
}

struct Pair {
    ends: [End; 2],
    two_way: bool,
    versions: [Versions; 2],
    /// Memory exposed for calls, by handle.
    memory: HashMap<u32, Vec<u8>>,
    /// Memory exposed for replies, by handle, and for which call of which end.
    exports: HashMap<u32, (usize, SlotId, Vec<u8>)>,
    next_handle: u32,
    next_token: u64,
    now: u64,
}

impl Pair {
    fn new(terms: &Terms, calls: usize, serves: usize) -> Self {
        let back = if terms.two_way { (serves, calls) } else { (0, 0) };
        Self {
            ends: [End::new(CLIENT, terms, calls, back.1), End::new(SERVER, terms, back.0, serves)],
            two_way: terms.two_way,
            versions: terms.versions,
            memory: HashMap::new(),
            exports: HashMap::new(),
            next_handle: 1,
            next_token: 0,
            now: 0,
        }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        let byte = script.byte();
        let caller = if self.two_way && byte / 9 % 2 == 1 { SERVER } else { CLIENT };
        let callee = 1 - caller;
        match byte % 9 {
            0..=2 => self.call(caller, script),
            3 => self.receive(callee),
            4 => self.reads(callee, script),
            5 => self.replies(callee, script),
            6 => self.receive(caller),
            7 => self.gives_up(caller, script),
            _ => self.fetches(caller, script),
        }
        self.ends.iter().for_each(End::check);
        // RFC 5666 section 3.8: RDMA_DONEs take credits. There is a receive for each, and one for a call beside them.
        let End { inbox, served, serves, .. } = &self.ends[SERVER];
        assert!(self.two_way || inbox.len() + served.len() <= serves + 1, "more than receives");
    }

    fn next_handle(&mut self) -> u32 {
        self.next_handle += 1;
        self.next_handle - 1
    }

    fn expose(&mut self, bytes: Vec<u8>, segment_bytes: u32) -> ChunkOffer {
        let handle = self.next_handle();
        let length = bytes.len() as u32;
        self.memory.insert(handle, bytes);
        ChunkOffer { handle, length, offset: u64::from(handle) << 32, segment_bytes }
    }

    /// The end that accepted calls in the version in which it is called.
    fn settle(&mut self, end: usize) {
        let connection = &mut self.ends[end].connection;
        if end == SERVER && self.ends[end].sent.is_empty() {
            let version = match self.versions[end] {
                Versions::Both => connection.responder.version(),
                versions => versions.high(),
            };
            connection.requester.negotiate(Negotiation::settled(version));
        }
    }

    fn call(&mut self, end: usize, script: &mut Script<'_>) {
        let plan = Plan::new(script, self.ends[end].connection.profile());
        let connection = &self.ends[end].connection;
        let knows_version = end == CLIENT || connection.responder.was_called();
        if connection.requester.check_room().is_err() || !knows_version {
            return;
        }
        let xid = self.ends[end].connection.requester.next_xid();
        let (stream, encoded) = plan.encode_arguments(xid, Padding::new(Alignment::NONE, 0));
        let mut chunks = CallChunks::EMPTY;
        if plan.long_call {
            assert!(chunks.push_read(0, self.expose(stream, plan.segment_bytes)));
        }
        for reduced in encoded.reduced() {
            let bytes = plan.arguments[usize::from(reduced.index)].clone();
            let offer = self.expose(bytes, plan.segment_bytes);
            assert!(chunks.push_read(reduced.position, offer));
        }
        self.offer_results(end, plan, chunks);
    }

    fn offer_results(&mut self, end: usize, plan: Plan, mut chunks: CallChunks) {
        let mut results = Vec::new();
        for &length in &plan.offered {
            let offer = self.expose(vec![0; length as usize], plan.segment_bytes);
            assert!(chunks.push_write(offer));
            results.push(offer.handle);
        }
        let reply = (plan.reply_bytes > 0).then(|| {
            let offer = self.expose(vec![0; plan.reply_bytes as usize], plan.segment_bytes);
            assert!(chunks.set_reply(offer));
            offer.handle
        });
        self.settle(end);
        let (token, deadline) = (self.next_token, Instant(self.now + 100));
        self.next_token += 1;
        let requester = &mut self.ends[end].connection.requester;
        let version = requester.negotiation().version();
        let mut header = vec![0; chunks.header_bytes_in(version)];
        let (started, length) =
            requester.start_call(token, deadline, &chunks, &mut header).unwrap();
        assert_eq!(length, header.len());
        self.send_call(end, header, started.xid, &plan, version);
        let (awaited, fetching) = (true, false);
        let sent = Sent { started, plan, chunks, awaited, fetching, results, reply };
        assert!(self.ends[end].sent.insert(started.xid.0, sent).is_none());
    }

    fn send_call(
        &mut self,
        end: usize,
        header: Vec<u8>,
        xid: Xid,
        plan: &Plan,
        version: TransportVersion,
    ) {
        let encode = |padding| plan.encode_arguments(xid, padding);
        let message = match plan.long_call {
            true => header,
            false => with_stream(header, alignment(plan, version), encode),
        };
        self.ends[1 - end].inbox.push_back(message);
    }

    /// The other end does not speak the version of the first call.
    fn resend(&mut self, end: usize, slot: SlotId) {
        let requester = &mut self.ends[end].connection.requester;
        let (xid, version) = (slot.xid(), requester.negotiation().version());
        let sent = &self.ends[end].sent[&xid.0];
        assert!(sent.awaited);
        let (plan, chunks) = (sent.plan.clone(), sent.chunks);
        let mut header = vec![0; chunks.header_bytes_in(version)];
        let requester = &mut self.ends[end].connection.requester;
        let (again, length) = requester.resend(slot, &chunks, &mut header).unwrap();
        assert_eq!((again.xid, length), (xid, header.len()));
        self.send_call(end, header, xid, &plan, version);
    }

    /// An end takes whatever comes of a peer that keeps to its credits.
    fn receive(&mut self, end: usize) {
        let Some(message) = self.ends[end].inbox.pop_front() else { return };
        let mut out = Recorder::default();
        out.arriving(|out| self.ends[end].connection.on_receive(&message, out));
        match out.take()[..] {
            [Event::Call(slot)] => self.serve(end, slot, message, true),
            [Event::Pull(slot)] => self.serve(end, slot, message, false),
            [Event::FreeExports(slot)] => self.end_export(end, slot),
            [Event::Error(xid, version, error @ RdmaError::Version { .. })] => {
                assert_eq!((end, self.versions), (SERVER, [Versions::Both, Versions::One]));
                let credits = self.ends[end].connection.responder.grant();
                let refusal = wire::error(xid, version, credits, error);
                self.ends[1 - end].inbox.push_back(refusal);
            }
            [Event::Reply(reply)] => {
                let sent = self.end_call(end, &message);
                assert!(sent.awaited && reply.slot == sent.started.slot);
                self.check_results(&sent, &reply, &message, &[]);
            }
            [Event::Released(slot)] => {
                let sent = self.end_call(end, &message);
                assert!(!sent.awaited && slot == sent.started.slot);
            }
            [Event::PullReply(reply)] => self.begin_fetch(end, reply, message),
            [Event::Resend(slot)] => self.resend(end, slot),
            ref other => panic!("{other:?}"),
        }
    }

    fn serve(&mut self, end: usize, slot: SlotId, message: Vec<u8>, whole: bool) {
        assert!(self.two_way || end == SERVER);
        let plan = self.ends[end].connection.responder.pull_plan(slot);
        let chunks = plan.map_or(&[][..], |plan| plan.chunks());
        let sinks = chunks.iter().map(|chunk| vec![0; chunk.length as usize]).collect();
        let outstanding = VecDeque::new();
        self.ends[end].served.push(Served { slot, message, outstanding, sinks, whole });
    }

    fn reads(&mut self, end: usize, script: &mut Script<'_>) {
        let index = script.below(self.ends[end].served.len());
        let room = u16::from(script.byte() % 8);
        if self.ends[end].served.get(index).is_some_and(|served| !served.whole) {
            self.read_some(end, index, room);
        }
    }

    /// Asks for more Reads and completes the oldest one.
    fn read_some(&mut self, end: usize, index: usize, room: u16) {
        let End { connection, served, .. } = &mut self.ends[end];
        let served = &mut served[index];
        let view = HeaderView::new_checked(&served.message, &LIMITS).unwrap();
        let mut out = Recorder::default();
        connection.responder.pull(served.slot, &view, room, |read| out.read(read));
        for event in out.take() {
            let Event::Read(read) = event else { panic!("{event:?}") };
            served.outstanding.push_back(read);
        }
        let Some(read) = served.outstanding.pop_front() else { return };
        let start = (read.from.offset - (u64::from(read.from.handle) << 32)) as usize;
        let from = &self.memory[&read.from.handle][start..][..read.from.length as usize];
        served.sinks[usize::from(read.chunk)][read.at as usize..][..from.len()]
            .copy_from_slice(from);
        match out.pulled(served.slot, connection.responder.on_read_done(served.slot)) {
            Pulled::More => assert_eq!(out.take(), []),
            Pulled::Complete => {
                assert_eq!(out.take(), [Event::Call(served.slot)]);
                served.whole = true;
            }
            Pulled::Stale => panic!("a Read of no call"),
        }
    }

    fn replies(&mut self, end: usize, script: &mut Script<'_>) {
        let index = script.below(self.ends[end].served.len());
        if self.ends[end].served.get(index).is_some_and(|served| served.whole) {
            let served = self.ends[end].served.swap_remove(index);
            let way = script.byte();
            match way % 4 {
                0 => self.reply(end, &served, false),
                1 => self.reply(end, &served, true),
                2 => self.reply_by_read(end, &served, way >> 2, false),
                _ => self.reply_by_read(end, &served, ALL, true),
            }
        }
    }

    /// The other end has fetched a reply; another one may go.
    fn end_export(&mut self, end: usize, slot: SlotId) {
        self.exports.retain(|_, (of, call, _)| (*of, *call) != (end, slot));
        let owed = &mut self.ends[end].owed;
        let done = owed.iter().position(|owed| *owed == slot).unwrap();
        owed.swap_remove(done);
        while let Some((slot, mut message)) = self.ends[end].kept.pop_front() {
            let here = &mut self.ends[end];
            let Some(credits) = here.connection.responder.send_kept(slot, NEVER) else {
                return here.kept.push_front((slot, message));
            };
            here.owed.push(slot);
            set_credits(&mut message, credits);
            self.ends[1 - end].inbox.push_back(message);
        }
    }

    /// The plan of a call that has come to this end, whose arguments are those which were sent.
    fn plan_of(&self, end: usize, served: &Served, call: &HeaderView<'_>) -> Plan {
        let plan = self.ends[1 - end].sent[&call.xid().0].plan.clone();
        check_arguments(served, call, &plan);
        plan
    }

    /// As `reply`, but what has no Write chunk is left to be fetched, except for the items whose
    /// bits are set in `inline`; or all of the reply is.
    fn reply_by_read(&mut self, end: usize, served: &Served, inline: u8, whole: bool) {
        let call = HeaderView::new_checked(&served.message, &LIMITS).unwrap();
        let is_one = call.transport_version() == TransportVersion::One;
        if !is_one || !self.ends[end].connection.responder.may_export() {
            return self.reply(end, served, false);
        }
        let plan = self.plan_of(end, served, &call);
        let encode = |padding| {
            plan.encode_results(call.xid(), padding, |index| match plan.offers(index) {
                false if inline >> index & 1 != 0 => Placement::Inline,
                _ => Placement::Chunk,
            })
        };
        let (stream, encoded) = encode(Padding::new(Alignment::NONE, 0));
        let (mut placed, mut reads) = (vec![0; plan.offered.len()], Vec::new());
        if whole {
            let target = self.export(end, served.slot, &stream);
            reads.push(ReadSegment { position: 0, target });
        }
        for reduced in encoded.reduced() {
            let index = usize::from(reduced.index);
            if plan.offers(index) {
                placed[index] = reduced.length;
            } else {
                let target = self.export(end, served.slot, &plan.results[index]);
                reads.push(ReadSegment { position: reduced.position, target });
            }
        }
        if reads.is_empty() {
            return self.reply(end, served, false);
        }
        let mut message = vec![0; ReplyRepr::bytes_of(&call, reads.len())];
        let shape = ReplyShape { placed: &placed, long_bytes: None };
        let mut out = Recorder::default();
        let responder = &mut self.ends[end].connection.responder;
        let reply = responder
            .reply_by_read(served.slot, &call, &shape, &reads, NEVER, &mut message, |write| {
                out.write(write)
            })
            .unwrap();
        assert_eq!(reply.header_bytes, message.len());
        self.write(&out.take(), &plan.results, &stream);
        if !whole {
            message = with_stream(message, plan.alignment, encode);
        }
        match reply.kept {
            true => self.ends[end].kept.push_back((served.slot, message)),
            false => {
                self.ends[end].owed.push(served.slot);
                self.ends[1 - end].inbox.push_back(message);
            }
        }
    }

    fn export(&mut self, end: usize, slot: SlotId, bytes: &[u8]) -> Segment {
        let handle = self.next_handle();
        self.exports.insert(handle, (end, slot, bytes.to_vec()));
        Segment { handle, length: bytes.len() as u32, offset: u64::from(handle) << 32 }
    }

    /// The results go where the call wants them.
    fn reply(&mut self, end: usize, served: &Served, long: bool) {
        let call = HeaderView::new_checked(&served.message, &LIMITS).unwrap();
        let plan = self.plan_of(end, served, &call);
        let encode = |padding| {
            plan.encode_results(call.xid(), padding, |index| match plan.offers(index) {
                true => Placement::Chunk,
                false => Placement::Inline,
            })
        };
        let (stream, encoded) = encode(Padding::new(Alignment::NONE, 0));
        let mut placed = vec![0; plan.offered.len()];
        for reduced in encoded.reduced() {
            placed[usize::from(reduced.index)] = reduced.length;
        }
        let long_bytes =
            (long && stream.len() <= plan.reply_bytes as usize).then_some(stream.len() as u32);
        let mut message = vec![0; ReplyRepr::bytes_of(&call, 0)];
        let shape = ReplyShape { placed: &placed, long_bytes };
        let mut out = Recorder::default();
        let responder = &mut self.ends[end].connection.responder;
        responder
            .reply(served.slot, &call, &shape, &mut message, |write| out.write(write))
            .unwrap();
        self.write(&out.take(), &plan.results, &stream);
        if long_bytes.is_none() {
            message = with_stream(message, alignment(&plan, call.transport_version()), encode);
        }
        self.ends[1 - end].inbox.push_back(message);
    }

    /// RDMA Writes land in the caller's memory.
    fn write(&mut self, events: &[Event], items: &[Vec<u8>], stream: &[u8]) {
        for event in events {
            let Event::Write(write) = *event else { panic!("{event:?}") };
            let source = match write.source {
                WriteSource::Item(index) => &items[usize::from(index)],
                WriteSource::Stream => stream,
            };
            let bytes = &source[write.at as usize..][..write.to.length as usize];
            let start = (write.to.offset - (u64::from(write.to.handle) << 32)) as usize;
            let memory = self.memory.get_mut(&write.to.handle).unwrap();
            memory[start..][..bytes.len()].copy_from_slice(bytes);
        }
    }

    /// The call that this message ends.
    fn end_call(&mut self, end: usize, message: &[u8]) -> Sent {
        let xid = HeaderView::new_checked(message, &LIMITS).unwrap().xid();
        self.ends[end].sent.remove(&xid.0).unwrap()
    }

    fn begin_fetch(&mut self, end: usize, reply: DeliveredReply, message: Vec<u8>) {
        let xid = HeaderView::new_checked(&message, &LIMITS).unwrap().xid().0;
        let End { connection, sent, fetches, .. } = &mut self.ends[end];
        let sent = sent.get_mut(&xid).unwrap();
        assert!(reply.slot == sent.started.slot && !sent.fetching);
        sent.fetching = true;
        let plan = connection.requester.pull_plan(reply.slot);
        assert_eq!(plan.is_some(), sent.awaited);
        let chunks = plan.map_or(&[][..], |plan| plan.chunks());
        let sinks = chunks.iter().map(|chunk| vec![0; chunk.length as usize]).collect();
        fetches.push(Fetch { reply, message, sinks, outstanding: VecDeque::new() });
    }

    fn fetches(&mut self, end: usize, script: &mut Script<'_>) {
        let index = script.below(self.ends[end].fetches.len());
        if index < self.ends[end].fetches.len() {
            self.fetch_some(end, index, u16::from(script.byte() % 8));
        }
    }

    /// Asks for more Reads of a reply and completes the oldest one; RDMA_DONE follows the last.
    fn fetch_some(&mut self, end: usize, index: usize, room: u16) {
        let End { connection, fetches, .. } = &mut self.ends[end];
        let Fetch { reply, message, sinks, outstanding } = &mut fetches[index];
        let view = HeaderView::new_checked(message, &LIMITS).unwrap();
        let (mut out, slot) = (Recorder::default(), reply.slot);
        connection.requester.pull(slot, &view, room, |read| out.read(read));
        for event in out.take() {
            let Event::Read(read) = event else { panic!("{event:?}") };
            outstanding.push_back(read);
        }
        if let Some(read) = outstanding.pop_front() {
            let (_, _, exported) = &self.exports[&read.from.handle];
            let sink = &mut sinks[usize::from(read.chunk)][read.at as usize..];
            sink[..exported.len()].copy_from_slice(exported);
            assert_ne!(connection.requester.on_read_done(slot), Pulled::Stale);
        }
        let mut done = [0; DONE_BYTES];
        if let Some(how) = connection.requester.end_pull(slot, &mut done) {
            let fetch = fetches.swap_remove(index);
            self.ends[1 - end].inbox.push_back(done.to_vec());
            self.end_fetch(end, &fetch, how);
        }
    }

    fn end_fetch(&mut self, end: usize, fetch: &Fetch, how: PullEnd) {
        let sent = self.end_call(end, &fetch.message);
        assert_eq!(sent.awaited, matches!(how, PullEnd::Deliver { .. }));
        if sent.awaited {
            self.check_results(&sent, &fetch.reply, &fetch.message, &fetch.sinks);
        }
    }

    fn check_results(
        &self,
        sent: &Sent,
        reply: &DeliveredReply,
        message: &[u8],
        sinks: &[Vec<u8>],
    ) {
        let view = HeaderView::new_checked(message, &LIMITS).unwrap();
        let reads: Vec<(u32, u32)> =
            view.reads().map(|read| (read.position, read.target.length)).collect();
        let whole = usize::from(reply.stream == ReplyStream::Pulled);
        let (reads, pulled) = (&reads[whole..], sinks.get(whole..).unwrap_or_default());
        let stream = match reply.stream {
            ReplyStream::Inline { header_bytes } => &message[header_bytes..],
            ReplyStream::ReplyChunk { length } => {
                &self.memory[&sent.reply.unwrap()][..length as usize]
            }
            ReplyStream::Pulled => &sinks[0],
        };
        let (header, at) = ReplyHeader::parse(stream).unwrap();
        assert_eq!(header, ReplyHeader::success(sent.started.xid));
        let beside = Beside::Both { reads, writes: &reply.placed };
        let xdr = behind_header(message, view.header_bytes(), stream, at);
        let reader = StreamReader::over(xdr, at, beside);
        check_items(reader, &sent.plan.results, |found| match found {
            Found::Inline(bytes) => bytes,
            Found::Chunk { index, length } => &self.memory[&sent.results[index]][..length],
            Found::Pulled { index, length } => &pulled[index][..length],
        });
    }

    /// By cancelling, or by time.
    fn gives_up(&mut self, end: usize, script: &mut Script<'_>) {
        let mut out = Recorder::default();
        let End { connection, sent, .. } = &mut self.ends[end];
        match script.byte() {
            0 => {
                self.now += 50;
                connection.requester.on_time(Instant(self.now), |failed| out.fail(failed));
            }
            nth => {
                let mut slots: Vec<_> = sent.values().map(|sent| sent.started.slot).collect();
                slots.sort_by_key(|slot| slot.index);
                let Some(slot) = slots.get(usize::from(nth) % slots.len().max(1)) else { return };
                out.failed(connection.requester.cancel(*slot));
            }
        }
        for event in out.take() {
            let Event::Failed { slot, fenced: true, .. } = event else { panic!("{event:?}") };
            let sent = sent.values_mut().find(|sent| sent.started.slot == slot).unwrap();
            assert!(std::mem::replace(&mut sent.awaited, false));
        }
    }

    /// Everything on its way arrives; then nothing is left anywhere, and calls may be made as at the start, however many
    /// credits RDMA_DONEs took.
    fn drain(mut self) {
        self.settle_all();
        for _ in 0..3 {
            let may_call = self.ends[CLIENT].connection.requester.check_room();
            assert_eq!(may_call, Ok(()), "no call may be made any more");
            self.call(CLIENT, &mut Script::new(&[]));
            self.settle_all();
        }
        let dones = self.ends[CLIENT].connection.requester.credits().dones();
        assert!(self.two_way || dones <= 1, "{dones} RDMA_DONEs are not answered for");
    }

    fn settle_all(&mut self) {
        while !self.ends.iter().all(End::is_quiet) {
            for end in [SERVER, CLIENT] {
                self.drain_some(end);
            }
        }
        assert!(self.exports.is_empty());
        for end in &self.ends {
            assert!(end.sent.is_empty() && end.kept.is_empty());
            let credits = end.connection.requester.credits();
            assert_eq!(credits.in_flight(), credits.dones());
            let responder = &end.connection.responder;
            assert_eq!((responder.in_progress(), responder.dones_owed()), (0, 0));
            assert_eq!(responder.grant() as usize, end.serves.max(1));
        }
    }

    fn drain_some(&mut self, end: usize) {
        self.receive(end);
        match self.ends[end].served.first() {
            Some(served) if served.whole => {
                let served = self.ends[end].served.swap_remove(0);
                self.reply_by_read(end, &served, ALL, true);
            }
            Some(_) => self.read_some(end, 0, 4),
            None => {}
        }
        if !self.ends[end].fetches.is_empty() {
            self.fetch_some(end, 0, 4);
        }
    }
}

/// Padding of the streams of a call and of its reply: version two has none.
fn alignment(plan: &Plan, version: TransportVersion) -> Alignment {
    match version {
        TransportVersion::One => plan.alignment,
        TransportVersion::Two => Alignment::NONE,
    }
}

fn check_arguments(served: &Served, call: &HeaderView<'_>, plan: &Plan) {
    let long = call.message_type() == MessageType::Nomsg;
    let stream = if long { &served.sinks[0][..] } else { call.payload() };
    let sinks = &served.sinks[usize::from(long)..];
    let mut chunks: Vec<(u32, u32)> = Vec::new();
    for read in call.reads().filter(|read| read.position != 0) {
        match chunks.last_mut().filter(|(position, _)| *position == read.position) {
            Some((_, length)) => *length += read.target.length,
            None => chunks.push((read.position, read.target.length)),
        }
    }
    let (header, at) = CallHeader::parse(stream).unwrap();
    assert_eq!(header, call_header(call.xid()));
    let xdr = behind_header(&served.message, call.header_bytes(), stream, at);
    let reader = StreamReader::over(xdr, at, Beside::Reads(&chunks));
    check_items(reader, &plan.arguments, |found| match found {
        Found::Inline(bytes) => bytes,
        Found::Chunk { index, length } | Found::Pulled { index, length } => &sinks[index][..length],
    });
}

impl Recorder {
    /// Returns true if a call has failed.
    pub(crate) fn failed(&mut self, failed: Option<FailedCall>) -> bool {
        failed.map(|failed| self.fail(failed)).is_some()
    }

    /// A call is whole with its last Read.
    pub(crate) fn pulled(&mut self, slot: SlotId, pulled: Pulled) -> Pulled {
        if pulled == Pulled::Complete {
            self.note(Arrival { event: events::Event::Call(slot), ..Arrival::default() });
        }
        pulled
    }
}
