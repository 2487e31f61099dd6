//! XDR streams with data items taken out and put back (RFC 5666 sections 3.4 to 3.7, RFC 8166
//! sections 3.4.5 and 3.4.6).

use proptest::collection::vec;
use proptest::prelude::*;

use spinrpc_proto::chunking::{
    Beside, Encoded, Found, Item, Placement, Reduced, StreamReader, StreamWriter,
};
use spinrpc_proto::limits::ITEMS_MAX;
use spinrpc_proto::xdr::{DecodeError, Writer, roundup4};

const PLACEMENTS: [Placement; 3] = [Placement::Inline, Placement::Chunk, Placement::InlineIfRoom];
const ANY_LENGTH: usize = 1 << 20;

#[derive(Clone, Debug)]
enum Part {
    Word(u32),
    Long(u64),
    Opaque(Vec<u8>),
    Item(Vec<u8>, Placement),
}

fn part() -> impl Strategy<Value = Part> {
    let bytes = || vec(any::<u8>(), 0..40);
    prop_oneof![
        any::<u32>().prop_map(Part::Word),
        any::<u64>().prop_map(Part::Long),
        bytes().prop_map(Part::Opaque),
        (bytes(), prop::sample::select(&PLACEMENTS)).prop_map(|(b, p)| Part::Item(b, p)),
    ]
}

/// Streams with as many items as a message may have, or fewer.
fn stream() -> impl Strategy<Value = Vec<Part>> {
    vec(part(), 0..14).prop_map(|mut parts| {
        let items = parts.iter_mut().filter(|part| matches!(part, Part::Item(..)));
        for part in items.skip(ITEMS_MAX) {
            *part = Part::Word(0);
        }
        parts
    })
}

fn items(parts: &[Part]) -> Vec<Item<'_>> {
    let items = parts.iter().filter_map(|part| match part {
        Part::Item(bytes, placement) => Some(Item { bytes, placement: *placement }),
        _ => None,
    });
    items.collect()
}

fn encode(parts: &[Part], room: usize) -> (Encoded, Vec<u8>) {
    let (items, mut buf) = (items(parts), vec![0xee; room]);
    let mut writer = StreamWriter::new(&mut buf, &items);
    for part in parts {
        match part {
            Part::Word(word) => writer.u32(*word),
            Part::Long(long) => writer.u64(*long),
            Part::Opaque(bytes) => writer.opaque(bytes),
            Part::Item(..) => writer.bulk(),
        }
    }
    let encoded = writer.finish();
    buf.truncate(encoded.stream_bytes);
    (encoded, buf)
}

fn unreduced(parts: &[Part]) -> Vec<u8> {
    let mut buf = vec![0; 4096];
    let mut writer = Writer::new(&mut buf);
    for part in parts {
        match part {
            Part::Word(word) => writer.u32(*word),
            Part::Long(long) => writer.u64(*long),
            Part::Opaque(bytes) | Part::Item(bytes, _) => writer.opaque(bytes),
        }
    }
    let length = writer.finish().unwrap();
    buf.truncate(length);
    buf
}

/// Reads a stream to its end; every item must be unchanged, and in a chunk if `in_chunk` has an
/// index for it.
fn read_back(parts: &[Part], mut reader: StreamReader<'_>, in_chunk: &[Option<usize>]) {
    let mut in_chunk = in_chunk.iter();
    for part in parts {
        match part {
            Part::Word(word) => assert_eq!(reader.xdr().u32(), Ok(*word)),
            Part::Long(long) => assert_eq!(reader.xdr().u64(), Ok(*long)),
            Part::Opaque(bytes) => assert_eq!(reader.xdr().opaque(ANY_LENGTH), Ok(&bytes[..])),
            Part::Item(bytes, _) => {
                let expected = match in_chunk.next().copied().flatten() {
                    Some(index) => Found::Chunk { index, length: bytes.len() },
                    None => Found::Inline(bytes),
                };
                assert_eq!(reader.item(ANY_LENGTH), Ok(expected));
            }
        }
    }
    assert_eq!(reader.finish(), Ok(()));
}

