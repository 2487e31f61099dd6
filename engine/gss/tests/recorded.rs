//! Tokens that MIT's library made: `tests/mit/README.md` says how.
#![allow(clippy::unwrap_used, reason = "all of this is tests")]

use spinrpc_gss::{Enctype, ReceiveKeys, Role, SendKeys, SessionKey};
use std::fs;
use std::path::Path;

struct Recording {
    key: SessionKey,
    subkey: bool,
    tokens: Vec<Recorded>,
}

struct Recorded {
    sender: Role,
    is_mic: bool,
    length: usize,
    bytes: Vec<u8>,
}

fn recording(number: i32) -> Recording {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mit");
    let text = fs::read_to_string(directory.join(format!("enctype-{number}.txt"))).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(&format!("enctype {number}")[..]));
    let subkey = lines.next().unwrap() == "subkey 1";
    let key = unhex(lines.next().unwrap().strip_prefix("key ").unwrap());
    let key = SessionKey::new(Enctype::from_number(number).unwrap(), &key).unwrap();
    Recording { key, subkey, tokens: lines.map(recorded).collect() }
}

fn recorded(line: &str) -> Recorded {
    let words: Vec<&str> = line.split(' ').collect();
    let sender = if words[0] == "initiator" { Role::Initiator } else { Role::Acceptor };
    let (is_mic, length) = (words[1] == "mic", words[2].parse().unwrap());
    Recorded { sender, is_mic, length, bytes: unhex(words[3]) }
}

fn unhex(text: &str) -> Vec<u8> {
    let pairs = (0..text.len() / 2).map(|at| &text[2 * at..2 * at + 2]);
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

fn message(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + length) as u8).collect()
}

impl Recording {
    fn check(&self, token: &Recorded) {
        let receive = ReceiveKeys::new(&self.key, token.sender.peer(), self.subkey);
        let send = SendKeys::new(&self.key, token.sender, self.subkey);
        let plain = message(token.length);
        let counter = u64::from_be_bytes(*token.bytes[8..].first_chunk().unwrap());
        if token.is_mic {
            assert_eq!(receive.verify(&plain, &token.bytes), Ok(counter));
            assert_eq!(send.mic(&plain, counter).as_slice(), token.bytes);
            return;
        }
        let mut opened = token.bytes.clone();
        let place = receive.unwrap(&mut opened).unwrap();
        assert_eq!(opened[place], plain);
        let confounder = *opened[16..].first_chunk().unwrap();
        assert_eq!(send.wrap_bytes(token.length), token.bytes.len());
        send.wrap(&mut opened, counter, confounder).unwrap();
        assert_eq!(opened, token.bytes);
    }
}

#[test]
fn tokens_of_mit_open_and_are_made_again() {
    for enctype in Enctype::ALL {
        let recording = recording(enctype.number());
        assert_eq!(recording.tokens.len(), 68, "17 lengths, two kinds, two directions");
        recording.tokens.iter().for_each(|token| recording.check(token));
    }
}
