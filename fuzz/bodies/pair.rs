//! A client's connection against a server's: what one sends the other takes, and what is delivered
//! is what was sent, item by item, whichever way each item went.

use std::collections::{HashMap, VecDeque};

use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::connection::{Connection, Side};
use spinrpc_proto::ids::{Instant, Procedure, Program, Version, Xid};
use spinrpc_proto::limits::{ITEMS_MAX, Limits};
use spinrpc_proto::output::{DeliveredReply, ReadRequest, ReplyStream, SlotId, WriteSource};
use spinrpc_proto::payload::{
    Beside, CallChunks, ChunkOffer, Encoded, Found, Item, Placement, StreamReader, StreamWriter,
};
use spinrpc_proto::profile::Profile;
use spinrpc_proto::pull::Pulled;
use spinrpc_proto::rdma::v1::{self, DONE_BYTES, HeaderView, MessageType};
use spinrpc_proto::rdma::{ReadSegment, ReplyRepr, Segment, set_credits};
use spinrpc_proto::reply_pull::PullEnd;
use spinrpc_proto::requester::{CallSlot, Requester, StartedCall};
use spinrpc_proto::responder::{ReplyShape, Responder, ServeSlot};
use spinrpc_proto::rpc::{CallHeader, OpaqueAuth, ReplyHeader};
use spinrpc_proto::xdr::{Padding, Reader};

use crate::recorder::{Event, Recorder};
use crate::script::Script;
use crate::wire;

const NEVER: Instant = Instant(u64::MAX);

/// Every item of a message.
const ALL: u8 = u8::MAX;

type Proto = Connection<Vec<CallSlot>, Vec<ServeSlot>>;

/// Three bytes say whose rules apply and how many slots each side has; the rest is what happens.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let profile = wire::profile(&mut script);
    let mut pair = Pair::new(profile, 1 + script.below(5), 1 + script.below(5));
    while !script.is_over() {
        pair.step(&mut script);
    }
    pair.drain();
}

/// A call that was sent, as the client knows it.
struct Sent {
    started: StartedCall,
    plan: Plan,
    awaited: bool,
    /// Its reply is being fetched.
    fetching: bool,
    /// Memory exposed for results and for the reply, by handle.
    results: Vec<u32>,
    reply: Option<u32>,
}

/// What a call carries, and what its reply will.
#[derive(Clone, Debug)]
struct Plan {
    arguments: Vec<Vec<u8>>,
    placement: Placement,
    long_call: bool,
    results: Vec<Vec<u8>>,
    /// Bytes offered for each result; zero offers nothing.
    offered: Vec<u32>,
    reply_bytes: u32,
    segment_bytes: u32,
    /// Padding of streams that stand in their message, the call's and the reply's.
    alignment: Alignment,
}

/// A call that the server has.
struct Served {
    slot: SlotId,
    message: Vec<u8>,
    outstanding: VecDeque<ReadRequest>,
    /// The bytes of its Read chunks.
    sinks: Vec<Vec<u8>>,
    whole: bool,
}

/// A reply that the client fetches.
struct Fetch {
    reply: DeliveredReply,
    message: Vec<u8>,
    sinks: Vec<Vec<u8>>,
    outstanding: VecDeque<ReadRequest>,
}

struct Pair {
    client: Proto,
    server: Proto,
    to_server: VecDeque<Vec<u8>>,
    to_client: VecDeque<Vec<u8>>,
    /// The client's exposed memory, by handle.
    memory: HashMap<u32, Vec<u8>>,
    sent: HashMap<u32, Sent>,
    served: Vec<Served>,
    fetches: Vec<Fetch>,
    /// The server's exposed memory, by handle, and for which call.
    exports: HashMap<u32, (SlotId, Vec<u8>)>,
    /// Calls whose reply waits for RDMA_DONE, and those whose reply waits for a credit.
    owed: Vec<SlotId>,
    kept: VecDeque<(SlotId, Vec<u8>)>,
    next_handle: u32,
    next_token: u64,
    now: u64,
}

