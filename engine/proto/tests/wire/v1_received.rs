//! Receiving a version-one transport header (RFC 5666 section 4, RFC 8166 sections 4.2 to 4.6).

use super::prelude::*;
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::rdma::v1::{
    HEADER_BYTES_MAX, HeaderError, HeaderView, MessageType, alignment_of,
};

const XID: u32 = 0xaabb_ccdd;
const MSG: u32 = 0;
const NOMSG: u32 = 1;
const MSGP: u32 = 2;
const DONE: u32 = 3;
const ERROR: u32 = 4;
const NO_LISTS: [u32; 3] = [0, 0, 0];

/// Below the constant bounds, so that the one cannot pass for the other.
const LIMITS: Limits =
    Limits { segments_max: 16, read_chunks_max: 4, write_chunks_max: 4, ..Limits::DEFAULT };

fn limits_of(counts: u16, payload_bytes_max: u32) -> Limits {
    let (segments_max, read_chunks_max, write_chunks_max) = (counts, counts, counts);
    let (versions, answers_short) = (Versions::One, false);
    Limits {
        versions,
        answers_short,
        segments_max,
        read_chunks_max,
        write_chunks_max,
        payload_bytes_max,
    }
}

/// A message of the given type, version one, with 32 credits.
fn message(message_type: u32, body: &[u32]) -> Vec<u8> {
    wire(&[&[XID, 1, 32, message_type], body].concat())
}

fn check(bytes: &[u8]) -> Result<HeaderView<'_>, HeaderError> {
    HeaderView::new_checked(bytes, &LIMITS)
}

/// Expects the message to be one to answer with ERR_CHUNK, and says why.
fn malformed(bytes: &[u8], limits: &Limits) -> DecodeError {
    match HeaderView::new_checked(bytes, limits) {
        Err(HeaderError::Malformed { xid: Xid(XID), credits: 32, cause, .. }) => cause,
        other => panic!("expected a malformed header, got {other:?}"),
    }
}

fn limit_exceeded(bytes: &[u8], limits: &Limits) -> &'static str {
    match malformed(bytes, limits) {
        DecodeError::LimitExceeded { what } => what,
        other => panic!("expected an exceeded limit, got {other:?}"),
    }
}

/// A Read list entry with the link word before it: handle, then an offset that fits its high word.
fn read(position: u32, handle: u32, length: u32) -> [u32; 6] {
    [1, position, handle, length, 1, 0]
}

fn read_list(entries: &[[u32; 6]]) -> Vec<u32> {
    [&entries.concat()[..], &[0, 0, 0]].concat()
}

/// A Write chunk of segments with these lengths, without link word.
fn chunk(lengths: &[u32]) -> Vec<u32> {
    let mut words = vec![lengths.len() as u32];
    for (handle, &length) in (100..).zip(lengths) {
        words.extend([handle, length, 2, 0]);
    }
    words
}

fn write_list(chunks: &[&[u32]]) -> Vec<u32> {
    let mut words = vec![0];
    for lengths in chunks {
        words.push(1);
        words.extend(chunk(lengths));
    }
    words.extend([0, 0]);
    words
}

fn reply_chunk(lengths: &[u32]) -> Vec<u32> {
    [&[0, 0, 1][..], &chunk(lengths)].concat()
}

#[test]
fn receive_rdma_msg_with_three_null_lists() {
    // RFC 5666 section 4.1: "If the Read chunk list is null (a 32-bit word of zeros), then there
    // are no chunks to be transferred separately and the RPC message follows in its entirety."
    let bytes = message(MSG, &[0, 0, 0, XID, 77]);
    let view = check(&bytes).unwrap();
    assert_eq!((view.xid(), view.version(), view.credits()), (Xid(XID), 1, 32));
    assert_eq!(view.message_type(), MessageType::Msg);
    assert_eq!(view.header_bytes(), 28);
    assert_eq!(view.payload(), wire(&[XID, 77]));
    assert!(view.reads().is_empty() && view.writes().is_empty());
    assert!(view.reply_chunk().is_none() && view.error().is_none());
    assert_eq!(view.check_call(), Ok(()));
    assert!(check(&message(MSG, &NO_LISTS)).unwrap().payload().is_empty());
}

