//! RPCSEC_GSS (RFC 2203): credentials, context creation, frames of bodies. `gss_headers_hold_for_any_words` (../fuzz.rs)
//! has the rest.

use super::prelude::*;

/// A DATA call of sequence 7 with integrity in the context "abcdefgh".
const DATA: GssCredential<'static> = GssCredential {
    procedure: GssProcedure::Data,
    sequence: 7,
    service: GssService::Integrity,
    handle: b"abcdefgh",
};

fn data_words() -> Vec<u32> {
    vec![1, 0, 7, 2, 8, 0x6162_6364, 0x6566_6768]
}

fn emitted(credential: &GssCredential<'_>) -> Vec<u8> {
    let mut bytes = vec![0xee; credential.buffer_len()];
    assert_eq!(credential.emit(&mut bytes), Ok(bytes.len()));
    bytes
}

fn with_word(index: usize, value: u32) -> Vec<u8> {
    let mut words = data_words();
    words[index] = value;
    wire(&words)
}

#[test]
fn a_credential_is_five_words_and_a_handle() {
    assert_eq!(emitted(&DATA), wire(&data_words()));
    assert_eq!(GssCredential::parse(&wire(&data_words())), Ok(DATA));
    let init = GssCredential {
        procedure: GssProcedure::Init,
        sequence: 0,
        service: GssService::None,
        handle: b"",
    };
    assert_eq!(emitted(&init), wire(&[1, 1, 0, 1, 0]));
    assert_eq!(GssCredential::parse(&wire(&[1, 1, 0, 1, 0])), Ok(init));
    let mut short = [0; 27];
    assert_eq!(DATA.emit(&mut short), Err(Overflow { needed_bytes: 28 }));
}

#[test]
fn receive_a_flawed_credential_expect_badcred() {
    let mut cases = Vec::new();
    // RFC 5403 and RFC 7861 have versions 2 and 3.
    for value in [0, 2, 3, u32::MAX] {
        cases.push((with_word(0, value), DecodeError::BadEnum { at: 0, value }));
    }
    // An unknown procedure or service.
    for value in [4, 5, u32::MAX] {
        cases.push((with_word(1, value), DecodeError::BadEnum { at: 4, value }));
    }
    for value in [0, 4, 9, u32::MAX] {
        cases.push((with_word(3, value), DecodeError::BadEnum { at: 12, value }));
        cases.push((wire(&[1, 3, 7, value, 0]), DecodeError::BadEnum { at: 12, value }));
    }
    // INIT with a handle, and a credential that is extended.
    cases.push((with_word(1, 1), DecodeError::TooLong { at: 16, length: 8, max: 0 }));
    let longer = [wire(&data_words()), vec![0; 4]].concat();
    cases.push((longer, DecodeError::TrailingBytes { at: 28 }));
    for (body, flaw) in cases {
        assert_eq!(GssCredential::parse(&body), Err(flaw), "{body:x?}");
    }
    assert!(GssCredential::parse(&with_word(1, 2)).is_ok(), "CONTINUE_INIT has a handle");
    let bytes = wire(&data_words());
    for length in 0..bytes.len() {
        assert!(GssCredential::parse(&bytes[..length]).is_err(), "{length} bytes");
    }
    assert_eq!(GssFault::Credential.answer(), GssAnswer::Deny(AuthStat::BadCred));
}

/// RFC 2203 section 5.2.2: "In a creation request, the seq_num and service fields are undefined and
/// both must be ignored by the server."
#[test]
fn receive_init_with_any_sequence_and_service() {
    for procedure in [1, 2] {
        for value in [0, 4, 77, u32::MAX] {
            let bytes = wire(&[1, procedure, value, value, 0]);
            let credential = GssCredential::parse(&bytes).unwrap();
            assert!(credential.procedure.is_creation());
            assert_eq!(credential.service, GssService::Other(value));
            assert_eq!(emitted(&credential), bytes);
        }
    }
}

#[test]
fn the_longest_handle_fills_the_body_of_a_credential() {
    let handle = [5; GSS_HANDLE_MAX_BYTES];
    let credential = GssCredential { handle: &handle, ..DATA };
    let bytes = emitted(&credential);
    assert_eq!(bytes.len(), AUTH_BODY_MAX_BYTES);
    assert_eq!(GssCredential::parse(&bytes), Ok(credential));
    let longer = [&wire(&[1, 0, 7, 2, 381])[..], &[5; 384]].concat();
    let refused = Err(DecodeError::TooLong { at: 16, length: 381, max: 380 });
    assert_eq!(GssCredential::parse(&longer), refused);
}

