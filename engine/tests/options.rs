//! Extensions of version two that applications register
//! (draft-cel-nfsv4-rpcrdma-version-two-01 section 3).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::caller::{Caller, Heard, all_words, client_config, run_core};
use common::program::{ECHO, NULL};
use common::raw::{RawListener, RawPeer};
use common::{LIMIT, PROGRAM, VERSION, small_with, unique_address, valid};
use spinrpc::config::{RawConfig, Versions};
use spinrpc::options::{
    Carries, DeferredOption, OPTION_INFO_MAX_BYTES, OPTIONS_MAX, OptionCall, OptionHandler,
    OptionMessage,
};
use spinrpc::sync::lock;
use spinrpc::{
    Backpressure, Call, CallError, CallId, CallSpec, Client, ConnectOptions, CoreContext, Engine,
    EngineError, Procedure, Reply, ReplyHandler, ReverseOptions, Running, Service, Token,
};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Instant;

const ALONE: u32 = 100;
const PART: u32 = 101;
const MESSAGE: u32 = 102;
const FEATURE: &[(u32, Carries)] =
    &[(ALONE, Carries::Nothing), (PART, Carries::Part), (MESSAGE, Carries::Message)];
const XID: u32 = 0x77;

fn speaking(version: Versions, raw: RawConfig) -> RawConfig {
    let mut raw = raw;
    raw.rpc.version = version;
    raw.rpc.reverse_calls = 4;
    raw
}

/// Answers ALONE and PART by the same, turned round; refuses messages without information.
struct Turns;

impl OptionHandler for Turns {
    fn on_option(&mut self, call: OptionCall<'_>) {
        let OptionMessage { option, info, payload } = call.message();
        let info: Vec<u8> = info.iter().rev().copied().collect();
        match info.is_empty() {
            true => call.refuse(),
            false => call.reply(&OptionMessage { option, info: &info, payload }).unwrap(),
        }
    }
}

fn turns(_: &CoreContext) -> Turns {
    Turns
}

/// Messages of options, in addition to RPC replies.
#[derive(Default)]
struct Said {
    options: Vec<(u64, u32, Vec<u8>, Vec<u8>)>,
    errors: Vec<(u64, CallError)>,
    replies: usize,
}

#[derive(Clone, Default)]
struct Listens(Rc<RefCell<Said>>);

impl ReplyHandler for Listens {
    fn on_reply(&mut self, token: Token, reply: Result<Reply<'_>, CallError>) {
        let mut said = self.0.borrow_mut();
        match reply {
            Ok(_) => said.replies += 1,
            Err(error) => said.errors.push((token.0, error)),
        }
    }

    fn on_option_reply(&mut self, token: Token, answer: OptionMessage<'_>) {
        let (info, payload) = (answer.info.to_vec(), answer.payload.to_vec());
        self.0.borrow_mut().options.push((token.0, answer.option, info, payload));
    }
}

/// A service that asks its caller by an option, and remembers the answer.
struct AsksBack(Arc<Mutex<Vec<Vec<u8>>>>, Option<Client>);

struct Tells(Arc<Mutex<Vec<Vec<u8>>>>);

