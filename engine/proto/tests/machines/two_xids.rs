//! Messages whose transport header and RPC message have different XIDs (RFC 5666 section 4.1, both drafts
//! section 4.1), and RDMA_MSGPs that have no RPC message.

use crate::prelude::*;
use crate::two;

const XID: Xid = Xid(0x0102_0304);
const OTHER: Xid = Xid(0xaabb_ccdd);
const DRAFTS: [Profile; 2] = [Profile::Draft00, Profile::Draft03];
const RFCS: [Profile; 2] = [Profile::Rfc5666, Profile::Rfc8166];

/// A call of this XID whose RPC message has another one: without lists, with a Read chunk, and padded.
fn calls() -> [Vec<u8>; 3] {
    [
        Chunks::none().msg(XID, 32, &rpc_call(OTHER)),
        Chunks::none().read(40, 1, 8).msg(XID, 32, &rpc_call(OTHER)),
        Chunks::none().msgp(XID, 32, &rpc_call(OTHER)),
    ]
}

/// "This XID mirrors the XID in the RPC call header, and takes precedence": the call is one of the
/// header's XID, and so is its reply.
#[test]
fn receive_a_call_of_two_xids_under_the_drafts_expect_the_one_of_the_header_to_count() {
    for profile in DRAFTS {
        for call in calls() {
            let mut server = Server::under(profile, 4, 0);
            let events = server.receive(&call);
            let slot = match events[..] {
                [Event::Call(slot)] => slot,
                [Event::Pull(slot)] => {
                    assert_eq!(server.responder.pull(slot, &view(&call), 9, |_| {}), 1);
                    server.responder.on_read_done(slot);
                    slot
                }
                _ => panic!("{profile:?}: {events:?}"),
            };
            let mut header = [0; 28];
            server.responder.reply_chunkless(slot, view(&call).xid(), &mut header).unwrap();
            assert_eq!(header[..4], XID.0.to_be_bytes());
        }
    }
}

#[test]
fn receive_a_reply_of_two_xids_under_the_drafts_expect_it_to_answer_the_call_of_its_header() {
    for profile in DRAFTS {
        for padded in [false, true] {
            let mut caller = Caller::under(profile, 4);
            let (first, lists) = (caller.call(7), Chunks::none());
            let reply = match padded {
                true => lists.msgp(first.xid, 4, &rpc_reply(OTHER)),
                false => lists.msg(first.xid, 4, &rpc_reply(OTHER)),
            };
            let events = caller.receive(&reply);
            let [Event::Reply(reply)] = events[..] else { panic!("{profile:?}: {events:?}") };
            assert_eq!((reply.token, reply.slot), (7, first.slot));
            assert!(matches!(reply.stream, ReplyStream::Inline { .. }));
            assert_eq!(caller.requester.credits().granted(), 4);
            // One that the RPC message names, and the header does not, is not answered.
            let second = caller.call(8);
            let stray = lists.msg(Xid(!second.xid.0), 4, &rpc_reply(second.xid));
            assert_eq!(caller.receive(&stray), [Event::Dropped(Dropped::UnmatchedReply)]);
        }
    }
}

/// "This XID MUST be the same as the XID in the RPC header."
#[test]
fn receive_two_xids_under_rfc_5666_and_rfc_8166_expect_neither_a_call_nor_a_reply() {
    for profile in RFCS {
        for call in &calls()[..2] {
            let refused = [Event::Error(XID, 1, RdmaError::Chunk)];
            assert_eq!(Server::under(profile, 4, 0).receive(call), refused);
        }
        let mut caller = Caller::under(profile, 4);
        let call = caller.call(7);
        let events = caller.receive(&Chunks::none().msg(call.xid, 4, &rpc_reply(OTHER)));
        assert_eq!(events, [Event::Dropped(Dropped::MalformedReply)]);
        assert_eq!(caller.requester.credits().in_flight(), 1);
    }
}

/// The drafts are about version one.
#[test]
fn receive_two_xids_in_version_two_under_a_draft_expect_bad_header() {
    let requester = Requester::new(Vec::<CallSlot>::new(), 0);
    let responder = Responder::new(vec![ServeSlot::FREE; 4]);
    let mut server =
        Connection::new(Side::Server, requester, responder, two::BOTH, Profile::Draft00);
    let message = two::msg(Direction::Call, &Chunks::none(), XID, &rpc_call(OTHER));
    let events = receive(&mut server, &message);
    assert!(matches!(events[..], [Event::Error(XID, 2, _)]), "{events:?}");
}

/// What is behind the header has to be an RPC message under any rules: "MUST be followed by the RPC call
/// or RPC reply message body".
#[test]
fn receive_no_rpc_message_under_any_rules_expect_no_reply_and_no_call() {
    for profile in READ_PROFILES {
        for payload in [&[][..], &wire(&[XID.0]), &wire(&[XID.0, 2, 2, 3]), &rpc_call(XID)[..7]] {
            for padded in [false, true] {
                let message = |xid| match padded {
                    true => Chunks::none().msgp(xid, 4, payload),
                    false => Chunks::none().msg(xid, 4, payload),
                };
                let refused = [Event::Error(XID, 1, RdmaError::Chunk)];
                assert_eq!(Server::under(profile, 4, 0).receive(&message(XID)), refused);
                let mut caller = Caller::under(profile, 4);
                let call = caller.call(7);
                let events = caller.receive(&message(call.xid));
                assert_eq!(events, [Event::Dropped(Dropped::MalformedReply)], "{profile:?}");
                assert_eq!(caller.requester.credits().granted(), 1);
            }
        }
    }
}
