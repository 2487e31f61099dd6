//! Receives of two buffers.

use super::pair::pattern;
use super::{Event, Pair, Provider};
use crate::{DownCause, Fabric, WrError};

/// Lengths of the first buffer: around the capacity of a ring's slots, and around common sizes.
const HEADS: [usize; 9] = [1, 64, 243, 244, 245, 492, 512, 1000, 1024];
const TAIL: usize = 3000;

/// Send messages shorter than the first of two buffers, as long, and longer. Expect the first
/// filled before the second, and the rest at the start of that one.
pub(crate) fn a_message_runs_on_into_the_second_buffer_of_its_receive<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    assert_eq!(pair.far.fabric.caps().recv_buffers_max, 2);
    for head in HEADS {
        let around = [0, head.saturating_sub(1), head, head + 1, head + 300, head + TAIL];
        for length in around {
            let message = pattern(length, head);
            pair.far.post_chain(pair.at_far, head, TAIL);
            pair.near.send(pair.at_near, &message);
            let Event::Message(in_head, None) = pair.next_far(pair.at_far) else {
                panic!("no message of {length} bytes for a head of {head}");
            };
            let tail = pair.far.tails.pop_front().unwrap();
            assert_eq!(in_head, message[..length.min(head)]);
            match length.checked_sub(head) {
                Some(behind) => assert_eq!(tail.bytes(), &message[head..][..behind]),
                None => assert_eq!(tail.len(), TAIL, "what nothing lies in keeps its room"),
            }
        }
    }
}

/// Send messages while single buffers and chains are posted. Expect all of them whole.
pub(crate) fn single_and_chained_receives_serve_one_queue<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    for round in 0..50 {
        pair.far.post_recvs(pair.at_far, 3);
        pair.far.post_chain(pair.at_far, 512, TAIL);
        for number in 0..4 {
            let message = pattern(700 * number, round + number);
            pair.near.send(pair.at_near, &message);
            let Event::Message(mut bytes, None) = pair.next_far(pair.at_far) else {
                panic!("message {number} of round {round} was lost");
            };
            if let Some(tail) = pair.far.tails.pop_front().filter(|_| bytes.len() == 512) {
                bytes.extend_from_slice(tail.bytes());
            }
            assert_eq!(bytes, message);
        }
    }
}

/// Send a message longer than both buffers. Expect a length error at both ends, and the receive
/// back with its tail.
pub(crate) fn a_message_longer_than_its_chain_ends_the_connection<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    pair.far.post_chain(pair.at_far, 512, TAIL);
    pair.near.send(pair.at_near, &vec![1; 512 + TAIL + 1]);
    assert_eq!(pair.next_far(pair.at_far), Event::RecvFlushed);
    assert_eq!(pair.far.tails.len(), 1);
    let cause = DownCause::WorkRequest(WrError::Length);
    pair.expect_causes(&cause, &cause);
}
