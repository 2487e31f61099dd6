//! The responder behind a server's connection: whatever arrives, each call is delivered at most
//! once, its chunks are read exactly once and written within their bounds, no slot is lost, no grant
//! is zero, nothing is answered that must not be, and what a reply exports ends exactly once.

use std::collections::VecDeque;

use spinrpc_proto::connection::{Connection, Side};
use spinrpc_proto::dialect::Profile;
use spinrpc_proto::events::{SlotId, WriteRequest, WriteSource};
use spinrpc_proto::ids::{Instant, Xid};
use spinrpc_proto::limits::Limits;
use spinrpc_proto::pull::Pulled;
use spinrpc_proto::rdma::v1::{self, HeaderView, MessageType, VERSION};
use spinrpc_proto::rdma::{RdmaError, ReadSegment, ReplyRepr, Segment};
use spinrpc_proto::requester::{CallSlot, Requester};
use spinrpc_proto::responder::{ReplyRefused, ReplyShape, Responder, ServeSlot};

use crate::recorder::{Event, Recorder};
use crate::script::Script;
use crate::wire::{self, OwnedLists};

/// Three bytes say whose rules apply, how many slots there are and how many exports there may be; the
/// rest is what happens.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let profile = wire::profile(&mut script);
    let mut server = Server::new(profile, 1 + script.below(6), script.below(5));
    while !script.is_over() && !server.closed {
        server.step(&mut script);
        server.check();
    }
    server.finish();
}

/// A call whose slot is taken.
struct Taken {
    slot: SlotId,
    message: Vec<u8>,
    /// Bytes asked for of each of its Read chunks, until it is delivered.
    pulling: Option<Vec<u32>>,
    outstanding: u16,
}

impl Taken {
    fn view(&self) -> HeaderView<'_> {
        HeaderView::new_checked(&self.message, &Limits::DEFAULT).unwrap()
    }
}

struct Server {
    connection: Connection<Vec<CallSlot>, Vec<ServeSlot>>,
    slots: usize,
    taken: Vec<Taken>,
    exports_max: usize,
    /// Replies that wait for RDMA_DONE.
    owed: Vec<(SlotId, Xid)>,
    /// Replies that wait for a credit, oldest first.
    kept: VecDeque<(SlotId, Xid)>,
    now: u64,
    next_xid: u32,
    closed: bool,
}

impl Server {
    fn new(profile: Profile, slots: usize, exports_max: usize) -> Self {
        let requester = Requester::new(Vec::new(), 0);
        let responder =
            Responder::new(vec![ServeSlot::FREE; slots]).with_exports(exports_max as u32);
        Self {
            connection: Connection::new(
                Side::Server,
                requester,
                responder,
                Limits::DEFAULT,
                profile,
            ),
            slots,
            taken: Vec::new(),
            exports_max,
            owed: Vec::new(),
            kept: VecDeque::new(),
            now: 0,
            next_xid: 0,
            closed: false,
        }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        match script.byte() % 13 {
            0..=2 => self.good_call(script),
            3 => self.spoilt_call(script),
            4 => self.any_message(script),
            5 => self.pull(script),
            6 => self.read_done(script),
            7 => self.reply(script),
            8 => self.reply_too_long(script),
            9 => self.abandon(script),
            10 => self.reply_by_read(script),
            11 => self.done(script),
            _ => self.wait(script),
        }
    }

    fn check(&self) {
        let responder = &self.connection.responder;
        let exported = self.owed.len() + self.kept.len();
        assert_eq!(responder.in_progress() as usize, self.taken.len() + exported);
        assert_eq!(responder.dones_owed() as usize, self.owed.len());
        // The drafts have further ones wait.
        let waits = self.connection.profile().always_returns_long_replies();
        assert!(if waits { self.owed.len() } else { exported } <= self.exports_max);
        assert!((1..=self.slots).contains(&(responder.grant() as usize)));
        assert!(exported > 0 || responder.grant() as usize == self.slots, "a credit leaks");
        // RFC 5666 section 3.3: a client with nothing outstanding has a credit; RDMA_DONEs take one each (section 3.8).
        let (grant, owed) = (responder.grant(), responder.dones_owed());
        assert!(grant > owed || owed as usize == self.slots, "{grant} granted, {owed} owed");
        for (index, taken) in self.taken.iter().enumerate() {
            let others = &self.taken[..index];
            assert!(others.iter().all(|other| other.slot.index != taken.slot.index));
        }
    }

