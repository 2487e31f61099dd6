//! Waiting for room, for credits, and for events of the connection.

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
        pair.answer_all();
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

/// Of two tasks that wait the first is given up when it has been woken: the second does not wait for another call to end.
#[test]
fn a_task_that_waits_for_room_is_woken_when_a_call_has_ended() {
    let mut pair = Pair::start();
    let client = pair.client.clone();
    let mut pending: Vec<_> = (0..CALLS as u32).map(|number| pair.later(number)).collect();
    pair.wait_for_deferred(CALLS);
    let tasks = [(); 2].map(|()| Arc::new(Count::default()));
    let [first, second] = tasks.clone().map(Waker::from);
    let encoded = AtomicUsize::new(0);
    let encode = |_: &mut Encoder<'_>| {
        encoded.fetch_add(1, Ordering::Relaxed);
    };
    let start = || Box::pin(client.start_when_free(NULL, CallSpec::short(), encode));
    let [mut one, mut other] = [start(), start()];
    assert!(one.as_mut().poll(&mut Context::from_waker(&first)).is_pending());
    assert!(other.as_mut().poll(&mut Context::from_waker(&second)).is_pending());
    assert_eq!((encoded.load(Ordering::Relaxed), pair.calls()), (0, CALLS as u64));

    let (_, call) = pair.server.shared.pop().unwrap();
    call.reply(|results| results.u32(0));
    drop(pending.remove(0).wait().unwrap());
    let woken = || tasks.each_ref().map(|task| task.0.load(Ordering::Relaxed));
    assert_eq!(woken(), [1, 0]);
    drop(one);
    assert_eq!(woken(), [1, 1]);
    let Poll::Ready(started) = other.as_mut().poll(&mut Context::from_waker(&second)) else {
        panic!("there is room")
    };
    started.unwrap().wait().unwrap();
    assert_eq!(encoded.load(Ordering::Relaxed), 1);
    pair.answer_all();
    pending.into_iter().for_each(|call| drop(call.wait().unwrap()));

    let pending: Vec<_> = (0..CALLS as u32).map(|number| pair.later(number)).collect();
    let mut late = start();
    assert!(late.as_mut().poll(&mut Context::from_waker(&first)).is_pending());
    pair.end_client();
    drop(pending);
    assert_eq!(woken(), [2, 1]);
    let Poll::Ready(refused) = late.as_mut().poll(&mut Context::from_waker(&first)) else {
        panic!("the core has ended")
    };
    assert_eq!(refused.err(), Some(Backpressure::Down));
}

#[test]
fn a_task_that_waits_for_room_hears_that_its_handle_is_closed() {
    let pair = Pair::start();
    // Their answers are not taken: there is no room before or after.
    let pending: Vec<_> = (0..CALLS as u32).map(|number| pair.later(number)).collect();
    let task = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&task));
    let mut waits = pin!(pair.client.start_when_free(NULL, CallSpec::short(), nothing));
    assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    pair.client.close();
    assert_eq!(task.0.load(Ordering::Relaxed), 1);
    let Poll::Ready(refused) = waits.as_mut().poll(&mut Context::from_waker(&waker)) else {
        panic!("the handle is closed")
    };
    assert_eq!(refused.err(), Some(Backpressure::Down));
    drop(pending);
}
