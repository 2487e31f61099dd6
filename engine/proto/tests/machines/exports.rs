//! Answers of a responder with a Read list, and the RDMA_DONEs it is owed for them (RFC 5666
//! sections 3.3, 3.8, 5.2 and 11).

use spinrpc_proto::version::TransportVersion::One;

use crate::prelude::*;

const SHORT: ReplyShape<'_> = ReplyShape { placed: &[], long_bytes: None };

fn item(position: u32) -> ReadSegment {
    ReadSegment { position, target: segment(9, 500) }
}

/// A call that is answered with a Read list: its slot, its header, and whether it is kept back.
struct Answered {
    slot: SlotId,
    header: Vec<u8>,
    kept: bool,
}

impl Server {
    fn reads(
        &mut self,
        message: &[u8],
        shape: &ReplyShape<'_>,
        reads: &[ReadSegment],
        deadline: Instant,
    ) -> Result<Answered, ReplyRefused> {
        let slot = delivered(&self.receive(message));
        let call = view(message);
        let mut room = vec![0xee; ReplyRepr::bytes_of(&call, reads.len()) + 4];
        let Self { responder, out } = self;
        let write = |write| out.write(write);
        let reply =
            responder.reply_by_read(slot, &call, shape, reads, deadline, &mut room, write)?;
        let header = room.split_off(room.len() - reply.header_bytes);
        assert_eq!(room, [0xee; 4]);
        Ok(Answered { slot, header, kept: reply.kept })
    }

    /// Answers a plain call with one item to fetch.
    fn owe(&mut self, xid: u32, deadline: u64) -> Answered {
        self.reads(&plain_call(Xid(xid)), &SHORT, &[item(24)], Instant(deadline)).unwrap()
    }
}

#[test]
fn a_reply_names_its_items_in_its_read_list() {
    // R5666-13, D5666-6: without a Write list the items are returned by Read list.
    for profile in READ_PROFILES {
        let mut server = Server::under(profile, 4, 4);
        let answered = server.owe(7, 100);
        assert!(!answered.kept);
        let header = view(&answered.header);
        assert_eq!((header.message_type(), header.xid()), (MessageType::Msg, Xid(7)));
        assert_eq!(header.reads().collect::<Vec<_>>(), [item(24)]);
        assert!(header.writes().is_empty() && header.reply_chunk().is_none());
    }
}

#[test]
fn a_long_reply_is_a_position_zero_chunk_of_an_rdma_nomsg() {
    // R5666-45, both drafts section 5.2; the Write list comes back together with it.
    let call = Chunks::none().write(&[segment(1, 100)]).msg(Xid(7), 32, &rpc_call(Xid(7)));
    let mut server = Server::under(Profile::Draft03, 4, 4);
    let shape = ReplyShape { placed: &[40], long_bytes: None };
    let answered = server.reads(&call, &shape, &[item(0)], NEVER).unwrap();
    let header = view(&answered.header);
    assert_eq!(header.message_type(), MessageType::Nomsg);
    assert_eq!(header.reads().collect::<Vec<_>>(), [item(0)]);
    assert_eq!(header.writes().next().unwrap().total_length(), 40);
    assert!(matches!(server.out.take()[..], [Event::Write(_)]));
}

#[test]
fn receive_rdma_done_expect_the_exports_to_end_and_no_answer() {
    // R5666-18, D5666-11, D5666-13: RDMA_DONE ends the exports of its XID and is not answered.
    let mut server = Server::under(Profile::Rfc5666, 4, 4);
    let (first, second) = (server.owe(7, 100), server.owe(8, 100));
    assert_eq!(server.responder.dones_owed(), 2);
    assert_eq!(server.responder.grant(), 3);
    assert_eq!(server.receive(&rdma_done(Xid(8))), [Event::FreeExports(second.slot)]);
    assert_eq!(server.receive(&rdma_done(Xid(8))), [Event::Dropped(Dropped::Done)]);
    assert_eq!(server.receive(&rdma_done(Xid(7))), [Event::FreeExports(first.slot)]);
    assert_eq!((server.responder.dones_owed(), server.responder.in_progress()), (0, 0));
}

