//! Mechanisms that panic or block: on threads of their own, where they affect only their own clients.

use super::hostile::send_init;
use super::*;
use spinrpc_proto::ids::Instant;
use std::collections::BTreeMap;
use std::sync::Condvar;
use std::time::Instant as Time;

/// Threads of a server for the tokens of one host.
const HOST_THREADS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Begin,
    GoOn,
    Accept,
}

type Before = dyn Fn(Step) + Send + Sync;

struct Hooked {
    inner: GivenKeys,
    before: Arc<Before>,
}

impl Hooked {
    fn new(name: &str, before: impl Fn(Step) + Send + Sync + 'static) -> Self {
        Self { inner: keys(ENCTYPE, name), before: Arc::new(before) }
    }
}

impl Mechanism for Hooked {
    fn begin(&self, target: &str, now: Instant) -> Result<Negotiation, MechanismError> {
        (self.before)(Step::Begin);
        Ok(hooked(self.inner.begin(target, now)?, &self.before, Step::GoOn))
    }

    fn accept(&self, token: &[u8], now: Instant) -> Result<Negotiation, MechanismError> {
        (self.before)(Step::Accept);
        Ok(hooked(self.inner.accept(token, now)?, &self.before, Step::Accept))
    }
}

fn hooked(negotiation: Negotiation, before: &Arc<Before>, step: Step) -> Negotiation {
    let Negotiation::Continue(go_on, sent) = negotiation else { return negotiation };
    let before = Arc::clone(before);
    let go_on = move |token: &[u8], now| {
        before(step);
        Ok(hooked(go_on(token, now)?, &before, step))
    };
    Negotiation::Continue(Box::new(go_on), sent)
}

fn options(mechanism: Hooked) -> ConnectOptions {
    let initiator = GssInitiator::new(mechanism, "test@server");
    ConnectOptions::new().gss(initiator.service(GssService::Privacy))
}

#[test]
fn a_mechanism_that_panics_fails_its_client() {
    let server = Server::with_keys(ENCTYPE);
    for step in [Step::Begin, Step::GoOn] {
        let panics = Hooked::new("alice", move |at| assert_ne!(at, step, "asked for"));
        let reason = failure(asked(&server.address, &options(panics)));
        assert_eq!(reason, "the mechanism panicked", "{step:?}");
    }
    let once = AtomicBool::new(false);
    let panics = Hooked::new("server", move |_| {
        assert!(once.swap(true, Ordering::Relaxed), "asked for");
    });
    let server = Server::start(Some(GssAcceptor::new(panics)));
    let reason = failure(asked(&server.address, &options(Hooked::new("alice", |_| {}))));
    assert!(reason.contains("SystemErr") || reason.contains("SYSTEM_ERR"), "{reason}");
    let mut client = connect(&server, &options(Hooked::new("alice", |_| {})));
    assert_eq!(call(&mut client, ECHO, b"data").unwrap(), b"data");
}

/// As where the key distribution center is not there yet, at either end.
#[test]
fn the_first_context_is_tried_again_if_the_first_connection_is() {
    for step in [Step::Begin, Step::GoOn, Step::Accept] {
        let fails_once = || {
            let failed = AtomicBool::new(false);
            move |at| assert!(at != step || failed.swap(true, Ordering::Relaxed), "asked for")
        };
        let server = Server::start(Some(GssAcceptor::new(Hooked::new("server", fails_once()))));
        let policy = Reconnect::default().max_delay(Duration::from_millis(5)).retry_first();
        let options = options(Hooked::new("alice", fails_once())).reconnect(policy);
        let mut client = asked(&server.address, &options);
        client.run_until("a context", |heard| heard.events.len() == 2);
        let is_tried_again = matches!(
            client.heard.borrow().events[..],
            [
                ConnectionEvent::Retrying { error: ConnectError::Security(_), .. },
                ConnectionEvent::Up { .. }
            ]
        );
        assert!(is_tried_again, "{step:?}: {:?}", client.heard.borrow().events);
        assert_eq!(call(&mut client, ECHO, b"data").unwrap(), b"data");
    }
}

