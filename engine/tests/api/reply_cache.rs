//! At most once: a call that is sent again over another connection is not executed again, at
//! whichever moment the first connection went (RFC 5666 section 8, RFC 5531 section 4). Where the
//! moment matters both ends take their turns on the test's thread.

mod in_progress;

use crate::common::prelude::*;
use crate::common::raw::RawPeer;

/// `u32` number, data item in; how often that number was executed, and the item, out.
const ADD: Procedure = Procedure(1);
const ADD_LATER: Procedure = Procedure(2);
/// As [`ADD`], and says that doing it twice does no harm.
const LOOK: Procedure = Procedure(3);

/// In the place of a count: to be tried again.
const LATER: u32 = u32::MAX;

const SEED: u32 = 40;
const ITEM_MAX: usize = 1 << 20;

#[derive(Default)]
struct Seen {
    executed: Mutex<HashMap<u32, u32>>,
    deferred: Mutex<Vec<(u32, Deferred)>>,
    /// The service knows no client.
    has_no_clients: AtomicBool,
}

impl Seen {
    fn executed(&self, number: u32) -> u32 {
        lock(&self.executed).get(&number).copied().unwrap_or(0)
    }

    fn answer_deferred(&self) {
        for (count, deferred) in lock(&self.deferred).drain(..) {
            deferred.reply(|results| {
                results.u32(count);
                results.opaque(&[]);
            });
        }
    }
}

thread_local! {
    /// Client to call in the middle of executing a call.
    static IN_HANDLER: RefCell<Option<Client>> = const { RefCell::new(None) };
}

struct Adder {
    context: CoreContext,
    seen: Arc<Seen>,
}

impl Adder {
    fn add(&mut self, mut call: Call<'_>) -> Result<(), DecodeError> {
        let mut args = call.args();
        let (number, item) = (args.u32()?, args.data(ITEM_MAX)?);
        args.finish()?;
        let mut executed = lock(&self.seen.executed);
        let count = executed.entry(number).or_default();
        *count += 1;
        let count = *count;
        drop(executed);
        if let Some(client) = IN_HANDLER.take() {
            client.reconnect();
        }
        if call.procedure() == ADD_LATER {
            let deferred = call.defer().unwrap();
            lock(&self.seen.deferred).push((count, deferred));
            return Ok(());
        }
        let data = match item {
            Data::Bulk(bulk) => ReplyData::new().bulk(bulk),
            Data::Inline(bytes) => ReplyData::new().bulk(copy(&self.context, bytes)),
        };
        call.reply_with(data, |results| {
            results.u32(count);
            results.bulk();
        });
        Ok(())
    }
}

fn copy(context: &CoreContext, bytes: &[u8]) -> Bulk {
    let mut bulk = context.bulk(bytes.len()).unwrap();
    bulk.bytes_mut().copy_from_slice(bytes);
    bulk
}

impl Service for Adder {
    fn call(&mut self, call: Call<'_>) {
        // A call that cannot be decoded is dropped: SYSTEM_ERR.
        let _ = self.add(call);
    }

    fn is_idempotent(&self, procedure: Procedure) -> bool {
        procedure == LOOK || procedure == Procedure(0)
    }

    fn keeps_replies_for(&mut self, _: ConnectionId) -> bool {
        !self.seen.has_no_clients.load(Ordering::Relaxed)
    }

    fn too_many(&mut self, call: Call<'_>) {
        call.reply(|results| results.u32(LATER));
    }
}

fn server_config() -> RawConfig {
    small_with(|raw| {
        raw.rpc.reply_cache_mib = 1;
    })
}

/// For peers whose messages the test writes.
fn server_of_version_one() -> RawConfig {
    let mut raw = server_config();
    raw.rpc.version = Versions::One;
    raw
}

fn serve(raw: RawConfig, address: &str) -> (Engine, Arc<Seen>) {
    let engine = engine(raw);
    let seen = Arc::new(Seen::default());
    let of_service = Arc::clone(&seen);
    let make = move |context: &CoreContext| Adder {
        context: context.clone(),
        seen: Arc::clone(&of_service),
    };
    engine.serve_once(PROGRAM, VERSION, make).unwrap();
    engine.listen(address).unwrap();
    (engine, seen)
}

type Answer = (u32, Vec<u8>);

fn read(mut reply: Reply<'_>) -> Result<Answer, DecodeError> {
    let mut results = reply.results();
    Ok((results.u32()?, results.data(ITEM_MAX)?.bytes().to_vec()))
}

