//! Connecting, many connections at once, and sleeping.

use super::*;
use std::thread;

const SHORT: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(20);

/// Connect with private data. Expect it at the other end, zeroes behind it.
pub(crate) fn private_data_goes_both_ways<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    let (near, from_near) = pair.connect_with(|far, endpoint| {
        let private_data = endpoint.peer_private_data.to_vec();
        far.fabric.adopt(endpoint).unwrap();
        private_data
    });
    let near = near.unwrap();
    for (received, sent) in [
        (&near.peer_private_data[..], &b"from the listener"[..]),
        (&from_near[..], b"from the connector"),
    ] {
        assert!(received.starts_with(sent));
        assert!(received[sent.len()..].iter().all(|byte| *byte == 0));
    }
}

/// Use 60 connections in turn, all of them several times. Expect each message on its own.
pub(crate) fn many_connections_are_served_side_by_side<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    let connections: Vec<_> = (0..60).map(|_| pair.connect()).collect();
    for round in 0..20_u8 {
        for (number, (near, far)) in (0_u8..).zip(&connections) {
            pair.far.post_recvs(*far, 1);
            pair.near.send(*near, &[number, round]);
        }
        for (number, (_, far)) in (0_u8..).zip(&connections) {
            assert_eq!(pair.next_far(*far), Event::Message(vec![number, round], None));
        }
    }
}

/// Leave connections alone for 10,000 turns, again and again. Expect that they work afterwards.
pub(crate) fn a_connection_that_was_idle_for_long_still_works<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    let (near, far) = pair.connect();
    for _ in 0..5 {
        for _ in 0..10_000 {
            pair.turn();
        }
        pair.expect_alive();
        pair.near.post_recvs(near, 1);
        pair.far.send(far, b"back");
        assert_eq!(pair.next_near(near), Event::Message(b"back".to_vec(), None));
    }
}

/// Connect to an address without a listener. Expect an error that names the address.
pub(crate) fn connecting_to_nobody_says_so<P: Provider>(provider: &P) {
    let connector = provider.connector();
    let address = provider.address();
    let error = connector.connect(&ConnectRequest::new(&address, SHORT)).err().unwrap().to_string();
    assert!(error.contains(&address) && error.lines().count() == 1, "{error}");
}

/// Connect to a listener that accepts no connections. Expect an error in time.
pub(crate) fn a_refused_connection_says_so<P: Provider>(provider: &P) {
    let connector = provider.connector();
    let address = provider.address();
    let (acceptor, endpoints) = accept_into_channel(None);
    let _listener = connector.listen(&ListenRequest::new(&address), acceptor).unwrap();
    let start = Instant::now();
    let error = connector.connect(&ConnectRequest::new(&address, LONG)).err().unwrap().to_string();
    assert!(error.lines().count() == 1 && start.elapsed() < LONG, "{error}");
    assert!(endpoints.try_recv().is_err());
}

/// Panics at one question after the other, then takes connections.
struct Panicking(usize, Box<dyn Acceptor>);

impl Panicking {
    fn panic_at(&mut self, question: usize) {
        if self.0 == question {
            self.0 += 1;
            // Without a word from the hook.
            std::panic::resume_unwind(Box::new("an acceptor's"));
        }
    }
}

impl Acceptor for Panicking {
    fn admits(&mut self, _: &Peer) -> bool {
        self.panic_at(0);
        true
    }

    fn pick_core(&mut self, full: &[usize]) -> Option<usize> {
        self.panic_at(1);
        self.1.pick_core(full)
    }

    fn accepted(&mut self, core: usize, endpoint: Endpoint) {
        self.panic_at(2);
        self.1.accepted(core, endpoint);
    }
}

