//! XDR streams with data items taken out of them, and padding put into them: a reader next to any
//! chunks stays within them, and finds again whatever a writer took out or padded.

use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::chunking::{
    Beside, Encoded, Found, Item, Placement, Reduced, StreamReader, StreamWriter,
};
use spinrpc_proto::limits::ITEMS_MAX;
use spinrpc_proto::xdr::{Padding, Reader, roundup4};

use crate::script::Script;

/// One byte chooses what is done; the rest is its script.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    match script.byte() % 4 {
        0 => beside_reads(&mut script),
        1 => beside_writes(&mut script),
        2 => beside_both(&mut script),
        _ => round_trip(&mut script),
    }
}

/// Padding as the header of an RDMA_MSGP asks for it, or none, and where in the Send the stream is.
fn alignment(script: &mut Script<'_>) -> (Alignment, usize) {
    let (align, threshold, start) = (script.byte(), script.byte(), script.below(256));
    let align = match align {
        0 => 0,
        odd if odd & 1 != 0 => u32::MAX / u32::from(odd),
        power => 1 << (power >> 1 & 15),
    };
    (Alignment::new(align, u32::from(threshold)), start)
}

fn beside_reads(script: &mut Script<'_>) {
    let base = script.below(100);
    let reads = read_chunks(script);
    read_all(script, base, Beside::Reads(&reads), &lengths(&reads), &[]);
}

fn beside_writes(script: &mut Script<'_>) {
    let placed = write_chunks(script);
    read_all(script, 0, Beside::Writes(&placed), &placed, &[]);
}

fn beside_both(script: &mut Script<'_>) {
    let base = script.below(100);
    let (reads, writes) = (read_chunks(script), write_chunks(script));
    let beside = Beside::Both { reads: &reads, writes: &writes };
    read_all(script, base, beside, &writes, &lengths(&reads));
}

/// Positions and lengths.
fn read_chunks(script: &mut Script<'_>) -> Vec<(u32, u32)> {
    let count = script.below(5);
    (0..count).map(|_| (u32::from(script.byte()), u32::from(script.byte()))).collect()
}

fn lengths(reads: &[(u32, u32)]) -> Vec<u32> {
    reads.iter().map(|(_, length)| *length).collect()
}

fn write_chunks(script: &mut Script<'_>) -> Vec<u32> {
    let count = script.below(ITEMS_MAX + 1);
    (0..count).map(|_| u32::from(script.byte())).collect()
}

/// Reads a hostile stream to its end: each chunk is found once, in order, at its own length.
/// `pulled` are the Read chunks of a reply, `chunks` those of any other kind.
fn read_all(
    script: &mut Script<'_>,
    base: usize,
    beside: Beside<'_>,
    chunks: &[u32],
    pulled: &[u32],
) {
    let orders = script.byte();
    let max = usize::from(orders);
    let (alignment, start) = alignment(script);
    // A sum with the place in the Send would not fit.
    let start = if start == 255 { usize::MAX - 2 } else { start };
    let xdr = Reader::aligned(script.bytes(usize::MAX), alignment, start);
    let mut reader = StreamReader::over(xdr, base, beside);
    let mut found = [Vec::new(), Vec::new()];
    for turn in 0..64 {
        let before = reader.xdr().stream_position();
        let order = orders >> (turn % 7) & 3;
        let item = match order {
            1 if reader.xdr().u32().is_ok() => continue,
            2 => reader.opaque(max),
            3 => reader.fixed(max).map(|item| bounded_fixed(item, max)),
            _ => reader.item(max),
        };
        let data = before + if order == 3 { 0 } else { 4 };
        let after = reader.xdr().stream_position();
        match item {
            Ok(Found::Inline(bytes)) => {
                assert!(bytes.len() <= max);
                assert_eq!(after, data + roundup4(bytes.len()));
            }
            Ok(Found::Chunk { index, length }) => {
                check_carried(chunks[index], length, max);
                assert_eq!(after, data);
                found[0].push(index);
            }
            Ok(Found::Pulled { index, length }) => {
                check_carried(pulled[index], length, max);
                assert_eq!(after, data);
                found[1].push(index);
            }
            Err(_) => {
                assert_eq!(after, before, "a failed read moved the reader");
                break;
            }
        }
    }
    assert!(found.iter().all(|found| found.is_sorted_by(|a, b| a < b)), "{found:?}");
    let rest = reader.xdr().remaining();
    assert!(reader.finish().is_err() || rest == 0);
}

