//! Version of RPC-over-RDMA that a connection speaks (version two section 5): every pair of
//! configurations, responders that refuse or fall silent, and the memory of them.

use crate::common::prelude::*;
use crate::common::raw::RawPeer;
use crate::common::raw_server::{RawServer, success};

const ONE: Option<TransportVersion> = Some(TransportVersion::One);
const TWO: Option<TransportVersion> = Some(TransportVersion::Two);

fn client_of(versions: Versions) -> RawConfig {
    client_with(|raw| raw.rpc.version = versions)
}

fn server_of(versions: Versions) -> Server {
    Server::with(small_with(|raw| raw.rpc.version = versions))
}

/// The version in which the client that heard this calls.
fn version_of<T>(heard: &Heard<T>) -> Option<TransportVersion> {
    let up = |event: &ConnectionEvent| match event {
        ConnectionEvent::Up { negotiated, .. } => negotiated.version(),
        _ => None,
    };
    heard.events.iter().rev().find_map(up)
}

/// Version two section 5.2: "the requester selects a protocol version in the range of
/// responder-supported versions".
#[test]
fn ends_with_a_version_in_common_speak_the_highest() {
    use Versions::{Both, One, Two};
    for (client, server, expected) in [
        (Both, Both, TWO),
        (Both, One, ONE),
        (One, Both, ONE),
        (Two, Both, TWO),
        (Both, Two, TWO),
        (Two, Two, TWO),
        (One, One, ONE),
    ] {
        let server = server_of(server);
        let mut caller = Caller::connect_with(client_of(client), &server.address, one_opaque);
        assert_eq!(version_of(&caller.heard.borrow()), expected, "{client:?}");
        let sent = pattern(7, 3000);
        assert_eq!(caller.call(ECHO, |args| args.opaque(&sent)).unwrap(), sent);
    }
}

#[test]
fn ends_without_one_say_so() {
    use Versions::{One, Two};
    for (client, server, number) in [(One, Two, 2), (Two, One, 1)] {
        let server = server_of(server);
        let (_engine, mut core) = with_core(client_of(client));
        let error = crate::common::caller::open(&mut core, &server.address, all_words).err();
        let Some(ConnectError::NoCommonVersion { low, high }) = error else {
            panic!("{client:?}: {error:?}");
        };
        assert_eq!((low, high), (number, number), "{client:?}");
    }
}

#[test]
fn a_responder_that_refused_is_not_offered_version_two_again_until_that_is_forgotten() {
    let server = server_of(Versions::One);
    for (memory_ms, offers) in [(600_000, 1), (1, 2)] {
        let before = server.stats().errors_sent;
        let mut raw = client_of(Versions::Both);
        raw.fixed.version_memory_ms = memory_ms;
        let mut caller = Caller::connect_with(raw, &server.address, all_words);
        let settled_at = Instant::now();
        while settled_at.elapsed() < Duration::from_millis(5) {
            caller.core.poll_once();
        }
        let (client, heard) =
            crate::common::caller::open(&mut caller.core, &server.address, all_words).unwrap();
        assert!(client.is_up());
        assert_eq!(version_of(&heard.borrow()), ONE);
        server.wait_for("the refusals", |stats| stats.errors_sent >= before + offers);
        assert_eq!(server.stats().errors_sent, before + offers, "{memory_ms} ms");
    }
}

/// A client, and a responder in the test's hands.
type Bench = RawServer<Vec<u32>>;

impl Bench {
    fn offered(raw: RawConfig, options: &ConnectOptions) -> Self {
        Self::asked(Engine::new(valid(raw)).unwrap(), options, all_words)
    }

    #[track_caller]
    fn expect_served(&mut self) {
        self.caller.start(NULL, 1, |_| {}).unwrap();
        let call = self.hear();
        self.peer.send_words(&reply_to(&call));
        let reply = self.caller.reply();
        assert!(reply.is_ok(), "{reply:?}");
    }

    #[track_caller]
    fn expect_up(&mut self, version: Option<TransportVersion>) {
        let client = self.caller.client.clone();
        self.until("the connection", |_| client.is_up().then_some(()));
        assert_eq!(version_of(&self.caller.heard.borrow()), version);
    }
}

