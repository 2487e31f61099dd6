//! Properties of every message, tried with many.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use spinrpc_proto::ids::{Procedure, Program, Version, Xid};
use spinrpc_proto::limits::{Limits, READ_CHUNKS_MAX, WRITE_CHUNKS_MAX};
use spinrpc_proto::rdma::v1::{
    Body, HeaderError, HeaderRepr, HeaderView, Lists, MessageType, emit_reply, reply_header_bytes,
};
use spinrpc_proto::rdma::{RdmaError, ReadSegment, Segment, WriteChunk};
use spinrpc_proto::rpc::{
    AcceptStatus, AuthFlavor, AuthStat, AuthSys, CallHeader, Groups, OpaqueAuth, RejectStatus,
    ReplyBody, ReplyHeader, message_direction,
};
use spinrpc_proto::version::Versions;
use spinrpc_proto::xdr::{Reader, Writer, padding, roundup4};

/// Wide enough for every header that the strategies below make.
const WIDE: Limits = Limits {
    versions: Versions::Both,
    answers_short: false,
    segments_max: 128,
    read_chunks_max: READ_CHUNKS_MAX as u16,
    write_chunks_max: WRITE_CHUNKS_MAX as u16,
    payload_bytes_max: u32::MAX,
};

/// The chunk lists of a header, owned.
#[derive(Clone, Debug)]
struct OwnedLists {
    reads: Vec<ReadSegment>,
    writes: Vec<Vec<Segment>>,
    reply: Option<Vec<Segment>>,
}

/// A header, owned.
#[derive(Clone, Debug)]
enum OwnedBody {
    Msg(OwnedLists),
    Nomsg(OwnedLists),
    Msgp(u32, u32, OwnedLists),
    Done,
    Error(RdmaError),
}

impl OwnedBody {
    fn lists(&self) -> Option<&OwnedLists> {
        match self {
            Self::Msg(lists) | Self::Nomsg(lists) | Self::Msgp(_, _, lists) => Some(lists),
            Self::Done | Self::Error(_) => None,
        }
    }

    fn emit(&self, xid: u32, credits: u32) -> Vec<u8> {
        let writes: Vec<&[Segment]> =
            self.lists().into_iter().flat_map(|lists| &lists.writes).map(Vec::as_slice).collect();
        let lists = self.lists().map_or(Lists::EMPTY, |lists| Lists {
            reads: &lists.reads,
            writes: &writes,
            reply: lists.reply.as_deref(),
        });
        let body = match *self {
            Self::Msg(_) => Body::Msg(lists),
            Self::Nomsg(_) => Body::Nomsg(lists),
            Self::Msgp(align, thresh, _) => Body::Msgp { align, thresh, lists },
            Self::Done => Body::Done,
            Self::Error(error) => Body::Error(error),
        };
        let header = HeaderRepr { xid: Xid(xid), credits, body };
        let mut bytes = vec![0xee; header.buffer_len()];
        assert_eq!(header.emit(&mut bytes), bytes.len());
        bytes
    }
}

fn segment() -> impl Strategy<Value = Segment> {
    let offset = prop_oneof![any::<u64>(), 0..0x1_0000_u64];
    // Sums of all lengths in a list stay below the limit; no segment wraps.
    (any::<u32>(), 0..0x0100_0000_u32, offset).prop_map(|(handle, length, offset)| Segment {
        handle,
        length,
        offset: offset.min(u64::MAX - u64::from(length)),
    })
}

fn lists() -> impl Strategy<Value = OwnedLists> {
    let read = (0..READ_CHUNKS_MAX as u32, segment())
        .prop_map(|(chunk, target)| ReadSegment { position: chunk * 4, target });
    let chunk = || vec(segment(), 0..6);
    (vec(read, 0..12), vec(chunk(), 0..5), option::of(chunk()))
        .prop_map(|(reads, writes, reply)| OwnedLists { reads, writes, reply })
}