#[test]
fn receive_rdma_nomsg_with_a_position_zero_read_chunk() {
    // RFC 5666 section 5.1: "reference it as the first entry in the read chunk list with an XDR
    // position of zero".
    let bytes = message(NOMSG, &read_list(&[read(0, 7, 4096), read(0, 8, 100)]));
    let view = check(&bytes).unwrap();
    assert_eq!(view.message_type(), MessageType::Nomsg);
    let mut reads = view.reads();
    assert_eq!(reads.len(), 2);
    let target = Segment { handle: 7, length: 4096, offset: 1 << 32 };
    assert_eq!(reads.next(), Some(ReadSegment { position: 0, target }));
    assert_eq!(reads.len(), 1);
    assert_eq!(reads.next().map(|segment| segment.target.handle), Some(8));
    assert_eq!(reads.next(), None);
    assert_eq!(view.check_call(), Ok(()));
    assert!(view.payload().is_empty());
}

#[test]
fn receive_all_three_lists_in_one_message() {
    let mut words = read(8, 1, 10).to_vec();
    words.extend([0, 1]);
    words.extend(chunk(&[100, 50]));
    words.push(1);
    words.extend(chunk(&[]));
    words.extend([0, 1]);
    words.extend(chunk(&[64]));
    words.push(0x5555);
    let bytes = message(MSG, &words);
    let view = check(&bytes).unwrap();
    assert_eq!(view.reads().len(), 1);
    let writes: Vec<_> = view.writes().collect();
    assert_eq!(writes.len(), 2);
    assert_eq!((writes[0].segment_count(), writes[0].total_length()), (2, 150));
    let second = Segment { handle: 101, length: 50, offset: 2 << 32 };
    assert_eq!(writes[0].segments().nth(1), Some(second));
    assert_eq!((writes[1].segment_count(), writes[1].total_length()), (0, 0));
    let reply = view.reply_chunk().unwrap();
    assert_eq!((reply.segment_count(), reply.total_length()), (1, 64));
    assert_eq!(view.payload(), wire(&[0x5555]));
    assert_eq!(view.header_bytes() + 4, bytes.len());
}

#[test]
fn receive_rdma_msgp() {
    // RFC 5666 section 4.1: "two additional fields that specify the padding alignment and
    // threshold are inserted prior to the Read and Write chunk lists".
    let bytes = message(MSGP, &[4096, 512, 0, 0, 0, XID]);
    let view = check(&bytes).unwrap();
    assert_eq!(view.message_type(), MessageType::Msgp);
    assert_eq!(alignment_of(&bytes), Alignment::new(4096, 512));
    assert_eq!((view.header_bytes(), view.payload()), (36, &wire(&[XID])[..]));
    assert_eq!(view.check_call(), Ok(()));
    let cut = message(MSGP, &[4096, 512, 0, 0]);
    let error = DecodeError::Truncated { at: 32, wanted: 4 };
    assert_eq!(malformed(&cut, &LIMITS), error);
}

#[test]
fn receive_rdma_done() {
    let bytes = message(DONE, &[]);
    let view = check(&bytes).unwrap();
    assert_eq!((view.message_type(), view.header_bytes()), (MessageType::Done, 16));
    assert!(view.reads().is_empty() && view.writes().is_empty() && view.reply_chunk().is_none());
    assert!(view.payload().is_empty());
    assert_eq!(view.check_call(), Ok(()));
    assert_eq!(check(&message(DONE, &[0])).err(), Some(HeaderError::TooShort));
    assert!(check(&message(DONE, &NO_LISTS)).is_ok());
}

