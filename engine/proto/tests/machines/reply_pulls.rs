//! Fetching of a reply by a requester, which ends it with RDMA_DONE (RFC 5666 sections 3.5, 3.8 and
//! 5.1).

use spinrpc_proto::reply_pull::PullEnd;

use crate::prelude::*;

impl Caller {
    /// The reply of a call that has to be fetched, and its result.
    fn pull(&mut self, message: &[u8]) -> DeliveredReply {
        match self.receive(message)[..] {
            [Event::PullReply(reply)] => reply,
            ref events => panic!("{events:?}"),
        }
    }

    fn ask(&mut self, call: StartedCall, message: &[u8], room: u16) -> Vec<Event> {
        let asked =
            self.requester.pull(call.slot, &view(message), room, |read| self.out.read(read));
        let events = self.out.take();
        assert_eq!(events.len(), usize::from(asked));
        events
    }

    /// Ends a pull; the message must be the RDMA_DONE of that call.
    fn end(&mut self, call: StartedCall) -> Option<PullEnd> {
        let mut done = [0; 16];
        let end = self.requester.end_pull(call.slot, &mut done)?;
        assert_eq!((view(&done).message_type(), view(&done).xid()), (MessageType::Done, call.xid));
        Some(end)
    }
}

fn items(xid: Xid, grant: u32) -> Vec<u8> {
    Chunks::none().read(24, 1, 500).read(24, 2, 100).msg(xid, grant, &rpc_reply(xid))
}

#[test]
fn a_reply_is_fetched_then_rdma_done_is_sent_then_it_is_delivered() {
    // R5666-18: "after completing such a transfer, the client MUST issue an RDMA_DONE".
    for profile in READ_PROFILES {
        let mut caller = Caller::granted_under(profile, 4);
        let call = caller.call(5);
        let message = items(call.xid, 4);
        let reply = caller.pull(&message);
        assert_eq!(reply.stream, ReplyStream::Inline { header_bytes: 28 + 2 * 24 });
        assert!(!caller.requester.is_pulled(call.slot) && caller.end(call).is_none());
        let plan = caller.requester.pull_plan(call.slot).unwrap().chunks();
        assert_eq!((plan.len(), plan[0].position, plan[0].length), (1, 24, 600));
        let read = |at, handle, length| {
            let from = segment(handle, length);
            Event::Read(ReadRequest { slot: call.slot, chunk: 0, at, from })
        };
        assert_eq!(caller.ask(call, &message, 1), [read(0, 1, 500)]);
        assert!(caller.requester.wants_reads(call.slot));
        assert_eq!(caller.requester.on_read_done(call.slot), Pulled::More);
        assert_eq!(caller.ask(call, &message, 9), [read(500, 2, 100)]);
        assert_eq!(caller.requester.on_read_done(call.slot), Pulled::Complete);
        assert_eq!(caller.end(call), Some(PullEnd::Deliver { token: 5 }));
        assert_eq!(caller.end(call), None, "exactly once");
    }
}

#[test]
fn a_long_reply_is_its_position_zero_chunk() {
    let mut caller = Caller::granted_under(Profile::Draft03, 4);
    let call = caller.call(5);
    let message = Chunks::none().read(0, 1, 5000).read(400, 2, 100).nomsg(call.xid, 4);
    assert_eq!(caller.pull(&message).stream, ReplyStream::Pulled);
    assert_eq!(caller.ask(call, &message, 9).len(), 2);
}

#[test]
fn read_chunks_and_write_chunks_may_come_in_one_reply() {
    let mut caller = Caller::granted_under(Profile::Rfc5666, 4);
    let mut chunks = CallChunks::EMPTY;
    let offset = segment(7, 0).offset;
    assert!(chunks.push_write(ChunkOffer { handle: 7, length: 64, offset, segment_bytes: 0 }));
    let (call, _) = caller.call_with(5, NEVER, &chunks);
    let lists = Chunks::none().read(32, 1, 500).write(&[segment(7, 5)]);
    let reply = caller.pull(&lists.msg(call.xid, 4, &rpc_reply(call.xid)));
    assert_eq!(reply.placed[0], 5);
    assert!(caller.requester.wants_reads(call.slot));
}

