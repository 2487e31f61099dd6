//! Handling of messages with an unusable header by a connection (RFC 5666 section 4.2, RFC 8166
//! section 4.5).

use crate::prelude::*;

const XID: Xid = Xid(0xaabb_ccdd);
const ERR_CHUNK: Event = Event::Error(XID, 1, RdmaError::Chunk);

fn connection(side: Side) -> Proto {
    under(side, Profile::Rfc8166)
}

fn server_receives(message: &[u8]) -> Vec<Event> {
    receive(&mut connection(Side::Server), message)
}

const OLDER: [Profile; 3] = [Profile::Rfc5666, Profile::Draft03, Profile::Draft00];

/// Messages that deserve an answer from a server, with that answer.
fn answered() -> Vec<(Vec<u8>, Event)> {
    let supported = RdmaError::Version { low: 1, high: 1 };
    let versions = [0, 2, 3, u32::MAX].map(|version| {
        let message = wire(&[XID.0, version, 32, 0, 0, 0, 0]);
        (message, Event::Error(XID, version, supported))
    });
    let mut endless = Chunks::none();
    for position in 0..9 {
        endless = endless.read(40 + position * 4, 1, 0);
    }
    let too_long = Chunks::none().write(&vec![segment(1, 1); 289]);
    let malformed = [
        wire(&[XID.0, 1, 32, 5, 0, 0, 0]),
        wire(&[XID.0, 1, 32, 0, 2, 0, 0]),
        wire(&[XID.0, 1, 32, 0, 1, 41, 7, 8]),
        wire(&[XID.0, 1, 32, 1, 0, 0, 1, u32::MAX]),
        endless.msg(XID, 32, &rpc_call(XID)),
        too_long.msg(XID, 32, &rpc_call(XID)),
        Chunks::none().read(40, 1, u32::MAX).msg(XID, 32, &rpc_call(XID)),
    ];
    versions.into_iter().chain(malformed.map(|message| (message, ERR_CHUNK))).collect()
}

/// RFC 5666 section 3: its framing "replaces all other RPC framing (such as TCP record marking)", from the first
/// message of a connection on: the XID stands where a record mark would.
#[test]
fn receive_a_record_mark_of_tcp_expect_no_call_behind_it() {
    let mut server = connection(Side::Server);
    let record = [&wire(&[0x8000_0028])[..], &rpc_call(XID)].concat();
    let supported = RdmaError::Version { low: 1, high: 1 };
    let refused = Event::Error(Xid(0x8000_0028), XID.0, supported);
    assert_eq!(receive(&mut server, &record), [refused]);
    delivered(&receive(&mut server, &plain_call(XID)));
}

#[test]
fn a_server_answers_a_call_it_cannot_read() {
    // RFC 5666 section 4.2: ERR_VERS with the range supported, in a message of the version that the
    // peer is known to take; ERR_CHUNK for everything else.
    let mut server = connection(Side::Server);
    for (message, answer) in answered() {
        assert_eq!(receive(&mut server, &message), [answer], "{message:x?}");
        // It goes on after that.
        let slot = delivered(&receive(&mut server, &plain_call(XID)));
        assert!(server.responder.abandon(slot));
    }
}

#[test]
fn an_error_is_never_answered() {
    // RFC 8166 section 4.5: or two ends could go on forever.
    for version in [0, 1, 2, u32::MAX] {
        for body in [&[][..], &[1], &[1, 1], &[1, 1, 2], &[2], &[3], &[9; 9]] {
            let events = server_receives(&rdma_error(XID, version, body));
            assert_eq!(events, [Event::Dropped(Dropped::UnexpectedError)], "{version} {body:?}");
        }
    }
}

#[test]
fn short_requests_are_answered_under_older_rules() {
    // RFC 5666 section 4.2: "If such errors are detected in the request, an RDMA_ERROR reply MUST be
    // generated"; no rule
    // leaves out short ones, as RFC 8166 section 4.5 does.
    let supported = RdmaError::Version { low: 1, high: 1 };
    for profile in OLDER {
        for length in 16..28 {
            for message_type in [0, 1, 2, 5, u32::MAX] {
                let request = &wire(&[XID.0, 1, 32, message_type, 0, 0, 0])[..length];
                assert_eq!(receive(&mut under(Side::Server, profile), request), [ERR_CHUNK]);
                let request = &wire(&[XID.0, 3, 32, message_type, 0, 0, 0])[..length];
                let answer = Event::Error(XID, 3, supported);
                assert_eq!(receive(&mut under(Side::Server, profile), request), [answer]);
            }
        }
    }
}

#[test]
fn requests_that_end_within_the_first_four_words_are_answered_under_older_rules() {
    // RFC 5666 section 4.2, as above: the XID is all that an answer needs. Without it there is none.
    let supported = RdmaError::Version { low: 1, high: 1 };
    for profile in OLDER {
        for length in 0..16 {
            for (version, answer) in [(1, ERR_CHUNK), (3, Event::Error(XID, 3, supported))] {
                let events = receive(
                    &mut under(Side::Server, profile),
                    &wire(&[XID.0, version, 32, 0])[..length],
                );
                let expected = match length {
                    0..4 => Event::Dropped(Dropped::TooShort),
                    4..8 => ERR_CHUNK,
                    _ => answer,
                };
                assert_eq!(events, [expected], "{length} bytes of version {version}");
            }
        }
    }
}