/// Let the acceptor panic at each of its questions. Expect the thread of the handshakes to go on.
pub(crate) fn an_acceptor_that_panics_refuses_one_connection<P: Provider>(provider: &P) {
    let connector = provider.connector();
    let address = provider.address();
    let (acceptor, endpoints) = accept_into_channel(Some(0));
    let acceptor = Box::new(Panicking(0, acceptor));
    let _listener = connector.listen(&ListenRequest::new(&address), acceptor).unwrap();
    let connect = || connector.connect(&ConnectRequest::new(&address, LONG));
    assert!(connect().is_err() && connect().is_err());
    // The third one may be there before it is taken back.
    drop(connect());
    assert!(endpoints.try_recv().is_err());
    thread::scope(|scope| {
        // Some drivers answer when the endpoint is adopted, and this one is dropped.
        scope.spawn(|| drop(connect()));
        assert!(endpoints.recv_timeout(LONG).is_ok());
    });
}

/// Listen twice at an address. Expect an error while the first listener lives, and none later.
pub(crate) fn an_address_can_be_used_again_when_its_listener_is_gone<P: Provider>(provider: &P) {
    let connector = provider.connector();
    let address = provider.address();
    // An endpoint that is dropped here answers this connector in its time only.
    let timeout = if provider.limits().accepts_when_adopted { SHORT } else { LONG };
    for _ in 0..3 {
        let (acceptor, endpoints) = accept_into_channel(Some(1));
        let listener = connector.listen(&ListenRequest::new(&address), acceptor).unwrap();
        assert!(
            connector.listen(&ListenRequest::new(&address), accept_into_channel(None).0).is_err()
        );
        thread::scope(|scope| {
            let connecting =
                scope.spawn(|| connector.connect(&ConnectRequest::new(&address, timeout)));
            drop(endpoints.recv_timeout(LONG).unwrap());
            let refused = connecting.join().unwrap().is_err();
            assert!(!refused || provider.limits().accepts_when_adopted);
        });
        drop(listener);
    }
}

/// Send to a core that sleeps whenever nothing has arrived. Expect each answer long before the sleep
/// would be over.
pub(crate) fn a_parked_core_wakes_for_a_message<P: Provider>(provider: &P) {
    let start = Instant::now();
    on_two_threads(provider, echo_sleeping, |end, qp| {
        for round in 0..200_u8 {
            // Some find it awake, some asleep, some on its way.
            thread::sleep(Duration::from_micros(u64::from(round % 8) * 20));
            end.post_recvs(qp, 1);
            end.send(qp, &[round]);
            let answer = (0..).find_map(|_| {
                end.turn();
                end.next(qp)
            });
            assert_eq!(answer, Some(Event::Message(vec![round], None)));
        }
    });
    assert!(start.elapsed() < LONG, "it slept through a message, or through the end");
}

fn echo_sleeping<F: Fabric>(end: &mut End<F>, qp: QpId) {
    end.post_recvs(qp, 1);
    loop {
        end.turn();
        match end.next(qp) {
            None => end.fabric.park(LONG),
            Some(Event::Message(message, _)) => {
                end.post_recvs(qp, 1);
                end.send(qp, &message);
            }
            Some(Event::Down(_)) => return,
            Some(_) => {}
        }
    }
}

/// Park a core and wake it from another thread, before, at and after it falls asleep. Expect it to
/// wake.
pub(crate) fn a_parked_core_wakes_when_it_is_told_to<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    for delay_us in [0, 0, 1, 10, 50, 100, 1000, 10_000] {
        let waker = pair.far.fabric.begin(None, false);
        let start = Instant::now();
        let poker = thread::spawn(move || {
            thread::sleep(Duration::from_micros(delay_us));
            waker.wake();
        });
        pair.far.fabric.park(LONG);
        poker.join().unwrap();
        assert!(start.elapsed() < LONG / 2, "it slept through a call to wake");
        // One that came late must not be left over for the next round.
        pair.far.fabric.park(Duration::ZERO);
    }
}

/// Park a core that has a message, or something to give back. Expect that it does not sleep.
pub(crate) fn a_core_with_work_does_not_sleep<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    let start = Instant::now();
    pair.far.post_recvs(pair.at_far, 1);
    pair.near.send(pair.at_near, b"x");
    pair.near.fabric.flush();
    pair.far.fabric.park(LONG);
    pair.far.fabric.close(pair.at_far);
    pair.far.fabric.park(LONG);
    assert!(start.elapsed() < LONG / 2, "it slept on work");
}