    fn call(&mut self, script: &mut Script<'_>) -> Vec<u8> {
        self.next_xid += 1;
        call_message(Xid(self.next_xid), script)
    }

    fn good_call(&mut self, script: &mut Script<'_>) {
        let message = self.call(script);
        self.receive(&message);
    }

    /// A call with some bytes replaced and its end cut off.
    fn spoilt_call(&mut self, script: &mut Script<'_>) {
        let mut message = self.call(script);
        for _ in 0..script.byte() % 4 {
            let at = script.below(message.len());
            message[at] = script.byte();
        }
        message.truncate(message.len() - script.below(message.len()));
        self.receive(&message);
    }

    fn any_message(&mut self, script: &mut Script<'_>) {
        self.next_xid += 1;
        let xid = self.next_xid;
        let start = match script.byte() % 5 {
            0 => vec![],
            1 => wire::words(&[xid, 1, 8, u32::from(script.byte())]),
            2 => wire::words(&[xid, u32::from(script.byte()), 8, u32::from(script.byte())]),
            3 => wire::error(Xid(xid), u32::from(script.byte()), 8, RdmaError::Chunk),
            _ => [wire::words(&[xid, 1, 8, 0, 0, 0, 0]), wire::rpc_reply(Xid(xid))].concat(),
        };
        let length = script.below(128);
        self.receive(&[&start, script.bytes(length)].concat());
    }

    fn receive(&mut self, message: &[u8]) {
        let full = self.connection.responder.in_progress() as usize == self.slots;
        let events = Recorder::of_message(|out| self.connection.on_receive(message, out));
        for event in events {
            match event {
                Event::Call(slot) => self.hold(slot, message, None),
                Event::Pull(slot) => {
                    let chunks = self.connection.responder.pull_plan(slot).unwrap().chunks().len();
                    self.hold(slot, message, Some(vec![0; chunks]));
                }
                Event::Refused(xid, _) => assert!(full && wire::word(message, 0) == Some(xid.0)),
                Event::Error(xid, version, error) => {
                    let answers_short = self.connection.profile().answers_short_requests();
                    assert!(answers_short || message.len() >= v1::MSG_HEADER_BYTES);
                    check_error(message, xid, version, error);
                }
                Event::FreeExports(slot) => self.end_export(slot),
                Event::Dropped(_) => {}
                Event::Closed(_) => self.closed = true,
                other => panic!("a server does not do this: {other:?}"),
            }
        }
    }

    fn hold(&mut self, slot: SlotId, message: &[u8], pulling: Option<Vec<u32>>) {
        let taken = Taken { slot, message: message.to_vec(), pulling, outstanding: 0 };
        assert_eq!(wire::word(message, 1), Some(VERSION));
        if taken.view().message_type() != MessageType::Nomsg {
            let payload = taken.view().payload();
            let are_equal = wire::word(payload, 0) == wire::word(message, 0);
            assert!(are_equal || self.connection.profile().prefers_header_xid(), "XIDs differ");
            assert_eq!(wire::word(payload, 1), Some(0), "not a call");
        }
        self.taken.push(taken);
    }

    fn choose(&self, script: &mut Script<'_>) -> Option<usize> {
        let index = script.below(self.taken.len());
        (index < self.taken.len()).then_some(index)
    }

    /// A call that is taken no more: one whose chunks are all there, or that has none.
    fn take_whole(&mut self, script: &mut Script<'_>) -> Option<Taken> {
        let index = self.choose(script)?;
        self.taken[index].pulling.is_none().then(|| self.taken.swap_remove(index))
    }

    fn pull(&mut self, script: &mut Script<'_>) {
        let Some(index) = self.choose(script) else { return };
        let room = u16::from(script.byte() % 20);
        self.pull_some(index, room);
    }

    /// Reads of segments of the call, each within its chunk.
    fn pull_some(&mut self, index: usize, room: u16) {
        let mut out = Recorder::default();
        let taken = &mut self.taken[index];
        let view = HeaderView::new_checked(&taken.message, &Limits::DEFAULT).unwrap();
        let lengths = lengths(&self.connection.responder, taken.slot);
        let asked = self.connection.responder.pull(taken.slot, &view, room, |read| out.read(read));
        let events = out.take();
        assert!(asked <= room && usize::from(asked) == events.len());
        assert!(asked == 0 || taken.pulling.is_some());
        taken.outstanding += asked;
        for event in events {
            let Event::Read(read) = event else { panic!("{event:?}") };
            let progress = &mut taken.pulling.as_mut().unwrap()[usize::from(read.chunk)];
            assert_eq!(read.slot, taken.slot);
            assert!(read.at + read.from.length <= lengths[usize::from(read.chunk)]);
            assert!(view.reads().any(|offered| offered.target == read.from));
            *progress += read.from.length;
        }
    }