#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    closed: bool,
    waiting: usize,
    passed: usize,
}

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        state = self.changed.wait_while(state, |state| state.closed).unwrap();
        state.waiting -= 1;
        state.passed += 1;
    }

    fn set(&self, closed: bool) {
        self.state.lock().unwrap().closed = closed;
        self.changed.notify_all();
    }

    fn passed(&self) -> usize {
        self.state.lock().unwrap().passed
    }

    fn is_waited_at(&self) -> bool {
        self.waiting() > 0
    }

    fn waiting(&self) -> usize {
        self.state.lock().unwrap().waiting
    }
}

/// A client whose context ends after this time, and whose next one does not come as long as the gate is closed. It is closed
/// from the start, and the first context does not go through it.
fn ending(server: &Server, lifetime: Duration) -> (Caller<Vec<u8>>, Arc<Gate>) {
    let gate = Arc::<Gate>::default();
    gate.set(true);
    let (inner, is_first) = (Arc::clone(&gate), AtomicBool::new(true));
    let mut mechanism = Hooked::new("alice", move |step| {
        if step == Step::Begin && !is_first.swap(false, Ordering::Relaxed) {
            inner.pass();
        }
    });
    mechanism.inner.lifetime = lifetime.as_nanos() as u64;
    (connect(server, &options(mechanism)), gate)
}

/// End of the time in which calls certainly go under a context of this lifetime that is yet to be established. Another one is
/// asked for after 14 sixteenths of it. A thread that was paused until after this time may find the context at its end.
fn usable_until(lifetime: Duration) -> Time {
    Time::now() + lifetime * 15 / 16
}

/// By the clock, because no reply comes that would say that it is time; and calls go on until the other context is there.
#[test]
fn a_context_is_renewed_in_time_while_calls_go_on() {
    let server = Server::with_keys(ENCTYPE);
    let lifetime = Duration::from_secs(4);
    let end = usable_until(lifetime);
    let (mut caller, gate) = ending(&server, lifetime);
    let opened = Opened(&gate);
    let (client, engine) = (caller.client.clone(), caller.engine.clone());
    wait_until("the clock", || gate.is_waited_at());
    let mut spec = CallSpec::new().reply_bytes_max(64);
    match client.call(ECHO, Token(7), &mut spec, |args| args.opaque(b"before")) {
        Ok(_) => assert_eq!(caller.reply().unwrap(), b"before"),
        Err(refused) => assert!(Time::now() > end, "{refused:?}"),
    }
    assert_eq!(engine.gss_stats().contexts_established, 1);
    drop(opened);
    run_core(&mut caller.core, "another context", || {
        assert!(client.is_up() || Time::now() > end, "calls would have to wait");
        engine.gss_stats().contexts_established == 2
    });
    assert_eq!(call(&mut caller, ECHO, b"behind").unwrap(), b"behind");
    let stats = server.engine.clone();
    run_core(&mut caller.core, "the end of the first", || {
        stats.gss_stats().contexts_destroyed == 1
    });
    assert_eq!(engine.gss_stats().calls_denied, 0);
}

/// Its token waits for a reply, and has the credit of that before the application does.
#[test]
fn a_context_is_renewed_while_calls_use_all_credits() {
    let server = Server::with_keys(ENCTYPE);
    // A sixteenth of it is time for this test to use all credits.
    let lifetime = Duration::from_secs(12);
    let end = usable_until(lifetime);
    let (mut caller, gate) = ending(&server, lifetime);
    let opened = Opened(&gate);
    let (client, engine) = (caller.client.clone(), caller.engine.clone());
    let use_all = || {
        let started = || {
            let mut spec = CallSpec::new().reply_bytes_max(64);
            client.call(ECHO, Token(7), &mut spec, |args| args.opaque(b"data"))
        };
        let refused = std::iter::repeat_with(started).find_map(Result::err);
        assert!(refused == Some(Backpressure::NoCredit) || Time::now() > end, "{refused:?}");
    };
    wait_until("the clock", || gate.is_waited_at());
    use_all();
    drop(opened);
    run_core(&mut caller.core, "another context", || {
        use_all();
        engine.gss_stats().contexts_established == 2
    });
    assert_eq!(engine.gss_stats().contexts_failed, 0);
    run_core(&mut caller.core, "the end of the first", || {
        use_all();
        server.engine.gss_stats().contexts_destroyed == 1
    });
}

