//! One end of a connection that may speak version two, one way or both: whatever the
//! peer says, each of our calls ends once, no more are in flight than one until a version is settled,
//! an error or a reply is never answered, and each call of the peer is answered in its version.

use spinrpc_proto::chunking::CallChunks;
use spinrpc_proto::connection::{Connection, Side};
use spinrpc_proto::events::SlotId;
use spinrpc_proto::ids::{Instant, Xid};
use spinrpc_proto::limits::Limits;
use spinrpc_proto::rdma::{Body, HeaderView, MessageType, RdmaError, Segment, emit_msg_header};
use spinrpc_proto::requester::{CallSlot, Requester};
use spinrpc_proto::responder::{Pulled, ReplyShape, Responder, ServeSlot};
use spinrpc_proto::rpc::Direction;
use spinrpc_proto::version::{Negotiation, Stage, TransportVersion, Verdict, Versions};

use crate::recorder::{Event, Recorder};
use crate::script::Script;
use crate::v2_header::versions;
use crate::wire::{self, OwnedLists};

/// Bytes that every header sent here fits.
const ROOM: usize = 64;

/// Three bytes say what the end speaks, which one it is, and how many slots it has; the rest is what
/// happens.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let mut end = End::new(&mut script);
    while !script.is_over() && !end.closed {
        end.step(&mut script);
        end.check();
    }
    end.go_down();
}

struct End {
    connection: Connection<Vec<CallSlot>, Vec<ServeSlot>>,
    versions: Versions,
    limits: Limits,
    slots: usize,
    refuses: bool,
    /// XID of the newest call.
    xid: Xid,
    /// Number of times that each call ended, by token.
    ends: Vec<u32>,
    /// Calls of the peer that are to be answered.
    served: Vec<(SlotId, Vec<u8>)>,
    closed: bool,
}

impl End {
    fn new(script: &mut Script<'_>) -> Self {
        let versions = versions(script);
        let kind = script.byte();
        let slots = 1 + script.below(4);
        let side = if kind & 1 == 0 { Side::Client } else { Side::Server };
        let two_way = kind & 2 != 0;
        let calls = if two_way || side == Side::Client { slots } else { 0 };
        let serves = if two_way || side == Side::Server { slots } else { 0 };
        let mut requester = Requester::new(vec![CallSlot::FREE; calls], 3);
        requester.negotiate(Negotiation::new(versions));
        let responder = Responder::new(vec![ServeSlot::FREE; serves]);
        let limits = Limits { versions, ..Limits::DEFAULT };
        let profile = wire::profile(script);
        let connection = Connection::new(side, requester, responder, limits, profile);
        let refuses = !two_way && side == Side::Client && kind & 4 != 0;
        let connection = match (two_way, refuses) {
            (true, _) => connection.two_way(),
            (false, true) => connection.refusing_reverse(),
            (false, false) => connection,
        };
        let (ends, served) = (Vec::new(), Vec::new());
        Self {
            connection,
            versions,
            limits,
            slots,
            refuses,
            xid: Xid(0),
            ends,
            served,
            closed: false,
        }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        match script.byte() % 10 {
            0..3 => self.call(),
            3 => self.resend(script),
            4 => self.cancel(),
            5 => self.answer(script),
            6 => self.reconnect(script),
            _ => self.receive(script),
        }
    }

    /// Checks that the visible state of the end agrees with the model.
    fn check(&self) {
        let requester = &self.connection.requester;
        let stage = requester.negotiation().stage();
        if stage != Stage::Settled {
            assert!(requester.credits().in_flight() <= 1, "one at a time");
        }
        assert!(self.versions.speaks(requester.negotiation().version()));
        let credits = requester.credits();
        assert!((credits.in_flight() - credits.dones()) as usize <= self.slots);
        assert_eq!(self.connection.responder.in_progress() as usize, self.served.len());
    }

    fn call(&mut self) {
        let mut header = [0xee; ROOM];
        let token = self.ends.len() as u64;
        let requester = &mut self.connection.requester;
        let version = requester.negotiation().version();
        let started = requester.start_call(token, NEVER, &CallChunks::EMPTY, &mut header);
        let Ok((call, length)) = started else { return };
        assert_eq!(length, version.chunkless_header_bytes());
        let sent = HeaderView::new_checked(&header[ROOM - length..], &self.limits).unwrap();
        assert_eq!((sent.xid(), sent.transport_version()), (call.xid, version));
        assert!(sent.is_chunkless() && sent.direction() != Some(Direction::Reply));
        self.xid = call.xid;
        self.ends.push(0);
    }

