//! A client that changes a long call after it was fetched. What is opened is private memory: the call is executed as it was
//! when it was fetched.

use super::hostile::connect_beside;
use super::long_bodies::{LONG, Turned};
use super::*;
use std::net::IpAddr;

const CALLS: u64 = 12;

/// Of a call that was dropped.
const DROPPED: Answer = Answer::Verified(AcceptStatus::SystemErr);

#[test]
fn a_call_that_is_changed_while_it_is_opened_is_executed_as_it_was_fetched() {
    let data = pattern(3, LONG);
    for service in [GssService::Integrity, GssService::Privacy] {
        let mut all = Turned::start();
        let host = IpAddr::from([192, 0, 2, 1]);
        let mut foe = connect_beside(&all.engine, &all.address, host);
        for calls in 1..=CALLS {
            let with = foe.credential(service);
            let begun = all.engine.gss_stats().long_bodies;
            let slice = foe.send_long(with, LATER, &opaque(&data));
            all.turn_until("its begin", |all| all.engine.gss_stats().long_bodies > begun);
            foe.peer.rewrite(slice, 0, &vec![0xa5; LONG]);
            let mut executed = None;
            all.turn_until("an answer", |all| {
                if let Some((data, _)) = lock(&all.seen.deferred).pop() {
                    executed = Some(data);
                }
                match foe.peer.poll() {
                    Some(Said::Message(message)) => foe.peer.unhear(message),
                    Some(Said::Down(cause)) => panic!("{cause}"),
                    None => return false,
                }
                true
            });
            assert_eq!(foe.hear(with.0), DROPPED, "{service:?}");
            assert_eq!(executed.as_ref(), Some(&data), "{service:?}");
            foe.peer.forget_rewritten();
            assert_eq!(all.calls(), calls);
        }
    }
}