#[test]
fn receive_rdma_done_expect_its_credit_in_the_next_credit_word() {
    // R5666-28: "the server SHOULD replenish any credit consumed by its use of such exchanges at its
    // earliest opportunity": the next message that leaves has it, whatever that is.
    let mut server = Server::under(Profile::Rfc5666, 8, 8);
    for xid in 0..4 {
        server.owe(xid, 100);
    }
    for (xid, grant) in [(0, 5), (1, 6), (2, 7), (3, 8)] {
        server.receive(&rdma_done(Xid(xid)));
        let message = plain_call(Xid(9));
        let slot = delivered(&server.receive(&message));
        let mut plain = [0; 28];
        server.responder.reply_chunkless(slot, Xid(9), &mut plain).unwrap();
        assert_eq!(view(&plain).credits(), grant, "after RDMA_DONE of {xid}");
        let slot = delivered(&server.receive(&message));
        let mut whole = [0; 28];
        server.responder.reply(slot, &view(&message), &SHORT, &mut whole, |_| {}).unwrap();
        assert_eq!(view(&whole).credits(), grant);
        assert_eq!(server.responder.grant(), grant, "of refusals and errors");
    }
}

#[test]
fn receive_rdma_done_for_what_is_not_owed_expect_it_dropped() {
    // Draft -00 section 3.6 lets a requester think that RDMA_DONE is due for calls: dropped.
    for profile in READ_PROFILES {
        let mut server = Server::under(profile, 4, 4);
        assert_eq!(server.receive(&rdma_done(Xid(7))), [Event::Dropped(Dropped::Done)]);
        let slot = delivered(&server.receive(&plain_call(Xid(7))));
        assert_eq!(server.receive(&rdma_done(Xid(7))), [Event::Dropped(Dropped::Done)]);
        assert!(server.responder.is_delivered(slot), "a call in progress stays");
        server.owe(9, 100);
        assert_eq!(server.receive(&rdma_done(Xid(7))), [Event::Dropped(Dropped::Done)]);
        assert_eq!(server.responder.dones_owed(), 1);
    }
}

#[test]
fn rfc_8166_exports_nothing() {
    let mut server = Server::under(Profile::Rfc8166, 4, 4);
    assert!(!server.responder.may_export());
    let refused = server.reads(&plain_call(Xid(7)), &SHORT, &[item(24)], NEVER);
    assert_eq!(refused.err(), Some(ReplyRefused::ChunkTooSmall));
    assert_eq!(server.out.take(), []);
    assert_eq!(server.responder.in_progress(), 0);
}

#[test]
fn beyond_the_cap_a_reply_is_refused() {
    // R5666-66: one client cannot have everything exported.
    let mut server = Server::under(Profile::Rfc5666, 8, 2);
    server.owe(1, 100);
    server.owe(2, 100);
    assert!(!server.responder.may_export());
    let refused = server.reads(&plain_call(Xid(3)), &SHORT, &[item(24)], NEVER);
    assert_eq!(refused.err(), Some(ReplyRefused::ChunkTooSmall));
    assert_eq!(server.out.take(), []);
    server.receive(&rdma_done(Xid(1)));
    assert!(server.responder.may_export());
}

#[test]
fn beyond_the_cap_a_reply_that_must_be_a_read_chunk_waits() {
    // Both drafts, section 5.2: "the message must be returned as a Read chunk".
    for profile in [Profile::Draft00, Profile::Draft03] {
        let mut server = Server::under(profile, 8, 2);
        assert!(!server.owe(1, 100).kept && !server.owe(2, 100).kept);
        assert!(server.responder.may_export());
        let waiting = [3, 4, 5].map(|xid| server.owe(xid, 100));
        assert!(waiting.iter().all(|reply| reply.kept) && server.responder.dones_owed() == 2);
        assert_eq!(server.responder.send_kept(waiting[0].slot, NEVER), None);
        server.receive(&rdma_done(Xid(1)));
        assert!(server.responder.send_kept(waiting[0].slot, Instant(200)).is_some());
        assert_eq!(server.responder.send_kept(waiting[1].slot, NEVER), None, "one for each");
        // The end of a window frees one as well.
        assert!(server.responder.overdue_export(Instant(100)).is_some());
        assert!(server.responder.send_kept(waiting[1].slot, NEVER).is_some());
        // One whose wait is over is answered in another way.
        assert!(server.responder.give_up_kept(waiting[2].slot));
        assert!(!server.responder.give_up_kept(waiting[2].slot));
        assert!(!server.responder.give_up_kept(waiting[1].slot), "it is on its way");
        server.receive(&rdma_done(Xid(3)));
        server.receive(&rdma_done(Xid(4)));
        assert_eq!((server.responder.in_progress(), server.responder.grant()), (0, 8));
        let mut none = Server::under(profile, 8, 0);
        assert!(
            !none.responder.may_export()
                && none.reads(&plain_call(Xid(3)), &SHORT, &[item(24)], NEVER).is_err()
        );
    }
}