fn ends(caller: &Caller<Vec<u8>>) -> BTreeMap<u64, Vec<String>> {
    let mut ends = BTreeMap::<_, Vec<_>>::new();
    for (token, reply) in &caller.heard.borrow().replies {
        let end = reply.as_ref().map_or_else(|error| error.to_string(), |_| "a reply".to_owned());
        ends.entry(*token).or_default().push(end);
    }
    ends
}

fn has_ended(caller: &Caller<Vec<u8>>) -> impl Fn(u64) -> bool + use<> {
    let heard = std::rc::Rc::clone(&caller.heard);
    move |token| heard.borrow().replies.iter().any(|(other, _)| *other == token)
}

/// Closes it, while its mechanism blocks: each call has ended once, and so has the connection.
fn close(mut caller: Caller<Vec<u8>>, calls: &[(u64, &str)]) {
    caller.client.close();
    let heard = std::rc::Rc::clone(&caller.heard);
    run_core(&mut caller.core, "the end", || heard.borrow().events.len() == 2);
    let ends = ends(&caller);
    for (token, end) in calls {
        assert!(matches!(&ends[token][..], [only] if only.contains(end)), "{token}: {ends:?}");
    }
    let last = heard.borrow().events.last().cloned();
    assert!(matches!(last, Some(ConnectionEvent::Down { .. })), "{last:?}");
}

/// The context ends at the client first. Calls in flight end by their time, or go on under the old context; others are refused until
/// there is another one.
#[test]
fn calls_in_flight_outlast_a_context_that_ends_while_the_mechanism_blocks() {
    const TRIES: usize = 20;
    for closes in [false, true] {
        let is_tested = (0..TRIES).any(|_| outlasts_a_context(closes));
        assert!(is_tested, "the context ended {TRIES} times before the calls were in flight");
    }
}

/// False if the calls were not in flight in time, as where a thread was paused.
fn outlasts_a_context(closes: bool) -> bool {
    const SLOW: u64 = 1;
    const BRIEF: u64 = 2;
    let server = Server::with_keys(ENCTYPE);
    let lifetime = Duration::from_millis(1600);
    let usable_until = usable_until(lifetime);
    let (mut caller, gate) = ending(&server, lifetime);
    let (opened, end) = (Opened(&gate), Time::now() + lifetime + Duration::from_millis(50));
    let (client, engine) = (caller.client.clone(), caller.engine.clone());
    wait_until("the clock", || gate.is_waited_at() || Time::now() > usable_until);
    for (token, deadline) in [(SLOW, LIMIT), (BRIEF, Duration::from_millis(300))] {
        let mut spec = CallSpec::short().deadline(deadline);
        if let Err(refused) =
            client.call(LATER, Token(token), &mut spec, |args| args.opaque(b"slow"))
        {
            assert!(Time::now() > usable_until, "{refused:?}");
            return false;
        }
    }
    let deferred = &server.seen.deferred;
    run_core(&mut caller.core, "the calls", || {
        lock(deferred).len() == 2 || Time::now() > usable_until
    });
    if Time::now() > usable_until {
        return false;
    }
    let has_ended = has_ended(&caller);
    let echo =
        |token| client.call(ECHO, Token(token), &mut CallSpec::short(), |args| args.opaque(b"x"));
    // Its clock is up to a tick late.
    wait_until("the end of the context", || Time::now() > end);
    echo(10).unwrap();
    run_core(&mut caller.core, "an echo", || has_ended(10));
    assert_eq!(echo(11).err(), Some(Backpressure::Connecting));
    run_core(&mut caller.core, "the end of its time", || has_ended(BRIEF));
    if closes {
        close(caller, &[(BRIEF, "deadline"), (SLOW, "closed by this side")]);
        return true;
    }
    for (data, answer) in lock(deferred).drain(..) {
        answer.reply(|results| results.opaque(&data));
    }
    run_core(&mut caller.core, "the slow call", || has_ended(SLOW));
    assert!(gate.is_waited_at() && !client.is_up());
    drop(opened);
    run_core(&mut caller.core, "another context", || client.is_up());
    let ended = ends(&caller);
    assert!(ended.values().all(|ends| ends.len() == 1), "{ended:?}");
    let replies = ended.iter().filter(|(_, ends)| ends[0] == "a reply").count();
    assert_eq!((replies, ended[&SLOW][0].as_str()), (ended.len() - 1, "a reply"), "{ended:?}");
    let stats = engine.gss_stats();
    assert_eq!((stats.contexts_established, stats.contexts_failed), (2, 0), "{stats:?}");
    let server = server.engine.clone();
    run_core(&mut caller.core, "the end of the first", || {
        server.gss_stats().contexts_destroyed == 1
    });
    true
}

