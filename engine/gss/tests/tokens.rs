//! MIC and Wrap tokens: what is sealed opens, and nothing else does.
#![allow(clippy::unwrap_used, reason = "all of this is tests")]

use spinrpc_gss::{
    Enctype, KEY_MAX_BYTES, ReceiveKeys, Role, SendKeys, SessionKey, TokenError, WRAP_HEAD_BYTES,
    WrongKeyLength,
};

const CONFOUNDER: [u8; 16] = *b"an unpredictable";
const ROLES: [Role; 2] = [Role::Initiator, Role::Acceptor];

fn key(enctype: Enctype) -> SessionKey {
    let bytes: Vec<u8> = (0..enctype.key_bytes()).map(|at| at as u8 * 5 + 1).collect();
    SessionKey::new(enctype, &bytes).unwrap()
}

fn ends(enctype: Enctype, sender: Role, subkey: bool) -> (SendKeys, ReceiveKeys) {
    let key = key(enctype);
    (SendKeys::new(&key, sender, subkey), ReceiveKeys::new(&key, sender.peer(), subkey))
}

fn message(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 11 + length) as u8).collect()
}

fn wrapped(keys: &SendKeys, plain: &[u8]) -> Vec<u8> {
    let mut token = vec![0xee; keys.wrap_bytes(plain.len())];
    token[WRAP_HEAD_BYTES..WRAP_HEAD_BYTES + plain.len()].copy_from_slice(plain);
    keys.wrap(&mut token, 77, CONFOUNDER).unwrap();
    token
}

fn unsealed(keys: &ReceiveKeys, token: &[u8]) -> Result<Vec<u8>, TokenError> {
    let mut token = token.to_vec();
    keys.unwrap(&mut token).map(|plain| token[plain].to_vec())
}

/// Lengths at which anything may change: within blocks and batches.
fn lengths() -> impl Iterator<Item = usize> {
    (0..=300).chain(4040..=4120).chain([8150, 8191, 8192, 8193])
}

#[test]
fn every_length_opens_and_does_not_read_as_it_was() {
    for enctype in Enctype::ALL {
        for sender in ROLES {
            let (send, receive) = ends(enctype, sender, true);
            for length in lengths() {
                let plain = message(length);
                let mic = send.mic(&plain, length as u64);
                assert_eq!(receive.verify(&plain, mic.as_slice()), Ok(length as u64));
                let token = wrapped(&send, &plain);
                assert!(length < 8 || !token.windows(length).any(|window| window == plain));
                assert_eq!(unsealed(&receive, &token), Ok(plain));
            }
        }
    }
}

#[test]
fn a_mic_with_any_flipped_bit_is_refused() {
    for enctype in Enctype::ALL {
        let (send, receive) = ends(enctype, Role::Acceptor, true);
        let plain = message(37);
        let mic = send.mic(&plain, 3);
        for bit in 0..mic.as_slice().len() * 8 {
            let mut bytes = mic.as_slice().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(receive.verify(&plain, &bytes).is_err(), "bit {bit} of the token");
        }
        for bit in 0..plain.len() * 8 {
            let mut other = plain.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            let verified = receive.verify(&other, mic.as_slice());
            assert_eq!(verified, Err(TokenError::Checksum), "bit {bit} of the message");
        }
    }
}

/// The rotation is not protected, and need not be: one by a multiple of the length is none.
#[test]
fn a_wrap_token_with_any_flipped_bit_is_refused() {
    for enctype in Enctype::ALL {
        for length in [0, 1, 16, 37, 300] {
            let (send, receive) = ends(enctype, Role::Initiator, true);
            let plain = message(length);
            let token = wrapped(&send, &plain);
            for bit in 0..token.len() * 8 {
                let mut bytes = token.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                let rotation = usize::from(u16::from_be_bytes([bytes[6], bytes[7]]));
                let is_same = rotation != 0 && rotation % (token.len() - 16) == 0;
                let result = unsealed(&receive, &bytes);
                assert_eq!(result.is_ok(), is_same, "length {length}, bit {bit}");
            }
        }
    }
}

#[test]
fn tokens_cut_short_or_extended_are_refused() {
    for enctype in Enctype::ALL {
        let (send, receive) = ends(enctype, Role::Initiator, true);
        let plain = message(40);
        let (mic, token) = (send.mic(&plain, 3), wrapped(&send, &plain));
        for length in 0..mic.as_slice().len() {
            assert!(receive.verify(&plain, &mic.as_slice()[..length]).is_err());
        }
        for length in 0..token.len() {
            assert!(unsealed(&receive, &token[..length]).is_err(), "{length} bytes");
        }
        assert!(receive.verify(&plain, &[mic.as_slice(), &[0]].concat()).is_err());
        assert!(unsealed(&receive, &[&token[..], &[0]].concat()).is_err());
    }
}

/// Every rotation of a short token, and every rotation that a header can say.
#[test]
fn every_rotation_is_rotated_back() {
    for enctype in Enctype::ALL {
        let (send, receive) = ends(enctype, Role::Acceptor, true);
        let plain = message(33);
        let token = wrapped(&send, &plain);
        for rotation in (0..300).chain((300..=u16::MAX).step_by(251)).chain([u16::MAX]) {
            let mut rotated = token.clone();
            let sealed = rotated.len() - 16;
            rotated[16..].rotate_right(usize::from(rotation) % sealed);
            rotated[6..8].copy_from_slice(&rotation.to_be_bytes());
            assert_eq!(unsealed(&receive, &rotated), Ok(plain.clone()), "rotation {rotation}");
        }
    }
}

