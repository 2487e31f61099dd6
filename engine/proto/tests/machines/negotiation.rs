//! Negotiation of the version between a requester and its responder
//! (draft-cel-nfsv4-rpcrdma-version-two-01 sections 2.3 and 5).

use spinrpc_proto::version::TransportVersion::{One, Two};

use crate::messages;
use crate::prelude::*;
use crate::two::{BOTH, Proto, call, end, plain_call, plain_reply, receive, view};

/// A client that has offered version two in its first call.
fn offering(versions: Versions) -> (Proto, StartedCall) {
    let mut client = end(Side::Client, versions, 4);
    let (started, header) = call(&mut client, 7);
    assert_eq!(view(&header).version(), versions.high().to_wire());
    (client, started)
}

fn err_vers(xid: Xid, version: u32, low: u32, high: u32) -> Vec<u8> {
    rdma_error(xid, version, &[1, low, high])
}

fn stage(client: &Proto) -> (Stage, u32) {
    let negotiation = client.requester.negotiation();
    (negotiation.stage(), negotiation.version().to_wire())
}

fn failed(started: StartedCall, low: u32, high: u32) -> Event {
    let failure = CallFailure::Rdma(RdmaError::Version { low, high });
    Event::Failed { slot: started.slot, token: 7, failure, fenced: false }
}

fn again(client: &mut Proto, started: StartedCall) -> Vec<u8> {
    let mut room = [0; 32];
    let sent = client.requester.resend(started.slot, &CallChunks::EMPTY, &mut room);
    let (same, length) = sent.unwrap();
    assert_eq!(same, started);
    room[32 - length..].to_vec()
}

#[test]
fn offer_version_two_and_receive_a_reply_expect_it_settled() {
    // Section 5.1: "a valid non-error response".
    let (mut client, started) = offering(Versions::Both);
    assert_eq!(stage(&client), (Stage::Offered, 2));
    let events = receive(&mut client, &plain_reply(started.xid));
    assert!(matches!(events[..], [Event::Reply(_)]));
    assert_eq!(stage(&client), (Stage::Settled, 2));
    assert_eq!(client.requester.verdict(), Verdict::SpeaksTwo);
}

#[test]
fn one_message_at_a_time_until_there_is_an_answer_that_is_no_error() {
    // Section 5: "a requester MUST assume the ability to exchange only a single RPC-over-RDMA message
    // at a time until it receives a non-error RPC-over-RDMA message [...] that reports the responder's
    // actual credit limit".
    let (mut client, started) = offering(Versions::Both);
    assert_eq!(client.requester.check_room(), Err(CallRefused::NoCredit));
    receive(&mut client, &rdma_error(started.xid, 2, &[2]));
    let (second, _) = call(&mut client, 8);
    assert_eq!(client.requester.check_room(), Err(CallRefused::NoCredit));
    receive(&mut client, &err_vers(second.xid, 2, 1, 1));
    again(&mut client, second);
    assert_eq!(client.requester.check_room(), Err(CallRefused::NoCredit));
    receive(&mut client, &messages::plain_reply(second.xid, 4));
    assert_eq!(client.requester.check_room(), Ok(()));
    assert_eq!(client.requester.credits().granted(), 4);
}

#[test]
fn the_first_message_is_no_longer_than_1024_bytes_whatever_was_agreed() {
    // Section 5: "this initial message can be no larger than the Version One default inline threshold
    // of 1024 bytes".
    let negotiation = Negotiation::new(Versions::Both);
    for one_bytes in [1024, 4096, 65536] {
        let thresholds = InlineThresholds::new(one_bytes, 65536, Some(65536));
        assert_eq!(negotiation.send_bytes_max(&thresholds), 1024);
    }
    let (_, header) = call(&mut end(Side::Client, Versions::Both, 4), 1);
    assert_eq!(view(&header).version(), 2);
}

#[test]
fn the_threshold_of_version_two_is_4096_bytes_unless_more_is_known() {
    // Section 2.3: "senders MUST assume a receiver's inline threshold is 4096 bytes"; receivers "MAY
    // support larger inline threshold values".
    let of_two = |sent_bytes, agreed| InlineThresholds::new(1024, sent_bytes, agreed).of(Two);
    assert_eq!(of_two(65536, None), 4096);
    assert_eq!(of_two(65536, Some(16384)), 16384);
    assert_eq!(of_two(8192, Some(16384)), 8192, "no more than this side can send");
    assert_eq!(of_two(65536, Some(1024)), 4096, "less is not a threshold of version two");
    assert_eq!(of_two(2048, None), 2048);
    assert_eq!(InlineThresholds::new(1024, 65536, Some(16384)).of(One), 1024);
}

