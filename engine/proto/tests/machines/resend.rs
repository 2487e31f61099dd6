//! Calls that outlive their connection: their XIDs, the new connection's credits, and slots that
//! are not lost (RFC 5666 section 8, RFC 8166 section 3.3.3). `requester_holds_for_any_script` (../fuzz.rs) has the rest.

use crate::prelude::*;

const NO_CHUNKS: CallChunks = CallChunks::EMPTY;

#[test]
fn one_slot_more_than_credits_expect_room_for_a_call_while_all_others_are_held() {
    let slots = vec![CallSlot::FREE; 3];
    let mut requester = Requester::new(slots, 7).requesting(2);
    let mut header = [0; 28];
    requester.start_call(0, NEVER, &NO_CHUNKS, &mut header).unwrap();
    assert_eq!(view(&header).credits(), 2);
    requester.suspend(|_, _| true);
    requester.start_call(1, NEVER, &NO_CHUNKS, &mut header).unwrap();
    assert_eq!(requester.check_room(), Err(CallRefused::NoCredit));
}

#[test]
fn a_call_sent_again_is_held_to_the_chunks_of_the_new_connection() {
    let offer =
        ChunkOffer { handle: 7, length: 64, offset: segment(7, 0).offset, segment_bytes: 0 };
    let mut chunks = CallChunks::EMPTY;
    assert!(chunks.push_write(offer));
    let lists = Chunks::none().write(&[segment(7, 5)]);
    let resent = |chunks: &CallChunks| {
        let mut caller = Caller::granted(1);
        let call = caller.call(0);
        caller.requester.suspend(|_, _| true);
        caller.requester.resend(call.slot, chunks, &mut [0; 200]).unwrap();
        caller.receive(&lists.msg(call.xid, 1, &rpc_reply(call.xid)))
    };
    let events = resent(&chunks);
    assert!(matches!(events[..], [Event::Reply(reply)] if reply.placed[0] == 5), "{events:?}");
    let events = resent(&NO_CHUNKS);
    let changed = Event::Closed(PeerMisbehaved::WriteListChanged);
    assert_eq!(events.last(), Some(&changed), "{events:?}");
}
