//! Calls in reverse (RFC 8167): the server calls, the client serves, concurrently with the calls of
//! the forward direction and without either waiting for the other.

use crate::common::prelude::*;

/// Calls in reverse at a time.
const REVERSE: usize = 3;
/// Calls forward at a time.
const CREDITS: usize = 4;
/// Of each grant, for answers.
const HELD_BACK: usize = 2;

fn config() -> RawConfig {
    let granted = (CREDITS + HELD_BACK) as u64;
    small_with(|raw| (raw.rpc.credits, raw.rpc.reverse_calls) = (granted, REVERSE as u64))
}

fn taking() -> ConnectOptions {
    ConnectOptions::new().take_reverse_calls()
}

fn pair_with<T: 'static>(raw: RawConfig, read: Read<T>) -> Pair<T> {
    Pair::connect(raw, &taking(), ReverseOptions::new(), read)
}

fn pair() -> Pair<Vec<u32>> {
    pair_with(config(), all_words)
}

fn later(client: &Client, token: u64) -> Result<CallId, Backpressure> {
    client.call(LATER, Token(token), &mut CallSpec::short(), |args| args.u32(token as u32))
}

#[track_caller]
fn null(client: &Client, token: u64) {
    client.call(NULL, Token(token), &mut CallSpec::short(), |_| {}).unwrap();
}

fn tokens(replies: &[(u64, Result<Vec<u32>, CallError>)]) -> Vec<u64> {
    replies.iter().map(|(token, _)| *token).collect()
}

#[test]
fn a_server_calls_and_its_client_answers() {
    let mut pair = pair();
    let far = &pair.far.client;
    let echo = |args: &mut spinrpc::Encoder<'_>| args.opaque(b"back");
    far.call(ECHO, Token(5), &mut CallSpec::short(), echo).unwrap();
    pair.until("the reply", |pair| pair.far.reply_count() == 1);
    let replies = pair.far.take();
    let words = replies[0].1.as_ref().unwrap();
    assert_eq!(words[..], [4, u32::from_be_bytes(*b"back")]);
    far_fails_as_the_client_says(&mut pair);
}

fn far_fails_as_the_client_says(pair: &mut Pair<Vec<u32>>) {
    pair.far.client.call(FAIL, Token(6), &mut CallSpec::short(), |_| {}).unwrap();
    pair.until("the refusal", |pair| pair.far.reply_count() == 1);
    let replies = pair.far.take();
    assert!(matches!(replies[0].1, Err(CallError::Accepted(AcceptStatus::SystemErr))));
}

/// Hands the arguments of each call back to the caller, in a call in reverse, and answers with the
/// result.
#[derive(Default)]
struct AsksBack {
    client: Option<Client>,
    open: Rc<RefCell<Option<Deferred>>>,
}

struct Passes(Rc<RefCell<Option<Deferred>>>);

impl ReplyHandler for Passes {
    fn on_reply(&mut self, _: Token, reply: Result<Reply<'_>, CallError>) {
        let words = reply.and_then(|reply| Ok(all_words(reply)?)).unwrap();
        let open = self.0.borrow_mut().take().unwrap();
        open.reply(|results| words.iter().for_each(|word| results.u32(*word)));
    }
}

impl Service for AsksBack {
    fn call(&mut self, mut call: Call<'_>) {
        if call.procedure() != ECHO {
            return call.reply(|_| {});
        }
        let question = call.args().opaque(64).unwrap().to_vec();
        let open = Rc::clone(&self.open);
        let client = self.client.get_or_insert_with(|| {
            let options = ReverseOptions::new();
            call.reverse_client(PROGRAM, VERSION, &options, |_| Passes(open)).unwrap()
        });
        let ask = |args: &mut spinrpc::Encoder<'_>| args.opaque(&question);
        client.call(ECHO, Token(1), &mut CallSpec::short(), ask).unwrap();
        *self.open.borrow_mut() = call.defer();
    }
}