/// MSG_ACCEPTED, SUCCESS, in the version of the call.
fn reply_to(call: &[u32]) -> Vec<u32> {
    success(call, 64)
}

/// ERR_VERS for versions one to one.
fn refusal_of(call: &[u32]) -> Vec<u32> {
    vec![call[0], call[1], 64, 4, 1, 1, 1]
}

fn auto(ccp: ConfigRole) -> RawConfig {
    let mut raw = client_of(Versions::Both);
    (raw.rpc.ccp, raw.rpc.ccp_auth) = (ccp, Some(Protection::Sys));
    raw
}

/// Version two section 5: "This initial message can be no larger than the Version One default inline
/// threshold of 1024 bytes".
#[test]
fn a_refused_offer_is_sent_again_in_version_one_on_the_same_connection() {
    for ccp in [ConfigRole::Off, ConfigRole::Ask] {
        let mut bench = Bench::offered(auto(ccp), &ConnectOptions::new());
        let offer = bench.hear();
        assert_eq!(offer[1], 2, "the highest version first");
        assert!(offer.len() * 4 <= 1024);
        bench.peer.send_words(&refusal_of(&offer));
        let again = bench.hear();
        assert_eq!((again[0], again[1]), (offer[0], 1), "the same call");
        assert_eq!(again[7..], offer[8..], "behind a header that is a word shorter");
        bench.peer.send_words(&reply_to(&again));
        if ccp == ConfigRole::Ask {
            let probe = bench.hear();
            assert_eq!(probe[1], 1);
            bench.peer.send_words(&reply_to(&probe));
        }
        bench.expect_up(ONE);
    }
}

/// It could not be sent again in version one. The client is refused the call, and does not lose a connection over it.
#[test]
fn an_offer_that_no_memory_keeps_is_not_made() {
    let server = server_of(Versions::One);
    let (_engine, mut core) = with_core(client_of(Versions::Both));
    let lengths = (0..20).rev().map(|shift| 1 << shift);
    let hoard: Vec<Bulk> = lengths
        .flat_map(|bytes| std::iter::from_fn(|| core.bulk(bytes)).collect::<Vec<_>>())
        .collect();
    let refused = crate::common::caller::open(&mut core, &server.address, all_words).err();
    let why = match refused {
        Some(ConnectError::FirstCall(CallError::NotStarted(why))) => why,
        other => panic!("{other:?}"),
    };
    assert!(why.is_transient(), "{why:?}");
    assert_eq!(server.stats().errors_sent, 0);
    drop(hoard);
    let (_, heard) = crate::common::caller::open(&mut core, &server.address, all_words).unwrap();
    assert_eq!(version_of(&heard.borrow()), ONE);
}

/// Version two section 5.2: "If the initial negotiation message is lost or dropped".
#[test]
fn a_connection_lost_over_the_offer_is_made_anew_in_version_one() {
    type Ends = fn(&mut RawPeer, &[u32]);
    let without_answer: Ends = |_, _| {};
    let silently: Ends = |peer, _| peer.close();
    let refusing: Ends = |peer, offer| {
        peer.send_words(&refusal_of(offer));
        peer.close();
    };
    for (what, options, ends) in [
        ("no answer", ConnectOptions::new(), without_answer),
        ("the end", ConnectOptions::new(), silently),
        ("the end, and it comes back", coming_back(), silently),
        ("a refusal", ConnectOptions::new(), refusing),
        ("a refusal, and it comes back", coming_back(), refusing),
    ] {
        let mut bench = Bench::offered(auto(ConfigRole::Off), &options);
        let offer = bench.hear();
        assert_eq!(offer[1], 2, "{what}");
        ends(&mut bench.peer, &offer);
        bench.next();
        let call = bench.hear();
        assert_eq!(call[1], 1, "{what}");
        bench.peer.send_words(&reply_to(&call));
        bench.expect_up(ONE);
    }
}

