//! Properties of every version-two message, tried with many.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use spinrpc_proto::ids::Xid;
use spinrpc_proto::limits::Limits;
use spinrpc_proto::rdma::v2::{Body, HeaderRepr, OptionalBody};
use spinrpc_proto::rdma::{HeaderView, MessageType, ReadSegment, Segment, WriteChunk, v1};
use spinrpc_proto::rpc::Direction;
use spinrpc_proto::version::{TransportVersion, Versions};

use super::wire;

const TWO: Limits =
    Limits { versions: Versions::Two, payload_bytes_max: u32::MAX, ..Limits::DEFAULT };

/// A header, owned.
#[derive(Clone, Debug)]
enum Owned {
    Lists {
        long: bool,
        reads: Vec<ReadSegment>,
        writes: Vec<Vec<Segment>>,
        reply: Option<Vec<Segment>>,
    },
    Optional {
        option: u32,
        info: Vec<u8>,
    },
}

impl Owned {
    fn emit(&self, direction: Direction, xid: u32, credits: u32) -> Vec<u8> {
        let mut all: Vec<&[Segment]> = Vec::new();
        let body = match self {
            Self::Lists { long, reads, writes, reply } => {
                all.extend(writes.iter().map(Vec::as_slice));
                let lists = v1::Lists { reads, writes: &all, reply: reply.as_deref() };
                if *long { Body::Nomsg(direction, lists) } else { Body::Msg(direction, lists) }
            }
            Self::Optional { option, info } => {
                Body::Optional(OptionalBody { direction, option: *option, info })
            }
        };
        let header = HeaderRepr { xid: Xid(xid), credits, body };
        let mut bytes = vec![0xee; header.buffer_len()];
        assert_eq!(header.emit(&mut bytes), bytes.len());
        bytes
    }
}

fn segment() -> impl Strategy<Value = Segment> {
    (any::<u32>(), 0..0x0100_0000_u32, any::<u64>()).prop_map(|(handle, length, offset)| Segment {
        handle,
        length,
        offset: offset.min(u64::MAX - u64::from(length)),
    })
}

fn owned() -> impl Strategy<Value = Owned> {
    let read =
        (0..8_u32, segment()).prop_map(|(n, target)| ReadSegment { position: n * 4, target });
    let chunk = || vec(segment(), 0..6);
    let lists = (any::<bool>(), vec(read, 0..12), vec(chunk(), 0..5), option::of(chunk()));
    prop_oneof![
        3 => lists.prop_map(|(long, reads, writes, reply)| Owned::Lists { long, reads, writes, reply }),
        1 => (any::<u32>(), vec(any::<u8>(), 0..70))
            .prop_map(|(option, info)| Owned::Optional { option, info }),
    ]
}

fn direction() -> impl Strategy<Value = Direction> {
    prop_oneof![Just(Direction::Call), Just(Direction::Reply)]
}

fn segments(chunk: WriteChunk<'_>) -> Vec<Segment> {
    chunk.segments().collect()
}

/// Calls every accessor of whatever `bytes` are taken for; the lengths must agree.
fn use_whatever_it_is(bytes: &[u8]) {
    let Ok(view) = HeaderView::new_checked(bytes, &TWO) else { return };
    assert!(view.version() == 2 || view.message_type() == MessageType::Error);
    assert_eq!(view.header_bytes() + view.payload().len(), bytes.len());
    assert_eq!(view.reads().len(), view.reads().count());
    assert_eq!(view.writes().len(), view.writes().map(segments).count());
    assert_eq!(view.error().is_some(), view.message_type() == MessageType::Error);
    assert_eq!(view.optional().is_some(), view.message_type() == MessageType::Optional);
    assert!(view.msgp().is_none() && (view.direction().is_some() || view.version() != 2));
    let _ = (view.xid(), view.credits(), view.check_call(), view.reply_chunk().map(segments));
    if view.message_type() != MessageType::Error {
        let mut reply = vec![0; v1::reply_header_bytes(&view)];
        let kind = MessageType::Msg;
        let written = v1::emit_reply(&mut reply, view.xid(), 1, kind, &view, &[], None);
        assert_eq!(written, reply.len());
        let reply = HeaderView::new_checked(&reply, &TWO).unwrap();
        assert_eq!(reply.direction(), Some(Direction::Reply));
        assert_eq!(reply.writes().len(), view.writes().len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    #[test]
    fn a_header_received_is_the_one_sent(
        xid: u32, credits in 1..u32::MAX, owned in owned(), direction in direction(),
        payload in vec(any::<u8>(), 0..40),
    ) {
        let header = owned.emit(direction, xid, credits);
        let bytes = [&header[..], &payload].concat();
        let view = HeaderView::new_checked(&bytes, &TWO).unwrap();
        prop_assert_eq!((view.xid(), view.credits(), view.version()), (Xid(xid), credits, 2));
        prop_assert_eq!(view.transport_version(), TransportVersion::Two);
        prop_assert_eq!((view.direction(), view.payload()), (Some(direction), &payload[..]));
        prop_assert_eq!(view.header_bytes(), header.len());
        match owned {
            Owned::Lists { long, reads, writes, reply } => {
                prop_assert_eq!(view.message_type() == MessageType::Nomsg, long);
                prop_assert_eq!(view.reads().collect::<Vec<_>>(), reads);
                prop_assert_eq!(view.writes().map(segments).collect::<Vec<_>>(), writes);
                prop_assert_eq!(view.reply_chunk().map(segments), reply);
            }
            Owned::Optional { option, info } => {
                let body = view.optional().unwrap();
                prop_assert_eq!((body.direction, body.option), (direction, option));
                prop_assert_eq!(body.info, &info[..]);
            }
        }
    }

    #[test]
    fn a_header_cut_short_is_never_accepted(owned in owned(), direction in direction()) {
        let bytes = owned.emit(direction, 1, 7);
        for length in 0..bytes.len() {
            prop_assert!(HeaderView::new_checked(&bytes[..length], &TWO).is_err(), "{}", length);
        }
    }

    #[test]
    fn no_bytes_make_it_panic(
        words in vec(0..6_u32, 0..80), bytes in vec(any::<u8>(), 0..120), owned in owned(),
        mutations in vec((any::<usize>(), any::<u8>()), 1..4),
    ) {
        use_whatever_it_is(&bytes);
        use_whatever_it_is(&[&wire(&[1, 2, 1]), &bytes[..]].concat());
        use_whatever_it_is(&wire(&[&[1, 2, 1], &words[..]].concat()));
        let mut mutated = owned.emit(Direction::Call, 1, 1);
        let length = mutated.len();
        for (at, value) in mutations {
            mutated[at % length] = value;
        }
        use_whatever_it_is(&mutated);
    }
}
