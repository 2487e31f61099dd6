//! Arguments and results under each service: what one end seals the other unseals, and nothing else.
#![allow(clippy::unwrap_used, reason = "all of this is tests")]

use spinrpc_gss::random::{AesConfounders, Confounders};
use spinrpc_gss::{
    BodyError, Enctype, ReceiveKeys, Role, SendKeys, SessionKey, TokenError,
    WRAP_OVERHEAD_MAX_BYTES, content_at, seal_body, sealed_bytes, unseal_body,
};
use spinrpc_proto::rpc::{ContentError, GssService};
use spinrpc_proto::xdr::DecodeError;

const PROTECTED: [GssService; 2] = [GssService::Integrity, GssService::Privacy];
const SEQUENCE: u32 = 0x0102_0304;

fn ends(enctype: Enctype) -> (SendKeys, ReceiveKeys) {
    let key = SessionKey::new(enctype, &vec![0x33; enctype.key_bytes()]).unwrap();
    (SendKeys::new(&key, Role::Initiator, true), ReceiveKeys::new(&key, Role::Acceptor, true))
}

fn content(words: usize) -> Vec<u8> {
    (0..words * 4).map(|at| (at * 13 + words) as u8).collect()
}

fn sealed(keys: &SendKeys, service: GssService, content: &[u8]) -> Vec<u8> {
    let mut body = vec![0xee; sealed_bytes(service, keys, content.len())];
    let at = content_at(service);
    body[at..at + content.len()].copy_from_slice(content);
    seal_body(service, keys, &mut body, SEQUENCE, 9, &mut AesConfounders::new(&[5; 32])).unwrap();
    body
}

fn unsealed(
    keys: &ReceiveKeys,
    service: GssService,
    body: &[u8],
    sequence: u32,
) -> Result<Vec<u8>, BodyError> {
    let mut body = body.to_vec();
    unseal_body(service, keys, &mut body, sequence).map(|place| body[place].to_vec())
}

#[test]
fn bodies_of_every_length_open() {
    for enctype in Enctype::ALL {
        let (send, receive) = ends(enctype);
        for service in PROTECTED {
            for words in (0..80).chain([1023, 1024, 1025, 20_000]) {
                let plain = content(words);
                let body = sealed(&send, service, &plain);
                assert_eq!(body.len() % 4, 0);
                assert_eq!(unsealed(&receive, service, &body, SEQUENCE).as_ref(), Ok(&plain));
            }
        }
    }
}

/// Room that a requester adds to the longest reply.
#[test]
fn protection_takes_the_bytes_that_are_reckoned_with() {
    let (send, _) = ends(Enctype::Aes256Sha384);
    assert_eq!(sealed_bytes(GssService::Integrity, &send, 100), 100 + 4 + 4 + 4 + 40);
    assert_eq!(sealed_bytes(GssService::Privacy, &send, 100), 100 + 4 + 16 + 16 + 4 + 16 + 24);
    assert_eq!(WRAP_OVERHEAD_MAX_BYTES, 16 + 16 + 16 + 24);
    assert_eq!(sealed_bytes(GssService::None, &send, 100), 100);
}

#[test]
fn without_protection_a_body_stands_as_ever() {
    let (send, receive) = ends(Enctype::Aes256Sha1);
    let plain = content(10);
    let body = sealed(&send, GssService::None, &plain);
    assert_eq!(body, plain);
    assert_eq!(unsealed(&receive, GssService::None, &body, SEQUENCE), Ok(plain));
}

/// An unknown service protects nothing, so nothing passes as if it did.
#[test]
fn a_body_under_an_unknown_service_is_refused() {
    let (send, receive) = ends(Enctype::Aes256Sha1);
    let (service, mut body) = (GssService::Other(4), content(3));
    let opened = unsealed(&receive, service, &body, SEQUENCE);
    assert_eq!(opened, Err(BodyError::Token(TokenError::Protection)));
    let mut confounders = AesConfounders::new(&[5; 32]);
    let sealed = seal_body(service, &send, &mut body, 1, 1, &mut confounders);
    assert_eq!(sealed, Err(TokenError::Protection));
}