#[test]
fn receive_rdma_error_of_each_kind() {
    let extra = [&[9][..], &[0; 8]].concat();
    for (body, error, header_bytes) in [
        (&[2][..], RdmaError::Chunk, 20),
        (&[1, 1, 2], RdmaError::Version { low: 1, high: 2 }, 28),
        // RFC 5666 section 4.3: "default: uint32 rdma_extra[8]"; RFC 8166 has nothing there.
        (&[9], RdmaError::Other(9), 20),
        (&extra[..2], RdmaError::Other(9), 20),
        (&extra, RdmaError::Other(9), 20),
    ] {
        let bytes = message(ERROR, body);
        let view = check(&bytes).unwrap();
        assert_eq!((view.xid(), view.message_type()), (Xid(XID), MessageType::Error));
        assert_eq!((view.error(), view.header_bytes()), (Some(error), header_bytes), "{body:?}");
        assert!(view.reads().is_empty() && view.writes().is_empty());
        assert!(view.reply_chunk().is_none());
        assert_eq!(view.check_call(), Ok(()));
    }
    // The version range is missing in part or altogether: no well-formed RDMA_ERROR.
    assert_eq!(check(&message(ERROR, &[1, 1])).err(), Some(HeaderError::TooShort));
    assert_eq!(check(&message(ERROR, &[1])).err(), Some(HeaderError::TooShort));
}

#[test]
fn receive_rdma_error_of_another_version_expect_no_answer_to_an_error() {
    // RFC 5666 section 4.1: the first four fields and the start of the body "MUST always remain
    // aligned at these fixed offsets for all versions".
    let bytes = wire(&[XID, 2, 1, ERROR, 1, 2, 2]);
    let view = check(&bytes).unwrap();
    assert_eq!((view.version(), view.error()), (2, Some(RdmaError::Version { low: 2, high: 2 })));
    let cut = wire(&[XID, 2, 1, ERROR, 1]);
    assert_eq!(check(&cut).err(), Some(HeaderError::TooShort));
}

#[test]
fn receive_less_than_28_octets_expect_silence() {
    // RFC 8166 section 4.5: a message too short to be a header is dropped without an answer.
    let bytes = message(MSG, &NO_LISTS);
    for length in 0..28 {
        assert_eq!(check(&bytes[..length]).err(), Some(HeaderError::TooShort), "{length}");
    }
    let other_version = wire(&[XID, 9, 32, 0, 0, 0]);
    assert_eq!(check(&other_version).err(), Some(HeaderError::TooShort));
    // Sixteen octets are enough for the RDMA_DONE of this version only.
    let other_done = wire(&[XID, 2, 32, DONE]);
    assert_eq!(check(&other_done).err(), Some(HeaderError::TooShort));
}

#[test]
fn receive_another_version_expect_it_to_be_seen_before_anything_else() {
    // Neither the type nor the lists mean anything in a version one does not know.
    for message_type in [MSG, DONE, 13] {
        let bytes = wire(&[XID, 2, 32, message_type, 7, 7, 7]);
        let error = HeaderError::Version { xid: Xid(XID), version: 2 };
        assert_eq!(check(&bytes).err(), Some(error));
    }
}

#[test]
fn receive_a_word_that_cannot_be() {
    let cases = [
        // An unknown type.
        (5, vec![7, 7, 7], DecodeError::BadEnum { at: 12, value: 5 }),
        (u32::MAX, vec![7, 7, 7], DecodeError::BadEnum { at: 12, value: u32::MAX }),
        // A link that is neither null nor present.
        (MSG, vec![2, 0, 0], DecodeError::BadBool { at: 16, value: 2 }),
        (MSG, vec![0, 2, 0], DecodeError::BadBool { at: 20, value: 2 }),
        (MSG, vec![0, 0, 2], DecodeError::BadBool { at: 24, value: 2 }),
    ];
    // A segment count beyond the message.
    let counts = [1, 16, 17, u32::MAX]
        .map(|count| (MSG, vec![0, 1, count, 0], DecodeError::Truncated { at: 28, wanted: 16 }));
    for (message_type, body, cause) in cases.into_iter().chain(counts) {
        assert_eq!(malformed(&message(message_type, &body), &LIMITS), cause);
    }
}