impl Pair {
    fn new(profile: Profile, client_slots: usize, server_slots: usize) -> Self {
        let connection = |side, calls, serves| {
            let requester = Requester::new(vec![CallSlot::FREE; calls], 0xffff_fff0);
            let responder = Responder::new(vec![ServeSlot::FREE; serves]).with_exports(4);
            Connection::new(side, requester, responder, Limits::DEFAULT, profile)
        };
        Self {
            client: connection(Side::Client, client_slots, 0),
            server: connection(Side::Server, 0, server_slots),
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            memory: HashMap::new(),
            sent: HashMap::new(),
            served: Vec::new(),
            fetches: Vec::new(),
            exports: HashMap::new(),
            owed: Vec::new(),
            kept: VecDeque::new(),
            next_handle: 1,
            next_token: 0,
            now: 0,
        }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        match script.byte() % 9 {
            0..=2 => self.call(script),
            3 => self.server_receives(),
            4 => self.server_reads(script),
            5 => self.server_replies(script),
            6 => self.client_receives(),
            7 => self.client_gives_up(script),
            _ => self.client_reads(script),
        }
        let credits = self.client.requester.credits();
        let unanswered = self.sent.len() - self.fetches.len();
        assert_eq!((credits.in_flight() - credits.dones()) as usize, unanswered);
        let exported = self.owed.len() + self.kept.len();
        assert_eq!(self.server.responder.in_progress() as usize, self.served.len() + exported);
    }

    fn expose(&mut self, bytes: Vec<u8>, segment_bytes: u32) -> ChunkOffer {
        let handle = self.next_handle;
        self.next_handle += 1;
        let length = bytes.len() as u32;
        self.memory.insert(handle, bytes);
        ChunkOffer { handle, length, offset: u64::from(handle) << 32, segment_bytes }
    }

    fn call(&mut self, script: &mut Script<'_>) {
        let plan = Plan::new(script, self.client.profile());
        if self.client.requester.check_room().is_err() {
            return;
        }
        let xid = self.client.requester.next_xid();
        let (stream, encoded) = plan.encode_arguments(xid, Padding::new(Alignment::NONE, 0));
        let mut chunks = CallChunks::EMPTY;
        if plan.long_call {
            assert!(chunks.push_read(0, self.expose(stream.clone(), plan.segment_bytes)));
        }
        for reduced in encoded.reduced() {
            let bytes = plan.arguments[usize::from(reduced.index)].clone();
            let offer = self.expose(bytes, plan.segment_bytes);
            assert!(chunks.push_read(reduced.position, offer));
        }
        self.offer_results(plan, chunks);
    }

    fn offer_results(&mut self, plan: Plan, mut chunks: CallChunks) {
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
        let token = self.next_token;
        self.next_token += 1;
        let deadline = Instant(self.now + 100);
        let mut message = vec![0; chunks.header_bytes()];
        let started = self.client.requester.start_call(token, deadline, &chunks, &mut message);
        let (started, length) = started.unwrap();
        assert_eq!(length, message.len());
        if !plan.long_call {
            let encode = |padding| plan.encode_arguments(started.xid, padding);
            message = with_stream(message, plan.alignment, encode);
        }
        self.to_server.push_back(message);
        let sent = Sent { started, plan, awaited: true, fetching: false, results, reply };
        assert!(self.sent.insert(started.xid.0, sent).is_none());
    }

    /// The server takes every call of a client that keeps to its credits.
    fn server_receives(&mut self) {
        let Some(message) = self.to_server.pop_front() else { return };
        let mut out = Recorder::default();
        self.server.on_receive(&message, &mut out);
        let (slot, whole) = match out.take()[..] {
            [Event::Call(slot)] => (slot, true),
            [Event::Pull(slot)] => (slot, false),
            [Event::FreeExports(slot)] => return self.end_export(slot),
            ref other => panic!("{other:?}"),
        };
        let plan = self.server.responder.pull_plan(slot);
        let chunks = plan.map_or(&[][..], |plan| plan.chunks());
        let sinks = chunks.iter().map(|chunk| vec![0; chunk.length as usize]).collect();
        self.served.push(Served { slot, message, outstanding: VecDeque::new(), sinks, whole });
    }

