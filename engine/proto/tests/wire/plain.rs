//! The plain call and the plain reply. `plain_functions_agree_with_the_general_parsers` (../fuzz.rs) compares their functions
//! with the general ones.

use super::prelude::*;
use spinrpc_proto::plain::{CALL_BYTES, Pair, PlainCall, PlainReply, REPLY_BYTES, says_reply};

const CALL: [u32; CALL_BYTES / 4] = [7, 1, 32, 0, 0, 0, 0, 7, 0, 2, 100_003, 3, 1, 0, 0, 0, 0];
const REPLY: [u32; REPLY_BYTES / 4] = [7, 1, 32, 0, 0, 0, 0, 7, 1, 0, 0, 0, 0];

/// These words as they lie in memory: the first alone, the others in pairs.
fn in_memory<const PAIRS: usize>(words: &[u32]) -> ([u8; 4], [Pair; PAIRS]) {
    let bytes = wire(words);
    let (xid, rest) = bytes.split_first_chunk().unwrap();
    (*xid, rest.as_chunks().0.first_chunk().unwrap().map(Pair::from_ne_bytes))
}

fn call(words: &[u32]) -> Option<PlainCall> {
    let (xid, pairs) = in_memory(words);
    PlainCall::parse(xid, &pairs)
}

fn reply(words: &[u32]) -> Option<PlainReply> {
    let (xid, pairs) = in_memory(words);
    PlainReply::parse(xid, &pairs)
}

/// Version two section 3.4: its header has the direction as well, and the last word is behind the pairs.
#[test]
fn a_plain_reply_of_version_two_has_the_words_of_the_general_functions() {
    let plain = PlainReply { xid: Xid(7), credits: 32 };
    let mut message = [0; 56];
    let (header, stream) = message.split_at_mut(TransportVersion::Two.chunkless_header_bytes());
    emit_msg_header(header, TransportVersion::Two, Xid(7), 32, Direction::Reply);
    ReplyHeader::success(Xid(7)).write(&mut Writer::new(stream));
    let (xid, rest) = message.split_first_chunk().unwrap();
    let (pairs, last) = rest.as_chunks();
    let pairs = pairs.first_chunk().unwrap().map(Pair::from_ne_bytes);
    assert_eq!(plain.emit_two(), (*xid, pairs));
    assert_eq!(last, [0; 4]);
}

/// RFC 5531 section 9: msg_type 0 is CALL, 1 is REPLY.
#[test]
fn the_message_type_tells_replies_from_calls() {
    assert!(says_reply(&in_memory(&REPLY).1));
    assert!(!says_reply(&in_memory(&CALL).1));
}

/// Two faults of the same bits do not make up for each other. (Two XIDs with the same fault are one XID.)
#[test]
fn what_differs_in_the_same_bit_of_two_words_is_not_plain() {
    let fixed = |words: &[u32], numbers: &[usize]| -> Vec<usize> {
        (1..words.len()).filter(|at| !numbers.contains(at)).collect()
    };
    let changed = |words: &[u32], places: [usize; 2]| {
        let mut words = words.to_vec();
        places.into_iter().for_each(|at| words[at] ^= 1);
        words
    };
    let pairs = |places: Vec<usize>| {
        let all = places.clone();
        places.into_iter().flat_map(move |a| all.clone().into_iter().map(move |b| [a, b]))
    };
    for places in pairs(fixed(&CALL, &[2, 10, 11, 12])).filter(|[a, b]| a < b) {
        assert_eq!(call(&changed(&CALL, places)), None, "{places:?}");
    }
    for places in pairs(fixed(&REPLY, &[2])).filter(|[a, b]| a < b) {
        assert_eq!(reply(&changed(&REPLY, places)), None, "{places:?}");
    }
}

/// All words are fixed but credits, program, version, procedure, and the XID, which is the same twice.
#[test]
fn what_differs_in_a_bit_is_not_plain_unless_it_is_a_number_of_the_call() {
    let taken_changed = |words: &[u32], take: &dyn Fn(&[u32]) -> bool| -> Vec<usize> {
        let changed = |at: usize, bit: u32| {
            let mut words = words.to_vec();
            words[at] ^= 1 << bit;
            words
        };
        let taken = |at: &usize| (0..32).all(|bit| take(&changed(*at, bit)));
        let refused = |at: &usize| (0..32).all(|bit| !take(&changed(*at, bit)));
        assert!((0..words.len()).all(|at| taken(&at) || refused(&at)));
        (0..words.len()).filter(taken).collect()
    };
    let of_calls = taken_changed(&CALL, &|words| call(words).is_some());
    let of_replies = taken_changed(&REPLY, &|words| reply(words).is_some());
    assert_eq!((of_calls, of_replies), (vec![2, 10, 11, 12], vec![2]));
}
