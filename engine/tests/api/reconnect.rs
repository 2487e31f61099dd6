//! A client reconnects after a loss, and the calls that were in flight end as their specs say (RFC
//! 5666 section 8, RFC 5531 section 4). Both ends take their turns on the test's thread where it
//! matters at which moment the connection goes.

use crate::common::prelude::*;
use crate::common::raw::MSG;
use crate::common::raw_server::{RawServer, success};
use spinrpc::fabric::AddressError;
use std::error::Error;

/// Tries again at once, and for as long as any test runs.
fn at_once() -> ConnectOptions {
    let policy = Reconnect::default()
        .first_delay(Duration::from_micros(100))
        .max_delay(Duration::from_millis(5))
        .resends_max(3);
    ConnectOptions::new().reconnect(policy)
}

fn lasting<T: 'static>(address: &str, read: Read<T>) -> Caller<T> {
    lasting_with(client_config(), address, &at_once(), read)
}

fn lasting_with<T: 'static>(
    raw: RawConfig,
    address: &str,
    options: &ConnectOptions,
    read: Read<T>,
) -> Caller<T> {
    let mut caller = connecting(raw, address, options, read);
    caller.come_up();
    caller
}

fn connecting<T: 'static>(
    raw: RawConfig,
    address: &str,
    options: &ConnectOptions,
    read: Read<T>,
) -> Caller<T> {
    Caller::asked(Engine::new(valid(raw)).unwrap(), address, options, read)
}

fn ups<T>(heard: &Heard<T>) -> usize {
    heard.events.iter().filter(|event| matches!(event, ConnectionEvent::Up { .. })).count()
}

/// Starts a call that the server answers when the test tells it to.
fn start_later<T>(caller: &Caller<T>, token: u64, resend: Resend) -> Result<CallId, Backpressure> {
    let mut spec = CallSpec::short().resend(resend);
    caller.client.call(LATER, Token(token), &mut spec, |args| args.u32(token as u32))
}

fn is_disconnected<T>(reply: &Result<T, CallError>) -> bool {
    matches!(reply, Err(CallError::Disconnected(_)))
}

#[test]
fn lose_the_connection_expect_the_same_client_up_again() {
    let server = Server::start();
    let mut caller = lasting(&server.address, all_words);
    caller.client.reconnect();
    caller.run_until("another connection", |heard| ups(heard) == 2);
    assert!(caller.call(NULL, |_| {}).is_ok());
    let heard = caller.heard.borrow();
    let told = matches!(
        heard.events[..],
        [
            ConnectionEvent::Up { .. },
            ConnectionEvent::Reconnecting { attempt: 1, cause: DownCause::Local, .. },
            ConnectionEvent::Up { .. }
        ]
    );
    assert!(told, "{:?}", heard.events);
    assert_eq!(caller.engine.stats(0).unwrap().since(&Default::default()).connections_opened, 2);
}

/// RFC 8797 section 4: "MUST be prepared for the settings to change upon a reconnection".
#[test]
fn sizes_are_those_that_are_stated_on_each_connection() {
    let receiving = |bytes| {
        small_with(|raw| (raw.rpc.version, raw.rpc.inline_recv_bytes) = (Versions::One, bytes))
    };
    let server = Server::with(receiving(4096));
    let address = server.address.clone();
    let raw = client_with(|raw| raw.rpc.version = Versions::One);
    let mut caller = lasting_with(raw, &address, &at_once(), all_words);
    server.stop();
    let _next = Server::at_with(&address, receiving(1024));
    caller.run_until("another connection", |heard| ups(heard) == 2);
    let heard = caller.heard.borrow();
    let sizes = heard.events.iter().filter_map(|event| match event {
        ConnectionEvent::Up { negotiated, .. } => Some(negotiated.send_bytes_max()),
        _ => None,
    });
    assert_eq!(sizes.collect::<Vec<_>>(), [4096, 1024]);
}

/// The options of [`at_once`], for the first connection, too.
fn from_the_start(policy: Reconnect) -> ConnectOptions {
    ConnectOptions::new().reconnect(policy.max_delay(Duration::from_millis(5)).retry_first())
}

fn is_retrying(event: &ConnectionEvent) -> bool {
    matches!(event, ConnectionEvent::Retrying { error: ConnectError::Fabric(_), .. })
}

