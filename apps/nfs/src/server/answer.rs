//! The answer to a call, given in its handler or later, on a core or on a thread of the pool, and counted there.

use super::stats::{Counters, Ticket};
use crate::protocol::Nfsstat3;
use spinrpc::sys::clock::Ticks;
use spinrpc::{Bulk, Call, Deferred, Encoder, ReplyData};
use spinrpc_xdr::Encode;

pub(super) struct Answer<'call, 'a> {
    to: To<'call>,
    pub(super) ticket: Ticket,
    pub(super) counters: &'a Counters,
    works_since: Option<Ticks>,
}

/// A deferred call, and since when its back end has worked at it, if somebody asks for that.
pub(super) type Owed = (Deferred, Option<Ticks>);

#[allow(clippy::large_enum_variant, reason = "on the stack, for the time of a call")]
enum To<'call> {
    Call(Call<'call>),
    Deferred(Deferred),
}

impl<'call, 'a> Answer<'call, 'a> {
    pub(super) fn now(call: Call<'call>, ticket: Ticket, counters: &'a Counters) -> Self {
        Self { to: To::Call(call), ticket, counters, works_since: None }
    }

    pub(super) fn later(call: Deferred, ticket: Ticket, counters: &'a Counters) -> Self {
        Self::owed(Self::begin(call, counters), ticket, counters)
    }

    pub(super) fn owed((call, works_since): Owed, ticket: Ticket, counters: &'a Counters) -> Self {
        Self { to: To::Deferred(call), ticket, counters, works_since }
    }

    fn begin(call: Deferred, counters: &Counters) -> Owed {
        let works_since = call.is_timed().then(|| counters.now());
        (call, works_since)
    }

    pub(super) fn bulk(&self, bytes: usize) -> Option<Bulk> {
        match &self.to {
            To::Call(call) => call.bulk(bytes),
            To::Deferred(deferred) => deferred.bulk(bytes),
        }
    }

    pub(super) fn defer(self) -> Result<Owed, Self> {
        match self.to {
            To::Call(call) => match call.try_defer() {
                Ok(call) => Ok(Self::begin(call, self.counters)),
                Err(call) => Err(Self { to: To::Call(call), ..self }),
            },
            To::Deferred(call) => Ok((call, self.works_since)),
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
                if let Some(since) = self.works_since {
                    deferred.note_disk(self.counters.elapsed(since));
                }
                deferred.reply_with(data, results);
            }
        }
    }
}
