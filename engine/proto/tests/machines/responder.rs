//! Calls that a responder accepts, and its answers to the others (RFC 5666 sections 3.3, 3.4 and 4,
//! RFC 8166 sections 3.3, 3.4 and 4.2 to 4.6).

use spinrpc_proto::version::TransportVersion::One;

use crate::prelude::*;

const XID: Xid = Xid(0xaabb_ccdd);
const ERR_CHUNK: Event = Event::Error(XID, 1, RdmaError::Chunk);

/// Events that a message causes on a new connection, and the number of calls in progress after it.
fn receive(message: &[u8]) -> (Vec<Event>, u32) {
    let mut server = Server::new(2);
    let events = server.receive(message);
    (events, server.responder.in_progress())
}

/// Expects the message answered with ERR_CHUNK, and no slot taken.
fn err_chunk(message: &[u8]) {
    assert_eq!(receive(message), (vec![ERR_CHUNK], 0), "{message:x?}");
}

fn drops(message: &[u8], why: Dropped) {
    assert_eq!(receive(message), (vec![Event::Dropped(why)], 0), "{message:x?}");
}

#[test]
fn receive_a_plain_call() {
    let (events, in_progress) = receive(&plain_call(XID));
    delivered(&events);
    assert_eq!(in_progress, 1);
}

#[test]
fn receive_a_call_whose_two_xids_differ() {
    // RFC 5666 section 4.1: the XID of the header is that of the RPC message.
    err_chunk(&Chunks::none().msg(XID, 32, &rpc_call(Xid(XID.0 + 1))));
    let lists = Chunks::none().write(&[segment(1, 8)]);
    err_chunk(&lists.msg(XID, 32, &rpc_call(Xid(XID.0 + 1))));
}

#[test]
fn receive_rdma_msg_without_an_rpc_message() {
    err_chunk(&Chunks::none().msg(XID, 32, &[]));
    err_chunk(&Chunks::none().msg(XID, 32, &wire(&[XID.0])));
    err_chunk(&Chunks::none().msg(XID, 32, &wire(&[XID.0, 2, 2, 3])));
    err_chunk(&Chunks::none().read(40, 1, 8).msg(XID, 32, &wire(&[XID.0])));
}

#[test]
fn receive_a_reply_where_calls_are_served() {
    // RFC 8166 section 4.5: a reply is never answered with an RDMA_ERROR.
    drops(&plain_reply(XID, 32), Dropped::WrongDirection);
    drops(&Chunks::none().msg(XID, 32, &rpc_reply(Xid(1))), Dropped::WrongDirection);
    let lists = Chunks::none().write(&[segment(1, 8)]);
    drops(&lists.msg(XID, 32, &rpc_reply(XID)), Dropped::WrongDirection);
}

#[test]
fn receive_the_types_that_are_reserved() {
    // RFC 8166 section 4.6: RDMA_MSGP is answered with ERR_CHUNK, RDMA_DONE dropped. Section 4.5:
    // an error is never answered.
    err_chunk(&Chunks::none().msgp(XID, 32, &rpc_call(XID)));
    drops(&rdma_done(XID), Dropped::Done);
    drops(&rdma_error(XID, 1, &[2]), Dropped::UnexpectedError);
    drops(&rdma_error(XID, 1, &[1, 1, 1]), Dropped::UnexpectedError);
}

#[test]
fn receive_a_call_that_offers_room_for_results_only() {
    let lists = Chunks::none().write(&[segment(1, 8)]).reply(&[segment(2, 4096)]);
    let (events, in_progress) = receive(&lists.msg(XID, 32, &rpc_call(XID)));
    delivered(&events);
    assert_eq!(in_progress, 1);
}

#[test]
fn receive_a_call_with_read_chunks() {
    let message = Chunks::none().read(40, 1, 1000).msg(XID, 32, &rpc_call(XID));
    assert!(matches!(receive(&message), (events, 1) if matches!(events[..], [Event::Pull(_)])));
}

#[test]
fn receive_a_long_call() {
    // RFC 5666 section 5.1: the message is in the Position-Zero Read chunk.
    for (lists, behind) in [
        (Chunks::none().read(0, 1, 5000), vec![]),
        (Chunks::none().read(0, 1, 5000).read(0, 2, 10), vec![]),
        // Further chunks may follow, at positions in that message, in any order.
        (Chunks::none().read(40, 3, 100).read(0, 1, 5000), vec![]),
        // Bytes behind an RDMA_NOMSG mean nothing.
        (Chunks::none().read(0, 1, 5000), rpc_reply(Xid(3))),
    ] {
        let (events, in_progress) = receive(&[lists.nomsg(XID, 32), behind].concat());
        to_pull(&events);
        assert_eq!(in_progress, 1, "{lists:?}");
    }
}

#[test]
fn receive_a_call_with_its_message_in_no_place_or_two() {
    err_chunk(&Chunks::none().nomsg(XID, 32));
    err_chunk(&Chunks::none().read(40, 1, 8).nomsg(XID, 32));
    err_chunk(&Chunks::none().reply(&[segment(2, 4096)]).nomsg(XID, 32));
    err_chunk(&Chunks::none().read(0, 1, 5000).msg(XID, 32, &rpc_call(XID)));
}

