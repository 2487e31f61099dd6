//! Messages under RPCSEC_GSS that did not come in one piece: in an RDMA_MSGP, or with their body in a Read chunk.
//!
//! "This security mechanism will be unaffected by the RDMA transport" (RFC 5666 section 11). What is signed or sealed is the
//! XDR stream: without padding, which "is implemented completely within the RDMA transport encoding" (section 3.9), and with
//! the data of a chunk in their place (section 3.4).

use crate::api::errors::CallError;
use crate::api::gss::NOT_AUTHENTIC;
use crate::mem::{Bulk, BulkPool};
use crate::reactor::types::calls::ReplyFrame;
use crate::reactor::types::protection::{ProtectError, private_block};
use crate::reactor::types::rfc5666::{Padded, PulledChunks};
use spinrpc_proto::rdma::v1::strip_padding;
use spinrpc_proto::rpc::ReplyHeader;
use spinrpc_proto::xdr::roundup4;

/// Longest RPC header of a reply: six words, the verifier, and the versions of a mismatch.
const REPLY_HEAD_BYTES: usize = 32 + 400;

/// The RPC message of an RDMA_MSGP without its padding, in private memory: its header, which the caller has read, and behind
/// it nothing but counted data, which are `rest`. Padding is reckoned from the begin of `rest`.
pub(in crate::api) fn without_padding(
    pool: &BulkPool,
    header: &[u8],
    rest: &[u8],
    padded: Padded,
) -> Result<Bulk, ProtectError> {
    let mut message = private_block(pool, header.len() + rest.len())?;
    let (head, body) = message.bytes_mut().split_at_mut(header.len());
    head.copy_from_slice(header);
    body.copy_from_slice(rest);
    let length = strip_padding(body, padded.alignment, padded.start);
    let length = length.ok_or(ProtectError::Forged)?;
    message.set_len(header.len() + length);
    Ok(message)
}

/// A message whose body, which begins `body_at` bytes into its stream, is a Read chunk, or has its data in one, in one piece
/// of private memory. The roundup of data in a chunk stands nowhere (section 3.7).
pub(in crate::api) fn with_chunk(
    pool: &BulkPool,
    stream: &[u8],
    body_at: usize,
    (position, data): (u32, &[u8]),
) -> Result<Bulk, ProtectError> {
    let position = position as usize;
    if !(body_at..=stream.len()).contains(&position) {
        return Err(ProtectError::Forged);
    }
    let (before, behind) = stream.split_at(position);
    let mut message = private_block(pool, stream.len() + roundup4(data.len()))?;
    let (begin, rest) = message.bytes_mut().split_at_mut(position);
    let (place, end) = rest.split_at_mut(roundup4(data.len()));
    begin.copy_from_slice(before);
    place[..data.len()].copy_from_slice(data);
    place[data.len()..].fill(0);
    end.copy_from_slice(behind);
    Ok(message)
}

/// A reply whose body is protected, in one piece, if it did not come so.
pub(in crate::api) fn whole_reply(
    pool: &BulkPool,
    frame: &mut ReplyFrame<'_>,
) -> Result<Option<Bulk>, CallError> {
    let whole = frame.buffers.as_mut().and_then(|buffers| buffers.whole.take());
    if whole.is_some() {
        return Ok(whole);
    }
    let pulled = frame.buffers.as_mut().map(|buffers| std::mem::take(&mut buffers.pulled));
    let pulled = pulled.filter(|pulled| !pulled.chunks.is_empty());
    let message = match (frame.padded.take(), pulled) {
        (None, None) => return Ok(None),
        (Some(padded), None) => reply_without_padding(pool, frame.stream, padded)?,
        (None, Some(PulledChunks { chunks: &[(position, _)], bulks: [Some(data)], .. })) => {
            let (_, body_at) = ReplyHeader::parse(frame.stream)?;
            with_chunk(pool, frame.stream, body_at, (position, data.bytes())).map_err(unread)?
        }
        _ => return Err(NOT_AUTHENTIC),
    };
    Ok(Some(message))
}

fn reply_without_padding(
    pool: &BulkPool,
    stream: &[u8],
    padded: Padded,
) -> Result<Bulk, CallError> {
    let mut reader = Padded::reader(Some(padded), stream);
    let header = ReplyHeader::read(&mut reader)?;
    let mut head = [0; REPLY_HEAD_BYTES];
    let length = header.emit(&mut head);
    let head = head.get(..length).ok_or(NOT_AUTHENTIC)?;
    without_padding(pool, head, reader.rest(), padded.behind(&reader)).map_err(unread)
}

fn unread(why: ProtectError) -> CallError {
    match why {
        ProtectError::NoMemory(_) => CallError::NoMemory,
        ProtectError::Failed | ProtectError::Forged => NOT_AUTHENTIC,
    }
}
