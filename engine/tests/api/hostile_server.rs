//! A server that breaks the rules, against a real client: the message is dropped, the call fails,
//! or the connection is closed with its cause; every call ends exactly once.

use crate::common::prelude::*;
use crate::common::raw::*;
use crate::common::raw_server::RawServer;
use spinrpc_proto::events::PeerMisbehaved;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

fn good_reply(xid: u32) -> Vec<u32> {
    message(xid, MSG, &NO_LISTS, &success(xid))
}

type Pair = RawServer<Vec<u32>>;

impl Pair {
    fn by_rfc8166() -> Self {
        Self::under(Profile::Rfc8166)
    }

    fn under(profile: Profile) -> Self {
        let raw = client_with(|raw| (raw.rpc.protocol, raw.rpc.ccp) = (profile, ConfigRole::Off));
        Self::up(raw, all_words)
    }

    fn call(&mut self, token: u64) -> Vec<u32> {
        self.caller.start(NULL, token, |_| {}).unwrap();
        self.caller.core.poll_once();
        self.peer.hear().words()
    }

    /// Starts a call with room for one result of `bytes`, and a long reply if `long`.
    fn call_with_room(&mut self, token: u64, bytes: usize, long: bool) -> Vec<u32> {
        let room = self.caller.client.bulk(bytes).unwrap();
        let mut spec = CallSpec::short().result_into(room);
        if long {
            spec = spec.reply_bytes_max(10_000);
        }
        self.caller.client.call(ECHO, Token(token), &mut spec, |_| {}).unwrap();
        self.caller.core.poll_once();
        self.peer.hear().words()
    }

    /// The call in flight fails and the connection is closed, both for `why`.
    #[track_caller]
    fn expect_misbehaved(&mut self, what: &str, why: PeerMisbehaved) {
        let error = self.caller.reply().unwrap_err();
        let told = matches!(error, CallError::PeerMisbehaved(reason) if reason == why);
        assert!(told, "{what}: {error:?}");
        let (cause, in_flight) = self.caller.down();
        assert_eq!((cause, in_flight), (DownCause::PeerMisbehaved(why.as_str()), 0), "{what}");
        assert_eq!(self.peer.hear_end(), DownCause::Remote, "{what}");
    }

    /// A good reply to the call still ends it, and the connection lives.
    #[track_caller]
    fn expect_alive(&mut self, what: &str, xid: u32) {
        self.peer.send_words(&good_reply(xid));
        assert!(self.caller.reply().is_ok(), "{what}");
        assert!(self.caller.client.is_up(), "{what}");
    }
}

/// Drafts of RFC 5666, section 4.1: the XID of the header "takes precedence", inline and in a Reply chunk.
#[test]
fn of_two_xids_that_of_the_header_names_the_call_that_is_answered_under_the_drafts() {
    for profile in [Profile::Draft00, Profile::Draft03] {
        let mut pair = Pair::under(profile);
        let xid = pair.call(1)[0];
        pair.peer.send_words(&message(xid, MSG, &NO_LISTS, &[&success(!xid)[..], &[7]].concat()));
        assert_eq!(pair.caller.reply().unwrap(), [7], "{profile:?}");
        let call = pair.call_with_room(2, 64, true);
        let mut lists = call[4..18].to_vec();
        let reply = bytes_of(&[&success(!call[0])[..], &[4, 5, 6]].concat());
        pair.peer.write(&reply, slice_of(&lists[10..]));
        (lists[4], lists[11]) = (0, reply.len() as u32);
        pair.peer.send_words(&message(call[0], NOMSG, &lists, &[]));
        assert_eq!(pair.caller.reply().unwrap(), [4, 5, 6], "{profile:?}");
        let xid = pair.call(3)[0];
        pair.expect_alive("the connection", xid);
    }
}

