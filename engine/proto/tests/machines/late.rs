//! Deadline propagation, the extension of `xdr/deadlines.md`.

use spinrpc_proto::connection::{Connection, Side};
use spinrpc_proto::deadlines::{DEADLINE_CALL, LATE, LATE_HEADER_BYTES, Support};
use spinrpc_proto::ids::Xid;
use spinrpc_proto::limits::Limits;
use spinrpc_proto::options::OptionalRefused;
use spinrpc_proto::output::{CallFailure, Dropped, PeerMisbehaved, SlotId};
use spinrpc_proto::payload::{CallChunks, ChunkOffer};
use spinrpc_proto::profile::Profile;
use spinrpc_proto::rdma::v2::DEADLINE_EXTRA_BYTES;
use spinrpc_proto::rdma::{HeaderView, MessageType, RdmaError};
use spinrpc_proto::requester::{CallSlot, Requester, StartedCall};
use spinrpc_proto::responder::{ReplyRefused, ReplyShape, Responder, ServeSlot};
use spinrpc_proto::rpc::Direction::{self, Call, Reply};
use spinrpc_proto::version::{Negotiation, Stage, TransportVersion, Versions};

use crate::messages::{Chunks, NEVER, rpc_call, rpc_reply, segment, wire};
use crate::recorder::{Event, Recorder};
use crate::two::{self, Proto, call, error, plain_reply, receive};

const XID: Xid = Xid(0xaabb_ccdd);
const KNOWING: Limits = Limits { versions: Versions::Both, deadlines: true, ..Limits::DEFAULT };

fn end(side: Side) -> Proto {
    let (calls, serves) = match side {
        Side::Client => (2, 0),
        Side::Server => (0, 2),
    };
    let mut requester = Requester::new(vec![CallSlot::FREE; calls], 0x0700_0000);
    requester.negotiate(Negotiation::new(Versions::Both));
    let responder = Responder::new(vec![ServeSlot::FREE; serves]);
    Connection::new(side, requester, responder, KNOWING, Profile::Rfc8166)
}

/// A client whose responder has answered in version two, and granted two credits.
fn client() -> Proto {
    let mut client = end(Side::Client);
    let (first, _) = call(&mut client, 0);
    receive(&mut client, &plain_reply(first.xid));
    client
}

/// RDMA2_OPTIONAL with this information, of so many words.
fn optional(direction: Direction, option: u32, info: &[u32], payload: &[u8]) -> Vec<u8> {
    let start = [XID.0, 2, 32, 5, direction.to_wire(), option, 4 * info.len() as u32];
    [&wire(&start), &wire(info), payload].concat()
}

/// A deadline call with the lists of `info` behind its time of 5000 microseconds.
fn deadline_call(lists: &[u32]) -> Vec<u8> {
    optional(Call, DEADLINE_CALL, &[&[0, 5000], lists].concat(), &rpc_call(XID))
}

fn late(xid: Xid, info: &[u32]) -> Vec<u8> {
    let mut message = optional(Reply, LATE, info, &[]);
    message[..4].copy_from_slice(&xid.0.to_be_bytes());
    message
}

fn view(message: &[u8]) -> HeaderView<'_> {
    HeaderView::new_checked(message, &KNOWING).unwrap()
}

fn start(client: &mut Proto, chunks: &CallChunks) -> (StartedCall, Vec<u8>) {
    let mut room = vec![0xee; 200];
    let requester = &mut client.requester;
    let (started, length) = requester.start_call_within(7, NEVER, 5000, chunks, &mut room).unwrap();
    assert_eq!(requester.negotiation().version(), TransportVersion::Two);
    let two = chunks.header_bytes_in(TransportVersion::Two);
    assert_eq!(length, two + DEADLINE_EXTRA_BYTES);
    (started, room.split_off(200 - length))
}

fn delivered(server: &mut Proto, message: &[u8]) -> SlotId {
    match receive(server, message)[..] {
        [Event::Call(slot)] => slot,
        ref other => panic!("no call: {other:?}"),
    }
}

#[test]
fn a_call_says_how_much_time_it_has_and_is_else_as_any() {
    let mut client = client();
    let (started, header) = start(&mut client, &CallChunks::EMPTY);
    let credits = client.requester.credits().requested();
    let words = [started.xid.0, 2, credits, 5, 0, DEADLINE_CALL, 20, 0, 5000, 0, 0, 0];
    assert_eq!(header, wire(&words));
    let message = [header, rpc_call(started.xid)].concat();
    let mut server = end(Side::Server);
    let slot = delivered(&mut server, &message);
    let view = view(&message);
    assert_eq!((view.remaining_us(), view.message_type()), (Some(5000), MessageType::Msg));
    assert_eq!(view.payload(), rpc_call(started.xid));
    assert!(!view.is_plain() && view.optional().is_none());
    let shape = ReplyShape { placed: &[], long_bytes: None };
    let mut reply = [0; 32];
    let mut out = Recorder::default();
    let length = server.responder.reply(slot, &view, &shape, &mut reply, &mut out).unwrap();
    let answer = [&reply[32 - length..], &rpc_reply(started.xid)].concat();
    assert!(matches!(receive(&mut client, &answer)[..], [Event::Reply(reply)] if reply.token == 7));
    assert_eq!(client.requester.deadlines(), Support::Known);
}