#[test]
fn a_client_that_retries_the_first_connection_may_be_made_before_its_server() {
    let address = unique_address();
    let options = from_the_start(Reconnect::default());
    let mut caller = connecting(client_config(), &address, &options, all_words);
    caller.run_until("three attempts", |heard| heard.events.len() == 3);
    assert!(caller.heard.borrow().events.iter().all(is_retrying));
    assert_eq!(caller.start(NULL, 0, |_| {}), Err(Backpressure::Connecting));
    // Between two attempts, and during one.
    for _ in 0..1000 {
        assert!(matches!(caller.client.failure(), Some(ConnectError::Fabric(_))));
        caller.core.poll_once();
    }
    let server = Server::at(&address);
    caller.run_until("the first connection", |heard| ups(heard) == 1);
    assert!(caller.client.failure().is_none());
    assert!(caller.call(NULL, |_| {}).is_ok());
    // A loss is as with any client that reconnects.
    caller.client.reconnect();
    caller.run_until("another connection", |heard| ups(heard) == 2);
    drop(server);
}

#[test]
fn attempts_at_the_first_connection_end_with_the_policy_or_with_the_client() {
    let address = unique_address();
    let has_failed = |heard: &Heard<_>| {
        matches!(heard.events.last(), Some(ConnectionEvent::ConnectFailed { .. }))
    };
    let tried_again = GIVE_UP_AFTER.map(|give_up_after| {
        let options = from_the_start(Reconnect::default().give_up_after(give_up_after));
        let mut caller = connecting(client_config(), &address, &options, all_words);
        caller.run_until("the last attempt", has_failed);
        let events = std::mem::take(&mut caller.heard.borrow_mut().events);
        let (last, others) = events.split_last().unwrap();
        assert!(others.iter().all(is_retrying), "{events:?}");
        let is_final =
            matches!(last, ConnectionEvent::ConnectFailed { error: ConnectError::Fabric(_) });
        assert!(is_final, "{last:?}");
        assert_eq!(caller.start(NULL, 0, |_| {}), Err(Backpressure::Down));
        !others.is_empty()
    });
    assert!(tried_again.contains(&true), "no second attempt");

    let hour = Duration::from_secs(3600);
    let policy = Reconnect::default().first_delay(hour).max_delay(hour).give_up_after(hour);
    let options = ConnectOptions::new().reconnect(policy.jitter_percent(0).retry_first());
    let mut caller = connecting(client_config(), &address, &options, all_words);
    caller.run_until("a pause", |heard| heard.events.iter().any(is_retrying));
    caller.client.close();
    caller.run_until("the end", has_failed);
}

/// Retrying helps where the server is not there yet, not where the address is none.
#[test]
fn an_address_of_wrong_syntax_is_tried_once() {
    let hour = Duration::from_secs(3600);
    let options = from_the_start(Reconnect::default().first_delay(hour).give_up_after(hour));
    for address in ["shm:", "shm:two words", "tcp:1"] {
        let mut caller = connecting(client_config(), address, &options, all_words);
        caller.run_until("an event", |heard| !heard.events.is_empty());
        let events = &caller.heard.borrow().events;
        let [ConnectionEvent::ConnectFailed { error }] = &events[..] else { panic!("{events:?}") };
        let system = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
        assert!(
            system.is_some_and(|error| error.get_ref().is_some_and(|it| it.is::<AddressError>()))
        );
    }
}

/// Retrying helps where the server is not there yet, not where it does not have the program.
#[test]
fn a_server_that_does_not_serve_the_program_is_asked_once() {
    let server = Server::start();
    let (_engine, mut core) = with_core(client_config());
    let heard = SharedHeard::<Vec<u32>>::default();
    let (made, options) = (recorder(&heard, all_words), from_the_start(Reconnect::default()));
    let other = Program(PROGRAM.0 + 77);
    let client = core.connect_with(&server.address, other, VERSION, &options, |_| made).unwrap();
    run_core(&mut core, "the refusal", || !heard.borrow().events.is_empty());
    let events = &heard.borrow().events;
    let is_refused = matches!(
        events[..],
        [ConnectionEvent::ConnectFailed { error: ConnectError::NotServed(_) }]
    );
    assert!(is_refused && !client.is_up(), "{events:?}");
}