#[test]
fn the_threshold_changes_while_the_connection_and_its_calls_live() {
    // Section 5.2: "implementations MUST allow inline threshold values to change without triggering a
    // connection loss".
    let thresholds = InlineThresholds::new(2048, 65536, None);
    let send_bytes_max =
        |client: &Proto| client.requester.negotiation().send_bytes_max(&thresholds);
    let (mut client, started) = offering(Versions::Both);
    assert_eq!(send_bytes_max(&client), 1024);
    receive(&mut client, &plain_reply(started.xid));
    assert_eq!(send_bytes_max(&client), 4096);
    let (mut client, started) = offering(Versions::Both);
    receive(&mut client, &err_vers(started.xid, 2, 1, 1));
    assert_eq!(send_bytes_max(&client), 2048);
    again(&mut client, started);
    let events = receive(&mut client, &messages::plain_reply(started.xid, 4));
    assert!(matches!(events[..], [Event::Reply(_)]));
    assert_eq!(send_bytes_max(&client), 2048);
}

#[test]
fn receive_err_vers_expect_the_call_again_in_version_one() {
    // Section 5.2: "the requester selects a protocol version in the range of responder-supported
    // versions for subsequent messages on this connection". The version word is one that the
    // requester takes: that of the call, or that of the responder.
    for version in [1, 2] {
        let (mut client, started) = offering(Versions::Both);
        let events = receive(&mut client, &err_vers(started.xid, version, 1, 1));
        assert_eq!(events, [Event::Resend(started.slot)]);
        assert_eq!(stage(&client), (Stage::FellBack, 1));
        assert_eq!(client.requester.held().collect::<Vec<_>>(), [started.slot]);
        assert_eq!(client.requester.credits().in_flight(), 0);
        let header = again(&mut client, started);
        assert_eq!(header, wire(&[started.xid.0, 1, 4, 0, 0, 0, 0]));
        assert_eq!(replied(&receive(&mut client, &messages::plain_reply(started.xid, 4))), 7);
        assert_eq!(stage(&client), (Stage::Settled, 1));
        let (_, header) = call(&mut client, 8);
        assert_eq!(view(&header).version(), 1, "for the rest of the connection");
        assert_eq!(client.requester.verdict(), Verdict::NoVersionTwo);
    }
}

#[test]
fn a_call_with_chunks_is_sent_again_with_its_chunks() {
    let mut client = end(Side::Client, Versions::Both, 4);
    let mut chunks = CallChunks::EMPTY;
    assert!(chunks.push_write(ChunkOffer { handle: 1, length: 64, offset: 9, segment_bytes: 0 }));
    let mut header = [0; 96];
    let never = messages::NEVER;
    let started = client.requester.start_call(7, never, &chunks, &mut header).unwrap().0;
    receive(&mut client, &err_vers(started.xid, 2, 1, 1));
    let (_, length) = client.requester.resend(started.slot, &chunks, &mut header).unwrap();
    let sent = view(&header[96 - length..]);
    assert_eq!((sent.version(), sent.writes().len(), length), (1, 1, chunks.header_bytes()));
}

#[test]
fn the_version_is_chosen_out_of_the_range() {
    for (versions, low, high, chosen) in [
        (Versions::Both, 1, 1, Some(1)),
        (Versions::Both, 0, 1, Some(1)),
        // The version that was just refused is not tried again, even if the range has it.
        (Versions::Both, 1, 2, Some(1)),
        (Versions::Both, 0, u32::MAX, Some(1)),
        (Versions::Both, 2, 2, None),
        (Versions::Both, 3, 9, None),
        (Versions::Both, 0, 0, None),
        // A range with nothing in it.
        (Versions::Both, 2, 1, None),
        (Versions::Both, u32::MAX, 0, None),
        (Versions::Two, 1, 1, None),
        (Versions::Two, 1, 2, None),
    ] {
        for version in [1, 2] {
            check_choice(versions, version, (low, high), chosen);
        }
    }
}

