//! Tokens of RFC 4121 that were altered in flight, or that were never made: they open as they were or
//! not at all.

use spinrpc_gss::{Enctype, ReceiveKeys, Role, SendKeys, SessionKey, TokenError, WRAP_HEAD_BYTES};

use crate::script::Script;

/// The first bytes choose encryption type and kind; then either a token is made and altered, or
/// the rest is opened as it is.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let enctype = Enctype::ALL[script.below(4)];
    let (is_wrap, is_made, subkey) = (script.flag(), script.flag(), script.flag());
    // Raw input has a key of its own: otherwise the fuzzer presents tokens that it saw made.
    let byte = if is_made { 0xa5 } else { 0xa6 };
    let key = SessionKey::new(enctype, &vec![byte; enctype.key_bytes()]).unwrap();
    let receive = ReceiveKeys::new(&key, Role::Initiator, subkey);
    let plain: Vec<u8> = (0..script.byte()).collect();
    if !is_made {
        let token = script.bytes(usize::MAX);
        let opened =
            if is_wrap { unwrap(&receive, token) } else { verify(&receive, &plain, token) };
        assert!(opened.is_err(), "opened what was never made");
        return;
    }
    let send = SendKeys::new(&key, Role::Acceptor, subkey);
    if is_wrap {
        let token = wrap(&send, &plain);
        check(&token, &alter(&mut script, &token), &plain, |token| unwrap(&receive, token));
    } else {
        let token = send.mic(&plain, 5).as_slice().to_vec();
        let altered = alter(&mut script, &token);
        check(&token, &altered, &plain, |token| verify(&receive, &plain, token));
    }
}

fn wrap(keys: &SendKeys, plain: &[u8]) -> Vec<u8> {
    let mut token = vec![0; keys.wrap_bytes(plain.len())];
    token[WRAP_HEAD_BYTES..WRAP_HEAD_BYTES + plain.len()].copy_from_slice(plain);
    keys.wrap(&mut token, 5, [3; 16]).unwrap();
    token
}

/// Bytes changed, cut off or added, and everything behind the header rotated, which RFC 4121 allows.
fn alter(script: &mut Script<'_>, token: &[u8]) -> Vec<u8> {
    let mut altered = token.to_vec();
    while !script.is_over() {
        let at = usize::from(script.u16()) % altered.len().max(1);
        match script.below(5) {
            0 => altered.truncate(at),
            1 => altered.push(script.byte()),
            2 if altered.len() > 16 => {
                let rotation = script.u16();
                let sealed = altered.len() - 16;
                altered[16..].rotate_right(usize::from(rotation) % sealed);
                altered[6..8].copy_from_slice(&rotation.to_be_bytes());
            }
            _ if at < altered.len() => altered[at] ^= script.byte(),
            _ => {}
        }
    }
    altered
}

fn check(
    token: &[u8],
    altered: &[u8],
    plain: &[u8],
    open: impl Fn(&[u8]) -> Result<Vec<u8>, TokenError>,
) {
    match open(altered) {
        Ok(found) => assert_eq!(found, plain, "opened as something else"),
        Err(_) => assert!(altered != token, "refused as it was made"),
    }
}

fn unwrap(keys: &ReceiveKeys, token: &[u8]) -> Result<Vec<u8>, TokenError> {
    let mut token = token.to_vec();
    let place = keys.unwrap(&mut token)?;
    Ok(token[place].to_vec())
}

fn verify(keys: &ReceiveKeys, plain: &[u8], token: &[u8]) -> Result<Vec<u8>, TokenError> {
    keys.verify(plain, token).map(|_| plain.to_vec())
}