/// The context ends at both ends, and no reply says so before the next call: that is denied, and waits for another context.
#[test]
fn calls_denied_under_a_context_that_has_ended_wait_while_the_mechanism_blocks() {
    const PATIENT: u64 = 1;
    const BRIEF: u64 = 2;
    let lifetime = Duration::from_millis(1600);
    for closes in [false, true] {
        let mut accepted = keys(ENCTYPE, "server");
        accepted.lifetime = lifetime.as_nanos() as u64;
        let server = Server::start(Some(GssAcceptor::new(accepted)));
        let (mut caller, gate) = ending(&server, lifetime);
        let opened = Opened(&gate);
        let (client, engine) = (caller.client.clone(), caller.engine.clone());
        // Its clock is up to a tick late.
        let end = Time::now() + lifetime + Duration::from_millis(50);
        wait_until("the end of the context", || Time::now() > end && gate.is_waited_at());
        // The denials come before the end of its time, though a thread may be paused.
        for (token, deadline) in [(PATIENT, LIMIT), (BRIEF, Duration::from_secs(5))] {
            let mut spec = CallSpec::short().deadline(deadline);
            client.call(ECHO, Token(token), &mut spec, |args| args.opaque(b"data")).unwrap();
        }
        run_core(&mut caller.core, "denials", || engine.gss_stats().calls_denied == 2);
        let has_ended = has_ended(&caller);
        run_core(&mut caller.core, "the end of its time", || has_ended(BRIEF));
        assert!(!client.is_up() && !has_ended(PATIENT));
        if closes {
            close(caller, &[(BRIEF, "deadline"), (PATIENT, "denied")]);
            assert_eq!(server.calls(), 0);
            continue;
        }
        drop(opened);
        run_core(&mut caller.core, "the call", || has_ended(PATIENT));
        let ended = ends(&caller);
        assert!(ended.values().all(|ends| ends.len() == 1), "{ended:?}");
        assert_eq!(ended[&PATIENT][0], "a reply", "{ended:?}");
        assert_eq!((server.calls(), engine.gss_stats().contexts_established), (1, 2));
    }
}

fn gated(contexts: usize) -> (Server, Arc<Gate>) {
    let gate = Arc::<Gate>::default();
    let inner = Arc::clone(&gate);
    let mechanism = Hooked::new("server", move |_| inner.pass());
    (Server::start(Some(GssAcceptor::new(mechanism).contexts_max(contexts))), gate)
}

/// Opened when a test ends, so that the thread of the server does.
struct Opened<'g>(&'g Gate);

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