/// Receives ERR_VERS with this version word and range.
fn check_choice(versions: Versions, version: u32, range: (u32, u32), chosen: Option<u32>) {
    let (low, high) = range;
    let (mut client, started) = offering(versions);
    let events = receive(&mut client, &err_vers(started.xid, version, low, high));
    let expected = match chosen {
        Some(_) => vec![Event::Resend(started.slot)],
        None => {
            let closed = Event::Closed(PeerMisbehaved::NoCommonVersion);
            vec![failed(started, low, high), closed]
        }
    };
    assert_eq!(events, expected, "{versions:?}, {low} to {high}");
    let stages = chosen.map_or((Stage::NoneInCommon, 2), |version| (Stage::FellBack, version));
    assert_eq!(stage(&client), stages);
    assert_eq!(client.requester.verdict(), Verdict::NoVersionTwo);
}

#[test]
fn receive_err_vers_to_the_lower_version_as_well_expect_the_end() {
    let (mut client, started) = offering(Versions::Both);
    receive(&mut client, &err_vers(started.xid, 2, 1, 1));
    again(&mut client, started);
    let events = receive(&mut client, &err_vers(started.xid, 1, 1, 2));
    let closed = Event::Closed(PeerMisbehaved::NoCommonVersion);
    assert_eq!(events, [failed(started, 1, 2), closed]);
    let (_, header) = call(&mut client, 8);
    let late = receive(&mut client, &plain_reply(view(&header).xid()));
    assert_eq!(late, [Event::Dropped(Dropped::MalformedReply)], "it is closing");
}

#[test]
fn receive_err_vers_once_the_version_is_settled_expect_the_call_to_fail() {
    // Section 5.2: the version holds "for the remainder of the connection lifetime".
    let (mut client, started) = offering(Versions::Both);
    receive(&mut client, &plain_reply(started.xid));
    let (started, _) = call(&mut client, 7);
    assert_eq!(receive(&mut client, &err_vers(started.xid, 2, 1, 1)), [failed(started, 1, 1)]);
    assert_eq!(stage(&client), (Stage::Settled, 2));
    let (_, header) = call(&mut client, 8);
    assert_eq!(view(&header).version(), 2);
}

#[test]
fn version_one_alone_negotiates_nothing() {
    let mut client = end(Side::Client, Versions::One, 4);
    assert_eq!(stage(&client), (Stage::Settled, 1));
    let (started, header) = call(&mut client, 7);
    assert_eq!(view(&header).version(), 1);
    assert_eq!(receive(&mut client, &err_vers(started.xid, 1, 2, 2)), [failed(started, 2, 2)]);
    assert_eq!(client.requester.verdict(), Verdict::Unknown);
    // A responder that is remembered gets the same.
    let known = Negotiation::settled(One);
    assert_eq!((known.stage(), known.verdict(true)), (Stage::Settled, Verdict::Unknown));
}

#[test]
fn receive_other_errors_before_it_is_settled_expect_the_offer_to_go_on() {
    for body in [&[2][..], &[3]] {
        let (mut client, started) = offering(Versions::Both);
        let events = receive(&mut client, &rdma_error(started.xid, 2, body));
        assert!(matches!(events[..], [Event::Failed { token: 7, .. }]));
        assert_eq!(stage(&client), (Stage::Offered, 2));
        let (started, header) = call(&mut client, 8);
        assert_eq!(view(&header).version(), 2);
        receive(&mut client, &plain_reply(started.xid));
        assert_eq!(stage(&client), (Stage::Settled, 2));
    }
}

#[test]
fn receive_what_is_no_answer_expect_nothing_settled() {
    let (mut client, started) = offering(Versions::Both);
    for message in [
        // A reply of another version, replies to nothing, a call.
        messages::plain_reply(started.xid, 4),
        plain_reply(Xid(!started.xid.0)),
        plain_call(started.xid),
        messages::plain_call(started.xid),
    ] {
        let events = receive(&mut client, &message);
        assert!(matches!(events[..], [Event::Dropped(_)]), "{events:?}");
        assert_eq!(stage(&client), (Stage::Offered, 2));
    }
}

#[test]
fn receive_a_version_one_reply_beyond_the_limits_expect_nothing_settled_and_nothing_granted() {
    // Under older rules such a reply costs an RDMA_DONE; this one does not answer version two.
    let limits = Limits { payload_bytes_max: 100, ..BOTH };
    let mut client = with_slots(Side::Client, (4, 0), Profile::Rfc5666, limits);
    let (started, _) = call(&mut client, 7);
    let too_long = Chunks::none().read(24, 1, 101);
    let too_long = too_long.msg(started.xid, 4, &messages::rpc_reply(started.xid));
    let events = receive(&mut client, &too_long);
    assert_eq!(events, [Event::Dropped(Dropped::MalformedReply)]);
    assert_eq!(stage(&client), (Stage::Offered, 2));
    assert_eq!(client.requester.check_room(), Err(CallRefused::NoCredit));
    // It is one once version one is tried.
    receive(&mut client, &err_vers(started.xid, 2, 1, 1));
    again(&mut client, started);
    assert!(matches!(receive(&mut client, &too_long)[..], [Event::PullReply(_)]));
    assert_eq!(stage(&client), (Stage::Settled, 1));
}

