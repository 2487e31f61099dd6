//! Replies of a responder (RFC 5666 sections 3.6, 3.7 and 5.2, RFC 8166 sections 3.4.6 and 4.3).

use crate::prelude::*;

const XID: Xid = Xid(0x0102_0304);

struct Sent {
    header: Vec<u8>,
    writes: Vec<WriteRequest>,
}

/// Answers a call; the header must end where its buffer ends.
fn answer(
    server: &mut Server,
    slot: SlotId,
    message: &[u8],
    shape: &ReplyShape<'_>,
) -> Result<Sent, ReplyRefused> {
    let call = view(message);
    let mut room = vec![0xee; ReplyRepr::bytes_of(&call, 0) + 8];
    let Server { responder, out } = server;
    let length = responder.reply(slot, &call, shape, &mut room, |write| out.write(write))?;
    let header = room.split_off(room.len() - length);
    assert!(room.iter().all(|byte| *byte == 0xee));
    let writes = server.out.take().into_iter().map(|event| match event {
        Event::Write(write) => write,
        other => panic!("{other:?}"),
    });
    Ok(Sent { header, writes: writes.collect() })
}

/// Answers one call on a new connection with 5 slots.
fn reply(message: &[u8], placed: &[u32], long_bytes: Option<u32>) -> Sent {
    let mut server = Server::new(5);
    let slot = delivered(&server.receive(message));
    let shape = ReplyShape { placed, long_bytes };
    let sent = answer(&mut server, slot, message, &shape).unwrap();
    assert_eq!(server.responder.in_progress(), 0);
    assert_eq!((view(&sent.header).xid(), view(&sent.header).credits()), (XID, 5));
    assert!(view(&sent.header).reads().is_empty());
    sent
}

fn lengths(segments: impl Iterator<Item = Segment>) -> Vec<u32> {
    segments.map(|segment| segment.length).collect()
}

fn written(sent: &Sent) -> Vec<Vec<u32>> {
    view(&sent.header).writes().map(|chunk| lengths(chunk.segments())).collect()
}

fn three_chunks() -> Vec<u8> {
    Chunks::none().write(&[segment(1, 100), segment(2, 50)]).write(&[]).write(&[segment(3, 8)]).msg(
        XID,
        32,
        &rpc_call(XID),
    )
}

#[test]
fn answer_a_plain_call_with_a_plain_header() {
    let sent = reply(&plain_call(XID), &[], None);
    assert!(view(&sent.header).is_chunkless() && sent.header.len() == 28);
    let sent = reply(&plain_call(XID), &[0, 0], None);
    assert!(view(&sent.header).is_chunkless(), "items that stand in the stream need no chunk");
}

#[test]
fn the_short_way_for_plain_calls_sends_the_same_header() {
    let mut server = Server::new(5);
    let message = plain_call(XID);
    let slot = delivered(&server.receive(&message));
    let mut header = [0; 28];
    assert_eq!(server.responder.reply_chunkless(slot, XID, &mut header), Ok(28));
    assert_eq!(header[..], reply(&message, &[], None).header[..]);
    assert_eq!(server.responder.in_progress(), 0);
    let again = server.responder.reply_chunkless(slot, XID, &mut [0; 28]);
    assert_eq!(again, Err(ReplyRefused::Stale));
    let next = delivered(&server.receive(&message));
    let stale = server.responder.reply_chunkless(slot, XID, &mut [0; 28]);
    assert_eq!((stale, next.index), (Err(ReplyRefused::Stale), slot.index));
}

#[test]
fn write_chunks_come_back_with_what_was_placed() {
    // RFC 8166 section 4.3.2: same chunks, segments, handles and offsets; only lengths change.
    let message = three_chunks();
    let sent = reply(&message, &[120, 0, 7], None);
    assert_eq!(written(&sent), [vec![100, 20], vec![], vec![7]]);
    for (ours, theirs) in view(&sent.header).writes().zip(view(&message).writes()) {
        for (ours, theirs) in ours.segments().zip(theirs.segments()) {
            assert_eq!((ours.handle, ours.offset), (theirs.handle, theirs.offset));
        }
    }
    assert_eq!(view(&sent.header).message_type(), MessageType::Msg);
}

#[test]
fn segments_are_written_in_order_without_gaps() {
    // RFC 5666 section 3.7; RFC 8166 section 3.4.6.2: no roundup is written.
    let write =
        |source, at, handle, length| WriteRequest { source, at, to: segment(handle, length) };
    let sent = reply(&three_chunks(), &[120, 0, 7], None);
    let expected = [
        write(WriteSource::Item(0), 0, 1, 100),
        write(WriteSource::Item(0), 100, 2, 20),
        write(WriteSource::Item(2), 0, 3, 7),
    ];
    assert_eq!(sent.writes, expected);
    let sent = reply(&three_chunks(), &[100, 0, 8], None);
    let expected = [write(WriteSource::Item(0), 0, 1, 100), write(WriteSource::Item(2), 0, 3, 8)];
    assert_eq!(sent.writes, expected, "nothing is written to a segment that is not used");
}