/// RFC 8167 section 4: neither direction waits for the other.
#[test]
fn a_handler_calls_its_caller_before_it_answers() {
    let mut served = Served::by(config(), AsksBack::default);
    for round in 0..20_u32 {
        let question = round.to_be_bytes();
        let ask = |args: &mut spinrpc::Encoder<'_>| args.opaque(&question);
        let token = Token(u64::from(round));
        served.client.call(ECHO, token, &mut CallSpec::short(), ask).unwrap();
        let (token, words) = served.until_replies(1).remove(0);
        assert_eq!((token, words.unwrap()), (u64::from(round), vec![4, round]));
    }
}

#[derive(Default)]
struct AnswersLast(Option<Client>);

impl Service for AnswersLast {
    fn call(&mut self, call: Call<'_>) {
        let client = self.0.get_or_insert_with(|| {
            let options = ReverseOptions::new();
            call.reverse_client(PROGRAM, VERSION, &options, |_| Ignores).unwrap()
        });
        match call.procedure() {
            ECHO => {
                call.reply(|results| results.u32(7));
                client.close();
            }
            FAIL => {
                client.close();
                let more = client.call(NULL, Token(1), &mut CallSpec::short(), |_| {});
                assert_eq!(more, Err(Backpressure::Down));
                call.reply(|results| results.u32(8));
            }
            _ => call.reply(|_| {}),
        }
    }
}

struct Ignores;

impl ReplyHandler for Ignores {
    fn on_reply(&mut self, _: Token, _: Result<Reply<'_>, CallError>) {}
}

/// Both of a handler that answers first and of one that closes first.
#[test]
fn an_answer_goes_before_the_end_of_its_connection_that_the_handler_asks_for() {
    for (procedure, answer) in [(ECHO, 7), (FAIL, 8)] {
        let mut served = Served::by(config(), AnswersLast::default);
        served.start(procedure, 1, 0);
        let Served { cores, client, heard, .. } = &mut served;
        cores.until("the end", || !client.is_up());
        let replies = std::mem::take(&mut heard.borrow_mut().replies);
        assert_eq!(tokens(&replies), [1]);
        assert_eq!(replies[0].1.as_ref().ok(), Some(&vec![answer]), "{:?}", replies[0].1);
    }
}

/// Starts reverse calls until one is refused, and then answers its own call.
struct Floods {
    client: Option<Client>,
    refused: Arc<Mutex<Vec<Backpressure>>>,
}

impl Service for Floods {
    fn call(&mut self, mut call: Call<'_>) {
        let client = self.client.get_or_insert_with(|| {
            let options = ReverseOptions::new();
            call.reverse_client(PROGRAM, VERSION, &options, |_| Ignores).unwrap()
        });
        let null = || client.call(NULL, Token(1), &mut CallSpec::short(), |_| {});
        match call.procedure() {
            FAIL | LATER => {
                let refused = std::iter::repeat_with(null).find_map(Result::err).unwrap();
                lock(&self.refused).push(refused);
                match call.procedure() {
                    FAIL => call.reject(AcceptStatus::SystemErr),
                    _ => call.reply(|results| results.u32(3)),
                }
            }
            ECHO => {
                let taken = call.args().data(1 << 20).is_ok();
                call.reply(|results| results.u32(taken.into()));
            }
            _ => {
                // Its answer says how many more there may be at a time.
                null().unwrap();
                call.reply(|_| {});
            }
        }
    }
}

/// A connection both ways on the test's thread, with a service of the test at the far end.
struct Served {
    cores: Cores,
    client: Client,
    heard: SharedHeard<Vec<u32>>,
    /// Over shared memory: a core with one connection copies more of a long transfer at once.
    _idle: Option<Client>,
}

impl Served {
    fn by<S: Service + 'static>(
        raw: RawConfig,
        service: impl Fn() -> S + Send + Sync + 'static,
    ) -> Self {
        let [here, there] = [(); 2].map(|()| engine(raw.clone()));
        crate::common::serve(&here);
        let mut cores = Cores::new(here, there, |there| {
            there.serve(PROGRAM, VERSION, move |_| service()).unwrap();
        });
        let heard = SharedHeard::default();
        let client = cores.connect(&taking(), |_| recorder(&heard, all_words));
        let _idle = cores.address.starts_with("shm:").then(|| {
            let unheard = recorder(&SharedHeard::default(), all_words);
            cores.connect(&ConnectOptions::new(), |_| unheard)
        });
        Self { cores, client, heard, _idle }
    }

