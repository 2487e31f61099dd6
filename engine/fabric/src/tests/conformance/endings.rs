//! Ends of a connection: by error, by graceful shutdown, or by the peer's disappearance.

use super::*;

/// Send a message longer than the posted buffer. Expect a length error at both ends, and the
/// receives back.
pub(crate) fn a_message_longer_than_its_receive_ends_the_connection<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    let longest = pair.near.fabric.caps().message_bytes_max;
    let small = small_buffer(longest);
    pair.far.fabric.post_recv(pair.at_far, small).unwrap();
    pair.near.send(pair.at_near, &vec![1; longest]);
    assert_eq!(pair.next_far(pair.at_far), Event::RecvFlushed);
    let cause = DownCause::WorkRequest(WrError::Length);
    pair.expect_causes(&cause, &cause);
}

fn small_buffer(length: usize) -> crate::mem::Buf {
    use crate::mem::{BufPool, Region};
    use crate::sys::mmap::{Mapping, PageRequest};
    let region_bytes = BufPool::region_bytes(length / 2, 1).unwrap();
    let region = Mapping::anonymous(region_bytes, PageRequest::default()).unwrap();
    BufPool::new(Region::from_mapping(region), length / 2, 1).unwrap().take().unwrap()
}

/// Send with no receive posted, and wait. Expect "receiver not ready" at both ends, or the message outstanding until
/// there is a receive.
pub(crate) fn no_receive_for_too_long_ends_the_connection<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    pair.near.send(pair.at_near, b"to no receiver");
    if pair.limits.waits_without_end {
        let oldest = |pair: &Pair<P::Connector>| pair.far.fabric.outstanding(pair.at_far).numbers;
        (0..100).for_each(|_| pair.turn());
        let first = oldest(&pair);
        (0..100).for_each(|_| pair.turn());
        assert!(first.is_some() && oldest(&pair) == first, "nothing has changed");
        pair.far.post_recvs(pair.at_far, 1);
        assert_eq!(pair.next_far(pair.at_far), Event::Message(b"to no receiver".to_vec(), None));
        return assert_eq!(oldest(&pair), None);
    }
    let cause = DownCause::ReceiverNotReady;
    pair.expect_causes(&cause, &cause);
}

/// Close with receives, Reads and Sends posted. Expect receives and Reads back, then Down, then
/// nothing.
pub(crate) fn closing_gives_back_what_was_posted_and_then_says_down<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    let (_bulk, slice) = expose(&mut pair, &[1; 64], Access::RemoteRead);
    pair.near.post_recvs(pair.at_near, 20);
    let bulk = read(&mut pair, 4, slice);
    let message = pair.near.message(b"lost or not");
    pair.near.post(pair.at_near, SendWr::Send { message, invalidate: None });
    pair.near.fabric.close(pair.at_near);
    let mut receives = 0;
    let mut reads = Vec::new();
    let cause = loop {
        match pair.next_near(pair.at_near) {
            Event::RecvFlushed => receives += 1,
            Event::Read(id, result) => reads.push((id, result)),
            Event::Message(..) | Event::Revoked(_) => panic!("an event that was not asked for"),
            Event::Down(cause) => break cause,
        }
    };
    assert_eq!((receives, cause), (20, DownCause::Local));
    assert_eq!(reads, [(WrId(4), Err(WrError::Flushed))]);
    assert!(!bulk.is_leased(), "a flushed Read holds memory");
    for _ in 0..100 {
        pair.turn();
    }
    assert_eq!(pair.near.next(pair.at_near), None);
}

/// Send, then close. Expect the messages, then Down.
pub(crate) fn what_was_sent_before_a_close_arrives_before_the_end<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    let receives = if pair.limits.never_waits_for_receives { (10, 0) } else { (0, 10) };
    pair.far.post_recvs(pair.at_far, receives.0);
    for number in 0..10 {
        pair.near.send(pair.at_near, &[number; 40]);
    }
    pair.near.fabric.flush();
    pair.near.fabric.close(pair.at_near);
    pair.far.post_recvs(pair.at_far, receives.1);
    for number in 0..10 {
        assert_eq!(pair.next_far(pair.at_far), Event::Message(vec![number; 40], None));
    }
    let Event::Down(cause) = pair.next_far(pair.at_far) else { panic!("more than was sent") };
    assert!(P::agrees(&DownCause::Remote, &cause), "{cause:?}");
}

