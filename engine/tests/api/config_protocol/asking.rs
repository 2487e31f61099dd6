//! An engine that asks, and a raw server in the test's hands.

use super::*;
use crate::common::prelude::*;
use crate::common::raw_server::RawServer;

/// A client that has asked for a connection, and the server it reached.
type Opening = RawServer<Vec<u32>>;

impl Opening {
    fn plain() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut RawConfig)) -> Self {
        let mut raw = client_config();
        (raw.rpc.ccp, raw.rpc.ccp_auth) = (ConfigRole::Ask, Some(Protection::Sys));
        change(&mut raw);
        Self::asked(Engine::new(valid(raw)).unwrap(), &ConnectOptions::new(), all_words)
    }

    /// The client sends nothing, and starts no call.
    #[track_caller]
    fn expect_nothing(&mut self) {
        self.expect_silence();
        assert_eq!(self.caller.start(NULL, 0, |_| {}), Err(Backpressure::Connecting));
        assert!(self.caller.heard.borrow().events.is_empty());
    }

    /// The first message: the request. Returns its XID.
    #[track_caller]
    fn hear_request(&mut self) -> u32 {
        let words = self.hear();
        assert_eq!(words[10..13], [CONFIG_RDMA_PROG, VERS1, CONF_RDMA]);
        words[0]
    }

    /// The first call of the application's program, answered. Then the connection is up.
    #[track_caller]
    fn open_up(&mut self) -> Negotiated {
        let words = self.hear();
        assert_eq!(words[10..13], [PROGRAM.0, VERSION.0, 0], "the first call of the program");
        self.peer.send_words(&accepted(words[0], &[SUCCESS]));
        let heard = self.caller.heard.clone();
        run_core(&mut self.caller.core, "the connection up", || !heard.borrow().events.is_empty());
        match &self.caller.heard.borrow().events[..] {
            [ConnectionEvent::Up { negotiated, .. }] => *negotiated,
            other => panic!("{other:?}"),
        }
    }

    /// Answers the request with these results, and goes on to the connection.
    #[track_caller]
    fn open_with(&mut self, results: [u32; 3]) -> Negotiated {
        let xid = self.hear_request();
        self.peer.send_words(&accepted(xid, &[&[SUCCESS], &results[..]].concat()));
        self.open_up()
    }

    /// Starts an echo of so many bytes: the type of the message that the server hears, and its
    /// Read list's first word.
    #[track_caller]
    fn echo(&mut self, bytes: usize) -> (u32, u32) {
        let data = vec![1; bytes];
        let started = self.caller.start(ECHO, 0, |args| args.opaque(&data));
        started.unwrap();
        let words = self.hear();
        (words[3], words[4])
    }
}

/// R5666-49 to R5666-52: the request goes first, within 1 KB; the client "MUST NOT assume more than
/// one" message and "MUST receive a valid reply [...] prior to sending its next request".
#[test]
fn the_request_goes_first_and_nothing_follows_before_its_reply() {
    let mut opening = Opening::with(|raw| {
        raw.rpc.inline_send_bytes = 2048;
        raw.rpc.inline_recv_bytes = 8192;
        raw.rpc.max_rdma_reads = 7;
        raw.rpc.credits = 20;
    });
    let words = opening.hear();
    assert!(words.len() * 4 <= 1024);
    let xid = words[0];
    let call = [xid, 0, 2, CONFIG_RDMA_PROG, VERS1, CONF_RDMA];
    assert_eq!(words[..13], [&[xid, 1, 20, MSG, 0, 0, 0], &call[..]].concat());
    assert_eq!(words[13..15], [1, 20], "AUTH_SYS of five words");
    let user = [rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw(), 0];
    assert_eq!(words[17..20], user);
    assert_eq!(words[20..], [0, 0, 2048, 8192, 7], "AUTH_NONE as verifier, then the arguments");
    opening.expect_nothing();

    opening.peer.send_words(&accepted(xid, &[SUCCESS, 4096, 64, 16]));
    let negotiated = opening.open_up();
    assert!(negotiated.is_configured());
    assert_eq!(negotiated.msgp_align_bytes(), Some(64));
}

#[test]
fn a_client_of_a_server_without_flavor_asks_as_nobody() {
    let mut opening = Opening::with(|raw| raw.rpc.ccp_auth = Some(Protection::None));
    let words = opening.hear();
    assert_eq!(words[13..], [0, 0, 0, 0, 4096, 4096, 16]);
}

/// R5666-70: what protects nothing is not asked with, unless it is chosen.
#[test]
fn a_client_without_a_choice_and_without_a_context_asks_nothing() {
    let mut opening = Opening::with(|raw| raw.rpc.ccp_auth = None);
    assert!(!opening.open_up().is_configured());
}