    fn resend(&mut self, script: &mut Script<'_>) {
        let requester = &mut self.connection.requester;
        let Some(slot) = requester.held().next() else { return };
        let xid = slot.xid();
        if script.flag() {
            let token = requester.release_held(slot).unwrap();
            self.ends[token as usize] += 1;
        } else if let Ok((call, _)) = requester.resend(slot, &CallChunks::EMPTY, &mut [0; ROOM]) {
            assert_eq!(call.xid, xid, "a call keeps its XID");
            self.xid = xid;
        }
    }

    fn cancel(&mut self) {
        let mut out = Recorder::default();
        let requester = &mut self.connection.requester;
        if let Some(slot) = requester.find(self.ends.len().wrapping_sub(1) as u64) {
            assert!(out.failed(requester.cancel(slot)));
        }
        self.note(out.take(), &[]);
    }

    /// Answers a call of the peer, as plain reply or general reply.
    fn answer(&mut self, script: &mut Script<'_>) {
        let Some((slot, message)) = self.served.pop() else { return };
        let call = HeaderView::new_checked(&message, &self.limits).unwrap();
        let (responder, mut out) = (&mut self.connection.responder, Recorder::default());
        let mut header = vec![0; 4096];
        let length = match script.byte() % 4 {
            0 if call.is_chunkless() => {
                responder.reply_chunkless(slot, call.xid(), &mut header).unwrap()
            }
            _ => {
                let shape = ReplyShape { placed: &[], long_bytes: None };
                responder.reply(slot, &call, &shape, &mut header, |write| out.write(write)).unwrap()
            }
        };
        let sent = HeaderView::new_checked(&header[4096 - length..], &self.limits).unwrap();
        assert_eq!(sent.transport_version(), call.transport_version());
        assert_eq!((sent.xid(), sent.header_bytes()), (call.xid(), length));
        assert!(sent.credits() > 0 && sent.direction() != Some(Direction::Call));
    }

    fn reconnect(&mut self, script: &mut Script<'_>) {
        let keeps = script.flag();
        let requester = &mut self.connection.requester;
        let verdict = requester.verdict();
        let ends = &mut self.ends;
        requester.suspend(|_, token| {
            if let Some(token) = token.filter(|_| !keeps) {
                ends[token as usize] += 1;
            }
            keeps
        });
        let falls_back = verdict == Verdict::NoVersionTwo && self.versions == Versions::Both;
        requester.negotiate(match falls_back {
            true => Negotiation::settled(TransportVersion::One),
            false => Negotiation::new(self.versions),
        });
    }

    fn receive(&mut self, script: &mut Script<'_>) {
        let message = message(self.xid, script);
        let events = Recorder::of_message(|out| self.connection.on_receive(&message, out));
        self.note(events, &message);
    }

    fn note(&mut self, events: Vec<Event>, message: &[u8]) {
        for event in events {
            match event {
                Event::Reply(reply) => {
                    self.ends[reply.token as usize] += 1;
                }
                Event::Failed { token, .. } => self.ends[token as usize] += 1,
                Event::PullReply(reply) => self.fetch_nothing(reply.slot, reply.token),
                Event::Call(slot) => {
                    self.served.push((slot, message.to_vec()));
                }
                Event::Pull(slot) => self.fetch(slot, message),
                Event::Error(xid, version, error) => check_error(message, xid, version, error),
                Event::Refused(xid, version) => {
                    assert_eq!(wire::word(message, 0), Some(xid.0));
                    assert_eq!(wire::word(message, 1), Some(version.to_wire()));
                    assert_eq!(self.served.len(), self.slots);
                }
                Event::ProgramRefused(xid, version) => {
                    assert!(self.refuses && version == TransportVersion::Two);
                    assert_eq!(wire::word(message, 0), Some(xid.0));
                }
                Event::Closed(_) => self.closed = true,
                Event::Released(_) | Event::Resend(_) | Event::Dropped(_) => {}
                Event::Read(_) | Event::Write(_) | Event::FreeExports(_) => {
                    panic!("not of a message: {event:?}")
                }
            }
        }
    }

