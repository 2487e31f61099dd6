//! RDMA_MSGP: padding before data, written and read (RFC 5666 section 3.9, R5666-29 and R5666-30).

use proptest::collection::vec;
use proptest::prelude::*;

use spinrpc_proto::rdma::v1::{MSGP_FIELDS_BYTES, alignment_of, insert_alignment, strip_padding};

use crate::prelude::*;

const XID: Xid = Xid(0x0102_0304);
const ANY_LENGTH: usize = 1 << 20;

/// Writes data in a stream that begins `start` bytes behind the first of the Send.
fn written(alignment: Alignment, start: usize, data: &[&[u8]]) -> Vec<u8> {
    let (mut buf, mut padding) = (vec![0xee; 1 << 16], Padding::new(alignment, start));
    let mut writer = StreamWriter::aligned(&mut buf, &[], &mut padding);
    data.iter().for_each(|bytes| writer.opaque(bytes));
    let encoded = writer.finish();
    buf.truncate(encoded.stream_bytes);
    buf
}

/// The figure of the section: seven bytes before the count word, and the second buffer behind
/// fourteen.
#[test]
fn the_data_are_forced_to_align_in_the_second_buffer() {
    let padded = written(Alignment::new(14, 8), 7, &[b"DDDDDDDDDDDD"]);
    assert_eq!(padded, b"\0\0\0\x0c\0\0\0DDDDDDDDDDDD");
    let (first, second) = padded.split_at(14 - 7);
    assert_eq!((first, second), (&b"\0\0\0\x0c\0\0\0"[..], &b"DDDDDDDDDDDD"[..]));
}

/// RFC 5666 section 11: RPCSEC_GSS "will be unaffected by the RDMA transport".
#[test]
fn what_padding_was_added_to_is_what_is_left_without_it() {
    let data: [&[u8]; 4] = [&[1; 5], &[], &[2; 300], &[3; 7]];
    let plain = written(Alignment::NONE, 0, &data);
    for (align, threshold, start) in [(64, 1, 28), (512, 100, 36), (7, 6, 1), (4096, 5, 4095)] {
        let alignment = Alignment::new(align, threshold);
        let mut stream = written(alignment, start, &data);
        assert!(stream.len() > plain.len());
        assert_eq!(strip_padding(&mut stream, alignment, start), Some(plain.len()));
        assert_eq!(stream[..plain.len()], plain);
        // Cut anywhere but behind one of the data, it is refused.
        let whole = written(alignment, start, &data);
        let refused = (0..whole.len())
            .filter(|end| strip_padding(&mut whole[..*end].to_vec(), alignment, start).is_none());
        assert_eq!(refused.count(), whole.len() - 4, "{align}");
    }
    let mut none = [0_u8; 0];
    assert_eq!(strip_padding(&mut none, Alignment::new(64, 1), 28), Some(0));
    for count in [u32::MAX, u32::MAX - 3, 1 << 31] {
        let mut stream = [&count.to_be_bytes()[..], &[0; 60]].concat();
        assert_eq!(strip_padding(&mut stream, Alignment::new(u32::MAX, 1), usize::MAX - 9), None);
    }
}

/// "The opaque data size at or above which padding is applied."
#[test]
fn data_at_the_threshold_are_padded_and_shorter_data_are_not() {
    let alignment = Alignment::new(64, 8);
    assert_eq!(written(alignment, 0, &[&[7; 7]]).len(), 4 + 8);
    assert_eq!(written(alignment, 0, &[&[7; 8]]).len(), 64 + 8);
    assert_eq!(written(alignment, 60, &[&[7; 8]]).len(), 4 + 8, "aligned as they are");
}

#[test]
fn several_data_of_one_message_are_padded_each() {
    let bytes = written(Alignment::new(32, 5), 28, &[&[1; 5], &[2; 3], &[3; 6]]);
    let mut reader = Reader::aligned(&bytes, Alignment::new(32, 5), 28);
    for (value, length, at) in [(1, 5, 32), (2, 3, 44), (3, 6, 64)] {
        let data = reader.opaque(ANY_LENGTH).unwrap();
        assert_eq!(data, vec![value; length]);
        let offset = data.as_ptr().addr() - bytes.as_ptr().addr();
        assert_eq!(28 + offset, at);
    }
    assert_eq!(reader.finish(), Ok(()));
    // Counts, data and roundup, and nothing else.
    assert_eq!(reader.stream_position(), 12 + 8 + 4 + 8);
}