    fn read_done(&mut self, script: &mut Script<'_>) {
        let Some(index) = self.choose(script) else { return };
        if self.taken[index].pulling.is_none() {
            return self.expect_stale(index);
        }
        if self.taken[index].outstanding > 0 {
            self.one_read_done(index);
        }
    }

    fn one_read_done(&mut self, index: usize) {
        let mut out = Recorder::default();
        let taken = &mut self.taken[index];
        let lengths = lengths(&self.connection.responder, taken.slot);
        let pulled = out.pulled(taken.slot, self.connection.responder.on_read_done(taken.slot));
        taken.outstanding -= 1;
        match (pulled, &out.take()[..]) {
            (Pulled::More, []) => {}
            (Pulled::Complete, [Event::Call(slot)]) => {
                assert_eq!((*slot, taken.outstanding), (taken.slot, 0));
                assert_eq!(taken.pulling.take(), Some(lengths), "delivered before it was whole");
            }
            other => panic!("{other:?}"),
        }
    }

    /// Neither an answered call nor one that is delivered has Reads to complete.
    fn expect_stale(&mut self, index: usize) {
        let mut out = Recorder::default();
        let slot = self.taken[index].slot;
        let stale = SlotId { generation: slot.generation.wrapping_sub(1), ..slot };
        for slot in [slot, stale] {
            let pulled = out.pulled(slot, self.connection.responder.on_read_done(slot));
            assert_eq!(pulled, Pulled::Stale);
        }
        assert!(!self.connection.responder.abandon(stale));
        let mut header = [0; v1::MSG_HEADER_BYTES];
        let refused = self.connection.responder.reply_chunkless(stale, Xid(0), &mut header);
        assert_eq!(refused, Err(ReplyRefused::Stale));
        assert_eq!((out.take(), header), (vec![], [0; v1::MSG_HEADER_BYTES]));
    }

    fn reply(&mut self, script: &mut Script<'_>) {
        if let Some(taken) = self.take_whole(script) {
            self.answer(&taken, script);
        }
    }

    fn answer(&mut self, taken: &Taken, script: &mut Script<'_>) {
        let call = taken.view();
        let offered = call.writes().map(|chunk| chunk.total_length() as u32);
        let mut placed: Vec<u32> = offered.map(|bytes| part_of(bytes, script)).collect();
        placed.truncate(placed.len() - script.below(placed.len() + 1));
        let reply_chunk = call.reply_chunk().filter(|_| script.flag());
        let long_bytes = reply_chunk.map(|chunk| part_of(chunk.total_length() as u32, script));
        let shape = ReplyShape { placed: &placed, long_bytes };
        let mut out = Recorder::default();
        let mut header = vec![0xee; ReplyRepr::bytes_of(&call, 0)];
        let responder = &mut self.connection.responder;
        let length = responder
            .reply(taken.slot, &call, &shape, &mut header, |write| out.write(write))
            .unwrap();
        assert_eq!(length, header.len());
        check_reply_header(&header, &call, &shape);
        check_writes(&out.take(), &call, &shape);
    }

    /// One byte more than a chunk has: ERR_CHUNK instead of the reply, and nothing is written.
    fn reply_too_long(&mut self, script: &mut Script<'_>) {
        let Some(taken) = self.take_whole(script) else { return };
        let call = taken.view();
        let in_reply = call.reply_chunk().map_or(0, |chunk| chunk.total_length() as u32);
        let first = call.writes().next().map_or(0, |chunk| chunk.total_length() as u32);
        let shape = match script.flag() {
            true => ReplyShape { placed: &[], long_bytes: Some(in_reply + 1) },
            false => ReplyShape { placed: &[first + 1], long_bytes: None },
        };
        let (mut out, mut header) = (Recorder::default(), vec![0; ReplyRepr::bytes_of(&call, 0)]);
        let responder = &mut self.connection.responder;
        let refused =
            responder.reply(taken.slot, &call, &shape, &mut header, |write| out.write(write));
        assert_eq!(refused, Err(ReplyRefused::ChunkTooSmall));
        assert_eq!(out.take(), []);
    }