fn at_once() -> ConnectOptions {
    let policy = Reconnect::default()
        .first_delay(Duration::from_micros(50))
        .max_delay(Duration::from_millis(2))
        .resends_max(100);
    ConnectOptions::new().reconnect(policy)
}

fn connect(address: &str, options: &ConnectOptions) -> Caller<Answer> {
    connect_with(client_config(), address, options)
}

fn connect_with(raw: RawConfig, address: &str, options: &ConnectOptions) -> Caller<Answer> {
    Caller::asked(engine(raw), address, options, read)
}

struct Lockstep {
    caller: Caller<Answer>,
    server: Core,
    seen: Arc<Seen>,
    _engine: Engine,
}

impl Lockstep {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl Fn(&mut RawConfig)) -> Self {
        let address = unique_address();
        let (mut served, mut calling) = (server_config(), client_config());
        change(&mut served);
        change(&mut calling);
        let (engine, seen) = serve(served, &address);
        let server = engine.core(0).unwrap();
        let caller = connect_with(calling, &address, &at_once());
        let mut pair = Self { caller, server, seen, _engine: engine };
        let client = pair.caller.client.clone();
        pair.run_until("the first connection", |_| client.is_up());
        pair
    }

    #[track_caller]
    fn run_until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let end = Instant::now() + LIMIT;
        while !done(self) {
            self.turn();
            assert!(Instant::now() < end, "waited {LIMIT:?} for {what}");
        }
    }

    fn turn(&mut self) {
        self.caller.core.poll_once();
        self.server.poll_once();
    }

    /// Starts a call that carries `bytes` each way.
    fn start(&self, procedure: Procedure, number: u32, bytes: usize, resend: Resend) {
        start(&self.caller.client, procedure, number, bytes, resend);
    }

    #[track_caller]
    fn replies(&mut self, count: usize) -> Vec<(u64, Result<Answer, CallError>)> {
        self.run_until("the replies", |pair| pair.caller.heard.borrow().replies.len() >= count);
        let replies = std::mem::take(&mut self.caller.heard.borrow_mut().replies);
        assert_eq!(replies.len(), count);
        replies
    }

    /// The one call is answered, and was executed once.
    #[track_caller]
    fn expect_once(&mut self, what: &str, number: u32, bytes: usize) {
        let (_, reply) = self.replies(1).pop().unwrap();
        let (count, item) = reply.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!((count, self.seen.executed(number)), (1, 1), "{what}");
        assert!(item.len() == bytes && is_pattern(SEED + number, &item), "{what}");
        let client = self.caller.client.clone();
        self.run_until("the connection", |_| client.is_up());
    }
}

fn start(client: &Client, procedure: Procedure, number: u32, bytes: usize, resend: Resend) {
    let room = client.bulk(bytes).unwrap();
    let spec = CallSpec::short().resend(resend).result_into(room);
    start_as(client, procedure, number, bytes, spec);
}

fn start_as(client: &Client, procedure: Procedure, number: u32, bytes: usize, spec: CallSpec) {
    let mut argument = client.bulk(bytes).unwrap();
    fill_pattern(SEED + number, argument.bytes_mut());
    let mut spec = spec.argument(argument);
    let encode = |args: &mut spinrpc::Encoder<'_>| {
        args.u32(number);
        args.bulk();
    };
    client.call(procedure, Token(u64::from(number)), &mut spec, encode).unwrap();
}

/// A moment at which the connection goes, after a call was started.
type Fault = fn(&mut Lockstep);

const FAULTS: [(&str, Fault); 5] = [
    ("before the call leaves", |pair| pair.caller.client.reconnect()),
    ("before the call arrives", |pair| {
        pair.caller.core.poll_once();
        pair.caller.client.reconnect();
    }),
    ("while the call is executed", |pair| {
        IN_HANDLER.set(Some(pair.caller.client.clone()));
    }),
    ("after the reply was sent", |pair| {
        pair.caller.core.poll_once();
        let before = pair.server_replies();
        let end = Instant::now() + LIMIT;
        while pair.server_replies() == before && Instant::now() < end {
            pair.server.poll_once();
        }
        pair.caller.client.reconnect();
    }),
    ("again and again", |pair| {
        for _ in 0..5 {
            let ups = pair.ups();
            pair.caller.client.reconnect();
            pair.run_until("another connection", |pair| pair.ups() > ups);
            (0..3).for_each(|_| pair.turn());
        }
    }),
];

impl Lockstep {
    fn server_replies(&self) -> usize {
        lock(&self.seen.executed).values().sum::<u32>() as usize
    }

