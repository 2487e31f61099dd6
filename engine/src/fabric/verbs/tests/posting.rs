//! Sends that are copied into their work requests, and receives that are posted in batches, on devices.

use super::super::{VerbsConfig, VerbsConnector};
use super::{RXE_HOST, SIW_HOST, address, config, connector};
use crate::fabric::Fabric;
use crate::fabric::conformance::{Event, Limits, Pair, Provider};

/// Receives of a connection, and how many of them are in reserve.
const RECEIVES: u16 = 32;
const BATCH: u16 = 8;

/// A device whose connections end with the first message that finds no receive: siw never waits for one, and
/// rxe is told not to.
struct Device {
    host: &'static str,
}

impl Provider for Device {
    type Connector = VerbsConnector;

    fn connector(&self) -> VerbsConnector {
        connector(VerbsConfig {
            recv_queue_depth: RECEIVES,
            recv_batch: BATCH,
            signal_every: 1,
            rnr_retry_count: 0,
            ..config()
        })
    }

    fn address(&self) -> String {
        address(self.host)
    }

    /// The tests post all receives before the first message.
    fn limits(&self) -> Limits {
        Limits { accepts_when_adopted: true, ..Limits::default() }
    }
}

/// A connection both of whose ends have all their receives.
fn pair(host: &'static str) -> Pair<VerbsConnector> {
    let mut pair = Pair::new(&Device { host });
    pair.far.post_recvs(pair.at_far, RECEIVES.into());
    pair.near.post_recvs(pair.at_near, RECEIVES.into());
    pair
}

macro_rules! over_both_devices {
    ($($name:ident,)+) => {
        mod siw {
            $(#[test] fn $name() { super::$name(super::SIW_HOST); })+
        }
        mod rxe {
            $(#[test] fn $name() { super::$name(super::RXE_HOST); })+
        }
    };
}

over_both_devices!(
    a_message_up_to_the_inline_limit_gives_its_buffer_back_when_it_is_posted,
    a_peer_that_uses_all_but_the_reserve_always_finds_a_receive,
);

/// Send messages as long as the device copies, and one byte longer. Expect the buffer of those back before any
/// completion, and the bytes at the peer although the buffer was overwritten.
fn a_message_up_to_the_inline_limit_gives_its_buffer_back_when_it_is_posted(host: &'static str) {
    let mut pair = pair(host);
    let limit = pair.near.fabric.inline_bytes(pair.at_near);
    assert!(limit >= 64, "the device copies no more than {limit} bytes");
    for (bytes, held) in [(1, 0), (limit, 0), (limit + 1, 1), (limit, 0)] {
        let free = pair.near.free_buffers();
        pair.near.send(pair.at_near, &vec![7; bytes]);
        pair.near.fabric.flush();
        assert!(!pair.near.fabric.has_unsent(pair.at_near));
        assert_eq!(free - pair.near.free_buffers(), held, "{bytes} of at most {limit} bytes");
        if held == 0 {
            drop(pair.near.message(&vec![9; bytes]));
        }
        assert_eq!(pair.next_far(pair.at_far), Event::Message(vec![7; bytes], None));
        pair.until("the buffer", |pair| (pair.near.free_buffers() == free).then_some(()));
    }
}

/// Keep as many messages on their way as the peer grants, and answer each. Expect no end of the connection, which
/// one missing receive would be, at either end.
fn a_peer_that_uses_all_but_the_reserve_always_finds_a_receive(host: &'static str) {
    const MESSAGES: u32 = 4000;
    const GRANTED: u32 = (RECEIVES - BATCH) as u32;
    let mut pair = pair(host);
    let (near, far) = (pair.at_near, pair.at_far);
    let mut sent = 0;
    for answered in 0..MESSAGES {
        let message = Event::Message(answered.to_be_bytes().to_vec(), None);
        let answer = pair.until("the answer", |pair| {
            // The device reports later than the peer that a message has left, so the queue may be full.
            let mut room = pair.near.fabric.send_room(near);
            while sent < MESSAGES && sent - answered < GRANTED && room > 0 {
                pair.near.send(near, &sent.to_be_bytes());
                (sent, room) = (sent + 1, room - 1);
            }
            pair.near.fabric.flush();
            answer_all(pair);
            pair.near.next(near)
        });
        assert_eq!(answer, message);
        pair.near.give_receive(near);
    }
    assert_eq!((sent, pair.far.next(far)), (MESSAGES, None));
}

/// Sends back what has arrived at the accepting end, as far as there is room.
fn answer_all(pair: &mut Pair<VerbsConnector>) {
    let (far, qp) = (&mut pair.far, pair.at_far);
    while far.fabric.send_room(qp) > 0
        && let Some(event) = far.next(qp)
    {
        let Event::Message(bytes, _) = event else { panic!("the connection ended: {event:?}") };
        far.give_receive(qp);
        far.send(qp, &bytes);
    }
    far.fabric.flush();
}