#[test]
fn chunks_without_a_result_come_back_unused() {
    // RFC 8166 section 4.3.2: the count of segments stays, their lengths are zero.
    let unused = [vec![0, 0], vec![], vec![0]];
    let sent = reply(&three_chunks(), &[], None);
    assert_eq!((written(&sent), sent.writes.len()), (unused.to_vec(), 0));
    let sent = reply(&three_chunks(), &[0, 0, 0, 0], None);
    assert_eq!((written(&sent), sent.writes.len()), (unused.to_vec(), 0));
    let sent = reply(&three_chunks(), &[1], None);
    assert_eq!(written(&sent), [vec![1, 0], vec![], vec![0]]);
}

fn with_reply_chunk() -> Vec<u8> {
    Chunks::none().write(&[segment(1, 100)]).reply(&[segment(8, 1000), segment(9, 1000)]).msg(
        XID,
        32,
        &rpc_call(XID),
    )
}

#[test]
fn a_long_reply_goes_by_reply_chunk() {
    // RFC 5666 section 5.2: RDMA_NOMSG, and the length says how much was written.
    let sent = reply(&with_reply_chunk(), &[40], Some(1500));
    let header = view(&sent.header);
    assert_eq!(header.message_type(), MessageType::Nomsg);
    assert_eq!(lengths(header.reply_chunk().unwrap().segments()), [1000, 500]);
    let sources: Vec<_> =
        sent.writes.iter().map(|write| (write.source, write.at, write.to)).collect();
    let expected = [
        (WriteSource::Item(0), 0, segment(1, 40)),
        (WriteSource::Stream, 0, segment(8, 1000)),
        (WriteSource::Stream, 1000, segment(9, 500)),
    ];
    assert_eq!(sources, expected);
}

/// Answers with more than the call has room for; expects ERR_CHUNK, no Write, and the slot free.
fn does_not_fit(message: &[u8], placed: &[u32], long_bytes: Option<u32>) {
    let mut server = Server::new(1);
    let slot = delivered(&server.receive(message));
    let refused = answer(&mut server, slot, message, &ReplyShape { placed, long_bytes }).err();
    assert_eq!(refused, Some(ReplyRefused::ChunkTooSmall), "{placed:?} {long_bytes:?}");
    assert_eq!(server.out.take(), []);
    assert_eq!(server.responder.in_progress(), 0);
    delivered(&server.receive(message));
}

#[test]
fn what_does_not_fit_is_answered_with_err_chunk() {
    // RFC 8166 section 4.5.3: the responder cannot use the chunks it was given.
    does_not_fit(&three_chunks(), &[151], None);
    does_not_fit(&three_chunks(), &[0, 1], None);
    does_not_fit(&three_chunks(), &[150, 0, 9], None);
    does_not_fit(&three_chunks(), &[150, 0, 8, 1], None);
    does_not_fit(&three_chunks(), &[u32::MAX], None);
    does_not_fit(&with_reply_chunk(), &[100], Some(2001));
    does_not_fit(&with_reply_chunk(), &[101], Some(2000));
    does_not_fit(&three_chunks(), &[], Some(24));
    does_not_fit(&plain_call(XID), &[], Some(24));
    does_not_fit(&plain_call(XID), &[1], None);
}

#[test]
fn a_call_is_answered_once() {
    let mut server = Server::new(1);
    let message = plain_call(XID);
    let old = delivered(&server.receive(&message));
    let shape = ReplyShape { placed: &[], long_bytes: None };
    assert!(answer(&mut server, old, &message, &shape).is_ok());
    let again = answer(&mut server, old, &message, &shape);
    assert_eq!(again.err(), Some(ReplyRefused::Stale));
    // Nor by the next call's owner in its name.
    let new = delivered(&server.receive(&message));
    assert_eq!(old.index, new.index);
    assert!(!server.responder.is_delivered(old) && server.responder.is_delivered(new));
    assert_eq!(answer(&mut server, old, &message, &shape).err(), Some(ReplyRefused::Stale));
    assert_eq!(server.out.take(), []);
    assert!(answer(&mut server, new, &message, &shape).is_ok());
}

#[test]
fn a_call_that_waits_for_its_chunks_has_no_answer_yet() {
    let mut server = Server::new(1);
    let message = Chunks::none().read(40, 1, 8).msg(XID, 32, &rpc_call(XID));
    let slot = to_pull(&server.receive(&message));
    let shape = ReplyShape { placed: &[], long_bytes: None };
    let refused = answer(&mut server, slot, &message, &shape);
    assert_eq!(refused.err(), Some(ReplyRefused::Stale));
    assert_eq!(server.responder.in_progress(), 1);
}