    fn ups(&self) -> usize {
        let events = &self.caller.heard.borrow().events;
        events.iter().filter(|event| matches!(event, ConnectionEvent::Up { .. })).count()
    }
}

/// A reply whose connection goes while it is fetched has not arrived.
#[test]
fn lose_the_connection_while_a_reply_is_fetched_expect_one_execution_and_the_reply() {
    // Version two has no such replies.
    let one = |raw: &mut RawConfig| {
        (raw.rpc.protocol, raw.rpc.version) = (Profile::Draft00, Versions::One);
    };
    let mut pair = Lockstep::with(one);
    let bytes = 50_000;
    for turns in 0..12 {
        let number = 1 + turns;
        let spec = CallSpec::short().resend(Resend::AtMostOnce);
        start_as(&pair.caller.client, ADD, number, bytes, spec);
        (0..turns).for_each(|_| pair.turn());
        pair.caller.client.reconnect();
        pair.expect_once(&format!("after {turns} turns"), number, bytes);
    }
    assert_eq!(pair.caller.client.in_flight(), 0);
}

/// Padded messages as well: the first time a call and its reply may have padding, and again they have none.
#[test]
fn lose_the_connection_at_any_point_expect_one_execution_and_the_reply() {
    let plain: fn(&mut RawConfig) = |_| {};
    let padded: fn(&mut RawConfig) = |raw| {
        raw.rpc.protocol = Profile::Rfc5666;
        raw.rpc.msgp_align_bytes = 1024;
        raw.fixed.msgp_threshold_bytes = 512;
    };
    for (what, change) in [("plain", plain), ("padded", padded)] {
        let mut pair = Lockstep::with(change);
        let mut number = 0;
        for bytes in [0, 7, 1000, 50_000] {
            for (moment, fault) in FAULTS {
                number += 1;
                pair.start(ADD, number, bytes, Resend::AtMostOnce);
                fault(&mut pair);
                pair.expect_once(&format!("{what}, {bytes} bytes, {moment}"), number, bytes);
            }
        }
        assert_eq!(pair.caller.client.in_flight(), 0, "{what}");
    }
}

/// Without the option the call ends, and an idempotent one is executed again.
#[test]
fn only_calls_that_ask_for_it_are_executed_once() {
    let mut pair = Lockstep::new();
    pair.start(LOOK, 1, 10, Resend::AtLeastOnce);
    FAULTS[3].1(&mut pair);
    let (_, reply) = pair.replies(1).pop().unwrap();
    assert_eq!((reply.unwrap().0, pair.seen.executed(1)), (2, 2), "executed twice");
    let client = pair.caller.client.clone();
    pair.run_until("the connection", |_| client.is_up());
    pair.start(ADD, 2, 10, Resend::Never);
    FAULTS[3].1(&mut pair);
    let (_, reply) = pair.replies(1).pop().unwrap();
    assert!(matches!(reply, Err(CallError::Disconnected(_))), "{reply:?}");
    assert_eq!(pair.seen.executed(2), 1);
}

#[test]
fn a_call_that_is_still_executed_is_waited_for() {
    let mut pair = Lockstep::new();
    for (number, wait_for_the_second) in [(1, true), (2, false)] {
        pair.start(ADD_LATER, number, 0, Resend::AtMostOnce);
        pair.run_until("the call", |pair| pair.seen.executed(number) == 1);
        let ups = pair.ups();
        pair.caller.client.reconnect();
        if wait_for_the_second {
            pair.run_until("another connection", |pair| pair.ups() > ups);
            (0..100).for_each(|_| pair.turn());
        }
        pair.seen.answer_deferred();
        let (_, reply) = pair.replies(1).pop().unwrap();
        assert_eq!((reply.unwrap(), pair.seen.executed(number)), ((1, Vec::new()), 1));
        let client = pair.caller.client.clone();
        pair.run_until("the connection", |_| client.is_up());
    }
}

/// A server on separate threads.
struct Threads {
    engine: Started,
    seen: Arc<Seen>,
}

impl Threads {
    fn start(raw: RawConfig, address: &str) -> Self {
        let (engine, seen) = serve(raw, address);
        Self { engine: Started::new(engine), seen }
    }
}