#[test]
fn the_verifier_covers_the_xid_to_the_end_of_the_credential() {
    let credential = emitted(&DATA);
    for verifier in [&b""[..], b"v", b"four", &[9; 28]] {
        let header = CallHeader {
            xid: Xid(1),
            program: Program(100_003),
            version: Version(3),
            procedure: Procedure(0),
            credential: OpaqueAuth { flavor: AuthFlavor::Gss, body: &credential },
            verifier: OpaqueAuth { flavor: AuthFlavor::Gss, body: verifier },
        };
        assert_eq!(signed_bytes(header.buffer_len(), &header.verifier), 24 + 8 + 28);
    }
    assert_eq!(signed_bytes(0, &OpaqueAuth::NONE), 0);
}

#[test]
fn arguments_of_init_are_one_token() {
    let arguments = wire(&[5, 0x746f_6b65, 0x6e00_0000]);
    assert_eq!(parse_init_arguments(&arguments), Ok(&b"token"[..]));
    let longer = [&arguments[..], &[0; 4]].concat();
    assert_eq!(parse_init_arguments(&longer), Err(DecodeError::TrailingBytes { at: 12 }));
    assert!(parse_init_arguments(&arguments[..11]).is_err());
    let huge = [&wire(&[65_540])[..], &vec![0; 65_540]].concat();
    let refused = DecodeError::TooLong { at: 0, length: 65_540, max: GSS_TOKEN_MAX_BYTES };
    assert_eq!(parse_init_arguments(&huge), Err(refused));
    let longest = [&wire(&[65_536])[..], &vec![0; 65_536]].concat();
    assert_eq!(parse_init_arguments(&longest).map(<[u8]>::len), Ok(65_536));
}

#[test]
fn results_of_init_byte_by_byte() {
    let result = GssInitResult {
        handle: b"hand",
        major: GssInitResult::CONTINUE_NEEDED,
        minor: 2,
        window: 128,
        token: b"tok",
    };
    let bytes = wire(&[4, 0x6861_6e64, 1, 2, 128, 3, 0x746f_6b00]);
    assert_eq!(GssInitResult::parse(&bytes), Ok(result));
    let mut written = vec![0xee; result.buffer_len()];
    let mut writer = Writer::new(&mut written);
    result.write(&mut writer);
    assert_eq!(writer.finish(), Ok(bytes.len()));
    assert_eq!(written, bytes);
    for length in 0..bytes.len() {
        assert!(GssInitResult::parse(&bytes[..length]).is_err(), "{length} bytes");
    }
    let longer = [&bytes[..], &[0; 4]].concat();
    assert_eq!(GssInitResult::parse(&longer), Err(DecodeError::TrailingBytes { at: 28 }));
}

#[test]
fn an_integrity_body_byte_by_byte() {
    let frame = IntegrityFrame::around(8, 5);
    assert_eq!((frame.content(), frame.covered.clone()), (8..16, 4..16));
    let mut body = vec![0xee; frame.body_bytes()];
    body[frame.content()].copy_from_slice(b"argument");
    body[frame.checksum.clone()].copy_from_slice(b"check");
    assert_eq!(frame.emit(7, &mut body), Ok(()));
    let expected = [&wire(&[12, 7])[..], b"argument", &wire(&[5]), b"check\0\0\0"].concat();
    assert_eq!(body, expected);
    assert_eq!(IntegrityFrame::parse(&body), Ok(frame.clone()));
    assert_eq!(content(&body[frame.covered.clone()], 7), Ok(&b"argument"[..]));
    let short = frame.emit(7, &mut body[..27]);
    assert_eq!(short, Err(Overflow { needed_bytes: 28 }));
}

#[test]
fn a_privacy_body_byte_by_byte() {
    let frame = PrivacyFrame::around(6);
    let mut body = vec![0xee; frame.body_bytes()];
    body[frame.token.clone()].copy_from_slice(b"secret");
    assert_eq!(frame.emit(&mut body), Ok(()));
    assert_eq!(body, [&wire(&[6])[..], b"secret\0\0"].concat());
    assert_eq!(PrivacyFrame::parse(&body), Ok(frame.clone()));
    assert_eq!(frame.emit(&mut body[..11]), Err(Overflow { needed_bytes: 12 }));
}

