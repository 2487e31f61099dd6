//! Sends and receives.

use super::*;

/// Lengths of a receive: around the capacity of a ring's slots, and around common sizes.
const RECEIVES: [usize; 9] = [1, 64, 243, 244, 245, 492, 512, 1000, 1024];

/// Send messages of 0 to 600 bytes and of the longest kind. Expect each as it was sent.
pub(crate) fn messages_of_every_length_arrive_as_they_were_sent<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    let longest = pair.near.fabric.caps().message_bytes_max;
    for length in (0..600).chain([1000, 4096, longest - 1, longest]) {
        let message = pattern(length, length);
        pair.far.post_recvs(pair.at_far, 1);
        pair.near.send(pair.at_near, &message);
        assert_eq!(pair.next_far(pair.at_far), Event::Message(message, None));
    }
}

/// Send 10,000 messages, the queues being full most of the time. Expect them in order.
pub(crate) fn messages_arrive_in_the_order_of_posting<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    let (mut sent, mut posted, mut received) = (0_usize, 0, 0);
    pair.until("all messages", |pair| {
        while posted < received + 20 {
            pair.far.post_recvs(pair.at_far, 1);
            posted += 1;
        }
        let most = if pair.limits.never_waits_for_receives { posted } else { 10_000 };
        while sent < most.min(10_000) && pair.near.try_send(pair.at_near, &numbered(sent)) {
            sent += 1;
        }
        while let Some(event) = pair.far.next(pair.at_far) {
            assert_eq!(event, Event::Message(numbered(received), None));
            received += 1;
        }
        (received == 10_000).then_some(())
    });
}

/// A message that names itself, of a length that varies.
fn numbered(number: usize) -> Vec<u8> {
    let mut message = pattern(8 + number * 7 % 700, number);
    message[..8].copy_from_slice(&number.to_ne_bytes());
    message
}

/// Send both ways at once. Expect all of it, each direction in order.
pub(crate) fn messages_in_both_directions_do_not_disturb_each_other<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    for round in 0..500 {
        pair.near.post_recvs(pair.at_near, 2);
        pair.far.post_recvs(pair.at_far, 2);
        for number in [2 * round, 2 * round + 1] {
            pair.near.send(pair.at_near, &numbered(number));
            pair.far.send(pair.at_far, &numbered(number + 1000));
        }
        for number in [2 * round, 2 * round + 1] {
            assert_eq!(pair.next_far(pair.at_far), Event::Message(numbered(number), None));
            let back = Event::Message(numbered(number + 1000), None);
            assert_eq!(pair.next_near(pair.at_near), back);
        }
    }
}

/// Send before a receive is posted. Expect the message when one is.
pub(crate) fn a_message_waits_for_a_receive_that_comes_in_time<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    pair.near.send(pair.at_near, b"early");
    if pair.limits.never_waits_for_receives {
        pair.expect_down();
        return;
    }
    for _ in 0..10 {
        pair.turn();
    }
    assert_eq!(pair.far.next(pair.at_far), None);
    pair.far.post_recvs(pair.at_far, 1);
    assert_eq!(pair.next_far(pair.at_far), Event::Message(b"early".to_vec(), None));
}

/// Send until the queue is full. Expect the last request back, untouched, and all others to arrive.
pub(crate) fn a_full_send_queue_gives_the_request_back_and_loses_nothing<P: Provider>(
    provider: &P,
) {
    let mut pair = Pair::new(provider);
    if pair.limits.never_waits_for_receives {
        let depth = pair.far.fabric.caps().recv_queue_depth;
        pair.far.post_recvs(pair.at_far, depth.into());
    }
    let mut sent = 0;
    let last = loop {
        let message = pair.near.message(&numbered(sent));
        match pair.near.fabric.post(pair.at_near, SendWr::Send { message, invalidate: None }) {
            Ok(()) => sent += 1,
            Err(Full(SendWr::Send { message, .. })) => break message,
            Err(Full(other)) => panic!("another request came back: {other:?}"),
        }
        assert!(sent < 1_000_000, "the queue has no end");
    };
    assert_eq!(last.bytes(), numbered(sent));
    assert_eq!(pair.near.fabric.room(pair.at_near), 0);
    for number in 0..sent {
        if !pair.limits.never_waits_for_receives {
            pair.far.post_recvs(pair.at_far, 1);
        }
        assert_eq!(pair.next_far(pair.at_far), Event::Message(numbered(number), None));
    }
    // A device says later than the peer that a message has left.
    pair.until("room in the queue", |pair| (pair.near.fabric.room(pair.at_near) > 0).then_some(()));
}

/// Post receives until the queue is full. Expect the last buffer back, and as many taken as `Caps`
/// say.
pub(crate) fn a_full_receive_queue_gives_the_buffer_back<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    let depth = pair.far.fabric.caps().recv_queue_depth;
    pair.far.post_recvs(pair.at_far, depth.into());
    let one_more = pair.far.message(b"mine");
    let Err(Full(buf)) = pair.far.fabric.post_recv(pair.at_far, one_more) else {
        panic!("more receives than the queue is deep");
    };
    assert_eq!(buf.bytes(), b"mine");
}

/// Send messages shorter than their receives, and as long. Expect each as it was sent.
pub(crate) fn a_message_fills_its_receive<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    for bytes in RECEIVES {
        for length in [0, bytes - 1, bytes] {
            let message = pattern(length, bytes);
            pair.far.post_recv_of(pair.at_far, bytes);
            pair.near.send(pair.at_near, &message);
            assert_eq!(pair.next_far(pair.at_far), Event::Message(message, None));
        }
    }
}