#[test]
fn a_read_list_that_cannot_be_ends_the_call_and_the_connection() {
    for (what, make, why) in [
        (
            "Position-Zero next to an inline message",
            (|xid| Chunks::none().read(0, 1, 500).msg(xid, 4, &rpc_reply(xid)))
                as fn(Xid) -> Vec<u8>,
            PeerMisbehaved::ReadListBroken,
        ),
        (
            "a position beyond the stream",
            |xid| Chunks::none().read(28, 1, 500).msg(xid, 4, &rpc_reply(xid)),
            PeerMisbehaved::ReadListBroken,
        ),
        (
            "chunks that overlap",
            |xid| Chunks::none().read(20, 1, 500).read(24, 1, 8).msg(xid, 4, &rpc_reply(xid)),
            PeerMisbehaved::ReadListBroken,
        ),
        (
            "no message at all",
            |xid| Chunks::none().read(24, 1, 500).nomsg(xid, 4),
            PeerMisbehaved::NoReplyStream,
        ),
        (
            "a Reply chunk that was not offered",
            |xid| Chunks::none().read(0, 1, 500).reply(&[segment(1, 8)]).nomsg(xid, 4),
            PeerMisbehaved::ReplyChunkChanged,
        ),
    ] {
        let mut caller = Caller::granted_under(Profile::Rfc5666, 4);
        let call = caller.call(5);
        let events = caller.receive(&make(call.xid));
        let failure = CallFailure::Misbehaved(why);
        let failed = Event::Failed { slot: call.slot, token: 5, failure, fenced: false };
        assert_eq!(events, [failed, Event::Closed(why)], "{what}");
        assert_eq!(caller.requester.credits().in_flight(), 0, "{what}");
    }
}

#[test]
fn a_call_given_up_while_its_reply_is_fetched_owes_rdma_done_all_the_same() {
    let mut caller = Caller::granted_under(Profile::Rfc5666, 4);
    let call = caller.call(5);
    let message = items(call.xid, 4);
    caller.pull(&message);
    caller.ask(call, &message, 1);
    assert_eq!(caller.requester.find(5), Some(call.slot));
    let failed = caller.requester.cancel(call.slot).unwrap();
    assert_eq!(caller.requester.cancel(call.slot), None);
    let failure = CallFailure::Cancelled;
    assert_eq!(failed, FailedCall { slot: call.slot, token: 5, failure, is_fenced: true });
    assert_eq!(caller.ask(call, &message, 9), [], "it is not fetched any further");
    assert!(caller.end(call).is_none(), "what was asked for goes into our memory");
    assert_eq!(caller.requester.on_read_done(call.slot), Pulled::Complete);
    assert_eq!(caller.end(call), Some(PullEnd::Release));
}

#[test]
fn receive_rdma_done_for_a_call_expect_it_dropped() {
    // Draft -00 section 3.6: the end that has fetched Read chunks sends an RDMA_DONE, a responder
    // too. The reply has the same meaning; until then the arguments stay where they are.
    let mut caller = Caller::granted_under(Profile::Draft00, 4);
    let call = caller.call(5);
    assert_eq!(caller.receive(&rdma_done(call.xid)), [Event::Dropped(Dropped::Done)]);
    assert_eq!(caller.receive(&rdma_done(Xid(1))), [Event::Dropped(Dropped::Done)]);
    assert!(matches!(caller.receive(&plain_reply(call.xid, 4))[..], [Event::Reply(_)]));
}

/// A call whose reply was fetched, with its RDMA_DONE sent.
fn fetched(caller: &mut Caller, grant: u32) {
    let call = caller.call(0);
    let message = items(call.xid, grant);
    caller.pull(&message);
    caller.ask(call, &message, 9);
    caller.requester.on_read_done(call.slot);
    caller.requester.on_read_done(call.slot);
    assert!(caller.end(call).is_some());
}

#[test]
fn rdma_done_takes_a_credit_until_a_call_behind_it_is_answered() {
    // R5666-27.
    let mut caller = Caller::granted_under(Profile::Rfc5666, 4);
    let before = caller.call(1);
    fetched(&mut caller, 4);
    assert_eq!(caller.requester.credits().in_flight(), 2, "the call before, and RDMA_DONE");
    let behind = caller.call(2);
    caller.receive(&plain_reply(before.xid, 4));
    assert_eq!(caller.requester.credits().dones(), 1, "that was sent before it");
    caller.receive(&plain_reply(behind.xid, 4));
    let credits = caller.requester.credits();
    assert_eq!((credits.dones(), credits.in_flight()), (0, 0));
}

#[test]
fn an_rdma_error_covers_rdma_done_as_a_reply_does() {
    let mut caller = Caller::granted_under(Profile::Rfc5666, 4);
    fetched(&mut caller, 4);
    let behind = caller.call(2);
    caller.receive(&rdma_error(behind.xid, 1, &[2]));
    assert_eq!(caller.requester.credits().in_flight(), 0);
}

#[test]
fn while_a_reply_is_fetched_its_credit_is_not_to_be_had() {
    let mut caller = Caller::granted_under(Profile::Rfc5666, 4);
    let call = caller.call(0);
    caller.pull(&items(call.xid, 1));
    assert_eq!(caller.requester.check_room(), Err(CallRefused::NoCredit));
}

#[test]
fn rdma_dones_that_are_owed_are_counted() {
    let mut caller = Caller::granted_under(Profile::Rfc5666, 4);
    for count in 1..4 {
        let call = caller.call(5);
        caller.pull(&items(call.xid, 4));
        assert_eq!(caller.requester.credits().dones(), count);
    }
}