    fn server_reads(&mut self, script: &mut Script<'_>) {
        let index = script.below(self.served.len());
        let room = u16::from(script.byte() % 8);
        if self.served.get(index).is_some_and(|served| !served.whole) {
            self.read_some(index, room);
        }
    }

    /// Asks for more Reads and completes the oldest one.
    fn read_some(&mut self, index: usize, room: u16) {
        let served = &mut self.served[index];
        let view = HeaderView::new_checked(&served.message, &Limits::DEFAULT).unwrap();
        let mut out = Recorder::default();
        self.server.responder.pull(served.slot, &view, room, &mut out);
        for event in out.take() {
            let Event::Read(read) = event else { panic!("{event:?}") };
            served.outstanding.push_back(read);
        }
        let Some(read) = served.outstanding.pop_front() else { return };
        let start = (read.from.offset - (u64::from(read.from.handle) << 32)) as usize;
        let from = &self.memory[&read.from.handle][start..][..read.from.length as usize];
        served.sinks[usize::from(read.chunk)][read.at as usize..][..from.len()]
            .copy_from_slice(from);
        match self.server.responder.on_read_done(served.slot, &mut out) {
            Pulled::More => assert_eq!(out.take(), []),
            Pulled::Complete => {
                assert_eq!(out.take(), [Event::Call(served.slot)]);
                served.whole = true;
            }
            Pulled::Stale => panic!("a Read of no call"),
        }
    }

    fn server_replies(&mut self, script: &mut Script<'_>) {
        let index = script.below(self.served.len());
        if self.served.get(index).is_some_and(|served| served.whole) {
            let served = self.served.swap_remove(index);
            let way = script.byte();
            match way % 4 {
                0 => self.reply(&served, false),
                1 => self.reply(&served, true),
                2 => self.reply_by_read(&served, way >> 2, false),
                _ => self.reply_by_read(&served, ALL, true),
            }
        }
    }

    /// The client has fetched a reply; another one may go.
    fn end_export(&mut self, slot: SlotId) {
        let owed = self.owed.iter().position(|owed| *owed == slot).unwrap();
        self.owed.swap_remove(owed);
        self.exports.retain(|_, (call, _)| *call != slot);
        while let Some((slot, mut message)) = self.kept.pop_front() {
            let Some(credits) = self.server.responder.send_kept(slot, NEVER) else {
                return self.kept.push_front((slot, message));
            };
            set_credits(&mut message, credits);
            self.to_client.push_back(message);
            self.owed.push(slot);
        }
    }

    /// As `reply`, but what has no Write chunk is fetched by the client, except for the items whose
    /// bits are set in `inline`; or all of the reply is.
    fn reply_by_read(&mut self, served: &Served, inline: u8, whole: bool) {
        if !self.server.responder.may_export() {
            return self.reply(served, false);
        }
        let call = HeaderView::new_checked(&served.message, &Limits::DEFAULT).unwrap();
        let plan = self.sent[&call.xid().0].plan.clone();
        self.check_arguments(served, &call, &plan);
        let encode = |padding| {
            plan.encode_results(call.xid(), padding, |index| match plan.offers(index) {
                false if inline >> index & 1 != 0 => Placement::Inline,
                _ => Placement::Chunk,
            })
        };
        let (stream, encoded) = encode(Padding::new(Alignment::NONE, 0));
        let (mut placed, mut reads) = (vec![0; plan.offered.len()], Vec::new());
        if whole {
            reads.push(ReadSegment { position: 0, target: self.export(served.slot, &stream) });
        }
        for reduced in encoded.reduced() {
            let index = usize::from(reduced.index);
            if plan.offers(index) {
                placed[index] = reduced.length;
            } else {
                let target = self.export(served.slot, &plan.results[index]);
                reads.push(ReadSegment { position: reduced.position, target });
            }
        }
        if reads.is_empty() {
            return self.reply(served, false);
        }
        let mut message = vec![0; ReplyRepr::bytes_of(&call, reads.len())];
        let shape = ReplyShape { placed: &placed, long_bytes: None };
        let mut out = Recorder::default();
        let responder = &mut self.server.responder;
        let reply = responder
            .reply_by_read(served.slot, &call, &shape, &reads, NEVER, &mut message, &mut out)
            .unwrap();
        assert_eq!(reply.header_bytes, message.len());
        self.write(&out.take(), &plan.results, &stream);
        if !whole {
            message = with_stream(message, plan.alignment, encode);
        }
        match reply.kept {
            true => self.kept.push_back((served.slot, message)),
            false => {
                self.to_client.push_back(message);
                self.owed.push(served.slot);
            }
        }
    }