    /// A reply that is to be fetched is of version one, and let be.
    fn fetch_nothing(&mut self, slot: SlotId, token: u64) {
        let mut out = Recorder::default();
        let requester = &mut self.connection.requester;
        if requester.pull_plan(slot).is_some() {
            self.ends[token as usize] += 1;
            let failure = spinrpc_proto::events::CallFailure::NoMemory;
            out.failed(requester.give_up_pull(slot, failure));
        }
        assert!(requester.end_pull(slot, &mut [0; 16]).is_some());
    }

    fn fetch(&mut self, slot: SlotId, message: &[u8]) {
        let view = HeaderView::new_checked(message, &self.limits).unwrap();
        let (responder, mut out) = (&mut self.connection.responder, Recorder::default());
        let asked = responder.pull(slot, &view, u16::MAX, |read| out.read(read));
        let last = (0..asked).map(|_| out.pulled(slot, responder.on_read_done(slot))).last();
        assert_eq!(last, Some(Pulled::Complete));
        self.served.push((slot, message.to_vec()));
    }

    fn go_down(mut self) {
        let ends = &mut self.ends;
        self.connection.requester.on_down(|_, token| {
            if let Some(token) = token {
                ends[token as usize] += 1;
            }
        });
        assert!(ends.iter().all(|count| *count == 1), "{ends:?}");
    }
}

const NEVER: Instant = Instant(u64::MAX);

/// A message of either version: well-formed, or anything.
fn message(newest: Xid, script: &mut Script<'_>) -> Vec<u8> {
    let xid = if script.flag() { newest } else { Xid(u32::from(script.byte())) };
    let version = 1 + u32::from(script.byte() % 3);
    let direction = if script.flag() { Direction::Reply } else { Direction::Call };
    let rpc = match script.byte() % 4 {
        0 => wire::rpc_call(xid),
        1 => Vec::new(),
        2 => script.bytes(8).to_vec(),
        _ => wire::rpc_reply(xid),
    };
    let known = if version == 1 { TransportVersion::One } else { TransportVersion::Two };
    let form = (TransportVersion::Two, direction);
    let header = match script.byte() % 8 {
        0 => wire::words(&[xid.0, version, 9, u32::from(script.byte() % 16), 0, 0, 0, 0]),
        1 => wire::words(&[xid.0, version, 9, 4, u32::from(script.byte() % 4), 1, 1]),
        2 => {
            let range = [u32::from(script.byte() % 4), u32::from(script.byte() % 4)];
            return wire::words(&[&[xid.0, version, 9, 4, 1], &range[..]].concat());
        }
        3 => {
            let option = u32::from(script.byte() % 4);
            let info = script.bytes(7);
            wire::header(form, xid, 9, Body::Optional { option, info })
        }
        4 => lists(script).header(form, MessageType::Nomsg, xid, 9, None),
        _ => {
            let mut header = vec![0; known.chunkless_header_bytes()];
            emit_msg_header(&mut header, known, xid, 9, direction);
            header
        }
    };
    let mut message = [header, rpc].concat();
    if script.flag() {
        let at = script.below(message.len());
        message[at] ^= script.byte();
    }
    message
}

fn lists(script: &mut Script<'_>) -> OwnedLists {
    let segment = |handle| Segment { handle, length: 100, offset: 7 };
    let read = |position| spinrpc_proto::rdma::ReadSegment { position, target: segment(1) };
    let kind = script.byte();
    OwnedLists {
        reads: if kind & 1 != 0 { vec![read(0)] } else { Vec::new() },
        writes: if kind & 2 != 0 { vec![vec![segment(2)]] } else { Vec::new() },
        reply: (kind & 4 != 0).then(|| vec![segment(3)]),
    }
}

/// An error or a reply is not answered, and an answer names what it is for.
fn check_error(message: &[u8], xid: Xid, version: u32, error: RdmaError) {
    let word = |index| wire::word(message, index);
    assert!(word(0) == Some(xid.0) && word(1) == Some(version));
    assert_ne!(word(3), Some(MessageType::Error.to_wire()), "an error is answered");
    let is_list_or_option = matches!(word(3), Some(0 | 1 | 5));
    let says_reply = version == 2 && is_list_or_option && word(4) == Some(1);
    let is_unread = matches!(error, RdmaError::Version { .. });
    assert!(is_unread || !says_reply, "a reply is answered");
    let fits = match error {
        RdmaError::Version { .. } => true,
        RdmaError::Chunk => version == 1,
        RdmaError::BadHeader | RdmaError::InvalidOption => version == 2,
        RdmaError::Other(_) => false,
    };
    assert!(fits, "{error:?} in version {version}");
}