#[test]
fn tokens_of_connections_that_have_gone_are_not_looked_at() {
    let (server, gate) = gated(100);
    let _opened = Opened(&gate);
    gate.set(true);
    let mut first = [(); HOST_THREADS].map(|()| RawPeer::connect(&server.address));
    first.iter_mut().for_each(|peer| send_init(peer, 1, b"noise"));
    wait_until("a token of each thread at the gate", || gate.waiting() == HOST_THREADS);
    for number in 1..=3 {
        let before = server.engine.stats(0).unwrap().calls_received;
        let mut gone = RawPeer::connect(&server.address);
        send_init(&mut gone, 1, b"noise");
        let received = || server.engine.stats(0).unwrap().calls_received;
        wait_until("the token", || received() > before);
        gone.close();
        let closed = || server.engine.stats(0).unwrap().connections_closed;
        wait_until("the end", || closed() == number);
    }
    gate.set(false);
    // Behind all of them in the queue. It may pass the gate before threads that waited at it.
    let mut client = caller(&server, ENCTYPE, GssService::Privacy);
    assert_eq!(call(&mut client, ECHO, b"data").unwrap(), b"data");
    wait_until("all threads behind the gate", || gate.waiting() == 0);
    assert_eq!(gate.passed(), HOST_THREADS + 1);
}

/// The name services of the server do not answer for one user. Expect that another one gets a context, from the same host.
#[test]
fn a_token_that_blocks_the_server_holds_up_no_other() {
    let gate = Arc::<Gate>::default();
    let opened = Opened(&gate);
    gate.set(true);
    let (inner, is_first) = (Arc::clone(&gate), AtomicBool::new(true));
    let mechanism = Hooked::new("server", move |_| {
        if is_first.swap(false, Ordering::Relaxed) {
            inner.pass();
        }
    });
    let server = Server::start(Some(GssAcceptor::new(mechanism)));
    let mut slow = RawPeer::connect(&server.address);
    send_init(&mut slow, 1, b"noise");
    wait_until("a token at the gate", || gate.is_waited_at());
    let mut client = caller(&server, ENCTYPE, GssService::Privacy);
    assert_eq!(call(&mut client, ECHO, b"data").unwrap(), b"data");
    assert!(gate.is_waited_at());
    drop(opened);
}

/// Both halves in one engine: what strangers ask of it does not hold up what it asks of others.
#[test]
fn an_engine_establishes_contexts_while_others_wait_for_theirs() {
    let (busy, gate) = gated(100);
    let _opened = Opened(&gate);
    gate.set(true);
    let mut peer = RawPeer::connect(&busy.address);
    send_init(&mut peer, 1, b"noise");
    wait_until("a token at the gate", || gate.is_waited_at());
    let other = Server::with_keys(ENCTYPE);
    let with = options(Hooked::new("alice", |_| {}));
    let handle = busy.engine.connect(0, &other.address, PROGRAM, VERSION, &with).unwrap();
    handle.wait_up(LIMIT).unwrap();
    assert!(gate.is_waited_at());
}

/// Makes a call that is denied, as the context has been evicted, and waits for another one.
fn lose_context(client: &mut Caller<Vec<u8>>, mut spec: CallSpec) {
    client.client.call(ECHO, Token(1), &mut spec, |args| args.opaque(b"data")).unwrap();
    let link = client.client.clone();
    run_core(&mut client.core, "a denial", || !link.is_up());
}

