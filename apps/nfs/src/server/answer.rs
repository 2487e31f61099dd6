//! The answer to a call, given in its handler or later, on a core or on a thread of the pool, and
//! counted there. Called by `service`, `data` and `procedures`.

use super::stats::Counters;
use crate::protocol::{Nfsstat3, ProcedureId};
use spinrpc::{Call, Deferred, Encoder, ReplyData};
use spinrpc_xdr::Encode;

/// An answer that is still owed to a caller.
pub(super) struct Answer<'call, 'a> {
    to: To<'call>,
    operation: ProcedureId,
    counters: &'a Counters,
}

#[allow(clippy::large_enum_variant, reason = "on the stack, for the time of a call")]
enum To<'call> {
    Call(Call<'call>),
    Deferred(Deferred),
}

impl<'call, 'a> Answer<'call, 'a> {
    pub(super) fn now(call: Call<'call>, operation: ProcedureId, counters: &'a Counters) -> Self {
        Self { to: To::Call(call), operation, counters }
    }

    pub(super) fn later(call: Deferred, operation: ProcedureId, counters: &'a Counters) -> Self {
        Self { to: To::Deferred(call), operation, counters }
    }

    pub(super) fn counters(&self) -> &'a Counters {
        self.counters
    }

    pub(super) fn operation(&self) -> ProcedureId {
        self.operation
    }

    /// Defers the answer; returns it if that is not possible.
    #[expect(clippy::result_large_err, reason = "the answer itself comes back")]
    pub(super) fn defer(self) -> Result<Deferred, Self> {
        match self.to {
            To::Call(call) => call.try_defer().map_err(|call| Self { to: To::Call(call), ..self }),
            To::Deferred(deferred) => Ok(deferred),
        }
    }

    /// Answers NFS3_OK with `results`.
    pub(super) fn succeed(self, data: ReplyData, results: impl Fn(&mut Encoder<'_>)) {
        self.send(data, |to| {
            Nfsstat3::Nfs3Ok.encode(to);
            results(to);
        });
    }

    /// Answers another status with its results.
    pub(super) fn fail(self, status: Nfsstat3, failed: &impl Encode) {
        self.counters.count_answer(self.operation, status);
        self.send(ReplyData::new(), |to| {
            status.encode(to);
            failed.encode(to);
        });
    }

    fn send(self, data: ReplyData, results: impl Fn(&mut Encoder<'_>)) {
        match self.to {
            To::Call(call) => call.reply_with(data, results),
            To::Deferred(deferred) => deferred.reply_with(data, results),
        }
    }
}
