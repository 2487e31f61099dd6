//! The functions of the plain call and the plain reply, compared with the general parsers: both take the same
//! messages with the same fields, and emit the same bytes.

use spinrpc_proto::ids::Xid;
use spinrpc_proto::limits::Limits;
use spinrpc_proto::plain::{CALL_PAIRS, Pair, PlainCall, PlainReply, REPLY_PAIRS};
use spinrpc_proto::rdma::{Body, HeaderRepr, HeaderView, Lists, MessageType};
use spinrpc_proto::rpc::{AcceptStatus, CallHeader, Direction, OpaqueAuth, ReplyBody, ReplyHeader};
use spinrpc_proto::version::{TransportVersion, Versions};

/// The input is a message.
pub fn run(message: &[u8]) {
    let call = words::<CALL_PAIRS>(message);
    let call = call.and_then(|(xid, pairs)| PlainCall::parse(xid, &pairs));
    let reply = words::<REPLY_PAIRS>(message);
    let reply = reply.and_then(|(xid, pairs)| PlainReply::parse(xid, &pairs));
    assert_eq!(call, general_call(message));
    assert_eq!(reply, general_reply(message));
    // A credit word of zero is taken, and never sent.
    if let Some(call) = call.filter(|call| call.credits > 0) {
        let bytes = call_bytes(&call);
        assert_eq!(bytes, message[..bytes.len()]);
        assert_eq!(bytes, general_call_bytes(&call));
    }
    if let Some(reply) = reply.filter(|reply| reply.credits > 0) {
        let bytes = reply_bytes(&reply);
        assert_eq!(bytes, message[..bytes.len()]);
        assert_eq!(bytes, general_reply_bytes(&reply));
    }
}

/// The words of a message as they lie in memory, if it has so many.
fn words<const PAIRS: usize>(message: &[u8]) -> Option<([u8; 4], [Pair; PAIRS])> {
    let (xid, rest) = message.split_first_chunk()?;
    let (pairs, _) = rest.as_chunks::<8>();
    let pairs = pairs.first_chunk::<PAIRS>()?.map(Pair::from_ne_bytes);
    Some((*xid, pairs))
}

fn bytes((xid, pairs): ([u8; 4], &[Pair])) -> Vec<u8> {
    xid.into_iter().chain(pairs.iter().flat_map(|pair| pair.to_ne_bytes())).collect()
}

fn call_bytes(call: &PlainCall) -> Vec<u8> {
    let (xid, pairs) = call.emit();
    bytes((xid, &pairs))
}

fn reply_bytes(reply: &PlainReply) -> Vec<u8> {
    let (xid, pairs) = reply.emit();
    bytes((xid, &pairs))
}

/// The XID, the credits and the RPC message of an RDMA_MSG without chunks.
fn general(message: &[u8]) -> Option<(Xid, u32, &[u8])> {
    let limits = Limits { versions: Versions::One, ..Limits::DEFAULT };
    let view = HeaderView::new_checked(message, &limits).ok()?;
    let has_chunks =
        !view.reads().is_empty() || !view.writes().is_empty() || view.reply_chunk().is_some();
    let is_plain = view.message_type() == MessageType::Msg && !has_chunks;
    is_plain.then(|| (view.xid(), view.credits(), view.payload()))
}

fn general_call(message: &[u8]) -> Option<PlainCall> {
    let (xid, credits, stream) = general(message)?;
    let (header, _) = CallHeader::parse(stream).ok()?;
    let CallHeader { program, version, procedure, credential, verifier, .. } = header;
    let is_plain = header.xid == xid && credential == OpaqueAuth::NONE && verifier == credential;
    is_plain.then_some(PlainCall { xid, credits, program, version, procedure })
}

fn general_reply(message: &[u8]) -> Option<PlainReply> {
    let (xid, credits, stream) = general(message)?;
    let (header, _) = ReplyHeader::parse(stream).ok()?;
    let success = ReplyBody::Accepted { verifier: OpaqueAuth::NONE, status: AcceptStatus::Success };
    (header == ReplyHeader { xid, body: success }).then_some(PlainReply { xid, credits })
}

/// An RDMA_MSG without chunks; `emit` writes an RPC header of this length.
fn general_bytes(
    xid: Xid,
    credits: u32,
    rpc_bytes: usize,
    emit: impl FnOnce(&mut [u8]) -> usize,
) -> Vec<u8> {
    let (version, body) = (TransportVersion::One, Body::Msg(Lists::EMPTY));
    let header = HeaderRepr::new(version, Direction::Call, xid, credits, body);
    let at = header.buffer_len();
    let mut bytes = vec![0; at + rpc_bytes];
    header.emit(&mut bytes[..at]);
    emit(&mut bytes[at..]);
    bytes
}

fn general_call_bytes(call: &PlainCall) -> Vec<u8> {
    let PlainCall { xid, credits, program, version, procedure } = *call;
    let (credential, verifier) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
    let header = CallHeader { xid, program, version, procedure, credential, verifier };
    general_bytes(xid, credits, header.buffer_len(), |bytes| header.emit(bytes))
}

fn general_reply_bytes(reply: &PlainReply) -> Vec<u8> {
    let header = ReplyHeader::success(reply.xid);
    general_bytes(reply.xid, reply.credits, header.buffer_len(), |bytes| header.emit(bytes))
}
