//! XDR streams with data items taken out and put back (RFC 5666 sections 3.4 to 3.7, RFC 8166
//! sections 3.4.5 and 3.4.6). `payload_holds_for_any_script` (../fuzz.rs) has streams of any parts.

use crate::prelude::*;

const ANY_LENGTH: usize = 1 << 20;

#[test]
fn an_item_that_the_writer_does_not_see_is_a_chunk_of_its_length() {
    let item = |length| Item { bytes: &[], placement: Placement::Unseen(length) };
    let items = [item(9), item(0)];
    let mut buf = [0; 64];
    let mut writer = StreamWriter::new(&mut buf, &items);
    writer.bulk();
    writer.bulk();
    let encoded = writer.finish();
    assert!(encoded.fits && !encoded.items_missing);
    assert_eq!(encoded.reduced(), [Reduced { index: 0, position: 4, length: 9 }]);
    assert_eq!((encoded.stream_bytes, &buf[..8]), (8, &[0, 0, 0, 9, 0, 0, 0, 0][..]));
}

#[test]
fn positions_of_two_items_by_hand() {
    // word | count 5 | [5 bytes, 3 of roundup] | word | count 4 | [4 bytes]
    let items = [&b"hello"[..], b"spin"].map(|bytes| Item { bytes, placement: Placement::Chunk });
    let mut buf = [0; 64];
    let mut writer = StreamWriter::new(&mut buf, &items);
    for word in [9, 8] {
        writer.u32(word);
        writer.bulk();
    }
    let encoded = writer.finish();
    let first = Reduced { index: 0, position: 8, length: 5 };
    let second = Reduced { index: 1, position: 24, length: 4 };
    assert_eq!(encoded.reduced(), [first, second]);
    assert_eq!(buf[..encoded.stream_bytes], crate::messages::wire(&[9, 5, 8, 4]));
}

#[test]
fn an_item_that_does_not_fit_inline_goes_by_chunk() {
    let item = [Item { bytes: &[7; 10], placement: Placement::InlineIfRoom }];
    for (room, expected) in [(20, (0, 20, true)), (19, (1, 8, true))] {
        let mut buf = vec![0; room];
        let mut writer = StreamWriter::new(&mut buf, &item);
        writer.u32(1);
        writer.bulk();
        let encoded = writer.finish();
        assert_eq!((encoded.reduced().len(), encoded.stream_bytes, encoded.fits), expected);
    }
}

#[test]
fn a_stream_that_asks_for_more_items_than_there_are_is_told_apart() {
    let mut buf = [0; 64];
    let mut writer = StreamWriter::new(&mut buf, &[]);
    writer.bulk();
    let encoded = writer.finish();
    assert!(encoded.items_missing);
    assert_eq!((encoded.items_used, encoded.stream_bytes), (0, 4));
}

#[test]
fn items_beyond_the_most_a_message_may_have_are_missing() {
    let items = [Item { bytes: b"abcd", placement: Placement::Chunk }; ITEMS_MAX + 1];
    let mut buf = [0; 64];
    let mut writer = StreamWriter::new(&mut buf, &items);
    for _ in &items {
        writer.bulk();
    }
    let encoded = writer.finish();
    assert!(encoded.items_missing);
    assert_eq!((usize::from(encoded.items_used), encoded.reduced().len()), (ITEMS_MAX, ITEMS_MAX));
}

#[test]
fn a_chunk_of_another_length_than_its_item_is_an_error() {
    // RFC 5666 section 3.4: "Any byte count in the XDR stream MUST match the sum of the byte counts
    // present in the corresponding read or write chunk list."
    let count = crate::messages::wire(&[5]);
    for length in [0, 4, 6, 7, 9, 12] {
        let mismatch = DecodeError::ChunkMismatch { at: 0, length: 5, chunk: length as usize };
        let chunks = [(44, length)];
        let mut reader = StreamReader::new(&count, 40, Beside::Reads(&chunks));
        assert_eq!(reader.item(64), Err(mismatch));
        if ![0, 6, 7].contains(&length) {
            let placed = [length];
            let mut reader = StreamReader::new(&count, 24, Beside::Writes(&placed));
            assert_eq!(reader.item(64), Err(mismatch));
        }
    }
    for length in [5, 8] {
        let chunks = [(44, length)];
        let mut reader = StreamReader::new(&count, 40, Beside::Reads(&chunks));
        assert_eq!(reader.item(64), Ok(Found::Chunk { index: 0, length: 5 }));
    }
}

/// RFC 5666 section 3.7: the length that comes back for a Write chunk may count the roundup, also
/// where the memory that was offered ends within it.
#[test]
fn a_write_chunk_may_end_within_the_roundup_of_its_item() {
    let count = crate::messages::wire(&[5]);
    for placed in 5..=8 {
        let placed = [placed];
        let mut reader = StreamReader::new(&count, 24, Beside::Writes(&placed));
        assert_eq!(reader.item(64), Ok(Found::Chunk { index: 0, length: 5 }), "{placed:?}");
        assert_eq!(reader.finish(), Ok(()));
    }
}

