//! XDR streams with data items taken out of them, and padding put into them: a reader beside any
//! chunks stays within them, and finds again whatever a writer took out or padded.

use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::limits::ITEMS_MAX;
use spinrpc_proto::payload::{Beside, Encoded, Found, Item, Placement, StreamReader, StreamWriter};
use spinrpc_proto::xdr::{Padding, Reader, roundup4};

use crate::script::Script;

/// One byte chooses what is done; the rest is its script.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    match script.byte() % 3 {
        0 => beside_reads(&mut script),
        1 => beside_writes(&mut script),
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
    let count = script.below(5);
    let base = script.below(100);
    let chunks: Vec<(u32, u32)> =
        (0..count).map(|_| (u32::from(script.byte()), u32::from(script.byte()))).collect();
    let lengths: Vec<u32> = chunks.iter().map(|(_, length)| *length).collect();
    read_all(script, base, Beside::Reads(&chunks), &lengths);
}

fn beside_writes(script: &mut Script<'_>) {
    let count = script.below(ITEMS_MAX + 1);
    let placed: Vec<u32> = (0..count).map(|_| u32::from(script.byte())).collect();
    read_all(script, 0, Beside::Writes(&placed), &placed);
}

/// Reads a hostile stream to its end: each chunk is found once, in order, at its own length.
fn read_all(script: &mut Script<'_>, base: usize, beside: Beside<'_>, lengths: &[u32]) {
    let orders = script.byte();
    let (alignment, start) = alignment(script);
    let xdr = Reader::aligned(script.bytes(usize::MAX), alignment, start);
    let mut reader = StreamReader::over(xdr, base, beside);
    let mut found = Vec::new();
    for turn in 0..64 {
        let before = reader.xdr().stream_position();
        if orders >> (turn % 8) & 1 != 0 && reader.xdr().u32().is_ok() {
            continue;
        }
        match reader.item(usize::from(orders)) {
            Ok(Found::Inline(bytes)) => {
                assert!(bytes.len() <= usize::from(orders));
                assert_eq!(reader.xdr().stream_position(), before + 4 + roundup4(bytes.len()));
            }
            Ok(Found::Chunk { index, length }) => {
                let carried = lengths[index] as usize;
                assert!(length <= usize::from(orders));
                assert!((length..=roundup4(length)).contains(&carried));
                assert_eq!(reader.xdr().stream_position(), before + 4);
                found.push(index);
            }
            Ok(Found::Pulled { .. }) => unreachable!("no Read chunks of a reply"),
            Err(_) => {
                assert_eq!(
                    reader.xdr().stream_position(),
                    before,
                    "a failed read moved the reader"
                );
                break;
            }
        }
    }
    assert!(found.is_sorted_by(|a, b| a < b), "{found:?}");
    let rest = reader.xdr().remaining();
    assert!(reader.finish().is_err() || rest == 0);
}

/// What a stream is made of.
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
    if encoded.fits {
        let stream = &buffer[..encoded.stream_bytes];
        let roundup = script.flag();
        let xdr = Reader::aligned(stream, alignment, start);
        read_as_call(xdr.clone(), base, &encoded, &items, &parts, roundup);
        read_as_reply(xdr, &encoded, &items, &parts, roundup);
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
    let plain = writer.plain_bytes();
    let encoded = writer.finish();
    assert!(!encoded.items_missing);
    assert!(plain.is_none() || (encoded.fits && plain == Some(encoded.stream_bytes)));
    encoded
}

fn carried(length: u32, roundup: bool) -> u32 {
    if roundup { length.next_multiple_of(4) } else { length }
}

/// The reduced items as Read chunks.
fn read_as_call(
    xdr: Reader<'_>,
    base: usize,
    encoded: &Encoded,
    items: &[Item<'_>],
    parts: &[Part<'_>],
    roundup: bool,
) {
    let reduced = encoded.reduced().iter();
    let chunks: Vec<_> =
        reduced.map(|item| (item.position + base as u32, carried(item.length, roundup))).collect();
    let order: Vec<_> = encoded.reduced().iter().map(|item| usize::from(item.index)).collect();
    read(StreamReader::over(xdr, base, Beside::Reads(&chunks)), items, parts, |chunk| order[chunk]);
}

/// The reduced items in Write chunks; those in the stream leave theirs unused.
fn read_as_reply(
    xdr: Reader<'_>,
    encoded: &Encoded,
    items: &[Item<'_>],
    parts: &[Part<'_>],
    roundup: bool,
) {
    let mut placed = [0; ITEMS_MAX];
    for item in encoded.reduced() {
        placed[usize::from(item.index)] = carried(item.length, roundup);
    }
    read(StreamReader::over(xdr, 0, Beside::Writes(&placed)), items, parts, |chunk| chunk);
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
                Found::Chunk { index: chunk, length } => {
                    assert_eq!((item_of(chunk), length), (index, items[index].bytes.len()));
                }
                Found::Pulled { .. } => unreachable!("no Read chunks of a reply"),
            },
        }
    }
    reader.finish().unwrap();
}