    /// Starts a call with `items` data items, each by Read chunk.
    fn start(&self, procedure: Procedure, token: u64, items: usize) {
        let mut spec = CallSpec::short();
        for _ in 0..items {
            spec.add_argument(self.client.bulk(1 << 20).unwrap());
        }
        let encode = |args: &mut spinrpc::Encoder<'_>| (0..items).for_each(|_| args.bulk());
        self.client.call(procedure, Token(token), &mut spec, encode).unwrap();
    }

    fn until_replies(&mut self, count: usize) -> Vec<(u64, Result<Vec<u32>, CallError>)> {
        let heard = Rc::clone(&self.heard);
        let are_here = || heard.borrow().replies.len() == count;
        self.cores.until("all replies", are_here);
        std::mem::take(&mut heard.borrow_mut().replies)
    }
}

/// Configuration with room for many calls with Read chunks.
fn wide() -> RawConfig {
    small_with(|raw| {
        (raw.rpc.credits, raw.rpc.reverse_calls) = (64, 32);
        (raw.rpc.max_read_bytes, raw.rpc.max_write_bytes) = (1 << 20, 1 << 20);
        (raw.fixed.max_chunks, raw.rpc.max_segments) = (4, 160);
        raw.rpc.segment_bytes = 69_632;
        raw.mem.conn_arena_mib = 256;
        // A connection may hold a third of its blocks.
        raw.mem.arena_mib = 256;
    })
}

/// Read chunks fill the send queue of the server; a handler's calls in reverse take the rest.
#[test]
fn calls_in_reverse_leave_room_for_the_answer_of_the_handler_that_starts_them() {
    for (procedure, is_answered) in [(LATER, true), (FAIL, false)] {
        let refused = Arc::<Mutex<Vec<_>>>::default();
        let told = Arc::clone(&refused);
        let floods = move || Floods { client: None, refused: Arc::clone(&told) };
        let mut flood = Served::by(wide(), floods);
        for _ in 0..3 {
            flood.start(NULL, 0, 0);
            flood.until_replies(1);
        }
        (0..44).for_each(|token| flood.start(ECHO, 100 + token, 1));
        flood.cores.near.poll_once();
        for _ in 0..8 {
            flood.cores.far.poll_once();
        }
        flood.start(procedure, 7, 0);
        let replies = flood.until_replies(45);
        assert_eq!(lock(&refused)[..], [Backpressure::SendQueueFull], "the test is to fill it");
        let answer = replies.iter().find(|(token, _)| *token == 7).unwrap();
        assert_eq!(answer.1.is_ok(), is_answered, "{answer:?}");
        assert!(flood.client.is_up());
    }
}

/// RFC 8166 section 3.3.3, RFC 8167 section 4: one credit until the first reply, then those that
/// the client grants.
#[test]
fn the_first_call_in_reverse_goes_alone_and_then_as_many_as_are_granted() {
    let mut pair = pair();
    later(&pair.far.client, 0).unwrap();
    assert_eq!(later(&pair.far.client, 1), Err(Backpressure::NoCredit));
    pair.until("the call", |pair| pair.near.shared.waiting() == 1);
    pair.near.shared.pop().unwrap().1.reply(|_| {});
    pair.until("its reply", |pair| pair.far.reply_count() == 1);
    for token in 1..=REVERSE as u64 {
        later(&pair.far.client, token).unwrap();
    }
    assert_eq!(later(&pair.far.client, 9), Err(Backpressure::NoCredit));
    assert_eq!(pair.far.client.in_flight(), REVERSE);
    pair.until("all calls", |pair| pair.near.shared.waiting() == REVERSE);
    pair.near.shared.answer_all_with_nothing();
    pair.until("all replies", |pair| pair.far.reply_count() == REVERSE + 1);
    assert_eq!(tokens(&pair.far.take()), [0, 1, 2, 3]);
}