fn body() -> impl Strategy<Value = OwnedBody> {
    let error = prop_oneof![
        (any::<u32>(), any::<u32>()).prop_map(|(low, high)| RdmaError::Version { low, high }),
        Just(RdmaError::Chunk),
        (3..u32::MAX).prop_map(RdmaError::Other),
    ];
    prop_oneof![
        4 => lists().prop_map(OwnedBody::Msg),
        2 => lists().prop_map(OwnedBody::Nomsg),
        1 => (any::<u32>(), any::<u32>(), lists())
            .prop_map(|(align, thresh, lists)| OwnedBody::Msgp(align, thresh, lists)),
        1 => Just(OwnedBody::Done),
        1 => error.prop_map(OwnedBody::Error),
    ]
}

fn segments(chunk: WriteChunk<'_>) -> Vec<Segment> {
    assert_eq!(chunk.segments().len(), chunk.segment_count());
    chunk.segments().collect()
}

/// Calls every accessor of whatever `bytes` are taken for; the lengths must agree.
fn use_whatever_it_is(bytes: &[u8]) {
    let Ok(view) = HeaderView::new_checked(bytes, &Limits::DEFAULT) else { return };
    assert!(view.version() == 1 || view.message_type() == MessageType::Error);
    assert_eq!(view.header_bytes() + view.payload().len(), bytes.len());
    assert_eq!(view.reads().len(), view.reads().count());
    assert_eq!(view.writes().len(), view.writes().map(segments).count());
    assert_eq!(view.error().is_some(), view.message_type() == MessageType::Error);
    assert_eq!(view.msgp().is_some(), view.message_type() == MessageType::Msgp);
    let _ = (view.xid(), view.credits(), view.check_call(), view.reply_chunk().map(segments));
    if view.message_type().to_wire() <= MessageType::Msgp.to_wire() {
        let mut reply = vec![0; reply_header_bytes(&view)];
        let written = emit_reply(&mut reply, view.xid(), 1, MessageType::Msg, &view, &[], None);
        assert_eq!(written, reply.len());
    }
}

fn opaque_auth() -> impl Strategy<Value = (u32, Vec<u8>)> {
    prop_oneof![Just((0, Vec::new())), (any::<u32>(), vec(any::<u8>(), 0..401))]
}

fn auth((flavor, body): &(u32, Vec<u8>)) -> OpaqueAuth<'_> {
    OpaqueAuth { flavor: AuthFlavor::from_wire(*flavor), body }
}

fn accept_status() -> impl Strategy<Value = AcceptStatus> {
    prop_oneof![
        Just(AcceptStatus::Success),
        Just(AcceptStatus::ProgUnavail),
        any::<(u32, u32)>().prop_map(|(low, high)| AcceptStatus::ProgMismatch { low, high }),
        Just(AcceptStatus::ProcUnavail),
        Just(AcceptStatus::GarbageArgs),
        Just(AcceptStatus::SystemErr),
    ]
}

fn reject_status() -> impl Strategy<Value = RejectStatus> {
    prop_oneof![
        any::<(u32, u32)>().prop_map(|(low, high)| RejectStatus::RpcMismatch { low, high }),
        any::<u32>().prop_map(|stat| RejectStatus::AuthError(AuthStat::from_wire(stat))),
    ]
}