/// The Read chunk of a reduced item, with or without its roundup.
fn read_chunk(item: &Reduced, with_roundup: bool) -> (u32, u32) {
    let length = if with_roundup { item.length.next_multiple_of(4) } else { item.length };
    (item.position, length)
}

/// For each item of the stream, which of the reduced ones it is.
fn reduced_index(parts: &[Part], encoded: &Encoded) -> Vec<Option<usize>> {
    let reduced = encoded.reduced();
    (0..items(parts).len())
        .map(|item| reduced.iter().position(|r| usize::from(r.index) == item))
        .collect()
}

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

proptest! {
    #[test]
    fn what_is_taken_out_is_what_stood_at_its_position(parts in stream(), room in 0..700_usize) {
        // RFC 8166 section 3.4.5: a position counts in the stream with nothing taken out, and the
        // count word stays.
        let (encoded, sent) = encode(&parts, room);
        prop_assert_eq!(encoded.fits, encoded.stream_bytes <= room);
        prop_assert_eq!(usize::from(encoded.items_used), items(&parts).len());
        prop_assert!(!encoded.items_missing);
        let mut whole = unreduced(&parts);
        for item in encoded.reduced().iter().rev() {
            let (at, length) = (item.position as usize, item.length as usize);
            prop_assert!(at % 4 == 0);
            prop_assert_eq!(&whole[at - 4..at], &item.length.to_be_bytes()[..]);
            let bytes = items(&parts)[usize::from(item.index)].bytes;
            prop_assert_eq!(&whole[at..at + length], bytes);
            whole.drain(at..at + roundup4(length));
        }
        prop_assert_eq!(encoded.stream_bytes, whole.len());
        if encoded.fits {
            prop_assert_eq!(sent, whole);
        }
    }

    #[test]
    fn an_item_goes_where_its_placement_says(parts in stream(), room in 0..700_usize) {
        let (encoded, _) = encode(&parts, room);
        let in_chunk = reduced_index(&parts, &encoded);
        for (item, in_chunk) in items(&parts).iter().zip(in_chunk) {
            match item.placement {
                Placement::Inline => prop_assert_eq!(in_chunk, None),
                Placement::Chunk => prop_assert_eq!(in_chunk.is_none(), item.bytes.is_empty()),
                Placement::InlineIfRoom => {}
                Placement::Unseen(length) => prop_assert_eq!(in_chunk.is_none(), length == 0),
            }
        }
        let (roomy, _) = encode(&parts, unreduced(&parts).len());
        let inline = items(&parts).into_iter().filter(|i| i.placement == Placement::InlineIfRoom);
        let all = items(&parts).into_iter().filter(|i| i.placement == Placement::Chunk);
        let chunks = all.filter(|i| !i.bytes.is_empty()).count();
        prop_assert!(roomy.fits && roomy.reduced().len() == chunks, "{} of them", inline.count());
    }

    #[test]
    fn arguments_come_back(parts in stream(), header in 0..12_u32, pads in any::<[bool; 4]>()) {
        // RFC 8166 section 3.4.5.2: a receiver takes chunks with and without roundup.
        let mut whole: Vec<Part> = (0..header).map(Part::Word).collect();
        whole.extend(parts.iter().cloned());
        let (encoded, sent) = encode(&whole, 1 << 16);
        let chunks: Vec<_> =
            encoded.reduced().iter().zip(pads).map(|(item, pad)| read_chunk(item, pad)).collect();
        let base = header as usize * 4;
        let reader = StreamReader::new(&sent[base..], base, Beside::Reads(&chunks));
        read_back(&parts, reader, &reduced_index(&parts, &encoded));
    }

    #[test]
    fn results_come_back(parts in stream(), pads in any::<[bool; 4]>()) {
        // RFC 5666 section 3.6: each item consumes one entry of the Write list, used or not.
        let (encoded, sent) = encode(&parts, 1 << 16);
        let mut placed = [0; ITEMS_MAX];
        for (item, pad) in encoded.reduced().iter().zip(pads) {
            placed[usize::from(item.index)] = read_chunk(item, pad).1;
        }
        let in_chunk: Vec<_> = reduced_index(&parts, &encoded)
            .into_iter()
            .enumerate()
            .map(|(item, reduced)| reduced.map(|_| item))
            .collect();
        read_back(&parts, StreamReader::new(&sent, 0, Beside::Writes(&placed)), &in_chunk);
    }

    #[test]
    fn any_stream_with_any_chunks_is_read_without_harm(
        stream in vec(prop_oneof![0..20_u32, any::<u32>()], 0..24),
        positions in vec((0..24_u32, 0..40_u32), 0..5),
        is_call in any::<bool>(),
    ) {
        let bytes = crate::messages::wire(&stream);
        let reads: Vec<_> = positions.iter().map(|(word, length)| (word * 4, *length)).collect();
        let placed: Vec<_> = positions.iter().map(|(_, length)| *length).collect();
        let beside = if is_call { Beside::Reads(&reads) } else { Beside::Writes(&placed) };
        let mut reader = StreamReader::new(&bytes, 0, beside);
        while let Ok(found) = reader.item(64) {
            if let Found::Chunk { index, length } = found {
                let chunk = placed[index] as usize;
                let roundup = roundup4(length);
                prop_assert!((length..=roundup).contains(&chunk));
                prop_assert!(!is_call || chunk == length || chunk == roundup);
            }
            if reader.xdr().remaining() == 0 {
                break;
            }
        }
        let _ = reader.finish();
    }
}