/// True if a call of 40 bytes inline may have these Read chunks.
fn takes(reads: &[(u32, u32)]) -> bool {
    let lists =
        reads.iter().fold(Chunks::none(), |lists, (at, length)| lists.read(*at, 1, *length));
    match receive(&lists.msg(XID, 32, &rpc_call(XID))) {
        (events, 1) if matches!(events[..], [Event::Pull(_)]) => true,
        (events, 0) if events == [ERR_CHUNK] => false,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_position_lies_in_the_message_once_the_chunks_before_it_are_out() {
    // RFC 8166 section 3.4.5: positions count in the stream with nothing taken out.
    assert!(takes(&[(40, 1000)]));
    assert!(takes(&[(4, 1000)]));
    assert!(!takes(&[(44, 1000)]));
    assert!(!takes(&[(0xffff_fffc, 4)]));
    assert!(takes(&[(36, 1000), (1040, 8)]), "36 bytes, the first chunk, 4 bytes, the second");
    assert!(!takes(&[(36, 1000), (1044, 8)]));
    assert!(takes(&[(36, 1000), (1036, 8)]), "chunks may touch");
}

#[test]
fn chunks_do_not_overlap() {
    assert!(!takes(&[(36, 1000), (40, 8)]));
    assert!(!takes(&[(36, 1000), (1032, 8)]));
    assert!(!takes(&[(40, 8), (36, 8)]), "in whatever order they come");
    assert!(takes(&[(36, 0), (40, 0)]));
}

#[test]
fn an_item_takes_its_roundup_whether_the_chunk_has_it_or_not() {
    // RFC 5666 section 3.7, RFC 8166 section 3.4.5.2.
    for length in 13..=16 {
        assert!(takes(&[(36, length), (52, 8)]));
        assert!(takes(&[(36, length), (56, 8)]));
        assert!(!takes(&[(36, length), (48, 8)]));
        assert!(!takes(&[(36, length), (60, 8)]));
    }
}

#[test]
fn positions_of_a_long_call_lie_in_its_message() {
    let fits = |position| {
        let lists = Chunks::none().read(position, 2, 100).read(0, 1, 5000);
        matches!(receive(&lists.nomsg(XID, 32)).0[..], [Event::Pull(_)])
    };
    assert!(fits(4) && fits(5000));
    assert!(!fits(5004));
}

#[test]
fn a_call_beyond_the_grant_gets_an_rpc_error() {
    // RFC 5666 section 3.3: a responder may answer it so.
    let mut server = Server::new(2);
    server.receive(&plain_call(XID));
    server.receive(&Chunks::none().read(40, 1, 1000).msg(XID, 32, &rpc_call(XID)));
    let refused = [Event::Refused(XID, One)];
    assert_eq!(server.receive(&plain_call(XID)), refused);
    let write = Chunks::none().write(&[segment(1, 8)]);
    assert_eq!(server.receive(&write.msg(XID, 32, &rpc_call(XID))), refused);
    assert_eq!(server.receive(&Chunks::none().read(0, 1, 80).nomsg(XID, 32)), refused);
    assert_eq!(server.responder.in_progress(), 2);
}

#[test]
fn the_grant_is_never_zero() {
    // RFC 8166 section 3.3.1.
    for (slots, grant) in [(0, 1), (1, 1), (32, 32)] {
        assert_eq!(Server::new(slots).responder.grant(), grant);
    }
    assert_eq!(Server::new(0).receive(&plain_call(XID)), [Event::Refused(XID, One)]);
}

#[test]
fn every_slot_has_an_index_of_its_own() {
    assert_eq!(SLOTS_MAX, 65_536, "as many as indices");
    let mut responder = Responder::new(vec![ServeSlot::FREE; SLOTS_MAX + 1]);
    assert_eq!(responder.grant() as usize, SLOTS_MAX);
    let (bytes, mut out) = (plain_call(XID), Recorder::default());
    for index in 0..SLOTS_MAX {
        out.arriving(|out| responder.on_receive(&view(&bytes), out));
        let events = out.take();
        let same = matches!(events[..], [Event::Call(slot)] if usize::from(slot.index) == index);
        assert!(same, "{events:?}");
    }
    out.arriving(|out| responder.on_receive(&view(&bytes), out));
    assert_eq!(out.take(), [Event::Refused(XID, One)]);
}

/// RFC 5666 section 3.3: the requested value "MAY be dynamically adjusted by the caller".
#[test]
fn receive_calls_that_ask_for_any_number_of_credits() {
    let mut server = Server::new(4);
    for (xid, credits) in [(1, 1), (2, u32::MAX), (3, 0), (4, 7)] {
        let call = Chunks::none().msg(Xid(xid), credits, &rpc_call(Xid(xid)));
        let [Event::Call(slot)] = server.receive(&call)[..] else { panic!("no call: {credits}") };
        assert_eq!(server.responder.grant(), 4);
        let mut header = [0; 28];
        match credits {
            // Both kinds of replies say the same.
            1 | 7 => server.responder.reply_chunkless(slot, Xid(xid), &mut header).unwrap(),
            _ => {
                let shape = ReplyShape { placed: &[], long_bytes: None };
                let call = view(&call);
                server.responder.reply(slot, &call, &shape, &mut header, |_| {}).unwrap()
            }
        };
        assert_eq!(view(&header).credits(), 4, "asked for {credits}");
    }
}

#[test]
fn calls_taken_are_counted() {
    let mut server = Server::new(2);
    assert!(!server.responder.was_called());
    for count in 1..4 {
        let slot = delivered(&server.receive(&plain_call(XID)));
        assert_eq!(server.responder.calls_taken(), count);
        assert!(server.responder.was_called() && server.responder.abandon(slot));
    }
}
