//! Any bytes, on either side of a connection: nothing panics, nothing is answered that must not be,
//! and a message leads to at most one event, and perhaps the end of the connection.

use std::collections::{HashMap, HashSet};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use spinrpc_proto::connection::{Connection, Side};
use spinrpc_proto::ids::{Instant, Xid};
use spinrpc_proto::limits::Limits;
use spinrpc_proto::output::SlotId;
use spinrpc_proto::payload::{CallChunks, ChunkOffer};
use spinrpc_proto::profile::Profile;
use spinrpc_proto::rdma::v1;
use spinrpc_proto::requester::{CallSlot, Requester};
use spinrpc_proto::responder::{Pulled, ReplyShape, Responder, ServeSlot};

use crate::messages::{
    Chunks, plain_call, plain_reply, rdma_done, rdma_error, rpc_call, rpc_reply, segment, view,
    wire,
};
use crate::recorder::{Event, Recorder};

type Proto = Connection<Vec<CallSlot>, Vec<ServeSlot>>;

const SLOTS: usize = 4;

/// Well-formed messages of every kind.
fn good_messages(xid: Xid) -> Vec<Vec<u8>> {
    let results = Chunks::none().write(&[segment(7, 9), segment(7, 0)]).reply(&[segment(8, 500)]);
    let arguments = Chunks::none().read(40, 1, 100).read(40, 2, 13).read(160, 3, 8);
    let long = Chunks::none().read(0, 1, 3000).read(0, 2, 200).read(80, 3, 64);
    vec![
        plain_call(xid),
        plain_reply(xid, 8),
        rdma_error(xid, 1, &[2]),
        rdma_error(xid, 1, &[1, 1, 1]),
        rdma_done(xid),
        results.msg(xid, 8, &rpc_reply(xid)),
        results.nomsg(xid, 8),
        results.msg(xid, 8, &rpc_call(xid)),
        arguments.msg(xid, 8, &[rpc_call(xid), vec![0; 80]].concat()),
        long.nomsg(xid, 8),
        long.write(&[segment(9, 64)]).nomsg(xid, 8),
        Chunks::none().msgp(xid, 8, &rpc_call(xid)),
    ]
}

/// Construction of a message.
#[derive(Clone, Debug)]
enum Made {
    Bytes(Vec<u8>),
    /// A header start that is right, then words.
    Words(u32, Vec<u32>),
    /// A good message with some bytes replaced and its end cut off.
    Mutated {
        which: Index,
        bytes: Vec<(Index, u8)>,
        cut: Option<Index>,
    },
}

fn made() -> impl Strategy<Value = Made> {
    let word = prop_oneof![4 => 0..3_u32, 2 => (0..40_u32).prop_map(|n| n * 4), 1 => any::<u32>()];
    let byte = prop_oneof![0..5_u8, any::<u8>()];
    prop_oneof![
        1 => vec(any::<u8>(), 0..120).prop_map(Made::Bytes),
        2 => (0..6_u32, vec(word, 0..60)).prop_map(|(kind, words)| Made::Words(kind, words)),
        6 => (any::<Index>(), vec((any::<Index>(), byte), 0..4), prop::option::of(any::<Index>()))
            .prop_map(|(which, bytes, cut)| Made::Mutated { which, bytes, cut }),
    ]
}

impl Made {
    fn message(&self, xid: Xid) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes.clone(),
            Self::Words(kind, words) => wire(&[&[xid.0, 1, 8, *kind], &words[..]].concat()),
            Self::Mutated { which, bytes, cut } => {
                let mut good = good_messages(xid);
                let mut message = good.swap_remove(which.index(good.len()));
                for (at, byte) in bytes {
                    let at = at.index(message.len());
                    message[at] = *byte;
                }
                if let Some(cut) = cut {
                    message.truncate(cut.index(message.len()));
                }
                message
            }
        }
    }
}

fn connection(side: Side) -> Proto {
    let (calls, serves) = match side {
        Side::Client => (SLOTS, 0),
        Side::Server => (0, SLOTS),
    };
    let requester = Requester::new(vec![CallSlot::FREE; calls], 77);
    let responder = Responder::new(vec![ServeSlot::FREE; serves]);
    Connection::new(side, requester, responder, Limits::DEFAULT, Profile::Rfc8166)
}