/// RFC 8166 section 4.3.1: a responder leaves the Read list of a reply empty. Expect the same end
/// for one beyond the limits as for a short one: its sender follows older rules, and sends no other
/// answer.
#[test]
fn receive_a_read_list_beyond_the_limits_in_a_reply_expect_the_call_and_the_connection_to_end() {
    let limits = Limits { payload_bytes_max: 100, versions: Versions::One, ..BOTH };
    let mut client = with_slots(Side::Client, (4, 0), Profile::Rfc8166, limits);
    let (started, _) = call(&mut client, 7);
    let reads = Chunks::none().read(24, 1, 101);
    let writes = Chunks::none().write(&[segment(1, 101)]);
    let message = messages::rpc_reply(started.xid);
    // No responder that has seen the call sends a Write list that long.
    let stray = receive(&mut client, &writes.msg(started.xid, 4, &message));
    assert_eq!(stray, [Event::Dropped(Dropped::MalformedReply)]);
    let other = receive(&mut client, &reads.msg(Xid(started.xid.0 ^ 1), 4, &message));
    assert_eq!(other, [Event::Dropped(Dropped::MalformedReply)]);
    let why = PeerMisbehaved::ReadListInReply;
    let failure = CallFailure::Misbehaved(why);
    let failed = Event::Failed { slot: started.slot, token: 7, failure, fenced: false };
    let events = receive(&mut client, &reads.msg(started.xid, 4, &message));
    assert_eq!(events, [failed, Event::Closed(why)]);
}

/// RFC 5666 section 3.8: RDMA_DONE says that a Read list was fetched. Expect it owed for a Read list
/// beyond the limits in each kind of message, and not for a Write list beyond them.
#[test]
fn receive_a_reply_beyond_the_limits_under_rfc_5666_expect_rdma_done_owed_for_reads_only() {
    let limits = Limits { payload_bytes_max: 100, versions: Versions::One, ..BOTH };
    let receive_one = |message: &dyn Fn(Xid) -> Vec<u8>| {
        let mut client = with_slots(Side::Client, (4, 0), Profile::Rfc5666, limits);
        let (started, _) = call(&mut client, 7);
        receive(&mut client, &message(started.xid))
    };
    let reads = Chunks::none().read(24, 1, 101);
    let writes = Chunks::none().write(&[segment(1, 101)]);
    let reply = messages::rpc_reply;
    let owing: [&dyn Fn(Xid) -> Vec<u8>; 3] =
        [&|xid| reads.msg(xid, 4, &reply(xid)), &|xid| reads.msgp(xid, 4, &reply(xid)), &|xid| {
            reads.nomsg(xid, 4)
        }];
    for message in owing {
        assert!(matches!(receive_one(message)[..], [Event::PullReply(_)]));
    }
    let owing_nothing: [&dyn Fn(Xid) -> Vec<u8>; 3] =
        [&|xid| writes.msg(xid, 4, &reply(xid)), &|xid| writes.msgp(xid, 4, &reply(xid)), &|xid| {
            writes.nomsg(xid, 4)
        }];
    for message in owing_nothing {
        assert_eq!(receive_one(message), [Event::Dropped(Dropped::MalformedReply)]);
    }
}

#[test]
fn lose_the_connection_expect_what_to_remember_of_the_responder() {
    let fresh = end(Side::Client, Versions::Both, 4);
    assert_eq!(fresh.requester.verdict(), Verdict::Unknown, "nothing was said");
    // Section 5.2: "if the initial negotiation message is lost or dropped".
    let (client, started) = offering(Versions::Both);
    assert_eq!(client.requester.verdict(), Verdict::NoVersionTwo);
    // "If the connection is lost immediately after the `RDMA2_ERROR` reply is received".
    let (mut client, _) = offering(Versions::Both);
    receive(&mut client, &err_vers(started.xid, 2, 1, 1));
    assert_eq!(client.requester.verdict(), Verdict::NoVersionTwo);
    again(&mut client, started);
    assert_eq!(client.requester.verdict(), Verdict::NoVersionTwo);
    // A responder that has found fault with a version-two header has read it.
    let (mut client, started) = offering(Versions::Both);
    receive(&mut client, &rdma_error(started.xid, 2, &[2]));
    assert_eq!(client.requester.verdict(), Verdict::Unknown);
    let (mut client, started) = offering(Versions::Both);
    receive(&mut client, &plain_reply(started.xid));
    call(&mut client, 8);
    assert_eq!(client.requester.verdict(), Verdict::SpeaksTwo);
}

