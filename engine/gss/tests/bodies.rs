//! Arguments and results under each service: what one end seals the other opens, and nothing else.
#![allow(clippy::unwrap_used, reason = "all of this is tests")]

use spinrpc_gss::random::{AesConfounders, Confounders};
use spinrpc_gss::{
    BodyError, BodyOpening, BodySealing, Enctype, Progress, ReceiveKeys, Role, SendKeys,
    SessionKey, TokenError, WRAP_OVERHEAD_MAX_BYTES, sealed_bytes,
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

fn sealed(keys: &SendKeys, service: GssService, content: &[u8], step_bytes: usize) -> Vec<u8> {
    let mut body = vec![0xee; sealed_bytes(service, keys, content.len())];
    let at = BodySealing::content_at(service);
    body[at..at + content.len()].copy_from_slice(content);
    let (mut confounders, length) = (AesConfounders::new(&[5; 32]), content.len());
    let mut sealing =
        BodySealing::begin(service, keys, &mut body, length, SEQUENCE, 9, &mut confounders)
            .unwrap();
    while sealing.step(keys, &mut body, step_bytes) == Progress::More {}
    body
}

fn opened(
    keys: &ReceiveKeys,
    service: GssService,
    body: &[u8],
    sequence: u32,
    step_bytes: usize,
) -> Result<Vec<u8>, BodyError> {
    let mut body = body.to_vec();
    let mut opening = BodyOpening::begin(service, keys, &mut body, sequence)?;
    loop {
        if let Some(place) = opening.step(keys, &mut body, step_bytes)? {
            return Ok(body[place].to_vec());
        }
    }
}

#[test]
fn bodies_of_every_length_open() {
    for enctype in Enctype::ALL {
        let (send, receive) = ends(enctype);
        for service in PROTECTED {
            for words in (0..80).chain([1023, 1024, 1025, 20_000]) {
                let plain = content(words);
                for step_bytes in
                    [4, 100, 4096, 65_536].into_iter().filter(|step| step * 900 > words)
                {
                    let body = sealed(&send, service, &plain, step_bytes);
                    assert_eq!(body.len() % 4, 0);
                    assert_eq!(
                        opened(&receive, service, &body, SEQUENCE, step_bytes).as_ref(),
                        Ok(&plain)
                    );
                }
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
    let body = sealed(&send, GssService::None, &plain, 1);
    assert_eq!(body, plain);
    assert_eq!(opened(&receive, GssService::None, &body, SEQUENCE, 1), Ok(plain));
}

/// An unknown service protects nothing, so nothing passes as if it did.
#[test]
fn a_body_under_an_unknown_service_is_refused() {
    let (send, receive) = ends(Enctype::Aes256Sha1);
    let (service, mut body) = (GssService::Other(4), content(3));
    let opened = opened(&receive, service, &body, SEQUENCE, 1);
    assert_eq!(opened, Err(BodyError::Token(TokenError::Protection)));
    let mut confounders = AesConfounders::new(&[5; 32]);
    let begun = BodySealing::begin(service, &send, &mut body, 12, 1, 1, &mut confounders);
    assert!(matches!(begun, Err(TokenError::Protection)));
}

/// Bits of the roundup mean nothing, those of the token's rotation no more than they rotate.
#[test]
fn a_body_with_any_flipped_bit_is_refused() {
    for enctype in [Enctype::Aes256Sha1, Enctype::Aes256Sha384] {
        let (send, receive) = ends(enctype);
        for service in PROTECTED {
            let plain = content(9);
            let body = sealed(&send, service, &plain, usize::MAX);
            for bit in 0..body.len() * 8 {
                let mut altered = body.clone();
                altered[bit / 8] ^= 1 << (bit % 8);
                if let Ok(found) = opened(&receive, service, &altered, SEQUENCE, usize::MAX) {
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
        let body = sealed(&send, service, &content(3), usize::MAX);
        let found = opened(&receive, service, &body, SEQUENCE + 1, usize::MAX);
        let expected = ContentError::Sequence { found: SEQUENCE, expected: SEQUENCE + 1 };
        assert_eq!(found, Err(BodyError::Content(expected)));
    }
}

#[test]
fn lengths_that_lie_are_refused() {
    let (send, receive) = ends(Enctype::Aes128Sha256);
    for service in PROTECTED {
        let body = sealed(&send, service, &content(6), usize::MAX);
        for length in 0..body.len() {
            let found = opened(&receive, service, &body[..length], SEQUENCE, usize::MAX);
            assert!(found.is_err(), "{length} bytes");
        }
        let longer = [&body[..], &[0; 4]].concat();
        let found = opened(&receive, service, &longer, SEQUENCE, usize::MAX);
        assert_eq!(found, Err(BodyError::Frame(DecodeError::TrailingBytes { at: body.len() })));
        for value in [0, 1, 3, 5, 0x7fff_ffff, u32::MAX] {
            let mut altered = body.clone();
            altered[..4].copy_from_slice(&value.to_be_bytes());
            assert!(opened(&receive, service, &altered, SEQUENCE, usize::MAX).is_err());
        }
    }
}

/// rpc_gss_svc_privacy asks for encryption: a token that is signed only is refused.
#[test]
fn a_body_of_one_service_is_refused_under_the_other() {
    let (send, receive) = ends(Enctype::Aes256Sha1);
    let [integrity, privacy] = PROTECTED.map(|service| sealed(&send, service, &content(8), 64));
    let found = opened(&receive, GssService::Privacy, &integrity, SEQUENCE, 64);
    assert!(found.is_err());
    let found = opened(&receive, GssService::Integrity, &privacy, SEQUENCE, 64);
    assert!(found.is_err());
    let mut unsealed = privacy;
    unsealed[4 + 2] ^= 2;
    let found = opened(&receive, GssService::Privacy, &unsealed, SEQUENCE, 64);
    assert_eq!(found, Err(BodyError::Token(TokenError::Protection)));
}

#[test]
fn a_body_of_another_length_than_its_content_is_not_begun() {
    let (send, _) = ends(Enctype::Aes256Sha1);
    for service in [GssService::None, GssService::Integrity, GssService::Privacy] {
        for length in [sealed_bytes(service, &send, 8) - 1, sealed_bytes(service, &send, 8) + 4] {
            let mut body = vec![0; length];
            let mut confounders = AesConfounders::new(&[5; 32]);
            let begun = BodySealing::begin(service, &send, &mut body, 8, 1, 1, &mut confounders);
            assert!(matches!(begun, Err(TokenError::Length)));
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
        let mut sealing =
            BodySealing::begin(GssService::Privacy, &send, &mut body, 32, 1, 1, &mut confounders)
                .unwrap();
        assert_eq!(sealing.step(&send, &mut body, usize::MAX), Progress::Done);
        body
    });
    let [one, two] = &mut bodies;
    let is_equal = |at: usize| one[at..at + 16] == two[at..at + 16];
    assert!((20..84).step_by(16).all(|at| !is_equal(at)));
    assert_eq!(confounders.0, 2);
}
