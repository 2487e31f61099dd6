//! A service whose handlers are futures.

use super::ready::{Ready, SLOTS_MAX};
use super::slots::{Slots, UnansweredCall};
use crate::api::call::Call;
use crate::api::codec::Encoder;
use crate::api::core::CoreContext;
use crate::api::service::{ConnectionEvent, ConnectionId, Service};
use crate::reactor::Deferred;
use crate::reactor::types::memory::DEFERRED_MAX;
use crate::reactor::{Progress, ReplyData};
use spinrpc_proto::ids::Procedure;
use spinrpc_proto::rpc::AcceptStatus;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

/// A program's procedures as async functions; [`async_service`] makes a [`Service`] of it.
///
/// A handler runs on its core, interleaved with other handlers, and leaves the core free whenever
/// it awaits. It need not be `Send`. It may await anything that wakes its waker, from any thread:
/// calls by a [`ClientHandle`](crate::ClientHandle), including one of the same core
/// ([`CoreContext::connect`](crate::CoreContext::connect)), timers and channels of a runtime.
/// Runtimes are not needed; create futures that do need one, such as timers of tokio, inside of it
/// (`tokio::runtime::Handle::enter`).
///
/// Procedure 0, which does nothing in every program (RFC 5531 section 12.1), is answered without a handler.
///
/// A handler is dropped, at the place where it awaits, when the connection of its call goes down. ONC RPC cannot tell
/// a server that a caller has given a call up, so such a handler goes on, and the caller's transport drops the answer.
/// A handler that panics costs its caller a SYSTEM_ERR, as in [`Service::call`].
pub trait AsyncService: 'static {
    /// Decoded arguments of a call, which a handler keeps.
    type Request;
    /// The results of a call.
    type Reply: Results;

    /// Takes the parts that the handler needs out of a call: procedure, arguments, credential.
    /// Long data items are taken without a copy by [`Decoder::data`](crate::Decoder::data).
    ///
    /// # Errors
    /// The call is answered with this, and has no handler:
    /// [`GarbageArgs`](AcceptStatus::GarbageArgs) or [`ProcUnavail`](AcceptStatus::ProcUnavail).
    fn request(&self, call: &mut Call<'_>) -> Result<Self::Request, AcceptStatus>;

    /// Executes a call: `async fn call(self: Rc<Self>, request: Self::Request)`. It is polled at once, and if it has
    /// its results then they leave as those of any [`Service`]. Otherwise the call is deferred.
    fn call(
        self: Rc<Self>,
        request: Self::Request,
    ) -> impl Future<Output = Result<Self::Reply, AcceptStatus>>;

    /// Answers a call that comes when as many handlers run as the service takes, or one whose handler awaits when the
    /// core cannot defer more calls ([`Call::defer`]), or one for whose reply there is no place
    /// ([`Service::too_many`]). By default the caller gets SYSTEM_ERR, and may try again; programs
    /// whose results can say that there is too much to do say so here. In the second case the handler has begun, and was
    /// dropped at the first place where it awaits.
    fn too_many(&self, call: Call<'_>) {
        call.reject(AcceptStatus::SystemErr);
    }

    /// As [`Service::is_idempotent`].
    fn is_idempotent(&self, procedure: Procedure) -> bool {
        procedure == Procedure(0)
    }

    /// As [`Service::keeps_replies_for`].
    fn keeps_replies_for(&self, connection: ConnectionId) -> bool {
        let _ = connection;
        true
    }

    /// As [`Service::on_event`].
    fn on_event(&self, event: &ConnectionEvent) {
        let _ = event;
    }
}

/// Results of a call, to be encoded: a type of the application's own, `()` for none, [`WithData`] for registered data
/// items, or a function that writes them, such as a `Box<dyn FnOnce(&mut Encoder<'_>)>`.
pub trait Results {
    /// Registered data items sent with the results, which [`Results::encode`] names with
    /// [`Encoder::bulk`](crate::Encoder::bulk). Called once, before the results are encoded.
    fn data(&mut self) -> Option<ReplyData> {
        None
    }

    /// Writes the results.
    fn encode(self, results: &mut Encoder<'_>);
}

impl<E: FnOnce(&mut Encoder<'_>)> Results for E {
    fn encode(self, results: &mut Encoder<'_>) {
        self(results);
    }
}

impl Results for () {
    fn encode(self, _: &mut Encoder<'_>) {}
}

/// Results with registered data items.
#[derive(Debug)]
pub struct WithData<R>(pub ReplyData, pub R);

impl<R: Results> Results for WithData<R> {
    fn data(&mut self) -> Option<ReplyData> {
        Some(std::mem::take(&mut self.0))
    }