/// Accepted connections go to the cores in turn: each time the client comes back to another one.
#[test]
fn come_back_to_another_core_expect_one_execution() {
    let address = unique_address();
    let mut raw = server_config();
    raw.cores.max = 2;
    let server = Threads::start(raw, &address);
    assert_eq!(server.engine.cores(), 2);
    let mut caller = connect(&address, &at_once());
    let client = caller.client.clone();
    for number in 0..50 {
        run_core(&mut caller.core, "a connection", || client.is_up());
        start(&client, ADD, number, 600, Resend::AtMostOnce);
        (0..number % 5).for_each(|_| {
            caller.core.poll_once();
        });
        client.reconnect();
        let (count, item) = caller.reply().unwrap();
        assert_eq!((count, server.seen.executed(number)), (1, 1));
        assert!(is_pattern(SEED + number, &item));
    }
    let replayed: u64 =
        (0..2).map(|core| server.engine.stats(core).unwrap().replies_replayed).sum();
    drop(caller);
    assert!(replayed <= 50);
}

/// A client, and a server of two cores that take turns when the test says so. Accepted connections
/// go to the cores in turn.
struct TwoCores {
    caller: Caller<Answer>,
    cores: [Core; 2],
    seen: Arc<Seen>,
    engine: Engine,
}

impl TwoCores {
    /// The client is up with the first core.
    fn new() -> Self {
        let address = unique_address();
        let mut raw = server_config();
        raw.cores.max = 2;
        let (engine, seen) = serve(raw, &address);
        let cores = [engine.core(0).unwrap(), engine.core(1).unwrap()];
        // So long a NULL call waits for a core that takes no turn.
        let raw = client_with(|raw| raw.rpc.timeout_ms = 50);
        let caller = connect_with(raw, &address, &at_once());
        let mut all = Self { caller, cores, seen, engine };
        let client = all.caller.client.clone();
        all.run_until("the first connection", 0, |_| client.is_up());
        all
    }

    #[track_caller]
    fn run_until(&mut self, what: &str, core: usize, done: impl Fn(&Self) -> bool) {
        let end = Instant::now() + LIMIT;
        while !done(self) {
            self.caller.core.poll_once();
            self.cores[core].poll_once();
            assert!(Instant::now() < end, "waited {LIMIT:?} for {what}");
        }
    }

    fn start(&self, number: u32) {
        let client = &self.caller.client;
        let spec = CallSpec::short().resend(Resend::AtMostOnce).no_deadline();
        start_as(client, ADD, number, 0, spec.result_into(client.bulk(0).unwrap()));
    }

    #[track_caller]
    fn expect_once(&mut self, number: u32, core: usize) {
        self.run_until("the reply", core, |all| !all.caller.heard.borrow().replies.is_empty());
        let (_, reply) = self.caller.heard.borrow_mut().replies.pop().unwrap();
        let count = reply.unwrap_or_else(|error| panic!("call {number}: {error}")).0;
        assert_eq!((count, self.seen.executed(number)), (1, 1), "call {number}");
    }

    /// A core that took no turn catches up on missed work.
    #[track_caller]
    fn catch_up(&mut self, core: usize) {
        self.run_until("the end of the lost connection", core, |all| {
            all.engine.stats(core).unwrap().connections_closed > 0
        });
    }
}

/// Attempts that their client has given up are noticed late by a core that was busy.
#[test]
fn an_attempt_given_up_comes_up_late_expect_the_calls_of_the_next_one_executed() {
    let mut all = TwoCores::new();
    let client = all.caller.client.clone();
    client.reconnect();
    all.run_until("a connection to the first core", 0, |_| client.is_up());
    all.start(1);
    all.expect_once(1, 0);
    all.catch_up(1);
    all.start(2);
    all.expect_once(2, 0);
}

/// The record of executed calls is gone with the process: the next server has another identity.
#[test]
fn find_another_server_expect_calls_at_most_once_to_end() {
    let address = unique_address();
    let first = Threads::start(server_config(), &address);
    let mut caller = connect(&address, &at_once());
    let client = caller.client.clone();
    run_core(&mut caller.core, "a connection", || client.is_up());
    start(&client, ADD_LATER, 1, 0, Resend::AtMostOnce);
    start(&client, ADD_LATER, 2, 0, Resend::AtLeastOnce);
    let seen = Arc::clone(&first.seen);
    // Counted before they are deferred, by the server's thread.
    run_core(&mut caller.core, "both", || lock(&seen.deferred).len() == 2);
    // Their answers must not get ready while the first server ends.
    let kept = std::mem::take(&mut *lock(&seen.deferred));
    drop(first);
    let second = Threads::start(server_config(), &address);
    let of_second = Arc::clone(&second.seen);
    run_core(&mut caller.core, "the second call", || lock(&of_second.deferred).len() == 1);
    of_second.answer_deferred();
    let mut replies = caller.replies(2);
    replies.sort_by_key(|(token, _)| *token);
    let ended = matches!(replies[0].1, Err(CallError::Disconnected(_)));
    assert!(ended && replies[1].1.is_ok(), "{replies:?}");
    assert_eq!((of_second.executed(1), of_second.executed(2)), (0, 1));
    drop((kept, caller));
}

