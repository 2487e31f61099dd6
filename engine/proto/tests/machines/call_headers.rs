//! The header of a call offers exactly the chunks it was given (RFC 5666 sections 3.4 to 3.6 and 5,
//! RFC 8166 sections 3.4 and 4.3).

use crate::prelude::*;

/// Memory that splits into `segments` segments of 100 bytes, the last one shorter.
fn offer(handle: u32, segments: u32) -> ChunkOffer {
    let length = segments * 100 - 3;
    ChunkOffer { handle, length, offset: u64::from(handle) << 40, segment_bytes: 100 }
}

fn pieces(offer: &ChunkOffer, segments: u32) -> Vec<Segment> {
    let last = segments - 1;
    (0..segments)
        .map(|n| Segment {
            handle: offer.handle,
            length: if n == last { 97 } else { 100 },
            offset: offer.offset + u64::from(n) * 100,
        })
        .collect()
}

/// Chunks that a call offers, and their order in the header.
#[derive(Default)]
struct Expected {
    reads: Vec<ReadSegment>,
    writes: Vec<Vec<Segment>>,
    reply: Option<Vec<Segment>>,
}

/// Offers as many chunks as asked for, with segments in turn one, two and three.
fn offered(long: bool, reads: usize, writes: usize, reply: bool) -> (CallChunks, Expected) {
    let (mut chunks, mut expected) = (CallChunks::EMPTY, Expected::default());
    let mut handles = 1..;
    let mut next = || {
        let handle = handles.next().unwrap_or_default();
        let segments = handle % 3 + 1;
        (offer(handle, segments), segments)
    };
    let first = u32::from(!long);
    for position in (first..).map(|n| n * 1000).take(reads) {
        let (offer, segments) = next();
        assert!(chunks.push_read(position, offer));
        let targets = pieces(&offer, segments).into_iter();
        expected.reads.extend(targets.map(|target| ReadSegment { position, target }));
    }
    for _ in 0..writes {
        let (offer, segments) = next();
        assert!(chunks.push_write(offer));
        expected.writes.push(pieces(&offer, segments));
    }
    if reply {
        let (offer, segments) = next();
        assert!(chunks.set_reply(offer));
        expected.reply = Some(pieces(&offer, segments));
    }
    (chunks, expected)
}

/// Compares the header of a call with these chunks with the expected one, at a peer with default
/// limits.
fn check(long: bool, chunks: &CallChunks, expected: &Expected) {
    let mut caller = Caller::granted(2);
    let (started, header) = caller.call_with(1, NEVER, chunks);
    let view = HeaderView::new_checked(&header, &Limits::DEFAULT).unwrap();
    assert_eq!(view.check_call(), Ok(()));
    assert_eq!((view.xid(), view.credits()), (started.xid, 2));
    let kind = if long { MessageType::Nomsg } else { MessageType::Msg };
    assert_eq!(view.message_type(), kind);
    assert_eq!(view.reads().collect::<Vec<_>>(), expected.reads);
    let writes: Vec<Vec<_>> = view.writes().map(|chunk| chunk.segments().collect()).collect();
    assert_eq!(writes, expected.writes);
    let reply: Option<Vec<_>> = view.reply_chunk().map(|chunk| chunk.segments().collect());
    assert_eq!(reply, expected.reply);
    assert_eq!(header.len(), chunks.header_bytes());
    assert_eq!(header.len(), view.header_bytes());
}

#[test]
fn every_combination_of_chunks_is_offered_as_given() {
    for reads in 0..=ITEMS_MAX + 1 {
        for writes in 0..=ITEMS_MAX {
            for (long, reply) in [(false, false), (false, true), (true, false), (true, true)] {
                let long = long && reads > 0;
                let (chunks, expected) = offered(long, reads, writes, reply);
                assert_eq!(chunks.is_long_call(), long);
                assert_eq!(chunks.is_empty(), reads + writes == 0 && !reply);
                check(long, &chunks, &expected);
            }
        }
    }
}

#[test]
fn as_many_segments_as_a_call_may_offer() {
    // As many in one list as all lists may have; a peer of the same kind takes them.
    let full = CALL_SEGMENTS_MAX as u32 / 4;
    let mut chunks = CallChunks::EMPTY;
    let mut expected = Expected::default();
    for n in 0..4 {
        let offer = offer(n, full);
        assert!(chunks.push_read(n * 4000, offer));
        let targets = pieces(&offer, full).into_iter();
        expected.reads.extend(targets.map(|target| ReadSegment { position: n * 4000, target }));
    }
    assert_eq!(chunks.segment_count(), CALL_SEGMENTS_MAX);
    assert!(!chunks.push_write(offer(9, 1)));
    assert!(!chunks.set_reply(offer(9, 1)));
    assert!(!chunks.push_read(40_000, offer(9, 1)));
    check(true, &chunks, &expected);
}

#[test]
fn chunks_beyond_the_limits_are_not_offered() {
    let mut chunks = CallChunks::EMPTY;
    let too_long = offer(1, CALL_SEGMENTS_MAX as u32 + 1);
    assert!(!chunks.push_read(0, too_long));
    assert!(!chunks.push_write(too_long));
    assert!(!chunks.set_reply(too_long));
    assert!(chunks.is_empty());
    for n in 0..=ITEMS_MAX as u32 {
        assert!(chunks.push_read(n * 4, offer(n, 1)));
    }
    assert!(!chunks.push_read(400, offer(9, 1)));
    for n in 0..ITEMS_MAX as u32 {
        assert!(chunks.push_write(offer(n, 1)));
    }
    assert!(!chunks.push_write(offer(9, 1)));
    assert!(chunks.set_reply(offer(9, 1)));
    assert!(!chunks.set_reply(offer(10, 1)), "there is one Reply chunk at most");
    assert_eq!((chunks.reads().len(), chunks.writes().len()), (ITEMS_MAX + 1, ITEMS_MAX));
}

#[test]
fn memory_is_split_without_gap_or_overlap() {
    for (length, segment_bytes, lengths) in [
        (0, 0, &[0][..]),
        (0, 100, &[0]),
        (1, 0, &[1]),
        (99, 100, &[99]),
        (100, 100, &[100]),
        (101, 100, &[100, 1]),
        (300, 100, &[100, 100, 100]),
    ] {
        let offer = ChunkOffer { handle: 5, length, offset: 1 << 40, segment_bytes };
        let segments: Vec<_> = offer.segments().collect();
        assert_eq!(offer.segment_count(), segments.len());
        assert_eq!(segments.iter().map(|s| s.length).collect::<Vec<_>>(), lengths);
        let mut at = offer.offset;
        for segment in segments {
            assert_eq!((segment.handle, segment.offset), (5, at));
            at += u64::from(segment.length);
        }
    }
}