#[test]
fn messages_that_answer_no_call_are_dropped() {
    type Wrong = fn(u32, u32) -> Vec<u32>;
    let mut pair = Pair::by_rfc8166();
    let mut before = 0;
    let cases: [(&str, Wrong); 15] = [
        ("an unknown XID", |xid, _| good_reply(xid ^ 0x4000_0000)),
        ("the reply to the call before", |_, before| good_reply(before)),
        ("a call in the reverse direction", |_, _| {
            let call = rpc_call(0x7700_0000, NULL, &[]);
            message(0x7700_0000, MSG, &NO_LISTS, &call)
        }),
        ("version 2", |xid, _| [&[xid, 2][..], &good_reply(xid)[2..]].concat()),
        ("RDMA_MSGP", |xid, _| message(xid, 2, &[64, 64, 0, 0, 0], &success(xid))),
        ("RDMA_DONE", |xid, _| message(xid, 3, &[], &[])),
        ("an unknown type", |xid, _| message(xid, 9, &NO_LISTS, &success(xid))),
        ("lists without end", |xid, _| message(xid, MSG, &[1, 1, 1], &[])),
        ("a short message", |xid, _| vec![xid, 1, 64, 0]),
        ("half a header", |xid, _| vec![xid, 1]),
        ("nothing but an XID", |xid, _| vec![xid]),
        ("no RPC message", |xid, _| message(xid, MSG, &NO_LISTS, &[])),
        ("half an RPC message", |xid, _| message(xid, MSG, &NO_LISTS, &[xid])),
        ("another RPC XID", |xid, _| message(xid, MSG, &NO_LISTS, &success(xid + 1))),
        ("a call with the XID of ours", |xid, _| {
            message(xid, MSG, &NO_LISTS, &[xid, 0, 2, 1, 1, 1])
        }),
    ];
    for (what, wrong) in cases {
        let xid = pair.call(1)[0];
        assert_ne!(xid, before, "an XID is not used again at once");
        pair.peer.send_words(&wrong(xid, before));
        pair.expect_alive(what, xid);
        before = xid;
    }
    let engine = pair.caller.engine.clone();
    run_core(&mut pair.caller.core, "15 drops", || engine.stats(0).unwrap().messages_dropped == 15);
}

#[test]
fn a_reply_that_cannot_be_decoded_fails_its_call_only() {
    let mut pair = Pair::by_rfc8166();
    let bodies: [&[u32]; 7] =
        [&[], &[0], &[2, PROGRAM.0], &[7], &[0, 0, 404], &[0, 0, 0, 99], &[1, 5]];
    for body in bodies {
        let xid = pair.call(1)[0];
        let reply = [&[xid, 1], body].concat();
        pair.peer.send_words(&message(xid, MSG, &NO_LISTS, &reply));
        let error = pair.caller.reply().unwrap_err();
        assert!(matches!(error, CallError::Decode(_)), "{body:?}: {error:?}");
        let next = pair.call(2)[0];
        pair.expect_alive("the next call", next);
    }
}

/// RFC 8166 sections 4.3.1 to 4.3.3: a reply brings back the lists that its call offered.
#[test]
fn lists_that_were_not_offered_cost_the_connection() {
    let segment = [1, 8, 100, 0, 0];
    for (what, kind, lists, why) in [
        (
            "a Read list",
            MSG,
            [&[1, 0, 8, 100, 0, 0], &NO_LISTS[..]].concat(),
            PeerMisbehaved::ReadListInReply,
        ),
        (
            "a Write list",
            MSG,
            [&[0, 1], &segment[..], &[0, 0]].concat(),
            PeerMisbehaved::WriteListChanged,
        ),
        (
            "a Reply chunk",
            NOMSG,
            [&[0, 0, 1], &segment[..]].concat(),
            PeerMisbehaved::ReplyChunkChanged,
        ),
        ("no stream at all", NOMSG, NO_LISTS.to_vec(), PeerMisbehaved::NoReplyStream),
    ] {
        let mut pair = Pair::by_rfc8166();
        let xid = pair.call(1)[0];
        pair.peer.send_words(&message(xid, kind, &lists, &success(xid)));
        pair.expect_misbehaved(what, why);
    }
}

