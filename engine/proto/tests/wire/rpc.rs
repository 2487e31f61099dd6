//! RPC headers (RFC 5531 section 9).

use super::prelude::*;

const NULL_CALL: CallHeader<'static> = CallHeader {
    xid: Xid(0x1234_5678),
    program: Program(100_003),
    version: Version(4),
    procedure: Procedure(1),
    credential: OpaqueAuth::NONE,
    verifier: OpaqueAuth::NONE,
};

fn null_call_words() -> [u32; 10] {
    [0x1234_5678, 0, 2, 100_003, 4, 1, 0, 0, 0, 0]
}

fn emitted_call(header: &CallHeader<'_>) -> Vec<u8> {
    let mut bytes = vec![0xee; header.buffer_len()];
    assert_eq!(header.emit(&mut bytes), bytes.len());
    bytes
}

fn emitted_reply(header: &ReplyHeader<'_>) -> Vec<u8> {
    let mut bytes = vec![0xee; header.buffer_len()];
    assert_eq!(header.emit(&mut bytes), bytes.len());
    bytes
}

#[test]
fn arguments_begin_after_the_verifier() {
    let mut words = null_call_words().to_vec();
    words.extend([7, 8]);
    assert_eq!(CallHeader::parse(&wire(&words)), Ok((NULL_CALL, 40)));
    let call = CallHeader {
        credential: OpaqueAuth { flavor: AuthFlavor::Sys, body: b"12345" },
        verifier: OpaqueAuth { flavor: AuthFlavor::Short, body: b"v" },
        ..NULL_CALL
    };
    let bytes = emitted_call(&call);
    assert_eq!(bytes.len(), 40 + 8 + 4);
    assert_eq!(CallHeader::parse(&bytes), Ok((call, 52)));
}

#[test]
fn receive_what_is_no_call_of_rpc_version_2() {
    // RFC 5531 section 9: RPC_MISMATCH, "RPC version number != 2"; its XID is there to deny.
    let version = CallError::RpcVersion { xid: NULL_CALL.xid, version: 3 };
    let neither = CallError::Malformed(DecodeError::BadEnum { at: 4, value: 2 });
    for (at, value, words_left, error) in [
        (2, 3, 10, version),
        (2, 3, 3, version),
        (1, 1, 10, CallError::NotACall),
        (1, 2, 10, neither),
    ] {
        let mut words = null_call_words();
        words[at] = value;
        assert_eq!(CallHeader::parse(&wire(&words[..words_left])), Err(error));
    }
}

#[test]
fn receive_a_call_cut_short_anywhere() {
    let call = CallHeader {
        credential: OpaqueAuth { flavor: AuthFlavor::Sys, body: &[1; 13] },
        verifier: OpaqueAuth { flavor: AuthFlavor::Gss, body: &[2; 6] },
        ..NULL_CALL
    };
    for bytes in [emitted_call(&NULL_CALL), emitted_call(&call)] {
        for length in 0..bytes.len() {
            let error = CallHeader::parse(&bytes[..length]);
            assert!(matches!(error, Err(CallError::Malformed(_))), "{length}: {error:?}");
        }
    }
}

#[test]
fn an_auth_body_has_at_most_400_bytes() {
    // RFC 5531 section 8.2: "opaque body<400>".
    let mut words = null_call_words().to_vec();
    words.extend([0; 101]);
    for (at, why) in [(7, AuthStat::BadCred), (9, AuthStat::BadVerf)] {
        words[at] = 401;
        assert_eq!(CallHeader::parse(&wire(&words)), Err(CallError::Auth(why)));
        words[at] = 0;
    }
    words[7] = 400;
    words[6] = 77;
    let bytes = wire(&words);
    let (call, arguments) = CallHeader::parse(&bytes).unwrap();
    assert_eq!(call.credential.flavor, AuthFlavor::Other(77));
    assert_eq!((call.credential.body.len(), arguments), (400, 440));
}

#[test]
fn the_direction_is_the_second_word() {
    assert_eq!(message_direction(&wire(&[9, 0])), Some(Direction::Call));
    assert_eq!(message_direction(&wire(&[9, 1])), Some(Direction::Reply));
    assert_eq!(message_direction(&wire(&[9, 2])), None);
    assert_eq!(message_direction(&wire(&[9, 0])[..7]), None);
    assert_eq!(message_direction(&[]), None);
}