#[test]
fn a_string_is_counted_data_as_well_and_data_without_count_are_not() {
    let (mut buf, alignment) = ([0; 100], Alignment::new(16, 3));
    let mut padding = Padding::new(alignment, 0);
    let mut writer = Writer::aligned(&mut buf, &mut padding);
    writer.fixed(b"abcd");
    writer.string("efg");
    assert_eq!((writer.len(), writer.stream_len(), writer.is_padded()), (20, 12, true));
    let mut reader = Reader::aligned(&buf[..20], alignment, 0);
    assert_eq!((reader.fixed(4), reader.string(3)), (Ok(&b"abcd"[..]), Ok("efg")));
    assert_eq!(reader.finish(), Ok(()));
}

/// Padding "is implemented completely within the RDMA transport encoding": a position counts the
/// XDR stream (section 3.4), to which it does not belong.
#[test]
fn the_position_of_a_read_chunk_does_not_count_padding() {
    let items = [
        Item { bytes: &[1; 100], placement: Placement::Inline },
        Item { bytes: &[2; 5001], placement: Placement::Chunk },
        Item { bytes: &[3; 90], placement: Placement::Inline },
    ];
    let alignment = Alignment::new(512, 90);
    let mut buf = vec![0; 4096];
    let mut padding = Padding::new(alignment, 60);
    let mut writer = StreamWriter::aligned(&mut buf, &items, &mut padding);
    items.iter().for_each(|_| writer.bulk());
    let encoded = writer.finish();
    assert!(encoded.fits && encoded.padded);
    assert_eq!(encoded.unreduced_bytes, 12 + 100 + 5004 + 92);
    let [reduced] = encoded.reduced() else { panic!("one item goes by chunk") };
    assert_eq!((reduced.position, reduced.length), (4 + 100 + 4, 5001));
    let chunks = [(reduced.position, reduced.length)];
    let xdr = Reader::aligned(&buf[..encoded.stream_bytes], alignment, 60);
    let mut reader = StreamReader::over(xdr, 0, Beside::Reads(&chunks));
    assert_eq!(reader.item(ANY_LENGTH), Ok(Found::Inline(items[0].bytes)));
    assert_eq!(reader.item(ANY_LENGTH), Ok(Found::Chunk { index: 0, length: 5001 }));
    assert_eq!(reader.item(ANY_LENGTH), Ok(Found::Inline(items[2].bytes)));
    assert_eq!(reader.finish(), Ok(()));
}

#[test]
fn an_item_that_padding_leaves_no_room_for_goes_out_of_the_stream() {
    let item = [Item { bytes: &[1; 100], placement: Placement::InlineIfRoom }];
    for (room, inline) in [(227, false), (228, true)] {
        let mut buf = vec![0; room];
        let mut padding = Padding::new(Alignment::new(128, 100), 0);
        let mut writer = StreamWriter::aligned(&mut buf, &item, &mut padding);
        writer.bulk();
        let encoded = writer.finish();
        assert_eq!((encoded.fits, encoded.reduced().is_empty()), (true, inline), "{room} bytes");
    }
}

/// "Two additional fields that specify the padding alignment and threshold are inserted prior to the
/// Read and Write chunk lists" (section 4.1).
#[test]
fn an_rdma_msg_becomes_an_rdma_msgp() {
    let lists = Chunks::none().read(40, 1, 8).write(&[segment(2, 16)]).reply(&[segment(3, 64)]);
    let plain = lists.msg(XID, 32, &rpc_call(XID));
    let mut buffer = [&[0xee; 20][..], &plain[..]].concat();
    let at = insert_alignment(&mut buffer, 20, Alignment::new(4096, 512));
    assert_eq!((at, &buffer[..at]), (12, &[0xee; 12][..]));
    assert_eq!(buffer[at..], lists.msgp(XID, 32, &rpc_call(XID)));
    assert_eq!(alignment_of(&buffer[at..]), Alignment::new(4096, 512));
    assert_eq!(alignment_of(&plain), Alignment::NONE);
    let before = buffer.clone();
    assert_eq!(insert_alignment(&mut buffer, MSGP_FIELDS_BYTES - 1, Alignment::new(8, 8)), 7);
    assert_eq!(insert_alignment(&mut buffer, 1 << 20, Alignment::new(8, 8)), 1 << 20);
    assert_eq!(buffer, before, "nothing is written where it does not fit");
}