/// RFC 8166 section 3.4.6.2: for a result, "the Requester SHOULD NOT include additional space for XDR roundup padding".
#[test]
fn room_for_a_result_has_no_place_for_roundup() {
    for bytes in 9001..=9004_u32 {
        let call = Pair::by_rfc8166().call_with_room(1, bytes as usize, false);
        assert_eq!((&call[4..7], call[8]), (&[0, 1, 1][..], bytes));
    }
}

/// RFC 5666 section 3.4: "Unused write chunks, or unused bytes in write chunk buffer lists, are not returned as
/// results, and their memory is returned to the upper layer as part of RPC completion". Their keys end with the call.
#[test]
fn lists_come_back_without_what_was_not_used_and_all_keys_end() {
    for (what, lists) in [
        ("no lists", vec![0, 0, 0]),
        ("chunks without segments", vec![0, 1, 0, 0, 1, 0]),
        ("a Reply chunk only", vec![0, 0, 1, 0]),
    ] {
        let mut pair = Pair::by_rfc8166();
        let call = pair.call_with_room(1, 9000, true);
        pair.peer.send_words(&message(call[0], MSG, &lists, &success(call[0])));
        assert_eq!(pair.caller.reply().unwrap(), [0; 0], "{what}");
        assert!(pair.caller.client.is_up(), "{what}");
        pair.peer.write(&[1; 8], slice_of(&call[7..]));
        pair.peer.hear_end();
    }
}

/// A server writes the reply to one call into the chunk of another.
#[test]
fn a_reply_in_a_chunk_that_is_another_calls_reaches_no_handler() {
    for (xid_of, answered) in [(1, 0), (0, 1)] {
        let mut pair = Pair::by_rfc8166();
        let calls = [pair.call_with_room(1, 9000, true), pair.call_with_room(2, 9000, true)];
        let mut lists = calls[1][4..18].to_vec();
        let reply = bytes_of(&[&success(calls[xid_of][0])[..], &[4, 5, 6]].concat());
        pair.peer.write(&reply, slice_of(&lists[10..]));
        (lists[4], lists[11]) = (0, reply.len() as u32);
        pair.peer.send_words(&message(calls[1][0], NOMSG, &lists, &[]));
        if answered == 0 {
            assert_eq!(pair.caller.reply().unwrap(), [4, 5, 6]);
            assert!(pair.caller.client.is_up());
            continue;
        }
        let why = PeerMisbehaved::ForeignReply;
        let (token, error) = pair.caller.replies(1).remove(0);
        let told = matches!(error, Err(CallError::PeerMisbehaved(reason)) if reason == why);
        assert!(told && token == 2, "{token} {error:?}");
        assert_eq!(pair.caller.down(), (DownCause::PeerMisbehaved(why.as_str()), 1));
    }
}

/// RFC 8797 section 4.1: only a key of the call that is answered.
#[test]
fn to_invalidate_the_key_of_another_call_costs_the_connection() {
    type Answer = fn(u32) -> Vec<u32>;
    let cases: [(&str, Answer, usize); 3] = [
        ("a reply", good_reply, 1),
        ("an RDMA_ERROR", |xid| message(xid, 4, &[2], &[]), 1),
        ("a message that answers nothing", |_| good_reply(0x7fff_ffff), 0),
    ];
    for (what, answer, answered) in cases {
        let mut pair = Pair::by_rfc8166();
        let first = pair.call_with_room(1, 9000, false)[0];
        let foreign = pair.call_with_room(2, 9000, false)[7];
        pair.peer.send_invalidating(&bytes_of(&answer(first)), Some(foreign));
        let (cause, in_flight) = pair.caller.down();
        let why = PeerMisbehaved::ForeignKey.as_str();
        assert_eq!((cause, in_flight), (DownCause::PeerMisbehaved(why), 2 - answered), "{what}");
        let mut tokens: Vec<u64> = pair.caller.replies(2).iter().map(|(token, _)| *token).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, [1, 2], "{what}: each call ends once");
    }
}