fn fill(client: &Client, token: &mut u64) {
    while client.call(ECHO, Token(*token), &mut CallSpec::short(), |args| args.opaque(b"x")).is_ok()
    {
        *token += 1;
    }
}

/// RFC 8167 section 4: the inline thresholds of a side do not depend on the direction. Expect the
/// longest call of each end inline, and a Read chunk for a longer one.
#[test]
fn both_directions_have_the_thresholds_of_the_connection() {
    for (bytes, is_inline) in [(900, true), (1100, false)] {
        let raw = small_with(|raw| {
            // The only one with thresholds that short.
            raw.rpc.version = Versions::One;
            (raw.rpc.inline_send_bytes, raw.rpc.inline_recv_bytes) = (4096, 1024);
            raw.rpc.reverse_calls = REVERSE as u64;
        });
        let mut pair: Pair<Vec<u32>> = pair_with(raw, all_words);
        pair.open_window();
        let item = pattern(3, bytes);
        for end in [&pair.near, &pair.far] {
            let mut spec = CallSpec::new().reply_bytes_max(2000);
            end.client.call(ECHO, Token(1), &mut spec, |args| args.opaque(&item)).unwrap();
        }
        pair.until("both replies", |pair| {
            (pair.near.reply_count(), pair.far.reply_count()) == (1, 1)
        });
        // Each end has been called twice: the calls with which the directions begin.
        let is_told = |end: &End<_>| end.engine.stats(0).unwrap().calls_received == 2;
        pair.until("the counters", |pair| is_told(&pair.near) && is_told(&pair.far));
        for end in [&pair.near, &pair.far] {
            assert!(end.take().pop().unwrap().1.is_ok());
            assert_eq!(end.engine.stats(0).unwrap().bytes_read == 0, is_inline, "{bytes} bytes");
        }
    }
}

/// RFC 8167 section 4: each direction has its receives, so that all credits of both can be in use.
#[test]
fn both_directions_use_all_their_credits_at_once() {
    const CALLS: usize = 3000;
    let mut pair = pair();
    pair.open_window();
    let (mut forward, mut reverse) = (0, 0);
    while pair.near.reply_count() < CALLS || pair.far.reply_count() < CALLS {
        fill(&pair.near.client, &mut forward);
        fill(&pair.far.client, &mut reverse);
        pair.turn();
        assert_eq!((pair.near.downs(), pair.far.downs()), (0, 0));
    }
    pair.until("the rest", |pair| {
        pair.near.client.in_flight() == 0 && pair.far.client.in_flight() == 0
    });
    for (end, started) in [(&pair.near, forward), (&pair.far, reverse)] {
        let replies = end.take();
        assert_eq!(tokens(&replies), (0..started).collect::<Vec<_>>());
        assert!(replies.iter().all(|(_, reply)| reply.is_ok()));
    }
}

/// All slots of both directions with calls that are answered late: no buffer of one is the other's.
#[test]
fn both_directions_are_full_of_deferred_calls_and_all_are_answered() {
    let mut pair = pair();
    pair.open_window();
    for token in 0..CREDITS as u64 {
        later(&pair.near.client, token).unwrap();
    }
    for token in 0..REVERSE as u64 {
        later(&pair.far.client, token).unwrap();
    }
    pair.until("all calls", |pair| {
        (pair.far.shared.waiting(), pair.near.shared.waiting()) == (CREDITS, REVERSE)
    });
    assert_eq!(later(&pair.near.client, 99), Err(Backpressure::NoCredit));
    assert_eq!(later(&pair.far.client, 99), Err(Backpressure::NoCredit));
    for end in [&pair.near, &pair.far] {
        end.shared.answer_all();
    }
    pair.until("all replies", |pair| {
        (pair.near.reply_count(), pair.far.reply_count()) == (CREDITS, REVERSE)
    });
    for end in [&pair.near, &pair.far] {
        for (token, reply) in end.take() {
            assert_eq!(reply.unwrap(), [token as u32]);
        }
    }
}