/// An offer may be lost for other reasons than the version. A responder of version two alone
/// refuses the next attempt: expect the offer once more.
#[test]
fn a_responder_wrongly_taken_for_an_old_one_is_made_the_offer_again() {
    for options in [ConnectOptions::new(), coming_back()] {
        let mut bench = Bench::offered(auto(ConfigRole::Off), &options);
        assert_eq!(bench.hear()[1], 2);
        bench.peer.close();
        bench.next();
        let call = bench.hear();
        assert_eq!(call[1], 1, "what is known of it is that the offer was lost");
        bench.peer.send_words(&[call[0], 1, 64, 4, 1, 2, 2]);
        bench.next();
        let call = bench.hear();
        assert_eq!(call[1], 2);
        bench.peer.send_words(&reply_to(&call));
        bench.expect_up(TWO);
    }
}

fn coming_back() -> ConnectOptions {
    ConnectOptions::new().reconnect(Reconnect::default().first_delay(Duration::ZERO))
}

/// A client that was up in version two meets an old server in the new one's place.
#[test]
fn a_client_that_comes_back_finds_the_version_anew() {
    let mut bench = Bench::offered(auto(ConfigRole::Off), &coming_back());
    let mut call = bench.hear();
    bench.peer.send_words(&reply_to(&call));
    bench.expect_up(TWO);
    bench.caller.client.call(NULL, Token(1), &mut CallSpec::short(), |_| {}).unwrap();
    assert_eq!(bench.hear()[1], 2);
    for version in [2, 1] {
        bench.peer.close();
        bench.next();
        call = bench.hear();
        assert_eq!(call[1], version);
    }
    bench.peer.send_words(&reply_to(&call));
    bench.until("the second connection", |bench| bench.caller.client.is_up().then_some(()));
    assert_eq!(version_of(&bench.caller.heard.borrow()), ONE);
}

/// The server that a client comes back to speaks another version only.
#[test]
fn a_client_that_comes_back_to_no_common_version_hears_so() {
    for versions in [Versions::Two, Versions::Both] {
        let mut raw = auto(ConfigRole::Off);
        raw.rpc.version = versions;
        let mut bench = Bench::offered(raw, &coming_back());
        let call = bench.hear();
        bench.peer.send_words(&reply_to(&call));
        bench.expect_up(TWO);
        bench.peer.close();
        bench.next();
        let mut call = bench.hear();
        if versions == Versions::Both {
            bench.peer.send_words(&refusal_of(&call));
            call = bench.hear();
        }
        bench.peer.send_words(&[call[0], call[1], 64, 4, 1, 7, 9]);
        let cause = bench.until("the second loss", |bench| {
            let losses = |event: &ConnectionEvent| match event {
                ConnectionEvent::Reconnecting { cause, .. } => Some(cause.clone()),
                _ => None,
            };
            bench.caller.heard.borrow().events.iter().filter_map(losses).nth(1)
        });
        assert_eq!(cause, DownCause::NoCommonVersion { low: 7, high: 9 }, "{versions:?}");
    }
}

/// A connection may use a part of the versions that the engine speaks.
#[test]
fn a_connection_is_of_the_version_that_is_asked_for() {
    let server = server_of(Versions::Both);
    let (_engine, mut core) = with_core(client_of(Versions::Both));
    for (versions, expected) in [(Versions::One, ONE), (Versions::Two, TWO), (Versions::Both, TWO)]
    {
        let (heard, options) = (SharedHeard::default(), ConnectOptions::new().version(versions));
        let made = recorder(&heard, all_words);
        let client =
            core.connect_with(&server.address, PROGRAM, VERSION, &options, |_| made).unwrap();
        crate::common::caller::run_core(&mut core, "the connection", || client.is_up());
        assert_eq!(version_of(&heard.borrow()), expected);
    }
    let (_engine, mut core) = with_core(client_of(Versions::One));
    let (heard, options) = (SharedHeard::default(), ConnectOptions::new().version(Versions::Both));
    let made = recorder(&heard, all_words);
    let refused = core.connect_with(&server.address, PROGRAM, VERSION, &options, |_| made);
    assert!(matches!(refused, Err(ConnectError::VersionNotConfigured)));
}

