//! Results of verified replies: unsealed, at once or by a thread, and given to the client's handler.

use super::client_context::NOT_AUTHENTIC;
use crate::api::client::{BesideReply, Reply, Token};
use crate::api::client_state::ClientEntry;
use crate::api::dispatch::Dispatch;
use crate::api::errors::CallError;
use crate::mem::{Bulk, BulkPool};
use crate::reactor::in_flight::gss_bodies::{Body, Purpose};
use crate::reactor::in_flight::gss_calls::SentCall;
use crate::reactor::in_flight::outgoing::take_all;
use crate::reactor::types::calls::ReplyFrame;
use crate::reactor::types::crypto_counts::CryptoCounts;
use crate::reactor::types::protection::{ProtectError, private_block, unseal};
use std::ops::Range;

/// Buffers of a call that come back with its reply.
type Buffers<'b> = (&'b mut [Option<Bulk>], &'b mut [Option<Bulk>]);

impl Dispatch {
    /// The header is verified, and says success. The results begin so many bytes into the message, and into the stream, which
    /// has no padding: positions of Read chunks are those in the stream.
    pub(super) fn deliver_verified(
        entry: &mut ClientEntry,
        frame: ReplyFrame<'_>,
        sent: &mut Option<SentCall>,
        (whole, (results_at, base), pool): (Option<Bulk>, (usize, usize), &BulkPool),
    ) {
        let Some(known) = sent.as_ref() else { return };
        let token = Token(frame.token);
        let (mut pulled, mut arguments, mut results) = (None, &mut [][..], &mut [][..]);
        if let Some(buffers) = frame.buffers {
            (arguments, results) = (&mut *buffers.arguments, &mut *buffers.results);
            if !buffers.pulled.chunks.is_empty() {
                buffers.pulled.base = base;
                pulled = Some(&mut buffers.pulled);
            }
        }
        if !known.context.service.protects_body() && whole.is_none() {
            let placed = frame.placed;
            let padded = frame.padded;
            let beside = BesideReply { placed, arguments, results, pulled, padded };
            let reply = Reply { stream: &frame.stream[results_at..], beside: Some(beside) };
            return entry.handler.on_reply(token, Ok(reply));
        }
        if pulled.is_some() || !known.context.service.protects_body() {
            // Items of a protected reply are never chunks, and only such a reply is whole.
            return Self::deliver_results(entry, token, Err(NOT_AUTHENTIC), (arguments, results));
        }
        let private = match whole {
            Some(message) => Ok((message, results_at)),
            None => copy(pool, &frame.stream[results_at..]).map(|message| (message, 0)),
        };
        let begun = private.map(|(message, at)| {
            let (arguments, results) = (take_all(arguments), take_all(results));
            let then =
                Purpose::Deliver { token: frame.token, sent: sent.take()?, arguments, results };
            Some(Body { conn: frame.conn, message, at, then })
        });
        let ops = &entry.link.ops;
        match begun {
            Ok(Some(reply)) if ops.takes_body(frame.conn, reply.message.len()) => {
                ops.offload_unseal(reply);
            }
            Ok(Some(mut reply)) => {
                let unsealed = reply.seal_or_unseal(&ops.crypto);
                Self::deliver_results_of(entry, reply, unsealed);
            }
            Ok(None) => {}
            Err(error) => {
                Self::deliver_results(entry, token, Err(error), (arguments, results));
            }
        }
    }

    /// The results of a protected reply, which come without data items: only with buffers that come back.
    fn deliver_results(
        entry: &mut ClientEntry,
        token: Token,
        unsealed: Result<&[u8], CallError>,
        (arguments, results): Buffers<'_>,
    ) {
        if let (Err(error), Some(securing)) = (&unsealed, &entry.securing) {
            securing.count_error(error);
        }
        let reply = unsealed.map(|stream| {
            let placed = &crate::api::client::NOTHING_PLACED;
            let beside = BesideReply { placed, arguments, results, pulled: None, padded: None };
            Reply { stream, beside: Some(beside) }
        });
        entry.handler.on_reply(token, reply);
    }

    fn deliver_results_of(
        entry: &mut ClientEntry,
        Body { message, at, then, .. }: Body,
        unsealed: Result<Range<usize>, ProtectError>,
    ) {
        let Purpose::Deliver { token, mut arguments, mut results, .. } = then else { return };
        let stream = unsealed.map(|place| &message.bytes()[at..][place]);
        let stream = stream.map_err(|why| not_unsealed(&why));
        Self::deliver_results(entry, Token(token), stream, (&mut arguments, &mut results));
    }

    /// A reply whose results a thread has unsealed.
    pub(super) fn deliver_unsealed(
        &mut self,
        reply: Body,
        unsealed: Result<Range<usize>, ProtectError>,
    ) {
        let Some(entry) = self.client_of_calls(reply.conn) else { return };
        Self::deliver_results_of(entry, reply, unsealed);
    }
}

/// Unseals a body in private memory: where it came to lie the server may write still.
pub(super) fn unseal_copy(
    (pool, counts): (&BulkPool, &CryptoCounts),
    sent: &SentCall,
    body: &[u8],
) -> Result<(Bulk, Range<usize>), CallError> {
    let mut message = copy(pool, body)?;
    let context = &sent.context;
    let (body, sequence) = (message.bytes_mut(), sent.sequence);
    let unsealed = unseal(&context.context, context.service, body, sequence, counts);
    unsealed.map(|place| (message, place)).map_err(|why| not_unsealed(&why))
}

fn copy(pool: &BulkPool, body: &[u8]) -> Result<Bulk, CallError> {
    let mut message = private_block(pool, body.len()).map_err(|_| CallError::NoMemory)?;
    message.bytes_mut().copy_from_slice(body);
    Ok(message)
}

fn not_unsealed(why: &ProtectError) -> CallError {
    match why {
        ProtectError::NoMemory(_) => CallError::NoMemory,
        ProtectError::Failed | ProtectError::Forged => NOT_AUTHENTIC,
    }
}