fn mixed(seed: u32) -> MixCall {
    MixCall {
        seed,
        arguments: vec![70_001, 0, 300],
        results: vec![50_003, 20_000],
        offers: vec![50_003, 20_000],
        tail: 9_000,
        reply_bytes_max: 10_000,
    }
}

/// RFC 8167 section 5: Read, Write and Reply chunks in calls of either direction.
#[test]
fn chunks_of_both_directions_go_both_ways_at_once() {
    let mut pair: Pair<MixAnswer> = pair_with(config(), MixCall::read);
    for round in 0..20 {
        let (forward, reverse) = (mixed(2 * round), mixed(2 * round + 1));
        forward.start(&pair.near.client, 1).unwrap();
        reverse.start(&pair.far.client, 2).unwrap();
        pair.until("both replies", |pair| {
            (pair.near.reply_count(), pair.far.reply_count()) == (1, 1)
        });
        for (end, call) in [(&pair.near, &forward), (&pair.far, &reverse)] {
            let answer = end.take().pop().unwrap().1.unwrap();
            call.check(&answer);
            assert_eq!((answer.in_memory & 1, answer.placed), (1, 0b11), "chunks were used");
        }
    }
}

/// The item of the results.
fn one_item(mut reply: Reply<'_>) -> Result<Vec<u8>, DecodeError> {
    let mut results = reply.results();
    match results.data(1 << 20)? {
        Data::Inline(bytes) => Ok(bytes.to_vec()),
        Data::Bulk(bulk) => Ok(bulk.bytes().to_vec()),
    }
}

/// RFC 5666 section 3.8: a reply that is fetched, and RDMA_DONE, in both directions.
#[test]
fn replies_are_fetched_in_both_directions_under_older_rules() {
    for profile in [Profile::Rfc5666, Profile::Draft03, Profile::Draft00] {
        let mut raw = config();
        // Version two has no such replies.
        (raw.rpc.protocol, raw.rpc.version) = (profile, Versions::One);
        let mut pair: Pair<Vec<u8>> = pair_with(raw, one_item);
        for end in [&pair.near, &pair.far] {
            end.shared.read_chunks.store(true, std::sync::atomic::Ordering::Relaxed);
        }
        let long = pattern(3, 30_000);
        for round in 0..10 {
            for end in [&pair.near, &pair.far] {
                let echo = |args: &mut spinrpc::Encoder<'_>| args.opaque(&long);
                end.client.call(ECHO, Token(round), &mut CallSpec::short(), echo).unwrap();
            }
            pair.until("both replies", |pair| {
                (pair.near.reply_count(), pair.far.reply_count()) == (1, 1)
            });
            for end in [&pair.near, &pair.far] {
                assert_eq!(end.take().pop().unwrap().1.unwrap(), long, "{profile:?}");
            }
        }
    }
}

#[test]
fn a_client_that_stays_inline_refuses_what_needs_chunks() {
    let options = ReverseOptions::new().inline_only();
    let mut pair: Pair<Vec<u8>> = Pair::connect(config(), &taking(), options, one_item);
    let client = &pair.far.client;
    let item = |bytes: usize| {
        let mut bulk = client.bulk(bytes).unwrap();
        bulk.bytes_mut().copy_from_slice(&pattern(1, bytes));
        CallSpec::short().argument(bulk)
    };
    let bounce = |spec: &mut CallSpec| client.call(BOUNCE, Token(1), spec, |args| args.bulk());
    let into = client.bulk(100).unwrap();
    for mut spec in [item(5000), item(10).reply_bytes_max(100_000), item(10).result_into(into)] {
        assert_eq!(bounce(&mut spec), Err(Backpressure::InlineOnly));
    }
    bounce(&mut item(3000)).unwrap();
    pair.until("the reply", |pair| pair.far.reply_count() == 1);
    assert_eq!(pair.far.take().pop().unwrap().1.unwrap(), pattern(1, 3000));
}

