//! The requester behind a client's connection: whatever arrives and whenever, each call ends exactly
//! once, no more are in flight than granted, no slot is lost, nothing but what was offered is taken
//! as placed, every reply that has to be fetched gets one RDMA_DONE, and a call that outlives its
//! connection keeps its XID.

use std::collections::HashSet;

use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::chunking::{CallChunks, ChunkOffer};
use spinrpc_proto::connection::{Connection, Side};
use spinrpc_proto::dialect::Profile;
use spinrpc_proto::events::{CallFailure, DeliveredReply, ReplyStream, SlotId};
use spinrpc_proto::ids::{Instant, Xid};
use spinrpc_proto::limits::Limits;
use spinrpc_proto::pull::Pulled;
use spinrpc_proto::rdma::v1::{DONE_BYTES, HeaderView, MessageType};
use spinrpc_proto::rdma::{RdmaError, ReadSegment, Segment};
use spinrpc_proto::reply_pull::PullEnd;
use spinrpc_proto::requester::{CallRefused, CallSlot, Requester, StartedCall};
use spinrpc_proto::responder::{Responder, ServeSlot};

use crate::recorder::{Event, Recorder};
use crate::script::Script;
use crate::wire::{self, OwnedLists};

/// Three bytes say whose rules apply, how many slots there are and where XIDs start; the rest is
/// what happens.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let profile = wire::profile(&mut script);
    let mut client = Client::new(profile, 1 + script.below(6), script.byte());
    while !script.is_over() && !client.closed {
        client.step(&mut script);
        client.check();
    }
    client.go_down();
}

/// A call whose slot is taken.
struct Live {
    started: StartedCall,
    token: u64,
    deadline: Instant,
    /// The application has not heard of its end.
    awaited: bool,
    chunks: CallChunks,
    /// The header as it was sent.
    header: Vec<u8>,
    /// Its reply, which has to be fetched.
    fetched: Option<Vec<u8>>,
    /// RDMA Reads on their way.
    outstanding: u16,
    /// Its connection is gone, and it was not sent again.
    held: bool,
}

impl Live {
    /// A reply to it, or an error, would be taken.
    fn is_unanswered(&self) -> bool {
        self.fetched.is_none() && !self.held
    }
}

struct Client {
    connection: Connection<Vec<CallSlot>, Vec<ServeSlot>>,
    slots: usize,
    live: Vec<Live>,
    /// XIDs of all calls, over any number of connections.
    xids: HashSet<Xid>,
    /// Number of times that each call ended, by token.
    ends: Vec<u32>,
    now: u64,
    closed: bool,
}

impl Client {
    fn new(profile: Profile, slots: usize, first_xid: u8) -> Self {
        let requester = Requester::new(vec![CallSlot::FREE; slots], u32::from(first_xid) << 24);
        Self {
            connection: connection(requester, profile),
            slots,
            live: Vec::new(),
            xids: HashSet::new(),
            ends: Vec::new(),
            now: 0,
            closed: false,
        }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        match script.byte() % 14 {
            0..=2 => self.call(script),
            3 | 4 => self.good_reply(script),
            5 => self.spoilt_reply(script),
            6 => self.error(script),
            7 => self.any_message(script),
            8 => self.cancel(script),
            9 => self.wait(script),
            10 => self.fetch(script),
            11 => self.end_fetch(script),
            12 => self.reconnect(script),
            _ => self.resend(script),
        }
    }

    /// Checks that the visible state of the requester agrees with the model.
    fn check(&self) {
        let requester = &self.connection.requester;
        let credits = requester.credits();
        let count = |is: fn(&Live) -> bool| self.live.iter().filter(|live| is(live)).count();
        let (unanswered, held) = (count(Live::is_unanswered), count(|live| live.held));
        let fetching = self.live.len() - unanswered - held;
        assert_eq!((credits.in_flight() - credits.dones()) as usize, unanswered);
        assert!(credits.dones() as usize >= fetching);
        assert!((1..=self.slots as u32).contains(&credits.granted()));
        assert_eq!(credits.requested() as usize, self.slots);
        assert_eq!(requester.held().count(), held);
        let only_dones_sent = self.live.len() == held;
        let has_credit = credits.in_flight() < credits.granted() || only_dones_sent;
        let has_room = has_credit && self.live.len() < self.slots;
        assert_eq!(requester.check_room().is_ok(), has_room, "a slot leaks");
        let awaited = self.live.iter().filter(|live| live.awaited);
        let earliest = awaited.map(|live| live.deadline).min();
        assert!(earliest.is_none_or(|earliest| requester.next_deadline() <= earliest));
        for (index, live) in self.live.iter().enumerate() {
            let found = requester.find(live.token);
            assert_eq!(found, live.awaited.then_some(live.started.slot));
            let others = &self.live[..index];
            assert!(others.iter().all(|other| other.started.xid != live.started.xid));
            assert!(others.iter().all(|other| other.started.slot.index != live.started.slot.index));
        }
    }