#[test]
fn calls_in_flight_end_as_their_specs_say() {
    let server = Server::start();
    let mut caller = lasting(&server.address, all_words);
    start_later(&caller, 1, Resend::Never).unwrap();
    start_later(&caller, 2, Resend::AtLeastOnce).unwrap();
    start_later(&caller, 3, Resend::AtMostOnce).unwrap();
    run_core(&mut caller.core, "3 calls", || server.shared.waiting() == 3);
    caller.client.reconnect();
    caller.run_until("another connection", |heard| ups(heard) == 2);
    run_core(&mut caller.core, "the call sent again", || server.shared.waiting() == 4);
    server.shared.answer_all();
    let mut replies = caller.replies(3);
    replies.sort_by_key(|(token, _)| *token);
    // This server keeps no replies, and says so.
    assert!(is_disconnected(&replies[0].1) && is_disconnected(&replies[2].1), "{replies:?}");
    assert_eq!(replies[1].1.as_ref().unwrap(), &[2]);
    assert_eq!(caller.client.in_flight(), 0);
}

/// Calls that make a connection ready are told from others by no token: calls of the application wait for
/// the connection meanwhile, and end by their deadlines.
#[test]
fn any_token_is_the_applications_while_a_connection_opens() {
    let mut server = Answering::granting(8);
    let tokens = [0, 1, u64::MAX];
    for token in tokens {
        let mut spec =
            CallSpec::short().resend(Resend::AtLeastOnce).deadline(Duration::from_millis(200));
        server.caller.client.call(NULL, Token(token), &mut spec, |_| {}).unwrap();
    }
    for _ in tokens {
        server.hear();
    }
    // The opening call of the next connection is heard, and not answered before the deadlines.
    server.break_and_accept();
    let mut replies = server.caller.replies(tokens.len());
    replies.sort_by_key(|(token, _)| *token);
    for (token, (heard, end)) in tokens.into_iter().zip(replies) {
        assert!(heard == token && matches!(end, Err(CallError::TimedOut)), "{heard}: {end:?}");
    }
    server.answer_first(8);
    server.caller.come_up();
}

#[test]
fn call_without_a_connection_expect_backpressure_with_its_own_reason() {
    let server = Server::start();
    let mut caller = lasting(&server.address, all_words);
    let address = server.address.clone();
    server.stop();
    caller.run_until("the loss", |heard| {
        heard.events.iter().any(|event| matches!(event, ConnectionEvent::Reconnecting { .. }))
    });
    let refused = caller.start(NULL, 1, |_| {}).unwrap_err();
    assert_eq!(refused, Backpressure::Reconnecting);
    assert!(refused.is_transient() && !caller.client.is_up());
    caller.client.close();
    assert_eq!(caller.start(NULL, 1, |_| {}), Err(Backpressure::Down));
    let (_, in_flight) = caller.down();
    assert_eq!((in_flight, ups(&caller.heard.borrow())), (0, 1), "{address}");
}

/// Its time is long enough for three attempts on a busy host.
#[test]
fn nobody_listens_any_more_expect_attempts_and_then_the_end() {
    let attempts = GIVE_UP_AFTER.map(|give_up_after| {
        let server = Server::start();
        let policy = Reconnect::default()
            .first_delay(Duration::from_millis(1))
            .max_delay(Duration::from_millis(100))
            .give_up_after(give_up_after);
        let options = ConnectOptions::new().reconnect(policy);
        let mut caller = lasting_with(client_config(), &server.address, &options, all_words);
        start_later(&caller, 7, Resend::AtLeastOnce).unwrap();
        run_core(&mut caller.core, "the call", || server.shared.waiting() == 1);
        server.stop();
        let reply = caller.reply();
        assert!(is_disconnected(&reply), "{reply:?}");
        assert_eq!(caller.down(), (DownCause::Remote, 1));
        assert_eq!(caller.client.in_flight(), 0);
        let heard = caller.heard.borrow();
        let attempts = heard.events.iter().filter_map(|event| match event {
            ConnectionEvent::Reconnecting { attempt, .. } => Some(*attempt),
            _ => None,
        });
        attempts.collect::<Vec<u32>>()
    });
    for attempts in &attempts {
        assert!(attempts.iter().copied().eq(1..=attempts.len() as u32), "{attempts:?}");
    }
    assert!(attempts.iter().any(|attempts| attempts.len() >= 3), "{attempts:?}");
}

/// One of these is long enough for some attempts, though a thread may be paused.
const GIVE_UP_AFTER: [Duration; 2] = [Duration::from_millis(300), Duration::from_millis(1500)];