impl ReplyHandler for Tells {
    fn on_reply(&mut self, _: Token, _: Result<Reply<'_>, CallError>) {}

    fn on_option_reply(&mut self, _: Token, answer: OptionMessage<'_>) {
        lock(&self.0).push(answer.info.to_vec());
    }
}

impl Service for AsksBack {
    fn call(&mut self, call: Call<'_>) {
        if call.procedure() == Procedure(1) {
            let tells = Tells(Arc::clone(&self.0));
            let options = ReverseOptions::new();
            let client = call.reverse_client(PROGRAM, VERSION, &options, |_| tells).unwrap();
            let asks = OptionMessage { option: ALONE, info: b"abcd", payload: &[] };
            client.call_option(Token(1), &asks).unwrap();
            self.1 = Some(client);
        }
        call.reply(|_| {});
    }
}

/// A server that knows the extension, or not, and its callers' answers.
struct Server {
    engine: Engine,
    address: String,
    told: Arc<Mutex<Vec<Vec<u8>>>>,
    running: Option<Running>,
}

impl Server {
    fn new(version: Versions, knows: bool) -> Self {
        let engine = Engine::new(valid(speaking(version, small_with(|_| {})))).unwrap();
        let told = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let of_service = Arc::clone(&told);
        engine.serve(PROGRAM, VERSION, move |_| AsksBack(Arc::clone(&of_service), None));
        if knows {
            engine.option(FEATURE, turns).unwrap();
        }
        let address = unique_address();
        engine.listen(&address).unwrap();
        let running = Some(engine.start().unwrap());
        Self { engine, address, told, running }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.engine.shutdown();
        let joined = self.running.take().map(Running::join);
        if !std::thread::panicking() {
            joined.unwrap_or(Ok(())).unwrap();
        }
    }
}

/// A client that knows the extension.
struct Asking {
    core: spinrpc::Core,
    client: Client,
    listens: Listens,
    _engine: Engine,
}

impl Asking {
    fn new(address: &str, version: Versions) -> Self {
        let engine = Engine::new(valid(speaking(version, client_config()))).unwrap();
        engine.option(FEATURE, turns).unwrap();
        let mut core = engine.core(0).unwrap();
        let (listens, options) = (Listens::default(), ConnectOptions::new().take_reverse_calls());
        let handler = listens.clone();
        let client = core.connect_with(address, PROGRAM, VERSION, &options, |_| handler).unwrap();
        run_core(&mut core, "the connection", || client.is_up());
        Self { core, client, listens, _engine: engine }
    }

    fn ask(
        &self,
        token: u64,
        option: u32,
        info: &[u8],
        payload: &[u8],
    ) -> Result<CallId, Backpressure> {
        self.client.call_option(Token(token), &OptionMessage { option, info, payload })
    }