    fn call(&mut self, script: &mut Script<'_>) {
        let deadline = match script.byte() {
            0 => Instant(u64::MAX),
            ticks => Instant(self.now + u64::from(ticks)),
        };
        let chunks = call_chunks(script);
        let requester = &mut self.connection.requester;
        let (next_xid, room) = (requester.next_xid(), requester.check_room());
        let token = self.ends.len() as u64;
        let mut header = vec![0xee; chunks.header_bytes()];
        match requester.start_call(token, deadline, &chunks, &mut header) {
            Ok((started, length)) => {
                assert_eq!((length, started.xid), (header.len(), next_xid));
                check_header(&header, started.xid, &chunks, self.slots);
                assert!(self.xids.insert(started.xid), "{} was used before", started.xid);
                self.ends.push(0);
                let live = Live {
                    started,
                    token,
                    deadline,
                    awaited: true,
                    chunks,
                    header,
                    fetched: None,
                    outstanding: 0,
                    held: false,
                };
                self.live.push(live);
            }
            Err(refused) => assert_eq!(room, Err(refused)),
        }
    }

    /// A reply that keeps all rules ends its call, or has to be fetched. After it there is no other.
    fn good_reply(&mut self, script: &mut Script<'_>) {
        let Some(index) = self.choose(script) else { return };
        let live = &self.live[index];
        let (slot, awaited) = (live.started.slot, live.awaited);
        let waits = live.is_unanswered();
        let ways = if self.connection.profile() == Profile::Rfc8166 { 0 } else { script.byte() };
        let by_read = ways & 1 != 0;
        let (message, placed) =
            if by_read { reply_by_read(live, script) } else { reply_to(live, script) };
        let message = if ways & 2 != 0 { as_padded(message) } else { message };
        let events = self.receive(&message);
        match events[..] {
            [Event::Dropped(_)] => assert!(!waits),
            [Event::PullReply(reply)] => assert!(by_read && reply.slot == slot),
            [Event::Reply(reply)] => {
                assert!(awaited && !by_read && reply.slot == slot);
                assert_eq!(reply.placed[..placed.len()], placed);
            }
            [Event::Released(released)] => assert!(!awaited && released == slot),
            ref other => panic!("{other:?}"),
        }
        let gone = self.live.iter().all(|live| live.started.slot != slot);
        assert_eq!(gone, waits && !by_read);
        if waits {
            // RFC 8166 section 3.3.1: a grant of zero counts as one, one above the request as the request.
            let grant = wire::word(&message, 2).unwrap().clamp(1, self.slots as u32);
            assert_eq!(self.connection.requester.credits().granted(), grant);
        }
    }

    /// A reply with some bytes replaced and its end cut off, or one that not every profile has.
    fn spoilt_reply(&mut self, script: &mut Script<'_>) {
        let Some(index) = self.choose(script) else { return };
        let (mut message, _) = reply_to(&self.live[index], script);
        let spoilt = script.byte();
        if spoilt & 4 != 0 {
            message = as_padded(message);
        }
        for _ in 0..spoilt % 4 {
            let at = script.below(message.len());
            message[at] = script.byte();
        }
        message.truncate(message.len() - script.below(16).min(message.len()));
        self.receive(&message);
    }

    fn error(&mut self, script: &mut Script<'_>) {
        let Some(index) = self.choose(script) else { return };
        let error = match script.byte() {
            0 => RdmaError::Version { low: 1, high: u32::from(script.byte()) },
            1 => RdmaError::Chunk,
            code => RdmaError::Other(u32::from(code)),
        };
        let granted = self.connection.requester.credits().granted();
        let message = wire::error(self.live[index].started.xid, 1, 99, error);
        let waits = self.live[index].is_unanswered();
        let events = self.receive(&message);
        match events[..] {
            [Event::Failed { fenced: false, .. } | Event::Released(_)] => assert!(waits),
            ref other => assert!(!waits && matches!(other[..], [Event::Dropped(_)])),
        }
        assert_eq!(self.connection.requester.credits().granted(), granted);
    }