#[test]
fn deadlines_and_cancelling_go_on_without_a_connection() {
    let server = Server::start();
    let mut caller = lasting(&server.address, all_words);
    let soon = CallSpec::short().resend(Resend::AtLeastOnce).deadline(Duration::from_millis(20));
    let call = start_later(&caller, 1, Resend::AtLeastOnce).unwrap();
    let mut spec = soon;
    caller.client.call(LATER, Token(2), &mut spec, |args| args.u32(2)).unwrap();
    run_core(&mut caller.core, "2 calls", || server.shared.waiting() == 2);
    server.stop();
    let began = Instant::now();
    caller.run_until("the loss", |heard| heard.events.len() > 1);
    assert_eq!(caller.client.cancel(call), Ok(()), "it waits for a connection");
    assert_eq!(caller.client.cancel(call), Err(CallEnded));
    let mut replies = caller.replies(2);
    replies.sort_by_key(|(token, _)| *token);
    let ends = [&replies[0], &replies[1]];
    assert!(matches!(ends[0], (1, Err(CallError::Cancelled))), "{replies:?}");
    assert!(matches!(ends[1], (2, Err(CallError::TimedOut))), "{replies:?}");
    assert!(began.elapsed() < LIMIT && caller.client.in_flight() == 0);
}

/// Memory of the lost connection is not exposed on the new one: items are copied, or get new room.
#[test]
fn calls_with_chunks_are_sent_again_with_every_byte() {
    let call = MixCall {
        seed: 5,
        arguments: vec![100_000, 0, 3, 50_001],
        results: vec![70_000, 10, 0, 4096],
        offers: vec![100_000, 10, 5000, 5000],
        tail: 20_000,
        reply_bytes_max: 40_000,
    };
    for bulk in [BulkView::Lent, BulkView::Copy] {
        let raw = client_with(|raw| raw.mem.bulk = bulk);
        send_again(Server::start(), raw, &call);
    }
}

fn send_again(server: Server, raw: RawConfig, call: &MixCall) {
    let mut caller: Caller<MixAnswer> =
        lasting_with(raw, &server.address, &at_once(), MixCall::read);
    let size = 100_000;
    for resend in [Resend::AtLeastOnce, Resend::Never, Resend::AtLeastOnce] {
        let before = caller.free_blocks(size);
        call.start_as(&caller.client, 1, resend).unwrap();
        // Before the server has seen it, or after: either way it is answered once.
        caller.core.poll_once();
        caller.client.reconnect();
        let wanted = ups(&caller.heard.borrow()) + 1;
        caller.run_until("another connection", |heard| ups(heard) == wanted);
        match (caller.reply(), resend) {
            (Ok(answer), Resend::AtLeastOnce) => call.check(&answer),
            (Ok(_), Resend::Never) => {}
            (reply, Resend::Never) => assert!(is_disconnected(&reply)),
            (reply, _) => panic!("{resend:?}: {:?}", reply.err()),
        }
        assert_eq!(caller.free_blocks(size), before, "every block is back");
    }
    let nothing = caller.call(MIX, |args| [0; 4].into_iter().for_each(|word| args.u32(word)));
    assert!(nothing.is_ok());
}

type Answering = RawServer<Vec<u32>>;

impl Answering {
    /// A client that comes back, up, with this number of credits granted.
    fn granting(grant: u32) -> Self {
        Self::of(grant, Self::asked(version_one(), &at_once(), all_words))
    }

    fn of(grant: u32, mut server: Self) -> Self {
        server.answer_first(grant);
        server.caller.come_up();
        server
    }

    fn reply(&mut self, call: &[u32], grant: u32) {
        self.peer.send_words(&success(call, grant));
    }

    /// The first call of every connection is of procedure 0.
    fn answer_first(&mut self, grant: u32) -> u32 {
        let call = self.hear();
        assert_eq!((call[3], call[12]), (MSG, 0), "{call:?}");
        self.reply(&call, grant);
        call[0]
    }

    /// Ends the connection and accepts the next one.
    fn break_and_accept(&mut self) {
        self.peer.close();
        self.next();
    }
}

fn version_one() -> Engine {
    let raw = client_with(|raw| raw.rpc.version = Versions::One);
    Engine::new(valid(raw)).unwrap()
}

fn start<T>(caller: &Caller<T>, token: u64) -> Result<CallId, Backpressure> {
    let mut spec = CallSpec::short().resend(Resend::AtLeastOnce);
    caller.client.call(Procedure(5), Token(token), &mut spec, |args| args.u32(token as u32))
}