/// "When decoding opaque values": the credential is one, too.
#[test]
fn receive_a_padded_credential() {
    let body = [9_u8; 20];
    let alignment = Alignment::new(64, 20);
    let (mut buf, start) = ([0; 200], 36);
    let mut padding = Padding::new(alignment, start);
    let mut writer = Writer::aligned(&mut buf, &mut padding);
    [XID.0, 0, 2, 100_003, 3, 1, 1].iter().for_each(|word| writer.u32(*word));
    writer.opaque(&body);
    writer.u32(0);
    writer.opaque(&[]);
    let length = writer.len();
    let mut reader = Reader::aligned(&buf[..length], alignment, start);
    let header = CallHeader::read(&mut reader).unwrap();
    assert_eq!((header.credential.body, reader.remaining()), (&body[..], 0));
    assert_eq!(reader.stream_position(), 40 + 20);
}

/// RFC 8166 section 4.6.1 reserves a value that RFC 5666 uses.
#[test]
fn receive_a_padded_call_expect_it_delivered_by_the_profiles_that_have_it() {
    let call = Chunks::none().msgp(XID, 32, &rpc_call(XID));
    for profile in READ_PROFILES {
        let mut server = under(Side::Server, profile);
        assert!(matches!(receive(&mut server, &call)[..], [Event::Call(_)]), "{profile:?}");
        delivered(&receive(&mut server, &plain_call(Xid(7))));
    }
    let mut server = under(Side::Server, Profile::Rfc8166);
    assert_eq!(receive(&mut server, &call), [Event::Error(XID, 1, RdmaError::Chunk)]);
    // Beside a Read chunk.
    for position in [40, 1000] {
        let call = Chunks::none().read(position, 9, 100).msgp(XID, 32, &rpc_call(XID));
        let mut server = under(Side::Server, Profile::Rfc5666);
        let slot = to_pull(&receive(&mut server, &call));
        assert_eq!(server.responder.pull(slot, &view(&call), 8, |_| {}), 1);
    }
}

/// "A header of message type RDMA_MSG or RDMA_MSGP MUST be followed by the RPC call or RPC reply
/// message body, beginning with the XID" (section 4.1, R5666-38 and R5666-39).
#[test]
fn receive_a_padded_message_that_is_no_call_expect_err_chunk() {
    let mut server = under(Side::Server, Profile::Rfc5666);
    let chunk = [Event::Error(XID, 1, RdmaError::Chunk)];
    for payload in [vec![], wire(&[XID.0]), rpc_call(Xid(1))] {
        assert_eq!(receive(&mut server, &Chunks::none().msgp(XID, 32, &payload)), chunk);
    }
    let position_zero = Chunks::none().read(0, 1, 100).msgp(XID, 32, &rpc_call(XID));
    assert_eq!(receive(&mut server, &position_zero), chunk);
    let reply = Chunks::none().msgp(XID, 32, &rpc_reply(XID));
    assert_eq!(receive(&mut server, &reply), [Event::Dropped(Dropped::WrongDirection)]);
}

#[test]
fn receive_a_padded_reply_expect_it_delivered_by_the_profiles_that_have_it() {
    for profile in READ_PROFILES {
        let mut client = under(Side::Client, profile);
        let chunks = &CallChunks::EMPTY;
        let (call, _) = client.requester.start_call(3, NEVER, chunks, &mut [0; 28]).unwrap();
        let reply = Chunks::none().msgp(call.xid, 32, &rpc_reply(call.xid));
        let events = receive(&mut client, &reply);
        let [Event::Reply(DeliveredReply { token: 3, stream, .. })] = events[..] else {
            panic!("{profile:?}: {events:?}");
        };
        assert_eq!(stream, ReplyStream::Inline { header_bytes: 36 });
        assert_eq!(client.requester.credits().granted(), 4, "as many as it asked for");
    }
}

