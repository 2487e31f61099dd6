//! A program whose calls are not executed twice: stands between the dispatch and the service, asks
//! the reply cache about each call, and stores the service's answers. Programs served without it
//! are not affected.

use super::CoreContext;
#[cfg(feature = "gss")]
use super::call::GssCaller;
use super::call::{Arguments, Call, CallState, Called};
use super::service::{ConnectionEvent, ConnectionId, Service};
use crate::fabric::Peer;
use crate::mem::{Bulk, BulkPool};
use crate::reactor::in_flight::reply_cache::{
    Attached, CallKey, ReplyCache, ReplyKeeper, Stored, Verdict,
};
use crate::reactor::types::calls::CallOutcome;
use crate::reactor::{Negotiated, Progress};
use spinrpc_proto::rpc::AcceptStatus;
use spinrpc_proto::xdr::roundup4;
use std::cell::Cell;
#[cfg(feature = "gss")]
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;
#[cfg(feature = "gss")]
use std::sync::OnceLock;

/// Bytes of credential and arguments that go into their checksums, besides their lengths.
const CHECKED_BYTES: usize = 256;

pub(super) struct ServeOnce {
    inner: Box<dyn Service>,
    cache: Arc<ReplyCache>,
    pool: BulkPool,
    callers: Vec<Option<Caller>>,
}

struct Caller {
    connection: ConnectionId,
    /// None if its client does not come back.
    client: Option<Rc<Attached>>,
}

impl ServeOnce {
    pub(super) fn new(
        inner: Box<dyn Service>,
        cache: Arc<ReplyCache>,
        context: &CoreContext,
    ) -> Self {
        Self { inner, cache, pool: context.pool.clone(), callers: Vec::new() }
    }

    fn on_up(&mut self, connection: ConnectionId, peer: &Peer, negotiated: &Negotiated) {
        let client = self.cache.attach(negotiated.peer(), peer).map(Rc::new);
        let place = connection.0.index() as usize;
        if self.callers.len() <= place {
            self.callers.resize_with(place + 1, || None);
        }
        self.callers[place] = Some(Caller { connection, client });
    }

    fn on_down(&mut self, connection: ConnectionId) {
        let place = self.callers.get_mut(connection.0.index() as usize);
        drop(place.and_then(|place| place.take_if(|c| c.connection == connection)));
    }

    fn client(&self, connection: ConnectionId) -> Option<&Rc<Attached>> {
        let caller = self.callers.get(connection.0.index() as usize)?.as_ref()?;
        caller.client.as_ref().filter(|_| caller.connection == connection)
    }

    fn call_once(&mut self, call: Call<'_>, client: &Attached) {
        let connection = call.connection();
        if self.inner.is_idempotent(call.procedure()) {
            return match client.pass(call.procedure(), call.xid()) {
                true => self.inner.call(call),
                false => call.reject(AcceptStatus::SystemErr),
            };
        }
        if !self.inner.keeps_replies_for(connection) {
            return self.inner.call(call);
        }
        let state = call.0;
        let key = key_of(state);
        let verdict = client.meet(key, |stored| self.answer(state, &stored));
        match verdict {
            Verdict::Execute(keeper) => self.execute(&call, keeper),
            Verdict::Answered => state.outcome.set(Some(CallOutcome::Done)),
            Verdict::Running => match call.try_defer() {
                Ok(deferred) => client.wait(key, deferred),
                Err(call) => drop_repeated(&call),
            },
            Verdict::Superseded => call.reject(AcceptStatus::SystemErr),
            Verdict::Full => {
                state.ops().count(|stats| stats.reply_cache_full += 1);
                self.inner.too_many(call);
            }
        }
    }

    /// Sends a kept reply: through the chunks of this call, if it has any.
    fn answer(&self, state: &CallState<'_>, stored: &Stored<'_>) {
        let ops = state.ops();
        ops.count(|stats| stats.replies_replayed += 1);
        let Some(to) = state.target() else { return };
        match stored.reply(|bytes| self.pool.take(bytes)) {
            Ok((data, draft)) => ops.answer_with(&to, data, &draft),
            Err(why) => ops.reject(&to, &why),
        }
    }

    fn execute(&mut self, call: &Call<'_>, keeper: ReplyKeeper) {
        let outer = call.0;
        // A reply that is written into the room would not be kept.
        outer.serving.forgo_room();
        let keeper = Cell::new(Some(keeper));
        let state = CallState {
            home: outer.home,
            keeper: Some(&keeper),
            serving: outer.serving,
            called: outer.called,
            credential: outer.credential,
            arguments: Cell::new(outer.arguments.take()),
            outcome: Cell::new(None),
            #[cfg(feature = "gss")]
            caller: outer.caller,
        };
        let inner = &mut self.inner;
        let called = catch_unwind(AssertUnwindSafe(|| inner.call(Call(&state))));
        // Also after a panic: a call that was deferred before it is answered later.
        outer.outcome.set(state.outcome.get());
        if let Err(payload) = called {
            resume_unwind(payload);
        }
    }
}

