//! Status of an RPC reply: results, or the error that the server answered (RFC 5531 section 9).
//! Used by the dispatch.

use super::errors::CallError;
use crate::reactor::words::padded::Padded;
use spinrpc_proto::rpc::{AcceptStatus, ReplyBody, ReplyHeader};
use spinrpc_proto::xdr::Reader;

/// True if the program answered, even without a NULL procedure.
pub(super) fn is_served(error: &CallError) -> bool {
    use AcceptStatus::{GarbageArgs, ProcUnavail, SystemErr};
    matches!(error, CallError::Accepted(ProcUnavail | GarbageArgs | SystemErr))
}

/// Offset of the results of a successful reply, or the error that the server answered.
#[inline]
pub(super) fn reply_status(stream: &[u8]) -> Result<usize, CallError> {
    let (header, results_at) = ReplyHeader::parse(stream)?;
    check_status(&header).map(|()| results_at)
}

/// As [`reply_status`], of a reply that came in an RDMA_MSGP.
#[cold]
pub(super) fn padded_reply_status(
    stream: &[u8],
    padded: &mut Padded<'_>,
) -> Result<usize, CallError> {
    let mut reader = Reader::aligned(stream, padded.alignment, padded.start);
    let header = ReplyHeader::read(&mut reader)?;
    padded.start += reader.position();
    check_status(&header).map(|()| reader.position())
}

#[inline]
fn check_status(header: &ReplyHeader<'_>) -> Result<(), CallError> {
    match header.body {
        ReplyBody::Accepted { status: AcceptStatus::Success, .. } => Ok(()),
        ReplyBody::Accepted { status, .. } => Err(CallError::Accepted(status)),
        ReplyBody::Denied(status) => Err(CallError::Rejected(status)),
    }
}