    fn export(&mut self, slot: SlotId, bytes: &[u8]) -> Segment {
        let handle = self.next_handle;
        self.next_handle += 1;
        self.exports.insert(handle, (slot, bytes.to_vec()));
        Segment { handle, length: bytes.len() as u32, offset: u64::from(handle) << 32 }
    }

    /// The arguments are those which were sent; the results go where the call wants them.
    fn reply(&mut self, served: &Served, long: bool) {
        let call = HeaderView::new_checked(&served.message, &Limits::DEFAULT).unwrap();
        let plan = self.sent[&call.xid().0].plan.clone();
        self.check_arguments(served, &call, &plan);
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
        let mut message = vec![0; v1::reply_header_bytes(&call)];
        let shape = ReplyShape { placed: &placed, long_bytes };
        let mut out = Recorder::default();
        let responder = &mut self.server.responder;
        responder.reply(served.slot, &call, &shape, &mut message, &mut out).unwrap();
        self.write(&out.take(), &plan.results, &stream);
        if long_bytes.is_none() {
            message = with_stream(message, plan.alignment, encode);
        }
        self.to_client.push_back(message);
    }

    fn check_arguments(&self, served: &Served, call: &HeaderView<'_>, plan: &Plan) {
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
            Found::Chunk { index, length } | Found::Pulled { index, length } => {
                &sinks[index][..length]
            }
        });
    }

    /// RDMA Writes land in the client's memory.
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

    fn client_receives(&mut self) {
        let Some(message) = self.to_client.pop_front() else { return };
        let view = HeaderView::new_checked(&message, &Limits::DEFAULT).unwrap();
        let xid = view.xid().0;
        let mut out = Recorder::default();
        self.client.on_receive(&message, &mut out);
        match out.take()[..] {
            [Event::Reply(reply)] => {
                let sent = self.sent.remove(&xid).unwrap();
                assert!(sent.awaited && reply.slot == sent.started.slot);
                self.check_results(&sent, &reply, &message, &[]);
            }
            [Event::Released(slot)] => {
                let sent = self.sent.remove(&xid).unwrap();
                assert!(!sent.awaited && slot == sent.started.slot);
            }
            [Event::PullReply(reply)] => self.begin_fetch(reply, message, xid),
            ref other => panic!("{other:?}"),
        }
    }

    fn begin_fetch(&mut self, reply: DeliveredReply, message: Vec<u8>, xid: u32) {
        let sent = self.sent.get_mut(&xid).unwrap();
        assert!(reply.slot == sent.started.slot && !sent.fetching);
        sent.fetching = true;
        let plan = self.client.requester.pull_plan(reply.slot);
        assert_eq!(plan.is_some(), sent.awaited);
        let chunks = plan.map_or(&[][..], |plan| plan.chunks());
        let sinks = chunks.iter().map(|chunk| vec![0; chunk.length as usize]).collect();
        self.fetches.push(Fetch { reply, message, sinks, outstanding: VecDeque::new() });
    }

    fn client_reads(&mut self, script: &mut Script<'_>) {
        let index = script.below(self.fetches.len());
        if index < self.fetches.len() {
            self.fetch_some(index, u16::from(script.byte() % 8));
        }
    }

    /// Asks for more Reads of a reply and completes the oldest one; RDMA_DONE follows the last.
    fn fetch_some(&mut self, index: usize, room: u16) {
        let Fetch { reply, message, sinks, outstanding } = &mut self.fetches[index];
        let view = HeaderView::new_checked(message, &Limits::DEFAULT).unwrap();
        let (mut out, slot) = (Recorder::default(), reply.slot);
        self.client.requester.pull(slot, &view, room, &mut out);
        for event in out.take() {
            let Event::Read(read) = event else { panic!("{event:?}") };
            outstanding.push_back(read);
        }
        if let Some(read) = outstanding.pop_front() {
            let (_, exported) = &self.exports[&read.from.handle];
            let sink = &mut sinks[usize::from(read.chunk)][read.at as usize..];
            sink[..exported.len()].copy_from_slice(exported);
            assert_ne!(self.client.requester.on_read_done(slot), Pulled::Stale);
        }
        let mut done = [0; DONE_BYTES];
        if let Some(end) = self.client.requester.end_pull(slot, &mut done) {
            self.to_server.push_back(done.to_vec());
            let fetch = self.fetches.swap_remove(index);
            self.end_fetch(&fetch, end);
        }
    }

    fn end_fetch(&mut self, fetch: &Fetch, end: PullEnd) {
        let xid = HeaderView::new_checked(&fetch.message, &Limits::DEFAULT).unwrap().xid().0;
        let sent = self.sent.remove(&xid).unwrap();
        assert_eq!(sent.awaited, matches!(end, PullEnd::Deliver { .. }));
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
        let view = HeaderView::new_checked(message, &Limits::DEFAULT).unwrap();
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
    fn client_gives_up(&mut self, script: &mut Script<'_>) {
        let mut out = Recorder::default();
        match script.byte() {
            0 => {
                self.now += 50;
                self.client.requester.on_time(Instant(self.now), &mut out);
            }
            nth => {
                let mut slots: Vec<_> = self.sent.values().map(|sent| sent.started.slot).collect();
                slots.sort_by_key(|slot| slot.index);
                let Some(slot) = slots.get(usize::from(nth) % slots.len().max(1)) else { return };
                self.client.requester.cancel(*slot, &mut out);
            }
        }
        for event in out.take() {
            let Event::Failed { slot, fenced: true, .. } = event else { panic!("{event:?}") };
            let sent = self.sent.values_mut().find(|sent| sent.started.slot == slot).unwrap();
            assert!(std::mem::replace(&mut sent.awaited, false));
        }
    }

    fn is_quiet(&self) -> bool {
        let under_way = self.to_server.is_empty() && self.to_client.is_empty();
        under_way && self.served.is_empty() && self.fetches.is_empty()
    }

    /// Everything on its way arrives; then nothing is left anywhere.
    fn drain(mut self) {
        while !self.is_quiet() {
            self.server_receives();
            match self.served.first() {
                Some(served) if served.whole => {
                    let served = self.served.swap_remove(0);
                    self.reply_by_read(&served, ALL, true);
                }
                Some(_) => self.read_some(0, 4),
                None => {}
            }
            self.client_receives();
            if !self.fetches.is_empty() {
                self.fetch_some(0, 4);
            }
        }
        assert!(self.sent.is_empty() && self.kept.is_empty() && self.exports.is_empty());
        let credits = self.client.requester.credits();
        assert_eq!(credits.in_flight(), credits.dones());
        assert_eq!(self.server.responder.in_progress(), 0);
    }
}