#[test]
fn short_errors_and_dones_are_never_answered() {
    for profile in OLDER {
        for length in 16..28 {
            let error = &wire(&[XID.0, 1, 32, 4, 2, 0, 0])[..length];
            let done = &wire(&[XID.0, 1, 32, 3, 0, 0, 0])[..length];
            for message in [error, done] {
                let events = receive(&mut under(Side::Server, profile), message);
                assert!(matches!(events[..], [Event::Dropped(_)]), "{length}: {events:?}");
            }
            let reply = &wire(&[XID.0, 1, 32, 0, 0, 0, 0])[..length];
            let events = receive(&mut under(Side::Client, profile), reply);
            assert_eq!(events, [Event::Dropped(Dropped::MalformedReply)]);
        }
    }
}

#[test]
fn short_messages_are_dropped() {
    // RFC 8166 section 4.5: a message shorter than 28 octets is not a call, whatever its words say.
    for version in [1, 2] {
        for length in 0..28 {
            let message = &wire(&[XID.0, version, 32, 0, 0, 0, 0])[..length];
            assert_eq!(server_receives(message), [Event::Dropped(Dropped::TooShort)]);
        }
    }
}

#[test]
fn a_client_never_answers_what_it_cannot_read() {
    // RFC 8166 section 4.5: a requester sends no RDMA_ERROR about a reply.
    let mut client = connection(Side::Client);
    for (message, _) in answered() {
        let dropped = [Event::Dropped(Dropped::MalformedReply)];
        assert_eq!(receive(&mut client, &message), dropped, "{message:x?}");
    }
}

/// RFC 8166 section 4.5: "A receiver MUST silently discard an RDMA_ERROR procedure that it cannot decode".
#[test]
fn a_client_drops_an_error_that_it_cannot_decode() {
    let mut client = connection(Side::Client);
    let (call, _) =
        client.requester.start_call(3, NEVER, &CallChunks::EMPTY, &mut [0; 28]).unwrap();
    for body in [&[][..], &[1], &[1, 1]] {
        let events = receive(&mut client, &rdma_error(call.xid, 1, body));
        assert!(matches!(events[..], [Event::Dropped(_)]), "{body:?}: {events:?}");
    }
    assert_eq!(replied(&receive(&mut client, &plain_reply(call.xid, 4))), 3);
}

#[test]
fn a_client_serves_nothing() {
    let mut client = connection(Side::Client);
    let calls = [
        plain_call(XID),
        Chunks::none().read(0, 1, 100).nomsg(XID, 32),
        Chunks::none().msgp(XID, 32, &rpc_call(XID)),
    ];
    for message in calls {
        let events = receive(&mut client, &message);
        assert_eq!(events, [Event::Dropped(Dropped::UnmatchedReply)]);
    }
}

#[test]
fn a_client_hears_that_the_server_speaks_another_version() {
    let mut client = connection(Side::Client);
    let chunks = &CallChunks::EMPTY;
    let (call, _) = client.requester.start_call(3, NEVER, chunks, &mut [0; 28]).unwrap();
    let events = receive(&mut client, &rdma_error(call.xid, 2, &[1, 2, 2]));
    assert!(matches!(events[..], [Event::Failed { token: 3, fenced: false, .. }]));
    let (call, _) = client.requester.start_call(4, NEVER, chunks, &mut [0; 28]).unwrap();
    assert_eq!(replied(&receive(&mut client, &plain_reply(call.xid, 4))), 4);
}

#[test]
fn too_many_malformed_messages_end_the_connection() {
    let broken = wire(&[XID.0, 1, 32, 77, 0, 0, 0]);
    // A reply that has another version than its call breaks a rule, too.
    let of_three = wire(&[XID.0, 3, 32, 0, 0, 0, 0]);
    for (mut connection, message) in [
        (connection(Side::Client), &broken),
        (connection(Side::Client).two_way(), &broken),
        (connection(Side::Server), &broken),
        (connection(Side::Server).two_way(), &broken),
        (connection(Side::Client), &of_three),
    ] {
        for _ in 0..MALFORMED_MAX {
            let events = receive(&mut connection, message);
            assert!(!matches!(events[..], [Event::Closed(_)]));
        }
        let events = receive(&mut connection, message);
        assert_eq!(events, [Event::Closed(PeerMisbehaved::MalformedHeaders)]);
    }
}

#[test]
fn calls_that_only_ask_for_too_much_never_end_the_connection() {
    // RFC 8166 section 4.5 has an answer for each, and a limit on none.
    let too_many = Chunks::none().write(&vec![segment(1, 1); 289]).msg(XID, 32, &rpc_call(XID));
    for message in [too_many, wire(&[XID.0, 3, 32, 0, 0, 0, 0])] {
        for mut server in [connection(Side::Server), connection(Side::Server).two_way()] {
            for _ in 0..=MALFORMED_MAX {
                let events = receive(&mut server, &message);
                assert!(matches!(events[..], [Event::Error(..)]), "{events:?}");
            }
        }
    }
}

#[test]
fn the_limits_are_those_of_the_connection() {
    let limits = Limits { write_chunks_max: 1, ..Limits::DEFAULT };
    let mut server = with_slots(Side::Server, (0, 4), Profile::Rfc8166, limits);
    assert_eq!(*server.limits(), limits);
    let one = Chunks::none().write(&[segment(1, 8)]);
    let two = one.clone().write(&[segment(2, 8)]);
    delivered(&receive(&mut server, &one.msg(XID, 32, &rpc_call(XID))));
    assert_eq!(receive(&mut server, &two.msg(XID, 32, &rpc_call(XID))), [ERR_CHUNK]);
}
