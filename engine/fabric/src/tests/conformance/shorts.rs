//! Messages by value, where the driver has them; elsewhere the same traffic goes in posted buffers.

use super::*;

/// A connection on which a message has just arrived: over shared memory the first one after silence is not
/// delivered by value.
fn busy_pair<P: Provider>(provider: &P) -> Pair<P::Connector> {
    let mut pair = Pair::with_shorts(provider);
    pair.expect_alive();
    pair
}

/// Send messages of 0 to 300 bytes and some long ones, by value where that can be, over few receives.
/// Expect each in order as it was sent, and as many by value as are short enough, if any come so.
pub(crate) fn short_messages_arrive_in_order_with_long_ones<P: Provider>(provider: &P) {
    let mut pair = busy_pair(provider);
    let before = pair.far.shorts;
    let lengths = || (0..300).flat_map(|length| [length, length * 7 % 300, 1000 + length]);
    pair.far.post_recvs(pair.at_far, 3);
    for (number, length) in lengths().enumerate() {
        let message = pattern(length, number);
        pair.near.send_short(pair.at_near, &message);
        let by_value = pair.far.shorts;
        assert_eq!(pair.next_far(pair.at_far), Event::Message(message, None), "{length} bytes");
        if pair.far.shorts == by_value {
            pair.far.post_recvs(pair.at_far, 1);
        }
    }
    let short = lengths().filter(|length| *length <= SHORT_BYTES_MAX).count();
    assert_eq!(pair.far.shorts - before, if pair.far.takes_shorts { short } else { 0 });
}

/// Keep the receives of two short messages of three. Expect them, and room for one message more only.
pub(crate) fn a_short_message_gives_its_receive_to_who_keeps_it<P: Provider>(provider: &P) {
    let mut pair = busy_pair(provider);
    pair.far.post_recvs(pair.at_far, 3);
    pair.far.keeps_shorts = true;
    for number in 0..2_u8 {
        pair.near.send_short(pair.at_near, &[number]);
        assert_eq!(pair.next_far(pair.at_far), Event::Message(vec![number], None));
    }
    pair.far.keeps_shorts = false;
    assert_eq!(pair.far.kept(), if pair.far.takes_shorts { 2 } else { 0 });
    assert!(pair.far.fabric.receive_of_short(pair.at_far).is_none(), "one for each");
    for number in 0..9_u8 {
        pair.far.post_recvs(pair.at_far, 1);
        pair.near.send_short(pair.at_near, &[number]);
        assert_eq!(pair.next_far(pair.at_far), Event::Message(vec![number], None));
    }
}

/// Send three short messages to one receive whose message is kept. Expect the second one when there is
/// another receive.
pub(crate) fn no_more_short_messages_come_than_receives_are_posted<P: Provider>(provider: &P) {
    let mut pair = Pair::with_shorts(provider);
    if pair.limits.never_waits_for_receives {
        return;
    }
    pair.far.post_recvs(pair.at_far, 1);
    pair.far.keeps_shorts = true;
    for number in 0..3_u8 {
        pair.near.send_short(pair.at_near, &[number]);
    }
    pair.near.turn();
    for number in 0..3_u8 {
        assert_eq!(pair.next_far(pair.at_far), Event::Message(vec![number], None));
        for _ in 0..10 {
            pair.turn();
        }
        assert_eq!(pair.far.next(pair.at_far), None, "a receive is not posted");
        pair.far.post_recvs(pair.at_far, 1);
    }
}

/// Post a Write, and send a message by value behind it. Expect the bytes to be there when it arrives.
pub(crate) fn a_short_message_does_not_overtake_what_was_posted_before<P: Provider>(provider: &P) {
    let mut pair = Pair::with_shorts(provider);
    let (target, to) = expose(&mut pair, &[0; 4096], Access::RemoteWrite);
    pair.far.post_recvs(pair.at_far, 1);
    pair.far.turn();
    write(&mut pair, &pattern(4096, 5), to);
    pair.near.send_short(pair.at_near, b"written");
    assert_eq!(pair.next_far(pair.at_far), Event::Message(b"written".to_vec(), None));
    pair.far.revoke(pair.at_far, to.handle);
    assert_eq!(bytes_of(&target), pattern(4096, 5));
}