#[test]
fn a_call_with_chunks_has_its_lists_in_the_information() {
    let offer = ChunkOffer { handle: 9, length: 64, offset: 0x40, segment_bytes: 64 };
    let mut chunks = CallChunks::EMPTY;
    assert!(chunks.push_read(40, offer) && chunks.push_write(offer) && chunks.set_reply(offer));
    let mut client = client();
    let (started, header) = start(&mut client, &chunks);
    let message = [header, rpc_call(started.xid)].concat();
    let sent = view(&message);
    assert_eq!((sent.reads().count(), sent.writes().len()), (1, 1));
    assert!(sent.reply_chunk().is_some());
    let mut server = end(Side::Server);
    let events = receive(&mut server, &message);
    let [Event::Pull(slot)] = events[..] else { panic!("{events:?}") };
    assert_eq!(server.responder.pull_plan(slot).unwrap().chunks()[0].length, 64);
}

#[test]
fn a_long_call_has_nothing_behind_its_header() {
    let offer = ChunkOffer { handle: 9, length: 64, offset: 0x40, segment_bytes: 64 };
    let mut chunks = CallChunks::EMPTY;
    assert!(chunks.push_read(0, offer));
    let (_, message) = start(&mut client(), &chunks);
    assert_eq!(view(&message).message_type(), MessageType::Nomsg);
    assert!(matches!(receive(&mut end(Side::Server), &message)[..], [Event::Pull(_)]));
}

#[test]
fn a_call_that_is_late_is_answered_so_and_ends() {
    let mut client = client();
    let (started, header) = start(&mut client, &CallChunks::EMPTY);
    let mut server = end(Side::Server);
    let slot = delivered(&mut server, &[header, rpc_call(started.xid)].concat());
    let mut answer = [0xee; LATE_HEADER_BYTES + 4];
    let length = server.responder.reply_late(slot, started.xid, 1500, &mut answer).unwrap();
    assert_eq!(length, LATE_HEADER_BYTES);
    assert_eq!(answer[4..], wire(&[started.xid.0, 2, 2, 5, 1, LATE, 8, 0, 1500]));
    assert!(!server.responder.is_delivered(slot), "answered once");
    let again = server.responder.reply_late(slot, started.xid, 1500, &mut answer);
    assert_eq!(again, Err(OptionalRefused::Reply(ReplyRefused::Stale)));
    let failure = CallFailure::Late { late_us: 1500 };
    let ended = [Event::Failed { slot: started.slot, token: 7, failure, fenced: false }];
    assert_eq!(receive(&mut client, &answer[4..]), ended);
    assert_eq!(client.requester.credits().in_flight(), 0);
    let second = [Event::Dropped(Dropped::UnmatchedReply)];
    assert_eq!(receive(&mut client, &answer[4..]), second, "the call has ended");
}

#[test]
fn receive_late_for_a_call_that_was_given_up_expect_its_slot_free() {
    let mut client = client();
    let (started, _) = start(&mut client, &CallChunks::EMPTY);
    let mut out = Recorder::default();
    assert!(client.requester.cancel(started.slot, &mut out));
    let released = [Event::Released(started.slot)];
    assert_eq!(receive(&mut client, &late(started.xid, &[0, 1])), released);
}

#[test]
fn receive_late_for_a_call_that_named_no_time_expect_it_dropped() {
    let mut client = client();
    let (started, _) = call(&mut client, 3);
    let dropped = [Event::Dropped(Dropped::MalformedReply)];
    assert_eq!(receive(&mut client, &late(started.xid, &[0, 1])), dropped);
    assert_eq!(client.requester.credits().in_flight(), 1, "the call goes on");
}

#[test]
fn receive_late_that_is_not_as_described_expect_it_dropped() {
    let mut client = client();
    let (started, _) = start(&mut client, &CallChunks::EMPTY);
    let with_payload = [late(started.xid, &[0, 1]), vec![0; 4]].concat();
    let mut of_call = optional(Reply, DEADLINE_CALL, &[0, 1], &[]);
    of_call[..4].copy_from_slice(&started.xid.0.to_be_bytes());
    let short = late(started.xid, &[1]);
    for message in [with_payload, of_call, short, late(started.xid, &[0, 0, 1])] {
        let dropped = [Event::Dropped(Dropped::MalformedReply)];
        assert_eq!(receive(&mut client, &message), dropped, "{message:x?}");
    }
    assert_eq!(client.requester.credits().in_flight(), 1, "the call goes on");
}