    fn run_until(&mut self, what: &str, done: impl Fn(&Said) -> bool) {
        let said = Rc::clone(&self.listens.0);
        run_core(&mut self.core, what, || done(&said.borrow()));
    }
}

#[test]
fn an_option_is_asked_and_answered_in_both_directions() {
    let server = Server::new(Versions::Both, true);
    let mut asking = Asking::new(&server.address, Versions::Both);
    asking.ask(1, ALONE, b"inform", &[]).unwrap();
    asking.ask(2, PART, b"xy", &[9; 2000]).unwrap();
    asking.run_until("two answers", |said| said.options.len() == 2);
    let said = std::mem::take(&mut *asking.listens.0.borrow_mut());
    assert_eq!(said.options[0], (1, ALONE, b"mrofni".to_vec(), vec![]));
    assert_eq!(said.options[1], (2, PART, b"yx".to_vec(), vec![9; 2000]));
    // Procedure 1 has the server ask its caller.
    asking.client.call(Procedure(1), Token(3), &mut CallSpec::new(), |_| {}).unwrap();
    let (told, client) = (Arc::clone(&server.told), asking.client.clone());
    // The server's own call is answered before the client has looked for the answer to its call.
    run_core(&mut asking.core, "both answers", || {
        !lock(&told).is_empty() && client.in_flight() == 0
    });
    assert_eq!(*lock(&server.told), [b"dcba".to_vec()]);
}

#[test]
fn an_option_that_its_handler_refuses_expect_bad_header() {
    let server = Server::new(Versions::Two, true);
    let mut asking = Asking::new(&server.address, Versions::Two);
    for token in 0..200 {
        asking.ask(token, ALONE, &[], &[]).unwrap();
        asking.run_until("the refusal", |said| said.errors.len() as u64 == token + 1);
    }
    let said = asking.listens.0.borrow();
    assert!(said.errors.iter().all(|(_, error)| matches!(error, CallError::Rdma(_))));
}

#[test]
fn an_option_that_the_server_does_not_know_expect_a_typed_error() {
    let server = Server::new(Versions::Both, false);
    let mut asking = Asking::new(&server.address, Versions::Both);
    asking.ask(1, ALONE, b"inform", &[]).unwrap();
    asking.run_until("the error", |said| said.errors.len() == 1);
    let (token, error) = asking.listens.0.borrow_mut().errors.pop().unwrap();
    assert!(matches!((token, &error), (1, CallError::InvalidOption)) && !error.is_retryable());
    asking.client.call(NULL, Token(2), &mut CallSpec::new(), |_| {}).unwrap();
    asking.run_until("a reply", |said| said.replies == 1);
}

#[test]
fn an_option_that_cannot_be_sent_is_refused_before_anything_is_taken() {
    let old = Server::new(Versions::One, true);
    let asking = Asking::new(&old.address, Versions::Both);
    assert_eq!(asking.ask(1, ALONE, &[], &[]), Err(Backpressure::NotVersionTwo));
    let server = Server::new(Versions::Both, true);
    let mut asking = Asking::new(&server.address, Versions::Both);
    let long_info = [0; OPTION_INFO_MAX_BYTES + 1];
    let refused = asking.ask(1, ALONE, &long_info, &[]);
    assert!(matches!(refused, Err(Backpressure::TooLarge { .. })), "{refused:?}");
    let refused = asking.ask(1, PART, &[], &[0; 4096]);
    assert_eq!(refused, Err(Backpressure::TooLarge { needed_bytes: 28 + 4096 }));
    let refused = asking.ask(1, 99, &[], &[]);
    assert!(matches!(refused, Err(Backpressure::Misuse(_))), "not registered: {refused:?}");
    assert_eq!(asking.client.in_flight(), 0);
    asking.ask(1, PART, &long_info[1..], &[0; 4096 - 28 - OPTION_INFO_MAX_BYTES]).unwrap();
    asking.run_until("the answer", |said| said.options.len() == 1);
}

thread_local! {
    /// Messages that [`keep`] has taken on this thread.
    static KEPT: RefCell<Vec<DeferredOption>> = const { RefCell::new(Vec::new()) };
}

/// Answers nothing now.
fn keep(call: OptionCall<'_>) {
    KEPT.with_borrow_mut(|kept| kept.push(call.defer()));
}

#[test]
fn an_option_is_answered_later_by_who_holds_the_core() {
    let engine = Engine::new(valid(speaking(Versions::Both, small_with(|_| {})))).unwrap();
    engine.serve(PROGRAM, VERSION, |_| |call: Call<'_>| call.reply(|_| {}));
    engine.option(FEATURE, |_| keep).unwrap();
    let address = unique_address();
    engine.listen(&address).unwrap();
    let mut core = engine.core(0).unwrap();
    let mut peer = RawPeer::connect(&address);
    for xid in 0..4 {
        peer.send_words(&optional(xid, 0, ALONE, &[]));
    }
    let plain = [9, 2, 1, 0, 0, 0, 0, 0, 9, 0, 2, PROGRAM.0, VERSION.0, 0, 0, 0, 0, 0];
    peer.send_words(&plain);
    let mut hear = |core: &mut spinrpc::Core| {
        let mut said = None;
        run_core_until(core, || {
            said = peer.poll();
            said.is_some()
        });
        said.unwrap().words()
    };
    assert_eq!(hear(&mut core)[0], 9, "a later call is answered first");
    let mut kept = KEPT.take().into_iter();
    assert_eq!(kept.len(), 4);
    let mut next = || kept.next().unwrap();
    next().reply(&OptionMessage { option: ALONE, info: b"late", payload: &[] }).unwrap();
    let late = hear(&mut core);
    assert_eq!((late[0], &late[3..]), (0, &[5, 1, ALONE, 4, u32::from_be_bytes(*b"late")][..]));
    next().refuse();
    assert_eq!(hear(&mut core)[3..], [4, 2], "BAD_HEADER");
    let too_long = OptionMessage { option: PART, info: &[], payload: &[0; 8000] };
    assert!(matches!(next().reply(&too_long), Err(Backpressure::TooLarge { .. })));
    assert_eq!(hear(&mut core)[3..], [4, 2], "BAD_HEADER");
    peer.close();
    run_core(&mut core, "the end", || engine.stats(0).unwrap().connections_closed == 1);
    next().reply(&OptionMessage { option: ALONE, info: &[], payload: &[] }).unwrap();
    run_core(&mut core, "an answer without a call", || engine.stats(0).unwrap().stale == 1);
}

/// Defer more options than calls may be deferred on a core. Expect that a call still may be.
#[test]
fn deferred_options_take_nothing_from_deferred_calls() {
    const CREDITS: u32 = 64;
    let raw = small_with(|raw| raw.rpc.credits = CREDITS.into());
    let engine = Engine::new(valid(speaking(Versions::Both, raw))).unwrap();
    engine.serve(PROGRAM, VERSION, |_| |call: Call<'_>| call.defer().unwrap().reply(|_| {}));
    engine.option(FEATURE, |_| keep).unwrap();
    let address = unique_address();
    engine.listen(&address).unwrap();
    let mut core = engine.core(0).unwrap();
    for peers in 1..=33 {
        let mut peer = RawPeer::connect(&address);
        (0..CREDITS).for_each(|xid| peer.send_words(&optional(xid, 0, ALONE, &[])));
        let deferred = (peers * CREDITS) as usize;
        run_core(&mut core, "options", || KEPT.with_borrow(Vec::len) == deferred);
        peer.close();
    }
    let mut peer = RawPeer::connect(&address);
    peer.send_words(&[9, 2, 1, 0, 0, 0, 0, 0, 9, 0, 2, PROGRAM.0, VERSION.0, 0, 0, 0, 0, 0]);
    let mut said = None;
    run_core_until(&mut core, || {
        said = peer.poll();
        said.is_some()
    });
    assert_eq!(said.unwrap().words()[8..], [9, 1, 0, 0, 0, 0], "a reply of success");
    drop(KEPT.take());
}

/// Sends more calls than there are credits to a handler; expects each answered as `expected`, and that
/// nothing is left of them.
fn expect_answered_within(handler: fn(OptionCall<'_>), expected: &[u32]) {
    let engine = Engine::new(valid(speaking(Versions::Both, small_with(|_| {})))).unwrap();
    engine.serve(PROGRAM, VERSION, |_| |call: Call<'_>| call.reply(|_| {}));
    engine.option(FEATURE, move |_| handler).unwrap();
    let address = unique_address();
    engine.listen(&address).unwrap();
    let running = engine.start().unwrap();
    let mut peer = RawPeer::connect(&address);
    for xid in 0..200 {
        peer.send_words(&optional(xid, 0, ALONE, &[]));
        let answer = peer.hear().words();
        assert_eq!((answer[0], &answer[3..]), (xid, expected));
    }
    assert_eq!(engine.stats(0).unwrap().stale, 0);
    assert_eq!(engine.drain(LIMIT), 0, "calls that are not finished");
    running.join().unwrap();
}

#[test]
fn an_option_that_is_deferred_and_dropped_in_its_handler_expect_bad_header() {
    expect_answered_within(|call| drop(call.defer()), &[4, 2]);
}

#[test]
fn an_option_that_is_deferred_and_answered_in_its_handler_expect_the_answer() {
    let said = u32::from_be_bytes(*b"soon");
    let answers = |call: OptionCall<'_>| {
        let answer = OptionMessage { option: ALONE, info: b"soon", payload: &[] };
        call.defer().reply(&answer).unwrap();
    };
    expect_answered_within(answers, &[5, 1, ALONE, 4, said]);
}

#[test]
fn an_option_that_is_deferred_and_answered_at_too_great_length_expect_bad_header() {
    let answers = |call: OptionCall<'_>| {
        let too_long = OptionMessage { option: PART, info: &[], payload: &[0; 8000] };
        let refused = call.defer().reply(&too_long);
        assert!(matches!(refused, Err(Backpressure::TooLarge { .. })), "{refused:?}");
    };
    expect_answered_within(answers, &[4, 2]);
}

/// Turns until `done`, or fails.
#[track_caller]
fn run_core_until(core: &mut spinrpc::Core, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < end, "the engine said nothing for {LIMIT:?}");
        core.poll_once();
    }
}

#[test]
fn a_feature_is_registered_whole_or_not_at_all() {
    let engine = Engine::new(valid(client_config())).unwrap();
    let refused = |feature: &[(u32, Carries)]| {
        matches!(engine.option(feature, turns), Err(EngineError::ApiMisuse(_)))
    };
    let many: Vec<_> = (0..=OPTIONS_MAX as u32).map(|n| (n, Carries::Nothing)).collect();
    assert!(refused(&many), "more than there is room for");
    assert!(refused(&[(1, Carries::Part), (0x7370_2d01, Carries::Message)]), "the engine's own");
    engine.option(&many[1..], turns).unwrap();
    assert!(refused(&[(1, Carries::Nothing)]), "taken");
}

/// RDMA2_OPTIONAL with four bytes of information.
fn optional(xid: u32, direction: u32, option: u32, payload: &[u32]) -> Vec<u32> {
    [&[xid, 2, 8, 5, direction, option, 4, 0x6162_6364], payload].concat()
}

#[test]
fn receive_options_of_every_kind_expect_what_the_protocol_says() {
    let server = Server::new(Versions::Both, true);
    let mut peer = RawPeer::connect(&server.address);
    let rpc = [XID, 0, 2, PROGRAM.0, VERSION.0, 0, 0, 0, 0, 0];
    peer.send_words(&optional(XID, 0, MESSAGE, &rpc));
    let answer = peer.hear().words();
    assert_eq!(answer[3..8], [5, 1, MESSAGE, 4, 0x6463_6261]);
    assert_eq!(answer[8..], rpc, "the engine looks at its XID only");
    peer.send_words(&optional(XID, 0, MESSAGE, &[XID + 1, 0]));
    assert_eq!(peer.hear().words()[3..], [4, 2], "another XID in the message: BAD_HEADER");
    peer.send_words(&optional(XID, 0, ALONE, &[1]));
    assert_eq!(peer.hear().words()[3..], [4, 2], "a payload that must not be: BAD_HEADER");
    peer.send_words(&optional(XID, 0, 99, &[]));
    assert_eq!(peer.hear().words()[3..], [4, 3], "INVALID_OPTION");
    peer.send_words(&optional(XID, 1, 99, &[]));
    peer.send_words(&optional(XID, 1, ALONE, &[]));
    let plain = [XID, 2, 1, 0, 0, 0, 0, 0];
    peer.send_words(&[&plain[..], &rpc].concat());
    assert_eq!(peer.hear().words()[3], 0, "answers without a waiting call are dropped");
}

#[test]
fn receive_an_option_for_an_rpc_call_expect_a_typed_error_and_its_memory_back() {
    let address = unique_address();
    let listener = RawListener::at(&address);
    let engine = Engine::new(valid(speaking(Versions::Two, client_config()))).unwrap();
    engine.option(FEATURE, turns).unwrap();
    let mut core = engine.core(0).unwrap();
    let heard = Rc::new(RefCell::new(Heard::<Vec<u32>>::default()));
    let recorder = common::caller::recorder(&heard, all_words);
    let client = core.connect(&address, PROGRAM, VERSION, |_| recorder).unwrap();
    let mut peer = listener.accept();
    let success = |xid| [xid, 2, 8, 0, 1, 0, 0, 0, xid, 1, 0, 0, 0, 0];
    let end = Instant::now() + LIMIT;
    while !client.is_up() {
        core.poll_once();
        if let Some(said) = peer.poll() {
            peer.send_words(&success(said.words()[0]));
        }
        assert!(Instant::now() < end, "the first call was not answered");
    }
    let mut caller = Caller { client, heard, core, engine };
    let before = caller.free_blocks(1 << 20);
    let room = caller.client.bulk(1 << 20).unwrap();
    let mut spec = CallSpec::new().result_into(room);
    caller.client.call(ECHO, Token(5), &mut spec, |_| {}).unwrap();
    caller.core.poll_once();
    let xid = peer.hear().words()[0];
    peer.send_words(&optional(xid, 1, ALONE, &[]));
    peer.send_words(&optional(xid, 1, ALONE, &[]));
    let error = caller.reply().unwrap_err();
    assert!(matches!(error, CallError::AnsweredByOption { option: ALONE }), "{error:?}");
    assert_eq!(caller.free_blocks(1 << 20), before);
    let engine = caller.engine.clone();
    run_core(&mut caller.core, "the second", || engine.stats(0).unwrap().messages_dropped == 1);
    assert!(caller.heard.borrow().replies.is_empty(), "a call ends once");
}