impl Plan {
    /// The call has room for that result.
    fn offers(&self, result: usize) -> bool {
        self.offered.get(result).is_some_and(|bytes| *bytes > 0)
    }

    fn encode_arguments(&self, xid: Xid, padding: Padding) -> (Vec<u8>, Encoded) {
        encode(
            &self.arguments,
            padding,
            |_| self.placement,
            |xdr| {
                call_header(xid).write(xdr.xdr());
            },
        )
    }

    fn encode_results(
        &self,
        xid: Xid,
        padding: Padding,
        placement: impl Fn(usize) -> Placement,
    ) -> (Vec<u8>, Encoded) {
        encode(&self.results, padding, placement, |xdr| {
            ReplyHeader::success(xid).write(xdr.xdr());
        })
    }

    fn new(script: &mut Script<'_>, profile: Profile) -> Self {
        let shape = script.byte();
        let segment_bytes = if shape & 1 != 0 { 300 } else { 0 };
        let items = |count: u8, script: &mut Script<'_>| -> Vec<Vec<u8>> {
            (0..count).map(|nth| pattern(script.byte(), script.byte(), nth)).collect()
        };
        let arguments = items(shape >> 1 & 3, script);
        let results = items(shape >> 3 & 3, script);
        let offers = script.byte();
        let offered = results.iter().enumerate().map(|(index, result)| {
            let wanted = offers >> index & 1 != 0;
            if wanted { result.len() as u32 + u32::from(offers >> 4) } else { 0 }
        });
        let padded = offers & 8 != 0 && profile.has_padded_messages();
        let align_bytes = 8 << (offers >> 4 & 7);
        Self {
            alignment: if padded { Alignment::new(align_bytes, 100) } else { Alignment::NONE },
            offered: offered.collect(),
            arguments,
            placement: if shape & 32 != 0 { Placement::Chunk } else { Placement::Inline },
            long_call: shape & 64 != 0,
            results,
            reply_bytes: if shape & 128 != 0 { u32::from(script.byte()) * 16 } else { 0 },
            segment_bytes,
        }
    }
}