#[test]
fn a_first_reply_that_is_rubbish_is_a_connect_error() {
    type Answer = fn(u32) -> Option<Vec<u32>>;
    let cases: [(&str, Answer); 5] = [
        ("undecodable", |xid| Some(message(xid, MSG, &NO_LISTS, &[xid, 1, 9]))),
        ("an RDMA_ERROR", |xid| Some(message(xid, 4, &[2], &[]))),
        ("a Read list", |xid| Some(message(xid, MSG, &[1, 0, 1, 1, 0, 0, 0, 0, 0], &success(xid)))),
        ("denied", |xid| Some(message(xid, MSG, &NO_LISTS, &[xid, 1, 1, 1, 1]))),
        ("closed", |_| None),
    ];
    for (what, answer) in cases {
        let (address, listener) = RawListener::new();
        let serving = serve_first_call(listener, answer);
        let raw = client_with(|raw| raw.rpc.timeout_ms = 10_000);
        let (engine, mut core) = with_core(raw);
        let opened = open(&mut core, &address, all_words);
        let error = opened.err().unwrap_or_else(|| panic!("{what}: connected"));
        assert!(matches!(error, ConnectError::FirstCall(_)), "{what}: {error:?}");
        assert_eq!(error.to_string().lines().count(), 1);
        run_core(&mut core, "the end", || engine.stats(0).unwrap().connections_closed == 1);
        serving.join().unwrap();
    }
}

/// Answers the first call of one connection on a thread, and waits for the end.
fn serve_first_call(listener: RawListener, answer: fn(u32) -> Option<Vec<u32>>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut peer = listener.accept();
        let xid = peer.hear().words()[0];
        match answer(xid) {
            Some(words) => peer.send_words(&words),
            None => peer.close(),
        }
        peer.hear_end();
    })
}

#[test]
fn a_server_that_connects_and_says_nothing_times_out() {
    let (address, listener) = RawListener::new();
    let (ended, end) = channel::<()>();
    let serving = std::thread::spawn(move || {
        let mut peer = listener.accept();
        let _ = end.recv_timeout(LIMIT);
        peer.hear_end();
    });
    let raw = client_with(|raw| raw.rpc.timeout_ms = 50);
    let (engine, mut core) = with_core(raw);
    let error = open(&mut core, &address, all_words).err().unwrap();
    assert!(matches!(error, ConnectError::FirstCall(CallError::TimedOut)), "{error:?}");
    run_core(&mut core, "the end", || engine.stats(0).unwrap().connections_closed == 1);
    ended.send(()).unwrap();
    serving.join().unwrap();
}

#[test]
fn a_call_cancelled_as_the_server_goes_ends_once() {
    let mut pair = Pair::by_rfc8166();
    let calls: Vec<_> =
        (1..=10).map(|token| pair.caller.start(NULL, token, |_| {}).unwrap()).collect();
    pair.caller.core.poll_once();
    pair.peer.close();
    for call in &calls[..5] {
        assert_eq!(pair.caller.client.cancel(*call), Ok(()));
        assert_eq!(pair.caller.client.cancel(*call), Err(CallEnded), "cancelled before");
    }
    pair.caller.down();
    let ends: HashMap<u64, CallError> =
        pair.caller.replies(10).into_iter().map(|(token, end)| (token, end.unwrap_err())).collect();
    for token in 1..=10 {
        let end = &ends[&token];
        let cancelled = matches!(end, CallError::Cancelled);
        let disconnected = matches!(end, CallError::Disconnected(_));
        assert!(if token <= 5 { cancelled } else { disconnected }, "{token}: {end:?}");
    }
}