/// "The RPC client MUST NOT send unacknowledged requests in excess of this granted RPC server credit
/// limit" (RFC 5666 section 3.3), which is one on a new connection (RFC 8166 section 3.3.3).
#[test]
fn calls_are_sent_again_in_order_with_their_xids_within_the_new_credits() {
    let mut server = Answering::granting(8);
    for token in 0..8 {
        start(&server.caller, token).unwrap();
    }
    let first: Vec<_> = (0..8).map(|_| server.hear()).collect();
    server.break_and_accept();
    let own = server.answer_first(1);
    assert!(first.iter().all(|call| call[0] != own), "the new connection's own call has its own");
    for (number, call) in first.iter().enumerate() {
        let again = server.hear();
        assert_eq!(again, *call, "call {number}, word by word");
        assert_eq!(start(&server.caller, 99), Err(Backpressure::Reconnecting), "they go first");
        server.expect_silence();
        server.reply(&again, if number == 3 { 2 } else { 1 });
        if number == 3 {
            break;
        }
    }
    let (fifth, sixth) = (server.hear(), server.hear());
    assert_eq!((&fifth, &sixth), (&first[4], &first[5]), "two credits");
    server.expect_silence();
    server.reply(&fifth, 8);
    server.reply(&sixth, 8);
    assert_eq!((server.hear(), server.hear()), (first[6].clone(), first[7].clone()));
    server.reply(&first[6], 8);
    server.reply(&first[7], 8);
    let replies = server.caller.replies(8);
    assert!(
        replies.iter().map(|(token, _)| *token).eq(0..8) && replies.iter().all(|r| r.1.is_ok())
    );
    start(&server.caller, 8).unwrap();
    let next = server.hear();
    assert!(next[0] != own && first.iter().all(|call| call[0] != next[0]), "a new call, a new XID");
}

/// Starts calls 10 and 11 when call 1 is answered.
struct StartsTwo(Client);

impl ReplyHandler for StartsTwo {
    fn on_reply(&mut self, token: Token, _: Result<Reply<'_>, CallError>) {
        for next in [10, 11].into_iter().filter(|_| token == Token(1)) {
            let mut spec = CallSpec::short().resend(Resend::AtLeastOnce);
            self.0.call(Procedure(5), Token(next), &mut spec, |args| args.u32(7)).unwrap();
        }
    }
}

/// Call 11 takes the slot of one that was cancelled, before the application has heard of its end. Expect
/// both calls sent again.
#[test]
fn a_call_in_the_slot_of_a_cancelled_one_is_sent_again() {
    let server = Answering::asked_by(|address| {
        let engine = version_one();
        let mut core = engine.core(0).unwrap();
        let client = core.connect_with(address, PROGRAM, VERSION, &at_once(), StartsTwo).unwrap();
        Caller { client, heard: SharedHeard::default(), core, engine }
    });
    let mut server = Answering::of(8, server);
    let calls = [0, 1, 2].map(|token| start(&server.caller, token).unwrap());
    let [cancelled, answered, before] = [(); 3].map(|()| server.hear());
    // A message behind silence comes alone, the next two come in one turn.
    server.reply(&before, 8);
    server.caller.core.poll_once();
    assert_eq!(server.caller.client.cancel(calls[0]), Ok(()));
    server.reply(&cancelled, 8);
    server.reply(&answered, 8);
    let next = [server.hear(), server.hear()];
    server.break_and_accept();
    server.answer_first(8);
    assert_eq!([server.hear(), server.hear()], next);
}

/// RFC 8166 section 4.5.3: a call that ends the connection each time must not do so forever.
#[test]
fn a_call_that_breaks_every_connection_ends_after_so_many_resends() {
    let mut server = Answering::granting(8);
    start(&server.caller, 1).unwrap();
    let call = server.hear();
    for resend in 1..=3 {
        server.break_and_accept();
        server.answer_first(8);
        assert_eq!(server.hear(), call, "resend {resend}");
    }
    server.break_and_accept();
    server.answer_first(8);
    let reply = server.caller.reply();
    assert!(is_disconnected(&reply), "{reply:?}");
    server.expect_silence();
    assert!(server.caller.client.is_up() && server.caller.client.in_flight() == 0);
}

/// A connection that goes before it is up costs a call none of its resends.
#[test]
fn connections_that_break_at_once_cost_no_resends() {
    let mut server = Answering::granting(8);
    start(&server.caller, 1).unwrap();
    let call = server.hear();
    for _ in 0..20 {
        server.break_and_accept();
        server.hear();
    }
    server.break_and_accept();
    server.answer_first(8);
    assert_eq!(server.hear(), call);
    server.reply(&call, 8);
    assert!(server.caller.reply().is_ok());
}
