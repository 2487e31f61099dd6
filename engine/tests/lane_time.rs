//! Deadlines of calls that start in a turn after the application was away.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::two_way::poll_until;
use common::{PROGRAM, VERSION, serve, small_with, unique_address, valid};
use spinrpc::{CallError, CallSpec, Client, Engine, Reply, ReplyHandler, Token};
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_millis(500);

/// When the second call began, and when and how it ended.
#[derive(Default)]
struct Second {
    began: Cell<Option<Instant>>,
    ended: Cell<Option<(Instant, bool)>>,
}

/// Answers each reply with the next call, as whoever keeps one call in flight does.
struct Next(Client, Rc<Second>);

impl ReplyHandler for Next {
    fn on_reply(&mut self, Token(token): Token, reply: Result<Reply<'_>, CallError>) {
        if token == 1 {
            assert!(reply.is_ok(), "the first reply was there before the deadline");
            self.1.began.set(Some(Instant::now()));
            let spec = &mut CallSpec::new();
            self.0.call(common::program::NULL, Token(2), spec, |_| {}).unwrap();
        } else {
            self.1.ended.set(Some((Instant::now(), reply.is_ok())));
        }
    }
}

/// `rpc.timeout_ms` counts from the start of a call, whatever the thread of the core did before.
#[test]
fn a_call_of_a_handler_has_all_its_time_although_the_application_was_away() {
    let raw = small_with(|raw| raw.rpc.timeout_ms = TIMEOUT.as_millis() as u64);
    let [here, there] = [(); 2].map(|()| Engine::new(valid(raw.clone())).unwrap());
    let _shared = serve(&there);
    let address = unique_address();
    there.listen(&address).unwrap();
    let (mut near, mut far) = (here.core(0).unwrap(), there.core(0).unwrap());
    let second = Rc::new(Second::default());
    let of_handler = Rc::clone(&second);
    let client =
        near.connect(&address, PROGRAM, VERSION, |client| Next(client, of_handler)).unwrap();
    poll_until(&mut near, &mut far, "the connection", || client.is_up());
    client.call(common::program::NULL, Token(1), &mut CallSpec::new(), |_| {}).unwrap();
    far.run_until(|| there.stats(0).unwrap().replies_sent >= 2);
    // The reply is here in time. Whoever holds the core has something else to do.
    std::thread::sleep(TIMEOUT);
    near.poll_once();
    let began = second.began.get().expect("the first reply");
    // The server is not asked yet: the call can only wait, or run out of its time.
    (0..100).for_each(|_| _ = near.poll_once());
    let (ended, is_ok) = second.ended.get().unwrap_or((began + TIMEOUT, true));
    let lived = ended - began;
    assert!(is_ok || lived >= TIMEOUT, "given up {lived:?} after it started, of {TIMEOUT:?}");
}
