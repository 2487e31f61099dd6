//! Prints tokens for a session key, for `tests/mit/record` to have them verified by MIT's library.
//!
//! `tokens ENCTYPE SUBKEY KEY`: each line says who sent it, the kind, the length of the message, and
//! the token.

use spinrpc_gss::random::{AesConfounders, Confounders};
use spinrpc_gss::{Enctype, Role, SendKeys, SessionKey, WRAP_HEAD_BYTES};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [number, subkey, key] = &arguments[..] else { return Err("ENCTYPE SUBKEY KEY".into()) };
    let enctype = Enctype::from_number(number.parse()?).ok_or("not an encryption type of ours")?;
    let key = SessionKey::new(enctype, &unhex(key)?)?;
    let mut confounders = AesConfounders::new(&[7; 32]);
    for (role, name) in [(Role::Initiator, "initiator"), (Role::Acceptor, "acceptor")] {
        let keys = SendKeys::new(&key, role, subkey == "1");
        for length in (0..300).chain(4090..4110) {
            let plain: Vec<u8> = (0..length).map(|at| (at * 7 + length) as u8).collect();
            let mic = keys.mic(&plain, length as u64);
            println!("{name} mic {length} {}", hex(mic.as_slice()));
            let mut token = vec![0; keys.wrap_bytes(length)];
            token[WRAP_HEAD_BYTES..WRAP_HEAD_BYTES + length].copy_from_slice(&plain);
            keys.wrap(&mut token, length as u64, confounders.next())?;
            println!("{name} wrap {length} {}", hex(&token));
        }
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Result<Vec<u8>, std::num::ParseIntError> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16)).collect()
}
