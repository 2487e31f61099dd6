//! The source that a call is sent again from: its terms, and its stream as the encoder has written it.

use crate::mem::{Bulk, BulkPool};
use crate::reactor::types::calls::{CallSpec, Resend};
use crate::reactor::types::encoded_stream::{EncodedStream, ItemOffsets};
#[cfg(feature = "gss")]
use spinrpc_proto::events::SlotId;
use spinrpc_proto::ids::Instant;
use spinrpc_proto::limits::ITEMS_MAX;

/// Terms of a call: what its spec says apart from data items.
#[derive(Clone, Copy, Default)]
pub(crate) struct Terms {
    deadline: Instant,
    reply_bytes_max: usize,
    is_reply_assumed: bool,
    resend: Resend,
    #[cfg(feature = "gss")]
    is_setup: bool,
}

impl Terms {
    pub(in crate::reactor) fn of(
        spec: &CallSpec,
        deadline: Instant,
        reply_bytes_max: usize,
    ) -> Self {
        Self {
            deadline,
            reply_bytes_max,
            is_reply_assumed: spec.is_reply_assumed,
            resend: spec.resend,
            #[cfg(feature = "gss")]
            is_setup: spec.is_setup,
        }
    }

    getters! {
        deadline: Instant,
        reply_bytes_max: usize,
        is_reply_assumed: bool,
        resend: Resend,
        /// The call prepares a connection, so that it may go without a security context.
        #[cfg(feature = "gss")]
        is_setup: bool,
    }
}

/// A call that may be sent again: on another connection, in another version, or under another context. Not protected, because
/// each protection has a sequence number of its own (RFC 2203 section 5.3.3.1).
pub(crate) struct Kept {
    /// The RPC message from its XID on, its data items taken out.
    stream: Bulk,
    cuts: ItemOffsets,
    terms: Terms,
    /// Number of times it was sent again.
    resends: u8,
    /// Sent on the present connection.
    in_flight: bool,
    is_unknown: bool,
    order: u64,
    result_bytes: [Option<usize>; ITEMS_MAX],
    /// If it was denied, under a context before: the slot in which it was, by which the application knows it, and its own.
    #[cfg(feature = "gss")]
    renamed: Option<(SlotId, SlotId)>,
    /// It was denied, and not sent again yet.
    is_denied: bool,
}

impl Kept {
    /// A copy in memory of `pool`; `None` if no block is free.
    pub(in crate::reactor) fn new(
        pool: &BulkPool,
        draft: &EncodedStream<'_>,
        order: u64,
        terms: Terms,
        results: &[Option<Bulk>; ITEMS_MAX],
    ) -> Option<Self> {
        let mut stream = pool.take(draft.stream().len())?;
        stream.bytes_mut().copy_from_slice(draft.stream());
        Some(Self {
            stream,
            cuts: *draft.cuts(),
            terms,
            resends: 0,
            in_flight: true,
            is_unknown: false,
            order,
            result_bytes: results.each_ref().map(|result| result.as_ref().map(Bulk::len)),
            #[cfg(feature = "gss")]
            renamed: None,
            is_denied: false,
        })
    }

    /// The RPC message.
    pub(in crate::reactor) fn draft(&self) -> EncodedStream<'_> {
        EncodedStream::new(self.stream.bytes(), self.cuts)
    }

    getters! {
        #[cfg(feature = "gss")]
        terms: &Terms,
        /// Rises from call to call.
        order: u64,
        /// It was denied, and not sent again yet.
        is_denied: bool,
        /// Room for each result.
        result_bytes: &[Option<usize>; ITEMS_MAX],
    }

    /// A connection was lost on which it may have been executed.
    pub(crate) fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// The connection is lost. Returns true if its memory is to be taken back from the peer, because the call was sent there, or
    /// was about to be. A call that was not sent did not bring the connection down.
    pub(in crate::reactor) fn note_loss(&mut self, is_unsent: bool) -> bool {
        if self.in_flight {
            match is_unsent {
                true => self.resends = self.resends.saturating_sub(1),
                false => self.is_unknown = true,
            }
        }
        std::mem::take(&mut self.in_flight)
    }

    /// Returns true if it may be sent on another connection. "A bound on resends": a call that brings the connection down
    /// each time would otherwise do so forever (RFC 8166 section 4.5.3).
    pub(in crate::reactor) fn may_resend(&self, resends_max: u8, was_sent: bool) -> bool {
        self.terms.resend != Resend::Never && (!was_sent || self.resends < resends_max)
    }

    /// It may have been executed, and must not be twice.
    pub(in crate::reactor) fn is_unrepeatable(&self) -> bool {
        self.is_unknown && self.terms.resend == Resend::AtMostOnce
    }

    /// Returns true if it may have another XID, and has not had one.
    #[cfg(feature = "gss")]
    pub(in crate::reactor) fn may_repeat(&self) -> bool {
        self.renamed.is_none() && !self.is_unrepeatable()
    }

    /// The call was denied in one slot, and waits in another.
    #[cfg(feature = "gss")]
    pub(in crate::reactor) fn denied(self, from: SlotId, to: SlotId) -> Self {
        Self { renamed: Some((from, to)), is_denied: true, in_flight: false, ..self }
    }

    /// The slot by which the application knows a call that was denied.
    #[cfg(feature = "gss")]
    pub(crate) fn denied_in(&self) -> Option<SlotId> {
        self.renamed.map(|(from, _)| from)
    }

    /// The slot of the call that was denied in this one.
    #[cfg(feature = "gss")]
    pub(in crate::reactor) fn moved_from(&self, slot: SlotId) -> Option<SlotId> {
        self.renamed.filter(|(from, _)| *from == slot).map(|(_, to)| to)
    }

    pub(in crate::reactor) fn count_resend(&mut self) {
        (self.in_flight, self.is_denied) = (true, false);
        self.resends += 1;
    }
}