    fn encode(self, results: &mut Encoder<'_>) {
        self.1.encode(results);
    }
}

// A bit for each.
const _: () = assert!(DEFERRED_MAX <= SLOTS_MAX);

/// A service that runs at most `calls_max` handlers of `service` at a time on its core, for
/// [`Engine::serve`](crate::Engine::serve). Their memory is allocated now; later, only the handlers
/// themselves allocate. The limit is at least 1, and at most 2048, which is as many calls as a core
/// defers. A call that comes when it is reached has no handler ([`AsyncService::too_many`]).
pub fn async_service<S: AsyncService>(
    core: &CoreContext,
    calls_max: usize,
    service: S,
) -> impl Service + use<S> {
    let calls_max = calls_max.clamp(1, DEFERRED_MAX);
    let ready = Ready::new(calls_max, Arc::clone(&core.calls));
    let slots = Slots::new(calls_max, &ready);
    AsyncHandlers { service: Rc::new(service), execute: S::call, slots, ready }
}

/// Runs the futures that `execute` returns; their type cannot be named.
struct AsyncHandlers<S, X, F> {
    service: Rc<S>,
    execute: X,
    slots: Slots<F>,
    ready: Ready,
}

impl<S, X, F> AsyncHandlers<S, X, F>
where
    S: AsyncService,
    F: Future<Output = Result<S::Reply, AcceptStatus>>,
{
    fn go_on(&mut self, number: usize) {
        let Some(mut slot) = self.slots.occupied(number) else { return };
        match slot.poll() {
            Poll::Pending => slot.keep(),
            Poll::Ready(result) => {
                if let Some(call) = slot.finish() {
                    answer_deferred(call.deferred, result);
                }
            }
        }
    }
}

impl<S, X, F> Service for AsyncHandlers<S, X, F>
where
    S: AsyncService,
    X: Fn(Rc<S>, S::Request) -> F,
    F: Future<Output = Result<S::Reply, AcceptStatus>>,
{
    fn call(&mut self, mut call: Call<'_>) {
        if call.procedure() == Procedure(0) {
            return call.reply(|_| {});
        }
        if self.slots.is_full() {
            return self.service.too_many(call);
        }
        let request = match self.service.request(&mut call) {
            Ok(request) => request,
            Err(status) => return call.reject(status),
        };
        let future = (self.execute)(Rc::clone(&self.service), request);
        let Some(mut slot) = self.slots.put(future) else { return };
        if let Poll::Ready(result) = slot.poll() {
            drop(slot);
            return answer(call, result);
        }
        let connection = call.connection();
        match call.try_defer() {
            Ok(deferred) => slot.keep_for(UnansweredCall { deferred, connection }),
            Err(call) => {
                drop(slot);
                self.service.too_many(call);
            }
        }
    }

    fn is_idempotent(&self, procedure: Procedure) -> bool {
        self.service.is_idempotent(procedure)
    }

    fn keeps_replies_for(&mut self, connection: ConnectionId) -> bool {
        self.service.keeps_replies_for(connection)
    }

    fn too_many(&mut self, call: Call<'_>) {
        self.service.too_many(call);
    }

    fn polls(&self) -> bool {
        true
    }

    fn poll(&mut self) -> Progress {
        let mut events = 0;
        if self.ready.begin() {
            while let Some(number) = self.ready.next() {
                self.go_on(number);
                events += 1;
            }
        }
        Progress { events, is_waiting: false }
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        // First: a future that panics when it is dropped ends this.
        self.service.on_event(event);
        if let ConnectionEvent::Down { connection, .. } = event {
            self.slots.drop_of(*connection);
        }
    }
}

fn answer<R: Results>(call: Call<'_>, result: Result<R, AcceptStatus>) {
    match result {
        Ok(mut results) => match results.data() {
            None => call.reply(|encoder| results.encode(encoder)),
            Some(data) => call.reply_with(data, |encoder| results.encode(encoder)),
        },
        Err(status) => call.reject(status),
    }
}

fn answer_deferred<R: Results>(deferred: Deferred, result: Result<R, AcceptStatus>) {
    match result {
        Ok(mut results) => {
            let data = results.data().unwrap_or_default();
            deferred.reply_with(data, |encoder| results.encode(encoder));
        }
        Err(status) => deferred.reject(status),
    }
}