/// RFC 2203 section 5.3.2.2: the covered data are an encoding of whole words.
#[test]
fn receive_a_body_of_parts_of_words_expect_it_refused() {
    for length in [0_u32, 1, 3, 5, 6, 7, 9] {
        let mut words = vec![length];
        words.extend(vec![0; length.div_ceil(4) as usize + 1]);
        assert!(IntegrityFrame::parse(&wire(&words)).is_err(), "{length} bytes");
        let protected = vec![0; length as usize];
        assert!(matches!(content(&protected, 0), Err(ContentError::Malformed(_))));
    }
    assert_eq!(content(&[0; 4], 0), Ok(&[][..]), "no arguments");
}

#[test]
fn receive_frames_cut_short_or_extended_expect_them_refused() {
    let integrity = [&wire(&[8, 7, 1, 4])[..], b"sign"].concat();
    let privacy = [&wire(&[4])[..], b"seal"].concat();
    assert!(IntegrityFrame::parse(&integrity).is_ok() && PrivacyFrame::parse(&privacy).is_ok());
    for length in 0..integrity.len() {
        assert!(IntegrityFrame::parse(&integrity[..length]).is_err(), "{length} bytes");
    }
    for length in 0..privacy.len() {
        assert!(PrivacyFrame::parse(&privacy[..length]).is_err(), "{length} bytes");
    }
    let longer = IntegrityFrame::parse(&[&integrity[..], &[0; 4]].concat());
    assert_eq!(longer, Err(DecodeError::TrailingBytes { at: 20 }));
    let longer = PrivacyFrame::parse(&[&privacy[..], &[0; 4]].concat());
    assert_eq!(longer, Err(DecodeError::TrailingBytes { at: 8 }));
    let huge = [&wire(&[8, 7, 1, 404])[..], &[0; 404]].concat();
    let refused = DecodeError::TooLong { at: 12, length: 404, max: 400 };
    assert_eq!(IntegrityFrame::parse(&huge), Err(refused));
}

#[test]
fn receive_the_body_of_another_call_expect_it_refused() {
    let protected = wire(&[8, 1, 2]);
    assert_eq!(content(&protected, 8), Ok(&protected[4..]));
    let refused = ContentError::Sequence { found: 8, expected: 7 };
    assert_eq!(content(&protected, 7), Err(refused));
    assert_eq!(refused.to_string(), "protected body of call 8 in call 7");
}

/// RFC 2203 section 5.3.3.3.
#[test]
fn every_fault_has_its_answer() {
    let deny = GssAnswer::Deny;
    let answers = [
        (GssFault::Credential, deny(AuthStat::BadCred)),
        (GssFault::UnknownContext, deny(AuthStat::GssCredProblem)),
        (GssFault::Verifier, deny(AuthStat::GssCredProblem)),
        (GssFault::SequenceTooLarge, deny(AuthStat::GssCtxProblem)),
        (GssFault::Replay, GssAnswer::Close),
        (GssFault::Body, GssAnswer::Accept(AcceptStatus::GarbageArgs)),
    ];
    for (fault, answer) in answers {
        assert_eq!(fault.answer(), answer);
    }
    assert_eq!(AuthStat::GssCredProblem.to_wire(), 13);
    assert_eq!(AuthStat::GssCtxProblem.to_wire(), 14);
}

#[test]
fn pseudo_flavors_stand_for_services() {
    let flavors = [
        (390_003, GssService::None),
        (390_004, GssService::Integrity),
        (390_005, GssService::Privacy),
    ];
    for (flavor, service) in flavors {
        assert_eq!(pseudo_flavor::of(service), Some(flavor));
        assert_eq!(pseudo_flavor::service(flavor), Some(service));
    }
    assert_eq!(pseudo_flavor::of(GssService::Other(4)), None);
    assert_eq!(pseudo_flavor::service(390_002), None);
    assert_eq!(pseudo_flavor::service(390_006), None);
}

#[test]
fn only_integrity_and_privacy_protect_bodies() {
    let services = [0, 1, 2, 3, 4].map(|service| GssService::from_wire(service).protects_body());
    assert_eq!(services, [false, false, true, true, false]);
    let creating = [0, 1, 2, 3].map(|value| GssProcedure::from_wire(value).unwrap().is_creation());
    assert_eq!(creating, [false, true, true, false]);
}
