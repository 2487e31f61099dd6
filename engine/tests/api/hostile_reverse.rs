//! Peers that break the rules of calls in reverse (RFC 8167): a server that calls a client which
//! takes no calls, calls more than it may, or sends unrequested answers; and a client that does so
//! on a server that calls back. The forward direction continues.

use crate::common::prelude::*;
use crate::common::raw::*;
use crate::common::raw_server::RawServer;
use spinrpc_proto::rdma::RdmaError;

const REVERSE: u32 = 3;

fn config() -> RawConfig {
    small_with(|raw| raw.rpc.reverse_calls = u64::from(REVERSE))
}

fn call(xid: u32, procedure: Procedure, arguments: &[u32]) -> Vec<u32> {
    message(xid, MSG, &NO_LISTS, &rpc_call(xid, procedure, arguments))
}

fn reply(xid: u32) -> Vec<u32> {
    message(xid, MSG, &NO_LISTS, &success(xid))
}

/// An engine's client, and the raw server that it is connected to.
type AtServer = RawServer<Vec<u32>>;

impl AtServer {
    #[track_caller]
    fn connect(options: &ConnectOptions) -> Self {
        Self::connect_by(config(), options).0
    }

    /// Also the state of the program that the client serves.
    #[track_caller]
    fn connect_by(raw: RawConfig, options: &ConnectOptions) -> (Self, Arc<Shared>) {
        let engine = Engine::new(valid(raw)).unwrap();
        let shared = serve(&engine);
        let mut pair = Self::asked(engine, options, all_words);
        pair.open();
        (pair, shared)
    }

    fn taking() -> Self {
        Self::connect(&ConnectOptions::new().take_reverse_calls())
    }

    fn start(&mut self, token: u64) -> u32 {
        self.caller.start(NULL, token, |_| {}).unwrap();
        self.hear()[0]
    }

    /// A call forward goes its way.
    #[track_caller]
    fn expect_answers(&mut self, what: &str) {
        let xid = self.start(1);
        self.peer.send_words(&reply(xid));
        let answer = self.caller.reply();
        assert!(answer.is_ok(), "{what}: {answer:?}");
    }

    #[track_caller]
    fn next_reply(&mut self) -> (u64, Result<Vec<u32>, CallError>) {
        self.caller.replies(1).remove(0)
    }
}

/// RFC 8167: there are no reverse calls before the upper layer permits them. A client that takes none
/// never answers, since only replies are expected.
#[test]
fn call_who_takes_no_calls_in_reverse_expect_silence() {
    let mut pair = AtServer::connect(&ConnectOptions::new());
    let ours = pair.start(7);
    let chunk = [98, 1, 64, NOMSG, 1, 0, 9, 100, 0, 0, 0, 0, 0];
    for message in [call(ours, NULL, &[]), call(99, NULL, &[]), chunk.to_vec()] {
        pair.peer.send_words(&message);
    }
    pair.peer.send_words(&reply(ours));
    assert!(matches!(pair.next_reply(), (7, Ok(_))));
    pair.expect_answers("after calls that are not taken");
    assert!(pair.peer.poll().is_none(), "an answer to a call in reverse");
}

/// RFC 8167 section 4: the XIDs of the directions are independent.
#[test]
fn call_in_reverse_with_the_xid_of_a_call_in_flight_expect_both_answered() {
    let mut pair = AtServer::taking();
    let ours = pair.start(7);
    pair.peer.send_words(&call(ours, NULL, &[]));
    let words = pair.hear();
    assert_eq!(words[..4], [ours, 1, REVERSE, MSG], "with the credits of the reverse direction");
    assert_eq!(words[7..], [ours, 1, 0, 0, 0, 0]);
    pair.peer.send_words(&reply(ours));
    assert!(matches!(pair.next_reply(), (7, Ok(_))));
}

/// The same of a long call, where a reply may come in a Read chunk, too (RFC 5666 section 5.2): this one has a Reply chunk, of
/// which the call in flight has none.
#[test]
fn long_call_in_reverse_with_the_xid_of_a_call_in_flight_expect_both_answered_under_older_rules() {
    for profile in [Profile::Rfc5666, Profile::Draft03] {
        let mut raw = config();
        (raw.rpc.protocol, raw.rpc.ccp) = (profile, ConfigRole::Off);
        let options = ConnectOptions::new().take_reverse_calls();
        let (mut pair, _) = AtServer::connect_by(raw, &options);
        let ours = pair.start(7);
        let call = bytes_of(&call(ours, NULL, &[])[7..]);
        let message = words_of(pair.peer.expose_kept(&call, Access::RemoteRead));
        let room = words_of(pair.peer.expose_kept(&[0; 512], Access::RemoteWrite));
        let header = [ours, 1, 64, NOMSG, 1, 0];
        pair.peer.send_words(&[&header[..], &message, &[0, 0, 1, 1], &room].concat());
        let words = pair.hear();
        assert_eq!((words[0], &words[words.len() - 6..]), (ours, &[ours, 1, 0, 0, 0, 0][..]));
        pair.peer.send_words(&reply(ours));
        assert!(matches!(pair.next_reply(), (7, Ok(_))), "{profile:?}");
    }
}

