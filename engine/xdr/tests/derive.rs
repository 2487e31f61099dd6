//! `#[derive(Xdr)]` on types written by hand, and the codecs of the library's own types.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends here")]

use proptest::collection::vec;
use proptest::prelude::*;
use spinrpc_xdr::{
    Array, Decode, DecodeError, Decoder, Encode, List, Opaque, Placed, Text, Xdr, to_bytes,
};

#[derive(Clone, Copy, Debug, PartialEq, Xdr)]
enum Level {
    Low = -1,
    Middle,
    High = 10,
}

#[derive(Clone, Copy, Debug, PartialEq, Xdr)]
struct Point<'m> {
    x: i32,
    y: u64,
    name: Text<'m, 8>,
    level: Option<Level>,
}

#[derive(Clone, Copy, Debug, PartialEq, Xdr)]
#[xdr(switch = u32)]
enum Shape<'m> {
    #[xdr(case = 1)]
    Dot(Point<'m>),
    #[xdr(case = 3)]
    Nothing,
    #[xdr(default)]
    Other(u32, bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Xdr)]
struct Plain {
    a: [u8; 3],
    b: [u16_pair::Pair; 2],
}

mod u16_pair {
    #[derive(Clone, Copy, Debug, PartialEq, spinrpc_xdr::Xdr)]
    pub(crate) struct Pair {
        pub(crate) first: u32,
        pub(crate) second: f64,
    }
}

fn decoded<'a, T: Decode<'a>>(bytes: &'a [u8]) -> Result<T, DecodeError> {
    let mut from = Decoder::plain(bytes);
    let value = T::decode(&mut from)?;
    from.finish().map(|()| value)
}

#[test]
fn an_enum_has_the_values_of_its_discriminants() {
    let all = [(Level::Low, -1), (Level::Middle, 0), (Level::High, 10)];
    for (level, value) in all {
        assert_eq!(to_bytes(&level), i32::to_be_bytes(value));
        assert_eq!(decoded::<Level>(&i32::to_be_bytes(value)), Ok(level));
    }
    assert_eq!(decoded::<Level>(&[0, 0, 0, 2]), Err(DecodeError::BadEnum { at: 0, value: 2 }));
}