impl Service for ServeOnce {
    fn call(&mut self, call: Call<'_>) {
        match self.client(call.connection()).map(Rc::clone) {
            Some(client) => self.call_once(call, &client),
            None => self.inner.call(call),
        }
    }

    fn polls(&self) -> bool {
        self.inner.polls()
    }

    fn poll(&mut self) -> Progress {
        self.inner.poll()
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        match event {
            ConnectionEvent::Up { connection, peer, negotiated } => {
                self.on_up(*connection, peer, negotiated);
            }
            ConnectionEvent::Down { connection, .. } => self.on_down(*connection),
            _ => {}
        }
        self.inner.on_event(event);
    }
}

/// A repeated call whose first one is being executed cannot wait here for its reply. An error would be the answer to what
/// is being done, and "try again" would have it done twice, by another XID. So its connection ends, and its client sends
/// the call again over the next one.
fn drop_repeated(call: &Call<'_>) {
    let state = call.0;
    state.outcome.set(Some(CallOutcome::Done));
    state.ops().close(state.serving.conn);
}

fn key_of(state: &CallState<'_>) -> CallKey {
    let Called { xid, program, version, procedure } = state.called;
    let mut start = StreamStart::default();
    start.push(state.credential.map_or(&[][..], |credential| credential.body));
    let credential = start.checksum();
    #[cfg(feature = "gss")]
    let credential = state.caller.map_or(credential, proved_user);
    CallKey { xid, program, version, procedure, credential, arguments: arguments_of(state) }
}

/// Key for the user of a call under RPCSEC_GSS, whose credential differs each time. It cannot be
/// guessed without access to this memory: a call without a context cannot obtain the reply that is
/// kept of a call with one.
/// A call that is sent again under a new context has the same key, even if the server maps its user differently by then.
#[cfg(feature = "gss")]
fn proved_user(caller: GssCaller<'_>) -> u64 {
    hash_of_user((caller.context.name(), caller.service.to_wire()))
}

#[cfg(feature = "gss")]
fn hash_of_user(user: (&str, u32)) -> u64 {
    static KEYS: OnceLock<RandomState> = OnceLock::new();
    KEYS.get_or_init(RandomState::new).hash_one(user)
}

/// The checksum of the arguments, unless they have padding.
fn arguments_of(state: &CallState<'_>) -> Option<u64> {
    let arguments = state.arguments.take();
    let mut start = StreamStart::default();
    let mut is_padded = false;
    if let Some(arguments) = &arguments {
        is_padded = arguments.beside.as_ref().is_some_and(|beside| beside.padded.is_some());
        start.push_arguments(arguments);
    }
    state.arguments.set(arguments);
    (!is_padded).then(|| start.checksum())
}

/// The first bytes of a credential or of arguments, as they would stand in one stream without
/// chunks: a call that is sent again may have its data items elsewhere than the first time.
struct StreamStart {
    bytes: [u8; CHECKED_BYTES],
    length: usize,
}

impl Default for StreamStart {
    fn default() -> Self {
        Self { bytes: [0; CHECKED_BYTES], length: 0 }
    }
}

impl StreamStart {
    fn push(&mut self, bytes: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.length..) {
            let count = room.len().min(bytes.len());
            room[..count].copy_from_slice(&bytes[..count]);
        }
        self.length += roundup4(bytes.len());
    }

    fn push_arguments(&mut self, arguments: &Arguments<'_>) {
        let Arguments { stream, base, beside } = arguments;
        let chunks = beside.iter().flat_map(|it| it.chunks.iter().zip(it.bulks.iter()));
        let (mut from, mut removed_bytes) = (0, 0);
        for ((position, length), bulk) in chunks {
            let at = (*position as usize).saturating_sub(base + removed_bytes);
            self.push(stream.get(from..at).unwrap_or_default());
            let bytes = bulk.as_ref().map_or(&[][..], Bulk::bytes);
            self.push(&bytes[..bytes.len().min(*length as usize)]);
            from = at.max(from);
            removed_bytes += roundup4(*length as usize);
        }
        self.push(stream.get(from..).unwrap_or_default());
    }

    /// Multiply and fold, eight bytes at a time.
    fn checksum(&self) -> u64 {
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        let used = self.length.min(CHECKED_BYTES).next_multiple_of(8);
        let words = self.bytes[..used].chunks_exact(8);
        words.fold(self.length as u64, |sum, word| {
            let word = word.first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
            let mixed = (sum ^ word).wrapping_mul(FACTOR);
            mixed ^ (mixed >> 29)
        })
    }
}

#[cfg(test)]
#[cfg(feature = "gss")]
mod tests {
    use super::*;
    use std::hash::{BuildHasherDefault, DefaultHasher};

    /// A client without a context chooses its credential, and so the checksum of that.
    #[test]
    fn the_key_of_a_user_is_the_same_for_each_call_and_cannot_be_computed_by_others() {
        let user = ("alice@SPIN.TEST", 3);
        assert_eq!(hash_of_user(user), hash_of_user(user));
        assert_ne!(hash_of_user(user), BuildHasherDefault::<DefaultHasher>::new().hash_one(user));
    }
}