/// Post until the send queue is full, and close when nothing is unsent any more. Expect every
/// message, then the end.
pub(crate) fn what_has_left_a_full_queue_arrives_before_the_end<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    assert!(!pair.near.fabric.outstanding(pair.at_near).is_unsent);
    let depth = pair.far.fabric.caps().recv_queue_depth;
    pair.far.post_recvs(pair.at_far, depth.into());
    let (mut sent, mut arrived) = (0_u16, 0);
    while sent < depth && pair.near.try_send(pair.at_near, &sent.to_be_bytes()) {
        sent += 1;
    }
    pair.near.fabric.flush();
    while pair.near.fabric.outstanding(pair.at_near).is_unsent {
        assert_eq!(pair.next_far(pair.at_far), numbered(arrived));
        arrived += 1;
        pair.near.fabric.flush();
    }
    pair.near.fabric.close(pair.at_near);
    assert!(!pair.near.fabric.outstanding(pair.at_near).is_unsent);
    for number in arrived..sent {
        assert_eq!(pair.next_far(pair.at_far), numbered(number));
    }
    // A send queue may be shorter than the receive queue at the other end.
    let mut ended = pair.next_far(pair.at_far);
    while matches!(ended, Event::RecvFlushed) {
        ended = pair.next_far(pair.at_far);
    }
    let Event::Down(cause) = ended else { panic!("{ended:?} behind {sent} messages") };
    assert!(P::agrees(&DownCause::Remote, &cause), "{cause:?}");
}

fn numbered(number: u16) -> Event {
    Event::Message(number.to_be_bytes().to_vec(), None)
}

/// Send more messages than the queues hold, then close. Expect that neither end is blamed for anything: what the close
/// itself posts names no memory of an earlier message.
pub(crate) fn a_close_after_many_messages_blames_no_end<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    for number in 0..200_u8 {
        pair.far.post_recvs(pair.at_far, 1);
        pair.near.send(pair.at_near, &[number; 300]);
        assert_eq!(pair.next_far(pair.at_far), Event::Message(vec![number; 300], None));
    }
    pair.near.fabric.close(pair.at_near);
    let ends = (pair.next_near(pair.at_near), pair.next_far(pair.at_far));
    let (Event::Down(DownCause::Local), Event::Down(cause)) = &ends else { panic!("{ends:?}") };
    let is_blamed = matches!(cause, DownCause::PeerMisbehaved(_) | DownCause::WorkRequest(_));
    assert!(!is_blamed, "{cause:?}");
}

/// Fail a Write, then close. Expect the failure as the cause.
pub(crate) fn the_first_cause_is_the_one_that_is_told<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    let (_bulk, slice) = expose(&mut pair, &[1; 64], Access::RemoteWrite);
    let nowhere = RemoteSlice { offset: u64::MAX - 8, ..slice };
    super::transfers::write(&mut pair, &[2; 64], nowhere);
    pair.near.fabric.flush();
    pair.near.fabric.close(pair.at_near);
    let cause = DownCause::WorkRequest(WrError::RemoteAccess);
    pair.expect_causes(&cause, &DownCause::Remote);
}

/// Post to a queue pair that went down. Expect everything back.
pub(crate) fn nothing_can_be_posted_after_the_end<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    let lease = pair.near.bulk(pair.at_near, &[1; 64]).lease(0..64);
    pair.near.fabric.close(pair.at_near);
    for ended in [false, true] {
        if ended {
            pair.expect_down();
        }
        assert!(!pair.near.try_send(pair.at_near, b"x"));
        assert_eq!(pair.near.fabric.room(pair.at_near), 0);
        let buf = pair.near.message(b"x");
        assert!(pair.near.fabric.post_recv(pair.at_near, buf).is_err());
    }
    let refused = pair.near.fabric.expose(pair.at_near, lease, Access::RemoteRead, None);
    assert_eq!(refused, Err(ExposeError::Down));
}

/// Close a connection and make others in its place. Expect that the old name reaches none of them.
pub(crate) fn an_old_name_does_not_reach_a_new_connection<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    let (old_near, old_far) = (pair.at_near, pair.at_far);
    pair.near.fabric.close(old_near);
    pair.expect_down();
    for _ in 0..70 {
        (pair.at_near, pair.at_far) = pair.connect();
        assert!(pair.at_near != old_near && pair.at_far != old_far);
        assert!(!pair.near.try_send(old_near, b"x"));
        pair.near.fabric.close(old_near);
        pair.expect_alive();
        pair.near.fabric.close(pair.at_near);
        pair.expect_down();
    }
}

/// Drop an endpoint unadopted. Expect its peer to go down.
pub(crate) fn an_endpoint_that_nobody_adopts_is_an_end_for_its_peer<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    let (near, ()) = pair.connect_with(|_, far| drop(far));
    match near {
        Some(near) => {
            let qp = pair.near.fabric.adopt(near).unwrap();
            let ended = pair.next_near(qp);
            assert!(matches!(ended, Event::Down(DownCause::Remote | DownCause::PeerDied)));
        }
        None => assert!(pair.limits.accepts_when_adopted, "it was refused"),
    }
    pair.expect_alive();
}

/// Drop the whole data plane of one end. Expect the other to go down.
pub(crate) fn a_data_plane_that_goes_ends_its_connections<P: Provider>(provider: &P) {
    let Pair { near, mut far, at_far, connector, .. } = Pair::new(provider);
    drop(near);
    let ended = (0..).find_map(|_| {
        far.turn();
        far.next(at_far)
    });
    let Some(Event::Down(cause)) = ended else { panic!("{ended:?} came first") };
    assert!(P::agrees(&DownCause::Remote, &cause), "{cause:?}");
    drop(connector);
}