/// Send 40 messages at once, short ones and long ones, to three receives. Expect all of them in order: the
/// receives of short ones are there again in the next turn.
pub(crate) fn a_burst_of_short_messages_waits_for_its_receives<P: Provider>(provider: &P) {
    let mut pair = Pair::with_shorts(provider);
    if pair.limits.never_waits_for_receives {
        return;
    }
    pair.far.post_recvs(pair.at_far, 3);
    let message = |number: usize| pattern(if number % 5 == 4 { 300 } else { 40 }, number);
    let (mut sent, mut received) = (0, 0);
    pair.until("all messages", |pair| {
        while sent < 40 && pair.near.fabric.room(pair.at_near) > 0 {
            pair.near.send_short(pair.at_near, &message(sent));
            sent += 1;
        }
        while let Some(event) = pair.far.next(pair.at_far) {
            assert_eq!(event, Event::Message(message(received), None));
            if !pair.far.takes_shorts || received % 5 == 4 {
                pair.far.post_recvs(pair.at_far, 1);
            }
            received += 1;
        }
        (received == 40).then_some(())
    });
}

/// Keep as many messages of 300 bytes in flight on each of two connections as a turn takes. Expect both to
/// get on: evenly, unless a device decides on the order.
pub(crate) fn long_messages_of_one_connection_do_not_hold_up_others<P: Provider>(provider: &P) {
    let mut pair = busy_pair(provider);
    let ends = [(pair.at_near, pair.at_far), pair.connect()];
    let (mut received, mut sent) = ([0_usize; 2], [0_usize; 2]);
    let total_max = if pair.limits.serves_in_its_own_order { usize::MAX } else { 160 };
    pair.until("20 messages of each connection", |pair| {
        for (index, (near, far)) in ends.into_iter().enumerate() {
            while pair.far.next(far).is_some() {
                received[index] += 1;
            }
            while sent[index] - received[index] < 16 && pair.near.fabric.room(near) > 0 {
                pair.far.post_recvs(far, 1);
                pair.near.send(near, &[7; 300]);
                sent[index] += 1;
            }
        }
        let both_get_on = received.iter().all(|count| *count >= 20);
        let total = received.iter().sum::<usize>();
        assert!(both_get_on || total < total_max, "{received:?}");
        both_get_on.then_some(())
    });
}

/// Keep as many Reads in flight on one connection as complete in a turn. Expect messages of 300 bytes on
/// another one to arrive all the same.
pub(crate) fn reads_of_one_connection_do_not_hold_up_messages_of_others<P: Provider>(provider: &P) {
    let mut pair = busy_pair(provider);
    let (other_near, other_far) = pair.connect();
    let mut memory = pair.near.bulk(pair.at_near, &[5; 64]);
    let lease = memory.lease(0..64);
    let from = pair.near.fabric.expose(pair.at_near, lease, Access::RemoteRead, None).unwrap();
    if pair.limits.exposes_by_request {
        pair.expect_alive();
    }
    let reads_max = usize::from(pair.far.fabric.caps().reads_max).min(32);
    let (mut reads, mut sent, mut received) = (0, 0, 0);
    pair.until("40 messages", |pair| {
        while let Some(event) = pair.far.next(pair.at_far) {
            assert_eq!(event, Event::Read(WrId(1), Ok(())));
            reads -= 1;
        }
        while reads < reads_max && pair.far.fabric.room(pair.at_far) > 0 {
            let into = pair.far.bulk(pair.at_far, &[0; 64]).lease(0..64);
            pair.far.post(pair.at_far, SendWr::Read { id: WrId(1), from, into });
            reads += 1;
        }
        while pair.far.next(other_far).is_some() {
            received += 1;
        }
        while sent - received < 4 && pair.near.fabric.room(other_near) > 0 {
            pair.far.post_recvs(other_far, 1);
            pair.near.send(other_near, &[7; 300]);
            sent += 1;
        }
        (received >= 40).then_some(())
    });
}