#[test]
fn receive_late_of_direction_call_expect_bad_header() {
    let refused = [Event::Error(XID, 2, RdmaError::BadHeader)];
    let mut server = end(Side::Server);
    assert_eq!(receive(&mut server, &optional(Call, LATE, &[0, 1], &[])), refused);
    assert_eq!(server.responder.in_progress(), 0);
}

#[test]
fn receive_a_deadline_call_whose_information_is_too_short_or_too_long_expect_bad_header() {
    let mut server = end(Side::Server);
    let refused = [Event::Error(XID, 2, RdmaError::BadHeader)];
    let read = [1, 4, 9, 64, 0, 0x40];
    let beyond = [&read[..], &[0, 0]].concat();
    for lists in [&[][..], &[0], &[0, 0], &[0, 0, 0, 0], &read, &beyond, &[1, 4, 9]] {
        assert_eq!(receive(&mut server, &deadline_call(lists)), refused, "{lists:x?}");
    }
    for info in [&[][..], &[0]] {
        let message = optional(Call, DEADLINE_CALL, info, &rpc_call(XID));
        assert_eq!(receive(&mut server, &message), refused, "{info:x?}");
    }
    // Three bytes more than the lists, as information, and one of padding.
    let mut padded = deadline_call(&[0, 0, 0, 0]);
    padded[27] -= 1;
    assert_eq!(receive(&mut server, &padded), refused);
    let limited = [1, 4, 9, u32::MAX, 0, 0x40, 0, 0, 0];
    assert_eq!(receive(&mut server, &deadline_call(&limited)), refused, "limits hold here, too");
    assert_eq!(server.responder.in_progress(), 0);
    delivered(&mut server, &deadline_call(&[0, 0, 0]));
}

#[test]
fn receive_a_deadline_call_without_an_rpc_call_expect_bad_header() {
    let refused = [Event::Error(XID, 2, RdmaError::BadHeader)];
    let info = [0, 5000, 0, 0, 0];
    for payload in [&[][..], &rpc_reply(XID), &rpc_call(Xid(1))] {
        let message = optional(Call, DEADLINE_CALL, &info, payload);
        assert_eq!(receive(&mut end(Side::Server), &message), refused, "{payload:x?}");
    }
}

#[test]
fn receive_a_deadline_call_where_the_extension_is_not_known_expect_invalid_option() {
    let mut server = two::end(Side::Server, Versions::Both, 2);
    let refused = [Event::Error(XID, 2, RdmaError::InvalidOption)];
    assert_eq!(receive(&mut server, &deadline_call(&[0, 0, 0])), refused);
    let unknown = [Event::Dropped(Dropped::WrongDirection)];
    assert_eq!(receive(&mut server, &late(XID, &[0, 1])), unknown);
}

#[test]
fn receive_invalid_option_expect_the_call_again_without_its_time() {
    let mut client = client();
    let (started, _) = start(&mut client, &CallChunks::EMPTY);
    let refused = error(started.xid, 2, &[3]);
    assert_eq!(receive(&mut client, &refused), [Event::Resend(started.slot)]);
    assert_eq!(client.requester.deadlines(), Support::Refused, "for the connection");
    let mut room = [0; 32];
    let requester = &mut client.requester;
    let (again, length) = requester.resend(started.slot, &CallChunks::EMPTY, &mut room).unwrap();
    assert_eq!((again.xid, length), (started.xid, 32));
    assert_eq!(receive(&mut client, &late(started.xid, &[0, 1])), [MALFORMED], "not asked for");
    assert!(matches!(receive(&mut client, &plain_reply(started.xid))[..], [Event::Reply(_)]));
}

const MALFORMED: Event = Event::Dropped(Dropped::MalformedReply);

#[test]
fn receive_invalid_option_for_a_plain_call_expect_it_to_fail() {
    let mut client = client();
    let (started, _) = call(&mut client, 3);
    let failure = CallFailure::Rdma(RdmaError::InvalidOption);
    let failed = [Event::Failed { slot: started.slot, token: 3, failure, fenced: false }];
    assert_eq!(receive(&mut client, &error(started.xid, 2, &[3])), failed);
    assert_eq!(client.requester.deadlines(), Support::Unknown);
}