#[test]
fn what_is_owed_counts_against_the_grant_but_leaves_room_for_itself_and_a_call() {
    // R5666-4, -8, -26, -28, -67: credits shrink as RDMA_DONEs are owed, never below the number
    // that they and one call take, and come back at once.
    let mut server = Server::under(Profile::Rfc5666, 8, 8);
    let grants: Vec<_> = (0..7).map(|xid| view(&server.owe(xid, 100).header).credits()).collect();
    assert_eq!(grants, [7, 6, 5, 5, 6, 7, 8]);
    for xid in 0..7 {
        server.receive(&rdma_done(Xid(xid)));
    }
    assert_eq!(server.responder.grant(), 8);
    for slots in 1..20 {
        let mut server = Server::under(Profile::Rfc5666, slots, 64);
        for xid in 0..slots.max(2) as u32 - 1 {
            assert!(!server.owe(xid, 100).kept);
            let (grant, owed) = (server.responder.grant(), server.responder.dones_owed());
            assert!(grant >= 1 && grant <= slots as u32);
            assert!(grant > owed || slots == 1, "{slots} slots: {grant} with {owed} owed");
        }
    }
}

#[test]
fn a_reply_is_kept_back_when_no_slot_would_be_left() {
    // R5666-68: "it MUST withhold its reply to at least one message in order to provide the next
    // credit".
    let mut server = Server::under(Profile::Rfc5666, 3, 8);
    assert!(!server.owe(1, 100).kept && !server.owe(2, 100).kept);
    let mut third = server.owe(3, 100);
    assert!(third.kept);
    assert_eq!(server.responder.send_kept(third.slot, Instant(200)), None);
    assert_eq!(server.receive(&rdma_done(Xid(3))), [Event::Dropped(Dropped::Done)], "not sent yet");
    server.receive(&rdma_done(Xid(1)));
    let credits = server.responder.send_kept(third.slot, Instant(200)).unwrap();
    set_credits(&mut third.header, credits);
    assert_eq!(view(&third.header).credits(), server.responder.grant());
    assert_eq!(server.responder.dones_owed(), 2);
    assert_eq!(server.responder.send_kept(third.slot, Instant(200)), None, "sent once");
}

#[test]
fn a_kept_reply_carries_the_credit_word_of_when_it_leaves() {
    // R5666-68: it is "the next credit" that it brings, not that of when it was written.
    let mut server = Server::under(Profile::Rfc5666, 8, 8);
    (0..7).for_each(|xid| drop(server.owe(xid, 100)));
    let mut kept = server.owe(7, 100);
    assert!(kept.kept);
    assert_eq!(view(&kept.header).credits(), 8);
    let before = kept.header.clone();
    (0..5).for_each(|xid| drop(server.receive(&rdma_done(Xid(xid)))));
    let credits = server.responder.send_kept(kept.slot, Instant(200)).unwrap();
    assert_eq!(credits, 5, "three are owed now");
    set_credits(&mut kept.header, credits);
    assert_eq!(view(&kept.header).credits(), 5);
    assert_eq!((&kept.header[..8], &kept.header[12..]), (&before[..8], &before[12..]));
    set_credits(&mut kept.header[..11], 6);
    assert_eq!(view(&kept.header).credits(), 5, "a message that is too short is left alone");
}

#[test]
fn kept_replies_count_among_those_that_may_be_exported() {
    let mut server = Server::under(Profile::Rfc5666, 3, 4);
    (0..2).for_each(|xid| drop(server.owe(xid, 100)));
    assert!(server.owe(2, 100).kept && server.responder.may_export());
    let mut server = Server::under(Profile::Rfc5666, 3, 3);
    (0..2).for_each(|xid| drop(server.owe(xid, 100)));
    assert!(server.owe(2, 100).kept && !server.responder.may_export());
}

#[test]
fn replies_that_are_kept_back_go_in_their_order() {
    let mut server = Server::under(Profile::Rfc5666, 4, 8);
    for xid in 1..=3 {
        server.owe(xid, 100);
    }
    let fourth = server.owe(4, 100);
    assert!(fourth.kept);
    server.receive(&rdma_done(Xid(1)));
    let fifth = server.owe(5, 100);
    assert!(fifth.kept, "the fourth comes first");
    assert!(server.responder.send_kept(fourth.slot, Instant(200)).is_some());
    assert_eq!(server.responder.send_kept(fifth.slot, Instant(200)), None);
}