/// RFC 8167 section 4: both directions are of one version, which the first call decides; a client
/// that speaks version two alone would refuse any other.
#[test]
fn calls_in_reverse_are_of_the_version_of_the_call_before_them() {
    let (one, two) = ([9, 1, 1, 0, 0, 0, 0], [9, 2, 1, 0, 0, 0, 0, 0]);
    for (versions, header) in [
        (Versions::One, &one[..]),
        (Versions::Both, &one),
        (Versions::Both, &two),
        (Versions::Two, &two),
    ] {
        let raw = small_with(|raw| (raw.rpc.version, raw.rpc.reverse_calls) = (versions, 2));
        let engine = Engine::new(valid(raw)).unwrap();
        let shared = crate::common::serve(&engine);
        let address = listening(&engine);
        let mut core = engine.core(0).unwrap();
        let mut peer = RawPeer::connect(&address);
        crate::common::caller::run_core(&mut core, "a connection", || {
            !connections(&shared).is_empty()
        });
        let (connection, heard) = (connections(&shared)[0], SharedHeard::default());
        let ask = |core: &mut Core| {
            let (made, options) = (recorder(&heard, all_words), ReverseOptions::new());
            core.reverse_client(connection, PROGRAM, VERSION, &options, |_| made)
        };
        if versions == Versions::Both {
            assert_eq!(ask(&mut core).err(), Some(NoReverse::NotCalled));
        }
        let body = [9, 0, 2, PROGRAM.0, VERSION.0, NULL.0, 0, 0, 0, 0];
        peer.send_words(&[header, &body].concat());
        let mut hear = |core: &mut Core| {
            let end = Instant::now() + LIMIT;
            loop {
                core.poll_once();
                if let Some(said) = peer.poll() {
                    break said.words();
                }
                assert!(Instant::now() < end, "the engine said nothing for {LIMIT:?}");
            }
        };
        assert_eq!(hear(&mut core)[..2], header[..2], "{versions:?}");
        let client = ask(&mut core).unwrap();
        client.call(NULL, Token(1), &mut CallSpec::short(), |_| {}).unwrap();
        assert_eq!(hear(&mut core)[1], header[1], "{versions:?}");
    }
}

/// Makes a client in reverse when it is called, and keeps the result.
struct CallsBack(Arc<Mutex<Option<Result<(), NoReverse>>>>);

impl Service for CallsBack {
    fn call(&mut self, call: Call<'_>) {
        let (heard, options) = (SharedHeard::default(), ReverseOptions::new());
        let made = |_| recorder(&heard, all_words);
        let client = call.reverse_client(PROGRAM, VERSION, &options, made);
        *self.0.lock().unwrap() = Some(client.map(drop));
        call.reply(|_| {});
    }
}

/// The call that is being served is one by which the server was called, although it is the first.
#[test]
fn a_server_of_both_versions_calls_back_in_the_first_call() {
    let raw = small_with(|raw| (raw.rpc.version, raw.rpc.reverse_calls) = (Versions::Both, 2));
    let engine = Engine::new(valid(raw)).unwrap();
    let made = Arc::default();
    let of_service = Arc::clone(&made);
    engine.serve(PROGRAM, VERSION, move |_| CallsBack(Arc::clone(&of_service))).unwrap();
    let address = listening(&engine);
    let mut core = engine.core(0).unwrap();
    let mut peer = RawPeer::connect(&address);
    peer.send_words(&[9, 1, 1, 0, 0, 0, 0, 9, 0, 2, PROGRAM.0, VERSION.0, NULL.0, 0, 0, 0, 0]);
    crate::common::caller::run_core(&mut core, "the call", || made.lock().unwrap().is_some());
    assert_eq!(*made.lock().unwrap(), Some(Ok(())));
}