/// RFC 8167: a client of version one that takes no calls in reverse drops them, and nothing on the wire
/// says so. In version two (section 4.2.2) every client answers: here that it has no such program.
#[test]
fn a_client_that_takes_no_calls_in_reverse_goes_on_when_called() {
    let mut pair =
        Pair::connect(config(), &ConnectOptions::new(), ReverseOptions::new(), all_words);
    // Version one has no refusal.
    let deadline = match version() {
        TransportVersion::One => Duration::from_millis(50),
        TransportVersion::Two => LIMIT,
    };
    let mut spec = CallSpec::short().deadline(deadline);
    pair.far.client.call(NULL, Token(1), &mut spec, |_| {}).unwrap();
    for round in 0..20 {
        null(&pair.near.client, round);
        pair.until("a reply forward", |pair| pair.near.reply_count() == 1);
        assert!(pair.near.take()[0].1.is_ok());
    }
    pair.until("the deadline or a refusal", |pair| pair.far.reply_count() == 1);
    let answer = pair.far.take().swap_remove(0).1;
    let expected = match version() {
        TransportVersion::One => matches!(answer, Err(CallError::TimedOut)),
        TransportVersion::Two => {
            matches!(answer, Err(CallError::Accepted(AcceptStatus::ProgUnavail)))
        }
    };
    assert!(expected, "{answer:?}");
    assert_eq!(lock(&pair.near.shared.events).len(), 0, "its program hears of no connection");
    assert_eq!((pair.near.downs(), pair.far.downs()), (0, 0));
}

/// Every call in flight ends once, in both directions, before its handler hears of the end.
#[test]
fn a_lost_connection_ends_the_calls_of_both_directions() {
    for closed_by_server in [false, true] {
        let mut pair = pair();
        pair.open_window();
        for token in 0..3 {
            later(&pair.near.client, token).unwrap();
        }
        for token in 0..2 {
            later(&pair.far.client, token).unwrap();
        }
        pair.until("all calls", |pair| {
            (pair.far.shared.waiting(), pair.near.shared.waiting()) == (3, 2)
        });
        let end = if closed_by_server { &pair.far } else { &pair.near };
        end.client.close();
        pair.until("both ends", |pair| (pair.near.downs(), pair.far.downs()) == (1, 1));
        for (end, count) in [(&pair.near, 3), (&pair.far, 2)] {
            let replies = end.take();
            assert_eq!(tokens(&replies), (0..count).collect::<Vec<_>>());
            let is_lost = |reply: &_| matches!(reply, Err(CallError::Disconnected(_)));
            assert!(replies.iter().all(|(_, reply)| is_lost(reply)));
            assert_eq!(later(&end.client, 9), Err(Backpressure::Down));
            assert_eq!(end.shared.downs(), 1, "its program heard of the end");
        }
        // Answers that come now go nowhere.
        for end in [&pair.near, &pair.far] {
            end.shared.answer_all_with_nothing();
        }
        pair.turn();
    }
}