#[test]
fn every_reply_has_its_words() {
    use AcceptStatus::{GarbageArgs, ProcUnavail, ProgMismatch, ProgUnavail, Success, SystemErr};
    let replies = [
        (ReplyHeader::accepted(Xid(5), Success), &[5, 1, 0, 0, 0, 0][..]),
        (ReplyHeader::accepted(Xid(5), ProgUnavail), &[5, 1, 0, 0, 0, 1]),
        (
            ReplyHeader::accepted(Xid(5), ProgMismatch { low: 2, high: 4 }),
            &[5, 1, 0, 0, 0, 2, 2, 4],
        ),
        (ReplyHeader::accepted(Xid(5), ProcUnavail), &[5, 1, 0, 0, 0, 3]),
        (ReplyHeader::accepted(Xid(5), GarbageArgs), &[5, 1, 0, 0, 0, 4]),
        (ReplyHeader::accepted(Xid(5), SystemErr), &[5, 1, 0, 0, 0, 5]),
        (
            ReplyHeader::denied(Xid(5), RejectStatus::RpcMismatch { low: 2, high: 2 }),
            &[5, 1, 1, 0, 2, 2],
        ),
        (ReplyHeader::denied(Xid(5), RejectStatus::AuthError(AuthStat::TooWeak)), &[5, 1, 1, 1, 5]),
    ];
    for (reply, words) in replies {
        let bytes = emitted_reply(&reply);
        assert_eq!(bytes, wire(words));
        assert_eq!(ReplyHeader::parse(&bytes), Ok((reply, bytes.len())));
        for length in 0..bytes.len() {
            assert!(ReplyHeader::parse(&bytes[..length]).is_err(), "{reply:?} cut to {length}");
        }
    }
}

#[test]
fn results_begin_after_the_status() {
    let verifier = OpaqueAuth { flavor: AuthFlavor::Short, body: b"abcde" };
    let body = ReplyBody::Accepted { verifier, status: AcceptStatus::Success };
    let reply = ReplyHeader { xid: Xid(6), body };
    let mut bytes = emitted_reply(&reply);
    bytes.extend(wire(&[42]));
    assert_eq!(ReplyHeader::parse(&bytes), Ok((reply, 32)));
    assert_eq!(
        ReplyHeader::parse(&wire(&[6, 1, 0, 0, 0, 0, 42])),
        Ok((ReplyHeader::success(Xid(6)), 24))
    );
}

#[test]
fn receive_a_reply_with_undefined_values() {
    let undefined = |at, value| Err(DecodeError::BadEnum { at, value });
    assert_eq!(ReplyHeader::parse(&wire(&[6, 0, 0, 0, 0, 0])), undefined(4, 0));
    assert_eq!(ReplyHeader::parse(&wire(&[6, 1, 2, 0, 0, 0])), undefined(8, 2));
    assert_eq!(ReplyHeader::parse(&wire(&[6, 1, 0, 0, 0, 6])), undefined(20, 6));
    assert_eq!(ReplyHeader::parse(&wire(&[6, 1, 1, 2, 0])), undefined(12, 2));
}

#[test]
fn wire_numbers_of_flavors_and_auth_errors_round_trip() {
    for value in 0..40 {
        assert_eq!(AuthFlavor::from_wire(value).to_wire(), value);
        assert_eq!(AuthStat::from_wire(value).to_wire(), value);
    }
    assert_eq!(AuthFlavor::from_wire(6), AuthFlavor::Gss);
    assert_eq!(AuthStat::from_wire(13), AuthStat::GssCredProblem);
}

fn user() -> AuthSys<'static> {
    AuthSys {
        stamp: 1,
        machine_name: b"host",
        uid: 1000,
        gid: 100,
        groups: Groups::new(&[4, 24]).unwrap(),
    }
}

#[test]
fn auth_sys_is_stamp_name_user_group_and_groups() {
    let mut bytes = [0; 400];
    let length = user().emit(&mut bytes).unwrap();
    let name = u32::from_be_bytes(*b"host");
    assert_eq!(bytes[..length], wire(&[1, 4, name, 1000, 100, 2, 4, 24]));
    let parsed = AuthSys::parse(&bytes[..length]).unwrap();
    assert_eq!(parsed, user());
    assert_eq!(parsed.groups.as_slice(), [4, 24]);
    assert_eq!(user().emit(&mut bytes[..length - 1]), Err(Overflow { needed_bytes: length }));
}