/// Version two section 5.3: "a responder MUST send Replies with the same RPC-over-RDMA protocol version
/// that the requester uses to send its Calls". Others are refused with the whole range (section 5.2).
#[test]
fn a_responder_answers_each_call_in_its_version() {
    let server = server_of(Versions::Both);
    let mut peer = RawPeer::connect(&server.address);
    let body = [0, 2, PROGRAM.0, VERSION.0, NULL.0, 0, 0, 0, 0];
    for (xid, version) in [(1, 1), (2, 2), (3, 1), (4, 2)] {
        let direction: &[u32] = if version == 2 { &[0] } else { &[] };
        let call = [&[xid, version, 1, 0], direction, &[0; 3], &[xid], &body].concat();
        peer.send_words(&call);
        assert_eq!(peer.hear().words()[..], reply_to(&call)[..], "version {version}");
    }
    peer.send_words(&[&[5, 3, 1, 0, 0, 0, 0, 5][..], &body].concat());
    assert_eq!(peer.hear().words()[3..], [4, 1, 1, 2]);
}

/// Version two section 5.2: "implementations MUST allow inline threshold values to change without
/// triggering a connection loss".
#[test]
fn version_two_carries_inline_what_version_one_does_by_chunk() {
    for (versions, is_inline) in [(Versions::One, false), (Versions::Both, true)] {
        let narrow = |raw: &mut RawConfig| {
            raw.rpc.version = versions;
            (raw.rpc.inline_send_bytes, raw.rpc.inline_recv_bytes) = (1024, 1024);
        };
        let server = Server::with(small_with(narrow));
        let raw = client_with(narrow);
        let mut caller = Caller::connect_with(raw, &server.address, one_opaque);
        let sent = pattern(1, 3000);
        let mut spec = CallSpec::new().reply_bytes_max(3004);
        caller.client.call(ECHO, Token(1), &mut spec, |args| args.opaque(&sent)).unwrap();
        assert_eq!(caller.reply().unwrap(), sent);
        // The counts of bytes are published after those of calls, and by a later turn if chunks are pulled and pushed.
        server.wait_for("the call", |stats| {
            let by_chunk = (stats.bytes_read > 0, stats.bytes_written > 0);
            stats.calls_received == 2 && by_chunk == (!is_inline, !is_inline)
        });
    }
}

/// Version two section 2.3: "RPC-over-RDMA Version Two receiver implementations MUST support an inline
/// threshold of 4096 bytes". Configure 1024 for either end, expect messages of 4096 taken all the same.
#[test]
fn receive_4096_bytes_inline_in_version_two_expect_them_taken_at_either_end() {
    for versions in [Versions::Two, Versions::Both] {
        let narrow = |raw: &mut RawConfig| {
            raw.rpc.version = versions;
            (raw.rpc.inline_send_bytes, raw.rpc.inline_recv_bytes) = (1024, 1024);
        };
        let server = Server::with(small_with(narrow));
        let mut peer = RawPeer::connect(&server.address);
        let header = [7, 2, 1, 0, 0, 0, 0, 0, 7, 0, 2, PROGRAM.0, VERSION.0, ECHO.0, 0, 0, 0, 0];
        let item: Vec<u32> = (0..(LONGEST_WORDS - header.len() - 1) as u32).collect();
        let length = 4 * item.len() as u32;
        peer.send_words(&[&header[..], &[length], &item].concat());
        let reply = peer.hear().words();
        assert_eq!(reply[..5], [7, 2, reply[2], 0, 1], "an RDMA2_MSG: {versions:?}");
        assert_eq!((reply[14], &reply[15..]), (length, &item[..]));
        let raw = client_with(narrow);
        let mut bench = Bench::offered(raw, &ConnectOptions::new());
        let first = bench.hear();
        bench.peer.send_words(&reply_to(&first));
        bench.expect_up(TWO);
        bench.caller.client.call(NULL, Token(1), &mut CallSpec::short(), |_| {}).unwrap();
        let mut reply = reply_to(&bench.hear());
        let results: Vec<u32> = (0..(LONGEST_WORDS - reply.len()) as u32).collect();
        reply.extend(&results);
        bench.peer.send_words(&reply);
        bench.until("the reply", |bench| {
            (!bench.caller.heard.borrow().replies.is_empty()).then_some(())
        });
        let replies = std::mem::take(&mut bench.caller.heard.borrow_mut().replies);
        assert_eq!(replies[0].1.as_ref().unwrap()[..], results, "{versions:?}");
    }
}