    /// The requester has to fetch a reply, which is sent now or when there is a credit for it.
    fn reply_by_read(&mut self, script: &mut Script<'_>) {
        let Some(taken) = self.take_whole(script) else { return };
        let call = taken.view();
        let may_export = self.connection.responder.may_export();
        assert!(!may_export || self.connection.profile().has_reads_in_replies());
        let position = if script.flag() { 24 } else { 0 };
        let reads = [ReadSegment { position, target: segment(script) }];
        let deadline = Instant(self.now + u64::from(script.byte()));
        let shape = ReplyShape { placed: &[], long_bytes: None };
        let (mut out, mut header) = (Recorder::default(), vec![0; ReplyRepr::bytes_of(&call, 1)]);
        let responder = &mut self.connection.responder;
        let reply = responder.reply_by_read(
            taken.slot,
            &call,
            &shape,
            &reads,
            deadline,
            &mut header,
            |write| out.write(write),
        );
        if !may_export {
            assert_eq!(reply, Err(ReplyRefused::ChunkTooSmall));
            return assert_eq!(out.take(), []);
        }
        let reply = reply.unwrap();
        let sent = HeaderView::new_checked(&header, &LOOSE).unwrap();
        assert_eq!((reply.header_bytes, sent.header_bytes()), (header.len(), header.len()));
        assert!(sent.credits() > 0 && sent.reads().eq(reads));
        match reply.kept {
            true => self.kept.push_back((taken.slot, call.xid())),
            false => self.owed.push((taken.slot, call.xid())),
        }
    }

    fn done(&mut self, script: &mut Script<'_>) {
        let index = script.below(self.owed.len());
        let Some((_, xid)) = self.owed.get(index) else { return };
        let owed = self.owed.len();
        self.receive(&wire::words(&[xid.0, 1, 8, MessageType::Done.to_wire()]));
        assert_eq!(self.owed.len() + 1, owed);
        self.send_kept();
    }

    fn wait(&mut self, script: &mut Script<'_>) {
        self.now += u64::from(script.byte());
        while let Some(slot) = self.connection.responder.overdue_export(Instant(self.now)) {
            self.end_export(slot);
        }
        assert!(self.connection.responder.next_export_deadline() > Instant(self.now));
        self.send_kept();
    }

    fn end_export(&mut self, slot: SlotId) {
        let index = self.owed.iter().position(|(owed, _)| *owed == slot);
        self.owed.swap_remove(index.unwrap_or_else(|| panic!("{slot:?} exports nothing")));
    }

    /// Lets go what may go now.
    fn send_kept(&mut self) {
        while let Some((slot, xid)) = self.kept.front().copied() {
            let deadline = Instant(self.now + 1);
            let Some(credits) = self.connection.responder.send_kept(slot, deadline) else { break };
            assert!(credits > 0);
            self.kept.pop_front();
            self.owed.push((slot, xid));
        }
        assert!(self.kept.is_empty() || !self.owed.is_empty(), "a reply is kept back for ever");
    }

    fn abandon(&mut self, script: &mut Script<'_>) {
        let Some(index) = self.choose(script) else { return };
        let taken = self.taken.swap_remove(index);
        assert!(self.connection.responder.abandon(taken.slot));
        assert!(!self.connection.responder.abandon(taken.slot));
    }

    /// Every call goes on to its reply, and then all slots are there to be taken.
    fn finish(mut self) {
        for index in 0..self.taken.len() {
            while self.taken[index].pulling.is_some() {
                self.pull_some(index, 3);
                while self.taken[index].outstanding > 0 && self.taken[index].pulling.is_some() {
                    self.one_read_done(index);
                }
            }
        }
        for taken in std::mem::take(&mut self.taken) {
            self.answer(&taken, &mut Script::new(&[]));
        }
        if self.closed {
            return;
        }
        while let Some((_, xid)) = self.owed.first().copied() {
            self.receive(&wire::words(&[xid.0, 1, 8, MessageType::Done.to_wire()]));
            self.send_kept();
        }
        self.check();
        for xid in 0..self.slots as u32 {
            self.receive(&call_message(Xid(xid), &mut Script::new(&[])));
        }
        assert_eq!(self.taken.len(), self.slots, "a slot leaks");
        self.receive(&call_message(Xid(9999), &mut Script::new(&[])));
        self.check();
    }
}

/// For replies, whose lengths may count the roundup.
const LOOSE: Limits = Limits { payload_bytes_max: u32::MAX, ..Limits::DEFAULT };

fn lengths(responder: &Responder<Vec<ServeSlot>>, slot: SlotId) -> Vec<u32> {
    let chunks = responder.pull_plan(slot).map_or(&[][..], |plan| plan.chunks());
    chunks.iter().map(|chunk| chunk.length).collect()
}