    /// Any bytes, perhaps with an XID that is in flight.
    fn any_message(&mut self, script: &mut Script<'_>) {
        let xid = self.choose(script).map_or(Xid(0), |index| self.live[index].started.xid);
        let start = match script.byte() % 5 {
            0 => vec![],
            1 => wire::words(&[xid.0]),
            2 => wire::words(&[xid.0, 1, 8, u32::from(script.byte())]),
            3 => [wire::words(&[xid.0, 1, 8, 0, 0, 0, 0]), wire::rpc_call(xid)].concat(),
            _ => wire::words(&[xid.0, 1, 8, 3]),
        };
        let length = script.below(128);
        self.receive(&[&start, script.bytes(length)].concat());
    }

    fn cancel(&mut self, script: &mut Script<'_>) {
        let Some(index) = self.choose(script) else { return };
        let (slot, awaited) = (self.live[index].started.slot, self.live[index].awaited);
        let mut out = Recorder::default();
        let stale = SlotId { generation: slot.generation.wrapping_sub(1), ..slot };
        for other in [stale, SlotId { index: 40_000, ..slot }] {
            assert!(!out.failed(self.connection.requester.cancel(other)));
        }
        assert_eq!(out.take(), []);
        assert_eq!(out.failed(self.connection.requester.cancel(slot)), awaited);
        self.fail(&out.take(), CallFailure::Cancelled);
        assert!(self.live.iter().all(|live| live.started.slot != slot || !live.awaited));
    }

    /// Asks for some RDMA Reads of a reply, and lets one of them end.
    fn fetch(&mut self, script: &mut Script<'_>) {
        let Some(index) = self.choose(script) else { return };
        let room = u16::from(script.byte() % 4);
        let requester = &mut self.connection.requester;
        let live = &mut self.live[index];
        let slot = live.started.slot;
        let Some(message) = &live.fetched else {
            return assert_eq!(requester.on_read_done(slot), Pulled::Stale);
        };
        let Ok(view) = HeaderView::new_checked(message, &Limits::DEFAULT) else { return };
        let mut out = Recorder::default();
        let lengths: Vec<u32> = requester
            .pull_plan(slot)
            .map_or(vec![], |plan| plan.chunks().iter().map(|chunk| chunk.length).collect());
        let asked = requester.pull(slot, &view, room, |read| out.read(read));
        assert!(asked <= room && (live.awaited || asked == 0));
        live.outstanding += asked;
        for event in out.take() {
            let Event::Read(read) = event else { panic!("{event:?}") };
            assert!(read.slot == slot && view.reads().any(|offered| offered.target == read.from));
            assert!(read.at + read.from.length <= lengths[usize::from(read.chunk)]);
        }
        if live.outstanding > 0 {
            live.outstanding -= 1;
            assert_ne!(requester.on_read_done(slot), Pulled::Stale);
        }
    }

    /// RDMA_DONE goes out when nothing is on its way any more.
    fn end_fetch(&mut self, script: &mut Script<'_>) {
        let Some(index) = self.choose(script) else { return };
        let slot = self.live[index].started.slot;
        let mut out = Recorder::default();
        if script.byte() == 0 {
            out.failed(self.connection.requester.give_up_pull(slot, CallFailure::NoMemory));
            self.fail(&out.take(), CallFailure::NoMemory);
        }
        let mut done = [0; DONE_BYTES];
        let end = self.connection.requester.end_pull(slot, &mut done);
        let Some(end) = end else { return assert_eq!(done, [0; DONE_BYTES]) };
        let live = self.remove(slot);
        assert!(live.fetched.is_some() && live.outstanding == 0);
        let header = HeaderView::new_checked(&done, &Limits::DEFAULT).unwrap();
        assert_eq!((header.message_type(), header.xid()), (MessageType::Done, live.started.xid));
        match end {
            PullEnd::Deliver { token } => {
                assert!(live.awaited && live.token == token);
                self.ends[token as usize] += 1;
            }
            PullEnd::Release => assert!(!live.awaited),
        }
    }

