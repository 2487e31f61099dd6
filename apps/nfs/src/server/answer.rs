//! The answer to a call, given in its handler or later, on a core or on a thread of the pool, and counted there.

use super::stats::{Counters, Ticket};
use crate::protocol::{Nfsstat3, ProcedureId};
use spinrpc::sys::clock::Ticks;
use spinrpc::{Bulk, Call, Deferred, Encoder, ReplyData};
use spinrpc_xdr::Encode;

pub(super) struct Answer<'call, 'a> {
    to: To<'call>,
    ticket: Ticket,
    counters: &'a Counters,
    /// Since when its back end has worked at it, if it is deferred.
    works_since: Ticks,
}

#[allow(clippy::large_enum_variant, reason = "on the stack, for the time of a call")]
enum To<'call> {
    Call(Call<'call>),
    Deferred(Deferred),
}

impl<'call, 'a> Answer<'call, 'a> {
    pub(super) fn now(call: Call<'call>, ticket: Ticket, counters: &'a Counters) -> Self {
        Self { to: To::Call(call), ticket, counters, works_since: Ticks(0) }
    }

    pub(super) fn later(call: Deferred, ticket: Ticket, counters: &'a Counters) -> Self {
        Self { to: To::Deferred(call), ticket, counters, works_since: counters.now() }
    }

    /// Its back end has worked at it since then, not since now.
    pub(super) fn since(self, works_since: Ticks) -> Self {
        Self { works_since, ..self }
    }

    pub(super) fn counters(&self) -> &'a Counters {
        self.counters
    }

    pub(super) fn ticket(&self) -> Ticket {
        self.ticket
    }

    pub(super) fn operation(&self) -> ProcedureId {
        self.ticket.operation
    }

    pub(super) fn bulk(&self, bytes: usize) -> Option<Bulk> {
        match &self.to {
            To::Call(call) => call.bulk(bytes),
            To::Deferred(deferred) => deferred.bulk(bytes),
        }
    }

    pub(super) fn defer(self) -> Result<Deferred, Self> {
        match self.to {
            To::Call(call) => call.try_defer().map_err(|call| Self { to: To::Call(call), ..self }),
            To::Deferred(deferred) => Ok(deferred),
        }
    }

    pub(super) fn succeed(self, data: ReplyData, results: impl Fn(&mut Encoder<'_>)) {
        self.send(data, |to| {
            Nfsstat3::Nfs3Ok.encode(to);
            results(to);
        });
    }

    pub(super) fn fail(mut self, status: Nfsstat3, failed: &impl Encode) {
        self.ticket = self.counters.fail(self.ticket, status);
        self.send(ReplyData::new(), |to| {
            status.encode(to);
            failed.encode(to);
        });
    }

    fn send(self, data: ReplyData, results: impl Fn(&mut Encoder<'_>)) {
        self.counters.end(&self.ticket);
        match self.to {
            To::Call(call) => call.reply_with(data, results),
            To::Deferred(mut deferred) => {
                deferred.note_disk(self.counters.elapsed(self.works_since));
                deferred.reply_with(data, results);
            }
        }
    }
}