#[test]
fn a_chunk_that_belongs_to_no_item_is_an_error() {
    let bytes = crate::messages::wire(&[4, 0x6162_6364]);
    for position in [0, 8, 48] {
        let chunks = [(position, 4)];
        let mut reader = StreamReader::new(&bytes, 0, Beside::Reads(&chunks));
        assert_eq!(reader.item(64), Ok(Found::Inline(b"abcd")));
        assert_eq!(reader.finish(), Err(DecodeError::ChunkUnused { index: 0 }));
    }
    let mut reader = StreamReader::new(&bytes, 0, Beside::Writes(&[0, 0, 4]));
    assert_eq!(reader.item(64), Ok(Found::Inline(b"abcd")));
    assert_eq!(reader.finish(), Err(DecodeError::ChunkUnused { index: 2 }));
}

/// RFC 8166 section 3.4.6: an unused Write chunk is for the next result. RFC 5666 section 3.6: each result has an
/// entry of its own.
#[test]
fn an_item_without_bytes_consumes_an_entry_only_if_nothing_is_placed_there() {
    let bytes = crate::messages::wire(&[0, 5, 0, 6]);
    for (placed, entries) in
        [([5, 6, 0, 0], [0, 1]), ([0, 5, 0, 6], [1, 3]), ([5, 0, 6, 0], [0, 2])]
    {
        let mut reader = StreamReader::new(&bytes, 0, Beside::Writes(&placed));
        for (index, length) in entries.into_iter().zip([5, 6]) {
            assert_eq!(reader.item(64), Ok(Found::Inline(b"")));
            assert_eq!(reader.item(64), Ok(Found::Chunk { index, length }), "{placed:?}");
        }
        assert_eq!(reader.finish(), Ok(()));
    }
}

#[test]
fn bytes_left_over_are_an_error() {
    let bytes = crate::messages::wire(&[4, 0x6162_6364, 1]);
    let mut reader = StreamReader::new(&bytes, 0, Beside::Reads(&[]));
    reader.item(64).unwrap();
    assert_eq!(reader.finish(), Err(DecodeError::TrailingBytes { at: 8 }));
}

#[test]
fn a_failed_read_leaves_the_reader_as_it_was() {
    let inline = crate::messages::wire(&[4, 0x6162_6364]);
    let mut reader = StreamReader::new(&inline, 0, Beside::Writes(&[0, 4]));
    let too_long = DecodeError::TooLong { at: 0, length: 4, max: 3 };
    assert_eq!(reader.item(3), Err(too_long));
    assert_eq!(reader.item(4), Ok(Found::Inline(b"abcd")), "the second entry is not its own");
    let count = crate::messages::wire(&[4]);
    let mut reader = StreamReader::new(&count, 0, Beside::Reads(&[(4, 4)]));
    assert_eq!(reader.item(3), Err(too_long));
    assert_eq!(reader.item(4), Ok(Found::Chunk { index: 0, length: 4 }));
}

/// The writer of a stream that may have items writes everything else as the plain one does.
#[test]
fn what_has_no_items_is_written_as_by_the_writer_of_xdr() {
    let (mut plain, mut stream) = ([0xee; 64], [0xee; 64]);
    let mut writer = Writer::new(&mut plain);
    writer.i32(-5);
    writer.i64(-6);
    writer.bool(true);
    writer.fixed(b"abcde");
    writer.string("text");
    let length = writer.finish().unwrap();
    let mut writer = StreamWriter::new(&mut stream, &[]);
    writer.i32(-5);
    writer.i64(-6);
    writer.bool(true);
    writer.fixed(b"abcde");
    writer.string("text");
    assert_eq!(writer.itemless_bytes(), Some(length));
    assert_eq!((writer.finish().stream_bytes, stream), (length, plain));
}

#[test]
fn a_stream_is_itemless_if_it_fits_and_asks_for_no_item() {
    let item = [Item { bytes: &[1; 4], placement: Placement::Inline }];
    let mut room = [0; 8];
    let mut fits = StreamWriter::new(&mut room, &item);
    assert_eq!(fits.itemless_bytes(), Some(0));
    fits.u64(7);
    assert_eq!(fits.itemless_bytes(), Some(8));
    fits.u32(7);
    assert_eq!(fits.itemless_bytes(), None, "12 bytes do not fit 8");
    let mut has_item = StreamWriter::new(&mut room, &item);
    has_item.bulk();
    assert_eq!(has_item.itemless_bytes(), None, "an item");
    let mut misses_item = StreamWriter::new(&mut room, &[]);
    misses_item.bulk();
    assert_eq!(misses_item.itemless_bytes(), None, "an item that is not there");
}

#[test]
fn a_reader_says_whether_a_read_chunk_is_left() {
    let bytes = [0, 0, 0, 8];
    let mut reader = StreamReader::new(&bytes, 0, Beside::Reads(&[(4, 8)]));
    assert!(reader.has_reads());
    assert_eq!(reader.item(ANY_LENGTH), Ok(Found::Chunk { index: 0, length: 8 }));
    assert!(!reader.has_reads());
    assert!(!StreamReader::new(&bytes, 0, Beside::Writes(&[8])).has_reads());
}