/// Calls in both directions (RFC 8167).
fn both_ways(side: Side) -> Proto {
    let requester = Requester::new(vec![CallSlot::FREE; SLOTS], 77);
    let responder = Responder::new(vec![ServeSlot::FREE; SLOTS]);
    Connection::new(side, requester, responder, Limits::DEFAULT, Profile::Rfc8166).two_way()
}

/// Hands over a message; at most one event follows, apart from the end of the connection.
fn receive(connection: &mut Proto, message: &[u8]) -> Vec<Event> {
    let mut out = Recorder::default();
    connection.on_receive(message, &mut out);
    let events = out.take();
    let closes = events.iter().filter(|event| matches!(event, Event::Closed(_))).count();
    assert!(closes <= 1 && events.len() - closes <= 1, "{events:?}");
    assert!(!events.is_empty(), "a message is never just forgotten");
    events
}

/// A client under fire, and how often each of its calls ended.
struct Client {
    proto: Proto,
    ends: HashMap<u64, u32>,
    xid: Xid,
    next_token: u64,
}

impl Client {
    fn new() -> Self {
        Self::of(connection(Side::Client))
    }

    fn of(proto: Proto) -> Self {
        Self { proto, ends: HashMap::new(), xid: Xid(0), next_token: 0 }
    }

    /// Starts calls while there is room: plain ones, and ones that `good_messages` answers.
    fn call(&mut self) {
        let mut chunks = CallChunks::EMPTY;
        let offer = |handle, length, segment_bytes| ChunkOffer {
            handle,
            length,
            offset: segment(handle, 0).offset,
            segment_bytes,
        };
        if self.next_token.is_multiple_of(2) {
            assert!(chunks.push_write(offer(7, 18, 9)) && chunks.set_reply(offer(8, 500, 0)));
        }
        let (token, mut header) = (self.next_token, [0; 256]);
        let deadline = Instant(u64::MAX);
        let started = self.proto.requester.start_call(token, deadline, &chunks, &mut header);
        if let Ok((started, _)) = started {
            (self.xid, self.next_token) = (started.xid, token + 1);
        }
    }

    fn receive(&mut self, message: &[u8]) {
        for event in receive(&mut self.proto, message) {
            self.hear(&event);
        }
    }

    fn hear(&mut self, event: &Event) {
        match event {
            Event::Reply(reply) => *self.ends.entry(reply.token).or_default() += 1,
            Event::Failed { token, .. } => *self.ends.entry(*token).or_default() += 1,
            Event::Dropped(_) | Event::Closed(_) => {}
            other => panic!("a client does not do this: {other:?}"),
        }
    }
}

/// A server under fire, and the calls it has taken.
struct Server {
    proto: Proto,
    taken: HashMap<SlotId, Vec<u8>>,
}

impl Server {
    fn new() -> Self {
        Self { proto: connection(Side::Server), taken: HashMap::new() }
    }

    fn receive(&mut self, message: &[u8], room: u16) {
        for event in receive(&mut self.proto, message) {
            match event {
                Event::Call(slot) => self.hold(slot, message),
                Event::Pull(slot) => {
                    self.hold(slot, message);
                    self.fetch(slot, room);
                }
                Event::Error(..) | Event::Refused(..) => {}
                Event::Dropped(_) | Event::Closed(_) => {}
                other => panic!("a server does not do this: {other:?}"),
            }
        }
        assert_eq!(self.proto.responder.in_progress() as usize, self.taken.len());
        assert!(self.taken.len() <= SLOTS);
    }

    fn hold(&mut self, slot: SlotId, message: &[u8]) {
        assert!(self.taken.keys().all(|taken| taken.index != slot.index), "a slot taken twice");
        self.taken.insert(slot, message.to_vec());
    }