#[test]
fn every_length_in_every_place() {
    for length in 0..=9 {
        for placement in PLACEMENTS {
            let item = Part::Item((0..length).collect(), placement);
            let parts = [Part::Word(1), item.clone(), Part::Opaque(vec![5; 3]), item];
            let (encoded, sent) = encode(&parts, 1 << 16);
            let chunks: Vec<_> =
                encoded.reduced().iter().map(|item| read_chunk(item, false)).collect();
            let reader = StreamReader::new(&sent, 0, Beside::Reads(&chunks));
            read_back(&parts, reader, &reduced_index(&parts, &encoded));
        }
    }
}

#[test]
fn positions_of_two_items_by_hand() {
    // word | count 5 | [5 bytes, 3 of roundup] | word | count 4 | [4 bytes]
    let chunk = |bytes: &[u8]| Part::Item(bytes.to_vec(), Placement::Chunk);
    let parts = [Part::Word(9), chunk(b"hello"), Part::Word(8), chunk(b"spin")];
    let (encoded, sent) = encode(&parts, 64);
    let first = Reduced { index: 0, position: 8, length: 5 };
    let second = Reduced { index: 1, position: 24, length: 4 };
    assert_eq!(encoded.reduced(), [first, second]);
    assert_eq!(sent, crate::messages::wire(&[9, 5, 8, 4]));
}

#[test]
fn an_item_that_does_not_fit_inline_goes_by_chunk() {
    let parts = [Part::Word(1), Part::Item(vec![7; 10], Placement::InlineIfRoom)];
    let (encoded, _) = encode(&parts, 20);
    assert_eq!((encoded.reduced().len(), encoded.stream_bytes, encoded.fits), (0, 20, true));
    let (encoded, _) = encode(&parts, 19);
    assert_eq!((encoded.reduced().len(), encoded.stream_bytes, encoded.fits), (1, 8, true));
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
fn what_has_no_items_is_plain_xdr() {
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
    assert_eq!(writer.plain_bytes(), Some(length));
    assert_eq!((writer.finish().stream_bytes, stream), (length, plain));
}

#[test]
fn a_stream_is_plain_if_it_fits_and_asks_for_no_item() {
    let item = [Item { bytes: &[1; 4], placement: Placement::Inline }];
    let mut room = [0; 8];
    let mut fits = StreamWriter::new(&mut room, &item);
    assert_eq!(fits.plain_bytes(), Some(0));
    fits.u64(7);
    assert_eq!(fits.plain_bytes(), Some(8));
    fits.u32(7);
    assert_eq!(fits.plain_bytes(), None, "12 bytes do not fit 8");
    let mut has_item = StreamWriter::new(&mut room, &item);
    has_item.bulk();
    assert_eq!(has_item.plain_bytes(), None, "an item");
    let mut misses_item = StreamWriter::new(&mut room, &[]);
    misses_item.bulk();
    assert_eq!(misses_item.plain_bytes(), None, "an item that is not there");
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
