//! Messages of a peer in version two, and connections that speak it.

use crate::prelude::*;

pub(crate) use crate::messages::{Proto, receive};

pub(crate) const UNKNOWN: u32 = 15;

pub(crate) const BOTH: Limits = Limits { versions: Versions::Both, ..Limits::DEFAULT };

/// One end of a connection with so many slots for calls, if it is the one that calls.
pub(crate) fn end(side: Side, versions: Versions, slots: usize) -> Proto {
    let slots = if side == Side::Client { (slots, 0) } else { (0, slots) };
    let limits = Limits { versions, ..Limits::DEFAULT };
    with_slots(side, slots, Profile::Rfc8166, limits)
}

pub(crate) fn both_ways(side: Side) -> Proto {
    let mut end = with_slots(side, (4, 4), Profile::Rfc8166, BOTH).two_way();
    end.requester.negotiate(Negotiation::settled(TransportVersion::Two));
    end
}

/// Starts a call without chunks; also returns its transport header.
pub(crate) fn call(connection: &mut Proto, token: u64) -> (StartedCall, Vec<u8>) {
    let mut room = [0xee; 40];
    let chunks = &CallChunks::EMPTY;
    let (call, length) = connection.requester.start_call(token, NEVER, chunks, &mut room).unwrap();
    assert!(room[..40 - length].iter().all(|byte| *byte == 0xee));
    (call, room[40 - length..].to_vec())
}

pub(crate) fn view(bytes: &[u8]) -> HeaderView<'_> {
    HeaderView::new_checked(bytes, &BOTH).unwrap()
}

pub(crate) fn msg(direction: Direction, chunks: &Chunks, xid: Xid, payload: &[u8]) -> Vec<u8> {
    let header = chunks.emit((TransportVersion::Two, direction), MessageType::Msg, xid, 32);
    [&header, payload].concat()
}

pub(crate) fn nomsg(direction: Direction, chunks: &Chunks, xid: Xid) -> Vec<u8> {
    chunks.emit((TransportVersion::Two, direction), MessageType::Nomsg, xid, 32)
}

pub(crate) fn plain_call(xid: Xid) -> Vec<u8> {
    msg(Direction::Call, &Chunks::none(), xid, &rpc_call(xid))
}

/// RDMA2_MSG without chunks that carries an RPC reply and grants 32 credits.
pub(crate) fn plain_reply(xid: Xid) -> Vec<u8> {
    msg(Direction::Reply, &Chunks::none(), xid, &rpc_reply(xid))
}

/// RDMA2_OPTIONAL with 6 bytes of information and this payload; grants 3 credits, or asks for them.
pub(crate) fn optional(direction: Direction, option: u32, xid: Xid, payload: &[u8]) -> Vec<u8> {
    optional_with(direction, option, b"inform", xid, payload)
}

/// The same with any information.
pub(crate) fn optional_with(
    direction: Direction,
    option: u32,
    info: &[u8],
    xid: Xid,
    payload: &[u8],
) -> Vec<u8> {
    let body = Body::Optional { option, info };
    let header = HeaderRepr::new(TransportVersion::Two, direction, xid, 3, body);
    let mut bytes = vec![0; header.buffer_len()];
    header.emit(&mut bytes);
    [&bytes, payload].concat()
}