#[test]
fn a_busy_server_costs_no_client_its_connection() {
    let (server, gate) = gated(1);
    let _opened = Opened(&gate);
    let mut client = caller(&server, ENCTYPE, GssService::Integrity);
    assert_eq!(call(&mut client, ECHO, b"one").unwrap(), b"one");
    let _second = caller(&server, ENCTYPE, GssService::Integrity);
    gate.set(true);
    // More than may wait of one host.
    let mut peers: Vec<RawPeer> = (0..10).map(|_| RawPeer::connect(&server.address)).collect();
    for (number, peer) in peers.iter_mut().enumerate() {
        for xid in 0..8 {
            send_init(peer, 100 * number as u32 + xid, b"noise");
            // Those at the gate wait no more: of the others as many wait as may, and none of the client's. A thread that came
            // to the gate after the refusals would leave a place to the client's.
            wait_until("tokens at the gate", || gate.waiting() >= (number + 1).min(HOST_THREADS));
        }
    }
    let mut refused = 0;
    wait_until("refusals", || {
        refused += peers.iter_mut().filter_map(RawPeer::poll).count();
        refused >= 16 - HOST_THREADS
    });
    // A token that waits at the gate costs its whole time.
    lose_context(&mut client, CallSpec::short().deadline(2 * LIMIT));
    let sent = {
        let engine = client.engine.clone();
        move || engine.stats(0).unwrap().calls_sent
    };
    let before = sent();
    run_core(&mut client.core, "another try", || sent() >= before + 2);
    assert!(!client.client.is_up());
    gate.set(false);
    let link = client.client.clone();
    run_core(&mut client.core, "a context", || link.is_up());
    assert_eq!(client.reply().unwrap(), b"data");
    assert_eq!(call(&mut client, ECHO, b"two").unwrap(), b"two");
    let heard = client.heard.borrow();
    assert!(matches!(heard.events[..], [ConnectionEvent::Up { .. }]), "{:?}", heard.events);
}

#[test]
fn a_client_can_be_closed_while_its_mechanism_blocks() {
    let server = Server::with_keys(ENCTYPE);
    let gate = Arc::<Gate>::default();
    let _opened = Opened(&gate);
    gate.set(true);
    let inner = Arc::clone(&gate);
    let mut client = asked(&server.address, &options(Hooked::new("alice", move |_| inner.pass())));
    run_core(&mut client.core, "a wait", || gate.is_waited_at());
    client.client.close();
    let heard = std::rc::Rc::clone(&client.heard);
    run_core(&mut client.core, "the end", || !heard.borrow().events.is_empty());
    assert_eq!(heard.borrow().events.len(), 1);
}

#[test]
fn a_mechanism_that_never_returns_fails_its_client_and_not_the_one_behind_it() {
    let server = Server::with_keys(ENCTYPE);
    let gate = Arc::<Gate>::default();
    let _opened = Opened(&gate);
    gate.set(true);
    let raw = client_with(|raw| raw.fixed.gss_mechanism_ms = 5000);
    let (_engine, mut core) = with_core(raw);
    let inner = Arc::clone(&gate);
    let stuck = options(Hooked::new("alice", move |_| inner.pass()));
    let heard = [SharedHeard::default(), SharedHeard::default()];
    let connect = |core: &mut Core, with: &ConnectOptions, heard: &SharedHeard<Vec<u8>>| {
        let handler = recorder(heard, one_opaque);
        core.connect_with(&server.address, PROGRAM, VERSION, with, |_| handler).unwrap()
    };
    let _stuck = connect(&mut core, &stuck, &heard[0]);
    run_core(&mut core, "a wait", || gate.is_waited_at());
    let behind = connect(&mut core, &options(Hooked::new("bob", |_| {})), &heard[1]);
    run_core(&mut core, "the client behind it", || behind.is_up());
    run_core(&mut core, "the end of the first", || !heard[0].borrow().events.is_empty());
    let heard = heard[0].borrow();
    let [ConnectionEvent::ConnectFailed { error: ConnectError::Security(reason) }] =
        &heard.events[..]
    else {
        panic!("{:?}", heard.events);
    };
    assert_eq!(reason, "the mechanism has not returned in 5000 ms");
    assert!(gate.is_waited_at(), "it still has not");
}

/// It is due in most of an hour. What it holds is freed at once, with its mechanism.
#[test]
fn the_next_step_of_a_connection_that_has_gone_is_not_kept() {
    let server = Server::with_keys(ENCTYPE);
    let held = Arc::new(());
    let inner = Arc::clone(&held);
    let mechanism = Hooked::new("alice", move |_| drop(Arc::clone(&inner)));
    let mut client = connect(&server, &options(mechanism));
    assert_eq!(call(&mut client, ECHO, b"data").unwrap(), b"data");
    client.client.close();
    let engine = client.engine.clone();
    run_core(&mut client.core, "the end of the step", || Arc::strong_count(&held) == 1);
    // The thread that has freed it goes on.
    drop(engine);
}