fn part_of(length: u32, script: &mut Script<'_>) -> u32 {
    (u64::from(length) * u64::from(script.byte())).div_ceil(255) as u32
}

/// A call with any lists.
fn call_message(xid: Xid, script: &mut Script<'_>) -> Vec<u8> {
    let shape = script.byte();
    let kind = match shape & 3 {
        0 | 1 => MessageType::Msg,
        2 => MessageType::Nomsg,
        _ => MessageType::Msgp,
    };
    let mut lists = OwnedLists::default();
    for _ in 0..shape >> 2 & 3 {
        let position = u32::from(script.byte()) * 4;
        lists.reads.push(ReadSegment { position, target: segment(script) });
    }
    for _ in 0..shape >> 4 & 3 {
        let count = script.below(4);
        lists.writes.push((0..count).map(|_| segment(script)).collect());
    }
    if shape >> 6 & 1 != 0 {
        let count = script.below(4);
        lists.reply = Some((0..count).map(|_| segment(script)).collect());
    }
    let mut message = lists.header(wire::ONE, kind, xid, 8, Some((64, 128)));
    if kind != MessageType::Nomsg {
        message.extend(wire::rpc_call(xid));
        message.resize(message.len() + script.below(64), 0);
    }
    message
}

fn segment(script: &mut Script<'_>) -> Segment {
    let length = u32::from(script.byte()) << (script.byte() % 12);
    Segment { handle: u32::from(script.byte()), length, offset: u64::from(length) << 32 }
}

/// Errors are never answered, and an answer names the call it is for (RFC 8166 section 4.5).
fn check_error(message: &[u8], xid: Xid, version: u32, error: RdmaError) {
    let word = |index| wire::word(message, index);
    assert_ne!(word(3), Some(MessageType::Error.to_wire()), "an error is answered");
    assert_eq!((Some(xid.0), version), (word(0), word(1).unwrap_or(VERSION)));
    match error {
        RdmaError::Version { low, high } => {
            assert!(version != VERSION && (low, high) == (VERSION, VERSION));
        }
        RdmaError::Chunk => {
            assert!(version == VERSION && word(3) != Some(MessageType::Done.to_wire()));
        }
        other => panic!("not an answer of version one: {other:?}"),
    }
}

fn check_reply_header(header: &[u8], call: &HeaderView<'_>, shape: &ReplyShape<'_>) {
    let reply = HeaderView::new_checked(header, &LOOSE).unwrap();
    assert!(reply.credits() > 0 && reply.xid() == call.xid() && reply.reads().is_empty());
    let long = shape.long_bytes.is_some();
    assert_eq!(reply.message_type() == MessageType::Nomsg, long);
    assert_eq!(reply.writes().len(), call.writes().len());
    let placed = shape.placed.iter().copied().chain(std::iter::repeat(0));
    for (chunk, placed) in reply.writes().zip(placed) {
        let counted = [u64::from(placed), u64::from(placed).next_multiple_of(4)];
        assert!(counted.contains(&chunk.total_length()));
    }
    assert_eq!(reply.reply_chunk().is_some(), call.reply_chunk().is_some());
    let in_reply = reply.reply_chunk().map_or(0, |chunk| chunk.total_length());
    assert_eq!(in_reply, u64::from(shape.long_bytes.unwrap_or(0)));
}

/// Every source is written from its start to its end, within the segments of its own chunk.
fn check_writes(events: &[Event], call: &HeaderView<'_>, shape: &ReplyShape<'_>) {
    let mut written = vec![0; shape.placed.len() + 1];
    for event in events {
        let Event::Write(WriteRequest { source, at, to }) = *event else { panic!("{event:?}") };
        let (index, chunk) = match source {
            WriteSource::Item(item) => (usize::from(item), call.writes().nth(usize::from(item))),
            WriteSource::Stream => (shape.placed.len(), call.reply_chunk()),
        };
        let within = |segment: Segment| {
            (segment.handle, segment.offset) == (to.handle, to.offset)
                && to.length <= segment.length
        };
        assert!(to.length > 0 && chunk.unwrap().segments().any(within), "{to:?}");
        assert_eq!(at, written[index]);
        written[index] += to.length;
    }
    let long_bytes = shape.long_bytes.unwrap_or(0);
    assert!(written.iter().eq(shape.placed.iter().chain([&long_bytes])), "{written:?}");
}
