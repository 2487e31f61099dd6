//! Waiting for credits, and for events of the connection.

use super::*;
use crate::common::small_with;
use spinrpc::ConnectionEvent;

/// `credit_stalls` counts calls that the application could not start, not how often the core looked for a credit.
#[test]
fn calls_that_wait_for_a_credit_are_no_stalls() {
    let server = Server::with(small_with(|raw| raw.rpc.credits = 1));
    let pair = Pair::of(server, |_| {}, &ConnectOptions::new());
    let pending: Vec<_> = (0..4).map(|number| pair.later(number)).collect();
    for (number, call) in pending.into_iter().enumerate() {
        pair.wait_for_deferred(1);
        pair.server.shared.answer_all();
        assert_eq!(call.wait().unwrap().results().u32().unwrap(), number as u32);
    }
    let stats = || pair.engine.stats(0).unwrap();
    wait_until("the counts of four calls", || stats().calls_sent >= 4);
    assert_eq!(stats().credit_stalls, 0);
}

#[test]
fn the_events_of_a_handles_connection_come_to_its_function() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&heard);
    let options = ConnectOptions::new()
        .reconnect(Reconnect::default().first_delay(Duration::from_micros(100)))
        .on_event(move |event| lock(&keep).push(event.clone()));
    let pair = Pair::with(|_| {}, &options);
    let count = || lock(&heard).len();
    wait_until("the connection", || count() == 1);
    pair.server.engine.shutdown();
    wait_until("its loss", || count() >= 2);
    pair.client.close();
    wait_until("its end", || {
        matches!(lock(&heard).last(), Some(ConnectionEvent::Down { cause: DownCause::Local, .. }))
    });
    let events = lock(&heard);
    let begins = matches!(
        events[..],
        [ConnectionEvent::Up { .. }, ConnectionEvent::Reconnecting { attempt: 1, .. }, ..]
    );
    assert!(begins, "{events:?}");
}