/// Clients of one process, which each call all kinds of procedures, and stay.
#[test]
fn more_clients_of_one_process_than_it_has_credits_expect_all_served() {
    let address = unique_address();
    let _server = Threads::start(server_config(), &address);
    let mut callers = Vec::new();
    for number in 0..20 {
        let mut caller = connect(&address, &at_once());
        let client = caller.client.clone();
        run_core(&mut caller.core, "a connection", || client.is_up());
        for procedure in [LOOK, ADD] {
            start(&client, procedure, number, 0, Resend::AtMostOnce);
            let reply = caller.reply();
            assert!(reply.is_ok(), "client {number}: {reply:?}");
        }
        callers.push(caller);
    }
    drop(callers);
}

/// A call of another implementation, which is numbered by its XID.
fn raw_call(xid: u32, Procedure(procedure): Procedure) -> Vec<u32> {
    let (program, version) = (PROGRAM.0, VERSION.0);
    vec![xid, 1, 8, 0, 0, 0, 0, xid, 0, 2, program, version, procedure, 0, 0, 0, 0, xid, 0]
}

/// The replies to calls on a connection of their own, one after the other.
fn ask(address: &str, calls: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let mut peer = RawPeer::connect(address);
    let ask = |call: &Vec<u32>| {
        peer.send_words(call);
        peer.hear().words()
    };
    let replies = calls.iter().map(ask).collect();
    peer.close();
    replies
}

/// Calls on several connections of one peer, as many on each as it may have in flight.
fn start_raw(address: &str, procedure: Procedure, xids: std::ops::Range<u32>) -> Vec<RawPeer> {
    let xids: Vec<u32> = xids.collect();
    let connect = |calls: &[u32]| {
        let mut peer = RawPeer::connect(address);
        calls.iter().for_each(|xid| peer.send_words(&raw_call(*xid, procedure)));
        peer
    };
    xids.chunks(60).map(connect).collect()
}

#[test]
fn a_reply_that_is_too_long_to_keep_is_not_made_again() {
    let mut pair = Lockstep::new();
    // Longer than 64 KiB.
    pair.start(ADD, 1, 70_000, Resend::AtMostOnce);
    FAULTS[3].1(&mut pair);
    let (_, reply) = pair.replies(1).pop().unwrap();
    let refused = matches!(reply, Err(CallError::Accepted(AcceptStatus::SystemErr)));
    assert!(refused && pair.seen.executed(1) == 1, "{reply:?}");
}

#[test]
fn serve_once_without_a_cache_expect_an_error_that_names_the_key() {
    let engine = engine(small_with(|_| {}));
    let error = engine.serve_once(PROGRAM, VERSION, |_| |_: Call<'_>| {}).unwrap_err();
    assert!(error.to_string().contains("rpc.reply_cache_mib"), "{error}");
}

/// A peer of another implementation, identified by its process: XID, procedure and arguments identify the call. Linux counts its
/// XIDs in the first byte on the wire, from anywhere.
#[test]
fn a_peer_that_says_nothing_of_itself_is_known_by_its_process_and_its_calls() {
    let address = unique_address();
    let server = Threads::start(server_of_version_one(), &address);
    let call = |xid: u32, number: u32| {
        let mut words = raw_call(xid, ADD);
        words[17] = number;
        words
    };
    let first = ask(&address, &[call(77, 1)]);
    assert_eq!(ask(&address, &[call(77, 1)]), first, "the same reply");
    assert_eq!(server.seen.executed(1), 1);
    // The same XID of another call, and the same call of another XID, are others.
    ask(&address, &[call(77, 2)]);
    assert_eq!(server.seen.executed(2), 1);
    ask(&address, &[call(78, 1)]);
    assert_eq!(server.seen.executed(1), 2);
    let xids = (0x1feb_47cb..=0x27eb_47cb).step_by(1 << 24);
    let calls: Vec<_> = xids.map(|xid| raw_call(xid, ADD)).collect();
    let first = ask(&address, &calls);
    assert_eq!(ask(&address, &calls), first, "the same replies");
    assert!(calls.iter().all(|call| server.seen.executed(call[0]) == 1));
}