#[test]
fn with_one_credit_the_only_reply_is_not_kept_back() {
    let mut server = Server::under(Profile::Rfc5666, 1, 8);
    let only = server.owe(1, 100);
    assert!(!only.kept);
    assert_eq!(view(&only.header).credits(), 1);
    assert_eq!(server.receive(&plain_call(Xid(2))), [Event::Refused(Xid(2), One)]);
    server.receive(&rdma_done(Xid(1)));
    delivered(&server.receive(&plain_call(Xid(2))));
}

#[test]
fn when_its_window_is_over_an_export_ends_and_rdma_done_comes_too_late() {
    // R5666-23, -69: "a time-based window of buffer availability may be offered".
    let mut server = Server::under(Profile::Rfc5666, 4, 4);
    let (late, early) = (server.owe(1, 300), server.owe(2, 200));
    assert_eq!(server.responder.next_export_deadline(), Instant(200));
    assert_eq!(server.responder.overdue_export(Instant(199)), None);
    assert_eq!(server.responder.overdue_export(Instant(250)), Some(early.slot));
    assert_eq!(server.responder.overdue_export(Instant(250)), None);
    assert_eq!(server.responder.next_export_deadline(), Instant(300));
    assert_eq!(server.receive(&rdma_done(Xid(2))), [Event::Dropped(Dropped::Done)]);
    assert_eq!(server.responder.overdue_export(Instant(300)), Some(late.slot));
    assert_eq!(server.responder.overdue_export(Instant(u64::MAX)), None);
    assert_eq!((server.responder.dones_owed(), server.responder.grant()), (0, 4));
}

#[test]
fn a_kept_reply_has_its_window_from_when_it_leaves() {
    let mut server = Server::under(Profile::Rfc5666, 2, 4);
    let first = server.owe(1, 100);
    let second = server.owe(2, 100);
    assert_eq!(server.responder.overdue_export(Instant(100)), Some(first.slot));
    assert_eq!(server.responder.overdue_export(Instant(100)), None, "it has not left");
    assert!(server.responder.send_kept(second.slot, Instant(500)).is_some());
    assert_eq!(server.responder.overdue_export(Instant(499)), None);
    assert_eq!(server.responder.overdue_export(Instant(500)), Some(second.slot));
}

#[test]
fn write_lengths_count_the_roundup_under_rfc_5666_only() {
    // D5666-10: "the chunk length sent to the receiver in the reply is
    // simply increased to include any roundup"; RFC 8166 section 3.4.6.2: exact.
    for (profile, counted) in [
        (Profile::Rfc8166, false),
        (Profile::Rfc5666, true),
        (Profile::Draft03, false),
        (Profile::Draft00, false),
    ] {
        for placed in 1..=12_u32 {
            let chunk = [segment(1, 4), segment(2, 5), segment(3, 100)];
            let call = Chunks::none().write(&chunk).msg(Xid(7), 32, &rpc_call(Xid(7)));
            let mut server = Server::under(profile, 2, 2);
            let slot = delivered(&server.receive(&call));
            let mut header = vec![0; ReplyRepr::bytes_of(&view(&call), 0)];
            let shape = ReplyShape { placed: &[placed], long_bytes: None };
            let Server { responder, out } = &mut server;
            responder
                .reply(slot, &view(&call), &shape, &mut header, |write| out.write(write))
                .unwrap();
            let returned = view(&header).writes().next().unwrap();
            let roundup = if counted { placed.next_multiple_of(4) - placed } else { 0 };
            assert_eq!(returned.total_length(), u64::from(placed + roundup), "{placed}");
            let lengths: Vec<_> = returned.segments().map(|segment| segment.length).collect();
            let used = lengths.iter().filter(|length| **length > 0).count();
            let segments = [4, 9].iter().filter(|end| **end < placed).count() + 1;
            assert_eq!(used, segments, "only the last one grows: {lengths:?}");
            let written: u32 = out.take().iter().map(written_bytes).sum();
            assert_eq!(written, placed, "roundup is not transferred");
        }
    }
}

fn written_bytes(event: &Event) -> u32 {
    match event {
        Event::Write(write) => write.to.length,
        other => panic!("{other:?}"),
    }
}