/// Calls in reverse whose Read chunks cannot be fetched cost the connection, as forward ones do, and
/// nothing else.
#[test]
fn call_in_reverse_with_a_key_that_is_none_expect_the_connection_closed() {
    let mut pair = AtServer::taking();
    pair.caller.start(NULL, 7, |_| {}).unwrap();
    let words = [5, 1, 64, NOMSG, 1, 0, 0xdead, 100, 0, 0, 0, 0, 0];
    pair.peer.send_words(&words);
    let (token, end) = pair.next_reply();
    assert!(matches!((token, &end), (7, Err(CallError::Disconnected(_)))), "{end:?}");
    assert!(matches!(pair.peer.hear_end(), DownCause::Remote | DownCause::PeerMisbehaved(_)));
    assert!(!pair.caller.engine.is_shut_down(), "the process goes on");
}

/// A server that calls back, and the raw client that it calls.
struct AtClient {
    peer: RawPeer,
    core: Core,
    client: Client,
    heard: SharedHeard<Vec<u32>>,
    _engine: Engine,
}

impl AtClient {
    #[track_caller]
    fn connect() -> Self {
        let engine = Engine::new(valid(config())).unwrap();
        let shared = serve(&engine);
        let address = listening(&engine);
        let peer = RawPeer::connect(&address);
        let mut core = engine.core(0).unwrap();
        wait_until("the connection", || {
            core.poll_once();
            !connections(&shared).is_empty()
        });
        let heard = SharedHeard::default();
        let made = recorder(&heard, all_words);
        let options = ReverseOptions::new();
        let connection = connections(&shared)[0];
        let client = core.reverse_client(connection, PROGRAM, VERSION, &options, |_| made).unwrap();
        Self { peer, core, client, heard, _engine: engine }
    }

    #[track_caller]
    fn hear(&mut self) -> Vec<u32> {
        let end = Instant::now() + LIMIT;
        loop {
            assert!(Instant::now() < end, "the engine said nothing");
            self.core.poll_once();
            if let Some(said) = self.peer.poll() {
                return said.words();
            }
        }
    }

    fn start(&mut self, token: u64, spec: &mut CallSpec) -> u32 {
        self.client.call(NULL, Token(token), spec, |_| {}).unwrap();
        let words = self.hear();
        assert_eq!(words[2..7], [REVERSE, MSG, 0, 0, 0], "asks for what is configured");
        assert_eq!(words[7..9], [words[0], 0]);
        words[0]
    }

    #[track_caller]
    fn next_reply(&mut self) -> (u64, Result<Vec<u32>, CallError>) {
        let heard = SharedHeard::clone(&self.heard);
        crate::common::caller::run_core(&mut self.core, "a reply", || {
            !heard.borrow().replies.is_empty()
        });
        self.heard.borrow_mut().replies.remove(0)
    }

    #[track_caller]
    fn expect_answers(&mut self) {
        self.peer.send_words(&call(0x77, NULL, &[]));
        assert_eq!(self.hear()[7..], [0x77, 1, 0, 0, 0, 0]);
    }
}

#[test]
fn answer_a_call_in_reverse_with_an_error_expect_it_failed_and_forward_calls_served() {
    let mut pair = AtClient::connect();
    let xid = pair.start(3, &mut CallSpec::short());
    pair.peer.send_words(&[xid, 1, 64, ERROR, ERR_CHUNK]);
    assert!(matches!(pair.next_reply(), (3, Err(CallError::Rdma(RdmaError::Chunk)))));
    pair.expect_answers();
}

/// RFC 8167 section 5: a client need not take chunks in reverse, and that of Linux takes none, needed or not.
#[test]
fn call_in_reverse_with_results_of_unknown_length_expect_no_chunk_offered() {
    let mut pair = AtClient::connect();
    let xid = pair.start(3, &mut CallSpec::new());
    pair.peer.send_words(&reply(xid));
    assert!(matches!(pair.next_reply(), (3, Ok(_))));
}

/// A client that never answers costs the server its calls in reverse, and nothing else.
#[test]
fn never_answer_expect_deadlines_and_forward_calls_served() {
    let mut pair = AtClient::connect();
    let xid = pair.start(3, &mut CallSpec::short().deadline(Duration::from_millis(20)));
    assert!(matches!(pair.next_reply(), (3, Err(CallError::TimedOut))));
    (0..100).for_each(|_| pair.expect_answers());
    // The late reply brings the credit back.
    pair.peer.send_words(&reply(xid));
    pair.expect_answers();
    pair.start(4, &mut CallSpec::short());
}