/// Bytes that are not those of any other item.
fn pattern(length: u8, seed: u8, nth: u8) -> Vec<u8> {
    let length = usize::from(length) * 3;
    (0..length).map(|at| (at as u8).wrapping_mul(31) ^ seed ^ nth << 6).collect()
}

fn call_header(xid: Xid) -> CallHeader<'static> {
    CallHeader {
        xid,
        program: Program(100_003),
        version: Version(3),
        procedure: Procedure(7),
        credential: OpaqueAuth::NONE,
        verifier: OpaqueAuth::NONE,
    }
}

/// A header, then before each item its number.
fn encode(
    items: &[Vec<u8>],
    mut padding: Padding,
    placement: impl Fn(usize) -> Placement,
    header: impl Fn(&mut StreamWriter<'_>),
) -> (Vec<u8>, Encoded) {
    let mut stream = vec![0; 8192];
    let items: Vec<_> = items
        .iter()
        .enumerate()
        .map(|(index, bytes)| Item { bytes, placement: placement(index) })
        .collect();
    assert!(items.len() <= ITEMS_MAX);
    let mut writer = StreamWriter::aligned(&mut stream, &items, &mut padding);
    header(&mut writer);
    for index in 0..items.len() {
        writer.u32(index as u32);
        writer.bulk();
    }
    let encoded = writer.finish();
    assert!(encoded.fits && !encoded.items_missing);
    stream.truncate(encoded.stream_bytes);
    (stream, encoded)
}

/// A message with its stream behind its header, padded for where in the Send it stands.
fn with_stream(
    header: Vec<u8>,
    alignment: Alignment,
    encode: impl Fn(Padding) -> (Vec<u8>, Encoded),
) -> Vec<u8> {
    let mut message = wire::padded(header, alignment);
    let (stream, _) = encode(Padding::new(alignment, message.len()));
    message.extend(stream);
    message
}

/// What follows the RPC header of `at` bytes; a stream that is not in its message has no padding.
fn behind_header<'a>(
    message: &[u8],
    header_bytes: usize,
    stream: &'a [u8],
    at: usize,
) -> Reader<'a> {
    Reader::aligned(&stream[at..], v1::alignment_of(message), header_bytes + at)
}

fn check_items<'a>(
    mut reader: StreamReader<'a>,
    items: &[Vec<u8>],
    bytes_of: impl Fn(Found<'a>) -> &'a [u8],
) {
    for (index, item) in items.iter().enumerate() {
        assert_eq!(reader.xdr().u32(), Ok(index as u32));
        assert_eq!(bytes_of(reader.item(item.len()).unwrap()), item);
    }
    reader.finish().unwrap();
}