#[test]
fn receive_lists_cut_short_anywhere() {
    let mut words = read(4, 1, 10).to_vec();
    words.extend(write_list(&[&[1, 2], &[3]]));
    words.truncate(words.len() - 1);
    words.push(1);
    words.extend(chunk(&[9, 9]));
    let bytes = message(NOMSG, &words);
    assert!(check(&bytes).is_ok());
    for length in 28..bytes.len() {
        let error = malformed(&bytes[..length], &LIMITS);
        assert!(matches!(error, DecodeError::Truncated { .. }), "{length}: {error:?}");
    }
}

#[test]
fn receive_a_list_that_never_ends() {
    let ones = message(MSG, &[1; 4096]);
    assert_eq!(limit_exceeded(&ones, &LIMITS), "segments in one chunk list");
    let endless = message(MSG, &vec![read(0, 1, 1); 1000].concat());
    assert_eq!(limit_exceeded(&endless, &LIMITS), "segments in one chunk list");
}

#[test]
fn receive_as_many_segments_as_the_limits_allow_and_one_more() {
    let entries: Vec<_> = (0..17).map(|n| read(8 * (n % 4), n, 1)).collect();
    assert!(check(&message(MSG, &read_list(&entries[..16]))).is_ok());
    let bytes = message(MSG, &read_list(&entries));
    assert_eq!(limit_exceeded(&bytes, &LIMITS), "segments in one chunk list");
    assert!(check(&message(MSG, &write_list(&[&[1; 16]]))).is_ok());
    assert!(check(&message(MSG, &write_list(&[&[1; 7], &[1; 9]]))).is_ok());
    assert!(check(&message(MSG, &reply_chunk(&[1; 16]))).is_ok());
    for lists in [reply_chunk(&[1; 17]), write_list(&[&[1; 17]]), write_list(&[&[1; 8], &[1; 9]])] {
        let bytes = message(MSG, &lists);
        assert_eq!(limit_exceeded(&bytes, &LIMITS), "segments in one chunk list");
    }
}

#[test]
fn receive_a_payload_page_by_page() {
    // RFC 5666 has no limit on segments, and clients of it registered 1 MiB page by page.
    let pages = 257;
    let entries: Vec<_> = (0..pages).map(|n| read(44, n, 4096 - 15 * u32::from(n == 0))).collect();
    let bytes = message(MSG, &read_list(&entries));
    let view = HeaderView::new_checked(&bytes, &Limits::DEFAULT).unwrap();
    assert_eq!(view.reads().len(), pages as usize);
    let lengths = vec![4096; pages as usize];
    for lists in [write_list(&[&lengths]), reply_chunk(&lengths)] {
        let bytes = message(MSG, &lists);
        let view = HeaderView::new_checked(&bytes, &Limits::DEFAULT).unwrap();
        let chunk = view.writes().chain(view.reply_chunk()).next().unwrap();
        assert_eq!(chunk.total_length(), u64::from(pages) * 4096);
    }
}

#[test]
fn receive_as_many_chunks_as_the_limits_allow_and_one_more() {
    let entries = [read(20, 1, 1), read(4, 1, 1), read(16, 1, 1), read(8, 1, 1), read(12, 1, 1)];
    let bytes = message(MSG, &read_list(&entries[..4]));
    let positions: Vec<u32> = check(&bytes).unwrap().reads().map(|read| read.position).collect();
    // RFC 8166 section 3.4.5 lets the list be in any order; it is handed on as it is.
    assert_eq!(positions, [20, 4, 16, 8]);
    let bytes = message(MSG, &read_list(&entries));
    assert_eq!(limit_exceeded(&bytes, &LIMITS), "chunks in the Read list");
    assert!(check(&message(MSG, &write_list(&[&[1][..]; 4]))).is_ok());
    let bytes = message(MSG, &write_list(&[&[1][..]; 5]));
    assert_eq!(limit_exceeded(&bytes, &LIMITS), "chunks in the Write list");
}