#[test]
fn receive_a_padded_reply_that_fills_the_reply_chunk_expect_the_end() {
    let mut client = under(Side::Client, Profile::Rfc5666);
    let mut chunks = CallChunks::EMPTY;
    let offer = ChunkOffer { handle: 3, length: 64, offset: 3 << 32 | 0x40, segment_bytes: 0 };
    assert!(chunks.set_reply(offer));
    let (call, _) = client.requester.start_call(3, NEVER, &chunks, &mut [0; 100]).unwrap();
    let lists = Chunks::none().reply(&[segment(3, 64)]);
    let events = receive(&mut client, &lists.msgp(call.xid, 32, &rpc_reply(call.xid)));
    assert_eq!(events.last(), Some(&Event::Closed(PeerMisbehaved::ReplyChunkChanged)));
}

/// Alignments and thresholds that mean something, and any others.
fn alignment() -> impl Strategy<Value = (u32, u32)> {
    let align = prop_oneof![
        prop::sample::select(vec![4_u32, 8, 64, 512, 1024, 4096]),
        0..70_u32,
        any::<u32>()
    ];
    (align, prop_oneof![0..100_u32, any::<u32>()])
}

proptest! {
    /// Every length modulo four, every threshold around the length.
    #[test]
    fn what_was_padded_is_read_as_it_was(
        align in prop::sample::select(vec![4_u32, 8, 64, 512, 1024, 4096]),
        start in 0..500_usize,
        lengths in vec(0..300_usize, 1..6),
        around in -2..=2_i64,
    ) {
        let thresh = (lengths[0] as i64 + around).max(0) as u32;
        let alignment = Alignment::new(align, thresh);
        let data: Vec<Vec<u8>> =
            lengths.iter().enumerate().map(|(n, length)| vec![n as u8 + 1; *length]).collect();
        let slices: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let bytes = written(alignment, start, &slices);
        let mut reader = Reader::aligned(&bytes, alignment, start);
        for expected in &slices {
            let read = reader.opaque(ANY_LENGTH).unwrap();
            prop_assert_eq!(read, *expected);
            if !read.is_empty() && read.len() >= thresh as usize {
                let at = start + read.as_ptr().addr() - bytes.as_ptr().addr();
                prop_assert_eq!(at % align as usize, 0);
            }
        }
        prop_assert_eq!(reader.finish(), Ok(()));
        let unpadded = written(Alignment::NONE, 0, &slices);
        prop_assert_eq!(reader.stream_position(), unpadded.len());
    }

    #[test]
    fn a_writer_counts_what_any_alignment_needs_and_writes_no_further(
        (align, thresh) in alignment(),
        room in 0..200_usize,
        lengths in vec(0..40_usize, 0..6),
    ) {
        let mut buf = vec![0; 300];
        let (inside, outside) = buf.split_at_mut(room);
        outside.fill(0xee);
        let mut padding = Padding::new(Alignment::new(align, thresh), 36);
        let mut writer = Writer::aligned(inside, &mut padding);
        for length in &lengths {
            let expected = writer.len().saturating_add(writer.opaque_bytes(*length));
            writer.opaque(&vec![5; *length]);
            prop_assert_eq!(writer.len(), expected);
        }
        prop_assert!(writer.stream_len() <= writer.len());
        prop_assert!(outside.iter().all(|byte| *byte == 0xee));
    }
}

#[test]
fn padding_can_be_stopped() {
    let (mut buf, alignment) = ([0; 100], Alignment::new(16, 3));
    let mut padding = Padding::new(alignment, 0);
    let mut writer = Writer::aligned(&mut buf, &mut padding);
    assert!(writer.is_empty() && !writer.is_padded());
    writer.stop_padding();
    writer.opaque(b"abcd");
    assert_eq!((writer.len(), writer.is_padded(), writer.is_empty()), (8, false, false));
    assert!(!Writer::new(&mut [0; 4]).is_padded());
}