#[test]
fn lengths_that_are_always_the_same_are_known() {
    let plain = <Plain as Decode<'_>>::PLAIN_BYTES;
    assert_eq!(plain, Some(4 + 2 * 12));
    assert_eq!(<Level as Decode<'_>>::PLAIN_BYTES, None, "not all of its words are valid");
    assert_eq!(<Point<'_> as Decode<'_>>::PLAIN_BYTES, None);
    let pair = u16_pair::Pair { first: 1, second: 2.0 };
    assert_eq!(to_bytes(&Plain { a: *b"abc", b: [pair; 2] }).len(), 28);
}

#[test]
fn the_longest_encoding_is_known_where_the_description_bounds_it() {
    const POINT: usize = 4 + 8 + (4 + 8) + (4 + 4);
    assert_eq!(<Point<'_> as Decode<'_>>::BYTES_MAX, Some(POINT));
    assert_eq!(<Shape<'_> as Decode<'_>>::BYTES_MAX, Some(4 + POINT), "the longest arm");
    assert_eq!(<Plain as Decode<'_>>::BYTES_MAX, Some(28));
    assert_eq!(<(bool, [Level; 3]) as Decode<'_>>::BYTES_MAX, Some(16));
    assert_eq!(<Opaque<'_, 5> as Decode<'_>>::BYTES_MAX, Some(12));
    assert_eq!(<Array<'_, Point<'_>, 3> as Decode<'_>>::BYTES_MAX, Some(4 + 3 * POINT));
    assert_eq!(<Array<'_, u64, 0x4000_0000> as Decode<'_>>::BYTES_MAX, Some(4 + (8 << 30)));
    assert_eq!(<Text<'_> as Decode<'_>>::BYTES_MAX, None);
    assert_eq!(<Array<'_, u32> as Decode<'_>>::BYTES_MAX, None);
    assert_eq!(<List<'_, u32> as Decode<'_>>::BYTES_MAX, None);
    assert_eq!(<(u32, Text<'_>) as Decode<'_>>::BYTES_MAX, None);
    let longest =
        Point { x: 1, y: 2, name: Text::new("12345678").unwrap(), level: Some(Level::Low) };
    assert_eq!(to_bytes(&longest).len(), POINT);
}

#[test]
fn positions_of_errors_are_those_in_the_message() {
    let point = Point { x: 1, y: 2, name: Text::new("abc").unwrap(), level: Some(Level::High) };
    let points = [point; 2];
    let mut bytes = to_bytes(&Array::<'_, _, 4>::new(&points).unwrap());
    let at = bytes.len() - 4;
    bytes[at..].copy_from_slice(&[0, 0, 0, 3]);
    let failed = decoded::<Array<'_, Point<'_>, 4>>(&bytes);
    assert_eq!(failed, Err(DecodeError::BadEnum { at, value: 3 }));
}

#[test]
fn an_item_for_placement_is_no_longer_than_its_bound_when_written() {
    let item = Placed::<'_, 3>::Inline(b"abcd");
    assert_eq!(to_bytes(&item), [0, 0, 0, 3, b'a', b'b', b'c', 0]);
    assert!(decoded::<Placed<'_, 2>>(&[0, 0, 0, 3, 1, 2, 3, 0]).is_err());
}

fn shape(seed: &[u8], name: &str) -> Vec<u8> {
    let number =
        seed.iter().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
    let name = Text::new(name.get(..name.len().min(8)).unwrap_or("")).unwrap();
    let level = [None, Some(Level::Low), Some(Level::Middle)][number as usize % 3];
    to_bytes(&match number % 4 {
        0 => Shape::Nothing,
        1 => Shape::Other(number | 4, number % 3 == 0),
        _ => Shape::Dot(Point { x: number.cast_signed(), y: u64::from(number) << 20, name, level }),
    })
}

proptest! {
    #[test]
    fn values_are_decoded_as_they_were_encoded(
        seeds in vec(vec(any::<u8>(), 0..9), 0..9), name in "[a-z]{0,12}"
    ) {
        let all: Vec<Vec<u8>> = seeds.iter().map(|seed| shape(seed, &name)).collect();
        let shapes: Vec<Shape<'_>> = all.iter().map(|bytes| decoded(bytes).unwrap()).collect();
        let bytes = to_bytes(&List::new(&shapes));
        let list: List<'_, Shape<'_>> = decoded(&bytes).unwrap();
        prop_assert!(list.iter().eq(shapes.iter().copied()));
        prop_assert_eq!(to_bytes(&list), bytes);
        let bytes = to_bytes(&Array::<'_, _, 8>::new(&shapes).unwrap());
        let array: Array<'_, Shape<'_>, 8> = decoded(&bytes).unwrap();
        prop_assert_eq!(array, Array::new(&shapes).unwrap());
        prop_assert_eq!(to_bytes(&array), bytes);
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in vec(any::<u8>(), 0..80)) {
        let _ = decoded::<Shape<'_>>(&bytes);
        let _ = decoded::<List<'_, Array<'_, Opaque<'_>>>>(&bytes);
        let _ = decoded::<(Plain, Option<[Level; 2]>, Placed<'_>)>(&bytes);
    }
}

/// Also what is encoded in more than one step by `to_bytes`.
#[test]
fn nothing_is_encoded_as_nothing() {
    assert!(to_bytes(&()).is_empty());
    let mut room = [0; 8];
    let mut to = spinrpc_xdr::Encoder::new(&mut room, &[]);
    (1u32, true).encode(&mut to);
    assert_eq!(to.finish().stream_bytes, 8);
    assert_eq!(room, [0, 0, 0, 1, 0, 0, 0, 1]);
}