#[test]
fn lengths_are_summed_over_a_list_in_64_bits() {
    let limits = Limits { payload_bytes_max: 1000, ..Limits::DEFAULT };
    let fits = [
        read_list(&[read(4, 1, 600), read(8, 2, 400)]),
        write_list(&[&[300, 300], &[400]]),
        reply_chunk(&[999, 1]),
    ];
    for lists in fits {
        assert!(HeaderView::new_checked(&message(MSG, &lists), &limits).is_ok());
    }
    let exceeds = [
        read_list(&[read(4, 1, 600), read(8, 2, 401)]),
        write_list(&[&[300, 300], &[401]]),
        reply_chunk(&[999, 2]),
        // In 32 bits the sum would be 1000.
        write_list(&[&[0xffff_ffff, 1001]]),
        read_list(&[read(4, 1, 0x8000_0000), read(4, 2, 0x8000_0000)]),
    ];
    for lists in exceeds {
        let bytes = message(MSG, &lists);
        assert_eq!(limit_exceeded(&bytes, &limits), "bytes in one chunk list");
    }
    // The sums of the largest lengths do not wrap.
    let limits = Limits { payload_bytes_max: u32::MAX, ..Limits::DEFAULT };
    let one = message(MSG, &reply_chunk(&[u32::MAX]));
    let view = HeaderView::new_checked(&one, &limits).unwrap();
    assert_eq!(view.reply_chunk().map(|chunk| chunk.total_length()), Some(u64::from(u32::MAX)));
    let two = message(MSG, &reply_chunk(&[u32::MAX, u32::MAX]));
    assert_eq!(limit_exceeded(&two, &limits), "bytes in one chunk list");
}

#[test]
fn receive_a_segment_that_runs_past_the_address_space() {
    let segment = |length, low| [0, 0, 1, 1, 7, length, u32::MAX, low];
    // The last byte of the address space is memory as any other: a segment may end at 2^64.
    for (length, low) in [(15, 0xffff_fff0), (16, 0xffff_fff0), (0, u32::MAX), (1, u32::MAX)] {
        assert!(check(&message(MSG, &segment(length, low))).is_ok(), "{length} {low:x}");
    }
    let bytes = message(MSG, &segment(17, 0xffff_fff0));
    assert_eq!(malformed(&bytes, &LIMITS), DecodeError::SegmentWraps { at: 32 });
    let bytes = message(MSG, &[1, 4, 7, 2, u32::MAX, u32::MAX, 0, 0, 0]);
    assert_eq!(malformed(&bytes, &LIMITS), DecodeError::SegmentWraps { at: 24 });
}

#[test]
fn receive_chunks_next_to_each_other_expect_them_counted_as_one() {
    // Both drafts, section 3.4: they may be one item, page by page.
    let entries: Vec<_> = (0..16).map(|n| read(40 + 100 * n, n, 100)).collect();
    assert!(check(&message(MSG, &read_list(&entries))).is_ok());
    let apart: Vec<_> = (0..5).map(|n| read(40 + 104 * n, n, 100)).collect();
    let bytes = message(MSG, &read_list(&apart));
    assert_eq!(limit_exceeded(&bytes, &LIMITS), "chunks in the Read list");
}

#[test]
fn segments_of_length_zero_are_allowed_and_counted() {
    let bytes = message(MSG, &write_list(&[&[0, 5, 0]]));
    let chunk = check(&bytes).unwrap().writes().next().unwrap();
    assert_eq!((chunk.segment_count(), chunk.total_length()), (3, 5));
    let entries = vec![read(4, 1, 0); 17];
    let bytes = message(MSG, &read_list(&entries));
    assert_eq!(limit_exceeded(&bytes, &LIMITS), "segments in one chunk list");
}

#[test]
fn receive_chunks_of_no_segments() {
    // RFC 8166 section 4.3.2: an empty Write chunk asks for that result inline.
    let bytes = message(MSG, &write_list(&[&[], &[8], &[]]));
    let counts: Vec<_> =
        check(&bytes).unwrap().writes().map(|chunk| chunk.segment_count()).collect();
    assert_eq!(counts, [0, 1, 0]);
    let bytes = message(MSG, &reply_chunk(&[]));
    let reply = check(&bytes).unwrap().reply_chunk().unwrap();
    assert_eq!((reply.segment_count(), reply.segments().next()), (0, None));
}