#[test]
fn receive_invalid_option_for_the_first_message_expect_the_version_still_open() {
    let mut client = end(Side::Client);
    let (started, _) = start(&mut client, &CallChunks::EMPTY);
    receive(&mut client, &error(started.xid, 2, &[3]));
    assert_eq!(client.requester.negotiation().stage(), Stage::Offered);
    assert_eq!(client.requester.negotiation().version(), TransportVersion::Two);
    // An old responder refuses the version before it looks at the option.
    let mut client = end(Side::Client);
    let (started, _) = start(&mut client, &CallChunks::EMPTY);
    let refused = error(started.xid, 2, &[1, 1, 1]);
    assert_eq!(receive(&mut client, &refused), [Event::Resend(started.slot)]);
    assert_eq!(client.requester.negotiation().version(), TransportVersion::One);
    let mut room = [0; 32];
    let (_, length) = client.requester.resend(started.slot, &CallChunks::EMPTY, &mut room).unwrap();
    assert_eq!(length, 28, "in version one, which has no such times");
}

#[test]
fn late_may_be_the_first_answer_of_a_connection() {
    let mut client = end(Side::Client);
    let (started, _) = start(&mut client, &CallChunks::EMPTY);
    receive(&mut client, &late(started.xid, &[0, 1]));
    assert_eq!(client.requester.negotiation().stage(), Stage::Settled);
    assert_eq!(client.requester.deadlines(), Support::Known);
}

#[test]
fn version_one_names_no_time() {
    let mut client = end(Side::Client);
    client.requester.negotiate(Negotiation::settled(TransportVersion::One));
    let mut room = [0; 28];
    let chunks = &CallChunks::EMPTY;
    let (started, length) =
        client.requester.start_call_within(7, NEVER, 5000, chunks, &mut room).unwrap();
    let credits = client.requester.credits().requested();
    assert_eq!((length, &room[..]), (28, &wire(&[started.xid.0, 1, credits, 0, 0, 0, 0])[..]));
}

#[test]
fn a_reply_has_to_return_the_chunks_of_its_call_as_any() {
    let mut client = client();
    let (started, _) = start(&mut client, &CallChunks::EMPTY);
    let strange = Chunks::none().reply(&[segment(9, 64)]);
    let message = two::msg(Reply, &strange, started.xid, &rpc_reply(started.xid));
    let closed = Event::Closed(PeerMisbehaved::ReplyChunkChanged);
    assert!(receive(&mut client, &message).contains(&closed));
}

#[test]
fn another_option_is_not_taken_for_one_of_the_extension() {
    let mut server = end(Side::Server).with_options(two::options());
    let message = optional(Call, two::ALONE, &[7], &[]);
    assert!(matches!(receive(&mut server, &message)[..], [Event::Optional(_)]));
    let mut client = client().with_options(two::options());
    let (started, _) = client_option(&mut client);
    let mut answer = optional(Reply, two::ALONE, &[7], &[]);
    answer[..4].copy_from_slice(&started.xid.0.to_be_bytes());
    let events = receive(&mut client, &answer);
    assert!(matches!(events[..], [Event::Optional(_)]), "{events:?}");
    let mut call_of_reply = optional(Reply, DEADLINE_CALL, &[0, 1, 0, 0, 0], &[]);
    call_of_reply[..4].copy_from_slice(&started.xid.0.to_be_bytes());
    assert!(HeaderView::new_checked(&call_of_reply, &KNOWING).unwrap().remaining_us().is_none());
    let other = optional(Call, two::ALONE, &[0, 5000, 0, 0, 0], &rpc_call(XID));
    assert!(HeaderView::new_checked(&other, &KNOWING).unwrap().remaining_us().is_none());
}

fn client_option(client: &mut Proto) -> (StartedCall, usize) {
    let mut room = [0; 64];
    client.requester.start_optional(3, NEVER, two::ALONE, b"inform", &mut room).unwrap()
}

#[test]
fn a_time_beyond_32_bits_is_what_was_said() {
    let info = [1, 2, 0, 0, 0];
    let message = optional(Call, DEADLINE_CALL, &info, &rpc_call(XID));
    assert_eq!(view(&message).remaining_us(), Some((1 << 32) + 2));
}

#[test]
fn a_call_that_is_late_is_answered_without_its_read_chunks() {
    let mut server = end(Side::Server);
    let lists = [1, 40, 9, 8, 0, 0, 0, 0, 0];
    let [Event::Pull(slot)] = receive(&mut server, &deadline_call(&lists))[..] else {
        panic!("a call to fetch")
    };
    let mut header = [0; LATE_HEADER_BYTES];
    let length = server.responder.reply_late(slot, XID, 9, &mut header);
    assert_eq!(length, Ok(LATE_HEADER_BYTES));
    assert_eq!(server.responder.in_progress(), 0);
}