/// The credits of the reply are the first that the client knows of.
#[test]
fn the_reply_brings_the_real_count() {
    let mut opening = Opening::plain();
    let xid = opening.hear_request();
    let mut reply = accepted(xid, &[SUCCESS, 4096, 64, 16]);
    reply[2] = 3;
    opening.peer.send_words(&reply);
    let words = opening.hear();
    let mut reply = accepted(words[0], &[SUCCESS]);
    reply[2] = 3;
    opening.peer.send_words(&reply);
    let client = opening.caller.client.clone();
    run_core(&mut opening.caller.core, "the connection up", || client.is_up());
    let null = || client.call(NULL, Token(0), &mut CallSpec::short(), |_| {});
    assert!([null(), null(), null()].iter().all(Result::is_ok));
    assert_eq!(null(), Err(Backpressure::NoCredit));
}

/// R5666-54: "smaller or larger than the client's request"; R5666-55: "MUST NOT send an inline call
/// message larger than what the server will accept"; D5666-18: "It does not limit the size of long
/// RPC messages".
#[test]
fn receive_a_smaller_size_expect_longer_calls_as_long_messages() {
    let mut opening = Opening::plain();
    let negotiated = opening.open_with([2048, 0, 16]);
    assert_eq!(negotiated.send_bytes_max(), 2048);
    assert_eq!(negotiated.msgp_align_bytes(), None);
    assert_eq!(opening.echo(1900), (MSG, 0), "inline");
    assert_eq!(opening.echo(2048), (1, 1), "RDMA_NOMSG with a Read list");
}

#[test]
fn receive_sizes_of_4_gib_expect_the_configured_ones() {
    let negotiated = Opening::plain().open_with([u32::MAX; 3]);
    assert_eq!((negotiated.send_bytes_max(), negotiated.recv_bytes_max()), (4096, 4096));
    assert!(negotiated.takes_read_chunks() && negotiated.msgp_align_bytes().is_none());
}

/// R5666-55: "The client MUST NOT send an inline call message larger than what the server will accept",
/// also where that is below the base level of section 6.1; D5666-18: "It does not limit the size of long RPC
/// messages".
#[test]
fn receive_a_size_below_1_kb_expect_longer_calls_as_long_messages() {
    // The RPC header of a call without credential is 40 bytes long, a transport header without lists 28.
    for (said, inline) in [(1000, 900), (200, 128), (68, 0)] {
        let mut opening = Opening::plain();
        assert_eq!(opening.open_with([said, 0, 16]).send_bytes_max(), said as usize);
        if inline > 0 {
            assert_eq!(opening.echo(inline), (MSG, 0), "{said}");
        }
        assert_eq!(opening.echo(said as usize - 68), (1, 1), "RDMA_NOMSG with a Read list, {said}");
    }
    for said in [0, 67] {
        let mut opening = Opening::plain();
        let xid = opening.hear_request();
        opening.peer.send_words(&accepted(xid, &[SUCCESS, said, 0, 16]));
        let first = opening.hear();
        assert_eq!((first[3], first[4], first[5]), (1, 1, 0), "the first call at position zero");
        opening.peer.send_words(&accepted(first[0], &[SUCCESS]));
        let client = opening.caller.client.clone();
        run_core(&mut opening.caller.core, "the connection up", || client.is_up());
        assert_eq!(opening.echo(4), (1, 1), "{said}");
    }
}

/// A server that takes neither an inline call nor a long one: the application hears that no call can start.
#[test]
fn receive_sizes_of_nothing_expect_the_connection_to_fail() {
    let mut opening = Opening::plain();
    let xid = opening.hear_request();
    opening.peer.send_words(&accepted(xid, &[SUCCESS, 0, 0, 0]));
    let heard = opening.caller.heard.clone();
    run_core(&mut opening.caller.core, "the failure", || !heard.borrow().events.is_empty());
    let Heard { events, .. } = &*heard.borrow();
    assert!(matches!(&events[..], [ConnectionEvent::ConnectFailed { .. }]), "{events:?}");
}