/// The threshold of version two, in words.
const LONGEST_WORDS: usize = 1024;

#[test]
fn a_server_calls_back_in_the_version_it_is_called_in() {
    for versions in [Versions::One, Versions::Both, Versions::Two] {
        let raw = small_with(|raw| (raw.rpc.version, raw.rpc.reverse_calls) = (versions, 2));
        let options = ConnectOptions::new().take_reverse_calls();
        let mut pair = Pair::connect(raw, &options, ReverseOptions::new(), all_words);
        pair.open_window();
        let far = &pair.far.client;
        far.call(ECHO, Token(5), &mut CallSpec::short(), |args| args.opaque(b"back")).unwrap();
        pair.until("the reply", |pair| pair.far.reply_count() == 1);
        let replies = pair.far.take();
        let words = replies[0].1.as_ref().unwrap();
        assert_eq!(words[..], [4, u32::from_be_bytes(*b"back")], "{versions:?}");
    }
}

/// A client of version two that takes no calls in reverse, connected. The program that its engine serves to others is not for its
/// peer.
fn refusing(versions: Versions) -> Bench {
    let mut raw = client_of(versions);
    raw.rpc.ccp = ConfigRole::Off;
    let engine = Engine::new(valid(raw)).unwrap();
    let _shared = crate::common::serve(&engine);
    let mut bench = Bench::asked(engine, &ConnectOptions::new(), all_words);
    bench.open();
    bench.expect_up(TWO);
    bench
}

/// Version two section 4.2.2: "REQUIRED to support backwards direction operation"; a client that was
/// configured for none answers all the same. Section 3.1: an unknown `rdma_opttype` "MUST" be answered with
/// RDMA2_ERR_INVALID_OPTION.
#[test]
fn a_client_without_calls_in_reverse_refuses_those_of_version_two() {
    for versions in [Versions::Two, Versions::Both] {
        let mut bench = refusing(versions);
        for xid in [7, 8, 9] {
            let call = [0, 2, PROGRAM.0, VERSION.0, NULL.0, 0, 0, 0, 0];
            bench.peer.send_words(&[&[xid, 2, 1, 0, 0, 0, 0, 0, xid][..], &call].concat());
            let answer = bench.hear();
            assert_eq!(answer[..8], [xid, 2, 1, 0, 1, 0, 0, 0], "one credit, direction REPLY");
            assert_eq!(answer[8..], [xid, 1, 0, 0, 0, 1], "PROG_UNAVAIL");
        }
        let long = [5, 2, 1, 1, 0, 1, 0, 9, 100, 0, 0, 0, 0, 0];
        bench.peer.send_words(&long);
        assert_eq!(bench.hear(), [5, 2, 1, 4, 2], "BAD_HEADER for chunks");
        for (xid, information) in [(7, &[0][..]), (8, &[4, 0xffff_ffff])] {
            bench.peer.send_words(&[&[xid, 2, 1, 5, 0, 99], information].concat());
            assert_eq!(bench.hear(), [xid, 2, 1, 4, 3], "INVALID_OPTION");
        }
        bench.expect_served();
    }
}

/// With every credit in flight there are buffers to hear a call in reverse, and to answer it.
#[test]
fn a_client_without_calls_in_reverse_refuses_them_with_all_its_calls_in_flight() {
    let mut bench = refusing(Versions::Two);
    let mut calls = Vec::new();
    while bench.caller.client.call(NULL, Token(1), &mut CallSpec::short(), |_| {}).is_ok() {
        calls.push(bench.hear());
    }
    assert!(calls.len() > 1, "the grant is as large as was asked for");
    let body = [0, 2, PROGRAM.0, VERSION.0, NULL.0, 0, 0, 0, 0];
    for xid in 0..200 {
        bench.peer.send_words(&[&[xid, 2, 1, 0, 0, 0, 0, 0, xid][..], &body].concat());
        assert_eq!(bench.hear()[8..], [xid, 1, 0, 0, 0, 1]);
    }
    for call in &calls {
        bench.peer.send_words(&reply_to(call));
    }
    let heard = SharedHeard::clone(&bench.caller.heard);
    bench.until("the replies", |_| (heard.borrow().replies.len() == calls.len()).then_some(()));
    assert!(heard.borrow().replies.iter().all(|(_, reply)| reply.is_ok()));
}