    fn wait(&mut self, script: &mut Script<'_>) {
        self.now += u64::from(script.byte());
        let mut out = Recorder::default();
        self.connection.requester.on_time(Instant(self.now), |failed| out.fail(failed));
        let events = out.take();
        for event in &events {
            let Event::Failed { slot, fenced, .. } = event else { panic!("{event:?}") };
            let live = self.live.iter().find(|live| live.started.slot == *slot).unwrap();
            assert!(*fenced != live.held && live.deadline <= Instant(self.now));
        }
        self.fail(&events, CallFailure::TimedOut);
        let overdue = |live: &Live| live.awaited && live.deadline <= Instant(self.now);
        assert!(!self.live.iter().any(overdue), "a deadline passes and nothing ends");
        assert!(self.connection.requester.next_deadline() > Instant(self.now));
    }

    /// The connection goes, and the next one takes the requester over; some calls are held for it.
    fn reconnect(&mut self, script: &mut Script<'_>) {
        let (holds, mut lost) = (script.byte(), Vec::new());
        let requester =
            std::mem::replace(&mut self.connection.requester, Requester::new(Vec::new(), 0));
        self.connection = connection(requester, self.connection.profile());
        self.connection.requester.suspend(|slot, token| {
            let hold = holds >> slot.index & 1 != 0;
            lost.push((slot, token, hold));
            hold
        });
        let credits = self.connection.requester.credits();
        assert_eq!((credits.in_flight(), credits.granted()), (0, 1), "RFC 8166 section 3.3.3");
        assert_eq!(lost.len(), self.live.len());
        for (slot, token, hold) in lost {
            let mut live = self.remove(slot);
            assert_eq!(token, live.awaited.then_some(live.token));
            match live.awaited && hold {
                true => {
                    (live.held, live.fetched, live.outstanding) = (true, None, 0);
                    self.live.push(live);
                }
                false => self.ends[live.token as usize] += u32::from(live.awaited),
            }
        }
    }

    /// A held call goes on the new connection, or ends.
    fn resend(&mut self, script: &mut Script<'_>) {
        let Some(index) = self.choose(script) else { return };
        let requester = &mut self.connection.requester;
        let live = &mut self.live[index];
        let slot = live.started.slot;
        if script.byte() == 0 {
            assert_eq!(requester.release_held(slot), live.held.then_some(live.token));
            if live.held {
                self.ends[live.token as usize] += 1;
                self.remove(slot);
            }
            return;
        }
        let may_resend = requester.check_resend(slot);
        let mut header = vec![0xee; live.chunks.header_bytes()];
        match requester.resend(slot, &live.chunks, &mut header) {
            Ok((started, length)) => {
                assert!(live.held && (started.slot, started.xid) == (slot, live.started.xid));
                assert_eq!(length, header.len());
                check_header(&header, started.xid, &live.chunks, self.slots);
                (live.held, live.header) = (false, header);
            }
            Err(refused) => {
                assert_eq!(may_resend, Err(refused));
                assert_eq!(live.held, refused == CallRefused::NoCredit);
            }
        }
    }

    fn choose(&self, script: &mut Script<'_>) -> Option<usize> {
        let index = script.below(self.live.len());
        (index < self.live.len()).then_some(index)
    }

    fn receive(&mut self, message: &[u8]) -> Vec<Event> {
        let events = Recorder::of_message(|out| self.connection.on_receive(message, out));
        self.take(&events, message);
        events
    }

    fn take(&mut self, events: &[Event], message: &[u8]) {
        for event in events {
            match *event {
                Event::Reply(reply) => {
                    let live = self.remove(reply.slot);
                    assert!(live.awaited && live.token == reply.token);
                    check_reply(&live, &reply, message, self.connection.profile());
                    self.ends[live.token as usize] += 1;
                }
                Event::PullReply(reply) => self.begin_fetch(&reply, message),
                Event::Failed { slot, token, fenced: false, .. } => {
                    let live = self.remove(slot);
                    assert!(live.awaited && live.token == token);
                    self.ends[token as usize] += 1;
                }
                Event::Failed { slot, token, fenced: true, .. } => self.fence(slot, token),
                Event::Released(slot) => assert!(!self.remove(slot).awaited),
                Event::Dropped(_) => {}
                Event::Closed(_) => self.closed = true,
                ref other => panic!("a client does not do this: {other:?}"),
            }
        }
    }