#[test]
fn a_token_of_this_end_is_refused() {
    for enctype in Enctype::ALL {
        let key = key(enctype);
        for role in ROLES {
            let send = SendKeys::new(&key, role, true);
            let receive = ReceiveKeys::new(&key, role, true);
            let (mic, token) = (send.mic(b"mine", 1), wrapped(&send, b"mine"));
            assert_eq!(receive.verify(b"mine", mic.as_slice()), Err(TokenError::Direction));
            assert_eq!(unsealed(&receive, &token), Err(TokenError::Direction));
        }
    }
}

#[test]
fn a_token_with_or_without_the_subkey_is_refused_by_the_other() {
    for subkey in [false, true] {
        let (send, _) = ends(Enctype::Aes256Sha1, Role::Initiator, subkey);
        let (_, receive) = ends(Enctype::Aes256Sha1, Role::Initiator, !subkey);
        let (mic, token) = (send.mic(b"text", 1), wrapped(&send, b"text"));
        assert_eq!(receive.verify(b"text", mic.as_slice()), Err(TokenError::Subkey));
        assert_eq!(unsealed(&receive, &token), Err(TokenError::Subkey));
    }
}

#[test]
fn flags_kinds_and_fillers_are_named() {
    let (send, receive) = ends(Enctype::Aes128Sha256, Role::Initiator, true);
    let (mic, token) = (send.mic(b"text", 1), wrapped(&send, b"text"));
    let altered = |token: &[u8], at: usize, value: u8| {
        let mut token = token.to_vec();
        token[at] = value;
        token
    };
    let verify = |at, value| receive.verify(b"text", &altered(mic.as_slice(), at, value));
    assert_eq!(verify(0, 5), Err(TokenError::Kind));
    assert_eq!(verify(1, 5), Err(TokenError::Kind));
    assert_eq!(verify(2, 4 | 2), Err(TokenError::Protection));
    for at in 3..8 {
        assert_eq!(verify(at, 0), Err(TokenError::Filler));
    }
    let open = |at, value| unsealed(&receive, &altered(&token, at, value));
    assert_eq!(open(0, 4), Err(TokenError::Kind));
    assert_eq!(open(1, 1), Err(TokenError::Kind));
    assert_eq!(open(2, 4), Err(TokenError::Protection), "signed only");
    assert_eq!(open(3, 0), Err(TokenError::Filler));
    assert_eq!(open(4, 1), Err(TokenError::Length), "more extra bytes than there are");
    assert_eq!(
        open(2, 4 | 2 | 8),
        Err(TokenError::Checksum),
        "an unknown flag, altered on the way"
    );
    assert_eq!(receive.verify(b"text", &token), Err(TokenError::Kind));
    assert_eq!(unsealed(&receive, mic.as_slice()), Err(TokenError::Kind));
}

#[test]
fn keys_of_other_contexts_open_nothing() {
    for enctype in Enctype::ALL {
        let (send, _) = ends(enctype, Role::Initiator, true);
        let other = SessionKey::new(enctype, &vec![9; enctype.key_bytes()]).unwrap();
        let receive = ReceiveKeys::new(&other, Role::Acceptor, true);
        let mic = send.mic(b"text", 1);
        assert_eq!(receive.verify(b"text", mic.as_slice()), Err(TokenError::Checksum));
        let token = wrapped(&send, b"text");
        assert_eq!(unsealed(&receive, &token), Err(TokenError::Checksum));
    }
}

#[test]
fn a_buffer_without_room_is_not_sealed() {
    for enctype in Enctype::ALL {
        let (send, _) = ends(enctype, Role::Initiator, true);
        let least = send.wrap_bytes(0);
        for length in 0..least {
            let refused = send.wrap(&mut vec![0; length], 1, CONFOUNDER);
            assert_eq!(refused, Err(TokenError::Length), "{length} bytes");
        }
        assert_eq!(send.wrap(&mut vec![0; least], 1, CONFOUNDER), Ok(()));
    }
}

#[test]
fn keys_have_their_length_and_are_not_shown() {
    let refused = SessionKey::new(Enctype::Aes256Sha1, &[0x55; 16]).unwrap_err();
    assert_eq!(refused, WrongKeyLength { enctype: Enctype::Aes256Sha1, length: 16 });
    assert_eq!(refused.to_string(), "key of encryption type 18 has 16 bytes, not 32");
    let key = SessionKey::new(Enctype::Aes256Sha1, &[0x55; KEY_MAX_BYTES]).unwrap();
    let (send, receive) =
        (SendKeys::new(&key, Role::Initiator, true), ReceiveKeys::new(&key, Role::Initiator, true));
    let shown = format!("{key:?} {send:?} {receive:?}");
    assert!(!shown.contains("85") && !shown.contains("55"), "{shown}");
}

#[test]
fn encryption_types_have_their_numbers() {
    assert_eq!(Enctype::ALL.map(Enctype::number), [17, 18, 19, 20]);
    for number in -200..200 {
        let found = Enctype::from_number(number);
        assert_eq!(found.map(Enctype::number), (17..=20).contains(&number).then_some(number));
    }
}