/// RFC 5666 section 5.2 leaves it to the requester whether a call offers a Reply chunk. Ours does exactly
/// when the longest reply that the caller allows, behind the longest RPC reply header, does not fit inline.
#[test]
fn a_call_offers_a_reply_chunk_just_when_its_longest_reply_does_not_fit_inline() {
    let mut bench = Bench::offered(client_of(Versions::One), &ConnectOptions::new());
    bench.open();
    bench.expect_up(ONE);
    // The inline threshold that both ends announce while connecting, less a transport header without
    // lists, less an RPC reply header with the longest verifier.
    let reply_header_bytes = 24 + 400;
    let longest_inline = 4096 - 28 - reply_header_bytes;
    for reply_bytes in (longest_inline - 40..longest_inline + 40).chain([0, 4, 5000, 60_000]) {
        let mut spec = CallSpec::new().reply_bytes_max(reply_bytes);
        bench.caller.client.call(NULL, Token(1), &mut spec, |_| {}).unwrap();
        let call = bench.hear();
        assert_eq!(call[3..6], [0; 3], "RDMA_MSG without Read and Write list");
        let offered = call[6] == 1;
        assert_eq!(offered, reply_bytes > longest_inline, "{reply_bytes} bytes");
        if offered {
            let segments = call[8..].chunks(4).take(call[7] as usize);
            let room: u32 = segments.map(|segment| segment[1]).sum();
            assert_eq!(room as usize, reply_bytes + reply_header_bytes);
        }
        bench.peer.send_words(&reply_to(&call));
        let heard = SharedHeard::clone(&bench.caller.heard);
        bench.until("the reply", |_| heard.borrow_mut().replies.pop()).1.unwrap();
    }
}

// RDMA2_OPTIONAL against raw peers: engines know no extension (version two section 3.1).

const XID: u32 = 0x77;

/// RDMA2_OPTIONAL of an unknown option, with four bytes of information.
fn optional(xid: u32, direction: u32, payload: &[u32]) -> Vec<u32> {
    [&[xid, 2, 8, 5, direction, 99, 4, 0x6162_6364], payload].concat()
}

#[test]
fn receive_an_option_expect_invalid_option_and_the_next_call_served() {
    let server = Server::with(small_with(|raw| raw.rpc.version = Versions::Both));
    let mut peer = RawPeer::connect(&server.address);
    let rpc = [XID, 0, 2, PROGRAM.0, VERSION.0, 0, 0, 0, 0, 0];
    for payload in [&[][..], &[1], &rpc] {
        peer.send_words(&optional(XID, 0, payload));
        let answer = peer.hear().words();
        assert_eq!((&answer[..2], &answer[3..]), (&[XID, 2][..], &[4, 3][..]), "INVALID_OPTION");
    }
    peer.send_words(&optional(XID, 1, &[]));
    peer.send_words(&[&[XID, 2, 1, 0, 0, 0, 0, 0][..], &rpc].concat());
    assert_eq!(peer.hear().words()[3], 0, "one of direction REPLY is dropped");
}

#[test]
fn receive_an_option_for_a_call_expect_it_dropped_and_the_reply_taken() {
    let raw = client_with(|raw| raw.rpc.version = Versions::Two);
    let mut server = RawServer::up(raw, all_words);
    server.caller.start(ECHO, 5, |_| {}).unwrap();
    let call = server.hear();
    server.peer.send_words(&optional(call[0], 1, &[]));
    let engine = server.caller.engine.clone();
    let is_dropped = || engine.stats(0).unwrap().messages_dropped == 1;
    run_core(&mut server.caller.core, "the drop", is_dropped);
    server.peer.send_words(&success(&call, 8));
    assert!(server.caller.reply().is_ok());
}