    /// Calls that end for this reason.
    fn fail(&mut self, events: &[Event], reason: CallFailure) {
        let is_it =
            |event: &Event| matches!(event, Event::Failed { failure, .. } if *failure == reason);
        assert!(events.iter().all(is_it), "{events:?}");
        self.take(events, &[]);
    }

    fn begin_fetch(&mut self, reply: &DeliveredReply, message: &[u8]) {
        assert!(self.connection.profile().has_reads_in_replies());
        let live = self.live.iter_mut().find(|live| live.started.slot == reply.slot).unwrap();
        assert!(live.token == reply.token && live.fetched.is_none());
        check_reply(live, reply, message, self.connection.profile());
        live.fetched = Some(message.to_vec());
        if HeaderView::new_checked(message, &Limits::DEFAULT).is_err() {
            self.give_up(reply.slot);
        }
    }

    /// A reply beyond the limits of a client names nothing to fetch.
    fn give_up(&mut self, slot: SlotId) {
        let requester = &mut self.connection.requester;
        assert!(requester.pull_plan(slot).is_none_or(|plan| plan.chunks().is_empty()));
        let mut out = Recorder::default();
        out.failed(requester.give_up_pull(slot, CallFailure::NoMemory));
        self.take(&out.take(), &[]);
    }

    fn fence(&mut self, slot: SlotId, token: u64) {
        let live = self.live.iter_mut().find(|live| live.started.slot == slot).unwrap();
        assert!(live.awaited && live.token == token);
        live.awaited = false;
        self.ends[token as usize] += 1;
    }

    fn remove(&mut self, slot: SlotId) -> Live {
        let index = self.live.iter().position(|live| live.started.slot == slot);
        self.live.swap_remove(index.unwrap_or_else(|| panic!("{slot:?} is not in flight")))
    }

    /// The connection goes; by then every call has ended once.
    fn go_down(mut self) {
        let mut gone = Vec::new();
        self.connection.requester.on_down(|slot, token| gone.push((slot, token)));
        assert_eq!(gone.len(), self.live.len());
        for (slot, token) in gone {
            let live = self.remove(slot);
            assert_eq!(token, live.awaited.then_some(live.token));
            self.ends[live.token as usize] += u32::from(live.awaited);
        }
        assert!(self.ends.iter().all(|ends| *ends == 1), "{:?}", self.ends);
        let requester = &mut self.connection.requester;
        requester.on_down(|slot, _| panic!("{slot:?} ends twice"));
        assert!(requester.check_room().is_err());
    }
}

fn connection(
    requester: Requester<Vec<CallSlot>>,
    profile: Profile,
) -> Connection<Vec<CallSlot>, Vec<ServeSlot>> {
    let responder = Responder::new(Vec::new());
    Connection::new(Side::Client, requester, responder, Limits::DEFAULT, profile)
}

fn call_chunks(script: &mut Script<'_>) -> CallChunks {
    let mut chunks = CallChunks::EMPTY;
    let shape = script.byte();
    let mut position = if shape & 1 != 0 { 0 } else { 40 };
    for _ in 0..shape >> 1 & 3 {
        let read = offer(script);
        // Without room for more segments the call goes without the rest.
        let _ = chunks.push_read(position, read);
        position += read.length.next_multiple_of(4) + 4;
    }
    for _ in 0..shape >> 3 & 3 {
        let _ = chunks.push_write(offer(script));
    }
    if shape >> 5 & 1 != 0 {
        let _ = chunks.set_reply(offer(script));
    }
    chunks
}

fn offer(script: &mut Script<'_>) -> ChunkOffer {
    let length = u32::from(script.byte()) * 3;
    let segments = u32::from(script.byte()) % 5;
    ChunkOffer {
        handle: u32::from(script.byte()),
        length,
        offset: u64::from(script.byte()) << 40,
        segment_bytes: length.checked_div(segments).unwrap_or(0),
    }
}