/// Puts each replacement byte at its place, modulo the length.
fn mutated(mut bytes: Vec<u8>, mutations: &[(usize, u8)]) -> Vec<u8> {
    let length = bytes.len();
    for &(at, value) in mutations {
        bytes[at % length] = value;
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    #[test]
    fn a_transport_header_received_is_the_one_sent(
        xid: u32,
        credits in 1..u32::MAX,
        body in body(),
        payload in vec(any::<u8>(), 0..40),
    ) {
        let header = body.emit(xid, credits);
        // RFC 5666 section 4.1: after RDMA_DONE and RDMA_ERROR "no chunk list or RPC message
        // follows".
        let payload = if body.lists().is_some() { payload } else { Vec::new() };
        let bytes = [&header[..], &payload].concat();
        let view = HeaderView::new_checked(&bytes, &WIDE).unwrap();
        prop_assert_eq!((view.xid(), view.credits(), view.version()), (Xid(xid), credits, 1));
        let (mut reads, mut writes, mut reply) = (Vec::new(), Vec::new(), None);
        if let Some(lists) = body.lists() {
            (reads, writes, reply) =
                (lists.reads.clone(), lists.writes.clone(), lists.reply.clone());
        }
        prop_assert_eq!(view.reads().collect::<Vec<_>>(), reads);
        prop_assert_eq!(view.writes().map(segments).collect::<Vec<_>>(), writes);
        prop_assert_eq!(view.reply_chunk().map(segments), reply);
        let (message_type, msgp, error) = match body {
            OwnedBody::Msg(_) => (MessageType::Msg, None, None),
            OwnedBody::Nomsg(_) => (MessageType::Nomsg, None, None),
            OwnedBody::Msgp(align, thresh, _) => (MessageType::Msgp, Some((align, thresh)), None),
            OwnedBody::Done => (MessageType::Done, None, None),
            OwnedBody::Error(error) => (MessageType::Error, None, Some(error)),
        };
        prop_assert_eq!((view.message_type(), view.msgp(), view.error()), (message_type, msgp, error));
        if !matches!(error, Some(RdmaError::Other(_))) {
            prop_assert_eq!(view.header_bytes(), header.len());
            prop_assert_eq!(view.payload(), payload);
        }
    }

    #[test]
    fn a_transport_header_cut_short_is_never_accepted(body in body(), xid: u32) {
        let bytes = body.emit(xid, 7);
        let known_code = !matches!(body, OwnedBody::Error(RdmaError::Other(_)));
        for length in 0..bytes.len() {
            let cut = HeaderView::new_checked(&bytes[..length], &WIDE);
            prop_assert!(cut.is_err() || !known_code, "{} of {}", length, bytes.len());
            if length < 28 && known_code {
                prop_assert_eq!(cut.err(), Some(HeaderError::TooShort));
            }
        }
    }

    #[test]
    fn a_header_is_emitted_alike_into_every_buffer(lists in lists(), extra in 1..9_usize) {
        let writes: Vec<&[Segment]> = lists.writes.iter().map(Vec::as_slice).collect();
        let lists =
            Lists { reads: &lists.reads, writes: &writes, reply: lists.reply.as_deref() };
        let header = HeaderRepr { xid: Xid(1), credits: 1, body: Body::Nomsg(lists) };
        let length = header.buffer_len();
        let mut exact = vec![0xdd; length];
        let mut roomy = vec![0xee; length + extra];
        prop_assert_eq!((header.emit(&mut exact), header.emit(&mut roomy)), (length, length));
        prop_assert_eq!(&roomy[..length], &exact[..]);
        prop_assert!(roomy[length..].iter().all(|&byte| byte == 0xee));
    }

    #[test]
    fn a_reply_echoes_chunks_with_what_was_placed(
        lists in lists(),
        nomsg: bool,
        shares in vec(0..=100_u32, 5),
        reply_share in option::of(0..=100_u32),
    ) {
        let call = OwnedBody::Msg(lists.clone()).emit(3, 4);
        let call = HeaderView::new_checked(&call, &WIDE).unwrap();
        let part = |chunk: WriteChunk<'_>, share: u32| {
            (chunk.total_length() * u64::from(share) / 100) as u32
        };
        let placed: Vec<u32> =
            call.writes().zip(&shares).map(|(chunk, &share)| part(chunk, share)).collect();
        let reply_placed =
            call.reply_chunk().and_then(|chunk| Some(part(chunk, reply_share?)));
        let message_type = if nomsg { MessageType::Nomsg } else { MessageType::Msg };
        let mut bytes = vec![0; reply_header_bytes(&call)];
        let written =
            emit_reply(&mut bytes, Xid(3), 9, message_type, &call, &placed, reply_placed);
        prop_assert_eq!(written, bytes.len());

        let reply = HeaderView::new_checked(&bytes, &WIDE).unwrap();
        prop_assert_eq!((reply.xid(), reply.credits()), (Xid(3), 9));
        prop_assert_eq!(reply.message_type(), message_type);
        prop_assert!(reply.reads().is_empty());
        prop_assert_eq!(reply.writes().len(), lists.writes.len());
        for ((sent, echo), &length) in lists.writes.iter().zip(reply.writes()).zip(&placed) {
            check_echo(sent, echo, length);
        }
        prop_assert_eq!(reply.reply_chunk().is_some(), lists.reply.is_some());
        if let (Some(sent), Some(echo)) = (&lists.reply, reply.reply_chunk()) {
            check_echo(sent, echo, reply_placed.unwrap_or(0));
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
        use_whatever_it_is(&bytes);
        let _ = CallHeader::parse(&bytes);
        let _ = ReplyHeader::parse(&bytes);
        let _ = AuthSys::parse(&bytes);
        let _ = message_direction(&bytes);
    }

    #[test]
    fn small_random_words_never_panic(words in vec(0..6_u32, 0..120)) {
        // Small words make plausible links, counts and types; random bytes never get that far.
        let bytes = super::wire(&words);
        use_whatever_it_is(&bytes);
        use_whatever_it_is(&[&super::wire(&[1, 1, 1])[..], &bytes].concat());
        let _ = CallHeader::parse(&[&super::wire(&[1, 0, 2])[..], &bytes].concat());
        let _ = ReplyHeader::parse(&[&super::wire(&[1, 1])[..], &bytes].concat());
        let _ = AuthSys::parse(&bytes);
    }

    #[test]
    fn a_mutated_transport_header_never_panics(
        body in body(),
        mutations in vec((any::<usize>(), any::<u8>()), 1..4),
    ) {
        use_whatever_it_is(&mutated(body.emit(1, 1), &mutations));
    }

    #[test]
    fn a_call_header_received_is_the_one_sent(
        words: [u32; 4],
        credential in opaque_auth(),
        verifier in opaque_auth(),
        arguments in vec(any::<u8>(), 0..20),
        mutations in vec((any::<usize>(), any::<u8>()), 1..4),
    ) {
        let header = CallHeader {
            xid: Xid(words[0]),
            program: Program(words[1]),
            version: Version(words[2]),
            procedure: Procedure(words[3]),
            credential: auth(&credential),
            verifier: auth(&verifier),
        };
        let length = header.buffer_len();
        let mut bytes = vec![0xee; length];
        prop_assert_eq!(header.emit(&mut bytes), length);
        for cut in 0..length {
            prop_assert!(CallHeader::parse(&bytes[..cut]).is_err());
        }
        let _ = CallHeader::parse(&mutated(bytes.clone(), &mutations));
        bytes.extend(arguments);
        prop_assert_eq!(CallHeader::parse(&bytes), Ok((header, length)));
    }

    #[test]
    fn a_reply_header_received_is_the_one_sent(
        xid: u32,
        verifier in opaque_auth(),
        accepted in accept_status(),
        denied in option::of(reject_status()),
        results in vec(any::<u8>(), 0..20),
        mutations in vec((any::<usize>(), any::<u8>()), 1..4),
    ) {
        let body = match denied {
            Some(status) => ReplyBody::Denied(status),
            None => ReplyBody::Accepted { verifier: auth(&verifier), status: accepted },
        };
        let header = ReplyHeader { xid: Xid(xid), body };
        let length = header.buffer_len();
        let mut bytes = vec![0xee; length];
        prop_assert_eq!(header.emit(&mut bytes), length);
        for cut in 0..length {
            prop_assert!(ReplyHeader::parse(&bytes[..cut]).is_err());
        }
        let _ = ReplyHeader::parse(&mutated(bytes.clone(), &mutations));
        bytes.extend(results);
        prop_assert_eq!(ReplyHeader::parse(&bytes), Ok((header, length)));
    }

    #[test]
    fn auth_sys_received_is_the_one_sent(
        words: [u32; 3],
        machine_name in vec(any::<u8>(), 0..256),
        gids in vec(any::<u32>(), 0..17),
    ) {
        let user = AuthSys {
            stamp: words[0],
            machine_name: &machine_name,
            uid: words[1],
            gid: words[2],
            groups: Groups::new(&gids).unwrap(),
        };
        let mut body = [0; 400];
        let length = user.emit(&mut body).unwrap();
        prop_assert_eq!(AuthSys::parse(&body[..length]), Ok(user));
        for cut in 0..length {
            prop_assert!(AuthSys::parse(&body[..cut]).is_err());
        }
    }

    #[test]
    fn xdr_items_read_are_those_written(
        word: u32,
        long: i64,
        flag: bool,
        data in vec(any::<u8>(), 0..70),
        text in ".{0,20}",
    ) {
        let mut bytes = vec![0xee; 4 + 8 + 4 + 4 + roundup4(data.len()) + 4 + roundup4(text.len())
            + roundup4(data.len())];
        let mut writer = Writer::new(&mut bytes);
        writer.u32(word);
        writer.i64(long);
        writer.bool(flag);
        writer.opaque(&data);
        writer.string(&text);
        writer.fixed(&data);
        let length = writer.finish().unwrap();
        prop_assert_eq!(length, bytes.len());

        let mut reader = Reader::new(&bytes);
        prop_assert_eq!(reader.u32(), Ok(word));
        prop_assert_eq!(reader.i64(), Ok(long));
        prop_assert_eq!(reader.bool(), Ok(flag));
        prop_assert_eq!(reader.opaque(data.len()), Ok(&data[..]));
        prop_assert_eq!(reader.string(text.len()), Ok(&text[..]));
        prop_assert_eq!(reader.fixed(data.len()), Ok(&data[..]));
        prop_assert_eq!(reader.finish(), Ok(()));
        prop_assert_eq!(reader.position(), length);
    }

    #[test]
    fn a_writer_stays_within_its_buffer(
        room in 0..40_usize,
        items in vec(vec(any::<u8>(), 0..20), 0..8),
    ) {
        let mut bytes = [0xee; 48];
        let (buffer, beyond) = bytes.split_at_mut(room);
        let mut writer = Writer::new(buffer);
        let mut expected = Vec::new();
        for item in &items {
            writer.opaque(item);
            expected.extend((item.len() as u32).to_be_bytes());
            expected.extend(item);
            expected.extend(vec![0; padding(item.len())]);
        }
        prop_assert_eq!(writer.len(), expected.len());
        let finished = writer.finish();
        prop_assert!(beyond.iter().all(|&byte| byte == 0xee));
        match finished {
            Ok(length) => prop_assert_eq!(&buffer[..length], &expected[..]),
            Err(overflow) => {
                prop_assert_eq!(overflow.needed_bytes, expected.len());
                prop_assert!(overflow.needed_bytes > room);
            }
        }
    }
}

/// RFC 8166 section 4.3.2: `echo` has the segments of `sent`, filled in order with `placed` bytes.
fn check_echo(sent: &[Segment], echo: WriteChunk<'_>, placed: u32) {
    assert_eq!(echo.segment_count(), sent.len());
    assert_eq!(echo.total_length(), u64::from(placed));
    let mut full_so_far = true;
    for (sent, echo) in sent.iter().zip(echo.segments()) {
        assert_eq!((echo.handle, echo.offset), (sent.handle, sent.offset));
        assert!(echo.length <= sent.length);
        assert!(full_so_far || echo.length == 0, "a gap before {echo:?}");
        full_so_far &= echo.length == sent.length;
    }
}