fn bounded_fixed(item: Found<'_>, length: usize) -> Found<'_> {
    match item {
        Found::Inline(bytes) => assert_eq!(bytes.len(), length),
        Found::Chunk { length: found, .. } | Found::Pulled { length: found, .. } => {
            assert_eq!(found, length);
        }
    }
    item
}

/// A chunk has the length of its item, roundup counted or not.
fn check_carried(carried: u32, length: usize, max: usize) {
    assert!(length <= max);
    assert!((length..=roundup4(length)).contains(&(carried as usize)));
}

/// A part of a stream.
enum Part<'a> {
    Word(u32),
    Opaque(&'a [u8]),
    Item(usize),
}

fn round_trip(script: &mut Script<'_>) {
    let room = usize::from(script.u16()) % 600;
    let base = script.below(64) * 4;
    let (alignment, start) = alignment(script);
    let count = script.below(ITEMS_MAX + 1);
    let items: Vec<Item<'_>> = (0..count).map(|_| item(script)).collect();
    let (parts, used) = parts(script, count);
    let mut buffer = vec![0; room];
    let mut padding = Padding::new(alignment, start);
    let encoded = write(StreamWriter::aligned(&mut buffer, &items[..used], &mut padding), &parts);
    assert_eq!(usize::from(encoded.items_used), used);
    assert_eq!(encoded.fits, encoded.stream_bytes <= room);
    check_reduced(&encoded, &items[..used], &parts);
    if encoded.fits {
        let stream = &buffer[..encoded.stream_bytes];
        let roundup = script.flag();
        let xdr = Reader::aligned(stream, alignment, start);
        let (reads, order) = as_read_chunks(&encoded, base, roundup);
        // Those in the stream leave their Write chunks unused.
        let mut placed = [0; ITEMS_MAX];
        for item in encoded.reduced() {
            placed[usize::from(item.index)] = carried(item.length, roundup);
        }
        let of_write = |chunk: usize| chunk;
        let of_read = |chunk: usize| order[chunk];
        // A call, a reply, and a reply without Write chunks whose items are fetched.
        let (fetched, of_call) =
            (Beside::Both { reads: &reads, writes: &[] }, Beside::Reads(&reads));
        read(StreamReader::over(xdr.clone(), base, of_call), &items, &parts, of_read);
        read(StreamReader::over(xdr.clone(), 0, Beside::Writes(&placed)), &items, &parts, of_write);
        read(StreamReader::over(xdr, base, fetched), &items, &parts, of_read);
    }
}

fn item<'a>(script: &mut Script<'a>) -> Item<'a> {
    let placement = match script.byte() % 3 {
        0 => Placement::Inline,
        1 => Placement::Chunk,
        _ => Placement::InlineIfRoom,
    };
    let length = usize::from(script.byte());
    Item { bytes: script.bytes(length), placement }
}

/// Also returns how many of the items have a place.
fn parts<'a>(script: &mut Script<'a>, count: usize) -> (Vec<Part<'a>>, usize) {
    let (mut parts, mut used) = (Vec::new(), 0);
    while parts.len() < 16 && !script.is_over() {
        parts.push(match script.byte() % 3 {
            0 => Part::Word(u32::from(script.byte())),
            1 => {
                let length = script.below(20);
                Part::Opaque(script.bytes(length))
            }
            _ if used < count => {
                used += 1;
                Part::Item(used - 1)
            }
            _ => Part::Word(7),
        });
    }
    (parts, used)
}

fn write(mut writer: StreamWriter<'_>, parts: &[Part<'_>]) -> Encoded {
    for part in parts {
        match part {
            Part::Word(value) => writer.u32(*value),
            Part::Opaque(bytes) => writer.opaque(bytes),
            Part::Item(_) => writer.bulk(),
        }
    }
    let itemless = writer.itemless_bytes();
    let encoded = writer.finish();
    assert!(!encoded.items_missing);
    assert!(itemless.is_none() || (encoded.fits && itemless == Some(encoded.stream_bytes)));
    encoded
}

/// Items are where their placement says. Positions count in the stream with nothing taken out (RFC 8166 section 3.4.5), and
/// no padding.
fn check_reduced(encoded: &Encoded, items: &[Item<'_>], parts: &[Part<'_>]) {
    let (mut at, mut positions) = (0, Vec::new());
    for part in parts {
        at += 4 + match *part {
            Part::Word(_) => 0,
            Part::Opaque(bytes) => roundup4(bytes.len()),
            Part::Item(index) => {
                positions.push(at + 4);
                roundup4(items[index].bytes.len())
            }
        };
    }
    assert_eq!(encoded.unreduced_bytes, at);
    for (index, (item, position)) in items.iter().zip(positions).enumerate() {
        let reduced = encoded.reduced().iter().find(|reduced| usize::from(reduced.index) == index);
        match item.placement {
            Placement::Inline => assert_eq!(reduced, None),
            Placement::Chunk => assert_eq!(reduced.is_none(), item.bytes.is_empty()),
            _ => {}
        }
        let place = reduced.map(|reduced| (reduced.position as usize, reduced.length as usize));
        assert!(place.is_none_or(|place| place == (position, item.bytes.len())), "{place:?}");
    }
}

fn carried(length: u32, roundup: bool) -> u32 {
    if roundup { length.next_multiple_of(4) } else { length }
}

/// Position and length of the Read chunk of each reduced item, and which item it is.
fn as_read_chunks(encoded: &Encoded, base: usize, roundup: bool) -> (Vec<(u32, u32)>, Vec<usize>) {
    let chunk = |item: &Reduced| (item.position + base as u32, carried(item.length, roundup));
    let reduced = encoded.reduced();
    (reduced.iter().map(chunk).collect(), reduced.iter().map(|item| item.index.into()).collect())
}

fn read(
    mut reader: StreamReader<'_>,
    items: &[Item<'_>],
    parts: &[Part<'_>],
    item_of: impl Fn(usize) -> usize,
) {
    for part in parts {
        match *part {
            Part::Word(value) => assert_eq!(reader.xdr().u32(), Ok(value)),
            Part::Opaque(bytes) => assert_eq!(reader.xdr().opaque(bytes.len()), Ok(bytes)),
            Part::Item(index) => match reader.item(items[index].bytes.len()).unwrap() {
                Found::Inline(bytes) => assert_eq!(bytes, items[index].bytes),
                Found::Chunk { index: chunk, length } | Found::Pulled { index: chunk, length } => {
                    assert_eq!((item_of(chunk), length), (index, items[index].bytes.len()));
                }
            },
        }
    }
    reader.finish().unwrap();
}
