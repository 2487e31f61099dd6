//! XDR items (RFC 4506 section 4). `rpc_headers_hold_for_any_words` and `payload_holds_for_any_script` (../fuzz.rs) read and write any.

use super::prelude::*;

#[test]
fn items_end_on_a_multiple_of_four() {
    // RFC 4506 section 3: "If the n bytes needed to contain the data are not a multiple of four,
    // then the n bytes are followed by enough (0 to 3) residual zero bytes".
    assert_eq!([0, 1, 2, 3, 4, 5].map(padding), [0, 3, 2, 1, 0, 3]);
    assert_eq!([0, 1, 2, 3, 4, 5].map(roundup4), [0, 4, 4, 4, 4, 8]);
    assert_eq!(roundup4(usize::MAX), usize::MAX);
}

#[test]
fn integers_are_big_endian() {
    let mut bytes = [0; 24];
    let mut writer = Writer::new(&mut bytes);
    writer.u32(0x0102_0304);
    writer.i32(-2);
    writer.u64(0x0506_0708_090a_0b0c);
    writer.i64(-3);
    assert_eq!(writer.finish(), Ok(24));
    assert_eq!(
        bytes,
        [
            1, 2, 3, 4, 0xff, 0xff, 0xff, 0xfe, 5, 6, 7, 8, 9, 10, 11, 12, 0xff, 0xff, 0xff, 0xff,
            0xff, 0xff, 0xff, 0xfd
        ]
    );
    let mut reader = Reader::new(&bytes);
    assert_eq!(reader.u32(), Ok(0x0102_0304));
    assert_eq!(reader.i32(), Ok(-2));
    assert_eq!(reader.u64(), Ok(0x0506_0708_090a_0b0c));
    assert_eq!(reader.i64(), Ok(-3));
    assert_eq!(reader.finish(), Ok(()));
}

#[test]
fn an_opaque_is_its_count_its_bytes_and_zeros() {
    let mut bytes = [0xee; 12];
    let mut writer = Writer::new(&mut bytes);
    writer.opaque(b"hello");
    assert_eq!(writer.finish(), Ok(12));
    assert_eq!(bytes, [0, 0, 0, 5, b'h', b'e', b'l', b'l', b'o', 0, 0, 0]);
}

#[test]
fn padding_is_skipped_whatever_its_value() {
    let bytes = [0, 0, 0, 1, b'x', 0xde, 0xad, 0xff, 0, 0, 0, 7];
    let mut reader = Reader::new(&bytes);
    assert_eq!(reader.opaque(8), Ok(&b"x"[..]));
    assert_eq!(reader.u32(), Ok(7));
}

#[test]
fn missing_padding_is_an_error() {
    let bytes = [0, 0, 0, 5, 1, 2, 3, 4, 5, 0, 0];
    let mut reader = Reader::new(&bytes);
    assert_eq!(reader.opaque(8), Err(DecodeError::BadPadding { at: 9 }));
    assert_eq!(reader.position(), 0);
}

#[test]
fn a_count_beyond_the_bytes_received_is_truncation() {
    let bytes = wire(&[9, u32::MAX]);
    let mut reader = Reader::new(&bytes);
    assert_eq!(reader.u32(), Ok(9));
    let error = reader.opaque(usize::MAX);
    assert_eq!(error, Err(DecodeError::Truncated { at: 8, wanted: 0x1_0000_0000 }));
    assert_eq!(reader.position(), 4);
    assert_eq!(reader.fixed(usize::MAX), Err(DecodeError::Truncated { at: 4, wanted: usize::MAX }));
    assert_eq!(reader.skip(5), Err(DecodeError::Truncated { at: 4, wanted: 5 }));
    assert_eq!(reader.remaining(), 4);
}

#[test]
fn a_count_beyond_its_bound_is_refused_even_if_the_bytes_are_there() {
    let bytes = wire(&[5, 0, 0]);
    let error = Err(DecodeError::TooLong { at: 0, length: 5, max: 4 });
    assert_eq!(Reader::new(&bytes).opaque(4), error);
}

#[test]
fn a_boolean_is_zero_or_one() {
    let bytes = wire(&[0, 1, 2]);
    let mut reader = Reader::new(&bytes);
    assert_eq!(reader.bool(), Ok(false));
    assert_eq!(reader.bool(), Ok(true));
    assert_eq!(reader.bool(), Err(DecodeError::BadBool { at: 8, value: 2 }));
    assert_eq!(reader.position(), 8);
}

#[test]
fn a_string_is_utf8() {
    let bytes = [0, 0, 0, 3, b'o', 0xc3, 0x28, 0];
    let mut reader = Reader::new(&bytes);
    assert_eq!(reader.string(8), Err(DecodeError::BadUtf8 { at: 5 }));
    assert_eq!(reader.position(), 0);
    assert_eq!(Reader::new(&[0, 0, 0, 2, b'h', b'i', 0, 0]).string(2), Ok("hi"));
}

#[test]
fn the_message_ends_where_its_reader_says() {
    let bytes = wire(&[1, 2]);
    let mut reader = Reader::new(&bytes);
    assert_eq!(reader.skip(4), Ok(()));
    assert_eq!(reader.finish(), Err(DecodeError::TrailingBytes { at: 4 }));
    assert_eq!(reader.rest(), &bytes[4..]);
    assert_eq!(reader.skip(4), Ok(()));
    assert_eq!(reader.finish(), Ok(()));
}

#[test]
fn a_writer_counts_what_does_not_fit_and_writes_none_of_it() {
    let mut bytes = [0xee; 10];
    let mut writer = Writer::new(&mut bytes);
    writer.u32(1);
    writer.u64(2);
    // Four of these bytes would fit, but not behind an item that is missing.
    writer.u32(3);
    writer.opaque(b"abc");
    assert_eq!(writer.len(), 24);
    assert_eq!(writer.finish(), Err(Overflow { needed_bytes: 24 }));
    assert_eq!(bytes, [0, 0, 0, 1, 0xee, 0xee, 0xee, 0xee, 0xee, 0xee]);
}

#[test]
fn an_opaque_whose_padding_does_not_fit_is_not_written() {
    let mut bytes = [0xee; 10];
    let mut writer = Writer::new(&mut bytes);
    writer.fixed(&[1; 9]);
    assert_eq!(writer.finish(), Err(Overflow { needed_bytes: 12 }));
    assert_eq!(bytes, [0xee; 10]);
}