/// The header of a call says what was offered.
fn check_header(header: &[u8], xid: Xid, chunks: &CallChunks, credits: usize) {
    let view = HeaderView::new_checked(header, &Limits::DEFAULT).unwrap();
    assert_eq!((view.xid(), view.credits() as usize), (xid, credits));
    assert_eq!(view.header_bytes(), header.len());
    assert_eq!(view.check_call(), Ok(()));
    let reads: u64 = view.reads().map(|read| u64::from(read.target.length)).sum();
    assert_eq!(reads, chunks.reads().iter().map(|(_, offer)| u64::from(offer.length)).sum::<u64>());
    let writes: Vec<_> = view.writes().map(|chunk| chunk.total_length()).collect();
    let offered = chunks.writes().iter().map(|offer| u64::from(offer.length));
    assert_eq!(writes, offered.collect::<Vec<_>>());
    let reply = chunks.reply().map(|offer| u64::from(offer.length));
    assert_eq!(view.reply_chunk().map(|chunk| chunk.total_length()), reply);
}

/// A reply as a responder makes it, and the bytes it says it placed in each Write chunk.
fn reply_to(live: &Live, script: &mut Script<'_>) -> (Vec<u8>, Vec<u32>) {
    let call = HeaderView::new_checked(&live.header, &Limits::DEFAULT).unwrap();
    let placed: Vec<u32> =
        live.chunks.writes().iter().map(|offer| part_of(offer.length, script)).collect();
    let in_reply_chunk = live.chunks.reply().map(|offer| part_of(offer.length, script));
    let in_reply_chunk = in_reply_chunk.filter(|length| *length > 0);
    let kind = if in_reply_chunk.is_some() { MessageType::Nomsg } else { MessageType::Msg };
    let mut message = wire::reply(&call, kind, &placed, in_reply_chunk);
    // A zero is what peers have sent although they must not.
    message[8..12].copy_from_slice(&u32::from(script.byte()).to_be_bytes());
    if in_reply_chunk.is_none() {
        message.extend(wire::rpc_reply(call.xid()));
    }
    (message, placed)
}

/// A reply with data to be fetched, or which is to be fetched whole.
fn reply_by_read(live: &Live, script: &mut Script<'_>) -> (Vec<u8>, Vec<u32>) {
    let call = HeaderView::new_checked(&live.header, &Limits::DEFAULT).unwrap();
    let whole = script.flag();
    let target = Segment { handle: 9, length: 24 + u32::from(script.byte()), offset: 1 << 40 };
    let lists = OwnedLists {
        reads: vec![ReadSegment { position: if whole { 0 } else { 24 }, target }],
        writes: OwnedLists::of(&call).writes.into_iter().map(unused).collect(),
        reply: OwnedLists::of(&call).reply.map(unused),
    };
    let kind = if whole { MessageType::Nomsg } else { MessageType::Msg };
    let mut message = lists.header(wire::ONE, kind, call.xid(), 1 + u32::from(script.byte()), None);
    if !whole {
        message.extend(wire::rpc_reply(call.xid()));
    }
    (message, vec![])
}

/// The RDMA_MSGP of an RDMA_MSG; any other message stays as it is.
fn as_padded(message: Vec<u8>) -> Vec<u8> {
    match wire::word(&message, 3) {
        Some(kind) if kind == MessageType::Msg.to_wire() => {
            wire::padded(message, Alignment::new(64, 100))
        }
        _ => message,
    }
}

fn unused(segments: Vec<Segment>) -> Vec<Segment> {
    segments.into_iter().map(|segment| Segment { length: 0, ..segment }).collect()
}

fn part_of(length: u32, script: &mut Script<'_>) -> u32 {
    (length * u32::from(script.byte())).div_ceil(255)
}

fn check_reply(live: &Live, reply: &DeliveredReply, message: &[u8], profile: Profile) {
    let mut offered = [0; spinrpc_proto::limits::ITEMS_MAX];
    for (length, offer) in offered.iter_mut().zip(live.chunks.writes()) {
        *length = offer.length;
    }
    assert!(reply.placed.iter().zip(offered).all(|(placed, offered)| *placed <= offered));
    match reply.stream {
        ReplyStream::Inline { header_bytes } => {
            let stream = &message[header_bytes..];
            let is_its = wire::word(stream, 0) == Some(live.started.xid.0);
            assert!(is_its || profile.prefers_header_xid(), "no reply to this call");
            assert_eq!(wire::word(stream, 1), Some(1), "no reply");
        }
        ReplyStream::ReplyChunk { length } => {
            let offered = live.chunks.reply().unwrap().length;
            assert!(length > 0 && length <= offered, "{length} of {offered}");
        }
        ReplyStream::Pulled => {}
    }
}