/// R5666-48: OPTIONAL. A server that refuses or does not make sense configures nothing.
#[test]
fn receive_a_refusal_or_garbage_expect_the_connection_as_rfc_8797_has_it() {
    type Answer = fn(u32) -> Vec<u32>;
    let denied: Answer = |xid| message(xid, MSG, &NO_LISTS, &[xid, 1, 1, 1, AUTH_TOOWEAK]);
    let mismatch: Answer = |xid| message(xid, MSG, &NO_LISTS, &[xid, 1, 1, 0, 3, 4]);
    for (what, answer) in [
        ("PROG_UNAVAIL", (|xid| accepted(xid, &[PROG_UNAVAIL])) as Answer),
        ("PROG_MISMATCH", |xid| accepted(xid, &[PROG_MISMATCH, 2, 2])),
        ("PROC_UNAVAIL", |xid| accepted(xid, &[PROC_UNAVAIL])),
        ("GARBAGE_ARGS", |xid| accepted(xid, &[GARBAGE_ARGS])),
        ("SYSTEM_ERR", |xid| accepted(xid, &[SYSTEM_ERR])),
        ("an unknown status", |xid| accepted(xid, &[77])),
        ("AUTH_TOOWEAK", denied),
        ("RPC_MISMATCH", mismatch),
        ("no results", |xid| accepted(xid, &[SUCCESS])),
        ("two words", |xid| accepted(xid, &[SUCCESS, 1024, 64])),
        ("four words", |xid| accepted(xid, &[SUCCESS, 1024, 64, 0, 0])),
        ("ERR_CHUNK", |xid| message(xid, ERROR, &[ERR_CHUNK], &[])),
        ("ERR_VERS", |xid| message(xid, ERROR, &[1, 1, 1], &[])),
    ] {
        let mut opening = Opening::plain();
        let xid = opening.hear_request();
        opening.peer.send_words(&answer(xid));
        let negotiated = opening.open_up();
        assert_eq!(negotiated.send_bytes_max(), 4096, "{what}");
        assert!(!negotiated.is_configured() && negotiated.takes_read_chunks(), "{what}");
        assert_eq!(opening.echo(3000), (MSG, 0), "{what}");
    }
}

/// Expects the client to reconnect, and not to ask again, after the server does this to the request
/// instead of answering it.
#[track_caller]
fn expect_another_connection(mut opening: Opening, how_it_ends: DownCause) {
    let said = opening.until("the end of the connection", |opening| opening.peer.poll());
    assert_eq!(said, Said::Down(how_it_ends), "sent without a reply to its request");
    opening.take_next();
    let negotiated = opening.open_up();
    assert!(!negotiated.is_configured());
    assert_eq!(negotiated.send_bytes_max(), 4096);
    assert_eq!(opening.echo(3000), (MSG, 0));
}

/// R5666-52: without a reply, nothing more may be sent on the connection.
#[test]
fn receive_no_answer_expect_another_connection_that_does_not_ask() {
    let mut opening = Opening::plain();
    opening.hear_request();
    expect_another_connection(opening, DownCause::Remote);
}

#[test]
fn receive_the_end_of_the_connection_expect_another_one_that_does_not_ask() {
    let mut opening = Opening::plain();
    opening.hear_request();
    opening.peer.close();
    expect_another_connection(opening, DownCause::Local);
}

#[test]
fn a_client_closed_while_it_asks_hears_one_failure_and_does_not_come_back() {
    let mut opening = Opening::plain();
    opening.hear_request();
    opening.caller.client.close();
    let heard = opening.caller.heard.clone();
    run_core(&mut opening.caller.core, "the failure", || !heard.borrow().events.is_empty());
    assert_eq!(opening.peer.hear_end(), DownCause::Remote);
    opening.expect_silence();
    let Heard { events, .. } = &*heard.borrow();
    assert!(matches!(&events[..], [ConnectionEvent::ConnectFailed { .. }]), "{events:?}");
}

/// R5666-57: "If zero, the peer MUST NOT issue requests that require RDMA Read to satisfy".
#[test]
fn receive_maxrdmaread_of_zero_expect_calls_refused_that_need_a_read_chunk() {
    let server_says_zero = || {
        let mut opening = Opening::plain();
        opening.open_with([4096, 64, 0]);
        opening
    };
    let client_says_zero = || {
        let mut opening = Opening::with(|raw| raw.rpc.max_rdma_reads = 0);
        opening.open_with([4096, 64, 16]);
        opening
    };
    expect_no_read_chunks(server_says_zero());
    expect_no_read_chunks(client_says_zero());
}

#[track_caller]
fn expect_no_read_chunks(mut opening: Opening) {
    let long = vec![1; 5000];
    let refused = opening.caller.start(ECHO, 0, |args| args.opaque(&long));
    assert_eq!(refused, Err(Backpressure::NoRdmaRead { needed_bytes: 28 + 40 + 4 + 5000 }));

    let mut spec = CallSpec::short().argument(opening.caller.client.bulk(8000).unwrap());
    let refused = opening.caller.client.call(ECHO, Token(0), &mut spec, |args| args.bulk());
    assert_eq!(refused, Err(Backpressure::NoRdmaRead { needed_bytes: 28 + 40 + 4 + 8000 }));
    opening.expect_silence();

    // Data that fit go inline, results by RDMA Write as ever.
    let mut spec = CallSpec::short()
        .argument(opening.caller.client.bulk(3000).unwrap())
        .result_into(opening.caller.client.bulk(20_000).unwrap());
    opening.caller.client.call(ECHO, Token(0), &mut spec, |args| args.bulk()).unwrap();
    let words = opening.hear();
    assert_eq!(words[3..6], [MSG, 0, 1], "no Read list, a Write list");
}