/// Bits of the roundup mean nothing, those of the token's rotation no more than they rotate.
#[test]
fn a_body_with_any_flipped_bit_is_refused() {
    for enctype in [Enctype::Aes256Sha1, Enctype::Aes256Sha384] {
        let (send, receive) = ends(enctype);
        for service in PROTECTED {
            let plain = content(9);
            let body = sealed(&send, service, &plain);
            for bit in 0..body.len() * 8 {
                let mut altered = body.clone();
                altered[bit / 8] ^= 1 << (bit % 8);
                if let Ok(found) = unsealed(&receive, service, &altered, SEQUENCE) {
                    assert_eq!(found, plain, "bit {bit}");
                    assert!((80..96).contains(&bit), "bit {bit} of {service:?}");
                }
            }
        }
    }
}

#[test]
fn the_body_of_another_call_is_refused() {
    let (send, receive) = ends(Enctype::Aes256Sha1);
    for service in PROTECTED {
        let body = sealed(&send, service, &content(3));
        let found = unsealed(&receive, service, &body, SEQUENCE + 1);
        let expected = ContentError::Sequence { found: SEQUENCE, expected: SEQUENCE + 1 };
        assert_eq!(found, Err(BodyError::Content(expected)));
    }
}

#[test]
fn lengths_that_lie_are_refused() {
    let (send, receive) = ends(Enctype::Aes128Sha256);
    for service in PROTECTED {
        let body = sealed(&send, service, &content(6));
        for length in 0..body.len() {
            let found = unsealed(&receive, service, &body[..length], SEQUENCE);
            assert!(found.is_err(), "{length} bytes");
        }
        let longer = [&body[..], &[0; 4]].concat();
        let found = unsealed(&receive, service, &longer, SEQUENCE);
        assert_eq!(found, Err(BodyError::Frame(DecodeError::TrailingBytes { at: body.len() })));
        for value in [0, 1, 3, 5, 0x7fff_ffff, u32::MAX] {
            let mut altered = body.clone();
            altered[..4].copy_from_slice(&value.to_be_bytes());
            assert!(unsealed(&receive, service, &altered, SEQUENCE).is_err());
        }
    }
}

/// rpc_gss_svc_privacy asks for encryption: a token that is signed only is refused.
#[test]
fn a_body_of_one_service_is_refused_under_the_other() {
    let (send, receive) = ends(Enctype::Aes256Sha1);
    let [integrity, privacy] = PROTECTED.map(|service| sealed(&send, service, &content(8)));
    let found = unsealed(&receive, GssService::Privacy, &integrity, SEQUENCE);
    assert!(found.is_err());
    let found = unsealed(&receive, GssService::Integrity, &privacy, SEQUENCE);
    assert!(found.is_err());
    let mut signed_only = privacy;
    signed_only[4 + 2] ^= 2;
    let found = unsealed(&receive, GssService::Privacy, &signed_only, SEQUENCE);
    assert_eq!(found, Err(BodyError::Token(TokenError::Protection)));
}

#[test]
fn a_body_whose_content_is_not_whole_words_is_not_sealed() {
    let (send, _) = ends(Enctype::Aes256Sha1);
    for service in [GssService::None, GssService::Integrity, GssService::Privacy] {
        let least = sealed_bytes(service, &send, 0);
        for length in (0..least).chain([1, 2, 3, 6].map(|bytes| least + bytes)) {
            let (mut body, mut confounders) = (vec![0; length], AesConfounders::new(&[5; 32]));
            let sealed = seal_body(service, &send, &mut body, 1, 1, &mut confounders);
            assert_eq!(sealed, Err(TokenError::Length), "{service:?}, {length} bytes");
        }
    }
}

/// Sealed bodies of the same arguments differ: each has a confounder of its own.
#[test]
fn equal_arguments_are_not_seen_to_be_equal() {
    struct Counted(u8);
    impl Confounders for Counted {
        fn next(&mut self) -> [u8; 16] {
            self.0 += 1;
            [self.0; 16]
        }
    }
    let (send, _) = ends(Enctype::Aes256Sha1);
    let mut confounders = Counted(0);
    let mut bodies = [(); 2].map(|()| {
        let mut body = vec![0; sealed_bytes(GssService::Privacy, &send, 32)];
        seal_body(GssService::Privacy, &send, &mut body, 1, 1, &mut confounders).unwrap();
        body
    });
    let [one, two] = &mut bodies;
    let is_equal = |at: usize| one[at..at + 16] == two[at..at + 16];
    assert!((20..84).step_by(16).all(|at| !is_equal(at)));
    assert_eq!(confounders.0, 2);
}