#[test]
fn a_call_has_a_position_zero_chunk_in_rdma_nomsg_only() {
    let with_zero = read_list(&[read(8, 1, 4), read(0, 2, 4)]);
    let without = read_list(&[read(8, 1, 4)]);
    let verdict = |message_type, lists: &[u32]| {
        let bytes = message(message_type, lists);
        check(&bytes).unwrap().check_call()
    };
    assert_eq!(verdict(NOMSG, &with_zero), Ok(()));
    assert_eq!(verdict(MSG, &without), Ok(()));
    assert_eq!(verdict(MSG, &with_zero), Err(DecodeError::UnexpectedPositionZero));
    assert_eq!(verdict(NOMSG, &without), Err(DecodeError::MissingPositionZero));
    assert_eq!(verdict(NOMSG, &NO_LISTS), Err(DecodeError::MissingPositionZero));
    assert_eq!(verdict(NOMSG, &reply_chunk(&[64])), Err(DecodeError::MissingPositionZero));
    let padded = [&[8, 8][..], &with_zero].concat();
    assert_eq!(verdict(MSGP, &padded), Err(DecodeError::UnexpectedPositionZero));
}

#[test]
fn limits_above_their_bounds_count_as_the_bounds() {
    let limits = limits_of(u16::MAX, u32::MAX);
    assert!(!limits.within_bounds() && limits.clamped().within_bounds());
    let full = [1; SEGMENTS_MAX];
    let positions = (0..SEGMENTS_MAX as u32).map(|n| n % READ_CHUNKS_MAX as u32 * 4000);
    let entries: Vec<_> = positions.map(|position| read(position, 1, 1)).collect();
    let mut words = vec![8, 8];
    words.extend(entries.concat());
    words.extend(write_list(&[&full[..SEGMENTS_MAX / WRITE_CHUNKS_MAX]; WRITE_CHUNKS_MAX]));
    words.pop();
    words.push(1);
    words.extend(chunk(&full));
    let bytes = message(MSGP, &words);
    assert_eq!(bytes.len(), HEADER_BYTES_MAX);
    let view = HeaderView::new_checked(&bytes, &limits).unwrap();
    assert_eq!(view.header_bytes(), HEADER_BYTES_MAX);
    assert_eq!(view.reads().len(), SEGMENTS_MAX);
    let ninth = message(MSG, &write_list(&[&[1][..]; WRITE_CHUNKS_MAX + 1]));
    assert_eq!(limit_exceeded(&ninth, &limits), "chunks in the Write list");
    let chunks: Vec<_> = (0..9).map(|n| read(n * 4, 1, 1)).collect();
    let bytes = message(MSG, &read_list(&chunks));
    assert_eq!(limit_exceeded(&bytes, &limits), "chunks in the Read list");
}

#[test]
fn limits_of_zero_accept_no_chunks() {
    let limits = limits_of(0, 0);
    assert!(HeaderView::new_checked(&message(NOMSG, &NO_LISTS), &limits).is_ok());
    assert!(HeaderView::new_checked(&message(MSG, &reply_chunk(&[])), &limits).is_ok());
    limit_exceeded(&message(MSG, &read_list(&[read(4, 1, 0)])), &limits);
    limit_exceeded(&message(MSG, &write_list(&[&[]])), &limits);
    limit_exceeded(&message(MSG, &reply_chunk(&[0])), &limits);
}

#[test]
fn a_view_is_small() {
    assert!(size_of::<HeaderView<'_>>() <= 32);
}

#[test]
fn lists_say_how_long_they_are() {
    let reads = [1, 40, 9, 100, 0, 0, 1, 44, 9, 8, 0, 0, 0];
    let mut words = reads.to_vec();
    words.extend(&write_list(&[&[5], &[6], &[7]])[1..]);
    let bytes = message(MSG, &words);
    let view = check(&bytes).unwrap();
    let (mut reads, mut writes) = (view.reads(), view.writes());
    assert_eq!((reads.size_hint(), writes.size_hint()), ((2, Some(2)), (3, Some(3))));
    assert!(reads.next().is_some() && writes.next().is_some());
    assert_eq!((reads.size_hint(), writes.size_hint()), ((1, Some(1)), (2, Some(2))));
}