/// Calls in reverse are not sent again; the next connection has a new client.
#[test]
fn a_client_that_comes_back_takes_calls_in_reverse_again() {
    let policy = Reconnect::default().first_delay(Duration::from_millis(1));
    let options = taking().reconnect(policy);
    let mut pair = Pair::connect(config(), &options, ReverseOptions::new(), all_words);
    later(&pair.far.client, 1).unwrap();
    pair.until("the call", |pair| pair.near.shared.waiting() == 1);
    pair.near.client.reconnect();
    pair.until("the end of the first", |pair| pair.far.downs() == 1);
    assert!(matches!(pair.far.take()[0], (1, Err(CallError::Disconnected(_)))));
    pair.until("the next connection", |pair| {
        pair.near.client.is_up() && connections(&pair.far.shared).len() == 2
    });
    let next = connections(&pair.far.shared)[1];
    let made = recorder(&pair.far.heard, all_words);
    let options = ReverseOptions::new();
    let back = pair.far.core.reverse_client(next, PROGRAM, VERSION, &options, |_| made).unwrap();
    null(&back, 2);
    pair.until("a reply by the next one", |pair| pair.far.reply_count() == 1);
    assert!(matches!(pair.far.take()[0], (2, Ok(_))));
    let near = lock(&pair.near.shared.events);
    let kinds: Vec<bool> =
        near.iter().map(|event| matches!(event, ConnectionEvent::Up { .. })).collect();
    assert_eq!(kinds, [true, false, true], "its program heard of both connections");
}

#[test]
fn a_connection_says_why_it_cannot_be_called_on_in_reverse() {
    let mut pair = pair();
    let options = ReverseOptions::new();
    let (of_far, of_near) = (connections(&pair.far.shared)[0], connections(&pair.near.shared)[0]);
    let ask = |core: &mut Core, connection| {
        let made = recorder(&pair.far.heard, all_words);
        core.reverse_client(connection, PROGRAM, VERSION, &options, |_| made).unwrap_err()
    };
    assert_eq!(ask(&mut pair.far.core, of_far), NoReverse::Taken);
    assert_eq!(ask(&mut pair.near.core, of_near), NoReverse::NotAccepted);
    pair.near.client.close();
    pair.until("the end", |pair| pair.far.downs() == 1);
    let made = recorder(&pair.far.heard, all_words);
    let refused =
        pair.far.core.reverse_client(of_far, PROGRAM, VERSION, &options, |_| made).unwrap_err();
    assert_eq!(refused, NoReverse::Down);
}

#[test]
fn without_configured_calls_in_reverse_neither_end_gets_any() {
    let mut shared = Arc::default();
    let mut cores = Cores::of(small_with(|_| {}), |there| shared = crate::common::serve(there));
    let heard = SharedHeard::default();
    let made = recorder(&heard, all_words);
    let refused = cores.near.connect_with(&cores.address, PROGRAM, VERSION, &taking(), |_| made);
    assert!(matches!(refused, Err(ConnectError::NoReverseCalls)));
    let _client = cores.connect(&ConnectOptions::new(), |_| recorder(&heard, all_words));
    let made = recorder(&heard, all_words);
    let options = ReverseOptions::new();
    let connection = connections(&shared)[0];
    let refused = cores.far.reverse_client(connection, PROGRAM, VERSION, &options, |_| made);
    assert!(matches!(refused, Err(NoReverse::NotConfigured)));
}

/// A client that shuts down gracefully answers the calls in reverse that it has deferred.
#[test]
fn drain_a_client_expect_its_deferred_calls_in_reverse_answered() {
    let mut pair = pair();
    pair.open_window();
    later(&pair.far.client, 1).unwrap();
    pair.until("the call", |pair| pair.near.shared.waiting() == 1);
    let draining = {
        let engine = pair.near.engine.clone();
        std::thread::spawn(move || engine.drain(crate::common::LIMIT))
    };
    // One that comes when the core has begun to leave is not executed.
    let has_begun = |pair: &Pair<Vec<u32>>| pair.near.engine.stats(0).unwrap().calls_left > 0;
    while !has_begun(&pair) {
        if pair.far.client.in_flight() == 1 {
            null(&pair.far.client, 2);
        }
        pair.turn();
    }
    pair.far.take();
    pair.near.shared.pop().unwrap().1.reply(|_| {});
    pair.until("the answer", |pair| pair.far.reply_count() > 0);
    assert!(matches!(pair.far.take()[0], (1, Ok(_))));
    pair.until("the end", |_| draining.is_finished());
    assert_eq!(draining.join().unwrap(), 0);
}
