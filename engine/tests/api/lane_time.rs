//! Deadlines of calls that start in a turn after the application was busy; and deadlines and calls of silent
//! connections while other connections are busy.

use crate::common::prelude::*;

const TIMEOUT: Duration = Duration::from_millis(500);

/// Turns after which a connection has gone silent for certain.
const SILENCE: u32 = 5_000;

/// Turns in which a call by it is answered: 17 of each end, as it is silent at both, and one that the call begins in.
const ROUNDS_MAX: usize = 36;

#[derive(Default)]
struct Second {
    began: Cell<Option<Instant>>,
    ended: Cell<Option<(Instant, bool)>>,
}

/// Answers each reply with the next call, like a client that keeps one call in flight.
struct Next(Client, Rc<Second>);

impl ReplyHandler for Next {
    fn on_reply(&mut self, Token(token): Token, reply: Result<Reply<'_>, CallError>) {
        if token == 1 {
            assert!(reply.is_ok(), "the first reply was there before the deadline");
            self.1.began.set(Some(Instant::now()));
            let spec = &mut CallSpec::short();
            self.0.call(NULL, Token(2), spec, |_| {}).unwrap();
        } else {
            self.1.ended.set(Some((Instant::now(), reply.is_ok())));
        }
    }
}

/// `rpc.timeout_ms` counts from the start of a call, whatever the thread of the core did before.
#[test]
fn a_call_of_a_handler_has_all_its_time_although_the_application_was_away() {
    let raw = small_with(|raw| raw.rpc.timeout_ms = TIMEOUT.as_millis() as u64);
    let mut cores = Cores::of(raw, |there| drop(serve(there)));
    let second = Rc::new(Second::default());
    let of_handler = Rc::clone(&second);
    let client = cores.connect(&ConnectOptions::new(), |client| Next(client, of_handler));
    let Cores { there, mut near, mut far, .. } = cores;
    client.call(NULL, Token(1), &mut CallSpec::short(), |_| {}).unwrap();
    far.run_until(|| there.stats(0).unwrap().replies_sent >= 2);
    // The reply is here in time, but the thread that holds the core has something else to do.
    std::thread::sleep(TIMEOUT);
    near.poll_once();
    let began = second.began.get().expect("the first reply");
    // The server is not asked yet: the call can only wait, or run out of its time.
    (0..100).for_each(|_| _ = near.poll_once());
    let (ended, is_ok) = second.ended.get().unwrap_or((began + TIMEOUT, true));
    let lived = ended - began;
    assert!(is_ok || lived >= TIMEOUT, "given up {lived:?} after it started, of {TIMEOUT:?}");
}

#[derive(Clone, Default)]
struct Ends(Rc<[Cell<u64>; 2]>);

impl ReplyHandler for Ends {
    fn on_reply(&mut self, _: Token, reply: Result<Reply<'_>, CallError>) {
        let of = &self.0[usize::from(reply.is_err())];
        of.set(of.get() + 1);
    }
}

/// Two clients of one core, with the ends of their calls.
fn two_clients() -> (Cores, [Ends; 2], [Client; 2]) {
    let mut cores = Cores::of(small(), |there| drop(serve(there)));
    let ends = [(); 2].map(|()| Ends::default());
    let clients =
        ends.each_ref().map(|ends| cores.connect(&ConnectOptions::new(), |_| ends.clone()));
    (cores, ends, clients)
}

/// Call all the time by one connection, in step with the server, while a call by another one is not answered. Expect its
/// deadline to come, in whatever turns the replies of the others arrive: a core does not look at the clock in each.
#[test]
fn a_deadline_comes_beside_calls_that_never_pause() {
    for first_turns in 0..4 {
        let (mut cores, ends, clients) = two_clients();
        (0..first_turns).for_each(|_| _ = cores.near.poll_once());
        let spec = &mut CallSpec::short().deadline(Duration::from_millis(20));
        clients[1].call(LATER, Token(1), spec, |args| args.u32(1)).unwrap();
        let began = Instant::now();
        while ends[1].0[1].get() == 0 {
            assert!(began.elapsed() < LIMIT, "no end, with {first_turns} turns before");
            let replies = ends[0].0[0].get();
            clients[0].call(NULL, Token(2), &mut CallSpec::short(), |_| {}).unwrap();
            // A turn without a message, and one with the reply.
            while ends[0].0[0].get() == replies {
                cores.near.poll_once();
                cores.far.poll_once();
            }
        }
    }
}

/// Call by one connection, in step with the server, while another one goes silent, so that its peers must ring. Expect
/// its next call answered within a few turns, whichever of them it falls on: cores look at their bells in some only.
#[test]
fn a_silent_connection_is_soon_heard_beside_calls_that_never_pause() {
    let (mut cores, ends, clients) = two_clients();
    let call = |client: &Client| {
        client.call(NULL, Token(1), &mut CallSpec::short(), |_| {}).unwrap();
    };
    let mut round = || {
        call(&clients[0]);
        cores.far.poll_once();
        cores.near.poll_once();
    };
    for tried in 0..5 {
        (0..SILENCE + tried).for_each(|_| round());
        call(&clients[1]);
        let replies = ends[1].0[0].get();
        let rounds = (1..).take_while(|_| ends[1].0[0].get() == replies).inspect(|_| round());
        let rounds = rounds.take(ROUNDS_MAX + 1).count();
        assert!(rounds <= ROUNDS_MAX, "not heard in {rounds} turns");
    }
}