#[test]
fn auth_sys_has_at_most_16_groups_and_a_name_of_255_bytes() {
    // RFC 5531 appendix A: "string machinename<255>", "unsigned int gids<16>".
    assert!(Groups::new(&[0; 16]).is_some());
    assert!(Groups::new(&[0; 17]).is_none());
    let mut words = vec![1, 0, 1000, 100, 17];
    words.extend([5; 17]);
    let error = Err(DecodeError::TooLong { at: 16, length: 17, max: 16 });
    assert_eq!(AuthSys::parse(&wire(&words)), error);
    let mut words = vec![1, 256];
    words.extend([0; 67]);
    let error = Err(DecodeError::TooLong { at: 4, length: 256, max: 255 });
    assert_eq!(AuthSys::parse(&wire(&words)), error);
}

#[test]
fn auth_sys_fills_its_body_exactly() {
    let bytes = wire(&[1, 0, 1000, 100, 0, 9]);
    assert_eq!(AuthSys::parse(&bytes), Err(DecodeError::TrailingBytes { at: 20 }));
    for length in 0..20 {
        assert!(AuthSys::parse(&bytes[..length]).is_err());
    }
    assert!(AuthSys::parse(&bytes[..20]).is_ok());
}

#[test]
fn a_buffer_that_is_too_short_takes_part_of_a_header() {
    let mut bytes = [0xee; 8];
    assert_eq!(NULL_CALL.emit(&mut bytes), 40);
    assert_eq!(ReplyHeader::success(Xid(1)).emit(&mut bytes), 24);
    assert_eq!(bytes[..], wire(&[1, 1]));
}

/// Words whose bytes are zero at some places and not at others.
const WORDS: [u32; 7] = [0, 1, 0x0200, 0x0003_0000, 0x0400_0000, 0x0506_0708, 0x0900_0a00];

#[test]
fn every_byte_of_a_call_without_credentials_is_read_from_its_place() {
    for [xid, program, version, procedure] in
        (0..7 * 7 * 7 * 7).map(|n| [n % 7, n / 7 % 7, n / 49 % 7, n / 343].map(|at| WORDS[at]))
    {
        let words = [xid, 0, 2, program, version, procedure, 0, 0, 0, 0];
        let (header, at) =
            CallHeader::parse(&wire(&words)).map(|(h, at)| (emitted_call(&h), at)).unwrap();
        assert_eq!((header, at), (wire(&words), 40));
    }
    for word in [1, 2] {
        for bit in 0..32 {
            for xid in WORDS {
                let mut words = [xid, 0, 2, 7, 8, 9, 0, 0, 0, 0];
                words[word] ^= 1 << bit;
                assert!(CallHeader::parse(&wire(&words)).is_err(), "{words:x?}");
            }
        }
    }
}

#[test]
fn every_byte_of_a_reply_without_verifier_is_read_from_its_place() {
    let xids = WORDS.into_iter().chain((0..4).map(|byte| 1 << (8 * byte)));
    for xid in xids {
        let words = [xid, 1, 0, 0, 0, 0];
        let success = ReplyHeader::success(Xid(xid));
        assert_eq!(ReplyHeader::parse(&wire(&words)), Ok((success, 24)));
        for bit in 0..32 {
            let mut words = words;
            words[1] ^= 1 << bit;
            assert!(ReplyHeader::parse(&wire(&words)).is_err(), "{words:x?}");
        }
    }
}

#[test]
fn a_status_is_named_as_in_rfc_5531() {
    for (status, name) in [
        (AcceptStatus::Success, "SUCCESS"),
        (AcceptStatus::ProgUnavail, "PROG_UNAVAIL"),
        (
            AcceptStatus::ProgMismatch { low: 2, high: 4 },
            "PROG_MISMATCH, it serves versions 2 to 4",
        ),
        (AcceptStatus::ProcUnavail, "PROC_UNAVAIL"),
        (AcceptStatus::GarbageArgs, "GARBAGE_ARGS"),
        (AcceptStatus::SystemErr, "SYSTEM_ERR"),
    ] {
        assert_eq!(status.to_string(), name);
    }
}
