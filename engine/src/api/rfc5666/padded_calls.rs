//! Calls and replies that came in an RDMA_MSGP (RFC 5666 section 3.9): their RPC headers may be padded, too.

use crate::api::call::Arguments;
use crate::api::dispatch::{Dispatch, refusal};
use crate::api::errors::CallError;
use crate::api::reply_status::check_status;
use crate::mem::Bulk;
use crate::reactor::in_flight::read_buffers::Sinks;
use crate::reactor::in_flight::server_call::Serving;
use crate::reactor::in_flight::upcalls::CallFrame;
use crate::reactor::types::calls::{CallOutcome, ReplyTarget};
use crate::reactor::types::rfc5666::Padded;
use spinrpc_proto::rdma::v1::{MSG_HEADER_BYTES, MSGP_FIELDS_BYTES};
#[cfg(feature = "gss")]
use spinrpc_proto::rpc::AuthFlavor;
use spinrpc_proto::rpc::{CallHeader, ReplyHeader};
use spinrpc_proto::xdr::Reader;

impl Dispatch {
    /// Handles a call that came in an RDMA_MSGP, which has a message behind its header.
    #[cold]
    pub(in crate::api) fn on_padded_call(&mut self, frame: &mut CallFrame) -> CallOutcome {
        let (conn, slot) = (frame.conn, frame.slot);
        let header_bytes = frame.admitted.header_bytes as usize;
        // With three empty lists the reply has nothing to echo.
        let plain = header_bytes == MSG_HEADER_BYTES + MSGP_FIELDS_BYTES;
        let Some(sinks) = &mut frame.sinks else {
            #[cfg(feature = "gss")]
            return self.refuse_starved_padded(frame);
            #[cfg(not(feature = "gss"))]
            return CallOutcome::Done;
        };
        let Sinks { chunks, count, bulks, joined, .. } = &mut **sinks;
        let (chunks, bulks) = (&chunks[..*count], &mut bulks[..*count]);
        let (message, padded) = Padded::of(&mut frame.message, header_bytes, joined);
        let serving = Serving::placed(&ReplyTarget { conn, slot, message, plain });
        self.serve_padded(&serving, &message[header_bytes..], chunks, bulks, padded)
    }

    /// As [`Dispatch::serve`], for a call that came in an RDMA_MSGP, whose credential may be padded, too.
    #[cold]
    fn serve_padded(
        &mut self,
        serving: &Serving<'_>,
        stream: &[u8],
        chunks: &[(u32, u32)],
        bulks: &mut [Option<Bulk>],
        mut padded: Padded<'_>,
    ) -> CallOutcome {
        let mut reader = Reader::aligned(stream, padded.alignment, padded.start);
        match CallHeader::read(&mut reader) {
            #[cfg(feature = "gss")]
            Ok(header) if header.credential.flavor == AuthFlavor::Gss => {
                padded.start += reader.position();
                let rest = (reader.rest(), reader.stream_position());
                self.serve_padded_gss(serving, &header, rest, (chunks, bulks), padded)
            }
            Ok(header) => {
                padded.start += reader.position();
                let (stream, base) = (reader.rest(), reader.stream_position());
                self.run(
                    serving,
                    &header,
                    Arguments::new(stream, base, chunks, bulks),
                    Some(padded),
                )
            }
            Err(error) => self.refuse(serving, &refusal(&error)),
        }
    }
}

/// As [`reply_status`](crate::api::reply_status::reply_status), of a reply that came in an RDMA_MSGP: where its results begin
/// in the message, and in the stream, which has no padding.
#[cold]
pub(in crate::api) fn padded_reply_status(
    stream: &[u8],
    padded: &mut Padded<'_>,
) -> Result<(usize, usize), CallError> {
    let mut reader = Reader::aligned(stream, padded.alignment, padded.start);
    let header = ReplyHeader::read(&mut reader)?;
    padded.start += reader.position();
    check_status(&header).map(|()| (reader.position(), reader.stream_position()))
}
