//! Messages as types that were generated from descriptions. What can be decoded can be encoded and decoded
//! again, and is the same then. Bytes of which an item is made are taken and refused as those of a message.

use spinrpc_xdr_suite::TYPES;

/// Two bytes choose the type; the rest is its encoding.
pub fn run(data: &[u8]) {
    let Some((choice, input)) = data.split_first_chunk() else { return };
    let row = &TYPES[usize::from(u16::from_be_bytes(*choice)) % TYPES.len()];
    let (first, words) = ((row.again)(input), (row.words)(input));
    assert_eq!(first.as_ref().ok(), words.as_ref().ok(), "{}", row.name);
    let Ok(first) = first else { return };
    assert!(first.read <= input.len() && first.read.is_multiple_of(4), "{}", row.name);
    assert_eq!(first.written.len(), first.read, "{}", row.name);
    let second = (row.again)(&first.written).expect("what was written can be read");
    assert_eq!(second, spinrpc_xdr_suite::Again { read: first.read, written: first.written });
}