#[test]
fn no_answer_at_all_expect_the_same_verdict_once_the_call_is_given_up() {
    let mut client = end(Side::Client, Versions::Both, 4);
    let chunks = &CallChunks::EMPTY;
    client.requester.start_call(7, Instant(50), chunks, &mut [0; 32]).unwrap();
    let mut out = Recorder::default();
    client.requester.on_time(Instant(50), |failed| out.fail(failed));
    assert!(matches!(out.take()[..], [Event::Failed { token: 7, fenced: true, .. }]));
    assert_eq!(client.requester.verdict(), Verdict::NoVersionTwo);
}

#[test]
fn receive_err_vers_for_a_call_that_was_given_up_expect_the_next_in_version_one() {
    let (mut client, started) = offering(Versions::Both);
    assert!(client.requester.cancel(started.slot).is_some());
    let events = receive(&mut client, &err_vers(started.xid, 2, 1, 1));
    assert_eq!(events, [Event::Released(started.slot)]);
    let (_, header) = call(&mut client, 8);
    assert_eq!((view(&header).version(), stage(&client)), (1, (Stage::FellBack, 1)));
}

#[test]
fn a_call_to_be_sent_again_can_be_given_up() {
    let (mut client, started) = offering(Versions::Both);
    receive(&mut client, &err_vers(started.xid, 2, 1, 1));
    let failed = client.requester.cancel(started.slot).unwrap();
    assert_eq!((failed.token, failed.is_fenced), (7, false));
    assert_eq!(client.requester.held().count(), 0);
    assert_eq!(client.requester.check_room(), Ok(()));
    let (mut client, started) = offering(Versions::Both);
    receive(&mut client, &err_vers(started.xid, 2, 1, 1));
    assert_eq!(client.requester.release_held(started.slot), Some(7));
}

#[test]
fn receive_err_vers_twice_expect_the_second_dropped() {
    let (mut client, started) = offering(Versions::Both);
    let refusal = err_vers(started.xid, 2, 1, 1);
    assert_eq!(receive(&mut client, &refusal), [Event::Resend(started.slot)]);
    let dropped = [Event::Dropped(Dropped::UnmatchedReply)];
    assert_eq!(receive(&mut client, &refusal), dropped);
    assert_eq!(stage(&client), (Stage::FellBack, 1));
}

#[test]
fn a_new_connection_negotiates_anew_with_the_calls_that_are_held() {
    let (mut client, started) = offering(Versions::Both);
    receive(&mut client, &err_vers(started.xid, 2, 1, 1));
    again(&mut client, started);
    assert_eq!(client.requester.verdict(), Verdict::NoVersionTwo);
    client.requester.suspend(|_, _| true);
    client.requester.negotiate(Negotiation::settled(One));
    assert_eq!(again(&mut client, started)[4..8], [0, 0, 0, 1]);
    client.requester.suspend(|_, _| true);
    client.requester.negotiate(Negotiation::new(Versions::Both));
    assert_eq!(again(&mut client, started)[4..8], [0, 0, 0, 2]);
    assert_eq!(replied(&receive(&mut client, &plain_reply(started.xid))), 7);
}

#[test]
fn the_sides_versions_are_what_they_speak() {
    for (versions, low, high) in
        [(Versions::One, One, One), (Versions::Two, Two, Two), (Versions::Both, One, Two)]
    {
        assert_eq!((versions.low(), versions.high()), (low, high));
        for version in [One, Two] {
            assert_eq!(versions.speaks(version), (low..=high).contains(&version));
        }
        for some in [Versions::One, Versions::Two, Versions::Both] {
            let includes = versions.speaks(some.low()) && versions.speaks(some.high());
            assert_eq!(versions.include(some), includes, "{versions:?} {some:?}");
        }
    }
    assert_eq!(
        [0, 1, 2, 3].map(spinrpc_proto::version::TransportVersion::from_wire),
        [None, Some(One), Some(Two), None]
    );
}