    /// Fetches all chunks of a call; every byte of each is read exactly once.
    fn fetch(&mut self, slot: SlotId, room: u16) {
        let (message, mut out) = (&self.taken[&slot], Recorder::default());
        let responder = &mut self.proto.responder;
        let plan = *responder.pull_plan(slot).unwrap();
        let mut filled = vec![0; plan.chunks().len()];
        loop {
            let asked = responder.pull(slot, &view(message), room, &mut out);
            for event in out.take() {
                let Event::Read(read) = event else { panic!("{event:?}") };
                assert_eq!(read.at, filled[usize::from(read.chunk)]);
                filled[usize::from(read.chunk)] += read.from.length;
            }
            let last = (0..asked).map(|_| responder.on_read_done(slot, &mut out)).last();
            if last == Some(Pulled::Complete) {
                break;
            }
        }
        assert_eq!(out.take(), [Event::Call(slot)]);
        let lengths: Vec<_> = plan.chunks().iter().map(|chunk| chunk.length).collect();
        assert_eq!(filled, lengths);
    }

    /// Answers every call; the peer can read the reply.
    fn answer_all(&mut self) {
        let mut out = Recorder::default();
        for (slot, message) in self.taken.drain() {
            let call = view(&message);
            let placed: Vec<u32> =
                call.writes().map(|chunk| chunk.total_length() as u32 / 2).collect();
            let long_bytes = call.reply_chunk().map(|chunk| chunk.total_length() as u32);
            let mut header = vec![0; v1::reply_header_bytes(&call)];
            let shape = ReplyShape { placed: &placed, long_bytes };
            let responder = &mut self.proto.responder;
            let length = responder.reply(slot, &call, &shape, &mut header, &mut out).unwrap();
            assert_eq!(length, header.len());
            assert_eq!(view(&header).writes().len(), call.writes().len());
            assert!(out.take().iter().all(|event| matches!(event, Event::Write(_))));
        }
        assert_eq!(self.proto.responder.in_progress(), 0);
    }
}

proptest! {
    #[test]
    fn a_client_survives_any_messages(messages in vec(made(), 0..60)) {
        let mut client = Client::new();
        for made in &messages {
            client.call();
            client.receive(&made.message(client.xid));
        }
        let Client { mut proto, mut ends, next_token, .. } = client;
        proto.requester.on_down(|_, token| {
            *ends.entry(token.unwrap_or(u64::MAX)).or_default() += 1;
        });
        prop_assert_eq!(ends.len() as u64, next_token);
        prop_assert!(ends.values().all(|count| *count == 1));
    }

    /// Messages to either end, with XIDs of that end's calls and with others.
    #[test]
    fn an_end_that_calls_and_serves_survives_any_messages(
        connects: bool,
        messages in vec((made(), any::<bool>()), 0..60),
    ) {
        let mut client = Client::of(both_ways(if connects { Side::Client } else { Side::Server }));
        for (at, (made, is_ours)) in messages.iter().enumerate() {
            client.call();
            let xid = if *is_ours { client.xid } else { Xid(at as u32) };
            for event in receive(&mut client.proto, &made.message(xid)) {
                match event {
                    Event::Call(slot) | Event::Pull(slot) => {
                        prop_assert!(client.proto.responder.abandon(slot));
                    }
                    Event::Error(..) | Event::Refused(..) => {}
                    other => client.hear(&other),
                }
            }
        }
        prop_assert_eq!(client.proto.responder.in_progress(), 0);
        let Client { mut proto, mut ends, next_token, .. } = client;
        proto.requester.on_down(|_, token| {
            *ends.entry(token.unwrap_or(u64::MAX)).or_default() += 1;
        });
        prop_assert_eq!(ends.len() as u64, next_token);
        prop_assert!(ends.values().all(|count| *count == 1));
    }

    #[test]
    fn a_server_survives_any_messages(messages in vec((made(), 1..5_u16), 0..60)) {
        let mut server = Server::new();
        for (at, (made, room)) in messages.iter().enumerate() {
            server.receive(&made.message(Xid(at as u32)), *room);
            if at % 7 == 6 {
                server.answer_all();
            }
        }
        server.answer_all();
    }
}

#[test]
fn the_good_messages_are_good() {
    let (mut client, mut server) = (Client::new(), Server::new());
    let (mut ended, mut served) = (HashSet::new(), 0);
    for (at, message) in good_messages(Xid(3)).iter().enumerate() {
        server.receive(message, 16);
        served += server.taken.len();
        server.answer_all();
        client.call();
        let answer = &good_messages(client.xid)[at];
        client.receive(answer);
        ended.extend(client.ends.keys().copied());
    }
    assert!(served >= 5 && ended.len() >= 4, "{served} calls served, {} ended", ended.len());
}
