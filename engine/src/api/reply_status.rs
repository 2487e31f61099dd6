//! Status of an RPC reply: results, or the error that the server answered (RFC 5531 section 9).
//! Used by the dispatch.

use super::errors::CallError;
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
    let mut reader = Reader::new(stream);
    pass_header(&mut reader).map(|()| reader.position())
}

/// Passes over the RPC header of a successful reply, or returns the error that the server answered.
#[inline]
pub(super) fn pass_header(reader: &mut Reader<'_>) -> Result<(), CallError> {
    check_status(&ReplyHeader::read(reader)?)
}

#[inline]
pub(super) fn check_status(header: &ReplyHeader<'_>) -> Result<(), CallError> {
    match header.body {
        ReplyBody::Accepted { status: AcceptStatus::Success, .. } => Ok(()),
        ReplyBody::Accepted { status, .. } => Err(CallError::Accepted(status)),
        ReplyBody::Denied(status) => Err(CallError::Rejected(status)),
    }
}
